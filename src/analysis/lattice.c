/* Masks under views (lattice.h).
 *
 * A row source over the ACSR of tokens: it finds the token of a row position, evaluates that row (many at once,
 * where the positions allow it), keeps the runs of the part, and deals them into the zones of the column view. A
 * run whose stride is the view's n0 is a rectangle of the grid, so it gives one run a zone; a wide block gives at
 * most one interval a zone. The builder of ACSRs does the rest.
 */
#include "analysis/lattice.h"

#include <math.h>
#include <stdlib.h>

#include "acsr/build.h"
#include "acsr/sym.h"
#include "common/error.h"

/* A row with more pieces than this gains nothing from the view: its tiles would be mostly empty. */
enum { PIECES_MAX = 512 };

/* A run within one zone, in ranks. */
struct piece {
    int64_t zone;
    struct sp_sym_run run;
};

struct lattice_source {
    struct sp_row_source base;
    struct sp_acsr_source tokens;
    struct sp_view rows, columns;
    struct sp_part part;
    struct sp_runs found; /* of the row, in tokens */
    struct piece pieces[PIECES_MAX];
    int piece_count;
    bool unsuited;
};

static void give_up(struct lattice_source *s, struct sp_row_eval *eval)
{
    s->unsuited = true;
    eval->failed = true; /* stops the builder */
}

/* ---- Columns ---- */

static struct sp_aff last_block(const struct sp_sym_run *run)
{
    return sp_add(run->start, sp_addc(sp_mulc(run->count, run->stride), -run->stride));
}

static struct sp_aff run_end(const struct sp_sym_run *run)
{
    return sp_add(run->stride ? last_block(run) : run->start, run->width);
}

static void add_piece(struct lattice_source *s, struct sp_row_eval *eval, int64_t zone, struct sp_aff start,
                      int64_t stride, struct sp_aff count, struct sp_aff width)
{
    const bool shorter = s->columns.len < s->tokens.acsr->kv_len;
    struct sp_aff end = run_end(&(struct sp_sym_run){start, count, width, stride});
    if (s->piece_count == PIECES_MAX ||
        (shorter && sp_lt(eval, sp_const(sp_view_zone_ranks(&s->columns, zone)), end))) {
        give_up(s, eval);
        return;
    }
    int at = s->piece_count++; /* a stable insertion: pieces come nearly in order */
    for (; at > 0 && s->pieces[at - 1].zone > zone; at--)
        s->pieces[at] = s->pieces[at - 1];
    s->pieces[at] = (struct piece){zone, {start, count, width, stride}};
}

static int64_t zone_of(const struct lattice_source *s, struct sp_row_eval *eval, struct sp_aff x)
{
    bool beyond = sp_view_is_cut(&s->columns) && !sp_lt(eval, x, sp_const(s->columns.rest));
    return sp_concrete(eval, sp_floordiv(eval, x, s->columns.c)) + beyond;
}

/* `count` blocks at grid columns [x, end), one every `step` grid rows from row y on; 0 <= x < end <= n0. */
static void deal_rectangle(struct lattice_source *s, struct sp_row_eval *eval, struct sp_aff x, struct sp_aff end,
                           struct sp_aff y, struct sp_aff count, int64_t step)
{
    const int64_t c = s->columns.c;
    int64_t first = zone_of(s, eval, x), last = zone_of(s, eval, sp_addc(end, -1));
    for (int64_t zone = first; zone <= last && !eval->failed; zone++) {
        const struct sp_strip strip = sp_view_strip(&s->columns, zone);
        struct sp_aff a = zone == first ? x : sp_const(strip.begin);
        struct sp_aff b = zone == last ? end : sp_const(strip.end);
        struct sp_aff width = sp_sub(b, a), start = sp_addc(sp_add(sp_mulc(y, c), a), -strip.x);
        if (step == 0 || sp_eq(eval, count, sp_const(1)))
            add_piece(s, eval, zone, start, 0, sp_const(1), width);
        else if (step == 1 && sp_eq(eval, width, sp_const(c)))
            add_piece(s, eval, zone, start, 0, sp_const(1), sp_mulc(count, c));
        else
            add_piece(s, eval, zone, start, step * c, count, width);
    }
}

