/* Compiling into the cache through the public API: once a key, whoever asks, and found again by later processes.
 * Every test is skipped where NVRTC is not on the machine.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

struct sandbox {
    char folder[64], cache[80];
    pthread_mutex_t lock;
    int messages, warnings;
    char all[4096]; /* every message, one a line */
};

static void keep_log(enum splat_log_level level, const char *message, void *user)
{
    struct sandbox *box = user;
    pthread_mutex_lock(&box->lock);
    box->messages++;
    box->warnings += level == SPLAT_LOG_WARNING;
    size_t used = strlen(box->all);
    snprintf(box->all + used, sizeof box->all - used, "%s\n", message);
    pthread_mutex_unlock(&box->lock);
}

static void forget_log(struct sandbox *box)
{
    box->messages = box->warnings = 0;
    box->all[0] = 0;
}

static int open_sandbox(void **state)
{
    struct sandbox *box = need(sizeof *box);
    memset(box, 0, sizeof *box);
    pthread_mutex_init(&box->lock, NULL);
    strcpy(box->folder, "/tmp/splat_test_compile_XXXXXX");
    assert_non_null(mkdtemp(box->folder));
    snprintf(box->cache, sizeof box->cache, "%s/cache", box->folder);
    *state = box;
    return 0;
}

static int close_sandbox(void **state)
{
    struct sandbox *box = *state;
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", box->folder);
    int failed = system(command);
    pthread_mutex_destroy(&box->lock);
    free(box);
    return failed;
}

static splat_context *context_in(struct sandbox *box, enum splat_cache_mode mode)
{
    splat_context_options options;
    splat_context *context = NULL;
    splat_context_options_init(&options);
    options.cache_dir = box->cache;
    options.cache_mode = mode;
    options.log = keep_log;
    options.log_user = box;
    OK(splat_context_create(&options, &context));
    return context;
}

