// Layers made as the runtime makes them, but for the module; random numbers; the product in double precision.
#include "layers.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "compile.h"
#include "driver.h"
#include "machine.h"
#include "numbers.h"

namespace machine
{

namespace
{

// Numbers of the case's type, the gaps between rows NaN.
struct Array {
    enum splat_dtype dtype;
    std::vector<uint16_t> halves;
    std::vector<float> floats;

    Array(enum splat_dtype type, size_t count) : dtype(type)
    {
        if (dtype == SPLAT_FP32)
            floats.assign(count, NAN);
        else
            halves.assign(count, dtype == SPLAT_BF16 ? 0x7fc1 : 0x7e01);
    }
    size_t size() const
    {
        return dtype == SPLAT_FP32 ? floats.size() : halves.size();
    }
    void *data()
    {
        return dtype == SPLAT_FP32 ? static_cast<void *>(floats.data()) : halves.data();
    }
    size_t bytes() const
    {
        return size() * (dtype == SPLAT_FP32 ? 4 : 2);
    }
    double at(size_t i) const
    {
        return dtype == SPLAT_FP32   ? static_cast<double>(floats[i])
               : dtype == SPLAT_BF16 ? bf16_value(halves[i])
                                     : half_value(halves[i]);
    }
    void set(size_t i, float value)
    {
        if (dtype == SPLAT_FP32)
            floats[i] = value;
        else
            halves[i] = dtype == SPLAT_BF16 ? bf16_of(value) : half_of(value);
    }
};

struct Activations {
    Array data;
    int64_t features, n, stride;
    bool batch_first;

    Activations(const LayerCase &c, int64_t count)
        : data(c.dtype, 0), features(count), n(c.n), stride(0), batch_first(c.layout == SPLAT_BATCH_FIRST)
    {
        const int64_t rows = batch_first ? n : features;
        stride = (batch_first ? features : n) + c.gap;
        data = Array(c.dtype, static_cast<size_t>(rows * stride - c.gap));
    }
    size_t place(int64_t feature, int64_t sample) const
    {
        return static_cast<size_t>(batch_first ? sample * stride + feature : feature * stride + sample);
    }
    double operator()(int64_t feature, int64_t sample) const
    {
        return data.at(place(feature, sample));
    }
    bool is_gap(size_t at) const
    {
        return static_cast<int64_t>(at) % stride >= (batch_first ? features : n);
    }
};

using Matrix = std::vector<double>; // [features][n]

struct Layer {
    splat_layer library;
    std::vector<Running> running;
};

} // namespace

// What a value may deviate by: sums of products whose operands, and intermediate results, are rounded.
static double tolerance(const LayerCase &c, double reach, int roundings)
{
    const double one = c.dtype == SPLAT_BF16   ? 0x1p-8
                       : c.dtype == SPLAT_FP16 ? 0x1p-11
                       : c.tf32                ? 0x1p-10
                                               : 0x1p-20;
    return 1.1 * one * roundings * reach + (c.dtype == SPLAT_FP16 ? 1e-6 : 1e-30);
}

// out = W in, or W^T in; `reach` the same with magnitudes.
static void apply(const sp_kron &k, const Array &w, bool transposed, int64_t n, const Matrix &in,
                  const Matrix &in_reach, Matrix *out, Matrix *reach)
{
    const int64_t rows = k.a * k.b * k.d, columns = k.a * k.c * k.d;
    out->assign(static_cast<size_t>((transposed ? columns : rows) * n), 0.0);
    *reach = *out;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t l = 0; l < k.c; ++l) {
            const int64_t column = r / (k.b * k.d) * k.c * k.d + l * k.d + r % k.d;
            const double weight = w.at(static_cast<size_t>(r * k.c + l));
            const int64_t to = transposed ? column : r, from = transposed ? r : column;
            for (int64_t s = 0; s < n; ++s) {
                (*out)[static_cast<size_t>(to * n + s)] += weight * in[static_cast<size_t>(from * n + s)];
                (*reach)[static_cast<size_t>(to * n + s)] +=
                    std::fabs(weight) * in_reach[static_cast<size_t>(from * n + s)];
            }
        }
}