/* Blocks narrower than a grid row, one every `step` grid rows; a block that goes over the edge of the grid comes
 * back in the next row. */
static void deal_narrow(struct lattice_source *s, struct sp_row_eval *eval, struct sp_aff start,
                        struct sp_aff width, struct sp_aff count, int64_t step)
{
    const int64_t n0 = s->columns.n0;
    struct sp_aff x = sp_mod(eval, start, n0), y = sp_floordiv(eval, start, n0), end = sp_add(x, width);
    if (sp_lt(eval, sp_const(n0), end)) {
        deal_rectangle(s, eval, x, sp_const(n0), y, count, step);
        deal_rectangle(s, eval, sp_const(0), sp_addc(end, -n0), sp_addc(y, 1), count, step);
    } else {
        deal_rectangle(s, eval, x, end, y, count, step);
    }
}

/* Ranks below token t of the zone that begins in grid column x. */
static struct sp_aff rank_of(struct lattice_source *s, struct sp_row_eval *eval, struct sp_aff t, int64_t x)
{
    const int64_t n0 = s->columns.n0, c = s->columns.c;
    struct sp_aff within = sp_addc(sp_mod(eval, t, n0), -x);
    within = sp_min(eval, sp_max(eval, within, sp_const(0)), sp_const(c));
    return sp_add(sp_mulc(sp_floordiv(eval, t, n0), c), within);
}

/* A block of more than a grid row in a zone some of whose ranks hold nothing: what it has of its first grid row, of
 * the rows between, and of its last. */
static void deal_in_strip(struct lattice_source *s, struct sp_row_eval *eval, struct sp_aff begin,
                          struct sp_aff end, int64_t zone)
{
    const int64_t n0 = s->columns.n0, c = s->columns.c;
    const struct sp_strip strip = sp_view_strip(&s->columns, zone);
    const struct sp_aff left = sp_const(strip.begin), right = sp_const(strip.end);
    struct sp_aff top = sp_floordiv(eval, begin, n0), bottom = sp_floordiv(eval, end, n0);
    struct sp_aff a = sp_max(eval, sp_sub(begin, sp_mulc(top, n0)), left);
    struct sp_aff b = sp_min(eval, sp_sub(end, sp_mulc(bottom, n0)), right);
    struct sp_aff between = sp_addc(sp_sub(bottom, top), -1);
    if (sp_lt(eval, a, right))
        add_piece(s, eval, zone, sp_addc(sp_add(sp_mulc(top, c), a), -strip.x), 0, sp_const(1), sp_sub(right, a));
    if (sp_lt(eval, sp_const(0), between))
        add_piece(s, eval, zone, sp_addc(sp_mulc(top, c), c + strip.begin - strip.x), c, between,
                  sp_sub(right, left));
    if (sp_lt(eval, left, b))
        add_piece(s, eval, zone, sp_addc(sp_mulc(bottom, c), strip.begin - strip.x), 0, sp_const(1),
                  sp_sub(b, left));
}

static void deal_block(struct lattice_source *s, struct sp_row_eval *eval, struct sp_aff begin, struct sp_aff width)
{
    if (s->columns.zones == 1) { /* ranks are tokens */
        add_piece(s, eval, 0, begin, 0, sp_const(1), width);
        return;
    }
    if (!sp_lt(eval, sp_const(s->columns.n0), width)) {
        deal_narrow(s, eval, begin, width, sp_const(1), 0);
        return;
    }
    for (int64_t zone = 0; zone < s->columns.zones && !eval->failed; zone++) {
        const struct sp_strip strip = sp_view_strip(&s->columns, zone);
        const struct sp_aff end = sp_add(begin, width);
        if (strip.end - strip.begin < s->columns.c) {
            deal_in_strip(s, eval, begin, end, zone);
            continue;
        }
        struct sp_aff low = rank_of(s, eval, begin, strip.x), high = rank_of(s, eval, end, strip.x);
        if (sp_lt(eval, low, high))
            add_piece(s, eval, zone, low, 0, sp_const(1), sp_sub(high, low));
    }
}

