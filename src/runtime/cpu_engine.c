/* Attention on the CPU: the plan's row tiles, shared out among OpenMP threads.
 *
 * Takes a plan and validated arguments with host pointers; gives o and lse. A work item is one row tile of one
 * (batch, head). It walks its segments as the GPU kernel does, with the running softmax in fp32: the maximum of raw
 * scores, weights 2^((score - maximum) * scale * log2 e), sums in the order of the tiles.
 *
 * Keeps true:
 * - An item is computed by one thread in a fixed order, and the inner loops have eight lanes whatever the
 *   instruction set: the results depend neither on the number of threads nor on whether the processor has AVX2 (a
 *   NaN's sign and payload aside).
 * - A masked score becomes -inf by selection, and a masked key of v is multiplied only when the whole tile of v is
 *   finite, so that NaN and Inf at masked keys stay there. At allowed keys they show.
 * - Rows from q_len and keys from kv_len on are never read.
 * - Launches of a plan run one after the other; later ones merge into o and lse, as the kernels do.
 */
#include "runtime/cpu_engine.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "analysis/ints.h"
#include "analysis/view.h"
#include "common/error.h"
#include "runtime/cpu_float.h"
#include "runtime/cpu_tiles.h"

#define LOG2_E    1.4426950408889634
#define ROW_GROUP 4 /* rows and columns of a block of scores or outputs that is kept in registers */
#define COL_GROUP 16
#define LANES     8

/* Eight floats at any address. Never passed by value: how is another matter without AVX. */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t lane_bits __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define LOAD(address)  (*(const lanes *)(address))
#define STORE(address) (*(lanes *)(address))
#define INLINE         static inline __attribute__((always_inline))

/* One thread's tiles, all fp32. Rows are padded to whole groups; padding is zero and its results are not stored. */
struct scratch {
    float *q;         /* [M / 4][D][4] */
    float *k;         /* [D][N] */
    float *v;         /* [N][value_pitch] */
    float *scores;    /* [M][N]: raw scores, then weights */
    float *o;         /* [M][value_pitch] */
    float *rows;      /* [8][D]: keys on their way into k */
    float *row_max;   /* [M] */
    float *row_sum;   /* [M] */
    float *rescale;   /* [M]: what the outputs so far are multiplied by */
    uint8_t *allowed; /* [M][N] */
    int64_t *queries; /* [M]: the row tile's tokens */
    int64_t *keys;    /* [N]: the column tile's */
};

/* The tile at hand. */
struct tile {
    int64_t rows, cols; /* present ones */
    int masked;         /* `allowed` says which pairs count; else all do */
    int nonfinite;      /* v has a NaN or an Inf */
};

struct engine;
typedef void (*tile_fn)(const struct engine *e, const struct scratch *s, const struct tile *tile);

/* What all threads share. */
struct engine {
    const splat_plan *plan;
    const splat_attention_args *args;
    tile_fn compute_tile;
    enum splat_dtype dtype;
    int64_t M, N, D;          /* tile rows, tile columns, head dim */
    int64_t value_dim, pitch; /* pitch: value_dim rounded up to COL_GROUP */
    int64_t group;            /* query heads a key head */
    float scale, scale_log2;
    float *lse; /* written by every launch and read by the later ones; may be null when there is one */
    int64_t lse_batch, lse_head;
};

/* ---- Inner loops ---- */

/* 2^x to about 1e-7 relative, for x <= 0: below 2^-126 it is 0; NaN stays. The fraction's powers have the
 * coefficients ln(2)^k / k!, and the exponent is set by its bits. */
INLINE float exp2_nonpositive(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer, left in the low bits */
    float clamped = x > -126.0f ? x : -126.0f;
    float shifted = clamped + magic;
    float f = clamped - (shifted - magic);
    float p = 1.5252734e-5f;
    p = p * f + 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 0.24022651f;
    p = p * f + 0.69314718f;
    p = p * f + 1.0f;
    float power = sp_bits_float((sp_float_bits(shifted) - sp_float_bits(magic) + 127u) << 23);
    float result = x >= -126.0f ? p * power : 0.0f;
    return x == x ? result : x;
}

