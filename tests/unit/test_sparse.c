/* The operators on values on the CPU engine against double precision on dense masks, in every form that masks come
 * in; the order of values, CSR and the transposed mask; and what splat_run_sparse refuses. */
#include "attention.h"

/* ---- The order of values ---- */

static void check_order(const struct dense *dense, const char *what)
{
    splat_mask *mask = mask_from_dense(dense), *again = NULL, *back = NULL;
    splat_acsr *acsr = acsr_of(mask), *turned = NULL, *twice = NULL;
    const int64_t pairs = dense_pairs(dense);
    int64_t *offsets = need((size_t)(dense->q + 1) * 8), *indptr = need((size_t)(dense->q + 1) * 8);
    int64_t *indices = need((size_t)pairs * 8), at = 0;
    OK(splat_acsr_row_offsets(acsr, offsets));
    OK(splat_acsr_to_csr(acsr, indptr, indices));
    for (int64_t i = 0; i < dense->q; i++) {
        if (offsets[i] != at || indptr[i] != at)
            FAIL("%s: row %lld begins at %lld and %lld, expected %lld", what, (long long)i, (long long)offsets[i],
                 (long long)indptr[i], (long long)at);
        for (int64_t j = 0; j < dense->kv; j++)
            if (dense->bytes[i * dense->kv + j] && indices[at++] != j)
                FAIL("%s: value %lld is of column %lld, expected %lld", what, (long long)at - 1,
                     (long long)indices[at - 1], (long long)j);
    }
    assert_int_equal(offsets[dense->q], pairs);
    assert_int_equal(indptr[dense->q], pairs);
    OK(splat_mask_from_csr(indptr, indices, dense->q, dense->kv, &again));
    OK(splat_mask_from_acsr(acsr, &back));
    splat_acsr *same = acsr_of(again);
    assert_true(splat_acsr_equal(acsr, same));

    struct dense other = dense_new(dense->kv, dense->q);
    for (int64_t i = 0; i < dense->q; i++)
        for (int64_t j = 0; j < dense->kv; j++)
            other.bytes[j * dense->q + i] = dense->bytes[i * dense->kv + j];
    OK(splat_acsr_transpose(acsr, &turned));
    check_acsr_is(turned, &other, what);
    OK(splat_acsr_transpose(turned, &twice));
    assert_true(splat_acsr_equal(acsr, twice));
    dense_free(&other);
    splat_acsr_destroy(same);
    splat_acsr_destroy(twice);
    splat_acsr_destroy(turned);
    splat_acsr_destroy(acsr);
    splat_mask_destroy(again);
    splat_mask_destroy(back);
    splat_mask_destroy(mask);
    free(offsets);
    free(indptr);
    free(indices);
}

static void values_are_in_the_order_of_csr(void **state)
{
    (void)state;
    struct rng rng = {7};
    static const int64_t sizes[][2] = {{1, 1}, {1, 300}, {300, 1}, {64, 64}, {65, 127}, {130, 1100}, {1100, 63}};
    for (int turn = 0; turn < 42; turn++) {
        struct dense dense = dense_new(sizes[turn % 7][0], sizes[turn % 7][1]);
        dense_random(&dense, &rng);
        check_order(&dense, "random");
        dense_free(&dense);
    }
    for (int turn = 0; turn < 60; turn++) {
        struct shape shape = all_shapes[(size_t)turn % SHAPE_COUNT];
        struct pattern pattern = random_pattern(&shape, &rng);
        struct dense dense = dense_new(shape.q, shape.kv);
        char text[256];
        pattern_text(&pattern, text, sizeof text);
        pattern_dense(&pattern, &shape, &dense);
        check_order(&dense, text);
        /* and of the expression, whose families are long */
        splat_acsr *acsr = acsr_of_expression(text, shape.q, shape.kv, shape.align);
        int64_t *offsets = need((size_t)(shape.q + 1) * 8), at = 0;
        OK(splat_acsr_row_offsets(acsr, offsets));
        for (int64_t i = 0; i < shape.q; i++) {
            assert_int_equal(offsets[i], at);
            for (int64_t j = 0; j < shape.kv; j++)
                at += dense.bytes[i * shape.kv + j];
        }
        assert_int_equal(offsets[shape.q], at);
        free(offsets);
        splat_acsr_destroy(acsr);
        dense_free(&dense);
    }
}

