/* Every primitive of the pattern language as a plain predicate on (i, j), written from the table in
 * docs/patterns.md and sharing nothing with the library; random pattern expressions with their text and their
 * truth.
 */
#ifndef TEST_BRUTE_H
#define TEST_BRUTE_H

#include "support.h"

struct shape {
    int64_t q, kv;
    enum splat_align align;
};

static inline const char *align_name(enum splat_align align)
{
    return align == SPLAT_ALIGN_TOP_LEFT ? "top_left" : "bottom_right";
}

/* rows, columns of the sizes that break tilings and word-wise code */
static const struct shape all_shapes[] = {
    {1, 1, SPLAT_ALIGN_BOTTOM_RIGHT},    {2, 2, SPLAT_ALIGN_BOTTOM_RIGHT},    {17, 17, SPLAT_ALIGN_BOTTOM_RIGHT},
    {63, 63, SPLAT_ALIGN_TOP_LEFT},      {65, 65, SPLAT_ALIGN_BOTTOM_RIGHT},  {127, 127, SPLAT_ALIGN_BOTTOM_RIGHT},
    {129, 129, SPLAT_ALIGN_TOP_LEFT},    {1, 129, SPLAT_ALIGN_BOTTOM_RIGHT},  {1, 65, SPLAT_ALIGN_TOP_LEFT},
    {129, 1, SPLAT_ALIGN_BOTTOM_RIGHT},  {65, 1, SPLAT_ALIGN_TOP_LEFT},       {17, 63, SPLAT_ALIGN_BOTTOM_RIGHT},
    {17, 63, SPLAT_ALIGN_TOP_LEFT},      {127, 65, SPLAT_ALIGN_BOTTOM_RIGHT}, {127, 65, SPLAT_ALIGN_TOP_LEFT},
    {2, 1000, SPLAT_ALIGN_BOTTOM_RIGHT}, {1000, 2, SPLAT_ALIGN_TOP_LEFT},     {1000, 129, SPLAT_ALIGN_BOTTOM_RIGHT},
    {129, 1000, SPLAT_ALIGN_TOP_LEFT},   {1000, 1000, SPLAT_ALIGN_TOP_LEFT},  {64, 128, SPLAT_ALIGN_BOTTOM_RIGHT},
    {128, 64, SPLAT_ALIGN_BOTTOM_RIGHT},
};
#define SHAPE_COUNT (sizeof all_shapes / sizeof all_shapes[0])

enum primitive {
    P_FULL,
    P_CAUSAL,
    P_WINDOW,  /* l, r */
    P_WINDOW1, /* r */
    P_DILATED,
    P_STRIDED,
    P_BLOCKS,
    P_BANDED,
    P_ROWS,
    P_COLS,
    P_COMB,
    P_AXIAL,
    P_DOCUMENTS, /* lengths in a[0..n) */
    P_DIAGONALS, /* offsets in a[0..n) */
    P_LOGSPARSE,
    P_BUTTERFLY,
    P_CHECKERBOARD,
    P_GRID,        /* W, ky, kx, dilation, stride */
    P_GRID_SQUARE, /* W, k */
    P_GRID_DEEP,   /* D, H, W, kz, ky, kx, dilation, stride */
    P_SWIN,        /* W, m, shift */
    P_RANDOM,      /* b, r, seed */
    P_COUNT
};

struct pattern {
    enum primitive kind;
    int64_t a[8];
    int n;
};

static inline int power_of_two(int64_t x)
{
    return x > 0 && (x & (x - 1)) == 0;
}

static inline int64_t document_of(const struct pattern *p, int64_t t)
{
    int64_t end = 0;
    for (int d = 0; d < p->n; d++) {
        end += p->a[d];
        if (t < end)
            return d;
    }
    return -1;
}

/* Whether key position y is in the neighbourhood of query position x on an axis of n: both in one residue class mod
 * `dilation`, and y's place in the class within k places around the centre, which is x's place or that of the
 * leader of its group of `stride` places (its middle), pushed inward at the border. */
static inline int near_on_axis(int64_t x, int64_t y, int64_t n, int64_t k, int64_t dilation, int64_t stride)
{
    int64_t members = 0, centre = 0;
    if (x % dilation != y % dilation)
        return 0;
    for (int64_t t = x % dilation; t < n; t += dilation)
        members++;
    centre = x / dilation;
    if (stride > 1)
        centre = centre - centre % stride + stride / 2;
    if (centre > members - 1)
        centre = members - 1;
    int64_t begin = centre - k / 2;
    if (begin + k > members)
        begin = members - k;
    if (begin < 0)
        begin = 0;
    return begin <= y / dilation && y / dilation < begin + k;
}

