/* The driver and NVRTC fail at every call in turn, and give or get what they should not: a status, a sentence,
 * nothing left on the device. What is loaded has been checked: no image that is damaged, for another chip or
 * without the kernel reaches the driver.
 */
#include <math.h>
#include <pthread.h>

#include "cpu_kernel.h"

#include "common/hash.h"
#include "runtime/cache.h"
#include "runtime/cubin.h"

static struct stand_in *nvrtc, *cuda;

static void reset(void)
{
    *nvrtc = (struct stand_in){.live = nvrtc->live};
    *cuda = (struct stand_in){.live = cuda->live, .capability = 90, .shared_limit = 232448, .kernel = cpu_kernel};
}

static int open_and_reset(void **state)
{
    reset();
    return open_sandbox(state);
}

static int forced_tile; /* rows and columns; 0: the fastest */

/* ---- One use of the GPU: compile, run, give back ---- */

static enum splat_status use_gpu_in(splat_context *context)
{
    splat_kernel *kernel = NULL;
    splat_mask *mask = mask_of("causal & window(70)", 256, 256, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options;
    splat_options_init(&options);
    options.device = SPLAT_DEVICE_GPU;
    options.head_dim = 64;
    options.tile_rows = options.tile_cols = forced_tile;
    enum splat_status status = splat_compile(context, mask, &options, &kernel);
    if (status == SPLAT_OK) {
        static _Thread_local _Alignas(16) uint16_t tensors[4][256 * 64];
        splat_attention_args args;
        splat_attention_args_init(&args);
        args.q_len = args.kv_len = 256;
        splat_tensor *const all[4] = {&args.q, &args.k, &args.v, &args.o};
        for (int t = 0; t < 4; t++)
            *all[t] = splat_tensor_bhsd(tensors[t], 1, 256, 64);
        assert_int_equal(splat_kernel_device(kernel), SPLAT_DEVICE_GPU);
        status = splat_run(kernel, &args, NULL);
    }
    splat_kernel_destroy(kernel);
    splat_mask_destroy(mask);
    return status;
}

static enum splat_status use_gpu(struct sandbox *box, enum splat_cache_mode mode)
{
    splat_context *context = NULL;
    OK(context_in(box, mode, &context));
    enum splat_status status = use_gpu_in(context);
    splat_context_destroy(context);
    return status;
}

/* The thread has no current context, as when a program uses nothing else of CUDA. */
static void forget_context(void)
{
    int (*set_current)(void *) = NULL;
    void *address = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuCtxSetCurrent");
    assert_non_null(address);
    memcpy(&set_current, &address, sizeof address);
    cuda->fail_at = 0;
    assert_int_equal(set_current(NULL), 0);
    cuda->calls = 0;
}

static void every_call_of_the_driver_may_fail(void **state)
{
    struct sandbox *box = *state;
    static const struct {
        int capability, result;
        enum splat_status status;
        enum splat_cache_mode mode; /* without a cache each use has a self-check */
    } kinds[] = {{90, 700, SPLAT_CUDA, SPLAT_CACHE_ON},
                 {80, 700, SPLAT_CUDA, SPLAT_CACHE_ON},
                 {90, 2, SPLAT_CUDA, SPLAT_CACHE_ON},
                 {90, 700, SPLAT_CUDA, SPLAT_CACHE_OFF},
                 {80, 2, SPLAT_CUDA, SPLAT_CACHE_OFF}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        cuda->capability = kinds[k].capability;
        forget_context();
        if (kinds[k].mode == SPLAT_CACHE_ON)
            OK(use_gpu(box, SPLAT_CACHE_ON)); /* from now on the image is on disk */
        forget_context();
        OK(use_gpu(box, kinds[k].mode));
        const int count = cuda->calls;
        assert_true(count > 12 && cuda->live == 0 && cuda->launches > 0);
        int failures = 0;
        for (int n = 1; n <= count; n++) {
            forget_context();
            cuda->fail_at = n;
            cuda->result = kinds[k].result;
            enum splat_status status = use_gpu(box, kinds[k].mode);
            failures += status != SPLAT_OK;
            if (status != SPLAT_OK && status != kinds[k].status && status != SPLAT_NO_MEMORY)
                FAIL("call %d of %d of the driver fails: %s: %s", n, count, splat_status_name(status),
                     splat_last_error());
            if (status == SPLAT_CUDA &&
                (!strstr(splat_last_error(), "cu") || !strstr(splat_last_error(), "gave CUDA_")))
                FAIL("call %d of %d of the driver fails: the sentence \"%s\" does not tell which", n, count,
                     splat_last_error());
            if (cuda->live != 0)
                FAIL("call %d of %d of the driver fails: %d modules or pieces of memory are left", n, count,
                     cuda->live);
        }
        cuda->fail_at = 0;
        if (failures != count)
            FAIL("%d of %d failures of the driver's calls went unnoticed", count - failures, count);
        OK(use_gpu(box, kinds[k].mode));
    }
}

static void every_call_of_nvrtc_may_fail(void **state)
{
    struct sandbox *box = *state;
    OK(use_gpu(box, SPLAT_CACHE_OFF));
    const int count = nvrtc->calls;
    assert_true(count >= 6);
    for (int n = 1; n <= count; n++) {
        nvrtc->calls = 0;
        nvrtc->fail_at = n;
        nvrtc->result = 5;
        enum splat_status status = use_gpu(box, SPLAT_CACHE_OFF);
        if (status == SPLAT_OK) /* without a log the cubin itself is asked; the stand-in's does not tell */
            FAIL("call %d of %d of NVRTC fails unnoticed", n, count);
        if (status != SPLAT_COMPILE || strlen(splat_last_error()) < 20)
            FAIL("call %d of %d of NVRTC fails: %s: %s", n, count, splat_status_name(status), splat_last_error());
        if (nvrtc->live || cuda->live)
            FAIL("call %d of %d of NVRTC fails: %d programs, %d modules are left", n, count, nvrtc->live,
                 cuda->live);
    }
    nvrtc->fail_at = 0;
    OK(use_gpu(box, SPLAT_CACHE_OFF));
}

/* ---- Layers ---- */

static char last_warning[512];

static void keep_warning(enum splat_log_level level, const char *message, void *user)
{
    (void)user;
    if (level == SPLAT_LOG_WARNING)
        snprintf(last_warning, sizeof last_warning, "%s", message);
}

static enum splat_status use_layer(int gradients)
{
    splat_context_options context_options;
    splat_context_options_init(&context_options);
    context_options.cache_mode = SPLAT_CACHE_OFF;
    context_options.log = keep_warning;
    splat_context *context = NULL;
    splat_layer *layer = NULL;
    splat_mask *mask = mask_of("kron(1, 48, 16, 8)", 384, 128, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_layer_options options;
    splat_layer_options_init(&options);
    options.device = SPLAT_DEVICE_GPU;
    options.n = 25088;
    options.gradients = gradients;
    OK(splat_context_create(&context_options, &context));
    enum splat_status status = splat_layer_compile(context, (const splat_mask *const *)&mask, 1, &options, &layer);
    if (status == SPLAT_OK) {
        static _Alignas(16) uint16_t x[3 * 128], y[3 * 384], weights[48 * 16 * 8], dx[3 * 128], dw[48 * 16 * 8];
        static _Alignas(256) unsigned char workspace[1 << 20];
        const void *weight_pointer = weights;
        void *gradient_pointer = dw;
        splat_layer_args args;
        splat_layer_args_init(&args);
        args.n = 3;
        args.weights = &weight_pointer, args.weight_gradients = &gradient_pointer;
        args.x = x, args.y = y, args.dy = y, args.dx = dx;
        args.workspace = workspace, args.workspace_bytes = sizeof workspace;
        assert_int_equal(splat_layer_device(layer), SPLAT_DEVICE_GPU);
        status = splat_layer_forward(layer, &args, NULL);
        if (status == SPLAT_OK && gradients)
            status = splat_layer_backward(layer, &args, NULL);
    }
    splat_layer_destroy(layer);
    splat_context_destroy(context);
    splat_mask_destroy(mask);
    return status;
}

static void every_call_of_the_driver_may_fail_under_a_layer(void **state)
{
    (void)state;
    forget_context();
    OK(use_layer(1));
    const int count = cuda->calls;
    assert_int_equal(cuda->launches, 4); /* forward; both gradients, one of them in parts and their sum */
    assert_int_equal(cuda->live, 0);
    int failures = 0;
    for (int n = 1; n <= count; n++) {
        forget_context();
        cuda->fail_at = n;
        cuda->result = 700;
        enum splat_status status = use_layer(1);
        failures += status != SPLAT_OK;
        if (status != SPLAT_OK && status != SPLAT_CUDA)
            FAIL("call %d of %d of the driver fails: %s: %s", n, count, splat_status_name(status),
                 splat_last_error());
        if (cuda->live != 0 && status != SPLAT_OK && strstr(splat_last_error(), "cuCtxPush") == NULL)
            FAIL("call %d of %d of the driver fails: %d modules are left", n, count, cuda->live);
    }
    cuda->fail_at = 0;
    /* Giving modules back tells nobody: the push and pop of the context, and four unloads. */
    if (count - failures > 6)
        FAIL("%d of %d failures of the driver's calls went unnoticed", count - failures, count);
    OK(use_layer(1));
}

static void a_layer_that_spills_takes_smaller_tiles(void **state)
{
    (void)state;
    nvrtc->spoil = SPILLS_ONCE;
    last_warning[0] = 0;
    OK(use_layer(0));
    if (!strstr(last_warning, "smaller tiles are taken") || !strstr(last_warning, "local memory"))
        FAIL("the warning is \"%s\"", last_warning);
    nvrtc->spoil = SPILLS;
    REFUSED(use_layer(0), SPLAT_COMPILE, "local memory");
    assert_true(cuda->live == 0 && nvrtc->live == 0);
}

/* What comes from the compiler is neither loaded nor stored when it must not be used. */
static void bad_images_of_the_compiler_are_refused(void **state)
{
    struct sandbox *box = *state;
    static const struct {
        enum spoil spoil;
        const char *word;
    } cases[] = {
        {NO_COMPILE, "a stand-in was told to refuse this"},
        {NO_ENTRY, "holds no kernel called splat_attention"},
        {OTHER_CHIP, "is for compute capability 8.0, not 9.0"},
        {TRUNCATED, "ends before its"},
        {NOT_ELF, "is no cubin"},
        {EMPTY, "it is empty"},
        {SPILLS, "local memory"},
        {SERIALISED, "C7510"},
        {SILENT, "neither NVRTC's log nor the cubin tells"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        nvrtc->spoil = (int)cases[k].spoil;
        REFUSED(use_gpu(box, SPLAT_CACHE_ON), SPLAT_COMPILE, cases[k].word);
        assert_true(cuda->loads == 0 && cuda->live == 0 && nvrtc->live == 0);
        assert_true(count_files(box->cache, "") <= 0);
    }
    nvrtc->spoil = SOUND;
    OK(use_gpu(box, SPLAT_CACHE_ON));
}

/* ---- Images from the cache ---- */

/* Puts `image` in the place of that of the only entry, under its key, with a sound checksum. */
static void replace_image(struct sandbox *box, const unsigned char *cubin, size_t size)
{
    char path[512] = "";
    DIR *folder = opendir(box->cache);
    assert_non_null(folder);
    for (struct dirent *d; (d = readdir(folder));)
        if (d->d_name[0] != '.')
            snprintf(path, sizeof path, "%s/%s", box->cache, d->d_name);
    closedir(folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    static unsigned char entry[1 << 20];
    const size_t bytes = fread(entry, 1, sizeof entry, file);
    fclose(file);
    uint64_t key_bytes;
    memcpy(&key_bytes, entry + 32, 8);
    assert_true(bytes > 64 && key_bytes < bytes);
    char *key = need(key_bytes + 1);
    memcpy(key, entry + 64, key_bytes);
    key[key_bytes] = 0;

    struct sp_cache cache;
    splat_context_options options;
    splat_context_options_init(&options);
    options.cache_dir = box->cache;
    options.cache_mode = SPLAT_CACHE_ON;
    OK(sp_cache_init(&cache, &options));
    char log[] = "";
    struct sp_image image = {.cubin = need(size), .cubin_bytes = size, .log = log, .registers = 50};
    memcpy(image.cubin, cubin, size);
    OK(sp_cache_store(&cache, sp_hash_bytes(key, key_bytes), key, &image));
    assert_int_equal(count_files(box->cache, ""), 1);
    free(image.cubin);
    free(key);
    sp_cache_free(&cache);
}

static void bad_images_of_the_cache_are_compiled_anew(void **state)
{
    struct sandbox *box = *state;
    static const struct {
        int chip, cuda13;
        const char *entry, *word;
    } images[] = {{80, 1, "splat_attention", "is for compute capability 8.0, not 9.0"},
                  {90, 0, "another", "holds no kernel called splat_attention"},
                  {100, 1, "splat_attention", "is for compute capability 10.0, not 9.0"},
                  {0, 0, NULL, "is shorter than the header"}};
    OK(use_gpu(box, SPLAT_CACHE_ON));
    for (size_t k = 0; k < sizeof images / sizeof images[0]; k++) {
        size_t size = 10;
        unsigned char *image = images[k].entry
                                   ? make_cubin(images[k].chip, images[k].cuda13, images[k].entry, 1, &size)
                                   : (unsigned char *)strdup("ten bytes");
        replace_image(box, image, size);
        nvrtc->calls = box->warnings = 0;
        OK(use_gpu(box, SPLAT_CACHE_READ_ONLY));
        assert_true(nvrtc->calls > 0); /* compiled, not taken from the disk */
        if (box->warnings != 1 || !strstr(box->last, "gives the CPU's results"))
            FAIL("%d warnings, and last \"%s\"", box->warnings, box->last);
        if (!strstr(box->warning, images[k].word))
            FAIL("the warning \"%s\" does not hold \"%s\"", box->warning, images[k].word);
        nvrtc->calls = 0;
        OK(use_gpu(box, SPLAT_CACHE_ON));
        assert_true(nvrtc->calls > 0);
        nvrtc->calls = 0;
        OK(use_gpu(box, SPLAT_CACHE_ON));
        assert_int_equal(nvrtc->calls, 0); /* what was compiled has been stored in its place */
        free(image);
    }
}

/* ---- The self-check ---- */

/* Where a wrong kernel differs from a right one: in an element of o, or, when that is -1, in lse. */
static int wrong_head, wrong_row, wrong_element;
static float wrong_by;

static int wrong_kernel(const struct kernel_numbers *numbers, const void *launch_args)
{
    const struct sp_launch_args *a = launch_args;
    uint16_t *o = (uint16_t *)a->o + wrong_head * a->o_head + wrong_row * a->o_row + wrong_element;
    int result = cpu_kernel(numbers, launch_args);
    if (a->heads == 1) /* the user's */
        return result;
    if (wrong_element < 0)
        a->lse[wrong_head * a->lse_head + wrong_row] += wrong_by;
    else
        *o = isnan(wrong_by) ? 0xFFFF : *o ^ (uint16_t)wrong_by;
    return result;
}

static int lazy_kernel(const struct kernel_numbers *numbers, const void *launch_args)
{
    (void)numbers, (void)launch_args;
    return 0;
}

/* One launch is the user's. */
static int checks_of(struct sandbox *box, enum splat_cache_mode mode)
{
    cuda->launches = 0;
    OK(use_gpu(box, mode));
    return cuda->launches - 1;
}

/* Two of the last bits of a bf16 number that is not tiny, one float of lse, NaN, nothing at all. */
static void wrong_kernels_are_neither_used_nor_stored(void **state)
{
    struct sandbox *box = *state;
    static const struct {
        int head, row, element;
        float by;
        const char *words;
    } faults[] = {{0, 200, 0, 2, "o[head 0][row 200][element 0] is"},
                  {1, 50, 63, 2, "o[head 1][row 50][element 63] is"},
                  {0, 0, 5, 0x8000, NULL}, /* -0 for 0 of a row that sees nothing: equal */
                  {0, 0, 5, 0x3F80, "o[head 0][row 0][element 5] is 1, the CPU gives 0, they may differ by 0;"},
                  {1, 220, -1, 0.001f, "lse[head 1][row 220] is"},
                  {0, 40, 8, NAN, "nan, the CPU gives"}};
    forced_tile = 64; /* then the rows below see keys, or nothing */
    for (size_t k = 0; k < sizeof faults / sizeof faults[0]; k++)
        for (int mode = SPLAT_CACHE_ON; mode <= SPLAT_CACHE_OFF; mode += SPLAT_CACHE_OFF - SPLAT_CACHE_ON) {
            cuda->kernel = wrong_kernel;
            wrong_head = faults[k].head, wrong_row = faults[k].row, wrong_element = faults[k].element;
            wrong_by = faults[k].by;
            enum splat_status status = use_gpu(box, (enum splat_cache_mode)mode);
            if (!faults[k].words) {
                OK(status);
                remove_cache(box);
                continue;
            }
            REFUSED(status, SPLAT_COMPILE, faults[k].words, "gives wrong results on this device", "head_dim 64",
                    "NVRTC 13.0", "CUDA 13.0", "SPLAT_SELF_CHECK=off");
            assert_true(cuda->live == 0 && nvrtc->live == 0);
            assert_true(count_files(box->cache, "") <= 0);
        }
    cuda->kernel = lazy_kernel;
    REFUSED(use_gpu(box, SPLAT_CACHE_ON), SPLAT_COMPILE, "nan, the CPU gives");
    assert_true(count_files(box->cache, "") <= 0);
    cuda->kernel = cpu_kernel;
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 1);
    assert_int_equal(count_files(box->cache, ""), 1);
    forced_tile = 0;
}

static enum splat_status compile_ahead(splat_context *context)
{
    splat_mask *mask = mask_of("causal & window(70)", 256, 256, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options;
    splat_compile_info info;
    splat_options_init(&options);
    options.head_dim = 64;
    options.arch = SPLAT_ARCH_SM90A;
    splat_compile_info_init(&info);
    enum splat_status status = splat_compile_to_cache(context, mask, &options, &info);
    splat_mask_destroy(mask);
    return status;
}

/* The first result is another number. */
static int wrong_operator(const struct kernel_numbers *numbers, const void *launch_args)
{
    const struct sp_sparse_args *s = launch_args;
    int result = cpu_kernel(numbers, launch_args);
    const int sums = numbers->op == SPLAT_OP_SPMM || numbers->op == SPLAT_OP_SPMM_TRANSPOSED;
    *(uint16_t *)(sums ? s->plan.o : s->results) ^= 0x4000;
    return result;
}

static void wrong_operators_are_neither_used_nor_stored(void **state)
{
    struct sandbox *box = *state;
    static const char *const names[] = {"", "(sddmm, bf16,", "(softmax, bf16,", "(spmm, bf16,",
                                        "(spmm_transposed, bf16,"};
    splat_mask *mask = NULL;
    OK(splat_mask_from_expression("dilated(20, 3)", 70, 70, SPLAT_ALIGN_BOTTOM_RIGHT, &mask));
    for (int op = SPLAT_OP_SDDMM; op <= SPLAT_OP_SPMM_TRANSPOSED; op++)
        for (int wrong = 1; wrong >= 0; wrong--) {
            splat_context *context = NULL;
            splat_kernel *kernel = NULL;
            splat_options options;
            splat_options_init(&options);
            options.device = SPLAT_DEVICE_GPU;
            options.head_dim = 64;
            options.heads = 2;
            options.op = (enum splat_op)op;
            OK(context_in(box, SPLAT_CACHE_ON, &context));
            cuda->kernel = wrong ? wrong_operator : cpu_kernel;
            cuda->launches = nvrtc->calls = 0;
            enum splat_status status = splat_compile(context, mask, &options, &kernel);
            assert_true(nvrtc->calls > 0); /* nothing was stored the time before */
            assert_int_equal(cuda->launches, 1);
            if (wrong)
                REFUSED(status, SPLAT_COMPILE, names[op], "gives wrong results on this device");
            else
                OK(status);
            splat_kernel_destroy(kernel);
            splat_context_destroy(context);
        }
    splat_mask_destroy(mask);
}

static void what_passed_is_marked_and_checked_no_more(void **state)
{
    struct sandbox *box = *state;
    splat_context *context;
    OK(context_in(box, SPLAT_CACHE_ON, &context));
    OK(compile_ahead(context)); /* on a machine without a GPU */
    splat_context_destroy(context);
    nvrtc->calls = 0;
    for (int use = 0; use < 2; use++) /* which cannot be marked */
        assert_int_equal(checks_of(box, SPLAT_CACHE_READ_ONLY), 1);
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 1);
    for (int use = 0; use < 2; use++) {
        assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 0);
        assert_int_equal(checks_of(box, SPLAT_CACHE_READ_ONLY), 0);
    }
    assert_int_equal(nvrtc->calls, 0);
    for (int use = 0; use < 2; use++)
        assert_int_equal(checks_of(box, SPLAT_CACHE_OFF), 1);
    remove_cache(box);
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 1); /* compiled and checked: stored with its mark */
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 0);
    assert_int_equal(box->warnings, 0);
}

