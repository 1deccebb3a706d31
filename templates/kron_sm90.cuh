// Products of a Kronecker-sparse layer for Hopper: bulk tensor copies and warpgroup products.
//
// Takes the parameters (params_default_kron_sm90.cuh says what they mean), struct sp_kron_hopper_args and the tensor maps of
// samples and weights. A tile is the products of RUN consecutive matrices j of one block i: some outputs of some samples.
// One thread of the producer warpgroup keeps copies under way, STAGES steps of the depth at once; consumer warpgroups
// multiply and store. Blocks are persistent: each takes an even share of the tiles, neighbours in memory, and copies of the
// next tile run under the results of this one.
//
// The left operand of a product is
//   WEIGHTS_LEFT      the weights, and samples are the columns, contiguous: batch last, 16 bits
//   SAMPLES_ALONG_K   samples, contiguous along the depth: batch first, d = 1
//   SAMPLES_IN_RUNS   samples in registers, each thread's taken apart from runs of matrices: batch first, d > 1
//   SAMPLES_IN_LINES  samples in registers, from lines that are contiguous along samples: batch last, 32 bits, which products
//                     do not take from shared memory
//
// Keeps true: every sample is read once a tile and stored once; what lies beyond the ends arrives as zero and is not stored;
// sums run over k in ascending steps, so results repeat bit for bit.

// splat:region(params)
#include "params_default_kron_sm90.cuh"
// splat:end

// splat:region(kron_args)
#include "../src/codegen/kron_args.h"
// splat:end

// splat:region(ptx)
#include "ptx_sm80.cuh"
#include "ptx_kron.cuh"
// splat:end

typedef long long sp_i64;

// splat:region(ptx_sm90)
#include "ptx_sm90.cuh"
// splat:end

// splat:region(common)
#include "kron_common.cuh"
// splat:end

// ---- Sizes ----

constexpr int GROUPS = ROW_GROUPS * COL_GROUPS * RUN_GROUPS;
constexpr int THREADS = 128 * (GROUPS + 1); // the producer is the first warpgroup
constexpr int MINE = RUN / RUN_GROUPS;      // matrices of a warpgroup
constexpr int COL_BLOCKS = GROUP_COLS / 8;
constexpr int TILE_ROWS = 64 * ROW_GROUPS * ROW_BLOCKS, TILE_COLS = COL_GROUPS * GROUP_COLS;
constexpr bool SAMPLES_LEFT = LEFT != WEIGHTS_LEFT;
constexpr bool IN_REGISTERS = LEFT == SAMPLES_IN_RUNS || LEFT == SAMPLES_IN_LINES;
constexpr int TILE_SAMPLES = SAMPLES_LEFT ? TILE_ROWS : TILE_COLS, TILE_OUTPUTS = SAMPLES_LEFT ? TILE_COLS : TILE_ROWS;
constexpr int K_TILES = (DEPTH + K_TILE - 1) / K_TILE;
constexpr int K_STEP = 32 / ELEMENT; // depth of one product
constexpr int STEPS = ((K_TILES == 1 ? DEPTH : K_TILE) + K_STEP - 1) / K_STEP;
constexpr int LINE = 128 / ELEMENT; // elements of a panel's row

// Panels of samples in a tile, and bytes of their rows.
//   contiguous along samples   a panel has K_TILE rows of 128 bytes of samples
//   otherwise                  a panel has TILE_SAMPLES rows, of up to 128 bytes along the depth and the run; where the run is
//                              not whole, of the run's matrices at every k
constexpr bool SAMPLES_CONTIGUOUS = LEFT == WEIGHTS_LEFT || LEFT == SAMPLES_IN_LINES;
constexpr int SAMPLE_BYTES = K_TILE * RUN * ELEMENT; // of a sample in a step
constexpr int SPAN = SAMPLES_CONTIGUOUS || SAMPLE_BYTES > 128 ? 128 : SAMPLE_BYTES;
constexpr int SAMPLE_PANELS = SAMPLES_CONTIGUOUS ? TILE_SAMPLES / LINE : WHOLE_RUN ? SAMPLE_BYTES / SPAN : 1;
constexpr int SAMPLE_TILE_BYTES = TILE_SAMPLES * SAMPLE_BYTES;
constexpr int SAMPLE_PANEL_BYTES = SAMPLE_TILE_BYTES / SAMPLE_PANELS;