/* scores = q k^T for whole groups of rows. */
INLINE void multiply_scores(const struct engine *e, const struct scratch *s, const struct tile *tile)
{
    const int64_t N = e->N, D = e->D;
    for (int64_t r = 0; r < tile->rows; r += ROW_GROUP)
        for (int64_t n = 0; n < N; n += COL_GROUP) {
            const float *q = s->q + r * D, *k = s->k + n;
            lanes a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0}, c0 = {0}, c1 = {0}, d0 = {0}, d1 = {0};
            for (int64_t d = 0; d < D; d++, q += ROW_GROUP, k += N) {
                const lanes k0 = LOAD(k), k1 = LOAD(k + LANES);
                a0 += q[0] * k0, a1 += q[0] * k1;
                b0 += q[1] * k0, b1 += q[1] * k1;
                c0 += q[2] * k0, c1 += q[2] * k1;
                d0 += q[3] * k0, d1 += q[3] * k1;
            }
            float *out = s->scores + r * N + n;
            STORE(out) = a0, STORE(out + LANES) = a1, out += N;
            STORE(out) = b0, STORE(out + LANES) = b1, out += N;
            STORE(out) = c0, STORE(out + LANES) = c1, out += N;
            STORE(out) = d0, STORE(out + LANES) = d1;
        }
}

/* The largest of a row of scores; NaN is passed over, it shows in the weights. */
INLINE float row_maximum(const float *scores, int64_t N)
{
    lanes largest = LOAD(scores);
    for (int64_t n = 0; n < N; n += LANES) {
        const lanes x = LOAD(scores + n);
        /* false for NaN in x, and true over a NaN that began as largest */
        const lane_bits keep = largest >= x, take = ~keep & (lane_bits)(x == x);
        largest = (lanes)((take & (lane_bits)x) | (~take & (lane_bits)largest));
    }
    float result = -INFINITY;
    for (int l = 0; l < LANES; l++)
        result = largest[l] > result ? largest[l] : result;
    return result;
}

/* Scores become weights, row by row, and the running maximum and sum move on. */
INLINE void weigh(const struct engine *e, const struct scratch *s, const struct tile *tile)
{
    const int64_t N = e->N;
    const float scale = e->scale_log2;
    for (int64_t r = 0; r < tile->rows; r++) {
        float *scores = s->scores + r * N;
        const uint8_t *allowed = s->allowed + r * N;
        if (tile->masked) {
#pragma omp simd
            for (int64_t n = 0; n < N; n++)
                scores[n] = allowed[n] ? scores[n] : -INFINITY;
        }
        const float before = s->row_max[r], here = row_maximum(scores, N), now = here > before ? here : before;
        const float base = now == -INFINITY ? 0.0f : now; /* nothing yet: every weight is 2^-inf, not 2^NaN */
#pragma omp simd
        for (int64_t n = 0; n < N; n++)
            scores[n] = exp2_nonpositive((scores[n] - base) * scale);
        lanes sums = {0};
        for (int64_t n = 0; n < N; n += LANES)
            sums += LOAD(scores + n);
        const float sum = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
        s->rescale[r] = exp2_nonpositive((before - base) * scale);
        s->row_sum[r] = s->row_sum[r] * s->rescale[r] + sum;
        s->row_max[r] = now;
    }
}

/* o = rescale * o + p v for whole groups of rows. */
INLINE void accumulate(const struct engine *e, const struct scratch *s, const struct tile *tile)
{
    const int64_t N = e->N, pitch = e->pitch;
    for (int64_t r = 0; r < tile->rows; r += ROW_GROUP)
        for (int64_t c = 0; c < pitch; c += COL_GROUP) {
            float *oa = s->o + r * pitch + c, *ob = oa + pitch, *oc = ob + pitch, *od = oc + pitch;
            const float *p = s->scores + r * N, *v = s->v + c, *w = s->rescale + r;
            lanes a0 = w[0] * LOAD(oa), a1 = w[0] * LOAD(oa + LANES), b0 = w[1] * LOAD(ob),
                  b1 = w[1] * LOAD(ob + LANES), c0 = w[2] * LOAD(oc), c1 = w[2] * LOAD(oc + LANES),
                  d0 = w[3] * LOAD(od), d1 = w[3] * LOAD(od + LANES);
            for (int64_t n = 0; n < tile->cols; n++, p++, v += pitch) {
                const lanes v0 = LOAD(v), v1 = LOAD(v + LANES);
                a0 += p[0] * v0, a1 += p[0] * v1;
                b0 += p[N] * v0, b1 += p[N] * v1;
                c0 += p[2 * N] * v0, c1 += p[2 * N] * v1;
                d0 += p[3 * N] * v0, d1 += p[3 * N] * v1;
            }
            STORE(oa) = a0, STORE(oa + LANES) = a1, STORE(ob) = b0, STORE(ob + LANES) = b1;
            STORE(oc) = c0, STORE(oc + LANES) = c1, STORE(od) = d0, STORE(od + LANES) = d1;
        }
}

