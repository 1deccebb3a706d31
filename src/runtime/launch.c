/* splat_run: checks the arguments, fills in what changes from run to run, launches. No allocation, no
 * synchronisation, no shared state: any number of threads may run one kernel at once. */
#include <float.h>
#include <limits.h>
#include <math.h>

#include "common/error.h"
#include "runtime/checks.h"
#include "runtime/cpu_engine.h"
#include "runtime/kernel.h"

/* ---- Checks ---- */

static enum splat_status check_counts(const splat_kernel *kernel, const splat_attention_args *args)
{
    const splat_plan *plan = kernel->plan;
    if (args->batch < 1 || args->heads < 1 || args->batch > INT_MAX / args->heads)
        return sp_fail(SPLAT_INVALID,
                       "batch is %lld and heads is %lld; each must be at least 1 and their product at most %d",
                       (long long)args->batch, (long long)args->heads, INT_MAX);
    if (args->kv_heads < 1 || args->heads % args->kv_heads != 0)
        return sp_fail(SPLAT_INVALID, "kv_heads is %lld; it must be at least 1 and divide heads, %lld",
                       (long long)args->kv_heads, (long long)args->heads);
    if (args->q_len != plan->q_len || args->kv_len != plan->kv_len)
        return sp_fail(
            SPLAT_INVALID,
            "q_len x kv_len is %lld x %lld; the kernel was compiled for a mask of %lld x %lld (compile the "
            "mask at the new length; code of the same tile shape is reused)",
            (long long)args->q_len, (long long)args->kv_len, (long long)plan->q_len, (long long)plan->kv_len);
    if ((plan->map_batch != 1 && plan->map_batch != args->batch) ||
        (plan->map_heads != 1 && plan->map_heads != args->heads))
        return sp_fail(
            SPLAT_INVALID, "batch x heads is %lld x %lld; the mask map has %lld x %lld (1 serves any number)",
            (long long)args->batch, (long long)args->heads, (long long)plan->map_batch, (long long)plan->map_heads);
    if (!(args->scale > 0.0f) || !isfinite(args->scale))
        return sp_fail(SPLAT_INVALID, "scale is %g; it must be finite and above 0, or 0 for 1 / sqrt(head_dim)",
                       (double)args->scale);
    return SPLAT_OK;
}

static enum splat_status check_lse(const splat_attention_args *args)
{
    if (!args->lse)
        return SPLAT_OK;
    if ((uintptr_t)args->lse % sizeof(float) != 0)
        return sp_fail(SPLAT_INVALID, "lse is %p; it must be aligned to 4 bytes", (void *)args->lse);
    struct sp_operand lse = {"lse", "_", NULL, args->heads, 1, args->q_len, 1};
    enum splat_status status = sp_check_stride(&lse, "head", args->lse_head_stride, args->heads, 0, args->q_len);
    if (status == SPLAT_OK)
        status = sp_check_stride(&lse, "batch", args->lse_batch_stride, args->batch, 0, args->q_len);
    return status;
}

static enum splat_status check_tensors(const splat_kernel *kernel, const splat_attention_args *args)
{
    int gpu = kernel->device == SPLAT_DEVICE_GPU;
    size_t alignment = gpu ? 16 : kernel->options.dtype == SPLAT_FP32 ? 4 : 2;
    int64_t dim = kernel->options.head_dim, value_dim = kernel->options.value_dim;
    const struct sp_operand operands[] = {
        {"q", ".", &args->q, args->heads, args->q_len, dim, 0},
        {"k", ".", &args->k, args->kv_heads, args->kv_len, dim, 0},
        {"v", ".", &args->v, args->kv_heads, args->kv_len, value_dim, 0},
        {"o", ".", &args->o, args->heads, args->q_len, value_dim, 1},
    };
    enum splat_status status = SPLAT_OK;
    for (int i = 0; i < 4 && status == SPLAT_OK; i++)
        status = sp_check_operand(&operands[i], args->batch, gpu, alignment);
    return status == SPLAT_OK ? check_lse(args) : status;
}