// Panels of weights: for each matrix rows of outputs, up to 128 bytes along the depth; or rows of the depth, 128 bytes along
// outputs.
constexpr int WEIGHT_SPAN = !WEIGHTS_ALONG_K || K_TILE * ELEMENT > 128 ? 128 : K_TILE * ELEMENT;
constexpr int WEIGHT_ROWS = WEIGHTS_ALONG_K ? TILE_OUTPUTS : K_TILE; // of a matrix
constexpr int WEIGHT_PANELS = WEIGHTS_ALONG_K ? K_TILE * ELEMENT / WEIGHT_SPAN : (TILE_OUTPUTS + LINE - 1) / LINE;
constexpr int WEIGHT_PANEL_BYTES = RUN * WEIGHT_ROWS * WEIGHT_SPAN;
constexpr int WEIGHT_TILE_BYTES = WEIGHT_PANELS * WEIGHT_PANEL_BYTES;

// Where things lie, from the first multiple of 1024 in shared memory.
constexpr int STAGE_BYTES = SAMPLE_TILE_BYTES + (KEEP ? 0 : WEIGHT_TILE_BYTES);
constexpr int KEPT_OFFSET = STAGES * STAGE_BYTES;
constexpr int KEPT_BYTES = KEEP * WEIGHT_TILE_BYTES;
constexpr int STAGING_OFFSET = KEPT_OFFSET + KEPT_UNITS * KEPT_BYTES; // results of 8 outputs on their way
constexpr int BARRIER_OFFSET = STAGING_OFFSET + (RUN_GROUPS > 1 ? TILE_ROWS * 8 * RUN * ELEMENT : 0);

// Barriers: a step has landed or been used; the weights that stay have.
enum Barrier {
    FULL,
    EMPTY = FULL + STAGES,
    KEPT_FULL = EMPTY + STAGES,
    KEPT_EMPTY = KEPT_FULL + KEPT_UNITS,
    BARRIERS = KEPT_EMPTY + KEPT_UNITS
};

static_assert(SHARED_BYTES == BARRIER_OFFSET + 8 * BARRIERS + 1024, "host and kernel agree on the shared memory");
static_assert(RUN % RUN_GROUPS == 0 && GROUP_COLS % 8 == 0 && GROUP_COLS <= 256 && STAGES >= 2, "sizes");
static_assert(K_TILE % K_STEP == 0 && SAMPLE_TILE_BYTES % 1024 == 0 && WEIGHT_TILE_BYTES % 1024 == 0, "sizes");
static_assert(WEIGHTS_ALONG_K || (ELEMENT == 2 && (COL_GROUPS == 1 || !SAMPLES_LEFT)), "products of 32 bits run along k");
static_assert(LEFT != WEIGHTS_LEFT || (ELEMENT == 2 && (COL_GROUPS == 1 || GROUP_COLS % LINE == 0)), "whole panels");
static_assert(IN_REGISTERS || RUN == 1, "runs are taken apart in registers");
static_assert(MINE * ELEMENT <= 16 && (RUN_GROUPS == 1 || (RUN_GROUPS == 2 && MINE * ELEMENT == 16)), "chunks of results");
static_assert(LEFT != SAMPLES_IN_LINES || (ROW_BLOCKS == 2 && ELEMENT == 4), "a thread's four rows are four samples");

struct alignas(64) TensorMap {
    char bytes[128];
};

struct TensorMaps {
    TensorMap samples, weights;
};

using Block = float[COL_BLOCKS][4]; // 64 rows
using Sums = Block[MINE][ROW_BLOCKS];
using Fragments = unsigned[MINE][ROW_BLOCKS][4];

// splat:region(wgmma)
#include "wgmma_default_kron.cuh"
// splat:end

__device__ __forceinline__ unsigned tiles_base()
{
    return (shared_base() + 1023) & ~1023u;
}

__device__ __forceinline__ unsigned barrier_at(unsigned shared, int number)
{
    return shared + BARRIER_OFFSET + 8 * number;
}

__device__ __forceinline__ int warp_of_block()
{
    return warp_uniform(static_cast<int>(threadIdx.x) / 32);
}

// ---- Work ----

// A tile of a block: unit counts the runs that the block's team takes. Teams take turns at runs whose samples share sectors, side
// by side on the chip.
struct Item {
    int unit, samples, outputs; // of them, the number of the tile
    int i, j;                   // the block of the matrix, and the run's first matrix
};

struct Work {
    int team, left; // items still to do
    Item item;
};

