// Products of a Kronecker-sparse layer: out = left x right^T for many small matrices that lie in each other's gaps.
//
// Takes the parameters (params_default_kron.cuh says what they mean) and struct sp_kron_args. A thread block computes
// tiles of RUN consecutive matrices j of one block i at once. Where d > 1 and activations are batch-first, elements of
// consecutive matrices lie side by side in memory: a run of RUN of them is what 16 bytes hold, and is loaded, kept in
// shared memory and stored as it lies; only the fragments of a product take it apart. Otherwise RUN is 1 (or the
// operand keeps each matrix of the run by itself).
//
// Keeps true: every element is read from global memory once a tile and stored once; rows, columns, depth and matrices
// beyond the end are zeros in shared memory and are not stored; sums run over k in ascending steps, so results repeat
// bit for bit. Where 16-byte accesses are impossible (odd strides, odd d), the operand's tile is filled element by
// element into the same layout.

// splat:region(params)
#include "params_default_kron.cuh"
// splat:end

// splat:region(kron_args)
#include "../src/codegen/kron_args.h"
// splat:end

// splat:region(ptx)
#include "ptx_sm80.cuh"
#include "ptx_kron.cuh"
// splat:end

// splat:region(common)
#include "kron_common.cuh"
// splat:end

constexpr int WARPS = ROW_WARPS * COL_WARPS * RUN_WARPS, THREADS = 32 * WARPS;
constexpr int MINE = RUN / RUN_WARPS; // matrices of a warp
constexpr int BLOCK_ROWS = ROW_WARPS * ROW_TILES * 16, BLOCK_COLS = COL_WARPS * COL_TILES * 8;
constexpr int PER_CHUNK = 16 / ELEMENT;
constexpr int K_STEP = ELEMENT == 2 ? 16 : 8; // depth of one matrix instruction
constexpr bool FP32 = ELEMENT == 4 && !TF32; // no matrix instruction: each thread multiplies on its own

// ---- Shared memory ----

// A tile of an operand: lines of 16-byte chunks.
//   ALONG_K        a line for each matrix and row, elements along k
//   ALONG_ROW      a line for each matrix and k, elements along rows
//   RUN_ALONG_K    a line for each row; along it k, and at each k the run's matrices
//   RUN_ALONG_ROW  a line for each k; along it rows, and at each row the run's matrices
// The pitch of lines keeps the lanes of a load in different banks.
template <Along ALONG, int ROWS> struct Tile {
    static constexpr bool IN_RUNS = ALONG == RUN_ALONG_K || ALONG == RUN_ALONG_ROW;
    static constexpr bool K_INSIDE = ALONG == ALONG_K || ALONG == RUN_ALONG_K;
    static constexpr int LINES = K_INSIDE ? ROWS : K_TILE; // a matrix
    static constexpr int INSIDE = K_INSIDE ? K_TILE : ROWS;
    static constexpr int ALL_LINES = IN_RUNS ? LINES : LINES * RUN;
    static constexpr int CHUNKS = INSIDE * (IN_RUNS ? RUN : 1) / PER_CHUNK; // a line
    static constexpr int AT_ONCE = RUN * ELEMENT * (ELEMENT == 2 ? 2 : 1);  // bytes that a lane loads along k
    static constexpr int RESIDUE = ALONG == ALONG_K || (FP32 && K_INSIDE) ? 1
                                   : ALONG != RUN_ALONG_K ? (ELEMENT == 2 ? 1 : 2)
                                   : AT_ONCE == 32        ? 1
                                   : AT_ONCE == 16        ? 4
                                                          : 2;
    static constexpr int STEP = RESIDUE == 1 ? 2 : 8; // pitches are RESIDUE modulo STEP
    static constexpr int PITCH = 16 * (CHUNKS + (RESIDUE + 2 * STEP - CHUNKS % STEP) % STEP);
    static constexpr int BYTES = ALL_LINES * PITCH;
};

