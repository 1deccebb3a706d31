/* Attention of single rows in double precision, from the inputs as rounded to the dtype, and the comparison.
 *
 * u is half a unit in the last place of the dtype, u32 that of float, p are the softmax weights, and
 * d = (D + 8) u32 max_j scale sum|q k| bounds the error of an fp32 score, n = (64 + allowed keys) u32 that of a
 * sum.
 *
 * Tolerance of an output value: 2u (sum p|v| + |o|) + 2 (d + n) sum p|v|, for weights and output are rounded.
 * Tolerance of an lse: d + n + 2 u32 |lse|.
 *
 * A row with nothing allowed must be 0 and -inf exactly. NaN and infinities are right exactly where the reference
 * has the same.
 */
#include "cli/reference.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"

static const double u32 = 0x1p-24;

/* One row's reference and scratch. */
struct row {
    uint8_t *allowed;   /* kv_len */
    double *scores;     /* kv_len */
    double *o, *weight; /* value dim: output, sum p|v| */
    double lse, d;
    int64_t keys;
};

static double dtype_unit(enum splat_dtype dtype)
{
    return dtype == SPLAT_FP32 ? 0x1p-24 : dtype == SPLAT_BF16 ? 0x1p-9 : 0x1p-12;
}

static void free_row(struct row *row)
{
    free(row->allowed);
    free(row->scores);
    free(row->o);
    free(row->weight);
}

/* On failure too the row is the caller's to free. */
static enum splat_status make_row(const struct sp_problem *p, struct row *row)
{
    size_t keys = (size_t)p->k->shape[2], dim = (size_t)p->v->shape[3];
    *row = (struct row){malloc(keys),
                        malloc(keys * sizeof(double)),
                        malloc(dim * sizeof(double)),
                        malloc(dim * sizeof(double)),
                        0,
                        0,
                        0};
    if (row->allowed && row->scores && row->o && row->weight)
        return SPLAT_OK;
    return sp_no_memory("reference row", keys * 9 + dim * 16);
}

/* Scores of the allowed keys; their maximum is returned (-inf when there is none), NaN scores aside. */
static double score_row(const struct sp_problem *p, int64_t query_at, int64_t key_at, struct row *row)
{
    int64_t dim = p->q->shape[3], keys = p->k->shape[2];
    double best = -INFINITY, magnitude = 0;
    row->keys = 0;
    for (int64_t j = 0; j < keys; j++) {
        if (!row->allowed[j])
            continue;
        double sum = 0, size = 0;
        for (int64_t d = 0; d < dim; d++) {
            double product =
                (double)sp_tensor_get(p->q, query_at + d) * (double)sp_tensor_get(p->k, key_at + j * dim + d);
            sum += product;
            size += fabs(product);
        }
        row->scores[j] = sum * p->scale;
        magnitude = fmax(magnitude, size * p->scale);
        best = fmax(best, row->scores[j]);
        row->keys++;
    }
    row->d = (double)(dim + 8) * u32 * magnitude;
    return best;
}

static void reference_row(const struct sp_problem *p, int64_t query_at, int64_t key_at, int64_t value_at,
                          struct row *row)
{
    int64_t keys = p->k->shape[2], dim = p->v->shape[3];
    double best = score_row(p, query_at, key_at, row), total = 0;
    memset(row->o, 0, (size_t)dim * sizeof *row->o);
    memset(row->weight, 0, (size_t)dim * sizeof *row->weight);
    for (int64_t j = 0; j < keys; j++) {
        if (!row->allowed[j])
            continue;
        double e = exp(row->scores[j] - best);
        total += e;
        for (int64_t d = 0; d < dim; d++) {
            double v = (double)sp_tensor_get(p->v, value_at + j * dim + d);
            row->o[d] += e * v;
            row->weight[d] += e * fabs(v);
        }
    }
    for (int64_t d = 0; d < dim && row->keys; d++) {
        row->o[d] /= total;
        row->weight[d] /= total;
    }
    row->lse = row->keys ? best + log(total) : -INFINITY;
}

/* ---- Comparison ---- */

__attribute__((format(printf, 2, 3))) static void count_wrong(struct sp_check *check, const char *format, ...)
{
    if (check->wrong++)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check->first, sizeof check->first, format, arguments);
    va_end(arguments);
}

/* 1 when right. A NaN or an infinity on one side only is wrong, whatever the tolerance: it may be infinite too. */
static int compare(struct sp_check *check, double want, double got, double tolerance)
{
    check->values++;
    if (want == got || (isnan(want) && isnan(got))) /* infinities too, and the zeros of empty rows */
        return 1;
    if (!isfinite(want) || !isfinite(got))
        return 0;
    double error = fabs(got - want);
    if (!(error <= tolerance))
        return 0;
    check->largest_error = fmax(check->largest_error, error);
    check->worst_ratio = fmax(check->worst_ratio, error / tolerance);
    return 1;
}

