/* splat_layer_compile: masks -> Kronecker-sparse factors -> specs -> sources -> images -> loaded kernels. */
#include "runtime/layer.h"

#include <stdlib.h>
#include <string.h>

#include "codegen/kron_source.h"
#include "common/error.h"
#include "runtime/context.h"
#include "runtime/kernel.h"
#include "runtime/module.h"

/* ---- Options ---- */

void splat_layer_options_init(splat_layer_options *options)
{
    if (options)
        *options = (splat_layer_options){.struct_size = sizeof *options, .dtype = SPLAT_BF16, .n = 4096};
}

void splat_layer_args_init(splat_layer_args *args)
{
    if (args)
        *args = (splat_layer_args){.struct_size = sizeof *args, .n = 1};
}

static enum splat_status resolve_options(const splat_layer_options *options, splat_layer_options *full)
{
    if (!options)
        return sp_fail(SPLAT_INVALID, "options is null");
    enum splat_status status =
        sp_check_struct_size("options", "splat_layer_options_init", options->struct_size, sizeof *options);
    if (status != SPLAT_OK)
        return status;
    *full = *options;
    if (full->dtype != SPLAT_FP16 && full->dtype != SPLAT_BF16 && full->dtype != SPLAT_FP32)
        return sp_fail(SPLAT_INVALID, "dtype is %d; it must be SPLAT_FP16, SPLAT_BF16 or SPLAT_FP32",
                       (int)full->dtype);
    if (full->tf32 != 0 && (full->tf32 != 1 || full->dtype != SPLAT_FP32))
        return sp_fail(SPLAT_INVALID, "tf32 is %d; it must be 0, or 1 with dtype SPLAT_FP32", full->tf32);
    if (full->layout != SPLAT_BATCH_FIRST && full->layout != SPLAT_BATCH_LAST)
        return sp_fail(SPLAT_INVALID, "layout is %d; it must be SPLAT_BATCH_FIRST or SPLAT_BATCH_LAST",
                       (int)full->layout);
    if (full->n < 1 || full->n > SPLAT_MAX_LEN)
        return sp_fail(SPLAT_INVALID, "n is %lld; it must be from 1 to %lld", (long long)full->n,
                       (long long)SPLAT_MAX_LEN);
    if (full->gradients != 0 && full->gradients != 1)
        return sp_fail(SPLAT_INVALID, "gradients is %d; it must be 0 or 1", full->gradients);
    if (full->device != SPLAT_DEVICE_AUTO && full->device != SPLAT_DEVICE_CPU && full->device != SPLAT_DEVICE_GPU)
        return sp_fail(SPLAT_INVALID,
                       "device is %d; it must be SPLAT_DEVICE_AUTO, SPLAT_DEVICE_CPU or SPLAT_DEVICE_GPU",
                       (int)full->device);
    if (full->arch != SPLAT_ARCH_AUTO && full->arch != SPLAT_ARCH_SM80 && full->arch != SPLAT_ARCH_SM90A)
        return sp_fail(SPLAT_INVALID, "arch is %d; it must be SPLAT_ARCH_AUTO, SPLAT_ARCH_SM80 or SPLAT_ARCH_SM90A",
                       (int)full->arch);
    return SPLAT_OK;
}

/* ---- Factors ---- */

static enum splat_status match_mask(const splat_mask *mask, struct sp_kron *kron)
{
    splat_acsr *acsr;
    enum splat_status status = splat_acsr_create(mask, &acsr);
    if (status != SPLAT_OK)
        return status;
    status = sp_kron_match(acsr, kron);
    splat_acsr_destroy(acsr);
    return status;
}

static enum splat_status match_masks(splat_layer *layer, const splat_mask *const *masks)
{
    for (int f = 0; f < layer->count; f++) {
        if (!masks[f])
            return sp_fail(SPLAT_INVALID, "masks[%d] is null", f);
        struct sp_kron *kron = &layer->factors[f].kron;
        enum splat_status status = match_mask(masks[f], kron);
        if (status == SPLAT_UNSUPPORTED)
            return sp_fail(status, "masks[%d]: %s", f, splat_last_error());
        if (status != SPLAT_OK)
            return status;
        if (f && sp_kron_inputs(kron) != sp_kron_outputs(&layer->factors[f - 1].kron))
            return sp_fail(
                SPLAT_INVALID, "masks[%d] has %lld columns; it must have as many as masks[%d] has rows, %lld", f,
                (long long)sp_kron_inputs(kron), f - 1, (long long)sp_kron_outputs(&layer->factors[f - 1].kron));
    }
    return SPLAT_OK;
}

