/* The toolchain self-check (selfcheck.h).
 *
 * Takes a kernel whose function is loaded. Gives SPLAT_OK when a small launch of it has the CPU engine's results.
 * Keeps true: the inputs are such that nothing but the last division and rounding may differ. Scores are small even
 * integers and the scale is ln 2 / 2, so that weights are powers of two, which 16 bits hold; values are multiples
 * of 1/64 up to 1, so that fp32 sums of them are exact in any order. A key that is left out or counted twice, or an
 * element that is read from another place, then shows in the results, far above the tolerance. Keys that no row may
 * see hold NaN and infinity.
 */
#include "runtime/selfcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "runtime/cpu_engine.h"
#include "runtime/cpu_float.h"

enum {
    HEADS = 2,          /* of q, and one of k and v */
    FOLDED_HEADS = 4,   /* likewise, where heads share row tiles */
    FEW_ROWS = 21,      /* of the second mask: so few that heads share row tiles, */
    MORE_ROWS = 85,     /* and so many that they do not */
    LONG_TILES = 16,    /* column tiles of the second mask: so many that row tiles come in parts */
    NONZERO = 6,        /* elements of a query, 2 or -2: scores are from -12 to 12 */
    RAGGED = 37,        /* rows of the last row tile */
    HIDDEN = 5,         /* keys behind all that a row may see */
    MULTIPROCESSORS = 2 /* of persistent kernels: few, so that a block takes several items */
};
#define SCALE         0.346573590f
#define LSE_TOLERANCE 1e-4
#define NONBLOCKING   1u /* CU_STREAM_NON_BLOCKING */

/* ---- The masks ---- */

/* Row tiles of the first mask: the first has a bound that moves beside one that does not, and rows that see
 * nothing; the last two, of which one is ragged, the lower edge of a window, wholly allowed tiles and the upper
 * edge. Between them lie row tiles that see nothing, or, for kernels that know more than bounds, an affine run,
 * steps and random blocks. */
enum splat_status sp_selfcheck_mask(const struct sp_spec *spec, splat_mask **mask)
{
    const int M = spec->tile_rows, N = spec->tile_cols, window = (M > N ? M : N) + N, near = N < 96 ? 96 : N;
    const int all = spec->predicate_mask >> SP_PRED_BITS & 1;
    const int last = all && window / M < 3 ? 4 : window / M + 1;
    const int rows = (last + 1) * M + RAGGED, keys = rows + HIDDEN;
    char text[512], second[96];
    int used =
        snprintf(text, sizeof text, "rows(0, %d) & causal & cols(30, %d) | rows(%d, %d) & causal & window(%d, 0)",
                 M, keys, last * M, rows, window);
    if (all)
        snprintf(text + used, sizeof text - (size_t)used,
                 " | rows(%d, %d) & causal & window(%d, 0) & strided(5) | rows(%d, %d) & blocks(40)"
                 " | rows(%d, %d) & causal & window(%d, 0) & random_blocks(8, 24, 1)",
                 M, 2 * M, near, 2 * M, 3 * M, 3 * M, 4 * M, near);
    splat_mask *masks[HEADS] = {NULL};
    enum splat_status status = splat_mask_from_expression(text, rows, keys, SPLAT_ALIGN_TOP_LEFT, &masks[0]);
    if (status != SPLAT_OK || !spec->mask_map) {
        *mask = masks[0];
        return status;
    }
    snprintf(second, sizeof second, "rows(0, %d) & causal", M);
    status = splat_mask_from_expression(second, rows, keys, SPLAT_ALIGN_TOP_LEFT, &masks[1]);
    if (status == SPLAT_OK)
        status = splat_mask_map(masks, 1, HEADS, mask);
    splat_mask_destroy(masks[0]);
    splat_mask_destroy(masks[1]);
    return status;
}