static Matrix matrix_of(const Activations &x, bool magnitudes)
{
    Matrix m(static_cast<size_t>(x.features * x.n));
    for (int64_t f = 0; f < x.features; ++f)
        for (int64_t s = 0; s < x.n; ++s)
            m[static_cast<size_t>(f * x.n + s)] = magnitudes ? std::fabs(x(f, s)) : x(f, s);
    return m;
}

static bool differs(const char *what, size_t at, double got, double want, double limit)
{
    if (std::fabs(got - want) <= limit)
        return false;
    printf("%s[%zu] is %.9g, expected %.9g within %.2g\n", what, at, got, want, limit);
    return true;
}

static bool compare(const LayerCase &c, const char *what, const Activations &got, const Matrix &want,
                    const Matrix &reach, int roundings)
{
    for (int64_t f = 0; f < got.features; ++f)
        for (int64_t s = 0; s < c.n; ++s) {
            const size_t at = static_cast<size_t>(f * c.n + s);
            if (differs(what, at, got(f, s), want[at], tolerance(c, reach[at], roundings)))
                return false;
        }
    for (size_t at = 0; at < got.data.size(); ++at)
        if (got.is_gap(at) && !std::isnan(got.data.at(at))) {
            printf("%s was stored between rows, at %zu\n", what, at);
            return false;
        }
    return true;
}

static bool make_kernel(sp_source &source, const LayerMutant *mutant, bool quick, Running *running,
                        sp_cu_function *function, std::string *object)
{
    std::string text(source.text.text, source.text.size), words;
    if (mutant) {
        const size_t from = text.find(mutant->after);
        const size_t at = from == std::string::npos ? from : text.find(mutant->find, from + strlen(mutant->after));
        if (at == std::string::npos) {
            printf("the text has no \"%s\" behind \"%s\"\n", mutant->find, mutant->after);
            return false;
        }
        text.replace(at, strlen(mutant->find), mutant->replace);
    }
    *object = compile_kernel(text, {source.entry}, quick ? "-O0 -DMACHINE_QUICK" : "-O1", &words);
    if (object->empty()) {
        printf("the kernel does not compile\n%s\n", words.c_str());
        return false;
    }
    *running = {load_kernel(*object, 0), source.blocks_per_sm, 0, Grid::GIVEN};
    *function = function_of(running);
    sp_source_free(&source);
    return true;
}

// The pass's Hopper kernel, if there is one.
static bool make_hopper(const sp_kron_problem &problem, const LayerMutant *mutant, bool quick, Running *running,
                        sp_layer_hopper *hopper, std::string *object)
{
    double us;
    sp_source source;
    if (!sp_kron_hopper_plan(&problem, 1e30, &hopper->spec, &us))
        return problem.pass != SP_KRON_FORWARD;
    if (sp_kron_hopper_source_make(&hopper->spec, &source) != SPLAT_OK)
        return false;
    hopper->threads = source.threads;
    hopper->shared_bytes = source.shared_bytes;
    return make_kernel(source, mutant, quick, running, &hopper->function, object);
}

