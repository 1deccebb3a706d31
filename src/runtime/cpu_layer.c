/* Kronecker-sparse layers on host threads.
 *
 * Takes a step of a layer (layer.h). Keeps true: sums are fp32, in an order that depends neither on the number of
 * threads nor on how many samples there are; results are rounded once. Samples are taken SAMPLES at a time, so that
 * inner loops run over them. */
#include <omp.h>
#include <stdlib.h>

#include "common/error.h"
#include "runtime/cpu_float.h"
#include "runtime/layer.h"

enum { SAMPLES = 16 };

struct work {
    const struct sp_layer_step *step;
    struct sp_kron kron;
    enum splat_dtype dtype;
    int batch_first;
};

static float load(enum splat_dtype dtype, const void *data, int64_t index)
{
    if (dtype == SPLAT_FP32)
        return ((const float *)data)[index];
    uint16_t bits = ((const uint16_t *)data)[index];
    return dtype == SPLAT_BF16 ? sp_bf16_to_float(bits) : sp_fp16_to_float(bits);
}

static void store(enum splat_dtype dtype, void *data, int64_t index, float value)
{
    if (dtype == SPLAT_FP32)
        ((float *)data)[index] = value;
    else
        ((uint16_t *)data)[index] = dtype == SPLAT_BF16 ? sp_float_to_bf16(value) : sp_float_to_fp16(value);
}

static int64_t place(const struct work *w, const struct sp_activations *x, int64_t feature, int64_t sample)
{
    return w->batch_first ? sample * x->stride + feature : feature * x->stride + sample;
}

/* Samples [first, first + SAMPLES) of `count` features, `step` apart, as [count][SAMPLES]; zeros beyond the last.
 */
static void gather(const struct work *w, const struct sp_activations *x, int64_t feature, int64_t step,
                   int64_t count, int64_t first, float *out)
{
    for (int64_t f = 0; f < count; f++)
        for (int64_t s = 0; s < SAMPLES; s++)
            out[f * SAMPLES + s] =
                first + s < w->step->n ? load(w->dtype, x->data, place(w, x, feature + f * step, first + s)) : 0.0f;
}

static void scatter(const struct work *w, const struct sp_activations *y, int64_t feature, int64_t count,
                    int64_t first, const float *in)
{
    for (int64_t f = 0; f < count; f++)
        for (int64_t s = 0; s < SAMPLES && first + s < w->step->n; s++)
            store(w->dtype, y->data, place(w, y, feature + f, first + s), in[f * SAMPLES + s]);
}

/* Block i of SAMPLES samples: out = W in, or W^T in. */
static void multiply_block(const struct work *w, int64_t i, int64_t first, float *in, float *out, float *row)
{
    const struct sp_kron *k = &w->kron;
    const int forward = w->step->pass == SP_KRON_FORWARD;
    const int64_t rows = k->b * k->d, columns = k->c * k->d;
    const int64_t inputs = forward ? columns : rows, outputs = forward ? rows : columns;
    gather(w, &w->step->in, i * inputs, 1, inputs, first, in);
    for (int64_t f = 0; f < outputs * SAMPLES; f++)
        out[f] = 0.0f;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t j = r % k->d;
        for (int64_t l = 0; l < k->c; l++)
            row[l] = load(w->dtype, w->step->weights, (i * rows + r) * k->c + l);
        for (int64_t l = 0; l < k->c; l++) {
            float *to = forward ? out + r * SAMPLES : out + (l * k->d + j) * SAMPLES;
            const float *from = forward ? in + (l * k->d + j) * SAMPLES : in + r * SAMPLES;
#pragma omp simd
            for (int s = 0; s < SAMPLES; s++)
                to[s] += row[l] * from[s];
        }
    }
    for (int64_t f = 0; f < outputs && w->step->bias; f++) {
        float bias = load(w->dtype, w->step->bias, i * outputs + f);
        for (int s = 0; s < SAMPLES; s++)
            out[f * SAMPLES + s] += bias;
    }
    scatter(w, &w->step->out, i * outputs, outputs, first, out);
}

/* Matrix j of block i of the gradient of the weights. */
static void gradient_block(const struct work *w, int64_t i, int64_t j, float *dy, float *x, float *sums)
{
    const struct sp_kron *k = &w->kron;
    for (int64_t v = 0; v < k->b * k->c; v++)
        sums[v] = 0.0f;
    for (int64_t first = 0; first < w->step->n; first += SAMPLES) {
        gather(w, &w->step->in, i * k->b * k->d + j, k->d, k->b, first, dy);
        gather(w, &w->step->out, i * k->c * k->d + j, k->d, k->c, first, x);
        for (int64_t r = 0; r < k->b; r++)
            for (int64_t l = 0; l < k->c; l++) {
                float sum = 0.0f;
                for (int s = 0; s < SAMPLES; s++)
                    sum += dy[r * SAMPLES + s] * x[l * SAMPLES + s];
                sums[r * k->c + l] += sum;
            }
    }
    for (int64_t r = 0; r < k->b; r++)
        for (int64_t l = 0; l < k->c; l++)
            store(w->dtype, w->step->weights, ((i * k->b + r) * k->d + j) * k->c + l, sums[r * k->c + l]);
}

/* Floats of a thread: two arrays of samples, and a row of weights or a matrix of sums. */
struct share {
    int64_t rows, columns, extra;
};

static int run_items(const struct work *w, int team, const struct share *share, int64_t items, int64_t inner)
{
    const size_t floats = (size_t)(share->rows + share->columns + share->extra);
    int failed = 0;
#pragma omp parallel num_threads(team) reduction(| : failed)
    {
        float *scratch = calloc(floats, sizeof *scratch);
        failed = !scratch;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; item++) {
            const int64_t i = item / inner, at = item % inner;
            if (!scratch)
                continue;
            float *of_rows = scratch, *of_columns = scratch + share->rows, *extra = of_columns + share->columns;
            if (w->step->pass == SP_KRON_WEIGHT_GRADIENT)
                gradient_block(w, i, at, of_rows, of_columns, extra);
            else if (w->step->pass == SP_KRON_FORWARD)
                multiply_block(w, i, at * SAMPLES, of_columns, of_rows, extra);
            else
                multiply_block(w, i, at * SAMPLES, of_rows, of_columns, extra);
        }
        free(scratch);
    }
    return failed;
}

enum splat_status sp_cpu_layer_step(const splat_layer *layer, const struct sp_layer_step *step)
{
    const struct sp_kron k = layer->factors[step->factor].kron;
    const struct work w = {step, k, layer->options.dtype, layer->options.layout == SPLAT_BATCH_FIRST};
    const int gradient = step->pass == SP_KRON_WEIGHT_GRADIENT;
    const struct share share = {(gradient ? k.b : k.b * k.d) * SAMPLES, (gradient ? k.c : k.c * k.d) * SAMPLES,
                                gradient ? k.b * k.c : k.c};
    const int64_t inner = gradient ? k.d : (step->n + SAMPLES - 1) / SAMPLES;
    if (run_items(&w, layer->threads ? layer->threads : omp_get_max_threads(), &share, k.a * inner, inner))
        return sp_no_memory("a thread's share of a layer",
                            (size_t)(share.rows + share.columns + share.extra) * sizeof(float));
    return SPLAT_OK;
}
