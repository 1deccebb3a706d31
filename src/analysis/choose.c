/* The cost model and the choice of layout and tile shape (choose.h).
 *
 * For every layout one sweep over the row blocks of each mask counts the FULL and PARTIAL tiles of every shape. A
 * launch takes t = max(work of all row tiles / block slots, the longest row tile) and bytes moved once / copy rate,
 * side by side, + launch; a layout takes the sum of its launches, of which the later ones also read what the
 * earlier ones wrote. A row tile that is longer than all else may be split (split.h), which has a price of its own.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/alike.h"
#include "analysis/choose.h"
#include "analysis/cover.h"
#include "analysis/ints.h"
#include "analysis/layout.h"
#include "analysis/split.h"
#include "analysis/values.h"
#include "common/error.h"
#include "common/strbuf.h"

enum { ROWS_MAX = 32, SHAPES_MAX = ROWS_MAX * SP_LAYOUTS_MAX };

/* Of a pass with more row blocks than this an even sample is counted, in stretches that hold whole tiles of any
 * height, and the counts are scaled. The tile lists are built in full all the same. */
enum { BLOCKS_COUNTED = 2048, STRETCH = SP_ZONE_ALIGN };

/* Rows are counted by units that hold whole tiles of any height, and a unit that looks like an earlier one
 * (alike.h) brings the same counts. */
enum { UNIT_ROWS = 384 };

/* A shape that needs more segments is taken only when all do: 2^24 of them are 256 MiB of tile lists. */
static const int64_t segments_max = (int64_t)1 << 24;

/* One candidate: a layout and a row of the tune table, its tile counts and cost. */
struct shape {
    const struct sp_tune_row *row;
    int tune_index, layout;
    bool barred;                     /* for operators on values: the layout does not have a row's values in order */
    int64_t full, partial, segments; /* summed over distinct masks; segments at most */
    double work_ns[SP_PASSES_MAX], longest_ns[SP_PASSES_MAX];
    double tiles[SP_PASSES_MAX]; /* of all (batch, head) pairs */
    double us;
    double busy_us; /* of the block slots alone: what tells shapes apart that wait for memory all the same */
};

struct sp_choice {
    const struct sp_tune_table *table;
    const splat_options *options;
    const struct sp_mask_set *set, *values;
    struct sp_layout layouts[SP_LAYOUTS_MAX];
    int layout_count;
    const struct sp_tune_row *rows[ROWS_MAX]; /* of the table, those that may serve */
    int row_count;
    struct shape shapes[SHAPES_MAX];
    int shape_count;
    const struct sp_tune_row *dropped; /* a shape left out for its number of segments, or NULL */
    double dim_factor;                 /* cost of a tile at the real head dims against one at max_dim */
    bool sampled;                      /* counts are of a sample of the rows, scaled */
};

/* ---- Shapes ---- */

/* Whether a row before this one has its shape for the same head dims; *affine is 0 when either serves every mask.
 */
static bool listed_before(const struct sp_tune_table *table, int k, bool *affine)
{
    const struct sp_tune_row *row = &table->rows[k];
    bool before = false;
    *affine = true;
    for (int i = 0; i < table->row_count; i++) {
        const struct sp_tune_row *other = &table->rows[i];
        if (other->max_dim != row->max_dim || other->rows != row->rows || other->cols != row->cols)
            continue;
        before |= i < k;
        *affine &= other->use == SP_USE_AFFINE;
    }
    return before;
}

/* Adds the shapes of the table in `text` as "128x64, 128x160 (bounds only)": those for masks that need no predicate
 * but affine bounds are marked. */
static void list_shapes(const struct sp_tune_table *table, int max_dim, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int k = 0; k < table->row_count; k++) {
        const struct sp_tune_row *row = &table->rows[k];
        bool affine;
        if (row->max_dim != max_dim || used >= size || listed_before(table, k, &affine))
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%dx%d%s", used ? ", " : "", row->rows, row->cols,
                                 affine ? " (bounds only)" : "");
    }
}

/* Smallest max_dim of the table that serves `dim`. */
static int serving_dim(const struct sp_tune_table *table, int64_t dim)
{
    int best = INT32_MAX;
    for (int k = 0; k < table->row_count; k++)
        if (table->rows[k].max_dim >= dim && table->rows[k].max_dim < best)
            best = table->rows[k].max_dim;
    return best;
}

static int served_dim(const struct sp_choice *c)
{
    const splat_options *o = c->options;
    return serving_dim(c->table, sp_max64(o->head_dim, o->value_dim ? o->value_dim : o->head_dim));
}