/* The cheapest kernel there is; `variant` makes keys differ. */
static enum splat_status compile(splat_context *context, int variant, splat_compile_info *info)
{
    splat_options options;
    splat_options_init(&options);
    options.dtype = variant & 1 ? SPLAT_BF16 : SPLAT_FP16;
    options.arch = SPLAT_ARCH_SM80;
    options.head_dim = 8 + variant / 2 * 8;
    options.tile_rows = 64;
    options.tile_cols = 32;
    splat_mask *mask = mask_of("full", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_compile_info_init(info);
    enum splat_status status = splat_compile_to_cache(context, mask, &options, info);
    splat_mask_destroy(mask);
    return status;
}

static splat_compile_info must_compile(splat_context *context, int variant)
{
    splat_compile_info info;
    enum splat_status status = compile(context, variant, &info);
    if (status == SPLAT_NO_DEVICE) {
        print_message("skipped: %s\n", splat_last_error());
        splat_context_destroy(context);
        skip();
    }
    OK(status);
    return info;
}

static splat_cache_info stat_of(splat_context *context)
{
    splat_cache_info info;
    splat_cache_info_init(&info);
    OK(splat_cache_stat(context, &info));
    return info;
}

static void the_second_call_and_the_second_process_hit(void **state)
{
    struct sandbox *box = *state;
    splat_context *context = context_in(box, SPLAT_CACHE_ON);
    splat_compile_info first = must_compile(context, 0);
    assert_int_equal(first.cache_hit, 0);
    assert_int_equal(strlen(first.key), 32);
    assert_int_equal(strspn(first.key, "0123456789abcdef"), 32);
    assert_true(first.ms > 0 && first.cubin_bytes > 0 && first.registers > 0 && first.spill_bytes == 0);
    assert_true(box->messages >= 1 && box->warnings == 0); /* a compile is visible */
    assert_int_equal(stat_of(context).entries, 1);
    forget_log(box);
    splat_compile_info again = must_compile(context, 0);
    assert_int_equal(again.cache_hit, 1);
    splat_context_destroy(context);
    context = context_in(box, SPLAT_CACHE_ON);
    splat_compile_info later = must_compile(context, 0);
    assert_int_equal(later.cache_hit, 1);
    assert_int_equal(box->messages, 0); /* and a hit is silent */
    assert_string_equal(first.key, later.key);
    assert_true(first.registers == later.registers && first.shared_bytes == later.shared_bytes &&
                first.spill_bytes == later.spill_bytes && first.cubin_bytes == later.cubin_bytes);
    splat_compile_info other = must_compile(context, 1);
    assert_int_equal(other.cache_hit, 0);
    assert_string_not_equal(other.key, first.key);
    assert_int_equal(stat_of(context).entries, 2);
    splat_context_destroy(context);
}

struct racer {
    splat_context *context;
    splat_compile_info info;
    enum splat_status status;
    char sentence[300];
};

static void *race(void *user)
{
    struct racer *racer = user;
    racer->status = compile(racer->context, 0, &racer->info);
    snprintf(racer->sentence, sizeof racer->sentence, "%s", splat_last_error());
    return NULL;
}

static void threads_compile_a_key_once(void **state)
{
    struct sandbox *box = *state;
    splat_context *context = context_in(box, SPLAT_CACHE_ON);
    struct racer racers[4];
    pthread_t threads[4];
    for (int k = 0; k < 4; k++) {
        racers[k].context = context;
        assert_int_equal(pthread_create(&threads[k], NULL, race, &racers[k]), 0);
    }
    int misses = 0;
    for (int k = 0; k < 4; k++)
        pthread_join(threads[k], NULL);
    if (racers[0].status == SPLAT_NO_DEVICE) {
        splat_context_destroy(context);
        print_message("skipped: %s\n", racers[0].sentence);
        skip();
    }
    for (int k = 0; k < 4; k++) {
        if (racers[k].status != SPLAT_OK)
            FAIL("thread %d: %s", k, racers[k].sentence);
        assert_string_equal(racers[k].info.key, racers[0].info.key);
        assert_int_equal(racers[k].info.registers, racers[0].info.registers);
        misses += !racers[k].info.cache_hit;
    }
    assert_int_equal(misses, 1);
    if (box->messages != 1)
        FAIL("%d messages instead of one for one compile:\n%s", box->messages, box->all);
    assert_int_equal(stat_of(context).entries, 1);
    splat_context_destroy(context);
}

static void processes_compile_from_empty_together(void **state)
{
    struct sandbox *box = *state;
    splat_context *probe = context_in(box, SPLAT_CACHE_OFF);
    splat_compile_info info;
    if (compile(probe, 0, &info) == SPLAT_NO_DEVICE) {
        splat_context_destroy(probe);
        print_message("skipped: %s\n", splat_last_error());
        skip();
    }
    splat_context_destroy(probe);
    pid_t children[3];
    fflush(NULL);
    for (int k = 0; k < 3; k++)
        if ((children[k] = fork()) == 0) {
            splat_context *context = context_in(box, SPLAT_CACHE_ON);
            enum splat_status status = compile(context, 0, &info);
            if (status != SPLAT_OK)
                fprintf(stderr, "child %d: %s\n", k, splat_last_error());
            splat_context_destroy(context);
            _exit(status == SPLAT_OK && info.registers > 0 && info.spill_bytes == 0 ? 0 : 1);
        }
    for (int k = 0; k < 3; k++) {
        int status = 1;
        assert_int_equal(waitpid(children[k], &status, 0), children[k]);
        assert_int_equal(status, 0);
    }
    splat_context *context = context_in(box, SPLAT_CACHE_ON);
    splat_cache_info check;
    splat_cache_info_init(&check);
    OK(splat_cache_verify(context, &check));
    assert_true(check.entries == 1 && check.damaged == 0);
    assert_int_equal(must_compile(context, 0).cache_hit, 1);
    splat_context_destroy(context);
}

static void a_compile_that_is_killed_is_made_good(void **state)
{
    struct sandbox *box = *state;
    for (int round = 0; round < 4; round++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            splat_context *context = context_in(box, SPLAT_CACHE_ON);
            splat_compile_info info;
            for (int variant = 0;; variant++)
                compile(context, variant % 4, &info);
        }
        struct timespec pause = {0, 150000000L * (round + 1)};
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    splat_context *context = context_in(box, SPLAT_CACHE_ON);
    splat_compile_info info = must_compile(context, 0);
    assert_true(info.registers > 0);
    splat_cache_info check;
    splat_cache_info_init(&check);
    OK(splat_cache_verify(context, &check));
    assert_int_equal(check.damaged, 0);
    splat_context_destroy(context);
}

static void damaged_entries_are_rebuilt(void **state)
{
    struct sandbox *box = *state;
    splat_context *context = context_in(box, SPLAT_CACHE_ON);
    splat_compile_info first = must_compile(context, 0);
    splat_context_destroy(context);
    DIR *folder = opendir(box->cache);
    assert_non_null(folder);
    char path[400] = "";
    for (struct dirent *d; (d = readdir(folder));)
        if (d->d_name[0] != '.') {
            if (!strstr(d->d_name, first.key))
                FAIL("the entry of key %s is called %s", first.key, d->d_name);
            snprintf(path, sizeof path, "%s/%s", box->cache, d->d_name);
        }
    closedir(folder);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, -200, SEEK_END);
    fputc('X', file);
    fputc('Y', file);
    fclose(file);
    forget_log(box);
    context = context_in(box, SPLAT_CACHE_ON);
    splat_cache_info check;
    splat_cache_info_init(&check);
    OK(splat_cache_verify(context, &check));
    assert_int_equal(check.damaged, 1);
    forget_log(box);
    splat_compile_info second = must_compile(context, 0);
    assert_int_equal(second.cache_hit, 0);
    assert_string_equal(second.key, first.key);
    assert_int_equal(box->warnings, 1);
    splat_context_destroy(context);
    context = context_in(box, SPLAT_CACHE_ON);
    assert_int_equal(must_compile(context, 0).cache_hit, 1);
    splat_context_destroy(context);
}

