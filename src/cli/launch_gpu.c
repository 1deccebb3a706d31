/* A GPU run of host tensors: device memory, copies, and events around each launch, through the library's driver
 * table.
 *
 * Every launch is timed by itself: from the event before it to the event after it, on the default stream.
 */

#include "cli/launch.h"
#include "common/error.h"
#include "runtime/driver.h"

enum { Q, K, V, O, LSE, WORKSPACE, BUFFERS };

struct gpu {
    const struct sp_driver *driver;
    sp_cu_pointer memory[BUFFERS]; /* 0 = none */
    sp_cu_event before, after;
};

static enum splat_status allocate(struct gpu *gpu, int which, size_t bytes)
{
    return sp_driver_check(gpu->driver, gpu->driver->memory_alloc(&gpu->memory[which], bytes), "cuMemAlloc");
}

static enum splat_status upload(struct gpu *gpu, int which, const struct sp_host_tensor *tensor)
{
    enum splat_status status = allocate(gpu, which, tensor->bytes);
    if (status != SPLAT_OK)
        return status;
    return sp_driver_check(
        gpu->driver, gpu->driver->copy_to_device(gpu->memory[which], tensor->data, tensor->bytes), "cuMemcpyHtoD");
}

/* Unwritten results must show: every byte is 0xFF, a NaN in every dtype. */
static enum splat_status prepare_result(struct gpu *gpu, int which, size_t bytes)
{
    enum splat_status status = allocate(gpu, which, bytes);
    if (status != SPLAT_OK)
        return status;
    return sp_driver_check(gpu->driver, gpu->driver->memory_set(gpu->memory[which], 0xFF, bytes), "cuMemsetD8");
}

static enum splat_status prepare(struct gpu *gpu, const splat_kernel *kernel, const struct sp_launch *launch,
                                 splat_attention_args *args)
{
    size_t lse_bytes = (size_t)(args->batch * args->heads * args->q_len) * sizeof(float);
    enum splat_status status = upload(gpu, Q, launch->q);
    if (status == SPLAT_OK)
        status = upload(gpu, K, launch->k);
    if (status == SPLAT_OK)
        status = upload(gpu, V, launch->v);
    if (status == SPLAT_OK)
        status = prepare_result(gpu, O, launch->o->bytes);
    if (status == SPLAT_OK)
        status = prepare_result(gpu, LSE, lse_bytes);
    if (status == SPLAT_OK)
        status = splat_workspace_bytes(kernel, args->batch, args->heads, &args->workspace_bytes);
    if (status == SPLAT_OK && args->workspace_bytes)
        status = allocate(gpu, WORKSPACE, args->workspace_bytes);
    if (status == SPLAT_OK)
        status = sp_driver_check(gpu->driver, gpu->driver->event_create(&gpu->before, 0), "cuEventCreate");
    if (status == SPLAT_OK)
        status = sp_driver_check(gpu->driver, gpu->driver->event_create(&gpu->after, 0), "cuEventCreate");
    args->q.data = (void *)(uintptr_t)gpu->memory[Q];
    args->k.data = (void *)(uintptr_t)gpu->memory[K];
    args->v.data = (void *)(uintptr_t)gpu->memory[V];
    args->o.data = (void *)(uintptr_t)gpu->memory[O];
    args->lse = (float *)(uintptr_t)gpu->memory[LSE];
    args->workspace = (void *)(uintptr_t)gpu->memory[WORKSPACE];
    return status;
}

static enum splat_status launch_once(struct gpu *gpu, const splat_kernel *kernel, const splat_attention_args *args,
                                     double *ms)
{
    const struct sp_driver *driver = gpu->driver;
    float elapsed = 0;
    enum splat_status status = sp_driver_check(driver, driver->event_record(gpu->before, NULL), "cuEventRecord");
    if (status == SPLAT_OK)
        status = splat_run(kernel, args, NULL);
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->event_record(gpu->after, NULL), "cuEventRecord");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->event_synchronize(gpu->after), "cuEventSynchronize");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->event_elapsed_time(&elapsed, gpu->before, gpu->after),
                                 "cuEventElapsedTime");
    if (ms)
        *ms = (double)elapsed;
    return status;
}

static enum splat_status download(struct gpu *gpu, const struct sp_launch *launch, const splat_attention_args *args)
{
    size_t lse_bytes = (size_t)(args->batch * args->heads * args->q_len) * sizeof(float);
    enum splat_status status = sp_driver_check(
        gpu->driver, gpu->driver->copy_to_host(launch->o->data, gpu->memory[O], launch->o->bytes), "cuMemcpyDtoH");
    if (status == SPLAT_OK)
        status = sp_driver_check(gpu->driver, gpu->driver->copy_to_host(launch->lse, gpu->memory[LSE], lse_bytes),
                                 "cuMemcpyDtoH");
    return status;
}

static void release(struct gpu *gpu)
{
    for (int b = 0; b < BUFFERS; b++)
        if (gpu->memory[b])
            (void)gpu->driver->memory_free(gpu->memory[b]);
    if (gpu->before)
        (void)gpu->driver->event_destroy(gpu->before);
    if (gpu->after)
        (void)gpu->driver->event_destroy(gpu->after);
}

enum splat_status sp_launch_gpu(const splat_kernel *kernel, const struct sp_launch *launch,
                                splat_attention_args *args, int64_t repeat, double *ms)
{
    struct gpu gpu = {0};
    sp_cu_context context = NULL;
    sp_cu_device device = 0;
    enum splat_status status = sp_driver_get(&gpu.driver);
    if (status != SPLAT_OK)
        return status;
    status = sp_driver_context(gpu.driver, &context, &device);
    if (status == SPLAT_OK)
        status = prepare(&gpu, kernel, launch, args);
    if (status == SPLAT_OK)
        status = launch_once(&gpu, kernel, args, NULL); /* warms up: first-use work of the driver */
    for (int64_t r = 0; r < repeat && status == SPLAT_OK; r++)
        status = launch_once(&gpu, kernel, args, &ms[r]);
    if (status == SPLAT_OK)
        status = download(&gpu, launch, args);
    release(&gpu);
    return status;
}
