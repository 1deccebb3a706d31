/* A step of a layer by its Hopper kernel: whether bulk copies can take the tensors, their maps, the launch. */
#include <limits.h>

#include "codegen/kron_args.h"
#include "common/error.h"
#include "runtime/layer.h"

/* What cuTensorMapEncodeTiled fills; in the order of struct TensorMaps of the kernel. */
struct tensor_map {
    _Alignas(64) unsigned char bytes[128];
};

struct tensor_maps {
    struct tensor_map samples, weights;
};

/* A tensor of five axes, the innermost contiguous, and the box of a copy; strides in elements. */
struct boxes {
    const void *data;
    int64_t dims[5], strides[4];
    int box[5];
};

static int element_bytes(const splat_layer *layer)
{
    return layer->options.dtype == SPLAT_FP32 ? 4 : 2;
}

/* ---- Tensors ---- */

/* The step's samples: the axes that the kernel's copy_samples counts along. */
static struct boxes sample_boxes(const splat_layer *layer, const struct sp_layer_step *step,
                                 const struct sp_kron_hopper *spec)
{
    const struct sp_kron *k = &layer->factors[step->factor].kron;
    const int64_t depth = spec->depth, stride = step->in.stride;
    const int line = 128 / element_bytes(layer), samples = sp_kron_hopper_samples(spec);
    if (layer->options.layout == SPLAT_BATCH_LAST)
        return (struct boxes){step->in.data,
                              {step->n, depth, k->d, k->a, 1},
                              {k->d * stride, stride, depth * k->d * stride, 0},
                              {line, spec->k_tile, 1, 1, 1}};
    if (spec->whole_run) {
        const int along = spec->k_tile * spec->run;
        return (struct boxes){step->in.data,
                              {depth * spec->run, step->n, k->a, 1, 1},
                              {stride, depth * spec->run, 0, 0},
                              {along < line ? along : line, samples, 1, 1, 1}};
    }
    return (struct boxes){step->in.data,
                          {k->d, depth, step->n, k->a, 1},
                          {k->d, stride, depth * k->d, 0},
                          {spec->run, spec->k_tile, samples, 1, 1}};
}

/* Weights [block, output of the forward pass, matrix, input]. */
static struct boxes weight_boxes(const splat_layer *layer, const struct sp_layer_step *step,
                                 const struct sp_kron_hopper *spec)
{
    const struct sp_kron *k = &layer->factors[step->factor].kron;
    const int line = 128 / element_bytes(layer);
    const int along = spec->weights_along_k && spec->k_tile < line ? spec->k_tile : line;
    return (struct boxes){
        step->weights,
        {k->c, k->b, k->d, k->a, 1},
        {k->d * k->c, k->c, k->b * k->d * k->c, 0},
        {along, spec->weights_along_k ? sp_kron_hopper_outputs(spec) : spec->k_tile, spec->run, 1, 1}};
}

static int can_copy(const struct boxes *x, int element)
{
    int good = (uintptr_t)x->data % 16 == 0;
    for (int axis = 0; axis < 5; axis++)
        good &= x->dims[axis] <= INT_MAX;
    for (int axis = 1; axis < 5; axis++)
        good &= x->dims[axis] == 1 ||
                (x->strides[axis - 1] * element % 16 == 0 && x->strides[axis - 1] < ((int64_t)1 << 40) / element);
    return good;
}

int sp_layer_hopper_takes(const splat_layer *layer, const struct sp_layer_step *step)
{
    const struct sp_layer_hopper *hopper = &layer->factors[step->factor].hopper[step->pass];
    if (!hopper->function)
        return 0;
    const struct boxes samples = sample_boxes(layer, step, &hopper->spec);
    const struct boxes weights = weight_boxes(layer, step, &hopper->spec);
    return can_copy(&samples, element_bytes(layer)) && can_copy(&weights, element_bytes(layer));
}

static enum splat_status encode(const splat_layer *layer, const struct boxes *x, struct tensor_map *map)
{
    const int element = element_bytes(layer), span = x->box[0] * element;
    uint64_t dims[5], strides[4];
    uint32_t box[5];
    static const uint32_t ones[5] = {1, 1, 1, 1, 1};
    for (int axis = 0; axis < 5; axis++) {
        dims[axis] = (uint64_t)x->dims[axis];
        box[axis] = (uint32_t)x->box[axis];
        /* The stride of an axis of length 1 is never used, but must be a multiple of 16. */
        if (axis > 0)
            strides[axis - 1] = x->dims[axis] > 1 ? (uint64_t)(x->strides[axis - 1] * element) : 16;
    }
    const int type = layer->options.dtype == SPLAT_FP32   ? SP_TENSOR_FP32
                     : layer->options.dtype == SPLAT_BF16 ? SP_TENSOR_BF16
                                                          : SP_TENSOR_FP16;
    const int swizzle = span == 128  ? SP_TENSOR_SWIZZLE_128
                        : span == 64 ? SP_TENSOR_SWIZZLE_64
                                     : SP_TENSOR_SWIZZLE_32;
    return sp_driver_check(layer->driver,
                           layer->driver->tensor_map_encode(map, type, 5, (void *)(uintptr_t)x->data, dims, strides,
                                                            box, ones, 0, swizzle, SP_TENSOR_PROMOTE_256, 0),
                           "cuTensorMapEncodeTiled");
}

