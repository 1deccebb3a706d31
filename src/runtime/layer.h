/* splat_layer inside the library. */
#ifndef SP_LAYER_H
#define SP_LAYER_H

#include "analysis/kron_plan.h"
#include "runtime/driver.h"
#include "splat.h"

enum { SP_LAYER_FACTORS_MAX = 16 };

struct sp_layer_kernel {
    sp_cu_module module;
    sp_cu_function function;
    struct sp_kron_spec spec; /* of products */
    int threads, shared_bytes;
};

struct sp_layer_hopper {
    sp_cu_module module; /* NULL: there is none for this pass */
    sp_cu_function function;
    struct sp_kron_hopper spec;
    int threads, shared_bytes;
};

struct sp_layer_factor {
    struct sp_kron kron;
    double predicted_us;
    struct sp_layer_kernel kernels[SP_KRON_PASSES]; /* GPU only; gradients when they are wanted */
    struct sp_layer_hopper hopper[SP_KRON_PASSES];  /* taken where the run's tensors allow, see layer_hopper.c */
};

struct splat_layer {
    splat_layer_options options; /* device and arch as chosen */
    int count;
    struct sp_layer_factor factors[SP_LAYER_FACTORS_MAX];
    int threads; /* CPU engine */
    /* GPU only */
    const struct sp_driver *driver;
    sp_cu_context cu_context;
    int multiprocessors;
    struct sp_layer_kernel sum; /* of the parts of weight gradients */
};

/* The problem that a pass of a factor is. */
struct sp_kron_problem sp_layer_problem(const splat_layer *layer, int factor, enum sp_kron_pass pass);

static inline int64_t sp_kron_inputs(const struct sp_kron *k)
{
    return k->a * k->c * k->d;
}

static inline int64_t sp_kron_outputs(const struct sp_kron *k)
{
    return k->a * k->b * k->d;
}

static inline int64_t sp_kron_weights(const struct sp_kron *k)
{
    return k->a * k->b * k->c * k->d;
}

/* Activations: feature f of sample s is at s*stride + f batch first, f*stride + s batch last. */
struct sp_activations {
    void *data;
    int64_t stride;
};

/* One pass of one factor. Forward: out = W in (+ bias). Gradient of the input: out = W^T in. Gradient of the
 * weights: weights = in's gradient x out's activations, as `in` = dy and `out` = x. */
struct sp_layer_step {
    int factor;
    enum sp_kron_pass pass;
    int64_t n;
    struct sp_activations in, out;
    void *weights;
    const void *bias;
    void *parts; /* workspace of the gradient of the weights on the GPU */
};

/* layer_hopper.c: whether the pass has a Hopper kernel and bulk copies can take this step's tensors;
 * the launch. */
int sp_layer_hopper_takes(const splat_layer *layer, const struct sp_layer_step *step);
enum splat_status sp_layer_hopper_step(const splat_layer *layer, const struct sp_layer_step *step, void *stream);

/* cpu_layer.c: SPLAT_NO_MEMORY. */
enum splat_status sp_cpu_layer_step(const splat_layer *layer, const struct sp_layer_step *step);

#endif
