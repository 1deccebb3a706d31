// Fused attention forward: o = softmax(scale * q k^T restricted to a mask) v and its log-sum-exp, for any tile
// plan.
//
// Takes struct sp_launch_args: tensors, and the plan's row tiles, segments, predicates, tables and bitmasks. Gives
// o in the type of q, and lse when wanted. Keeps true: a key that is masked out contributes nothing, even when it
// holds NaN or inf; a row with nothing allowed gets o = 0 and lse = -inf; nothing is read or written beyond q_len
// rows and kv_len keys; a block sums its column tiles in the order of its segments, so that results repeat bit for
// bit.
//
// One block takes one row tile of one (batch, head): TILE_ROWS queries, shared evenly by its warps, 16 or 32 rows
// each. It walks the row tile's column tiles of TILE_COLS keys with the running softmax. q, one tile of k and one
// of v are in shared memory. While the block multiplies q k^T of tile t, v of tile t is on its way; during p v, k
// of tile t + 1.
//
// Rows in shared memory are an odd number of 16-byte chunks apart, so that the eight rows of a matrix lie in
// different banks at any head dim. The head dim is padded by zeros to a multiple of 16.
//
// The regions between "splat:region" and "splat:end" are replaced when src/codegen/source.c assembles a kernel;
// what stands in them here makes this file compile on its own.

// splat:region(params)
#include "params_default.cuh"
// splat:end

// splat:region(launch_args)
#include "../src/codegen/launch_args.h"
// splat:end

// splat:region(ptx)
#include "ptx_sm80.cuh"
// splat:end

// ---- Sizes ----

constexpr int THREADS = 32 * WARPS;
constexpr int WARP_ROWS = TILE_ROWS / WARPS;
constexpr int ROW_BLOCKS = WARP_ROWS / 16;          // blocks of 16 rows a warp
constexpr int COL_BLOCKS = TILE_COLS / 8;           // blocks of 8 keys a tile
constexpr int COL_PAIRS = COL_BLOCKS / 2;           // one ldmatrix of k each
constexpr int DIM_STEPS = (HEAD_DIM + 15) / 16;     // steps of q k^T
constexpr int KEY_STEPS = TILE_COLS / 16;           // steps of p v
constexpr int VALUE_BLOCKS = VALUE_DIM / 8;         // blocks of 8 columns of v and o
constexpr int VALUE_PAIRS = (VALUE_BLOCKS + 1) / 2; // one ldmatrix of v each; the last may hold one block only

// Chunks of a row, and bytes from one row in shared memory to the next.
constexpr int HEAD_CHUNKS = 2 * DIM_STEPS;
constexpr int VALUE_CHUNKS = VALUE_DIM / 8;
constexpr int K_PITCH = 16 * (HEAD_CHUNKS | 1);
constexpr int V_PITCH = 16 * (VALUE_CHUNKS | 1);
constexpr int Q_PITCH = K_PITCH > V_PITCH ? K_PITCH : V_PITCH; // o takes the place of q at the end

// ---- Where a tile's data is ----

struct MaskSource {
    unsigned address; // in shared memory
};

__device__ __forceinline__ int predicate_word(const MaskSource &source, int index)
{
    return static_cast<int>(load_shared_u32(source.address + 4 * index));
}

__device__ __forceinline__ unsigned mask_word(const MaskSource &source, int byte)
{
    return load_shared_u32(source.address + byte);
}

// Shared address of 8 columns of a key's values.
__device__ __forceinline__ unsigned value_address(unsigned v_tile, int key, int block)
{
    return v_tile + key * V_PITCH + 16 * block;
}

// splat:region(common)
#include "attention_common.cuh"
// splat:end

// ---- Shared memory ----

// Where things lie in shared memory.
constexpr int K_OFFSET = TILE_ROWS * Q_PITCH;
constexpr int V_OFFSET = K_OFFSET + TILE_COLS * K_PITCH;
constexpr int MASK_OFFSET = V_OFFSET + TILE_COLS * V_PITCH; // of the PARTIAL tile at hand
constexpr int RECORD_OFFSET = MASK_OFFSET + MASK_BYTES;
constexpr int LAYOUT_BYTES = RECORD_OFFSET + 16;

