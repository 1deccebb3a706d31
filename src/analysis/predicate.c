/* Predicates as data: evaluation of one pair, and names. */
#include "analysis/ints.h"
#include "analysis/plan.h"

static int bit_allows(const splat_plan *plan, int64_t number, int64_t row, int64_t col)
{
    int64_t words = plan->tile_cols / 32;
    int64_t at = (number * plan->tile_rows + row) * words + col / 32;
    return plan->bits[at] >> (col % 32) & 1;
}

int sp_predicate_allows(const splat_plan *plan, const struct sp_segment *segment, int32_t t, int64_t row0,
                        int64_t col0, int64_t i, int64_t j)
{
    const enum sp_pred_kind kind = (enum sp_pred_kind)SP_SEGMENT_KIND(segment->code);
    const bool stored = kind == SP_PRED_TABLE || kind == SP_PRED_BITS;
    const struct sp_predicate *p = &plan->predicates[stored ? 0 : segment->predicate];
    int64_t lo = (int64_t)p->lo_slope * i + p->lo_offset, hi = (int64_t)p->hi_slope * i + p->hi_offset;
    switch (kind) {
    case SP_PRED_NONE:
        return 1;
    case SP_PRED_LOWER:
        return j >= lo;
    case SP_PRED_UPPER:
        return j < hi;
    case SP_PRED_BOUNDS:
        return j >= lo && j < hi;
    case SP_PRED_TABLE: {
        const int32_t *entry = &plan->table[2 * ((int64_t)segment->predicate * plan->tile_rows + i - row0)];
        return j >= entry[0] && j < entry[1];
    }
    case SP_PRED_PERIODIC: {
        int64_t phase = (int64_t)p->phase_slope * i + p->phase_offset;
        return j >= lo && j < hi && sp_mod64(j - phase, p->stride) < p->width;
    }
    case SP_PRED_BITS:
        return bit_allows(plan, segment->predicate + (SP_SEGMENT_STEP(segment->code) ? (int64_t)t : 0), i - row0,
                          j - col0);
    case SP_PRED_COUNT:
        break;
    }
    return 0;
}

const char *sp_predicate_name(enum sp_pred_kind kind)
{
    static const char *const names[SP_PRED_COUNT] = {
        [SP_PRED_NONE] = "none",     [SP_PRED_LOWER] = "lower", [SP_PRED_UPPER] = "upper",
        [SP_PRED_BOUNDS] = "bounds", [SP_PRED_TABLE] = "table", [SP_PRED_PERIODIC] = "periodic",
        [SP_PRED_BITS] = "bits",
    };
    return (unsigned)kind < SP_PRED_COUNT ? names[kind] : "unknown";
}

const char *sp_view_name(enum sp_view_kind kind)
{
    switch (kind) {
    case SP_VIEW_LINEAR:
        return "linear";
    case SP_VIEW_RESIDUE:
        return "residue";
    case SP_VIEW_GRID:
        return "grid";
    case SP_VIEW_COMB:
        return "comb";
    }
    return "unknown";
}
