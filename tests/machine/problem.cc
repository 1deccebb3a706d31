// Masks through the library's stages, random tensors, launch arguments as the runtime fills them in, and attention
// in double precision to compare with.
#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <sstream>

#include "compile.h"
#include "driver.h"
#include "machine.h"
#include "numbers.h"
#include "tensors.h"

namespace machine
{

// ---- Masks ----

static splat_mask *random_mask(const Case &given, int percent, unsigned seed)
{
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(static_cast<size_t>(given.q_len) * given.kv_len);
    for (int i = 0; i < given.q_len; ++i)
        for (int j = 0; j < given.kv_len; ++j)
            bytes[static_cast<size_t>(i) * given.kv_len + j] =
                i % 7 != 3 && random() % 100 < static_cast<unsigned>(percent);
    splat_mask *mask = nullptr;
    need(splat_mask_from_bytes(bytes.data(), given.q_len, given.kv_len, given.kv_len, &mask), given);
    return mask;
}

static splat_mask *one_mask(const Case &given, const std::string &text, unsigned seed)
{
    int percent;
    if (sscanf(text.c_str(), " random %d", &percent) == 1)
        return random_mask(given, percent, seed);
    splat_mask *mask = nullptr;
    const auto align = given.traits & TOP_LEFT ? SPLAT_ALIGN_TOP_LEFT : SPLAT_ALIGN_BOTTOM_RIGHT;
    need(splat_mask_from_expression(text.c_str(), given.q_len, given.kv_len, align, &mask), given);
    return mask;
}

static std::vector<splat_mask *> make_masks(const Case &given)
{
    std::vector<splat_mask *> masks;
    std::stringstream all(given.masks);
    for (std::string text; std::getline(all, text, ';');)
        masks.push_back(one_mask(given, text, static_cast<unsigned>(masks.size()) + 1));
    return masks;
}

static std::vector<uint8_t> expand(const Case &given, const splat_mask *mask)
{
    splat_acsr *acsr = nullptr;
    need(splat_acsr_create(mask, &acsr), given);
    std::vector<uint8_t> bytes(static_cast<size_t>(given.q_len) * given.kv_len);
    for (int i = 0; i < given.q_len; ++i)
        need(splat_acsr_expand_row(acsr, i, &bytes[static_cast<size_t>(i) * given.kv_len]), given);
    splat_acsr_destroy(acsr);
    return bytes;
}

Problem::Problem(const Case &given) : case_(given)
{
    const std::vector<splat_mask *> masks = make_masks(given);
    for (const splat_mask *mask : masks)
        truth_.push_back(expand(given, mask));
    splat_mask *whole = masks[0];
    const auto count = static_cast<int64_t>(masks.size());
    if (count > 1)
        need(splat_mask_map(masks.data(), count / given.heads, given.heads, &whole), given);
    splat_options options;
    splat_options_init(&options);
    options.device = SPLAT_DEVICE_GPU;
    options.dtype = given.dtype;
    options.arch = given.arch;
    options.head_dim = given.head_dim;
    options.value_dim = given.value_dim;
    options.batch = given.batch;
    options.heads = given.heads;
    options.kv_heads = given.kv_heads;
    options.tile_rows = given.tile_rows;
    options.tile_cols = given.tile_cols;
    options.layout = given.views;
    options.op = given.op;
    need(splat_plan_create(whole, &options, &plan_), given);
    need(sp_options_resolve(&options, &options_), given);
    need(sp_spec_make(plan_, &options_, given.arch, &spec_), given);
    need(sp_source_make(&spec_, &source_), given);
    if (count > 1)
        splat_mask_destroy(whole);
    for (splat_mask *mask : masks)
        splat_mask_destroy(mask);
}

Problem::~Problem()
{
    sp_source_free(&source_);
    splat_plan_destroy(plan_);
}

int Problem::mask_of(int batch, int head) const
{
    if (truth_.size() == 1)
        return 0;
    return static_cast<int>(truth_.size()) == case_.heads ? head : batch * case_.heads + head;
}

bool Problem::has_empty_row() const
{
    for (const auto &mask : truth_)
        for (int i = 0; i < case_.q_len; ++i) {
            const auto row = mask.begin() + static_cast<ptrdiff_t>(i) * case_.kv_len;
            if (std::count(row, row + case_.kv_len, 0) == case_.kv_len)
                return true;
        }
    return false;
}

// ---- Tensors ----

struct Problem::Tensors {
    Tensor q, k, v, o;
    std::vector<float> lse;
};

void Problem::fill(Tensors &tensors, uint64_t seed) const
{
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const float q_factor = case_.traits & LARGE_SCORES ? 12.0f : 1.0f;
    for (Tensor *t : {&tensors.q, &tensors.k, &tensors.v})
        for (int b = 0; b < case_.batch; ++b)
            for (int h = 0; h < t->heads; ++h)
                for (int i = 0; i < t->rows; ++i)
                    for (int d = 0; d < t->dim; ++d)
                        t->set(b, h, i, d, normal(random) * (t == &tensors.q ? q_factor : 1.0f));
    if (case_.traits & (RISING | LEAPING)) { // the same for every query, along one dimension
        const float step = (case_.traits & RISING ? 12.5f : 105.0f) * std::sqrt(static_cast<float>(case_.head_dim));
        for (int b = 0; b < case_.batch; ++b) {
            for (int h = 0; h < case_.heads; ++h)
                for (int i = 0; i < case_.q_len; ++i)
                    tensors.q.set(b, h, i, 0, std::sqrt(step));
            for (int h = 0; h < case_.kv_heads; ++h)
                for (int j = 0; j < case_.kv_len; ++j)
                    tensors.k.set(b, h, j, 0, static_cast<float>(j / 70) * std::sqrt(step));
        }
    }
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < case_.batch; ++b)
        for (int h = 0; h < case_.kv_heads; ++h)
            for (int j = 0; j < case_.kv_len; ++j) {
                if (case_.traits & BAD_VALUES && random() % 32 == 0)
                    for (int d = 0; d < case_.value_dim; ++d)
                        if (random() % 4 == 0)
                            tensors.v.set(b, h, j, d, bad[random() % 3]);
                if (case_.traits & BAD_KEYS && random() % 64 == 0)
                    tensors.k.set(b, h, j, static_cast<int>(random() % static_cast<unsigned>(case_.head_dim)), NAN);
            }
    if (case_.traits & ONE_BAD_VALUE)
        tensors.v.set(static_cast<int>(random() % static_cast<unsigned>(case_.batch)),
                      static_cast<int>(random() % static_cast<unsigned>(case_.kv_heads)),
                      static_cast<int>(random() % static_cast<unsigned>(case_.kv_len)),
                      static_cast<int>(random() % static_cast<unsigned>(case_.value_dim)), bad[random() % 3]);
    for (uint16_t &x : tensors.o.data)
        x = UNTOUCHED;
}