/* A few queries and many keys, of which the last are hidden. */
enum splat_status sp_selfcheck_long_mask(const struct sp_spec *spec, splat_mask **mask)
{
    const int seen = LONG_TILES * spec->tile_cols + RAGGED, keys = seen + HIDDEN;
    char text[128];
    if (spec->predicate_mask >> SP_PRED_BITS & 1)
        snprintf(text, sizeof text, "cols(0, %d) & (causal & window(%d, 0) | strided(5))", seen, seen / 2);
    else
        snprintf(text, sizeof text, "cols(0, %d)", seen);
    return splat_mask_from_expression(text, spec->fold ? FEW_ROWS : MORE_ROWS, keys, SPLAT_ALIGN_BOTTOM_RIGHT, mask);
}

/* ---- The problem ---- */

struct problem {
    splat_kernel *kernel; /* the function, with a plan and tables of its own */
    splat_plan *cpu_plan; /* for the CPU engine, where the kernel's is not for it */
    int64_t heads, rows, keys, dim, value_dim;
    enum splat_dtype dtype;
    /* Host memory: q, k, v; what the CPU gives, o and lse; what the device gives. Device memory: the first two. */
    unsigned char *host;
    sp_cu_pointer device;
    size_t k_at, v_at, o_at, lse_at, bytes; /* of q, k, v, o, lse */
    size_t workspace_bytes;                 /* behind them on the device */
};

