/* The driver and NVRTC fail at every call in turn, and give or get what they should not: a status, a sentence,
 * nothing left on the device. What is loaded has been checked: no image that is damaged, for another chip or
 * without the kernel reaches the driver.
 */
#include "faults.h"

#include "common/hash.h"
#include "runtime/cache.h"
#include "runtime/cubin.h"

static struct stand_in *nvrtc, *cuda;

static void reset(void)
{
    *nvrtc = (struct stand_in){.live = nvrtc->live};
    *cuda = (struct stand_in){.live = cuda->live, .capability = 90, .shared_limit = 232448};
}

static int open_and_reset(void **state)
{
    reset();
    return open_sandbox(state);
}

/* ---- One use of the GPU: compile, run, give back ---- */

static enum splat_status use_gpu(struct sandbox *box, enum splat_cache_mode mode)
{
    splat_context *context = NULL;
    splat_kernel *kernel = NULL;
    splat_mask *mask = mask_of("causal & window(70)", 256, 256, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options;
    splat_options_init(&options);
    options.device = SPLAT_DEVICE_GPU;
    options.head_dim = 64;
    OK(context_in(box, mode, &context));
    enum splat_status status = splat_compile(context, mask, &options, &kernel);
    if (status == SPLAT_OK) {
        static _Alignas(16) uint16_t tensors[4][256 * 64];
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
    splat_context_destroy(context);
    splat_mask_destroy(mask);
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
    } kinds[] = {{90, 700, SPLAT_CUDA}, {80, 700, SPLAT_CUDA}, {90, 2, SPLAT_CUDA}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        cuda->capability = kinds[k].capability;
        forget_context();
        OK(use_gpu(box, SPLAT_CACHE_ON)); /* and from now on the image is on disk */
        const int count = cuda->calls;
        assert_true(count > 12 && cuda->live == 0 && cuda->launches > 0);
        int failures = 0;
        for (int n = 1; n <= count; n++) {
            forget_context();
            cuda->fail_at = n;
            cuda->result = kinds[k].result;
            enum splat_status status = use_gpu(box, SPLAT_CACHE_ON);
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
        OK(use_gpu(box, SPLAT_CACHE_ON));
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
        if (box->warnings != 1 || !strstr(box->last, "compiled kernel"))
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
    nvrtc = use_stand_in("stand_in_nvrtc.so");
    cuda = use_stand_in("stand_in_cuda.so");
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_and_reset, close_sandbox)
    const struct CMUnitTest tests[] = {
        TEST(every_call_of_the_driver_may_fail),
        TEST(every_call_of_nvrtc_may_fail),
        TEST(bad_images_of_the_compiler_are_refused),
        TEST(bad_images_of_the_cache_are_compiled_anew),
        TEST(chips_run_code_of_their_kind_alone),
        TEST(little_shared_memory_takes_a_smaller_tile),
        TEST(sound_cubins_pass),
        TEST(damaged_cubins_are_never_read_beyond_their_end),
    };
    return cmocka_run_group_tests_name("driver", tests, NULL, NULL);
}
