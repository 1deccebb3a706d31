/* The invariants of ACSR: lossless, canonical, small, and closed under set algebra. */
#include "brute.h"

#include "acsr/acsr.h"
#include "acsr/build.h"
#include "acsr/expr.h"

/* ---- Rows ---- */

/* The canonical runs of a row, as acsr.h defines them, encoded here independently: cut into maximal blocks; from
 * the left, take the longest progression of equal width and spacing when it has three blocks or more, else one
 * block. */
static int64_t encode_row(const uint8_t *row, int64_t n, splat_acsr_run *runs)
{
    int32_t *begin = need((size_t)(n + 1) * 4), *width = need((size_t)(n + 1) * 4);
    int64_t blocks = 0, count = 0;
    for (int64_t j = 0; j < n;) {
        int64_t end = j;
        while (end < n && row[end])
            end++;
        if (end > j) {
            begin[blocks] = (int32_t)j;
            width[blocks++] = (int32_t)(end - j);
        }
        j = end + 1;
    }
    for (int64_t b = 0; b < blocks;) {
        int64_t last = b + 1;
        while (last + 1 < blocks && begin[last + 1] - begin[last] == begin[b + 1] - begin[b])
            last++;
        for (int64_t k = b + 1; k <= last && k < blocks; k++)
            if (width[k] != width[b])
                last = k - 1;
        if (last < blocks && last - b + 1 >= 3) {
            runs[count++] = (splat_acsr_run){begin[b], begin[b + 1] - begin[b], (int32_t)(last - b + 1), width[b]};
            b = last + 1;
        } else {
            runs[count++] = (splat_acsr_run){begin[b], 0, 1, width[b]};
            b++;
        }
    }
    free(begin);
    free(width);
    return count;
}

static void check_rows(const splat_acsr *acsr, const struct dense *dense, const char *what)
{
    splat_acsr_run *want = need((size_t)(dense->kv + 1) * sizeof *want),
                   *got = need((size_t)(dense->kv + 1) * sizeof *got);
    for (int64_t i = 0; i < dense->q; i++) {
        int64_t count = encode_row(dense->bytes + i * dense->kv, dense->kv, want), said = -1, again = -1;
        OK(splat_acsr_row(acsr, i, NULL, 0, &said));
        OK(splat_acsr_row(acsr, i, got, dense->kv + 1, &again));
        if (said != count || again != count)
            FAIL("%s: row %lld has %lld runs (%lld when only counted), expected %lld", what, (long long)i,
                 (long long)again, (long long)said, (long long)count);
        for (int64_t k = 0; k < count; k++)
            if (memcmp(&got[k], &want[k], sizeof *got) != 0)
                FAIL("%s: row %lld, run %lld is (%d, %d, %d, %d), expected (%d, %d, %d, %d)", what, (long long)i,
                     (long long)k, got[k].start, got[k].stride, got[k].count, got[k].width, want[k].start,
                     want[k].stride, want[k].count, want[k].width);
        if (count > 1) { /* a short buffer gets the first runs, the count says the rest */
            splat_acsr_run guard = {-7, -7, -7, -7};
            got[count - 1] = guard;
            OK(splat_acsr_row(acsr, i, got, count - 1, &said));
            assert_int_equal(said, count);
            assert_memory_equal(got, want, (size_t)(count - 1) * sizeof *got);
            assert_memory_equal(&got[count - 1], &guard, sizeof guard);
        }
    }
    free(want);
    free(got);
}

static void rows_are_the_canonical_runs(void **state)
{
    (void)state;
    struct rng rng = {4};
    for (int round = 0; round < 300; round++) {
        struct dense dense = dense_new(rng_between(&rng, 1, 40), rng_between(&rng, 1, 300));
        dense_random(&dense, &rng);
        splat_mask *mask = mask_from_dense(&dense);
        splat_acsr *acsr = acsr_of(mask);
        check_acsr_is(acsr, &dense, "random bytes");
        check_rows(acsr, &dense, "random bytes");
        splat_acsr_destroy(acsr);
        splat_mask_destroy(mask);
        dense_free(&dense);
    }
}