static void long_masks_have_offsets_in_closed_form(void **state)
{
    (void)state;
    const int64_t length = (int64_t)1 << 20;
    splat_acsr *acsr = acsr_of_expression("causal", length, length, SPLAT_ALIGN_BOTTOM_RIGHT);
    int64_t *offsets = need((size_t)(length + 1) * 8);
    OK(splat_acsr_row_offsets(acsr, offsets));
    for (int64_t i = 0; i <= length; i += 4095)
        assert_int_equal(offsets[i], i * (i + 1) / 2);
    free(offsets);
    splat_acsr_destroy(acsr);
}

/* ---- Products and softmax ---- */

struct sizes {
    enum splat_dtype dtype;
    int64_t batch, heads, kv_heads, dim, layout;
};

static double rounding_of(enum splat_dtype dtype)
{
    return dtype == SPLAT_FP32 ? 0x1p-24 : dtype == SPLAT_BF16 ? 0x1p-8 : 0x1p-11;
}

static void compare(const char *what, const char *name, const struct sizes *s, double got, double want,
                    double reach, int64_t at)
{
    if (isnan(want) ? isnan(got)
                    : fabs(got - want) <= rounding_of(s->dtype) * fabs(want) + 1e-5 * reach + 1e-7 || got == want)
        return;
    FAIL("%s, %s, type %d, D %lld: number %lld is %.9g, expected %.9g", what, name, (int)s->dtype,
         (long long)s->dim, (long long)at, got, want);
}

static void *poisoned(const struct sizes *s, int64_t count)
{
    void *data = need((size_t)(count + GUARD) * element_size(s->dtype));
    memset(data, POISON, (size_t)(count + GUARD) * element_size(s->dtype));
    return data;
}

static void check_guard(const struct sizes *s, const void *data, int64_t count)
{
    for (size_t k = (size_t)count * element_size(s->dtype); k < (size_t)(count + GUARD) * element_size(s->dtype);
         k++)
        assert_int_equal(((const uint8_t *)data)[k], POISON);
}

static splat_kernel *kernel_of(splat_context *context, const splat_mask *mask, const struct sizes *s,
                               enum splat_op op)
{
    splat_kernel *kernel = NULL;
    splat_options options;
    splat_options_init(&options);
    options.op = op;
    options.dtype = s->dtype;
    options.device = SPLAT_DEVICE_CPU;
    options.head_dim = s->dim;
    options.batch = s->batch;
    options.heads = s->heads;
    options.kv_heads = op == SPLAT_OP_SPMM_TRANSPOSED ? s->heads : s->kv_heads;
    options.layout = s->layout;
    OK(splat_compile(context, mask, &options, &kernel));
    return kernel;
}

