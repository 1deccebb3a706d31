// Softmax of rows of values: results = softmax(scale * values) in each row, and its log-sum-exp.
//
// Takes struct sp_sparse_args: values, results (which may be the same array), the offsets of rows, lse or null. Keeps true: the sum
// is of exp(scale * (value - maximum)) in fp32; a row whose values are all -inf becomes zeros, with lse = -inf; nothing but the row's own
// values is read or written.
//
// A warp takes a row. Its lanes take chunks of 16 bytes in turn, as they lie in memory; those at the ends, which hold values of other
// rows, go element by element. The first HELD of a lane stay in its registers, others are read three times.

// splat:region(params)
#include "params_default_softmax.cuh"
// splat:end

// splat:region(launch_args)
#include "../src/codegen/launch_args.h"
// splat:end

// splat:region(sparse_args)
#include "../src/codegen/sparse_args.h"
// splat:end

// splat:region(ptx)
#include "ptx_sm80.cuh"
// splat:end

// splat:region(element)
#include "element_common.cuh"
// splat:end

constexpr int THREADS = 32 * WARPS;
constexpr int HELD = 4;

// A row: values [first, end) of its matrix, counted from the chunk that holds the first.
struct Row {
    const char *from;
    char *to;
    int first, end;
};

__device__ __forceinline__ bool is_whole(const Row &row, int chunk)
{
    return 8 * chunk >= row.first && 8 * chunk + 8 <= row.end;
}

// -inf stands for values that are not there: it takes part in nothing.
__device__ __forceinline__ Chunk load_chunk(const Row &row, int chunk)
{
    Chunk c;
    if (is_whole(row, chunk)) {
        c = *reinterpret_cast<const Chunk *>(row.from + 16 * chunk);
    } else {
#pragma unroll
        for (int w = 0; w < 4; ++w)
            c.word[w] = (0x8000u | EXPONENT) * 0x10001u; // -inf
        if (8 * chunk < row.end)
#pragma unroll
            for (int x = 0; x < 8; ++x)
                if (8 * chunk + x >= row.first && 8 * chunk + x < row.end) {
                    const unsigned value = reinterpret_cast<const unsigned short *>(row.from)[8 * chunk + x];
                    c.word[x / 2] = x % 2 ? (c.word[x / 2] & 0xffffu) | value << 16 : (c.word[x / 2] & 0xffff0000u) | value;
                }
    }
    return c;
}

__device__ __forceinline__ void store_chunk(const Row &row, int chunk, const Chunk &c)
{
    if (is_whole(row, chunk)) {
        *reinterpret_cast<Chunk *>(row.to + 16 * chunk) = c;
    } else if (8 * chunk < row.end) {
#pragma unroll
        for (int x = 0; x < 8; ++x)
            if (8 * chunk + x >= row.first && 8 * chunk + x < row.end)
                reinterpret_cast<unsigned short *>(row.to)[8 * chunk + x] =
                    static_cast<unsigned short>(c.word[x / 2] >> (16 * (x % 2)));
    }
}

// Calls visit(chunk number, chunk) for each of the lane's chunks; those held are at hand.
template <class Visit> __device__ __forceinline__ void for_chunks(const Row &row, Chunk (&held)[HELD], Visit visit)
{
    int chunk = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int k = 0; k < HELD; ++k, chunk += 32)
        visit(chunk, held[k]);
#pragma unroll 1
    for (; 8 * chunk < row.end; chunk += 32) {
        Chunk c = load_chunk(row, chunk);
        visit(chunk, c);
    }
}

__device__ __forceinline__ const sp_i64 *row_offsets_of(const sp_sparse_args &args, int pair)
{
    sp_i64 mask = 0;
    if constexpr (MASK_MAP) {
        const int map_batch = args.plan.map_batch == 1 ? 0 : pair / args.plan.heads;
        const int map_head = args.plan.map_heads == 1 ? 0 : pair % args.plan.heads;
        mask = static_cast<const int *>(args.plan.map)[sp_i64(map_batch) * args.plan.map_heads + map_head];
    }
    return args.row_offsets + mask * (args.value_rows + 1);
}

// Grid: ceil(rows / WARPS) * batch * heads blocks. Block: THREADS.
extern "C" __global__ void __launch_bounds__(THREADS) splat_softmax(const __grid_constant__ sp_sparse_args args)
{
    const int row_blocks = (args.value_rows + WARPS - 1) / WARPS;
    const int block = static_cast<int>(block_index()), pair = block / row_blocks;
    const int i = block % row_blocks * WARPS + static_cast<int>(threadIdx.x) / 32;
    if (i >= args.value_rows)
        return;
    const int batch = pair / args.plan.heads, head = pair % args.plan.heads;
    const sp_i64 *offsets = row_offsets_of(args, pair);
    const sp_i64 begin = offsets[i], end = offsets[i + 1];
    Row row;
    row.from = static_cast<const char *>(args.values) +
               2 * (batch * args.values_batch + head * args.values_head + begin / 8 * 8);
    row.to = static_cast<char *>(args.results) +
             2 * (batch * args.results_batch + head * args.results_head + begin / 8 * 8);
    row.first = static_cast<int>(begin % 8);
    row.end = row.first + static_cast<int>(end - begin);

    Chunk held[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k)
        held[k] = load_chunk(row, static_cast<int>(threadIdx.x) % 32 + 32 * k);
    float top = -infinity();
    for_chunks(row, held, [&](int, Chunk &c) {
#pragma unroll
        for (int x = 0; x < 8; ++x)
            top = fmaxf(top, unpack(c.word[x / 2], x % 2));
    });
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        top = fmaxf(top, shuffle_xor(top, mask));
    const float scale = args.plan.scale_log2, bias = top == -infinity() ? 0.0f : -top * scale;
    float sum = 0.0f;
    for_chunks(row, held, [&](int, Chunk &c) {
#pragma unroll
        for (int x = 0; x < 8; ++x)
            sum += exp2_approx(fmaf(unpack(c.word[x / 2], x % 2), scale, bias));
    });
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        sum += shuffle_xor(sum, mask);
    const bool empty = sum == 0.0f;
    const float inverse = empty ? 0.0f : 1.0f / sum;
    for_chunks(row, held, [&](int chunk, Chunk &c) {
        Chunk out;
#pragma unroll
        for (int w = 0; w < 4; ++w)
            out.word[w] = pack(exp2_approx(fmaf(unpack(c.word[w], 0), scale, bias)) * inverse,
                               exp2_approx(fmaf(unpack(c.word[w], 1), scale, bias)) * inverse);
        store_chunk(row, chunk, out);
    });
    if (args.plan.lse && threadIdx.x % 32 == 0)
        args.plan.lse[batch * args.plan.lse_batch + head * args.plan.lse_head + i] =
            empty ? -infinity() : top * args.plan.scale + log2_approx(sum) * 0.693147181f;
}