using LeftTile = Tile<LEFT, BLOCK_ROWS>;
using RightTile = Tile<RIGHT, BLOCK_COLS>;
constexpr int LEFT_SLOTS = KEEP_LEFT ? KEEP_LEFT : STAGES, RIGHT_SLOTS = KEEP_RIGHT ? KEEP_RIGHT : STAGES;
constexpr int STAGING_OFFSET = LEFT_SLOTS * LeftTile::BYTES + RIGHT_SLOTS * RightTile::BYTES;
constexpr int STAGED_COL = 12; // words that 8 rows of a column take, so that lanes meet no bank conflict
constexpr int STAGED_WORDS = BLOCK_COLS * ROW_WARPS * STAGED_COL; // of a matrix
static_assert(SHARED_BYTES == STAGING_OFFSET + (RUN_WARPS > 1 ? 4 * RUN * STAGED_WORDS : 0), "shared memory");
constexpr bool ROWS_MOVE = !BIAS_ROWS; // a thread block goes along rows, the right operand its own; else along columns
static_assert(K_TILE % (FP32 ? 8 : 16) == 0 && COL_TILES % 2 == 0 && STAGES >= 2, "sizes");
static_assert(RUN_WARPS == 1 ? RUN * ELEMENT <= 16 : FP32 && MINE == 1 && OUT_RUN, "a run is a chunk, or each warp has one of its matrices");

// What there is of an operand from the tile's corner on.
struct Left {
    int rows, k, matrices;
};

// A tile whose corner is at `from`, element by element.
template <Along ALONG, int ROWS>
__device__ __forceinline__ void copy_elements(unsigned to, const sp_kron_operand &x, const char *from, Left left)
{
    using T = Tile<ALONG, ROWS>;
    const int lines_left = T::K_INSIDE ? left.rows : left.k, inside_left = T::K_INSIDE ? left.k : left.rows;
    const sp_kron_i64 line_stride = T::K_INSIDE ? x.row : x.k, inside_stride = T::K_INSIDE ? x.k : x.row;
#pragma unroll 1
    for (int number = static_cast<int>(threadIdx.x); number < T::ALL_LINES * T::CHUNKS; number += THREADS) {
        const int any_line = number / T::CHUNKS, chunk = number % T::CHUNKS, line = any_line % T::LINES;
        Chunk c = {};
#pragma unroll
        for (int e = 0; e < PER_CHUNK; ++e) {
            const int at = chunk * PER_CHUNK + e;
            const int inside = T::IN_RUNS ? at / RUN : at, matrix = T::IN_RUNS ? at % RUN : any_line / T::LINES;
            if (line < lines_left && inside < inside_left && matrix < left.matrices)
                c.word[e * ELEMENT / 4] |=
                    load_element(from + (line * line_stride + inside * inside_stride + matrix * x.matrix) * ELEMENT)
                    << e * ELEMENT % 4 * 8;
        }
        store_shared_chunk(to + any_line * T::PITCH + 16 * chunk, c);
    }
}

// Starts to copy a tile whose corner is at `from`, if need be at once.
template <Along ALONG, int ROWS>
__device__ __forceinline__ void copy_tile(unsigned to, const sp_kron_operand &x, const char *from, Left left,
                                          bool vector)
{
    using T = Tile<ALONG, ROWS>;
    if (!vector) {
        copy_elements<ALONG, ROWS>(to, x, from, left);
        return;
    }
    constexpr int COUNT = T::ALL_LINES * T::CHUNKS, ROUNDS = (COUNT + THREADS - 1) / THREADS;
    const int lines_left = T::K_INSIDE ? left.rows : left.k, inside_left = T::K_INSIDE ? left.k : left.rows;
    const sp_kron_i64 line_stride = T::K_INSIDE ? x.row : x.k, inside_stride = T::K_INSIDE ? x.k : x.row;
    const int thread = static_cast<int>(thread_index()); // so that addresses are not kept between steps
    if constexpr (THREADS % T::CHUNKS == 0 && T::ALL_LINES == T::LINES) {
        // A thread's chunks lie below each other: what follows from the first is worked out once.
        constexpr int STEP = THREADS / T::CHUNKS; // lines
        const int chunk = thread % T::CHUNKS, first = chunk * PER_CHUNK;
        const int inside = T::IN_RUNS ? inside_left * RUN - first : inside_left - first;
        const int bytes = smaller(inside > 0 ? inside : 0, PER_CHUNK) * ELEMENT;
        int line = thread / T::CHUNKS;
        const char *source =
            from + (line * line_stride + (T::IN_RUNS ? first / RUN * inside_stride + first % RUN : first)) * ELEMENT;
        unsigned address = to + line * T::PITCH + 16 * chunk;
#pragma unroll 2
        for (int round = 0; round < ROUNDS; ++round) {
            if (COUNT % THREADS != 0 && line >= T::LINES)
                break;
            const bool present = line < lines_left && bytes > 0;
            copy_async_part(address, present ? source : from, present ? bytes : 0);
            line += STEP;
            address += STEP * T::PITCH;
            source += STEP * line_stride * ELEMENT;
        }
    } else {
#pragma unroll 2
        for (int round = 0; round < ROUNDS; ++round) {
            const int at = round * THREADS + thread;
            if (COUNT % THREADS != 0 && at >= COUNT)
                break;
            const int chunk = at % T::CHUNKS, any_line = at / T::CHUNKS;
            const int j = any_line / T::LINES, line = any_line % T::LINES;
            const unsigned address = to + any_line * T::PITCH + 16 * chunk;
            const int first = chunk * PER_CHUNK;
            int present = T::IN_RUNS ? inside_left * RUN - first : inside_left - first;
            present = line < lines_left && (T::IN_RUNS || j < left.matrices) ? smaller(present > 0 ? present : 0, PER_CHUNK) : 0;
            const sp_kron_i64 offset =
                line * line_stride + (T::IN_RUNS ? first / RUN * inside_stride + first % RUN : j * x.matrix + first);
            copy_async_part(address, present ? from + offset * ELEMENT : from, present * ELEMENT);
        }
    }
}

