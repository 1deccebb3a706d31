/* Row tiles and segments of a pass (build.h).
 *
 * For every row tile: the cover of its rows gives the FULL and the PARTIAL stretches; a PARTIAL stretch takes one
 * closed form predicate if there is one, else it is cut where the set of active runs changes and each part is
 * tried; what is left is drawn (raster.c). A row tile that looks like an earlier one, moved (alike.h), takes over
 * its segments. Cost follows the number of segments, not of tiles.
 */
#include <stdlib.h>
#include <string.h>

#include "analysis/build.h"
#include "analysis/ints.h"
#include "common/error.h"

enum { CUTS_MAX = 64 }; /* with more edges in a stretch, cutting would give a predicate a tile anyway */

void sp_builder_fail(struct sp_builder *builder, enum splat_status status)
{
    if (builder->status == SPLAT_OK)
        builder->status = status;
}

/* ---- Segments ---- */

static struct sp_segment *last_segment(struct sp_builder *b)
{
    return b->segment_count > b->row_tile_first_segment ? &b->segments[b->segment_count - 1] : NULL;
}

static void append(struct sp_builder *b, struct sp_segment segment)
{
    if (b->segment_count == b->segment_capacity) {
        int64_t capacity = b->segment_capacity ? b->segment_capacity + b->segment_capacity / 2 : 64;
        struct sp_segment *grown = realloc(b->segments, (size_t)capacity * sizeof *grown);
        if (!grown) {
            sp_builder_fail(b, sp_no_memory("the plan's segments", (size_t)capacity * sizeof *grown));
            return;
        }
        b->segments = grown;
        b->segment_capacity = capacity;
    }
    if (b->segment_count >= INT32_MAX) {
        sp_builder_fail(
            b, sp_fail(SPLAT_UNSUPPORTED,
                       "the mask needs more than %d segments of tiles of %lld x %lld; the limit is 2^31 - 1",
                       INT32_MAX, (long long)b->tile_rows, (long long)b->tile_cols));
        return;
    }
    b->segments[b->segment_count++] = segment;
}

/* The number of a predicate, 0 after a failure. */
static int32_t predicate_number(struct sp_builder *b, const struct sp_predicate *predicate)
{
    int64_t number = sp_pool_add(&b->predicates, predicate);
    if (number < 0)
        sp_builder_fail(b, sp_no_memory("the plan's predicates", (size_t)b->predicates.count * sizeof *predicate));
    return number < 0 ? 0 : (int32_t)number;
}

static void emit(struct sp_builder *b, int64_t first, int64_t count, int32_t kind_and_step, int32_t number)
{
    enum sp_pred_kind kind = (enum sp_pred_kind)SP_SEGMENT_KIND(kind_and_step);
    int32_t code = b->view << 8 | kind_and_step;
    *(kind == SP_PRED_NONE ? &b->full_tiles : &b->partial_tiles) += count;
    b->predicate_mask |= 1u << kind;
    struct sp_segment *last = last_segment(b);
    if (last && last->code == code && last->predicate == number && last->first + last->count == first)
        last->count += (int32_t)count;
    else
        append(b, (struct sp_segment){(int32_t)first, (int32_t)count, code, number});
}

void sp_builder_emit(struct sp_builder *b, int64_t first, int64_t count, enum sp_pred_kind kind,
                     const struct sp_predicate *predicate)
{
    int32_t number = kind == SP_PRED_NONE ? 0 : predicate_number(b, predicate);
    if (b->status == SPLAT_OK)
        emit(b, first, count, (int32_t)kind, number);
}

void sp_builder_emit_table(struct sp_builder *b, int64_t first, int64_t count, int64_t number)
{
    if (b->status == SPLAT_OK)
        emit(b, first, count, SP_PRED_TABLE, (int32_t)number);
}

