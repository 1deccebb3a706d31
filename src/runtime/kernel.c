/* splat_compile: mask -> plan -> spec -> source -> image -> loaded kernel with its tables on the device. */
#include "runtime/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/spec.h"
#include "common/error.h"
#include "runtime/module.h"
#include "runtime/selfcheck.h"

/* ---- Options and devices ---- */

enum splat_status sp_options_resolve(const splat_options *options, splat_options *full)
{
    enum splat_status status = sp_options_check(options);
    if (status != SPLAT_OK)
        return status;
    *full = *options;
    sp_options_dims(full);
    if (full->value_dim == 0)
        full->value_dim = full->head_dim;
    if (full->kv_heads == 0)
        full->kv_heads = full->heads;
    return SPLAT_OK;
}

enum splat_status sp_device_capability(const struct sp_driver *driver, sp_cu_device device, int *capability)
{
    int major = 0, minor = 0;
    enum splat_status status = sp_driver_check(
        driver, driver->device_get_attribute(&major, SP_DEVICE_CAPABILITY_MAJOR, device), "cuDeviceGetAttribute");
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->device_get_attribute(&minor, SP_DEVICE_CAPABILITY_MINOR, device),
                                 "cuDeviceGetAttribute");
    *capability = major * 10 + minor;
    return status;
}

enum splat_status sp_device_arch(const struct sp_driver *driver, sp_cu_device device, enum splat_arch wanted,
                                 enum splat_arch *arch)
{
    int capability = 0;
    enum splat_status status = sp_device_capability(driver, device, &capability);
    if (status != SPLAT_OK)
        return status;
    const int major = capability / 10, minor = capability % 10;
    if (major != 8 && major != 9)
        return sp_fail(
            SPLAT_UNSUPPORTED,
            "the device has compute capability %d.%d; kernels exist for 8.x and 9.0 (device = cpu runs without "
            "it, and an arch given by name compiles for another machine)",
            major, minor);
    *arch = major == 9 ? SPLAT_ARCH_SM90A : SPLAT_ARCH_SM80;
    if (wanted != SPLAT_ARCH_AUTO && wanted != *arch)
        return sp_fail(SPLAT_UNSUPPORTED,
                       "arch is sm_%d; the device has compute capability %d.%d and runs sm_%d%s only", (int)wanted,
                       major, minor, (int)*arch, *arch == SPLAT_ARCH_SM90A ? "a" : "");
    return SPLAT_OK;
}

/* The engine that options ask for, and the GPU's context when it is the GPU. */
static enum splat_status choose_device(splat_options *options, const struct sp_driver **driver,
                                       sp_cu_context *cu_context, sp_cu_device *device)
{
    if (options->device == SPLAT_DEVICE_CPU)
        return SPLAT_OK;
    enum splat_status status = sp_driver_get(driver);
    if (status == SPLAT_NO_DEVICE && options->device == SPLAT_DEVICE_AUTO) {
        options->device = SPLAT_DEVICE_CPU;
        return SPLAT_OK;
    }
    if (status != SPLAT_OK)
        return status;
    options->device = SPLAT_DEVICE_GPU;
    if (options->dtype == SPLAT_FP32)
        return sp_fail(SPLAT_UNSUPPORTED, "dtype is fp32; the GPU runs fp16 and bf16 (device = cpu runs fp32)");
    status = sp_driver_context(*driver, cu_context, device);
    if (status == SPLAT_OK)
        status = sp_device_arch(*driver, *device, options->arch, &options->arch);
    return status;
}

enum splat_status sp_plan_source(const splat_plan *plan, const splat_options *options, enum splat_arch arch,
                                 struct sp_spec *spec, struct sp_source *source)
{
    enum splat_status status = sp_spec_make(plan, options, arch, spec);
    return status == SPLAT_OK ? sp_source_make(spec, source) : status;
}

/* ---- Keys, and the kernels kept alive ---- */