/* Every operator on one mask, all (batch, head) pairs. */
static void check_operators(splat_context *context, const splat_mask *mask, const struct dense *dense,
                            const char *what, const struct sizes *s, struct rng *rng)
{
    struct problem p = {
        .dtype = s->dtype, .batch = s->batch, .heads = s->heads, .kv_heads = s->kv_heads, .layout = BSHD};
    const int64_t q_len = dense->q, kv_len = dense->kv, pairs = dense_pairs(dense), stride = pairs + 3;
    const int64_t matrices = s->batch * s->heads;
    void *q = random_tensor(&p, matrices * q_len * s->dim, rng);
    void *k = random_tensor(&p, s->batch * s->kv_heads * kv_len * s->dim, rng);
    void *given = random_tensor(&p, matrices * stride + GUARD, rng), *values = poisoned(s, matrices * stride);
    void *y = poisoned(s, matrices * q_len * s->dim), *z = poisoned(s, matrices * kv_len * s->dim);
    float *lse = need((size_t)(matrices * q_len) * 4);
    element_set(k, place(&p, s->kv_heads, kv_len, s->dim, 0, 0, kv_len / 2, 1), s->dtype, NAN);
    splat_sparse_args args;
    splat_sparse_args_init(&args);
    args.batch = s->batch, args.heads = s->heads, args.kv_heads = s->kv_heads;
    args.q_len = q_len, args.kv_len = kv_len;
    args.q = tensor_of(&p, q, s->heads, q_len, s->dim);
    args.k = tensor_of(&p, k, s->kv_heads, kv_len, s->dim);
    args.values = (splat_values){values, s->heads * stride, stride};
    splat_kernel *kernel = kernel_of(context, mask, s, SPLAT_OP_SDDMM);
    OK(splat_run_sparse(kernel, &args, NULL));
    splat_kernel_destroy(kernel);
    for (int64_t m = 0; m < matrices; m++) {
        const int64_t b = m / s->heads, h = m % s->heads, kv_head = h / (s->heads / s->kv_heads);
        for (int64_t at = 0, i = 0; i < q_len; i++)
            for (int64_t j = 0; j < kv_len; j++) {
                if (!dense->bytes[i * kv_len + j])
                    continue;
                double want = 0, reach = 0;
                for (int64_t d = 0; d < s->dim; d++) {
                    double term =
                        element_get(q, place(&p, s->heads, q_len, s->dim, b, h, i, d), s->dtype) *
                        element_get(k, place(&p, s->kv_heads, kv_len, s->dim, b, kv_head, j, d), s->dtype);
                    want += term / sqrt((double)s->dim);
                    reach += fabs(term) / sqrt((double)s->dim);
                }
                compare(what, "sddmm", s, element_get(values, m * stride + at, s->dtype), want, reach, at);
                at++;
            }
        for (int64_t rest = pairs; rest < stride; rest++)
            assert_true(isnan(element_get(values, m * stride + rest, s->dtype)));
    }
    check_guard(s, values, matrices * stride);

    args.scores = (splat_values){given, s->heads * stride, stride};
    args.lse = lse, args.lse_head_stride = q_len, args.lse_batch_stride = s->heads * q_len, args.scale = 2.0f;
    kernel = kernel_of(context, mask, s, SPLAT_OP_SOFTMAX);
    OK(splat_run_sparse(kernel, &args, NULL));
    splat_kernel_destroy(kernel);
    for (int64_t m = 0; m < matrices; m++)
        for (int64_t begin = 0, end, i = 0; i < q_len; i++, begin = end) {
            double top = -INFINITY, sum = 0;
            end = begin;
            for (int64_t j = 0; j < kv_len; j++)
                end += dense->bytes[i * kv_len + j];
            for (int64_t at = begin; at < end; at++)
                top = fmax(top, 2 * element_get(given, m * stride + at, s->dtype));
            for (int64_t at = begin; at < end; at++)
                sum += exp(2 * element_get(given, m * stride + at, s->dtype) - top);
            for (int64_t at = begin; at < end; at++)
                compare(what, "softmax", s, element_get(values, m * stride + at, s->dtype),
                        exp(2 * element_get(given, m * stride + at, s->dtype) - top) / sum, 1, at);
            const double want = sum > 0 ? top + log(sum) : -INFINITY, got = (double)lse[m * q_len + i];
            if (!(got == want || fabs(got - want) < 1e-5))
                FAIL("%s: lse of row %lld is %.9g, expected %.9g", what, (long long)i, got, want);
        }
    check_guard(s, values, matrices * stride);

    /* A x and A^T x; the NaN in k, which is x here, shows where a row has a pair with it. */
    args.values = args.scores, args.scale = 0;
    args.x = args.k, args.y = tensor_of(&p, y, s->heads, q_len, s->dim);
    kernel = kernel_of(context, mask, s, SPLAT_OP_SPMM);
    OK(splat_run_sparse(kernel, &args, NULL));
    splat_kernel_destroy(kernel);
    args.kv_heads = s->heads;
    args.x = args.q, args.y = tensor_of(&p, z, s->heads, kv_len, s->dim);
    kernel = kernel_of(context, mask, s, SPLAT_OP_SPMM_TRANSPOSED);
    OK(splat_run_sparse(kernel, &args, NULL));
    splat_kernel_destroy(kernel);
    const size_t sums = (size_t)((q_len + kv_len) * s->dim);
    double *want = need(2 * sums * sizeof *want), *reach = want + sums;
    for (int64_t m = 0; m < matrices; m++) {
        const int64_t b = m / s->heads, h = m % s->heads, kv_head = h / (s->heads / s->kv_heads);
        memset(want, 0, 2 * sums * sizeof *want);
        for (int64_t at = 0, i = 0; i < q_len; i++)
            for (int64_t j = 0; j < kv_len; j++) {
                if (!dense->bytes[i * kv_len + j])
                    continue;
                const double a = element_get(given, m * stride + at++, s->dtype);
                for (int64_t d = 0; d < s->dim; d++) {
                    double down =
                        a * element_get(k, place(&p, s->kv_heads, kv_len, s->dim, b, kv_head, j, d), s->dtype);
                    double up = a * element_get(q, place(&p, s->heads, q_len, s->dim, b, h, i, d), s->dtype);
                    want[i * s->dim + d] += down, reach[i * s->dim + d] += fabs(down);
                    want[(q_len + j) * s->dim + d] += up, reach[(q_len + j) * s->dim + d] += fabs(up);
                }
            }
        for (int64_t n = 0; n < (q_len + kv_len) * s->dim; n++) {
            const int64_t row = n / s->dim, d = n % s->dim;
            const double got =
                row < q_len ? element_get(y, place(&p, s->heads, q_len, s->dim, b, h, row, d), s->dtype)
                            : element_get(z, place(&p, s->heads, kv_len, s->dim, b, h, row - q_len, d), s->dtype);
            compare(what, row < q_len ? "spmm" : "spmm transposed", s, got, want[n], reach[n], n);
        }
    }
    check_guard(s, y, matrices * q_len * s->dim);
    check_guard(s, z, matrices * kv_len * s->dim);
    free(want);
    free(q);
    free(k);
    free(given);
    free(values);
    free(y);
    free(z);
    free(lse);
}

