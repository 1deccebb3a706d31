/* Allocation failures in the tool: every command, the n-th allocation fails. A status and a sentence, nothing left
 * behind, no half-written file, no result that is shorter than it should be.
 */
#include "alloc_faults.h"
#include "faults.h"

#include "cli/cli.h"
#include "common/error.h"

enum { MOST_WORDS = 24 };

struct command {
    enum sp_command command;
    enum splat_status (*run)(struct sp_cli *cli);
    const char *words[MOST_WORDS]; /* "@name" is a file in the sandbox */
};

static const struct command commands[] = {
    {SP_EXPLAIN,
     sp_command_explain,
     {"explain", "--pattern", "causal & window(40) | strided(16)", "--seq", "300", "--json"}},
    {SP_EXPLAIN, sp_command_explain, {"explain", "--mask", "@mask.npy", "--png", "@mask.png"}},
    {SP_EXPLAIN, sp_command_explain, {"explain", "--mask", "@mask.pbm"}},
    {SP_DUMP,
     sp_command_dump,
     {"dump", "--stage", "source", "--pattern", "causal", "--seq", "256", "-o", "@source.cu"}},
    {SP_DUMP, sp_command_dump, {"dump", "--stage", "acsr", "--mask", "@mask.npy"}},
    {SP_RUN, sp_command_run, {"run",     "--pattern", "window(9)", "--seq",   "40",      "--head-dim", "16",
                              "--heads", "2",         "--device",  "cpu",     "--dtype", "fp32",       "--out",
                              "@o.npy",  "--lse",     "@lse.npy",  "--check", "--json",  "--quiet"}},
    {SP_RUN,
     sp_command_run,
     {"run", "--pattern", "window(9)", "--q", "@q.npy", "--k", "@q.npy", "--v", "@q.npy", "--device", "cpu",
      "--quiet"}},
    {SP_COMPILE,
     sp_command_compile,
     {"compile", "--pattern", "causal", "--seq", "64", "--arch", "sm_80", "--cache-dir", "@cache", "--quiet"}},
    {SP_CACHE, sp_command_cache, {"cache", "verify", "--cache-dir", "@cache", "--json"}},
    {SP_CACHE, sp_command_cache, {"cache", "stat", "--cache-dir", "@cache"}},
    {SP_CACHE, sp_command_cache, {"cache", "prune", "--cache-dir", "@cache", "--max-bytes", "0"}},
};

/* ---- Files ---- */

static void put_file(const char *folder, const char *name, const void *data, size_t size)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* Magic, version and header, padded as NumPy does. */
static size_t npy_header(char *to, const char *type, const char *shape)
{
    memcpy(to, "\x93NUMPY\x01\x00\x76\x00", 10);
    int used = sprintf(to + 10, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, shape);
    memset(to + 10 + used, ' ', (size_t)(118 - used));
    to[127] = '\n';
    return 128;
}

static void put_inputs(const char *folder)
{
    static char npy[128 + 4096 * 4];
    size_t at = npy_header(npy, "|b1", "64, 64");
    for (int k = 0; k < 4096; k++)
        npy[at + (size_t)k] = (char)(k % 64 <= k / 64 || k % 7 == 0);
    put_file(folder, "mask.npy", npy, at + 4096);
    at = npy_header(npy, "<f4", "1, 2, 40, 16");
    for (int k = 0; k < 2 * 40 * 16; k++) {
        float value = (float)(k % 17) / 17;
        memcpy(npy + at + (size_t)k * 4, &value, 4);
    }
    put_file(folder, "q.npy", npy, at + 2 * 40 * 16 * 4);
    static char pbm[64 + 32 * 80];
    int used = sprintf(pbm, "P1\n# a comment\n40 32\n");
    for (int k = 0; k < 32 * 40; k++)
        used += sprintf(pbm + used, "%d\n", k % 3 == 0);
    put_file(folder, "mask.pbm", pbm, (size_t)used);
}

/* ---- Running a command ---- */

static char words[MOST_WORDS][200];
static char *arguments[MOST_WORDS + 1];
static int argument_count;

static void set_arguments(const struct command *command, const char *folder)
{
    for (argument_count = 0; argument_count < MOST_WORDS && command->words[argument_count]; argument_count++) {
        const char *word = command->words[argument_count];
        if (*word == '@')
            snprintf(words[argument_count], sizeof words[0], "%s/%s", folder, word + 1);
        else
            snprintf(words[argument_count], sizeof words[0], "%s", word);
        arguments[argument_count] = words[argument_count];
    }
    arguments[argument_count] = NULL;
}

