/* Fitting affine and periodic predicates (fit.h).
 *
 * Everything is checked for every valid row of the tile: a group's rows by the ends of its affine functions where
 * these decide, else row by row. A candidate that is not exact is dropped, never rounded.
 */
#include <string.h>

#include "analysis/fit.h"
#include "analysis/ints.h"

/* value(i) = slope*i + offset, i an absolute row. */
struct line {
    int64_t slope, offset;
};

static int64_t line_at(struct line line, int64_t i)
{
    return line.slope * i + line.offset;
}

/* Whether a kernel computes the line in 32 bits without overflow for every row of the tile, padding rows included.
 */
static bool line_fits(struct line line, int64_t row0, int64_t tile_rows)
{
    int64_t last = row0 + tile_rows;
    if (!sp_fits_int32(line.slope) || !sp_fits_int32(line.offset))
        return false;
    return sp_fits_int32(line.slope * row0) && sp_fits_int32(line.slope * last) &&
           sp_fits_int32(line_at(line, row0)) && sp_fits_int32(line_at(line, last));
}

static struct line line_from(int64_t value, int64_t slope, int64_t row)
{
    return (struct line){slope, value - slope * row};
}

/* ---- Bounds of one interval a row ---- */

static void set_bounds(struct sp_fit *fit, const struct line *lower, const struct line *upper)
{
    memset(fit, 0, sizeof *fit);
    fit->kind = lower && upper ? SP_PRED_BOUNDS : lower ? SP_PRED_LOWER : SP_PRED_UPPER;
    if (lower) {
        fit->predicate.lo_slope = (int32_t)lower->slope;
        fit->predicate.lo_offset = (int32_t)lower->offset;
    }
    if (upper) {
        fit->predicate.hi_slope = (int32_t)upper->slope;
        fit->predicate.hi_offset = (int32_t)upper->offset;
    }
}

/* All rows follow one pair of lines: keeps the bounds that bind somewhere in the stretch. */
static bool fit_one_line(struct line lower, struct line upper, const struct sp_tile_groups *tile, int64_t col0,
                         int64_t col1, struct sp_fit *fit)
{
    int64_t first = tile->row0, last = tile->row0 + tile->rows - 1;
    bool need_lower = sp_max64(line_at(lower, first), line_at(lower, last)) > col0;
    bool need_upper = sp_min64(line_at(upper, first), line_at(upper, last)) < col1;
    if (!need_lower && !need_upper)
        return false;
    if ((need_lower && !line_fits(lower, tile->row0, tile->tile_rows)) ||
        (need_upper && !line_fits(upper, tile->row0, tile->tile_rows)))
        return false;
    set_bounds(fit, need_lower ? &lower : NULL, need_upper ? &upper : NULL);
    return true;
}

/* The lines that could bound one side: `none` when no row is bound there, else the lines that agree with every row
 * that allows something. */
struct side {
    bool none;
    struct line lines[3];
    int count;
};

/* side_bound is the column at which a bound stops to bind (col0 or col1); sign +1 for lower bounds, -1 for upper.
 */
static bool agrees(struct line line, const int32_t *low, const int32_t *high, const int32_t *value, int64_t row0,
                   int64_t rows, int64_t side_bound, int sign)
{
    for (int64_t r = 0; r < rows; r++) {
        if (low[r] >= high[r])
            continue;
        int64_t at = line_at(line, row0 + r);
        if (value[r] == side_bound ? (at - side_bound) * sign > 0 : at != value[r])
            return false;
    }
    return true;
}

static struct side fit_side(const int32_t *low, const int32_t *high, const int32_t *value, int64_t row0,
                            int64_t rows, int64_t tile_rows, int64_t side_bound, int sign)
{
    struct side side = {0};
    int64_t first = -1, second = -1;
    for (int64_t r = 0; r < rows && second < 0; r++) {
        if (low[r] >= high[r] || value[r] == side_bound)
            continue;
        if (first < 0)
            first = r;
        else
            second = r;
    }
    side.none = first < 0;
    if (side.none)
        return side;
    /* Two bound rows decide the slope. With one, the slopes of windows, blocks and anti-diagonals are tried. */
    int64_t slopes[3] = {1, 0, -1};
    int slope_count = 3;
    if (second >= 0) {
        int64_t rise = value[second] - value[first];
        slopes[0] = rise / (second - first);
        slope_count = rise % (second - first) == 0;
    }
    for (int k = 0; k < slope_count; k++) {
        struct line line = line_from(value[first], slopes[k], row0 + first);
        if (line_fits(line, row0, tile_rows) && agrees(line, low, high, value, row0, rows, side_bound, sign))
            side.lines[side.count++] = line;
    }
    return side;
}