static enum splat_status check_outputs(const splat_kernel *kernel, const splat_attention_args *args)
{
    int64_t o[3][2] = {
        {args->o.row_stride, args->q_len}, {args->o.head_stride, args->heads}, {args->o.batch_stride, args->batch}};
    int64_t lse[2][2] = {{args->lse_head_stride, args->heads}, {args->lse_batch_stride, args->batch}};
    enum splat_status status = sp_check_distinct("o", kernel->options.value_dim, o, 3);
    return status == SPLAT_OK && args->lse ? sp_check_distinct("lse", args->q_len, lse, 2) : status;
}

/* ---- Launch ---- */

/* What cuTensorMapEncodeTiled fills. */
struct tensor_map {
    _Alignas(64) unsigned char bytes[128];
};

enum { MAPS_MAX = 2 + 2 * 2 * 2 };

/* A tensor [batch, heads, y, x, dim] for bulk copies of tiles of `tile` rows by 64 elements, box_x of them along x;
 * strides of x and y in elements. */
static enum splat_status encode_grid(const splat_kernel *kernel, const char *name, const splat_tensor *tensor,
                                     int64_t batch, int64_t heads, int64_t x_stride, int64_t y_stride, int64_t x,
                                     int64_t y, int64_t box_x, int64_t dim, int64_t tile, struct tensor_map *map)
{
    const uint64_t dims[5] = {(uint64_t)dim, (uint64_t)x, (uint64_t)y, (uint64_t)heads, (uint64_t)batch};
    /* The stride of an axis of length 1 is never used, but must be a multiple of 16. */
    const uint64_t strides[4] = {x > 1 ? 2 * (uint64_t)x_stride : 16, y > 1 ? 2 * (uint64_t)y_stride : 16,
                                 heads > 1 ? 2 * (uint64_t)tensor->head_stride : 16,
                                 batch > 1 ? 2 * (uint64_t)tensor->batch_stride : 16};
    const uint32_t box[5] = {64, (uint32_t)box_x, (uint32_t)(tile / box_x), 1, 1}, ones[5] = {1, 1, 1, 1, 1};
    for (int axis = 0; axis < 4; axis++)
        if (strides[axis] >= (uint64_t)1 << 40)
            return sp_fail(SPLAT_UNSUPPORTED,
                           "a stride of %s is %llu bytes; this kernel's bulk copies take less than 2^40", name,
                           (unsigned long long)strides[axis]);
    int type = kernel->options.dtype == SPLAT_BF16 ? SP_TENSOR_BF16 : SP_TENSOR_FP16;
    return sp_driver_check(kernel->driver,
                           kernel->driver->tensor_map_encode(map, type, 5, tensor->data, dims, strides, box, ones,
                                                             0, SP_TENSOR_SWIZZLE_128, SP_TENSOR_PROMOTE_256, 0),
                           "cuTensorMapEncodeTiled");
}

/* A tensor under a view: the grid rows that are whole, or, with `longer`, the columns that have one more; without
 * views [batch, heads, 1, rows, dim]. */
static enum splat_status encode_map(const splat_kernel *kernel, const char *name, const splat_tensor *tensor,
                                    int64_t batch, int64_t heads, const struct sp_view *view, int longer,
                                    int64_t dim, int64_t tile, struct tensor_map *map)
{
    const int64_t row = tensor->row_stride;
    return kernel->lattice
               ? encode_grid(kernel, name, tensor, batch, heads, row, view->n0 * row,
                             longer ? view->rest : view->n0, view->whole + longer, view->c, dim, tile, map)
               : encode_grid(kernel, name, tensor, batch, heads, row, 0, view->len, 1, tile, dim, tile, map);
}

/* The maps of one tensor under one view: for zones of whole grid rows and, in kernels with views, for zones with
 * one more. A map that no tile uses is a copy. */
