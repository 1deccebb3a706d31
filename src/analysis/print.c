/* The plan as text, for `splatc dump --stage plan`. Long lists are cut in the middle and say by how much. */
#include "analysis/ints.h"
#include "analysis/plan.h"
#include "analysis/split.h"
#include "analysis/view.h"
#include "common/strbuf.h"

enum { SHOWN_ROW_TILES = 24, SHOWN_SEGMENTS = 16 };

/* "+ 3*i - 7" style: slope*i + offset without zero terms. */
static void print_line(struct sp_strbuf *out, int32_t slope, int32_t offset)
{
    if (slope == 0) {
        sp_strbuf_printf(out, "%d", offset);
        return;
    }
    if (slope == 1 || slope == -1)
        sp_strbuf_puts(out, slope == 1 ? "i" : "-i");
    else
        sp_strbuf_printf(out, "%d*i", slope);
    if (offset != 0)
        sp_strbuf_printf(out, " %c %lld", offset < 0 ? '-' : '+',
                         offset < 0 ? -(long long)offset : (long long)offset);
}

static void print_bounds(struct sp_strbuf *out, const struct sp_predicate *p)
{
    print_line(out, p->lo_slope, p->lo_offset);
    sp_strbuf_puts(out, " <= j < ");
    print_line(out, p->hi_slope, p->hi_offset);
}

/* The predicate of a segment as a condition on i and j. */
static void print_predicate(const splat_plan *plan, struct sp_strbuf *out, const struct sp_segment *segment)
{
    const enum sp_pred_kind kind = (enum sp_pred_kind)SP_SEGMENT_KIND(segment->code);
    const bool stored = kind == SP_PRED_TABLE || kind == SP_PRED_BITS;
    const struct sp_predicate *p = &plan->predicates[stored ? 0 : segment->predicate];
    switch (kind) {
    case SP_PRED_LOWER:
        sp_strbuf_puts(out, "j >= ");
        print_line(out, p->lo_slope, p->lo_offset);
        break;
    case SP_PRED_UPPER:
        sp_strbuf_puts(out, "j < ");
        print_line(out, p->hi_slope, p->hi_offset);
        break;
    case SP_PRED_BOUNDS:
        print_bounds(out, p);
        break;
    case SP_PRED_PERIODIC:
        print_bounds(out, p);
        sp_strbuf_puts(out, " and (j - (");
        print_line(out, p->phase_slope, p->phase_offset);
        sp_strbuf_printf(out, ")) mod %d < %d", p->stride, p->width);
        break;
    case SP_PRED_TABLE:
        sp_strbuf_printf(out, "table %d", segment->predicate);
        break;
    case SP_PRED_BITS:
        sp_strbuf_printf(out, "bitmask %d%s", segment->predicate,
                         SP_SEGMENT_STEP(segment->code) ? " and following" : "");
        break;
    case SP_PRED_NONE:
    case SP_PRED_COUNT:
        break;
    }
}

static void print_view(struct sp_strbuf *out, const struct sp_view *view)
{
    sp_strbuf_puts(out, sp_view_name((enum sp_view_kind)view->kind));
    if (view->zones > 1)
        sp_strbuf_printf(out, " (n0 %d, c %d: %d zones, %d positions apart)", view->n0, view->c, view->zones,
                         view->pitch);
}

/* The tokens of positions [first, first + count): "rows 0-127", or "rows 3, 7 ... 255". */
static void print_tokens(struct sp_strbuf *out, const struct sp_view *view, int64_t first, int64_t count,
                         const char *what)
{
    int64_t left = sp_view_zone_ranks(view, first / view->pitch) - first % view->pitch;
    int64_t last = sp_view_token(view, first + sp_min64(count, left) - 1);
    if (view->zones == 1)
        sp_strbuf_printf(out, "%ss %lld-%lld", what, (long long)first, (long long)last);
    else
        sp_strbuf_printf(out, "%ss %lld, %lld ... %lld", what, (long long)sp_view_token(view, first),
                         (long long)sp_view_token(view, first + sp_min64(1, left - 1)), (long long)last);
}

static void print_header(const splat_plan *plan, struct sp_strbuf *out)
{
    double cells = (double)plan->mask_count * (double)plan->q_len * (double)plan->kv_len;
    double computed =
        (double)(plan->full_tiles + plan->partial_tiles) * plan->tile_rows * plan->tile_cols / plan->fold;
    sp_strbuf_printf(out, "plan: %lld x %lld, %lld mask%s, tiles of %d x %d: %lld full + %lld partial\n",
                     (long long)plan->q_len, (long long)plan->kv_len, (long long)plan->mask_count,
                     sp_plural(plan->mask_count), plan->tile_rows, plan->tile_cols, (long long)plan->full_tiles,
                     (long long)plan->partial_tiles);
    sp_strbuf_printf(out, "pairs: %lld allowed (density %.4f), %.0f computed (waste %.3f); families %lld\n",
                     (long long)plan->allowed_pairs, cells > 0 ? (double)plan->allowed_pairs / cells : 0.0,
                     computed, plan->allowed_pairs > 0 ? computed / (double)plan->allowed_pairs : 0.0,
                     (long long)plan->families);
    sp_strbuf_printf(out, "predicted: %.1f us\n", plan->predicted_us);
    if (plan->fold > 1)
        sp_strbuf_printf(out, "rows: up to %d heads of a group share a row tile, row r is query r / %d\n",
                         plan->fold, plan->fold);
    for (int64_t p = 0; p < plan->pass_count; p++) {
        const struct sp_pass *pass = &plan->passes[p];
        sp_strbuf_printf(out, "pass %lld: mask %d, rows ", (long long)p, pass->mask_index);
        print_view(out, &pass->row_view);
        sp_strbuf_puts(out, ", columns ");
        for (int32_t v = 0; v < pass->column_view_count; v++) {
            sp_strbuf_puts(out, v ? " + " : "");
            print_view(out, &plan->views[pass->column_view + v]);
        }
        int64_t split, parts, row_tiles = sp_split_count(plan, pass, &split, &parts);
        sp_strbuf_printf(out, ", %lld row tile%s", (long long)row_tiles, sp_plural(row_tiles));
        if (split)
            sp_strbuf_printf(out, ", %lld of them in %lld parts", (long long)split, (long long)parts);
        sp_strbuf_printf(out, "%s\n", pass->merge ? ", merges" : "");
    }
    for (int64_t c = 0; c < plan->candidate_count; c++)
        sp_strbuf_printf(out, "candidate: %s: %s\n", plan->candidates[c].summary, plan->candidates[c].reason);
}