// As splat_layer_compile makes it.
static bool make_layer(const LayerCase &c, const LayerMutant *mutant, Layer *layer, std::string *object)
{
    splat_layer &l = layer->library;
    l = {};
    splat_layer_options_init(&l.options);
    l.options.dtype = c.dtype;
    l.options.tf32 = c.tf32;
    l.options.layout = c.layout;
    l.options.n = c.expected;
    l.options.gradients = 1;
    l.options.device = SPLAT_DEVICE_GPU;
    l.options.arch = c.hopper ? SPLAT_ARCH_SM90A : SPLAT_ARCH_SM80;
    l.driver = modelled_driver();
    l.count = static_cast<int>(c.factors.size());
    layer->running.resize(static_cast<size_t>(l.count) * SP_KRON_PASSES * 2 + 1);
    size_t next = 0;
    sp_source source;
    for (int f = 0; f < l.count; ++f) {
        l.factors[f].kron = c.factors[static_cast<size_t>(f)];
        for (int pass = 0; pass < SP_KRON_PASSES; ++pass) {
            const sp_kron_problem problem = sp_layer_problem(&l, f, static_cast<sp_kron_pass>(pass));
            sp_layer_kernel &kernel = l.factors[f].kernels[pass];
            double us;
            const LayerMutant *mine = mutant && mutant->pass == pass ? mutant : nullptr;
            sp_kron_plan(&problem, &kernel.spec, &us);
            if (sp_kron_source_make(&kernel.spec, &source) != SPLAT_OK)
                return false;
            kernel.threads = source.threads;
            kernel.shared_bytes = source.shared_bytes;
            if (!make_kernel(source, c.hopper ? nullptr : mine, mutant != nullptr, &layer->running[next++],
                             &kernel.function, object) ||
                (c.hopper && !make_hopper(problem, mine, mutant != nullptr, &layer->running[next++],
                                          &l.factors[f].hopper[pass], object)))
                return false;
        }
    }
    if (sp_kron_sum_source_make(c.dtype, &source) != SPLAT_OK)
        return false;
    l.sum.threads = source.threads;
    l.sum.shared_bytes = source.shared_bytes;
    return make_kernel(source, nullptr, mutant != nullptr, &layer->running[next], &l.sum.function, object);
}

static bool need(enum splat_status status)
{
    if (status != SPLAT_OK)
        printf("%s: %s\n", splat_status_name(status), splat_last_error());
    return status == SPLAT_OK;
}

static void randomise(Array &array, std::mt19937_64 &random, const std::vector<size_t> &places)
{
    std::normal_distribution<float> normal;
    for (size_t at : places)
        array.set(at, normal(random));
}

static std::vector<size_t> places_of(const Activations &x)
{
    std::vector<size_t> places;
    for (int64_t f = 0; f < x.features; ++f)
        for (int64_t s = 0; s < x.n; ++s)
            places.push_back(x.place(f, s));
    return places;
}

static std::vector<size_t> all_of(const Array &array)
{
    std::vector<size_t> places;
    for (size_t at = 0; at < array.size(); ++at)
        places.push_back(at);
    return places;
}