// ---- Fragments ----

// Where the element (matrix, row, k) of a tile is; of a tile in runs, where the run is.
template <Along ALONG, int ROWS> __device__ __forceinline__ unsigned place(unsigned tile, int j, int row, int k)
{
    using T = Tile<ALONG, ROWS>;
    const int line = T::K_INSIDE ? row : k, inside = T::K_INSIDE ? k : row;
    return T::IN_RUNS ? tile + line * T::PITCH + inside * RUN * ELEMENT
                      : tile + (j * T::LINES + line) * T::PITCH + inside * ELEMENT;
}

// The pair (k, k + 1) of a row, for each matrix of the run: 16-bit elements, k even.
template <Along ALONG, int ROWS>
__device__ __forceinline__ void load_pairs(unsigned (&pairs)[RUN], unsigned tile, int row, int k)
{
    constexpr int HALF = RUN > 1 ? RUN / 2 : 1;
    unsigned words[2 * HALF];
    if constexpr (ALONG == RUN_ALONG_K) {
        load_words<2 * HALF>(words, place<ALONG, ROWS>(tile, 0, row, k));
    } else {
        load_words<HALF>(words, place<ALONG, ROWS>(tile, 0, row, k));
        load_words<HALF>(words + HALF, place<ALONG, ROWS>(tile, 0, row, k + 1));
    }
#pragma unroll
    for (int j = 0; j < RUN; ++j) {
        const unsigned low = words[j / 2], high = words[HALF + j / 2];
        pairs[j] = j % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
    }
}

// The element (row, k) of each matrix of the run: 32-bit elements.
template <Along ALONG, int ROWS>
__device__ __forceinline__ void load_singles(unsigned (&values)[RUN], unsigned tile, int row, int k)
{
    if constexpr (Tile<ALONG, ROWS>::IN_RUNS) {
        load_words<RUN>(values, place<ALONG, ROWS>(tile, 0, row, k));
    } else {
#pragma unroll
        for (int j = 0; j < RUN; ++j)
            values[j] = load_shared_u32(place<ALONG, ROWS>(tile, j, row, k));
    }
}

using Sums = float[MINE][ROW_TILES][COL_TILES][4];

// ---- Products ----

struct Lane {
    int number, g, t;
    int row, col, run; // of the warp in the block's tile: its first
};

// Worked out where it is needed: kept between, it would take registers from copies.
__device__ __forceinline__ Lane this_lane()
{
    const int thread = static_cast<int>(thread_index()), warp = thread / 32, number = thread % 32;
    const int in_matrix = warp % (ROW_WARPS * COL_WARPS);
    return {number, number / 4, number % 4, in_matrix / COL_WARPS * ROW_TILES * 16, in_matrix % COL_WARPS * COL_TILES * 8,
            warp / (ROW_WARPS * COL_WARPS) * MINE};
}