static void hand_made_rows(void **state)
{
    (void)state;
    static const struct {
        const char *row, *runs;
    } rows[] = {
        {"................", ""},
        {"1...............", "0,0,1,1 "},
        {"...............1", "15,0,1,1 "},
        {"1111111111111111", "0,0,1,16 "},
        {"1.1.............", "0,0,1,1 2,0,1,1 "},         /* two blocks do not make a progression */
        {"1.1.1...........", "0,2,3,1 "},                 /* three do */
        {"1...1...1..1....", "0,4,3,1 11,0,1,1 "},        /* the third breaks nothing, the fourth does */
        {"1..1.1.1........", "0,0,1,1 3,2,3,1 "},         /* looks strided, is not */
        {"1.1..1.1.1......", "0,0,1,1 2,0,1,1 5,2,3,1 "}, /* greedy from the left */
        {"11.11.11.1......", "0,3,3,2 9,0,1,1 "},         /* a narrower last block stands alone */
        {".11..11..11..11.", "1,4,4,2 "},
        {"1.1.1.11111.1.1.", "0,2,3,1 6,0,1,5 12,0,1,1 14,0,1,1 "},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        uint8_t bytes[16];
        char text[200] = "";
        size_t at = 0;
        splat_acsr_run runs[16];
        splat_mask *mask = NULL;
        int64_t count = 0;
        for (int j = 0; j < 16; j++)
            bytes[j] = rows[r].row[j] == '1';
        OK(splat_mask_from_bytes(bytes, 1, 16, 16, &mask));
        splat_acsr *acsr = acsr_of(mask);
        OK(splat_acsr_row(acsr, 0, runs, 16, &count));
        for (int64_t k = 0; k < count; k++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%d,%d,%d,%d ", runs[k].start, runs[k].stride,
                                   runs[k].count, runs[k].width);
        assert_string_equal(text, rows[r].runs);
        splat_acsr_destroy(acsr);
        splat_mask_destroy(mask);
    }
}