/* In one process, where the first caller has the image already. */
static void what_was_compiled_ahead_is_checked_in_the_same_process(void **state)
{
    struct sandbox *box = *state;
    splat_context *context;
    OK(context_in(box, SPLAT_CACHE_ON, &context));
    OK(compile_ahead(context));
    cuda->kernel = lazy_kernel;
    for (int twice = 0; twice < 2; twice++)
        REFUSED(use_gpu_in(context), SPLAT_COMPILE, "gives wrong results");
    assert_true(cuda->live == 0);
    OK(compile_ahead(context));
    cuda->kernel = cpu_kernel;
    cuda->launches = nvrtc->calls = 0;
    OK(use_gpu_in(context));
    assert_int_equal(cuda->launches, 2);
    assert_int_equal(nvrtc->calls, 0);
    splat_context_destroy(context);
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 0);
}

static void a_wrong_entry_is_compiled_anew(void **state)
{
    struct sandbox *box = *state;
    splat_context *context;
    OK(context_in(box, SPLAT_CACHE_ON, &context));
    OK(compile_ahead(context));
    splat_context_destroy(context);
    cuda->kernel = lazy_kernel;
    nvrtc->calls = cuda->launches = box->warnings = 0;
    REFUSED(use_gpu(box, SPLAT_CACHE_ON), SPLAT_COMPILE, "gives wrong results");
    assert_true(nvrtc->calls > 0 && cuda->launches == 2 && cuda->live == 0);
    assert_int_equal(box->warnings, 1);
    assert_non_null(strstr(box->warning, "is not used: the kernel (attention, bf16, head_dim 64"));
    cuda->kernel = cpu_kernel;
    nvrtc->calls = 0;
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 1); /* it was not marked */
    assert_int_equal(nvrtc->calls, 0);
}