// Left fragments of matrix j alone, where each matrix lies by itself.
__device__ __forceinline__ void load_left_matrix(unsigned (&a)[4], unsigned tile, int j, int row, int k, Lane lane)
{
    const int n = lane.number;
    if constexpr (ELEMENT == 4) {
#pragma unroll
        for (int r = 0; r < 4; ++r)
            a[r] = round_tf32(load_shared_u32(
                place<LEFT, BLOCK_ROWS>(tile, j, row + lane.g + r % 2 * 8, k + lane.t + r / 2 * 4)));
    } else if constexpr (LEFT == ALONG_K)
        ldmatrix_x4(a, place<LEFT, BLOCK_ROWS>(tile, j, row + n % 16, k + n / 16 * 8));
    else
        ldmatrix_x4_trans(a, place<LEFT, BLOCK_ROWS>(tile, j, row + n / 8 % 2 * 8, k + n / 16 * 8 + n % 8));
}

// Right fragments of two column tiles of matrix j.
__device__ __forceinline__ void load_right_matrix(unsigned (&b)[4], unsigned tile, int j, int col, int k, Lane lane)
{
    const int n = lane.number;
    if constexpr (ELEMENT == 4) {
#pragma unroll
        for (int r = 0; r < 4; ++r)
            b[r] = round_tf32(load_shared_u32(
                place<RIGHT, BLOCK_COLS>(tile, j, col + lane.g + r / 2 * 8, k + lane.t + r % 2 * 4)));
    } else if constexpr (RIGHT == ALONG_K)
        ldmatrix_x4(b, place<RIGHT, BLOCK_COLS>(tile, j, col + n / 16 * 8 + n % 8, k + n / 8 % 2 * 8));
    else
        ldmatrix_x4_trans(b, place<RIGHT, BLOCK_COLS>(tile, j, col + n / 16 * 8, k + n % 16));
}

__device__ __forceinline__ void multiply_16(Sums &sums, const unsigned (&a)[4], const unsigned (&b)[COL_TILES][2], int j,
                                            int row_tile)
{
#pragma unroll
    for (int n = 0; n < COL_TILES; ++n) {
        if constexpr (ELEMENT == 4)
            mma_16x8x8_tf32(sums[j][row_tile][n], a, b[n][0], b[n][1]);
        else if constexpr (IS_BF16)
            mma_16x8x16_bf16(sums[j][row_tile][n], a, b[n][0], b[n][1]);
        else
            mma_16x8x16_f16(sums[j][row_tile][n], a, b[n][0], b[n][1]);
    }
}

// One fragment register of each matrix of a run: row g for even registers of the left operand, g + 8 for odd ones; the second half of
// the depth from register 2 on.
template <Along ALONG, int ROWS>
__device__ __forceinline__ void load_run(unsigned (&values)[RUN], unsigned tile, int row, int k, int half, Lane lane)
{
    if constexpr (ELEMENT == 2) {
        load_pairs<ALONG, ROWS>(values, tile, row, k + 2 * lane.t + 8 * half);
    } else {
        load_singles<ALONG, ROWS>(values, tile, row, k + lane.t + 4 * half);
#pragma unroll
        for (int j = 0; j < RUN; ++j)
            values[j] = round_tf32(values[j]);
    }
}

__device__ __forceinline__ void multiply_step(Sums &sums, unsigned left, unsigned right, int k, Lane lane)
{
    unsigned b[RUN][COL_TILES][2];
    if constexpr (RightTile::IN_RUNS) {
#pragma unroll
        for (int n = 0; n < COL_TILES; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                unsigned values[RUN];
                load_run<RIGHT, BLOCK_COLS>(values, right, lane.col + 8 * n + lane.g, k, half, lane);
#pragma unroll
                for (int j = 0; j < RUN; ++j)
                    b[j][n][half] = values[j];
            }
    } else {
#pragma unroll
        for (int j = 0; j < RUN; ++j)
#pragma unroll
            for (int n = 0; n < COL_TILES; n += 2) {
                unsigned two[4];
                load_right_matrix(two, right, j, lane.col + 8 * n, k, lane);
                b[j][n][0] = two[0], b[j][n][1] = two[1], b[j][n + 1][0] = two[2], b[j][n + 1][1] = two[3];
            }
    }
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) {
        if constexpr (!LeftTile::IN_RUNS) {
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                unsigned a[4];
                load_left_matrix(a, left, j, lane.row + 16 * m, k, lane);
                multiply_16(sums, a, b[j], j, m);
            }
        } else {
            unsigned a[RUN][4];
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                unsigned values[RUN];
                load_run<LEFT, BLOCK_ROWS>(values, left, lane.row + 16 * m + lane.g + r % 2 * 8, k, r / 2, lane);
#pragma unroll
                for (int j = 0; j < RUN; ++j)
                    a[j][r] = values[j];
            }
