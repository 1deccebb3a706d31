/* splat_run_sparse: the operators on values. As splat_run: checks, fills in what changes, launches once. */
#include <float.h>
#include <limits.h>
#include <math.h>

#include "analysis/values.h"
#include "common/error.h"
#include "runtime/checks.h"
#include "runtime/cpu_engine.h"
#include "runtime/kernel.h"

/* ---- Checks ---- */

static int is_transposed(const splat_kernel *kernel)
{
    return kernel->options.op == SPLAT_OP_SPMM_TRANSPOSED;
}

static enum splat_status check_counts(const splat_kernel *kernel, const splat_sparse_args *args)
{
    const splat_plan *plan = kernel->plan;
    const int64_t q_len = is_transposed(kernel) ? plan->kv_len : plan->q_len;
    const int64_t kv_len = is_transposed(kernel) ? plan->q_len : plan->kv_len;
    if (args->batch < 1 || args->heads < 1 || args->batch > INT_MAX / args->heads)
        return sp_fail(SPLAT_INVALID,
                       "batch is %lld and heads is %lld; each must be at least 1 and their product at most %d",
                       (long long)args->batch, (long long)args->heads, INT_MAX);
    if (args->kv_heads < 1 || args->heads % args->kv_heads != 0)
        return sp_fail(SPLAT_INVALID, "kv_heads is %lld; it must be at least 1 and divide heads, %lld",
                       (long long)args->kv_heads, (long long)args->heads);
    if (is_transposed(kernel) && args->kv_heads != args->heads)
        return sp_fail(
            SPLAT_INVALID,
            "kv_heads is %lld; with SPLAT_OP_SPMM_TRANSPOSED it must be heads, %lld: each head has a y of its own "
            "(add up those of a group)",
            (long long)args->kv_heads, (long long)args->heads);
    if (args->q_len != q_len || args->kv_len != kv_len)
        return sp_fail(SPLAT_INVALID,
                       "q_len x kv_len is %lld x %lld; the kernel was compiled for a mask of %lld x %lld",
                       (long long)args->q_len, (long long)args->kv_len, (long long)q_len, (long long)kv_len);
    if (plan->map && ((plan->map_batch != 1 && plan->map_batch != args->batch) ||
                      (plan->map_heads != 1 && plan->map_heads != args->heads)))
        return sp_fail(
            SPLAT_INVALID, "batch x heads is %lld x %lld; the mask map has %lld x %lld (1 serves any number)",
            (long long)args->batch, (long long)args->heads, (long long)plan->map_batch, (long long)plan->map_heads);
    if (!(args->scale > 0.0f) || !isfinite(args->scale))
        return sp_fail(SPLAT_INVALID, "scale is %g; it must be finite and above 0, or 0 for the default",
                       (double)args->scale);
    return SPLAT_OK;
}

static size_t alignment_of(const splat_kernel *kernel)
{
    return kernel->device == SPLAT_DEVICE_GPU ? 16 : kernel->options.dtype == SPLAT_FP32 ? 4 : 2;
}

static enum splat_status check_values(const splat_kernel *kernel, const splat_sparse_args *args, const char *name,
                                      const splat_values *values, int written)
{
    const int64_t most = sp_most_values(kernel->plan);
    const splat_tensor tensor = {values->data, values->batch_stride, values->head_stride, 0};
    struct sp_operand x = {name, ".", &tensor, args->heads, 1, most, written};
    int64_t axes[2][2] = {{values->head_stride, args->heads}, {values->batch_stride, args->batch}};
    if (most == 0)
        return SPLAT_OK;
    enum splat_status status =
        sp_check_operand(&x, args->batch, kernel->device == SPLAT_DEVICE_GPU, alignment_of(kernel));
    return status == SPLAT_OK && written ? sp_check_distinct(name, most, axes, 2) : status;
}

