/* Attention problems for the tests: inputs of any type and layout, a naive double-precision reference on a dense
 * mask, and the comparison. Outputs are poisoned first and everything around them must stay poisoned.
 */
#ifndef TEST_ATTENTION_H
#define TEST_ATTENTION_H

#include <math.h>

#include "brute.h"

/* ---- fp16 and bf16 in software: round to nearest, ties to even ---- */

static inline uint16_t half_of(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (isnan(value))
        return (uint16_t)(sign | 0x7e00);
    if (size >= 65520)
        return (uint16_t)(sign | 0x7c00);
    if (size == 0)
        return sign;
    int exponent;
    frexp(size, &exponent); /* size = f * 2^exponent, 0.5 <= f < 1 */
    int shift = exponent < -13 ? -24 : exponent - 11;
    double steps = nearbyint(ldexp(size, -shift)); /* in units of the last place */
    if (shift == -24)
        return (uint16_t)(sign | (uint16_t)steps);
    return (uint16_t)(sign | (uint16_t)((shift + 24) * 1024 + (int)steps));
}

static inline double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    return h & 0x8000 ? -size : size;
}

static inline uint16_t bf16_of(double value)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    if (isnan(single))
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline double bf16_value(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float single;
    memcpy(&single, &bits, 4);
    return single;
}

static inline size_t element_size(enum splat_dtype dtype)
{
    return dtype == SPLAT_FP32 ? 4 : 2;
}

static inline void element_set(void *data, int64_t at, enum splat_dtype dtype, double value)
{
    if (dtype == SPLAT_FP32)
        ((float *)data)[at] = (float)value;
    else
        ((uint16_t *)data)[at] = dtype == SPLAT_FP16 ? half_of(value) : bf16_of(value);
}

static inline double element_get(const void *data, int64_t at, enum splat_dtype dtype)
{
    if (dtype == SPLAT_FP32)
        return ((const float *)data)[at];
    return dtype == SPLAT_FP16 ? half_value(((const uint16_t *)data)[at])
                               : bf16_value(((const uint16_t *)data)[at]);
}

/* ---- A problem ---- */

enum layout { BHSD, BSHD };

struct problem {
    enum splat_dtype dtype;
    enum layout layout;
    int64_t batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim;
    float scale; /* 0: the default */
    void *q, *k, *v, *o;
    float *lse;
    size_t o_size, lse_count; /* elements, without the guard behind each */
};

#define GUARD  64
#define POISON 0xFF /* NaN in every type */

static inline splat_tensor tensor_of(const struct problem *p, void *data, int64_t heads, int64_t rows, int64_t dim)
{
    return p->layout == BHSD ? splat_tensor_bhsd(data, heads, rows, dim)
                             : splat_tensor_bshd(data, heads, rows, dim);
}

static inline int64_t place(const struct problem *p, int64_t heads, int64_t rows, int64_t dim, int64_t b, int64_t h,
                            int64_t row, int64_t d)
{
    return p->layout == BHSD ? ((b * heads + h) * rows + row) * dim + d : ((b * rows + row) * heads + h) * dim + d;
}

static inline void *random_tensor(const struct problem *p, int64_t count, struct rng *rng)
{
    void *data = need((size_t)count * element_size(p->dtype));
    for (int64_t at = 0; at < count; at++) { /* nearly normal: three uniform numbers */
        double sum = rng_unit(rng) + rng_unit(rng) + rng_unit(rng) - 1.5;
        element_set(data, at, p->dtype, 2 * sum);
    }
    return data;
}

static inline void problem_poison(struct problem *p)
{
    memset(p->o, POISON, (p->o_size + GUARD) * element_size(p->dtype));
    memset(p->lse, POISON, (p->lse_count + GUARD) * sizeof *p->lse);
}

static inline void problem_fill(struct problem *p, struct rng *rng)
{
    if (!p->kv_heads)
        p->kv_heads = p->heads;
    if (!p->value_dim)
        p->value_dim = p->head_dim;
    p->q = random_tensor(p, p->batch * p->heads * p->q_len * p->head_dim, rng);
    p->k = random_tensor(p, p->batch * p->kv_heads * p->kv_len * p->head_dim, rng);
    p->v = random_tensor(p, p->batch * p->kv_heads * p->kv_len * p->value_dim, rng);
    p->o_size = (size_t)(p->batch * p->heads * p->q_len * p->value_dim);
    p->lse_count = (size_t)(p->batch * p->heads * p->q_len);
    p->o = need((p->o_size + GUARD) * element_size(p->dtype));
    p->lse = need((p->lse_count + GUARD) * sizeof *p->lse);
    problem_poison(p);
}