static enum splat_status encode_view(const splat_kernel *kernel, const char *name, const splat_tensor *tensor,
                                     int64_t batch, int64_t heads, const struct sp_view *view, int64_t dim,
                                     int64_t tile, struct tensor_map *maps, int *count)
{
    struct tensor_map *map = maps + *count;
    enum splat_status status =
        encode_map(kernel, name, tensor, batch, heads, view, view->whole == 0, dim, tile, map);
    *count += 1 + kernel->lattice;
    if (!kernel->lattice || status != SPLAT_OK)
        return status;
    if (view->rest == 0) {
        map[1] = map[0];
        return SPLAT_OK;
    }
    return encode_map(kernel, name, tensor, batch, heads, view, 1, dim, tile, map + 1);
}

/* Rows of heads that share row tiles, [batch, kv head, query, head of the group, dim]: a box is the rows of a tile.
 */
static enum splat_status encode_folded(const splat_kernel *kernel, const splat_attention_args *a,
                                       struct tensor_map *maps, int *count)
{
    const int64_t group = a->heads / a->kv_heads;
    splat_tensor heads = a->q;
    heads.head_stride = group * a->q.head_stride;
    *count += 1 + kernel->lattice;
    enum splat_status status =
        encode_grid(kernel, "q", &heads, a->batch, a->kv_heads, a->q.head_stride, a->q.row_stride, group, a->q_len,
                    kernel->plan->fold, kernel->options.head_dim, kernel->plan->tile_rows, maps);
    if (kernel->lattice)
        maps[1] = maps[0];
    return status;
}

/* In the order of struct TensorMaps of the kernel: q, then k by view, then v by view. */
static enum splat_status encode_maps(const splat_kernel *kernel, const splat_attention_args *a,
                                     const struct sp_pass *pass, struct tensor_map maps[MAPS_MAX])
{
    const splat_plan *plan = kernel->plan;
    const int64_t dim = kernel->options.head_dim, value_dim = kernel->options.value_dim;
    const int views = 1 + kernel->lattice;
    int count = 0;
    enum splat_status status = plan->fold > 1 ? encode_folded(kernel, a, maps, &count)
                                              : encode_view(kernel, "q", &a->q, a->batch, a->heads, &pass->row_view,
                                                            dim, plan->tile_rows, maps, &count);
    for (int k = 0; k < 2 * views && status == SPLAT_OK; k++) {
        const int of_v = k / views, view = k % views;
        if (view >= pass->column_view_count) {
            maps[count] = maps[count - 2];
            maps[count + 1] = maps[count - 1];
            count += 2;
            continue;
        }
        status = encode_view(kernel, of_v ? "v" : "k", of_v ? &a->v : &a->k, a->batch, a->kv_heads,
                             &plan->views[pass->column_view + view], of_v ? value_dim : dim, plan->tile_cols, maps,
                             &count);
    }
    return status;
}

/* Whether persistent blocks, which take their items by number, come out nearly even. The first block has the
 * longest item. When its share exceeds the mean by more than it costs to start a block for every item, one item a
 * block is better: the chip then hands out blocks as they end. Starting one was seen to cost about 1.5 tiles at
 * head dim 64 and 3.5 at 128 (docs/kernels.md). Looks at a bounded number of rounds. */
static int deals_evenly(const splat_kernel *kernel, const struct sp_pass *pass, const struct sp_launch_args *args,
                        int64_t items, int64_t grid)
{
    enum { ROUNDS_SEEN = 64 };
    int64_t rounds = (items + grid - 1) / grid;
    int64_t seen = rounds < ROUNDS_SEEN ? rounds : ROUNDS_SEEN;
    double mean =
        (double)kernel->launch_tiles[pass->launch] / (double)(args->row_tile_count * kernel->plan->mask_count);
    double share = mean * (double)(rounds - seen);
    for (int64_t round = 0; round < seen; round++) {
        int64_t item = round % 2 ? (round + 1) * grid - 1 : round * grid;
        share += item < items ? (double)sp_item_tiles(kernel->plan, pass, (int64_t)args->batch * args->heads,
                                                      args->section, item)
                              : 0;
    }
    double fair = mean * (double)items / (double)grid;
    double start = 1.5 + (double)(kernel->options.head_dim - 64) / 32.0;
    return share <= fair + (double)rounds * (start > 1.0 ? start : 1.0);
}