static enum splat_status check_tensor(const splat_kernel *kernel, const splat_sparse_args *args, const char *name,
                                      const splat_tensor *tensor, int64_t heads, int64_t rows, int written)
{
    const int64_t dim = kernel->options.head_dim;
    struct sp_operand x = {name, ".", tensor, heads, rows, dim, written};
    int64_t axes[3][2] = {
        {tensor->row_stride, rows}, {tensor->head_stride, heads}, {tensor->batch_stride, args->batch}};
    enum splat_status status =
        sp_check_operand(&x, args->batch, kernel->device == SPLAT_DEVICE_GPU, alignment_of(kernel));
    return status == SPLAT_OK && written ? sp_check_distinct(name, dim, axes, 3) : status;
}

static enum splat_status check_lse(const splat_sparse_args *args)
{
    if (!args->lse)
        return SPLAT_OK;
    if ((uintptr_t)args->lse % sizeof(float) != 0)
        return sp_fail(SPLAT_INVALID, "lse is %p; it must be aligned to 4 bytes", (void *)args->lse);
    struct sp_operand lse = {"lse", "_", NULL, args->heads, 1, args->q_len, 1};
    int64_t axes[2][2] = {{args->lse_head_stride, args->heads}, {args->lse_batch_stride, args->batch}};
    enum splat_status status = sp_check_stride(&lse, "head", args->lse_head_stride, args->heads, 0, args->q_len);
    if (status == SPLAT_OK)
        status = sp_check_stride(&lse, "batch", args->lse_batch_stride, args->batch, 0, args->q_len);
    return status == SPLAT_OK ? sp_check_distinct("lse", args->q_len, axes, 2) : status;
}

static enum splat_status check_scores(const splat_kernel *kernel, const splat_sparse_args *args)
{
    const splat_values *scores = &args->scores, *values = &args->values;
    enum splat_status status = check_values(kernel, args, "scores", scores, 0);
    if (status == SPLAT_OK && scores->data == values->data &&
        ((args->heads > 1 && scores->head_stride != values->head_stride) ||
         (args->batch > 1 && scores->batch_stride != values->batch_stride)))
        return sp_fail(SPLAT_INVALID,
                       "scores.head_stride, batch_stride are %lld, %lld and those of values %lld, %lld; in place "
                       "they must be equal",
                       (long long)scores->head_stride, (long long)scores->batch_stride,
                       (long long)values->head_stride, (long long)values->batch_stride);
    return status;
}

static enum splat_status check_operands(const splat_kernel *kernel, const splat_sparse_args *args)
{
    const enum splat_op op = kernel->options.op;
    const int writes_values = op == SPLAT_OP_SDDMM || op == SPLAT_OP_SOFTMAX;
    enum splat_status status = check_values(kernel, args, "values", &args->values, writes_values);
    if (status != SPLAT_OK)
        return status;
    if (op == SPLAT_OP_SOFTMAX) {
        status = check_scores(kernel, args);
        return status == SPLAT_OK ? check_lse(args) : status;
    }
    if (op == SPLAT_OP_SDDMM) {
        status = check_tensor(kernel, args, "q", &args->q, args->heads, args->q_len, 0);
        return status == SPLAT_OK ? check_tensor(kernel, args, "k", &args->k, args->kv_heads, args->kv_len, 0)
                                  : status;
    }
    status = check_tensor(kernel, args, "x", &args->x, args->kv_heads, kernel->plan->kv_len, 0);
    return status == SPLAT_OK ? check_tensor(kernel, args, "y", &args->y, args->heads, kernel->plan->q_len, 1)
                              : status;
}

/* ---- Launch ---- */

static struct sp_sparse_args fill_args(const splat_kernel *kernel, const splat_sparse_args *a)
{
    const enum splat_op op = kernel->options.op;
    const splat_values *read = op == SPLAT_OP_SOFTMAX ? &a->scores : &a->values;
    struct sp_sparse_args sparse = kernel->sparse;
    struct sp_launch_args *args = &sparse.plan;
    *args = kernel->args;
    args->q = a->q.data, args->k = a->k.data, args->v = a->x.data, args->o = a->y.data;
    args->q_batch = a->q.batch_stride, args->q_head = a->q.head_stride, args->q_row = a->q.row_stride;
    args->k_batch = a->k.batch_stride, args->k_head = a->k.head_stride, args->k_row = a->k.row_stride;
    args->v_batch = a->x.batch_stride, args->v_head = a->x.head_stride, args->v_row = a->x.row_stride;
    args->o_batch = a->y.batch_stride, args->o_head = a->y.head_stride, args->o_row = a->y.row_stride;
    args->lse = a->lse, args->lse_batch = a->lse_batch_stride, args->lse_head = a->lse_head_stride;
    args->batch = (int)a->batch, args->heads = (int)a->heads, args->group = (int)(a->heads / a->kv_heads);
    args->section = sp_section_pairs(kernel, args->group);
    args->scale = a->scale;
    args->scale_log2 = fminf(a->scale * 1.44269504f, FLT_MAX); /* finite scales stay finite */
    sparse.values = read->data, sparse.results = a->values.data;
    sparse.values_batch = read->batch_stride, sparse.values_head = read->head_stride;
    sparse.results_batch = a->values.batch_stride, sparse.results_head = a->values.head_stride;
    return sparse;
}

