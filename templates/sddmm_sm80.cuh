// Sampled dense-dense product: values = scale * q k^T at the allowed pairs of a mask, row by row in the order of columns.
//
// Takes struct sp_sparse_args: q, k, the plan's tables and the offsets of rows. Gives the values in the type of q. Keeps true: a
// value depends on its own row of q and of k alone; every value is stored once; nothing is read beyond q_len rows and kv_len
// keys, or written between matrices.
//
// One block takes one row tile of one (batch, head), a warp 16 or 32 of its rows. It walks the column tiles in ascending order; k of
// the next tile is on its way while this one is multiplied. The places of a row's values follow from how many were passed; whole chunks
// of 16 bytes are stored, as they lie in global memory, and what does not fill a chunk waits for the next tile. Columns are taken in
// an order in which a lane has eight side by side (place_by_eights): those of a FULL tile go from registers to global memory, shifted
// by what the row's place asks for. Those of a PARTIAL tile are gathered in shared memory first.

// splat:region(params)
#include "params_default_sddmm.cuh"
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

// splat:region(sparse)
#include "sparse_common.cuh"
// splat:end

// ---- Sizes ----

constexpr int COL_PAIRS = COL_BLOCKS / 2;         // one ldmatrix of k each
constexpr int DIM_STEPS = (HEAD_DIM + 15) / 16;   // steps of q k^T
constexpr int HEAD_CHUNKS = 2 * DIM_STEPS;
constexpr int PITCH = 16 * (HEAD_CHUNKS | 1);     // of q and k
constexpr int GATHER_CHUNKS = TILE_COLS / 8 + 1;  // the last eight values of a row before a tile, and the tile's
constexpr int GATHER_PITCH = 16 * GATHER_CHUNKS;

constexpr int K_OFFSET = TILE_ROWS * PITCH;
constexpr int K_BYTES = TILE_COLS * PITCH; // of each of two stages
constexpr int GATHER_OFFSET = K_OFFSET + 2 * K_BYTES;
static_assert(GATHER_OFFSET + TILE_ROWS * GATHER_PITCH == SHARED_BYTES, "host and kernel agree on the shared memory");

typedef float Products[ROW_BLOCKS][COL_BLOCKS][4];

// ---- s = q k^T ----

// q_lane and k_lane are the addresses of this lane's row for ldmatrix. The fragments of the next step are under way while the
// current one is multiplied.
__device__ __forceinline__ void multiply(unsigned q_lane, unsigned k_lane, Products &s)
{
    unsigned q[2][ROW_BLOCKS][4], k[2][4];
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
        ldmatrix_x4(q[0][b], q_lane + b * 16 * PITCH);
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
                ldmatrix_x4(k[1 - now], k_lane + (pair + 1) * 16 * PITCH + 32 * dim);
            else if (dim + 1 < DIM_STEPS)
                ldmatrix_x4(k[1 - now], k_lane + 32 * (dim + 1));
            if (pair == 0 && dim + 1 < DIM_STEPS)
#pragma unroll
                for (int b = 0; b < ROW_BLOCKS; ++b)
                    ldmatrix_x4(q[(dim + 1) % 2][b], q_lane + b * 16 * PITCH + 32 * (dim + 1));
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS; ++b) {
                mma(s[b][2 * pair], q[dim % 2][b], k[now][0], k[now][1]);
                mma(s[b][2 * pair + 1], q[dim % 2][b], k[now][2], k[now][3]);
            }
        }
}

// ---- Values on their way out ----

// A row of values: the quad's four lanes have the same. The last one to eight values wait, at the end of the first chunk of the row's
// gathering place, for others to fill their chunk of global memory; chunks and elements are that chunk's.
struct Row {
    char *chunk;     // global address; null: there is no such row
    unsigned gather; // shared address
    int foreign;     // elements at its beginning that belong to the row before
    int held;        // elements of it that wait or are foreign: 1 to 8
};

// Stores elements [from, end) of a chunk, which lie one behind the other from `gather` on.
__device__ __forceinline__ void store_elements(char *to, unsigned gather, int from, int end)
{
    for (int x = from; x < end; ++x)
        reinterpret_cast<unsigned short *>(to)[x] = static_cast<unsigned short>(load_shared_u16(gather + 2 * x));
}