/* Rows with nothing allowed must come out empty. */
static bool empty_rows_stay_empty(const int32_t *low, const int32_t *high, int64_t row0, int64_t rows, int64_t col0,
                                  int64_t col1, const struct line *lower, const struct line *upper)
{
    for (int64_t r = 0; r < rows; r++) {
        if (low[r] < high[r])
            continue;
        int64_t begin = lower ? sp_max64(line_at(*lower, row0 + r), col0) : col0;
        int64_t end = upper ? sp_min64(line_at(*upper, row0 + r), col1) : col1;
        if (begin < end)
            return false;
    }
    return true;
}

bool sp_fit_intervals(const int32_t *low, const int32_t *high, int64_t row0, int64_t rows, int64_t tile_rows,
                      int64_t col0, int64_t col1, struct sp_fit *fit)
{
    struct side lower = fit_side(low, high, low, row0, rows, tile_rows, col0, 1);
    if (!lower.none && lower.count == 0)
        return false;
    struct side upper = fit_side(low, high, high, row0, rows, tile_rows, col1, -1);
    if (lower.none && upper.none)
        return false;
    for (int a = 0; a < (lower.none ? 1 : lower.count); a++) {
        for (int b = 0; b < (upper.none ? 1 : upper.count); b++) {
            const struct line *lo = lower.none ? NULL : &lower.lines[a];
            const struct line *hi = upper.none ? NULL : &upper.lines[b];
            if (empty_rows_stay_empty(low, high, row0, rows, col0, col1, lo, hi)) {
                set_bounds(fit, lo, hi);
                return true;
            }
        }
    }
    return false;
}

/* ---- Runs in a stretch ---- */

static int64_t run_count_max(const struct sp_run_template *run, int64_t rows)
{
    return sp_max64(run->count, run->count + (rows - 1) * run->d_count);
}

static int64_t run_count_min(const struct sp_run_template *run, int64_t rows)
{
    return sp_min64(run->count, run->count + (rows - 1) * run->d_count);
}

/* Hull over the rows of the first block. */
static void block_hull(const struct sp_run_template *run, int64_t rows, int64_t *begin, int64_t *end)
{
    int64_t last = run->start + (rows - 1) * run->d_start;
    *begin = sp_min64(run->start, last);
    *end = sp_max64((int64_t)run->start + run->width, last + run->width + (rows - 1) * run->d_width);
}

void sp_run_hull(const struct sp_run_template *run, int64_t rows, int64_t *begin, int64_t *end)
{
    block_hull(run, rows, begin, end);
    *end += (run_count_max(run, rows) - 1) * run->stride;
}

int32_t sp_active_run(const struct sp_group *group, int64_t col0, int64_t col1)
{
    if (group->bits)
        return SP_FIT_MANY_RUNS;
    int32_t active = SP_FIT_NO_RUN;
    for (int32_t k = 0; k < group->run_count; k++) {
        const struct sp_run_template *run = &group->runs[k];
        int64_t begin, end;
        sp_run_hull(run, group->rows, &begin, &end);
        if (begin >= col1 || end <= col0)
            continue;
        if (active != SP_FIT_NO_RUN)
            return SP_FIT_MANY_RUNS;
        active = k;
    }
    return active;
}

enum { BLOCK_NONE = -1, BLOCK_MANY = -2 };