static enum splat_status run_gpu(const splat_kernel *kernel, const splat_sparse_args *a, void *stream)
{
    const struct sp_driver *driver = kernel->driver;
    const struct sp_pass *pass = &kernel->plan->passes[0];
    sp_cu_context current = NULL;
    enum splat_status status = sp_driver_check(driver, driver->context_get_current(&current), "cuCtxGetCurrent");
    if (status != SPLAT_OK)
        return status;
    if (current != kernel->cu_context)
        return sp_fail(SPLAT_INVALID,
                       "the thread's current CUDA context is %p; the kernel was compiled in context %p",
                       (void *)current, (void *)kernel->cu_context);
    struct sp_sparse_args args = fill_args(kernel, a);
    const int64_t warps = kernel->block_threads / 32;
    int64_t blocks =
        kernel->options.op == SPLAT_OP_SOFTMAX ? (args.value_rows + warps - 1) / warps : pass->row_tile_count;
    blocks *= a->batch * a->heads;
    if (blocks > INT_MAX)
        return sp_fail(SPLAT_UNSUPPORTED, "the run needs %lld blocks; a launch takes at most %d", (long long)blocks,
                       INT_MAX);
    args.plan.row_tile_count = pass->row_tile_count;
    args.plan.row_view = sp_launch_view_of(&pass->row_view);
    args.plan.column_views[0] = sp_launch_view_of(&kernel->plan->views[pass->column_view]);
    void *parameters[] = {&args};
    return sp_driver_check(
        driver,
        driver->launch_kernel(kernel->function, (unsigned)blocks, 1, 1, (unsigned)kernel->block_threads, 1, 1,
                              (unsigned)kernel->shared_bytes, (sp_cu_stream)stream, parameters, NULL),
        "cuLaunchKernel");
}

/* ---- Public ---- */

enum splat_status splat_run_sparse(const splat_kernel *kernel, const splat_sparse_args *given, void *stream)
{
    if (!kernel || !given)
        return sp_fail(SPLAT_INVALID, "%s is null", kernel ? "args" : "kernel");
    enum splat_status status =
        sp_check_struct_size("args", "splat_sparse_args_init", given->struct_size, sizeof *given);
    if (status != SPLAT_OK)
        return status;
    splat_sparse_args args = *given;
    if (args.kv_heads == 0)
        args.kv_heads = args.heads;
    if (args.scale == 0.0f)
        args.scale = kernel->options.op == SPLAT_OP_SDDMM ? 1.0f / sqrtf((float)kernel->options.head_dim) : 1.0f;
    if (status == SPLAT_OK && kernel->options.op == SPLAT_OP_ATTENTION)
        status = sp_fail(
            SPLAT_INVALID,
            "kernel was compiled for SPLAT_OP_ATTENTION; splat_run runs it, splat_run_sparse the other ops");
    if (status == SPLAT_OK)
        status = check_counts(kernel, &args);
    if (status == SPLAT_OK)
        status = check_operands(kernel, &args);
    if (status != SPLAT_OK)
        return status;
    if (kernel->device == SPLAT_DEVICE_GPU)
        return run_gpu(kernel, &args, stream);
    if (stream)
        return sp_fail(SPLAT_INVALID, "stream is %p; on the CPU it must be null", stream);
    return sp_cpu_run_sparse(kernel->plan, &kernel->options, &args, kernel->threads);
}
