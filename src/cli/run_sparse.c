/* splatc run --op: the operators on values on random inputs, on the GPU or the CPU, checked and timed.
 *
 * Streams of random numbers (tensors.h): 0 = q, or x; 1 = k; 4 = the values that are read.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "acsr/acsr.h"
#include "cli/cli.h"
#include "cli/json.h"
#include "cli/tensors.h"
#include "common/error.h"
#include "runtime/driver.h"

enum { READ, WRITTEN, FIRST, SECOND, LSE, ARRAYS }; /* values read and written; q and k, or x and y; lse */

/* Everything a run owns. */
struct sparse_run {
    splat_mask *mask;
    splat_acsr *acsr, *turned; /* turned: of A^T */
    splat_context *context;
    splat_kernel *kernel;
    struct sp_host_tensor arrays[ARRAYS]; /* values as [batch, heads, 1, stride]; lse as [batch, heads, 1, rows] */
    int used[ARRAYS], results[ARRAYS];
    int64_t *offsets, pairs, stride;
    double *ms, median_ms;
    splat_compile_info compiled;
    int64_t checked, wrong;
    char first[256]; /* a sentence about the first wrong number */
};

static int is_product(enum splat_op op)
{
    return op == SPLAT_OP_SPMM || op == SPLAT_OP_SPMM_TRANSPOSED;
}

/* ---- Inputs ---- */

static enum splat_status add_array(const struct sp_cli *cli, struct sparse_run *run, int which, int64_t heads, int64_t rows,
                                   int64_t dim, int64_t stream)
{
    const int64_t shape[4] = {cli->batch, heads, rows, dim};
    struct sp_host_tensor *array = &run->arrays[which];
    enum splat_status status = sp_tensor_make(which == LSE ? SPLAT_FP32 : cli->dtype, shape, array);
    if (status != SPLAT_OK)
        return status;
    run->used[which] = 1;
    run->results[which] = stream < 0;
    memset(array->data, 0xFF, array->bytes); /* what is left unwritten must not pass for a result */
    if (stream >= 0)
        sp_tensor_fill(array, cli->seed, (uint64_t)stream);
    return SPLAT_OK;
}

static enum splat_status make_arrays(const struct sp_cli *cli, struct sparse_run *run)
{
    const enum splat_op op = cli->op;
    const int turned = op == SPLAT_OP_SPMM_TRANSPOSED;
    enum splat_status status = splat_acsr_create(run->mask, &run->acsr);
    run->offsets = malloc((size_t)(cli->seq + 1) * sizeof *run->offsets);
    run->ms = malloc((size_t)cli->repeat * sizeof *run->ms);
    if (status == SPLAT_OK && (!run->offsets || !run->ms))
        status = sp_no_memory("the offsets of rows", (size_t)(cli->seq + 1) * sizeof *run->offsets);
    if (status == SPLAT_OK)
        status = splat_acsr_row_offsets(run->acsr, run->offsets);
    if (status == SPLAT_OK && turned)
        status = splat_acsr_transpose(run->acsr, &run->turned);
    if (status != SPLAT_OK)
        return status;
    run->pairs = splat_acsr_pairs(run->acsr);
    run->stride = (run->pairs + 8) / 8 * 8;
    if (op != SPLAT_OP_SDDMM)
        status = add_array(cli, run, READ, cli->heads, 1, run->stride, 4);
    if (status == SPLAT_OK && !is_product(op))
        status = add_array(cli, run, WRITTEN, cli->heads, 1, run->stride, -1);
    if (status == SPLAT_OK && op == SPLAT_OP_SOFTMAX)
        return add_array(cli, run, LSE, cli->heads, 1, cli->seq, -1);
    const int64_t dim = is_product(op) ? cli->value_dim : cli->head_dim, in = turned ? cli->seq : cli->kv_seq;
    if (status == SPLAT_OK && op == SPLAT_OP_SDDMM)
        status = add_array(cli, run, FIRST, cli->heads, cli->seq, dim, 0);
    else if (status == SPLAT_OK)
        status = add_array(cli, run, FIRST, cli->kv_heads, in, dim, 0);
    if (status == SPLAT_OK && op == SPLAT_OP_SDDMM)
        return add_array(cli, run, SECOND, cli->kv_heads, cli->kv_seq, dim, 1);
    return status == SPLAT_OK ? add_array(cli, run, SECOND, cli->heads, turned ? cli->kv_seq : cli->seq, dim, -1) : status;
}