/* The same sums for a tile of v that holds NaN or Inf: masked keys are left out. */
INLINE void accumulate_allowed(const struct engine *e, const struct scratch *s, const struct tile *tile)
{
    const int64_t N = e->N, pitch = e->pitch;
    for (int64_t r = 0; r < tile->rows; r++)
        for (int64_t c = 0; c < pitch; c += LANES) {
            lanes sum = s->rescale[r] * LOAD(s->o + r * pitch + c);
            for (int64_t n = 0; n < tile->cols; n++)
                if (s->allowed[r * N + n])
                    sum += s->scores[r * N + n] * LOAD(s->v + n * pitch + c);
            STORE(s->o + r * pitch + c) = sum;
        }
}

INLINE void compute_tile(const struct engine *e, const struct scratch *s, const struct tile *tile)
{
    multiply_scores(e, s, tile);
    weigh(e, s, tile);
    if (tile->masked && tile->nonfinite)
        accumulate_allowed(e, s, tile);
    else
        accumulate(e, s, tile);
}

/* ---- Instruction sets ---- */

static void compute_tile_baseline(const struct engine *e, const struct scratch *s, const struct tile *tile)
{
    compute_tile(e, s, tile);
}

#if defined(__x86_64__)
/* AVX2 without FMA: the same operations, so the same bits. */
__attribute__((target("avx2"))) static void compute_tile_avx2(const struct engine *e, const struct scratch *s,
                                                              const struct tile *tile)
{
    compute_tile(e, s, tile);
}
#endif

static tile_fn choose_compute_tile(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return compute_tile_avx2;
#endif
    return compute_tile_baseline;
}

/* ---- Loading ---- */

/* Row `row` of one (batch, head). */
static void *row_address(const struct engine *e, const splat_tensor *tensor, int64_t batch, int64_t head,
                         int64_t row)
{
    int64_t at = batch * tensor->batch_stride + head * tensor->head_stride + row * tensor->row_stride;
    return (char *)tensor->data + at * (int64_t)sp_element_size(e->dtype);
}

static void load_queries(const struct engine *e, const struct scratch *s, int64_t batch, int64_t head, int64_t rows)
{
    memset(s->q, 0, (size_t)(e->M * e->D) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        float *out = s->q + r / ROW_GROUP * ROW_GROUP * e->D + r % ROW_GROUP;
        if (s->queries[r] < 0)
            continue;
        sp_widen(e->dtype, row_address(e, &e->args->q, batch, head, s->queries[r]), e->D, s->rows);
        for (int64_t d = 0; d < e->D; d++)
            out[d * ROW_GROUP] = s->rows[d];
    }
}

/* Transposes; columns from `cols` on become zero. */
static void load_keys(const struct engine *e, const struct scratch *s, int64_t batch, int64_t head, int64_t cols)
{
    for (int64_t n = 0; n < e->N; n += LANES) {
        for (int64_t l = 0; l < LANES; l++) {
            float *row = s->rows + l * e->D;
            if (n + l < cols && s->keys[n + l] >= 0)
                sp_widen(e->dtype, row_address(e, &e->args->k, batch, head, s->keys[n + l]), e->D, row);
            else
                memset(row, 0, (size_t)e->D * sizeof *row);
        }
        for (int64_t d = 0; d < e->D; d++)
            for (int64_t l = 0; l < LANES; l++)
                s->k[d * e->N + n + l] = s->rows[l * e->D + d];
    }
}

/* Returns whether there is a NaN or an Inf among the values. */
static int load_values(const struct engine *e, const struct scratch *s, int64_t batch, int64_t head, int64_t cols)
{
    int found = 0;
    for (int64_t n = 0; n < cols; n++) {
        float *row = s->v + n * e->pitch;
        if (s->keys[n] < 0) {
            memset(row, 0, (size_t)e->value_dim * sizeof *row);
            continue;
        }
        sp_widen(e->dtype, row_address(e, &e->args->v, batch, head, s->keys[n]), e->value_dim, row);
#pragma omp simd reduction(| : found)
        for (int64_t c = 0; c < e->value_dim; c++)
            found |= (sp_float_bits(row[c]) & 0x7f800000u) == 0x7f800000u;
    }
    return found;
}

/* ---- One row tile ---- */

