/* Primitive patterns: argument checks, and rows as affine runs (sym.h). Formulas are in the table at the end. */
#include "acsr/patterns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool in_range(const char *name, int64_t value, int64_t low, int64_t high, char message[200])
{
    if (value >= low && value <= high)
        return true;
    snprintf(message, 200, "%s is %lld; it must be from %lld to %lld", name, (long long)value, (long long)low,
             (long long)high);
    return false;
}

static bool no_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)args, (void)shape, (void)message;
    return true;
}

static struct sp_aff diagonal(const struct sp_row_eval *eval)
{
    return sp_addc(sp_row_index(eval), eval->off);
}

/* ---- Dense, windows, global tokens ---- */

static void full_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    (void)args;
    sp_push_span(eval, out, sp_const(0), sp_const(eval->kv_len));
}

static void causal_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    (void)args;
    sp_push_span(eval, out, sp_const(0), sp_addc(diagonal(eval), 1));
}

static bool window_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)shape;
    for (int i = 0; i < args->count; i++)
        if (!in_range(args->count == 1 ? "r" : i ? "r" : "l", args->values[i], 0, SPLAT_MAX_LEN, message))
            return false;
    return true;
}

static void window_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t left = args->values[0], right = args->values[args->count - 1];
    sp_push_span(eval, out, sp_addc(diagonal(eval), -left), sp_addc(diagonal(eval), right + 1));
}

static bool dilated_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)shape;
    return in_range("r", args->values[0], 0, SPLAT_MAX_LEN, message) &&
           in_range("d", args->values[1], 1, SPLAT_MAX_LEN, message);
}

static void dilated_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t r = args->values[0], d = args->values[1];
    sp_push_run(eval, out, sp_addc(sp_row_index(eval), -r * d), d, sp_const(2 * r + 1), sp_const(1));
}

static bool range_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)shape;
    return in_range("a", args->values[0], 0, SPLAT_MAX_LEN, message) &&
           in_range("b", args->values[1], args->values[0], SPLAT_MAX_LEN, message);
}

static void rows_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    struct sp_aff i = sp_row_index(eval);
    if (!sp_lt(eval, i, sp_const(args->values[0])) && sp_lt(eval, i, sp_const(args->values[1])))
        full_row(eval, args, out);
}

static void cols_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    sp_push_span(eval, out, sp_const(args->values[0]), sp_const(args->values[1]));
}

/* ---- Strides, combs, diagonals ---- */

static bool positive_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)shape;
    return in_range("the argument", args->values[0], 1, SPLAT_MAX_LEN, message);
}

static struct sp_aff enough(const struct sp_row_eval *eval, int64_t stride)
{
    return sp_const(eval->kv_len / stride + 2);
}

static void strided_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t d = args->values[0];
    sp_push_run(eval, out, sp_mod(eval, sp_row_index(eval), d), d, enough(eval, d), sp_const(1));
}

static bool comb_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)shape;
    return in_range("l", args->values[0], 1, SPLAT_MAX_LEN, message) &&
           in_range("c", args->values[1], 0, args->values[0], message);
}

static void comb_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t l = args->values[0], c = args->values[1];
    sp_push_run(eval, out, sp_const(l - c), l, enough(eval, l), sp_const(c));
}

static bool diagonals_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)shape;
    for (int i = 0; i < args->count; i++) {
        if (!in_range("d", args->values[i], -SPLAT_MAX_LEN, SPLAT_MAX_LEN, message))
            return false;
        if (i > 0 && args->derived[i] == args->derived[i - 1]) {
            snprintf(message, 200, "d is %lld twice; every diagonal may be named once",
                     (long long)args->derived[i]);
            return false;
        }
    }
    return true;
}

static void push_diagonal(struct sp_row_eval *eval, struct sp_runs *out, int64_t d)
{
    struct sp_aff j = sp_addc(sp_row_index(eval), -d);
    sp_push_span(eval, out, j, sp_addc(j, 1));
}

static void diagonals_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    for (int i = 0; i < args->count; i++)
        push_diagonal(eval, out, args->derived[i]);
}

static void logsparse_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    (void)args;
    for (int64_t d = SPLAT_MAX_LEN; d >= 1; d /= 2)
        if (d < eval->q_len)
            push_diagonal(eval, out, d);
    push_diagonal(eval, out, 0);
}

/* ---- Blocks ---- */

static void push_blocks(struct sp_row_eval *eval, struct sp_runs *out, int64_t b, struct sp_aff first,
                        struct sp_aff end)
{
    sp_push_span(eval, out, sp_mulc(first, b), sp_mulc(end, b));
}