/* ---- Runs ---- */

static splat_sparse_args make_args(const struct sp_cli *cli, const struct sparse_run *run, void *const data[ARRAYS])
{
    const struct sp_host_tensor *first = &run->arrays[FIRST], *second = &run->arrays[SECOND];
    splat_sparse_args args;
    splat_sparse_args_init(&args);
    args.batch = cli->batch, args.heads = cli->heads, args.kv_heads = cli->kv_heads;
    args.q_len = cli->seq, args.kv_len = cli->kv_seq;
    args.scale = cli->scale;
    const splat_values read = {data[READ], cli->heads * run->stride, run->stride};
    const splat_values written = {data[WRITTEN], cli->heads * run->stride, run->stride};
    args.values = is_product(cli->op) ? read : written;
    args.scores = read;
    args.q = args.x = splat_tensor_bhsd(data[FIRST], first->shape[1], first->shape[2], first->shape[3]);
    args.k = args.y = splat_tensor_bhsd(data[SECOND], second->shape[1], second->shape[2], second->shape[3]);
    args.lse = data[LSE];
    args.lse_head_stride = cli->seq, args.lse_batch_stride = cli->heads * cli->seq;
    return args;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static enum splat_status run_cpu(const struct sp_cli *cli, struct sparse_run *run)
{
    void *data[ARRAYS];
    for (int a = 0; a < ARRAYS; a++)
        data[a] = run->arrays[a].data;
    const splat_sparse_args args = make_args(cli, run, data);
    enum splat_status status = SPLAT_OK;
    for (int64_t r = -1; r < cli->repeat && status == SPLAT_OK; r++) {
        double begin = now_ms();
        status = splat_run_sparse(run->kernel, &args, NULL);
        if (r >= 0)
            run->ms[r] = now_ms() - begin;
    }
    return status;
}

struct gpu {
    const struct sp_driver *driver;
    sp_cu_pointer memory[ARRAYS]; /* 0 = none */
    sp_cu_event before, after;
};

static enum splat_status prepare(struct gpu *gpu, const struct sparse_run *run)
{
    const struct sp_driver *driver = gpu->driver;
    enum splat_status status = sp_driver_check(driver, driver->event_create(&gpu->before, 0), "cuEventCreate");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->event_create(&gpu->after, 0), "cuEventCreate");
    for (int a = 0; a < ARRAYS && status == SPLAT_OK; a++) {
        const struct sp_host_tensor *array = &run->arrays[a];
        if (!run->used[a])
            continue;
        status = sp_driver_check(driver, driver->memory_alloc(&gpu->memory[a], array->bytes), "cuMemAlloc");
        if (status == SPLAT_OK)
            status = sp_driver_check(driver, driver->copy_to_device(gpu->memory[a], array->data, array->bytes),
                                     "cuMemcpyHtoD");
    }
    return status;
}

static enum splat_status launch_once(struct gpu *gpu, const struct sparse_run *run, const splat_sparse_args *args, double *ms)
{
    const struct sp_driver *driver = gpu->driver;
    float elapsed = 0;
    enum splat_status status = sp_driver_check(driver, driver->event_record(gpu->before, NULL), "cuEventRecord");
    if (status == SPLAT_OK)
        status = splat_run_sparse(run->kernel, args, NULL);
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->event_record(gpu->after, NULL), "cuEventRecord");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->event_synchronize(gpu->after), "cuEventSynchronize");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->event_elapsed_time(&elapsed, gpu->before, gpu->after),
                                 "cuEventElapsedTime");
    *ms = (double)elapsed;
    return status;
}

