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
#include "runtime/selfcheck_problem.h"

enum {
    HEADS = 2,          /* of q, and one of k and v */
    BATCHES = 2,        /* with a mask each, where heads share row tiles and masks are looked up */
    FOLDED_HEADS = 4,   /* likewise, where heads share row tiles */
    FEW_ROWS = 21,      /* of the second mask: so few that heads share row tiles, */
    MORE_ROWS = 85,     /* and so many that they do not */
    LONG_TILES = 16,    /* column tiles of the second mask: so many that row tiles come in parts */
    NONZERO = 6,        /* elements of a query, 2 or -2: scores are from -12 to 12 */
    RAGGED = 37,        /* rows of the last row tile */
    MULTIPROCESSORS = 2 /* of persistent kernels: few, so that a block takes several items */
};
#define NONBLOCKING 1u /* CU_STREAM_NON_BLOCKING */

/* ---- The masks ---- */

/* The mask of a text, or, for the product with A^T, whose plan is that of the transposed mask, its transpose. */
static enum splat_status make_mask(const struct sp_spec *spec, const char *text, int64_t rows, int64_t keys,
                                   enum splat_align align, splat_mask **mask)
{
    splat_mask *made = NULL;
    splat_acsr *acsr = NULL, *transposed = NULL;
    enum splat_status status = splat_mask_from_expression(text, rows, keys, align, &made);
    if (status != SPLAT_OK || spec->op != SPLAT_OP_SPMM_TRANSPOSED) {
        *mask = made;
        return status;
    }
    status = splat_acsr_create(made, &acsr);
    if (status == SPLAT_OK)
        status = splat_acsr_transpose(acsr, &transposed);
    if (status == SPLAT_OK)
        status = splat_mask_from_acsr(transposed, mask);
    splat_acsr_destroy(transposed);
    splat_acsr_destroy(acsr);
    splat_mask_destroy(made);
    return status;
}

/* Row tiles of the first mask: the first has a bound that moves beside one that does not, and rows that see
 * nothing; the last two, of which one is ragged, the lower edge of a window, wholly allowed tiles and the upper
 * edge. Between them lie row tiles that see nothing, or, for kernels that know more than bounds, an affine run,
 * steps and random blocks. */
enum splat_status sp_selfcheck_mask(const struct sp_spec *spec, splat_mask **mask)
{
    const int softmax = spec->op == SPLAT_OP_SOFTMAX; /* has no tiles */
    const int M = softmax ? 64 : spec->tile_rows, N = softmax ? 64 : spec->tile_cols, window = (M > N ? M : N) + N,
              near = N < 96 ? 96 : N;
    const int all = spec->predicate_mask >> SP_PRED_BITS & 1;
    const int last = all && window / M < 3 ? 4 : window / M + 1;
    const int rows = (last + 1) * M + RAGGED, keys = rows + SP_CHECK_HIDDEN;
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
    enum splat_status status = make_mask(spec, text, rows, keys, SPLAT_ALIGN_TOP_LEFT, &masks[0]);
    if (status != SPLAT_OK || !spec->mask_map) {
        *mask = masks[0];
        return status;
    }
    snprintf(second, sizeof second, "rows(0, %d) & causal", M);
    status = make_mask(spec, second, rows, keys, SPLAT_ALIGN_TOP_LEFT, &masks[1]);
    if (status == SPLAT_OK)
        status = splat_mask_map(masks, 1, HEADS, mask);
    splat_mask_destroy(masks[0]);
    splat_mask_destroy(masks[1]);
    return status;
}

/* A few queries and many keys, of which the last are hidden; likewise fewer of them for the second of two batches.
 */
enum splat_status sp_selfcheck_long_mask(const struct sp_spec *spec, splat_mask **mask)
{
    const int seen = LONG_TILES * spec->tile_cols + RAGGED, keys = seen + SP_CHECK_HIDDEN,
              batches = spec->mask_map ? BATCHES : 1;
    const int rows = spec->fold ? FEW_ROWS : MORE_ROWS;
    splat_mask *masks[BATCHES] = {NULL};
    enum splat_status status = SPLAT_OK;
    for (int n = 0; n < batches && status == SPLAT_OK; n++) {
        const int here = seen >> n;
        char text[128];
        if (spec->predicate_mask >> SP_PRED_BITS & 1)
            snprintf(text, sizeof text, "cols(0, %d) & (causal & window(%d, 0) | strided(5))", here, here / 2);
        else
            snprintf(text, sizeof text, "cols(0, %d)", here);
        status = make_mask(spec, text, rows, keys, SPLAT_ALIGN_BOTTOM_RIGHT, &masks[n]);
    }
    if (status == SPLAT_OK && !spec->mask_map) {
        *mask = masks[0];
        return SPLAT_OK;
    }
    if (status == SPLAT_OK)
        status = splat_mask_map(masks, batches, 1, mask);
    for (int n = 0; n < batches; n++)
        splat_mask_destroy(masks[n]);
    return status;
}