#pragma unroll
            for (int j = 0; j < RUN; ++j)
                multiply_16(sums, a[j], b[j], j, m);
        }
    }
}

// ---- Products in fp32 ----
//
// Each thread has the sums that it would have of a matrix instruction; but columns that are contiguous in shared memory come four at a
// time, the blocks of two in turn. Numbers that are contiguous along k are loaded four at a time.

constexpr bool QUADS = FP32 && RIGHT == ALONG_ROW; // of columns
static_assert(!QUADS || RUN == 1, "runs are loaded by themselves");
constexpr int THREAD_ROWS = 2 * ROW_TILES, THREAD_COLS = 2 * COL_TILES;

// The columns of a thread, from its warp's first: block n of two.
__device__ __forceinline__ int column_of(int n, int t)
{
    return QUADS ? n / 2 * 16 + 4 * t + n % 2 * 2 : 8 * n + 2 * t;
}

__device__ __forceinline__ float &sum_of(Sums &sums, int j, int row, int col)
{
    return sums[j][row / 2][col / 2][row % 2 * 2 + col % 2];
}

__device__ __forceinline__ float as_float(unsigned bits)
{
    return __int_as_float(static_cast<int>(bits));
}

constexpr int FOUR = 4; // k, of the left operand in registers
using LeftFour = unsigned[MINE][THREAD_ROWS][FOUR];

// The element (row, k) of each of the warp's matrices.
template <Along ALONG, int ROWS>
__device__ __forceinline__ void load_mine(unsigned (&values)[MINE], unsigned tile, int row, int k, Lane lane)
{
    if constexpr (RUN_WARPS == 1)
        load_singles<ALONG, ROWS>(values, tile, row, k);
    else
        values[0] = load_shared_u32(place<ALONG, ROWS>(tile, lane.run, row, k) + (Tile<ALONG, ROWS>::IN_RUNS ? 4 * lane.run : 0));
}

__device__ __forceinline__ void load_left_four(LeftFour &a, unsigned left, int k, Lane lane)
{
#pragma unroll
    for (int row = 0; row < THREAD_ROWS; ++row) {
        const int at = lane.row + 8 * row + lane.g;
        if constexpr (LEFT == ALONG_K) {
#pragma unroll
            for (int j = 0; j < MINE; ++j)
                load_words<FOUR>(a[j][row], place<LEFT, BLOCK_ROWS>(left, lane.run + j, at, k));
        } else {
#pragma unroll
            for (int e = 0; e < FOUR; ++e) {
                unsigned values[MINE];
                load_mine<LEFT, BLOCK_ROWS>(values, left, at, k + e, lane);
#pragma unroll
                for (int j = 0; j < MINE; ++j)
                    a[j][row][e] = values[j];
            }
        }
    }
}