static enum splat_status run_gpu(const struct sp_cli *cli, struct sparse_run *run)
{
    struct gpu gpu = {0};
    sp_cu_context context = NULL;
    sp_cu_device device = 0;
    void *data[ARRAYS];
    double warm;
    enum splat_status status = sp_driver_get(&gpu.driver);
    if (status != SPLAT_OK)
        return status;
    status = sp_driver_context(gpu.driver, &context, &device);
    if (status == SPLAT_OK)
        status = prepare(&gpu, run);
    for (int a = 0; a < ARRAYS; a++)
        data[a] = (void *)(uintptr_t)gpu.memory[a];
    const splat_sparse_args args = make_args(cli, run, data);
    for (int64_t r = -1; r < cli->repeat && status == SPLAT_OK; r++)
        status = launch_once(&gpu, run, &args, r < 0 ? &warm : &run->ms[r]);
    for (int a = 0; a < ARRAYS; a++) {
        const struct sp_host_tensor *array = &run->arrays[a];
        if (status == SPLAT_OK && run->used[a] && run->results[a])
            status = sp_driver_check(gpu.driver,
                                     gpu.driver->copy_to_host(array->data, gpu.memory[a], array->bytes), "cuMemcpyDtoH");
        if (gpu.memory[a])
            (void)gpu.driver->memory_free(gpu.memory[a]);
    }
    if (gpu.before)
        (void)gpu.driver->event_destroy(gpu.before);
    if (gpu.after)
        (void)gpu.driver->event_destroy(gpu.after);
    return status;
}

/* ---- The check ---- */

static double number(const struct sparse_run *run, int array, int64_t matrix, int64_t at)
{
    const struct sp_host_tensor *t = &run->arrays[array];
    return (double)sp_tensor_get(t, matrix * t->shape[2] * t->shape[3] + at);
}

/* `reach`: the sum of the terms' sizes. */
static void compare(struct sparse_run *run, const char *name, int64_t matrix, int64_t row, int64_t at, double got, double want,
                    double reach)
{
    const enum splat_dtype dtype = run->arrays[run->used[SECOND] ? SECOND : WRITTEN].dtype;
    const double unit = dtype == SPLAT_FP32 ? 0x1p-24 : dtype == SPLAT_BF16 ? 0x1p-8 : 0x1p-11;
    run->checked++;
    if (got == want || fabs(got - want) <= 1.02 * unit * fabs(want) + 1e-5 * reach + 1e-7)
        return;
    if (!run->wrong++)
        snprintf(run->first, sizeof run->first, "%s of matrix %lld, row %lld, number %lld is %.9g; expected %.9g", name,
                 (long long)matrix, (long long)row, (long long)at, got, want);
}

