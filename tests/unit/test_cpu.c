/* The CPU engine against a naive double-precision reference. */
#include "attention.h"

/* Runs one problem with an expression and checks every row. */
static void solve(struct problem p, const char *expression, enum splat_align align, struct rng *rng)
{
    char what[400];
    snprintf(what, sizeof what, "%s, %s, type %d, layout %d, B %lld, H %lld/%lld, %lld x %lld, D %lld/%lld",
             expression, align_name(align), p.dtype, p.layout, (long long)p.batch, (long long)p.heads,
             (long long)p.kv_heads, (long long)p.q_len, (long long)p.kv_len, (long long)p.head_dim,
             (long long)p.value_dim);
    splat_acsr *acsr = acsr_of_expression(expression, p.q_len, p.kv_len, align);
    struct dense truth = dense_new(p.q_len, p.kv_len);
    dense_expand(&truth, acsr); /* checked against brute force by test_patterns */
    splat_mask *mask = mask_of(expression, p.q_len, p.kv_len, align);
    problem_fill(&p, rng);
    problem_run(&p, mask);
    problem_check(&p, &truth, what);
    problem_free(&p);
    splat_mask_destroy(mask);
    splat_acsr_destroy(acsr);
    dense_free(&truth);
}

static void every_type_and_head_dim(void **state)
{
    (void)state;
    static const int64_t dims[] = {8, 40, 64, 72, 80, 96, 128, 192, 256};
    struct rng rng = {1};
    for (size_t k = 0; k < sizeof dims / sizeof dims[0]; k++)
        for (enum splat_dtype dtype = SPLAT_FP16; dtype <= SPLAT_FP32; dtype++) {
            struct problem p = {
                .dtype = dtype, .batch = 1, .heads = 2, .q_len = 129, .kv_len = 129, .head_dim = dims[k]};
            solve(p, "causal & (window(40, 0) | cols(0, 3))", SPLAT_ALIGN_BOTTOM_RIGHT, &rng);
        }
}

static void value_dim_may_differ(void **state)
{
    (void)state;
    static const int64_t pairs[][2] = {{64, 128}, {128, 64}, {192, 128}, {8, 256}, {256, 8}, {72, 40}};
    struct rng rng = {2};
    for (int k = 0; k < 6; k++) {
        struct problem p = {.dtype = (enum splat_dtype)(k % 3),
                            .layout = (enum layout)(k % 2),
                            .batch = 2,
                            .heads = 2,
                            .q_len = 65,
                            .kv_len = 127,
                            .head_dim = pairs[k][0],
                            .value_dim = pairs[k][1]};
        solve(p, "window(30)", SPLAT_ALIGN_BOTTOM_RIGHT, &rng);
    }
}

static void grouped_heads_batches_and_layouts(void **state)
{
    (void)state;
    static const int64_t ratios[] = {1, 3, 5, 7};
    struct rng rng = {3};
    for (int k = 0; k < 4; k++)
        for (enum layout layout = BHSD; layout <= BSHD; layout++)
            for (int64_t kv_heads = 1; kv_heads <= 2; kv_heads++) {
                struct problem p = {.dtype = SPLAT_FP32,
                                    .layout = layout,
                                    .batch = 3,
                                    .heads = ratios[k] * kv_heads,
                                    .kv_heads = kv_heads,
                                    .q_len = 65,
                                    .kv_len = 63,
                                    .head_dim = 40};
                solve(p, "causal | strided(5)", SPLAT_ALIGN_TOP_LEFT, &rng);
            }
}

static void ragged_lengths_and_alignments(void **state)
{
    (void)state;
    static const char *const expressions[] = {"full",
                                              "causal",
                                              "window(5)",
                                              "window(0)",
                                              "strided(3)",
                                              "dilated(4,2)",
                                              "blocks(17)",
                                              "~causal",
                                              "comb(7, 2)",
                                              "logsparse",
                                              "causal & (blocks(16) | comb(16, 3))",
                                              "checkerboard(9)"};
    struct rng rng = {4};
    for (size_t n = 0; n < SHAPE_COUNT; n++)
        for (size_t e = 0; e < sizeof expressions / sizeof expressions[0]; e++) {
            const struct shape *s = &all_shapes[n];
            if (s->q * s->kv > 20000 && (e + n) % 4)
                continue;
            struct problem p = {.dtype = (enum splat_dtype)((n + e) % 3),
                                .batch = 1,
                                .heads = 1,
                                .q_len = s->q,
                                .kv_len = s->kv,
                                .head_dim = 32};
            solve(p, expressions[e], s->align, &rng);
        }
}

