/* Affine numbers and run lists (sym.h): comparisons that narrow `valid`, clipping, set operators, canonical form.
 *
 * Set operators sweep the columns once. At any place each operand is in one of three states: in a gap, inside a
 * solid block, or inside the hull of a periodic run. Up to the next change of state the result has a closed form,
 * except where two periodic runs of different stride overlap: there both are walked block by block, for one row at
 * a time.
 */
#include "acsr/sym.h"

#include <stdlib.h>

/* ---- Affine numbers ---- */

static void limit(struct sp_row_eval *eval, int64_t t)
{
    if (t < eval->valid)
        eval->valid = t;
}

static int64_t floor_div(int64_t a, int64_t c)
{
    int64_t q = a / c;
    return q - (a % c < 0);
}

bool sp_lt(struct sp_row_eval *eval, struct sp_aff a, struct sp_aff b)
{
    struct sp_aff gap = sp_sub(b, a);
    bool less = gap.v > 0;
    if (less && gap.d < 0)
        limit(eval, (gap.v - gap.d - 1) / -gap.d);
    if (!less && gap.d > 0)
        limit(eval, -gap.v / gap.d + 1);
    return less;
}

bool sp_eq(struct sp_row_eval *eval, struct sp_aff a, struct sp_aff b)
{
    struct sp_aff gap = sp_sub(b, a);
    if (gap.d == 0)
        return gap.v == 0;
    if (gap.v == 0)
        limit(eval, 1);
    else if (-gap.v % gap.d == 0 && -gap.v / gap.d > 0)
        limit(eval, -gap.v / gap.d);
    return gap.v == 0;
}

struct sp_aff sp_min(struct sp_row_eval *eval, struct sp_aff a, struct sp_aff b)
{
    return sp_lt(eval, b, a) ? b : a;
}

struct sp_aff sp_max(struct sp_row_eval *eval, struct sp_aff a, struct sp_aff b)
{
    return sp_lt(eval, a, b) ? b : a;
}

struct sp_aff sp_floordiv(struct sp_row_eval *eval, struct sp_aff a, int64_t c)
{
    struct sp_aff q = {floor_div(a.v, c), floor_div(a.d, c)};
    int64_t rest = a.v - q.v * c, grow = a.d - q.d * c; /* the remainder is rest + grow*t until it reaches c, ... */
    if (grow == 0)
        return q;
    int64_t rising = (c - rest + grow - 1) / grow;
    int64_t falling = rest / (c - grow) + 1; /* ... or, with a slope of one more, rest - (c - grow)*t while >= 0 */
    q.d += falling > rising;
    limit(eval, falling > rising ? falling : rising);
    return q;
}

struct sp_aff sp_mod(struct sp_row_eval *eval, struct sp_aff a, int64_t c)
{
    return sp_sub(a, sp_mulc(sp_floordiv(eval, a, c), c));
}

int64_t sp_concrete(struct sp_row_eval *eval, struct sp_aff a)
{
    if (a.d != 0)
        limit(eval, 1);
    return a.v;
}

/* ---- Appending ---- */

void sp_runs_free(struct sp_runs *runs)
{
    free(runs->runs);
    *runs = (struct sp_runs){0};
}

static struct sp_sym_run *append(struct sp_row_eval *eval, struct sp_runs *out)
{
    if (out->count == out->capacity) {
        int64_t capacity = out->capacity ? 2 * out->capacity : 16;
        struct sp_sym_run *grown = realloc(out->runs, (size_t)capacity * sizeof *grown);
        if (!grown) {
            eval->failed = true;
            return NULL;
        }
        out->runs = grown;
        out->capacity = capacity;
    }
    return &out->runs[out->count++];
}

static void append_run(struct sp_row_eval *eval, struct sp_runs *out, struct sp_aff start, int64_t stride,
                       struct sp_aff count, struct sp_aff width)
{
    struct sp_sym_run *run = append(eval, out);
    if (!run)
        return;
    bool many = sp_lt(eval, sp_const(1), count);
    *run = (struct sp_sym_run){start, many ? count : sp_const(1), width, many ? stride : 0};
}