struct sp_launch_view sp_launch_view_of(const struct sp_view *view)
{
    int c_log2 = 0;
    while (1 << c_log2 < view->c)
        c_log2++;
    return (struct sp_launch_view){view->n0, c_log2, view->pitch, view->rest};
}

/* The parts of the launch's row tiles, combined. */
static enum splat_status combine(const splat_kernel *kernel, const struct sp_pass *pass,
                                 struct sp_launch_args *args, void *stream)
{
    const splat_plan *plan = kernel->plan;
    int64_t first = 0, count = 0;
    while (first < plan->split_count && plan->splits[first].launch != pass->launch)
        first++;
    while (first + count < plan->split_count && plan->splits[first + count].launch == pass->launch)
        count++;
    if (count == 0)
        return SPLAT_OK;
    const int64_t rows = count * args->batch * args->heads * plan->tile_rows;
    args->splits = (const struct sp_split *)kernel->args.splits + first;
    args->split_count = (int)count;
    void *parameters[] = {args};
    if (rows > INT_MAX)
        return sp_fail(SPLAT_UNSUPPORTED,
                       "batch x heads x rows of split row tiles is %lld; a launch takes at most %d blocks",
                       (long long)rows, INT_MAX);
    return sp_driver_check(
        kernel->driver,
        kernel->driver->launch_kernel(kernel->combine, (unsigned)rows, 1, 1, 32 * SP_COMBINE_WARPS, 1, 1,
                                      (unsigned)sp_combine_shared_bytes(kernel->options.value_dim),
                                      (sp_cu_stream)stream, parameters, NULL),
        "cuLaunchKernel");
}

/* One launch of the plan: its passes, one a mask, have the same views. */
static enum splat_status launch(const splat_kernel *kernel, const splat_attention_args *a,
                                const struct sp_pass *pass, struct sp_launch_args *args, void *stream)
{
    const struct sp_driver *driver = kernel->driver;
    int64_t blocks = (int64_t)pass->row_tile_count * args->batch * args->heads;
    int64_t resident = (int64_t)kernel->multiprocessors * kernel->blocks_per_sm;
    if (blocks == 0)
        return SPLAT_OK;
    if (blocks > INT_MAX)
        return sp_fail(SPLAT_UNSUPPORTED, "batch x heads x row tiles is %lld; a launch takes at most %d blocks",
                       (long long)blocks, INT_MAX);
    args->row_tiles = (const struct sp_row_tile *)kernel->args.row_tiles + pass->first_row_tile;
    args->row_tile_count = pass->row_tile_count;
    args->merge = pass->merge;
    args->row_view = sp_launch_view_of(&pass->row_view);
    for (int v = 0; v < 2 && v < pass->column_view_count; v++)
        args->column_views[v] = sp_launch_view_of(&kernel->plan->views[pass->column_view + v]);
    struct tensor_map maps[MAPS_MAX];
    if (kernel->persistent) {
        enum splat_status status = encode_maps(kernel, a, pass, maps);
        if (status != SPLAT_OK)
            return status;
        const struct sp_schedule *schedule = &kernel->schedules[pass->launch];
        int scheduled = schedule->blocks == resident && a->batch == kernel->options.batch &&
                        a->heads == kernel->options.heads && a->kv_heads == kernel->options.kv_heads;
        args->schedule = scheduled ? (const int32_t *)kernel->args.schedule + schedule->offset : NULL;
        if (scheduled || (blocks > resident && deals_evenly(kernel, pass, args, blocks, resident)))
            blocks = resident;
    }
    void *parameters[] = {args, maps};
    enum splat_status status = sp_driver_check(
        driver,
        driver->launch_kernel(kernel->function, (unsigned)blocks, 1, 1, (unsigned)kernel->block_threads, 1, 1,
                              (unsigned)kernel->shared_bytes, (sp_cu_stream)stream, parameters, NULL),
        "cuLaunchKernel");
    return status == SPLAT_OK ? combine(kernel, pass, args, stream) : status;
}