/* The one block of the run that reaches into the stretch. */
static int64_t single_block(const struct sp_run_template *run, int64_t rows, int64_t col0, int64_t col1)
{
    if (run->stride == 0)
        return 0;
    int64_t begin, end;
    block_hull(run, rows, &begin, &end);
    int64_t first = sp_max64(sp_floor_div(col0 - end, run->stride) + 1, 0);
    int64_t last = sp_min64(sp_ceil_div(col1 - begin, run->stride) - 1, run_count_max(run, rows) - 1);
    if (first > last)
        return BLOCK_NONE;
    return first == last && first < run_count_min(run, rows) ? first : BLOCK_MANY;
}

/* Lines of block k of the run, in absolute rows. */
static struct line block_begin(const struct sp_group *group, const struct sp_run_template *run, int64_t k)
{
    return line_from(run->start + k * run->stride, run->d_start, group->row0);
}

static struct line block_end(const struct sp_group *group, const struct sp_run_template *run, int64_t k)
{
    return line_from(run->start + k * run->stride + run->width, (int64_t)run->d_start + run->d_width, group->row0);
}

/* Each group at most one block in the stretch. */
static bool fit_blocks(const struct sp_tile_groups *tile, const int32_t *active, int64_t col0, int64_t col1,
                       struct sp_fit *fit)
{
    int32_t low[SP_MAX_TILE_ROWS] = {0}, high[SP_MAX_TILE_ROWS] = {0};
    for (int64_t g = 0; g < tile->count; g++) {
        const struct sp_group *group = &tile->groups[g];
        if (active[g] < 0)
            continue;
        const struct sp_run_template *run = &group->runs[active[g]];
        int64_t k = single_block(run, group->rows, col0, col1);
        if (k == BLOCK_MANY)
            return false;
        if (k == BLOCK_NONE)
            continue;
        struct line begin = block_begin(group, run, k), end = block_end(group, run, k);
        if (tile->count == 1)
            return fit_one_line(begin, end, tile, col0, col1, fit);
        for (int64_t i = group->row0; i < group->row0 + group->rows; i++) {
            int64_t r = i - tile->row0;
            low[r] = (int32_t)sp_clamp64(line_at(begin, i), col0, col1);
            high[r] = (int32_t)sp_clamp64(line_at(end, i), col0, col1);
        }
    }
    return sp_fit_intervals(low, high, tile->row0, tile->rows, tile->tile_rows, col0, col1, fit);
}

/* ---- Periodic runs ---- */

/* A group's run as a lattice: blocks of `width` every `stride` from begin(i) to end(i). */
struct lattice {
    const struct sp_group *group;
    struct line begin, end, next; /* next: where the block after the last one would begin */
};

struct lattices {
    struct lattice at[SP_MAX_TILE_ROWS];
    int64_t count;
    int64_t stride, width;
    bool empty_rows; /* some group has nothing in the stretch */
};

/* All active runs must share stride and width; single blocks of that width may join. */
static bool gather_lattices(const struct sp_tile_groups *tile, const int32_t *active, struct lattices *out)
{
    out->count = out->stride = out->width = 0;
    out->empty_rows = false;
    for (int64_t g = 0; g < tile->count; g++) {
        if (active[g] < 0) {
            out->empty_rows = true;
            continue;
        }
        const struct sp_run_template *run = &tile->groups[g].runs[active[g]];
        if (run->d_width != 0 || (out->width && run->width != out->width) ||
            (run->stride && out->stride && run->stride != out->stride))
            return false;
        out->width = run->width;
        out->stride = run->stride ? run->stride : out->stride;
    }
    if (out->stride == 0 || out->width >= out->stride)
        return false;
    for (int64_t g = 0; g < tile->count; g++) {
        if (active[g] < 0)
            continue;
        const struct sp_group *group = &tile->groups[g];
        const struct sp_run_template *run = &group->runs[active[g]];
        struct lattice *lattice = &out->at[out->count++];
        lattice->group = group;
        lattice->begin = block_begin(group, run, 0);
        lattice->next = line_from(run->start + (int64_t)run->count * out->stride,
                                  run->d_start + run->d_count * out->stride, group->row0);
        lattice->end = lattice->next;
        lattice->end.offset += out->width - out->stride;
    }
    return true;
}