static_assert(WARP_ROWS == 16 || WARP_ROWS == 32, "a warp takes 16 or 32 rows");
static_assert(TILE_ROWS == WARP_ROWS * WARPS, "warps share the rows evenly");
static_assert(TILE_COLS == 32 || TILE_COLS == 64 || TILE_COLS == 128, "a row of a bitmask is whole words");
static_assert(HEAD_DIM % 8 == 0 && VALUE_DIM % 8 == 0, "rows are whole chunks");
static_assert(LAYOUT_BYTES == SHARED_BYTES, "host and kernel agree on the shared memory");

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    if constexpr (IS_BF16)
        mma_16x8x16_bf16(d, a, b0, b1);
    else
        mma_16x8x16_f16(d, a, b0, b1);
}

// ---- Walking the tiles ----

// The column tile at hand. Moves through the segments of a row tile in order. Registers are short, so that what is
// seldom needed is kept in shared memory, as a record: thread 0 writes it, and all may read it a barrier later.
struct Cursor {
    int segment; // the one it is in
    int left;    // tiles left in the segment, this one included
    int column;  // position of the tile's first column
    int view;    // with views: which of the column views
};

enum RecordField {
    SEGMENT_END, // the end of the row tile's segments
    TILE_CODE,   // of the tile's segment: view, step and kind
    TILE_MASK    // number of the tile's predicate, table or bitmask
};

__device__ __forceinline__ int read_record(unsigned shared, RecordField field)
{
    return static_cast<int>(load_shared_u32(shared + RECORD_OFFSET + 4 * field));
}

__device__ __forceinline__ void write_record(unsigned shared, RecordField field, int value)
{
    store_shared_u32(shared + RECORD_OFFSET + 4 * field, static_cast<unsigned>(value));
}

__device__ __forceinline__ void enter_segment(Cursor &cursor, unsigned shared, const sp_launch_args &args)
{
    const sp_segment s = static_cast<const sp_segment *>(args.segments)[cursor.segment];
    cursor.left = s.count;
    cursor.column = s.first * TILE_COLS;
    if constexpr (LATTICE)
        cursor.view = s.code >> 8;
    if constexpr (HAS_PARTIAL)
        if (threadIdx.x == 0) {
            write_record(shared, TILE_CODE, s.code);
            write_record(shared, TILE_MASK, s.predicate);
        }
}

// False when there is no further tile.
__device__ __forceinline__ bool next_tile(Cursor &cursor, unsigned shared, const sp_launch_args &args)
{
    if (--cursor.left > 0) {
        cursor.column += TILE_COLS;
        if constexpr (HAS_BITS)
            if (threadIdx.x == 0)
                write_record(shared, TILE_MASK,
                             read_record(shared, TILE_MASK) + (read_record(shared, TILE_CODE) >> 4 & 1));
        return true;
    }
    if (++cursor.segment == read_record(shared, SEGMENT_END))
        return false;
    enter_segment(cursor, shared, args);
    return true;
}

__device__ __forceinline__ const sp_launch_view &column_view(const sp_launch_args &args, const Cursor &cursor)
{
    return args.column_views[LATTICE ? cursor.view : 0];
}

// splat:region(copies)
#include "copies_sm80.cuh"
// splat:end

// Starts copying the ROWS rows of a row tile whose heads share it; `rows` is query 0 of the pair's first head.
template <int ROWS, int CHUNKS, int FILLED, int PITCH>
__device__ __forceinline__ void copy_folded(unsigned shared, const char *rows, const sp_launch_args &args,
                                            const QueryMap &map)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS), STEP = THREADS / COLUMNS;
    const int chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    if (chunk < CHUNKS)
#pragma unroll 1
        for (int row = static_cast<int>(threadIdx.x) / COLUMNS; row < ROWS; row += STEP) {
            const RowOwner owner = owner_of(args, map, row);
            const bool present = owner.present && (CHUNKS == FILLED || chunk < FILLED);
            const char *from = rows + 2 * (owner.query * args.q_row + owner.head * args.q_head) + 16 * chunk;
            copy_async_chunk(shared + row * PITCH + 16 * chunk, present ? from : args.q, present);
        }
}

// Starts copying what the tile in the record needs besides k and v if it is PARTIAL: its predicate, table or
// bitmask.
__device__ __forceinline__ void copy_mask(unsigned shared, const sp_launch_args &args)
{
    const int kind = read_record(shared, TILE_CODE) & 15;
    if (kind == PRED_NONE)
        return;
    int bytes = 0;
    const char *from = mask_data(args, kind, read_record(shared, TILE_MASK), bytes);
#pragma unroll 1
    for (int byte = 16 * static_cast<int>(threadIdx.x); byte < bytes; byte += 16 * THREADS)
        copy_async_chunk(shared + MASK_OFFSET + byte, from + byte, true);
}

// ---- s = q k^T ----