static void the_check_can_be_switched_off(void **state)
{
    struct sandbox *box = *state;
    cuda->kernel = lazy_kernel;
    setenv("SPLAT_SELF_CHECK", "off", 1);
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 0);
    setenv("SPLAT_SELF_CHECK", "maybe", 1);
    splat_context *context;
    REFUSED(context_in(box, SPLAT_CACHE_ON, &context), SPLAT_INVALID, "SPLAT_SELF_CHECK is 'maybe'", "on or off");
    setenv("SPLAT_SELF_CHECK", "on", 1);
    REFUSED(use_gpu(box, SPLAT_CACHE_ON), SPLAT_COMPILE, "gives wrong results");
    unsetenv("SPLAT_SELF_CHECK");
    REFUSED(use_gpu(box, SPLAT_CACHE_ON), SPLAT_COMPILE, "gives wrong results");
    splat_context_options options;
    splat_context_options_init(&options);
    assert_int_equal(options.self_check, SPLAT_SELF_CHECK_ENV);
    options.cache_mode = SPLAT_CACHE_OFF;
    options.self_check = SPLAT_SELF_CHECK_OFF;
    OK(splat_context_create(&options, &context));
    OK(use_gpu_in(context));
    splat_context_destroy(context);
    options.self_check = (enum splat_self_check)3;
    REFUSED(splat_context_create(&options, &context), SPLAT_INVALID, "self_check is 3", "0 to 2");
    cuda->kernel = cpu_kernel;
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 1); /* what was stored unchecked is not trusted */
}

