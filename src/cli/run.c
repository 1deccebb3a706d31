/* splatc run: attention on random or given inputs, on the GPU or the CPU, checked and timed. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/json.h"
#include "cli/launch.h"
#include "cli/npy.h"
#include "cli/reference.h"
#include "cli/tensors.h"
#include "common/error.h"
#include "common/strbuf.h"

/* Everything a run owns. */
struct run {
    splat_mask *mask;
    splat_context *context;
    splat_kernel *kernel;
    struct sp_host_tensor q, k, v, o;
    float *lse;
    double *ms; /* one a repeat */
    splat_compile_info compiled;
    splat_plan_info plan;
    struct sp_check check;
    double median_ms;
};

/* ---- Sizes, from the files where they are given ---- */

/* A size that a file brings must be the one the option says, when it says one. */
static enum splat_status agree(const char *option, int64_t *known, int64_t found, const char *path)
{
    if (*known != 0 && *known != found)
        return sp_fail(SPLAT_INVALID, "%s is %" PRId64 ", but file '%s' has %" PRId64, option, *known, path, found);
    *known = found;
    return SPLAT_OK;
}

static enum splat_status take_sizes(struct sp_cli *cli)
{
    if (!cli->q_path)
        return SPLAT_OK;
    int64_t q[4], k[4], v[4];
    enum splat_status status = sp_tensor_peek(cli->q_path, q);
    if (status == SPLAT_OK)
        status = sp_tensor_peek(cli->k_path, k);
    if (status == SPLAT_OK)
        status = sp_tensor_peek(cli->v_path, v);
    const struct {
        const char *option;
        int64_t *known, found;
        const char *path;
    } sizes[] = {
        {"--batch", &cli->batch, q[0], cli->q_path},      {"--heads", &cli->heads, q[1], cli->q_path},
        {"--seq", &cli->seq, q[2], cli->q_path},          {"--head-dim", &cli->head_dim, q[3], cli->q_path},
        {"batch of --q", &cli->batch, k[0], cli->k_path}, {"--kv-heads", &cli->kv_heads, k[1], cli->k_path},
        {"--kv-seq", &cli->kv_seq, k[2], cli->k_path},    {"dim of --q", &cli->head_dim, k[3], cli->k_path},
        {"batch of --q", &cli->batch, v[0], cli->v_path}, {"heads of --k", &cli->kv_heads, v[1], cli->v_path},
        {"rows of --k", &cli->kv_seq, v[2], cli->v_path}, {"--value-dim", &cli->value_dim, v[3], cli->v_path}};
    cli->seq_path = cli->seq ? NULL : cli->q_path;
    cli->kv_seq_path = cli->kv_seq ? NULL : cli->k_path;
    for (size_t s = 0; status == SPLAT_OK && s < sizeof sizes / sizeof sizes[0]; s++)
        status = agree(sizes[s].option, sizes[s].known, sizes[s].found, sizes[s].path);
    return status;
}

/* ---- Tensors ---- */

static enum splat_status make_input(const struct sp_cli *cli, const char *path, const int64_t shape[4],
                                    uint64_t stream, struct sp_host_tensor *tensor)
{
    if (path)
        return sp_tensor_read(path, cli->dtype, tensor);
    enum splat_status status = sp_tensor_make(cli->dtype, shape, tensor);
    if (status == SPLAT_OK)
        sp_tensor_fill(tensor, cli->seed, stream);
    return status;
}

static enum splat_status make_tensors(const struct sp_cli *cli, struct run *run)
{
    const int64_t q[4] = {cli->batch, cli->heads, cli->seq, cli->head_dim};
    const int64_t k[4] = {cli->batch, cli->kv_heads, cli->kv_seq, cli->head_dim};
    const int64_t v[4] = {cli->batch, cli->kv_heads, cli->kv_seq, cli->value_dim};
    const int64_t o[4] = {cli->batch, cli->heads, cli->seq, cli->value_dim};
    enum splat_status status = make_input(cli, cli->q_path, q, 0, &run->q);
    if (status == SPLAT_OK)
        status = make_input(cli, cli->k_path, k, 1, &run->k);
    if (status == SPLAT_OK)
        status = make_input(cli, cli->v_path, v, 2, &run->v);
    if (status == SPLAT_OK)
        status = sp_tensor_make(cli->dtype, o, &run->o);
    if (status != SPLAT_OK)
        return status;
    /* What the kernel leaves unwritten must not pass for a result: all ones is a NaN in every dtype. */
    memset(run->o.data, 0xFF, run->o.bytes);
    size_t rows = (size_t)(cli->batch * cli->heads * cli->seq);
    run->lse = malloc(rows * sizeof *run->lse);
    run->ms = malloc((size_t)cli->repeat * sizeof *run->ms);
    if (!run->lse || !run->ms)
        return sp_no_memory("lse", rows * sizeof *run->lse);
    memset(run->lse, 0xFF, rows * sizeof *run->lse);
    return SPLAT_OK;
}

/* ---- Results ---- */