static void compare_row(const struct sp_problem *p, const struct row *row, int64_t b, int64_t h, int64_t i,
                        struct sp_check *check)
{
    int64_t heads = p->o->shape[1], rows = p->o->shape[2], dim = p->o->shape[3];
    double sums = (double)(64 + row->keys) * u32, u = dtype_unit(p->o->dtype);
    for (int64_t d = 0; d < dim; d++) {
        double got = (double)sp_tensor_get(p->o, ((b * heads + h) * rows + i) * dim + d);
        double tolerance =
            row->keys ? 2 * u * (row->weight[d] + fabs(row->o[d])) + 2 * (row->d + sums) * row->weight[d] : 0;
        if (!compare(check, row->o[d], got, tolerance))
            count_wrong(check,
                        "output of batch %lld, head %lld, row %lld, column %lld is %.9g; expected %.9g within %.3g",
                        (long long)b, (long long)h, (long long)i, (long long)d, got, row->o[d], tolerance);
    }
    double got = (double)p->lse[(b * heads + h) * rows + i];
    double tolerance = row->keys ? row->d + sums + 2 * u32 * fabs(row->lse) : 0;
    if (!compare(check, row->lse, got, tolerance))
        count_wrong(check, "lse of batch %lld, head %lld, row %lld is %.9g; expected %.9g within %.3g",
                    (long long)b, (long long)h, (long long)i, got, row->lse, tolerance);
    check->rows++;
}

/* ---- Sampling ---- */

/* The first row with nothing allowed, or -1. */
static enum splat_status find_empty_row(const splat_acsr *acsr, int64_t *found)
{
    *found = -1;
    for (int64_t i = 0; i < splat_acsr_q_len(acsr) && *found < 0; i++) {
        int64_t count = 0;
        enum splat_status status = splat_acsr_row(acsr, i, NULL, 0, &count);
        if (status != SPLAT_OK)
            return status;
        if (count == 0)
            *found = i;
    }
    return SPLAT_OK;
}

static enum splat_status check_head(const splat_acsr *acsr, const struct sp_problem *p, int64_t b, int64_t h,
                                    const int64_t *rows, int count, struct row *scratch, struct sp_check *check)
{
    int64_t heads = p->q->shape[1], kv_heads = p->k->shape[1], kv_head = h / (heads / kv_heads);
    int64_t key_at = (b * kv_heads + kv_head) * p->k->shape[2] * p->k->shape[3];
    int64_t value_at = (b * kv_heads + kv_head) * p->v->shape[2] * p->v->shape[3];
    for (int r = 0; r < count; r++) {
        enum splat_status status = splat_acsr_expand_row(acsr, rows[r], scratch->allowed);
        if (status != SPLAT_OK)
            return status;
        int64_t query_at = ((b * heads + h) * p->q->shape[2] + rows[r]) * p->q->shape[3];
        reference_row(p, query_at, key_at, value_at, scratch);
        compare_row(p, scratch, b, h, rows[r], check);
    }
    return SPLAT_OK;
}

enum splat_status sp_check_rows(const splat_mask *mask, const struct sp_problem *p, struct sp_check *check)
{
    enum { RANDOM_MAX = 8, RANDOM_TOTAL = 64 };
    *check = (struct sp_check){0};
    int64_t batch = p->q->shape[0], heads = p->q->shape[1], q_len = p->q->shape[2], empty = -1;
    int64_t random = RANDOM_TOTAL / (batch * heads);
    random = random < 1 ? 1 : random > RANDOM_MAX ? RANDOM_MAX : random;
    splat_acsr *acsr = NULL;
    struct row scratch = {0};
    enum splat_status status = splat_acsr_create(mask, &acsr);
    if (status == SPLAT_OK)
        status = find_empty_row(acsr, &empty);
    if (status == SPLAT_OK)
        status = make_row(p, &scratch);
    for (int64_t bh = 0; status == SPLAT_OK && bh < batch * heads; bh++) {
        int64_t rows[RANDOM_MAX + 3] = {0, q_len - 1};
        int count = q_len > 1 ? 2 : 1;
        if (empty >= 0)
            rows[count++] = empty;
        for (int64_t r = 0; r < random; r++) {
            uint64_t z = sp_mix64(sp_mix64(p->seed + 3) + (uint64_t)(bh * RANDOM_MAX + r));
            rows[count++] = (int64_t)(z % (uint64_t)q_len);
        }
        status = check_head(acsr, p, bh / heads, bh % heads, rows, count, &scratch, check);
    }
    free_row(&scratch);
    splat_acsr_destroy(acsr);
    return status;
}