static void nothing_is_checked_while_a_stream_captures(void **state)
{
    struct sandbox *box = *state;
    cuda->capturing = 1;
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 0);
    cuda->capturing = 0;
    assert_int_equal(checks_of(box, SPLAT_CACHE_ON), 1);
}

struct user {
    splat_context *context;
    enum splat_status status;
    char sentence[600];
};

static void *be_a_user(void *state)
{
    struct user *user = state;
    user->status = use_gpu_in(user->context);
    snprintf(user->sentence, sizeof user->sentence, "%s", splat_last_error());
    return NULL;
}

static void threads_check_a_kernel_once(void **state)
{
    struct sandbox *box = *state;
    enum { USERS = 6 };
    for (int round = 0; round < 16; round++) {
        const int wrong = round % 4 == 3;
        struct user users[USERS];
        pthread_t threads[USERS];
        splat_context *context;
        OK(context_in(box, round % 2 ? SPLAT_CACHE_OFF : SPLAT_CACHE_ON, &context));
        cuda->launches = nvrtc->calls = 0;
        cuda->kernel = wrong ? lazy_kernel : cpu_kernel;
        for (int t = 0; t < USERS; t++) {
            users[t] = (struct user){context, SPLAT_OK, ""};
            assert_int_equal(pthread_create(&threads[t], NULL, be_a_user, &users[t]), 0);
        }
        for (int t = 0; t < USERS; t++)
            pthread_join(threads[t], NULL);
        for (int t = 0; t < USERS; t++)
            if (wrong)
                check_refused("a wrong kernel", users[t].status, SPLAT_COMPILE, (const char *)NULL);
            else if (users[t].status != SPLAT_OK)
                FAIL("thread %d: %s", t, users[t].sentence);
        if (!wrong && cuda->launches != USERS + 1)
            FAIL("%d threads: %d launches", USERS, cuda->launches);
        splat_context_destroy(context);
        assert_int_equal(cuda->live, 0);
        if (round % 2 == 0)
            remove_cache(box);
    }
}

