/* Every primitive, and random expressions of them, against the plain predicates of brute.h. */
#include "brute.h"

static void check_pattern(const struct pattern *p, const struct shape *s)
{
    char text[256], what[400];
    pattern_text(p, text, sizeof text);
    snprintf(what, sizeof what, "%s, %s", text, align_name(s->align));
    struct dense want = dense_new(s->q, s->kv);
    pattern_dense(p, s, &want);
    splat_acsr *acsr = acsr_of_expression(text, s->q, s->kv, s->align);
    check_acsr_is(acsr, &want, what);
    splat_acsr_destroy(acsr);
    dense_free(&want);
}

/* Many random arguments of one primitive on every shape; on the big ones fewer. */
static void sweep(enum primitive kind)
{
    struct rng rng = {77u + (uint64_t)kind};
    for (size_t n = 0; n < SHAPE_COUNT; n++) {
        const struct shape *s = &all_shapes[n];
        int rounds = s->q * s->kv > 200000 ? 2 : 8;
        for (int k = 0; k < rounds; k++) {
            struct pattern p = random_pattern_of(kind, s, &rng);
            check_pattern(&p, s);
        }
    }
}

#define SWEEP(name, kind)                                                                                          \
    static void name(void **state)                                                                                 \
    {                                                                                                              \
        (void)state;                                                                                               \
        sweep(kind);                                                                                               \
    }

SWEEP(full_is_everything, P_FULL)
SWEEP(causal_matches, P_CAUSAL)
SWEEP(window_matches, P_WINDOW)
SWEEP(window_of_one_radius_matches, P_WINDOW1)
SWEEP(dilated_matches, P_DILATED)
SWEEP(strided_matches, P_STRIDED)
SWEEP(blocks_matches, P_BLOCKS)
SWEEP(banded_blocks_matches, P_BANDED)
SWEEP(rows_matches, P_ROWS)
SWEEP(cols_matches, P_COLS)
SWEEP(comb_matches, P_COMB)
SWEEP(axial_matches, P_AXIAL)
SWEEP(documents_matches, P_DOCUMENTS)
SWEEP(diagonals_matches, P_DIAGONALS)
SWEEP(logsparse_matches, P_LOGSPARSE)
SWEEP(butterfly_matches, P_BUTTERFLY)
SWEEP(checkerboard_matches, P_CHECKERBOARD)
SWEEP(grid_matches, P_GRID)
SWEEP(square_grid_matches, P_GRID_SQUARE)
SWEEP(deep_grid_matches, P_GRID_DEEP)
SWEEP(swin_matches, P_SWIN)
SWEEP(random_blocks_matches, P_RANDOM)

static void corners_of_arguments(void **state)
{
    (void)state;
    static const struct shape square = {65, 65, SPLAT_ALIGN_BOTTOM_RIGHT},
                              wide = {17, 129, SPLAT_ALIGN_BOTTOM_RIGHT};
    static const struct pattern corners[] = {
        {P_WINDOW, {0, 0}, 0},
        {P_WINDOW, {64, 0}, 0},
        {P_WINDOW, {65, 65}, 0},
        {P_WINDOW, {0, 64}, 0},
        {P_WINDOW1, {1 << 30}, 0},
        {P_DILATED, {1 << 30, 1 << 30}, 0},
        {P_DILATED, {0, 5}, 0},
        {P_STRIDED, {1}, 0},
        {P_STRIDED, {64}, 0},
        {P_STRIDED, {65}, 0},
        {P_STRIDED, {1 << 30}, 0},
        {P_BLOCKS, {1}, 0},
        {P_BLOCKS, {1 << 30}, 0},
        {P_BANDED, {1 << 30, 1 << 30, 1 << 30}, 0},
        {P_ROWS, {0, 65}, 0},
        {P_ROWS, {64, 65}, 0},
        {P_ROWS, {5, 5}, 0},
        {P_ROWS, {64, 1 << 30}, 0},
        {P_COLS, {64, 65}, 0},
        {P_COLS, {0, 0}, 0},
        {P_COLS, {0, 1 << 30}, 0},
        {P_COMB, {4, 4}, 0},
        {P_COMB, {4, 0}, 0},
        {P_COMB, {1 << 30, 1}, 0},
        {P_COMB, {65, 1}, 0},
        {P_AXIAL, {1}, 0},
        {P_AXIAL, {65}, 0},
        {P_AXIAL, {1 << 30}, 0},
        {P_DIAGONALS, {-64, 0, 64}, 3},
        {P_DIAGONALS, {1 << 30, -(1 << 30)}, 2},
        {P_BUTTERFLY, {1}, 0},
        {P_BUTTERFLY, {1 << 30}, 0},
        {P_CHECKERBOARD, {1}, 0},
        {P_CHECKERBOARD, {64}, 0},
        {P_GRID, {1, 1, 1, 1, 1}, 0},
        {P_GRID, {8, 100, 100, 1, 1}, 0},
        {P_GRID, {65, 3, 3, 1, 1}, 0},
        {P_GRID, {8, 2, 4, 1, 1}, 0},
        {P_GRID, {8, 3, 3, 8, 1}, 0},
        {P_GRID, {8, 3, 3, 1, 9}, 0},
        {P_GRID, {1000, 3, 3, 2, 2}, 0},
        {P_SWIN, {8, 1, 0}, 0},
        {P_SWIN, {8, 100, 99}, 0},
        {P_SWIN, {5, 4, 2}, 0},
        {P_RANDOM, {1, 3, 0}, 0},
        {P_RANDOM, {64, 9, 7}, 0},
    };
    for (size_t k = 0; k < sizeof corners / sizeof corners[0]; k++) {
        check_pattern(&corners[k], &square);
        check_pattern(&corners[k], &wide);
    }
}