__device__ __forceinline__ void find_matrices(const sp_kron_hopper_args &args, Work &work)
{
    const int number = work.item.unit * args.teams + work.team;
    work.item.i = number / args.runs;
    work.item.j = number % args.runs * RUN;
}

// The block's share of its team's tiles.
__device__ __forceinline__ Work first_work(const sp_kron_hopper_args &args)
{
    const int block = static_cast<int>(block_index());
    const int part = block / args.teams, parts = grid_size() / args.teams;
    const sp_i64 items = sp_i64(args.units) * args.sample_tiles * args.output_tiles;
    const sp_i64 begin = items * part / parts, end = items * (part + 1) / parts;
    Work work;
    work.team = block % args.teams;
    work.left = static_cast<int>(end - begin);
    work.item.outputs = static_cast<int>(begin % args.output_tiles);
    const sp_i64 rest = begin / args.output_tiles;
    work.item.samples = static_cast<int>(rest % args.sample_tiles);
    work.item.unit = static_cast<int>(rest / args.sample_tiles);
    find_matrices(args, work);
    return work;
}

__device__ __forceinline__ void next_work(const sp_kron_hopper_args &args, Work &work)
{
    --work.left;
    if (++work.item.outputs < args.output_tiles)
        return;
    work.item.outputs = 0;
    if (++work.item.samples < args.sample_tiles)
        return;
    work.item.samples = 0;
    ++work.item.unit;
    find_matrices(args, work);
}

// A place in the ring of stages, or of units whose weights stay, and the parity of its barriers.
struct Ring {
    int slot, parity;
};

template <int SLOTS> __device__ __forceinline__ void advance(Ring &ring)
{
    if (++ring.slot == SLOTS) {
        ring.slot = 0;
        ring.parity ^= 1;
    }
}

// ---- Producer ----

__device__ __forceinline__ void copy_samples(unsigned to, const TensorMaps &maps, unsigned barrier, const Item &item, int k)
{
    const int sample = item.samples * TILE_SAMPLES;
#pragma unroll
    for (int p = 0; p < SAMPLE_PANELS; ++p) {
        const unsigned panel = to + p * SAMPLE_PANEL_BYTES;
        if constexpr (SAMPLES_CONTIGUOUS)
            copy_tensor(panel, &maps.samples, barrier, sample + p * LINE, k, item.j, item.i, 0);
        else if constexpr (WHOLE_RUN)
            copy_tensor(panel, &maps.samples, barrier, k * RUN + p * (SPAN / ELEMENT), sample, item.i, 0, 0);
        else
            copy_tensor(panel, &maps.samples, barrier, item.j, k, sample, item.i, 0);
    }
}

__device__ __forceinline__ void copy_weights(unsigned to, const TensorMaps &maps, unsigned barrier, const Item &item,
                                             int outputs, int k)
{
#pragma unroll
    for (int p = 0; p < WEIGHT_PANELS; ++p) {
        const unsigned panel = to + p * WEIGHT_PANEL_BYTES;
        if constexpr (WEIGHTS_ALONG_K)
            copy_tensor(panel, &maps.weights, barrier, k + p * (WEIGHT_SPAN / ELEMENT), outputs, item.j, item.i, 0);
        else
            copy_tensor(panel, &maps.weights, barrier, outputs + p * LINE, k, item.j, item.i, 0);
    }
}

__device__ __forceinline__ void produce(const sp_kron_hopper_args &args, const TensorMaps &maps, unsigned shared)
{
    Ring ring = {0, 1}, kept = {0, 1};
    int unit = -1;
#pragma unroll 1
    for (Work work = first_work(args); work.left > 0; next_work(args, work)) {
        if (KEEP && work.item.unit != unit) {
            unit = work.item.unit;
            const unsigned full = barrier_at(shared, KEPT_FULL + kept.slot);
            barrier_wait(barrier_at(shared, KEPT_EMPTY + kept.slot), kept.parity);
            barrier_expect(full, KEPT_BYTES);
#pragma unroll 1
            for (int tile = 0; tile < KEEP; ++tile)
                copy_weights(shared + KEPT_OFFSET + kept.slot * KEPT_BYTES + tile * WEIGHT_TILE_BYTES, maps, full, work.item,
                             tile / K_TILES * TILE_OUTPUTS, tile % K_TILES * K_TILE);
            advance<KEPT_UNITS>(kept);
        }
#pragma unroll 1
        for (int k = 0; k < K_TILES; ++k) {
            const unsigned full = barrier_at(shared, FULL + ring.slot), stage = shared + ring.slot * STAGE_BYTES;
            barrier_wait(barrier_at(shared, EMPTY + ring.slot), ring.parity);
            barrier_expect(full, STAGE_BYTES);
            copy_samples(stage, maps, full, work.item, k * K_TILE);
            if (!KEEP)
                copy_weights(stage + SAMPLE_TILE_BYTES, maps, full, work.item, work.item.outputs * TILE_OUTPUTS, k * K_TILE);
            advance<STAGES>(ring);
        }
    }
}