/* One row of the results of one (batch, head). */
static void check_row(const struct sp_cli *cli, struct sparse_run *run, int64_t m, int64_t row, const uint8_t *allowed, int64_t keys)
{
    const int turned = cli->op == SPLAT_OP_SPMM_TRANSPOSED;
    const int64_t kv = m / cli->heads * cli->kv_heads + m % cli->heads / (cli->heads / cli->kv_heads);
    const int64_t dim = is_product(cli->op) ? cli->value_dim : cli->head_dim;
    const double scale = cli->scale > 0               ? (double)cli->scale
                         : cli->op == SPLAT_OP_SDDMM ? 1.0 / sqrt((double)dim)
                                                      : 1.0;
    if (cli->op == SPLAT_OP_SOFTMAX) {
        double top = -INFINITY, sum = 0;
        for (int64_t p = run->offsets[row]; p < run->offsets[row + 1]; p++)
            top = fmax(top, scale * number(run, READ, m, p));
        for (int64_t p = run->offsets[row]; p < run->offsets[row + 1]; p++)
            sum += exp(scale * number(run, READ, m, p) - top);
        for (int64_t p = run->offsets[row]; p < run->offsets[row + 1]; p++)
            compare(run, "softmax", m, row, p, number(run, WRITTEN, m, p), exp(scale * number(run, READ, m, p) - top) / sum, 1);
        compare(run, "lse", m, row, row, number(run, LSE, m, row), sum > 0 ? top + log(sum) : -INFINITY, 1);
        return;
    }
    for (int64_t j = 0, at = turned ? 0 : run->offsets[row]; cli->op == SPLAT_OP_SDDMM && j < keys; j++) {
        double want = 0, reach = 0;
        for (int64_t d = 0; d < dim && allowed[j]; d++) {
            double term = scale * number(run, FIRST, m, row * dim + d) * number(run, SECOND, kv, j * dim + d);
            want += term, reach += fabs(term);
        }
        if (allowed[j])
            compare(run, "value", m, row, at, number(run, WRITTEN, m, at), want, reach), at++;
    }
    for (int64_t d = 0; is_product(cli->op) && d < dim; d++) {
        double want = 0, reach = 0;
        for (int64_t j = 0, at = turned ? 0 : run->offsets[row]; j < keys; j++) {
            if (!allowed[j])
                continue;
            int64_t place = turned ? run->offsets[j] + sp_acsr_rank(run->acsr, j, row) : at++;
            double term = scale * number(run, READ, m, place) * number(run, FIRST, turned ? m : kv, j * dim + d);
            want += term, reach += fabs(term);
        }
        compare(run, "y", m, row, d, number(run, SECOND, m, row * dim + d), want, reach);
    }
}

/* The first, the last and some random rows of every (batch, head). */
static enum splat_status check_rows(const struct sp_cli *cli, struct sparse_run *run)
{
    enum { RANDOM = 6 };
    const splat_acsr *acsr = run->turned ? run->turned : run->acsr;
    const int64_t rows = splat_acsr_q_len(acsr), keys = splat_acsr_kv_len(acsr);
    uint8_t *allowed = malloc((size_t)keys);
    enum splat_status status = allowed ? SPLAT_OK : sp_no_memory("a row of the mask", (size_t)keys);
    for (int64_t m = 0; m < cli->batch * cli->heads; m++)
        for (int64_t r = 0; r < 2 + RANDOM && status == SPLAT_OK; r++) {
            uint64_t z = sp_mix64(sp_mix64(cli->seed + 3) + (uint64_t)(m * RANDOM + r));
            int64_t row = r == 0 ? 0 : r == 1 ? rows - 1 : (int64_t)(z % (uint64_t)rows);
            status = splat_acsr_expand_row(acsr, row, allowed);
            if (status == SPLAT_OK)
                check_row(cli, run, m, row, allowed, keys);
        }
    free(allowed);
    return status;
}

/* ---- The command ---- */

static int smaller(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double bytes_moved(const struct sparse_run *run)
{
    double bytes = 0;
    for (int a = 0; a < ARRAYS; a++)
        bytes += run->used[a] ? (double)run->arrays[a].bytes : 0;
    return bytes;
}

static void print_text(const struct sp_cli *cli, const struct sparse_run *run)
{
    printf("device: %s\n", sp_device_name(splat_kernel_device(run->kernel)));
    printf("problem: %s, batch %" PRId64 ", heads %" PRId64 " (%" PRId64 " of k and x), %" PRId64 " x %" PRId64
           ", %" PRId64 " values a matrix, D %" PRId64 ", %s\n",
           sp_op_name(cli->op), cli->batch, cli->heads, cli->kv_heads, cli->seq, cli->kv_seq, run->pairs,
           is_product(cli->op) ? cli->value_dim : cli->head_dim, sp_dtype_name(cli->dtype));
    printf("time: %.4f ms (median of %" PRId64 ", from %.4f to %.4f)\n", run->median_ms, cli->repeat, run->ms[0],
           run->ms[cli->repeat - 1]);
    printf("rate: %.1f GB/s, of every array moved once\n", bytes_moved(run) / (run->median_ms * 1e6));
    if (cli->check)
        printf("check: %s, %" PRId64 " numbers, %" PRId64 " wrong\n", run->wrong ? "FAILED" : "ok", run->checked,
               run->wrong);
}

static enum splat_status print_json(const struct sp_cli *cli, const struct sparse_run *run)
{
    json_t *root = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "op", sp_op_name(cli->op), "device",
                             sp_device_name(splat_kernel_device(run->kernel)), "dtype", sp_dtype_name(cli->dtype), "batch",
                             (json_int_t)cli->batch, "heads", (json_int_t)cli->heads, "kv_heads",
                             (json_int_t)cli->kv_heads, "q_len", (json_int_t)cli->seq, "kv_len", (json_int_t)cli->kv_seq,
                             "values", (json_int_t)run->pairs, "dim",
                             (json_int_t)(is_product(cli->op) ? cli->value_dim : cli->head_dim));
    sp_json_set(&root, "ms", sp_json_real(run->median_ms));
    sp_json_set(&root, "bytes", sp_json_real(bytes_moved(run)));
    if (cli->check)
        sp_json_set(&root, "check", json_pack("{s:b, s:I, s:I}", "ok", run->wrong == 0, "values",
                                              (json_int_t)run->checked, "wrong", (json_int_t)run->wrong));
    return sp_json_print(root);
}