static size_t rounded(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* For so many batches that no row tile is split. */
static enum splat_status plan_whole(const splat_mask *mask, const splat_options *options, splat_plan **plan)
{
    splat_options many = *options;
    many.batch = 4096;
    return splat_plan_create(mask, &many, plan);
}

/* Whether the kernel is tried on the second mask, with row tiles shared by heads or in parts as its own are. */
static int is_long(const struct sp_spec *spec)
{
    return spec->fold || spec->split;
}

/* Plans of the small kernel: `longer`: of the second mask. */
static enum splat_status make_plans(struct problem *p, const struct sp_spec *spec, int longer)
{
    splat_kernel *kernel = p->kernel;
    splat_mask *mask = NULL;
    enum splat_status status = longer ? sp_selfcheck_long_mask(spec, &mask) : sp_selfcheck_mask(spec, &mask);
    if (status == SPLAT_OK && spec->split && longer)
        status = splat_plan_create(mask, &kernel->options, &kernel->plan);
    else if (status == SPLAT_OK)
        status = plan_whole(mask, &kernel->options, &kernel->plan);
    if (status == SPLAT_OK && longer) {
        splat_options options = kernel->options;
        options.device = SPLAT_DEVICE_CPU, options.tile_rows = options.tile_cols = 0;
        status = splat_plan_create(mask, &options, &p->cpu_plan);
    }
    splat_mask_destroy(mask);
    return status;
}

/* The small kernel: all that splat_compile makes but for the module, which is not its own. */
static enum splat_status make_kernel(const splat_kernel *from, const struct sp_source *source,
                                     const struct sp_spec *spec, int longer, struct problem *p)
{
    struct sp_spec own;
    splat_kernel *kernel = calloc(1, sizeof *kernel);
    p->kernel = kernel;
    if (!kernel)
        return sp_no_memory("a kernel's self-check", sizeof *kernel);
    p->heads = longer && spec->fold ? FOLDED_HEADS : HEADS;
    kernel->refs = 1;
    kernel->options = from->options;
    kernel->options.batch = 1, kernel->options.heads = p->heads;
    kernel->options.kv_heads = 1;
    kernel->options.tile_rows = from->plan->tile_rows, kernel->options.tile_cols = from->plan->tile_cols;
    kernel->options.layout = 1;
    kernel->device = SPLAT_DEVICE_GPU;
    kernel->driver = from->driver;
    kernel->cu_context = from->cu_context;
    kernel->function = from->function;
    kernel->combine = from->combine;
    kernel->l2_bytes = from->l2_bytes;
    kernel->multiprocessors = MULTIPROCESSORS;
    enum splat_status status = make_plans(p, spec, longer);
    if (status != SPLAT_OK)
        return status;
    /* A shape may stand in the tune table for two families, and tiles do not depend on it. */
    kernel->plan->tune_row = from->plan->tune_row;
    status = sp_spec_make(kernel->plan, &kernel->options, from->options.arch, &own);
    if (status == SPLAT_OK &&
        (own.predicate_mask & ~spec->predicate_mask || own.lattice || own.merge || own.mask_map != spec->mask_map ||
         own.family != spec->family || own.fold != (longer && spec->fold) || own.split != (longer && spec->split)))
        status = sp_fail(SPLAT_INTERNAL, "the self-check's plan wants another kernel than the one to be checked");
    return status == SPLAT_OK ? sp_kernel_tables(kernel, source) : status;
}

/* splitmix64 */
static uint32_t draw(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(x >> 32);
}

static uint16_t narrow(enum splat_dtype dtype, float value)
{
    return dtype == SPLAT_BF16 ? sp_float_to_bf16(value) : sp_float_to_fp16(value);
}

static float widen(enum splat_dtype dtype, uint16_t bits)
{
    return dtype == SPLAT_BF16 ? sp_bf16_to_float(bits) : sp_fp16_to_float(bits);
}

static void fill_inputs(const struct problem *p)
{
    uint16_t *q = (uint16_t *)(void *)p->host, *k = (uint16_t *)(void *)(p->host + p->k_at),
             *v = (uint16_t *)(void *)(p->host + p->v_at);
    const uint16_t twos[2] = {narrow(p->dtype, 2.0f), narrow(p->dtype, -2.0f)},
                   ones[2] = {narrow(p->dtype, 1.0f), narrow(p->dtype, -1.0f)};
    uint64_t state = 1;
    for (int64_t row = 0; row < p->heads * p->rows; row++)
        for (int n = 0; n < NONZERO; n++)
            q[row * p->dim + draw(&state) % p->dim] = twos[draw(&state) & 1];
    for (int64_t at = 0; at < p->keys * p->dim; at++)
        k[at] = ones[draw(&state) & 1];
    for (int64_t at = 0; at < p->keys * p->value_dim; at++)
        v[at] = narrow(p->dtype, (float)((int)(draw(&state) % 129) - 64) / 64.0f);
    const int64_t hidden = p->keys - HIDDEN;
    k[hidden * p->dim] = narrow(p->dtype, NAN);
    v[hidden * p->value_dim + p->value_dim - 1] = narrow(p->dtype, NAN);
    v[(hidden + 1) * p->value_dim] = narrow(p->dtype, INFINITY);
}

static enum splat_status make_problem(const splat_kernel *from, const struct sp_source *source,
                                      const struct sp_spec *spec, int longer, struct problem *p)
{
    enum splat_status status = make_kernel(from, source, spec, longer, p);
    if (status == SPLAT_OK)
        status = splat_workspace_bytes(p->kernel, 1, p->heads, &p->workspace_bytes);
    if (status != SPLAT_OK)
        return status;
    p->rows = p->kernel->plan->q_len, p->keys = p->kernel->plan->kv_len;
    p->dim = from->options.head_dim, p->value_dim = from->options.value_dim;
    p->dtype = from->options.dtype;
    p->k_at = rounded((size_t)(p->heads * p->rows * p->dim) * sizeof(uint16_t));
    p->v_at = p->k_at + rounded((size_t)(p->keys * p->dim) * sizeof(uint16_t));
    p->o_at = p->v_at + rounded((size_t)(p->keys * p->value_dim) * sizeof(uint16_t));
    p->lse_at = p->o_at + rounded((size_t)(p->heads * p->rows * p->value_dim) * sizeof(uint16_t));
    p->bytes = p->lse_at + rounded((size_t)(p->heads * p->rows) * sizeof(float));
    const size_t host_bytes = p->bytes + (p->bytes - p->o_at);
    if (!(p->host = calloc(1, host_bytes)))
        return sp_no_memory("a kernel's self-check", host_bytes);
    fill_inputs(p);
    return SPLAT_OK;
}

/* ---- Both runs ---- */

static splat_attention_args args_at(const struct problem *p, unsigned char *base)
{
    splat_attention_args args;
    splat_attention_args_init(&args);
    args.heads = p->heads;
    args.kv_heads = 1;
    args.q_len = p->rows;
    args.kv_len = p->keys;
    args.q = splat_tensor_bhsd(base, p->heads, p->rows, p->dim);
    args.k = splat_tensor_bhsd(base + p->k_at, 1, p->keys, p->dim);
    args.v = splat_tensor_bhsd(base + p->v_at, 1, p->keys, p->value_dim);
    args.o = splat_tensor_bhsd(base + p->o_at, p->heads, p->rows, p->value_dim);
    args.lse = (float *)(void *)(base + p->lse_at);
    args.lse_head_stride = p->rows;
    args.lse_batch_stride = p->heads * p->rows;
    args.scale = SCALE;
    if (p->workspace_bytes) {
        args.workspace = base + p->bytes;
        args.workspace_bytes = p->workspace_bytes;
    }
    return args;
}

/* Results begin as NaN, so that what is not written shows. */
static enum splat_status run_on_device(struct problem *p)
{
    const struct sp_driver *driver = p->kernel->driver;
    sp_cu_stream stream = NULL;
    sp_cu_result result = driver->memory_alloc(&p->device, p->bytes + p->workspace_bytes);
    if (result != 0)
        p->device = 0;
    if (result == SP_CU_OUT_OF_MEMORY)
        return sp_fail(SPLAT_NO_MEMORY, "no device memory for a kernel's self-check: %zu bytes were asked for",
                       p->bytes + p->workspace_bytes);
    enum splat_status status = sp_driver_check(driver, result, "cuMemAlloc");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->copy_to_device(p->device, p->host, p->o_at), "cuMemcpyHtoD");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->memory_set(p->device + p->o_at, 0xFF, p->bytes - p->o_at),
                                 "cuMemsetD8");
    if (status == SPLAT_OK) /* our stream does not wait for the default one */
        status = sp_driver_check(driver, driver->stream_synchronize(NULL), "cuStreamSynchronize");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->stream_create(&stream, NONBLOCKING), "cuStreamCreate");
    if (status != SPLAT_OK)
        return status;
    splat_attention_args args = args_at(p, (unsigned char *)(uintptr_t)p->device);
    status = splat_run(p->kernel, &args, stream);
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
    driver->stream_destroy(stream);
    if (status == SPLAT_OK)
        status = sp_driver_check(driver,
                                 driver->copy_to_host(p->host + p->bytes, p->device + p->o_at, p->bytes - p->o_at),
                                 "cuMemcpyDtoH");
    return status;
}