static void blocks_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    struct sp_aff block = sp_floordiv(eval, sp_row_index(eval), args->values[0]);
    push_blocks(eval, out, args->values[0], block, sp_addc(block, 1));
}

static bool banded_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)shape;
    return in_range("b", args->values[0], 1, SPLAT_MAX_LEN, message) &&
           in_range("p", args->values[1], 0, SPLAT_MAX_LEN, message) &&
           in_range("n", args->values[2], 0, SPLAT_MAX_LEN, message);
}

static void banded_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    struct sp_aff block = sp_floordiv(eval, sp_row_index(eval), args->values[0]);
    push_blocks(eval, out, args->values[0], sp_addc(block, -args->values[1]), sp_addc(block, args->values[2] + 1));
}

static bool documents_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    int64_t longest = shape->q_len > shape->kv_len ? shape->q_len : shape->kv_len, sum = 0;
    for (int i = 0; i < args->count; i++) {
        if (!in_range("a length", args->values[i], 1, SPLAT_MAX_LEN, message))
            return false;
        sum += args->values[i];
    }
    if (sum == longest)
        return true;
    snprintf(message, 200, "the lengths add up to %lld; they must add up to the sequence length, %lld",
             (long long)sum, (long long)longest);
    return false;
}

static void documents_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int low = 0, high = args->count - 1; /* the first document that ends after the row */
    while (low < high) {
        int middle = (low + high) / 2;
        if (args->derived[middle] > eval->row)
            high = middle;
        else
            low = middle + 1;
    }
    struct sp_aff end = sp_const(args->derived[low]);
    if (sp_lt(eval, sp_row_index(eval), end)) /* rows stay in the document as long as this holds */
        sp_push_span(eval, out, sp_const(args->derived[low] - args->values[low]), end);
}

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Ascending insertion finds a draw that is taken; many draws are better kept in a bitmap. */
static void few_columns(uint64_t state, int64_t n, int64_t r, int64_t *columns)
{
    int64_t count = 0;
    for (int64_t k = n - r; k < n; k++) {
        int64_t t = (int64_t)(splitmix(&state) % (uint64_t)(k + 1)), at = count;
        for (int64_t c = 0; c < count; c++)
            if (columns[c] == t)
                t = k;
        for (count++; at > 0 && columns[at - 1] > t; at--)
            columns[at] = columns[at - 1];
        columns[at] = t;
    }
}

static bool many_columns(uint64_t state, int64_t n, int64_t r, int64_t *columns)
{
    uint64_t *taken = calloc((size_t)(n + 63) / 64, sizeof *taken);
    if (!taken)
        return false;
    for (int64_t k = n - r; k < n; k++) {
        int64_t t = (int64_t)(splitmix(&state) % (uint64_t)(k + 1));
        if (taken[t / 64] >> (t % 64) & 1)
            t = k;
        taken[t / 64] |= 1ull << (t % 64);
    }
    for (int64_t w = 0; w < (n + 63) / 64; w++)
        for (uint64_t word = taken[w]; word; word &= word - 1)
            *columns++ = w * 64 + __builtin_ctzll(word);
    free(taken);
    return true;
}

bool sp_random_columns(int64_t seed, int64_t block_row, int64_t n, int64_t r, int64_t *columns)
{
    uint64_t state = (uint64_t)seed * 0x9E3779B97F4A7C15u + (uint64_t)block_row * 0xD1B54A32D192ED03u;
    if (r > 64 && r < n)
        return many_columns(state, n, r, columns);
    if (r < n)
        few_columns(state, n, r, columns);
    for (int64_t k = 0; k < n && r >= n; k++)
        columns[k] = k;
    return true;
}

static bool random_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)shape;
    return in_range("b", args->values[0], 1, SPLAT_MAX_LEN, message) &&
           in_range("r", args->values[1], 0, 4096, message) &&
           in_range("seed", args->values[2], 0, INT64_MAX, message);
}

static void random_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t b = args->values[0], columns[4096];
    int64_t block_row = sp_concrete(eval, sp_floordiv(eval, sp_row_index(eval), b));
    int64_t n = (eval->kv_len + b - 1) / b, r = args->values[1] < n ? args->values[1] : n;
    if (!sp_random_columns(args->values[2], block_row, n, r, columns)) {
        eval->failed = true;
        return;
    }
    for (int64_t k = 0; k < r; k++)
        push_blocks(eval, out, b, sp_const(columns[k]), sp_const(columns[k] + 1));
}

/* Row block I meets I itself and every I with one bit flipped, in ascending order: first the set bits, high to low,
 * cleared; then I; then the clear bits, low to high, set. */