static enum splat_status fail_without_shape(const struct sp_choice *c, bool affine_rows)
{
    char shapes[256];
    int max_dim = served_dim(c);
    list_shapes(c->table, max_dim, shapes, sizeof shapes);
    return sp_fail(SPLAT_UNSUPPORTED,
                   "tile_rows x tile_cols is %lld x %lld (0 = any); for head dims up to %d the %s table has %s%s",
                   (long long)c->options->tile_rows, (long long)c->options->tile_cols, max_dim, c->table->chip,
                   shapes, affine_rows ? "" : "; this mask needs more than bounds");
}

double sp_dim_factor(const struct sp_tune_row *row, const splat_options *options)
{
    int64_t value_dim = options->value_dim ? options->value_dim : options->head_dim;
    return 0.25 + 0.75 * (double)(options->head_dim + value_dim) / (2.0 * row->max_dim);
}

static enum splat_status gather_rows(struct sp_choice *c)
{
    const splat_options *o = c->options;
    const int max_dim = served_dim(c), other = c->set->fold > 1 ? SP_USE_UNFOLDED : SP_USE_FOLDED;
    for (int k = 0; k < c->table->row_count && c->row_count < ROWS_MAX; k++) {
        const struct sp_tune_row *row = &c->table->rows[k];
        if (row->max_dim == max_dim && row->use != other && (o->tile_rows == 0 || o->tile_rows == row->rows) &&
            (o->tile_cols == 0 || o->tile_cols == row->cols))
            c->rows[c->row_count++] = row;
    }
    if (c->row_count > 0)
        c->dim_factor = sp_dim_factor(c->rows[0], o);
    return c->row_count > 0 ? SPLAT_OK : fail_without_shape(c, true);
}

/* ---- Counting ---- */

/* Covers of the row blocks gathered so far for tiles of one height, a part each. */
struct joint {
    int64_t rows; /* tile height */
    struct sp_cover covers[SP_PARTS_MAX];
};

/* What the row tiles of a unit add to the shapes of its layout. */
struct unit {
    struct shape shapes[ROWS_MAX];
};

/* What one sweep over the rows of a pass works with. */
struct sweep {
    struct sp_choice *choice;
    struct shape *shapes; /* of the layout, one for each row of the choice */
    const struct sp_layout_pass *pass;
    int pass_index;
    int64_t uses;
    struct joint joints[ROWS_MAX];
    int joint_count;
    struct sp_cover_scratch scratch[SP_PARTS_MAX];
    struct sp_cover covers[SP_PARTS_MAX]; /* of the row block in hand */
    struct sp_spans spare;
    struct sp_row_walk walks[SP_PARTS_MAX]; /* by units */
    struct sp_alike_scratch alike;
    struct sp_hash_set seen; /* likenesses of units */
    struct unit *units;      /* their counts */
    int64_t unit_capacity;
};

/* Adds one row tile of `shape`. */
static void count_row_tile(const struct sweep *w, struct shape *shape, const struct sp_cover *covers)
{
    const struct sp_tune_row *row = shape->row;
    double full_ns = row->full_ns * w->choice->dim_factor;
    double ns = row->row_ns + (w->pass_index > 0 ? w->choice->table->merge_ns : 0.0);
    int64_t touched = 0;
    for (int k = 0; k < w->pass->part_count; k++) {
        const struct sp_cover *cover = &covers[k];
        struct sp_tile_count tiles = sp_cover_count(cover, row->cols / SP_GRANULE);
        int64_t partial = tiles.touched - tiles.full;
        double extra_ns = cover->irregular ? row->bits_ns : cover->periodic ? row->periodic_ns : row->partial_ns;
        ns += (double)tiles.full * full_ns + (double)partial * (full_ns + extra_ns);
        shape->full += tiles.full;
        shape->partial += partial;
        shape->segments += tiles.stretches;
        touched += tiles.touched;
    }
    if (touched == 0 && w->pass_index > 0)
        return; /* not in the list */
    shape->work_ns[w->pass_index] += ns * (double)w->uses;
    shape->tiles[w->pass_index] += (double)(touched * w->uses);
    shape->longest_ns[w->pass_index] = sp_max_double(shape->longest_ns[w->pass_index], ns);
}

/* Gathers the row block in hand, which begins at `row0`; `last` when no block of its zone follows. */
static void take_block(struct sweep *w, struct joint *joint, int64_t row0, bool last)
{
    const bool single = joint->rows == SP_BASE_ROWS;
    for (int k = 0; k < w->pass->part_count && !single; k++)
        if (row0 % joint->rows == 0)
            sp_cover_copy(&joint->covers[k], &w->covers[k]);
        else
            sp_cover_join(&joint->covers[k], &w->covers[k], &w->spare);
    if ((row0 + SP_BASE_ROWS) % joint->rows != 0 && !last)
        return;
    for (int k = 0; k < w->choice->row_count; k++)
        if (w->shapes[k].row->rows == joint->rows)
            count_row_tile(w, &w->shapes[k], single ? w->covers : joint->covers);
}

