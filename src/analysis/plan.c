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
#include "analysis/fold.h"
#include "analysis/ints.h"
#include "analysis/layout.h"
#include "analysis/plan.h"
#include "analysis/split.h"
#include "analysis/values.h"
#include "analysis/view.h"
#include "common/error.h"

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- The distinct masks ---- */

/* Fills plan->map from the mask's map through `number`, and counts the uses of each distinct mask. */
static enum splat_status fill_map(const splat_mask *mask, const splat_options *options, const int64_t *number,
                                  struct sp_mask_set *set, struct splat_plan *plan)
{
    int64_t batch = mask->kind == SP_MASK_MAP ? mask->batch : 1,
            heads = mask->kind == SP_MASK_MAP ? mask->heads : 1;
    int64_t scale = (batch > 1 ? 1 : options->batch) * (heads > 1 ? 1 : set->heads);
    for (int64_t e = 0; e < batch * heads; e++)
        set->uses[mask->kind == SP_MASK_MAP ? number[mask->map[e]] : 0] += scale;
    plan->map_batch = batch;
    plan->map_heads = heads;
    if (set->count == 1)
        return SPLAT_OK;
    size_t bytes = (size_t)(batch * heads) * sizeof *plan->map;
    plan->map = malloc(bytes);
    if (!plan->map)
        return sp_no_memory("the plan's mask map", bytes);
    for (int64_t e = 0; e < batch * heads; e++)
        plan->map[e] = (int32_t)number[mask->map[e]];
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
    struct sp_hash_set seen = {0};
    enum splat_status status = SPLAT_OK;
    for (int64_t k = 0; k < count && status == SPLAT_OK; k++) {
        splat_acsr *acsr = NULL;
        bool fresh = false;
        status = sp_mask_acsr(mask, k, &acsr);
        if (status == SPLAT_OK && (number[k] = sp_hash_set_add(&seen, acsr->hash, &fresh)) < 0)
            status = sp_no_memory("the plan's masks", bytes);
        if (fresh)
            set->acsr[set->count++] = acsr;
    }
    sp_hash_set_free(&seen);
    if (status == SPLAT_OK)
        status = fill_map(mask, options, number, set, plan);
    free(number);
    return status;
}

/* Puts folded masks in the place of the mask's own, if heads are to share row tiles. The set owns them. */
static enum splat_status fold_masks(struct sp_mask_set *set)
{
    enum splat_status status = SPLAT_OK;
    set->owned = set->fold > 1;
    for (int64_t k = 0; k < set->count && set->fold > 1; k++) {
        splat_acsr *own = set->acsr[k];
        set->acsr[k] = NULL;
        if (status == SPLAT_OK)
            status = sp_fold_acsr(own, set->fold, &set->acsr[k]);
    }
    return status;
}

static void free_masks(struct sp_mask_set *set)
{
    for (int64_t k = 0; k < set->count && set->owned; k++)
        splat_acsr_destroy(set->acsr[k]);
    free(set->acsr);
    free(set->uses);
}

/* ---- Creation ---- */

/* Fills one pass and its views, and builds its tiles. */
static enum splat_status add_pass(struct sp_builder *builder, const struct sp_layout *layout, int64_t mask,
                                  int launch, struct splat_plan *plan)
{
    const struct sp_layout_pass *from = &layout->passes[launch];
    struct sp_builder_part parts[SP_PARTS_MAX];
    struct sp_pass *pass = &plan->passes[plan->pass_count++];
    *pass = (struct sp_pass){.row_view = from->rows,
                             .column_view = launch * SP_PARTS_MAX,
                             .column_view_count = from->part_count,
                             .first_row_tile = (int32_t)builder->row_tile_count,
                             .mask_index = (int32_t)mask,
                             .launch = launch,
                             .merge = launch > 0};
    for (int k = 0; k < from->part_count; k++) {
        plan->views[launch * SP_PARTS_MAX + k] = from->columns[k];
        parts[k] = (struct sp_builder_part){sp_layout_acsr(layout, mask, launch, k), k};
    }
    /* Masks that run together need the same number of row tiles. */
    bool keep_empty = launch == 0 || layout->mask_count > 1;
    enum splat_status status = sp_builder_add_pass(builder, &from->rows, parts, from->part_count, keep_empty);
    pass->row_tile_count = (int32_t)builder->row_tile_count - pass->first_row_tile;
    return status;
}

