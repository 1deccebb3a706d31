/* Masks: every input form says the same thing, strides are honoured, bad input is refused with a sentence. */
#include "brute.h"

#include "acsr/mask.h"

enum form { BYTES, BYTES_STRIDED, BITS, BLOCKS, CSR, CSR_SHUFFLED, CALLBACK, FROM_ACSR, FORMS };
static const char *const form_names[FORMS] = {"bytes", "bytes with a stride", "bits",     "blocks of 1 x 1",
                                              "CSR",   "CSR in any order",    "callback", "ACSR"};

static int allowed_of_dense(int64_t i, int64_t j, void *user)
{
    const struct dense *dense = user;
    if (i < 0 || i >= dense->q || j < 0 || j >= dense->kv)
        FAIL("callback asked for (%lld, %lld)", (long long)i, (long long)j);
    return dense->bytes[i * dense->kv + j] ? -5 : 0; /* any non-zero value allows */
}

static splat_mask *mask_as_csr(const struct dense *dense, struct rng *rng)
{
    splat_mask *mask = NULL;
    int64_t *indptr = need((size_t)(dense->q + 1) * 8), *indices = need((size_t)(dense->q * dense->kv) * 8), n = 0;
    for (int64_t i = 0; i < dense->q; i++) {
        indptr[i] = n;
        for (int64_t j = 0; j < dense->kv; j++)
            if (dense->bytes[i * dense->kv + j])
                indices[n++] = j;
        for (int64_t k = n - 1; rng && k > indptr[i]; k--) {
            int64_t other = rng_between(rng, indptr[i], k), swap = indices[k];
            indices[k] = indices[other];
            indices[other] = swap;
        }
    }
    indptr[dense->q] = n;
    OK(splat_mask_from_csr(indptr, indices, dense->q, dense->kv, &mask));
    free(indptr);
    free(indices);
    return mask;
}

/* Rows spaced by `stride` bytes; what lies between is set to 0xFF and must not be read as mask. */
static splat_mask *mask_as_rows(const struct dense *dense, int64_t stride, int bits)
{
    splat_mask *mask = NULL;
    uint8_t *rows = need((size_t)(dense->q * stride));
    memset(rows, 0xFF, (size_t)(dense->q * stride));
    for (int64_t i = 0; i < dense->q; i++)
        for (int64_t j = 0; j < dense->kv; j++) {
            uint8_t set = dense->bytes[i * dense->kv + j];
            if (!bits)
                rows[i * stride + j] = (uint8_t)(set * (1 + (i + j) % 255)); /* any non-zero byte allows */
            else if (!set)
                rows[i * stride + j / 8] = (uint8_t)(rows[i * stride + j / 8] & ~(1u << (j % 8)));
        }
    if (bits)
        OK(splat_mask_from_bits(rows, dense->q, dense->kv, stride, &mask));
    else
        OK(splat_mask_from_bytes(rows, dense->q, dense->kv, stride, &mask));
    free(rows); /* the input is read once: it may go at once */
    return mask;
}

static splat_mask *mask_in_form(const struct dense *dense, enum form form, struct rng *rng)
{
    splat_mask *mask = NULL, *first = NULL;
    splat_acsr *acsr = NULL;
    switch (form) {
    case BYTES:
        return mask_as_rows(dense, dense->kv, 0);
    case BYTES_STRIDED:
        return mask_as_rows(dense, dense->kv + rng_between(rng, 1, 70), 0);
    case BITS:
        return mask_as_rows(dense, (dense->kv + 7) / 8 + rng_between(rng, 0, 9), 1);
    case BLOCKS:
        OK(splat_mask_from_blocks(dense->bytes, dense->q, dense->kv, 1, 1, dense->kv, &mask));
        return mask;
    case CSR:
        return mask_as_csr(dense, NULL);
    case CSR_SHUFFLED:
        return mask_as_csr(dense, rng);
    case CALLBACK:
        OK(splat_mask_from_callback(allowed_of_dense, (void *)(uintptr_t)dense, dense->q, dense->kv, &mask));
        return mask;
    default:
        first = mask_from_dense(dense);
        acsr = acsr_of(first);
        OK(splat_mask_from_acsr(acsr, &mask));
        splat_mask_destroy(first);
        splat_acsr_destroy(acsr); /* retained by the mask */
        return mask;
    }
}