void sp_builder_emit_bits(struct sp_builder *b, int64_t tile, int64_t number)
{
    if (b->status != SPLAT_OK)
        return;
    const int32_t repeat = b->view << 8 | SP_PRED_BITS, step = repeat | 1 << 4;
    struct sp_segment *last = last_segment(b);
    if (last && (last->code | 1 << 4) == step && last->first + last->count == tile) {
        bool repeats = number == last->predicate && last->code == repeat;
        bool steps = number == last->predicate + last->count && (last->count == 1 || last->code == step);
        if (repeats || steps) {
            last->code = repeats ? repeat : step;
            last->count++;
            b->partial_tiles++;
            return;
        }
    }
    emit(b, tile, 1, SP_PRED_BITS, (int32_t)number);
}

/* ---- Partial stretches ---- */

/* Edges, in tiles inside (first, end), at which a run of some group begins or ends: between them the set of active
 * runs stays the same. Sorted, without repeats; -1 when there are too many. */
static int gather_cuts(const struct sp_tile_groups *tile, int64_t tile_cols, int64_t first, int64_t end,
                       int64_t cuts[CUTS_MAX])
{
    int count = 0;
    for (int64_t g = 0; g < tile->count; g++) {
        const struct sp_group *group = &tile->groups[g];
        if (group->bits)
            return -1;
        for (int32_t k = 0; k < group->run_count; k++) {
            int64_t edges[2];
            sp_run_hull(&group->runs[k], group->rows, &edges[0], &edges[1]);
            edges[0] = edges[0] / tile_cols;
            edges[1] = sp_ceil_div(edges[1], tile_cols);
            for (int e = 0; e < 2; e++) {
                int at = 0;
                while (at < count && cuts[at] < edges[e])
                    at++;
                if (edges[e] <= first || edges[e] >= end || (at < count && cuts[at] == edges[e]))
                    continue;
                if (count == CUTS_MAX)
                    return -1;
                memmove(&cuts[at + 1], &cuts[at], (size_t)(count - at) * sizeof *cuts);
                cuts[at] = edges[e];
                count++;
            }
        }
    }
    return count;
}

static bool try_fit(struct sp_builder *b, const struct sp_tile_groups *tile, int64_t first, int64_t end)
{
    struct sp_fit fit;
    if (!sp_fit_groups(tile, first * b->tile_cols, end * b->tile_cols, &fit))
        return false;
    sp_builder_emit(b, first, end - first, fit.kind, &fit.predicate);
    return true;
}

static void add_partial(struct sp_builder *b, const splat_acsr *acsr, const struct sp_tile_groups *tile,
                        int64_t first, int64_t end)
{
    int64_t cuts[CUTS_MAX + 1];
    if (try_fit(b, tile, first, end))
        return;
    int count = end - first > 1 ? gather_cuts(tile, b->tile_cols, first, end, cuts) : 0;
    if (count <= 0) {
        sp_builder_raster(b, acsr, tile, first, end);
        return;
    }
    cuts[count] = end;
    int64_t undone = first; /* parts from here to `at` have no closed form */
    for (int64_t at = first, k = 0; k <= count; at = cuts[k++]) {
        struct sp_fit fit;
        if (!sp_fit_groups(tile, at * b->tile_cols, cuts[k] * b->tile_cols, &fit))
            continue;
        if (undone < at)
            sp_builder_raster(b, acsr, tile, undone, at);
        sp_builder_emit(b, at, cuts[k] - at, fit.kind, &fit.predicate);
        undone = cuts[k];
    }
    if (undone < end)
        sp_builder_raster(b, acsr, tile, undone, end);
}

/* ---- Row tiles ---- */

/* Walks touched tiles, cutting each stretch into its FULL and PARTIAL parts. */
static void add_stretches(struct sp_builder *b, const splat_acsr *acsr, const struct sp_tile_groups *tile)
{
    const struct sp_spans *touched = &b->touched, *full = &b->full;
    int64_t f = 0;
    for (int64_t k = 0; k < touched->count; k++) {
        int64_t at = touched->at[k].low, end = touched->at[k].high;
        while (at < end) {
            while (f < full->count && full->at[f].high <= at)
                f++;
            int64_t full_low = f < full->count ? full->at[f].low : INT64_MAX;
            int64_t stop = sp_min64(end, full_low > at ? full_low : full->at[f].high);
            if (full_low > at)
                add_partial(b, acsr, tile, at, stop);
            else
                sp_builder_emit(b, at, stop - at, SP_PRED_NONE, NULL);
            at = stop;
        }
    }
}