static void visit_tile(const struct engine *e, const struct scratch *s, const struct sp_pass *pass,
                       const struct sp_segment *segment, int32_t t, int64_t row0, int64_t rows, int64_t batch,
                       int64_t head)
{
    const struct sp_view *view = &e->plan->views[pass->column_view + SP_SEGMENT_VIEW(segment->code)];
    const int64_t col0 = ((int64_t)segment->first + t) * e->N, kv_head = head / e->group;
    struct tile tile = {rows, sp_cpu_find_tokens(view, col0, e->N, s->keys), 0, 0};
    load_keys(e, s, batch, kv_head, tile.cols);
    tile.nonfinite = load_values(e, s, batch, kv_head, tile.cols);
    tile.masked = SP_SEGMENT_KIND(segment->code) != SP_PRED_NONE || tile.cols < e->N;
    if (tile.masked) {
        memset(s->allowed, 0, (size_t)(rows * e->N));
        for (int64_t r = 0; r < rows; r++)
            sp_cpu_allow_row(e->plan, segment, t, row0, col0, tile.cols, r, s->allowed + r * e->N);
    }
    e->compute_tile(e, s, &tile);
}

static void store_row(const struct engine *e, const float *o, float divisor, void *out)
{
    for (int64_t c = 0; c < e->value_dim; c++) {
        const float value = o[c] / divisor;
        if (e->dtype == SPLAT_FP32)
            ((float *)out)[c] = value;
        else
            ((uint16_t *)out)[c] = e->dtype == SPLAT_BF16 ? sp_float_to_bf16(value) : sp_float_to_fp16(value);
    }
}

/* Brings what earlier launches wrote for a row into it: outputs `o` of weight `sum` and log-sum-exp `lse` become
 * those of both. Gives the joint log-sum-exp. */
static float merge_row(const struct engine *e, const struct scratch *s, float *o, float *sum, float lse,
                       float before, const void *out)
{
    if (before == -INFINITY)
        return lse;
    sp_widen(e->dtype, out, e->value_dim, s->rows);
    const float top = fmaxf(lse, before);
    const float mine = *sum == 0.0f ? 0.0f : expf(lse - top), theirs = expf(before - top);
    const float own = *sum == 0.0f ? 0.0f : mine / *sum;
    for (int64_t c = 0; c < e->value_dim; c++) /* a weight that underflows must not meet an infinity */
        o[c] = (own == 0.0f ? 0.0f : o[c] * own) + (theirs == 0.0f ? 0.0f : s->rows[c] * theirs);
    *sum = mine + theirs;
    return top + logf(*sum);
}

static void store_results(const struct engine *e, const struct scratch *s, const struct sp_pass *pass,
                          int64_t batch, int64_t head, int64_t rows)
{
    float *lse_head = e->lse ? e->lse + batch * e->lse_batch + head * e->lse_head : NULL;
    for (int64_t r = 0; r < rows; r++) {
        if (s->queries[r] < 0)
            continue;
        float sum = s->row_sum[r], *o = s->o + r * e->pitch;
        void *out = row_address(e, &e->args->o, batch, head, s->queries[r]);
        float lse = sum == 0.0f ? -INFINITY : (float)((double)s->row_max[r] * (double)e->scale + log((double)sum));
        if (pass->merge)
            lse = merge_row(e, s, o, &sum, lse, lse_head[s->queries[r]], out);
        store_row(e, o, sum == 0.0f ? 1.0f : sum, out); /* nothing allowed: o is 0 already */
        if (lse_head)
            lse_head[s->queries[r]] = lse;
    }
}

static void run_row_tile(const struct engine *e, const struct scratch *s, const struct sp_pass *pass,
                         const struct sp_row_tile *row_tile, int64_t batch, int64_t head)
{
    const int64_t row0 = row_tile->tile * e->M, rows = sp_cpu_find_tokens(&pass->row_view, row0, e->M, s->queries);
    if (row_tile->segment_count)
        load_queries(e, s, batch, head, rows);
    memset(s->o, 0, (size_t)(e->M * e->pitch) * sizeof(float));
    for (int64_t r = 0; r < e->M; r++) {
        s->row_max[r] = -INFINITY;
        s->row_sum[r] = 0.0f;
        s->rescale[r] = 1.0f;
    }
    for (int32_t n = 0; n < row_tile->segment_count; n++) {
        const struct sp_segment *segment = &e->plan->segments[row_tile->segment + n];
        for (int32_t t = 0; t < segment->count; t++)
            visit_tile(e, s, pass, segment, t, row0, rows, batch, head);
    }
    store_results(e, s, pass, batch, head, rows);
}

/* ---- The run ---- */

static enum splat_status check_plan(const splat_plan *plan)
{
    if (plan->tile_rows % ROW_GROUP || plan->tile_cols % 32)
        return sp_fail(SPLAT_UNSUPPORTED,
                       "the plan's tiles are %d x %d; the CPU engine needs multiples of %d rows and 32 columns",
                       (int)plan->tile_rows, (int)plan->tile_cols, ROW_GROUP);
    return SPLAT_OK;
}