static inline void problem_free(struct problem *p)
{
    void *all[] = {p->q, p->k, p->v, p->o, p->lse};
    for (int k = 0; k < 5; k++)
        free(all[k]);
}

static inline splat_attention_args problem_args(const struct problem *p)
{
    splat_attention_args args;
    splat_attention_args_init(&args);
    args.batch = p->batch;
    args.heads = p->heads;
    args.kv_heads = p->kv_heads;
    args.q_len = p->q_len;
    args.kv_len = p->kv_len;
    args.q = tensor_of(p, p->q, p->heads, p->q_len, p->head_dim);
    args.k = tensor_of(p, p->k, p->kv_heads, p->kv_len, p->head_dim);
    args.v = tensor_of(p, p->v, p->kv_heads, p->kv_len, p->value_dim);
    args.o = tensor_of(p, p->o, p->heads, p->q_len, p->value_dim);
    args.lse = p->lse;
    args.lse_batch_stride = p->heads * p->q_len;
    args.lse_head_stride = p->q_len;
    args.scale = p->scale;
    return args;
}

static inline splat_context *context_of(int threads)
{
    splat_context_options options;
    splat_context *context = NULL;
    splat_context_options_init(&options);
    options.cache_mode = SPLAT_CACHE_OFF;
    options.threads = threads;
    OK(splat_context_create(&options, &context));
    return context;
}

static inline splat_options problem_options(const struct problem *p)
{
    splat_options options;
    splat_options_init(&options);
    options.dtype = p->dtype;
    options.device = SPLAT_DEVICE_CPU;
    options.head_dim = p->head_dim;
    options.value_dim = p->value_dim;
    options.batch = p->batch;
    options.heads = p->heads;
    options.kv_heads = p->kv_heads;
    return options;
}

/* Compiles for the CPU and runs on poisoned outputs. */
static inline void problem_run_in(struct problem *p, const splat_mask *mask, splat_context *context)
{
    splat_options options = problem_options(p);
    splat_kernel *kernel = NULL;
    size_t workspace = 0;
    OK(splat_compile(context, mask, &options, &kernel));
    assert_int_equal(splat_kernel_device(kernel), SPLAT_DEVICE_CPU);
    problem_poison(p);
    splat_attention_args args = problem_args(p);
    OK(splat_workspace_bytes(kernel, p->batch, p->heads, &workspace));
    args.workspace = workspace ? aligned_alloc(256, (workspace + 255) / 256 * 256) : NULL;
    args.workspace_bytes = workspace;
    OK(splat_run(kernel, &args, NULL));
    free(args.workspace);
    splat_kernel_destroy(kernel);
}

static inline void problem_run(struct problem *p, const splat_mask *mask)
{
    splat_context *context = context_of(2);
    problem_run_in(p, mask, context);
    splat_context_destroy(context);
}

/* ---- The reference ---- */

static inline double score(const struct problem *p, int64_t b, int64_t h, int64_t i, int64_t j, double scale)
{
    double sum = 0;
    int64_t g = h / (p->heads / p->kv_heads);
    for (int64_t d = 0; d < p->head_dim; d++)
        sum += element_get(p->q, place(p, p->heads, p->q_len, p->head_dim, b, h, i, d), p->dtype) *
               element_get(p->k, place(p, p->kv_heads, p->kv_len, p->head_dim, b, g, j, d), p->dtype);
    return sum * scale;
}

/* One row in doubles: o (value_dim of them), its LSE, and in *reach the sum of |weight * v|, the scale of its
 * error. */
