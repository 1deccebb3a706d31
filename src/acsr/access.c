/* Reading an ACSR: single rows, groups of consecutive rows, blocks inside a column range; and ACSRs as row sources,
 * with which set algebra is the builder run on two operands. */
#include <stdlib.h>
#include <string.h>

#include "acsr/acsr.h"
#include "acsr/build.h"
#include "common/error.h"

/* ---- Lifetime and facts ---- */

splat_acsr *sp_acsr_retain(splat_acsr *acsr)
{
    __atomic_add_fetch(&acsr->refs, 1, __ATOMIC_RELAXED);
    return acsr;
}

void splat_acsr_destroy(splat_acsr *acsr)
{
    if (!acsr || __atomic_sub_fetch(&acsr->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    free(acsr->families);
    free(acsr->class_first);
    free(acsr->templates);
    free(acsr->bits);
    free(acsr);
}

int64_t splat_acsr_q_len(const splat_acsr *acsr)
{
    return acsr ? acsr->q_len : 0;
}

int64_t splat_acsr_kv_len(const splat_acsr *acsr)
{
    return acsr ? acsr->kv_len : 0;
}

int64_t splat_acsr_pairs(const splat_acsr *acsr)
{
    return acsr ? acsr->pairs : 0;
}

int64_t splat_acsr_families(const splat_acsr *acsr)
{
    return acsr ? acsr->family_count : 0;
}

int64_t splat_acsr_bytes(const splat_acsr *acsr)
{
    if (!acsr)
        return 0;
    size_t bytes = sizeof *acsr + (size_t)acsr->family_count * sizeof *acsr->families +
                   (size_t)acsr->template_count * sizeof *acsr->templates +
                   (size_t)acsr->bit_words * sizeof *acsr->bits +
                   ((size_t)acsr->row_stride + 1) * sizeof *acsr->class_first;
    return (int64_t)bytes;
}

int splat_acsr_equal(const splat_acsr *a, const splat_acsr *b)
{
    if (!a || !b)
        return a == b;
    return a->q_len == b->q_len && a->kv_len == b->kv_len && a->row_stride == b->row_stride &&
           a->family_count == b->family_count && a->template_count == b->template_count &&
           a->bit_words == b->bit_words &&
           memcmp(a->families, b->families, (size_t)a->family_count * sizeof *a->families) == 0 &&
           memcmp(a->templates, b->templates, (size_t)a->template_count * sizeof *a->templates) == 0 &&
           memcmp(a->bits, b->bits, (size_t)a->bit_words * sizeof *a->bits) == 0;
}

/* ---- Rows ---- */

const struct sp_family *sp_acsr_family_of(const splat_acsr *acsr, int64_t i, int64_t *t)
{
    int64_t class = i % acsr->row_stride;
    int64_t low = acsr->class_first[class], high = acsr->class_first[class + 1] - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (acsr->families[middle].row0 <= i)
            low = middle;
        else
            high = middle - 1;
    }
    *t = (i - acsr->families[low].row0) / acsr->row_stride;
    return &acsr->families[low];
}

/* First set bit at or after `from`, or `end`; the same for clear bits with `invert` all ones. */
static int64_t next_bit(const uint64_t *bits, int64_t from, int64_t end, uint64_t invert)
{
    if (from >= end)
        return end;
    int64_t w = from / 64;
    uint64_t word = (bits[w] ^ invert) & (~0ull << (from % 64));
    while (!word) {
        if (++w * 64 >= end)
            return end;
        word = bits[w] ^ invert;
    }
    int64_t at = w * 64 + __builtin_ctzll(word);
    return at < end ? at : end;
}

/* Pushes the blocks of a bit row, for a canonical list. */
static void push_bits(struct sp_row_eval *eval, const uint64_t *bits, int64_t kv_len, struct sp_runs *out)
{
    for (int64_t begin = next_bit(bits, 0, kv_len, 0); begin < kv_len && !eval->failed;) {
        int64_t end = next_bit(bits, begin, kv_len, ~0ull);
        sp_push_block(eval, out, sp_const(begin), sp_const(end));
        begin = next_bit(bits, end, kv_len, 0);
    }
}

enum { STITCHED_RUNS = 16 }; /* rows with more runs are taken family by family */

/* Rows that follow each other by `step` beyond a family: whether the templates `runs`, valid for *rows rows, go on
 * in the family of the next row. Takes in as many rows of it as do. */
static bool stitch(const splat_acsr *acsr, int64_t next_row, int64_t advance, struct sp_run_template *runs,
                   int32_t run_count, int64_t *rows)
{
    int64_t t;
    const struct sp_family *family = sp_acsr_family_of(acsr, next_row, &t);
    if (family->run_count != run_count)
        return false;
    const struct sp_run_template *theirs = &acsr->templates[family->first];
    int64_t more = advance ? (family->row_count - t + advance - 1) / advance : 1;
    for (int32_t k = 0; k < run_count; k++) {
        splat_acsr_run run = sp_template_at(&theirs[k], t), mine = sp_template_at(&runs[k], *rows);
        if (run.stride != runs[k].stride ||
            (*rows > 1 && (run.start != mine.start || run.count != mine.count || run.width != mine.width)))
            return false;
    }
    for (int32_t k = 0; k < run_count && *rows == 1; k++) {
        splat_acsr_run run = sp_template_at(&theirs[k], t);
        runs[k].d_start = run.start - runs[k].start;
        runs[k].d_count = run.count - runs[k].count;
        runs[k].d_width = run.width - runs[k].width;
    }
    bool alike = true;
    for (int32_t k = 0; k < run_count; k++)
        alike &= runs[k].d_start == advance * theirs[k].d_start && runs[k].d_count == advance * theirs[k].d_count &&
                 runs[k].d_width == advance * theirs[k].d_width;
    *rows += alike || more == 1 ? more : 1;
    return alike || more == 1;
}

static void acsr_row(struct sp_row_source *self, struct sp_row_eval *eval, struct sp_runs *out)
{
    const splat_acsr *acsr = ((struct sp_acsr_source *)self)->acsr;
    int64_t t, advance = eval->step % acsr->row_stride == 0 ? eval->step / acsr->row_stride : 0;
    const struct sp_family *family = sp_acsr_family_of(acsr, eval->row, &t);
    int64_t rows = advance ? (family->row_count - t + advance - 1) / advance : 1;
    out->count = 0;
    if (family->run_count < 0) {
        eval->valid = rows < eval->valid ? rows : eval->valid;
        push_bits(eval, acsr->bits + family->first, acsr->kv_len, out);
        return;
    }
    struct sp_run_template stitched[STITCHED_RUNS];
    const struct sp_run_template *from = &acsr->templates[family->first];
    const bool few = family->run_count <= STITCHED_RUNS;
    for (int32_t k = 0; k < family->run_count && few; k++) {
        splat_acsr_run run = sp_template_at(&from[k], t);
        stitched[k] = (struct sp_run_template){run.start,
                                               run.stride,
                                               run.count,
                                               run.width,
                                               (int32_t)advance * from[k].d_start,
                                               (int32_t)advance * from[k].d_count,
                                               (int32_t)advance * from[k].d_width};
    }
    while (few && rows < eval->valid && eval->row + rows * eval->step < acsr->q_len &&
           stitch(acsr, eval->row + rows * eval->step, advance, stitched, family->run_count, &rows))
        continue;
    if (rows < eval->valid)
        eval->valid = rows;
    for (int32_t k = 0; k < family->run_count; k++) {
        if (few) {
            const struct sp_run_template *run = &stitched[k];
            sp_push_run(eval, out, (struct sp_aff){run->start, run->d_start}, run->stride,
                        (struct sp_aff){run->count, run->d_count}, (struct sp_aff){run->width, run->d_width});
        } else {
            splat_acsr_run run = sp_template_at(&from[k], t);
            sp_push_run(eval, out, (struct sp_aff){run.start, advance * from[k].d_start}, run.stride,
                        (struct sp_aff){run.count, advance * from[k].d_count},
                        (struct sp_aff){run.width, advance * from[k].d_width});
        }
    }
}

void sp_acsr_source_init(struct sp_acsr_source *source, const splat_acsr *acsr)
{
    *source = (struct sp_acsr_source){.base.row = acsr_row, .acsr = acsr};
}

static enum splat_status check_row(const splat_acsr *acsr, int64_t i)
{
    if (!acsr)
        return sp_fail(SPLAT_INVALID, "acsr is null");
    if (i < 0 || i >= acsr->q_len)
        return sp_fail(SPLAT_INVALID, "row is %lld; it must be from 0 to %lld", (long long)i,
                       (long long)acsr->q_len - 1);
    return SPLAT_OK;
}

enum splat_status splat_acsr_row(const splat_acsr *acsr, int64_t i, splat_acsr_run *runs, int64_t capacity,
                                 int64_t *count)
{
    enum splat_status status = check_row(acsr, i);
    if (status != SPLAT_OK)
        return status;
    if (capacity < 0)
        return sp_fail(SPLAT_INVALID, "capacity is %lld; it must not be negative", (long long)capacity);
    if (!count || (capacity > 0 && !runs))
        return sp_fail(SPLAT_INVALID, "%s is null", count ? "runs" : "count");
    int64_t t;
    const struct sp_family *family = sp_acsr_family_of(acsr, i, &t);
    if (family->run_count >= 0) {
        for (int64_t k = 0; k < family->run_count && k < capacity; k++)
            runs[k] = sp_template_at(&acsr->templates[family->first + (uint64_t)k], t);
        *count = family->run_count;
        return SPLAT_OK;
    }
    struct sp_row_eval eval = {.q_len = acsr->q_len, .kv_len = acsr->kv_len, .row = i, .step = 1, .valid = 1};
    struct sp_runs raw = {0}, canonical = {0};
    push_bits(&eval, acsr->bits + family->first, acsr->kv_len, &raw);
    sp_runs_canonical(&eval, &raw, INT64_MAX, &canonical);
    for (int64_t k = 0; k < canonical.count && k < capacity; k++) {
        const struct sp_sym_run *run = &canonical.runs[k];
        runs[k] = (splat_acsr_run){(int32_t)run->start.v, (int32_t)run->stride, (int32_t)run->count.v,
                                   (int32_t)run->width.v};
    }
    *count = canonical.count;
    sp_runs_free(&raw);
    sp_runs_free(&canonical);
    return eval.failed ? sp_no_memory("a row's runs", (size_t)acsr->kv_len) : SPLAT_OK;
}

/* ---- Blocks of a row ---- */

static void run_blocks(splat_acsr_run run, int64_t col_begin, int64_t col_end, sp_block_fn visit, void *user)
{
    int64_t first = 0, last = run.count;
    if (run.stride && run.start < col_begin) /* the block that holds col_begin, or the one before it */
        first = (col_begin - run.start) / run.stride;
    if (run.stride && run.start < col_end) {
        int64_t reach = (col_end - 1 - run.start) / run.stride + 1;
        last = reach < last ? reach : last;
    }
    for (int64_t k = first; k < last; k++) {
        int64_t begin = run.start + k * run.stride, end = begin + run.width;
        begin = begin > col_begin ? begin : col_begin;
        end = end < col_end ? end : col_end;
        if (begin < end)
            visit((int32_t)begin, (int32_t)end, user);
    }
}

void sp_group_row_blocks(const splat_acsr *acsr, const struct sp_group *group, int64_t row, int64_t col_begin,
                         int64_t col_end, sp_block_fn visit, void *user)
{
    col_end = col_end < acsr->kv_len ? col_end : acsr->kv_len;
    if (group->bits) {
        for (int64_t begin = next_bit(group->bits, col_begin, col_end, 0); begin < col_end;) {
            int64_t end = next_bit(group->bits, begin, col_end, ~0ull);
            visit((int32_t)begin, (int32_t)end, user);
            begin = next_bit(group->bits, end, col_end, 0);
        }
        return;
    }
    for (int32_t k = 0; k < group->run_count; k++) {
        splat_acsr_run run = sp_template_at(&group->runs[k], row - group->row0);
        if (run.start >= col_end)
            break;
        run_blocks(run, col_begin, col_end, visit, user);
    }
}

static void set_bytes(int32_t begin, int32_t end, void *user)
{
    memset((uint8_t *)user + begin, 1, (size_t)(end - begin));
}

enum splat_status splat_acsr_expand_row(const splat_acsr *acsr, int64_t i, uint8_t *bytes)
{
    enum splat_status status = check_row(acsr, i);
    if (status != SPLAT_OK)
        return status;
    if (!bytes)
        return sp_fail(SPLAT_INVALID, "bytes is null");
    int64_t t;
    const struct sp_family *family = sp_acsr_family_of(acsr, i, &t);
    memset(bytes, 0, (size_t)acsr->kv_len);
    bool irregular = family->run_count < 0;
    struct sp_group group = {.row0 = (int32_t)(i - t), /* so that row - row0 is t */
                             .rows = 1,
                             .run_count = family->run_count,
                             .runs = irregular ? NULL : acsr->templates + family->first,
                             .bits = irregular ? acsr->bits + family->first : NULL};
    sp_group_row_blocks(acsr, &group, i, 0, acsr->kv_len, set_bytes, bytes);
    return SPLAT_OK;
}

/* ---- Set algebra ---- */

struct combined_source {
    struct sp_row_source base;
    struct sp_acsr_source a, b;
    enum splat_set_op op;
    bool complement; /* of a; b is unused */
    struct sp_runs row_a, row_b;
};

static void combined_row(struct sp_row_source *self, struct sp_row_eval *eval, struct sp_runs *out)
{
    struct combined_source *source = (struct combined_source *)self;
    acsr_row(&source->a.base, eval, &source->row_a);
    if (source->complement) {
        sp_runs_complement(eval, &source->row_a, out);
        return;
    }
    acsr_row(&source->b.base, eval, &source->row_b);
    sp_runs_combine(eval, source->op, &source->row_a, &source->row_b, out);
}

static enum splat_status combine(struct combined_source *source, splat_acsr **out)
{
    source->base.row = combined_row;
    enum splat_status status = sp_acsr_build(&source->base, source->a.acsr->q_len, source->a.acsr->kv_len, out);
    sp_runs_free(&source->row_a);
    sp_runs_free(&source->row_b);
    return status;
}

enum splat_status splat_acsr_combine(const splat_acsr *a, enum splat_set_op op, const splat_acsr *b,
                                     splat_acsr **out)
{
    if (!a || !b || !out)
        return sp_fail(SPLAT_INVALID, "%s is null", !a ? "a" : !b ? "b" : "out");
    if (op != SPLAT_UNION && op != SPLAT_INTERSECTION && op != SPLAT_DIFFERENCE)
        return sp_fail(SPLAT_INVALID, "op is %d; it must be SPLAT_UNION, SPLAT_INTERSECTION or SPLAT_DIFFERENCE",
                       (int)op);
    if (a->q_len != b->q_len || a->kv_len != b->kv_len)
        return sp_fail(SPLAT_INVALID, "b is %lld x %lld; it must have the shape of a, %lld x %lld",
                       (long long)b->q_len, (long long)b->kv_len, (long long)a->q_len, (long long)a->kv_len);
    struct combined_source source = {.op = op};
    sp_acsr_source_init(&source.a, a);
    sp_acsr_source_init(&source.b, b);
    return combine(&source, out);
}

enum splat_status splat_acsr_complement(const splat_acsr *a, splat_acsr **out)
{
    if (!a || !out)
        return sp_fail(SPLAT_INVALID, "%s is null", a ? "out" : "a");
    struct combined_source source = {.complement = true};
    sp_acsr_source_init(&source.a, a);
    return combine(&source, out);
}
