/* Covers of row blocks, from the groups of their rows.
 *
 * Takes groups of rows with affine runs; gives the granules touched and filled. Work is closed form in the runs:
 * one step for a run whose blocks, over the rows of its group, leave no granule untouched between them. What has no
 * closed form is done row by row, and rows with very many runs, or with bits, on a bitmap of granules.
 */
#include <stdlib.h>
#include <string.h>

#include "analysis/cover.h"
#include "analysis/ints.h"
#include "common/error.h"

enum { BITMAP_RUNS = 256 }; /* more runs than this in a row block: a bitmap is cheaper than sorting spans */

/* ---- Spans ---- */

void sp_spans_push(struct sp_spans *spans, int64_t low, int64_t high)
{
    if (low >= high)
        return;
    if (spans->count > 0) {
        struct sp_span *last = &spans->at[spans->count - 1];
        if (low >= last->low && low <= last->high) {
            last->high = (int32_t)sp_max64(high, last->high);
            return;
        }
        spans->unsorted |= low < last->low;
    }
    if (spans->count == spans->capacity) {
        int64_t capacity = spans->capacity ? 2 * spans->capacity : 32;
        struct sp_span *grown = realloc(spans->at, (size_t)capacity * sizeof *grown);
        if (!grown) {
            spans->failed = true;
            return;
        }
        spans->at = grown;
        spans->capacity = capacity;
    }
    spans->at[spans->count++] = (struct sp_span){(int32_t)low, (int32_t)high};
}

static void clear(struct sp_spans *spans)
{
    spans->count = 0;
    spans->unsorted = false;
}

static int by_low(const void *a, const void *b)
{
    int32_t x = ((const struct sp_span *)a)->low, y = ((const struct sp_span *)b)->low;
    return (x > y) - (x < y);
}

static void normalise(struct sp_spans *spans)
{
    if (!spans->unsorted)
        return;
    qsort(spans->at, (size_t)spans->count, sizeof *spans->at, by_low);
    int64_t count = spans->count;
    clear(spans);
    for (int64_t k = 0; k < count; k++)
        sp_spans_push(spans, spans->at[k].low, spans->at[k].high);
}

static void copy_spans(struct sp_spans *into, const struct sp_spans *from)
{
    clear(into);
    for (int64_t k = 0; k < from->count; k++)
        sp_spans_push(into, from->at[k].low, from->at[k].high);
}

static void swap_spans(struct sp_spans *a, struct sp_spans *b)
{
    struct sp_spans t = *a;
    *a = *b;
    *b = t;
}

/* into = into & other, by way of `scratch`. */
static void intersect(struct sp_spans *into, const struct sp_spans *other, struct sp_spans *scratch)
{
    clear(scratch);
    for (int64_t a = 0, b = 0; a < into->count && b < other->count;) {
        const struct sp_span *x = &into->at[a], *y = &other->at[b];
        sp_spans_push(scratch, sp_max64(x->low, y->low), sp_min64(x->high, y->high));
        if (x->high < y->high)
            a++;
        else
            b++;
    }
    scratch->failed |= into->failed;
    swap_spans(into, scratch);
}

/* into = into | other, by way of `scratch`. */
static void unite(struct sp_spans *into, const struct sp_spans *other, struct sp_spans *scratch)
{
    clear(scratch);
    for (int64_t a = 0, b = 0; a < into->count || b < other->count;) {
        bool first = b == other->count || (a < into->count && into->at[a].low <= other->at[b].low);
        const struct sp_span *next = first ? &into->at[a++] : &other->at[b++];
        sp_spans_push(scratch, next->low, next->high);
    }
    scratch->failed |= into->failed;
    swap_spans(into, scratch);
}

/* Columns [begin, end) as granules: those it touches, those it fills. */
static void push_touched(struct sp_spans *spans, int64_t begin, int64_t end)
{
    if (begin < end)
        sp_spans_push(spans, begin / SP_GRANULE, (end + SP_GRANULE - 1) / SP_GRANULE);
}