static struct engine make_engine(const splat_plan *plan, const splat_options *options,
                                 const splat_attention_args *args)
{
    struct engine e = {.plan = plan, .args = args, .compute_tile = choose_compute_tile(), .dtype = options->dtype};
    e.M = plan->tile_rows;
    e.N = plan->tile_cols;
    e.D = options->head_dim;
    e.value_dim = options->value_dim ? options->value_dim : options->head_dim;
    e.pitch = sp_ceil_div(e.value_dim, COL_GROUP) * COL_GROUP;
    e.group = args->kv_heads ? args->heads / args->kv_heads : 1;
    e.scale = args->scale != 0.0f ? args->scale : (float)(1.0 / sqrt((double)options->head_dim));
    e.lse = args->lse;
    e.lse_batch = args->lse_batch_stride;
    e.lse_head = args->lse_head_stride;
    e.scale_log2 = fminf((float)((double)e.scale * LOG2_E), 0x1.fffffep127f);
    return e;
}

/* Floats of one thread's scratch, rounded up so that threads share no cache line. */
static int64_t scratch_floats(const struct engine *e)
{
    int64_t rows = LANES * sp_max64(e->D, e->pitch);
    int64_t floats = e->M * e->D + e->D * e->N + e->N * e->pitch + e->M * e->N + e->M * e->pitch + rows + 3 * e->M +
                     e->M * e->N / 4 + 2 * (e->M + e->N);
    return sp_ceil_div(floats, 64) * 64;
}

static struct scratch place_scratch(const struct engine *e, float *at)
{
    struct scratch s;
    s.q = at;
    s.k = s.q + e->M * e->D;
    s.v = s.k + e->D * e->N;
    s.scores = s.v + e->N * e->pitch;
    s.o = s.scores + e->M * e->N;
    s.rows = s.o + e->M * e->pitch;
    s.row_max = s.rows + LANES * sp_max64(e->D, e->pitch);
    s.row_sum = s.row_max + e->M;
    s.rescale = s.row_sum + e->M;
    s.queries = (int64_t *)(void *)(s.rescale + e->M);
    s.keys = s.queries + e->M;
    s.allowed = (uint8_t *)(s.keys + e->N);
    memset(s.v, 0, (size_t)(e->N * e->pitch) * sizeof(float)); /* the padding beyond value_dim stays zero */
    return s;
}

static void run_launch(const struct engine *e, int64_t launch, int team, float *memory, int64_t floats)
{
    const splat_plan *plan = e->plan;
    const splat_attention_args *args = e->args;
    const int64_t tiles = plan->passes[launch * plan->mask_count].row_tile_count;
#pragma omp parallel num_threads(team)
    {
        const struct scratch s = place_scratch(e, memory + omp_get_thread_num() * floats);
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < args->batch * args->heads * tiles; item++) {
            const int64_t pair = item / tiles, batch = pair / args->heads, head = pair % args->heads;
            const struct sp_pass *pass = sp_cpu_pass_of(plan, launch, batch, head);
            run_row_tile(e, &s, pass, &plan->row_tiles[pass->first_row_tile + item % tiles], batch, head);
        }
    }
}

enum splat_status sp_cpu_run(const splat_plan *plan, const splat_options *options, const splat_attention_args *args,
                             int threads)
{
    enum splat_status status = check_plan(plan);
    if (status != SPLAT_OK)
        return status;
    struct engine e = make_engine(plan, options, args);
    const int64_t tiles = plan->passes[0].row_tile_count, items = args->batch * args->heads * tiles;
    const int team = (int)sp_min64(threads > 0 ? threads : omp_get_max_threads(), sp_max64(items, 1));
    const int64_t floats = scratch_floats(&e);
    const size_t bytes = (size_t)team * (size_t)floats * sizeof(float);
    float *memory = aligned_alloc(256, bytes), *lse = NULL;
    if (!memory)
        return sp_no_memory("the CPU engine's tiles", bytes);
    if (plan->launch_count > 1 && !args->lse) {
        const size_t lse_bytes = (size_t)(args->batch * args->heads * plan->q_len) * sizeof(float);
        if (!(lse = malloc(lse_bytes))) {
            free(memory);
            return sp_no_memory("the log-sum-exp of a run in several launches", lse_bytes);
        }
        e.lse = lse;
        e.lse_head = plan->q_len;
        e.lse_batch = args->heads * plan->q_len;
    }
    for (int64_t launch = 0; launch < plan->launch_count; launch++)
        run_launch(&e, launch, team, memory, floats);
    free(lse);
    free(memory);
    return SPLAT_OK;
}