/* ---- The launch ---- */

/* Whether the kernel's chunks of results lie at multiples of their size. */
static int out_vector(const splat_layer *layer, const struct sp_layer_step *step, const struct sp_kron_hopper *spec,
                      const struct sp_kron_hopper_args *args)
{
    const struct sp_kron *k = &layer->factors[step->factor].kron;
    const int element = element_bytes(layer), chunk = 16 / element, mine = spec->run / spec->run_groups;
    if (spec->left == SP_SAMPLES_IN_RUNS) {
        /* The matrices of one output, or of two, which are a multiple of two from block to block as well. */
        const int together = 2 * mine <= chunk, unit = together ? 2 * mine : mine;
        return (uintptr_t)step->out.data % (size_t)(unit * element) == 0 && args->out_sample % unit == 0 &&
               (!together || args->outputs % 2 == 0 || k->a == 1);
    }
    const int unit = spec->left == SP_SAMPLES_IN_LINES || element == 2 ? chunk : 2;
    const int64_t along = spec->left == SP_SAMPLES_ALONG_K ? args->out_sample : args->out_feature;
    return (uintptr_t)step->out.data % 16 == 0 && along % unit == 0 &&
           (spec->left != SP_SAMPLES_ALONG_K || k->a == 1 || args->outputs % unit == 0);
}

enum splat_status sp_layer_hopper_step(const splat_layer *layer, const struct sp_layer_step *step, void *stream)
{
    const struct sp_layer_hopper *hopper = &layer->factors[step->factor].hopper[step->pass];
    const struct sp_kron_hopper *spec = &hopper->spec;
    const struct sp_kron_problem problem = sp_layer_problem(layer, step->factor, step->pass);
    const struct sp_kron *k = &problem.kron;
    const int batch_first = layer->options.layout == SPLAT_BATCH_FIRST;
    const int64_t outputs = step->pass == SP_KRON_INPUT_GRADIENT ? k->c : k->b;
    struct sp_kron_hopper_grid grid;
    sp_kron_hopper_grid_of(&problem, spec, step->n, layer->multiprocessors, &grid);
    struct sp_kron_hopper_args args = {
        .out = step->out.data,
        .out_feature = batch_first ? 1 : step->out.stride,
        .out_sample = batch_first ? step->out.stride : 1,
        .bias = step->bias,
        .bias_block = outputs * k->d,
        .bias_step = k->d,
        .samples = (int)step->n,
        .outputs = (int)outputs,
        .matrices = (int)k->d,
        .runs = (int)grid.runs,
        .teams = (int)grid.teams,
        .units = (int)grid.units,
        .sample_tiles = (int)grid.sample_tiles,
        .output_tiles = (int)grid.output_tiles,
    };
    args.out_vector = out_vector(layer, step, spec, &args);
    if (grid.blocks > INT_MAX || grid.units * grid.sample_tiles * grid.output_tiles / grid.blocks > INT_MAX / 2)
        return sp_fail(SPLAT_UNSUPPORTED, "a launch needs %lld blocks of %lld tiles; each may be at most %d",
                       (long long)grid.blocks,
                       (long long)(grid.units * grid.sample_tiles * grid.output_tiles / grid.blocks), INT_MAX / 2);
    struct tensor_maps maps;
    const struct boxes samples = sample_boxes(layer, step, spec), weights = weight_boxes(layer, step, spec);
    enum splat_status status = encode(layer, &samples, &maps.samples);
    if (status == SPLAT_OK)
        status = encode(layer, &weights, &maps.weights);
    if (status != SPLAT_OK)
        return status;
    void *parameters[] = {&args, &maps};
    return sp_driver_check(
        layer->driver,
        layer->driver->launch_kernel(hopper->function, (unsigned)grid.blocks, 1, 1, (unsigned)hopper->threads, 1, 1,
                                     (unsigned)hopper->shared_bytes, (sp_cu_stream)stream, parameters, NULL),
        "cuLaunchKernel");
}