/* The distinct tile heights. */
static void gather_heights(struct sweep *w)
{
    for (int k = 0; k < w->choice->row_count; k++) {
        int at = 0;
        while (at < w->joint_count && w->joints[at].rows != w->choice->rows[k]->rows)
            at++;
        if (at == w->joint_count)
            w->joints[w->joint_count++] = (struct joint){.rows = w->choice->rows[k]->rows};
    }
}

static bool sweep_failed(const struct sweep *w)
{
    bool failed = w->spare.failed;
    for (int k = 0; k < w->joint_count; k++)
        for (int p = 0; p < w->pass->part_count; p++)
            failed |= sp_cover_failed(&w->joints[k].covers[p]);
    return failed;
}

/* Counts the row tiles of one unit, or of what a zone's end leaves of it, block by block. */
static enum splat_status count_unit(struct sweep *w, splat_acsr *const *parts, int64_t position, int64_t rows)
{
    const struct sp_view *view = &w->pass->rows;
    const int64_t ranks = sp_view_zone_ranks(view, position / view->pitch), end = position + rows;
    for (; position < end; position += SP_BASE_ROWS) {
        for (int k = 0; k < w->pass->part_count; k++) {
            enum splat_status status = sp_cover_rows(parts[k], position, sp_min64(position + SP_BASE_ROWS, end),
                                                     &w->scratch[k], &w->covers[k]);
            if (status != SPLAT_OK)
                return status;
        }
        bool last = position % view->pitch + SP_BASE_ROWS >= ranks;
        for (int k = 0; k < w->joint_count; k++)
            take_block(w, &w->joints[k], position, last);
    }
    return SPLAT_OK;
}

/* The number of the unit's likeness; *fresh when there was none like it. */
static enum splat_status look_at_unit(struct sweep *w, splat_acsr *const *parts, int64_t position, int64_t rows,
                                      int64_t *number, bool *fresh)
{
    struct sp_hash hashes[SP_PARTS_MAX + 1] = {{(uint64_t)rows, 0}};
    for (int k = 0; k < w->pass->part_count; k++) {
        struct sp_likeness likeness;
        enum splat_status status = sp_walk_to(&w->walks[k], parts[k], position, position + rows);
        if (status != SPLAT_OK)
            return status;
        if (!sp_alike(&w->walks[k].groups, position, parts[k], SP_ZONE_ALIGN, &w->alike, &likeness))
            return sp_no_memory("the look of rows", (size_t)w->walks[k].groups.run_count * sizeof(int64_t));
        hashes[k + 1] = likeness.hash;
    }
    size_t bytes = (size_t)(w->pass->part_count + 1) * sizeof *hashes;
    *number = sp_hash_set_add(&w->seen, sp_hash_bytes(hashes, bytes), fresh);
    return *number < 0 ? sp_no_memory("the rows seen", bytes) : SPLAT_OK;
}

static void add_counts(struct shape *shape, const struct shape *more, int pass)
{
    shape->full += more->full;
    shape->partial += more->partial;
    shape->segments += more->segments;
    shape->work_ns[pass] += more->work_ns[pass];
    shape->tiles[pass] += more->tiles[pass];
    shape->longest_ns[pass] = sp_max_double(shape->longest_ns[pass], more->longest_ns[pass]);
}

static enum splat_status take_unit(struct sweep *w, splat_acsr *const *parts, int64_t position, int64_t rows)
{
    int64_t number = -1;
    bool fresh = false;
    enum splat_status status = look_at_unit(w, parts, position, rows, &number, &fresh);
    if (status != SPLAT_OK)
        return status;
    if (number >= w->unit_capacity) {
        int64_t capacity = w->unit_capacity ? 2 * w->unit_capacity : 8;
        struct unit *grown = realloc(w->units, (size_t)capacity * sizeof *grown);
        if (!grown)
            return sp_no_memory("the rows seen", (size_t)capacity * sizeof *grown);
        w->units = grown;
        w->unit_capacity = capacity;
    }
    struct unit *unit = &w->units[number];
    if (fresh) {
        struct shape *sum = w->shapes;
        for (int k = 0; k < w->choice->row_count; k++)
            unit->shapes[k] = (struct shape){.row = sum[k].row};
        w->shapes = unit->shapes;
        status = count_unit(w, parts, position, rows);
        w->shapes = sum;
    }
    for (int k = 0; k < w->choice->row_count; k++)
        add_counts(&w->shapes[k], &unit->shapes[k], w->pass_index);
    return status;
}

/* Counts the row tiles of positions [from, to), those of every `every`-th stretch only. *share becomes the part of
 * their blocks that was counted. */