static void deal_run(struct lattice_source *s, struct sp_row_eval *eval, const struct sp_sym_run *run)
{
    if (s->columns.zones == 1) { /* ranks are tokens */
        add_piece(s, eval, 0, run->start, run->stride, run->count, run->width);
    } else if (run->stride == 0) {
        deal_block(s, eval, run->start, run->width);
    } else if (run->stride % s->columns.n0 == 0) {
        deal_narrow(s, eval, run->start, run->width, run->count, run->stride / s->columns.n0);
    } else {
        int64_t count = sp_concrete(eval, run->count);
        for (int64_t k = 0; k < count && !eval->failed; k++)
            deal_block(s, eval, sp_addc(run->start, k * run->stride), run->width);
    }
}

/* Hands the pieces over zone by zone. Runs of one zone may interleave only where a wide block of one stride comes
 * back over the grid's edge into the zone it began in. */
static void push_pieces(struct lattice_source *s, struct sp_row_eval *eval, struct sp_runs *out)
{
    struct sp_aff reached = sp_const(0);
    for (int k = 0; k < s->piece_count && !eval->failed; k++) {
        struct sp_sym_run run = s->pieces[k].run;
        if (k > 0 && s->pieces[k].zone == s->pieces[k - 1].zone && sp_lt(eval, run.start, reached)) {
            give_up(s, eval);
            return;
        }
        reached = run_end(&run);
        run.start = sp_addc(run.start, s->pieces[k].zone * s->columns.pitch);
        sp_push_run(eval, out, run.start, run.stride, run.count, run.width);
    }
    if (out->count > SP_ACSR_MAX_RUNS(eval->kv_len))
        give_up(s, eval);
}

/* ---- Rows ---- */

static struct sp_aff row_pairs(const struct sp_runs *runs, struct sp_row_eval *eval)
{
    struct sp_aff pairs = sp_const(0);
    for (int64_t k = 0; k < runs->count; k++) {
        const struct sp_sym_run *run = &runs->runs[k];
        if (run->count.d != 0 && run->width.d != 0)
            sp_concrete(eval, run->count);
        pairs = sp_add(pairs, (struct sp_aff){run->count.v * run->width.v,
                                              run->count.d * run->width.v + run->count.v * run->width.d});
    }
    return pairs;
}

static bool is_strided(const struct lattice_source *s, struct sp_row_eval *eval, const struct sp_sym_run *run)
{
    return run->stride % s->part.stride == 0 && !sp_lt(eval, sp_const(s->part.width), run->width);
}

/* A wide block beside strided ones may have swallowed one that would have stood right at its edge: that one is
 * given back. Deals the parts of run k; the ends are cut where the neighbouring run's next block would begin or
 * end. */
static void deal_cut(struct lattice_source *s, struct sp_row_eval *eval, int64_t k)
{
    const struct sp_sym_run *run = &s->found.runs[k], *left = k > 0 ? run - 1 : NULL;
    const struct sp_sym_run *right = k + 1 < s->found.count ? run + 1 : NULL;
    const int64_t d = s->part.stride, width = s->part.width;
    const bool strided = s->part.kind == SP_PART_STRIDED;
    struct sp_aff begin = run->start, end = sp_add(run->start, run->width);
    bool cut_left = left && is_strided(s, eval, left) && sp_eq(eval, left->width, sp_const(width)) &&
                    sp_eq(eval, sp_addc(last_block(left), d), begin);
    bool cut_right = right && sp_lt(eval, sp_const(width), sp_sub(end, begin)) && is_strided(s, eval, right) &&
                     sp_eq(eval, right->width, sp_const(width)) &&
                     sp_eq(eval, sp_addc(right->start, width - d), end);
    if (cut_left && cut_right) { /* an edge on the lattice is the block's own */
        cut_left = !sp_eq(eval, sp_mod(eval, begin, d), sp_const(0));
        cut_right = !sp_eq(eval, sp_mod(eval, end, d), sp_const(0));
    }
    if (cut_left && strided)
        deal_block(s, eval, begin, sp_const(width));
    if (cut_left)
        begin = sp_addc(begin, width);
    if (cut_right && strided && sp_lt(eval, sp_const(width), sp_sub(end, begin)))
        deal_block(s, eval, sp_addc(end, -width), sp_const(width));
    if (cut_right && sp_lt(eval, sp_const(width), sp_sub(end, begin)))
        end = sp_addc(end, -width);
    if (!strided)
        deal_block(s, eval, begin, sp_sub(end, begin));
}

