/* Overlong row tiles (split.h).
 *
 * The longest part that a launch may have is found by trial: for each number of parts of the longest row tile,
 * items are dealt to the block slots as the runtime deals them, and the earliest end, with what combining costs,
 * wins.
 */
#include "analysis/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/build.h"
#include "analysis/deal.h"
#include "analysis/ints.h"
#include "analysis/tune.h"
#include "common/error.h"

enum {
    ITEMS_MAX = 1 << 14, /* with more, a launch has enough to do */
    PART_TILES_MIN = 4,  /* a part's own prologue should not be most of it */
    PARTS_MAX = 512,
    ROUNDS_MAX = 4,      /* of parts that the block slots take one after the other */
    MERGED_DIM_MAX = 192 /* with wider outputs a kernel that merges has no registers left for parts */
};

bool sp_split_serves(const struct sp_mask_set *set, const splat_options *options)
{
    return options->op == SPLAT_OP_ATTENTION && set->count == 1 && options->device != SPLAT_DEVICE_CPU && options->dtype != SPLAT_FP32;
}

double sp_split_cost_ns(const struct sp_tune_table *table)
{
    return table->launch_us * 1e3;
}

/* One launch: its row tiles, what they take, and how it is dealt. */
struct trial {
    const struct sp_row_tile *row_tiles;
    int64_t count;
    int64_t uses; /* (batch, head) pairs */
    int slots;
    double row_ns, tile_ns, combine_ns, bytes_a_part;
    double copy_bytes_per_ns;
    float *ns; /* of the items, room for ITEMS_MAX */
};

static int64_t parts_of(const struct sp_row_tile *row_tile, int64_t limit)
{
    return row_tile->tiles > limit ? sp_ceil_div(row_tile->tiles, limit) : 1;
}

static int descending(const void *x, const void *y)
{
    const float a = *(const float *)x, b = *(const float *)y;
    return (a < b) - (a > b);
}

/* When the launch ends if no part has more than `limit` column tiles; HUGE_VAL when that makes too many items. */
static enum splat_status end_of(const struct trial *t, int64_t limit, double *end_ns)
{
    int64_t items = 0, split_parts = 0;
    *end_ns = HUGE_VAL;
    for (int64_t k = 0; k < t->count; k++) {
        const int64_t parts = parts_of(&t->row_tiles[k], limit);
        if (parts > PARTS_MAX || (items + parts) * t->uses > ITEMS_MAX ||
            (split_parts + parts - 1) * t->uses > ROUNDS_MAX * t->slots)
            return SPLAT_OK;
        split_parts += parts > 1 ? parts : 0;
        for (int64_t p = 0; p < parts; p++)
            t->ns[items++] = (float)(t->row_ns + t->tile_ns * (double)t->row_tiles[k].tiles / (double)parts);
    }
    qsort(t->ns, (size_t)items, sizeof *t->ns, descending);
    for (int64_t k = items - 1; k >= 0; k--) /* each for every pair, longest first */
        for (int64_t u = 0; u < t->uses; u++)
            t->ns[k * t->uses + u] = t->ns[k];
    enum splat_status status = sp_deal(t->ns, items * t->uses, t->slots, NULL, end_ns);
    if (split_parts)
        *end_ns += t->combine_ns + 2.0 * t->bytes_a_part * (double)(split_parts * t->uses) / t->copy_bytes_per_ns;
    return status;
}

/* The most column tiles that a part should have: those of the longest row tile when nothing is to be split. */
static enum splat_status choose_limit(const struct trial *t, int64_t *limit)
{
    const int64_t longest = t->count ? t->row_tiles[0].tiles : 0;
    double whole_ns, work_ns = 0, best_ns;
    *limit = longest;
    if (longest < 2 * PART_TILES_MIN || t->count * t->uses > ITEMS_MAX)
        return SPLAT_OK;
    enum splat_status status = end_of(t, longest, &whole_ns);
    for (int64_t k = 0; k < t->count; k++)
        work_ns += (double)t->uses * (t->row_ns + t->tile_ns * (double)t->row_tiles[k].tiles);
    best_ns = 0.97 * whole_ns;
    if (best_ns < work_ns / t->slots + t->combine_ns)
        return status;
    for (int64_t parts = 2; parts <= PARTS_MAX && longest / parts >= PART_TILES_MIN && status == SPLAT_OK;
         parts += 1 + parts / 16) {
        double end_ns;
        const int64_t tried = sp_ceil_div(longest, parts);
        status = end_of(t, tried, &end_ns);
        if (end_ns == HUGE_VAL)
            break; /* more parts make more items */
        if (end_ns < best_ns) {
            best_ns = end_ns;
            *limit = tried;
        }
    }
    return status;
}

/* ---- Rewriting the plan ---- */

/* Row tiles, segments and splits as they grow. */
struct rewritten {
    struct sp_row_tile *row_tiles;
    struct sp_segment *segments;
    struct sp_split *splits;
    int64_t row_tile_count, segment_count, split_count;
};

/* Appends column tiles [from, to) of a row tile, counted along its segments. */
static void append_part(struct rewritten *out, const struct splat_plan *plan, const struct sp_row_tile *row_tile,
                        int64_t from, int64_t to, int32_t slot)
{
    struct sp_row_tile *part = &out->row_tiles[out->row_tile_count++];
    *part = *row_tile;
    part->segment = (int32_t)out->segment_count;
    part->tiles = (int32_t)(to - from);
    part->slot = slot;
    int64_t at = 0;
    for (int32_t s = 0; s < row_tile->segment_count; s++) {
        struct sp_segment segment = plan->segments[row_tile->segment + s];
        const int64_t first = sp_max64(from - at, 0), end = sp_min64(to - at, segment.count);
        at += segment.count;
        if (first >= end)
            continue;
        segment.first += (int32_t)first;
        segment.count = (int32_t)(end - first);
        segment.predicate += SP_SEGMENT_STEP(segment.code) ? (int32_t)first : 0;
        out->segments[out->segment_count++] = segment;
    }
    part->segment_count = (int32_t)(out->segment_count - part->segment);
}

