/* Running a kernel on host tensors, wherever it runs, and timing it. */
#ifndef SP_CLI_LAUNCH_H
#define SP_CLI_LAUNCH_H

#include "cli/tensors.h"

/* Host memory of a run; lse holds batch * heads * q_len floats. */
struct sp_launch {
    const struct sp_host_tensor *q, *k, *v;
    struct sp_host_tensor *o;
    float *lse;
    float scale;
};

/* Runs the kernel once to warm up and `repeat` times more, writing each time in milliseconds to ms. On the GPU the
 * tensors are copied there and back, outside the timing, and events bracket each launch. */
enum splat_status sp_launch_timed(const splat_kernel *kernel, const struct sp_launch *launch, int64_t repeat,
                                  double *ms);

/* The part of it for kernels of a GPU (launch_gpu.c); args are filled but for pointers and workspace. */
enum splat_status sp_launch_gpu(const splat_kernel *kernel, const struct sp_launch *launch,
                                splat_attention_args *args, int64_t repeat, double *ms);

#endif