static void refused_row_calls(void **state)
{
    (void)state;
    splat_acsr *acsr = acsr_of_expression("causal", 8, 8, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr_run run;
    uint8_t bytes[8];
    int64_t count;
    REFUSED(splat_acsr_row(acsr, 8, &run, 1, &count), SPLAT_INVALID, "8");
    REFUSED(splat_acsr_row(acsr, -1, &run, 1, &count), SPLAT_INVALID, "-1");
    REFUSED(splat_acsr_row(acsr, 0, NULL, 1, &count), SPLAT_INVALID, "runs");
    REFUSED(splat_acsr_row(acsr, 0, &run, -1, &count), SPLAT_INVALID, "-1");
    REFUSED(splat_acsr_row(acsr, 0, &run, 1, NULL), SPLAT_INVALID, "count");
    REFUSED(splat_acsr_row(NULL, 0, &run, 1, &count), SPLAT_INVALID, "acsr");
    REFUSED(splat_acsr_expand_row(acsr, 8, bytes), SPLAT_INVALID, "8");
    REFUSED(splat_acsr_expand_row(acsr, 0, NULL), SPLAT_INVALID, "bytes");
    splat_acsr_destroy(acsr);
    splat_acsr_destroy(NULL);
}

/* ---- Families ---- */

struct size_of {
    int64_t families, bytes;
};

static struct size_of size_of(const char *expression, int64_t n)
{
    splat_acsr *acsr = acsr_of_expression(expression, n, n, SPLAT_ALIGN_BOTTOM_RIGHT);
    struct size_of size = {splat_acsr_families(acsr), splat_acsr_bytes(acsr)};
    splat_acsr_destroy(acsr);
    return size;
}

/* The catalogue at S = 2048 and 8192: at 4 times the length, families may grow by S / period and no more. */
static void families_do_not_grow_with_length(void **state)
{
    (void)state;
    static const struct {
        const char *expression;
        int64_t period;  /* 0: the number of families is constant once S passes a few periods */
        int64_t ceiling; /* for constant ones: no more than this at any length */
    } catalogue[] = {
        {"full", 0, 1},
        {"causal", 0, 1},
        {"strided(3) | strided(5)", 0, 15}, /* irregular rows that repeat every 15 */
        {"strided(2) - strided(4)", 0, 4},
        {"window(1023, 0)", 0, 2},
        {"window(256)", 0, 3},
        {"dilated(128, 4)", 0, 40},
        {"strided(4)", 0, 4},
        {"strided(64)", 0, 64},
        {"causal & (window(127, 0) | strided(128))", 128, 0},
        {"causal & (blocks(128) | comb(128, 16))", 128, 0},
        {"blocks(1024)", 1024, 0},
        {"window(256) | rows(0, 64) | cols(0, 64)", 0, 8},
        {"banded_blocks(64,1,1) | rows(0,128) | cols(0,128) | random_blocks(64,3,0)", 64, 0},
        {"causal | cols(0, 1024)", 0, 2},
        {"causal & (window(1023, 0) | cols(0, 4))", 0, 4},
        {"grid(128, 13)", 128, 0},
        {"axial(128)", 128, 0},
        {"checkerboard(64)", 64, 0},
        {"butterfly(64)", 64, 0},
        {"swin(64, 8, 4)", 8, 0},
        {"comb(128, 16)", 0, 1},
        {"rows(100, 200)", 0, 3},
    };
    for (size_t k = 0; k < sizeof catalogue / sizeof catalogue[0]; k++) {
        struct size_of small = size_of(catalogue[k].expression, 2048),
                       large = size_of(catalogue[k].expression, 8192);
        int64_t period = catalogue[k].period;
        int64_t limit = period ? 4 * small.families + 4 : catalogue[k].ceiling;
        if (large.families > limit || small.families > limit)
            FAIL("%s: %lld families at 2048, %lld at 8192: more than %lld", catalogue[k].expression,
                 (long long)small.families, (long long)large.families, (long long)limit);
        if (period && large.families > 16 * (8192 / period) + 1024)
            FAIL("%s: %lld families at 8192", catalogue[k].expression, (long long)large.families);
    }
}

static void logsparse_grows_with_its_logarithm(void **state)
{
    (void)state;
    assert_true(size_of("logsparse", 8192).families <= size_of("logsparse", 2048).families + 2 * 8);
    assert_true(size_of("causal & logsparse", 1 << 20).families <= 80);
}

/* A million rows: made from closed form, and small. */
static void a_million_rows_take_no_room(void **state)
{
    (void)state;
    static const char *const expressions[] = {"window(1023, 0)", "window(256)",
                                              "strided(4)",      "strided(64)",
                                              "dilated(128, 4)", "window(256) | rows(0, 64) | cols(0, 64)",
                                              "causal",          "~(window(256) | rows(0, 64))"};
    const int64_t n = 1048576;
    for (size_t k = 0; k < sizeof expressions / sizeof expressions[0]; k++) {
        struct size_of small = size_of(expressions[k], 8192), large = size_of(expressions[k], n);
        if (large.families > small.families || large.bytes > (int64_t)1 << 20)
            FAIL("%s: %lld families and %lld bytes at S = %lld; %lld families at 8192", expressions[k],
                 (long long)large.families, (long long)large.bytes, (long long)n, (long long)small.families);
    }
    splat_acsr *window = acsr_of_expression("window(1023, 0)", n, n, SPLAT_ALIGN_BOTTOM_RIGHT);
    assert_true(splat_acsr_pairs(window) == 1024 * n - 1023 * 1024 / 2);
    splat_acsr_run run;
    int64_t count = 0;
    OK(splat_acsr_row(window, n - 1, &run, 1, &count));
    assert_int_equal(count, 1);
    assert_int_equal(run.start, n - 1024);
    assert_int_equal(run.width, 1024);
    splat_acsr_destroy(window);
    splat_acsr *full = acsr_of_expression("full", SPLAT_MAX_LEN, SPLAT_MAX_LEN, SPLAT_ALIGN_BOTTOM_RIGHT);
    assert_true(splat_acsr_pairs(full) == SPLAT_MAX_LEN * SPLAT_MAX_LEN);
    splat_acsr_destroy(full);
}

/* Strides that meet again after many rows: one family for each of them, found without a cut of all rows. */
static void rows_that_repeat_take_a_period(void **state)
{
    (void)state;
    static const struct {
        const char *expression;
        int64_t n, d1, d2, comb, period; /* strided(d1) | strided(d2), or | comb(d2, 1) */
    } cases[] = {
        {"strided(10) | strided(14)", 4096, 10, 14, 0, 70},
        {"strided(18) | strided(22)", 4096, 18, 22, 0, 198},
        {"strided(20) | comb(21, 1)", 3000, 20, 21, 1, 20},
        {"strided(70) | comb(71, 1)", 5000, 70, 71, 1, 70},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const int64_t n = cases[k].n;
        struct dense dense = dense_new(n, n);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                dense.bytes[i * n + j] =
                    (i - j) % cases[k].d1 == 0 ||
                    (cases[k].comb ? j % cases[k].d2 == cases[k].d2 - 1 : (i - j) % cases[k].d2 == 0);
        splat_mask *mask = mask_from_dense(&dense);
        splat_acsr *a = acsr_of_expression(cases[k].expression, n, n, SPLAT_ALIGN_BOTTOM_RIGHT), *b = acsr_of(mask);
        check_acsr_is(a, &dense, cases[k].expression);
        assert_true(splat_acsr_equal(a, b));
        assert_int_equal(a->row_stride, cases[k].period);
        assert_int_equal(a->family_count, cases[k].period);
        splat_acsr_destroy(a);
        splat_acsr_destroy(b);
        splat_mask_destroy(mask);
        dense_free(&dense);
    }
    /* the same at a length where a cut of all rows would take hours */
    struct size_of far = size_of("strided(10) | strided(14)", 65536),
                   near = size_of("strided(1000) | comb(1001, 1)", 262144);
    assert_int_equal(far.families, 70);
    assert_int_equal(near.families, 1000);
}

/* Irregular rows that all differ: refused beyond a limit, with a sentence, and sound below it. */
static void too_large_is_said(void **state)
{
    (void)state;
    const int64_t n = 4096, whole = n * n / 8;
    struct sp_expr *expr = NULL;
    struct sp_expr_source source;
    splat_acsr *acsr = NULL;
    OK(sp_expr_parse("(causal & strided(10)) | strided(14)", n, n, SPLAT_ALIGN_BOTTOM_RIGHT, &expr));
    OK(sp_expr_source_init(&source, expr));
    REFUSED(sp_acsr_build_within(&source.base, n, n, (int64_t)1 << 20, &acsr), SPLAT_UNSUPPORTED, "4096 x 4096",
            "1 MiB", "many runs");
    assert_null(acsr);
    OK(sp_acsr_build_within(&source.base, n, n, whole, &acsr));
    splat_acsr *same = acsr_of_expression("(causal & strided(10)) | strided(14)", n, n, SPLAT_ALIGN_BOTTOM_RIGHT);
    assert_true(splat_acsr_equal(acsr, same));
    splat_acsr_destroy(same);
    splat_acsr_destroy(acsr);
    sp_expr_source_free(&source);
    sp_expr_free(expr);
}

/* Irregular masks: never larger than the bits plus a little a row. */
static void irregular_masks_are_bounded_by_their_bits(void **state)
{
    (void)state;
    struct rng rng = {9};
    struct dense dense = dense_new(1000, 4096);
    for (int64_t at = 0; at < dense.q * dense.kv; at++)
        dense.bytes[at] = (uint8_t)(rng_next(&rng) >> 63);
    splat_mask *mask = mask_from_dense(&dense);
    splat_acsr *acsr = acsr_of(mask);
    check_acsr_is(acsr, &dense, "coin tosses");
    check_rows(acsr, &dense, "coin tosses");
    assert_true(splat_acsr_bytes(acsr) <= 1000 * (4096 / 8) + 1000 * 200 + 65536);
    splat_acsr_destroy(acsr);
    splat_mask_destroy(mask);
    dense_free(&dense);
}

/* Groups, as the planner reads them, say the same as the rows; in ascending, descending and random order of ranges.
 */
struct block_sink {
    uint8_t *row;
    int64_t last_end, low, high;
};

static void take_block(int32_t begin, int32_t end, void *user)
{
    struct block_sink *sink = user;
    assert_true(sink->low <= begin && begin < end && end <= sink->high && begin > sink->last_end);
    sink->last_end = end;
    memset(sink->row + begin, 1, (size_t)(end - begin));
}

static void groups_say_what_rows_say(void **state)
{
    (void)state;
    struct rng rng = {31};
    for (int round = 0; round < 200; round++) {
        struct shape s = {rng_between(&rng, 1, 200), rng_between(&rng, 1, 200), SPLAT_ALIGN_BOTTOM_RIGHT};
        static struct expression e;
        if (round % 2) {
            expression_random(&e, &s, &rng, 3);
        } else {
            strcpy(e.text, "random bytes");
            e.truth = dense_new(s.q, s.kv);
            dense_random(&e.truth, &rng);
        }
        splat_mask *mask = mask_from_dense(&e.truth);
        splat_acsr *acsr = acsr_of(mask);
        struct sp_groups scratch = {0};
        uint8_t *row = need((size_t)s.kv);
        for (int range = 0; range < 8; range++) {
            int64_t begin = rng_between(&rng, 0, s.q - 1), end = rng_between(&rng, begin + 1, s.q), next = begin;
            int64_t low = rng_between(&rng, 0, s.kv - 1), high = rng_between(&rng, low + 1, s.kv);
            OK(sp_acsr_groups(acsr, begin, end, &scratch));
            for (int64_t g = 0; g < scratch.count; g++) {
                const struct sp_group *group = &scratch.groups[g];
                assert_int_equal(group->row0, next);
                assert_true(group->rows >= 1);
                next += group->rows;
                for (int64_t i = group->row0; i < next; i++) {
                    struct block_sink sink = {row, -1, low, high};
                    memset(row, 0, (size_t)s.kv);
                    sp_group_row_blocks(acsr, group, i, low, high, take_block, &sink);
                    if (memcmp(row + low, e.truth.bytes + i * s.kv + low, (size_t)(high - low)) != 0)
                        FAIL("%s: blocks of row %lld in [%lld, %lld) are wrong", e.text, (long long)i,
                             (long long)low, (long long)high);
                }
            }
            assert_int_equal(next, end);
        }
        free(row);
        sp_groups_free(&scratch);
        splat_acsr_destroy(acsr);
        splat_mask_destroy(mask);
        dense_free(&e.truth);
    }
}

/* ---- Set algebra ---- */

static void check_combination(const splat_acsr *a, const splat_acsr *b, const struct dense *x,
                              const struct dense *y, enum splat_set_op op)
{
    static const char *const names[] = {"union", "intersection", "difference"};
    struct dense want = dense_new(x->q, x->kv);
    for (int64_t at = 0; at < x->q * x->kv; at++) {
        uint8_t l = x->bytes[at], r = y->bytes[at];
        want.bytes[at] = (uint8_t)(op == SPLAT_UNION ? (l | r) : op == SPLAT_INTERSECTION ? (l & r) : (l & !r));
    }
    splat_acsr *got = NULL;
    OK(splat_acsr_combine(a, op, b, &got));
    check_acsr_is(got, &want, names[op]);
    check_rows(got, &want, names[op]);
    splat_mask *mask = mask_from_dense(&want);
    splat_acsr *direct = acsr_of(mask);
    if (!splat_acsr_equal(got, direct))
        FAIL("%s: not canonical", names[op]);
    splat_acsr_destroy(direct);
    splat_acsr_destroy(got);
    splat_mask_destroy(mask);
    dense_free(&want);
}

static splat_acsr *combined(const splat_acsr *a, enum splat_set_op op, const splat_acsr *b)
{
    splat_acsr *out = NULL;
    OK(splat_acsr_combine(a, op, b, &out));
    return out;
}

static splat_acsr *complement(const splat_acsr *a)
{
    splat_acsr *out = NULL;
    OK(splat_acsr_complement(a, &out));
    return out;
}

static void same_and_destroy(splat_acsr *a, splat_acsr *b, const char *law)
{
    if (!splat_acsr_equal(a, b))
        FAIL("%s does not hold", law);
    splat_acsr_destroy(a);
    splat_acsr_destroy(b);
}

static void check_laws(const splat_acsr *a, const splat_acsr *b)
{
    splat_acsr *not_a = complement(a), *not_b = complement(b), *both = combined(a, SPLAT_INTERSECTION, b);
    splat_acsr *either = combined(a, SPLAT_UNION, b), *only_a = combined(a, SPLAT_DIFFERENCE, b);
    same_and_destroy(complement(both), combined(not_a, SPLAT_UNION, not_b), "De Morgan, ~(a & b)");
    same_and_destroy(complement(either), combined(not_a, SPLAT_INTERSECTION, not_b), "De Morgan, ~(a | b)");
    same_and_destroy(complement(not_a), combined(a, SPLAT_UNION, a), "~~a = a | a");
    same_and_destroy(combined(only_a, SPLAT_UNION, both), combined(a, SPLAT_INTERSECTION, a),
                     "(a - b) | (a & b) = a");
    same_and_destroy(combined(a, SPLAT_INTERSECTION, not_b), combined(a, SPLAT_DIFFERENCE, b), "a & ~b = a - b");
    assert_true(splat_acsr_pairs(a) + splat_acsr_pairs(not_a) == splat_acsr_q_len(a) * splat_acsr_kv_len(a));
    splat_acsr *nothing = combined(a, SPLAT_INTERSECTION, not_a);
    assert_int_equal(splat_acsr_pairs(nothing), 0);
    splat_acsr_destroy(nothing);
    splat_acsr_destroy(not_a);
    splat_acsr_destroy(not_b);
    splat_acsr_destroy(both);
    splat_acsr_destroy(either);
    splat_acsr_destroy(only_a);
}

static void algebra_equals_algebra_on_bits(void **state)
{
    (void)state;
    struct rng rng = {123};
    for (int round = 0; round < 150; round++) {
        struct shape s = {rng_between(&rng, 1, 130), rng_between(&rng, 1, 260), SPLAT_ALIGN_BOTTOM_RIGHT};
        struct dense x = dense_new(s.q, s.kv), y = dense_new(s.q, s.kv);
        dense_random(&x, &rng);
        if (round % 2) {
            struct pattern p = random_pattern(&s, &rng);
            pattern_dense(&p, &s, &y);
        } else {
            dense_random(&y, &rng);
        }
        splat_mask *mx = mask_from_dense(&x), *my = mask_from_dense(&y);
        splat_acsr *a = acsr_of(mx), *b = acsr_of(my);
        for (int op = 0; op < 3; op++)
            check_combination(a, b, &x, &y, (enum splat_set_op)op);
        check_laws(a, b);
        splat_acsr_destroy(a);
        splat_acsr_destroy(b);
        splat_mask_destroy(mx);
        splat_mask_destroy(my);
        dense_free(&x);
        dense_free(&y);
    }
}

static void algebra_holds_on_a_million_rows(void **state)
{
    (void)state;
    const int64_t n = 1 << 20;
    splat_acsr *a = acsr_of_expression("window(256) | rows(0, 64)", n, n, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr *b = acsr_of_expression("strided(64) - cols(0, 640)", n, n, SPLAT_ALIGN_BOTTOM_RIGHT);
    check_laws(a, b);
    splat_acsr *either = combined(a, SPLAT_UNION, b);
    splat_acsr *spoken = acsr_of_expression("(window(256) | rows(0, 64)) | (strided(64) - cols(0, 640))", n, n,
                                            SPLAT_ALIGN_BOTTOM_RIGHT);
    same_and_destroy(either, spoken, "algebra on ACSR = operators of the language");
    splat_acsr_destroy(a);
    splat_acsr_destroy(b);
}

static void refused_combinations(void **state)
{
    (void)state;
    splat_acsr *a = acsr_of_expression("causal", 8, 8, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr *b = acsr_of_expression("causal", 8, 9, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr *out = NULL;
    REFUSED(splat_acsr_combine(a, SPLAT_UNION, b, &out), SPLAT_INVALID, "8", "9");
    REFUSED(splat_acsr_combine(a, (enum splat_set_op)9, a, &out), SPLAT_INVALID, "9");
    REFUSED(splat_acsr_combine(NULL, SPLAT_UNION, a, &out), SPLAT_INVALID, "a");
    REFUSED(splat_acsr_combine(a, SPLAT_UNION, a, NULL), SPLAT_INVALID, "out");
    REFUSED(splat_acsr_complement(NULL, &out), SPLAT_INVALID, "a");
    assert_null(out);
    assert_false(splat_acsr_equal(a, b));
    splat_acsr_destroy(a);
    splat_acsr_destroy(b);
}

/* Every single pair counts, in rows kept as runs and in rows kept as bits: flipping one changes equality. */
static void one_flipped_pair_is_seen(void **state)
{
    (void)state;
    struct rng rng = {55};
    static const int64_t lengths[] = {70, 400};
    for (int k = 0; k < 2; k++) {
        struct dense dense = dense_new(40, lengths[k]);
        for (int64_t at = 0; at < 40 * lengths[k]; at++)
            dense.bytes[at] = (uint8_t)(rng_next(&rng) >> 63);
        splat_mask *mask = mask_from_dense(&dense);
        splat_acsr *first = acsr_of(mask);
        for (int64_t at = 0; at < 40 * lengths[k]; at += 13) {
            dense.bytes[at] ^= 1;
            splat_mask *other = mask_from_dense(&dense);
            splat_acsr *changed = acsr_of(other);
            if (splat_acsr_equal(first, changed))
                FAIL("pair (%lld, %lld) is not seen", (long long)(at / lengths[k]), (long long)(at % lengths[k]));
            splat_acsr_destroy(changed);
            splat_mask_destroy(other);
            dense.bytes[at] ^= 1;
        }
        splat_mask *same = mask_from_dense(&dense);
        splat_acsr *again = acsr_of(same);
        assert_true(splat_acsr_equal(first, again));
        splat_acsr_destroy(again);
        splat_mask_destroy(same);
        splat_acsr_destroy(first);
        splat_mask_destroy(mask);
        dense_free(&dense);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_canonical_runs),
        cmocka_unit_test(hand_made_rows),
        cmocka_unit_test(refused_row_calls),
        cmocka_unit_test(families_do_not_grow_with_length),
        cmocka_unit_test(logsparse_grows_with_its_logarithm),
        cmocka_unit_test(a_million_rows_take_no_room),
        cmocka_unit_test(rows_that_repeat_take_a_period),
        cmocka_unit_test(too_large_is_said),
        cmocka_unit_test(irregular_masks_are_bounded_by_their_bits),
        cmocka_unit_test(groups_say_what_rows_say),
        cmocka_unit_test(algebra_equals_algebra_on_bits),
        cmocka_unit_test(algebra_holds_on_a_million_rows),
        cmocka_unit_test(refused_combinations),
        cmocka_unit_test(one_flipped_pair_is_seen),
    };
    return cmocka_run_group_tests_name("acsr", tests, NULL, NULL);
}