static void operators_on_patterns(void **state)
{
    struct rng rng = {11};
    for (int turn = 0; turn < 40; turn++) {
        struct shape shape = all_shapes[(size_t)turn % SHAPE_COUNT];
        struct pattern pattern = random_pattern(&shape, &rng);
        struct dense dense = dense_new(shape.q, shape.kv);
        char text[256];
        pattern_text(&pattern, text, sizeof text);
        pattern_dense(&pattern, &shape, &dense);
        splat_mask *mask = mask_of(text, shape.q, shape.kv, shape.align);
        struct sizes sizes = {(enum splat_dtype)(turn % 3), 1, turn % 2 ? 2 : 1, 1, 8, 0};
        check_operators(*state, mask, &dense, text, &sizes, &rng);
        splat_mask_destroy(mask);
        dense_free(&dense);
    }
}

static void operators_under_views(void **state)
{
    struct rng rng = {12};
    static const struct {
        const char *text;
        int64_t layout;
    } cases[] = {{"dilated(40, 3)", 3}, {"strided(4)", 3}, {"dilated(20, 5)", 3}};
    for (int c = 0; c < 3; c++) {
        splat_mask *mask = mask_of(cases[c].text, 301, 301, SPLAT_ALIGN_BOTTOM_RIGHT);
        splat_acsr *acsr = acsr_of(mask);
        struct dense dense = dense_new(301, 301);
        dense_expand(&dense, acsr);
        struct sizes sizes = {SPLAT_FP32, 2, 2, 2, 16, cases[c].layout};
        check_operators(*state, mask, &dense, cases[c].text, &sizes, &rng);
        dense_free(&dense);
        splat_acsr_destroy(acsr);
        splat_mask_destroy(mask);
    }
}

/* The same pairs as bytes, bits, blocks, CSR, a function, an expression and an ACSR: the same bits come out. */
static int in_window(int64_t i, int64_t j, void *user)
{
    (void)user;
    return j <= i && i - j <= 40;
}