static bool phase_agrees(const struct lattices *all, struct line phase)
{
    for (int64_t k = 0; k < all->count; k++) {
        const struct lattice *lattice = &all->at[k];
        int64_t i = lattice->group->row0;
        if (sp_mod64(line_at(lattice->begin, i) - line_at(phase, i), all->stride) != 0)
            return false;
        if (lattice->group->rows > 1 && sp_mod64(lattice->begin.slope - phase.slope, all->stride) != 0)
            return false;
    }
    return true;
}

/* One phase for all rows, from the first group with a slope of its own. */
static bool fit_phase(const struct lattices *all, struct line *phase)
{
    const struct lattice *model = &all->at[0];
    for (int64_t k = 0; k < all->count; k++) {
        if (all->at[k].group->rows > 1) {
            model = &all->at[k];
            break;
        }
    }
    int64_t slopes[3] = {model->begin.slope, 1, 0};
    int slope_count = model->group->rows > 1 ? 1 : 3;
    for (int k = 0; k < slope_count; k++) {
        int64_t slope = sp_mod64(slopes[k], all->stride);
        slope = slope > all->stride / 2 ? slope - all->stride : slope;
        int64_t i = model->group->row0;
        phase->slope = slope;
        phase->offset = sp_mod64(line_at(model->begin, i) - slope * i, all->stride);
        if (phase_agrees(all, *phase))
            return true;
    }
    return false;
}

static int64_t line_extreme(struct line line, const struct sp_group *group, int sign)
{
    int64_t a = line_at(line, group->row0), b = line_at(line, group->row0 + group->rows - 1);
    return sign > 0 ? sp_max64(a, b) : sp_min64(a, b);
}

/* Whether `bound` as lower bound cuts exactly the lattice points before begin(i). The block before begin(i) ends at
 * begin - gap, gap = stride - width; it matters only when it reaches into the stretch. */
static bool lower_agrees(const struct lattices *all, struct line bound, int64_t col0)
{
    int64_t gap = all->stride - all->width;
    for (int64_t k = 0; k < all->count; k++) {
        const struct sp_group *group = all->at[k].group;
        if (bound.slope == 0 && bound.offset <= col0 && line_extreme(all->at[k].begin, group, 1) - gap <= col0)
            continue;
        for (int64_t i = group->row0; i < group->row0 + group->rows; i++) {
            int64_t begin = line_at(all->at[k].begin, i), at = line_at(bound, i);
            if (at > sp_max64(begin, col0) || (begin - gap > col0 && at < begin - gap))
                return false;
        }
    }
    return true;
}

static bool upper_agrees(const struct lattices *all, struct line bound, int64_t col1)
{
    for (int64_t k = 0; k < all->count; k++) {
        const struct sp_group *group = all->at[k].group;
        if (bound.slope == 0 && bound.offset >= line_extreme(all->at[k].end, group, 1) &&
            line_extreme(all->at[k].next, group, -1) >= sp_min64(bound.offset, col1))
            continue;
        for (int64_t i = group->row0; i < group->row0 + group->rows; i++) {
            int64_t end = line_at(all->at[k].end, i), next = line_at(all->at[k].next, i), at = line_at(bound, i);
            if (at < sp_min64(end, col1) || (next < col1 && at > next))
                return false;
        }
    }
    return true;
}

/* Rows of groups with nothing in the stretch must come out empty by the bounds alone. */
static bool inactive_stay_empty(const struct sp_tile_groups *tile, const int32_t *active, struct line lower,
                                struct line upper, int64_t col0, int64_t col1)
{
    for (int64_t g = 0; g < tile->count; g++) {
        const struct sp_group *group = &tile->groups[g];
        for (int64_t i = group->row0; active[g] < 0 && i < group->row0 + group->rows; i++)
            if (sp_max64(line_at(lower, i), col0) < sp_min64(line_at(upper, i), col1))
                return false;
    }
    return true;
}