// Stores a chunk of the row, `number` behind the first; of the first only what is the row's own.
__device__ __forceinline__ void store_chunk(const Row &row, int number, const Chunk &c)
{
    if (number == 0 && row.foreign > 0) {
#pragma unroll
        for (int x = 0; x < 8; ++x)
            if (x >= row.foreign)
                reinterpret_cast<unsigned short *>(row.chunk)[x] =
                    static_cast<unsigned short>(c.word[x / 2] >> (16 * (x % 2)));
        return;
    }
    *reinterpret_cast<Chunk *>(row.chunk + 16 * number) = c;
}

// The lane's eight products of row r in 32 columns.
__device__ __forceinline__ Chunk packed(const Products &s, int r, int half_tile, float scale)
{
    Chunk c;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const float(&products)[4] = s[r / 2][4 * half_tile + k];
        c.word[k] = pack(products[2 * (r % 2)] * scale, products[2 * (r % 2) + 1] * scale);
    }
    return c;
}

// The values of a FULL tile. Each lane fills one chunk of every four, with the last values of its left neighbour before its own; the first
// lane's neighbour is the last one of the chunks before.
__device__ __forceinline__ void store_row(Row &row, int r, const Products &s, float scale)
{
    const int t = lane_number() % 4;
    Chunk last = load_shared_chunk(row.gather); // what waits; then the last lane's
#pragma unroll
    for (int half_tile = 0; half_tile < WORDS; ++half_tile) {
        const Chunk own = packed(s, r, half_tile, scale);
        Chunk left;
#pragma unroll
        for (int k = 0; k < 4; ++k)
            left.word[k] = shuffle_from(t == 3 && half_tile > 0 ? last.word[k] : own.word[k], (lane_number() & ~3) | (t + 3) % 4);
        if (t == 0 && half_tile == 0)
            left = last;
        if (row.chunk != nullptr)
            store_chunk(row, 4 * half_tile + t, shifted(left, own, 16 - 2 * row.held));
        last = own;
    }
    if (t == 3)
        store_shared_chunk(row.gather, last);
    row.chunk += row.chunk != nullptr ? 2 * TILE_COLS : 0;
    row.foreign = 0;
}

// Puts the values of a PARTIAL tile behind those that wait.
__device__ __forceinline__ void gather(const Row &row, int r, const TileMask &mask, const Products &s, float scale)
{
    const int column = lane_number() % 4 * 8;
    unsigned to = row.gather + 16;
#pragma unroll
    for (int half_tile = 0; half_tile < WORDS; ++half_tile) {
        const Chunk own = packed(s, r, half_tile, scale);
        const unsigned word = mask.word[r][half_tile], allowed = word >> column;
        unsigned at = to + 2 * count_bits(word & ((1u << column) - 1));
#pragma unroll
        for (int x = 0; x < 8; ++x)
            put_shared_u16(at, x % 2 ? own.word[x / 2] >> 16 : own.word[x / 2], allowed, 1u << x);
        to += 2 * count_bits(word);
    }
}

// Eight gathered elements from element `from` on.
__device__ __forceinline__ Chunk gathered(const Row &row, int from)
{
    const unsigned address = row.gather + 2 * from;
    return shifted(load_shared_chunk(address & ~15u), load_shared_chunk((address + 14) & ~15u), address % 16);
}

// `count` values of a PARTIAL tile were gathered: stores the chunks that they fill but the last, for what waits is one value at
// least; the quad's lanes take turns. All lanes of the warp have passed a barrier since.
__device__ __forceinline__ void store_gathered(Row &row, int count)
{
    const int t = lane_number() % 4, whole = (row.held + count - 1) / 8;
    const bool present = row.chunk != nullptr;
#pragma unroll
    for (int k = 0; k < GATHER_CHUNKS; k += 4)
        if (present && k + t < whole)
            store_chunk(row, k + t, gathered(row, 8 - row.held + 8 * (k + t)));
    row.held += count - 8 * whole;
    if (whole > 0) {
        row.chunk += present ? 16 * whole : 0;
        row.foreign = 0;
    }
}

// ---- The kernel ----