static bool run_once(const LayerCase &c, Layer *made, uint64_t seed)
{
    splat_layer *layer = &made->library;
    layer->multiprocessors = 1 + static_cast<int>(seed % 3);
    for (Running &one : made->running)
        one.seed = seed;
    std::mt19937_64 random(seed);
    const size_t count = c.factors.size();
    Activations x(c, splat_layer_inputs(layer)), y(c, splat_layer_outputs(layer)),
        dy(c, splat_layer_outputs(layer)), dx(c, splat_layer_inputs(layer));
    Array bias(c.dtype, static_cast<size_t>(y.features));
    std::vector<Array> weights, gradients;
    for (const sp_kron &k : c.factors) {
        weights.emplace_back(c.dtype, static_cast<size_t>(sp_kron_weights(&k)));
        gradients.emplace_back(c.dtype, static_cast<size_t>(sp_kron_weights(&k)));
        randomise(weights.back(), random, all_of(weights.back()));
    }
    randomise(x.data, random, places_of(x));
    randomise(dy.data, random, places_of(dy));
    randomise(bias, random, all_of(bias));

    splat_layer_args args;
    splat_layer_args_init(&args);
    std::vector<const void *> weight_pointers;
    std::vector<void *> gradient_pointers;
    size_t bytes = 0;
    if (!need(splat_layer_workspace_bytes(layer, c.n, 1, &bytes)))
        return false;
    std::vector<uint8_t> memory(bytes + 256, 0xff);
    forget_buffers();
    for (size_t f = 0; f < count; ++f) {
        weight_pointers.push_back(weights[f].data());
        gradient_pointers.push_back(gradients[f].data());
        add_buffer("weights", weights[f].data(), weights[f].bytes(), Access::READ);
        add_buffer("the gradient of weights", gradients[f].data(), gradients[f].bytes(), Access::WRITE_ONCE);
    }
    args.n = c.n;
    args.weights = weight_pointers.data();
    args.weight_gradients = gradient_pointers.data();
    args.x = x.data.data(), args.x_stride = x.stride;
    args.y = y.data.data(), args.y_stride = y.stride;
    args.dy = dy.data.data(), args.dy_stride = dy.stride;
    args.dx = dx.data.data(), args.dx_stride = dx.stride;
    args.bias = c.bias ? bias.data() : nullptr;
    args.workspace = reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(memory.data()) + 255) & ~uintptr_t(255));
    args.workspace_bytes = bytes;
    add_buffer("x", x.data.data(), x.data.bytes(), Access::READ);
    add_buffer("dy", dy.data.data(), dy.data.bytes(), Access::READ);
    add_buffer("y", y.data.data(), y.data.bytes(), Access::WRITE_ONCE);
    add_buffer("dx", dx.data.data(), dx.data.bytes(), Access::WRITE_ONCE);
    add_buffer("bias", bias.data(), bias.bytes(), Access::READ);
    if (bytes) { // launches store activations and parts that later ones load
        add_buffer("the workspace", args.workspace, bytes, Access::READ);
        add_buffer("the workspace", args.workspace, bytes, Access::WRITE_ONCE);
    }
    watch_registers(c.hopper);
    if (!need(splat_layer_forward(layer, &args, nullptr)) || !need(splat_layer_backward(layer, &args, nullptr)))
        return false;

    // Forward; what factors read is kept for the gradients.
    std::vector<Matrix> inputs{matrix_of(x, false)}, reaches{matrix_of(x, true)};
    for (size_t f = 0; f < count; ++f) {
        Matrix out, reach;
        apply(c.factors[f], weights[f], false, c.n, inputs[f], reaches[f], &out, &reach);
        inputs.push_back(out);
        reaches.push_back(reach);
    }
    for (int64_t f = 0; f < y.features && c.bias; ++f)
        for (int64_t s = 0; s < c.n; ++s) {
            inputs[count][static_cast<size_t>(f * c.n + s)] += bias.at(static_cast<size_t>(f));
            reaches[count][static_cast<size_t>(f * c.n + s)] += std::fabs(bias.at(static_cast<size_t>(f)));
        }
    const int roundings = static_cast<int>(count);
    if (!compare(c, "y", y, inputs[count], reaches[count], roundings))
        return false;
    Matrix gradient = matrix_of(dy, false), gradient_reach = matrix_of(dy, true);
    for (size_t f = count; f-- > 0;) {
        const sp_kron &k = c.factors[f];
        for (int64_t r = 0; r < k.a * k.b * k.d; ++r)
            for (int64_t l = 0; l < k.c; ++l) {
                const int64_t column = r / (k.b * k.d) * k.c * k.d + l * k.d + r % k.d;
                double want = 0, reach = 0;
                for (int64_t s = 0; s < c.n; ++s) {
                    const auto at_dy = static_cast<size_t>(r * c.n + s),
                               at_x = static_cast<size_t>(column * c.n + s);
                    want += gradient[at_dy] * inputs[f][at_x];
                    reach += gradient_reach[at_dy] * reaches[f][at_x];
                }
                const auto at = static_cast<size_t>(r * k.c + l);
                if (differs("a weight's gradient", at, gradients[f].at(at), want, tolerance(c, reach, roundings)))
                    return false;
            }
        Matrix out, reach;
        apply(k, weights[f], true, c.n, gradient, gradient_reach, &out, &reach);
        gradient = out;
        gradient_reach = reach;
    }
    return compare(c, "dx", dx, gradient, gradient_reach, roundings);
}

int run_layer(const LayerCase &given, const LayerMutant *mutant, unsigned from, unsigned seeds)
{
    Layer layer;
    std::string object;
    if (!make_layer(given, mutant, &layer, &object))
        return 2;
    catch_signals(object.c_str());
    for (unsigned seed = from; seed < from + seeds; ++seed) {
        fprintf(stderr, "seed %u\n", seed);
        if (!run_once(given, &layer, seed))
            return 1;
    }
    return 0;
}

// ---- The tables ----

constexpr auto FIRST = SPLAT_BATCH_FIRST;
constexpr auto LAST = SPLAT_BATCH_LAST;
constexpr auto HALF = SPLAT_FP16;
constexpr auto BF16 = SPLAT_BF16;
constexpr auto FP32 = SPLAT_FP32;