// ---- Products ----

// Of a consumer's thread: its warpgroup's place in the tile, and its own in the warpgroup.
struct Lane {
    int row, col, run; // of the group: its first
    int warp, g, t;
};

__device__ __forceinline__ Lane this_lane(int group)
{
    const int thread = static_cast<int>(thread_index());
    return {group % ROW_GROUPS * (64 * ROW_BLOCKS), group / ROW_GROUPS % COL_GROUPS * GROUP_COLS,
            group / (ROW_GROUPS * COL_GROUPS) * MINE, thread / 32 % 4, thread % 32 / 4, thread % 4};
}

// A matrix in shared memory that is contiguous along k, rows of BYTES bytes swizzled over as many.
template <int BYTES> __device__ __forceinline__ sp_i64 matrix_along_k(unsigned address)
{
    constexpr int MODE = BYTES == 128 ? 1 : BYTES == 64 ? 2 : 3;
    return sp_i64((address & 0x3ffffu) >> 4) | sp_i64(1) << 16 | sp_i64(8 * BYTES >> 4) << 32 | sp_i64(MODE) << 62;
}

// The weights of matrix j from an output on, at a step of the depth.
__device__ __forceinline__ sp_i64 weights_at(unsigned weights, int j, int output, int step)
{
    if constexpr (WEIGHTS_ALONG_K)
        return matrix_along_k<WEIGHT_SPAN>(weights + (j * WEIGHT_ROWS + output) * WEIGHT_SPAN +
                                           32 * step / WEIGHT_SPAN * WEIGHT_PANEL_BYTES + 32 * step % WEIGHT_SPAN);
    else
        return matrix_mn_major(weights + j * WEIGHT_ROWS * 128 + output / LINE * WEIGHT_PANEL_BYTES + step * 2048,
                               RUN * WEIGHT_ROWS);
}

// Samples from one on, where products take them from shared memory.
__device__ __forceinline__ sp_i64 samples_at(unsigned samples, int sample, int step)
{
    if constexpr (SAMPLES_CONTIGUOUS)
        return matrix_mn_major(samples + sample / LINE * SAMPLE_PANEL_BYTES + step * 2048, K_TILE);
    else
        return matrix_along_k<SPAN>(samples + sample * SPAN + 32 * step / SPAN * SAMPLE_PANEL_BYTES + 32 * step % SPAN);
}

// Which of eight samples is row g of a fragment: such that lanes which load together meet no bank conflict.
__device__ __forceinline__ int sample_of_row(int g)
{
    return MINE * ELEMENT == 4 ? (g & 3) << 1 | g >> 2 : (g & 1) << 2 | g >> 1;
}

// Where the run's group of matrices is, at k of a sample.
__device__ __forceinline__ unsigned run_address(unsigned samples, int sample, int k, int run)
{
    const int at = (k * RUN + run) * ELEMENT;
    if constexpr (WHOLE_RUN)
        return samples + at / SPAN * SAMPLE_PANEL_BYTES + sample * SPAN + (at % SPAN ^ sample * SPAN / 128 % (SPAN / 16) * 16);
    const unsigned address = samples + sample * SAMPLE_BYTES + at;
    return address ^ (address >> 7 & unsigned(RUN * ELEMENT / 16 - 1)) << 4;
}

// The pair (k, k + 1) of a sample for each of the group's matrices.
__device__ __forceinline__ void load_pairs(unsigned (&pairs)[MINE], unsigned samples, int sample, int k, int run)
{
    constexpr int HALF = MINE > 1 ? MINE / 2 : 1;
    unsigned words[2 * HALF];
    if constexpr (MINE == RUN && MINE * 4 <= 16) {
        load_words<2 * HALF>(words, run_address(samples, sample, k, run));
    } else {
        load_words<HALF>(words, run_address(samples, sample, k, run));
        load_words<HALF>(words + HALF, run_address(samples, sample, k + 1, run));
    }
#pragma unroll
    for (int j = 0; j < MINE; ++j) {
        const unsigned low = words[j / 2], high = words[HALF + j / 2];
        pairs[j] = j % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
    }
}

