/* Times what needs no GPU: expressions of a million tokens to a plan, the patterns of suite.py to a plan as
 * expressions and as byte masks, byte masks against memcpy, compiles against the cache. Each measurement runs in a
 * process of its own, so that its peak memory is its own.
 *
 *     build/bench/plan_time [--json FILE] [--commit ID] [--only long|suite|dense|compile] [--size N]
 *
 * Prints a table with one line a measurement: time (median and least of the repeats), peak memory, the mark and
 * whether it holds. Exit status 1 when a measurement failed; a missed mark is reported and is no failure.
 */
#include <errno.h>
#include <ftw.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "json.h"
#include "splat.h"

#define MILLION     1048576
#define REPEATS     7
#define ENOUGH_MS   3000.0 /* repeats end once they took this long together */
#define MAX_RESULTS 128

/* What one child reports through its pipe. */
struct measure {
    int failed;
    char error[256];
    double ms, min_ms;         /* the thing measured; of a pattern's byte mask, analysis and plan together */
    double other_ms;           /* memcpy beside a dense mask; 0 = none */
    double rest_ms;            /* the plan after a dense analysis; 0 = none */
    long long families, pairs; /* of the mask */
    int hit;                   /* cache hit of a compile; -1 = not a compile */
};

struct result {
    char name[96];
    double mark; /* ms, or times memcpy for dense */
    struct measure m;
    double peak_mb;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples, int count)
{
    qsort(samples, (size_t)count, sizeof *samples, ascending);
    return samples[count / 2];
}

static int check(struct measure *m, enum splat_status status, const char *what)
{
    if (status == SPLAT_OK)
        return 1;
    m->failed = 1;
    snprintf(m->error, sizeof m->error, "%s: %s: %.180s", what, splat_status_name(status), splat_last_error());
    return 0;
}

static splat_options options_for(int64_t dim)
{
    splat_options options;
    splat_options_init(&options);
    options.head_dim = dim;
    options.batch = 2;
    options.heads = 16;
    return options;
}

/* ---- Expressions: text to plan, on one core ---- */

struct job {
    const char *expression;
    int64_t size;
    const char *folder; /* cache folder of a compile */
    int kind;           /* which mask or which compile */
};

static void one_core(void)
{
    cpu_set_t set;
    int cpu = sched_getcpu();
    CPU_ZERO(&set);
    CPU_SET((size_t)(cpu < 0 ? 0 : cpu), &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static void plan_expression(const struct job *job, struct measure *m)
{
    double samples[REPEATS], begin_all = now_ms();
    int count = 0;
    splat_options options = options_for(128);
    one_core();
    while (count < REPEATS && (count == 0 || now_ms() - begin_all < ENOUGH_MS)) {
        splat_mask *mask = NULL;
        splat_plan *plan = NULL;
        splat_plan_info info;
        double begin = now_ms();
        if (!check(
                m,
                splat_mask_from_expression(job->expression, job->size, job->size, SPLAT_ALIGN_BOTTOM_RIGHT, &mask),
                "splat_mask_from_expression") ||
            !check(m, splat_plan_create(mask, &options, &plan), "splat_plan_create")) {
            splat_mask_destroy(mask);
            return;
        }
        samples[count++] = now_ms() - begin;
        splat_plan_info_init(&info);
        if (check(m, splat_plan_get_info(plan, &info), "splat_plan_get_info")) {
            m->families = info.families;
            m->pairs = info.allowed_pairs;
        }
        splat_plan_destroy(plan);
        splat_mask_destroy(mask);
    }
    m->ms = median(samples, count);
    m->min_ms = samples[0];
}

/* ---- Dense byte masks ---- */

static const char *const dense_names[] = {"causal",          "longformer256_g64", "strided4",
                                          "random_blocks64", "random 50 %",       "causal & strided2"};
#define DENSE_COUNT ((int)(sizeof dense_names / sizeof dense_names[0]))

static uint32_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)(x >> 32);
}

static uint8_t dense_cell(int kind, int64_t i, int64_t j)
{
    switch (kind) {
    case 0:
        return j <= i;
    case 1:
        return (j - i <= 256 && i - j <= 256) || i < 64 || j < 64;
    case 2:
        return (i - j) % 4 == 0;
    case 3:
        return mix((uint64_t)(i / 64 * 65536 + j / 64 + 1)) % 16 == 0;
    case 4:
        return (uint8_t)(mix((uint64_t)(i * MILLION + j + 1)) & 1);
    default:
        return j <= i && (i - j) % 2 == 0;
    }
}