static struct sp_hash kernel_key(const splat_mask *mask, const splat_options *options, sp_cu_context cu_context)
{
    uint64_t parts[15] = {mask->key.low,
                          mask->key.high,
                          (uint64_t)options->dtype,
                          (uint64_t)options->device,
                          (uint64_t)options->arch,
                          (uint64_t)options->head_dim,
                          (uint64_t)options->value_dim,
                          (uint64_t)options->batch,
                          (uint64_t)options->heads,
                          (uint64_t)options->kv_heads,
                          (uint64_t)options->tile_rows,
                          (uint64_t)options->tile_cols,
                          (uint64_t)options->layout,
                          (uint64_t)options->op,
                          (uint64_t)(uintptr_t)cu_context};
    return sp_hash_bytes(parts, sizeof parts);
}

static splat_kernel *retain(splat_kernel *kernel)
{
    __atomic_add_fetch(&kernel->refs, 1, __ATOMIC_RELAXED);
    return kernel;
}

/* Finds a kernel among those kept and moves it to the front. The lock is held. */
static splat_kernel *find_kept(splat_context *context, struct sp_hash key)
{
    for (int i = 0; i < context->kernel_count; i++) {
        splat_kernel *kernel = context->kernels[i];
        if (!sp_hash_equal(kernel->key, key))
            continue;
        memmove(context->kernels + 1, context->kernels, (size_t)i * sizeof kernel);
        context->kernels[0] = kernel;
        return retain(kernel);
    }
    return NULL;
}

/* Keeps a kernel, or finds that another thread was quicker. Returns the one to use; *dropped is to be destroyed. */
static splat_kernel *keep(splat_context *context, splat_kernel *kernel, splat_kernel **dropped)
{
    pthread_mutex_lock(&context->lock);
    splat_kernel *other = find_kept(context, kernel->key);
    *dropped = NULL;
    if (other) {
        *dropped = kernel;
    } else {
        if (context->kernel_count == SP_KEPT_KERNELS)
            *dropped = context->kernels[--context->kernel_count];
        memmove(context->kernels + 1, context->kernels, (size_t)context->kernel_count * sizeof kernel);
        context->kernels[0] = retain(kernel);
        context->kernel_count++;
        other = kernel;
    }
    pthread_mutex_unlock(&context->lock);
    return other;
}

/* ---- Loading ---- */

struct part {
    const void *data;
    size_t bytes;
    const void **pointer; /* in the launch arguments */
};

static size_t rounded(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* One allocation holds all tables; each starts at a multiple of 256 bytes. */
static enum splat_status upload_tables(splat_kernel *kernel, const int32_t *schedule, int64_t schedule_words)
{
    const splat_plan *plan = kernel->plan;
    struct sp_launch_args *args = &kernel->args;
    struct part parts[] = {
        {plan->row_tiles, (size_t)plan->row_tile_count * sizeof *plan->row_tiles, &args->row_tiles},
        {plan->segments, (size_t)plan->segment_count * sizeof *plan->segments, &args->segments},
        {plan->predicates, (size_t)plan->predicate_count * sizeof *plan->predicates, &args->predicates},
        {plan->table, (size_t)plan->table_count * sizeof *plan->table, &args->table},
        {plan->bits, (size_t)plan->bits_count * sizeof *plan->bits, &args->bits},
        {plan->map, plan->map ? (size_t)(plan->map_batch * plan->map_heads) * sizeof *plan->map : 0, &args->map},
        {plan->splits, (size_t)plan->split_count * sizeof *plan->splits, &args->splits},
        {schedule, (size_t)schedule_words * sizeof *schedule, &args->schedule},
        {plan->row_offsets,
         plan->row_offsets ? (size_t)(plan->mask_count * plan->row_offset_count) * sizeof *plan->row_offsets : 0,
         (const void **)&kernel->sparse.row_offsets},
        {plan->tile_values, (size_t)plan->tile_value_count * sizeof *plan->tile_values,
         (const void **)&kernel->sparse.tile_values},
        {plan->first_tiles, plan->first_tiles ? (size_t)plan->row_tile_count * sizeof *plan->first_tiles : 0,
         (const void **)&kernel->sparse.first_tiles},
    };
    size_t total = 256;
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++)
        total += rounded(parts[p].bytes);
    const struct sp_driver *driver = kernel->driver;
    sp_cu_result result = driver->memory_alloc(&kernel->tables, total);
    if (result != 0)
        kernel->tables = 0;
    if (result == SP_CU_OUT_OF_MEMORY)
        return sp_fail(SPLAT_NO_MEMORY, "no device memory for the plan's tables: %zu bytes were asked for", total);
    enum splat_status status = sp_driver_check(driver, result, "cuMemAlloc");
    sp_cu_pointer at = kernel->tables;
    for (size_t p = 0; p < sizeof parts / sizeof parts[0] && status == SPLAT_OK; p++) {
        if (!parts[p].bytes)
            continue;
        *parts[p].pointer = (const void *)(uintptr_t)at;
        status = sp_driver_check(driver, driver->copy_to_device(at, parts[p].data, parts[p].bytes), "cuMemcpyHtoD");
        at += rounded(parts[p].bytes);
    }
    /* A copy from pageable memory may return before it has arrived, and a stream that does not wait for the default
     * one would read the tables too early. */
    if (status == SPLAT_OK)
        status = sp_driver_check(driver, driver->stream_synchronize(NULL), "cuStreamSynchronize");
    return status;
}