struct sp_kron_problem sp_layer_problem(const splat_layer *layer, int factor, enum sp_kron_pass pass)
{
    const splat_layer_options *o = &layer->options;
    return (struct sp_kron_problem){
        layer->factors[factor].kron, pass, o->layout, o->dtype, o->tf32, o->arch, o->n, 0};
}

/* ---- The GPU ---- */

static enum splat_status choose_device(splat_layer *layer, sp_cu_device *device)
{
    splat_layer_options *o = &layer->options;
    if (o->device == SPLAT_DEVICE_CPU)
        return SPLAT_OK;
    enum splat_status status = sp_driver_get(&layer->driver);
    if (status == SPLAT_NO_DEVICE && o->device == SPLAT_DEVICE_AUTO) {
        o->device = SPLAT_DEVICE_CPU;
        return SPLAT_OK;
    }
    o->device = SPLAT_DEVICE_GPU;
    if (status == SPLAT_OK)
        status = sp_driver_context(layer->driver, &layer->cu_context, device);
    if (status == SPLAT_OK)
        status = sp_device_arch(layer->driver, *device, o->arch, &o->arch);
    if (status == SPLAT_OK)
        status = sp_driver_check(
            layer->driver,
            layer->driver->device_get_attribute(&layer->multiprocessors, SP_DEVICE_MULTIPROCESSORS, *device),
            "cuDeviceGetAttribute");
    return status;
}

static enum splat_status load_source(splat_context *context, const splat_layer *layer, sp_cu_device device,
                                     const struct sp_source *source, sp_cu_module *module, sp_cu_function *function)
{
    const struct sp_image *image;
    struct sp_image_origin origin;
    enum splat_status status = sp_registry_image(context, source, layer->options.arch, 0, NULL, &image, &origin);
    if (status == SPLAT_OK)
        status = sp_module_load(layer->driver, device, image, source, module, function);
    return status;
}

static enum splat_status load_kernel(splat_context *context, const splat_layer *layer, sp_cu_device device,
                                     const struct sp_source *source, struct sp_layer_kernel *kernel)
{
    kernel->threads = source->threads;
    kernel->shared_bytes = source->shared_bytes;
    return load_source(context, layer, device, source, &kernel->module, &kernel->function);
}

/* The pass's Hopper kernel, where the plan finds it faster; the portable one remains for tensors that bulk copies
 * do not take. */
static enum splat_status load_hopper(splat_context *context, splat_layer *layer, sp_cu_device device, int factor,
                                     struct sp_kron_problem *problem, double portable_us)
{
    struct sp_layer_factor *f = &layer->factors[factor];
    struct sp_layer_hopper *hopper = &f->hopper[problem->pass];
    enum splat_status status = SPLAT_COMPILE;
    double us;
    for (problem->modest = 0; problem->modest < 2 && status == SPLAT_COMPILE; problem->modest++) {
        struct sp_source source;
        if (!sp_kron_hopper_plan(problem, portable_us, &hopper->spec, &us))
            return SPLAT_OK;
        status = sp_kron_hopper_source_make(&hopper->spec, &source);
        if (status != SPLAT_OK)
            return status;
        hopper->threads = source.threads;
        hopper->shared_bytes = source.shared_bytes;
        status = load_source(context, layer, device, &source, &hopper->module, &hopper->function);
        sp_source_free(&source);
        if (status == SPLAT_COMPILE)
            sp_log_message(&context->log, SPLAT_LOG_WARNING, "%s, for %s",
                           problem->modest ? "the portable kernel is taken" : "smaller tiles are taken",
                           splat_last_error());
        else if (status == SPLAT_OK && problem->pass == SP_KRON_FORWARD)
            f->predicted_us = us;
    }
    return status == SPLAT_COMPILE ? SPLAT_OK : status;
}

static enum splat_status load_pass(splat_context *context, splat_layer *layer, sp_cu_device device, int factor,
                                   enum sp_kron_pass pass)
{
    struct sp_layer_factor *f = &layer->factors[factor];
    struct sp_kron_problem problem = sp_layer_problem(layer, factor, pass);
    enum splat_status status = SPLAT_COMPILE;
    double us = 0;
    /* A compiler may not find registers for the largest tiles, and a kernel that spills is refused: then smaller
     * ones. */
    for (problem.modest = 0; problem.modest < 2 && status == SPLAT_COMPILE; problem.modest++) {
        struct sp_source source;
        sp_kron_plan(&problem, &f->kernels[pass].spec, &us);
        if (pass == SP_KRON_FORWARD)
            f->predicted_us = us;
        status = sp_kron_source_make(&f->kernels[pass].spec, &source);
        if (status != SPLAT_OK)
            return status;
        status = load_kernel(context, layer, device, &source, &f->kernels[pass]);
        sp_source_free(&source);
        if (status == SPLAT_COMPILE && !problem.modest)
            sp_log_message(&context->log, SPLAT_LOG_WARNING, "smaller tiles are taken, for %s", splat_last_error());
    }
    return status == SPLAT_OK ? load_hopper(context, layer, device, factor, &problem, us) : status;
}