static enum splat_status sweep_rows(struct sweep *w, splat_acsr *const *parts, int64_t from, int64_t to,
                                    int64_t every, double *share)
{
    int64_t position = from, rows, seen = 0, counted = 0;
    for (; position < to && sp_view_next_tile(&w->pass->rows, UNIT_ROWS, &position, &rows) && position < to;
         position += UNIT_ROWS) {
        const int64_t blocks = sp_ceil_div(rows, SP_BASE_ROWS);
        seen += blocks;
        if (position / STRETCH % every != every / 2)
            continue;
        counted += blocks;
        enum splat_status status = take_unit(w, parts, position, rows);
        if (status != SPLAT_OK)
            return status;
    }
    *share = counted ? (double)counted / (double)seen : 1.0;
    return sweep_failed(w)
               ? sp_no_memory("the tile cover", (size_t)w->covers[0].touched.count * sizeof(struct sp_span))
               : SPLAT_OK;
}

/* What was added since `before`, times `factor`. */
static void scale_counts(struct shape *shape, const struct shape *before, int pass, double factor)
{
    shape->full = before->full + (int64_t)((double)(shape->full - before->full) * factor);
    shape->partial = before->partial + (int64_t)((double)(shape->partial - before->partial) * factor);
    shape->segments = before->segments + (int64_t)((double)(shape->segments - before->segments) * factor);
    shape->work_ns[pass] = before->work_ns[pass] + (shape->work_ns[pass] - before->work_ns[pass]) * factor;
    shape->tiles[pass] = before->tiles[pass] + (shape->tiles[pass] - before->tiles[pass]) * factor;
}

/* All row blocks, or a sample of them. The first and the last stretch, where masks are often unlike the rest, are
 * counted for themselves. */
static enum splat_status sweep_pass(struct sweep *w, splat_acsr *const *parts)
{
    const struct sp_view *rows = &w->pass->rows;
    const int64_t end = sp_view_positions(rows);
    const int64_t every = sp_ceil_div(sp_ceil_div(rows->len, SP_BASE_ROWS), BLOCKS_COUNTED);
    double share;
    if (every <= 1)
        return sweep_rows(w, parts, 0, end, 1, &share);
    const int64_t last = (end - 1) / STRETCH * STRETCH;
    struct shape before[ROWS_MAX];
    enum splat_status status = sweep_rows(w, parts, 0, STRETCH, 1, &share);
    memcpy(before, w->shapes, (size_t)w->choice->row_count * sizeof *before);
    if (status == SPLAT_OK)
        status = sweep_rows(w, parts, STRETCH, last, every, &share);
    for (int k = 0; k < w->choice->row_count && status == SPLAT_OK; k++)
        scale_counts(&w->shapes[k], &before[k], w->pass_index, 1.0 / share);
    w->choice->sampled = true;
    return status == SPLAT_OK ? sweep_rows(w, parts, last, end, 1, &share) : status;
}

static enum splat_status count_pass(struct sp_choice *c, const struct sp_layout *layout, struct shape *shapes,
                                    int64_t mask, int pass)
{
    struct sweep w = {.choice = c,
                      .shapes = shapes,
                      .pass = &layout->passes[pass],
                      .pass_index = pass,
                      .uses = c->set->uses[mask]};
    gather_heights(&w);
    splat_acsr *parts[SP_PARTS_MAX];
    for (int k = 0; k < w.pass->part_count; k++)
        parts[k] = sp_layout_acsr(layout, mask, pass, k);
    enum splat_status status = sweep_pass(&w, parts);
    for (int k = 0; k < w.joint_count; k++)
        for (int p = 0; p < SP_PARTS_MAX; p++)
            sp_cover_free(&w.joints[k].covers[p]);
    for (int p = 0; p < SP_PARTS_MAX; p++) {
        sp_cover_free(&w.covers[p]);
        sp_cover_scratch_free(&w.scratch[p]);
        sp_walk_free(&w.walks[p]);
    }
    sp_spans_free(&w.spare);
    sp_alike_free(&w.alike);
    sp_hash_set_free(&w.seen);
    free(w.units);
    return status;
}

/* Adds the shapes of one layout, if it suits the masks. */
static enum splat_status count_layout(struct sp_choice *c, int index)
{
    struct sp_layout *layout = &c->layouts[index];
    struct shape *shapes = c->shapes + c->shape_count;
    bool suited;
    enum splat_status status = sp_layout_realise(layout, c->set, &suited);
    if (status != SPLAT_OK || !suited)
        return status;
    const bool barred = c->options->op != SPLAT_OP_ATTENTION && !sp_values_suit(layout, c->values, c->options->op);
    for (int k = 0; k < c->row_count; k++)
        shapes[k] = (struct shape){
            .row = c->rows[k], .tune_index = (int)(c->rows[k] - c->table->rows), .layout = index, .barred = barred};
    for (int64_t m = 0; m < c->set->count && status == SPLAT_OK; m++)
        for (int p = 0; p < layout->pass_count && status == SPLAT_OK; p++)
            status = count_pass(c, layout, shapes, m, p);
    c->shape_count += c->row_count;
    return status;
}

