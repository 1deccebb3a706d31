/* The operators on values on the CPU: the plan's row tiles, shared out among OpenMP threads.
 *
 * An item is a row tile of one (batch, head), or a row of it for the softmax, computed by one thread in a fixed
 * order, so that results do not depend on the number of threads. Values are found as the kernels find them: by
 * counting the pairs of a row from its offset on, or where a plan of A^T says that they begin.
 */
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "analysis/ints.h"
#include "analysis/view.h"
#include "common/error.h"
#include "runtime/cpu_engine.h"
#include "runtime/cpu_float.h"
#include "runtime/cpu_tiles.h"

struct job {
    const splat_plan *plan;
    const splat_sparse_args *args;
    enum splat_op op;
    enum splat_dtype dtype;
    int64_t M, N, D, group;
};

/* One thread's row tile. */
struct scratch {
    float *row, *column; /* [D]: a row of q or x */
    float *sums;         /* [M][D]: y */
    int64_t *tokens;     /* [M]: the row tile's */
    int64_t *keys;       /* [N]: the column tile's */
    int64_t *places;     /* [max(M, N)]: of the next value of each row of A */
    uint8_t *allowed;    /* [M][N] */
};

/* ---- Elements ---- */

static float load(enum splat_dtype dtype, const void *data, int64_t at)
{
    float value;
    sp_widen(dtype, (const char *)data + at * (int64_t)sp_element_size(dtype), 1, &value);
    return value;
}

static void store(enum splat_dtype dtype, void *data, int64_t at, float value)
{
    if (dtype == SPLAT_FP32)
        ((float *)data)[at] = value;
    else
        ((uint16_t *)data)[at] = dtype == SPLAT_BF16 ? sp_float_to_bf16(value) : sp_float_to_fp16(value);
}

static void load_row(const struct job *j, const splat_tensor *tensor, int64_t batch, int64_t head, int64_t row,
                     float *out)
{
    int64_t at = batch * tensor->batch_stride + head * tensor->head_stride + row * tensor->row_stride;
    sp_widen(j->dtype, (const char *)tensor->data + at * (int64_t)sp_element_size(j->dtype), j->D, out);
}

/* ---- Tiles ---- */

static int64_t matrix_at(const splat_values *values, int64_t batch, int64_t head)
{
    return batch * values->batch_stride + head * values->head_stride;
}

/* values = scale * q k^T at the tile's pairs. */
static void sample_tile(const struct job *j, const struct scratch *s, int64_t rows, int64_t cols, int64_t batch,
                        int64_t head)
{
    const splat_sparse_args *a = j->args;
    const int64_t base = matrix_at(&a->values, batch, head);
    for (int64_t r = 0; r < rows; r++) {
        if (s->tokens[r] < 0)
            continue;
        load_row(j, &a->q, batch, head, s->tokens[r], s->row);
        for (int64_t n = 0; n < cols; n++) {
            if (!s->allowed[r * j->N + n])
                continue;
            load_row(j, &a->k, batch, head / j->group, s->keys[n], s->column);
            float sum = 0.0f;
            for (int64_t d = 0; d < j->D; d++)
                sum += s->row[d] * s->column[d];
            store(j->dtype, a->values.data, base + s->places[r]++, sum * a->scale);
        }
    }
}

/* y += A x for the tile's pairs; in a plan of A^T the columns are rows of A. */
static void multiply_tile(const struct job *j, const struct scratch *s, int64_t rows, int64_t cols, int64_t batch,
                          int64_t head)
{
    const splat_sparse_args *a = j->args;
    const int64_t base = matrix_at(&a->values, batch, head);
    for (int64_t n = 0; n < cols; n++) {
        if (s->keys[n] < 0)
            continue;
        load_row(j, &a->x, batch, head / j->group, s->keys[n], s->column);
        for (int64_t r = 0; r < rows; r++) {
            if (!s->allowed[r * j->N + n] || s->tokens[r] < 0)
                continue;
            int64_t *place = &s->places[j->op == SPLAT_OP_SPMM_TRANSPOSED ? n : r];
            const float value = load(j->dtype, a->values.data, base + (*place)++);
            float *sums = s->sums + r * j->D;
            for (int64_t d = 0; d < j->D; d++)
                sums[d] += value * s->column[d];
        }
    }
}

static void visit_tile(const struct job *j, const struct scratch *s, const struct sp_pass *pass,
                       const struct sp_segment *segment, int32_t t, int64_t row0, int64_t rows, int64_t batch,
                       int64_t head)
{
    const struct sp_view *view = &j->plan->views[pass->column_view + SP_SEGMENT_VIEW(segment->code)];
    const int64_t col0 = ((int64_t)segment->first + t) * j->N, cols = sp_cpu_find_tokens(view, col0, j->N, s->keys);
    memset(s->allowed, 0, (size_t)(rows * j->N));
    for (int64_t r = 0; r < rows; r++)
        sp_cpu_allow_row(j->plan, segment, t, row0, col0, cols, r, s->allowed + r * j->N);
    if (j->op == SPLAT_OP_SDDMM)
        sample_tile(j, s, rows, cols, batch, head);
    else
        multiply_tile(j, s, rows, cols, batch, head);
}

/* ---- Row tiles ---- */

static void store_sums(const struct job *j, const struct scratch *s, int64_t rows, int64_t batch, int64_t head)
{
    const splat_tensor *y = &j->args->y;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = batch * y->batch_stride + head * y->head_stride + s->tokens[r] * y->row_stride;
        for (int64_t d = 0; d < j->D && s->tokens[r] >= 0; d++)
            store(j->dtype, y->data, at + d, s->sums[r * j->D + d] * j->args->scale);
    }
}

