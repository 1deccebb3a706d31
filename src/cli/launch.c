/* Launch arguments for contiguous host tensors, and the CPU's timing. */
#include "cli/launch.h"

#include <stdlib.h>
#include <time.h>

#include "common/error.h"

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static splat_tensor describe(const struct sp_host_tensor *t)
{
    return splat_tensor_bhsd(t->data, t->shape[1], t->shape[2], t->shape[3]);
}

static enum splat_status launch_cpu(const splat_kernel *kernel, const struct sp_launch *launch,
                                    splat_attention_args *args, int64_t repeat, double *ms)
{
    enum splat_status status = splat_workspace_bytes(kernel, args->batch, args->heads, &args->workspace_bytes);
    if (status != SPLAT_OK)
        return status;
    if (args->workspace_bytes) {
        args->workspace = aligned_alloc(256, (args->workspace_bytes + 255) / 256 * 256);
        if (!args->workspace)
            return sp_no_memory("workspace", args->workspace_bytes);
    }
    args->lse = launch->lse;
    for (int64_t r = -1; r < repeat && status == SPLAT_OK; r++) {
        double begin = now_ms();
        status = splat_run(kernel, args, NULL);
        if (r >= 0)
            ms[r] = now_ms() - begin;
    }
    free(args->workspace);
    return status;
}

enum splat_status sp_launch_timed(const splat_kernel *kernel, const struct sp_launch *launch, int64_t repeat,
                                  double *ms)
{
    splat_attention_args args;
    splat_attention_args_init(&args);
    args.batch = launch->q->shape[0];
    args.heads = launch->q->shape[1];
    args.kv_heads = launch->k->shape[1];
    args.q_len = launch->q->shape[2];
    args.kv_len = launch->k->shape[2];
    args.q = describe(launch->q);
    args.k = describe(launch->k);
    args.v = describe(launch->v);
    args.o = describe(launch->o);
    args.lse_head_stride = args.q_len;
    args.lse_batch_stride = args.heads * args.q_len;
    args.scale = launch->scale;
    if (splat_kernel_device(kernel) == SPLAT_DEVICE_GPU)
        return sp_launch_gpu(kernel, launch, &args, repeat, ms);
    return launch_cpu(kernel, launch, &args, repeat, ms);
}