static struct sp_aff last_start(const struct sp_sym_run *run)
{
    return sp_add(run->start, sp_mulc(sp_addc(run->count, -1), run->stride));
}

static struct sp_aff hull_end(const struct sp_sym_run *run)
{
    return sp_add(last_start(run), run->width);
}

void sp_push_block(struct sp_row_eval *eval, struct sp_runs *out, struct sp_aff begin, struct sp_aff end)
{
    if (!sp_lt(eval, begin, end))
        return;
    struct sp_sym_run *last = out->count ? &out->runs[out->count - 1] : NULL;
    if (!last || !sp_eq(eval, hull_end(last), begin)) {
        append_run(eval, out, begin, 0, sp_const(1), sp_sub(end, begin));
    } else if (last->stride == 0) {
        last->width = sp_sub(end, last->start);
    } else { /* the block grows out of a run's last block, which leaves the run */
        struct sp_sym_run run = *last;
        out->count--;
        append_run(eval, out, run.start, run.stride, sp_addc(run.count, -1), run.width);
        append_run(eval, out, last_start(&run), 0, sp_const(1), sp_sub(end, last_start(&run)));
    }
}

/* Appends a whole run, whose first block may touch what is there. count >= 1. */
static void push_whole(struct sp_row_eval *eval, struct sp_runs *out, const struct sp_sym_run *run)
{
    if (run->stride == 0 || sp_eq(eval, run->width, sp_const(run->stride))) {
        sp_push_block(eval, out, run->start, hull_end(run));
        return;
    }
    struct sp_sym_run rest = *run;
    if (out->count && sp_eq(eval, hull_end(&out->runs[out->count - 1]), run->start)) {
        sp_push_block(eval, out, run->start, sp_add(run->start, run->width));
        rest.start = sp_addc(run->start, run->stride);
        rest.count = sp_addc(run->count, -1);
        if (!sp_lt(eval, sp_const(0), rest.count))
            return;
    }
    append_run(eval, out, rest.start, rest.stride, rest.count, rest.width);
}

void sp_push_clipped(struct sp_row_eval *eval, struct sp_runs *out, const struct sp_sym_run *run,
                     struct sp_aff begin, struct sp_aff end)
{
    if (run->stride == 0) {
        sp_push_block(eval, out, sp_max(eval, run->start, begin),
                      sp_min(eval, sp_add(run->start, run->width), end));
        return;
    }
    /* Blocks [first, last) are whole; a block cut by `begin` comes before them, one cut by `end` after. */
    struct sp_aff first = sp_const(0), last = run->count;
    if (sp_lt(eval, run->start, begin)) {
        first = sp_floordiv(eval, sp_sub(begin, run->start), run->stride);
        if (!sp_lt(eval, first, run->count))
            return;
        struct sp_aff block = sp_add(run->start, sp_mulc(first, run->stride));
        if (sp_lt(eval, block, begin)) {
            struct sp_aff block_end = sp_add(block, run->width);
            if (sp_lt(eval, begin, block_end))
                sp_push_block(eval, out, begin, sp_min(eval, block_end, end));
            first = sp_addc(first, 1);
        }
    }
    struct sp_aff final = sp_const(0);
    bool cut = false;
    if (sp_lt(eval, end, hull_end(run))) {
        if (!sp_lt(eval, run->start, end))
            return;
        last = sp_addc(sp_floordiv(eval, sp_addc(sp_sub(end, run->start), -1), run->stride), 1);
        if (!sp_lt(eval, first, last))
            return;
        final = sp_add(run->start, sp_mulc(sp_addc(last, -1), run->stride));
        cut = sp_lt(eval, end, sp_add(final, run->width));
        if (cut)
            last = sp_addc(last, -1);
    }
    if (sp_lt(eval, first, last)) {
        struct sp_sym_run whole = {sp_add(run->start, sp_mulc(first, run->stride)), sp_sub(last, first), run->width,
                                   run->stride};
        push_whole(eval, out, &whole);
    }
    if (cut)
        sp_push_block(eval, out, final, end);
}

