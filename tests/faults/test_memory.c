/* Allocation failures: for every way through the library, the n-th malloc, calloc or realloc fails, for all n, and
 * then all from the n-th on. The calls give a status and a sentence, what they made is given back, nothing crashes,
 * and what succeeds in spite of it has the same result as ever.
 *
 * Kernels are compiled by a stand-in for NVRTC, and loaded and launched by one for the driver.
 */
#include <math.h>

#include "alloc_faults.h"
#include "cpu_kernel.h"

static struct stand_in *nvrtc, *cuda;
static struct sandbox *box; /* of the test that runs */

/* What a scenario found, to be compared with what it finds without failures. */
struct findings {
    uint64_t sum;
};

static void add(struct findings *findings, const void *data, size_t size)
{
    for (size_t k = 0; k < size; k++)
        findings->sum = (findings->sum ^ ((const unsigned char *)data)[k]) * 1099511628211u;
}

static void add_number(struct findings *findings, int64_t number)
{
    add(findings, &number, sizeof number);
}

typedef enum splat_status (*scenario)(struct findings *findings);

/* ---- Scenarios: each gives back all it made, and the first status that is not SPLAT_OK ---- */

#define TRY(call)                                                                                                  \
    do {                                                                                                           \
        if (status == SPLAT_OK)                                                                                    \
            status = (call);                                                                                       \
    } while (0)

static int add_text(const char *text, size_t size, void *user)
{
    add(user, text, size);
    return 0;
}

static splat_options options_for(enum splat_device device, int64_t head_dim)
{
    splat_options options;
    splat_options_init(&options);
    options.device = device;
    options.head_dim = head_dim;
    options.heads = 2;
    return options;
}

static enum splat_status use_mask(const splat_mask *mask, struct findings *findings)
{
    splat_acsr *acsr = NULL;
    splat_plan *plan = NULL;
    splat_options options = options_for(SPLAT_DEVICE_CPU, 64);
    enum splat_status status = splat_acsr_create(mask, &acsr);
    TRY(splat_plan_create(mask, &options, &plan));
    if (status == SPLAT_OK) {
        add_number(findings, splat_acsr_pairs(acsr));
        add_number(findings, splat_acsr_families(acsr));
    }
    splat_plan_info info;
    splat_plan_info_init(&info);
    TRY(splat_plan_get_info(plan, &info));
    if (status == SPLAT_OK) {
        add_number(findings, info.full_tiles);
        add_number(findings, info.partial_tiles);
        add_number(findings, info.descriptor_bytes);
    }
    splat_plan_destroy(plan);
    splat_acsr_destroy(acsr);
    return status;
}

static const char *const expressions[] = {
    "causal & (window(127, 0) | strided(16)) - cols(3, 9)",
    "~(documents(100, 57, 143) | rows(3, 5)) & comb(16, 3) | diagonals(1, -5, 77)",
    "grid(16, 5) | axial(16) | logsparse | random_blocks(16, 3, 7)",
};
static int expression_number;

static enum splat_status expression_to_dump(struct findings *findings)
{
    splat_mask *mask = NULL;
    splat_options options = options_for(SPLAT_DEVICE_CPU, 64);
    options.arch = SPLAT_ARCH_SM80;
    enum splat_status status =
        splat_mask_from_expression(expressions[expression_number], 300, 300, SPLAT_ALIGN_BOTTOM_RIGHT, &mask);
    TRY(use_mask(mask, findings));
    for (int stage = SPLAT_STAGE_ACSR; stage <= SPLAT_STAGE_SOURCE && status == SPLAT_OK; stage++) {
        struct findings text = {0};
        status = splat_dump(mask, &options, (enum splat_stage)stage, add_text, &text);
        if (status == SPLAT_OK && stage != SPLAT_STAGE_PLAN) /* which tells the time that planning took */
            add_number(findings, (int64_t)text.sum);
    }
    splat_mask_destroy(mask);
    return status;
}