// Grid: row_tile_count * batch * heads blocks. Block: THREADS. Dynamic shared memory: SHARED_BYTES.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    splat_sddmm(const __grid_constant__ sp_sparse_args sparse)
{
    const sp_launch_args &args = sparse.plan;
    const Work work = find_work(args, static_cast<int>(block_index()));
    if (work.row_tile.segment_count == 0)
        return;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int batch = work.pair / args.heads, head = work.pair % args.heads, kv_head = head / args.group;
    const int tile_row = work.row_tile.tile * TILE_ROWS; // position
    const unsigned shared = shared_base();
    // The row each lane points ldmatrix at. q: rows 0-15 twice, the second time 8 elements on. k: keys 0-7 twice, then keys
    // 8-15 twice.
    const unsigned q_lane = shared + (warp * WARP_ROWS + lane % 16) * PITCH + lane / 16 * 16;
    const unsigned k_lane = shared + K_OFFSET + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;

    const char *q = head_rows(args.q, batch * args.q_batch + head * args.q_head);
    const char *k = head_rows(args.k, batch * args.k_batch + kv_head * args.k_head);
    if constexpr (!LATTICE) {
        q = own_source<TILE_ROWS, HEAD_CHUNKS>(q, 2 * args.q_row);
        k = own_source<TILE_COLS, HEAD_CHUNKS>(k, 2 * args.k_row);
    }
    Cursor cursor = first_tile(work, args);
    copy_tile<TILE_ROWS, HEAD_CHUNKS, HEAD_DIM / 8, PITCH>(shared, q, 2 * args.q_row, args.row_view, tile_row, args.q_len,
                                                           args.q);
    copy_tile<TILE_COLS, HEAD_CHUNKS, HEAD_DIM / 8, PITCH, place_by_eights>(shared + K_OFFSET, k, 2 * args.k_row, column_view(args, cursor),
                                                           cursor.column, args.kv_len, args.k);
    copy_commit();

    Row rows[LANE_ROWS];
    const RowMap map = map_rows(args, work.row_tile.tile);
    const sp_i64 *offsets = row_offsets_of(sparse, work.pair);
    char *results = static_cast<char *>(sparse.results) + 2 * (batch * sparse.results_batch + head * sparse.results_head);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
        const int row = warp * WARP_ROWS + lane / 4 + 8 * r, query = query_of(map, row);
        const sp_i64 first = query < args.q_len ? offsets[query] - 1 : 0; // the value before, foreign, is the first to wait
        rows[r].chunk = query < args.q_len ? results + (first >> 3) * 16 : nullptr;
        rows[r].gather = shared + GATHER_OFFSET + row * GATHER_PITCH;
        rows[r].held = rows[r].foreign = static_cast<int>(first & 7) + 1;
        for (int chunk = lane % 4; chunk < GATHER_CHUNKS; chunk += 4) // whole chunks are moved, whatever they hold
            store_shared_chunk(rows[r].gather + 16 * chunk, Chunk{});
    }

    const int mask_row = warp * WARP_ROWS + lane % WARP_ROWS; // the lane's in masks
    MaskData data = load_mask_data(cursor, mask_row, args);
    int stage = 0;
    for (bool more = true; more; stage ^= 1) {
        const int kind = kind_of(cursor);
        RowMask row_masks = {};
        if (kind != PRED_NONE)
            row_masks = row_mask(kind, data, tile_row + mask_row, cursor.column);
        // k has landed, and every warp is done with the k before.
        copy_wait<0>();
        block_barrier();
        more = next_tile(cursor, args);
        data = load_mask_data(cursor, mask_row, args);
        if (more) {
            copy_tile<TILE_COLS, HEAD_CHUNKS, HEAD_DIM / 8, PITCH, place_by_eights>(shared + K_OFFSET + (1 - stage) * K_BYTES, k,
                                                                   2 * args.k_row, column_view(args, cursor),
                                                                   cursor.column, args.kv_len, args.k);
        }
        copy_commit();
        const TileMask mask = spread(kind, row_masks);
        Products s;
        multiply(q_lane, k_lane + stage * K_BYTES, s);
        if (mask.kind == PRED_NONE) {
#pragma unroll
            for (int r = 0; r < LANE_ROWS; ++r)
                store_row(rows[r], r, s, args.scale);
            continue;
        }
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
            gather(rows[r], r, mask, s, args.scale);
        warp_barrier();
        Chunk last[LANE_ROWS];
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r) {
            last[r] = gathered(rows[r], row_count(mask, r));
            store_gathered(rows[r], row_count(mask, r));
        }
        warp_barrier();
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
            if (lane % 4 == 0)
                store_shared_chunk(rows[r].gather, last[r]);
    }
    // What did not fill a chunk.
    warp_barrier();
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
        if (rows[r].chunk != nullptr && lane % 4 == 0)
            store_elements(rows[r].chunk, rows[r].gather + 16 - 2 * rows[r].held, rows[r].foreign, rows[r].held);
}
