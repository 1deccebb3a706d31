/* splat_layer_forward and splat_layer_backward: checks, then one launch a factor and pass (two for the gradient of
 * weights). No allocation and no synchronisation on the GPU. */
#include <limits.h>

#include "codegen/kron_args.h"
#include "common/error.h"
#include "runtime/context.h"
#include "runtime/cpu_float.h"
#include "runtime/layer.h"

enum { SUM_THREADS = 256 };

/* ---- Workspace ---- */

/* Offsets in bytes. Activations [f] are the output of factor f, for all but the last; gradients of them take turns.
 */
struct workspace {
    int64_t strides[SP_LAYER_FACTORS_MAX]; /* of activations f and of its gradient */
    size_t activations[SP_LAYER_FACTORS_MAX];
    size_t gradients[2];
    size_t parts;
    size_t bytes;
};

static size_t take(struct workspace *w, size_t bytes)
{
    size_t at = w->bytes;
    w->bytes += (bytes + 255) & ~(size_t)255;
    return at;
}

static size_t parts_bytes(const splat_layer *layer, int factor, int64_t n)
{
    const struct sp_kron_problem problem = sp_layer_problem(layer, factor, SP_KRON_WEIGHT_GRADIENT);
    struct sp_kron_grid grid;
    sp_kron_grid_of(&problem, &layer->factors[factor].kernels[SP_KRON_WEIGHT_GRADIENT].spec, n,
                    layer->multiprocessors, &grid);
    return (size_t)grid.splits * (size_t)sp_kron_weights(&problem.kron) * sizeof(float);
}

/* Rows between factors begin at multiples of 16 bytes. */
static void lay_out(const splat_layer *layer, int64_t n, int backward, struct workspace *w)
{
    const int batch_first = layer->options.layout == SPLAT_BATCH_FIRST;
    size_t widest = 0;
    *w = (struct workspace){0};
    for (int f = 0; f + 1 < layer->count; f++) {
        const int64_t features = sp_kron_outputs(&layer->factors[f].kron);
        w->strides[f] = ((batch_first ? features : n) + 7) & ~(int64_t)7;
        const size_t bytes =
            (size_t)w->strides[f] * (size_t)(batch_first ? n : features) * sp_element_size(layer->options.dtype);
        w->activations[f] = take(w, bytes);
        widest = bytes > widest ? bytes : widest;
    }
    if (!backward)
        return;
    for (int g = 0; g < 2 && layer->count > 1; g++)
        w->gradients[g] = take(w, widest);
    size_t most_parts = 0;
    for (int f = 0; f < layer->count && layer->options.device == SPLAT_DEVICE_GPU; f++) {
        const size_t bytes = parts_bytes(layer, f, n);
        most_parts = bytes > most_parts ? bytes : most_parts;
    }
    w->parts = take(w, most_parts);
}

static enum splat_status check_n(const splat_layer *layer, int64_t n)
{
    if (n < 1 || n > SPLAT_MAX_LEN)
        return sp_fail(SPLAT_INVALID, "n is %lld; it must be from 1 to %lld", (long long)n,
                       (long long)SPLAT_MAX_LEN);
    for (int f = 0; f < layer->count; f++) /* 18 arrays of these many 4-byte numbers fit 64 bits */
        if (sp_kron_outputs(&layer->factors[f].kron) > ((int64_t)1 << 55) / n)
            return sp_fail(SPLAT_INVALID, "n is %lld; times %lld outputs of factor %d it does not fit 64 bits",
                           (long long)n, (long long)sp_kron_outputs(&layer->factors[f].kron), f);
    return SPLAT_OK;
}

static enum splat_status check_backward(const splat_layer *layer)
{
    if (layer->options.gradients)
        return SPLAT_OK;
    return sp_fail(SPLAT_INVALID, "the layer was compiled without gradients; set splat_layer_options.gradients");
}

enum splat_status splat_layer_workspace_bytes(const splat_layer *layer, int64_t n, int backward, size_t *bytes)
{
    if (!layer || !bytes)
        return sp_fail(SPLAT_INVALID, "%s is null", layer ? "bytes" : "layer");
    enum splat_status status = check_n(layer, n);
    if (status == SPLAT_OK && backward)
        status = check_backward(layer);
    if (status != SPLAT_OK)
        return status;
    struct workspace w;
    lay_out(layer, n, backward, &w);
    *bytes = w.bytes;
    return SPLAT_OK;
}

/* ---- Checks ---- */