static enum splat_status load_module(splat_kernel *kernel, const struct sp_image *image,
                                     const struct sp_source *source, sp_cu_device device)
{
    const struct sp_driver *driver = kernel->driver;
    int l2 = 0;
    enum splat_status status = sp_driver_check(
        driver, driver->device_get_attribute(&l2, SP_DEVICE_L2_BYTES, device), "cuDeviceGetAttribute");
    if (status == SPLAT_OK)
        status = sp_driver_check(
            driver, driver->device_get_attribute(&kernel->multiprocessors, SP_DEVICE_MULTIPROCESSORS, device),
            "cuDeviceGetAttribute");
    kernel->l2_bytes = l2;
    if (status == SPLAT_OK)
        status = sp_module_load(driver, device, image, source, &kernel->module, &kernel->function);
    if (status == SPLAT_OK && source->combine[0])
        status =
            sp_driver_check(driver, driver->module_get_function(&kernel->combine, kernel->module, source->combine),
                            "cuModuleGetFunction");
    return status;
}

static enum splat_status fill_args(splat_kernel *kernel, const struct sp_source *source)
{
    const splat_plan *plan = kernel->plan;
    kernel->args.q_len = (int)plan->q_len;
    kernel->args.kv_len = (int)plan->kv_len;
    kernel->sparse.value_rows = (int)plan->row_offset_count - 1;
    kernel->args.map_batch = plan->map ? (int)plan->map_batch : 1;
    kernel->args.map_heads = plan->map ? (int)plan->map_heads : 1;
    kernel->block_threads = source->threads;
    kernel->shared_bytes = source->shared_bytes;
    kernel->persistent = source->persistent;
    kernel->blocks_per_sm = source->blocks_per_sm;
    kernel->lattice = source->lattice;
    size_t bytes = (size_t)plan->launch_count * sizeof *kernel->launch_tiles;
    kernel->launch_tiles = calloc(1, bytes);
    if (!kernel->launch_tiles)
        return sp_no_memory("a kernel", bytes);
    for (int64_t p = 0; p < plan->pass_count; p++)
        for (int32_t k = 0; k < plan->passes[p].row_tile_count; k++)
            kernel->launch_tiles[plan->passes[p].launch] +=
                plan->row_tiles[plan->passes[p].first_row_tile + k].tiles;
    return SPLAT_OK;
}

enum splat_status sp_kernel_tables(splat_kernel *kernel, const struct sp_source *source)
{
    int32_t *schedule = NULL;
    int64_t schedule_words = 0;
    enum splat_status status = fill_args(kernel, source);
    if (status == SPLAT_OK)
        status = sp_schedule_make(kernel, &schedule, &schedule_words);
    if (status == SPLAT_OK)
        status = upload_tables(kernel, schedule, schedule_words);
    free(schedule);
    return status;
}