/* The bytes of a mask: of an expression, or of a kind above. */
static void fill_cells(const struct job *job, uint8_t *cells, struct measure *m)
{
    const int64_t n = job->size;
    splat_mask *mask = NULL;
    splat_acsr *acsr = NULL;
    if (!job->expression) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                cells[i * n + j] = dense_cell(job->kind, i, j);
        return;
    }
    if (check(m, splat_mask_from_expression(job->expression, n, n, SPLAT_ALIGN_BOTTOM_RIGHT, &mask),
              "splat_mask_from_expression") &&
        check(m, splat_acsr_create(mask, &acsr), "splat_acsr_create"))
        for (int64_t i = 0; i < n && !m->failed; i++)
            check(m, splat_acsr_expand_row(acsr, i, cells + i * n), "splat_acsr_expand_row");
    splat_acsr_destroy(acsr);
    splat_mask_destroy(mask);
}

static double copy_ms(uint8_t *to, const uint8_t *from, size_t bytes)
{
    double samples[REPEATS];
    memcpy(to, from, bytes); /* touches every page first */
    for (int n = 0; n < REPEATS; n++) {
        double begin = now_ms();
        memcpy(to, from, bytes);
        samples[n] = now_ms() - begin;
        __asm__ volatile("" : : "r"(to) : "memory");
    }
    return median(samples, REPEATS);
}

static void analyse_dense(const struct job *job, struct measure *m)
{
    int64_t n = job->size;
    size_t bytes = (size_t)n * (size_t)n;
    const int together = job->expression != NULL; /* analysis and plan are timed as one, nothing is copied */
    uint8_t *cells = malloc(bytes), *copy = together ? NULL : malloc(bytes);
    double samples[REPEATS], plans[REPEATS], begin_all;
    int count = 0;
    splat_options options = options_for(128);
    one_core();
    if (!cells || (!copy && !together)) {
        m->failed = 1;
        snprintf(m->error, sizeof m->error, "no memory for two masks of %zu bytes", bytes);
        free(cells), free(copy);
        return;
    }
    fill_cells(job, cells, m);
    if (!together)
        m->other_ms = copy_ms(copy, cells, bytes);
    begin_all = now_ms();
    while (!m->failed && count < REPEATS && (count == 0 || now_ms() - begin_all < ENOUGH_MS)) {
        splat_mask *mask = NULL;
        splat_plan *plan = NULL;
        splat_plan_info info;
        double begin = now_ms();
        if (!check(m, splat_mask_from_bytes(cells, n, n, n, &mask), "splat_mask_from_bytes"))
            break;
        double analysed = now_ms();
        samples[count] = analysed - begin;
        if (check(m, splat_plan_create(mask, &options, &plan), "splat_plan_create")) {
            const double planned = now_ms();
            if (together)
                samples[count] = planned - begin;
            plans[count++] = planned - analysed;
            splat_plan_info_init(&info);
            check(m, splat_plan_get_info(plan, &info), "splat_plan_get_info");
            m->families = info.families;
            m->pairs = info.allowed_pairs;
        }
        splat_plan_destroy(plan);
        splat_mask_destroy(mask);
    }
    if (!m->failed) {
        m->ms = median(samples, count);
        m->min_ms = samples[0];
        m->rest_ms = median(plans, count);
    }
    free(cells);
    free(copy);
}

/* ---- Compiles ---- */

enum { COMPILE_FIRST, COMPILE_FROM_DISK, COMPILE_REPEAT, COMPILE_REPEAT_NEW_MASK };

static splat_context *context_in(const char *folder, struct measure *m)
{
    splat_context_options options;
    splat_context *context = NULL;
    splat_context_options_init(&options);
    options.cache_dir = folder;
    options.cache_mode = SPLAT_CACHE_ON;
    check(m, splat_context_create(&options, &context), "splat_context_create");
    return context;
}