/* ---- Devices ---- */

static void chips_run_code_of_their_kind_alone(void **state)
{
    struct sandbox *box = *state;
    static const struct {
        int capability;
        enum splat_status status;
    } chips[] = {{80, SPLAT_OK},           {86, SPLAT_OK},          {89, SPLAT_OK},
                 {90, SPLAT_OK},           {75, SPLAT_UNSUPPORTED}, {70, SPLAT_UNSUPPORTED},
                 {100, SPLAT_UNSUPPORTED}, {120, SPLAT_UNSUPPORTED}};
    for (size_t k = 0; k < sizeof chips / sizeof chips[0]; k++) {
        cuda->capability = chips[k].capability;
        cuda->shared_limit = chips[k].capability == 90 ? 232448 : 101376;
        enum splat_status status = use_gpu(box, SPLAT_CACHE_ON);
        if (chips[k].status == SPLAT_OK && status != SPLAT_OK)
            FAIL("capability %d: %s", chips[k].capability, splat_last_error());
        if (chips[k].status != SPLAT_OK)
            check_refused("another chip", status, chips[k].status, "compute capability", (const char *)NULL);
    }
}

static void little_shared_memory_takes_a_smaller_tile(void **state)
{
    struct sandbox *box = *state;
    OK(use_gpu(box, SPLAT_CACHE_OFF));
    int tried = 0, fitted = 0;
    for (int limit = 8192; limit <= 232448; limit += 8192, tried++) {
        cuda->shared_limit = limit;
        enum splat_status status = use_gpu(box, SPLAT_CACHE_OFF);
        fitted += status == SPLAT_OK; /* the stand-in refuses a launch with more than the limit */
        if (status != SPLAT_OK)
            check_refused("little shared memory", status, SPLAT_UNSUPPORTED, "shared memory",
                          "no smaller tile fits", (const char *)NULL);
        if (fitted && status != SPLAT_OK)
            FAIL("a tile fits %d bytes and not %d", limit - 8192, limit);
    }
    if (fitted < tried / 2 || fitted == tried)
        FAIL("%d of %d limits of shared memory could be used", fitted, tried);
}