/* ---- The small kernel ---- */

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
static enum splat_status make_plans(struct sp_problem *p, const struct sp_spec *spec, int longer)
{
    splat_kernel *kernel = p->kernel;
    splat_mask *mask = NULL;
    enum splat_status status = longer ? sp_selfcheck_long_mask(spec, &mask) : sp_selfcheck_mask(spec, &mask);
    const int own_batches = longer && (spec->split || spec->mask_map); /* for parts; a map has its own */
    if (status == SPLAT_OK)
        status = own_batches ? splat_plan_create(mask, &kernel->options, &kernel->plan)
                             : plan_whole(mask, &kernel->options, &kernel->plan);
    if (status == SPLAT_OK && longer) {
        splat_options options = kernel->options;
        options.device = SPLAT_DEVICE_CPU, options.tile_rows = options.tile_cols = 0;
        status = splat_plan_create(mask, &options, &p->cpu_plan);
    }
    splat_mask_destroy(mask);
    return status;
}

/* All that splat_compile makes but for the module, which is not its own. */
static enum splat_status make_kernel(const splat_kernel *from, const struct sp_source *source,
                                     const struct sp_spec *spec, int longer, struct sp_problem *p)
{
    struct sp_spec own;
    splat_kernel *kernel = calloc(1, sizeof *kernel);
    p->kernel = kernel;
    if (!kernel)
        return sp_no_memory("a kernel's self-check", sizeof *kernel);
    p->batch = longer && spec->mask_map ? BATCHES : 1;
    p->heads = longer && spec->fold ? FOLDED_HEADS : HEADS;
    p->kv_heads = spec->op == SPLAT_OP_SPMM_TRANSPOSED ? HEADS : 1;
    kernel->refs = 1;
    kernel->options = from->options;
    kernel->options.batch = p->batch, kernel->options.heads = p->heads;
    kernel->options.kv_heads = p->kv_heads;
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

/* ---- Inputs ---- */

void sp_check_fill_queries(const struct sp_problem *p, uint16_t *q, int64_t rows, uint64_t *state)
{
    const uint16_t twos[2] = {sp_check_narrow(p->dtype, 2.0f), sp_check_narrow(p->dtype, -2.0f)};
    for (int64_t row = 0; row < rows; row++)
        for (int n = 0; n < NONZERO; n++) {
            const int64_t at = sp_check_draw(state) % p->dim;
            q[row * p->dim + at] = twos[sp_check_draw(state) & 1];
        }
}

void sp_check_fill_keys(const struct sp_problem *p, uint16_t *k, int64_t rows, uint64_t *state)
{
    const uint16_t ones[2] = {sp_check_narrow(p->dtype, 1.0f), sp_check_narrow(p->dtype, -1.0f)};
    for (int64_t at = 0; at < rows * p->dim; at++)
        k[at] = ones[sp_check_draw(state) & 1];
}

void sp_check_fill_fractions(const struct sp_problem *p, uint16_t *x, int64_t count, uint64_t *state)
{
    for (int64_t at = 0; at < count; at++)
        x[at] = sp_check_narrow(p->dtype, (float)((int)(sp_check_draw(state) % 129) - 64) / 64.0f);
}

/* ---- Attention ---- */

static void lay_out_attention(struct sp_problem *p)
{
    const int64_t queries = p->batch * p->heads * p->rows, keys = p->batch * p->kv_heads * p->keys;
    p->second_at = sp_check_rounded((size_t)(queries * p->dim) * sizeof(uint16_t));
    p->third_at = p->second_at + sp_check_rounded((size_t)(keys * p->dim) * sizeof(uint16_t));
    p->results_at = p->third_at + sp_check_rounded((size_t)(keys * p->value_dim) * sizeof(uint16_t));
    p->lse_at = p->results_at + sp_check_rounded((size_t)(queries * p->value_dim) * sizeof(uint16_t));
    p->bytes = p->lse_at + sp_check_rounded((size_t)queries * sizeof(float));
}

static void fill_attention(const struct sp_problem *p)
{
    uint16_t *q = (uint16_t *)(void *)p->host, *k = (uint16_t *)(void *)(p->host + p->second_at),
             *v = (uint16_t *)(void *)(p->host + p->third_at);
    const int64_t keys = p->batch * p->kv_heads * p->keys;
    uint64_t state = 1;
    sp_check_fill_queries(p, q, p->batch * p->heads * p->rows, &state);
    sp_check_fill_keys(p, k, keys, &state);
    sp_check_fill_fractions(p, v, keys * p->value_dim, &state);
    const int64_t hidden = p->keys - SP_CHECK_HIDDEN;
    k[hidden * p->dim] = sp_check_narrow(p->dtype, NAN);
    v[hidden * p->value_dim + p->value_dim - 1] = sp_check_narrow(p->dtype, NAN);
    v[(hidden + 1) * p->value_dim] = sp_check_narrow(p->dtype, INFINITY);
}

static splat_attention_args args_at(const struct sp_problem *p, unsigned char *base)
{
    splat_attention_args args;
    splat_attention_args_init(&args);
    args.batch = p->batch;
    args.heads = p->heads;
    args.kv_heads = p->kv_heads;
    args.q_len = p->rows;
    args.kv_len = p->keys;
    args.q = splat_tensor_bhsd(base, p->heads, p->rows, p->dim);
    args.k = splat_tensor_bhsd(base + p->second_at, p->kv_heads, p->keys, p->dim);
    args.v = splat_tensor_bhsd(base + p->third_at, p->kv_heads, p->keys, p->value_dim);
    args.o = splat_tensor_bhsd(base + p->results_at, p->heads, p->rows, p->value_dim);
    args.lse = (float *)(void *)(base + p->lse_at);
    args.lse_head_stride = p->rows;
    args.lse_batch_stride = p->heads * p->rows;
    args.scale = SP_CHECK_SCALE;
    if (p->workspace_bytes) {
        args.workspace = base + p->bytes;
        args.workspace_bytes = p->workspace_bytes;
    }
    return args;
}

static enum splat_status run_attention_device(const struct sp_problem *p, unsigned char *base, sp_cu_stream stream)
{
    const splat_attention_args args = args_at(p, base);
    return splat_run(p->kernel, &args, stream);
}

static enum splat_status run_attention_cpu(const struct sp_problem *p, unsigned char *base)
{
    const splat_attention_args args = args_at(p, base);
    return sp_cpu_run(p->cpu_plan ? p->cpu_plan : p->kernel->plan, &p->kernel->options, &args, 1);
}

static enum splat_status compare_attention(const struct sp_problem *p)
{
    const int64_t queries = p->batch * p->heads * p->rows;
    enum splat_status status = sp_check_lse(p, queries);
    return status == SPLAT_OK ? sp_check_numbers(p, "o", 0, queries * p->value_dim, p->rows, p->value_dim) : status;
}

const struct sp_problem_kind sp_attention_problem = {lay_out_attention, fill_attention, run_attention_device,
                                                     run_attention_cpu, compare_attention};

/* ---- The device ---- */

/* Results begin as NaN, so that what is not written shows. */
static enum splat_status run_on_device(struct sp_problem *p, const struct sp_problem_kind *kind)
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
        status = sp_driver_check(driver, driver->copy_to_device(p->device, p->host, p->results_at), "cuMemcpyHtoD");
    if (status == SPLAT_OK)
        status = sp_driver_check(
            driver, driver->memory_set(p->device + p->results_at, 0xFF, p->bytes - p->results_at), "cuMemsetD8");
    if (status == SPLAT_OK) /* our stream does not wait for the default one */
        status = sp_driver_check(driver, driver->stream_synchronize(NULL), "cuStreamSynchronize");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->stream_create(&stream, NONBLOCKING), "cuStreamCreate");
    if (status != SPLAT_OK)
        return status;
    status = kind->run_device(p, (unsigned char *)(uintptr_t)p->device, stream);
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
    driver->stream_destroy(stream);
    if (status == SPLAT_OK)
        status = sp_driver_check(
            driver, driver->copy_to_host(p->host + p->bytes, p->device + p->results_at, p->bytes - p->results_at),
            "cuMemcpyDtoH");
    return status;
}