// q_lane and k_lane are the addresses of this lane's row for ldmatrix. The fragments of the next step are under way
// while the current one is multiplied.
__device__ __forceinline__ void multiply_scores(unsigned q_lane, unsigned k_lane, Scores &s)
{
    unsigned q[2][ROW_BLOCKS][4], k[2][4];
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
        ldmatrix_x4(q[0][b], q_lane + b * 16 * Q_PITCH);
    ldmatrix_x4(k[0], k_lane);
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int block = 0; block < COL_BLOCKS; ++block)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                s[b][block][x] = 0.0f;
#pragma unroll
    for (int dim = 0; dim < DIM_STEPS; ++dim)
#pragma unroll
        for (int pair = 0; pair < COL_PAIRS; ++pair) {
            const int now = (dim * COL_PAIRS + pair) % 2;
            if (pair + 1 < COL_PAIRS)
                ldmatrix_x4(k[1 - now], k_lane + (pair + 1) * 16 * K_PITCH + 32 * dim);
            else if (dim + 1 < DIM_STEPS)
                ldmatrix_x4(k[1 - now], k_lane + 32 * (dim + 1));
            if (pair == 0 && dim + 1 < DIM_STEPS)
#pragma unroll
                for (int b = 0; b < ROW_BLOCKS; ++b)
                    ldmatrix_x4(q[(dim + 1) % 2][b], q_lane + b * 16 * Q_PITCH + 32 * (dim + 1));
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS; ++b) {
                mma(s[b][2 * pair], q[dim % 2][b], k[now][0], k[now][1]);
                mma(s[b][2 * pair + 1], q[dim % 2][b], k[now][2], k[now][3]);
            }
        }
}

// ---- o += p v ----

// v of 16 keys and a pair of blocks of 8 columns as b operands; the second one is left out when it does not exist.
__device__ __forceinline__ void load_values(unsigned (&v)[4], unsigned v_lane, int step, int pair)
{
    const unsigned address = v_lane + step * 16 * V_PITCH + 32 * pair;
    if (2 * pair + 1 < VALUE_BLOCKS)
        ldmatrix_x4_trans(v, address);
    else
        ldmatrix_x2_trans(v[0], v[1], address);
}

__device__ __forceinline__ void multiply_values(const Weights &p, unsigned v_lane, Outputs &o)
{
    unsigned v[2][4];
    load_values(v[0], v_lane, 0, 0);
#pragma unroll
    for (int step = 0; step < KEY_STEPS; ++step)
#pragma unroll
        for (int pair = 0; pair < VALUE_PAIRS; ++pair) {
            const int now = (step * VALUE_PAIRS + pair) % 2;
            if (pair + 1 < VALUE_PAIRS)
                load_values(v[1 - now], v_lane, step, pair + 1);
            else if (step + 1 < KEY_STEPS)
                load_values(v[1 - now], v_lane, step + 1, 0);
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS; ++b) {
                mma(o[b][2 * pair], p[step][b], v[now][0], v[now][1]);
                if (2 * pair + 1 < VALUE_BLOCKS)
                    mma(o[b][2 * pair + 1], p[step][b], v[now][2], v[now][3]);
            }
        }
}

// ---- Values that are inf or NaN ----

// Whether this thread's own chunks of v hold one; they must have landed for this thread.
__device__ __forceinline__ bool own_values_nonfinite(unsigned v_tile)
{
    unsigned found = 0;
    for_own_chunks<TILE_COLS, VALUE_CHUNKS>([&](int row, int chunk) {
        const Chunk c = load_shared_chunk(v_tile + row * V_PITCH + 16 * chunk);
#pragma unroll
        for (int w = 0; w < 4; ++w)
            found |= nonfinite_bits(c.word[w]);
    });
    return found != 0;
}

__device__ __forceinline__ void clear_own_nonfinite(unsigned v_tile)
{
    for_own_chunks<TILE_COLS, VALUE_CHUNKS>([&](int row, int chunk) {
        const unsigned address = v_tile + row * V_PITCH + 16 * chunk;
        Chunk c = load_shared_chunk(address);
#pragma unroll
        for (int w = 0; w < 4; ++w)
            c.word[w] = clear_nonfinite(c.word[w]);
        store_shared_chunk(address, c);
    });
}

// ---- Results ----

