/* Where the values of a plan's tiles are (values.h). */
#include "analysis/values.h"

#include <stdlib.h>
#include <string.h>

#include "analysis/ints.h"
#include "common/error.h"

/* ---- Layouts ---- */

/* Whether the pairs of every row of `acsr` lie in one zone each: then their positions are in the order of columns.
 */
static bool rows_in_zones(const splat_acsr *acsr, const struct sp_view *view)
{
    for (int64_t f = 0; f < acsr->family_count; f++) {
        const struct sp_family *family = &acsr->families[f];
        if (family->run_count < 0)
            return false;
        for (int64_t t = 0; t < family->row_count; t++) {
            int64_t zone = -1;
            for (int32_t k = 0; k < family->run_count; k++) {
                splat_acsr_run run = sp_template_at(&acsr->templates[family->first + (uint64_t)k], t);
                int64_t x = run.start % view->n0;
                bool moves = run.count > 1 && run.stride % view->n0 != 0;
                int64_t first = sp_view_zone_of(view, x), end = sp_view_strip(view, first).end;
                if (moves || x + run.width > end || (zone >= 0 && zone != first))
                    return false;
                zone = first;
            }
        }
    }
    return true;
}

bool sp_values_suit(const struct sp_layout *layout, const struct sp_mask_set *set, enum splat_op op)
{
    const struct sp_layout_pass *pass = &layout->passes[0];
    const struct sp_view *view = op == SPLAT_OP_SPMM_TRANSPOSED ? &pass->rows : &pass->columns[0];
    if (layout->pass_count != 1 || pass->part_count != 1)
        return false;
    for (int64_t m = 0; m < set->count && view->zones > 1; m++)
        if (!rows_in_zones(set->acsr[m], view))
            return false;
    return true;
}

/* ---- Masks ---- */

enum splat_status sp_values_masks(const struct sp_mask_set *set, enum splat_op op, struct sp_mask_set *planned)
{
    *planned = *set;
    if (op != SPLAT_OP_SPMM_TRANSPOSED)
        return SPLAT_OK;
    planned->q_len = set->kv_len;
    planned->kv_len = set->q_len;
    planned->acsr = calloc((size_t)set->count, sizeof *planned->acsr);
    if (!planned->acsr)
        return sp_no_memory("the transposed masks", (size_t)set->count * sizeof *planned->acsr);
    enum splat_status status = SPLAT_OK;
    for (int64_t m = 0; m < set->count && status == SPLAT_OK; m++)
        status = splat_acsr_transpose(set->acsr[m], &planned->acsr[m]);
    return status;
}

void sp_values_free(const struct sp_mask_set *set, struct sp_mask_set *planned)
{
    if (!planned->acsr || planned->acsr == set->acsr)
        return;
    for (int64_t m = 0; m < set->count; m++)
        splat_acsr_destroy(planned->acsr[m]);
    free(planned->acsr);
    planned->acsr = NULL;
}

/* ---- Tables ---- */

static enum splat_status add_row_offsets(const struct sp_mask_set *set, struct splat_plan *plan)
{
    plan->row_offset_count = set->q_len + 1;
    size_t bytes = (size_t)(set->count * plan->row_offset_count) * sizeof *plan->row_offsets;
    plan->row_offsets = malloc(bytes);
    if (!plan->row_offsets)
        return sp_no_memory("the offsets of rows of values", bytes);
    enum splat_status status = SPLAT_OK;
    for (int64_t m = 0; m < set->count && status == SPLAT_OK; m++)
        status = splat_acsr_row_offsets(set->acsr[m], plan->row_offsets + m * plan->row_offset_count);
    return status;
}

/* The rows of A that are columns of one tile. The tile's own rows, columns of A, are those from token `first` to
 * `last`. */