static enum splat_status check_pointer(const splat_layer *layer, const char *name, const void *data)
{
    const size_t alignment = sp_element_size(layer->options.dtype);
    if (!data)
        return sp_fail(SPLAT_INVALID, "%s is null", name);
    if ((uintptr_t)data % alignment != 0)
        return sp_fail(SPLAT_INVALID, "%s is %p; it must be aligned to %zu bytes", name, data, alignment);
    return SPLAT_OK;
}

/* Fills in the packed stride. */
static enum splat_status check_activations(const splat_layer *layer, const char *name, const void *data,
                                           int64_t features, int64_t n, int64_t *stride)
{
    enum splat_status status = check_pointer(layer, name, data);
    const int batch_first = layer->options.layout == SPLAT_BATCH_FIRST;
    const int64_t row = batch_first ? features : n, rows = batch_first ? n : features;
    if (*stride == 0)
        *stride = row;
    if (status == SPLAT_OK && *stride < row)
        return sp_fail(SPLAT_INVALID, "%s_stride is %lld; it must be at least %s, %lld, or 0 for that", name,
                       (long long)*stride, batch_first ? "the features of a sample" : "n", (long long)row);
    if (status == SPLAT_OK && *stride > INT64_MAX / 8 / rows)
        return sp_fail(SPLAT_INVALID, "%s_stride is %lld; times %lld rows it does not fit 64 bits", name,
                       (long long)*stride, (long long)rows);
    return status;
}

static enum splat_status check_weights(const splat_layer *layer, const void *const *weights)
{
    enum splat_status status = weights ? SPLAT_OK : sp_fail(SPLAT_INVALID, "weights is null");
    for (int f = 0; f < layer->count && status == SPLAT_OK; f++) {
        char name[] = "weights[99]";
        name[8] = (char)('0' + f / 10);
        name[9] = (char)('0' + f % 10);
        if (f < 10)
            name[8] = name[9], name[9] = ']', name[10] = '\0';
        status = check_pointer(layer, name, weights[f]);
    }
    return status;
}

static enum splat_status check_workspace(const splat_layer_args *args, const struct workspace *w)
{
    if (w->bytes == 0)
        return SPLAT_OK;
    if (!args->workspace || args->workspace_bytes < w->bytes)
        return sp_fail(SPLAT_INVALID,
                       "workspace is %p of %zu bytes; this run needs %zu (splat_layer_workspace_bytes)",
                       args->workspace, args->workspace ? args->workspace_bytes : 0, w->bytes);
    if ((uintptr_t)args->workspace % 256 != 0)
        return sp_fail(SPLAT_INVALID, "workspace is %p; it must be aligned to 256 bytes", args->workspace);
    return SPLAT_OK;
}

static enum splat_status check_place(const splat_layer *layer, void *stream)
{
    if (layer->options.device == SPLAT_DEVICE_CPU)
        return stream ? sp_fail(SPLAT_INVALID, "stream is %p; on the CPU it must be null", stream) : SPLAT_OK;
    sp_cu_context current = NULL;
    enum splat_status status =
        sp_driver_check(layer->driver, layer->driver->context_get_current(&current), "cuCtxGetCurrent");
    if (status == SPLAT_OK && current != layer->cu_context)
        return sp_fail(SPLAT_INVALID,
                       "the thread's current CUDA context is %p; the layer was compiled in context %p",
                       (void *)current, (void *)layer->cu_context);
    return status;
}

/* ---- Launches ---- */

/* An axis that only exists where it has several entries: strides of others never matter. */
struct extent {
    int64_t stride, count;
};

static int multiples(const void *data, size_t alignment, int64_t unit, const struct extent *axes, int count)
{
    int good = (uintptr_t)data % alignment == 0;
    for (int x = 0; x < count; x++)
        good &= axes[x].count <= 1 || axes[x].stride % unit == 0;
    return good;
}

static struct sp_kron_operand weights_operand(const struct sp_kron *k, const void *data, int of_inputs)
{
    const struct sp_kron_operand w = {data, k->b * k->d * k->c, k->c, of_inputs ? 1 : k->d * k->c,
                                      of_inputs ? k->d * k->c : 1};
    return w; /* rows are outputs of the step: the layer's inputs when `of_inputs` */
}

/* Rows are samples and k features, or with `features_are_rows` the other way. */
static struct sp_kron_operand activations_operand(const splat_layer *layer, const struct sp_kron *k, int64_t width,
                                                  const struct sp_activations *x, int features_are_rows)
{
    const int batch_first = layer->options.layout == SPLAT_BATCH_FIRST;
    const int64_t feature = batch_first ? 1 : x->stride, sample = batch_first ? x->stride : 1;
    struct sp_kron_operand made = {x->data, width * k->d * feature, feature, sample, k->d * feature};
    if (features_are_rows) {
        made.row = k->d * feature;
        made.k = sample;
    }
    return made;
}