/* Same window of m and same side of the seam, on an axis of n rolled by `shift`. */
static inline int same_rolled_window(int64_t x, int64_t y, int64_t n, int64_t m, int64_t shift)
{
    int64_t rolled_x = ((x - shift) % n + n) % n, rolled_y = ((y - shift) % n + n) % n;
    int64_t seam = n - shift % n;
    return rolled_x / m == rolled_y / m && (rolled_x >= seam) == (rolled_y >= seam);
}

static inline uint64_t mix64(uint64_t *state)
{
    struct rng rng = {*state}; /* the documented generator is splitmix64 as well */
    uint64_t value = rng_next(&rng);
    *state = rng.state;
    return value;
}

/* Whether random_blocks(b, r, seed) gives block row I the block column J of n: Floyd's sampling, as documented. */
static inline int random_block(int64_t r, int64_t seed, int64_t I, int64_t J, int64_t n)
{
    static uint8_t taken[1 << 16];
    uint64_t state = (uint64_t)seed * 0x9E3779B97F4A7C15u + (uint64_t)I * 0xD1B54A32D192ED03u;
    if (r >= n)
        return 1;
    memset(taken, 0, (size_t)n);
    for (int64_t k = n - r; k < n; k++) {
        int64_t t = (int64_t)(mix64(&state) % (uint64_t)(k + 1));
        taken[taken[t] ? k : t] = 1;
    }
    return taken[J];
}

static inline int allows(const struct pattern *p, const struct shape *s, int64_t i, int64_t j)
{
    const int64_t *a = p->a;
    int64_t off = s->align == SPLAT_ALIGN_TOP_LEFT ? 0 : s->kv - s->q;
    int64_t d = j - i - off, longest = s->q > s->kv ? s->q : s->kv;
    switch (p->kind) {
    case P_FULL:
        return 1;
    case P_CAUSAL:
        return j <= i + off;
    case P_WINDOW:
        return -a[0] <= d && d <= a[1];
    case P_WINDOW1:
        return -a[0] <= d && d <= a[0];
    case P_DILATED:
        return llabs(i - j) <= a[0] * a[1] && (i - j) % a[1] == 0;
    case P_STRIDED:
        return (i - j) % a[0] == 0;
    case P_BLOCKS:
        return i / a[0] == j / a[0];
    case P_BANDED:
        return -a[1] <= j / a[0] - i / a[0] && j / a[0] - i / a[0] <= a[2];
    case P_ROWS:
        return a[0] <= i && i < a[1];
    case P_COLS:
        return a[0] <= j && j < a[1];
    case P_COMB:
        return j % a[0] >= a[0] - a[1];
    case P_AXIAL:
        return i / a[0] == j / a[0] || i % a[0] == j % a[0];
    case P_DOCUMENTS:
        return document_of(p, i) >= 0 && document_of(p, i) == document_of(p, j);
    case P_DIAGONALS:
        for (int k = 0; k < p->n; k++)
            if (i - j == a[k])
                return 1;
        return 0;
    case P_LOGSPARSE:
        return i == j || power_of_two(i - j);
    case P_BUTTERFLY:
        return i / a[0] == j / a[0] || power_of_two((i / a[0]) ^ (j / a[0]));
    case P_CHECKERBOARD:
        return (i / a[0] + j / a[0]) % 2 == 0;
    case P_GRID:
        return near_on_axis(i / a[0], j / a[0], (longest + a[0] - 1) / a[0], a[1], a[3], a[4]) &&
               near_on_axis(i % a[0], j % a[0], a[0], a[2], a[3], a[4]);
    case P_GRID_SQUARE:
        return near_on_axis(i / a[0], j / a[0], (longest + a[0] - 1) / a[0], a[1], 1, 1) &&
               near_on_axis(i % a[0], j % a[0], a[0], a[1], 1, 1);
    case P_GRID_DEEP:
        return near_on_axis(i / (a[1] * a[2]), j / (a[1] * a[2]), a[0], a[3], a[6], a[7]) &&
               near_on_axis(i / a[2] % a[1], j / a[2] % a[1], a[1], a[4], a[6], a[7]) &&
               near_on_axis(i % a[2], j % a[2], a[2], a[5], a[6], a[7]);
    case P_SWIN:
        return same_rolled_window(i / a[0], j / a[0], (longest + a[0] - 1) / a[0], a[1], a[2]) &&
               same_rolled_window(i % a[0], j % a[0], a[0], a[1], a[2]);
    case P_RANDOM:
        return random_block(a[1], a[2], i / a[0], j / a[0], (s->kv + a[0] - 1) / a[0]);
    case P_COUNT:
        break;
    }
    return -1;
}