// ---- A run ----

// The kernel as splat_compile makes it, but for the module and the memory of the device.
void Problem::make_kernel(splat_kernel *kernel, Running *running, Running *combine,
                          std::vector<int64_t> *launch_tiles) const
{
    const splat_plan &p = *plan_;
    *kernel = {};
    kernel->refs = 1;
    kernel->options = options_;
    kernel->device = SPLAT_DEVICE_GPU;
    kernel->plan = plan_;
    kernel->driver = modelled_driver();
    kernel->function = function_of(running);
    kernel->combine = function_of(combine);
    kernel->args.row_tiles = p.row_tiles;
    kernel->args.segments = p.segments;
    kernel->args.predicates = p.predicates;
    kernel->args.table = p.table;
    kernel->args.bits = p.bits;
    kernel->args.map = p.map;
    kernel->args.splits = p.splits;
    kernel->args.q_len = static_cast<int>(p.q_len);
    kernel->args.kv_len = static_cast<int>(p.kv_len);
    kernel->sparse.row_offsets = reinterpret_cast<const sp_i64 *>(p.row_offsets);
    kernel->sparse.tile_values = reinterpret_cast<const sp_i64 *>(p.tile_values);
    kernel->sparse.first_tiles = reinterpret_cast<const sp_i64 *>(p.first_tiles);
    kernel->sparse.value_rows = static_cast<int>(p.row_offset_count) - 1;
    kernel->args.map_batch = p.map ? static_cast<int>(p.map_batch) : 1;
    kernel->args.map_heads = p.map ? static_cast<int>(p.map_heads) : 1;
    kernel->block_threads = source_.threads;
    kernel->shared_bytes = source_.shared_bytes;
    kernel->persistent = source_.persistent;
    kernel->lattice = source_.lattice;
    kernel->blocks_per_sm = source_.blocks_per_sm;
    launch_tiles->assign(static_cast<size_t>(p.launch_count), 0);
    kernel->launch_tiles = launch_tiles->data();
    for (int64_t pass = 0; pass < p.pass_count; ++pass)
        for (int32_t k = 0; k < p.passes[pass].row_tile_count; ++k)
            (*launch_tiles)[static_cast<size_t>(p.passes[pass].launch)] +=
                p.row_tiles[p.passes[pass].first_row_tile + k].tiles;
    // Sections of any number of heads (section_pairs of launch.c), and grids of a few blocks.
    const auto pairs = static_cast<uint64_t>(case_.batch) * static_cast<uint64_t>(case_.kv_heads);
    const int64_t pair_bytes = 2 * p.kv_len * (case_.head_dim + case_.value_dim);
    kernel->l2_bytes = pair_bytes * static_cast<int64_t>(1 + (running->seed + 1) % pairs) * 17 / 10;
    kernel->multiprocessors = 2 + static_cast<int>(running->seed % 3);
}