/* Whether an operand's chunks of 16 bytes can be read whole. */
static int operand_vector(const struct sp_kron *k, const struct sp_kron_spec *spec, enum sp_kron_along along,
                          const struct sp_kron_operand *x, int64_t rows, int64_t depth)
{
    const int chunk = spec->dtype == SPLAT_FP32 ? 4 : 8;
    const int in_runs = along == SP_RUN_ALONG_K || along == SP_RUN_ALONG_ROW;
    const int k_inside = along == SP_ALONG_K || along == SP_RUN_ALONG_K;
    const struct extent axes[] = {
        {x->block, k->a}, {x->matrix, in_runs ? 1 : k->d}, {k_inside ? x->row : x->k, k_inside ? rows : depth}};
    if (in_runs && spec->run != k->d && (spec->run % chunk != 0 || k->d % spec->run != 0))
        return 0;
    return multiples(x->data, 16, chunk, axes, 3);
}

static int out_vector(const struct sp_kron *k, const struct sp_kron_spec *spec, const struct sp_kron_args *args)
{
    const int bytes = spec->out_float || spec->dtype == SPLAT_FP32 ? 4 : 2;
    const int quads = spec->dtype == SPLAT_FP32 && !spec->tf32 && spec->right == SP_ALONG_ROW;
    const int unit = spec->small_rows                         ? 16 / bytes
                     : spec->out_run                          ? (spec->run < 16 / bytes ? spec->run : 16 / bytes)
                     : bytes == 2 && spec->col_tiles % 4 == 0 ? 8
                     : quads                                  ? 4
                                                              : 2;
    const struct extent axes[] = {{args->out_block, k->a},
                                  {args->out_matrix, spec->out_run ? 1 : k->d},
                                  {args->out_row, args->rows},
                                  {args->out_col, spec->out_run ? args->cols : 1},
                                  {args->out_split, args->splits}};
    return multiples(args->out, (size_t)(unit * bytes), unit, axes, 5);
}

static enum splat_status launch(const splat_layer *layer, const struct sp_layer_kernel *kernel, int64_t blocks,
                                void *args, void *stream)
{
    void *parameters[] = {args};
    if (blocks > INT_MAX)
        return sp_fail(SPLAT_UNSUPPORTED, "a launch needs %lld blocks; it takes at most %d", (long long)blocks,
                       INT_MAX);
    return sp_driver_check(
        layer->driver,
        layer->driver->launch_kernel(kernel->function, (unsigned)blocks, 1, 1, (unsigned)kernel->threads, 1, 1,
                                     (unsigned)kernel->shared_bytes, (sp_cu_stream)stream, parameters, NULL),
        "cuLaunchKernel");
}

/* Left, right and out of a product with the weights. */
static void set_product(const splat_layer *layer, const struct sp_layer_step *step, const struct sp_kron *k,
                        const struct sp_kron_sizes *sizes, struct sp_kron_args *args)
{
    const int back = step->pass == SP_KRON_INPUT_GRADIENT, batch_first = layer->options.layout == SPLAT_BATCH_FIRST;
    const int64_t inputs = back ? k->b : k->c, outputs = back ? k->c : k->b;
    const struct sp_kron_operand weights = weights_operand(k, step->weights, back);
    const struct sp_kron_operand x = activations_operand(layer, k, inputs, &step->in, 0);
    const int64_t feature = batch_first ? 1 : step->out.stride, sample = batch_first ? step->out.stride : 1;
    args->left = sizes->moves_rows ? x : weights;
    args->right = sizes->moves_rows ? weights : x;
    args->out = step->out.data;
    args->out_block = outputs * k->d * feature;
    args->out_matrix = feature;
    args->out_row = sizes->moves_rows ? sample : k->d * feature;
    args->out_col = sizes->moves_rows ? k->d * feature : sample;
    args->bias = step->bias;
    args->bias_block = outputs * k->d;
    args->bias_matrix = 1;
    args->bias_step = k->d;
}

