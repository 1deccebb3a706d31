// Runs of the operators on values, and their truth in double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "compile.h"
#include "driver.h"
#include "machine.h"
#include "problem.h"
#include "tensors.h"

namespace machine
{

namespace
{
// Values of each (batch, head) in the order of CSR; NaN or what was never stored between them.
struct Matrices {
    std::vector<uint16_t> data;
    bool bf16;
    int64_t batch, head; // strides

    double operator()(int b, int h, int64_t place) const
    {
        const uint16_t bits = data[static_cast<size_t>(b * batch + h * head + place)];
        return bf16 ? bf16_value(bits) : half_value(bits);
    }
};
} // namespace

static Matrices make_matrices(const Case &given, int64_t most, uint16_t filling)
{
    Matrices m{{}, given.dtype == SPLAT_BF16, 0, 0};
    m.head = (most + 7) / 8 * 8 + (given.traits & GAPS ? 8 : 0);
    m.batch = m.head * given.heads + (given.traits & GAPS ? 16 : 0);
    m.data.assign(static_cast<size_t>(m.batch * given.batch) + GUARD, filling);
    return m;
}

static splat_values values_of(Matrices &m)
{
    splat_values made = {};
    made.data = m.data.data(), made.batch_stride = m.batch, made.head_stride = m.head;
    return made;
}

static void add_matrices(const char *name, const Matrices &m, const Case &given, int64_t pairs, Access access)
{
    const int64_t elements = (given.batch - 1) * m.batch + (given.heads - 1) * m.head + pairs;
    add_buffer(name, m.data.data(), 2 * static_cast<size_t>(elements), access);
}

std::string Problem::run_sparse(const std::string &object, uint64_t seed) const
{
    const enum splat_op op = case_.op;
    const bool transposed = op == SPLAT_OP_SPMM_TRANSPOSED, multiplies = transposed || op == SPLAT_OP_SPMM;
    const int x_heads = transposed ? case_.heads : case_.kv_heads, group = case_.heads / case_.kv_heads;
    const int x_rows = transposed ? case_.q_len : case_.kv_len, y_rows = transposed ? case_.kv_len : case_.q_len;
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;

    // What each row holds, and where its values begin.
    std::vector<std::vector<int64_t>> begins(truth_.size());
    int64_t most = 0, last = 0;
    for (size_t m = 0; m < truth_.size(); ++m) {
        begins[m].push_back(0);
        for (int i = 0; i < case_.q_len; ++i) {
            const auto row = truth_[m].begin() + static_cast<ptrdiff_t>(i) * case_.kv_len;
            begins[m].push_back(begins[m].back() + case_.kv_len - std::count(row, row + case_.kv_len, 0));
        }
        most = std::max(most, begins[m].back());
        last = begins[m].back(); // of the last (batch, head), or of all
    }
    if (truth_.size() == 1)
        last = most;

    Tensor q = make_tensor(case_, case_.heads, case_.q_len, case_.head_dim);
    Tensor k = make_tensor(case_, case_.kv_heads, case_.kv_len, case_.head_dim);
    Tensor x = make_tensor(case_, x_heads, x_rows, case_.value_dim);
    Tensor y = make_tensor(case_, case_.heads, y_rows, case_.value_dim);
    const uint16_t nan = case_.dtype == SPLAT_BF16 ? 0x7fc1 : 0x7e01;
    Matrices input = make_matrices(case_, most, nan), output = make_matrices(case_, most, UNTOUCHED);
    std::vector<float> lse(static_cast<size_t>(case_.batch) * case_.heads * case_.q_len + GUARD, UNTOUCHED_LSE);
    for (Tensor *t : {&q, &k, &x})
        for (int b = 0; b < case_.batch; ++b)
            for (int h = 0; h < t->heads; ++h)
                for (int i = 0; i < t->rows; ++i)
                    for (int d = 0; d < t->dim; ++d)
                        t->set(b, h, i, d, normal(random));
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < case_.batch; ++b) {
        for (int h = 0; h < case_.kv_heads && case_.traits & BAD_KEYS; ++h)
            for (int j = 0; j < case_.kv_len; ++j)
                if (random() % 32 == 0)
                    k.set(b, h, j, static_cast<int>(random() % static_cast<unsigned>(case_.head_dim)), NAN);
        for (int h = 0; h < x_heads && case_.traits & BAD_VALUES; ++h)
            for (int j = 0; j < x_rows; ++j)
                if (random() % 32 == 0)
                    x.set(b, h, j, static_cast<int>(random() % static_cast<unsigned>(case_.value_dim)),
                          bad[random() % 3]);
        for (int h = 0; h < case_.heads; ++h)
            for (int64_t p = 0; p < begins[static_cast<size_t>(mask_of(b, h))].back(); ++p) {
                const float value =
                    random() % 64 == 0 ? 0.0f : normal(random) * (case_.traits & LARGE_SCORES ? 12.0f : 1.0f);
                input.data[static_cast<size_t>(b * input.batch + h * input.head + p)] =
                    input.bf16 ? bf16_of(value) : half_of(value);
            }
    }
    // A row of -inf, and a NaN.
    if (op == SPLAT_OP_SOFTMAX && case_.traits & BAD_VALUES) {
        const std::vector<int64_t> &at = begins[static_cast<size_t>(mask_of(0, 0))];
        const int i = static_cast<int>(random() % static_cast<unsigned>(case_.q_len));
        for (int64_t p = at[static_cast<size_t>(i)]; p < at[static_cast<size_t>(i) + 1]; ++p)
            input.data[static_cast<size_t>(p)] = input.bf16 ? bf16_of(-INFINITY) : half_of(-INFINITY);
        if (at.back() > 0)
            input.data[random() % static_cast<uint64_t>(at.back())] = nan;
    }
    for (uint16_t &element : y.data)
        element = UNTOUCHED;
    const Matrices given_values = input;