static void a_cache_that_cannot_keep_is_refused(void **state)
{
    struct sandbox *box = *state;
    splat_context *context = context_in(box, SPLAT_CACHE_OFF);
    splat_compile_info info;
    enum splat_status status = compile(context, 0, &info);
    if (status == SPLAT_NO_DEVICE) {
        splat_context_destroy(context);
        skip();
    }
    check_refused("compile with the cache off", status, SPLAT_UNSUPPORTED, "off", (const char *)NULL);
    splat_context_destroy(context);
    context = context_in(box, SPLAT_CACHE_READ_ONLY);
    check_refused("compile with a read-only cache", compile(context, 0, &info), SPLAT_UNSUPPORTED, "read-only",
                  (const char *)NULL);
    splat_context_destroy(context);
    assert_int_not_equal(access(box->cache, F_OK), 0);
    assert_int_equal(mkdir(box->cache, 0777), 0);
    assert_int_equal(chmod(box->cache, 0777), 0);
    context = context_in(box, SPLAT_CACHE_ON);
    check_refused("compile into a folder of everyone", compile(context, 0, &info), SPLAT_IO, box->cache,
                  (const char *)NULL);
    splat_context_destroy(context);
}

static void lengths_share_a_kernel(void **state)
{
    struct sandbox *box = *state;
    splat_context *context = context_in(box, SPLAT_CACHE_ON);
    must_compile(context, 0);
    static const int64_t lengths[] = {128, 4096, 1 << 20};
    char key[33] = "";
    for (int k = 0; k < 3; k++) {
        splat_mask *mask = mask_of("window(63)", lengths[k], lengths[k], SPLAT_ALIGN_BOTTOM_RIGHT);
        splat_options options;
        splat_compile_info info;
        splat_options_init(&options);
        splat_compile_info_init(&info);
        options.arch = SPLAT_ARCH_SM80;
        options.head_dim = 16;
        options.tile_rows = 64;
        options.tile_cols = 32;
        options.batch = 1 + k;
        options.heads = 4 * (1 + k);
        OK(splat_compile_to_cache(context, mask, &options, &info));
        assert_int_equal(info.cache_hit, k > 0);
        if (k)
            assert_string_equal(info.key, key);
        strcpy(key, info.key);
        splat_mask_destroy(mask);
    }
    splat_context_destroy(context);
}

static void refused_arguments(void **state)
{
    struct sandbox *box = *state;
    splat_context *context = context_in(box, SPLAT_CACHE_ON);
    splat_mask *mask = mask_of("full", 64, 64, SPLAT_ALIGN_BOTTOM_RIGHT);
    splat_options options;
    splat_compile_info info;
    splat_options_init(&options);
    splat_compile_info_init(&info);
    options.head_dim = 64;
    REFUSED(splat_compile_to_cache(NULL, mask, &options, &info), SPLAT_INVALID, "context");
    REFUSED(splat_compile_to_cache(context, NULL, &options, &info), SPLAT_INVALID, "mask");
    REFUSED(splat_compile_to_cache(context, mask, NULL, &info), SPLAT_INVALID, "options");
    REFUSED(splat_compile_to_cache(context, mask, &options, NULL), SPLAT_INVALID, "info");
    options.dtype = SPLAT_FP32;
    REFUSED(splat_compile_to_cache(context, mask, &options, &info), SPLAT_UNSUPPORTED, "fp32");
    options.dtype = SPLAT_FP16;
    options.head_dim = 12;
    REFUSED(splat_compile_to_cache(context, mask, &options, &info), SPLAT_INVALID, "head_dim", "12");
    assert_int_not_equal(access(box->cache, F_OK), 0); /* nothing was written for them */
    splat_mask_destroy(mask);
    splat_context_destroy(context);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_sandbox, close_sandbox)
    const struct CMUnitTest tests[] = {
        TEST(the_second_call_and_the_second_process_hit),
        TEST(threads_compile_a_key_once),
        TEST(processes_compile_from_empty_together),
        TEST(a_compile_that_is_killed_is_made_good),
        TEST(damaged_entries_are_rebuilt),
        TEST(a_cache_that_cannot_keep_is_refused),
        TEST(lengths_share_a_kernel),
        TEST(refused_arguments),
    };
    return cmocka_run_group_tests_name("compile", tests, NULL, NULL);
}