/* The column tiles of one part for rows [row0, row0 + rows). */
static void add_part(struct sp_builder *b, const struct sp_builder_part *part, struct sp_cover_scratch *scratch,
                     int64_t row0, int64_t rows)
{
    enum splat_status status = sp_cover_rows(part->acsr, row0, row0 + rows, scratch, &b->cover);
    sp_cover_tiles(&b->cover, b->tile_cols / SP_GRANULE, &b->touched, &b->full);
    if (status == SPLAT_OK && (b->touched.failed || b->full.failed))
        status = sp_no_memory("the tile cover", (size_t)b->touched.count * sizeof(struct sp_span));
    if (status != SPLAT_OK) {
        sp_builder_fail(b, status);
        return;
    }
    const struct sp_groups *groups = &scratch->walk.groups;
    struct sp_tile_groups tile = {groups->groups, groups->count, row0, rows, b->tile_rows, part->acsr->kv_len};
    b->view = part->view;
    add_stretches(b, part->acsr, &tile);
}

/* ---- Row tiles like earlier ones ---- */

/* What the row tile looks like: *hash, and where from in each part. */
static enum splat_status look(struct sp_builder *b, const struct sp_builder_part *parts, int part_count,
                              int64_t row0, int64_t rows, struct sp_hash *hash,
                              int64_t origins[SP_BUILDER_PARTS_MAX])
{
    struct {
        struct sp_hash hash;
        int64_t view;
    } all[SP_BUILDER_PARTS_MAX];
    for (int k = 0; k < part_count; k++) {
        struct sp_likeness likeness;
        struct sp_row_walk *walk = &b->cover_scratch[k].walk;
        enum splat_status status = sp_walk_to(walk, parts[k].acsr, row0, row0 + rows);
        if (status != SPLAT_OK)
            return status;
        if (!sp_alike(&walk->groups, row0, parts[k].acsr, b->tile_cols, &b->alike, &likeness))
            return sp_no_memory("the look of a row tile", (size_t)walk->groups.run_count * sizeof(int64_t));
        all[k].hash = likeness.hash;
        all[k].view = (int64_t)parts[k].view << 32 | rows;
        origins[k] = likeness.origin;
    }
    *hash = sp_hash_bytes(all, (size_t)part_count * sizeof *all);
    return SPLAT_OK;
}

/* Moves a segment of the model's row tile to the one in hand. */
static bool move_segment(struct sp_builder *b, struct sp_segment *segment, int64_t rows, int64_t columns,
                         const struct sp_tile_groups *tile)
{
    struct sp_fit fit = {.kind = (enum sp_pred_kind)SP_SEGMENT_KIND(segment->code)};
    struct sp_predicate moved;
    segment->first += (int32_t)(columns / b->tile_cols);
    if (fit.kind == SP_PRED_NONE || fit.kind == SP_PRED_BITS)
        return true;
    if (fit.kind == SP_PRED_TABLE) {
        if (columns != 0)
            segment->predicate = sp_builder_move_table(b, segment->predicate, columns);
        return true;
    }
    fit.predicate = ((const struct sp_predicate *)(const void *)b->predicates.items)[segment->predicate];
    if (!sp_fit_moved(&fit, rows, columns, tile, &moved))
        return false;
    segment->predicate = predicate_number(b, &moved);
    return true;
}