/* ---- The comparison ---- */

static enum splat_status fail(const struct sp_problem *p, const char *element, double got, double want,
                              double limit)
{
    const splat_kernel *kernel = p->kernel;
    int served = 0, nvrtc = 0;
    if (kernel->driver->driver_get_version(&served) != 0)
        served = 0;
    if (sp_nvrtc_version(&nvrtc) != SPLAT_OK)
        nvrtc = 0;
    return sp_fail(
        SPLAT_COMPILE,
        "the kernel (%s, %s, head_dim %lld, value_dim %lld, tile %d x %d, sm_%d) gives wrong results on this "
        "device: %s is %.7g, the CPU gives %.7g, they may differ by %.2g; it was compiled by NVRTC "
        "%d.%d, the driver serves CUDA %d.%d: try another of them (SPLAT_NVRTC); SPLAT_SELF_CHECK=off "
        "uses kernels unchecked",
        sp_spec_op_name(kernel->options.op), p->dtype == SPLAT_BF16 ? "bf16" : "fp16", (long long)p->dim,
        (long long)p->value_dim, (int)kernel->plan->tile_rows, (int)kernel->plan->tile_cols,
        (int)kernel->options.arch, element, got, want, limit, nvrtc / 1000, nvrtc % 1000 / 10, served / 1000,
        served % 1000 / 10);
}