__device__ __forceinline__ void load_runs(Fragments &a, unsigned samples, int step, const Lane &lane)
{
#pragma unroll
    for (int block = 0; block < ROW_BLOCKS; ++block)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int sample = lane.row + 64 * block + 16 * lane.warp + r % 2 * 8 + sample_of_row(lane.g);
            unsigned values[MINE];
            if constexpr (ELEMENT == 2) {
                load_pairs(values, samples, sample, step * K_STEP + r / 2 * 8 + 2 * lane.t, lane.run);
            } else {
                load_words<MINE>(values, run_address(samples, sample, step * K_STEP + r / 2 * 4 + lane.t, lane.run));
#pragma unroll
                for (int j = 0; j < MINE; ++j)
                    values[j] = round_tf32(values[j]);
            }
#pragma unroll
            for (int j = 0; j < MINE; ++j)
                a[j][block][r] = values[j];
        }
}

// The four samples of a thread are neighbours: its two rows in each of two blocks.
__device__ __forceinline__ int first_sample(const Lane &lane)
{
    return lane.row + 32 * lane.warp + 4 * sample_of_row(lane.g);
}

__device__ __forceinline__ void load_lines(Fragments &a, unsigned samples, int step, const Lane &lane)
{
    const int sample = first_sample(lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int k = step * K_STEP + 4 * half + lane.t;
        const Chunk chunk = load_shared_chunk(samples + sample / LINE * SAMPLE_PANEL_BYTES + k * 128 +
                                              (sample % LINE / 4 ^ k % 8) * 16);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            a[0][e / 2 % ROW_BLOCKS][e % 2 + 2 * half] = round_tf32(chunk.word[e]);
    }
}

__device__ __forceinline__ void load_fragments(Fragments &a, unsigned samples, int step, const Lane &lane)
{
    if constexpr (LEFT == SAMPLES_IN_LINES)
        load_lines(a, samples, step, lane);
    else
        load_runs(a, samples, step, lane);
}

// Starts the products of a tile of the depth; `add` to what the sums are. Those from registers are over when it returns, but for the
// last two steps' at most. A template, for wgmma_step has one of two forms.
template <class S> __device__ __forceinline__ void multiply_tile(S &sums, unsigned samples, unsigned weights, bool add, const Lane &lane)
{
    if constexpr (IN_REGISTERS) {
        Fragments a[2];
        load_fragments(a[0], samples, 0, lane);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < MINE; ++j)
#pragma unroll
                for (int block = 0; block < ROW_BLOCKS; ++block)
                    wgmma_step(sums[j][block], a[step % 2][j][block], weights_at(weights, lane.run + j, lane.col, step),
                               add || step > 0);
            wgmma_commit();
            if (step + 1 < STEPS) {
                wgmma_wait<1>();
                load_fragments(a[(step + 1) % 2], samples, step + 1, lane);
            }
        }
        wgmma_wait<0>();
    } else {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int block = 0; block < ROW_BLOCKS; ++block) {
                const int row = lane.row + 64 * block;
                if constexpr (SAMPLES_LEFT)
                    wgmma_step(sums[0][block], samples_at(samples, row, step), weights_at(weights, 0, lane.col, step),
                               add || step > 0);
                else
                    wgmma_step(sums[0][block], weights_at(weights, 0, row, step), samples_at(samples, lane.col, step),
                               add || step > 0);
            }
        wgmma_commit();
    }
}

