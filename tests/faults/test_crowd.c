/* Many at once, and many times: processes and threads that compile the same keys from an empty folder, and a
 * process that compiles and destroys for ever. Kernels are compiled by the stand-in for NVRTC, which counts.
 */
#include "faults.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#include "stand_in.h"

static struct stand_in *nvrtc;

/* ---- The crowd ---- */

enum { MOST_KEYS = 50, MOST_THREADS = 8, MOST_PROCESSES = 16 };

static int keys_wanted(void)
{
    return deep() ? MOST_KEYS : 10;
}

/* What a process found of a key: written by its threads, which must agree. */
struct finding {
    char key[33];
    int registers, misses;
    int64_t cubin_bytes;
};

struct process {
    struct finding findings[MOST_KEYS];
    int compiles, failed;
    char sentence[400];
};

struct crowd {
    splat_context *context;
    struct process *process;
    pthread_mutex_t lock;
    int number, keys;
};

static void count_compiles(enum splat_log_level level, const char *message, void *user)
{
    struct process *process = user;
    if (level == SPLAT_LOG_INFO && strncmp(message, "compiled kernel", 15) == 0)
        __atomic_add_fetch(&process->compiles, 1, __ATOMIC_RELAXED);
}

static enum splat_status compile_key(splat_context *context, int number, splat_compile_info *info)
{
    splat_options options;
    splat_options_init(&options);
    options.dtype = number % 2 ? SPLAT_BF16 : SPLAT_FP16;
    options.arch = SPLAT_ARCH_SM80;
    options.head_dim = 8 + number / 2 * 8;
    splat_mask *mask = mask_of("full", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_compile_info_init(info);
    enum splat_status status = splat_compile_to_cache(context, mask, &options, info);
    splat_mask_destroy(mask);
    return status;
}

static void take(struct crowd *crowd, int number, enum splat_status status, const splat_compile_info *info)
{
    struct process *process = crowd->process;
    struct finding *finding = &process->findings[number];
    pthread_mutex_lock(&crowd->lock);
    if (status != SPLAT_OK) {
        process->failed++;
        snprintf(process->sentence, sizeof process->sentence, "%s", splat_last_error());
    } else if (!finding->key[0]) {
        memcpy(finding->key, info->key, sizeof finding->key);
        finding->registers = info->registers;
        finding->cubin_bytes = info->cubin_bytes;
    } else if (strcmp(finding->key, info->key) != 0 || finding->registers != info->registers ||
               finding->cubin_bytes != info->cubin_bytes) {
        process->failed++;
        snprintf(process->sentence, sizeof process->sentence, "key %d: two threads got different kernels", number);
    }
    finding->misses += status == SPLAT_OK && !info->cache_hit;
    pthread_mutex_unlock(&crowd->lock);
}

/* Each thread in an order of its own. */
static void *compile_all(void *user)
{
    struct crowd *crowd = user;
    static const int steps[] = {1, 3, 7, 9};
    const int number = __atomic_fetch_add(&crowd->number, 1, __ATOMIC_RELAXED);
    for (int k = 0; k < crowd->keys; k++) {
        splat_compile_info info;
        const int which = (number * 5 + k * steps[number % 4]) % crowd->keys;
        take(crowd, which, compile_key(crowd->context, which, &info), &info);
    }
    return NULL;
}

static void be_a_process(const struct sandbox *box, struct process *process, int threads, int keys)
{
    splat_context_options options;
    struct crowd crowd = {.process = process, .keys = keys};
    pthread_t all[MOST_THREADS];
    splat_context_options_init(&options);
    options.cache_dir = box->cache;
    options.cache_mode = SPLAT_CACHE_ON;
    options.log = count_compiles;
    options.log_user = process;
    process->failed += splat_context_create(&options, &crowd.context) != SPLAT_OK;
    pthread_mutex_init(&crowd.lock, NULL);
    for (int t = 0; t < threads; t++)
        process->failed += pthread_create(&all[t], NULL, compile_all, &crowd) != 0;
    for (int t = 0; t < threads; t++)
        pthread_join(all[t], NULL);
    splat_context_destroy(crowd.context);
}

static void check_process(const struct process *process, const struct process *first, int number, int keys)
{
    if (process->failed)
        FAIL("process %d: %d failures: %s", number, process->failed, process->sentence);
    int misses = 0;
    for (int k = 0; k < keys; k++) {
        const struct finding *finding = &process->findings[k];
        if (finding->misses > 1)
            FAIL("process %d compiled key %d %d times", number, k, finding->misses);
        misses += finding->misses;
        if (strcmp(finding->key, first->findings[k].key) != 0 ||
            finding->registers != first->findings[k].registers ||
            finding->cubin_bytes != first->findings[k].cubin_bytes)
            FAIL("processes 0 and %d got different kernels of key %d", number, k);
        for (int other = 0; other < k; other++)
            if (strcmp(finding->key, process->findings[other].key) == 0)
                FAIL("keys %d and %d are one", k, other);
    }
    if (process->compiles != misses)
        FAIL("process %d: %d compiles for %d misses", number, process->compiles, misses);
}

static void a_crowd_compiles_from_empty(void **state)
{
    struct sandbox *box = *state;
    const int processes = deep() ? MOST_PROCESSES : 4, threads = deep() ? MOST_THREADS : 4, keys = keys_wanted();
    char path[200];
    snprintf(path, sizeof path, "%s/results", box->folder);
    assert_int_equal(mkdir(path, 0700), 0);
    pid_t children[MOST_PROCESSES];
    fflush(NULL);
    for (int p = 0; p < processes; p++)
        if ((children[p] = fork()) == 0) {
            static struct process process;
            be_a_process(box, &process, threads, keys);
            snprintf(path, sizeof path, "%s/results/%d", box->folder, p);
            FILE *file = fopen(path, "wb");
            int kept = file && fwrite(&process, sizeof process, 1, file) == 1 && fclose(file) == 0;
            _exit(kept ? 0 : 1);
        }
    static struct process results[MOST_PROCESSES];
    int compiles = 0;
    for (int p = 0; p < processes; p++) {
        int ended = 1;
        assert_int_equal(waitpid(children[p], &ended, 0), children[p]);
        if (ended != 0)
            FAIL("process %d ended with %d", p, ended);
        snprintf(path, sizeof path, "%s/results/%d", box->folder, p);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        assert_int_equal(fread(&results[p], sizeof results[p], 1, file), 1);
        fclose(file);
        compiles += results[p].compiles;
    }
    for (int p = 0; p < processes; p++)
        check_process(&results[p], &results[0], p, keys);
    assert_true(compiles >= keys && compiles <= keys * processes);

    splat_context *context = NULL;
    splat_cache_info info;
    splat_cache_info_init(&info);
    OK(context_in(box, SPLAT_CACHE_ON, &context));
    OK(splat_cache_verify(context, &info));
    assert_int_equal(info.entries, keys);
    assert_int_equal(info.damaged, 0);
    assert_int_equal(count_files(box->cache, "tmp-"), 0);
    nvrtc->calls = 0;
    for (int k = 0; k < keys; k++) {
        splat_compile_info compiled;
        OK(compile_key(context, k, &compiled));
        assert_int_equal(compiled.cache_hit, 1);
        assert_string_equal(compiled.key, results[0].findings[k].key);
    }
    assert_int_equal(nvrtc->calls, 0);
    splat_context_destroy(context);
    print_message("%d processes x %d threads, %d keys: %d compiles\n", processes, threads, keys, compiles);
}

/* ---- A compiler that fails while others wait for it ---- */

static void *compile_one(void *user)
{
    struct crowd *crowd = user;
    splat_compile_info info;
    take(crowd, 0, compile_key(crowd->context, 0, &info), &info);
    return NULL;
}

static void waiters_learn_of_a_failure(void **state)
{
    struct sandbox *box = *state;
    for (int round = 0; round < 20; round++) {
        struct process process = {.failed = 0};
        struct crowd crowd = {.process = &process, .keys = 1};
        pthread_t all[4];
        OK(context_in(box, SPLAT_CACHE_ON, &crowd.context));
        pthread_mutex_init(&crowd.lock, NULL);
        nvrtc->spoil = NO_COMPILE;
        for (int t = 0; t < 4; t++)
            assert_int_equal(pthread_create(&all[t], NULL, compile_one, &crowd), 0);
        for (int t = 0; t < 4; t++)
            pthread_join(all[t], NULL);
        assert_int_equal(process.failed, 4);
        if (!strstr(process.sentence, "a stand-in was told to refuse this"))
            FAIL("a thread that waited is told \"%s\"", process.sentence);
        nvrtc->spoil = SOUND; /* a key that failed is tried again */
        splat_compile_info info;
        OK(compile_key(crowd.context, 0, &info));
        splat_context_destroy(crowd.context);
        remove_cache(box);
    }
}

int main(void)
{
    unsetenv("SPLAT_CACHE");
    nvrtc = use_stand_in("stand_in_nvrtc.so");
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_sandbox, close_sandbox)
    const struct CMUnitTest tests[] = {
        TEST(a_crowd_compiles_from_empty),
        TEST(waiters_learn_of_a_failure),
    };
    return cmocka_run_group_tests_name("crowd", tests, NULL, NULL);
}