static void butterfly_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t b = args->values[0], block = sp_concrete(eval, sp_floordiv(eval, sp_row_index(eval), b));
    for (int bit = 31; bit >= 0; bit--)
        if (block >> bit & 1)
            push_blocks(eval, out, b, sp_const(block ^ (int64_t)1 << bit),
                        sp_const((block ^ (int64_t)1 << bit) + 1));
    push_blocks(eval, out, b, sp_const(block), sp_const(block + 1));
    for (int bit = 0; bit < 32; bit++)
        if (!(block >> bit & 1))
            push_blocks(eval, out, b, sp_const(block ^ (int64_t)1 << bit),
                        sp_const((block ^ (int64_t)1 << bit) + 1));
}

static void checkerboard_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t b = args->values[0];
    struct sp_aff odd = sp_mod(eval, sp_floordiv(eval, sp_row_index(eval), b), 2);
    sp_push_run(eval, out, sp_mulc(odd, b), 2 * b, enough(eval, 2 * b), sp_const(b));
}

/* ---- Grids ---- */

/* The keys of one axis: `count` positions from `first`, one every `step`. */
struct axis {
    struct sp_aff first, count;
    int64_t step;
};

/* Neighbourhood of position x on an axis of n: k keys of x's residue class mod `dilation`, around the leader of x's
 * `stride`-group, clamped at the border. */
static struct axis neighbourhood(struct sp_row_eval *eval, struct sp_aff x, int64_t n, int64_t k, int64_t dilation,
                                 int64_t stride)
{
    struct sp_aff residue = sp_mod(eval, x, dilation);
    struct sp_aff place = sp_floordiv(eval, x, dilation);
    struct sp_aff size = sp_addc(sp_floordiv(eval, sp_sub(sp_const(n - 1), residue), dilation), 1);
    if (stride > 1) {
        struct sp_aff group = sp_floordiv(eval, place, stride);
        place = sp_min(eval, sp_addc(sp_mulc(group, stride), stride / 2), sp_addc(size, -1));
    }
    struct sp_aff last = sp_max(eval, sp_addc(size, -k), sp_const(0));
    struct sp_aff start = sp_min(eval, sp_max(eval, sp_addc(place, -(k / 2)), sp_const(0)), last);
    return (struct axis){sp_add(residue, sp_mulc(start, dilation)), sp_min(eval, sp_const(k), size), dilation};
}

static bool grid_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    bool three = args->split != 0;
    if ((three && (args->split != 3 || args->count != 6)) || (!three && args->count > 3)) {
        snprintf(message, 200, "it takes (W, k), (W, ky, kx) or (D,H,W; kz,ky,kx)");
        return false;
    }
    static const char *const flat[] = {"W", "ky", "kx"}, *const deep[] = {"D", "H", "W", "kz", "ky", "kx"};
    for (int i = 0; i < args->count; i++)
        if (!in_range(three                   ? deep[i]
                      : args->count == 2 && i ? "k"
                                              : flat[i],
                      args->values[i], 1, SPLAT_MAX_LEN, message))
            return false;
    if (args->dilation && !in_range("dilation", args->dilation, 1, SPLAT_MAX_LEN, message))
        return false;
    if (args->stride && !in_range("stride", args->stride, 1, SPLAT_MAX_LEN, message))
        return false;
    if (!three)
        return true;
    int64_t longest = shape->q_len > shape->kv_len ? shape->q_len : shape->kv_len;
    if (args->values[1] > SPLAT_MAX_LEN / args->values[2]) {
        snprintf(message, 200, "H*W is %lld * %lld; it must be at most %lld", (long long)args->values[1],
                 (long long)args->values[2], (long long)SPLAT_MAX_LEN);
        return false;
    }
    int64_t cells = args->values[0] * args->values[1]; /* at most 2^60 */
    if (cells >= longest || (cells *= args->values[2]) >= longest)
        return true;
    snprintf(message, 200, "the grid holds D*H*W = %lld tokens; it must hold the sequence length, %lld",
             (long long)cells, (long long)longest);
    return false;
}