// Divides by the sums, or merges, writes lse, and takes o through the warp's own rows of q in shared memory to
// whole-chunk stores. `warp_row` is the warp's first row of the tile. The block has passed a barrier since q was last read.
__device__ __forceinline__ void store_results(unsigned q_warp, int warp_row, const Work &work, const RowValues &row_max,
                                              const RowValues &row_sum, Outputs &o, const sp_launch_args &args)
{
    const Pair pair = pair_of(args, work.pair);
    const QueryMap rows = map_queries(args, work.row_tile.tile, pair);
    char *o_pair = static_cast<char *>(args.o) + 2 * (pair.batch * args.o_batch + pair.head * args.o_head);
    float *lse_pair = args.lse ? args.lse + (pair.batch * args.lse_batch + pair.head * args.lse_head) : nullptr;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const int slot = SPLIT ? work.row_tile.slot : 0;
    if (MERGE && args.merge && work.row_tile.segment_count == 0)
        return; // what the launches before left there stays
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = 16 * b + 8 * half + g;
            const RowOwner owner = owner_of(args, rows, warp_row + row);
            float sum = row_sum[b][half];
            sum += shuffle_xor(sum, 1);
            sum += shuffle_xor(sum, 2);
            const bool empty = sum == 0.0f;
            float inverse = empty ? 0.0f : 1.0f / sum;
            float lse = empty ? -infinity() : row_max[b][half] * args.scale + log2_approx(sum) * 0.693147181f;
            if constexpr (SPLIT)
                if (slot) {
                    const sp_i64 part = part_row(args, slot, work.pair, warp_row + row);
                    float *to = owner.present ? args.part_o + part * VALUE_DIM : nullptr;
                    if (half)
                        store_part<1>(o, b, inverse, to);
                    else
                        store_part<0>(o, b, inverse, to);
                    if (to && t == 0)
                        args.part_lse[part] = lse;
                    continue;
                }
            if constexpr (MERGE)
                if (args.merge) {
                    const OldInMemory old = {owner.present ? o_pair + o_offset(args, owner) : nullptr};
                    const float before = owner.present ? lse_pair[lse_offset(args, owner)] : -infinity();
                    if (half)
                        lse = merge_row<1>(o, b, sum, lse, before, old);
                    else
                        lse = merge_row<0>(o, b, sum, lse, before, old);
                    inverse = 1.0f;
                    warp_barrier(); // lanes of a row have read its lse
                }
#pragma unroll
            for (int block = 0; block < VALUE_BLOCKS; ++block)
                store_shared_u32(q_warp + row * Q_PITCH + 16 * block + 4 * t,
                                 pack(o[b][block][2 * half] * inverse, o[b][block][2 * half + 1] * inverse));
            if (lse_pair && t == 0 && owner.present)
                lse_pair[lse_offset(args, owner)] = lse;
        }
    if (SPLIT && slot)
        return;
    warp_barrier();
#pragma unroll 4
    for (int index = lane; index < WARP_ROWS * VALUE_CHUNKS; index += 32) {
        const int row = index / VALUE_CHUNKS, chunk = index % VALUE_CHUNKS;
        const RowOwner owner = owner_of(args, rows, warp_row + row);
        if (owner.present)
            *reinterpret_cast<Chunk *>(o_pair + o_offset(args, owner) + 16 * chunk) =
                load_shared_chunk(q_warp + row * Q_PITCH + 16 * chunk);
    }
}

// ---- The kernel ----

// The rows of one head, `offset` elements into a tensor.
__device__ __forceinline__ const char *head_rows(const void *tensor, sp_i64 offset)
{
    return static_cast<const char *>(tensor) + 2 * offset;
}