static void push_inner(struct sp_spans *spans, int64_t begin, int64_t end)
{
    sp_spans_push(spans, (begin + SP_GRANULE - 1) / SP_GRANULE, end / SP_GRANULE);
}

/* ---- A run over the rows of its group ---- */

/* A block (or a row's hull of blocks) whose ends are affine in the row: first and last row, and the step. */
struct path {
    int64_t begin, end, d_begin, d_end, rows;
};

static int64_t last_of(int64_t value, int64_t step, int64_t rows)
{
    return value + step * (rows - 1);
}

static int64_t path_low(const struct path *p)
{
    return sp_min64(p->begin, last_of(p->begin, p->d_begin, p->rows));
}

static int64_t path_high(const struct path *p)
{
    return sp_max64(p->end, last_of(p->end, p->d_end, p->rows));
}

/* Whether the union over the rows leaves no whole granule untouched inside its hull: neighbouring rows leave gaps
 * narrower than a granule. The gap is affine in the row, so its ends decide. */
static bool path_is_hull(const struct path *p)
{
    if (p->rows < 2)
        return true;
    int64_t up = p->begin + p->d_begin - p->end, down = p->begin - p->end - p->d_end;
    int64_t step = p->d_begin - p->d_end, last = (p->rows - 2) * step;
    return sp_max64(sp_max64(up, up + last), sp_max64(down, down + last)) < SP_GRANULE;
}

static int64_t run_min_width(const struct sp_run_template *run, int64_t rows)
{
    return sp_min64(run->width, last_of(run->width, run->d_width, rows));
}

static int64_t run_max_width(const struct sp_run_template *run, int64_t rows)
{
    return sp_max64(run->width, last_of(run->width, run->d_width, rows));
}

static struct path block_path(const struct sp_run_template *run, int64_t rows)
{
    return (struct path){run->start, (int64_t)run->start + run->width, run->d_start,
                         (int64_t)run->d_start + run->d_width, rows};
}

/* From the first block's begin to the last block's end. */
static struct path hull_path(const struct sp_run_template *run, int64_t rows)
{
    struct path p = block_path(run, rows);
    p.end += (int64_t)(run->count - 1) * run->stride;
    p.d_end += (int64_t)run->d_count * run->stride;
    return p;
}

typedef void (*push_fn)(struct sp_spans *spans, int64_t begin, int64_t end);

/* Every block of the run at row t, one by one. */
static void push_row_blocks(const struct sp_run_template *run, int64_t t, push_fn push, struct sp_spans *out)
{
    int64_t begin = run->start + t * run->d_start, width = run->width + t * run->d_width;
    int64_t count = run->count + t * run->d_count;
    for (int64_t k = 0; k < count; k++, begin += run->stride)
        push(out, begin, begin + width);
}

static void touch_run(const struct sp_run_template *run, int64_t rows, struct sp_spans *out)
{
    struct path hull = hull_path(run, rows), block = block_path(run, rows);
    bool dense_rows = run->stride == 0 || run->stride - run_min_width(run, rows) < SP_GRANULE;
    if (dense_rows && path_is_hull(&hull)) {
        push_touched(out, path_low(&hull), path_high(&hull));
    } else if (dense_rows) {
        for (int64_t t = 0; t < rows; t++)
            push_touched(out, hull.begin + t * hull.d_begin, hull.end + t * hull.d_end);
    } else if (run->d_count == 0 && path_is_hull(&block)) {
        int64_t low = path_low(&block), high = path_high(&block);
        if (run->stride - (high - low) < SP_GRANULE)
            push_touched(out, low, high + (int64_t)(run->count - 1) * run->stride);
        else
            for (int64_t k = 0; k < run->count; k++)
                push_touched(out, low + k * run->stride, high + k * run->stride);
    } else {
        for (int64_t t = 0; t < rows; t++)
            push_row_blocks(run, t, push_touched, out);
    }
}

/* ---- Inner granules of a group ---- */

/* Whether a granule filled in every row is filled by the same block in every row, so that blocks can be intersected
 * one by one: hulls of different wide blocks overlap by less than a granule. */