static enum splat_status write_results(const struct sp_cli *cli, const struct run *run)
{
    enum splat_status status = SPLAT_OK;
    if (cli->out_path) {
        float *values = malloc((size_t)run->o.items * sizeof *values);
        if (!values)
            return sp_no_memory("output", (size_t)run->o.items * sizeof *values);
        for (int64_t n = 0; n < run->o.items; n++)
            values[n] = sp_tensor_get(&run->o, n);
        status = sp_npy_write_float(cli->out_path, values, 4, run->o.shape);
        free(values);
    }
    if (status == SPLAT_OK && cli->lse_path)
        status = sp_npy_write_float(cli->lse_path, run->lse, 3, run->o.shape);
    return status;
}

/* TFLOP/s when `pairs` of each head take the median time: a pair costs a product of D_qk and one of D_v. */
static double tflops(const struct sp_cli *cli, const struct run *run, int64_t pairs)
{
    double flops =
        2.0 * (double)(cli->head_dim + cli->value_dim) * (double)pairs * (double)cli->batch * (double)cli->heads;
    return run->median_ms > 0 ? flops / (run->median_ms * 1e9) : 0;
}

static int smaller(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void find_median(struct run *run, int64_t repeat)
{
    qsort(run->ms, (size_t)repeat, sizeof *run->ms, smaller);
    int64_t middle = repeat / 2;
    run->median_ms = repeat % 2 ? run->ms[middle] : (run->ms[middle - 1] + run->ms[middle]) / 2;
}

static void print_text(FILE *out, const struct sp_cli *cli, const struct run *run)
{
    const splat_plan_info *plan = &run->plan;
    enum splat_device device = splat_kernel_device(run->kernel);
    char name[128] = "";
    int capability = 0;
    if (device == SPLAT_DEVICE_GPU && splat_device_query(name, sizeof name, &capability) != SPLAT_OK)
        name[0] = '\0';
    fprintf(out, "device: %s%s%s\n", sp_device_name(device), name[0] ? ", " : "", name);
    fprintf(out,
            "problem: batch %" PRId64 ", heads %" PRId64 " (%" PRId64 " of k and v), %" PRId64 " x %" PRId64
            ", D %" PRId64 " and %" PRId64 ", %s\n",
            cli->batch, cli->heads, cli->kv_heads, cli->seq, cli->kv_seq, cli->head_dim, cli->value_dim,
            sp_dtype_name(cli->dtype));
    if (device == SPLAT_DEVICE_GPU)
        fprintf(out, "kernel: %s, %s, %.1f ms\n", run->compiled.key,
                run->compiled.cache_hit ? "from the cache" : "compiled now", run->compiled.ms);
    fprintf(out, "time: %.4f ms (median of %" PRId64 ", from %.4f to %.4f)\n", run->median_ms, cli->repeat,
            run->ms[0], run->ms[cli->repeat - 1]);
    fprintf(out, "rate: %.3f TFLOP/s useful, %.3f TFLOP/s in tiles (waste %.3f)\n",
            tflops(cli, run, plan->allowed_pairs), tflops(cli, run, plan->computed_pairs), plan->waste);
    if (cli->check)
        fprintf(out,
                "check: %s, %" PRId64 " row%s, %" PRId64 " values, %" PRId64
                " wrong, largest error %.3g (%.0f %% of its "
                "tolerance)\n",
                run->check.wrong ? "FAILED" : "ok", run->check.rows, sp_plural(run->check.rows), run->check.values,
                run->check.wrong, run->check.largest_error, 100 * run->check.worst_ratio);
}

static enum splat_status print_json(const struct sp_cli *cli, const struct run *run)
{
    const splat_plan_info *plan = &run->plan;
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "device", sp_device_name(splat_kernel_device(run->kernel)),
        "dtype", sp_dtype_name(cli->dtype), "batch", (json_int_t)cli->batch, "heads", (json_int_t)cli->heads,
        "kv_heads", (json_int_t)cli->kv_heads, "q_len", (json_int_t)cli->seq, "kv_len", (json_int_t)cli->kv_seq,
        "head_dim", (json_int_t)cli->head_dim, "value_dim", (json_int_t)cli->value_dim);
    if (splat_kernel_device(run->kernel) == SPLAT_DEVICE_GPU) {
        sp_json_set(&root, "key", json_string(run->compiled.key));
        sp_json_set(&root, "cache", json_string(run->compiled.cache_hit ? "hit" : "miss"));
        sp_json_set(&root, "compile_ms", sp_json_real(run->compiled.ms));
    }
    sp_json_set(&root, "repeat", json_integer(cli->repeat));
    sp_json_set(&root, "ms", sp_json_real(run->median_ms));
    sp_json_set(&root, "min_ms", sp_json_real(run->ms[0]));
    sp_json_set(&root, "max_ms", sp_json_real(run->ms[cli->repeat - 1]));
    sp_json_set(&root, "useful_tflops", sp_json_real(tflops(cli, run, plan->allowed_pairs)));
    sp_json_set(&root, "tile_tflops", sp_json_real(tflops(cli, run, plan->computed_pairs)));
    if (cli->check)
        sp_json_set(&root, "check",
                    json_pack("{s:b, s:I, s:I, s:I, s:f, s:f}", "ok", run->check.wrong == 0, "rows",
                              (json_int_t)run->check.rows, "values", (json_int_t)run->check.values, "wrong",
                              (json_int_t)run->check.wrong, "largest_error", run->check.largest_error,
                              "worst_ratio", run->check.worst_ratio));
    return sp_json_print(root);
}

