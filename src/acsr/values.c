/* The order of an ACSR's values: row by row, columns ascending; and the transposed ACSR. */
#include <stdlib.h>
#include <string.h>

#include "acsr/acsr.h"
#include "acsr/build.h"
#include "acsr/inputs.h"
#include "common/error.h"

/* ---- Positions ---- */

static int64_t count_bits(const uint64_t *bits, int64_t end)
{
    int64_t count = 0;
    for (int64_t w = 0; w < end / 64; w++)
        count += __builtin_popcountll(bits[w]);
    if (end % 64)
        count += __builtin_popcountll(bits[end / 64] & (~0ull >> (64 - end % 64)));
    return count;
}

/* Writes to counts the pairs of each row of a family: a quadratic in the row's index. */
static void count_family(const splat_acsr *acsr, const struct sp_family *family, int64_t *counts)
{
    int64_t constant = 0, linear = 0, square = 0;
    if (family->run_count < 0)
        constant = count_bits(acsr->bits + family->first, acsr->kv_len);
    for (int32_t k = 0; k < family->run_count; k++) {
        const struct sp_run_template *run = &acsr->templates[family->first + (uint64_t)k];
        constant += (int64_t)run->count * run->width;
        linear += (int64_t)run->count * run->d_width + (int64_t)run->width * run->d_count;
        square += (int64_t)run->d_count * run->d_width;
    }
    for (int64_t t = 0; t < family->row_count; t++)
        counts[family->row0 + t * acsr->row_stride] = constant + t * (linear + t * square);
}

enum splat_status splat_acsr_row_offsets(const splat_acsr *acsr, int64_t *offsets)
{
    if (!acsr || !offsets)
        return sp_fail(SPLAT_INVALID, "%s is null", acsr ? "offsets" : "acsr");
    for (int64_t f = 0; f < acsr->family_count; f++)
        count_family(acsr, &acsr->families[f], offsets + 1);
    offsets[0] = 0;
    for (int64_t i = 0; i < acsr->q_len; i++)
        offsets[i + 1] += offsets[i];
    return SPLAT_OK;
}

int64_t sp_acsr_rank(const splat_acsr *acsr, int64_t i, int64_t column)
{
    int64_t t, rank = 0;
    const struct sp_family *family = sp_acsr_family_of(acsr, i, &t);
    if (family->run_count < 0)
        return count_bits(acsr->bits + family->first, column);
    for (int32_t k = 0; k < family->run_count; k++) {
        splat_acsr_run run = sp_template_at(&acsr->templates[family->first + (uint64_t)k], t);
        int64_t into = column - run.start;
        if (into <= 0)
            break;
        int64_t whole = run.stride ? into / run.stride : 0;
        if (whole >= run.count) {
            rank += (int64_t)run.count * run.width;
        } else {
            int64_t rest = into - whole * run.stride;
            rank += whole * run.width + (rest < run.width ? rest : run.width);
        }
    }
    return rank;
}

/* ---- CSR ---- */

static void put_columns(int32_t begin, int32_t end, void *user)
{
    int64_t **at = user;
    for (int32_t j = begin; j < end; j++)
        *(*at)++ = j;
}

enum splat_status splat_acsr_to_csr(const splat_acsr *acsr, int64_t *indptr, int64_t *indices)
{
    if (!acsr || !indptr || (!indices && acsr->pairs))
        return sp_fail(SPLAT_INVALID, "%s is null", !acsr ? "acsr" : !indptr ? "indptr" : "indices");
    for (int64_t i = 0; i < acsr->q_len; i++) {
        int64_t t, *at = indices + (i ? indptr[i] : (indptr[0] = 0));
        const struct sp_family *family = sp_acsr_family_of(acsr, i, &t);
        const bool irregular = family->run_count < 0;
        struct sp_group group = {.row0 = (int32_t)(i - t), /* so that row - row0 is t */
                                 .rows = 1,
                                 .run_count = family->run_count,
                                 .runs = irregular ? NULL : acsr->templates + family->first,
                                 .bits = irregular ? acsr->bits + family->first : NULL};
        sp_group_row_blocks(acsr, &group, i, 0, acsr->kv_len, put_columns, &at);
        indptr[i + 1] = at - indices;
    }
    return SPLAT_OK;
}