/* ---- The reader of cubins by itself ---- */

static void sound_cubins_pass(void **state)
{
    (void)state;
    static const struct {
        int chip, capability, sound;
    } pairs[] = {{80, 80, 1}, {80, 86, 1}, {80, 89, 1}, {86, 86, 1}, {90, 90, 1},  {80, 90, 0},
                 {86, 80, 0}, {89, 86, 0}, {90, 80, 0}, {90, 89, 0}, {90, 100, 0}, {100, 90, 0}};
    for (int cuda13 = 0; cuda13 < 2; cuda13++)
        for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
            size_t size;
            unsigned char *cubin = make_cubin(pairs[k].chip, cuda13, "a_kernel", 7, &size);
            const char *fault = sp_cubin_fault(cubin, size, pairs[k].capability, "a_kernel");
            if ((fault == NULL) != pairs[k].sound)
                FAIL("code of %d on a chip of %d: %s", pairs[k].chip, pairs[k].capability,
                     fault ? fault : "passes");
            const char *const others[] = {"a_kerne", "a_kernel2", "kernel", "", ".text.a_kernel"};
            for (int n = 0; n < 5 && pairs[k].sound; n++)
                if (!sp_cubin_fault(cubin, size, pairs[k].capability, others[n]))
                    FAIL("a kernel called '%s' was found", others[n]);
            free(cubin);
        }
    /* The code of one kernel under the symbol of another. */
    size_t size;
    unsigned char *cubin = make_cubin(90, 1, "a_kernel", 7, &size), *symbol = NULL;
    for (size_t at = 1; at + 9 <= size; at++)
        if (memcmp(cubin + at - 1, "\0a_kernel", 10) == 0)
            symbol = cubin + at;
    assert_non_null(symbol);
    *symbol = 'b';
    assert_non_null(sp_cubin_fault(cubin, size, 90, "a_kernel"));
    assert_non_null(sp_cubin_fault(cubin, size, 90, "b_kernel"));
    *symbol = 'a';
    assert_null(sp_cubin_fault(cubin, size, 90, "a_kernel"));
    free(cubin);
}