/* Tiles and segments by kind; then how much the tables hold. */
static void print_predicate_use(const splat_plan *plan, struct sp_strbuf *out)
{
    int64_t segments[SP_PRED_COUNT] = {0}, tiles[SP_PRED_COUNT] = {0};
    for (int64_t s = 0; s < plan->segment_count; s++) {
        int kind = SP_SEGMENT_KIND(plan->segments[s].code);
        segments[kind]++;
        tiles[kind] += plan->segments[s].count;
    }
    for (int kind = 0; kind < SP_PRED_COUNT; kind++)
        if (segments[kind])
            sp_strbuf_printf(out, "predicate %s: %lld tile%s in %lld segment%s\n",
                             sp_predicate_name((enum sp_pred_kind)kind), (long long)tiles[kind],
                             sp_plural(tiles[kind]), (long long)segments[kind], sp_plural(segments[kind]));
    int64_t predicates = plan->predicate_count - 1, tables = plan->table_count / (2 * plan->tile_rows),
            bitmasks = plan->bits_count / (plan->tile_rows * (plan->tile_cols / 32));
    sp_strbuf_printf(out, "stored: %lld predicate%s, %lld table%s, %lld bitmask%s\n", (long long)predicates,
                     sp_plural(predicates), (long long)tables, sp_plural(tables), (long long)bitmasks,
                     sp_plural(bitmasks));
}

static void print_segment(const splat_plan *plan, struct sp_strbuf *out, const struct sp_segment *segment)
{
    enum sp_pred_kind kind = (enum sp_pred_kind)SP_SEGMENT_KIND(segment->code);
    int64_t last = (int64_t)segment->first + segment->count - 1;
    if (segment->count == 1)
        sp_strbuf_printf(out, "  column tile %d", segment->first);
    else
        sp_strbuf_printf(out, "  column tiles %d-%lld", segment->first, (long long)last);
    sp_strbuf_printf(out, ": %s", kind == SP_PRED_NONE ? "full" : sp_predicate_name(kind));
    if (kind != SP_PRED_NONE) {
        sp_strbuf_puts(out, ", ");
        print_predicate(plan, out, segment);
    }
    sp_strbuf_puts(out, "\n");
}

/* Whether entry k of `count` is shown when at most `shown` are; says once, at the gap, how many are left out. */
static int elided(struct sp_strbuf *out, int64_t k, int64_t count, int64_t shown, const char *indent,
                  const char *what)
{
    if (count <= shown || k < shown / 2 || k >= count - shown / 2)
        return 0;
    if (k == shown / 2)
        sp_strbuf_printf(out, "%s... %lld more %s ...\n", indent, (long long)(count - shown / 2 * 2), what);
    return 1;
}

static void print_pass(const splat_plan *plan, const struct sp_pass *pass, struct sp_strbuf *out)
{
    for (int64_t k = 0; k < pass->row_tile_count; k++) {
        if (elided(out, k, pass->row_tile_count, SHOWN_ROW_TILES, "", "row tiles"))
            continue;
        const struct sp_row_tile *row_tile = &plan->row_tiles[pass->first_row_tile + k];
        int64_t row0 = (int64_t)row_tile->tile * plan->tile_rows;
        sp_strbuf_printf(out, "row tile %d (", row_tile->tile);
        print_tokens(out, &pass->row_view, row0, plan->tile_rows, "row");
        sp_strbuf_printf(out, ")%s: %d tile%s\n", row_tile->slot ? ", a part" : "", row_tile->tiles,
                         sp_plural(row_tile->tiles));
        for (int64_t s = 0; s < row_tile->segment_count; s++)
            if (!elided(out, s, row_tile->segment_count, SHOWN_SEGMENTS, "  ", "segments"))
                print_segment(plan, out, &plan->segments[row_tile->segment + s]);
    }
}

void sp_plan_print(const splat_plan *plan, struct sp_strbuf *out)
{
    print_header(plan, out);
    print_predicate_use(plan, out);
    for (int64_t p = 0; p < plan->pass_count; p++) {
        if (plan->pass_count > 1)
            sp_strbuf_printf(out, "mask %d, longest row tile first:\n", plan->passes[p].mask_index);
        else
            sp_strbuf_puts(out, "longest row tile first:\n");
        print_pass(plan, &plan->passes[p], out);
    }
}