/* ---- Cost ---- */

/* The values and the tensors of an operator on them, each moved once. */
static double bytes_of_values(const struct sp_choice *c, double size)
{
    const splat_options *o = c->options;
    double pairs = 0, uses = 0;
    for (int64_t k = 0; k < c->set->count; k++) {
        pairs += (double)c->set->uses[k] * (double)splat_acsr_pairs(c->set->acsr[k]);
        uses += (double)c->set->uses[k];
    }
    if (o->op == SPLAT_OP_SOFTMAX)
        return 2.0 * size * pairs;
    double kv_uses = o->kv_heads ? uses * (double)o->kv_heads / (double)o->heads : uses;
    return size * (pairs + (double)o->head_dim * (uses * (double)c->set->q_len + kv_uses * (double)c->set->kv_len));
}

/* Q, K, V, O and LSE, each moved once, of K and V no more than `tile_columns`, the columns of all tiles together; O
 * and LSE twice in a launch that merges. */
static double bytes_of_launch(const struct sp_choice *c, double tile_columns, bool merges)
{
    const splat_options *o = c->options;
    if (o->op != SPLAT_OP_ATTENTION)
        return bytes_of_values(c, o->dtype == SPLAT_FP32 ? 4.0 : 2.0);
    double value_dim = (double)(o->value_dim ? o->value_dim : o->head_dim), dims = (double)o->head_dim + value_dim;
    double size = o->dtype == SPLAT_FP32 ? 4.0 : 2.0, uses = 0;
    for (int64_t k = 0; k < c->set->count; k++)
        uses += (double)c->set->uses[k];
    double kv_uses = uses * (double)c->set->kv_heads / (double)c->set->heads;
    double results = uses * (double)c->set->q_len * (size * value_dim + 4.0);
    double columns = kv_uses * (double)c->set->kv_len;
    return size * dims * (columns < tile_columns ? columns : tile_columns) +
           size * (double)o->head_dim * uses * (double)c->set->q_len + (merges ? 2.0 : 1.0) * results;
}

/* Work and copies run side by side, but where they take alike they wait for each other. The cube is a fit: of 26
 * timed patterns, those that need as much of either took 1.25 times the larger. */
static double side_by_side(double work_us, double copy_us)
{
    return cbrt(work_us * work_us * work_us + copy_us * copy_us * copy_us);
}

static double launch_us(const struct sp_choice *c, const struct sp_tune_row *row, double work_ns, double longest_ns,
                        double tiles, bool merges)
{
    double slots = (double)c->table->sm_count * row->blocks_per_sm, share_ns = work_ns / slots;
    double ns = sp_max_double(share_ns, longest_ns);
    if (sp_split_serves(c->set, c->options)) {
        double split_ns = 1.1 * share_ns + row->row_ns + row->full_ns + sp_split_cost_ns(c->table);
        ns = split_ns < ns ? split_ns : ns;
    }
    double copy_us = bytes_of_launch(c, tiles * row->cols, merges) / c->table->copy_bytes_per_us;
    return side_by_side(ns * 1e-3, copy_us) + c->table->launch_us;
}

static double predicted_us(const struct sp_choice *c, const struct shape *shape)
{
    double us = 0;
    for (int p = 0; p < c->layouts[shape->layout].pass_count; p++)
        us += launch_us(c, shape->row, shape->work_ns[p], shape->longest_ns[p], shape->tiles[p], p > 0);
    return us;
}

static int64_t dense_tiles(const struct sp_choice *c, const struct sp_tune_row *row)
{
    return c->set->count * sp_ceil_div(c->set->q_len, row->rows) * sp_ceil_div(c->set->kv_len, row->cols);
}

/* Every tile of every mask computed, each masked in the dearest way: what a kernel that skips nothing would take.
 * Never less than the same shape's linear plan: it has no fewer tiles and no cheaper predicates. */
static double dense_us(const struct sp_choice *c, const struct sp_tune_row *row)
{
    double columns = (double)sp_ceil_div(c->set->kv_len, row->cols);
    double extra_ns = sp_max_double(sp_max_double(row->partial_ns, row->periodic_ns), row->bits_ns);
    double row_tile = row->row_ns + columns * (row->full_ns * c->dim_factor + extra_ns);
    double row_tiles = (double)sp_ceil_div(c->set->q_len, row->rows), uses = 0;
    for (int64_t k = 0; k < c->set->count; k++)
        uses += (double)c->set->uses[k];
    return launch_us(c, row, row_tile * row_tiles * uses, row_tile, columns * row_tiles * uses, false);
}