/* The suite at its own structure, small enough to check every pair. */
static void suite_matches(void **state)
{
    (void)state;
    static const struct shape s = {512, 512, SPLAT_ALIGN_BOTTOM_RIGHT};
    static const struct pattern causal = {P_CAUSAL, {0}, 0}, window127 = {P_WINDOW, {127, 0}, 0},
                                strided128 = {P_STRIDED, {128}, 0}, comb = {P_COMB, {128, 16}, 0},
                                blocks = {P_BLOCKS, {128}, 0}, sinks = {P_COLS, {0, 4}, 0};
    splat_acsr *st_strided = acsr_of_expression("causal & (window(127, 0) | strided(128))", 512, 512, s.align);
    splat_acsr *st_fixed = acsr_of_expression("causal & (blocks(128) | comb(128, 16))", 512, 512, s.align);
    splat_acsr *sunk = acsr_of_expression("causal & (window(127, 0) | cols(0, 4))", 512, 512, s.align);
    struct dense a = dense_new(512, 512), b = dense_new(512, 512), c = dense_new(512, 512);
    for (int64_t i = 0; i < 512; i++)
        for (int64_t j = 0; j < 512; j++) {
            int past = allows(&causal, &s, i, j), near = allows(&window127, &s, i, j);
            a.bytes[i * 512 + j] = past && (near || allows(&strided128, &s, i, j));
            b.bytes[i * 512 + j] = past && (allows(&blocks, &s, i, j) || allows(&comb, &s, i, j));
            c.bytes[i * 512 + j] = past && (near || allows(&sinks, &s, i, j));
        }
    check_acsr_is(st_strided, &a, "st_strided");
    check_acsr_is(st_fixed, &b, "st_fixed");
    check_acsr_is(sunk, &c, "sinks");
    splat_acsr_destroy(st_strided);
    splat_acsr_destroy(st_fixed);
    splat_acsr_destroy(sunk);
    dense_free(&a);
    dense_free(&b);
    dense_free(&c);
}

static void random_expressions_match(void **state)
{
    (void)state;
    struct rng rng = {20240601};
    for (int round = 0; round < 700; round++) {
        struct shape s = all_shapes[rng_between(&rng, 0, SHAPE_COUNT - 1)];
        if (round % 3 == 0) {
            s.q = rng_between(&rng, 1, 140);
            s.kv = rng_between(&rng, 1, 140);
        }
        if (s.q * s.kv > 140000 && round % 16)
            continue;
        static struct expression e;
        expression_random(&e, &s, &rng, (int)rng_between(&rng, 1, 4));
        splat_acsr *acsr = acsr_of_expression(e.text, s.q, s.kv, s.align);
        check_acsr_is(acsr, &e.truth, e.text);
        /* ... and the runs are those of the same bytes: the symbolic road and the dense one meet. */
        splat_mask *bytes = mask_from_dense(&e.truth);
        splat_acsr *dense = acsr_of(bytes);
        if (!splat_acsr_equal(acsr, dense))
            FAIL("%s (%lld x %lld, %s): not the ACSR of its own bytes", e.text, (long long)s.q, (long long)s.kv,
                 align_name(s.align));
        splat_acsr_destroy(dense);
        splat_acsr_destroy(acsr);
        splat_mask_destroy(bytes);
        dense_free(&e.truth);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_is_everything),
        cmocka_unit_test(causal_matches),
        cmocka_unit_test(window_matches),
        cmocka_unit_test(window_of_one_radius_matches),
        cmocka_unit_test(dilated_matches),
        cmocka_unit_test(strided_matches),
        cmocka_unit_test(blocks_matches),
        cmocka_unit_test(banded_blocks_matches),
        cmocka_unit_test(rows_matches),
        cmocka_unit_test(cols_matches),
        cmocka_unit_test(comb_matches),
        cmocka_unit_test(axial_matches),
        cmocka_unit_test(documents_matches),
        cmocka_unit_test(diagonals_matches),
        cmocka_unit_test(logsparse_matches),
        cmocka_unit_test(butterfly_matches),
        cmocka_unit_test(checkerboard_matches),
        cmocka_unit_test(grid_matches),
        cmocka_unit_test(square_grid_matches),
        cmocka_unit_test(deep_grid_matches),
        cmocka_unit_test(swin_matches),
        cmocka_unit_test(random_blocks_matches),
        cmocka_unit_test(corners_of_arguments),
        cmocka_unit_test(suite_matches),
        cmocka_unit_test(random_expressions_match),
    };
    return cmocka_run_group_tests_name("patterns", tests, NULL, NULL);
}
