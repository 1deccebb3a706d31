// Sampled dense-dense product: values = scale * q k^T at the allowed pairs of a mask, row by row in the order of columns.
//
// Takes struct sp_sparse_args: q, k, the plan's tables and the offsets of rows. Gives the values in the type of q. Keeps true: a
// value depends on its own row of q and of k alone; every value is stored once; nothing is read beyond q_len rows and kv_len
// keys, or written between matrices.
//
// One block takes one row tile of one (batch, head), a warp 16 or 32 of its rows. It walks the column tiles in ascending order; k of
// the next tile is on its way while this one is multiplied. The places of a row's values follow from how many were passed.
// They are gathered in shared memory, in chunks of 16 bytes as they lie in global memory, and whole chunks are stored; what does not fill
// a chunk waits for the next tile.

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
constexpr int GATHER_CHUNKS = TILE_COLS / 8 + 1;  // a tile's values of a row, and what is left of those before
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

// A row of values: the quad's four lanes have the same, but `to`.
struct Row {
    char *chunk;      // global address of the first chunk that is not stored yet; null: there is no such row
    unsigned gather;  // shared address where that chunk is gathered
    int foreign;      // elements at its beginning that belong to the row before
    int held;         // elements of it that are gathered or foreign
};

// Puts the tile's values of the lane's row behind those held.
__device__ __forceinline__ void gather(const Row &row, int r, const TileMask &mask, const Products &s, float scale)
{
    const int t = static_cast<int>(threadIdx.x) % 4;
    const unsigned to = row.gather + 2 * row.held;
#pragma unroll
    for (int block = 0; block < COL_BLOCKS; ++block) {
        const float(&products)[4] = s[r / 2][block];
        const unsigned pair = pack(products[2 * (r % 2)] * scale, products[2 * (r % 2) + 1] * scale);
        if (mask.kind == PRED_NONE) {
            store_shared_u16(to + 2 * (8 * block + 2 * t), pair);
            store_shared_u16(to + 2 * (8 * block + 2 * t + 1), pair >> 16);
        } else {
            const int rank = rank_of(mask, r, block, 0);
            const bool first = is_allowed(mask, r, block, 0);
            if (first)
                store_shared_u16(to + 2 * rank, pair);
            if (is_allowed(mask, r, block, 1))
                store_shared_u16(to + 2 * (rank + first), pair >> 16);
        }
    }
}

// Stores elements [from, end) of a chunk.
__device__ __forceinline__ void store_elements(char *to, unsigned gather, int from, int end)
{
    for (int x = from; x < end; ++x)
        reinterpret_cast<unsigned short *>(to)[x] = static_cast<unsigned short>(load_shared_u16(gather + 2 * x));
}

// Stores the chunks that are whole; the quad's lanes take turns. All lanes of the warp have passed a barrier since the values were gathered.
__device__ __forceinline__ void store_chunks(const Row &row, int whole)
{
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int k = 0; k < GATHER_CHUNKS; k += 4) {
        const int chunk = k + t;
        if (chunk >= whole)
            continue;
        if (chunk == 0 && row.foreign > 0)
            store_elements(row.chunk, row.gather, row.foreign, 8);
        else
            *reinterpret_cast<Chunk *>(row.chunk + 16 * chunk) = load_shared_chunk(row.gather + 16 * chunk);
    }
}

// The row's `count` values of a tile were gathered: stores what is whole and moves the rest to the front. The lane that stored the first chunk
// writes over it.
__device__ __forceinline__ void advance(Row &row, int count)
{
    const int held = row.held + count, whole = held / 8;
    if (row.chunk == nullptr || whole == 0) {
        row.held = held % 8; // without a row nothing is kept
        return;
    }
    store_chunks(row, whole);
    if (threadIdx.x % 4 == 0)
        store_shared_chunk(row.gather, load_shared_chunk(row.gather + 16 * whole));
    row.chunk += 16 * whole;
    row.foreign = 0;
    row.held = held % 8;
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
    Cursor cursor;
    cursor.segment = work.row_tile.segment;
    cursor.end = cursor.segment + work.row_tile.segment_count;
    enter_segment(cursor, args);
    copy_tile<TILE_ROWS, HEAD_CHUNKS, HEAD_DIM / 8, PITCH>(shared, q, 2 * args.q_row, args.row_view, tile_row, args.q_len,
                                                           args.q);
    copy_tile<TILE_COLS, HEAD_CHUNKS, HEAD_DIM / 8, PITCH>(shared + K_OFFSET, k, 2 * args.k_row, column_view(args, cursor),
                                                           cursor.column, args.kv_len, args.k);
    copy_commit();

    Row rows[LANE_ROWS];
    const RowMap map = map_rows(args, work.row_tile.tile);
    const sp_i64 *offsets = row_offsets_of(sparse, work.pair);
    char *results = static_cast<char *>(sparse.results) + 2 * (batch * sparse.results_batch + head * sparse.results_head);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
        const int row = warp * WARP_ROWS + lane / 4 + 8 * r, query = query_of(map, row);
        const sp_i64 first = query < args.q_len ? offsets[query] : 0;
        rows[r].chunk = query < args.q_len ? results + first / 8 * 16 : nullptr;
        rows[r].gather = shared + GATHER_OFFSET + row * GATHER_PITCH;
        rows[r].held = rows[r].foreign = static_cast<int>(first % 8);
        for (int chunk = lane % 4; chunk < GATHER_CHUNKS; chunk += 4) // whole chunks are moved, whatever they hold
            store_shared_chunk(rows[r].gather + 16 * chunk, Chunk{});
    }

    int stage = 0;
    for (bool more = true; more; stage ^= 1) {
        // k has landed, and every warp is done with the k before.
        copy_wait<0>();
        block_barrier();
        const Cursor here = cursor;
        more = next_tile(cursor, args);
        if (more)
            copy_tile<TILE_COLS, HEAD_CHUNKS, HEAD_DIM / 8, PITCH>(shared + K_OFFSET + (1 - stage) * K_BYTES, k,
                                                                   2 * args.k_row, column_view(args, cursor),
                                                                   cursor.column, args.kv_len, args.k);
        copy_commit();
        const TileMask mask = tile_mask(here, tile_row, args);
        Products s;
        multiply(q_lane, k_lane + stage * K_BYTES, s);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
            gather(rows[r], r, mask, s, args.scale);
        warp_barrier();
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
            advance(rows[r], row_count(mask, r)); // the next values come after the next tile's barrier
    }
    // What did not fill a chunk.
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
        if (rows[r].chunk != nullptr && lane % 4 == 0)
            store_elements(rows[r].chunk, rows[r].gather, rows[r].foreign, rows[r].held);
}