/* Passes, row tiles, segments and predicates of every distinct mask. */
static enum splat_status build_passes(const struct sp_layout *layout, struct splat_plan *plan)
{
    struct sp_builder builder = {0};
    size_t passes = (size_t)(layout->mask_count * layout->pass_count), views = SP_PASSES_MAX * SP_PARTS_MAX;
    plan->passes = calloc(passes, sizeof *plan->passes);
    plan->views = calloc(views, sizeof *plan->views);
    if (!plan->passes || !plan->views)
        return sp_no_memory("the plan's passes", passes * sizeof *plan->passes);
    plan->view_count = (int64_t)views;
    plan->launch_count = layout->pass_count;
    enum splat_status status = sp_builder_init(&builder, plan->tile_rows, plan->tile_cols);
    for (int launch = 0; launch < layout->pass_count; launch++)
        for (int64_t m = 0; m < layout->mask_count && status == SPLAT_OK; m++)
            status = add_pass(&builder, layout, m, launch, plan);
    if (status == SPLAT_OK)
        sp_builder_finish(&builder, plan);
    sp_builder_free(&builder);
    return status;
}

bool sp_plan_has_cut_zones(const splat_plan *plan)
{
    bool cut = false;
    for (int64_t p = 0; p < plan->pass_count; p++) {
        cut |= sp_view_is_cut(&plan->passes[p].row_view);
        for (int32_t v = 0; v < plan->passes[p].column_view_count; v++)
            cut |= sp_view_is_cut(&plan->views[plan->passes[p].column_view + v]);
    }
    return cut;
}

/* Kernels of affine bounds alone have no registers for zones that are cut. */
static bool needs_more_than_bounds(const splat_plan *plan)
{
    const uint32_t affine = 1u << SP_PRED_NONE | 1u << SP_PRED_LOWER | 1u << SP_PRED_UPPER | 1u << SP_PRED_BOUNDS;
    return (plan->predicate_mask & ~affine) != 0 || sp_plan_has_cut_zones(plan);
}

static void drop_tiles(struct splat_plan *plan)
{
    free(plan->passes);
    free(plan->views);
    free(plan->row_tiles);
    free(plan->segments);
    free(plan->predicates);
    free(plan->table);
    free(plan->bits);
    free(plan->splits);
    plan->splits = NULL;
    plan->passes = NULL;
    plan->views = NULL;
    plan->row_tiles = NULL;
    plan->segments = NULL;
    plan->predicates = NULL;
    plan->table = NULL;
    plan->bits = NULL;
    plan->pass_count = 0;
}

/* Takes the cheapest candidate; when its kernel knows affine bounds only and the tiles turn out to need more, the
 * cheapest of the others. */
static enum splat_status choose_and_build(const struct sp_mask_set *set, const struct sp_mask_set *values,
                                          const splat_options *options, struct splat_plan *plan)
{
    const struct sp_tune_table *table = sp_tune_table_of(options->op, options->arch);
    const struct sp_layout *layout;
    struct sp_choice *choice;
    enum splat_status status = sp_choice_make(set, values, options, &choice);
    if (status != SPLAT_OK)
        return status;
    status = sp_choice_take(choice, true, plan, &layout);
    if (status == SPLAT_OK)
        status = build_passes(layout, plan);
    if (status == SPLAT_OK && needs_more_than_bounds(plan) && table->rows[plan->tune_row].use == SP_USE_AFFINE) {
        drop_tiles(plan);
        status = sp_choice_take(choice, false, plan, &layout);
        if (status == SPLAT_OK)
            status = build_passes(layout, plan);
    }
    sp_choice_free(choice);
    return status;
}