/* Bounds of a lattice: constants when they do (they are shared by all row tiles), else some group's own lines. */
static bool fit_lattice_bounds(const struct sp_tile_groups *tile, const int32_t *active, const struct lattices *all,
                               int64_t col0, int64_t col1, struct line *lower, struct line *upper)
{
    for (int64_t a = -1; a < all->count; a++) {
        *lower = a < 0 ? (struct line){0, 0} : all->at[a].begin;
        if (a > 0 && lower->slope == all->at[a - 1].begin.slope && lower->offset == all->at[a - 1].begin.offset)
            continue;
        if (!line_fits(*lower, tile->row0, tile->tile_rows) || !lower_agrees(all, *lower, col0))
            continue;
        for (int64_t b = -1; b < all->count; b++) {
            *upper = b < 0 ? (struct line){0, tile->kv_len} : all->at[b].end;
            if (line_fits(*upper, tile->row0, tile->tile_rows) && upper_agrees(all, *upper, col1) &&
                (!all->empty_rows || inactive_stay_empty(tile, active, *lower, *upper, col0, col1)))
                return true;
        }
    }
    return false;
}

static bool fit_periodic(const struct sp_tile_groups *tile, const int32_t *active, int64_t col0, int64_t col1,
                         struct sp_fit *fit)
{
    struct lattices all;
    struct line phase, lower, upper;
    if (!gather_lattices(tile, active, &all) || !fit_phase(&all, &phase) ||
        !line_fits(phase, tile->row0, tile->tile_rows) ||
        !fit_lattice_bounds(tile, active, &all, col0, col1, &lower, &upper))
        return false;
    set_bounds(fit, &lower, &upper);
    fit->kind = SP_PRED_PERIODIC;
    fit->predicate.stride = (int32_t)all.stride;
    fit->predicate.width = (int32_t)all.width;
    fit->predicate.phase_slope = (int32_t)phase.slope;
    fit->predicate.phase_offset = (int32_t)phase.offset;
    return true;
}

bool sp_fit_groups(const struct sp_tile_groups *tile, int64_t col0, int64_t col1, struct sp_fit *fit)
{
    int32_t active[SP_MAX_TILE_ROWS];
    bool any = false;
    for (int64_t g = 0; g < tile->count; g++) {
        active[g] = sp_active_run(&tile->groups[g], col0, col1);
        if (active[g] == SP_FIT_MANY_RUNS)
            return false;
        any |= active[g] >= 0;
    }
    return any && (fit_blocks(tile, active, col0, col1, fit) || fit_periodic(tile, active, col0, col1, fit));
}

/* ---- Predicates moved ---- */

static struct line line_moved(int32_t slope, int32_t offset, int64_t rows, int64_t columns)
{
    return (struct line){slope, offset + columns - slope * rows};
}

bool sp_fit_moved(const struct sp_fit *fit, int64_t rows, int64_t columns, const struct sp_tile_groups *tile,
                  struct sp_predicate *moved)
{
    const struct sp_predicate *p = &fit->predicate;
    const bool periodic = fit->kind == SP_PRED_PERIODIC;
    struct line lower = line_moved(p->lo_slope, p->lo_offset, rows, columns);
    struct line upper = line_moved(p->hi_slope, p->hi_offset, rows, columns);
    struct line phase = line_moved(p->phase_slope, p->phase_offset, rows, columns);
    if (fit->kind == SP_PRED_UPPER || (periodic && p->lo_slope == 0 && p->lo_offset == 0)) /* not bound */
        lower = (struct line){0, 0};
    if (fit->kind == SP_PRED_LOWER)
        upper = (struct line){0, 0};
    if (periodic && p->hi_slope == 0 && p->hi_offset == tile->kv_len)
        upper.offset = tile->kv_len;
    if (periodic)
        phase.offset = sp_mod64(phase.offset, p->stride);
    else
        phase = (struct line){0, 0};
    if (!line_fits(lower, tile->row0, tile->tile_rows) || !line_fits(upper, tile->row0, tile->tile_rows) ||
        !line_fits(phase, tile->row0, tile->tile_rows))
        return false;
    *moved = (struct sp_predicate){.lo_slope = p->lo_slope,
                                   .lo_offset = (int32_t)lower.offset,
                                   .hi_slope = p->hi_slope,
                                   .hi_offset = (int32_t)upper.offset,
                                   .stride = p->stride,
                                   .width = p->width,
                                   .phase_slope = p->phase_slope,
                                   .phase_offset = (int32_t)phase.offset};
    return true;
}