static void grid_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    const int64_t *v = args->values;
    bool three = args->split != 0;
    int64_t longest = eval->q_len > eval->kv_len ? eval->q_len : eval->kv_len;
    int64_t width = three ? v[2] : v[0], height = three ? v[1] : (longest + width - 1) / width;
    int64_t depth = three ? v[0] : 1;
    int64_t kz = three ? v[3] : 1, ky = three ? v[4] : v[1], kx = v[args->count - 1];
    int64_t dilation = args->dilation ? args->dilation : 1, stride = args->stride ? args->stride : 1;
    struct sp_aff i = sp_row_index(eval), line = sp_floordiv(eval, i, width);
    struct sp_aff plane = sp_floordiv(eval, line, height);
    struct axis x = neighbourhood(eval, sp_sub(i, sp_mulc(line, width)), width, kx, dilation, stride);
    struct axis y = neighbourhood(eval, sp_sub(line, sp_mulc(plane, height)), height, ky, dilation, stride);
    struct axis z = three ? neighbourhood(eval, plane, depth, kz, dilation, stride)
                          : (struct axis){sp_const(0), sp_const(1), 1};
    for (int64_t nz = sp_concrete(eval, z.count), iz = 0; iz < nz; iz++) {
        struct sp_aff base = sp_mulc(sp_addc(z.first, iz * z.step), height * width);
        struct sp_aff start = sp_add(sp_add(base, sp_mulc(y.first, width)), x.first);
        if (x.step == 1) {
            sp_push_run(eval, out, start, width, y.count, x.count);
            continue;
        }
        for (int64_t ny = sp_concrete(eval, y.count), iy = 0; iy < ny; iy++)
            sp_push_run(eval, out, sp_addc(start, iy * y.step * width), x.step, x.count, sp_const(1));
    }
}

static bool swin_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    (void)shape;
    return in_range("W", args->values[0], 1, SPLAT_MAX_LEN, message) &&
           in_range("m", args->values[1], 1, SPLAT_MAX_LEN, message) &&
           in_range("shift", args->values[2], 0, args->values[1] - 1, message);
}

/* The tokens of one axis that share x's window and region after rolling by `shift`: rolled position x' = (x -
 * shift) mod n; windows of m in x'; tokens that wrapped round (x' >= n - shift) are a region of their own. */
static struct axis rolled_window(struct sp_row_eval *eval, struct sp_aff x, int64_t n, int64_t m, int64_t shift)
{
    shift = shift < n ? shift : shift % n;
    struct sp_aff rolled = sp_addc(x, -shift), back = sp_const(shift);
    bool wrapped = sp_lt(eval, rolled, sp_const(0));
    if (wrapped) {
        rolled = sp_addc(rolled, n);
        back = sp_const(shift - n);
    }
    struct sp_aff begin = sp_mulc(sp_floordiv(eval, rolled, m), m);
    struct sp_aff end = sp_min(eval, sp_addc(begin, m), sp_const(wrapped ? n : n - shift));
    if (wrapped)
        begin = sp_max(eval, begin, sp_const(n - shift));
    return (struct axis){sp_add(begin, back), sp_sub(end, begin), 1};
}

static void swin_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t width = args->values[0], m = args->values[1], shift = args->values[2];
    int64_t longest = eval->q_len > eval->kv_len ? eval->q_len : eval->kv_len;
    int64_t height = (longest + width - 1) / width;
    struct sp_aff i = sp_row_index(eval), line = sp_floordiv(eval, i, width);
    struct axis x = rolled_window(eval, sp_sub(i, sp_mulc(line, width)), width, m, shift);
    struct axis y = rolled_window(eval, line, height, m, shift);
    sp_push_run(eval, out, sp_add(sp_mulc(y.first, width), x.first), width, y.count, x.count);
}

/* Column of the grid above the row's line, the line, and the column below it. */
static void axial_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t width = args->values[0];
    struct sp_aff i = sp_row_index(eval), line = sp_floordiv(eval, i, width);
    struct sp_aff start = sp_mulc(line, width), x = sp_sub(i, start);
    sp_push_run(eval, out, x, width, line, sp_const(1));
    sp_push_span(eval, out, start, sp_addc(start, width));
    struct sp_aff below = sp_addc(sp_add(start, x), width);
    struct sp_sym_run rest = {below, enough(eval, width), sp_const(1), width};
    if (width > 1)
        sp_push_clipped(eval, out, &rest, sp_const(0), sp_const(eval->kv_len));
    else
        sp_push_span(eval, out, below, sp_const(eval->kv_len));
}

/* ---- Kronecker products ---- */

/* a * b * c, or SPLAT_MAX_LEN + 1 when it is more than SPLAT_MAX_LEN. */
static int64_t product(int64_t a, int64_t b, int64_t c)
{
    if (a > SPLAT_MAX_LEN / b || a * b > SPLAT_MAX_LEN / c)
        return SPLAT_MAX_LEN + 1;
    return a * b * c;
}