    splat_sparse_args args;
    splat_sparse_args_init(&args);
    args.batch = case_.batch, args.heads = case_.heads, args.kv_heads = transposed ? case_.heads : case_.kv_heads;
    args.q_len = case_.q_len, args.kv_len = case_.kv_len;
    args.q = tensor_of(q), args.k = tensor_of(k), args.x = tensor_of(x), args.y = tensor_of(y);
    const bool in_place = case_.traits & IN_PLACE;
    args.values = values_of(multiplies || in_place ? input : output);
    args.scores = values_of(input);
    args.lse = case_.traits & NO_LSE ? nullptr : lse.data();
    args.lse_batch_stride = static_cast<int64_t>(case_.heads) * case_.q_len, args.lse_head_stride = case_.q_len;
    args.scale = seed % 2 ? 0.25f : 0.0f;

    Running running = {load_kernel(object, 0), spec_.blocks_per_sm, seed, Grid::GIVEN};
    splat_kernel kernel;
    std::vector<int64_t> launch_tiles;
    make_kernel(&kernel, &running, nullptr, &launch_tiles);
    forget_buffers();
    if (op == SPLAT_OP_SDDMM) {
        add_buffer("q", q.data.data(), q.extent(case_.batch), Access::READ);
        add_buffer("k", k.data.data(), k.extent(case_.batch), Access::READ);
    }
    if (multiplies) {
        add_buffer("x", x.data.data(), x.extent(case_.batch), Access::READ);
        add_buffer("y", y.data.data(), y.extent(case_.batch), Access::WRITE_ONCE);
    }
    if (op != SPLAT_OP_SDDMM)
        add_matrices("values", input, case_, last, in_place ? Access::UPDATE : Access::READ);
    if (!multiplies && !in_place)
        add_matrices("results", output, case_, last, Access::WRITE_ONCE);
    if (op == SPLAT_OP_SOFTMAX && args.lse)
        add_buffer("lse", args.lse, (lse.size() - GUARD) * sizeof(float), Access::WRITE_ONCE);
    add_inputs(*plan_);
    catch_signals(object.c_str());
    watch_registers(false);
    need(splat_run_sparse(&kernel, &args, nullptr), case_);

    // ---- The reference ----