/* ---- The command ---- */

/* One result alone may go to stdout, and no file may be written twice. */
static enum splat_status check_outputs(const struct sp_cli *cli)
{
    const struct {
        const char *option, *path;
    } outputs[] = {{"--out", cli->out_path}, {"--lse", cli->lse_path}};
    enum splat_status status = SPLAT_OK;
    if (cli->out_path && cli->lse_path && strcmp(cli->out_path, cli->lse_path) == 0)
        return sp_fail(SPLAT_INVALID, "--out and --lse are both '%s', which holds one array; they must differ",
                       cli->out_path);
    for (int o = 0; o < 2 && status == SPLAT_OK; o++) {
        if (outputs[o].path && cli->json && strcmp(outputs[o].path, "-") == 0)
            return sp_fail(SPLAT_INVALID, "%s is '-', but stdout is for --json; it must be a file",
                           outputs[o].option);
        if (outputs[o].path)
            status = sp_output_check(outputs[o].path);
    }
    return status;
}

/* Whether an array goes to stdout: the text would be in its way. */
static int stdout_taken(const struct sp_cli *cli)
{
    return (cli->out_path && strcmp(cli->out_path, "-") == 0) || (cli->lse_path && strcmp(cli->lse_path, "-") == 0);
}

static enum splat_status compile(const struct sp_cli *cli, struct run *run)
{
    splat_options options;
    sp_cli_library_options(cli, &options);
    enum splat_status status = sp_cli_context(cli, &run->context);
    if (status == SPLAT_OK)
        status = splat_compile(run->context, run->mask, &options, &run->kernel);
    if (status != SPLAT_OK)
        return status;
    splat_compile_info_init(&run->compiled);
    splat_plan_info_init(&run->plan);
    status = splat_kernel_get_info(run->kernel, &run->compiled);
    if (status == SPLAT_OK)
        status = splat_plan_get_info(splat_kernel_plan(run->kernel), &run->plan);
    return status;
}

static enum splat_status compute(const struct sp_cli *cli, struct run *run)
{
    struct sp_launch launch = {&run->q, &run->k, &run->v, &run->o, run->lse, cli->scale};
    enum splat_status status = sp_launch_timed(run->kernel, &launch, cli->repeat, run->ms);
    if (status != SPLAT_OK)
        return status;
    find_median(run, cli->repeat);
    if (cli->check) {
        double scale = cli->scale > 0 ? (double)cli->scale : 1.0 / sqrt((double)cli->head_dim);
        struct sp_problem problem = {&run->q, &run->k, &run->v, &run->o, run->lse, scale, cli->seed};
        status = sp_check_rows(run->mask, &problem, &run->check);
    }
    return status;
}

static void free_run(struct run *run)
{
    sp_tensor_free(&run->q);
    sp_tensor_free(&run->k);
    sp_tensor_free(&run->v);
    sp_tensor_free(&run->o);
    free(run->lse);
    free(run->ms);
    splat_kernel_destroy(run->kernel);
    splat_context_destroy(run->context);
    splat_mask_destroy(run->mask);
}

enum splat_status sp_command_run(struct sp_cli *cli)
{
    if (cli->op != SPLAT_OP_ATTENTION)
        return sp_command_run_sparse(cli);
    struct run run = {0};
    enum splat_status status = take_sizes(cli);
    sp_cli_defaults(cli);
    if (status == SPLAT_OK && cli->heads % cli->kv_heads != 0)
        status = sp_fail(SPLAT_INVALID, "heads is %" PRId64 "; it must be a multiple of kv_heads, %" PRId64,
                         cli->heads, cli->kv_heads);
    if (status == SPLAT_OK)
        status = sp_cli_mask(cli, &run.mask);
    if (status == SPLAT_OK)
        status = check_outputs(cli);
    if (status == SPLAT_OK)
        status = compile(cli, &run);
    if (status == SPLAT_OK)
        status = make_tensors(cli, &run);
    if (status == SPLAT_OK)
        status = compute(cli, &run);
    if (status == SPLAT_OK)
        status = write_results(cli, &run);
    if (status == SPLAT_OK && cli->json)
        status = print_json(cli, &run);
    else if (status == SPLAT_OK)
        print_text(stdout_taken(cli) ? stderr : stdout, cli, &run);
    if (status == SPLAT_OK && run.check.wrong > 0)
        status = sp_fail(SPLAT_INTERNAL, "check failed: %" PRId64 " of %" PRId64 " values %s wrong; the first: %s",
                         run.check.wrong, run.check.values, run.check.wrong == 1 ? "is" : "are", run.check.first);
    free_run(&run);
    return status;
}