/* Deals run k as far as it belongs to the part. */
static void deal_part(struct lattice_source *s, struct sp_row_eval *eval, int64_t k)
{
    const struct sp_sym_run *run = &s->found.runs[k];
    if (s->part.kind != SP_PART_STRIDED && s->part.kind != SP_PART_REST)
        deal_run(s, eval, run);
    else if (is_strided(s, eval, run)) {
        if (s->part.kind == SP_PART_STRIDED)
            deal_run(s, eval, run);
    } else if (run->stride == 0 && sp_lt(eval, sp_const(s->part.width), run->width))
        deal_cut(s, eval, k);
    else if (s->part.kind == SP_PART_REST)
        deal_run(s, eval, run);
}

static bool row_in_part(const struct lattice_source *s, struct sp_row_eval *eval)
{
    if (s->part.kind != SP_PART_LONG && s->part.kind != SP_PART_SHORT)
        return true;
    struct sp_aff pairs = row_pairs(&s->found, eval);
    return sp_lt(eval, sp_const(s->part.width), pairs) == (s->part.kind == SP_PART_LONG);
}

/* Turns the evaluation's row positions into tokens, as far as they keep one step. Returns false when there are
 * none: eval->valid then covers the positions that hold nothing. */
static bool find_tokens(const struct lattice_source *s, struct sp_row_eval *eval, struct sp_row_eval *tokens)
{
    const struct sp_view *view = &s->rows;
    int64_t zone = eval->row / view->pitch, rank = eval->row % view->pitch;
    int64_t ranks = sp_view_zone_ranks(view, zone), limit = rank < ranks ? ranks - rank : view->pitch - rank;
    const struct sp_strip strip = sp_view_strip(view, zone);
    int64_t step = eval->step, x = strip.x + rank % view->c;
    bool exists = rank < ranks;
    if (view->zones > 1 && exists) {
        exists = x >= strip.begin && x < strip.end;
        if (step % view->c != 0) /* no further than the grid row, or what exists of it */
            limit = exists ? strip.end - x : 1;
        else if (!exists)
            limit = view->pitch - rank;
    }
    int64_t rows = (limit + step - 1) / step;
    if (rows < eval->valid)
        eval->valid = rows;
    tokens->row = view->n0 * (rank / view->c) + x;
    tokens->step = step % view->c == 0 ? view->n0 * (step / view->c) : step;
    tokens->valid = eval->valid;
    return exists;
}

static void lattice_row(struct sp_row_source *self, struct sp_row_eval *eval, struct sp_runs *out)
{
    struct lattice_source *s = (struct lattice_source *)self;
    const splat_acsr *acsr = s->tokens.acsr;
    struct sp_row_eval tokens = {.q_len = acsr->q_len, .kv_len = acsr->kv_len};
    out->count = 0;
    if (!find_tokens(s, eval, &tokens))
        return;
    s->tokens.base.row(&s->tokens.base, &tokens, &s->found);
    eval->valid = tokens.valid;
    eval->failed |= tokens.failed;
    if (tokens.bits) {
        give_up(s, eval);
        return;
    }
    if (!row_in_part(s, eval))
        return;
    s->piece_count = 0;
    for (int64_t k = 0; k < s->found.count && !eval->failed; k++)
        deal_part(s, eval, k);
    push_pieces(s, eval, out);
}

/* ---- The whole ---- */

/* Whether a mask of positions can be made at all. A last zone narrower than the others would have ranks without
 * tokens. */
static bool serves(const splat_acsr *acsr, const struct sp_view *view)
{
    return acsr->bit_words == 0 && sp_view_fits(view) && view->n0 % view->c == 0;
}

static struct lattice_source *new_source(const splat_acsr *acsr, const struct sp_view *rows,
                                         const struct sp_view *columns, const struct sp_part *part)
{
    struct lattice_source *source = calloc(1, sizeof *source);
    if (!source) {
        sp_no_memory("a mask under views", sizeof *source);
        return NULL;
    }
    source->base.row = lattice_row;
    sp_acsr_source_init(&source->tokens, acsr);
    source->rows = *rows;
    source->columns = *columns;
    source->part = *part;
    return source;
}

static void free_source(struct lattice_source *source)
{
    sp_runs_free(&source->found);
    free(source);
}