static bool blocks_keep_apart(const struct sp_group *group)
{
    int64_t reach = INT64_MIN / 2; /* furthest end so far */
    for (int32_t k = 0; k < group->run_count; k++) {
        const struct sp_run_template *run = &group->runs[k];
        if (run_max_width(run, group->rows) < SP_GRANULE)
            continue;
        struct path hull = hull_path(run, group->rows), block = block_path(run, group->rows);
        if (run->d_count != 0 || path_low(&hull) + SP_GRANULE <= reach)
            return false;
        if (run->stride && path_high(&block) - path_low(&block) - run->stride >= SP_GRANULE)
            return false;
        reach = sp_max64(reach, path_high(&hull));
    }
    return true;
}

static void fill_row(const struct sp_group *group, int64_t t, struct sp_spans *out)
{
    clear(out);
    for (int32_t k = 0; k < group->run_count; k++)
        if (group->runs[k].width + t * group->runs[k].d_width >= SP_GRANULE)
            push_row_blocks(&group->runs[k], t, push_inner, out);
    normalise(out);
}

static void fill_group(const struct sp_group *group, struct sp_spans *out)
{
    clear(out);
    for (int32_t k = 0; k < group->run_count; k++) {
        const struct sp_run_template *run = &group->runs[k];
        if (run_min_width(run, group->rows) < SP_GRANULE)
            continue;
        struct path block = block_path(run, group->rows);
        int64_t begin = sp_max64(block.begin, last_of(block.begin, block.d_begin, block.rows));
        int64_t end = sp_min64(block.end, last_of(block.end, block.d_end, block.rows));
        for (int64_t b = 0; b < run->count; b++)
            push_inner(out, begin + b * run->stride, end + b * run->stride);
    }
    normalise(out);
}

static void narrow_inner(const struct sp_group *group, struct sp_cover_scratch *scratch, struct sp_spans *inner)
{
    if (inner->count == 0)
        return;
    if (blocks_keep_apart(group)) {
        fill_group(group, &scratch->row);
        intersect(inner, &scratch->row, &scratch->kept);
        return;
    }
    for (int64_t t = 0; t < group->rows && inner->count > 0; t++) {
        fill_row(group, t, &scratch->row);
        intersect(inner, &scratch->row, &scratch->kept);
    }
}

/* ---- Dense path: bitmaps of granules ---- */

struct bitmaps {
    uint64_t *any, *all, *row;                     /* a bit a granule */
    uint64_t *raw_any, *raw_all;                   /* a bit a column, over the irregular rows */
    int64_t granule_words, column_words, granules; /* complete granules */
};

static void set_bits(uint64_t *words, int64_t low, int64_t high)
{
    if (low >= high)
        return;
    uint64_t first = ~0ull << (low % 64), last = ~0ull >> (63 - (high - 1) % 64);
    int64_t a = low / 64, b = (high - 1) / 64;
    if (a == b) {
        words[a] |= first & last;
        return;
    }
    words[a] |= first;
    for (int64_t w = a + 1; w < b; w++)
        words[w] = ~0ull;
    words[b] |= last;
}

static bool make_bitmaps(struct sp_cover_scratch *scratch, int64_t kv_len, struct bitmaps *maps)
{
    int64_t columns = (kv_len + 63) / 64, granules = (kv_len + SP_GRANULE * 64 - 1) / (SP_GRANULE * 64);
    int64_t words = 3 * granules + 2 * columns;
    if (words > scratch->word_capacity) {
        free(scratch->words);
        scratch->word_capacity = 0;
        scratch->words = malloc((size_t)words * sizeof *scratch->words);
        if (!scratch->words)
            return false;
        scratch->word_capacity = words;
    }
    uint64_t *at = scratch->words;
    *maps = (struct bitmaps){
        at,       at + granules, at + 2 * granules,  at + 3 * granules, at + 3 * granules + columns,
        granules, columns,       kv_len / SP_GRANULE};
    memset(maps->any, 0, (size_t)granules * sizeof *at);
    memset(maps->all, 255, (size_t)granules * sizeof *at);
    memset(maps->raw_any, 0, (size_t)columns * sizeof *at);
    memset(maps->raw_all, 255, (size_t)columns * sizeof *at);
    return true;
}