/* One splat_compile_to_cache, from text to the entry on disk, or from the entry. */
static void compile_once(const struct job *job, struct measure *m, splat_context *context,
                         const splat_options *options)
{
    splat_mask *mask = NULL;
    splat_compile_info info;
    splat_compile_info_init(&info);
    double begin = now_ms();
    if (check(m, splat_mask_from_expression(job->expression, job->size, job->size, SPLAT_ALIGN_BOTTOM_RIGHT, &mask),
              "splat_mask_from_expression") &&
        check(m, splat_compile_to_cache(context, mask, options, &info), "splat_compile_to_cache")) {
        m->ms = m->min_ms = now_ms() - begin;
        m->hit = info.cache_hit;
        if (info.cache_hit != (job->kind == COMPILE_FROM_DISK)) {
            m->failed = 1;
            snprintf(m->error, sizeof m->error, "cache_hit is %d, which is not what is to be timed",
                     info.cache_hit);
        }
    }
    splat_mask_destroy(mask);
}

/* splat_compile of a kernel that the registry holds: microseconds, given in ms. */
static void compile_again(const struct job *job, struct measure *m, splat_context *context,
                          const splat_options *options)
{
    enum { CALLS = 200 };
    double samples[REPEATS];
    splat_mask *mask = NULL, *fresh = NULL;
    splat_kernel *first = NULL, *again = NULL;
    if (!check(m,
               splat_mask_from_expression(job->expression, job->size, job->size, SPLAT_ALIGN_BOTTOM_RIGHT, &mask),
               "splat_mask_from_expression") ||
        !check(m, splat_compile(context, mask, options, &first), "splat_compile")) {
        splat_mask_destroy(mask);
        return;
    }
    for (int n = 0; n < REPEATS && !m->failed; n++) {
        double begin = now_ms();
        for (int c = 0; c < CALLS && !m->failed; c++) {
            const splat_mask *used = mask;
            if (job->kind == COMPILE_REPEAT_NEW_MASK) {
                check(m,
                      splat_mask_from_expression(job->expression, job->size, job->size, SPLAT_ALIGN_BOTTOM_RIGHT,
                                                 &fresh),
                      "splat_mask_from_expression");
                used = fresh;
            }
            if (!m->failed && check(m, splat_compile(context, used, options, &again), "splat_compile"))
                splat_kernel_destroy(again);
            splat_mask_destroy(fresh);
            fresh = NULL;
        }
        samples[n] = (now_ms() - begin) / CALLS;
    }
    if (!m->failed) {
        m->ms = median(samples, REPEATS);
        m->min_ms = samples[0];
    }
    splat_kernel_destroy(first);
    splat_mask_destroy(mask);
}

static void measure_compile(const struct job *job, struct measure *m)
{
    splat_options options = options_for(128);
    splat_context *context = context_in(job->folder, m);
    if (!context)
        return;
    if (job->kind == COMPILE_FIRST || job->kind == COMPILE_FROM_DISK) {
        options.arch = SPLAT_ARCH_SM90A;
        compile_once(job, m, context, &options);
    } else {
        compile_again(job, m, context, &options);
    }
    splat_context_destroy(context);
}

/* ---- Children ---- */

typedef void (*measure_fn)(const struct job *job, struct measure *m);