static int faster_first(const void *x, const void *y)
{
    const struct shape *a = x, *b = y;
    if (a->us != b->us)
        return a->us < b->us ? -1 : 1;
    if (a->busy_us != b->busy_us)
        return a->busy_us < b->busy_us ? -1 : 1;
    return a->layout != b->layout ? a->layout - b->layout : a->tune_index - b->tune_index;
}

/* ---- Candidates as text ---- */

static double tile_area(const struct shape *shape)
{
    return (double)(shape->full + shape->partial) * shape->row->rows * shape->row->cols;
}

static const char *family_name(const struct sp_tune_row *row)
{
    return row->family == SP_FAMILY_HOPPER ? "hopper" : "portable";
}

static void describe(const struct sp_choice *c, const struct shape *shape, const struct shape *best,
                     struct sp_candidate *out)
{
    const struct sp_tune_row *row = shape->row;
    const struct sp_layout *layout = &c->layouts[shape->layout];
    out->predicted_us = shape->us;
    out->tune_row = shape->tune_index;
    out->full_tiles = shape->full;
    out->partial_tiles = shape->partial;
    snprintf(out->summary, sizeof out->summary,
             "%s kernel, %s (layout %d), %dx%d: %s%lld full + %lld partial tile%s, %.1f us", family_name(row),
             layout->name, shape->layout + 1, row->rows, row->cols, c->sampled ? "about " : "",
             (long long)shape->full, (long long)shape->partial, sp_plural(shape->partial), shape->us);
    double slower = shape->us / best->us, area = tile_area(best) > 0 ? tile_area(shape) / tile_area(best) : 1.0;
    double longest = 0;
    for (int p = 0; p < layout->pass_count; p++)
        longest += shape->longest_ns[p] * 1e-3 + c->table->launch_us;
    if (shape == best && (c->options->tile_rows || c->options->tile_cols || c->options->layout))
        snprintf(out->reason, sizeof out->reason, "forced by %s",
                 c->options->layout ? "layout" : "tile_rows/tile_cols");
    else if (shape == best && c->dropped)
        snprintf(out->reason, sizeof out->reason, "chosen among shapes of at most %lld segments (%dx%d needs more)",
                 (long long)segments_max, c->dropped->rows, c->dropped->cols);
    else if (shape == best)
        snprintf(out->reason, sizeof out->reason, "chosen");
    else if (longest >= shape->us)
        snprintf(out->reason, sizeof out->reason, "%.2fx the time: its longest row tile alone takes %.1f us",
                 slower, longest);
    else if (area > 1.005)
        snprintf(out->reason, sizeof out->reason, "%.2fx the time: computes %.2fx the pairs", slower, area);
    else if (layout->pass_count > c->layouts[best->layout].pass_count)
        snprintf(out->reason, sizeof out->reason, "%.2fx the time: %d launches, of which all but one merge", slower,
                 layout->pass_count);
    else
        snprintf(out->reason, sizeof out->reason,
                 "%.2fx the time: computes %.2fx the pairs, but %.2fx as slow for each", slower, area,
                 area > 0 ? slower / area : slower);
}

static void describe_dense(const struct sp_choice *c, const struct sp_tune_row *row, const struct shape *best,
                           double us, struct sp_candidate *out)
{
    int64_t tiles = dense_tiles(c, row);
    out->predicted_us = us;
    out->tune_row = (int32_t)(row - c->table->rows);
    out->full_tiles = 0;
    out->partial_tiles = tiles;
    snprintf(out->summary, sizeof out->summary, "%s kernel, dense, %dx%d: %lld tile%s, %.1f us", family_name(row),
             row->rows, row->cols, (long long)tiles, sp_plural(tiles), us);
    double area = (double)tiles * row->rows * row->cols;
    int64_t best_dense = dense_tiles(c, best->row);
    if (best->full + best->partial == best_dense && best->full > 0)
        snprintf(out->reason, sizeof out->reason,
                 "%.2fx the time: the plan touches every tile too, but masks only %lld of %lld", us / best->us,
                 (long long)best->partial, (long long)best_dense);
    else if (tile_area(best) > 0)
        snprintf(out->reason, sizeof out->reason, "%.2fx the time: computes %.2fx the pairs", us / best->us,
                 area / tile_area(best));
    else
        snprintf(out->reason, sizeof out->reason, "%.2fx the time: the mask allows nothing", us / best->us);
}

