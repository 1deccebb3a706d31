/* Takes an ACSR, whose canonical rows show c and d at once: gives (a, b, c, d), checked against every row.
 *
 * Row 0 allows columns 0, d, ..., (c-1)*d, which gives c and, when c > 1, d. When c is 1, the next row that allows
 * column 0 is row d (of every block of b rows, the second), or there is none and b is 1. a and b follow from the
 * lengths. */
#include "analysis/kron.h"

#include <stdio.h>

#include "acsr/acsr.h"
#include "common/error.h"

/* A row as first column, distance and number of its columns. */
struct comb {
    int64_t start, stride, count;
};

/* A row that is one comb, or not: 0. Canonical rows have one run of width 1, one block, or two blocks of width 1.
 */
static int comb_of(const struct sp_run_template *runs, int32_t run_count, int64_t t, struct comb *comb)
{
    if (run_count < 1 || run_count > 2)
        return 0;
    splat_acsr_run first = sp_template_at(runs, t);
    if (run_count == 2) {
        splat_acsr_run second = sp_template_at(runs + 1, t);
        *comb = (struct comb){first.start, second.start - first.start, 2};
        return first.count == 1 && first.width == 1 && second.count == 1 && second.width == 1;
    }
    if (first.count == 1)
        *comb = (struct comb){first.start, first.width > 1, first.width};
    else
        *comb = (struct comb){first.start, first.stride, first.count};
    return first.count == 1 || first.width == 1;
}

static const struct sp_family *family_of_row(const splat_acsr *acsr, int64_t row)
{
    for (int64_t f = acsr->class_first[row % acsr->row_stride];; f++)
        if (row < acsr->families[f].row0 + (int64_t)acsr->families[f].row_count * acsr->row_stride)
            return &acsr->families[f];
}

/* The first row after 0 that allows column 0 and no other, or q_len. */
static int64_t next_of_column_0(const splat_acsr *acsr)
{
    int64_t next = acsr->q_len;
    for (int64_t f = 0; f < acsr->family_count; f++) {
        const struct sp_family *family = &acsr->families[f];
        struct comb comb;
        for (int64_t t = 0; t < family->row_count && family->row0 + t * acsr->row_stride < next; t++)
            if (family->row0 + t > 0 && comb_of(acsr->templates + family->first, family->run_count, t, &comb) &&
                comb.start == 0)
                next = family->row0 + t * acsr->row_stride;
    }
    return next;
}

static void say_row(const splat_acsr *acsr, const struct sp_family *family, int64_t t, char *out, size_t size)
{
    struct comb comb;
    if (family->run_count < 0)
        snprintf(out, size, "an irregular set of columns");
    else if (family->run_count == 0)
        snprintf(out, size, "no column");
    else if (!comb_of(acsr->templates + family->first, family->run_count, t, &comb))
        snprintf(out, size, "columns that are not evenly spaced single ones");
    else if (comb.count == 1)
        snprintf(out, size, "column %lld alone", (long long)comb.start);
    else
        snprintf(out, size, "%lld columns from %lld, %lld apart", (long long)comb.count, (long long)comb.start,
                 (long long)comb.stride);
}

static enum splat_status check_family(const splat_acsr *acsr, const struct sp_family *family,
                                      const struct sp_kron *k)
{
    for (int64_t t = 0; t < family->row_count; t++) {
        int64_t row = family->row0 + t * acsr->row_stride;
        int64_t start = row / (k->b * k->d) * k->c * k->d + row % k->d;
        struct comb comb;
        if (comb_of(acsr->templates + family->first, family->run_count, t, &comb) && comb.start == start &&
            comb.count == k->c && (k->c == 1 || comb.stride == k->d))
            continue;
        char words[96];
        say_row(acsr, family, t, words, sizeof words);
        return sp_fail(SPLAT_UNSUPPORTED,
                       "the mask is not Kronecker-sparse: row %lld allows %s; in kron(%lld, %lld, %lld, %lld), "
                       "which row 0 and the lengths suggest, it would allow %lld from %lld, %lld apart",
                       (long long)row, words, (long long)k->a, (long long)k->b, (long long)k->c, (long long)k->d,
                       (long long)k->c, (long long)start, (long long)k->d);
    }
    return SPLAT_OK;
}

enum splat_status sp_kron_match(const splat_acsr *acsr, struct sp_kron *kron)
{
    if (!acsr || !kron)
        return sp_fail(SPLAT_INVALID, "%s is null", acsr ? "kron" : "acsr");
    const struct sp_family *first = family_of_row(acsr, 0);
    struct comb comb;
    char words[96];
    say_row(acsr, first, 0, words, sizeof words);
    if (!comb_of(acsr->templates + first->first, first->run_count, 0, &comb) || comb.start != 0)
        return sp_fail(
            SPLAT_UNSUPPORTED,
            "the mask is not Kronecker-sparse: row 0 allows %s; it would allow evenly spaced ones from 0", words);
    struct sp_kron k = {0, 0, comb.count, comb.stride};
    if (k.c == 1) {
        k.d = next_of_column_0(acsr);
        k.d = k.d == acsr->q_len ? 1 : k.d;
    }
    const int64_t columns = k.c * k.d; /* of a block */
    k.a = columns > 0 ? acsr->kv_len / columns : 0;
    k.b = k.a > 0 ? acsr->q_len / (k.a * k.d) : 0;
    if (k.b * k.d == 0 || k.a * k.b * k.d != acsr->q_len || k.a * k.c * k.d != acsr->kv_len)
        return sp_fail(SPLAT_UNSUPPORTED,
                       "the mask is not Kronecker-sparse: row 0 allows %s, which gives c = %lld and d = %lld, and "
                       "%lld x %lld is not a*b*d x a*c*d for any a and b",
                       words, (long long)k.c, (long long)k.d, (long long)acsr->q_len, (long long)acsr->kv_len);
    for (int64_t f = 0; f < acsr->family_count; f++) {
        enum splat_status status = check_family(acsr, &acsr->families[f], &k);
        if (status != SPLAT_OK)
            return status;
    }
    *kron = k;
    return SPLAT_OK;
}