    const double rounding = case_.dtype == SPLAT_BF16 ? 0x1p-8 : 0x1p-11;
    const double scale = args.scale != 0 ? args.scale : op == SPLAT_OP_SDDMM ? 1 / std::sqrt(case_.head_dim) : 1;
    const double tiny = case_.dtype == SPLAT_BF16 ? 1e-30 : 1e-7; // subnormals of fp16
    const auto close = [&](double got, double want, double reach) {
        return same_kind(got, want) &&
               (!std::isfinite(want) ||
                std::fabs(got - want) <= 1.02 * rounding * std::fabs(want) + 3e-6 * reach + tiny);
    };
    const Matrices &results = in_place ? input : output;
    std::vector<bool> stored(output.data.size()), y_stored(y.data.size());
    std::vector<double> sums(static_cast<size_t>(y_rows) * case_.value_dim), reaches(sums.size());
    for (int b = 0; b < case_.batch; ++b)
        for (int h = 0; h < case_.heads; ++h) {
            const int mask = mask_of(b, h), x_head = transposed ? h : h / group;
            std::fill(sums.begin(), sums.end(), 0.0);
            std::fill(reaches.begin(), reaches.end(), 0.0);
            for (int i = 0; i < case_.q_len; ++i) {
                const int64_t begin = begins[static_cast<size_t>(mask)][static_cast<size_t>(i)];
                const int64_t end = begins[static_cast<size_t>(mask)][static_cast<size_t>(i) + 1];
                double top = -INFINITY, sum = 0;
                bool hole = false;
                for (int64_t p = begin; p < end; ++p) {
                    const double value = given_values(b, h, p);
                    hole |= std::isnan(value);
                    top = std::fmax(top, value);
                }
                for (int64_t p = begin; p < end; ++p)
                    sum += hole ? NAN : top == -INFINITY ? 0 : std::exp(scale * (given_values(b, h, p) - top));
                int64_t p = begin;
                for (int j = 0; j < case_.kv_len; ++j) {
                    if (!allowed(mask, i, j))
                        continue;
                    double want = 0, reach = 0;
                    if (op == SPLAT_OP_SDDMM)
                        for (int d = 0; d < case_.head_dim; ++d) {
                            want += scale * q(b, h, i, d) * k(b, h / group, j, d);
                            reach += scale * std::fabs(q(b, h, i, d) * k(b, h / group, j, d));
                        }
                    if (op == SPLAT_OP_SOFTMAX) {
                        want = sum == 0 ? 0 : std::exp(scale * (given_values(b, h, p) - top)) / sum;
                        reach = want == 0 ? 0 : 5 * want * (1 + std::fabs(scale * (given_values(b, h, p) - top)));
                    }
                    if (!multiplies && !close(results(b, h, p), want, reach))
                        return say("value %lld of [%d][%d], row %d, column %d, is %.7g, expected %.7g",
                                   static_cast<long long>(p), b, h, i, j, results(b, h, p), want);
                    stored[static_cast<size_t>(b * output.batch + h * output.head + p)] = true;
                    for (int d = 0; d < case_.value_dim && multiplies; ++d) {
                        const double term = scale * given_values(b, h, p) * x(b, x_head, transposed ? i : j, d);
                        const size_t at = static_cast<size_t>(transposed ? j : i) * case_.value_dim + d;
                        sums[at] += term;
                        reaches[at] += std::fabs(term);
                    }
                    ++p;
                }
                const double got =
                    lse[(static_cast<size_t>(b) * case_.heads + h) * case_.q_len + static_cast<size_t>(i)];
                const double want = sum == 0 ? -INFINITY : hole ? NAN : scale * top + std::log(sum);
                if (op == SPLAT_OP_SOFTMAX && args.lse &&
                    (!same_kind(got, want) ||
                     (std::isfinite(want) && std::fabs(got - want) > 1e-5 + 2e-6 * std::fabs(scale * top))))
                    return say("lse[%d][%d][%d] is %.8g, expected %.8g", b, h, i, got, want);
            }
            for (int i = 0; i < y_rows && multiplies; ++i)
                for (int d = 0; d < case_.value_dim; ++d) {
                    const size_t at = static_cast<size_t>(i) * case_.value_dim + d;
                    y_stored[static_cast<size_t>(y.at(b, h, i, d))] = true;
                    if (!close(y(b, h, i, d), sums[at], reaches[at]))
                        return say("y[%d][%d][%d][%d] is %.7g, expected %.7g", b, h, i, d, y(b, h, i, d), sums[at]);
                }
        }
    for (size_t at = 0; at < stored.size() && !multiplies && !in_place; ++at)
        if (!stored[at] && output.data[at] != UNTOUCHED)
            return say("values were written between or beyond matrices, at element %zu", at);
    for (size_t at = 0; at < y_stored.size(); ++at)
        if (!y_stored[at] && y.data[at] != UNTOUCHED)
            return say("y was written between or beyond its rows, at element %zu", at);
    return "";
}

} // namespace machine