void add_inputs(const splat_plan &p)
{
    add_buffer("row_tiles", p.row_tiles, sizeof *p.row_tiles * static_cast<size_t>(p.row_tile_count), Access::READ);
    add_buffer("segments", p.segments, sizeof *p.segments * static_cast<size_t>(p.segment_count), Access::READ);
    add_buffer("predicates", p.predicates, sizeof *p.predicates * static_cast<size_t>(p.predicate_count),
               Access::READ);
    add_buffer("table", p.table, sizeof *p.table * static_cast<size_t>(p.table_count), Access::READ);
    add_buffer("bits", p.bits, sizeof *p.bits * static_cast<size_t>(p.bits_count), Access::READ);
    if (p.splits)
        add_buffer("splits", p.splits, sizeof *p.splits * static_cast<size_t>(p.split_count), Access::READ);
    if (p.map)
        add_buffer("map", p.map, sizeof *p.map * static_cast<size_t>(p.map_batch * p.map_heads), Access::READ);
    if (p.row_offsets)
        add_buffer("row_offsets", p.row_offsets,
                   sizeof *p.row_offsets * static_cast<size_t>(p.mask_count * p.row_offset_count), Access::READ);
    add_buffer("tile_values", p.tile_values, sizeof *p.tile_values * static_cast<size_t>(p.tile_value_count),
               Access::READ);
    if (p.first_tiles)
        add_buffer("first_tiles", p.first_tiles, sizeof *p.first_tiles * static_cast<size_t>(p.row_tile_count),
                   Access::READ);
}

