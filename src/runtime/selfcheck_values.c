/* The self-check's problems of the operators on values.
 *
 * Takes a problem whose kernel and plan are made. Keeps true: as for attention, nothing but the last rounding may
 * differ: scores and weights are small whole numbers and eighths, whose products and sums fp32 holds. Rows of the
 * second operand that no row of the first may see hold NaN and infinity.
 */
#include <math.h>

#include "analysis/values.h"
#include "runtime/cpu_engine.h"
#include "runtime/selfcheck_problem.h"

static enum splat_op op_of(const struct sp_problem *p)
{
    return p->kernel->options.op;
}

static int is_product(const struct sp_problem *p)
{
    return op_of(p) == SPLAT_OP_SPMM || op_of(p) == SPLAT_OP_SPMM_TRANSPOSED;
}

/* From one head's values to the next: as many as the largest mask has, rounded up to what the GPU takes. */
static int64_t values_of_head(const struct sp_problem *p)
{
    return (sp_most_values(p->kernel->plan) + 7) / 8 * 8;
}

/* How many results of 16 bits. */
static int64_t result_count(const struct sp_problem *p)
{
    return p->heads * (is_product(p) ? p->rows * p->dim : values_of_head(p));
}

static void lay_out(struct sp_problem *p)
{
    const int64_t values = p->heads * values_of_head(p);
    const int64_t first = op_of(p) == SPLAT_OP_SDDMM ? p->heads * p->rows * p->dim : values,
                  second = op_of(p) == SPLAT_OP_SOFTMAX ? 0 : p->kv_heads * p->keys * p->dim;
    p->second_at = sp_check_rounded((size_t)first * sizeof(uint16_t));
    p->results_at = p->second_at + sp_check_rounded((size_t)second * sizeof(uint16_t));
    p->lse_at = p->bytes = p->results_at + sp_check_rounded((size_t)result_count(p) * sizeof(uint16_t));
    if (op_of(p) == SPLAT_OP_SOFTMAX)
        p->bytes += sp_check_rounded((size_t)(p->heads * p->rows) * sizeof(float));
}

static void fill(const struct sp_problem *p)
{
    uint16_t *first = (uint16_t *)(void *)p->host, *second = (uint16_t *)(void *)(p->host + p->second_at);
    const int64_t values = p->heads * values_of_head(p);
    uint64_t state = 2;
    if (op_of(p) == SPLAT_OP_SOFTMAX) {
        for (int64_t at = 0; at < values; at++)
            first[at] = sp_check_narrow(p->dtype, (float)(2 * (int)(sp_check_draw(&state) % 13) - 12));
        return;
    }
    if (op_of(p) == SPLAT_OP_SDDMM) {
        sp_check_fill_queries(p, first, p->heads * p->rows, &state);
        sp_check_fill_keys(p, second, p->kv_heads * p->keys, &state);
    } else {
        for (int64_t at = 0; at < values; at++)
            first[at] = sp_check_narrow(p->dtype, (float)((int)(sp_check_draw(&state) % 17) - 8) / 8.0f);
        sp_check_fill_fractions(p, second, p->kv_heads * p->keys * p->dim, &state);
    }
    const int64_t hidden = p->keys - SP_CHECK_HIDDEN;
    second[hidden * p->dim] = sp_check_narrow(p->dtype, NAN);
    second[(hidden + 1) * p->dim + p->dim - 1] = sp_check_narrow(p->dtype, INFINITY);
}

/* ---- Both runs ---- */

static splat_sparse_args args_at(const struct sp_problem *p, unsigned char *base)
{
    const int transposed = op_of(p) == SPLAT_OP_SPMM_TRANSPOSED;
    const int64_t most = values_of_head(p);
    splat_values first = {base, most * p->heads, most}, results = first;
    results.data = base + p->results_at;
    splat_sparse_args args;
    splat_sparse_args_init(&args);
    args.heads = p->heads, args.kv_heads = p->kv_heads;
    args.q_len = transposed ? p->keys : p->rows, args.kv_len = transposed ? p->rows : p->keys;
    args.scale = SP_CHECK_SCALE;
    switch (op_of(p)) {
    case SPLAT_OP_SDDMM:
        args.scale = 0.5f;
        args.q = splat_tensor_bhsd(base, p->heads, p->rows, p->dim);
        args.k = splat_tensor_bhsd(base + p->second_at, p->kv_heads, p->keys, p->dim);
        args.values = results;
        break;
    case SPLAT_OP_SOFTMAX:
        args.scores = first;
        args.values = results;
        args.lse = (float *)(void *)(base + p->lse_at);
        args.lse_head_stride = p->rows;
        args.lse_batch_stride = p->heads * p->rows;
        break;
    case SPLAT_OP_SPMM:
    case SPLAT_OP_SPMM_TRANSPOSED:
        args.values = first;
        args.x = splat_tensor_bhsd(base + p->second_at, p->kv_heads, p->keys, p->dim);
        args.y = splat_tensor_bhsd(base + p->results_at, p->heads, p->rows, p->dim);
        break;
    case SPLAT_OP_ATTENTION:
        break;
    }
    return args;
}

static enum splat_status run_device(const struct sp_problem *p, unsigned char *base, sp_cu_stream stream)
{
    const splat_sparse_args args = args_at(p, base);
    return splat_run_sparse(p->kernel, &args, stream);
}

static enum splat_status run_cpu(const struct sp_problem *p, unsigned char *base)
{
    const splat_sparse_args args = args_at(p, base);
    return sp_cpu_run_sparse(p->kernel->plan, &p->kernel->options, &args, 1);
}

static enum splat_status compare(const struct sp_problem *p)
{
    const splat_plan *plan = p->kernel->plan;
    if (is_product(p))
        return sp_check_numbers(p, "y", 0, result_count(p), p->rows, p->dim);
    enum splat_status status = op_of(p) == SPLAT_OP_SOFTMAX ? sp_check_lse(p, p->heads * p->rows) : SPLAT_OK;
    for (int64_t head = 0; head < p->heads && status == SPLAT_OK; head++)
        status = sp_check_numbers(p, "values", head * values_of_head(p),
                                  sp_mask_values(plan, plan->map ? plan->map[head] : 0), 1, values_of_head(p));
    return status;
}

const struct sp_problem_kind sp_values_problem = {lay_out, fill, run_device, run_cpu, compare};