// The right operand's column by column, each as soon as it is there.
__device__ __forceinline__ void multiply_four(Sums &sums, unsigned left, unsigned right, int k, Lane lane)
{
    LeftFour a;
    load_left_four(a, left, k, lane);
    if constexpr (RIGHT == ALONG_K) {
#pragma unroll
        for (int col = 0; col < THREAD_COLS; ++col) {
            unsigned b[FOUR];
            load_words<FOUR>(b, place<RIGHT, BLOCK_COLS>(right, 0, lane.col + column_of(col / 2, lane.t) + col % 2, k));
#pragma unroll
            for (int e = 0; e < FOUR; ++e)
#pragma unroll
                for (int row = 0; row < THREAD_ROWS; ++row)
                    sum_of(sums, 0, row, col) += as_float(a[0][row][e]) * as_float(b[e]);
        }
    } else {
        constexpr int WIDE = QUADS ? 4 : 1; // columns of a load
#pragma unroll
        for (int e = 0; e < FOUR; ++e)
#pragma unroll
            for (int col = 0; col < THREAD_COLS; col += WIDE) {
                const int at = lane.col + column_of(col / 2, lane.t) + col % 2;
                unsigned b[WIDE * MINE];
                if constexpr (QUADS) {
                    load_words<WIDE>(b, place<RIGHT, BLOCK_COLS>(right, 0, at, k + e));
                } else {
                    unsigned values[MINE];
                    load_mine<RIGHT, BLOCK_COLS>(values, right, at, k + e, lane);
#pragma unroll
                    for (int j = 0; j < MINE; ++j)
                        b[j] = values[j];
                }
#pragma unroll
                for (int row = 0; row < THREAD_ROWS; ++row)
#pragma unroll
                    for (int x = 0; x < WIDE * MINE; ++x)
                        sum_of(sums, QUADS ? 0 : x, row, QUADS ? col + x : col) +=
                            as_float(a[QUADS ? 0 : x][row][e]) * as_float(b[x]);
            }
    }
}

__device__ __forceinline__ void multiply_tile(Sums &sums, unsigned left, unsigned right)
{
    const Lane lane = this_lane();
    if constexpr (FP32) {
#pragma unroll 1
        for (int k = 0; k < K_TILE; k += FOUR)
            multiply_four(sums, left, right, k, lane);
    } else {
#pragma unroll 1
        for (int k = 0; k < K_TILE; k += K_STEP)
            multiply_step(sums, left, right, k, lane);
    }
}

// ---- Results ----

// Where the tile's results go: the address of its corner, and what there is from there on.
struct Target {
    char *corner;
    int rows, cols, matrices;
};

// A run's results lie side by side.
__device__ __forceinline__ void store_runs(const Sums &sums, const Target &to, const sp_kron_args &args, Lane lane)
{
    const sp_kron_i64 col_bytes = args.out_col * OUT_BYTES;
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = lane.row + 16 * m + 8 * half + lane.g, col = lane.col + column_of(0, lane.t);
            // Worked out here and not before, so that it takes no registers from the products.
            const char *corner = settle(to.corner + (row * args.out_row + col * args.out_col) * OUT_BYTES);
#pragma unroll
            for (int n = 0; n < COL_TILES; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float values[MINE];
#pragma unroll
                    for (int j = 0; j < MINE; ++j)
                        values[j] = sums[j][m][n][2 * half + e];
                    if (row < to.rows && col + 8 * n + e < to.cols)
                        store_elements(const_cast<char *>(corner) + (8 * n + e) * col_bytes, values, to.matrices,
                                       args.out_vector);
                }
        }
}

// The same where each warp has one matrix of the run: by way of shared memory, 8 rows at a time.
__device__ __forceinline__ void store_staged(const Sums &sums, const Target &to, const sp_kron_args &args, Lane lane, unsigned staging)
{
    constexpr int PIECE = RUN < 4 ? RUN : 4; // matrices that a lane stores together
    constexpr int PIECES = RUN / PIECE * 8 * ROW_WARPS * BLOCK_COLS;
    const int first = lane.row / (16 * ROW_TILES) * BLOCK_COLS, thread = static_cast<int>(thread_index());
#pragma unroll
    for (int row = 0; row < THREAD_ROWS; ++row) {
        block_barrier(); // what was staged before is stored
#pragma unroll
        for (int n = 0; n < 2 * COL_TILES; ++n) {
            const int col = lane.col + column_of(n / 2, lane.t) + n % 2;
            store_shared_u32(staging + 4 * (lane.run * STAGED_WORDS + (first + col) * STAGED_COL + lane.g),
                             static_cast<unsigned>(__float_as_int(sums[0][row / 2][n / 2][row % 2 * 2 + n % 2])));
        }
        block_barrier();
#pragma unroll 4
        for (int at = thread; at < PIECES; at += THREADS) {
            const int j = at % (RUN / PIECE) * PIECE, g = at / (RUN / PIECE) % 8, column = at / (RUN / PIECE * 8);
            const int warp = column / BLOCK_COLS, col = column % BLOCK_COLS, out_row = warp * 16 * ROW_TILES + 8 * row + g;
            float values[PIECE];
#pragma unroll
            for (int e = 0; e < PIECE; ++e)
                values[e] = as_float(load_shared_u32(staging + 4 * ((j + e) * STAGED_WORDS + column * STAGED_COL + g)));
            if (out_row < to.rows && col < to.cols)
                store_elements(to.corner + (out_row * args.out_row + col * args.out_col + j) * OUT_BYTES, values, to.matrices - j,
                               args.out_vector);
        }
    }
}