/* Adds the segments of the model, moved. False when a predicate cannot be. */
static bool follow(struct sp_builder *b, const struct sp_builder_model *model, const struct sp_builder_part *parts,
                   const int64_t *origins, int64_t row0)
{
    for (int64_t s = 0; s < model->segment_count && b->status == SPLAT_OK; s++) {
        struct sp_segment segment = b->segments[model->segment + s];
        int part = 0;
        while (parts[part].view != SP_SEGMENT_VIEW(segment.code))
            part++;
        const struct sp_tile_groups tile = {
            .row0 = row0, .tile_rows = b->tile_rows, .kv_len = parts[part].acsr->kv_len};
        if (!move_segment(b, &segment, row0 - model->row0, origins[part] - model->origins[part], &tile)) {
            b->segment_count = b->row_tile_first_segment;
            return false;
        }
        append(b, segment);
    }
    b->full_tiles += model->full_tiles;
    b->partial_tiles += model->partial_tiles;
    return true;
}

static enum splat_status remember(struct sp_builder *b, int64_t number, const struct sp_builder_model *model)
{
    if (number >= b->model_capacity) {
        int64_t capacity = b->model_capacity ? 2 * b->model_capacity : 64;
        struct sp_builder_model *grown = realloc(b->models, (size_t)capacity * sizeof *grown);
        if (!grown)
            return sp_no_memory("the row tiles seen", (size_t)capacity * sizeof *grown);
        b->models = grown;
        b->model_capacity = capacity;
    }
    b->models[number] = *model;
    return SPLAT_OK;
}

/* The segments of a row tile: those of one that looks the same, or its own. */
static enum splat_status add_segments(struct sp_builder *b, const struct sp_builder_part *parts, int part_count,
                                      int64_t row0, int64_t rows)
{
    struct sp_hash hash;
    struct sp_builder_model model = {
        .row0 = row0, .segment = b->segment_count, .full_tiles = b->full_tiles, .partial_tiles = b->partial_tiles};
    enum splat_status status = look(b, parts, part_count, row0, rows, &hash, model.origins);
    bool fresh = false;
    if (status != SPLAT_OK)
        return status;
    const int64_t number = sp_hash_set_add(&b->seen, hash, &fresh);
    if (number < 0)
        return sp_no_memory("the row tiles seen", (size_t)b->seen.count * sizeof hash);
    if (!fresh && follow(b, &b->models[number], parts, model.origins, row0))
        return b->status;
    for (int k = 0; k < part_count && b->status == SPLAT_OK; k++)
        add_part(b, &parts[k], &b->cover_scratch[k], row0, rows);
    model.segment_count = b->segment_count - model.segment;
    model.full_tiles = b->full_tiles - model.full_tiles;
    model.partial_tiles = b->partial_tiles - model.partial_tiles;
    return b->status == SPLAT_OK ? remember(b, number, &model) : b->status;
}

static enum splat_status add_row_tile(struct sp_builder *b, const struct sp_builder_part *parts, int part_count,
                                      int64_t row0, int64_t rows, bool keep_empty)
{
    int64_t before = b->full_tiles + b->partial_tiles;
    b->row_tile_first_segment = b->segment_count;
    sp_builder_fail(b, add_segments(b, parts, part_count, row0, rows));
    if (b->status != SPLAT_OK || (!keep_empty && b->segment_count == b->row_tile_first_segment))
        return b->status;
    if (b->row_tile_count == b->row_tile_capacity) {
        int64_t capacity = b->row_tile_capacity ? 2 * b->row_tile_capacity : 256;
        size_t bytes = (size_t)capacity * sizeof *b->row_tiles;
        struct sp_row_tile *grown = realloc(b->row_tiles, bytes);
        if (!grown)
            return sp_no_memory("the plan's row tiles", bytes);
        b->row_tiles = grown;
        b->row_tile_capacity = capacity;
    }
    b->row_tiles[b->row_tile_count++] =
        (struct sp_row_tile){.tile = (int32_t)(row0 / b->tile_rows),
                             .segment = (int32_t)b->row_tile_first_segment,
                             .segment_count = (int32_t)(b->segment_count - b->row_tile_first_segment),
                             .tiles = (int32_t)(b->full_tiles + b->partial_tiles - before)};
    return SPLAT_OK;
}