/* Runs `measure` in a child, which writes its struct to a pipe. */
static void in_child(measure_fn measure, const struct job *job, struct result *out)
{
    int ends[2];
    struct rusage usage = {0};
    int status = 0;
    memset(&out->m, 0, sizeof out->m);
    fflush(stdout);
    if (pipe(ends) != 0) {
        perror("pipe");
        exit(1);
    }
    pid_t pid = fork();
    if (pid == 0) {
        struct measure m = {0};
        m.hit = -1;
        measure(job, &m);
        ssize_t sent = write(ends[1], &m, sizeof m);
        _exit(sent == (ssize_t)sizeof m ? 0 : 1);
    }
    close(ends[1]);
    ssize_t got = pid < 0 ? -1 : read(ends[0], &out->m, sizeof out->m);
    close(ends[0]);
    if (pid > 0)
        while (wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {
        }
    if (got != (ssize_t)sizeof out->m) {
        memset(&out->m, 0, sizeof out->m);
        out->m.failed = 1;
        snprintf(out->m.error, sizeof out->m.error, "the measuring process ended with wait status %d", status);
    }
    out->peak_mb = (double)usage.ru_maxrss / 1024.0;
}

static struct result results[MAX_RESULTS];
static int result_count;

static struct result *measure(const char *name, measure_fn function, const struct job *job, double mark)
{
    struct result *r = &results[result_count++];
    snprintf(r->name, sizeof r->name, "%s", name);
    r->mark = mark;
    in_child(function, job, r);
    return r;
}

static void print_failure(const struct result *r)
{
    printf("%-46s FAILED: %s\n", r->name, r->m.error);
}

static void run_long(int64_t size)
{
    static const char *const expressions[] = {
        "window(256)",
        "window(4095, 0)",
        "strided(4)",
        "strided(64)",
        "dilated(128, 4)",
        "window(256) | rows(0, 64) | cols(0, 64)",
        "causal & (window(127, 0) | strided(128))",
        "causal & (window(1023, 0) | cols(0, 4))",
        "causal",
    };
    printf("expression to plan, S = %lld, one core (mark: 50 ms, 100 MB)\n%-46s %10s %10s %9s %9s\n",
           (long long)size, "", "ms", "least ms", "peak MB", "families");
    for (size_t n = 0; n < sizeof expressions / sizeof expressions[0]; n++) {
        struct job job = {expressions[n], size, NULL, 0};
        struct result *r = measure(expressions[n], plan_expression, &job, 50.0);
        if (r->m.failed)
            print_failure(r);
        else
            printf("%-46s %10.3f %10.3f %9.1f %9lld%s\n", r->name, r->m.ms, r->m.min_ms, r->peak_mb, r->m.families,
                   r->m.ms > 50.0 || r->peak_mb > 100.0 ? "  over the mark" : "");
    }
}

/* Each pattern of suite.py three ways: an expression at `size`, at a million tokens, a byte mask at `size`. */
static void run_suite(int64_t size)
{
    static const struct {
        const char *name, *expression;
    } suite[] = {
#include "suite.inc" /* of suite.py --c */
    };
    const double marks[] = {5.0, 100.0, 40.0};
    printf("\nthe suite to plans, one core (marks: %g ms at %lld, %g ms at %d, %g ms as a byte mask)\n%-22s %10s "
           "%10s %10s "
           "%10s %10s\n",
           marks[0], (long long)size, marks[1], MILLION, marks[2], "", "ms", "million", "byte mask", "its plan",
           "peak MB");
    for (size_t n = 0; n < sizeof suite / sizeof suite[0]; n++) {
        const struct job jobs[] = {{suite[n].expression, size, NULL, 0}, {suite[n].expression, MILLION, NULL, 0}};
        char name[96];
        double ms[3];
        struct result *r = NULL;
        int failed = 0, over = 0;
        for (int way = 0; way < 3; way++) {
            static const char *const ways[] = {"", " at a million", " as bytes"};
            snprintf(name, sizeof name, "%s%s", suite[n].name, ways[way]);
            r = measure(name, way < 2 ? plan_expression : analyse_dense, &jobs[way % 2], marks[way]);
            ms[way] = r->m.ms;
            failed |= r->m.failed;
            over |= ms[way] > marks[way];
            if (r->m.failed)
                print_failure(r);
        }
        if (!failed)
            printf("%-22s %10.3f %10.3f %10.2f %10.2f %10.1f%s\n", suite[n].name, ms[0], ms[1], ms[2], r->m.rest_ms,
                   r->peak_mb, over ? "  over a mark" : "");
    }
}

static void run_dense(int64_t size)
{
    printf("\nbyte mask %lld x %lld analysed (mark: 3 x memcpy of the same bytes)\n%-46s %10s %10s %9s %10s %9s\n",
           (long long)size, (long long)size, "", "ms", "memcpy ms", "ratio", "plan ms", "peak MB");
    for (int kind = 0; kind < DENSE_COUNT; kind++) {
        struct job job = {NULL, size, NULL, kind};
        struct result *r = measure(dense_names[kind], analyse_dense, &job, 3.0);
        if (r->m.failed) {
            print_failure(r);
            continue;
        }
        double ratio = r->m.ms / r->m.other_ms;
        printf("%-46s %10.2f %10.2f %9.2f %10.2f %9.1f%s\n", r->name, r->m.ms, r->m.other_ms, ratio, r->m.rest_ms,
               r->peak_mb, ratio > 3.0 ? "  over the mark" : "");
    }
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info, (void)kind, (void)ftw;
    return remove(path);
}

static void run_compile(void)
{
    static const struct {
        const char *name;
        int kind;
        double mark;
    } steps[] = {{"first compile (NVRTC, empty cache)", COMPILE_FIRST, 1000.0},
                 {"second process, kernel on disk", COMPILE_FROM_DISK, 10.0},
                 {"splat_compile again, same mask", COMPILE_REPEAT, 0.1},
                 {"splat_compile again, mask made anew", COMPILE_REPEAT_NEW_MASK, 0.1}};
    char folder[] = "/tmp/splat-bench-XXXXXX";
    if (!mkdtemp(folder)) {
        perror(folder);
        exit(1);
    }
    printf("\ncompile, S = 8192\n%-46s %10s %10s\n", "", "ms", "mark ms");
    for (size_t n = 0; n < sizeof steps / sizeof steps[0]; n++) {
        struct job job = {"causal & (window(300, 0) | cols(0, 7))", 8192, folder, steps[n].kind};
        struct result *r = measure(steps[n].name, measure_compile, &job, steps[n].mark);
        if (r->m.failed)
            print_failure(r);
        else
            printf("%-46s %10.4f %10.1f%s\n", r->name, r->m.ms, r->mark,
                   r->m.ms > r->mark ? "  over the mark" : "");
    }
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- JSON ---- */

static int write_json(const char *path, const char *commit)
{
    FILE *file = fopen(path, "w");
    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    fputs("{\n\"kind\": \"plan\",\n\"meta\": {\n", file);
    json_meta(file, commit);
    fputs("},\n\"results\": [\n", file);
    for (int n = 0; n < result_count; n++) {
        const struct result *r = &results[n];
        fputs(" {\"name\": ", file);
        json_text(file, r->name);
        fprintf(file, ", \"mark\": %g, \"ms\": %.6f, \"min_ms\": %.6f, \"peak_mb\": %.2f, ", r->mark, r->m.ms,
                r->m.min_ms, r->peak_mb);
        fprintf(file, "\"families\": %lld, \"pairs\": %lld", r->m.families, r->m.pairs);
        if (r->m.other_ms > 0)
            fprintf(file, ", \"memcpy_ms\": %.6f", r->m.other_ms);
        if (r->m.rest_ms > 0)
            fprintf(file, ", \"plan_ms\": %.6f", r->m.rest_ms);
        if (r->m.hit >= 0 && !r->m.failed)
            fprintf(file, ", \"cache_hit\": %d", r->m.hit);
        if (r->m.failed) {
            fputs(", \"error\": ", file);
            json_text(file, r->m.error);
        }
        fprintf(file, "}%s\n", n + 1 < result_count ? "," : "");
    }
    fputs("]\n}\n", file);
    int bad = ferror(file);
    return fclose(file) != 0 || bad;
}

static int wanted(const char *only, const char *part)
{
    return !only || strcmp(only, part) == 0;
}

int main(int argc, char **argv)
{
    const char *json = NULL, *commit = NULL, *only = NULL;
    long long size = 0;
    int failed = 0;
    for (int n = 1; n < argc; n += 2) {
        const char *value = n + 1 < argc ? argv[n + 1] : NULL;
        if (value && strcmp(argv[n], "--json") == 0)
            json = value;
        else if (value && strcmp(argv[n], "--commit") == 0)
            commit = value;
        else if (value && strcmp(argv[n], "--only") == 0)
            only = value;
        else if (value && strcmp(argv[n], "--size") == 0)
            size = strtoll(value, NULL, 10);
        else {
            fprintf(stderr,
                    "usage: plan_time [--json FILE] [--commit ID] [--only long|suite|dense|compile] [--size N]\n");
            return 2;
        }
    }
    if (wanted(only, "long"))
        run_long(size ? size : MILLION);
    if (wanted(only, "suite"))
        run_suite(size ? size : 8192);
    if (wanted(only, "dense"))
        run_dense(size ? size : 16384);
    if (wanted(only, "compile"))
        run_compile();
    for (int n = 0; n < result_count; n++)
        failed += results[n].m.failed;
    if (json && write_json(json, commit))
        return 1;
    return failed || !result_count;
}
