// Products of a Kronecker-sparse layer whose matrices are too small for tiles (radix-2 butterflies): each thread takes 16
// bytes of neighbours, consecutive matrices (batch first) or samples (batch last), and computes all outputs from all
// inputs of these in fp32. Every input is read once and every output stored once.
//
// Takes struct sp_kron_args: left are the weights, `rows` outputs by `depth` inputs; right the activations, `cols`
// samples; args.runs counts, over all blocks, runs of WIDTH matrices (batch first) or matrices (batch last).

// splat:region(params)
constexpr int ELEMENT = 2;        // bytes of an element
constexpr bool IS_BF16 = true;    // 16-bit elements are bf16; false: fp16
constexpr int ROWS = 2;           // outputs of a matrix
constexpr int DEPTH = 2;          // inputs
constexpr bool MATRICES = true;   // 16 bytes hold consecutive matrices; false: consecutive samples
// splat:end

// splat:region(kron_args)
#include "../src/codegen/kron_args.h"
// splat:end

// splat:region(ptx)
#include "ptx_sm80.cuh"
#include "ptx_kron.cuh"
// splat:end

constexpr int THREADS = 256, WIDTH = 16 / ELEMENT;
constexpr int WEIGHTS = MATRICES ? WIDTH : 1; // of each output and input

__device__ __forceinline__ float load_element(const char *data, sp_kron_i64 index)
{
    if constexpr (ELEMENT == 4)
        return reinterpret_cast<const float *>(data)[index];
    const unsigned bits = reinterpret_cast<const unsigned short *>(data)[index];
    return IS_BF16 ? __int_as_float(static_cast<int>(bits << 16)) : unpack_f16(bits, 0);
}

// WIDTH neighbours, the first `present` of them.
__device__ __forceinline__ void load_chunk(float (&to)[WIDTH], const char *data, sp_kron_i64 index, int present,
                                           bool vector)
{
    if (vector && present == WIDTH) {
        const Chunk c = *reinterpret_cast<const Chunk *>(data + index * ELEMENT);
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) {
            const unsigned word = c.word[e * ELEMENT / 4];
            if constexpr (ELEMENT == 4)
                to[e] = __int_as_float(static_cast<int>(word));
            else
                to[e] = IS_BF16 ? __int_as_float(static_cast<int>(e % 2 ? word & 0xffff0000u : word << 16))
                                : unpack_f16(word, e % 2);
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
        to[e] = e < present ? load_element(data, index + e) : 0.0f;
}

__device__ __forceinline__ unsigned pack(float low, float high)
{
    return IS_BF16 ? pack_bf16(low, high) : pack_f16(low, high);
}

__device__ __forceinline__ void store_chunk(char *data, sp_kron_i64 index, const float (&from)[WIDTH], int present,
                                            bool vector)
{
    if (vector && present == WIDTH) {
        Chunk c;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if constexpr (ELEMENT == 4)
                c.word[w] = static_cast<unsigned>(__float_as_int(from[w]));
            else
                c.word[w] = pack(from[2 * w % WIDTH], from[(2 * w + 1) % WIDTH]);
        }
        *reinterpret_cast<Chunk *>(data + index * ELEMENT) = c;
        return;
    }
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
        if (e < present) {
            if constexpr (ELEMENT == 4)
                reinterpret_cast<float *>(data)[index + e] = from[e];
            else
                reinterpret_cast<unsigned short *>(data)[index + e] =
                    static_cast<unsigned short>(pack(from[e], from[e]));
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) splat_kron_small(const sp_kron_args args)
{
    const char *left = static_cast<const char *>(args.left.data), *right = static_cast<const char *>(args.right.data);
    const int index = static_cast<int>(block_index()), thread = static_cast<int>(threadIdx.x);
    // Batch first: a thread's run of matrices is its own and it walks over samples; batch last: a thread block's matrix
    // is its own and each thread walks over chunks of samples.
    const int run = MATRICES ? index % args.row_blocks * THREADS + thread : index % args.row_blocks;
    const int start = MATRICES ? index / args.row_blocks : index / args.row_blocks * THREADS + thread;
    const int step = MATRICES ? args.col_blocks : args.col_blocks * THREADS;
    const int runs_a_block = MATRICES ? args.matrices / WIDTH : args.matrices;
    if (run >= args.runs)
        return;
    const int block = run / runs_a_block, matrix = run % runs_a_block * WEIGHTS;

    float weights[ROWS][DEPTH][WEIGHTS], bias[ROWS][WEIGHTS];
#pragma unroll
    for (int e = 0; e < WEIGHTS; ++e)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int k = 0; k < DEPTH; ++k)
                weights[r][k][e] =
                    load_element(left, block * args.left.block + (matrix + e) * args.left.matrix + r * args.left.row +
                                           k * args.left.k);
            bias[r][e] = args.bias ? load_element(static_cast<const char *>(args.bias),
                                                  block * args.bias_block + (matrix + e) * args.bias_matrix +
                                                      r * args.bias_step)
                                   : 0.0f;
        }
    right += (block * args.right.block + matrix * args.right.matrix) * ELEMENT;
    char *out = static_cast<char *>(args.out) + (block * args.out_block + matrix * args.out_matrix) * ELEMENT;

    const int last = MATRICES ? args.cols : (args.cols + WIDTH - 1) / WIDTH;
#pragma unroll 2
    for (int at = start; at < last; at += step) {
        const sp_kron_i64 sample = MATRICES ? at : static_cast<sp_kron_i64>(at) * WIDTH;
        const int left_over = args.cols - static_cast<int>(sample);
        const int present = MATRICES || left_over > WIDTH ? WIDTH : left_over;
        float sums[ROWS][WIDTH];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int e = 0; e < WIDTH; ++e)
                sums[r][e] = bias[r][e % WEIGHTS];
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            float x[WIDTH];
            load_chunk(x, right, sample * args.right.row + k * args.right.k, present, args.right_vector);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int e = 0; e < WIDTH; ++e)
                    sums[r][e] += weights[r][k][e % WEIGHTS] * x[e];
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            store_chunk(out, sample * args.out_col + r * args.out_row, sums[r], present, args.out_vector);
    }
}