enum splat_status sp_lattice_acsr(const splat_acsr *acsr, const struct sp_view *rows, const struct sp_view *columns,
                                  const struct sp_part *part, splat_acsr **made)
{
    *made = NULL;
    if (!serves(acsr, rows) || !serves(acsr, columns))
        return SPLAT_OK;
    struct lattice_source *source = new_source(acsr, rows, columns, part);
    if (!source)
        return SPLAT_NO_MEMORY;
    /* Positions of one class are a grid column of a zone; under a linear view rows keep their own classes. */
    int64_t row_stride = rows->zones == 1 ? acsr->row_stride : rows->c;
    enum splat_status status =
        sp_acsr_build_classes(&source->base, sp_view_positions(rows), sp_view_positions(columns), row_stride, made);
    if (source->unsuited)
        status = SPLAT_OK;
    free_source(source);
    return status;
}

/* Tiles of one row, runs ascending. */
static int64_t tiles_of_row(const struct sp_runs *runs, int64_t tile)
{
    int64_t tiles = 0, reached = -1; /* last tile counted */
    for (int64_t k = 0; k < runs->count; k++) {
        const struct sp_sym_run *run = &runs->runs[k];
        int64_t end = run->start.v + (run->count.v - 1) * run->stride + run->width.v;
        int64_t first = run->start.v / tile, last = (end - 1) / tile;
        int64_t touched = last - (first > reached ? first - 1 : reached);
        if (run->stride > tile && run->count.v < touched)
            touched = run->count.v;
        tiles += touched > 0 ? touched : 0;
        reached = last;
    }
    return tiles;
}

/* Evaluates a row by itself; its tiles, and the first of them (-1: none). */
static int64_t sample_row(struct lattice_source *source, int64_t row, int64_t tile, struct sp_runs *runs,
                          int64_t *first, bool *failed)
{
    struct sp_row_eval eval = {.q_len = source->tokens.acsr->q_len,
                               .kv_len = sp_view_positions(&source->columns),
                               .row = row,
                               .step = 1,
                               .valid = 1};
    lattice_row(&source->base, &eval, runs);
    *failed |= eval.failed;
    *first = runs->count ? runs->runs[0].start.v / tile : -1;
    return tiles_of_row(runs, tile);
}

enum splat_status sp_lattice_sample(const splat_acsr *acsr, const struct sp_view *rows,
                                    const struct sp_view *columns, const struct sp_part *part, int64_t tile,
                                    int64_t samples, double *tiles)
{
    *tiles = HUGE_VAL;
    if (!serves(acsr, columns))
        return SPLAT_OK;
    const struct sp_view linear = sp_view_make(SP_VIEW_LINEAR, 1, 1, acsr->q_len);
    struct lattice_source *source = new_source(acsr, &linear, columns, part);
    if (!source)
        return SPLAT_NO_MEMORY;
    struct sp_runs runs = {0};
    enum { SHORTEST_TILE = 64 };
    static const int64_t steps[3] = {0, 1, 21};
    const bool together = rows->zones == 1 && columns->zones > 1;
    int64_t sum = 0;
    bool failed = false;
    for (int64_t k = 0; k < samples && !failed; k++) {
        int64_t row = (2 * k + 1) * acsr->q_len / (2 * samples), first[3], found[3] = {0};
        int64_t most = 0, all = 0;
        for (int n = 0; n < (together ? 3 : 1) && row + steps[n] < acsr->q_len && !failed; n++) {
            found[n] = sample_row(source, row + steps[n], tile, &runs, &first[n], &failed);
            most = found[n] > most ? found[n] : most;
            bool seen = false;
            for (int m = 0; m < n; m++)
                seen |= first[m] == first[n];
            all = seen ? most : all + found[n];
        }
        if (found[1] > 0 && first[0] != first[1]) /* neighbours differ: then so do all rows of a tile */
            all = SHORTEST_TILE * found[1];
        sum += all > most ? all : most;
    }
    if (!failed)
        *tiles = (double)sum / (double)samples;
    bool out_of_memory = failed && !source->unsuited;
    sp_runs_free(&runs);
    free_source(source);
    return out_of_memory ? sp_no_memory("a row under views", sizeof(struct sp_sym_run)) : SPLAT_OK;
}