static void every_form_of_a_mask_gives_the_same_bits(void **state)
{
    enum { N = 130, FORMS = 5 };
    struct dense dense = dense_new(N, N);
    uint8_t bits[N][(N + 7) / 8] = {{0}};
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < N; j++)
            if (in_window(i, j, NULL)) {
                dense.bytes[i * N + j] = 1;
                bits[i][j / 8] |= (uint8_t)(1 << j % 8);
            }
    splat_mask *masks[FORMS];
    masks[0] = mask_of("window(40, 0)", N, N, SPLAT_ALIGN_BOTTOM_RIGHT);
    masks[1] = mask_from_dense(&dense);
    OK(splat_mask_from_bits(bits[0], N, N, sizeof bits[0], &masks[2]));
    OK(splat_mask_from_callback(in_window, NULL, N, N, &masks[3]));
    splat_acsr *acsr = acsr_of(masks[0]);
    int64_t *indptr = need((N + 1) * 8), *indices = need((size_t)splat_acsr_pairs(acsr) * 8);
    OK(splat_acsr_to_csr(acsr, indptr, indices));
    OK(splat_mask_from_csr(indptr, indices, N, N, &masks[4]));
    struct sizes s = {SPLAT_BF16, 1, 1, 1, 16, 0};
    struct problem p = {.dtype = s.dtype, .layout = BHSD};
    struct rng rng = {5};
    void *q = random_tensor(&p, N * 16, &rng), *k = random_tensor(&p, N * 16, &rng);
    const int64_t pairs = splat_acsr_pairs(acsr);
    void *values[FORMS];
    for (int f = 0; f < FORMS; f++) {
        splat_sparse_args args;
        splat_sparse_args_init(&args);
        args.q_len = args.kv_len = N;
        args.q = splat_tensor_bhsd(q, 1, N, 16), args.k = splat_tensor_bhsd(k, 1, N, 16);
        values[f] = poisoned(&s, pairs);
        args.values.data = values[f];
        splat_kernel *kernel = kernel_of(*state, masks[f], &s, SPLAT_OP_SDDMM);
        OK(splat_run_sparse(kernel, &args, NULL));
        splat_kernel_destroy(kernel);
        assert_memory_equal(values[0], values[f], (size_t)pairs * 2);
    }
    for (int f = 0; f < FORMS; f++) {
        free(values[f]);
        splat_mask_destroy(masks[f]);
    }
    free(q);
    free(k);
    free(indptr);
    free(indices);
    splat_acsr_destroy(acsr);
    dense_free(&dense);
}

/* ---- Refusals ---- */

