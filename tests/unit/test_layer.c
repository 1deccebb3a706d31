/* Kronecker-sparse layers on the CPU against a product in double precision; what they refuse; tiles for every
 * shape. */
#include <math.h>

#include "analysis/kron_plan.h"
#include "runtime/cpu_float.h"
#include "support.h"

struct layer_case {
    int count;
    int64_t factors[3][4];
    int64_t n, gap;
};

/* ---- Numbers ---- */

static double get(enum splat_dtype dtype, const void *data, int64_t i)
{
    if (dtype == SPLAT_FP32)
        return (double)((const float *)data)[i];
    uint16_t bits = ((const uint16_t *)data)[i];
    return (double)(dtype == SPLAT_BF16 ? sp_bf16_to_float(bits) : sp_fp16_to_float(bits));
}

static void put(enum splat_dtype dtype, void *data, int64_t i, double value)
{
    if (dtype == SPLAT_FP32)
        ((float *)data)[i] = (float)value;
    else
        ((uint16_t *)data)[i] =
            dtype == SPLAT_BF16 ? sp_float_to_bf16((float)value) : sp_float_to_fp16((float)value);
}

static void *numbers(enum splat_dtype dtype, int64_t count, struct rng *rng)
{
    void *data = malloc((size_t)count * sp_element_size(dtype) + 1);
    for (int64_t i = 0; i < count; i++)
        put(dtype, data, i, rng ? 2 * rng_unit(rng) - 1 : (double)NAN);
    return data;
}

struct array {
    enum splat_dtype dtype;
    void *data;
    int64_t features, n, stride;
    int batch_first;
};

static int64_t array_rows(const struct array *a)
{
    return a->batch_first ? a->n : a->features;
}

static struct array array_new(enum splat_dtype dtype, enum splat_layout layout, int64_t features, int64_t n,
                              int64_t gap, struct rng *rng)
{
    struct array a = {dtype, NULL, features, n, 0, layout == SPLAT_BATCH_FIRST};
    a.stride = (a.batch_first ? features : n) + gap;
    a.data = numbers(dtype, a.stride * array_rows(&a), rng);
    return a;
}

static int64_t place(const struct array *a, int64_t feature, int64_t sample)
{
    return a->batch_first ? sample * a->stride + feature : feature * a->stride + sample;
}

/* ---- The reference: values and the sums of their magnitudes ---- */

struct matrix {
    int64_t features, n;
    double *value, *reach;
};

static struct matrix matrix_new(int64_t features, int64_t n)
{
    return (struct matrix){features, n, calloc((size_t)(features * n), sizeof(double)),
                           calloc((size_t)(features * n), sizeof(double))};
}

static void matrix_free(struct matrix *m)
{
    free(m->value);
    free(m->reach);
}

static struct matrix matrix_of(const struct array *a)
{
    struct matrix m = matrix_new(a->features, a->n);
    for (int64_t f = 0; f < a->features; f++)
        for (int64_t s = 0; s < a->n; s++) {
            m.value[f * a->n + s] = get(a->dtype, a->data, place(a, f, s));
            m.reach[f * a->n + s] = fabs(m.value[f * a->n + s]);
        }
    return m;
}

/* Column of the l-th value of row r. */
static int64_t column_of(const int64_t k[4], int64_t r, int64_t l)
{
    return r / (k[1] * k[3]) * k[2] * k[3] + l * k[3] + r % k[3];
}

static struct matrix apply(const int64_t k[4], enum splat_dtype dtype, const void *w, int transposed,
                           const struct matrix *in)
{
    int64_t rows = k[0] * k[1] * k[3], n = in->n;
    struct matrix out = matrix_new(transposed ? k[0] * k[2] * k[3] : rows, n);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t l = 0; l < k[2]; l++) {
            int64_t to = transposed ? column_of(k, r, l) : r, from = transposed ? r : column_of(k, r, l);
            double weight = get(dtype, w, r * k[2] + l);
            for (int64_t s = 0; s < n; s++) {
                out.value[to * n + s] += weight * in->value[from * n + s];
                out.reach[to * n + s] += fabs(weight) * in->reach[from * n + s];
            }
        }
    return out;
}