static void run_row_tile(const struct job *j, const struct scratch *s, const struct sp_pass *pass, int64_t number,
                         int64_t batch, int64_t head)
{
    const splat_plan *plan = j->plan;
    const struct sp_row_tile *row_tile = &plan->row_tiles[number];
    const int64_t row0 = row_tile->tile * j->M, rows = sp_cpu_find_tokens(&pass->row_view, row0, j->M, s->tokens);
    const int64_t *offsets = plan->row_offsets + pass->mask_index * plan->row_offset_count;
    const int64_t *words = plan->tile_values ? plan->tile_values + plan->first_tiles[number] * j->N : NULL;
    for (int64_t r = 0; r < rows && !words; r++)
        s->places[r] = s->tokens[r] < 0 ? 0 : offsets[s->tokens[r]];
    memset(s->sums, 0, (size_t)(j->M * j->D) * sizeof *s->sums);
    for (int32_t n = 0; n < row_tile->segment_count; n++) {
        const struct sp_segment *segment = &plan->segments[row_tile->segment + n];
        for (int32_t t = 0; t < segment->count; t++) {
            for (int64_t k = 0; k < j->N && words; k++)
                s->places[k] = SP_TILE_VALUES_FIRST(words[k]);
            visit_tile(j, s, pass, segment, t, row0, rows, batch, head);
            words = words ? words + j->N : NULL;
        }
    }
    if (j->op != SPLAT_OP_SDDMM)
        store_sums(j, s, rows, batch, head);
}

static void soften_row(const struct job *j, int64_t i, int64_t batch, int64_t head)
{
    const splat_sparse_args *a = j->args;
    const struct sp_pass *pass = sp_cpu_pass_of(j->plan, 0, batch, head);
    const int64_t *offsets = j->plan->row_offsets + pass->mask_index * j->plan->row_offset_count;
    const int64_t from = matrix_at(&a->scores, batch, head), to = matrix_at(&a->values, batch, head);
    float top = -INFINITY, sum = 0.0f;
    for (int64_t p = offsets[i]; p < offsets[i + 1]; p++)
        top = fmaxf(top, load(j->dtype, a->scores.data, from + p)); /* NaN is passed over, it shows in the sum */
    const float base = top == -INFINITY ? 0.0f : top;
    for (int64_t p = offsets[i]; p < offsets[i + 1]; p++)
        sum += expf((load(j->dtype, a->scores.data, from + p) - base) * a->scale);
    for (int64_t p = offsets[i]; p < offsets[i + 1]; p++) {
        const float weight = expf((load(j->dtype, a->scores.data, from + p) - base) * a->scale);
        store(j->dtype, a->values.data, to + p, sum == 0.0f ? 0.0f : weight / sum);
    }
    if (a->lse)
        a->lse[batch * a->lse_batch_stride + head * a->lse_head_stride + i] =
            sum == 0.0f ? -INFINITY : top * a->scale + logf(sum);
}

/* ---- The run ---- */

static size_t scratch_bytes(const struct job *j)
{
    const int64_t floats = 2 * j->D + j->M * j->D, words = j->M + j->N + sp_max64(j->M, j->N);
    return (size_t)sp_ceil_div(8 * words + 4 * floats + j->M * j->N, 256) * 256;
}

static struct scratch place_scratch(const struct job *j, char *at)
{
    struct scratch s;
    s.tokens = (int64_t *)(void *)at;
    s.keys = s.tokens + j->M;
    s.places = s.keys + j->N;
    s.row = (float *)(void *)(s.places + sp_max64(j->M, j->N));
    s.column = s.row + j->D;
    s.sums = s.column + j->D;
    s.allowed = (uint8_t *)(s.sums + j->M * j->D);
    return s;
}

enum splat_status sp_cpu_run_sparse(const splat_plan *plan, const splat_options *options,
                                    const splat_sparse_args *args, int threads)
{
    const struct job j = {plan,
                          args,
                          options->op,
                          options->dtype,
                          plan->tile_rows,
                          plan->tile_cols,
                          options->head_dim,
                          args->heads / args->kv_heads};
    const int64_t rows = j.op == SPLAT_OP_SOFTMAX ? plan->q_len : plan->passes[0].row_tile_count;
    const int64_t items = args->batch * args->heads * rows;
    const int team = (int)sp_min64(threads > 0 ? threads : omp_get_max_threads(), sp_max64(items, 1));
    const size_t bytes = scratch_bytes(&j);
    char *memory = aligned_alloc(256, (size_t)team * bytes);
    if (!memory)
        return sp_no_memory("the CPU engine's tiles", (size_t)team * bytes);
#pragma omp parallel num_threads(team)
    {
        const struct scratch s = place_scratch(&j, memory + (size_t)omp_get_thread_num() * bytes);
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < items; item++) {
            const int64_t pair = item / rows, batch = pair / args->heads, head = pair % args->heads;
            const struct sp_pass *pass = sp_cpu_pass_of(plan, 0, batch, head);
            if (j.op == SPLAT_OP_SOFTMAX)
                soften_row(&j, item % rows, batch, head);
            else
                run_row_tile(&j, &s, pass, pass->first_row_tile + item % rows, batch, head);
        }
    }
    free(memory);
    return SPLAT_OK;
}