static void every_form_gives_the_same_acsr(void **state)
{
    (void)state;
    struct rng rng = {8};
    for (int round = 0; round < 120; round++) {
        struct dense dense = dense_new(rng_between(&rng, 1, 90), rng_between(&rng, 1, 300));
        if (round % 3) {
            struct shape s = {dense.q, dense.kv, SPLAT_ALIGN_BOTTOM_RIGHT};
            struct pattern p = random_pattern(&s, &rng);
            pattern_dense(&p, &s, &dense);
        } else {
            dense_random(&dense, &rng);
        }
        splat_mask *reference = mask_from_dense(&dense);
        splat_acsr *want = acsr_of(reference);
        for (enum form form = BYTES; form < FORMS; form++) {
            splat_mask *mask = mask_in_form(&dense, form, &rng);
            assert_int_equal(splat_mask_q_len(mask), dense.q);
            assert_int_equal(splat_mask_kv_len(mask), dense.kv);
            splat_acsr *got = acsr_of(mask);
            check_acsr_is(got, &dense, form_names[form]);
            if (!splat_acsr_equal(got, want))
                FAIL("%s: another ACSR than from bytes", form_names[form]);
            splat_acsr_destroy(got);
            splat_mask_destroy(mask);
        }
        splat_acsr_destroy(want);
        splat_mask_destroy(reference);
        dense_free(&dense);
    }
}

static void block_masks_cover_ragged_edges(void **state)
{
    (void)state;
    struct rng rng = {6};
    for (int round = 0; round < 200; round++) {
        int64_t q = rng_between(&rng, 1, 130), kv = rng_between(&rng, 1, 130), br = rng_between(&rng, 1, 150);
        int64_t bc = rng_between(&rng, 1, 150), rows = (q + br - 1) / br, cols = (kv + bc - 1) / bc;
        int64_t stride = cols + rng_between(&rng, 0, 5);
        uint8_t *blocks = need((size_t)(rows * stride));
        memset(blocks, 0xFF, (size_t)(rows * stride));
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                blocks[r * stride + c] = (uint8_t)(rng_between(&rng, 0, 2) * 85);
        struct dense want = dense_new(q, kv);
        for (int64_t i = 0; i < q; i++)
            for (int64_t j = 0; j < kv; j++)
                want.bytes[i * kv + j] = blocks[(i / br) * stride + j / bc] != 0;
        splat_mask *mask = NULL;
        OK(splat_mask_from_blocks(blocks, q, kv, br, bc, stride, &mask));
        free(blocks);
        splat_acsr *acsr = acsr_of(mask);
        check_acsr_is(acsr, &want, "blocks");
        splat_acsr_destroy(acsr);
        splat_mask_destroy(mask);
        dense_free(&want);
    }
}

struct order {
    int64_t next, kv;
};

static int in_order(int64_t i, int64_t j, void *user)
{
    struct order *order = user;
    assert_int_equal(i * order->kv + j, order->next);
    order->next++;
    return 0;
}

static void callbacks_run_once_a_pair_row_by_row(void **state)
{
    (void)state;
    struct order order = {0, 13};
    splat_mask *mask = NULL;
    OK(splat_mask_from_callback(in_order, &order, 7, 13, &mask));
    splat_acsr *acsr = acsr_of(mask);
    assert_int_equal(order.next, 7 * 13);
    assert_int_equal(splat_acsr_pairs(acsr), 0);
    splat_acsr_destroy(acsr);
    splat_mask_destroy(mask);
}