static inline void pattern_text(const struct pattern *p, char *text, size_t size)
{
    static const struct {
        const char *name;
        int arguments; /* -1: n of them */
    } table[P_COUNT] = {
        {"full", 0},      {"causal", 0},        {"window", 2},        {"window", 1},     {"dilated", 2},
        {"strided", 1},   {"blocks", 1},        {"banded_blocks", 3}, {"rows", 2},       {"cols", 2},
        {"comb", 2},      {"axial", 1},         {"documents", -1},    {"diagonals", -1}, {"logsparse", 0},
        {"butterfly", 1}, {"checkerboard", 1},  {"grid", 3},          {"grid", 2},       {"grid", 6},
        {"swin", 3},      {"random_blocks", 3},
    };
    const int64_t *a = p->a;
    int count = table[p->kind].arguments < 0 ? p->n : table[p->kind].arguments;
    size_t at = (size_t)snprintf(text, size, "%s", table[p->kind].name);
    for (int k = 0; k < count; k++)
        at += (size_t)snprintf(text + at, size - at, "%s%lld",
                               k == 0                             ? "("
                               : k == 3 && p->kind == P_GRID_DEEP ? "; "
                                                                  : ", ",
                               (long long)a[k]);
    int named = p->kind == P_GRID ? 3 : p->kind == P_GRID_DEEP ? 6 : 0;
    if (named && a[named] > 1)
        at += (size_t)snprintf(text + at, size - at, ", dilation=%lld", (long long)a[named]);
    if (named && a[named + 1] > 1)
        at += (size_t)snprintf(text + at, size - at, ", stride=%lld", (long long)a[named + 1]);
    if (count)
        snprintf(text + at, size - at, ")");
}

/* Lengths that add up to `total`: at most 6 documents. */
static inline void random_documents(struct pattern *p, int64_t total, struct rng *rng)
{
    int want = (int)rng_between(rng, 1, 6);
    p->n = 0;
    for (int64_t left = total; left > 0; p->n++) {
        int64_t take = p->n == want - 1 ? left : rng_between(rng, 1, left);
        p->a[p->n] = take;
        left -= take;
    }
}

/* A primitive with arguments that are legal for the shape and likely to cut it somewhere inside. */
static inline struct pattern random_pattern_of(enum primitive kind, const struct shape *s, struct rng *rng)
{
    struct pattern p = {kind, {0}, 0};
    int64_t longest = s->q > s->kv ? s->q : s->kv, half = longest / 2 + 1;
    int64_t lo = rng_between(rng, 0, longest - 1);
    /* Often one of few periods, so that the operands of an expression share theirs. */
    int64_t period = rng_between(rng, 0, 1) ? rng_between(rng, 1, half) : (int64_t)4 << rng_between(rng, 0, 2);
    switch (p.kind) {
    case P_WINDOW:
    case P_WINDOW1:
        p.a[0] = rng_between(rng, 0, half < 40 ? half : 40);
        p.a[1] = rng_between(rng, 0, half);
        break;
    case P_DILATED:
        p.a[0] = rng_between(rng, 0, 20);
        p.a[1] = rng_between(rng, 0, 1) ? period : rng_between(rng, 1, 9);
        break;
    case P_STRIDED:
    case P_BLOCKS:
    case P_AXIAL:
    case P_BUTTERFLY:
    case P_CHECKERBOARD:
        p.a[0] = period;
        break;
    case P_BANDED:
        p.a[0] = period;
        p.a[1] = rng_between(rng, 0, 3);
        p.a[2] = rng_between(rng, 0, 3);
        break;
    case P_ROWS:
        p.a[0] = lo < s->q ? lo : 0;
        p.a[1] = rng_between(rng, p.a[0] + 1, s->q);
        break;
    case P_COLS:
        p.a[0] = lo < s->kv ? lo : 0;
        p.a[1] = rng_between(rng, p.a[0] + 1, s->kv);
        break;
    case P_COMB:
        p.a[0] = period;
        p.a[1] = rng_between(rng, 1, p.a[0]);
        break;
    case P_DOCUMENTS:
        random_documents(&p, longest, rng);
        break;
    case P_DIAGONALS:
        p.n = (int)rng_between(rng, 1, 5);
        for (int k = 0; k < p.n; k++) /* distinct, of both signs, in no order */
            p.a[k] = (k % 2 ? -1 : 1) * (k * (half / 3 + 1) + rng_between(rng, 1, half / 3 + 1));
        break;
    case P_GRID:
    case P_GRID_SQUARE:
        p.a[0] = rng_between(rng, 1, half < 40 ? half : 40);
        p.a[1] = rng_between(rng, 1, 8);
        p.a[2] = rng_between(rng, 1, 8);
        p.a[3] = rng_between(rng, 1, 3);
        p.a[4] = rng_between(rng, 1, 3);
        break;
    case P_GRID_DEEP:
        p.a[2] = rng_between(rng, 1, half < 9 ? half : 9);
        p.a[1] = rng_between(rng, 1, 7);
        p.a[0] = (longest + p.a[1] * p.a[2] - 1) / (p.a[1] * p.a[2]);
        for (int k = 3; k < 6; k++)
            p.a[k] = rng_between(rng, 1, 5);
        p.a[6] = rng_between(rng, 1, 3);
        p.a[7] = rng_between(rng, 1, 3);
        break;
    case P_SWIN:
        p.a[0] = rng_between(rng, 1, half < 40 ? half : 40);
        p.a[1] = rng_between(rng, 1, 9);
        p.a[2] = rng_between(rng, 0, p.a[1] - 1);
        break;
    case P_RANDOM:
        p.a[0] = rng_between(rng, 1, half < 70 ? half : 70);
        p.a[1] = rng_between(rng, 0, 5);
        p.a[2] = rng_between(rng, 0, 1000);
        break;
    default:
        break;
    }
    return p;
}