// Grid: row_tile_count * batch * heads blocks. Block: THREADS. Dynamic shared memory: SHARED_BYTES.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    splat_attention(const __grid_constant__ sp_launch_args args)
{
    const Work work = find_work(args, static_cast<int>(block_index()));
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int tile_row = work.row_tile.tile * TILE_ROWS; // position
    const unsigned shared = shared_base();
    const unsigned q_warp = shared + warp * WARP_ROWS * Q_PITCH;
    const unsigned k_tile = shared + K_OFFSET, v_tile = shared + V_OFFSET;
    // The row each lane points ldmatrix at. q: rows 0-15 twice, the second time 8 elements on. k: keys 0-7 twice,
    // then keys 8-15 twice. v (transposed): keys 0-15 twice, the second time 8 columns on.
    const unsigned q_lane = q_warp + lane % 16 * Q_PITCH + lane / 16 * 16;
    const unsigned k_lane = k_tile + (lane % 8 + lane / 16 * 8) * K_PITCH + lane / 8 % 2 * 16;
    const unsigned v_lane = v_tile + lane % 16 * V_PITCH + lane / 16 * 16;

    Outputs o = {};
    RowValues row_max, row_sum;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            row_max[b][half] = -infinity();
            row_sum[b][half] = 0.0f;
        }

    if (work.row_tile.segment_count > 0) {
        const Pair pair = pair_of(args, work.pair);
        const char *q = head_rows(args.q, pair.batch * args.q_batch + pair.head * args.q_head);
        const char *k = head_rows(args.k, pair.batch * args.k_batch + pair.kv_head * args.k_head);
        const char *v = head_rows(args.v, pair.batch * args.v_batch + pair.kv_head * args.v_head);
        if constexpr (FOLD)
            copy_folded<TILE_ROWS, HEAD_CHUNKS, HEAD_DIM / 8, Q_PITCH>(shared, q, args,
                                                                       map_queries(args, work.row_tile.tile, pair));
        if constexpr (!LATTICE) {
            q = own_source<TILE_ROWS, HEAD_CHUNKS>(q, 2 * args.q_row);
            k = own_source<TILE_COLS, HEAD_CHUNKS>(k, 2 * args.k_row);
            v = own_source<TILE_COLS, VALUE_CHUNKS>(v, 2 * args.v_row);
        }
        if constexpr (!FOLD)
            copy_tile<TILE_ROWS, HEAD_CHUNKS, HEAD_DIM / 8, Q_PITCH>(shared, q, 2 * args.q_row, args.row_view, tile_row,
                                                                     args.q_len, args.q);
        Cursor cursor;
        cursor.segment = work.row_tile.segment;
        if (thread == 0)
            write_record(shared, SEGMENT_END, cursor.segment + work.row_tile.segment_count);
        enter_segment(cursor, shared, args);
        copy_tile<TILE_COLS, HEAD_CHUNKS, HEAD_DIM / 8, K_PITCH>(k_tile, k, 2 * args.k_row, column_view(args, cursor),
                                                                 cursor.column, args.kv_len, args.k);
        copy_commit();
        bool more;
        do {
            // k has landed, and every warp is done with the v, predicate and words of the tile before.
            copy_wait<0>();
            block_barrier();
            copy_tile<TILE_COLS, VALUE_CHUNKS, VALUE_CHUNKS, V_PITCH>(
                v_tile, v, 2 * args.v_row, column_view(args, cursor), cursor.column, args.kv_len, args.v);
            if constexpr (HAS_PARTIAL)
                copy_mask(shared, args);
            copy_commit();

            Scores s;
            multiply_scores(q_lane, k_lane, s);

            // v and the predicate have landed, and every warp is done with k.
            copy_wait<0>();
            int kind = PRED_NONE;
            bool nonfinite = false;
            if constexpr (HAS_PARTIAL)
                kind = read_record(shared, TILE_CODE) & 15;
            if (kind != PRED_NONE)
                nonfinite = block_barrier_or(own_values_nonfinite(v_tile));
            else
                block_barrier();
            if constexpr (HAS_PARTIAL)
                if (kind != PRED_NONE) {
                    MaskTile tile;
                    tile.source.address = shared + MASK_OFFSET;
                    tile.tile_row = warp * WARP_ROWS + lane / 4;
                    tile.row = tile_row + tile.tile_row;
                    tile.column = cursor.column + lane % 4 * 2;
                    apply_predicate(kind, tile, s);
                }
            RowValues factors;
            raise_maxima(s, row_max, factors, args.scale_log2);
            weigh(s, row_max, row_sum, factors, args.scale_log2);
            rescale(o, factors);
            Weights p;
            pack_weights(s, p);

            // Only now, when the scores no longer take registers; p v is long enough for k to arrive.
            more = next_tile(cursor, shared, args);
            if (more)
                copy_tile<TILE_COLS, HEAD_CHUNKS, HEAD_DIM / 8, K_PITCH>(
                    k_tile, k, 2 * args.k_row, column_view(args, cursor), cursor.column, args.kv_len, args.k);
            copy_commit();

            if constexpr (HAS_PARTIAL)
                if (nonfinite) {
                    add_nonfinite(p, v_tile, o);
                    block_barrier(); // everyone has read them
                    clear_own_nonfinite(v_tile);
                    block_barrier();
                }
            multiply_values(p, v_lane, o);
        } while (more);
    }

    // Which work this was is found out once more, which keeps it out of the registers of the loop.
    const Work done = find_work(args, static_cast<int>(block_index()));
    store_results(q_warp, warp * WARP_ROWS, done, row_max, row_sum, o, args);
}

// splat:region(combine)
#include "combine.cuh"
// splat:end