static void random_blocks_draws_distinct_columns(void **state)
{
    (void)state;
    splat_acsr *a = acsr_of_expression("random_blocks(16, 3, 5)", 512, 512, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr *b = acsr_of_expression("random_blocks(16, 3, 5)", 512, 512, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr *c = acsr_of_expression("random_blocks(16, 3, 6)", 512, 512, SPLAT_ALIGN_BOTTOM_RIGHT);
    assert_true(splat_acsr_equal(a, b));
    assert_false(splat_acsr_equal(a, c));
    assert_int_equal(splat_acsr_pairs(a), 512 * 3 * 16);
    splat_acsr_destroy(a);
    splat_acsr_destroy(b);
    splat_acsr_destroy(c);
}

/* ---- Maps ---- */

static void maps_merge_equal_masks(void **state)
{
    (void)state;
    struct rng rng = {17};
    struct dense dense = dense_new(33, 65), causal = dense_new(33, 65);
    dense_random(&dense, &rng);
    for (int64_t i = 0; i < 33; i++)
        for (int64_t j = 0; j < 65; j++)
            causal.bytes[i * 65 + j] = j <= i + 32;
    splat_mask *a = mask_from_dense(&dense), *b = mask_in_form(&dense, BITS, &rng),
               *c = mask_in_form(&dense, CSR, &rng);
    splat_mask *e = mask_of("causal", 33, 65, SPLAT_ALIGN_BOTTOM_RIGHT), *f = mask_from_dense(&causal);
    splat_mask *entries[8] = {a, b, e, c, f, e, a, f}, *map = NULL;
    OK(splat_mask_map(entries, 2, 4, &map));
    splat_mask *owned[] = {a, b, c, e, f};
    for (int k = 0; k < 5; k++)
        splat_mask_destroy(owned[k]); /* the map retains them */
    assert_int_equal(splat_mask_q_len(map), 33);
    splat_options options;
    splat_options_init(&options);
    options.head_dim = 64;
    splat_plan *plan = NULL;
    splat_plan_info info;
    splat_plan_info_init(&info);
    OK(splat_plan_create(map, &options, &plan));
    OK(splat_plan_get_info(plan, &info));
    assert_int_equal(info.masks, 2); /* the expression and its bytes are one mask too */
    assert_int_equal(info.allowed_pairs, dense_pairs(&dense) + dense_pairs(&causal));
    splat_plan_destroy(plan);
    splat_mask_destroy(map);
    dense_free(&dense);
    dense_free(&causal);
}

/* Masks that differ in one pair of one irregular row are different masks. */
static void maps_keep_nearly_equal_masks_apart(void **state)
{
    (void)state;
    struct rng rng = {18};
    struct dense dense = dense_new(20, 500);
    for (int64_t at = 0; at < 20 * 500; at++)
        dense.bytes[at] = (uint8_t)(rng_next(&rng) >> 63);
    splat_mask *masks[9], *map = NULL;
    for (int k = 0; k < 9; k++) {
        int64_t at = rng_between(&rng, 0, 20 * 500 - 1);
        dense.bytes[at] ^= k > 0;
        masks[k] = mask_from_dense(&dense);
        dense.bytes[at] ^= k > 0;
    }
    OK(splat_mask_map(masks, 3, 3, &map));
    assert_int_equal(sp_mask_count(map), 9);
    for (int k = 0; k < 9; k++)
        splat_mask_destroy(masks[k]);
    splat_mask_destroy(map);
    dense_free(&dense);
}

/* As many as a quadratic search would take minutes for. */
static void maps_hold_many_masks(void **state)
{
    (void)state;
    enum { COUNT = 300000 };
    splat_mask **masks = need(COUNT * sizeof *masks), *map = NULL;
    for (int k = 0; k < COUNT; k++) {
        char text[40];
        snprintf(text, sizeof text, "cols(0, %d)", k % (COUNT / 2));
        masks[k] = mask_of(text, 8, 8, SPLAT_ALIGN_BOTTOM_RIGHT);
    }
    OK(splat_mask_map(masks, 3, COUNT / 3, &map));
    assert_int_equal(sp_mask_count(map), COUNT / 2);
    for (int k = 0; k < COUNT; k++)
        assert_int_equal(map->map[k], k % (COUNT / 2));
    for (int k = 0; k < COUNT; k++)
        splat_mask_destroy(masks[k]);
    splat_mask_destroy(map);
    free(masks);
}

static void maps_refuse_what_they_cannot_hold(void **state)
{
    (void)state;
    splat_mask *a = mask_of("causal", 8, 8, SPLAT_ALIGN_BOTTOM_RIGHT),
               *b = mask_of("causal", 8, 9, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_mask *two[] = {a, b}, *hole[] = {a, NULL}, *same[] = {a, a}, *map = NULL, *nested = NULL;
    REFUSED(splat_mask_map(two, 1, 2, &nested), SPLAT_INVALID, "8", "9");
    REFUSED(splat_mask_map(hole, 2, 1, &nested), SPLAT_INVALID, "1");
    REFUSED(splat_mask_map(NULL, 1, 1, &nested), SPLAT_INVALID, "masks");
    REFUSED(splat_mask_map(same, 0, 1, &nested), SPLAT_INVALID, "batch", "0");
    REFUSED(splat_mask_map(same, 1, -2, &nested), SPLAT_INVALID, "heads", "-2");
    OK(splat_mask_map(same, 2, 1, &map));
    REFUSED(splat_mask_map(&map, 1, 1, &nested), SPLAT_INVALID, "map");
    assert_null(nested);
    splat_mask_destroy(map);
    splat_mask_destroy(a);
    splat_mask_destroy(b);
    splat_mask_destroy(NULL);
}

/* ---- Refusals ---- */

static void lengths_are_checked_by_every_form(void **state)
{
    (void)state;
    static const int64_t bad[] = {0, -1, SPLAT_MAX_LEN + 1, INT64_MIN, INT64_MAX};
    uint8_t bytes[64] = {0};
    int64_t indptr[9] = {0}, indices[8] = {0};
    splat_mask *mask = NULL;
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        char value[32];
        snprintf(value, sizeof value, "%lld", (long long)bad[k]);
        REFUSED(splat_mask_from_expression("full", bad[k], 8, SPLAT_ALIGN_TOP_LEFT, &mask), SPLAT_INVALID, "q_len",
                value);
        REFUSED(splat_mask_from_expression("full", 8, bad[k], SPLAT_ALIGN_TOP_LEFT, &mask), SPLAT_INVALID, "kv_len",
                value);
        REFUSED(splat_mask_from_bytes(bytes, bad[k], 8, 8, &mask), SPLAT_INVALID, "q_len", value);
        REFUSED(splat_mask_from_bytes(bytes, 8, bad[k], INT64_MAX, &mask), SPLAT_INVALID, "kv_len", value);
        REFUSED(splat_mask_from_bits(bytes, bad[k], 8, 8, &mask), SPLAT_INVALID, "q_len", value);
        REFUSED(splat_mask_from_bits(bytes, 8, bad[k], INT64_MAX, &mask), SPLAT_INVALID, "kv_len", value);
        REFUSED(splat_mask_from_blocks(bytes, bad[k], 8, 1, 1, 8, &mask), SPLAT_INVALID, "q_len", value);
        REFUSED(splat_mask_from_blocks(bytes, 8, bad[k], 1, 1, INT64_MAX, &mask), SPLAT_INVALID, "kv_len", value);
        REFUSED(splat_mask_from_csr(indptr, indices, bad[k], 8, &mask), SPLAT_INVALID, "q_len", value);
        REFUSED(splat_mask_from_csr(indptr, indices, 8, bad[k], &mask), SPLAT_INVALID, "kv_len", value);
        REFUSED(splat_mask_from_callback(in_order, NULL, bad[k], 8, &mask), SPLAT_INVALID, "q_len", value);
        REFUSED(splat_mask_from_callback(in_order, NULL, 8, bad[k], &mask), SPLAT_INVALID, "kv_len", value);
    }
    assert_null(mask);
}

static void strides_blocks_and_pointers_are_checked(void **state)
{
    (void)state;
    uint8_t bytes[64] = {0};
    splat_mask *mask = NULL;
    REFUSED(splat_mask_from_bytes(bytes, 4, 8, 7, &mask), SPLAT_INVALID, "row_stride", "7", "8");
    REFUSED(splat_mask_from_bytes(bytes, 4, 8, -8, &mask), SPLAT_INVALID, "row_stride", "-8");
    REFUSED(splat_mask_from_bits(bytes, 4, 9, 1, &mask), SPLAT_INVALID, "row_stride", "1", "2");
    REFUSED(splat_mask_from_blocks(bytes, 4, 8, 2, 3, 2, &mask), SPLAT_INVALID, "row_stride", "2", "3");
    REFUSED(splat_mask_from_blocks(bytes, 4, 8, 0, 3, 3, &mask), SPLAT_INVALID, "block_rows", "0");
    REFUSED(splat_mask_from_blocks(bytes, 4, 8, 2, -3, 3, &mask), SPLAT_INVALID, "block_cols", "-3");
    /* row_stride * rows beyond 2^63; one row has no stride */
    REFUSED(splat_mask_from_bytes(bytes, 4, 8, INT64_MAX / 2, &mask), SPLAT_INVALID, "row_stride",
            "4611686018427387903", "4 rows", "2305843009213693951");
    REFUSED(splat_mask_from_bits(bytes, 2, 8, INT64_MAX, &mask), SPLAT_INVALID, "row_stride", "2 rows");
    REFUSED(splat_mask_from_blocks(bytes, 9, 8, 4, 8, INT64_MAX / 2, &mask), SPLAT_INVALID, "row_stride", "3 rows");
    OK(splat_mask_from_blocks(bytes, 4, 8, 4, 8, INT64_MAX, &mask));
    splat_mask_destroy(mask);
    OK(splat_mask_from_bits(bytes, 1, 8, INT64_MAX, &mask));
    splat_mask_destroy(mask);
    mask = NULL;
    REFUSED(splat_mask_from_bytes(NULL, 4, 8, 8, &mask), SPLAT_INVALID, "bytes");
    REFUSED(splat_mask_from_bits(NULL, 4, 8, 1, &mask), SPLAT_INVALID, "bits");
    REFUSED(splat_mask_from_blocks(NULL, 4, 8, 1, 1, 8, &mask), SPLAT_INVALID, "blocks");
    REFUSED(splat_mask_from_callback(NULL, NULL, 4, 8, &mask), SPLAT_INVALID, "allowed");
    REFUSED(splat_mask_from_expression(NULL, 4, 8, SPLAT_ALIGN_TOP_LEFT, &mask), SPLAT_INVALID, "expression");
    REFUSED(splat_mask_from_expression("full", 4, 8, (enum splat_align)7, &mask), SPLAT_INVALID, "align", "7");
    REFUSED(splat_mask_from_expression("full", 4, 8, SPLAT_ALIGN_TOP_LEFT, NULL), SPLAT_INVALID, "mask");
    REFUSED(splat_mask_from_bytes(bytes, 4, 8, 8, NULL), SPLAT_INVALID, "mask");
    REFUSED(splat_acsr_create(NULL, NULL), SPLAT_INVALID, "mask");
    REFUSED(splat_mask_from_acsr(NULL, &mask), SPLAT_INVALID, "acsr");
    assert_null(mask);
}

static void csr_is_checked(void **state)
{
    (void)state;
    splat_mask *mask = NULL;
    const int64_t good[] = {0, 2, 3}, falling[] = {0, 2, 1}, late[] = {1, 2, 3}, negative[] = {-1, 0, 1};
    const int64_t fine[] = {0, 7, 3}, beyond[] = {0, 8, 3}, below[] = {0, -1, 3}, twice[] = {5, 5, 3};
    const int64_t empty[] = {0, 0, 0};
    OK(splat_mask_from_csr(good, fine, 2, 8, &mask));
    splat_mask_destroy(mask);
    OK(splat_mask_from_csr(empty, NULL, 2, 8, &mask)); /* nothing to index: no array needed */
    splat_mask_destroy(mask);
    mask = NULL;
    REFUSED(splat_mask_from_csr(good, beyond, 2, 8, &mask), SPLAT_INVALID, "8", "row 0");
    REFUSED(splat_mask_from_csr(good, below, 2, 8, &mask), SPLAT_INVALID, "-1", "row 0");
    REFUSED(splat_mask_from_csr(good, twice, 2, 8, &mask), SPLAT_INVALID, "5", "row 0");
    REFUSED(splat_mask_from_csr(falling, fine, 2, 8, &mask), SPLAT_INVALID, "indptr");
    REFUSED(splat_mask_from_csr(late, fine, 2, 8, &mask), SPLAT_INVALID, "indptr");
    REFUSED(splat_mask_from_csr(negative, fine, 2, 8, &mask), SPLAT_INVALID, "indptr");
    REFUSED(splat_mask_from_csr(NULL, fine, 2, 8, &mask), SPLAT_INVALID, "indptr");
    const int64_t returns[] = {0, 1, 2, 0}; /* no column may be read before all of indptr is known to be sound */
    REFUSED(splat_mask_from_csr(returns, NULL, 3, 3, &mask), SPLAT_INVALID, "indptr");
    REFUSED(splat_mask_from_csr(good, NULL, 2, 8, &mask), SPLAT_INVALID, "indices");
    assert_null(mask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_gives_the_same_acsr),
        cmocka_unit_test(block_masks_cover_ragged_edges),
        cmocka_unit_test(callbacks_run_once_a_pair_row_by_row),
        cmocka_unit_test(random_blocks_draws_distinct_columns),
        cmocka_unit_test(maps_merge_equal_masks),
        cmocka_unit_test(maps_keep_nearly_equal_masks_apart),
        cmocka_unit_test(maps_hold_many_masks),
        cmocka_unit_test(maps_refuse_what_they_cannot_hold),
        cmocka_unit_test(lengths_are_checked_by_every_form),
        cmocka_unit_test(strides_blocks_and_pointers_are_checked),
        cmocka_unit_test(csr_is_checked),
    };
    return cmocka_run_group_tests_name("inputs", tests, NULL, NULL);
}