/* Leaves out the shapes with too many segments, unless none would be left. */
static void drop_long_lists(struct sp_choice *c)
{
    int kept = 0;
    for (int k = 0; k < c->shape_count; k++)
        kept += c->shapes[k].segments <= segments_max;
    if (kept == 0)
        return;
    kept = 0;
    for (int k = 0; k < c->shape_count; k++)
        if (c->shapes[k].segments <= segments_max)
            c->shapes[kept++] = c->shapes[k];
        else
            c->dropped = c->shapes[k].row;
    c->shape_count = kept;
}

/* Whether the list shows shape k: every shape of the layout taken, the fastest of the others. */
static bool listed(const struct sp_choice *c, int k, int best)
{
    if (c->shapes[k].layout == c->shapes[best].layout)
        return true;
    for (int j = 0; j < k; j++)
        if (c->shapes[j].layout == c->shapes[k].layout)
            return false;
    return true;
}

/* The shapes are sorted; `best` is the one taken, and what comes before it cannot serve the mask. */
static enum splat_status list_candidates(const struct sp_choice *c, int best, struct splat_plan *plan)
{
    const struct sp_tune_row *dense_row = c->rows[0];
    double dense = dense_us(c, dense_row);
    for (int k = 1; k < c->row_count; k++)
        if (dense_us(c, c->rows[k]) < dense) {
            dense_row = c->rows[k];
            dense = dense_us(c, dense_row);
        }
    size_t bytes = (size_t)(c->shape_count + 1) * sizeof *plan->candidates;
    free(plan->candidates);
    plan->candidate_count = 0;
    plan->candidates = calloc(1, bytes);
    if (!plan->candidates)
        return sp_no_memory("the plan's candidates", bytes);
    struct sp_candidate *out = plan->candidates;
    describe(c, &c->shapes[best], &c->shapes[best], out++);
    bool dense_listed = false;
    for (int k = 0; k <= c->shape_count; k++) {
        if (!dense_listed && (k == c->shape_count || (k > best && dense < c->shapes[k].us))) {
            describe_dense(c, dense_row, &c->shapes[best], dense, out++);
            dense_listed = true;
        }
        if (k == c->shape_count || k == best || !listed(c, k, best))
            continue;
        describe(c, &c->shapes[k], &c->shapes[best], out);
        if (c->shapes[k].barred)
            snprintf(out->reason, sizeof out->reason,
                     "not for this operator: a row's values would not come in the order of its columns");
        else if (k < best)
            snprintf(out->reason, sizeof out->reason, "not for this mask: its kernel knows affine bounds only");
        out++;
    }
    plan->candidate_count = out - plan->candidates;
    return SPLAT_OK;
}

enum splat_status sp_choice_take(struct sp_choice *c, bool affine_rows, struct splat_plan *plan,
                                 const struct sp_layout **layout)
{
    int best = 0;
    while (best < c->shape_count &&
           (c->shapes[best].barred || (!affine_rows && c->shapes[best].row->use == SP_USE_AFFINE)))
        best++;
    if (best == c->shape_count)
        return fail_without_shape(c, affine_rows);
    const struct shape *shape = &c->shapes[best];
    plan->tile_rows = shape->row->rows;
    plan->tile_cols = shape->row->cols;
    plan->tune_row = shape->tune_index;
    plan->predicted_us = shape->us;
    *layout = &c->layouts[shape->layout];
    return list_candidates(c, best, plan);
}

/* What a layout takes at least, or nearly so, judged by a few rows. */
static enum splat_status estimate(const struct sp_choice *c, const struct sp_layout *layout, double *us)
{
    enum { SAMPLES = 6, WIDTH = 64 };
    double tiles = 0, fixed_us = layout->pass_count * c->table->launch_us;
    enum splat_status status = SPLAT_OK;
    for (int64_t m = 0; m < c->set->count; m++)
        for (int p = 0; p < layout->pass_count; p++)
            for (int k = 0; k < layout->passes[p].part_count && status == SPLAT_OK; k++) {
                const struct sp_layout_pass *pass = &layout->passes[p];
                double of_part = 0;
                status = sp_lattice_sample(c->set->acsr[m], &pass->rows, &pass->columns[k], &pass->parts[k], WIDTH,
                                           SAMPLES, &of_part);
                tiles += of_part * (double)c->set->uses[m];
            }
    *us = HUGE_VAL;
    for (int k = 0; k < c->row_count; k++) {
        const struct sp_tune_row *row = c->rows[k];
        /* A wider tile may hold several of those counted. */
        double each = row->full_ns * c->dim_factor * (row->cols > WIDTH ? (double)WIDTH / row->cols : 1.0);
        double slots = (double)c->table->sm_count * row->blocks_per_sm;
        double shape_us = tiles * (double)c->set->q_len / row->rows * each * 1e-3 / slots + fixed_us;
        *us = shape_us < *us ? shape_us : *us;
    }
    return status;
}

