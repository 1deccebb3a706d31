/* The cost model and the choice of the tile shape (choose.h).
 *
 * One sweep over the row blocks of each mask counts the FULL and PARTIAL tiles of every shape; then, for each row
 * of the tune table, t = max(work of all row tiles / block slots, the longest row tile, bytes moved once / copy
 * rate) + launch. A row tile is not split today, so the longest one bounds a launch from below.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/choose.h"
#include "analysis/cover.h"
#include "analysis/ints.h"
#include "common/error.h"

enum { SHAPES_MAX = 32 };

/* A shape that needs more segments is taken only when all do: 2^24 of them are 256 MiB of tile lists. */
static const int64_t segments_max = (int64_t)1 << 24;

/* One candidate: a row of the tune table, its tile counts and cost. */
struct shape {
    const struct sp_tune_row *row;
    int tune_index;
    int64_t full, partial, segments; /* summed over distinct masks; segments at most */
    double work_ns, longest_ns;
    double us;
    int64_t dense_tiles;
};

struct chooser {
    const struct sp_tune_table *table;
    const splat_options *options;
    const struct sp_mask_set *set;
    bool affine_rows; /* rows for affine predicates only may be chosen */
    struct shape shapes[SHAPES_MAX];
    int shape_count;
    const struct sp_tune_row *dropped; /* a shape left out for its number of segments, or NULL */
    double dim_factor;                 /* cost of a tile at the real head dims against one at max_dim */
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
        *affine &= other->affine_only != 0;
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

static enum splat_status gather_shapes(struct chooser *c)
{
    const splat_options *o = c->options;
    int64_t value_dim = o->value_dim ? o->value_dim : o->head_dim;
    int max_dim = serving_dim(c->table, sp_max64(o->head_dim, value_dim));
    for (int k = 0; k < c->table->row_count && c->shape_count < SHAPES_MAX; k++) {
        const struct sp_tune_row *row = &c->table->rows[k];
        if (row->max_dim == max_dim && (c->affine_rows || !row->affine_only) &&
            (o->tile_rows == 0 || o->tile_rows == row->rows) && (o->tile_cols == 0 || o->tile_cols == row->cols))
            c->shapes[c->shape_count++] = (struct shape){.row = row, .tune_index = k};
    }
    /* A part of a tile grows with the head dims (products, loads), a part does not (softmax, masking). */
    c->dim_factor = 0.25 + 0.75 * (double)(o->head_dim + value_dim) / (2.0 * max_dim);
    if (c->shape_count > 0)
        return SPLAT_OK;
    char shapes[256];
    list_shapes(c->table, max_dim, shapes, sizeof shapes);
    return sp_fail(SPLAT_UNSUPPORTED,
                   "tile_rows x tile_cols is %lld x %lld (0 = any); for head dims up to %d the %s table has %s%s",
                   (long long)o->tile_rows, (long long)o->tile_cols, max_dim, c->table->chip, shapes,
                   c->affine_rows ? "" : "; this mask needs more than bounds");
}

/* ---- Counting ---- */

/* Adds one row tile of `shape`, used by `uses` (batch, head) pairs. */
static void count_row_tile(struct chooser *c, struct shape *shape, const struct sp_cover *cover, int64_t uses)
{
    struct sp_tile_count tiles = sp_cover_count(cover, shape->row->cols / SP_GRANULE);
    const struct sp_tune_row *row = shape->row;
    int64_t partial = tiles.touched - tiles.full;
    double full_ns = row->full_ns * c->dim_factor;
    double extra_ns = cover->irregular ? row->bits_ns : cover->periodic ? row->periodic_ns : row->partial_ns;
    double ns = row->row_ns + (double)tiles.full * full_ns + (double)partial * (full_ns + extra_ns);
    shape->full += tiles.full;
    shape->partial += partial;
    shape->segments += tiles.stretches;
    shape->work_ns += ns * (double)uses;
    shape->longest_ns = ns > shape->longest_ns ? ns : shape->longest_ns;
}

/* Covers of the row blocks gathered so far for tiles of one height, unless that is the height of a block. */
struct joint {
    int64_t rows; /* tile height */
    struct sp_cover cover;
};

static void take_block(struct chooser *c, struct joint *joint, const struct sp_cover *cover, int64_t row0,
                       int64_t q_len, int64_t uses, struct sp_spans *scratch)
{
    const struct sp_cover *whole = joint->rows == SP_BASE_ROWS ? cover : &joint->cover;
    if (whole != cover && row0 % joint->rows == 0)
        sp_cover_copy(&joint->cover, cover);
    else if (whole != cover)
        sp_cover_join(&joint->cover, cover, scratch);
    int64_t next = row0 + SP_BASE_ROWS;
    if (next % joint->rows != 0 && next < q_len)
        return;
    for (int k = 0; k < c->shape_count; k++)
        if (c->shapes[k].row->rows == joint->rows)
            count_row_tile(c, &c->shapes[k], whole, uses);
}

/* The distinct tile heights. */
static int gather_heights(const struct chooser *c, struct joint joints[SHAPES_MAX])
{
    int count = 0;
    for (int k = 0; k < c->shape_count; k++) {
        int at = 0;
        while (at < count && joints[at].rows != c->shapes[k].row->rows)
            at++;
        if (at == count)
            joints[count++] = (struct joint){.rows = c->shapes[k].row->rows};
    }
    return count;
}

static enum splat_status count_mask(struct chooser *c, const splat_acsr *acsr, int64_t uses)
{
    struct joint joints[SHAPES_MAX];
    int joint_count = gather_heights(c, joints);
    struct sp_cover_scratch scratch = {0};
    struct sp_cover cover = {0};
    struct sp_spans spare = {0};
    enum splat_status status = SPLAT_OK;
    for (int64_t row0 = 0; row0 < acsr->q_len && status == SPLAT_OK; row0 += SP_BASE_ROWS) {
        status = sp_cover_rows(acsr, row0, sp_min64(row0 + SP_BASE_ROWS, acsr->q_len), &scratch, &cover);
        for (int k = 0; k < joint_count && status == SPLAT_OK; k++) {
            take_block(c, &joints[k], &cover, row0, acsr->q_len, uses, &spare);
            if (sp_cover_failed(&joints[k].cover) || spare.failed)
                status = sp_no_memory("the tile cover", (size_t)cover.touched.count * sizeof(struct sp_span));
        }
    }
    for (int k = 0; k < joint_count; k++)
        sp_cover_free(&joints[k].cover);
    sp_cover_free(&cover);
    sp_cover_scratch_free(&scratch);
    sp_spans_free(&spare);
    return status;
}

/* ---- Cost ---- */

/* Q, K, V, O and LSE, each moved once. */
static double bytes_once(const struct chooser *c)
{
    const splat_options *o = c->options;
    double value_dim = (double)(o->value_dim ? o->value_dim : o->head_dim), dims = (double)o->head_dim + value_dim;
    double size = o->dtype == SPLAT_FP32 ? 4.0 : 2.0, uses = 0;
    for (int64_t k = 0; k < c->set->count; k++)
        uses += (double)c->set->uses[k];
    double kv_uses = o->kv_heads ? uses * (double)o->kv_heads / (double)o->heads : uses;
    return size * dims * (uses * (double)c->set->q_len + kv_uses * (double)c->set->kv_len) +
           4.0 * uses * (double)c->set->q_len;
}

static double predicted_us(const struct chooser *c, const struct sp_tune_row *row, double work_ns,
                           double longest_ns)
{
    double slots = (double)c->table->sm_count * row->blocks_per_sm;
    double us = work_ns / slots * 1e-3;
    us = longest_ns * 1e-3 > us ? longest_ns * 1e-3 : us;
    double copy_us = bytes_once(c) / c->table->copy_bytes_per_us;
    return (copy_us > us ? copy_us : us) + c->table->launch_us;
}

/* Every tile of every mask computed, each with a bitmask: what a kernel that skips nothing would take. Never less
 * than the same shape's plan: it has no fewer tiles and no cheaper predicates. */
static double dense_us(const struct chooser *c, struct shape *shape)
{
    const struct sp_tune_row *row = shape->row;
    double columns = (double)sp_ceil_div(c->set->kv_len, row->cols);
    double row_tile = row->row_ns + columns * (row->full_ns * c->dim_factor + row->bits_ns);
    double row_tiles = (double)sp_ceil_div(c->set->q_len, row->rows), uses = 0;
    for (int64_t k = 0; k < c->set->count; k++)
        uses += (double)c->set->uses[k];
    shape->dense_tiles = c->set->count * sp_ceil_div(c->set->q_len, row->rows) * (int64_t)columns;
    return predicted_us(c, row, row_tile * row_tiles * uses, row_tile);
}

static int faster_first(const void *x, const void *y)
{
    const struct shape *a = x, *b = y;
    if (a->us != b->us)
        return a->us < b->us ? -1 : 1;
    return a->tune_index - b->tune_index;
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

static void describe(const struct chooser *c, int index, struct sp_candidate *out)
{
    const struct shape *shape = &c->shapes[index], *best = &c->shapes[0];
    const struct sp_tune_row *row = shape->row;
    out->predicted_us = shape->us;
    out->tune_row = shape->tune_index;
    out->full_tiles = shape->full;
    out->partial_tiles = shape->partial;
    snprintf(out->summary, sizeof out->summary,
             "%s kernel, linear view, %dx%d: %lld full + %lld partial tiles, %.1f us", family_name(row), row->rows,
             row->cols, (long long)shape->full, (long long)shape->partial, shape->us);
    double slower = shape->us / best->us, area = tile_area(best) > 0 ? tile_area(shape) / tile_area(best) : 1.0;
    if (index == 0 && (c->options->tile_rows || c->options->tile_cols))
        snprintf(out->reason, sizeof out->reason, "forced by tile_rows/tile_cols");
    else if (index == 0 && c->dropped)
        snprintf(out->reason, sizeof out->reason, "chosen among shapes of at most %lld segments (%dx%d needs more)",
                 (long long)segments_max, c->dropped->rows, c->dropped->cols);
    else if (index == 0)
        snprintf(out->reason, sizeof out->reason, "chosen");
    else if (shape->longest_ns * 1e-3 + c->table->launch_us >= shape->us)
        snprintf(out->reason, sizeof out->reason, "%.2fx the time: its longest row tile alone takes %.1f us",
                 slower, shape->longest_ns * 1e-3);
    else if (area > 1.005)
        snprintf(out->reason, sizeof out->reason, "%.2fx the time: computes %.2fx the pairs", slower, area);
    else
        snprintf(out->reason, sizeof out->reason,
                 "%.2fx the time: computes %.2fx the pairs, but %.2fx as slow for each", slower, area,
                 area > 0 ? slower / area : slower);
}

static void describe_dense(const struct chooser *c, const struct shape *shape, double us, struct sp_candidate *out)
{
    const struct shape *best = &c->shapes[0];
    out->predicted_us = us;
    out->tune_row = shape->tune_index;
    out->full_tiles = 0;
    out->partial_tiles = shape->dense_tiles;
    snprintf(out->summary, sizeof out->summary, "%s kernel, dense, %dx%d: %lld tiles, %.1f us",
             family_name(shape->row), shape->row->rows, shape->row->cols, (long long)shape->dense_tiles, us);
    double area = (double)shape->dense_tiles * shape->row->rows * shape->row->cols;
    if (best->full + best->partial == best->dense_tiles)
        snprintf(out->reason, sizeof out->reason,
                 "%.2fx the time: the plan touches every tile too, but masks only %lld of %lld", us / best->us,
                 (long long)best->partial, (long long)best->dense_tiles);
    else if (tile_area(best) > 0)
        snprintf(out->reason, sizeof out->reason, "%.2fx the time: computes %.2fx the pairs", us / best->us,
                 area / tile_area(best));
    else
        snprintf(out->reason, sizeof out->reason, "%.2fx the time: the mask allows nothing", us / best->us);
}

/* Leaves out the shapes with too many segments, unless none would be left. */
static void drop_long_lists(struct chooser *c)
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

static enum splat_status list_candidates(struct chooser *c, struct splat_plan *plan)
{
    int fastest_dense = 0;
    double dense[SHAPES_MAX];
    for (int k = 0; k < c->shape_count; k++) {
        dense[k] = dense_us(c, &c->shapes[k]);
        fastest_dense = dense[k] < dense[fastest_dense] ? k : fastest_dense;
    }
    size_t bytes = (size_t)(c->shape_count + 1) * sizeof *plan->candidates;
    plan->candidates = calloc(1, bytes);
    if (!plan->candidates)
        return sp_no_memory("the plan's candidates", bytes);
    bool dense_listed = false;
    for (int k = 0; k <= c->shape_count; k++) {
        bool dense_next = !dense_listed && k > 0 && (k == c->shape_count || dense[fastest_dense] < c->shapes[k].us);
        if (dense_next) {
            describe_dense(c, &c->shapes[fastest_dense], dense[fastest_dense],
                           &plan->candidates[plan->candidate_count++]);
            dense_listed = true;
        }
        if (k < c->shape_count)
            describe(c, k, &plan->candidates[plan->candidate_count++]);
    }
    return SPLAT_OK;
}

enum splat_status sp_choose(const struct sp_mask_set *set, const splat_options *options, bool affine_rows,
                            struct splat_plan *plan)
{
    struct chooser c = {
        .table = sp_tune_table_for(options->arch), .options = options, .set = set, .affine_rows = affine_rows};
    enum splat_status status = gather_shapes(&c);
    for (int64_t k = 0; k < set->count && status == SPLAT_OK; k++)
        status = count_mask(&c, set->acsr[k], set->uses[k]);
    if (status != SPLAT_OK)
        return status;
    for (int k = 0; k < c.shape_count; k++)
        c.shapes[k].us = predicted_us(&c, c.shapes[k].row, c.shapes[k].work_ns, c.shapes[k].longest_ns);
    drop_long_lists(&c);
    qsort(c.shapes, (size_t)c.shape_count, sizeof *c.shapes, faster_first);
    plan->tile_rows = c.shapes[0].row->rows;
    plan->tile_cols = c.shapes[0].row->cols;
    plan->tune_row = c.shapes[0].tune_index;
    plan->predicted_us = c.shapes[0].us;
    return list_candidates(&c, plan);
}