static void rewrite_pass(struct rewritten *out, struct splat_plan *plan, struct sp_pass *pass, int64_t limit)
{
    const int64_t first = out->row_tile_count;
    int32_t slot = 0;
    for (int32_t k = 0; k < pass->row_tile_count; k++) {
        const struct sp_row_tile *row_tile = &plan->row_tiles[pass->first_row_tile + k];
        const int64_t parts = parts_of(row_tile, limit);
        if (parts > 1)
            out->splits[out->split_count++] = (struct sp_split){row_tile->tile, slot, (int32_t)parts, pass->launch};
        for (int64_t p = 0; p < parts; p++)
            append_part(out, plan, row_tile, p * row_tile->tiles / parts, (p + 1) * row_tile->tiles / parts,
                        parts > 1 ? ++slot : 0);
    }
    pass->first_row_tile = (int32_t)first;
    pass->row_tile_count = (int32_t)(out->row_tile_count - first);
    qsort(out->row_tiles + first, (size_t)pass->row_tile_count, sizeof *out->row_tiles, sp_row_tile_order);
    plan->slot_count = slot > plan->slot_count ? slot : plan->slot_count;
}

/* Every part may cut one segment in two. */
static enum splat_status rewrite(struct splat_plan *plan, const int64_t *limits)
{
    int64_t parts = 0;
    for (int64_t p = 0; p < plan->pass_count; p++)
        for (int32_t k = 0; k < plan->passes[p].row_tile_count; k++)
            parts += parts_of(&plan->row_tiles[plan->passes[p].first_row_tile + k], limits[p]);
    struct rewritten out = {0};
    const int64_t extra = parts - plan->row_tile_count;
    size_t bytes = (size_t)parts * sizeof *out.row_tiles;
    out.row_tiles = malloc(bytes);
    out.segments = malloc((size_t)(plan->segment_count + extra) * sizeof *out.segments);
    out.splits = malloc((size_t)extra * sizeof *out.splits);
    if (!out.row_tiles || !out.segments || !out.splits) {
        free(out.row_tiles);
        free(out.segments);
        free(out.splits);
        return sp_no_memory("the parts of long row tiles", bytes);
    }
    for (int64_t p = 0; p < plan->pass_count; p++)
        rewrite_pass(&out, plan, &plan->passes[p], limits[p]);
    free(plan->row_tiles);
    free(plan->segments);
    plan->row_tiles = out.row_tiles;
    plan->row_tile_count = out.row_tile_count;
    plan->segments = out.segments;
    plan->segment_count = out.segment_count;
    plan->splits = out.splits;
    plan->split_count = out.split_count;
    return SPLAT_OK;
}

int64_t sp_split_count(const splat_plan *plan, const struct sp_pass *pass, int64_t *split, int64_t *parts)
{
    *split = *parts = 0;
    for (int64_t s = 0; s < plan->split_count; s++)
        if (plan->splits[s].launch == pass->launch) {
            (*split)++;
            *parts += plan->splits[s].parts;
        }
    return pass->row_tile_count - *parts + *split;
}

enum splat_status sp_split_rows(struct splat_plan *plan, const splat_options *options,
                                const struct sp_mask_set *set)
{
    const int64_t value_dim = options->value_dim ? options->value_dim : options->head_dim;
    if (!sp_split_serves(set, options) || (plan->launch_count > 1 && value_dim > MERGED_DIM_MAX))
        return SPLAT_OK;
    const struct sp_tune_table *table = sp_tune_table_for(options->arch);
    const struct sp_tune_row *row = &table->rows[plan->tune_row];
    const int64_t tiles = plan->full_tiles + plan->partial_tiles;
    const double partial = tiles ? (double)plan->partial_tiles / (double)tiles : 0.0;
    struct trial trial = {
        .uses = set->uses[0],
        .slots = table->sm_count * row->blocks_per_sm,
        .row_ns = row->row_ns,
        .tile_ns = row->full_ns * sp_dim_factor(row, options) + partial * row->partial_ns,
        .combine_ns = sp_split_cost_ns(table),
        .bytes_a_part = 4.0 * (double)value_dim * (double)sp_min64(plan->tile_rows, set->q_len),
        .copy_bytes_per_ns = table->copy_bytes_per_us * 1e-3,
        .ns = malloc(ITEMS_MAX * sizeof(float)),
    };
    int64_t limits[SP_LAUNCHES_MAX];
    bool any = false;
    enum splat_status status =
        trial.ns ? SPLAT_OK : sp_no_memory("the parts of long row tiles", ITEMS_MAX * sizeof(float));
    for (int64_t p = 0; p < plan->pass_count && status == SPLAT_OK; p++) {
        trial.row_tiles = plan->row_tiles + plan->passes[p].first_row_tile;
        trial.count = plan->passes[p].row_tile_count;
        status = choose_limit(&trial, &limits[p]);
        any |= trial.count && limits[p] < trial.row_tiles[0].tiles;
    }
    free(trial.ns);
    return status == SPLAT_OK && any ? rewrite(plan, limits) : status;
}