void sp_push_run(struct sp_row_eval *eval, struct sp_runs *out, struct sp_aff start, int64_t stride,
                 struct sp_aff count, struct sp_aff width)
{
    if (!sp_lt(eval, sp_const(0), count) || !sp_lt(eval, sp_const(0), width))
        return;
    struct sp_sym_run run = {start, count, width, stride};
    if (stride > 0 && sp_eq(eval, width, sp_const(stride)))
        run = (struct sp_sym_run){start, sp_const(1), sp_mulc(count, stride), 0};
    sp_push_clipped(eval, out, &run, sp_const(0), sp_const(eval->kv_len));
}

void sp_push_span(struct sp_row_eval *eval, struct sp_runs *out, struct sp_aff begin, struct sp_aff end)
{
    sp_push_block(eval, out, sp_max(eval, begin, sp_const(0)), sp_min(eval, end, sp_const(eval->kv_len)));
}

/* ---- Set operators ---- */

enum zone_kind { ZONE_GAP, ZONE_SOLID, ZONE_PERIODIC };

struct zone {
    enum zone_kind kind;
    struct sp_aff end;
    const struct sp_sym_run *run;
};

/* The state of a list at column x; *next is the first run that may still matter. */
static struct zone zone_at(struct sp_row_eval *eval, const struct sp_runs *list, int64_t *next, struct sp_aff x)
{
    while (*next < list->count && !sp_lt(eval, x, hull_end(&list->runs[*next])))
        ++*next;
    if (*next == list->count)
        return (struct zone){ZONE_GAP, sp_const(eval->kv_len), NULL};
    const struct sp_sym_run *run = &list->runs[*next];
    if (sp_lt(eval, x, run->start))
        return (struct zone){ZONE_GAP, run->start, NULL};
    return (struct zone){run->stride ? ZONE_PERIODIC : ZONE_SOLID, hull_end(run), run};
}

static bool apply(enum splat_set_op op, bool a, bool b)
{
    return op == SPLAT_UNION ? a || b : op == SPLAT_INTERSECTION ? a && b : a && !b;
}

/* One periodic operand over [begin, end); the other is constant, so the result follows the run, its complement, or
 * neither. */
static void push_one_periodic(struct sp_row_eval *eval, const struct sp_sym_run *run, bool when_out, bool when_in,
                              struct sp_aff begin, struct sp_aff end, struct sp_runs *out)
{
    if (when_out && when_in) {
        sp_push_block(eval, out, begin, end);
    } else if (when_in) {
        sp_push_clipped(eval, out, run, begin, end);
    } else if (when_out) { /* the gaps, one more than the blocks: before, between and after them */
        struct sp_sym_run gaps = {sp_addc(sp_add(run->start, run->width), -run->stride), sp_addc(run->count, 1),
                                  sp_sub(sp_const(run->stride), run->width), run->stride};
        sp_push_clipped(eval, out, &gaps, begin, end);
    }
}

static bool in_block(const struct sp_sym_run *run, int64_t x)
{
    int64_t offset = x - run->start.v;
    return offset >= 0 && offset / run->stride < run->count.v && offset % run->stride < run->width.v;
}