static enum splat_status algebra(struct findings *findings)
{
    splat_mask *masks[3] = {NULL};
    splat_acsr *a = NULL, *b = NULL, *made[5] = {NULL};
    enum splat_status status = splat_mask_from_expression("window(9)", 200, 200, SPLAT_ALIGN_TOP_LEFT, &masks[0]);
    TRY(splat_mask_from_expression("strided(7) | comb(64, 5)", 200, 200, SPLAT_ALIGN_TOP_LEFT, &masks[1]));
    TRY(splat_acsr_create(masks[0], &a));
    TRY(splat_acsr_create(masks[1], &b));
    TRY(splat_acsr_combine(a, SPLAT_UNION, b, &made[0]));
    TRY(splat_acsr_combine(a, SPLAT_INTERSECTION, b, &made[1]));
    TRY(splat_acsr_combine(a, SPLAT_DIFFERENCE, b, &made[2]));
    TRY(splat_acsr_complement(b, &made[3]));
    TRY(splat_acsr_transpose(b, &made[4]));
    TRY(splat_mask_from_acsr(made[3], &masks[2]));
    for (int k = 0; k < 5 && status == SPLAT_OK; k++)
        add_number(findings, splat_acsr_pairs(made[k]));
    TRY(use_mask(masks[2], findings));
    for (int k = 0; k < 5; k++)
        splat_acsr_destroy(made[k]);
    splat_acsr_destroy(a);
    splat_acsr_destroy(b);
    for (int k = 0; k < 3; k++)
        splat_mask_destroy(masks[k]);
    return status;
}

/* Regular rows, irregular ones (kept as bits), empty and full ones. */
enum { DENSE_Q = 70, DENSE_KV = 400 };
static uint8_t dense[DENSE_Q * DENSE_KV], packed[DENSE_Q * DENSE_KV / 8];
static int64_t indptr[DENSE_Q + 1], indices[DENSE_Q * DENSE_KV];

static void fill_arrays(void)
{
    struct rng rng = {5};
    for (int i = 0; i < DENSE_Q; i++) {
        for (int j = 0; j < DENSE_KV; j++)
            dense[i * DENSE_KV + j] = i % 4 == 0   ? rng_between(&rng, 0, 1) != 0
                                      : i % 4 == 1 ? j % 7 == i % 7
                                      : i % 4 == 2 ? j <= i
                                                   : i % 8 == 3;
        indptr[i + 1] = indptr[i];
        for (int j = 0; j < DENSE_KV; j++)
            if (dense[i * DENSE_KV + j]) {
                packed[(i * DENSE_KV + j) / 8] |= (uint8_t)(1u << j % 8);
                indices[indptr[i + 1]++] = j;
            }
    }
    /* one row out of order, which is sorted */
    int64_t first = indices[0];
    indices[0] = indices[1];
    indices[1] = first;
}

static int allowed(int64_t i, int64_t j, void *user)
{
    (void)user;
    return dense[i * DENSE_KV + j];
}

static enum splat_status arrays(struct findings *findings)
{
    splat_mask *masks[5] = {NULL}, *map = NULL;
    enum splat_status status = splat_mask_from_bytes(dense, DENSE_Q, DENSE_KV, DENSE_KV, &masks[0]);
    TRY(splat_mask_from_bits(packed, DENSE_Q, DENSE_KV, DENSE_KV / 8, &masks[1]));
    TRY(splat_mask_from_csr(indptr, indices, DENSE_Q, DENSE_KV, &masks[2]));
    TRY(splat_mask_from_callback(allowed, NULL, DENSE_Q, DENSE_KV, &masks[3]));
    TRY(splat_mask_from_blocks(dense, DENSE_Q, DENSE_KV, 5, 7, DENSE_KV, &masks[4]));
    for (int k = 0; k < 5; k++)
        TRY(use_mask(masks[k], findings));
    TRY(splat_mask_map(masks, 1, 5, &map));
    TRY(use_mask(map, findings));
    splat_mask_destroy(map);
    for (int k = 0; k < 5; k++)
        splat_mask_destroy(masks[k]);
    return status;
}

static float tensors[4][2 * 70 * 16], lse[2 * 70];

static enum splat_status run_kernel(const splat_kernel *kernel, struct findings *findings)
{
    splat_attention_args args;
    splat_attention_args_init(&args);
    args.heads = 2;
    args.q_len = args.kv_len = 70;
    splat_tensor *const all[4] = {&args.q, &args.k, &args.v, &args.o};
    for (int t = 0; t < 4; t++)
        *all[t] = splat_tensor_bhsd(tensors[t], 2, 70, 16);
    args.lse = lse;
    args.lse_head_stride = 70;
    args.lse_batch_stride = 140;
    enum splat_status status = splat_run(kernel, &args, NULL);
    if (status == SPLAT_OK && splat_kernel_device(kernel) == SPLAT_DEVICE_CPU) {
        add(findings, tensors[3], sizeof tensors[3]);
        add(findings, lse, sizeof lse);
    }
    return status;
}