static void mark_group(const struct sp_group *group, struct bitmaps *maps)
{
    if (group->bits) {
        for (int64_t w = 0; w < maps->column_words; w++) {
            maps->raw_any[w] |= group->bits[w];
            maps->raw_all[w] &= group->bits[w];
        }
        return;
    }
    for (int64_t t = 0; t < group->rows; t++) {
        memset(maps->row, 0, (size_t)maps->granule_words * sizeof *maps->row);
        for (int32_t k = 0; k < group->run_count; k++) {
            const struct sp_run_template *run = &group->runs[k];
            int64_t begin = run->start + t * run->d_start, width = run->width + t * run->d_width;
            int64_t count = run->count + t * run->d_count;
            for (int64_t b = 0; b < count; b++, begin += run->stride) {
                set_bits(maps->any, begin / SP_GRANULE, (begin + width + SP_GRANULE - 1) / SP_GRANULE);
                set_bits(maps->row, (begin + SP_GRANULE - 1) / SP_GRANULE, (begin + width) / SP_GRANULE);
            }
        }
        for (int64_t w = 0; w < maps->granule_words; w++)
            maps->all[w] &= maps->row[w];
    }
}

/* Brings the irregular rows' columns into the granule bitmaps. */
static void fold_raw(struct bitmaps *maps)
{
    for (int64_t w = 0; w < maps->column_words; w++) {
        for (int half = 0; half < 2; half++) {
            int64_t granule = 2 * w + half;
            uint64_t bit = 1ull << (granule % 64);
            if ((uint32_t)(maps->raw_any[w] >> (32 * half)))
                maps->any[granule / 64] |= bit;
            if ((uint32_t)(maps->raw_all[w] >> (32 * half)) != UINT32_MAX)
                maps->all[granule / 64] &= ~bit;
        }
    }
}

static void push_bitmap(const uint64_t *words, int64_t word_count, int64_t limit, struct sp_spans *out)
{
    for (int64_t w = 0; w < word_count; w++) {
        for (uint64_t rest = words[w]; rest;) {
            int low = __builtin_ctzll(rest);
            uint64_t above = ~(rest >> low);
            int length = above ? __builtin_ctzll(above) : 64;
            sp_spans_push(out, w * 64 + low, sp_min64(w * 64 + low + length, limit));
            rest = low + length >= 64 ? 0 : rest & (~0ull << (low + length));
        }
    }
}

static bool cover_by_bitmaps(const splat_acsr *acsr, struct sp_cover_scratch *scratch, bool has_bits,
                             struct sp_cover *cover)
{
    struct bitmaps maps;
    if (!make_bitmaps(scratch, acsr->kv_len, &maps))
        return false;
    for (int64_t g = 0; g < scratch->walk.groups.count; g++)
        mark_group(&scratch->walk.groups.groups[g], &maps);
    if (has_bits)
        fold_raw(&maps);
    push_bitmap(maps.any, maps.granule_words, INT32_MAX, &cover->touched);
    push_bitmap(maps.all, maps.granule_words, maps.granules, &cover->inner);
    return true;
}

/* ---- Covers ---- */

enum { WIDEST_TILE = 192 };