/* In memory of just its size, so that a reader that goes beyond is caught where memory is checked. Cut anywhere it
 * is refused; with any byte changed it is refused or passes, and is never read beyond its end. */
static void damaged_cubins_are_never_read_beyond_their_end(void **state)
{
    (void)state;
    size_t size;
    unsigned char *cubin = make_cubin(90, 1, "a_kernel", 7, &size);
    for (size_t cut = 0; cut < size; cut++) {
        unsigned char *part = need(cut ? cut : 1);
        memcpy(part, cubin, cut);
        if (!sp_cubin_fault(part, cut, 90, "a_kernel"))
            FAIL("cut at byte %zu of %zu it passes", cut, size);
        free(part);
    }
    static const unsigned char values[] = {0, 1, 2, 0x7F, 0x80, 0xFF};
    int refused = 0;
    for (size_t at = 0; at < size; at++)
        for (size_t v = 0; v < sizeof values; v++) {
            unsigned char *copy = need(size);
            memcpy(copy, cubin, size);
            copy[at] = values[v];
            const char *fault = sp_cubin_fault(copy, size, 90, "a_kernel");
            refused += fault != NULL;
            /* Magic, class, data, machine, chip: none of them may change. */
            int decides = at < 6 || at == EI_OSABI + 11 || at == EI_OSABI + 12 || at == 49;
            if (decides && copy[at] != cubin[at] && !fault)
                FAIL("byte %zu of the header is %u, and it passes", at, values[v]);
            free(copy);
        }
    assert_true(refused > 200);
    free(cubin);
}

