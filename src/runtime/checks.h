/* Checks of a run's tensors: addresses, strides, results that would overlap. Each failure is SPLAT_INVALID with a
 * sentence. */
#ifndef SP_CHECKS_H
#define SP_CHECKS_H

#include "splat.h"

/* A tensor of [batch, heads, rows, dim]; without `tensor`, strides alone are checked. */
struct sp_operand {
    const char *name, *dot; /* a stride is called <name><dot><axis>_stride */
    const splat_tensor *tensor;
    int64_t heads, rows, dim;
    int written;
};

/* `least`: what a stride of results must step over. */
enum splat_status sp_check_stride(const struct sp_operand *x, const char *axis, int64_t stride, int64_t extent,
                                  int gpu, int64_t least);
enum splat_status sp_check_operand(const struct sp_operand *x, int64_t batch, int gpu, size_t alignment);

/* Whether the elements of results are distinct. axes: stride and extent of each axis beyond the `dim` contiguous
 * ones; they are put in another order. */
enum splat_status sp_check_distinct(const char *name, int64_t dim, int64_t (*axes)[2], int count);

#endif