/* What lies in the workspace: the log-sum-exp between launches, and the outputs and log-sum-exps of parts. */
struct workspace {
    size_t lse, part_o, part_lse; /* bytes, multiples of 256 */
};

static size_t floats(int64_t count)
{
    return ((size_t)count * sizeof(float) + 255) & ~(size_t)255;
}

static struct workspace workspace_of(const splat_kernel *kernel, int64_t batch, int64_t heads, int64_t kv_heads)
{
    const splat_plan *plan = kernel->plan;
    if (kernel->device != SPLAT_DEVICE_GPU)
        return (struct workspace){0, 0, 0};
    const int64_t rows =
        plan->slot_count * batch * sp_kernel_heads(kernel, heads, kv_heads).heads * plan->tile_rows;
    return (struct workspace){plan->launch_count > 1 ? floats(batch * heads * plan->q_len) : 0,
                              floats(rows * kernel->options.value_dim), floats(rows)};
}

/* Points the launch arguments into the caller's workspace. */
static enum splat_status place_workspace(const splat_kernel *kernel, const splat_attention_args *a,
                                         struct sp_launch_args *args)
{
    struct workspace w = workspace_of(kernel, a->batch, a->heads, a->kv_heads);
    if (a->lse)
        w.lse = 0;
    const size_t bytes = w.lse + w.part_o + w.part_lse;
    if (bytes == 0)
        return SPLAT_OK;
    if (!a->workspace || a->workspace_bytes < bytes)
        return sp_fail(SPLAT_INVALID,
                       "workspace is %p of %zu bytes; this plan, of %lld launches and %lld split row tiles, needs "
                       "%zu%s (splat_workspace_bytes)",
                       a->workspace, a->workspace ? a->workspace_bytes : 0, (long long)kernel->plan->launch_count,
                       (long long)kernel->plan->split_count, bytes, w.lse ? " when lse is null" : "");
    if ((uintptr_t)a->workspace % 256 != 0)
        return sp_fail(SPLAT_INVALID, "workspace is %p; it must be aligned to 256 bytes", a->workspace);
    char *at = a->workspace;
    args->part_o = (float *)(void *)at;
    args->part_lse = (float *)(void *)(at + w.part_o);
    if (w.lse) {
        args->lse = (float *)(void *)(at + w.part_o + w.part_lse);
        args->lse_head = kernel->plan->q_len;
        args->lse_batch = kernel->plan->q_len * a->heads;
    }
    return SPLAT_OK;
}

