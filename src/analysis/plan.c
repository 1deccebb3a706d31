/* Plans: creation, facts, and the walk over tiles.
 *
 * Takes a mask and options; gives an immutable splat_plan. The steps: the distinct masks of a map, the choice of a
 * tile shape (choose.c), the tile lists for it (build.c), the passes. Nothing here depends on the form a mask was
 * given in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "analysis/build.h"
#include "analysis/choose.h"
#include "analysis/ints.h"
#include "analysis/plan.h"
#include "common/error.h"

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- The distinct masks ---- */

/* The number of the mask equal to `acsr`, added when it is new. */
static int64_t distinct_number(struct sp_mask_set *set, splat_acsr *acsr)
{
    for (int64_t k = 0; k < set->count; k++)
        if (set->acsr[k] == acsr ||
            (sp_hash_equal(set->acsr[k]->hash, acsr->hash) && splat_acsr_equal(set->acsr[k], acsr)))
            return k;
    set->acsr[set->count] = acsr;
    return set->count++;
}

/* Fills plan->map from the mask's map through `number`, and counts the uses of each distinct mask. */
static enum splat_status fill_map(const splat_mask *mask, const splat_options *options, const int64_t *number,
                                  struct sp_mask_set *set, struct splat_plan *plan)
{
    int64_t batch = mask->kind == SP_MASK_MAP ? mask->batch : 1,
            heads = mask->kind == SP_MASK_MAP ? mask->heads : 1;
    int64_t scale = (batch > 1 ? 1 : options->batch) * (heads > 1 ? 1 : options->heads);
    for (int64_t e = 0; e < batch * heads; e++)
        set->uses[mask->kind == SP_MASK_MAP ? number[mask->map[e]] : 0] += scale;
    if (set->count == 1)
        return SPLAT_OK;
    size_t bytes = (size_t)(batch * heads) * sizeof *plan->map;
    plan->map = malloc(bytes);
    if (!plan->map)
        return sp_no_memory("the plan's mask map", bytes);
    for (int64_t e = 0; e < batch * heads; e++)
        plan->map[e] = (int32_t)number[mask->map[e]];
    plan->map_batch = batch;
    plan->map_heads = heads;
    return SPLAT_OK;
}

/* Equal masks are one, whatever form each was given in. */
static enum splat_status gather_masks(const splat_mask *mask, const splat_options *options, struct sp_mask_set *set,
                                      struct splat_plan *plan)
{
    int64_t count = sp_mask_count(mask);
    size_t bytes = (size_t)count * sizeof(int64_t);
    int64_t *number = malloc(bytes);
    set->acsr = malloc((size_t)count * sizeof *set->acsr);
    set->uses = calloc((size_t)count, sizeof *set->uses);
    if (!number || !set->acsr || !set->uses) {
        free(number);
        return sp_no_memory("the plan's masks", bytes);
    }
    enum splat_status status = SPLAT_OK;
    for (int64_t k = 0; k < count && status == SPLAT_OK; k++) {
        splat_acsr *acsr = NULL;
        status = sp_mask_acsr(mask, k, &acsr);
        if (status == SPLAT_OK)
            number[k] = distinct_number(set, acsr);
    }
    if (status == SPLAT_OK)
        status = fill_map(mask, options, number, set, plan);
    free(number);
    return status;
}

/* ---- Creation ---- */

/* Row tiles, segments and predicates of every distinct mask. */
static enum splat_status build_tiles(const struct sp_mask_set *set, struct splat_plan *plan)
{
    struct sp_builder builder = {0};
    enum splat_status status = sp_builder_init(&builder, plan->tile_rows, plan->tile_cols);
    for (int64_t k = 0; k < set->count && status == SPLAT_OK; k++)
        status = sp_builder_add_mask(&builder, set->acsr[k]);
    if (status == SPLAT_OK)
        sp_builder_finish(&builder, plan);
    sp_builder_free(&builder);
    return status;
}

/* One pass a distinct mask; all walk the keys by one linear view. */
static enum splat_status add_passes(const struct sp_mask_set *set, struct splat_plan *plan)
{
    plan->passes = calloc((size_t)set->count, sizeof *plan->passes);
    plan->views = calloc(1, sizeof *plan->views);
    if (!plan->passes || !plan->views)
        return sp_no_memory("the plan's passes", (size_t)set->count * sizeof *plan->passes);
    plan->views[0] = (struct sp_view){SP_VIEW_LINEAR, (int32_t)plan->kv_len, 1, plan->tile_cols};
    plan->view_count = 1;
    int64_t row_tiles = plan->row_tile_count / set->count;
    for (int64_t k = 0; k < set->count; k++) {
        struct sp_pass *pass = &plan->passes[k];
        pass->row_view = (struct sp_view){SP_VIEW_LINEAR, (int32_t)plan->q_len, 1, plan->tile_rows};
        pass->column_view = 0;
        pass->column_view_count = 1;
        pass->first_row_tile = (int32_t)(k * row_tiles);
        pass->row_tile_count = (int32_t)row_tiles;
        pass->mask_index = (int32_t)k;
    }
    plan->pass_count = set->count;
    return SPLAT_OK;
}