static enum splat_status compile_and_run(enum splat_device device, enum splat_dtype dtype,
                                         struct findings *findings)
{
    splat_context *context = NULL;
    splat_kernel *kernels[2] = {NULL};
    splat_mask *mask = NULL;
    splat_options options = options_for(device, 16);
    options.dtype = dtype;
    enum splat_status status = context_in(box, SPLAT_CACHE_ON, &context);
    TRY(splat_mask_from_expression("window(5) | strided(8)", 70, 70, SPLAT_ALIGN_BOTTOM_RIGHT, &mask));
    TRY(splat_compile(context, mask, &options, &kernels[0]));
    TRY(run_kernel(kernels[0], findings));
    options.value_dim = 16; /* said, not defaulted: the same kernel again */
    TRY(splat_compile(context, mask, &options, &kernels[1]));
    TRY(run_kernel(kernels[1], findings));
    splat_kernel_destroy(kernels[0]);
    splat_kernel_destroy(kernels[1]);
    splat_mask_destroy(mask);
    splat_context_destroy(context);
    return status;
}

static enum splat_status on_the_cpu(struct findings *findings)
{
    enum splat_status status = compile_and_run(SPLAT_DEVICE_CPU, SPLAT_FP32, findings);
    TRY(compile_and_run(SPLAT_DEVICE_CPU, SPLAT_BF16, findings));
    return status;
}

/* The operators on values. */
static enum splat_status operators(enum splat_device device, struct findings *findings)
{
    static float values[2][2 * 70 * 70];
    splat_context *context = NULL;
    splat_mask *mask = NULL;
    enum splat_status status = context_in(box, SPLAT_CACHE_ON, &context);
    TRY(splat_mask_from_expression("dilated(20, 3)", 70, 70, SPLAT_ALIGN_BOTTOM_RIGHT, &mask));
    for (int op = SPLAT_OP_SDDMM; op <= SPLAT_OP_SPMM_TRANSPOSED; op++) {
        splat_kernel *kernel = NULL;
        splat_options options = options_for(device, 16);
        options.op = (enum splat_op)op;
        options.dtype = device == SPLAT_DEVICE_CPU ? SPLAT_FP32 : SPLAT_BF16;
        splat_sparse_args args;
        splat_sparse_args_init(&args);
        args.heads = 2;
        args.q_len = args.kv_len = 70;
        args.q = args.x = splat_tensor_bhsd(tensors[0], 2, 70, 16);
        args.k = splat_tensor_bhsd(tensors[1], 2, 70, 16);
        args.y = splat_tensor_bhsd(tensors[3], 2, 70, 16);
        args.values = (splat_values){values[0], 9800, 4904};
        args.scores = (splat_values){values[1], 9800, 4904};
        TRY(splat_compile(context, mask, &options, &kernel));
        TRY(splat_run_sparse(kernel, &args, NULL));
        splat_kernel_destroy(kernel);
        if (status == SPLAT_OK)
            add(findings, values[0], sizeof values[0]);
    }
    if (status == SPLAT_OK)
        add(findings, tensors[3], sizeof tensors[3]);
    splat_mask_destroy(mask);
    splat_context_destroy(context);
    return status;
}

static enum splat_status operators_on_the_cpu(struct findings *findings)
{
    return operators(SPLAT_DEVICE_CPU, findings);
}

static enum splat_status operators_on_the_gpu(struct findings *findings)
{
    return operators(SPLAT_DEVICE_GPU, findings);
}

/* From an empty cache: planned, compiled, stored, loaded, launched. Then once more, from the disk. */
static enum splat_status on_the_gpu(struct findings *findings)
{
    enum splat_status status = compile_and_run(SPLAT_DEVICE_GPU, SPLAT_FP16, findings);
    TRY(compile_and_run(SPLAT_DEVICE_GPU, SPLAT_FP16, findings));
    return status;
}

/* The device has less shared memory than the best tile needs. */
static enum splat_status on_a_small_gpu(struct findings *findings)
{
    cuda->shared_limit = 40000;
    enum splat_status status = on_the_gpu(findings);
    cuda->shared_limit = 232448;
    return status;
}