const std::vector<LayerCase> &layer_cases()
{
    // clang-format off
    static const std::vector<LayerCase> cases = {
        // name           factors                n   type  tf32 layout gap bias expected
        {"run-8",         {{2, 24, 40, 16}},      45, BF16, 0, FIRST,  0, 1, 4096},
        {"run-8-whole",   {{1, 32, 16, 8}},       70, HALF, 0, FIRST,  8, 0, 4096},
        {"run-4",         {{2, 20, 36, 4}},       50, HALF, 0, FIRST,  0, 1, 4096},
        {"run-2",         {{1, 24, 40, 2}},       50, BF16, 0, FIRST,  0, 1, 4096},
        {"gemm-first",    {{2, 40, 72, 1}},       70, BF16, 0, FIRST,  0, 1, 4096},
        {"gemm-last",     {{2, 40, 72, 3}},       72, HALF, 0, LAST,   0, 1, 4096},
        {"odd-d",         {{2, 5, 7, 3}},         33, BF16, 0, FIRST,  0, 1, 4096},
        {"d-12",          {{1, 8, 12, 12}},       33, HALF, 0, FIRST,  0, 1, 4096},
        {"odd-first",     {{3, 11, 13, 1}},       37, HALF, 0, FIRST,  1, 1, 256},
        {"odd-last",      {{2, 9, 10, 2}},        37, BF16, 0, LAST,   0, 1, 256},
        {"tails-last",    {{1, 16, 16, 2}},       37, BF16, 0, LAST,   3, 0, 256},
        {"radix-2",       {{2, 2, 2, 8}},         40, BF16, 0, FIRST,  0, 0, 4096},
        {"radix-2-last",  {{2, 2, 2, 4}},         40, HALF, 0, LAST,   0, 0, 4096},
        {"radix-2-odd",   {{2, 2, 2, 3}},         37, HALF, 0, LAST,   0, 1, 4096},
        {"radix-2-fp32",  {{3, 3, 2, 8}},         37, FP32, 1, FIRST,  1, 1, 4096},
        {"small-1-4",     {{2, 1, 4, 8}},        300, BF16, 0, FIRST,  0, 1, 4096},
        {"tf32-run",      {{2, 20, 12, 4}},       40, FP32, 1, FIRST,  0, 1, 4096},
        {"tf32-run-2",    {{1, 12, 20, 2}},       40, FP32, 1, FIRST,  0, 0, 4096},
        {"tf32-last",     {{1, 24, 40, 2}},       44, FP32, 1, LAST,   0, 1, 4096},
        {"tf32-first",    {{2, 24, 40, 1}},       44, FP32, 1, FIRST,  0, 1, 4096},
        {"fp32-run",      {{2, 12, 20, 8}},       30, FP32, 0, FIRST,  0, 1, 4096},
        {"fp32-run-2",    {{2, 40, 20, 2}},      70, FP32, 0, FIRST,  0, 1, 4096},
        {"fp32-run-64",   {{1, 64, 64, 4}},      70, FP32, 0, FIRST,  0, 1, 4096},
        {"fp32-run-odd",  {{2, 12, 20, 6}},      30, FP32, 0, FIRST,  1, 1, 4096},
        {"fp32-last",     {{1, 24, 20, 3}},       30, FP32, 0, LAST,   0, 1, 4096},
        {"fp32-first",    {{2, 24, 20, 1}},       33, FP32, 0, FIRST,  0, 1, 4096},
        // -- the largest tiles
        {"run-8-wide",    {{1, 48, 16, 8}},       70, BF16, 0, FIRST,  0, 1, 25088},
        {"run-8-tall",    {{2, 128, 32, 8}},      40, HALF, 0, FIRST,  0, 0, 25088},
        {"run-4-wide",    {{2, 48, 16, 4}},       70, HALF, 0, FIRST,  0, 1, 25088},
        {"run-4-tall",    {{1, 96, 16, 4}},       40, BF16, 0, FIRST,  0, 0, 25088},
        {"run-2-tall",    {{2, 96, 16, 2}},       70, BF16, 0, FIRST,  0, 1, 25088},
        {"first-wide",    {{1, 48, 16, 1}},      140, HALF, 0, FIRST,  0, 1, 25088},
        {"last-tall",     {{1, 96, 16, 1}},      140, BF16, 0, LAST,   0, 1, 25088},
        {"fp32-run-wide", {{4, 64, 16, 4}},       40, FP32, 0, FIRST,  0, 0, 25088},
        {"tf32-wide",     {{1, 96, 16, 1}},       70, FP32, 1, LAST,   0, 0, 25088},
        {"long-depth",    {{1, 16, 300, 1}},      40, BF16, 0, FIRST,  0, 0, 4096},
        {"wide",          {{1, 300, 24, 2}},      40, HALF, 0, LAST,   0, 0, 4096},
        {"many-samples",  {{1, 8, 8, 8}},        700, HALF, 0, FIRST,  0, 0, 25088},
        {"one-sample",    {{2, 8, 8, 4}},          1, BF16, 0, FIRST,  0, 1, 1},
        {"identity",      {{5, 1, 1, 1}},          9, FP32, 0, LAST,   0, 0, 9},
        {"chain",         {{4, 2, 2, 1}, {2, 2, 2, 2}, {1, 2, 2, 4}},
                                                  20, FP32, 0, FIRST,  0, 1, 4096},
        {"monarch",       {{4, 6, 8, 1}, {1, 12, 4, 6}},
                                                  30, BF16, 0, LAST,   0, 1, 4096},
        // -- the Hopper kernel
        {"h-last",        {{2, 40, 72, 3}},      72, HALF, 0, LAST,   0, 1, 4096, true},
        {"h-last-deep",   {{1, 136, 200, 2}},   200, BF16, 0, LAST,   8, 0, 25088, true},
        {"h-last-wide",   {{1, 300, 128, 1}},   520, BF16, 0, LAST,   0, 1, 25088, true},
        {"h-first",       {{2, 40, 72, 1}},      70, BF16, 0, FIRST,  0, 1, 4096, true},
        {"h-first-deep",  {{3, 264, 136, 1}},   300, HALF, 0, FIRST,  8, 0, 25088, true},
        {"h-run-2",       {{2, 24, 40, 2}},      50, BF16, 0, FIRST,  0, 1, 4096, true},
        {"h-run-2-wide",  {{1, 400, 72, 2}},    150, BF16, 0, FIRST,  0, 1, 25088, true},
        {"h-run-4",       {{2, 20, 40, 4}},      50, HALF, 0, FIRST,  0, 1, 4096, true},
        {"h-run-4-wide",  {{3, 200, 72, 4}},    260, HALF, 0, FIRST,  8, 1, 25088, true},
        {"h-run-8",       {{2, 24, 40, 8}},      45, BF16, 0, FIRST,  0, 1, 4096, true},
        {"h-run-16",      {{2, 24, 40, 16}},     70, BF16, 0, FIRST,  0, 1, 4096, true},
        {"h-run-16-of-48", {{2, 40, 24, 48}},    70, HALF, 0, FIRST,  0, 1, 4096, true},
        {"h-tf32-last",   {{2, 40, 36, 2}},      44, FP32, 1, LAST,   0, 1, 4096, true},
        {"h-tf32-first",  {{2, 24, 40, 1}},      44, FP32, 1, FIRST,  0, 1, 4096, true},
        {"h-tf32-run-2",  {{2, 24, 40, 2}},      44, FP32, 1, FIRST,  0, 1, 4096, true},
        {"h-tf32-run-4",  {{2, 20, 12, 4}},      40, FP32, 1, FIRST,  0, 1, 4096, true},
        {"h-tf32-run-8",  {{2, 20, 12, 24}},     70, FP32, 1, FIRST,  0, 1, 4096, true},
        {"h-odd-stride",  {{2, 40, 72, 1}},      37, BF16, 0, LAST,   3, 1, 4096, true},
        {"h-chain",       {{4, 16, 8, 1}, {1, 16, 16, 4}},
                                                  72, BF16, 0, LAST,   0, 1, 4096, true},
    };
    // clang-format on
    return cases;
}

} // namespace machine