/* Gradient of weights = dy x, where k counts samples: to parts, or at once where one part in fp32 is the result. */
static void set_gradient(const splat_layer *layer, const struct sp_layer_step *step, const struct sp_kron *k,
                         int in_place, struct sp_kron_args *args)
{
    args->left = activations_operand(layer, k, k->b, &step->in, 1);
    args->right = activations_operand(layer, k, k->c, &step->out, 1);
    args->out = in_place ? step->weights : step->parts;
    args->out_block = k->b * k->d * k->c;
    args->out_matrix = k->c;
    args->out_row = k->d * k->c;
    args->out_col = 1;
    args->out_split = sp_kron_weights(k);
}

static enum splat_status gpu_step(const splat_layer *layer, const struct sp_layer_step *step, void *stream)
{
    const struct sp_layer_factor *factor = &layer->factors[step->factor];
    const struct sp_layer_kernel *kernel = &factor->kernels[step->pass];
    const struct sp_kron_problem problem = sp_layer_problem(layer, step->factor, step->pass);
    const struct sp_kron *k = &factor->kron;
    struct sp_kron_sizes sizes;
    struct sp_kron_grid grid;
    sp_kron_sizes_of(&problem, &kernel->spec, step->n, &sizes);
    sp_kron_grid_of(&problem, &kernel->spec, step->n, layer->multiprocessors, &grid);
    const int gradient = step->pass == SP_KRON_WEIGHT_GRADIENT;
    const int in_place = gradient && grid.splits == 1 && layer->options.dtype == SPLAT_FP32;
    struct sp_kron_args args = {
        .rows = (int)sizes.rows,
        .cols = (int)sizes.cols,
        .depth = (int)sizes.depth,
        .matrices = (int)k->d,
        .runs = (int)sizes.runs,
        .row_blocks = (int)grid.row_blocks,
        .col_blocks = (int)grid.col_blocks,
        .splits = (int)grid.splits,
        .split_depth = (int)grid.split_depth,
    };
    if (gradient)
        set_gradient(layer, step, k, in_place, &args);
    else
        set_product(layer, step, k, &sizes, &args);
    args.left_vector = operand_vector(k, &kernel->spec, kernel->spec.left, &args.left, sizes.rows, sizes.depth);
    args.right_vector = operand_vector(k, &kernel->spec, kernel->spec.right, &args.right, sizes.cols, sizes.depth);
    args.out_vector = out_vector(k, &kernel->spec, &args);
    if (kernel->spec.small_rows) {
        const int width = kernel->spec.dtype == SPLAT_FP32 ? 4 : 8;
        args.runs = (int)(kernel->spec.run > 1 ? k->a * k->d / width : k->a * k->d);
    }
    enum splat_status status = launch(layer, kernel, grid.blocks, &args, stream);
    if (status != SPLAT_OK || !gradient || in_place)
        return status;
    struct sp_kron_sum_args sum = {step->parts, step->weights, sp_kron_weights(k), (int)grid.splits, 0};
    return launch(layer, &layer->sum, (sum.count + SUM_THREADS - 1) / SUM_THREADS, &sum, stream);
}

static enum splat_status run_step(const splat_layer *layer, const struct sp_layer_step *step, void *stream)
{
    if (layer->options.device != SPLAT_DEVICE_GPU)
        return sp_cpu_layer_step(layer, step);
    return sp_layer_hopper_takes(layer, step) ? sp_layer_hopper_step(layer, step, stream)
                                              : gpu_step(layer, step, stream);
}

/* ---- Public ---- */

static enum splat_status copy_args(const splat_layer *layer, const splat_layer_args *given, splat_layer_args *args)
{
    if (!layer || !given)
        return sp_fail(SPLAT_INVALID, "%s is null", layer ? "args" : "layer");
    enum splat_status status =
        sp_check_struct_size("args", "splat_layer_args_init", given->struct_size, sizeof *given);
    if (status != SPLAT_OK)
        return status;
    *args = *given;
    return check_n(layer, args->n);
}

/* Activations that factor f reads. */
static struct sp_activations input_of(const splat_layer_args *a, const struct workspace *w, int f)
{
    if (f == 0)
        return (struct sp_activations){(void *)(uintptr_t)a->x, a->x_stride};
    return (struct sp_activations){(char *)a->workspace + w->activations[f - 1], w->strides[f - 1]};
}