/* A layer of two factors, there and back. On the GPU nothing is computed: the stand-in launches nothing. */
static enum splat_status compile_and_run_layer(enum splat_device device, struct findings *findings)
{
    splat_context *context = NULL;
    splat_mask *masks[2] = {NULL};
    splat_layer *layer = NULL;
    splat_layer_options options;
    splat_layer_options_init(&options);
    options.device = device;
    options.dtype = SPLAT_FP32;
    options.gradients = 1;
    enum splat_status status = context_in(box, SPLAT_CACHE_ON, &context);
    TRY(splat_mask_from_expression("kron(2, 3, 4, 1)", 6, 8, SPLAT_ALIGN_BOTTOM_RIGHT, &masks[0]));
    TRY(splat_mask_from_expression("kron(1, 2, 2, 3)", 6, 6, SPLAT_ALIGN_BOTTOM_RIGHT, &masks[1]));
    TRY(splat_layer_compile(context, (const splat_mask *const *)masks, 2, &options, &layer));
    static float x[5 * 8], y[5 * 6], dx[5 * 8], gradients[2][24], weights[2][24];
    static _Alignas(256) unsigned char workspace[1 << 16];
    const void *weight_pointers[] = {weights[0], weights[1]};
    void *gradient_pointers[] = {gradients[0], gradients[1]};
    for (int k = 0; k < 48; k++)
        weights[k / 24][k % 24] = (float)(k % 7);
    for (int k = 0; k < 40; k++)
        x[k] = (float)(k % 5);
    splat_layer_args args;
    splat_layer_args_init(&args);
    args.n = 5;
    args.x = x, args.y = y, args.dy = y, args.dx = dx;
    args.weights = weight_pointers, args.weight_gradients = gradient_pointers;
    args.workspace = workspace, args.workspace_bytes = sizeof workspace;
    TRY(splat_layer_forward(layer, &args, NULL));
    TRY(splat_layer_backward(layer, &args, NULL));
    if (status == SPLAT_OK && device == SPLAT_DEVICE_CPU) {
        add(findings, y, sizeof y);
        add(findings, dx, sizeof dx);
        add(findings, gradients, sizeof gradients);
    }
    splat_layer_destroy(layer);
    splat_mask_destroy(masks[0]);
    splat_mask_destroy(masks[1]);
    splat_context_destroy(context);
    return status;
}

static enum splat_status layer_on_the_cpu(struct findings *findings)
{
    return compile_and_run_layer(SPLAT_DEVICE_CPU, findings);
}

static enum splat_status layer_on_the_gpu(struct findings *findings)
{
    return compile_and_run_layer(SPLAT_DEVICE_GPU, findings);
}

static enum splat_status ahead_of_time(struct findings *findings)
{
    splat_context *context = NULL;
    splat_mask *mask = NULL;
    splat_compile_info info;
    splat_cache_info cache;
    splat_options options = options_for(SPLAT_DEVICE_AUTO, 64);
    options.arch = SPLAT_ARCH_SM80;
    enum splat_status status = context_in(box, SPLAT_CACHE_ON, &context);
    TRY(splat_mask_from_expression("causal", 256, 256, SPLAT_ALIGN_BOTTOM_RIGHT, &mask));
    for (int twice = 0; twice < 2; twice++) {
        splat_compile_info_init(&info);
        TRY(splat_compile_to_cache(context, mask, &options, &info));
        if (status == SPLAT_OK)
            add(findings, info.key, sizeof info.key);
    }
    splat_cache_info_init(&cache);
    TRY(splat_cache_stat(context, &cache));
    TRY(splat_cache_verify(context, &cache));
    TRY(splat_cache_prune(context, -1, &cache));
    if (status == SPLAT_OK)
        add_number(findings, cache.entries);
    TRY(splat_cache_clear(context, &cache));
    splat_mask_destroy(mask);
    splat_context_destroy(context);
    return status;
}

/* ---- The attack ---- */

/* Without memory a call may fail for that reason only. The words may be the system's own, or the stand-ins', whose
 * allocations fail too. */
static int is_for_want_of_memory(enum splat_status status)
{
    return status == SPLAT_NO_MEMORY ||
           ((status == SPLAT_IO || status == SPLAT_CUDA || status == SPLAT_COMPILE) && splat_last_error()[0] &&
            (strstr(splat_last_error(), strerror(ENOMEM)) || strstr(splat_last_error(), "OUT_OF_MEMORY") ||
             strstr(splat_last_error(), "STAND_IN")));
}