static bool kron_check(const struct sp_args *args, const struct sp_shape *shape, char message[200])
{
    static const char *const names[] = {"a", "b", "c", "d"};
    const int64_t *v = args->values;
    for (int i = 0; i < 4; i++)
        if (!in_range(names[i], v[i], 1, SPLAT_MAX_LEN, message))
            return false;
    int64_t rows = product(v[0], v[1], v[3]), columns = product(v[0], v[2], v[3]);
    if (rows == shape->q_len && columns == shape->kv_len)
        return true;
    int is_rows = rows != shape->q_len;
    int64_t size = is_rows ? rows : columns;
    char words[40];
    snprintf(words, sizeof words, size > SPLAT_MAX_LEN ? "more than %lld" : "%lld",
             (long long)(size > SPLAT_MAX_LEN ? SPLAT_MAX_LEN : size));
    snprintf(message, 200, "a*%s*d is %s; it must be the %s, %lld", is_rows ? "b" : "c", words,
             is_rows ? "number of rows (q_len)" : "number of columns (kv_len)",
             (long long)(is_rows ? shape->q_len : shape->kv_len));
    return false;
}

static void kron_row(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out)
{
    int64_t b = args->values[1], c = args->values[2], d = args->values[3];
    struct sp_aff i = sp_row_index(eval), block = sp_floordiv(eval, i, b * d);
    sp_push_run(eval, out, sp_add(sp_mulc(block, c * d), sp_mod(eval, i, d)), d, sp_const(c), sp_const(1));
}

/* ---- The table ---- */

const struct sp_primitive sp_primitives[] = {
    /* name, usage, formula, fewest and most values, named arguments, check, row */
    {"full", "full", "every pair", 0, 0, false, no_check, full_row},
    {"causal", "causal", "j <= i + off", 0, 0, false, no_check, causal_row},
    {"window", "window(r) or window(l, r)", "-l <= j-i-off <= r (l = r when one is given)", 1, 2, false,
     window_check, window_row},
    {"dilated", "dilated(r, d)", "abs(i-j) <= r*d and (i-j) mod d == 0", 2, 2, false, dilated_check, dilated_row},
    {"strided", "strided(d)", "(i-j) mod d == 0", 1, 1, false, positive_check, strided_row},
    {"blocks", "blocks(b)", "i/b == j/b", 1, 1, false, positive_check, blocks_row},
    {"banded_blocks", "banded_blocks(b, p, n)", "-p <= j/b - i/b <= n", 3, 3, false, banded_check, banded_row},
    {"rows", "rows(a, b)", "a <= i < b", 2, 2, false, range_check, rows_row},
    {"cols", "cols(a, b)", "a <= j < b", 2, 2, false, range_check, cols_row},
    {"comb", "comb(l, c)", "j mod l >= l-c", 2, 2, false, comb_check, comb_row},
    {"grid", "grid(W, k), grid(W, ky, kx) or grid(D,H,W; kz,ky,kx)",
     "neighbourhood of k keys an axis on a grid in raster order, clamped at the border; dilation=d: within residue "
     "classes mod d; stride=s: groups of s queries share their leader's",
     2, 6, true, grid_check, grid_row},
    {"swin", "swin(W, m, shift)", "same m x m window of the W-wide grid after rolling by shift, and same region", 3,
     3, false, swin_check, swin_row},
    {"axial", "axial(W)", "i/W == j/W or i mod W == j mod W", 1, 1, false, positive_check, axial_row},
    {"documents", "documents(n1, n2, ...)", "i and j in the same document", 1, SP_ANY_SUMMED, false,
     documents_check, documents_row},
    {"random_blocks", "random_blocks(b, r, seed)",
     "for each block row, r distinct block columns of a fixed generator", 3, 3, false, random_check, random_row},
    {"diagonals", "diagonals(d1, d2, ...)", "i-j is one of the list", 1, SP_ANY_SORTED, false, diagonals_check,
     diagonals_row},
    {"logsparse", "logsparse", "i-j is 0 or a power of two", 0, 0, false, no_check, logsparse_row},
    {"butterfly", "butterfly(b)", "blocks I == J or I xor J a power of two", 1, 1, false, positive_check,
     butterfly_row},
    {"checkerboard", "checkerboard(b)", "(i/b + j/b) even", 1, 1, false, positive_check, checkerboard_row},
    {"kron", "kron(a, b, c, d)",
     "I_a x 1_(b x c) x I_d: i/(b*d) == j/(c*d) and i mod d == j mod d; a*b*d rows, a*c*d columns", 4, 4, false,
     kron_check, kron_row},
};
const int sp_primitive_count = sizeof sp_primitives / sizeof sp_primitives[0];