std::string Problem::run(const std::string &object, uint64_t seed) const
{
    track_by(case_.op == SPLAT_OP_ATTENTION ? 4 : 2);
    if (case_.op != SPLAT_OP_ATTENTION)
        return run_sparse(object, seed);
    Tensors tensors = {
        make_tensor(case_, case_.heads, case_.q_len, case_.head_dim),
        make_tensor(case_, case_.kv_heads, case_.kv_len, case_.head_dim),
        make_tensor(case_, case_.kv_heads, case_.kv_len, case_.value_dim),
        make_tensor(case_, case_.heads, case_.q_len, case_.value_dim),
        std::vector<float>(static_cast<size_t>(case_.batch) * case_.heads * case_.q_len + GUARD, UNTOUCHED_LSE)};
    fill(tensors, seed);
    splat_attention_args args;
    splat_attention_args_init(&args);
    args.q = tensor_of(tensors.q), args.k = tensor_of(tensors.k), args.v = tensor_of(tensors.v);
    args.o = tensor_of(tensors.o);
    args.lse = case_.traits & NO_LSE ? nullptr : tensors.lse.data();
    args.lse_batch_stride = static_cast<int64_t>(case_.heads) * case_.q_len;
    args.lse_head_stride = case_.q_len;
    args.batch = case_.batch, args.heads = case_.heads, args.kv_heads = case_.kv_heads;
    args.q_len = case_.q_len, args.kv_len = case_.kv_len;

    // A kernel whose blocks take items in turn must do with any number of them. With a schedule their number is
    // given.
    Running running = {load_kernel(object, 0), spec_.blocks_per_sm, seed, Grid::GIVEN};
    if (source_.persistent)
        running.grid = seed % 3 == 0 ? Grid::GIVEN : seed % 3 == 1 ? Grid::FEW : Grid::ONE;
    Running combine = {nullptr, 1, seed, Grid::GIVEN};
    if (source_.combine[0])
        combine.kernel = load_kernel(object, 1);
    splat_kernel kernel;
    std::vector<int64_t> launch_tiles;
    make_kernel(&kernel, &running, &combine, &launch_tiles);
    std::vector<sp_schedule> schedules(static_cast<size_t>(plan_->launch_count));
    int32_t *words = nullptr;
    int64_t word_count = 0;
    if (seed % 2 == 0 && running.grid == Grid::GIVEN) {
        need(sp_schedule_make(&kernel, &words, &word_count), case_);
        std::copy(kernel.schedules, kernel.schedules + schedules.size(), schedules.begin());
        free(kernel.schedules);
    }
    kernel.schedules = schedules.data();
    kernel.args.schedule = words;
    const std::unique_ptr<int32_t, void (*)(void *)> owner(words, free);
    size_t workspace_bytes = 0;
    need(splat_workspace_bytes(&kernel, case_.batch, case_.heads, &workspace_bytes), case_);
    std::vector<uint8_t> workspace(workspace_bytes + 256, 0xff);
    args.workspace = reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(workspace.data()) + 255) &
                                              ~static_cast<uintptr_t>(255));
    args.workspace_bytes = workspace_bytes;

    bool merges = false;
    for (int64_t pass = 0; pass < plan_->pass_count; ++pass)
        merges |= plan_->passes[pass].merge != 0;
    const bool hopper = spec_.family == SP_FAMILY_HOPPER; // may do an item again
    const Access results = merges ? Access::UPDATE : hopper ? Access::WRITE : Access::WRITE_ONCE;
    forget_buffers();
    add_buffer("q", tensors.q.data.data(), tensors.q.extent(case_.batch), Access::READ);
    add_buffer("k", tensors.k.data.data(), tensors.k.extent(case_.batch), Access::READ);
    add_buffer("v", tensors.v.data.data(), tensors.v.extent(case_.batch), Access::READ);
    add_buffer("o", tensors.o.data.data(), tensors.o.extent(case_.batch), results);
    if (args.lse)
        add_buffer("lse", args.lse, (tensors.lse.size() - GUARD) * sizeof(float), results);
    if (workspace_bytes)
        add_buffer("the workspace", args.workspace, workspace_bytes, Access::UPDATE);
    add_inputs(*plan_);
    add_buffer("the schedule", words, sizeof *words * static_cast<size_t>(word_count), Access::READ);
    catch_signals(object.c_str());
    watch_registers(hopper);
    need(splat_run(&kernel, &args, nullptr), case_);
    return compare(tensors, 1.0f / std::sqrt(static_cast<float>(case_.head_dim)));
}