static double best_us(const struct sp_choice *c)
{
    double best = HUGE_VAL;
    for (int k = 0; k < c->shape_count; k++) {
        double us = c->shapes[k].barred ? HUGE_VAL : predicted_us(c, &c->shapes[k]);
        best = us < best ? us : best;
    }
    return best;
}

/* Counts the layouts that may still be the fastest, the most promising first; token order always, unless the mask
 * is so large that counting its tiles may take long. */
static enum splat_status count_promising(struct sp_choice *c)
{
    static const double always_counted = 1 << 28; /* cells of a mask */
    double least_us[SP_LAYOUTS_MAX];
    bool done[SP_LAYOUTS_MAX] = {false};
    enum splat_status status = SPLAT_OK;
    for (int k = 0; k < c->layout_count && c->layout_count > 1 && status == SPLAT_OK; k++)
        status = estimate(c, &c->layouts[k], &least_us[k]);
    if (c->layout_count == 1 || (double)c->set->q_len * (double)c->set->kv_len <= always_counted)
        least_us[0] = 0;
    for (int n = 0; n < c->layout_count && status == SPLAT_OK; n++) {
        int next = -1;
        for (int k = 0; k < c->layout_count; k++)
            if (!done[k] && (next < 0 || least_us[k] < least_us[next]))
                next = k;
        done[next] = true;
        if (least_us[next] < best_us(c))
            status = count_layout(c, next);
    }
    if (status == SPLAT_OK && best_us(c) == HUGE_VAL) /* none but token order suits every mask */
        status = count_layout(c, 0);
    return status;
}

/* Heads that share row tiles walk queries in their order. */
static void keep_linear_rows(struct sp_choice *c)
{
    int kept = 0;
    for (int k = 0; k < c->layout_count; k++) {
        bool linear = true;
        for (int p = 0; p < c->layouts[k].pass_count; p++)
            linear &= c->layouts[k].passes[p].rows.zones == 1;
        if (linear)
            c->layouts[kept++] = c->layouts[k];
    }
    c->layout_count = kept;
}

/* The layouts to count: those the masks suggest, or the one that the options ask for. */
static enum splat_status count_layouts(struct sp_choice *c)
{
    int64_t asked = c->options->layout;
    c->layout_count = sp_layouts_suggest(c->set, c->layouts);
    if (c->set->fold > 1)
        keep_linear_rows(c);
    enum splat_status status = SPLAT_OK;
    if (asked == 0)
        status = count_promising(c);
    else if (asked <= c->layout_count)
        status = count_layout(c, (int)asked - 1);
    if (status == SPLAT_OK && asked && c->shape_count > 0 && c->shapes[0].barred)
        return sp_fail(
            SPLAT_UNSUPPORTED,
            "layout is %lld, %s; operators on values need one in which a row's positions are in the order of "
            "its columns",
            (long long)asked, c->layouts[asked - 1].name);
    if (status != SPLAT_OK || c->shape_count > 0)
        return status;
    if (asked > c->layout_count)
        return sp_fail(SPLAT_UNSUPPORTED, "layout is %lld; this mask has layouts 1 to %d, and 0 chooses",
                       (long long)asked, c->layout_count);
    return sp_fail(SPLAT_UNSUPPORTED, "layout is %lld, %s, which does not suit this mask", (long long)asked,
                   c->layouts[asked - 1].name);
}

enum splat_status sp_choice_make(const struct sp_mask_set *set, const struct sp_mask_set *values,
                                 const splat_options *options, struct sp_choice **choice)
{
    struct sp_choice *c = calloc(1, sizeof *c);
    if (!c)
        return sp_no_memory("the choice of tiles", sizeof *c);
    c->table = sp_tune_table_of(options->op, options->arch);
    c->options = options;
    c->set = set;
    c->values = values;
    enum splat_status status = gather_rows(c);
    if (status == SPLAT_OK)
        status = count_layouts(c);
    if (status != SPLAT_OK) {
        sp_choice_free(c);
        return status;
    }
    for (int k = 0; k < c->shape_count; k++) {
        struct shape *shape = &c->shapes[k];
        shape->us = predicted_us(c, shape);
        for (int p = 0; p < SP_PASSES_MAX; p++)
            shape->busy_us += shape->work_ns[p] * 1e-3 / (c->table->sm_count * shape->row->blocks_per_sm);
    }
    drop_long_lists(c);
    qsort(c->shapes, (size_t)c->shape_count, sizeof *c->shapes, faster_first);
    *choice = c;
    return SPLAT_OK;
}

void sp_choice_free(struct sp_choice *c)
{
    for (int k = 0; c && k < c->layout_count; k++)
        sp_layout_free(&c->layouts[k]);
    free(c);
}