static enum splat_status compute(struct sp_cli *cli, struct sparse_run *run)
{
    splat_options options;
    sp_cli_library_options(cli, &options);
    enum splat_status status = sp_cli_mask(cli, &run->mask);
    if (status == SPLAT_OK)
        status = sp_cli_context(cli, &run->context);
    if (status == SPLAT_OK)
        status = splat_compile(run->context, run->mask, &options, &run->kernel);
    if (status == SPLAT_OK)
        status = make_arrays(cli, run);
    if (status != SPLAT_OK)
        return status;
    status = splat_kernel_device(run->kernel) == SPLAT_DEVICE_GPU ? run_gpu(cli, run) : run_cpu(cli, run);
    if (status != SPLAT_OK)
        return status;
    qsort(run->ms, (size_t)cli->repeat, sizeof *run->ms, smaller);
    run->median_ms = (run->ms[(cli->repeat - 1) / 2] + run->ms[cli->repeat / 2]) / 2;
    return cli->check ? check_rows(cli, run) : SPLAT_OK;
}

enum splat_status sp_command_run_sparse(struct sp_cli *cli)
{
    const char *file = cli->q_path     ? "--q, --k and --v"
                       : cli->out_path ? "--out"
                       : cli->lse_path ? "--lse"
                                       : NULL;
    if (file)
        return sp_fail(SPLAT_INVALID, "--op is %s, whose inputs are random and whose results are checked, not written; %s "
                                      "must not be given",
                       sp_op_name(cli->op), file);
    struct sparse_run run = {0};
    sp_cli_defaults(cli);
    if (cli->op == SPLAT_OP_SPMM_TRANSPOSED)
        cli->kv_heads = cli->heads;
    enum splat_status status = SPLAT_OK;
    if (cli->heads % cli->kv_heads != 0)
        status = sp_fail(SPLAT_INVALID, "heads is %" PRId64 "; it must be a multiple of kv_heads, %" PRId64,
                         cli->heads, cli->kv_heads);
    if (status == SPLAT_OK)
        status = compute(cli, &run);
    if (status == SPLAT_OK && cli->json)
        status = print_json(cli, &run);
    else if (status == SPLAT_OK)
        print_text(cli, &run);
    if (status == SPLAT_OK && run.wrong > 0)
        status = sp_fail(SPLAT_INTERNAL, "check failed: %" PRId64 " of %" PRId64 " numbers are wrong; the first: %s",
                         run.wrong, run.checked, run.first);
    for (int a = 0; a < ARRAYS; a++)
        sp_tensor_free(&run.arrays[a]);
    free(run.offsets);
    free(run.ms);
    splat_acsr_destroy(run.turned);
    splat_acsr_destroy(run.acsr);
    splat_kernel_destroy(run.kernel);
    splat_context_destroy(run.context);
    splat_mask_destroy(run.mask);
    return status;
}