static void check_value(const char *what, enum splat_dtype dtype, int64_t at, double got, double want, double reach,
                        int roundings)
{
    double one = dtype == SPLAT_BF16 ? 0x1p-8 : dtype == SPLAT_FP16 ? 0x1p-11 : 0x1p-21;
    double limit = 1.1 * one * roundings * reach + (dtype == SPLAT_FP16 ? 1e-6 : 1e-30);
    if (!(fabs(got - want) <= limit))
        FAIL("%s[%d] is %.9g, expected %.9g within %.2g", what, (int)at, got, want, limit);
}

static void check_array(const char *what, const struct array *got, const struct matrix *want, int roundings)
{
    for (int64_t f = 0; f < got->features; f++)
        for (int64_t s = 0; s < got->n; s++)
            check_value(what, got->dtype, f * got->n + s, get(got->dtype, got->data, place(got, f, s)),
                        want->value[f * got->n + s], want->reach[f * got->n + s], roundings);
    int64_t row = got->batch_first ? got->features : got->n;
    for (int64_t r = 0; r < array_rows(got); r++)
        for (int64_t g = row; g < got->stride; g++)
            if (!isnan(get(got->dtype, got->data, r * got->stride + g)))
                FAIL("%s: written between rows", what);
}

/* ---- One layer, both passes ---- */

static splat_layer *compile(const struct layer_case *c, const splat_layer_options *options, splat_context *context)
{
    splat_mask *masks[3];
    for (int f = 0; f < c->count; f++) {
        const int64_t *k = c->factors[f];
        char text[96];
        snprintf(text, sizeof text, "kron(%d, %d, %d, %d)", (int)k[0], (int)k[1], (int)k[2], (int)k[3]);
        masks[f] = mask_of(text, k[0] * k[1] * k[3], k[0] * k[2] * k[3], SPLAT_ALIGN_BOTTOM_RIGHT);
    }
    splat_layer *layer;
    OK(splat_layer_compile(context, (const splat_mask *const *)masks, c->count, options, &layer));
    for (int f = 0; f < c->count; f++)
        splat_mask_destroy(masks[f]);
    return layer;
}

struct run {
    struct array x, y, dy, dx;
    void *weights[3], *gradients[3], *bias, *workspace;
};

static void check_forward_and_backward(const struct layer_case *c, const struct run *r, enum splat_dtype dtype)
{
    struct matrix inputs[4] = {matrix_of(&r->x)};
    for (int f = 0; f < c->count; f++)
        inputs[f + 1] = apply(c->factors[f], dtype, r->weights[f], 0, &inputs[f]);
    struct matrix *last = &inputs[c->count];
    for (int64_t f = 0; f < last->features; f++)
        for (int64_t s = 0; s < c->n; s++) {
            last->value[f * c->n + s] += get(dtype, r->bias, f);
            last->reach[f * c->n + s] += fabs(get(dtype, r->bias, f));
        }
    check_array("y", &r->y, last, c->count);
    struct matrix gradient = matrix_of(&r->dy);
    for (int f = c->count - 1; f >= 0; f--) {
        const int64_t *k = c->factors[f];
        for (int64_t row = 0; row < k[0] * k[1] * k[3]; row++)
            for (int64_t l = 0; l < k[2]; l++) {
                double want = 0, reach = 0;
                for (int64_t s = 0; s < c->n; s++) {
                    int64_t dy_at = row * c->n + s, x_at = column_of(k, row, l) * c->n + s;
                    want += gradient.value[dy_at] * inputs[f].value[x_at];
                    reach += gradient.reach[dy_at] * inputs[f].reach[x_at];
                }
                check_value("a weight's gradient", dtype, row * k[2] + l,
                            get(dtype, r->gradients[f], row * k[2] + l), want, reach, c->count);
            }
        struct matrix next = apply(k, dtype, r->weights[f], 1, &gradient);
        matrix_free(&gradient);
        gradient = next;
    }
    check_array("dx", &r->dx, &gradient, c->count);
    matrix_free(&gradient);
    for (int f = 0; f <= c->count; f++)
        matrix_free(&inputs[f]);
}