/* ---- Transposition ---- */

enum { STRETCH = 1024, STRETCH_WORDS = STRETCH / 64 };

/* Columns of `a` as rows of bits, a stretch of them at a time. */
struct transposer {
    const splat_acsr *a;
    int64_t words; /* of a column */
    int64_t first; /* column of the stretch in hand */
    uint64_t *columns;
    uint64_t rows[64][STRETCH_WORDS]; /* 64 rows of the stretch */
    struct sp_groups groups;
};

/* Bits of a row, relative to the stretch. */
struct row_bits {
    int64_t first;
    uint64_t *words;
};

static void set_bits(int32_t begin, int32_t end, void *user)
{
    const struct row_bits *row = user;
    int64_t low = begin - row->first, high = end - row->first;
    for (int64_t w = low / 64; w * 64 < high; w++) {
        uint64_t word = ~0ull;
        if (w * 64 < low)
            word &= ~0ull << (low - w * 64);
        if (high - w * 64 < 64)
            word &= ~(~0ull << (high - w * 64));
        row->words[w] |= word;
    }
}

/* Bit c of word r becomes bit r of word c. */
static void transpose_bits(uint64_t block[64])
{
    uint64_t mask = 0x00000000ffffffffull;
    for (int step = 32; step; step >>= 1, mask ^= mask << step)
        for (int k = 0; k < 64; k = (k + step + 1) & ~step) {
            uint64_t swap = (block[k] >> step ^ block[k + step]) & mask;
            block[k] ^= swap << step;
            block[k + step] ^= swap;
        }
}

/* 64 rows from `row0` on. */
static enum splat_status read_rows(struct transposer *t, int64_t row0)
{
    enum splat_status status = sp_acsr_groups(t->a, row0, row0 + 64, &t->groups);
    memset(t->rows, 0, sizeof t->rows);
    for (int64_t g = 0; g < t->groups.count && status == SPLAT_OK; g++) {
        const struct sp_group *group = &t->groups.groups[g];
        for (int64_t row = group->row0; row < group->row0 + group->rows; row++) {
            struct row_bits bits = {t->first, t->rows[row - row0]};
            sp_group_row_blocks(t->a, group, row, t->first, t->first + STRETCH, set_bits, &bits);
        }
    }
    return status;
}

static enum splat_status read_stretch(struct transposer *t, int64_t first)
{
    enum splat_status status = SPLAT_OK;
    t->first = first;
    for (int64_t row0 = 0; row0 < t->a->q_len && status == SPLAT_OK; row0 += 64) {
        status = read_rows(t, row0);
        for (int w = 0; w < STRETCH_WORDS; w++) {
            uint64_t block[64], any = 0;
            for (int r = 0; r < 64; r++)
                any |= block[r] = t->rows[r][w];
            if (any)
                transpose_bits(block);
            for (int c = 0; c < 64; c++)
                t->columns[(64 * w + c) * t->words + row0 / 64] = block[c];
        }
    }
    return status;
}

static enum splat_status read_column(void *user, int64_t j, uint64_t *packed)
{
    struct transposer *t = user;
    enum splat_status status = j % STRETCH == 0 ? read_stretch(t, j) : SPLAT_OK;
    memcpy(packed, t->columns + j % STRETCH * t->words, (size_t)t->words * sizeof *packed);
    return status;
}

enum splat_status splat_acsr_transpose(const splat_acsr *a, splat_acsr **out)
{
    if (!a || !out)
        return sp_fail(SPLAT_INVALID, "%s is null", a ? "out" : "a");
    struct transposer *t = calloc(1, sizeof *t);
    if (!t)
        return sp_no_memory("a transposed mask", sizeof *t);
    t->a = a;
    t->words = (a->q_len + 63) / 64;
    size_t bytes = (size_t)t->words * STRETCH * sizeof *t->columns;
    enum splat_status status = SPLAT_OK;
    if (!(t->columns = malloc(bytes)))
        status = sp_no_memory("the columns of a mask", bytes);
    if (status == SPLAT_OK)
        status = sp_acsr_from_packed(read_column, t, a->kv_len, a->q_len, out);
    free(t->columns);
    sp_groups_free(&t->groups);
    free(t);
    return status;
}