// A row's results lie side by side.
__device__ __forceinline__ void store_rows(const Sums &sums, const Target &to, const sp_kron_args &args, Lane lane)
{
    constexpr bool WIDE = !OUT_32 && COL_TILES % 4 == 0;
#pragma unroll
    for (int j = 0; j < MINE; ++j)
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = lane.row + 16 * m + 8 * half + lane.g;
                char *line = to.corner + (row * args.out_row + j * args.out_matrix) * OUT_BYTES;
                const bool present = row < to.rows && j < to.matrices;
                if constexpr (WIDE) {
#pragma unroll
                    for (int n = 0; n < COL_TILES; n += 4) {
                        const Chunk chunk = gather_row(sums[j][m], n, half, lane.t);
                        const int col = lane.col + 8 * n + 8 * lane.t;
                        if (present && args.out_vector && col + 8 <= to.cols) {
                            *reinterpret_cast<Chunk *>(line + col * OUT_BYTES) = chunk;
                        } else if (present) {
#pragma unroll
                            for (int e = 0; e < 8; ++e)
                                if (col + e < to.cols)
                                    *reinterpret_cast<unsigned short *>(line + (col + e) * OUT_BYTES) =
                                        static_cast<unsigned short>(chunk.word[e / 2] >> e % 2 * 16);
                        }
                    }
                } else {
                    constexpr int WIDE_BLOCKS = QUADS ? 2 : 1;
#pragma unroll
                    for (int n = 0; n < COL_TILES; n += WIDE_BLOCKS) {
                        const int col = lane.col + column_of(n, lane.t);
                        float values[2 * WIDE_BLOCKS];
#pragma unroll
                        for (int e = 0; e < 2 * WIDE_BLOCKS; ++e)
                            values[e] = sums[j][m][n + e / 2][2 * half + e % 2];
                        if (present)
                            store_elements(line + col * OUT_BYTES, values, to.cols - col, args.out_vector);
                    }
                }
            }
}

// `bias` is that of the tile's corner.
__device__ __forceinline__ void add_bias(Sums &sums, const Target &to, const sp_kron_args &args, const char *bias,
                                         Lane lane)
{
#pragma unroll
    for (int x = 0; x < 2 * (BIAS_ROWS ? ROW_TILES : COL_TILES); ++x) {
        const int at = BIAS_ROWS ? lane.row + 8 * x + lane.g : lane.col + column_of(x / 2, lane.t) + x % 2;
        const char *mine = settle(bias + at * args.bias_step * ELEMENT);
#pragma unroll
        for (int j = 0; j < MINE; ++j) {
            if (lane.run + j >= to.matrices || at >= (BIAS_ROWS ? to.rows : to.cols))
                continue;
            const float value = load_bias(mine + (lane.run + j) * args.bias_matrix * ELEMENT);
#pragma unroll
            for (int y = 0; y < 2 * (BIAS_ROWS ? COL_TILES : ROW_TILES); ++y) {
                if constexpr (BIAS_ROWS)
                    sums[j][x / 2][y / 2][x % 2 * 2 + y % 2] += value;
                else
                    sums[j][y / 2][x / 2][y % 2 * 2 + x % 2] += value;
            }
        }
    }
}