/* ---- The first launch ---- */

struct trial {
    splat_kernel *kernel;
    const struct sp_source *source;
    sp_cu_device device;
};

/* Whether a stream that the default one would wait for captures: then nothing may be launched, copied or waited
 * for.
 */
static enum splat_status is_capturing(const struct sp_driver *driver, int *yes)
{
    int state = 0;
    sp_cu_result result = driver->stream_is_capturing(NULL, &state);
    *yes = result == SP_CU_CAPTURE_IMPLICIT || state != 0;
    return *yes ? SPLAT_OK : sp_driver_check(driver, result, "cuStreamIsCapturing");
}

/* Loads the image as the kernel's module, and leaves it there when it may be used. */
static enum splat_status try_image(void *user, const struct sp_image *image, int *checked)
{
    struct trial *trial = user;
    splat_kernel *kernel = trial->kernel;
    int capturing = 0;
    enum splat_status status = is_capturing(kernel->driver, &capturing);
    *checked = 0;
    if (status != SPLAT_OK || capturing)
        return status;
    status = load_module(kernel, image, trial->source, trial->device);
    if (status == SPLAT_OK)
        status = sp_selfcheck(kernel, trial->source);
    *checked = status == SPLAT_OK;
    if (status != SPLAT_OK && kernel->module) {
        kernel->driver->module_unload(kernel->module);
        kernel->module = NULL;
    }
    return status;
}

static void describe(splat_compile_info *info, const struct sp_image *image, const struct sp_image_origin *origin)
{
    memcpy(info->key, origin->key, sizeof info->key);
    info->cache_hit = origin->hit;
    info->ms = origin->ms;
    info->registers = image->registers;
    info->shared_bytes = image->shared_bytes;
    info->spill_bytes = image->spill_bytes;
    info->cubin_bytes = (int64_t)image->cubin_bytes;
}

/* Plan and source in one. */
static enum splat_status plan_and_source(const splat_mask *mask, const splat_options *options, splat_plan **plan,
                                         struct sp_source *source)
{
    struct sp_spec spec;
    splat_plan *made;
    enum splat_status status = splat_plan_create(mask, options, &made);
    if (status != SPLAT_OK)
        return status;
    status = sp_plan_source(made, options, options->arch, &spec, source);
    if (status == SPLAT_OK)
        *plan = made;
    else
        splat_plan_destroy(made);
    return status;
}

/* Puts in the place of kernel->plan and *source the cheapest of the table's tiles with at most `limit` bytes of
 * shared memory, if there is one. */
static enum splat_status take_smaller_tile(const splat_mask *mask, splat_kernel *kernel, int limit,
                                           struct sp_source *source)
{
    const struct sp_tune_table *table = sp_tune_table_of(kernel->options.op, kernel->options.arch);
    for (int r = 0; r < table->row_count; r++) {
        splat_options forced = kernel->options;
        splat_plan *plan;
        struct sp_source other;
        forced.tile_rows = table->rows[r].rows;
        forced.tile_cols = table->rows[r].cols;
        enum splat_status status = plan_and_source(mask, &forced, &plan, &other);
        if (status == SPLAT_UNSUPPORTED)
            continue; /* not a tile for this head dim */
        if (status != SPLAT_OK)
            return status;
        int better = other.shared_bytes <= limit &&
                     (source->shared_bytes > limit || plan->predicted_us < kernel->plan->predicted_us);
        splat_plan_destroy(better ? kernel->plan : plan);
        sp_source_free(better ? source : &other);
        if (better) {
            kernel->plan = plan;
            *source = other;
        }
    }
    return SPLAT_OK;
}