static void add_tile(const splat_acsr *acsr, const int64_t *offsets, const struct sp_view *columns,
                     int64_t position, int64_t tile_cols, int64_t first, int64_t last, int64_t *words)
{
    for (int64_t k = 0; k < tile_cols; k++) {
        int64_t row = sp_view_token(columns, position + k);
        if (row < 0 || position % columns->pitch + k >= columns->pitch) {
            words[k] = 0;
            continue;
        }
        int64_t before = sp_acsr_rank(acsr, row, first), end = sp_acsr_rank(acsr, row, last + 1);
        words[k] = SP_TILE_VALUES(offsets[row] + before, end - before);
    }
}

static void add_row_tile(const struct sp_mask_set *set, const struct splat_plan *plan, const struct sp_pass *pass,
                         const struct sp_row_tile *row_tile, int64_t *words)
{
    const splat_acsr *acsr = set->acsr[pass->mask_index];
    const int64_t *offsets = plan->row_offsets + pass->mask_index * plan->row_offset_count;
    const struct sp_view *rows = &pass->row_view;
    int64_t begin = (int64_t)row_tile->tile * plan->tile_rows, in_zone = begin % rows->pitch;
    int64_t count = sp_min64(plan->tile_rows, sp_view_zone_ranks(rows, begin / rows->pitch) - in_zone);
    int64_t first = -1, last = -1;
    for (int64_t r = 0; r < count; r++) { /* tokens ascend, some ranks hold none */
        int64_t token = sp_view_token(rows, begin + r);
        first = first < 0 ? token : first;
        last = token < 0 ? last : token;
    }
    for (int32_t n = 0; n < row_tile->segment_count; n++) {
        const struct sp_segment *segment = &plan->segments[row_tile->segment + n];
        const struct sp_view *columns = &plan->views[pass->column_view + SP_SEGMENT_VIEW(segment->code)];
        for (int32_t t = 0; t < segment->count; t++, words += plan->tile_cols)
            add_tile(acsr, offsets, columns, ((int64_t)segment->first + t) * plan->tile_cols, plan->tile_cols,
                     first, last, words);
    }
}

static enum splat_status add_tile_values(const struct sp_mask_set *set, struct splat_plan *plan)
{
    int64_t tiles = plan->full_tiles + plan->partial_tiles;
    size_t bytes = (size_t)(tiles * plan->tile_cols) * sizeof *plan->tile_values;
    plan->first_tiles = malloc((size_t)sp_max64(plan->row_tile_count, 1) * sizeof *plan->first_tiles);
    plan->tile_values = malloc(bytes ? bytes : 1);
    if (!plan->first_tiles || !plan->tile_values)
        return sp_no_memory("where the values of tiles are", bytes);
    plan->tile_value_count = tiles * plan->tile_cols;
    int64_t at = 0;
    for (int64_t p = 0; p < plan->pass_count; p++)
        for (int32_t k = 0; k < plan->passes[p].row_tile_count; k++) {
            int64_t number = plan->passes[p].first_row_tile + k;
            plan->first_tiles[number] = at;
            add_row_tile(set, plan, &plan->passes[p], &plan->row_tiles[number],
                         plan->tile_values + at * plan->tile_cols);
            at += plan->row_tiles[number].tiles;
        }
    return SPLAT_OK;
}

enum splat_status sp_values_add(const struct sp_mask_set *set, enum splat_op op, struct splat_plan *plan)
{
    enum splat_status status = add_row_offsets(set, plan);
    return status == SPLAT_OK && op == SPLAT_OP_SPMM_TRANSPOSED ? add_tile_values(set, plan) : status;
}

int64_t sp_mask_values(const struct splat_plan *plan, int64_t mask)
{
    return plan->row_offsets[(mask + 1) * plan->row_offset_count - 1];
}

int64_t sp_most_values(const struct splat_plan *plan)
{
    int64_t most = 0;
    for (int64_t m = 0; m < plan->mask_count; m++)
        most = sp_max64(most, sp_mask_values(plan, m));
    return most;
}