/* First column after x at which the run's state changes. */
static int64_t next_edge(const struct sp_sym_run *run, int64_t x)
{
    int64_t block = run->start.v + floor_div(x - run->start.v, run->stride) * run->stride;
    return x < block + run->width.v ? block + run->width.v : block + run->stride;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Appends the blocks from list place `first` on, a period's, `times` times more. Returns how far that reaches. */
static int64_t repeat(struct sp_row_eval *eval, struct sp_runs *out, int64_t first, int64_t period, int64_t times)
{
    const int64_t blocks = out->count - first;
    for (int64_t k = 1; k <= times; k++)
        for (int64_t i = 0; i < blocks; i++) {
            struct sp_sym_run *run = append(eval, out);
            if (!run)
                return 0;
            *run = out->runs[first + i];
            run->start.v += k * period;
        }
    return times > 0 ? times * period : 0;
}

/* Two periodic operands over [begin, end), block by block. Where both and the zone move together from row to row,
 * so does the result; else it holds for the row t = 0 alone. */
static void push_walk(struct sp_row_eval *eval, enum splat_set_op op, const struct sp_sym_run *a,
                      const struct sp_sym_run *b, struct sp_aff begin, struct sp_aff end, struct sp_runs *out)
{
    int64_t d = begin.d;
    if (a->start.d != d || b->start.d != d || end.d != d || a->count.d || b->count.d || a->width.d || b->width.d) {
        limit(eval, 1);
        d = 0;
    }
    const int64_t period = a->stride / common_divisor(a->stride, b->stride) * b->stride;
    int64_t mark = INT64_MAX, first = 0; /* the first block that begins here, and its place in the list */
    bool inside = true;
    for (int64_t x = begin.v; x < end.v && !eval->failed;) {
        bool was_inside = inside;
        inside = apply(op, in_block(a, x), in_block(b, x));
        if (inside && !was_inside && mark == INT64_MAX) {
            mark = x;
            first = out->count;
        } else if (inside && !was_inside && x == mark + period) {
            x += repeat(eval, out, first, period, (end.v - x) / period - 1);
        }
        int64_t edge_a = next_edge(a, x), edge_b = next_edge(b, x);
        int64_t edge = edge_a < edge_b ? edge_a : edge_b;
        if (edge > end.v)
            edge = end.v;
        if (inside)
            sp_push_block(eval, out, (struct sp_aff){x, d}, (struct sp_aff){edge, d});
        x = edge;
    }
}

/* Two periodic operands of one stride over [begin, end). Within one period the result is constant on at most four
 * arcs; when its blocks are at most one a period it is a periodic run itself. Returns false when it is not that
 * simple. */
static bool push_same_stride(struct sp_row_eval *eval, enum splat_set_op op, const struct sp_sym_run *a,
                             const struct sp_sym_run *b, struct sp_aff begin, struct sp_aff end,
                             struct sp_runs *out)
{
    int64_t period = a->stride;
    int64_t wa = sp_concrete(eval, a->width), wb = sp_concrete(eval, b->width);
    int64_t shift = sp_concrete(eval, sp_mod(eval, sp_sub(b->start, a->start), period));
    int64_t edges[5] = {0, wa, shift, (shift + wb) % period, period};
    for (int i = 1; i < 4; i++) /* insertion sort of the inner three (0 is least, period greatest) */
        for (int j = i; j > 1 && edges[j] < edges[j - 1]; j--) {
            int64_t swap = edges[j];
            edges[j] = edges[j - 1];
            edges[j - 1] = swap;
        }
    int rises = 0;
    int64_t rise = 0, fall = 0;
    bool first = false, previous = false, have = false;
    for (int i = 0; i < 4; i++) {
        if (edges[i] == edges[i + 1])
            continue;
        bool now = apply(op, edges[i] < wa, (edges[i] - shift + period) % period < wb);
        if (have && now && !previous)
            rise = edges[i], rises++;
        if (have && !now && previous)
            fall = edges[i];
        if (!have)
            first = now;
        previous = now;
        have = true;
    }
    if (first && !previous)
        rises++, rise = 0;
    if (!first && previous)
        fall = 0;
    if (rises > 1)
        return false;
    if (rises == 0) {
        if (first)
            sp_push_block(eval, out, begin, end);
        return true;
    }
    struct sp_aff start = sp_addc(a->start, rise - period);
    struct sp_aff count = sp_addc(sp_floordiv(eval, sp_sub(end, start), period), 1);
    struct sp_sym_run run = {start, count, sp_const((fall - rise + period) % period), period};
    sp_push_clipped(eval, out, &run, begin, end);
    return true;
}

void sp_runs_combine(struct sp_row_eval *eval, enum splat_set_op op, const struct sp_runs *a,
                     const struct sp_runs *b, struct sp_runs *out)
{
    int64_t next_a = 0, next_b = 0;
    struct sp_aff x = sp_const(0);
    out->count = 0;
    while (!eval->failed && sp_lt(eval, x, sp_const(eval->kv_len))) {
        struct zone za = zone_at(eval, a, &next_a, x), zb = zone_at(eval, b, &next_b, x);
        struct sp_aff end = sp_min(eval, za.end, zb.end);
        bool in_a = za.kind == ZONE_SOLID, in_b = zb.kind == ZONE_SOLID;
        if (za.kind != ZONE_PERIODIC && zb.kind != ZONE_PERIODIC) {
            if (apply(op, in_a, in_b))
                sp_push_block(eval, out, x, end);
        } else if (zb.kind != ZONE_PERIODIC) {
            push_one_periodic(eval, za.run, apply(op, false, in_b), apply(op, true, in_b), x, end, out);
        } else if (za.kind != ZONE_PERIODIC) {
            push_one_periodic(eval, zb.run, apply(op, in_a, false), apply(op, in_a, true), x, end, out);
        } else if (za.run->stride != zb.run->stride || !push_same_stride(eval, op, za.run, zb.run, x, end, out)) {
            push_walk(eval, op, za.run, zb.run, x, end, out);
        }
        x = end;
    }
}

void sp_runs_complement(struct sp_row_eval *eval, const struct sp_runs *a, struct sp_runs *out)
{
    struct sp_sym_run everything = {sp_const(0), sp_const(1), sp_const(eval->kv_len), 0};
    struct sp_runs full = {&everything, 1, 1};
    sp_runs_combine(eval, SPLAT_DIFFERENCE, &full, a, out);
}

/* ---- Canonical form ---- */

struct joiner {
    struct sp_row_eval *eval;
    struct sp_runs *out;
    struct sp_sym_run run; /* three blocks or more, still growing; stride 0 = none */
    struct sp_sym_run waiting[2];
    int waiting_count;
};

static void emit(struct joiner *join, const struct sp_sym_run *run)
{
    struct sp_sym_run *slot = append(join->eval, join->out);
    if (slot)
        *slot = *run;
}

static bool continues(struct joiner *join, struct sp_aff start, struct sp_aff width)
{
    const struct sp_sym_run *run = &join->run;
    return run->stride && sp_eq(join->eval, width, run->width) &&
           sp_eq(join->eval, start, sp_add(run->start, sp_mulc(run->count, run->stride)));
}

static void join_block(struct joiner *join, struct sp_aff start, struct sp_aff width)
{
    if (continues(join, start, width)) {
        join->run.count = sp_addc(join->run.count, 1);
        return;
    }
    if (join->run.stride) {
        emit(join, &join->run);
        join->run.stride = 0;
    }
    struct sp_sym_run block = {start, sp_const(1), width, 0};
    if (join->waiting_count < 2) {
        join->waiting[join->waiting_count++] = block;
        return;
    }
    struct sp_sym_run *w = join->waiting;
    struct sp_aff spacing = sp_sub(w[1].start, w[0].start);
    if (sp_eq(join->eval, w[0].width, w[1].width) && sp_eq(join->eval, w[1].width, width) &&
        sp_eq(join->eval, spacing, sp_sub(start, w[1].start))) {
        join->run = (struct sp_sym_run){w[0].start, sp_const(3), width, sp_concrete(join->eval, spacing)};
        join->waiting_count = 0;
        return;
    }
    emit(join, &w[0]);
    w[0] = w[1];
    w[1] = block;
}

void sp_runs_canonical(struct sp_row_eval *eval, const struct sp_runs *in, int64_t most, struct sp_runs *out)
{
    struct joiner join = {.eval = eval, .out = out};
    out->count = 0;
    for (int64_t i = 0; i < in->count && out->count <= most && !eval->failed; i++) {
        const struct sp_sym_run *run = &in->runs[i];
        struct sp_aff start = run->start, left = run->count;
        while (sp_lt(eval, sp_const(0), left)) {
            if (join.run.stride == run->stride && run->stride && continues(&join, start, run->width)) {
                join.run.count = sp_add(join.run.count, left);
                break;
            }
            join_block(&join, start, run->width);
            start = sp_addc(start, run->stride);
            left = sp_addc(left, -1);
        }
    }
    if (join.run.stride)
        emit(&join, &join.run);
    for (int i = 0; i < join.waiting_count; i++)
        emit(&join, &join.waiting[i]);
}