enum splat_status splat_layer_forward(const splat_layer *layer, const splat_layer_args *given, void *stream)
{
    splat_layer_args a;
    struct workspace w;
    enum splat_status status = copy_args(layer, given, &a);
    if (status == SPLAT_OK)
        status = check_weights(layer, a.weights);
    if (status == SPLAT_OK)
        status = check_activations(layer, "x", a.x, splat_layer_inputs(layer), a.n, &a.x_stride);
    if (status == SPLAT_OK)
        status = check_activations(layer, "y", a.y, splat_layer_outputs(layer), a.n, &a.y_stride);
    if (status == SPLAT_OK && a.x == a.y)
        status = sp_fail(SPLAT_INVALID, "x and y are both %p; the result may not overwrite the input", a.x);
    if (status == SPLAT_OK && a.bias)
        status = check_pointer(layer, "bias", a.bias);
    if (status != SPLAT_OK)
        return status;
    lay_out(layer, a.n, 0, &w);
    status = check_workspace(&a, &w);
    if (status == SPLAT_OK)
        status = check_place(layer, stream);
    for (int f = 0; f < layer->count && status == SPLAT_OK; f++) {
        const int last = f + 1 == layer->count;
        const struct sp_layer_step step = {
            .factor = f,
            .pass = SP_KRON_FORWARD,
            .n = a.n,
            .in = input_of(&a, &w, f),
            .out = last ? (struct sp_activations){a.y, a.y_stride} : input_of(&a, &w, f + 1),
            .weights = (void *)(uintptr_t)a.weights[f],
            .bias = last ? a.bias : NULL,
        };
        status = run_step(layer, &step, stream);
    }
    return status;
}

static enum splat_status check_gradients(const splat_layer *layer, splat_layer_args *a, int wanted[])
{
    int any = 0;
    enum splat_status status = check_backward(layer);
    for (int f = 0; f < layer->count && status == SPLAT_OK; f++) {
        wanted[f] = a->weight_gradients && a->weight_gradients[f];
        any |= wanted[f];
        if (wanted[f])
            status = check_pointer(layer, "an array of weight_gradients", a->weight_gradients[f]);
    }
    if (status == SPLAT_OK && !any && !a->dx)
        status =
            sp_fail(SPLAT_INVALID, "dx and weight_gradients are null; the backward pass has nothing to compute");
    if (status == SPLAT_OK && (a->dx || layer->count > 1))
        status = check_weights(layer, a->weights);
    if (status == SPLAT_OK)
        status = check_activations(layer, "dy", a->dy, splat_layer_outputs(layer), a->n, &a->dy_stride);
    if (status == SPLAT_OK && a->dx)
        status = check_activations(layer, "dx", a->dx, splat_layer_inputs(layer), a->n, &a->dx_stride);
    if (status == SPLAT_OK && a->dx == a->dy)
        status = sp_fail(SPLAT_INVALID, "dx and dy are both %p; the result may not overwrite the input", a->dy);
    if (status == SPLAT_OK && wanted[0])
        status = check_activations(layer, "x", a->x, splat_layer_inputs(layer), a->n, &a->x_stride);
    return status;
}

enum splat_status splat_layer_backward(const splat_layer *layer, const splat_layer_args *given, void *stream)
{
    splat_layer_args a;
    struct workspace w;
    int wanted[SP_LAYER_FACTORS_MAX] = {0}, lowest = 0;
    enum splat_status status = copy_args(layer, given, &a);
    if (status == SPLAT_OK)
        status = check_gradients(layer, &a, wanted);
    if (status != SPLAT_OK)
        return status;
    lay_out(layer, a.n, 1, &w);
    status = check_workspace(&a, &w);
    if (status == SPLAT_OK)
        status = check_place(layer, stream);
    while (!a.dx && !wanted[lowest])
        lowest++;
    struct sp_activations gradient = {(void *)(uintptr_t)a.dy, a.dy_stride};
    for (int f = layer->count - 1; f >= lowest && status == SPLAT_OK; f--) {
        struct sp_layer_step step = {.factor = f, .pass = SP_KRON_WEIGHT_GRADIENT, .n = a.n, .in = gradient};
        if (wanted[f]) {
            step.out = input_of(&a, &w, f);
            step.weights = a.weight_gradients[f];
            step.parts = a.workspace ? (char *)a.workspace + w.parts : NULL;
            status = run_step(layer, &step, stream);
        }
        if (status != SPLAT_OK || (f == lowest && !a.dx))
            break;
        step.pass = SP_KRON_INPUT_GRADIENT;
        step.weights = (void *)(uintptr_t)a.weights[f];
        step.out = (struct sp_activations){a.dx, a.dx_stride};
        if (f > 0) {
            step.out.data = (char *)a.workspace + w.gradients[f % 2];
            step.out.stride = w.strides[f - 1];
        }
        status = run_step(layer, &step, stream);
        gradient = step.out;
    }
    return status;
}