__device__ __forceinline__ void hold_all(Sums &sums)
{
#pragma unroll
    for (int j = 0; j < MINE; ++j)
#pragma unroll
        for (int block = 0; block < ROW_BLOCKS; ++block)
#pragma unroll
            for (int n = 0; n < COL_BLOCKS; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    hold(sums[j][block][n][e]);
}

// ---- Results ----

// Where the tile's results go: the address of its first matrix, sample and output, and what there is from there on.
struct Target {
    char *corner;
    const char *bias;
    int samples, outputs, matrices;
};

__device__ __forceinline__ Target target_of(const sp_kron_hopper_args &args, const Item &item)
{
    const int sample = item.samples * TILE_SAMPLES, output = item.outputs * TILE_OUTPUTS;
    const sp_i64 feature = item.i * args.bias_block + output * args.bias_step + item.j;
    Target to;
    to.corner = static_cast<char *>(args.out) + (feature * args.out_feature + sample * args.out_sample) * OUT_BYTES;
    to.bias = args.bias ? static_cast<const char *>(args.bias) + feature * ELEMENT : nullptr;
    to.samples = args.samples - sample;
    to.outputs = args.outputs - output;
    to.matrices = args.matrices - item.j;
    return to;
}

__device__ __forceinline__ void add_bias(Sums &sums, const Target &to, const sp_kron_hopper_args &args, const Lane &lane)
{
    if constexpr (SAMPLES_LEFT) {
#pragma unroll
        for (int n = 0; n < 2 * COL_BLOCKS; ++n) {
            const int output = lane.col + n / 2 * 8 + 2 * lane.t + n % 2;
            const char *mine = settle(to.bias + (output * args.bias_step + lane.run) * ELEMENT);
#pragma unroll
            for (int j = 0; j < MINE; ++j) {
                const float value = output < to.outputs && lane.run + j < to.matrices ? load_bias(mine + j * ELEMENT) : 0.0f;
#pragma unroll
                for (int x = 0; x < 2 * ROW_BLOCKS; ++x)
                    sums[j][x / 2][n / 2][x % 2 * 2 + n % 2] += value;
            }
        }
    } else {
#pragma unroll
        for (int x = 0; x < 2 * ROW_BLOCKS; ++x) {
            const int output = lane.row + 64 * (x / 2) + 16 * lane.warp + 8 * (x % 2) + lane.g;
            const float value = output < to.outputs ? load_bias(to.bias + output * args.bias_step * ELEMENT) : 0.0f;
#pragma unroll
            for (int n = 0; n < 2 * COL_BLOCKS; ++n)
                sums[0][x / 2][n / 2][x % 2 * 2 + n % 2] += value;
        }
    }
}

// Columns of a row lie side by side.
__device__ __forceinline__ void store_rows(const Sums &sums, const Target &to, const sp_kron_hopper_args &args, const Lane &lane)
{
    constexpr int WIDE = OUT_32 ? 0 : COL_BLOCKS / 4 * 4; // blocks whose words lanes trade
    const int rows = SAMPLES_LEFT ? to.samples : to.outputs, cols = SAMPLES_LEFT ? to.outputs : to.samples;
    const sp_i64 stride = (SAMPLES_LEFT ? args.out_sample : args.out_feature * args.bias_step) * OUT_BYTES;
#pragma unroll
    for (int x = 0; x < 2 * ROW_BLOCKS; ++x) {
        const int row = lane.row + 64 * (x / 2) + 16 * lane.warp + 8 * (x % 2) + lane.g;
        char *line = to.corner + row * stride;
#pragma unroll
        for (int n = 0; n < WIDE; n += 4) {
            const Chunk chunk = gather_row(sums[0][x / 2], n, x % 2, lane.t);
            const int col = lane.col + 8 * n + 8 * lane.t;
            if (row < rows && args.out_vector && col + 8 <= cols) {
                *reinterpret_cast<Chunk *>(line + col * OUT_BYTES) = chunk;
            } else if (row < rows) {
#pragma unroll
                for (int e = 0; e < 8; ++e)
                    if (col + e < cols)
                        *reinterpret_cast<unsigned short *>(line + (col + e) * OUT_BYTES) =
                            static_cast<unsigned short>(chunk.word[e / 2] >> e % 2 * 16);
            }
        }
#pragma unroll
        for (int n = WIDE; n < COL_BLOCKS; ++n) {
            const int col = lane.col + 8 * n + 2 * lane.t;
            const float values[2] = {sums[0][x / 2][n][x % 2 * 2], sums[0][x / 2][n][x % 2 * 2 + 1]};
            if (row < rows)
                store_elements(line + col * OUT_BYTES, values, cols - col, args.out_vector);
        }
    }
}

// A thread's four samples lie side by side.
__device__ __forceinline__ void store_lines(const Sums &sums, const Target &to, const sp_kron_hopper_args &args, const Lane &lane)
{
    const int sample = first_sample(lane);
    const sp_i64 stride = args.out_feature * args.bias_step * OUT_BYTES;
    char *corner = to.corner + (lane.col + 2 * lane.t) * stride + sample * OUT_BYTES;
#pragma unroll
    for (int n = 0; n < 2 * COL_BLOCKS; ++n) {
        const int past = n / 2 * 8 + n % 2;
        float values[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            values[e] = sums[0][e / 2 % ROW_BLOCKS][n / 2][e % 2 * 2 + n % 2];
        if (lane.col + 2 * lane.t + past < to.outputs)
            store_elements(corner + past * stride, values, to.samples - sample, args.out_vector);
    }
}

// A sector of 32 bytes is stored at once: half a sector costs as much.

// Lanes of even and odd t trade a chunk, so that each pair stores 32 bytes in a row: its own first outputs, then its second ones.
__device__ __forceinline__ void trade(float (&first)[MINE], float (&second)[MINE], const Lane &lane)
{
    const bool odd = lane.t % 2 != 0;
#pragma unroll
    for (int j = 0; j < MINE; ++j) {
        const float given = shuffle_xor(odd ? first[j] : second[j], 1);
        if (odd)
            first[j] = given;
        else
            second[j] = given;
    }
}

// The matrices of a run lie side by side, and behind them, where the run is whole, those of the next output.
__device__ __forceinline__ void store_runs(const Sums &sums, const Target &to, const sp_kron_hopper_args &args, const Lane &lane)
{
    constexpr bool TOGETHER = 2 * MINE * OUT_BYTES <= 16; // two outputs are a chunk or less
#pragma unroll
    for (int x = 0; x < 2 * ROW_BLOCKS; ++x) {
        const int sample = lane.row + 64 * (x / 2) + 16 * lane.warp + x % 2 * 8 + sample_of_row(lane.g);
        const int output = lane.col + (TOGETHER ? 2 * lane.t : lane.t / 2 * 4 + lane.t % 2);
        const char *corner = settle(to.corner + (sample * args.out_sample + output * args.bias_step) * OUT_BYTES);
#pragma unroll
        for (int n = 0; n < COL_BLOCKS; ++n) {
            float values[2][MINE];
#pragma unroll
            for (int v = 0; v < 2 * MINE; ++v)
                values[v / MINE][v % MINE] = sums[v % MINE][x / 2][n][x % 2 * 2 + v / MINE];
            char *at = const_cast<char *>(corner) + 8 * n * args.bias_step * OUT_BYTES;
            const int outputs = to.outputs - output - 8 * n;
            if constexpr (TOGETHER) {
                float both[2 * MINE];
#pragma unroll
                for (int v = 0; v < 2 * MINE; ++v)
                    both[v] = values[v / MINE][v % MINE];
                if (sample < to.samples)
                    store_elements(at, both, outputs * MINE, args.out_vector);
            } else {
                trade(values[0], values[1], lane);
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (sample < to.samples && 2 * e < outputs)
                        store_elements(at + 2 * e * args.bias_step * OUT_BYTES, values[e], MINE, args.out_vector);
            }
        }
    }
}

// Where a chunk of a sample's results is staged; two of each output, for the two warpgroups.
__device__ __forceinline__ unsigned staged_at(unsigned staging, int sample, int chunk)
{
    return staging + sample * 256 + (chunk ^ chunk >> 3 ^ (sample & 1) << 1) * 16;
}

// The same where two warpgroups have halves of the run: by way of shared memory, 8 outputs at a time.
__device__ __forceinline__ void store_staged(const Sums &sums, const Target &to, const sp_kron_hopper_args &args, const Lane &lane,
                                             unsigned staging)
{
    const int thread = static_cast<int>(thread_index()) - 128;
#pragma unroll
    for (int n = 0; n < COL_BLOCKS; ++n) {
        named_sync(1, 128 * GROUPS); // what was staged before is stored
#pragma unroll
        for (int x = 0; x < 4 * ROW_BLOCKS; ++x) {
            const int half = x / 2 % 2, e = x % 2;
            const int sample = lane.row + 64 * (x / 4) + 16 * lane.warp + half * 8 + sample_of_row(lane.g);
            Chunk chunk;
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                if constexpr (OUT_32)
                    chunk.word[w] = static_cast<unsigned>(__float_as_int(sums[w % MINE][x / 4][n][2 * half + e]));
                else
                    chunk.word[w] = pack(sums[2 * w % MINE][x / 4][n][2 * half + e], sums[(2 * w + 1) % MINE][x / 4][n][2 * half + e]);
            }
            store_shared_chunk(staged_at(staging, sample, 2 * (2 * lane.t + e) + lane.run / MINE), chunk);
        }
        named_sync(1, 128 * GROUPS);
#pragma unroll
        for (int at = 0; at < TILE_ROWS * 16; at += 128 * GROUPS) {
            const int sample = (at + thread) / 16, number = (at + thread) % 16, output = 8 * n + number / 2;
            const Chunk chunk = load_shared_chunk(staged_at(staging, sample, number));
            if (sample >= to.samples || output >= to.outputs)
                continue;
            char *out = to.corner + (sample * args.out_sample + output * args.bias_step + number % 2 * MINE) * OUT_BYTES;
            if (args.out_vector) {
                *reinterpret_cast<Chunk *>(out) = chunk;
                continue;
            }
#pragma unroll
            for (int e = 0; e < MINE; ++e) {
                if constexpr (OUT_32)
                    reinterpret_cast<unsigned *>(out)[e] = chunk.word[e % 4];
                else
                    reinterpret_cast<unsigned short *>(out)[e] = static_cast<unsigned short>(chunk.word[e / 2] >> e % 2 * 16);
            }
        }
    }
}

// ---- Consumer ----

// Each warp says for itself that it is done.
__device__ __forceinline__ void release(unsigned barrier)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

__device__ __forceinline__ void consume(const sp_kron_hopper_args &args, unsigned shared, int group)
{
    Ring ring = {0, 0}, kept = {0, 0};
    int unit = -1;
#pragma unroll 1
    for (Work work = first_work(args); work.left > 0; next_work(args, work)) {
        if (KEEP && work.item.unit != unit) {
            if (unit >= 0) {
                release(barrier_at(shared, KEPT_EMPTY + kept.slot));
                advance<KEPT_UNITS>(kept);
            }
            unit = work.item.unit;
            barrier_wait(barrier_at(shared, KEPT_FULL + kept.slot), kept.parity);
        }
        Sums sums;
#pragma unroll 1
        for (int k = 0; k < K_TILES; ++k) {
            const unsigned samples = shared + ring.slot * STAGE_BYTES;
            const unsigned weights = KEEP ? shared + KEPT_OFFSET + kept.slot * KEPT_BYTES +
                                                (work.item.outputs * K_TILES + k) * WEIGHT_TILE_BYTES
                                          : samples + SAMPLE_TILE_BYTES;
            barrier_wait(barrier_at(shared, FULL + ring.slot), ring.parity);
            multiply_tile(sums, samples, weights, k > 0, this_lane(group));
            if constexpr (IN_REGISTERS) {
                warp_barrier(); // all lanes have loaded their fragments
                release(barrier_at(shared, EMPTY + ring.slot));
            } else if (k > 0) {
                wgmma_wait<1>();
                release(barrier_at(shared, EMPTY + (ring.slot ? ring.slot - 1 : STAGES - 1)));
            }
            advance<STAGES>(ring);
        }
        wgmma_wait<0>();
        if constexpr (!IN_REGISTERS)
            release(barrier_at(shared, EMPTY + (ring.slot ? ring.slot - 1 : STAGES - 1)));
        hold_all(sums);
        const Target to = target_of(args, work.item);
        const Lane lane = this_lane(group);
        if (to.bias)
            add_bias(sums, to, args, lane);
        if constexpr (RUN_GROUPS > 1)
            store_staged(sums, to, args, lane, shared + STAGING_OFFSET);
        else if constexpr (LEFT == SAMPLES_IN_RUNS)
            store_runs(sums, to, args, lane);
        else if constexpr (LEFT == SAMPLES_IN_LINES)
            store_lines(sums, to, args, lane);
        else
            store_rows(sums, to, args, lane);
    }
}

// ---- The kernel ----

__device__ __forceinline__ void init_barriers(unsigned shared)
{
    for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(barrier_at(shared, FULL + stage), 1);
        barrier_init(barrier_at(shared, EMPTY + stage), 4 * GROUPS);
    }
    for (int unit = 0; unit < KEPT_UNITS; ++unit) {
        barrier_init(barrier_at(shared, KEPT_FULL + unit), 1);
        barrier_init(barrier_at(shared, KEPT_EMPTY + unit), 4 * GROUPS);
    }
    barrier_init_fence();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    splat_kron_hopper(const __grid_constant__ sp_kron_hopper_args args, const __grid_constant__ TensorMaps maps)
{
    if (threadIdx.x == 0) {
        init_barriers(tiles_base());
        prefetch_map(&maps.samples);
        prefetch_map(&maps.weights);
    }
    block_barrier();
    if (warp_of_block() < 4) {
        registers_down_to<PRODUCER_REGISTERS>();
        if (warp_of_block() == 0 && elect_lane())
            produce(args, maps, tiles_base());
    } else {
        registers_up_to<CONSUMER_REGISTERS>();
        consume(args, tiles_base(), warp_of_block() / 4 - 1);
    }
}