static inline double reference_row(const struct problem *p, const struct dense *mask, int64_t b, int64_t h,
                                   int64_t i, double *scores, double *o, double *reach)
{
    double scale = p->scale > 0 ? (double)p->scale : 1 / sqrt((double)p->head_dim), top = -INFINITY, sum = 0;
    const uint8_t *row = mask->bytes + i * mask->kv;
    int64_t g = h / (p->heads / p->kv_heads);
    for (int64_t j = 0; j < p->kv_len; j++)
        if (row[j]) {
            scores[j] = score(p, b, h, i, j, scale);
            top = scores[j] > top ? scores[j] : top;
        }
    for (int64_t d = 0; d < p->value_dim; d++)
        o[d] = reach[d] = 0;
    for (int64_t j = 0; j < p->kv_len; j++)
        if (row[j]) {
            double weight = exp(scores[j] - top);
            sum += weight;
            for (int64_t d = 0; d < p->value_dim; d++) {
                double term = weight * element_get(p->v, place(p, p->kv_heads, p->kv_len, p->value_dim, b, g, j, d),
                                                   p->dtype);
                o[d] += term;
                reach[d] += fabs(term);
            }
        }
    for (int64_t d = 0; d < p->value_dim && sum > 0; d++) {
        o[d] /= sum;
        reach[d] /= sum;
    }
    return sum > 0 ? top + log(sum) : -INFINITY;
}

static inline double ulp_of(enum splat_dtype dtype)
{
    return dtype == SPLAT_FP32 ? 0x1p-24 : dtype == SPLAT_FP16 ? 0x1p-11 : 0x1p-8;
}

/* Compares o and lse with the reference. `slack` is the relative error that weights may have: 0 = the default. The
 * masks of a map: truth[b * heads + h]; else truth[0] serves all. */
static inline void problem_check_map(const struct problem *p, const struct dense *const *truth, int mapped,
                                     double slack, const char *what)
{
    double *scores = need((size_t)p->kv_len * 8), *o = need((size_t)p->value_dim * 8);
    double *reach = need((size_t)p->value_dim * 8), ulp = ulp_of(p->dtype);
    double gain = p->scale > 0 ? (double)p->scale * sqrt((double)p->head_dim) : 1; /* how large scores are */
    double sums = (1e-6 + 1e-8 * (double)p->head_dim) * (gain > 1 ? gain : 1); /* errors of fp32 scores and sums */
    double weight_error = slack > 0 ? slack : p->dtype == SPLAT_FP32 ? sums : sums + 2 * ulp;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t i = 0; i < p->q_len; i++) {
                const struct dense *mask = truth[mapped ? b * p->heads + h : 0];
                double lse = reference_row(p, mask, b, h, i, scores, o, reach);
                double got_lse = (double)p->lse[(b * p->heads + h) * p->q_len + i];
                if (lse == -INFINITY ? got_lse != -INFINITY
                                     : !(fabs(got_lse - lse) <= 1e-5 + 4e-7 * fabs(lse) + (slack > 0 ? slack : 0)))
                    FAIL("%s: lse[%lld][%lld][%lld] is %.9g, expected %.9g", what, (long long)b, (long long)h,
                         (long long)i, got_lse, lse);
                for (int64_t d = 0; d < p->value_dim; d++) {
                    double got =
                        element_get(p->o, place(p, p->heads, p->q_len, p->value_dim, b, h, i, d), p->dtype);
                    double limit = weight_error * reach[d] + ulp * fabs(o[d]) + 1e-7;
                    if (lse == -INFINITY ? got != 0 : !(fabs(got - o[d]) <= limit))
                        FAIL("%s: o[%lld][%lld][%lld][%lld] is %.9g, expected %.9g within %.2g", what, (long long)b,
                             (long long)h, (long long)i, (long long)d, got, o[d], limit);
                }
            }
    for (size_t g = 0; g < GUARD * element_size(p->dtype); g++)
        if (((uint8_t *)p->o)[p->o_size * element_size(p->dtype) + g] != POISON)
            FAIL("%s: o was written beyond its end", what);
    for (size_t g = 0; g < GUARD * sizeof(float); g++)
        if (((uint8_t *)(p->lse + p->lse_count))[g] != POISON)
            FAIL("%s: lse was written beyond its end", what);
    free(scores);
    free(o);
    free(reach);
}

static inline void problem_check(const struct problem *p, const struct dense *truth, const char *what)
{
    problem_check_map(p, &truth, 0, 0, what);
}

#endif