/* The plan, its tiles chosen so that they fit the device. */
static enum splat_status plan_for_device(splat_context *context, const splat_mask *mask, splat_kernel *kernel,
                                         sp_cu_device device, struct sp_source *source)
{
    int limit = 0;
    enum splat_status status = sp_driver_check(
        kernel->driver, kernel->driver->device_get_attribute(&limit, SP_DEVICE_SHARED_BYTES_OPTIN, device),
        "cuDeviceGetAttribute");
    if (status == SPLAT_OK)
        status = plan_and_source(mask, &kernel->options, &kernel->plan, source);
    if (status != SPLAT_OK || source->shared_bytes <= limit)
        return status;
    const int rows = kernel->plan->tile_rows, cols = kernel->plan->tile_cols, bytes = source->shared_bytes;
    if (!kernel->options.tile_rows && !kernel->options.tile_cols)
        status = take_smaller_tile(mask, kernel, limit, source);
    if (status == SPLAT_OK && source->shared_bytes > limit)
        status =
            sp_fail(SPLAT_UNSUPPORTED, "tile %d x %d needs %d bytes of shared memory a block; the device has %d%s",
                    rows, cols, bytes, limit,
                    kernel->options.tile_rows || kernel->options.tile_cols
                        ? " (leave tile_rows and tile_cols 0 to have one chosen that fits)"
                        : ", and no smaller tile fits");
    if (status == SPLAT_OK)
        sp_log_message(&context->log, SPLAT_LOG_INFO,
                       "tile %d x %d in place of %d x %d: that needs %d bytes of shared memory, the device has %d",
                       (int)kernel->plan->tile_rows, (int)kernel->plan->tile_cols, rows, cols, bytes, limit);
    else
        sp_source_free(source);
    return status;
}

static enum splat_status load_gpu(splat_context *context, const splat_mask *mask, splat_kernel *kernel,
                                  sp_cu_device device)
{
    struct sp_source source;
    const struct sp_image *image;
    struct sp_image_origin origin;
    enum splat_status status = plan_for_device(context, mask, kernel, device, &source);
    if (status != SPLAT_OK)
        return status;
    struct trial trial = {kernel, &source, device};
    const struct sp_image_trial check = {try_image, &trial};
    status = sp_registry_image(context, &source, kernel->options.arch, 0, context->self_check ? &check : NULL,
                               &image, &origin);
    if (status == SPLAT_OK)
        describe(&kernel->info, image, &origin);
    if (status == SPLAT_OK && !kernel->module)
        status = load_module(kernel, image, &source, device);
    if (status == SPLAT_OK)
        status = sp_kernel_tables(kernel, &source);
    sp_source_free(&source);
    return status;
}

/* ---- Public ---- */