// ---- The reference ----

std::string Problem::compare(const Tensors &tensors, float scale) const
{
    const int group = case_.heads / case_.kv_heads;
    const double rounding = case_.dtype == SPLAT_BF16 ? 0x1p-8 : 0x1p-11; // relative error of a number in 16 bits
    std::vector<bool> stored(tensors.o.data.size());
    std::vector<double> weights(static_cast<size_t>(case_.kv_len));
    for (int b = 0; b < case_.batch; ++b)
        for (int h = 0; h < case_.heads; ++h)
            for (int i = 0; i < case_.q_len; ++i) {
                const int mask = mask_of(b, h), kv_head = h / group;
                double top = -INFINITY, sum = 0, largest = 0;
                std::vector<int> keys;
                for (int j = 0; j < case_.kv_len; ++j) {
                    if (!allowed(mask, i, j))
                        continue;
                    double score = 0;
                    for (int d = 0; d < case_.head_dim; ++d)
                        score += tensors.q(b, h, i, d) * tensors.k(b, kv_head, j, d);
                    weights[static_cast<size_t>(j)] = score * scale;
                    keys.push_back(j);
                    top = std::fmax(top, score * scale);
                    largest = std::fmax(largest, std::fabs(score * scale));
                }
                for (int j : keys)
                    sum += weights[static_cast<size_t>(j)] = std::exp(weights[static_cast<size_t>(j)] - top);
                const double lse = keys.empty() ? -INFINITY : top + std::log(sum);
                const double got_lse =
                    tensors.lse[(static_cast<size_t>(b) * case_.heads + h) * case_.q_len + static_cast<size_t>(i)];
                if (!(case_.traits & NO_LSE) &&
                    (!same_kind(got_lse, lse) ||
                     (std::isfinite(lse) && std::fabs(got_lse - lse) > 1e-5 + 2e-6 * largest)))
                    return say("lse[%d][%d][%d] is %.8g, expected %.8g", b, h, i, got_lse, lse);
                for (int d = 0; d < case_.value_dim; ++d) {
                    double want = 0, reach = 0, span = 0;
                    bool unsure = false; // a weight that may or may not be 0 in 16 bits meets an infinity or NaN
                    for (int j : keys) {
                        const double value = tensors.v(b, kv_head, j, d);
                        const double weight = weights[static_cast<size_t>(j)] / sum;
                        unsure |= !std::isfinite(value) && weight < 1e-3;
                        want += weight * value;
                        reach += weight * std::fabs(value);
                        span += std::fabs(value);
                    }
                    stored[static_cast<size_t>(tensors.o.at(b, h, i, d))] = true;
                    const double got = tensors.o(b, h, i, d);
                    // Weights and results are rounded to 16 bits; fp16 weights below 2^-14 lose bits of their own.
                    const double limit = 1.02 * rounding * (reach + std::fabs(want)) +
                                         (2e-5 + 1e-6 * largest) * reach +
                                         (case_.dtype == SPLAT_BF16 ? 0 : 1e-7 * span + 1e-7);
                    if (unsure)
                        continue;
                    if (!same_kind(got, want) || (std::isfinite(want) && std::fabs(got - want) > limit))
                        return say("o[%d][%d][%d][%d] is %.7g, expected %.7g within %.2g", b, h, i, d, got, want,
                                   limit);
                }
            }
    for (size_t at = 0; at < stored.size(); ++at)
        if (!stored[at] && tensors.o.data[at] != UNTOUCHED)
            return say("o was written between or beyond its rows, at element %zu", at);
    return "";
}

} // namespace machine
