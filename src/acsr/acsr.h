/* ACSR inside the library: the stored form, and row access for the stages to the right.
 *
 * Canonical row encoding. A row's allowed columns are first cut into maximal blocks of consecutive columns. Then,
 * from the left: when three or more blocks in a row have equal width and equal spacing, the longest such
 * progression is one run; otherwise the block is a run of its own (stride 0, count 1). Three, not two: two blocks
 * always "progress", and a sink column beside a moving window would get a stride that changes with the row.
 *
 * Canonical families. Rows are dealt into row_stride classes (row mod row_stride); inside a class, from the top, a
 * family takes rows for as long as every run keeps its stride and its start, count and width stay affine in the
 * family index. row_stride is chosen by sp_acsr_build from the rows' own encodings, so it depends on the mask
 * alone.
 *
 * Irregular rows. A row with more than SP_ACSR_MAX_RUNS(kv_len) runs is kept as bits instead (rows with equal bits
 * share a family), so that an ACSR is never larger than the bit-packed mask plus O(rows).
 */
#ifndef SP_ACSR_H
#define SP_ACSR_H

#include "common/hash.h"
#include "splat.h"

#define SP_ACSR_MAX_RUNS(kv_len) ((kv_len) / 128 > 64 ? (kv_len) / 128 : 64)

/* Run of family index t: start + t*d_start, stride, count + t*d_count, width + t*d_width. */
struct sp_run_template {
    int32_t start, stride, count, width;
    int32_t d_start, d_count, d_width;
};

/* Rows row0 + t*row_stride for 0 <= t < row_count (row_stride is the ACSR's). */
struct sp_family {
    int32_t row0, row_count;
    int32_t run_count; /* -1: an irregular family, all rows equal to the bits at `first` */
    int32_t reserved;  /* 0, so that families can be hashed as bytes */
    uint64_t first;    /* index of the first template, or of the first 64-bit word of bits */
};

struct splat_acsr {
    int refs; /* atomic */
    int64_t q_len, kv_len;
    int64_t pairs;
    int32_t row_stride;
    struct sp_family *families; /* by class (row0 mod row_stride), then row0 */
    int64_t family_count;
    int64_t *class_first; /* row_stride + 1 indices into families */
    struct sp_run_template *templates;
    int64_t template_count;
    uint64_t *bits; /* rows of ceil(kv_len / 64) words, bit j%64 of word j/64 */
    int64_t bit_words;
    struct sp_hash hash; /* of the canonical contents */
};

splat_acsr *sp_acsr_retain(splat_acsr *acsr);

/* Allowed columns below `column` in row i: where in its row the value of (i, column) is. */
int64_t sp_acsr_rank(const splat_acsr *acsr, int64_t i, int64_t column);

struct sp_strbuf;
/* Appends a readable listing: a header line, then every family with its runs (long lists are cut in the middle). */
enum splat_status sp_acsr_print(const splat_acsr *acsr, struct sp_strbuf *out);

/* ---- Row access: for analysis ---- */

/* A group is a set of consecutive rows [row0, row0 + rows) that share run templates, affine in (row - row0); or one
 * irregular row (bits != NULL, run_count = -1). */
struct sp_group {
    int32_t row0, rows;
    int32_t run_count;
    const struct sp_run_template *runs; /* index 0 = row0 */
    const uint64_t *bits;
};

/* Scratch for sp_acsr_groups; zero-initialise, reuse, free. */
struct sp_groups {
    struct sp_group *groups;
    int64_t count, group_capacity;
    struct sp_run_template *runs; /* pool the groups point into */
    int64_t run_count, run_capacity;
    int64_t *cursor; /* last family used in each class */
    const splat_acsr *cursor_of;
    int64_t *first; /* where each group's templates begin in the pool, while it still grows */
    int64_t first_capacity;
};

/* Cuts rows [row_begin, row_end) into maximal groups, from the top. The result is valid until the next call. Rows
 * with nothing allowed form groups with run_count 0. Fast when ranges are visited in ascending order. */
enum splat_status sp_acsr_groups(const splat_acsr *acsr, int64_t row_begin, int64_t row_end,
                                 struct sp_groups *scratch);
void sp_groups_free(struct sp_groups *scratch);

/* The run of a template at family index t. */
static inline splat_acsr_run sp_template_at(const struct sp_run_template *t, int64_t index)
{
    splat_acsr_run run = {(int32_t)(t->start + index * t->d_start), t->stride,
                          (int32_t)(t->count + index * t->d_count), (int32_t)(t->width + index * t->d_width)};
    return run;
}

/* Visits the blocks [begin, end) of consecutive allowed columns of row i that meet [col_begin, col_end), clipped to
 * it, ascending. Closed form in the runs: cost follows what lies in the range. */
typedef void (*sp_block_fn)(int32_t begin, int32_t end, void *user);
void sp_group_row_blocks(const splat_acsr *acsr, const struct sp_group *group, int64_t row, int64_t col_begin,
                         int64_t col_end, sp_block_fn visit, void *user);

#endif