void splat_kernel_destroy(splat_kernel *kernel)
{
    if (!kernel || __atomic_sub_fetch(&kernel->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    if (kernel->driver && (kernel->tables || kernel->module) &&
        kernel->driver->context_push(kernel->cu_context) == 0) {
        if (kernel->tables)
            kernel->driver->memory_free(kernel->tables);
        if (kernel->module)
            kernel->driver->module_unload(kernel->module);
        sp_cu_context popped;
        kernel->driver->context_pop(&popped);
    }
    splat_plan_destroy(kernel->plan);
    free(kernel->launch_tiles);
    free(kernel->schedules);
    free(kernel);
}

enum splat_status splat_compile(splat_context *context, const splat_mask *mask, const splat_options *options,
                                splat_kernel **out)
{
    if (!context || !mask || !out)
        return sp_fail(SPLAT_INVALID, "%s is null", !context ? "context" : !mask ? "mask" : "kernel");
    double start = sp_now_ms();
    splat_options full;
    const struct sp_driver *driver = NULL;
    sp_cu_context cu_context = NULL;
    sp_cu_device device = 0;
    enum splat_status status = sp_options_resolve(options, &full);
    if (status == SPLAT_OK)
        status = choose_device(&full, &driver, &cu_context, &device);
    if (status != SPLAT_OK)
        return status;

    struct sp_hash key = kernel_key(mask, &full, cu_context);
    pthread_mutex_lock(&context->lock);
    splat_kernel *kernel = find_kept(context, key);
    pthread_mutex_unlock(&context->lock);
    if (kernel) {
        *out = kernel;
        return SPLAT_OK;
    }

    if (!(kernel = calloc(1, sizeof *kernel)))
        return sp_no_memory("a kernel", sizeof *kernel);
    kernel->refs = 1;
    kernel->key = key;
    kernel->options = full;
    kernel->device = full.device;
    kernel->threads = context->threads;
    kernel->cu_context = cu_context;
    kernel->driver = driver;
    splat_compile_info_init(&kernel->info);
    status = full.device == SPLAT_DEVICE_GPU ? load_gpu(context, mask, kernel, device)
                                             : splat_plan_create(mask, &full, &kernel->plan);
    kernel->info.ms = sp_now_ms() - start;
    if (status != SPLAT_OK) {
        splat_kernel_destroy(kernel);
        return status;
    }
    splat_kernel *dropped;
    *out = keep(context, kernel, &dropped);
    splat_kernel_destroy(dropped);
    return SPLAT_OK;
}

static enum splat_status check_info(const void *subject, const char *name, const splat_compile_info *info)
{
    if (!subject || !info)
        return sp_fail(SPLAT_INVALID, "%s is null", subject ? "info" : name);
    return sp_check_struct_size("info", "splat_compile_info_init", info->struct_size, sizeof *info);
}

enum splat_status splat_compile_to_cache(splat_context *context, const splat_mask *mask,
                                         const splat_options *options, splat_compile_info *info)
{
    if (!context || !mask)
        return sp_fail(SPLAT_INVALID, "%s is null", context ? "mask" : "context");
    splat_options full = {0};
    splat_plan *plan = NULL;
    struct sp_spec spec;
    struct sp_source source;
    const struct sp_image *image;
    struct sp_image_origin origin;
    double start = sp_now_ms();
    enum splat_status status = check_info(context, "context", info);
    if (status == SPLAT_OK)
        status = sp_options_resolve(options, &full);
    if (status == SPLAT_OK && context->cache.mode != SPLAT_CACHE_ON)
        status = sp_fail(SPLAT_UNSUPPORTED, "the disk cache is %s; compiling into it needs it on",
                         context->cache.mode == SPLAT_CACHE_OFF ? "off" : "read-only");
    if (status == SPLAT_OK && full.arch == SPLAT_ARCH_AUTO)
        status = sp_default_arch(&full.arch);
    if (status == SPLAT_OK)
        status = splat_plan_create(mask, &full, &plan);
    if (status == SPLAT_OK)
        status = sp_plan_source(plan, &full, full.arch, &spec, &source);
    if (status == SPLAT_OK) {
        status = sp_registry_image(context, &source, full.arch, 1, NULL, &image, &origin);
        sp_source_free(&source);
    }
    splat_plan_destroy(plan);
    if (status == SPLAT_OK) {
        describe(info, image, &origin);
        info->ms = sp_now_ms() - start;
    }
    return status;
}

enum splat_status splat_kernel_get_info(const splat_kernel *kernel, splat_compile_info *info)
{
    enum splat_status status = check_info(kernel, "kernel", info);
    if (status == SPLAT_OK)
        *info = kernel->info;
    return status;
}

const splat_plan *splat_kernel_plan(const splat_kernel *kernel)
{
    return kernel ? kernel->plan : NULL;
}

enum splat_device splat_kernel_device(const splat_kernel *kernel)
{
    return kernel ? kernel->device : SPLAT_DEVICE_AUTO;
}

enum splat_status sp_default_arch(enum splat_arch *arch)
{
    const struct sp_driver *driver;
    sp_cu_device device;
    *arch = SPLAT_ARCH_SM90A;
    if (sp_driver_get(&driver) != SPLAT_OK)
        return SPLAT_OK;
    enum splat_status status = sp_driver_check(driver, driver->device_get(&device, 0), "cuDeviceGet");
    return status == SPLAT_OK ? sp_device_arch(driver, device, SPLAT_ARCH_AUTO, arch) : status;
}