int main(void)
{
    unsetenv("SPLAT_CACHE");
    unsetenv("SPLAT_SELF_CHECK");
    nvrtc = use_stand_in("stand_in_nvrtc.so");
    cuda = use_stand_in("stand_in_cuda.so");
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_and_reset, close_sandbox)
    const struct CMUnitTest tests[] = {
        TEST(every_call_of_the_driver_may_fail),
        TEST(every_call_of_nvrtc_may_fail),
        TEST(every_call_of_the_driver_may_fail_under_a_layer),
        TEST(a_layer_that_spills_takes_smaller_tiles),
        TEST(bad_images_of_the_compiler_are_refused),
        TEST(bad_images_of_the_cache_are_compiled_anew),
        TEST(wrong_kernels_are_neither_used_nor_stored),
        TEST(wrong_operators_are_neither_used_nor_stored),
        TEST(what_passed_is_marked_and_checked_no_more),
        TEST(what_was_compiled_ahead_is_checked_in_the_same_process),
        TEST(a_wrong_entry_is_compiled_anew),
        TEST(the_check_can_be_switched_off),
        TEST(nothing_is_checked_while_a_stream_captures),
        TEST(threads_check_a_kernel_once),
        TEST(chips_run_code_of_their_kind_alone),
        TEST(little_shared_memory_takes_a_smaller_tile),
        TEST(sound_cubins_pass),
        TEST(damaged_cubins_are_never_read_beyond_their_end),
    };
    return cmocka_run_group_tests_name("driver", tests, NULL, NULL);
}