static void scale_is_honoured(void **state)
{
    (void)state;
    struct rng rng = {5};
    static const float scales[] = {0.0f, 1.0f, 0.01f, 3.0f};
    for (int k = 0; k < 4; k++) {
        struct problem p = {.dtype = SPLAT_FP32,
                            .batch = 1,
                            .heads = 1,
                            .q_len = 70,
                            .kv_len = 70,
                            .head_dim = 24,
                            .scale = scales[k]};
        solve(p, "causal", SPLAT_ALIGN_BOTTOM_RIGHT, &rng);
    }
}

static void lse_may_be_left_out(void **state)
{
    (void)state;
    struct rng rng = {6};
    struct problem p = {.dtype = SPLAT_BF16, .batch = 1, .heads = 2, .q_len = 66, .kv_len = 66, .head_dim = 64};
    splat_mask *mask = mask_of("causal", 66, 66, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_context *context = context_of(1);
    splat_kernel *kernel = NULL;
    problem_fill(&p, &rng);
    problem_run_in(&p, mask, context);
    void *with = need(p.o_size * 2);
    memcpy(with, p.o, p.o_size * 2);
    splat_options options = problem_options(&p);
    OK(splat_compile(context, mask, &options, &kernel));
    problem_poison(&p);
    splat_attention_args args = problem_args(&p);
    args.lse = NULL;
    OK(splat_run(kernel, &args, NULL));
    assert_memory_equal(with, p.o, p.o_size * 2);
    for (size_t k = 0; k < p.lse_count * 4; k++)
        assert_int_equal(((uint8_t *)p.lse)[k], POISON);
    free(with);
    splat_kernel_destroy(kernel);
    splat_context_destroy(context);
    splat_mask_destroy(mask);
    problem_free(&p);
}

/* Strides with gaps between rows, heads and batches; what lies in the gaps is NaN and must stay unread and
 * unwritten. */
static void gaps_between_rows_are_left_alone(void **state)
{
    (void)state;
    enum { B = 2, H = 2, S = 67, D = 16, ROW = 40, HEAD = S * ROW + 8, BATCH = H * HEAD + 24, TOTAL = B * BATCH };
    struct rng rng = {7};
    struct problem p = {.dtype = SPLAT_FP32, .batch = B, .heads = H, .q_len = S, .kv_len = S, .head_dim = D};
    problem_fill(&p, &rng);
    splat_mask *mask = mask_of("window(9)", S, S, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_context *context = context_of(2);
    problem_run_in(&p, mask, context);
    float *wide[4], *dense[4] = {p.q, p.k, p.v, p.o};
    for (int t = 0; t < 4; t++) {
        wide[t] = need(TOTAL * 4);
        memset(wide[t], POISON, TOTAL * 4);
        for (int at = 0; at < B * H * S * D && t < 3; at++)
            wide[t][at / (H * S * D) * BATCH + at / (S * D) % H * HEAD + at / D % S * ROW + at % D] = dense[t][at];
    }
    float *lse = need(B * H * 100 * 4);
    memset(lse, POISON, B * H * 100 * 4);
    splat_attention_args args = problem_args(&p);
    splat_tensor *tensors[] = {&args.q, &args.k, &args.v, &args.o};
    for (int t = 0; t < 4; t++)
        *tensors[t] = (splat_tensor){wide[t], BATCH, HEAD, ROW};
    args.lse = lse;
    args.lse_batch_stride = 200;
    args.lse_head_stride = 100;
    splat_options options = problem_options(&p);
    splat_kernel *kernel = NULL;
    OK(splat_compile(context, mask, &options, &kernel));
    OK(splat_run(kernel, &args, NULL));
    int64_t written = 0;
    for (int at = 0; at < TOTAL; at++)
        written += !isnan(wide[3][at]);
    assert_int_equal(written, B * H * S * D);
    for (int at = 0; at < B * H * S * D; at++)
        assert_memory_equal(
            &wide[3][at / (H * S * D) * BATCH + at / (S * D) % H * HEAD + at / D % S * ROW + at % D], &dense[3][at],
            4);
    for (int at = 0; at < B * H * 100; at++)
        if (at % 100 < S)
            assert_memory_equal(&lse[at], &p.lse[at / 100 * S + at % 100], 4);
        else
            assert_true(isnan(lse[at]));
    for (int t = 0; t < 4; t++)
        free(wide[t]);
    free(lse);
    splat_kernel_destroy(kernel);
    splat_context_destroy(context);
    splat_mask_destroy(mask);
    problem_free(&p);
}

/* ---- Empty rows, poisoned keys, extreme scores ---- */

static void rows_with_nothing_allowed(void **state)
{
    (void)state;
    static const char *const expressions[] = {
        "full - rows(0, 1)",    "full - rows(128, 129)",    "full - rows(60, 70)", "full - full",
        "causal - rows(0, 66)", "window(3) - rows(63, 65)", "rows(64, 65)",        "strided(2) - rows(0, 128)"};
    struct rng rng = {8};
    for (int k = 0; k < 8; k++)
        for (enum splat_dtype dtype = SPLAT_FP16; dtype <= SPLAT_FP32; dtype++) {
            struct problem p = {
                .dtype = dtype, .batch = 1, .heads = 2, .q_len = 129, .kv_len = 129, .head_dim = 40};
            solve(p, expressions[k], SPLAT_ALIGN_BOTTOM_RIGHT, &rng);
        }
}

/* The first tile of a row is fully masked for it, a later one is not; and the other way round. */
static void rows_that_begin_late_or_end_early(void **state)
{
    (void)state;
    struct rng rng = {9};
    struct dense mask = dense_new(128, 700);
    for (int64_t i = 0; i < 128; i++)
        for (int64_t j = 0; j < 700; j++)
            mask.bytes[i * 700 + j] = i % 3 == 0 ? j == 699 : i % 3 == 1 ? j == 0 : j >= 5 * i && j < 5 * i + 3;
    splat_mask *bytes = mask_from_dense(&mask);
    for (enum splat_dtype dtype = SPLAT_FP16; dtype <= SPLAT_FP32; dtype++) {
        struct problem p = {.dtype = dtype, .batch = 1, .heads = 1, .q_len = 128, .kv_len = 700, .head_dim = 64};
        problem_fill(&p, &rng);
        problem_run(&p, bytes);
        problem_check(&p, &mask, "late and early rows");
        problem_free(&p);
    }
    splat_mask_destroy(bytes);
    dense_free(&mask);
}

/* NaN and infinities in K and V of keys that no row may see, then of keys that only some rows may not see: rows
 * that do not see them must come out bit for bit as if they were zero. */
static void poison_does_not_leak(struct problem p, const char *expression, const double bad)
{
    struct rng rng = {10};
    splat_acsr *acsr = acsr_of_expression(expression, p.q_len, p.kv_len, SPLAT_ALIGN_BOTTOM_RIGHT);
    struct dense truth = dense_new(p.q_len, p.kv_len);
    splat_mask *mask = mask_of(expression, p.q_len, p.kv_len, SPLAT_ALIGN_BOTTOM_RIGHT);
    dense_expand(&truth, acsr);
    problem_fill(&p, &rng);
    problem_run(&p, mask);
    size_t size = element_size(p.dtype);
    uint8_t *clean = need(p.o_size * size);
    float *clean_lse = need(p.lse_count * 4);
    memcpy(clean, p.o, p.o_size * size);
    memcpy(clean_lse, p.lse, p.lse_count * 4);
    for (int64_t bad_key = 0; bad_key < p.kv_len; bad_key += 7)
        for (int64_t d = 0; d < p.head_dim; d++) {
            element_set(p.k, bad_key * p.head_dim + d, p.dtype, bad);
            element_set(p.v, bad_key * p.head_dim + d, p.dtype, -bad);
        }
    problem_run(&p, mask);
    int64_t untouched = 0;
    for (int64_t i = 0; i < p.q_len; i++) {
        int sees = 0;
        for (int64_t key = 0; key < p.kv_len; key += 7)
            sees |= truth.bytes[i * p.kv_len + key];
        if (sees)
            continue;
        untouched++;
        if (memcmp((uint8_t *)p.o + (size_t)(i * p.head_dim) * size, clean + (size_t)(i * p.head_dim) * size,
                   (size_t)p.head_dim * size) != 0 ||
            memcmp(&p.lse[i], &clean_lse[i], 4) != 0)
            FAIL("%s, type %d: row %lld changed by a key it may not see", expression, p.dtype, (long long)i);
    }
    assert_true(untouched > 0);
    free(clean);
    free(clean_lse);
    problem_free(&p);
    splat_mask_destroy(mask);
    splat_acsr_destroy(acsr);
    dense_free(&truth);
}

static void masked_keys_may_hold_anything(void **state)
{
    (void)state;
    /* every seventh key goes bad; each of these leaves some rows that see none of them */
    static const char *const expressions[] = {"strided(7) - rows(0, 1)", "window(2) - rows(0, 1)",
                                              "diagonals(1, 3)", "blocks(3)",
                                              "causal & (comb(7, 2) | rows(7, 14))"};
    for (int k = 0; k < 5; k++)
        for (enum splat_dtype dtype = SPLAT_FP16; dtype <= SPLAT_FP32; dtype++) {
            struct problem p = {
                .dtype = dtype, .batch = 1, .heads = 1, .q_len = 140, .kv_len = 140, .head_dim = 16};
            poison_does_not_leak(p, expressions[k], NAN);
            poison_does_not_leak(p, expressions[k], INFINITY);
        }
}

/* Scores far below any finite sentinel (-1e5, -1e9, -3e4 ...): softmax is shift-invariant, so weights must not
 * change. */
static void large_scores_of_either_sign(void **state)
{
    (void)state;
    static const double sizes[] = {-6e4, -1e6, -3e8, 6e4, 1e6, 3e8, -1e30, 1e30};
    struct rng rng = {11};
    for (int k = 0; k < 8; k++)
        for (int two = 0; two < 2; two++) {
            struct problem p = {.dtype = SPLAT_FP32,
                                .batch = 1,
                                .heads = 1,
                                .q_len = 130,
                                .kv_len = 130,
                                .head_dim = 8,
                                .scale = 1.0f};
            problem_fill(&p, &rng);
            float *q = p.q, *key = p.k;
            memset(q, 0, 130 * 8 * 4);
            memset(key, 0, 130 * 8 * 4);
            for (int i = 0; i < 130;
                 i++) { /* score = size, exactly, for all keys; or two levels, one of them negligible */
                q[i * 8] = 1;
                key[i * 8] = (float)sizes[k] * (two && i % 2 ? 2.0f : 1.0f);
            }
            splat_mask *mask = mask_of("causal", 130, 130, SPLAT_ALIGN_BOTTOM_RIGHT);
            struct dense truth = dense_new(130, 130);
            for (int at = 0; at < 130 * 130; at++)
                truth.bytes[at] = at % 130 <= at / 130;
            problem_run(&p, mask);
            char what[60];
            snprintf(what, sizeof what, "scores of %g, %d level(s)", sizes[k], two + 1);
            const struct dense *one = &truth;
            problem_check_map(&p, &one, 0, fabs(sizes[k]) < 1e7 ? 0 : 1e-5, what);
            dense_free(&truth);
            splat_mask_destroy(mask);
            problem_free(&p);
        }
}

/* ---- Masks by head ---- */

static void maps_give_every_head_its_mask(void **state)
{
    (void)state;
    struct rng rng = {12};
    for (int shape = 0; shape < 4; shape++) {
        int64_t map_batch = shape & 1 ? 2 : 1, map_heads = shape & 2 ? 3 : 1;
        struct problem p = {.dtype = SPLAT_BF16,
                            .layout = BSHD,
                            .batch = 2,
                            .heads = 3,
                            .kv_heads = 1,
                            .q_len = 100,
                            .kv_len = 90,
                            .head_dim = 64};
        struct dense dense[6];
        splat_mask *masks[6], *map = NULL;
        const struct dense *truth[6];
        for (int k = 0; k < map_batch * map_heads; k++) {
            dense[k] = dense_new(100, 90);
            if (k != 1) /* head 1 is all empty */
                dense_random(&dense[k], &rng);
            masks[k] = mask_from_dense(&dense[k]);
        }
        OK(splat_mask_map(masks, map_batch, map_heads, &map));
        for (int64_t b = 0; b < 2; b++)
            for (int64_t h = 0; h < 3; h++)
                truth[b * 3 + h] = &dense[(map_batch == 1 ? 0 : b) * map_heads + (map_heads == 1 ? 0 : h)];
        problem_fill(&p, &rng);
        problem_run(&p, map);
        problem_check_map(&p, truth, 1, 0, "a mask by batch and head");
        problem_free(&p);
        for (int k = 0; k < map_batch * map_heads; k++) {
            splat_mask_destroy(masks[k]);
            dense_free(&dense[k]);
        }
        splat_mask_destroy(map);
    }
}

/* ---- Bitwise ---- */

static void run_twice(struct problem *p, const splat_mask *a, const splat_mask *b, int threads_a, int threads_b,
                      const char *what)
{
    size_t bytes = p->o_size * element_size(p->dtype);
    void *o = need(bytes);
    float *lse = need(p->lse_count * 4);
    splat_context *first = context_of(threads_a), *second = context_of(threads_b);
    problem_run_in(p, a, first);
    memcpy(o, p->o, bytes);
    memcpy(lse, p->lse, p->lse_count * 4);
    problem_run_in(p, b, second);
    if (memcmp(o, p->o, bytes) != 0 || memcmp(lse, p->lse, p->lse_count * 4) != 0)
        FAIL("%s: not bitwise equal", what);
    for (size_t k = 0; k < p->o_size; k++)
        assert_true(element_get(p->o, (int64_t)k, p->dtype) ==
                    element_get(p->o, (int64_t)k, p->dtype)); /* no NaN */
    free(o);
    free(lse);
    splat_context_destroy(first);
    splat_context_destroy(second);
}

static void a_window_over_all_is_causal_bitwise(void **state)
{
    (void)state;
    struct rng rng = {13};
    static const int64_t lengths[] = {1, 2, 63, 65, 129, 300};
    for (int k = 0; k < 6; k++)
        for (enum splat_dtype dtype = SPLAT_FP16; dtype <= SPLAT_FP32; dtype++) {
            int64_t n = lengths[k];
            char text[40];
            snprintf(text, sizeof text, "window(%lld, 0)", (long long)n - 1);
            struct problem p = {.dtype = dtype, .batch = 1, .heads = 2, .q_len = n, .kv_len = n, .head_dim = 64};
            splat_mask *window = mask_of(text, n, n, SPLAT_ALIGN_BOTTOM_RIGHT);
            splat_mask *causal = mask_of("causal", n, n, SPLAT_ALIGN_BOTTOM_RIGHT);
            problem_fill(&p, &rng);
            run_twice(&p, window, causal, 1, 1, "window(S-1, 0) and causal");
            problem_free(&p);
            splat_mask_destroy(window);
            splat_mask_destroy(causal);
        }
}

static void runs_are_repeatable_and_independent_of_threads(void **state)
{
    (void)state;
    struct rng rng = {14};
    struct problem p = {.dtype = SPLAT_BF16, .batch = 2, .heads = 3, .q_len = 333, .kv_len = 333, .head_dim = 64};
    splat_mask *mask = mask_of("window(50) | rows(0, 20) | cols(0, 20)", 333, 333, SPLAT_ALIGN_BOTTOM_RIGHT);
    problem_fill(&p, &rng);
    for (int round = 0; round < 5; round++)
        run_twice(&p, mask, mask, 1 + round % 2, 2, "the same run again");
    run_twice(&p, mask, mask, 1, 4, "one thread and four");
    problem_free(&p);
    splat_mask_destroy(mask);
}

static void every_form_gives_the_same_output(void **state)
{
    (void)state;
    struct rng rng = {15};
    for (int round = 0; round < 12; round++) {
        struct shape s = {rng_between(&rng, 1, 200), rng_between(&rng, 1, 200), SPLAT_ALIGN_BOTTOM_RIGHT};
        static struct expression e;
        expression_random(&e, &s, &rng, 2);
        struct problem p = {.dtype = (enum splat_dtype)(round % 3),
                            .batch = 1,
                            .heads = 1,
                            .q_len = s.q,
                            .kv_len = s.kv,
                            .head_dim = 64};
        splat_mask *spoken = mask_of(e.text, s.q, s.kv, s.align), *bytes = mask_from_dense(&e.truth);
        problem_fill(&p, &rng);
        run_twice(&p, spoken, bytes, 2, 2, e.text);
        problem_check(&p, &e.truth, e.text);
        problem_free(&p);
        splat_mask_destroy(spoken);
        splat_mask_destroy(bytes);
        dense_free(&e.truth);
    }
}

static void forced_tiles_agree_with_the_reference(void **state)
{
    (void)state;
    struct rng rng = {16};
    splat_mask *mask = mask_of("causal & (blocks(96) | comb(32, 5))", 300, 300, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr *acsr = acsr_of(mask);
    struct dense truth = dense_new(300, 300);
    splat_context *context = context_of(2);
    dense_expand(&truth, acsr);
    int tried = 0;
    for (int64_t rows = 16; rows <= 256; rows += 16)
        for (int64_t cols = 16; cols <= 256; cols += 16) {
            struct problem p = {
                .dtype = SPLAT_FP32, .batch = 1, .heads = 1, .q_len = 300, .kv_len = 300, .head_dim = 64};
            splat_options options = problem_options(&p);
            splat_kernel *kernel = NULL;
            options.tile_rows = rows;
            options.tile_cols = cols;
            options.kv_heads = options.value_dim = 0;
            enum splat_status status = splat_compile(context, mask, &options, &kernel);
            if (status == SPLAT_UNSUPPORTED)
                continue;
            OK(status);
            tried++;
            problem_fill(&p, &rng);
            splat_attention_args args = problem_args(&p);
            OK(splat_run(kernel, &args, NULL));
            problem_check(&p, &truth, "a forced tile shape");
            problem_free(&p);
            splat_kernel_destroy(kernel);
        }
    assert_true(tried >= 2);
    splat_context_destroy(context);
    splat_acsr_destroy(acsr);
    splat_mask_destroy(mask);
    dense_free(&truth);
}

static void longer_sequences_with_many_tiles(void **state)
{
    (void)state;
    static const char *const expressions[] = {"causal & (window(127, 0) | strided(128))", "grid(32, 5)",
                                              "axial(32)", "window(100) | rows(0, 9) | cols(0, 9)",
                                              "banded_blocks(64,1,1) | random_blocks(64,3,0)"};
    struct rng rng = {17};
    for (int k = 0; k < 5; k++) {
        struct problem p = {.dtype = (enum splat_dtype)(k % 3),
                            .batch = 1,
                            .heads = 1,
                            .q_len = 1000,
                            .kv_len = 1000,
                            .head_dim = 64};
        solve(p, expressions[k], SPLAT_ALIGN_BOTTOM_RIGHT, &rng);
    }
}

static void conversions_of_the_test_are_sound(void **state)
{
    (void)state;
    for (int h = 0; h < 0x7c00; h++) {
        double value = half_value((uint16_t)h), next = half_value((uint16_t)(h + 1));
        assert_int_equal(half_of(value), h);
        assert_int_equal(half_of(-value), h | 0x8000);
        if (h < 0x7bff) /* ties go to the even neighbour */
            assert_int_equal(half_of((value + next) / 2), h + (h & 1));
    }
    assert_int_equal(half_of(1e6), 0x7c00);
    for (int b = 0; b < 0x7f80; b += 3)
        assert_int_equal(bf16_of(bf16_value((uint16_t)b)), b);
    assert_int_equal(bf16_of(1.00390625), 0x3f80); /* a tie: down to even */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_of_the_test_are_sound),
        cmocka_unit_test(every_type_and_head_dim),
        cmocka_unit_test(value_dim_may_differ),
        cmocka_unit_test(grouped_heads_batches_and_layouts),
        cmocka_unit_test(ragged_lengths_and_alignments),
        cmocka_unit_test(scale_is_honoured),
        cmocka_unit_test(lse_may_be_left_out),
        cmocka_unit_test(gaps_between_rows_are_left_alone),
        cmocka_unit_test(rows_with_nothing_allowed),
        cmocka_unit_test(rows_that_begin_late_or_end_early),
        cmocka_unit_test(masked_keys_may_hold_anything),
        cmocka_unit_test(large_scores_of_either_sign),
        cmocka_unit_test(maps_give_every_head_its_mask),
        cmocka_unit_test(a_window_over_all_is_causal_bitwise),
        cmocka_unit_test(runs_are_repeatable_and_independent_of_threads),
        cmocka_unit_test(every_form_gives_the_same_output),
        cmocka_unit_test(forced_tiles_agree_with_the_reference),
        cmocka_unit_test(longer_sequences_with_many_tiles),
    };
    return cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
}