int sp_row_tile_order(const void *x, const void *y)
{
    const struct sp_row_tile *a = x, *b = y;
    if (a->tiles != b->tiles)
        return a->tiles < b->tiles ? 1 : -1;
    return a->tile != b->tile ? (a->tile > b->tile) - (a->tile < b->tile) : a->slot - b->slot;
}

enum splat_status sp_builder_add_pass(struct sp_builder *b, const struct sp_view *rows,
                                      const struct sp_builder_part *parts, int part_count, bool keep_empty)
{
    int64_t first = b->row_tile_count, position = 0, count;
    for (; b->status == SPLAT_OK && sp_view_next_tile(rows, b->tile_rows, &position, &count);
         position += b->tile_rows) {
        if (b->row_tile_count == INT32_MAX)
            return sp_fail(SPLAT_UNSUPPORTED, "the masks need more than %d row tiles; the limit is 2^31 - 1",
                           INT32_MAX);
        sp_builder_fail(b, add_row_tile(b, parts, part_count, position, count, keep_empty));
    }
    if (b->status == SPLAT_OK)
        qsort(b->row_tiles + first, (size_t)(b->row_tile_count - first), sizeof *b->row_tiles, sp_row_tile_order);
    return b->status;
}

/* ---- Lifetime ---- */

enum splat_status sp_builder_init(struct sp_builder *b, int64_t tile_rows, int64_t tile_cols)
{
    b->tile_rows = tile_rows;
    b->tile_cols = tile_cols;
    size_t mask_bytes = (size_t)(tile_rows * (tile_cols / 32)) * sizeof(uint32_t);
    size_t table_bytes = (size_t)(2 * tile_rows) * sizeof(int32_t);
    size_t raster_bytes = (size_t)(tile_rows * SP_RASTER_COLUMNS / 32) * sizeof(uint32_t);
    b->predicates.item_size = sizeof(struct sp_predicate);
    b->tables.item_size = table_bytes;
    b->bits.item_size = mask_bytes;
    b->raster = malloc(raster_bytes);
    b->tile_bits = malloc(mask_bytes);
    b->table = malloc(table_bytes);
    const struct sp_predicate none = {0};
    if (!b->raster || !b->tile_bits || !b->table || sp_pool_add(&b->predicates, &none) != 0)
        return sp_no_memory("the plan's builder", raster_bytes + mask_bytes + table_bytes);
    return SPLAT_OK;
}

void sp_builder_finish(struct sp_builder *b, struct splat_plan *plan)
{
    plan->row_tiles = b->row_tiles;
    plan->row_tile_count = b->row_tile_count;
    plan->segments = b->segments;
    plan->segment_count = b->segment_count;
    plan->predicates = (void *)b->predicates.items;
    plan->predicate_count = b->predicates.count;
    plan->table = (void *)b->tables.items;
    plan->table_count = b->tables.count * 2 * b->tile_rows;
    plan->bits = (void *)b->bits.items;
    plan->bits_count = b->bits.count * b->tile_rows * (b->tile_cols / 32);
    plan->predicate_mask = b->predicate_mask;
    plan->full_tiles = b->full_tiles;
    plan->partial_tiles = b->partial_tiles;
    b->row_tiles = NULL;
    b->segments = NULL;
    b->predicates.items = b->tables.items = b->bits.items = NULL;
}

void sp_builder_free(struct sp_builder *b)
{
    free(b->row_tiles);
    free(b->segments);
    free(b->models);
    sp_hash_set_free(&b->seen);
    sp_alike_free(&b->alike);
    sp_pool_free(&b->predicates);
    sp_pool_free(&b->tables);
    sp_pool_free(&b->bits);
    for (int k = 0; k < SP_BUILDER_PARTS_MAX; k++)
        sp_cover_scratch_free(&b->cover_scratch[k]);
    sp_cover_free(&b->cover);
    sp_spans_free(&b->touched);
    sp_spans_free(&b->full);
    free(b->raster);
    free(b->tile_bits);
    free(b->table);
}