enum splat_status sp_cover_rows(const splat_acsr *acsr, int64_t row_begin, int64_t row_end,
                                struct sp_cover_scratch *scratch, struct sp_cover *cover)
{
    enum splat_status status = sp_walk_to(&scratch->walk, acsr, row_begin, row_end);
    if (status != SPLAT_OK)
        return status;
    const struct sp_groups *groups = &scratch->walk.groups;
    int64_t runs = 0;
    bool has_bits = false, periodic = false;
    for (int64_t g = 0; g < groups->count; g++) {
        has_bits |= groups->groups[g].bits != NULL;
        runs += sp_max64(groups->groups[g].run_count, 0);
        for (int32_t k = 0; k < groups->groups[g].run_count; k++)
            periodic |= groups->groups[g].runs[k].stride != 0 && groups->groups[g].runs[k].stride <= WIDEST_TILE;
    }
    cover->periodic = periodic;
    clear(&cover->touched);
    clear(&cover->inner);
    cover->irregular = has_bits || groups->count > (row_end - row_begin) / 4;
    bool made = true;
    if (has_bits || runs > BITMAP_RUNS) {
        made = cover_by_bitmaps(acsr, scratch, has_bits, cover);
    } else {
        sp_spans_push(&cover->inner, 0, acsr->kv_len / SP_GRANULE);
        for (int64_t g = 0; g < groups->count; g++) {
            const struct sp_group *group = &groups->groups[g];
            for (int32_t k = 0; k < group->run_count; k++)
                touch_run(&group->runs[k], group->rows, &cover->touched);
            narrow_inner(group, scratch, &cover->inner);
        }
        normalise(&cover->touched);
    }
    if (!made || sp_cover_failed(cover) || scratch->row.failed || scratch->kept.failed)
        return sp_no_memory("the tile cover", (size_t)acsr->kv_len / SP_GRANULE * sizeof(struct sp_span));
    return SPLAT_OK;
}

void sp_cover_join(struct sp_cover *into, const struct sp_cover *other, struct sp_spans *scratch)
{
    unite(&into->touched, &other->touched, scratch);
    intersect(&into->inner, &other->inner, scratch);
    into->periodic |= other->periodic;
    into->irregular |= other->irregular;
}

void sp_cover_copy(struct sp_cover *into, const struct sp_cover *from)
{
    copy_spans(&into->touched, &from->touched);
    copy_spans(&into->inner, &from->inner);
    into->periodic = from->periodic;
    into->irregular = from->irregular;
}

bool sp_cover_failed(const struct sp_cover *cover)
{
    return cover->touched.failed || cover->inner.failed;
}

void sp_cover_tiles(const struct sp_cover *cover, int64_t granules, struct sp_spans *touched, struct sp_spans *full)
{
    clear(touched);
    clear(full);
    for (int64_t k = 0; k < cover->touched.count; k++)
        sp_spans_push(touched, cover->touched.at[k].low / granules,
                      (cover->touched.at[k].high + granules - 1) / granules);
    for (int64_t k = 0; k < cover->inner.count; k++)
        sp_spans_push(full, (cover->inner.at[k].low + granules - 1) / granules, cover->inner.at[k].high / granules);
}

struct sp_tile_count sp_cover_count(const struct sp_cover *cover, int64_t granules)
{
    struct sp_tile_count count = {0};
    int64_t reached = -1;
    for (int64_t k = 0; k < cover->touched.count; k++) {
        int64_t low = sp_max64(cover->touched.at[k].low / granules, reached);
        int64_t high = (cover->touched.at[k].high + granules - 1) / granules;
        count.touched += sp_max64(high - low, 0);
        count.stretches += low > reached;
        reached = sp_max64(reached, high);
    }
    for (int64_t k = 0; k < cover->inner.count; k++) {
        int64_t low = (cover->inner.at[k].low + granules - 1) / granules;
        int64_t high = cover->inner.at[k].high / granules;
        count.full += sp_max64(high - low, 0);
        count.stretches += 2 * (low < high);
    }
    return count;
}

void sp_spans_free(struct sp_spans *spans)
{
    free(spans->at);
    *spans = (struct sp_spans){0};
}

void sp_cover_free(struct sp_cover *cover)
{
    sp_spans_free(&cover->touched);
    sp_spans_free(&cover->inner);
}

void sp_cover_scratch_free(struct sp_cover_scratch *scratch)
{
    sp_walk_free(&scratch->walk);
    sp_spans_free(&scratch->row);
    sp_spans_free(&scratch->kept);
    free(scratch->words);
    *scratch = (struct sp_cover_scratch){0};
}