enum splat_status sp_check_lse(const struct sp_problem *p, int64_t count)
{
    const float *want_at = (const float *)(const void *)(p->host + p->lse_at),
                *got_at = (const float *)(const void *)(p->host + p->bytes + (p->lse_at - p->results_at));
    for (int64_t row = 0; row < count; row++) {
        const double want = (double)want_at[row], got = (double)got_at[row];
        if (isinf(want) ? got != want : !(fabs(got - want) <= SP_CHECK_LSE_TOLERANCE)) {
            char element[96];
            snprintf(element, sizeof element, "lse[head %d][row %d]", (int)(row / p->rows), (int)(row % p->rows));
            return fail(p, element, got, want, isinf(want) ? 0.0 : SP_CHECK_LSE_TOLERANCE);
        }
    }
    return SPLAT_OK;
}

enum splat_status sp_check_numbers(const struct sp_problem *p, const char *name, int64_t first, int64_t count,
                                   int64_t rows, int64_t length)
{
    const double step = p->dtype == SPLAT_BF16 ? 0x1p-7 : 0x1p-10;
    const uint16_t *want_at = (const uint16_t *)(const void *)(p->host + p->results_at),
                   *got_at = (const uint16_t *)(const void *)(p->host + p->bytes);
    /* Rows that see nothing are zero; values have no rows of their own. */
    const float *lse = rows > 1 && p->lse_at < p->bytes ? (const float *)(const void *)(p->host + p->lse_at) : NULL;
    for (int64_t at = first; at < first + count; at++) {
        const double want = (double)sp_check_widen(p->dtype, want_at[at]),
                     got = (double)sp_check_widen(p->dtype, got_at[at]);
        const double limit = lse && isinf(lse[at / length]) ? 0.0 : step * fabs(want) + 1e-5;
        if (!(fabs(got - want) <= limit)) {
            char element[96];
            snprintf(element, sizeof element, "%s[head %d][row %d][element %d]", name, (int)(at / length / rows),
                     (int)(at / length % rows), (int)(at % length));
            return fail(p, element, got, want, limit);
        }
    }
    return SPLAT_OK;
}

/* ---- The whole ---- */

static enum splat_status make_problem(const splat_kernel *from, const struct sp_source *source,
                                      const struct sp_spec *spec, int longer, const struct sp_problem_kind *kind,
                                      struct sp_problem *p)
{
    enum splat_status status = make_kernel(from, source, spec, longer, p);
    if (status == SPLAT_OK && spec->op == SPLAT_OP_ATTENTION)
        status = splat_workspace_bytes(p->kernel, p->batch, p->heads, &p->workspace_bytes);
    if (status != SPLAT_OK)
        return status;
    p->rows = p->kernel->plan->q_len, p->keys = p->kernel->plan->kv_len;
    p->dim = from->options.head_dim, p->value_dim = from->options.value_dim;
    p->dtype = from->options.dtype;
    kind->lay_out(p);
    const size_t host_bytes = p->bytes + (p->bytes - p->results_at);
    if (!(p->host = calloc(1, host_bytes)))
        return sp_no_memory("a kernel's self-check", host_bytes);
    kind->fill(p);
    return SPLAT_OK;
}

static enum splat_status try_problem(const splat_kernel *kernel, const struct sp_source *source,
                                     const struct sp_spec *spec, int longer)
{
    const struct sp_problem_kind *kind =
        spec->op == SPLAT_OP_ATTENTION ? &sp_attention_problem : &sp_values_problem;
    struct sp_problem p = {.kernel = NULL};
    enum splat_status status = make_problem(kernel, source, spec, longer, kind, &p);
    if (status == SPLAT_OK)
        status = kind->run_cpu(&p, p.host);
    if (status == SPLAT_OK)
        status = run_on_device(&p, kind);
    if (status != SPLAT_OK)
        status = sp_fail(status, "the kernel could not be checked against the CPU: %s", splat_last_error());
    else
        status = kind->compare(&p);
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