static void run_layer(const struct layer_case *c, enum splat_dtype dtype, enum splat_layout layout, int threads)
{
    struct rng rng = {(uint64_t)c->n * 31 + (uint64_t)dtype};
    splat_context_options context_options;
    splat_context_options_init(&context_options);
    context_options.threads = threads;
    splat_context *context;
    OK(splat_context_create(&context_options, &context));
    splat_layer_options options;
    splat_layer_options_init(&options);
    options.dtype = dtype;
    options.layout = layout;
    options.gradients = 1;
    options.device = SPLAT_DEVICE_CPU;
    splat_layer *layer = compile(c, &options, context);
    int64_t inputs = splat_layer_inputs(layer), outputs = splat_layer_outputs(layer);
    struct run r = {
        .x = array_new(dtype, layout, inputs, c->n, c->gap, &rng),
        .y = array_new(dtype, layout, outputs, c->n, c->gap, NULL),
        .dy = array_new(dtype, layout, outputs, c->n, c->gap, &rng),
        .dx = array_new(dtype, layout, inputs, c->n, c->gap, NULL),
        .bias = numbers(dtype, outputs, &rng),
    };
    for (int f = 0; f < c->count; f++) {
        const int64_t *k = c->factors[f];
        r.weights[f] = numbers(dtype, k[0] * k[1] * k[2] * k[3], &rng);
        r.gradients[f] = numbers(dtype, k[0] * k[1] * k[2] * k[3], NULL);
    }
    size_t bytes;
    OK(splat_layer_workspace_bytes(layer, c->n, 1, &bytes));
    r.workspace = aligned_alloc(256, bytes + 256);
    splat_layer_args args;
    splat_layer_args_init(&args);
    args.n = c->n;
    args.weights = (const void *const *)r.weights;
    args.weight_gradients = r.gradients;
    args.x = r.x.data, args.x_stride = r.x.stride;
    args.y = r.y.data, args.y_stride = r.y.stride;
    args.dy = r.dy.data, args.dy_stride = r.dy.stride;
    args.dx = r.dx.data, args.dx_stride = r.dx.stride;
    args.bias = r.bias;
    args.workspace = r.workspace;
    args.workspace_bytes = bytes;
    OK(splat_layer_forward(layer, &args, NULL));
    OK(splat_layer_backward(layer, &args, NULL));
    check_forward_and_backward(c, &r, dtype);
    for (int f = 0; f < c->count; f++) {
        free(r.weights[f]);
        free(r.gradients[f]);
    }
    free(r.x.data), free(r.y.data), free(r.dy.data), free(r.dx.data), free(r.bias), free(r.workspace);
    splat_layer_destroy(layer);
    splat_context_destroy(context);
}

static const struct layer_case cases[] = {
    {1, {{2, 5, 7, 3}}, 33, 0},
    {1, {{1, 12, 8, 4}}, 16, 5},
    {1, {{6, 4, 4, 1}}, 1, 0},
    {1, {{3, 1, 6, 2}}, 20, 1},
    {1, {{2, 6, 1, 5}}, 17, 0},
    {1, {{1, 1, 1, 1}}, 3, 0},
    {1, {{32, 2, 2, 32}}, 40, 0},
    {2, {{6, 8, 8, 1}, {1, 12, 6, 8}}, 25, 3},
    {3, {{4, 2, 2, 1}, {2, 2, 2, 2}, {1, 2, 2, 4}}, 50, 0},
    {3, {{4, 3, 2, 1}, {2, 2, 3, 2}, {1, 5, 2, 4}}, 18, 2},
};

static void layers_match(void **state)
{
    (void)state;
    static const enum splat_dtype dtypes[] = {SPLAT_FP16, SPLAT_BF16, SPLAT_FP32};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        for (int t = 0; t < 3; t++)
            for (int layout = 0; layout < 2; layout++)
                run_layer(&cases[k], dtypes[t], (enum splat_layout)layout, 1 + (int)k % 2);
}

/* ---- Any source of the mask, and masks that are none ---- */