static enum splat_status run_gpu(const splat_kernel *kernel, const splat_attention_args *a, void *stream)
{
    const struct sp_driver *driver = kernel->driver;
    const splat_plan *plan = kernel->plan;
    sp_cu_context current = NULL;
    enum splat_status status = sp_driver_check(driver, driver->context_get_current(&current), "cuCtxGetCurrent");
    if (status != SPLAT_OK)
        return status;
    if (current != kernel->cu_context)
        return sp_fail(SPLAT_INVALID,
                       "the thread's current CUDA context is %p; the kernel was compiled in context %p",
                       (void *)current, (void *)kernel->cu_context);
    struct sp_launch_args args = kernel->args;
    args.q = a->q.data, args.k = a->k.data, args.v = a->v.data, args.o = a->o.data, args.lse = a->lse;
    args.q_batch = a->q.batch_stride, args.q_head = a->q.head_stride, args.q_row = a->q.row_stride;
    args.k_batch = a->k.batch_stride, args.k_head = a->k.head_stride, args.k_row = a->k.row_stride;
    args.v_batch = a->v.batch_stride, args.v_head = a->v.head_stride, args.v_row = a->v.row_stride;
    args.o_batch = a->o.batch_stride, args.o_head = a->o.head_stride, args.o_row = a->o.row_stride;
    args.lse_batch = a->lse_batch_stride, args.lse_head = a->lse_head_stride;
    const struct sp_heads heads = sp_kernel_heads(kernel, a->heads, a->kv_heads);
    args.batch = (int)a->batch, args.heads = (int)heads.heads, args.group = heads.group;
    args.fold_heads = (int)(a->heads / a->kv_heads);
    while (1 << args.fold_log2 < plan->fold)
        args.fold_log2++;
    args.section = sp_section_pairs(kernel, args.group);
    args.scale = a->scale;
    args.scale_log2 = fminf(a->scale * 1.44269504f, FLT_MAX); /* finite scales stay finite */
    status = place_workspace(kernel, a, &args);
    for (int64_t k = 0; k < plan->launch_count && status == SPLAT_OK; k++)
        status = launch(kernel, a, &plan->passes[k * plan->mask_count], &args, stream);
    return status;
}

/* ---- Public ---- */

enum splat_status splat_workspace_bytes(const splat_kernel *kernel, int64_t batch, int64_t heads, size_t *bytes)
{
    if (!kernel || !bytes)
        return sp_fail(SPLAT_INVALID, "%s is null", kernel ? "bytes" : "kernel");
    if (batch < 1 || heads < 1)
        return sp_fail(SPLAT_INVALID, "batch is %lld and heads is %lld; each must be at least 1", (long long)batch,
                       (long long)heads);
    const int64_t floats_a_head =
        kernel->plan->q_len + kernel->plan->slot_count * kernel->plan->tile_rows * (kernel->options.value_dim + 1);
    if (batch > INT64_MAX / 16 / heads / floats_a_head)
        return sp_fail(SPLAT_INVALID, "batch x heads is %lld x %lld; the workspace would not fit 64 bits",
                       (long long)batch, (long long)heads);
    const int64_t group = kernel->options.heads / kernel->options.kv_heads;
    const struct workspace w = workspace_of(kernel, batch, heads, heads % group == 0 ? heads / group : heads);
    *bytes = w.lse + w.part_o + w.part_lse;
    return SPLAT_OK;
}

enum splat_status splat_run(const splat_kernel *kernel, const splat_attention_args *given, void *stream)
{
    if (!kernel || !given)
        return sp_fail(SPLAT_INVALID, "%s is null", kernel ? "args" : "kernel");
    enum splat_status status =
        sp_check_struct_size("args", "splat_attention_args_init", given->struct_size, sizeof *given);
    if (status != SPLAT_OK)
        return status;
    splat_attention_args args = *given;
    if (args.kv_heads == 0)
        args.kv_heads = args.heads;
    if (args.scale == 0.0f)
        args.scale = 1.0f / sqrtf((float)kernel->options.head_dim);
    if (kernel->options.op != SPLAT_OP_ATTENTION)
        return sp_fail(SPLAT_INVALID,
                       "kernel was compiled for op %d; splat_run runs SPLAT_OP_ATTENTION, splat_run_sparse the others",
                       (int)kernel->options.op);
    status = check_counts(kernel, &args);
    if (status == SPLAT_OK)
        status = check_tensors(kernel, &args);
    if (status == SPLAT_OK)
        status = check_outputs(kernel, &args);
    if (status != SPLAT_OK)
        return status;
    if (kernel->device == SPLAT_DEVICE_GPU)
        return run_gpu(kernel, &args, stream);
    if (stream)
        return sp_fail(SPLAT_INVALID, "stream is %p; on the CPU it must be null", stream);
    return sp_cpu_run(kernel->plan, &kernel->options, &args, kernel->threads);
}