/* One thread: a pool of them in the caller's process would cost more than it saves. */
static enum splat_status run_on_cpu(struct problem *p)
{
    splat_attention_args args = args_at(p, p->host);
    return sp_cpu_run(p->cpu_plan ? p->cpu_plan : p->kernel->plan, &p->kernel->options, &args, 1);
}

/* ---- The comparison ---- */

static enum splat_status fail(const struct problem *p, const char *element, double got, double want, double limit)
{
    const splat_kernel *kernel = p->kernel;
    int served = 0, nvrtc = 0;
    if (kernel->driver->driver_get_version(&served) != 0)
        served = 0;
    if (sp_nvrtc_version(&nvrtc) != SPLAT_OK)
        nvrtc = 0;
    return sp_fail(
        SPLAT_COMPILE,
        "the kernel (%s, head_dim %lld, value_dim %lld, tile %d x %d, sm_%d) gives wrong results on this "
        "device: %s is %.7g, the CPU gives %.7g, they may differ by %.2g; it was compiled by NVRTC "
        "%d.%d, the driver serves CUDA %d.%d: try another of them (SPLAT_NVRTC); SPLAT_SELF_CHECK=off "
        "uses kernels unchecked",
        p->dtype == SPLAT_BF16 ? "bf16" : "fp16", (long long)p->dim, (long long)p->value_dim,
        (int)kernel->plan->tile_rows, (int)kernel->plan->tile_cols, (int)kernel->options.arch, element, got, want,
        limit, nvrtc / 1000, nvrtc % 1000 / 10, served / 1000, served % 1000 / 10);
}