static enum splat_status make_plan(const splat_mask *mask, const splat_options *options, bool affine_rows,
                                   struct sp_mask_set *set, struct splat_plan *plan)
{
    enum splat_status status = gather_masks(mask, options, set, plan);
    if (status != SPLAT_OK)
        return status;
    set->q_len = plan->q_len = splat_mask_q_len(mask);
    set->kv_len = plan->kv_len = splat_mask_kv_len(mask);
    plan->mask_count = set->count;
    for (int64_t k = 0; k < set->count; k++) {
        plan->allowed_pairs += splat_acsr_pairs(set->acsr[k]);
        plan->families += splat_acsr_families(set->acsr[k]);
    }
    status = sp_choose(set, options, affine_rows, plan);
    if (status == SPLAT_OK)
        status = build_tiles(set, plan);
    return status == SPLAT_OK ? add_passes(set, plan) : status;
}

static enum splat_status new_plan(const splat_mask *mask, const splat_options *options, bool affine_rows,
                                  splat_plan **plan)
{
    splat_plan *made = calloc(1, sizeof *made);
    if (!made)
        return sp_no_memory("the plan", sizeof *made);
    struct sp_mask_set set = {0};
    enum splat_status status = make_plan(mask, options, affine_rows, &set, made);
    free(set.acsr);
    free(set.uses);
    if (status == SPLAT_OK)
        *plan = made;
    else
        splat_plan_destroy(made);
    return status;
}

static bool needs_more_than_bounds(const splat_plan *plan)
{
    const uint32_t affine = 1u << SP_PRED_NONE | 1u << SP_PRED_LOWER | 1u << SP_PRED_UPPER | 1u << SP_PRED_BOUNDS;
    return (plan->predicate_mask & ~affine) != 0;
}

/* Candidates whose kernels know bounds only cannot serve a mask that needs more. */
static void mark_unfit(splat_plan *plan, const struct sp_tune_table *table)
{
    for (int64_t k = 0; k < plan->candidate_count; k++)
        if (table->rows[plan->candidates[k].tune_row].affine_only)
            snprintf(plan->candidates[k].reason, sizeof plan->candidates[k].reason,
                     "not for this mask: its kernel knows affine bounds only");
}

enum splat_status splat_plan_create(const splat_mask *mask, const splat_options *options, splat_plan **plan)
{
    if (!mask || !plan)
        return sp_fail(SPLAT_INVALID, "%s is null", mask ? "plan" : "mask");
    enum splat_status status = sp_options_check(options);
    if (status != SPLAT_OK)
        return status;
    double begin = now_ms();
    splat_plan *made = NULL;
    status = new_plan(mask, options, true, &made);
    const struct sp_tune_table *table = sp_tune_table_for(options->arch);
    if (status == SPLAT_OK && needs_more_than_bounds(made) && table->rows[made->tune_row].affine_only) {
        splat_plan_destroy(made);
        status = new_plan(mask, options, false, &made);
    }
    if (status != SPLAT_OK)
        return status;
    if (needs_more_than_bounds(made))
        mark_unfit(made, table);
    made->plan_ms = now_ms() - begin;
    *plan = made;
    return SPLAT_OK;
}

void splat_plan_destroy(splat_plan *plan)
{
    if (!plan)
        return;
    free(plan->passes);
    free(plan->views);
    free(plan->row_tiles);
    free(plan->segments);
    free(plan->predicates);
    free(plan->table);
    free(plan->bits);
    free(plan->map);
    free(plan->candidates);
    free(plan);
}

/* ---- Facts ---- */

void splat_plan_info_init(splat_plan_info *info)
{
    if (info)
        *info = (splat_plan_info){.struct_size = sizeof *info};
}

static int64_t descriptor_bytes(const splat_plan *plan)
{
    size_t bytes = (size_t)plan->row_tile_count * sizeof *plan->row_tiles +
                   (size_t)plan->segment_count * sizeof *plan->segments +
                   (size_t)plan->predicate_count * sizeof *plan->predicates +
                   (size_t)plan->table_count * sizeof *plan->table + (size_t)plan->bits_count * sizeof *plan->bits;
    if (plan->map)
        bytes += (size_t)(plan->map_batch * plan->map_heads) * sizeof *plan->map;
    return (int64_t)bytes;
}