// ---- The kernel ----

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) splat_kron(const sp_kron_args args)
{
    // Runs that share sectors, then tiles that share an operand, are neighbours.
    int index = static_cast<int>(block_index());
    const int run = index % args.runs;
    index /= args.runs;
    const int first = ROWS_MOVE ? args.col_blocks : args.row_blocks;
    const int one = index % first;
    index /= first;
    const int second = ROWS_MOVE ? args.row_blocks : args.col_blocks;
    const int other = index % second;
    index /= second;
    const int row_block = ROWS_MOVE ? other : one, col_block = ROWS_MOVE ? one : other;
    const int split = index % args.splits, block = index / args.splits;

    const int k_begin = split * args.split_depth;
    const int depth = smaller(args.depth - k_begin, args.split_depth), k_tiles = (depth + K_TILE - 1) / K_TILE;
    const int row_step = args.row_blocks * BLOCK_ROWS, col_step = args.col_blocks * BLOCK_COLS;
    const int matrices = smaller(args.matrices - run * RUN, RUN);
    const char *left_data = static_cast<const char *>(args.left.data) +
                            (block * args.left.block + run * RUN * args.left.matrix) * ELEMENT;
    const char *right_data = static_cast<const char *>(args.right.data) +
                             (block * args.right.block + run * RUN * args.right.matrix) * ELEMENT;
    const unsigned left_shared = shared_base(), right_shared = left_shared + LEFT_SLOTS * LeftTile::BYTES;

    // Copies of the step after those under way. Rows and columns go from tile to tile; only one of them has several.
    int copy_row = row_block * BLOCK_ROWS, copy_col = col_block * BLOCK_COLS, copy_k = 0, copy_slot = 0;
    bool first_tile = true;
    const auto copy_next = [&]() {
        if (copy_row < args.rows && copy_col < args.cols) {
            const int k = k_begin + copy_k * K_TILE, k_left = depth - copy_k * K_TILE;
            if (!KEEP_LEFT || first_tile)
                copy_tile<LEFT, BLOCK_ROWS>(
                    left_shared + (KEEP_LEFT ? copy_k : copy_slot) * LeftTile::BYTES, args.left,
                    left_data + (copy_row * args.left.row + k * args.left.k) * ELEMENT,
                    {args.rows - copy_row, k_left, matrices}, args.left_vector);
            if (!KEEP_RIGHT || first_tile)
                copy_tile<RIGHT, BLOCK_COLS>(
                    right_shared + (KEEP_RIGHT ? copy_k : copy_slot) * RightTile::BYTES, args.right,
                    right_data + (copy_col * args.right.row + k * args.right.k) * ELEMENT,
                    {args.cols - copy_col, k_left, matrices}, args.right_vector);
            copy_slot = copy_slot + 1 == STAGES ? 0 : copy_slot + 1;
            if (++copy_k == k_tiles) {
                copy_k = 0;
                first_tile = false;
                if (ROWS_MOVE)
                    copy_row += row_step;
                else
                    copy_col += col_step;
            }
        }
        copy_commit();
    };
#pragma unroll
    for (int s = 0; s + 1 < STAGES; ++s)
        copy_next();

    int slot = 0;
    for (int row = row_block * BLOCK_ROWS, col = col_block * BLOCK_COLS; row < args.rows && col < args.cols;) {
        Sums sums = {};
        for (int k = 0; k < k_tiles; ++k) {
            copy_wait<STAGES - 2>();
            block_barrier();
            copy_next(); // into what everyone has done with
            multiply_tile(sums, left_shared + (KEEP_LEFT ? k : slot) * LeftTile::BYTES,
                          right_shared + (KEEP_RIGHT ? k : slot) * RightTile::BYTES);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        const Lane lane = this_lane();
        const Target to = {static_cast<char *>(args.out) +
                               (block * args.out_block + run * RUN * args.out_matrix + split * args.out_split +
                                row * args.out_row + col * args.out_col) *
                                   OUT_BYTES,
                           args.rows - row, args.cols - col, matrices};
        if (args.bias)
            add_bias(sums, to, args,
                     static_cast<const char *>(args.bias) + (block * args.bias_block + run * RUN * args.bias_matrix +
                                                             (BIAS_ROWS ? row : col) * args.bias_step) *
                                                                ELEMENT,
                     lane);
        if constexpr (RUN_WARPS > 1)
            store_staged(sums, to, args, lane, left_shared + STAGING_OFFSET);
        else if constexpr (OUT_RUN)
            store_runs(sums, to, args, lane);
        else
            store_rows(sums, to, args, lane);
        if (ROWS_MOVE)
            row += row_step;
        else
            col += col_step;
    }
    copy_wait<0>();
}