static enum splat_status run(const struct command *command)
{
    struct sp_cli cli;
    enum splat_status status = sp_cli_parse(command->command, argument_count, arguments, &cli);
    if (status == SPLAT_OK)
        status = command->run(&cli);
    if (fflush(stdout) != 0 && status == SPLAT_OK)
        status = sp_fail(SPLAT_IO, "stdout: %s", strerror(errno));
    return status;
}

/* While a command runs its stdout is a file. */
static int kept_stdout = -1, output = -1;

static void divert(const char *folder)
{
    char path[200];
    snprintf(path, sizeof path, "%s/stdout", folder);
    fflush(stdout);
    kept_stdout = dup(STDOUT_FILENO);
    output = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(kept_stdout >= 0 && output >= 0);
    dup2(output, STDOUT_FILENO);
}

static off_t take_output(void)
{
    off_t size = lseek(output, 0, SEEK_END);
    assert_int_equal(ftruncate(output, 0), 0);
    lseek(output, 0, SEEK_SET);
    return size;
}

static void restore(void)
{
    fflush(stdout);
    dup2(kept_stdout, STDOUT_FILENO);
    close(kept_stdout);
    close(output);
}

static int count_temporaries(const char *folder)
{
    DIR *stream = opendir(folder);
    int count = 0;
    for (struct dirent *d; stream && (d = readdir(stream));)
        count += strstr(d->d_name, ".tmp") != NULL;
    closedir(stream);
    return count;
}

#define COMPLAIN(...)                                                                                              \
    do {                                                                                                           \
        restore();                                                                                                 \
        FAIL(__VA_ARGS__);                                                                                         \
    } while (0)

/* Nothing in words that cannot be had without memory may be missing: times alone change a result's length. */
enum { TIMES_CHANGE = 40 };

static void attack(const struct command *command, const char *folder)
{
    const char *name = command->words[0], *first = command->words[1];
    int call, failures = 0;
    set_arguments(command, folder);
    divert(folder);
    for (int warm = 0; warm < 2; warm++) {
        take_output();
        enum splat_status status = run(command);
        if (status != SPLAT_OK)
            COMPLAIN("%s %s: %s", name, first, splat_last_error());
    }
    const off_t size = take_output();
    alloc_begin(0, 0);
    run(command);
    int left = alloc_end(&call), count = alloc_state.made;
    take_output();
    if (left)
        COMPLAIN("%s %s: %d pieces of memory left, one by call %d", name, first, left, call);
    const int step = deep() ? 1 : 1 + count / 80;
    for (int forever = 0; forever < 2; forever++)
        for (int n = 1; n <= count; n += step) {
            const int descriptors = open_descriptors();
            alloc_begin(n, forever);
            enum splat_status status = run(command);
            left = alloc_end(&call);
            const off_t got = take_output();
            failures += status != SPLAT_OK;
            if (status != SPLAT_OK && status != SPLAT_NO_MEMORY && !strstr(splat_last_error(), strerror(ENOMEM)))
                COMPLAIN("%s %s: call %d of %d without memory: status %s: %s", name, first, n, count,
                         splat_status_name(status), splat_last_error());
            if (status == SPLAT_OK && (got > size + TIMES_CHANGE || got < size - TIMES_CHANGE))
                COMPLAIN(
                    "%s %s: call %d of %d without memory: %lld bytes on stdout in place of %lld, and no failure",
                    name, first, n, count, (long long)got, (long long)size);
            if (left)
                COMPLAIN("%s %s: call %d of %d without memory: %d pieces left behind, one by call %d (status %s)",
                         name, first, n, count, left, call, splat_status_name(status));
            if (open_descriptors() != descriptors)
                COMPLAIN("%s %s: call %d of %d without memory: a file left open", name, first, n, count);
            if (count_temporaries(folder))
                COMPLAIN("%s %s: call %d of %d without memory: a half-written file left", name, first, n, count);
        }
    restore();
    print_message("%s %s: %d allocations, %d runs failed\n", name, first, count, failures);
    assert_true(failures > 0);
}

static void commands_without_memory(void **state)
{
    struct sandbox *box = *state;
    put_inputs(box->folder);
    for (size_t k = 0; k < sizeof commands / sizeof commands[0]; k++)
        attack(&commands[k], box->folder);
}

int main(void)
{
    unsetenv("SPLAT_CACHE");
    setenv("SPLAT_CACHE_DIR", "/nonexistent/splat", 1); /* only the folder that a command names is touched */
    use_stand_in("stand_in_nvrtc.so");
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_sandbox, close_sandbox)
    const struct CMUnitTest tests[] = {
        TEST(commands_without_memory),
    };
    return cmocka_run_group_tests_name("tool", tests, NULL, NULL);
}