static void masks_and_options(void **state)
{
    (void)state;
    splat_context *context;
    OK(splat_context_create(NULL, &context));
    splat_layer_options options;
    splat_layer_options_init(&options);
    options.device = SPLAT_DEVICE_CPU;
    splat_mask *blocks = mask_of("blocks(4) & strided(2)", 16, 16, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_mask *causal = mask_of("causal", 16, 16, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_mask *wide = mask_of("full", 4, 32, SPLAT_ALIGN_BOTTOM_RIGHT);
    const splat_mask *one[] = {blocks}, *bad[] = {blocks, causal}, *unequal[] = {blocks, wide}, *null[] = {NULL};
    splat_layer *layer;
    OK(splat_layer_compile(context, one, 1, &options, &layer));
    splat_layer_factor factor;
    OK(splat_layer_get_factor(layer, 0, &factor));
    assert_true(factor.a == 4 && factor.b == 2 && factor.c == 2 && factor.d == 2);
    assert_int_equal(splat_layer_factors(layer), 1);
    assert_int_equal(splat_layer_device(layer), SPLAT_DEVICE_CPU);
    check_refused("index", splat_layer_get_factor(layer, 1, &factor), SPLAT_INVALID, "index is 1", NULL);
    splat_layer_destroy(layer);
    check_refused("causal", splat_layer_compile(context, bad, 2, &options, &layer), SPLAT_UNSUPPORTED,
                  "masks[1]: the mask is not Kronecker-sparse: row 1", NULL);
    check_refused("lengths", splat_layer_compile(context, unequal, 2, &options, &layer), SPLAT_INVALID,
                  "masks[1] has 32 columns", "rows, 16", NULL);
    check_refused("null", splat_layer_compile(context, null, 1, &options, &layer), SPLAT_INVALID,
                  "masks[0] is null", NULL);
    check_refused("count", splat_layer_compile(context, one, 17, &options, &layer), SPLAT_INVALID, "count is 17",
                  NULL);
    struct {
        int *field;
        int value;
        const char *word;
    } wrong[] = {
        {(int *)&options.dtype, 7, "dtype is 7"},   {&options.tf32, 1, "tf32 is 1"},
        {(int *)&options.layout, 2, "layout is 2"}, {&options.gradients, 2, "gradients is 2"},
        {(int *)&options.device, 9, "device is 9"}, {(int *)&options.arch, 70, "arch is 70"},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        int right = *wrong[k].field;
        *wrong[k].field = wrong[k].value;
        check_refused(wrong[k].word, splat_layer_compile(context, one, 1, &options, &layer), SPLAT_INVALID,
                      wrong[k].word, NULL);
        *wrong[k].field = right;
    }
    options.n = 0;
    check_refused("n", splat_layer_compile(context, one, 1, &options, &layer), SPLAT_INVALID, "n is 0", NULL);
    options.n = 1;
    options.struct_size = 0;
    check_refused("size", splat_layer_compile(context, one, 1, &options, &layer), SPLAT_INVALID,
                  "struct_size is 0", NULL);
    splat_mask_destroy(blocks);
    splat_mask_destroy(causal);
    splat_mask_destroy(wide);
    splat_context_destroy(context);
}

static void wrong_arguments(void **state)
{
    (void)state;
    splat_context *context;
    OK(splat_context_create(NULL, &context));
    splat_layer_options options;
    splat_layer_options_init(&options);
    options.device = SPLAT_DEVICE_CPU;
    options.dtype = SPLAT_FP32;
    const struct layer_case c = {2, {{2, 2, 2, 1}, {1, 3, 2, 2}}, 5, 0};
    splat_layer *layer = compile(&c, &options, context), *with_gradients;
    options.gradients = 1;
    with_gradients = compile(&c, &options, context);
    static float x[20], y[30], w0[8], w1[12], dx[20];
    _Alignas(256) static char workspace[4096];
    const void *weights[] = {w0, w1};
    void *gradients[] = {NULL, NULL};
    splat_layer_args good, a;
    splat_layer_args_init(&good);
    good.n = 5;
    good.weights = weights;
    good.x = x, good.y = y, good.dy = y, good.dx = dx;
    good.workspace = workspace, good.workspace_bytes = sizeof workspace;
    OK(splat_layer_forward(layer, &good, NULL));
#define REFUSES(change, word)                                                                                      \
    do {                                                                                                           \
        a = good;                                                                                                  \
        change;                                                                                                    \
        check_refused(#change, splat_layer_forward(layer, &a, NULL), SPLAT_INVALID, word, NULL);                   \
    } while (0)
    REFUSES(a.n = 0, "n is 0");
    REFUSES(a.x = NULL, "x is null");
    REFUSES(a.x = (char *)x + 1, "x is");
    REFUSES(a.y = x, "x and y are both");
    REFUSES(a.weights = NULL, "weights is null");
    REFUSES(a.x_stride = 3, "x_stride is 3; it must be at least the features of a sample, 4");
    REFUSES(a.y_stride = INT64_MAX, "does not fit 64 bits");
    REFUSES(a.workspace = NULL, "workspace is");
    REFUSES(a.workspace_bytes = 7, "of 7 bytes");
    REFUSES(a.workspace = workspace + 8, "aligned to 256 bytes");
    REFUSES(a.struct_size = 3, "struct_size is 3");
    REFUSES(a.bias = (char *)y + 2, "bias is");
    weights[1] = NULL;
    REFUSES((void)a, "weights[1] is null");
    weights[1] = w1;
    check_refused("stream", splat_layer_forward(layer, &good, x), SPLAT_INVALID, "stream is", NULL);
    check_refused("no gradients", splat_layer_backward(layer, &good, NULL), SPLAT_INVALID, "without gradients",
                  NULL);
    size_t bytes;
    check_refused("no gradients", splat_layer_workspace_bytes(layer, 5, 1, &bytes), SPLAT_INVALID,
                  "without gradients", NULL);
    OK(splat_layer_backward(with_gradients, &good, NULL));
    a = good;
    a.dx = NULL;
    a.weight_gradients = gradients;
    check_refused("nothing", splat_layer_backward(with_gradients, &a, NULL), SPLAT_INVALID, "nothing to compute",
                  NULL);
    a = good;
    a.dx = y;
    check_refused("dx is dy", splat_layer_backward(with_gradients, &a, NULL), SPLAT_INVALID, "dx and dy are both",
                  NULL);
    splat_layer_destroy(layer);
    splat_layer_destroy(with_gradients);
    splat_context_destroy(context);
}

/* ---- Tiles exist for every shape and fit the chip ---- */

static void every_shape_has_tiles(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {
        {64, 48, 48, 4},    {1, 48, 48, 4},   {6, 64, 64, 1},   {1, 768, 192, 2},  {6, 64, 256, 1},
        {4, 64, 64, 64},    {32, 96, 96, 4},  {4, 128, 128, 4}, {1, 256, 256, 16}, {1, 768, 768, 4},
        {16, 128, 128, 1},  {1, 32, 32, 32},  {32, 2, 2, 32},   {1, 1, 1, 1},      {1, 5, 7, 3},
        {1, 4096, 4096, 1}, {1, 3, 20000, 5}, {512, 2, 2, 512}, {1, 16384, 2, 16},
    };
    static const int64_t batches[] = {1, 16, 256, 1000, 4096, 25088, 1 << 30};
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (int64_t at = 0; at < 7 * 4 * 2 * 3 * 2; at++) {
            const int type = (int)(at / 7 % 4);
            struct sp_kron_problem p = {
                {shapes[k][0], shapes[k][1], shapes[k][2], shapes[k][3]},
                (enum sp_kron_pass)(at / 56 % 3),
                (enum splat_layout)(at / 28 % 2),
                type == 0   ? SPLAT_FP16
                : type == 1 ? SPLAT_BF16
                            : SPLAT_FP32,
                type == 3,
                at / 168 ? SPLAT_ARCH_SM80 : SPLAT_ARCH_SM90A,
                batches[at % 7],
                (int)(at / 7 % 2),
            };
            struct sp_kron_spec s = {0};
            struct sp_kron_grid grid;
            struct sp_kron_sizes sizes;
            double us = 0;
            sp_kron_plan(&p, &s, &us);
            sp_kron_grid_of(&p, &s, p.n, 132, &grid);
            sp_kron_sizes_of(&p, &s, p.n, &sizes);
            int64_t limit = p.arch == SPLAT_ARCH_SM80 ? 163 * 1024 : 227 * 1024;
            int runs = p.layout == SPLAT_BATCH_FIRST && p.kron.d > 1;
            assert_true(us > 0);
            if (s.small_rows) {
                assert_true(p.kron.b * p.kron.c <= 16 && (s.run == 1 || p.kron.d % s.run == 0) && grid.blocks > 0);
                continue;
            }
            assert_true(sp_kron_shared_bytes(&s) * s.blocks_per_sm <= limit);
            assert_int_equal(s.out_run, runs && p.pass != SP_KRON_WEIGHT_GRADIENT);
            assert_true(runs ? s.run > 1 && sizes.runs * s.run >= p.kron.d : s.run == 1);
            assert_true(grid.blocks > 0 && grid.splits * grid.split_depth >= sizes.depth &&
                        (grid.splits - 1) * grid.split_depth < sizes.depth && grid.split_depth % s.k_tile == 0);
            assert_true(s.keep_left == 0 || s.keep_left * s.k_tile >= sizes.depth);
            assert_true(s.keep_right == 0 || s.keep_right * s.k_tile >= sizes.depth);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_match),
        cmocka_unit_test(masks_and_options),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(every_shape_has_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