/* Reciprocals and sums in fp32 may round to the next of the numbers that 16 bits hold, so one step is allowed. */
static enum splat_status compare(const struct problem *p)
{
    const double step = p->dtype == SPLAT_BF16 ? 0x1p-7 : 0x1p-10;
    const unsigned char *want_at = p->host + p->o_at, *got_at = p->host + p->bytes;
    const uint16_t *want_o = (const uint16_t *)(const void *)want_at,
                   *got_o = (const uint16_t *)(const void *)got_at;
    const float *want_lse = (const float *)(const void *)(want_at + (p->lse_at - p->o_at)),
                *got_lse = (const float *)(const void *)(got_at + (p->lse_at - p->o_at));
    char element[96];
    for (int64_t row = 0; row < p->heads * p->rows; row++) {
        const double want = (double)want_lse[row], got = (double)got_lse[row];
        if (isinf(want) ? got != want : !(fabs(got - want) <= LSE_TOLERANCE)) {
            snprintf(element, sizeof element, "lse[head %d][row %d]", (int)(row / p->rows), (int)(row % p->rows));
            return fail(p, element, got, want, isinf(want) ? 0.0 : LSE_TOLERANCE);
        }
    }
    for (int64_t at = 0; at < p->heads * p->rows * p->value_dim; at++) {
        const int64_t row = at / p->value_dim;
        const double want = (double)widen(p->dtype, want_o[at]), got = (double)widen(p->dtype, got_o[at]);
        const double limit = isinf(want_lse[row]) ? 0.0 : step * fabs(want) + 1e-5;
        if (!(fabs(got - want) <= limit)) {
            snprintf(element, sizeof element, "o[head %d][row %d][element %d]", (int)(row / p->rows),
                     (int)(row % p->rows), (int)(at % p->value_dim));
            return fail(p, element, got, want, limit);
        }
    }
    return SPLAT_OK;
}

static enum splat_status try_problem(const splat_kernel *kernel, const struct sp_source *source,
                                     const struct sp_spec *spec, int longer)
{
    struct problem p = {.kernel = NULL};
    enum splat_status status = make_problem(kernel, source, spec, longer, &p);
    if (status == SPLAT_OK)
        status = run_on_cpu(&p);
    if (status == SPLAT_OK)
        status = run_on_device(&p);
    if (status != SPLAT_OK)
        status = sp_fail(status, "the kernel could not be checked against the CPU: %s", splat_last_error());
    else
        status = compare(&p);
    if (p.device)
        kernel->driver->memory_free(p.device);
    splat_kernel_destroy(p.kernel);
    splat_plan_destroy(p.cpu_plan);
    free(p.host);
    return status;
}

/* A text for shared row tiles takes no plan without them; one for parts takes both. */
enum splat_status sp_selfcheck(const splat_kernel *kernel, const struct sp_source *source)
{
    struct sp_spec spec;
    enum splat_status status = sp_spec_make(kernel->plan, &kernel->options, kernel->options.arch, &spec);
    if (status == SPLAT_OK && !spec.fold)
        status = try_problem(kernel, source, &spec, 0);
    if (status == SPLAT_OK && is_long(&spec))
        status = try_problem(kernel, source, &spec, 1);
    return status;
}