static enum splat_status make_plan(const splat_mask *mask, const splat_options *options, struct sp_mask_set *set,
                                   struct splat_plan *plan)
{
    set->fold = sp_fold_for(mask, options);
    set->kv_heads = options->kv_heads ? options->kv_heads : options->heads;
    set->heads =
        set->fold == 1 ? options->heads : set->kv_heads * sp_fold_parts(options->heads / set->kv_heads, set->fold);
    plan->fold = (int32_t)set->fold;
    plan->q_len = splat_mask_q_len(mask);
    set->kv_len = plan->kv_len = splat_mask_kv_len(mask);
    set->q_len = set->fold * plan->q_len;
    enum splat_status status = gather_masks(mask, options, set, plan);
    if (status != SPLAT_OK)
        return status;
    plan->mask_count = set->count;
    for (int64_t k = 0; k < set->count; k++) {
        plan->allowed_pairs += splat_acsr_pairs(set->acsr[k]);
        plan->families += splat_acsr_families(set->acsr[k]);
    }
    struct sp_mask_set planned = {0};
    status = fold_masks(set);
    if (status == SPLAT_OK)
        status = sp_values_masks(set, options->op, &planned);
    plan->q_len = planned.q_len / set->fold;
    plan->kv_len = planned.kv_len;
    if (status == SPLAT_OK)
        status = choose_and_build(&planned, set, options, plan);
    sp_values_free(set, &planned);
    if (status == SPLAT_OK)
        status = sp_split_rows(plan, options, set);
    return status == SPLAT_OK && options->op != SPLAT_OP_ATTENTION ? sp_values_add(set, options->op, plan) : status;
}

enum splat_status splat_plan_create(const splat_mask *mask, const splat_options *options, splat_plan **plan)
{
    if (!mask || !plan)
        return sp_fail(SPLAT_INVALID, "%s is null", mask ? "plan" : "mask");
    enum splat_status status = sp_options_check(options);
    if (status != SPLAT_OK)
        return status;
    double begin = now_ms();
    splat_plan *made = calloc(1, sizeof *made);
    if (!made)
        return sp_no_memory("the plan", sizeof *made);
    struct sp_mask_set set = {0};
    splat_options full = *options;
    sp_options_dims(&full);
    status = make_plan(mask, &full, &set, made);
    free_masks(&set);
    if (status != SPLAT_OK) {
        splat_plan_destroy(made);
        return status;
    }
    made->plan_ms = now_ms() - begin;
    *plan = made;
    return SPLAT_OK;
}

void splat_plan_destroy(splat_plan *plan)
{
    if (!plan)
        return;
    drop_tiles(plan);
    free(plan->row_offsets);
    free(plan->tile_values);
    free(plan->first_tiles);
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
                   (size_t)plan->table_count * sizeof *plan->table + (size_t)plan->bits_count * sizeof *plan->bits +
                   (size_t)plan->split_count * sizeof *plan->splits;
    bytes +=
        (size_t)(plan->row_offsets ? plan->mask_count * plan->row_offset_count : 0) * sizeof *plan->row_offsets +
        (size_t)plan->tile_value_count * sizeof *plan->tile_values;
    if (plan->first_tiles)
        bytes += (size_t)plan->row_tile_count * sizeof *plan->first_tiles;
    if (plan->map)
        bytes += (size_t)(plan->map_batch * plan->map_heads) * sizeof *plan->map;
    return (int64_t)bytes;
}

