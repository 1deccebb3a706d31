/* How the CPU walks a plan (cpu_tiles.h). */
#include "runtime/cpu_tiles.h"

#include <string.h>

#include "analysis/ints.h"
#include "analysis/view.h"

const struct sp_pass *sp_cpu_pass_of(const splat_plan *plan, int64_t launch, int64_t batch, int64_t head)
{
    const struct sp_pass *passes = plan->passes + launch * plan->mask_count;
    if (!plan->map)
        return passes;
    int64_t b = plan->map_batch == 1 ? 0 : batch, h = plan->map_heads == 1 ? 0 : head;
    return &passes[plan->map[b * plan->map_heads + h]];
}

int64_t sp_cpu_find_tokens(const struct sp_view *view, int64_t first, int64_t count, int64_t *tokens)
{
    int64_t there = sp_min64(count, sp_view_zone_ranks(view, first / view->pitch) - first % view->pitch);
    for (int64_t k = 0; k < there; k++)
        tokens[k] = view->zones == 1 ? first + k : sp_view_token(view, first + k);
    return there;
}

/* ---- Predicates ---- */

static int64_t affine(int32_t slope, int64_t i, int32_t offset)
{
    return (int64_t)slope * i + offset;
}

/* Allows columns lo <= j < hi of the tile; `allowed` is the row's, its first column is col0. */
static void allow_interval(uint8_t *allowed, int64_t col0, int64_t cols, int64_t lo, int64_t hi)
{
    int64_t first = sp_clamp64(lo - col0, 0, cols), end = sp_clamp64(hi - col0, first, cols);
    memset(allowed + first, 1, (size_t)(end - first));
}

static void allow_blocks(uint8_t *allowed, int64_t col0, int64_t cols, const struct sp_predicate *p, int64_t i)
{
    int64_t lo = sp_max64(affine(p->lo_slope, i, p->lo_offset), col0);
    int64_t hi = sp_min64(affine(p->hi_slope, i, p->hi_offset), col0 + cols);
    int64_t phase = affine(p->phase_slope, i, p->phase_offset);
    for (int64_t block = lo - sp_mod64(lo - phase, p->stride); block < hi; block += p->stride)
        allow_interval(allowed, col0, cols, sp_max64(block, lo), sp_min64(block + p->width, hi));
}

static void allow_bits(uint8_t *allowed, int64_t cols, const uint32_t *words)
{
    for (int64_t n = 0; n < cols; n++)
        allowed[n] = words[n / 32] >> (n % 32) & 1;
}

void sp_cpu_allow_row(const splat_plan *plan, const struct sp_segment *segment, int32_t t, int64_t row0,
                      int64_t col0, int64_t cols, int64_t r, uint8_t *allowed)
{
    const enum sp_pred_kind kind = (enum sp_pred_kind)SP_SEGMENT_KIND(segment->code);
    const int64_t number = segment->predicate + (SP_SEGMENT_STEP(segment->code) ? (int64_t)t : 0);
    const struct sp_predicate *p = &plan->predicates[kind == SP_PRED_TABLE || kind == SP_PRED_BITS ? 0 : number];
    const int64_t i = row0 + r, end = col0 + cols;
    const int64_t lo = affine(p->lo_slope, i, p->lo_offset), hi = affine(p->hi_slope, i, p->hi_offset);
    switch (kind) {
    case SP_PRED_LOWER:
        allow_interval(allowed, col0, cols, lo, end);
        break;
    case SP_PRED_UPPER:
        allow_interval(allowed, col0, cols, col0, hi);
        break;
    case SP_PRED_BOUNDS:
        allow_interval(allowed, col0, cols, lo, hi);
        break;
    case SP_PRED_TABLE:
        allow_interval(allowed, col0, cols, plan->table[2 * (number * plan->tile_rows + r)],
                       plan->table[2 * (number * plan->tile_rows + r) + 1]);
        break;
    case SP_PRED_PERIODIC:
        allow_blocks(allowed, col0, cols, p, i);
        break;
    case SP_PRED_BITS:
        allow_bits(allowed, cols, plan->bits + (number * plan->tile_rows + r) * (plan->tile_cols / 32));
        break;
    case SP_PRED_NONE:
    case SP_PRED_COUNT:
        allow_interval(allowed, col0, cols, col0, end);
        break;
    }
}