static void refusals(void **state)
{
    struct sizes s = {SPLAT_FP32, 2, 4, 2, 16, 0};
    splat_mask *mask = mask_of("causal", 33, 65, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_acsr *acsr = acsr_of(mask);
    const int64_t pairs = splat_acsr_pairs(acsr);
    float *data = need(1 << 20), *out = need(1 << 20);
    int64_t number;
    splat_acsr *other;
    splat_kernel *sddmm = kernel_of(*state, mask, &s, SPLAT_OP_SDDMM),
                 *spmm = kernel_of(*state, mask, &s, SPLAT_OP_SPMM),
                 *turned = kernel_of(*state, mask, &s, SPLAT_OP_SPMM_TRANSPOSED),
                 *softmax = kernel_of(*state, mask, &s, SPLAT_OP_SOFTMAX),
                 *attention = kernel_of(*state, mask, &s, SPLAT_OP_ATTENTION);
    splat_sparse_args sound;
    splat_sparse_args_init(&sound);
    sound.batch = 2, sound.heads = 4, sound.kv_heads = 2, sound.q_len = 33, sound.kv_len = 65;
    sound.q = splat_tensor_bhsd(data, 4, 33, 16), sound.k = splat_tensor_bhsd(data, 2, 65, 16);
    sound.x = sound.k, sound.y = splat_tensor_bhsd(out, 4, 33, 16);
    sound.values = (splat_values){out, 4 * pairs, pairs};
    sound.scores = (splat_values){data, 4 * pairs, pairs};
    memset(data, 0, 1 << 20);
    OK(splat_run_sparse(sddmm, &sound, NULL));
    OK(splat_run_sparse(softmax, &sound, NULL));
#define BREAK(kernel, change, ...)                                                                                 \
    do {                                                                                                           \
        splat_sparse_args args = sound;                                                                            \
        change;                                                                                                    \
        REFUSED(splat_run_sparse(kernel, &args, NULL), SPLAT_INVALID, __VA_ARGS__);                                \
    } while (0)
    BREAK(sddmm, args.values.data = NULL, "values.data", "null");
    BREAK(sddmm, args.values.head_stride = pairs - 1, "values.head_stride", "overlap");
    BREAK(sddmm, args.values.batch_stride = pairs, "overlap");
    BREAK(sddmm, args.q.data = (char *)data + 1, "q.data", "aligned to 4");
    BREAK(sddmm, args.k.row_stride = -16, "k.row_stride is -16");
    BREAK(sddmm, args.q_len = 34, "34 x 65", "33 x 65");
    BREAK(sddmm, args.kv_heads = 3, "kv_heads is 3");
    BREAK(sddmm, args.batch = 0, "batch is 0");
    BREAK(sddmm, args.scale = -1.0f, "scale is -1");
    BREAK(sddmm, args.struct_size = 4, "splat_sparse_args");
    BREAK(softmax, args.scores.data = NULL, "scores.data");
    BREAK(softmax, (args.scores.data = out, args.scores.head_stride = 2 * pairs), "in place they must be equal");
    BREAK(softmax, (args.lse = data, args.lse_head_stride = 32), "lse_head_stride is 32");
    BREAK(spmm, args.y.row_stride = 8, "y.row_stride is 8");
    BREAK(spmm, args.x.data = NULL, "x.data");
    BREAK(turned, (void)args, "kv_heads is 2", "must be heads");
    BREAK(attention, (void)args, "SPLAT_OP_ATTENTION", "splat_run");
    REFUSED(splat_run_sparse(NULL, &sound, NULL), SPLAT_INVALID, "kernel is null");
    REFUSED(splat_run_sparse(sddmm, NULL, NULL), SPLAT_INVALID, "args is null");
    REFUSED(splat_run_sparse(sddmm, &sound, data), SPLAT_INVALID, "stream");
    splat_attention_args wrong;
    splat_attention_args_init(&wrong);
    REFUSED(splat_run(sddmm, &wrong, NULL), SPLAT_INVALID, "splat_run_sparse");
    splat_options options;
    splat_options_init(&options);
    options.head_dim = 16;
    options.op = (enum splat_op)9;
    splat_plan *plan = NULL;
    REFUSED(splat_plan_create(mask, &options, &plan), SPLAT_INVALID, "op is 9");
    REFUSED(splat_acsr_row_offsets(NULL, &number), SPLAT_INVALID, "acsr is null");
    REFUSED(splat_acsr_row_offsets(acsr, NULL), SPLAT_INVALID, "offsets is null");
    REFUSED(splat_acsr_to_csr(acsr, &number, NULL), SPLAT_INVALID, "indices is null");
    REFUSED(splat_acsr_transpose(NULL, &other), SPLAT_INVALID, "a is null");
    /* a layout in which a row's values would be out of order */
    splat_mask *grid = mask_of("grid(16, 5)", 200, 200, SPLAT_ALIGN_BOTTOM_RIGHT);
    options.op = SPLAT_OP_SDDMM;
    options.layout = 5;
    REFUSED(splat_plan_create(grid, &options, &plan), SPLAT_UNSUPPORTED, "layout is 5", "order of its columns");
    splat_mask_destroy(grid);
    splat_kernel_destroy(sddmm);
    splat_kernel_destroy(spmm);
    splat_kernel_destroy(turned);
    splat_kernel_destroy(softmax);
    splat_kernel_destroy(attention);
    splat_acsr_destroy(acsr);
    splat_mask_destroy(mask);
    free(data);
    free(out);
}

static int setup(void **state)
{
    *state = context_of(2);
    return 0;
}

static int teardown(void **state)
{
    splat_context_destroy(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_in_the_order_of_csr),
        cmocka_unit_test(long_masks_have_offsets_in_closed_form),
        cmocka_unit_test(operators_on_patterns),
        cmocka_unit_test(operators_under_views),
        cmocka_unit_test(every_form_of_a_mask_gives_the_same_bits),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("sparse", tests, setup, teardown);
}