static void attack(const char *name, scenario run, int keep_cache)
{
    struct findings sound = {0}, again = {0};
    int call, failures = 0, survived = 0;
    for (int warm = 0; warm < 3; warm++) { /* what is made once a process is made now */
        if (!keep_cache)
            remove_cache(box);
        sound = (struct findings){0};
        OK(run(&sound));
    }
    if (!keep_cache)
        remove_cache(box);
    alloc_begin(0, 0);
    OK(run(&again));
    int left = alloc_end(&call), count = alloc_state.made;
    if (left)
        FAIL("%s: %d pieces of memory left without any failure, one by call %d", name, left, call);
    assert_true(again.sum == sound.sum);
    assert_true(count > 3);
    const int step = deep() ? 1 + count / 10000 : 1 + count / 150;
    for (int forever = 0; forever < 2; forever++)
        for (int n = 1; n <= count; n += step) {
            struct findings found = {0};
            if (!keep_cache)
                remove_cache(box);
            const int descriptors = open_descriptors(), live = cuda->live + nvrtc->live;
            alloc_begin(n, forever);
            enum splat_status status = run(&found);
            left = alloc_end(&call);
            cuda->shared_limit = 232448;
            failures += status != SPLAT_OK;
            survived += status == SPLAT_OK;
            if (status != SPLAT_OK && (!is_for_want_of_memory(status) || !splat_last_error()[0]))
                FAIL("%s: call %d of %d without memory%s: status %s: %s", name, n, count,
                     forever ? " for good" : "", splat_status_name(status), splat_last_error());
            if (status == SPLAT_OK && found.sum != sound.sum)
                FAIL("%s: call %d of %d without memory%s: another result, and no failure", name, n, count,
                     forever ? " for good" : "");
            if (left)
                FAIL("%s: call %d of %d without memory%s: %d pieces left behind, one made by call %d (status %s)",
                     name, n, count, forever ? " for good" : "", left, call, splat_status_name(status));
            if (cuda->live + nvrtc->live != live)
                FAIL("%s: call %d of %d without memory: programs, modules or device memory left behind", name, n,
                     count);
            if (open_descriptors() != descriptors)
                FAIL("%s: call %d of %d without memory: a file left open", name, n, count);
        }
    struct findings after = {0};
    if (!keep_cache)
        remove_cache(box);
    OK(run(&after));
    assert_true(after.sum == sound.sum);
    print_message("%s: %d allocations, %d runs failed, %d did without\n", name, count, failures, survived);
    assert_true(failures > count / step / 4); /* or the shim does not reach the library */
}

static void expressions_without_memory(void **state)
{
    box = *state;
    for (expression_number = 0; expression_number < 3; expression_number++)
        attack(expressions[expression_number], expression_to_dump, 1);
}

static void algebra_without_memory(void **state)
{
    box = *state;
    attack("algebra", algebra, 1);
}

static void arrays_without_memory(void **state)
{
    box = *state;
    attack("arrays", arrays, 1);
}

static void cpu_without_memory(void **state)
{
    box = *state;
    attack("CPU", on_the_cpu, 1);
}

static void operators_without_memory(void **state)
{
    box = *state;
    attack("operators on the CPU", operators_on_the_cpu, 1);
    attack("operators on the GPU", operators_on_the_gpu, 1);
}

static void gpu_without_memory(void **state)
{
    box = *state;
    attack("GPU, from an empty cache", on_the_gpu, 0);
}

static void gpu_from_the_cache_without_memory(void **state)
{
    box = *state;
    attack("GPU, from the cache", on_the_gpu, 1);
}

static void small_gpu_without_memory(void **state)
{
    box = *state;
    attack("GPU with little shared memory", on_a_small_gpu, 1);
}

static void ahead_of_time_without_memory(void **state)
{
    box = *state;
    attack("ahead of time", ahead_of_time, 0);
}

static void layers_without_memory(void **state)
{
    box = *state;
    attack("a layer on the CPU", layer_on_the_cpu, 1);
    attack("a layer on the GPU", layer_on_the_gpu, 0);
}

int main(void)
{
    unsetenv("SPLAT_CACHE");
    unsetenv("SPLAT_SELF_CHECK");
    nvrtc = use_stand_in("stand_in_nvrtc.so");
    cuda = use_stand_in("stand_in_cuda.so");
    cuda->kernel = cpu_kernel; /* or no kernel passes its self-check */
    fill_arrays();
    struct rng rng = {9};
    for (int t = 0; t < 4; t++)
        for (size_t k = 0; k < sizeof tensors[t] / sizeof tensors[t][0]; k++)
            tensors[t][k] = (float)rng_unit(&rng);
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_sandbox, close_sandbox)
    const struct CMUnitTest tests[] = {
        TEST(expressions_without_memory), TEST(algebra_without_memory),
        TEST(arrays_without_memory),      TEST(cpu_without_memory),
        TEST(gpu_without_memory),         TEST(gpu_from_the_cache_without_memory),
        TEST(operators_without_memory),
        TEST(small_gpu_without_memory),   TEST(ahead_of_time_without_memory),
        TEST(layers_without_memory),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