static enum splat_status load_kernels(splat_context *context, splat_layer *layer, sp_cu_device device)
{
    const int passes = layer->options.gradients ? SP_KRON_PASSES : 1;
    enum splat_status status = SPLAT_OK;
    for (int f = 0; f < layer->count; f++)
        for (int pass = 0; pass < passes && status == SPLAT_OK; pass++)
            status = load_pass(context, layer, device, f, (enum sp_kron_pass)pass);
    if (status != SPLAT_OK || !layer->options.gradients)
        return status;
    struct sp_source source;
    status = sp_kron_sum_source_make(layer->options.dtype, &source);
    if (status != SPLAT_OK)
        return status;
    status = load_kernel(context, layer, device, &source, &layer->sum);
    sp_source_free(&source);
    return status;
}

/* ---- Public ---- */

static void unload(const splat_layer *layer)
{
    sp_cu_context popped;
    if (!layer->driver || !layer->cu_context || layer->driver->context_push(layer->cu_context) != 0)
        return;
    for (int f = 0; f < layer->count; f++)
        for (int pass = 0; pass < SP_KRON_PASSES; pass++) {
            if (layer->factors[f].kernels[pass].module)
                layer->driver->module_unload(layer->factors[f].kernels[pass].module);
            if (layer->factors[f].hopper[pass].module)
                layer->driver->module_unload(layer->factors[f].hopper[pass].module);
        }
    if (layer->sum.module)
        layer->driver->module_unload(layer->sum.module);
    layer->driver->context_pop(&popped);
}

void splat_layer_destroy(splat_layer *layer)
{
    if (layer)
        unload(layer);
    free(layer);
}

enum splat_status splat_layer_compile(splat_context *context, const splat_mask *const *masks, int64_t count,
                                      const splat_layer_options *options, splat_layer **out)
{
    if (!context || !masks || !out)
        return sp_fail(SPLAT_INVALID, "%s is null", !context ? "context" : !masks ? "masks" : "layer");
    if (count < 1 || count > SP_LAYER_FACTORS_MAX)
        return sp_fail(SPLAT_INVALID, "count is %lld; it must be from 1 to %d", (long long)count,
                       SP_LAYER_FACTORS_MAX);
    splat_layer *layer = calloc(1, sizeof *layer);
    if (!layer)
        return sp_no_memory("a layer", sizeof *layer);
    sp_cu_device device = 0;
    layer->count = (int)count;
    layer->threads = context->threads;
    enum splat_status status = resolve_options(options, &layer->options);
    if (status == SPLAT_OK)
        status = match_masks(layer, masks);
    if (status == SPLAT_OK)
        status = choose_device(layer, &device);
    if (status == SPLAT_OK && layer->options.device == SPLAT_DEVICE_GPU)
        status = load_kernels(context, layer, device);
    if (status == SPLAT_OK)
        *out = layer;
    else
        splat_layer_destroy(layer);
    return status;
}

int64_t splat_layer_factors(const splat_layer *layer)
{
    return layer ? layer->count : 0;
}

enum splat_status splat_layer_get_factor(const splat_layer *layer, int64_t index, splat_layer_factor *factor)
{
    if (!layer || !factor)
        return sp_fail(SPLAT_INVALID, "%s is null", layer ? "factor" : "layer");
    if (index < 0 || index >= layer->count)
        return sp_fail(SPLAT_INVALID, "index is %lld; the layer has %d factors", (long long)index, layer->count);
    const struct sp_layer_factor *f = &layer->factors[index];
    *factor = (splat_layer_factor){f->kron.a, f->kron.b, f->kron.c, f->kron.d, f->predicted_us};
    return SPLAT_OK;
}

int64_t splat_layer_inputs(const splat_layer *layer)
{
    return layer ? sp_kron_inputs(&layer->factors[0].kron) : 0;
}

int64_t splat_layer_outputs(const splat_layer *layer)
{
    return layer ? sp_kron_outputs(&layer->factors[layer->count - 1].kron) : 0;
}

enum splat_device splat_layer_device(const splat_layer *layer)
{
    return layer ? layer->options.device : SPLAT_DEVICE_AUTO;
}