enum splat_status splat_plan_get_info(const splat_plan *plan, splat_plan_info *info)
{
    if (!plan || !info)
        return sp_fail(SPLAT_INVALID, "%s is null", plan ? "info" : "plan");
    enum splat_status status =
        sp_check_struct_size("info", "splat_plan_info_init", info->struct_size, sizeof *info);
    if (status != SPLAT_OK)
        return status;
    double cells = (double)plan->mask_count * (double)plan->q_len * (double)plan->kv_len;
    int64_t computed = (plan->full_tiles + plan->partial_tiles) *
                       ((int64_t)plan->tile_rows * (int64_t)plan->tile_cols) / plan->fold;
    *info = (splat_plan_info){
        .struct_size = sizeof *info,
        .q_len = plan->q_len,
        .kv_len = plan->kv_len,
        .masks = plan->mask_count,
        .allowed_pairs = plan->allowed_pairs,
        .computed_pairs = computed,
        .full_tiles = plan->full_tiles,
        .partial_tiles = plan->partial_tiles,
        .passes = plan->launch_count,
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

/* The tokens of positions [first, first + count), which lie in one zone, as far as they exist. */
static splat_acsr_run tokens_of(const struct sp_view *view, int64_t first, int64_t count)
{
    int64_t zone = first / view->pitch, rank = first % view->pitch, c = view->c;
    int32_t start = (int32_t)sp_view_token(view, first);
    if (view->zones == 1)
        return (splat_acsr_run){start, 0, 1, (int32_t)sp_min64(count, view->len - rank)};
    struct sp_strip strip = sp_view_strip(view, zone);
    int64_t y = sp_ceil_div(sp_min64(count, strip.rows * c - rank), c);
    start = (int32_t)(view->n0 * (rank / c) + strip.begin);
    return (splat_acsr_run){start, y > 1 ? view->n0 : 0, (int32_t)y, (int32_t)(strip.end - strip.begin)};
}

/* The queries of a row tile. */
static splat_acsr_run queries_of(const splat_plan *plan, const struct sp_pass *pass,
                                 const struct sp_row_tile *row_tile)
{
    const int64_t first = (int64_t)row_tile->tile * plan->tile_rows;
    splat_acsr_run rows = tokens_of(&pass->row_view, first, plan->tile_rows);
    if (plan->fold > 1) {
        rows.start = (int32_t)(first / plan->fold);
        rows.width = (int32_t)sp_ceil_div(first + rows.width, plan->fold) - rows.start;
    }
    return rows;
}

/* Visits a segment, zone by zone; the visitor's answer. */
static int visit_segment(const splat_plan *plan, const struct sp_pass *pass, const struct sp_segment *segment,
                         splat_tile_stretch *stretch, splat_tile_fn visit, void *user)
{
    const struct sp_view *view = &plan->views[pass->column_view + SP_SEGMENT_VIEW(segment->code)];
    enum sp_pred_kind kind = (enum sp_pred_kind)SP_SEGMENT_KIND(segment->code);
    stretch->kind = kind == SP_PRED_NONE ? SPLAT_TILE_FULL : SPLAT_TILE_PARTIAL;
    stretch->predicate = sp_predicate_name(kind);
    int64_t at = (int64_t)segment->first * plan->tile_cols, end = at + (int64_t)segment->count * plan->tile_cols;
    while (at < end) {
        int64_t zone_end = (at / view->pitch + 1) * view->pitch;
        int64_t stop = view->zones == 1 ? end : sp_min64(end, zone_end);
        stretch->columns = tokens_of(view, at, stop - at);
        stretch->tiles = sp_ceil_div(stop - at, plan->tile_cols);
        int answer = visit(stretch, user);
        if (answer)
            return answer;
        at = stop;
    }
    return 0;
}

static int visit_row_tile(const splat_plan *plan, int64_t p, const struct sp_row_tile *row_tile,
                          splat_tile_fn visit, void *user)
{
    const struct sp_pass *pass = &plan->passes[p];
    splat_tile_stretch stretch = {
        .pass = pass->launch, .row_tile = row_tile->tile, .rows = queries_of(plan, pass, row_tile)};
    for (int64_t s = row_tile->segment; s < (int64_t)row_tile->segment + row_tile->segment_count; s++) {
        int answer = visit_segment(plan, pass, &plan->segments[s], &stretch, visit, user);
        if (answer)
            return answer;
    }
    return 0;
}

static int by_tile(const void *x, const void *y)
{
    const struct sp_row_tile *a = x, *b = y;
    return a->tile != b->tile ? (a->tile > b->tile) - (a->tile < b->tile) : a->slot - b->slot;
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
        if (pass->mask_index != mask_index || pass->row_tile_count == 0)
            continue;
        size_t bytes = (size_t)pass->row_tile_count * sizeof(struct sp_row_tile);
        struct sp_row_tile *ordered = malloc(bytes);
        if (!ordered)
            return sp_no_memory("the order of the row tiles", bytes);
        memcpy(ordered, plan->row_tiles + pass->first_row_tile, bytes);
        qsort(ordered, (size_t)pass->row_tile_count, sizeof *ordered, by_tile);
        int stop = 0;
        for (int32_t k = 0; k < pass->row_tile_count && !stop; k++)
            stop = visit_row_tile(plan, p, &ordered[k], visit, user);
        free(ordered);
        if (stop)
            break;
    }
    return SPLAT_OK;
}