static inline struct pattern random_pattern(const struct shape *s, struct rng *rng)
{
    return random_pattern_of((enum primitive)rng_between(rng, 0, P_COUNT - 1), s, rng);
}

static inline void pattern_dense(const struct pattern *p, const struct shape *s, struct dense *dense)
{
    for (int64_t i = 0; i < s->q; i++)
        for (int64_t j = 0; j < s->kv; j++)
            dense->bytes[i * s->kv + j] = (uint8_t)allows(p, s, i, j);
}

/* ---- Random expressions ---- */

enum level { LEVEL_OR, LEVEL_MINUS, LEVEL_AND, LEVEL_NOT }; /* loosest first */

struct expression {
    char text[4096];
    struct dense truth;
};

/* Writes an expression that binds at least as tightly as `level` to text + *at, and its truth to `out`. Parentheses
 * appear only where the documented precedence needs them (and now and then where it does not). */
static inline void random_expression(const struct shape *s, struct rng *rng, int depth, enum level level,
                                     char *text, size_t size, size_t *at, struct dense *out)
{
    enum level mine = depth == 0 ? LEVEL_NOT : (enum level)rng_between(rng, LEVEL_OR, LEVEL_NOT);
    int parenthesis = mine < level || rng_between(rng, 0, 9) == 0;
    int64_t cells = s->q * s->kv;
    if (parenthesis)
        *at += (size_t)snprintf(text + *at, size - *at, "(");
    if (depth == 0) {
        struct pattern p = random_pattern(s, rng);
        char primitive[256];
        pattern_text(&p, primitive, sizeof primitive);
        *at += (size_t)snprintf(text + *at, size - *at, "%s", primitive);
        pattern_dense(&p, s, out);
    } else if (mine == LEVEL_NOT) {
        *at += (size_t)snprintf(text + *at, size - *at, rng_between(rng, 0, 1) ? "~" : "~ ");
        random_expression(s, rng, depth - 1, LEVEL_NOT, text, size, at, out);
        for (int64_t c = 0; c < cells; c++)
            out->bytes[c] = !out->bytes[c];
    } else {
        static const char *const signs[] = {" | ", " - ", " & "};
        struct dense right = dense_new(s->q, s->kv);
        random_expression(s, rng, depth - 1, mine, text, size, at, out);
        *at += (size_t)snprintf(text + *at, size - *at, "%s", signs[mine]);
        /* left-associative: the right operand must bind more tightly */
        random_expression(s, rng, depth - 1, (enum level)(mine + 1), text, size, at, &right);
        for (int64_t c = 0; c < cells; c++) {
            uint8_t l = out->bytes[c], r = right.bytes[c];
            out->bytes[c] = (uint8_t)(mine == LEVEL_OR ? (l | r) : mine == LEVEL_AND ? (l & r) : (l & !r));
        }
        dense_free(&right);
    }
    if (parenthesis)
        *at += (size_t)snprintf(text + *at, size - *at, ")");
}

static inline void expression_random(struct expression *e, const struct shape *s, struct rng *rng, int depth)
{
    size_t at = 0;
    e->truth = dense_new(s->q, s->kv);
    random_expression(s, rng, depth, LEVEL_OR, e->text, sizeof e->text, &at, &e->truth);
    if (at >= sizeof e->text - 1)
        FAIL("expression text was cut");
}

#endif