enum splat_status splat_plan_get_info(const splat_plan *plan, splat_plan_info *info)
{
    if (!plan || !info)
        return sp_fail(SPLAT_INVALID, "%s is null", plan ? "info" : "plan");
    if (info->struct_size != sizeof *info)
        return sp_fail(SPLAT_INVALID, "info->struct_size is %zu; it must be %zu: call splat_plan_info_init first",
                       info->struct_size, sizeof *info);
    double cells = (double)plan->mask_count * (double)plan->q_len * (double)plan->kv_len;
    int64_t computed =
        (plan->full_tiles + plan->partial_tiles) * ((int64_t)plan->tile_rows * (int64_t)plan->tile_cols);
    *info = (splat_plan_info){
        .struct_size = sizeof *info,
        .q_len = plan->q_len,
        .kv_len = plan->kv_len,
        .masks = plan->mask_count,
        .allowed_pairs = plan->allowed_pairs,
        .computed_pairs = computed,
        .full_tiles = plan->full_tiles,
        .partial_tiles = plan->partial_tiles,
        .passes = plan->pass_count,
        .families = plan->families,
        .tile_rows = plan->tile_rows,
        .tile_cols = plan->tile_cols,
        .descriptor_bytes = descriptor_bytes(plan),
        .candidates = plan->candidate_count,
        .density = cells > 0 ? (double)plan->allowed_pairs / cells : 0,
        .waste = plan->allowed_pairs > 0 ? (double)computed / (double)plan->allowed_pairs : 0,
        .plan_ms = plan->plan_ms,
        .predicted_us = plan->predicted_us,
    };
    return SPLAT_OK;
}

enum splat_status splat_plan_candidate(const splat_plan *plan, int64_t index, const char **summary,
                                       const char **reason, double *predicted_us)
{
    if (!plan)
        return sp_fail(SPLAT_INVALID, "plan is null");
    if (index < 0 || index >= plan->candidate_count)
        return sp_fail(SPLAT_INVALID, "index is %lld; the plan has candidates 0 to %lld", (long long)index,
                       (long long)plan->candidate_count - 1);
    const struct sp_candidate *candidate = &plan->candidates[index];
    if (summary)
        *summary = candidate->summary;
    if (reason)
        *reason = candidate->reason;
    if (predicted_us)
        *predicted_us = candidate->predicted_us;
    return SPLAT_OK;
}

/* ---- The walk ---- */

/* Visits the segments of one row tile; the visitor's answer. */
static int visit_row_tile(const splat_plan *plan, int64_t pass, const struct sp_row_tile *row_tile,
                          splat_tile_fn visit, void *user)
{
    int64_t row0 = (int64_t)row_tile->tile * plan->tile_rows, rows = sp_min64(plan->tile_rows, plan->q_len - row0);
    for (int64_t s = row_tile->segment; s < (int64_t)row_tile->segment + row_tile->segment_count; s++) {
        const struct sp_segment *segment = &plan->segments[s];
        enum sp_pred_kind kind = (enum sp_pred_kind)SP_SEGMENT_KIND(segment->code);
        int64_t col0 = (int64_t)segment->first * plan->tile_cols;
        int64_t cols = sp_min64((int64_t)segment->count * plan->tile_cols, plan->kv_len - col0);
        int stop = visit(pass, row0, rows, col0, cols, kind == SP_PRED_NONE ? SPLAT_TILE_FULL : SPLAT_TILE_PARTIAL,
                         sp_predicate_name(kind), user);
        if (stop)
            return stop;
    }
    return 0;
}

enum splat_status splat_plan_visit_tiles(const splat_plan *plan, int64_t mask_index, splat_tile_fn visit,
                                         void *user)
{
    if (!plan || !visit)
        return sp_fail(SPLAT_INVALID, "%s is null", plan ? "visit" : "plan");
    if (mask_index < 0 || mask_index >= plan->mask_count)
        return sp_fail(SPLAT_INVALID, "mask_index is %lld; the plan has masks 0 to %lld", (long long)mask_index,
                       (long long)plan->mask_count - 1);
    for (int64_t p = 0; p < plan->pass_count; p++) {
        const struct sp_pass *pass = &plan->passes[p];
        if (pass->mask_index != mask_index)
            continue;
        size_t bytes = (size_t)pass->row_tile_count * sizeof(int32_t);
        int32_t *by_tile = malloc(bytes);
        if (!by_tile)
            return sp_no_memory("the order of the row tiles", bytes);
        for (int32_t k = 0; k < pass->row_tile_count; k++)
            by_tile[plan->row_tiles[pass->first_row_tile + k].tile] = pass->first_row_tile + k;
        int stop = 0;
        for (int32_t k = 0; k < pass->row_tile_count && !stop; k++)
            stop = visit_row_tile(plan, p, &plan->row_tiles[by_tile[k]], visit, user);
        free(by_tile);
        if (stop)
            break;
    }
    return SPLAT_OK;
}
