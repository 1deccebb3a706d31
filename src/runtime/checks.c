/* Checks of a run's tensors (checks.h). */
#include "runtime/checks.h"

#include "common/error.h"

enum splat_status sp_check_stride(const struct sp_operand *x, const char *axis, int64_t stride, int64_t extent,
                                  int gpu, int64_t least)
{
    if (extent <= 1)
        return SPLAT_OK;
    if (stride < 0)
        return sp_fail(SPLAT_INVALID, "%s%s%s_stride is %lld; it must not be negative", x->name, x->dot, axis,
                       (long long)stride);
    if (stride > INT64_MAX / 16 / extent) /* three axes of 4-byte elements add up to less than 2^63 bytes */
        return sp_fail(SPLAT_INVALID, "%s%s%s_stride is %lld; times %lld it does not fit 64 bits", x->name, x->dot,
                       axis, (long long)stride, (long long)extent);
    if (x->written && stride < least)
        return sp_fail(SPLAT_INVALID, "%s%s%s_stride is %lld; results would overlap: it must be at least %lld",
                       x->name, x->dot, axis, (long long)stride, (long long)least);
    if (gpu && stride % 8 != 0)
        return sp_fail(SPLAT_INVALID, "%s%s%s_stride is %lld; on the GPU it must be a multiple of 8 elements",
                       x->name, x->dot, axis, (long long)stride);
    return SPLAT_OK;
}

enum splat_status sp_check_operand(const struct sp_operand *x, int64_t batch, int gpu, size_t alignment)
{
    if (!x->tensor->data)
        return sp_fail(SPLAT_INVALID, "%s.data is null; it must point to the tensor", x->name);
    if ((uintptr_t)x->tensor->data % alignment != 0)
        return sp_fail(SPLAT_INVALID, "%s.data is %p; on the %s it must be aligned to %zu bytes", x->name,
                       x->tensor->data, gpu ? "GPU" : "CPU", alignment);
    enum splat_status status = sp_check_stride(x, "row", x->tensor->row_stride, x->rows, gpu, x->dim);
    if (status == SPLAT_OK)
        status = sp_check_stride(x, "head", x->tensor->head_stride, x->heads, gpu, x->dim);
    if (status == SPLAT_OK)
        status = sp_check_stride(x, "batch", x->tensor->batch_stride, batch, gpu, x->dim);
    return status;
}

/* Whether an output's elements are distinct: its axes, from the smallest stride up, each step over all that lies
 * below. */
enum splat_status sp_check_distinct(const char *name, int64_t dim, int64_t (*axes)[2], int count)
{
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && axes[k][0] < axes[k - 1][0]; k--)
            for (int x = 0; x < 2; x++) {
                int64_t swap = axes[k][x];
                axes[k][x] = axes[k - 1][x];
                axes[k - 1][x] = swap;
            }
    int64_t span = dim;
    for (int i = 0; i < count; i++) {
        if (axes[i][1] > 1 && axes[i][0] < span)
            return sp_fail(
                SPLAT_INVALID,
                "a stride of %s is %lld; results would overlap: what lies within one step takes %lld elements",
                name, (long long)axes[i][0], (long long)span);
        if (axes[i][1] > 1)
            span += (axes[i][1] - 1) * axes[i][0];
    }
    return SPLAT_OK;
}
