// Sparse matrix times dense: y = scale * A x, or y = scale * A^T x, A given by the values of a mask's allowed pairs, row by row in
// the order of columns.
//
// Takes struct sp_sparse_args: values, x, the plan's tables (of the transposed mask for A^T) and where values are. Gives y in
// the type of x. Keeps true: a pair that is not allowed contributes nothing, even when x holds NaN or inf; an allowed pair
// contributes its product, even when its value is 0; a row of y without pairs is 0; nothing is read beyond the rows of x
// or the values of a row; a block sums its column tiles in the order of its segments, so that results repeat bit for bit.
//
// One block takes one row tile of one (batch, head), a warp 16 or 32 of its rows. It walks the column tiles in ascending order; x and
// the values of the next tile are on their way while this one is multiplied. Values arrive as they lie in global memory, in
// chunks of 16 bytes, and each lane picks those of its fragments of A: in a row of A, value number k of a tile is k behind the first.
//
// A x: rows of the tile are rows of A. The quad that has a row copies its values, from the place that it has counted to.
// A^T x: columns of the tile are rows of A. The plan says where the values of each in the tile begin. Which value is whose follows from
// how many pairs of the column lie above: in the warp's own rows by a vote, in those of the warps above by what these left in
// shared memory.

// splat:region(params)
#include "params_default_spmm.cuh"
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

constexpr int KEY_STEPS = TILE_COLS / 16;           // steps of A x
constexpr int VALUE_BLOCKS = VALUE_DIM / 8;         // blocks of 8 columns of x and y
constexpr int VALUE_PAIRS = (VALUE_BLOCKS + 1) / 2; // one ldmatrix of x each; the last may hold one block only
constexpr int VALUE_CHUNKS = VALUE_DIM / 8;
constexpr int X_PITCH = 16 * (VALUE_CHUNKS | 1);

// Lines of values: one for each row of A in the tile, of at most LINE values, from any place in a chunk on.
constexpr int LINES = TRANSPOSED ? TILE_COLS : TILE_ROWS;
constexpr int LINE_CHUNKS = (TRANSPOSED ? TILE_ROWS : TILE_COLS) / 8 + 1;
constexpr int LINE_PITCH = 16 * LINE_CHUNKS;

// Where things lie in shared memory; of each two stages.
constexpr int X_BYTES = TILE_COLS * X_PITCH;
constexpr int LINES_OFFSET = 2 * X_BYTES;
constexpr int LINES_BYTES = LINES * LINE_PITCH;
constexpr int BEGINS_OFFSET = LINES_OFFSET + 2 * LINES_BYTES; // transposed: shared address of the first value of each line
constexpr int BEGINS_BYTES = TRANSPOSED ? 4 * TILE_COLS : 0;
constexpr int COUNTS_OFFSET = BEGINS_OFFSET + 2 * BEGINS_BYTES; // transposed: pairs of each column in each warp's rows
constexpr int COUNTS_BYTES = TRANSPOSED ? 4 * TILE_COLS * WARPS : 0;
constexpr int NOTES_OFFSET = COUNTS_OFFSET + 2 * COUNTS_BYTES; // of each thread, about the next tile
constexpr int NOTE_WORDS = LANE_ROWS * WORDS + 1 + LANE_ROWS;
constexpr int NOTE_CHUNKS = (NOTE_WORDS + 3) / 4;
static_assert(NOTES_OFFSET + 16 * NOTE_CHUNKS * THREADS == SHARED_BYTES, "host and kernel agree on the shared memory");
static_assert(TILE_ROWS <= 2 * TILE_COLS, "y takes the place of x at the end");

typedef float Outputs[ROW_BLOCKS][VALUE_BLOCKS][4];
typedef unsigned Fragment[ROW_BLOCKS][4]; // of A: the warp's rows by 16 columns

// ---- Values ----

// A tile whose values are on their way, as a lane has it.
struct Tile {
    TileMask mask;      // transposed: of the lane's own columns only
    unsigned begin[LANE_ROWS]; // A x: shared address of the first value of each of the lane's rows
};

// Registers are short: what a lane knows of the next tile waits in shared memory, where no other lane looks.
__device__ __forceinline__ void note(unsigned shared, const Tile &tile)
{
    const unsigned to = shared + NOTES_OFFSET + 16 * NOTE_CHUNKS * threadIdx.x;
    Chunk chunks[NOTE_CHUNKS] = {};
#pragma unroll
    for (int x = 0; x < NOTE_WORDS; ++x) {
        unsigned &word = chunks[x / 4].word[x % 4];
        if (x < LANE_ROWS * WORDS)
            word = tile.mask.kind == PRED_NONE ? 0 : tile.mask.word[x / WORDS][x % WORDS];
        else
            word = x == LANE_ROWS * WORDS ? static_cast<unsigned>(tile.mask.kind) : tile.begin[x - LANE_ROWS * WORDS - 1];
    }
#pragma unroll
    for (int c = 0; c < NOTE_CHUNKS; ++c)
        store_shared_chunk(to + 16 * c, chunks[c]);
}

__device__ __forceinline__ Tile noted(unsigned shared)
{
    const unsigned from = shared + NOTES_OFFSET + 16 * NOTE_CHUNKS * threadIdx.x;
    Chunk chunks[NOTE_CHUNKS];
#pragma unroll
    for (int c = 0; c < NOTE_CHUNKS; ++c)
        chunks[c] = load_shared_chunk(from + 16 * c);
    Tile tile;
#pragma unroll
    for (int x = 0; x < NOTE_WORDS; ++x) {
        const unsigned word = chunks[x / 4].word[x % 4];
        if (x < LANE_ROWS * WORDS)
            tile.mask.word[x / WORDS][x % WORDS] = word;
        else if (x == LANE_ROWS * WORDS)
            tile.mask.kind = static_cast<int>(word);
        else
            tile.begin[x - LANE_ROWS * WORDS - 1] = word;
    }
    return tile;
}

// Starts copying `count` values into a line; the quad's lanes take turns. The rest of the line becomes zero if `fill`. Gives the
// shared address of the first.
__device__ __forceinline__ unsigned copy_line(unsigned line, const char *values, int count, bool fill)
{
    const unsigned shift = static_cast<unsigned>(reinterpret_cast<unsigned long long>(values)) % 16;
    const char *from = values - shift + threadIdx.x % 4 * 16;
    int left = count > 0 ? static_cast<int>(shift) + 2 * count - static_cast<int>(threadIdx.x % 4) * 16 : 0;
    line += threadIdx.x % 4 * 16;
#pragma unroll
    for (int k = 0; k < LINE_CHUNKS; k += 4, left -= 64)
        if (k + static_cast<int>(threadIdx.x) % 4 < LINE_CHUNKS && (left > 0 || fill))
            copy_async_part(line + 16 * k, left > 0 ? from + 16 * k : from, left < 0 ? 0 : left < 16 ? left : 16);
    return line - threadIdx.x % 4 * 16 + shift;
}

// Two values that lie one behind the other at a multiple of 2.
__device__ __forceinline__ unsigned load_pair(unsigned address)
{
    const unsigned low = load_shared_u32(address & ~3u);
    if (!(address & 2))
        return low;
    return low >> 16 | load_shared_u16(address + 2) << 16;
}

// ---- A x: the rows of a tile are rows of A ----

// What a lane knows of its rows: whether there is such a row, and where its next value is.
struct Rows {
    bool present[LANE_ROWS];
    const char *next[LANE_ROWS]; // A x
};

// Starts copying the values of the tile at the cursor and counts on.
__device__ __forceinline__ Tile copy_rows_of_values(Rows &rows, const Cursor &cursor, int tile_row, unsigned lines,
                                                    const sp_launch_args &args)
{
    Tile tile;
    tile.mask = tile_mask(cursor, tile_row, args);
    const int row = static_cast<int>(threadIdx.x) / 32 * WARP_ROWS + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
        if (!rows.present[r])
#pragma unroll
            for (int w = 0; w < WORDS; ++w)
                tile.mask.word[r][w] = 0;
        const int count = rows.present[r] ? row_count(tile.mask, r) : 0;
        tile.begin[r] = copy_line(lines + (row + 8 * r) * LINE_PITCH, rows.next[r], count,
                                  tile.mask.kind == PRED_NONE);
        rows.next[r] += 2 * count;
    }
    return tile;
}

__device__ __forceinline__ void load_row_fragment(const Tile &tile, int step, Fragment &a)
{
#pragma unroll
    for (int x = 0; x < 4 * ROW_BLOCKS; ++x) {
        const int r = x / 4 * 2 + x % 2, block = 2 * step + x % 4 / 2;
        if (tile.mask.kind == PRED_NONE) {
            a[x / 4][x % 4] = load_pair(tile.begin[r] + 2 * (8 * block + static_cast<int>(threadIdx.x) % 4 * 2));
            continue;
        }
        const int rank = rank_of(tile.mask, r, block, 0);
        const bool first = is_allowed(tile.mask, r, block, 0);
        unsigned pair = 0;
        if (first)
            pair = load_shared_u16(tile.begin[r] + 2 * rank);
        if (is_allowed(tile.mask, r, block, 1))
            pair |= load_shared_u16(tile.begin[r] + 2 * (rank + first)) << 16;
        a[x / 4][x % 4] = pair;
    }
}

// ---- A^T x: the columns of a tile are rows of A ----

// The lane's pair in column 8 * block + 2t + e, row r.
__device__ __forceinline__ bool own_pair(const TileMask &mask, int r, int block, int e)
{
    return mask.word[r][block / 4] >> (8 * (block % 4) + e) & 1;
}

// Bit 4g: the pair of row g of the warp's half r in the lane's column 8 * block + 2t + e.
__device__ __forceinline__ unsigned column_bits(const TileMask &mask, int r, int block, int e)
{
    return warp_ballot(own_pair(mask, r, block, e)) >> (threadIdx.x % 4) & 0x11111111u;
}

// Starts copying the values of the tile, and leaves where they are and how many each column has in the warp's rows.
__device__ __forceinline__ Tile copy_columns_of_values(const Cursor &cursor, int tile_row, int tile_number, unsigned shared,
                                                       int stage, const char *values, const Rows &rows,
                                                       const sp_sparse_args &args)
{
    Tile tile;
    tile.mask.kind = cursor.code & 15;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
        tile.begin[r] = 0;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int line = static_cast<int>(threadIdx.x) / 4; line < LINES; line += THREADS / 4) {
        const sp_i64 word = args.tile_values[sp_i64(tile_number) * TILE_COLS + line];
        const unsigned begin = copy_line(shared + LINES_OFFSET + stage * LINES_BYTES + line * LINE_PITCH,
                                         values + 2 * (word & ((sp_i64(1) << 48) - 1)), static_cast<int>(word >> 48), false);
        if (lane % 4 == 0)
            store_shared_u32(shared + BEGINS_OFFSET + stage * BEGINS_BYTES + 4 * line, begin);
    }
    if (tile.mask.kind == PRED_NONE)
        return tile;
    const Scores own = own_pairs(cursor, tile_row, args.plan);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
            tile.mask.word[r][w] = rows.present[r] ? own.word[r][w] : 0;
#pragma unroll
    for (int block = 0; block < COL_BLOCKS; ++block)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            int count = 0;
#pragma unroll
            for (int r = 0; r < LANE_ROWS; ++r)
                count += count_bits(column_bits(tile.mask, r, block, e));
            const int column = 8 * block + 2 * (lane % 4) + e;
            if (lane < 4)
                store_shared_u32(shared + COUNTS_OFFSET + stage * COUNTS_BYTES + 4 * (column * WARPS + warp),
                                 static_cast<unsigned>(count));
        }
    return tile;
}

__device__ __forceinline__ void load_column_fragment(const Tile &tile, unsigned shared, int stage, const Rows &rows,
                                                     int step, Fragment &a)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4;
#pragma unroll
    for (int x = 0; x < 4 * ROW_BLOCKS; ++x)
        a[x / 4][x % 4] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int block = 2 * step + half, column = 8 * block + 2 * (lane % 4) + e;
            const unsigned begin = load_shared_u32(shared + BEGINS_OFFSET + stage * BEGINS_BYTES + 4 * column);
            if (tile.mask.kind == PRED_NONE) {
#pragma unroll
                for (int r = 0; r < LANE_ROWS; ++r)
                    if (rows.present[r])
                        a[r / 2][2 * half + r % 2] |= load_shared_u16(begin + 2 * (warp * WARP_ROWS + g + 8 * r)) << (16 * e);
                continue;
            }
            int rank = 0;
            for (int above = 0; above < warp; ++above)
                rank += static_cast<int>(
                    load_shared_u32(shared + COUNTS_OFFSET + stage * COUNTS_BYTES + 4 * (column * WARPS + above)));
            const unsigned below = (1u << (4 * g)) - 1;
#pragma unroll
            for (int r = 0; r < LANE_ROWS; ++r) {
                const unsigned bits = column_bits(tile.mask, r, block, e);
                if (own_pair(tile.mask, r, block, e))
                    a[r / 2][2 * half + r % 2] |= load_shared_u16(begin + 2 * (rank + count_bits(bits & below))) << (16 * e);
                rank += count_bits(bits);
            }
        }
}

// ---- Products ----

// x of 16 rows and a pair of blocks of 8 columns as b operands; the second one is left out when it does not exist.
__device__ __forceinline__ void load_x(unsigned (&v)[4], unsigned x_lane, int step, int pair)
{
    const unsigned address = x_lane + step * 16 * X_PITCH + 32 * pair;
    if (2 * pair + 1 < VALUE_BLOCKS)
        ldmatrix_x4_trans(v, address);
    else
        ldmatrix_x2_trans(v[0], v[1], address);
}

__device__ __forceinline__ void multiply(const Fragment &a, unsigned x_lane, int step, Outputs &o)
{
    unsigned v[2][4];
    load_x(v[0], x_lane, step, 0);
#pragma unroll
    for (int pair = 0; pair < VALUE_PAIRS; ++pair) {
        if (pair + 1 < VALUE_PAIRS)
            load_x(v[(pair + 1) % 2], x_lane, step, pair + 1);
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS; ++b) {
            mma(o[b][2 * pair], a[b], v[pair % 2][0], v[pair % 2][1]);
            if (2 * pair + 1 < VALUE_BLOCKS)
                mma(o[b][2 * pair + 1], a[b], v[pair % 2][2], v[pair % 2][3]);
        }
    }
}

// Whether this thread's own chunks of x hold a value that is inf or NaN; they must have landed for this thread.
__device__ __forceinline__ bool own_nonfinite(unsigned x_tile)
{
    unsigned found = 0;
    for_own_chunks<TILE_COLS, VALUE_CHUNKS>([&](int row, int chunk) {
        const Chunk c = load_shared_chunk(x_tile + row * X_PITCH + 16 * chunk);
#pragma unroll
        for (int w = 0; w < 4; ++w)
            found |= nonfinite_bits(c.word[w]);
    });
    return found != 0;
}

// The product of one fragment where x is not finite: pair by pair, the allowed ones alone. Small rather than fast: it is seldom
// called.
__device__ __forceinline__ void multiply_apart(const Fragment &a, unsigned allowed, unsigned x_tile, int step, Outputs &o)
{
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
    for (int k = 0; k < 16; ++k) {
        // The lane of the quad that has column k of the fragment gives its words and bits to the others.
        const int owner = k % 8 / 2, half = k / 8, e = k % 2;
        float weight[LANE_ROWS];
        bool has[LANE_ROWS];
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r) {
            const unsigned mine = half ? a[r / 2][2 + r % 2] : a[r / 2][r % 2];
            weight[r] = unpack(quad_or(t == owner ? mine : 0), e);
            has[r] = quad_or(t == owner ? allowed : 0) >> (2 * LANE_ROWS * half + 2 * r + e) & 1;
        }
#pragma unroll
        for (int block = 0; block < VALUE_BLOCKS; ++block) {
            const unsigned pair = load_shared_u32(x_tile + (16 * step + k) * X_PITCH + 16 * block + 4 * t);
#pragma unroll
            for (int r = 0; r < LANE_ROWS; ++r)
                if (has[r]) {
                    float(&sums)[4] = o[r / 2][block];
                    sums[2 * (r % 2)] = fmaf(weight[r], unpack(pair, 0), sums[2 * (r % 2)]);
                    sums[2 * (r % 2) + 1] = fmaf(weight[r], unpack(pair, 1), sums[2 * (r % 2) + 1]);
                }
        }
    }
}

// Which of the lane's elements of a fragment are allowed pairs: bit 2 * (LANE_ROWS * half + r) + e is column 8 * half + 2t + e, row r.
__device__ __forceinline__ unsigned fragment_bits(const TileMask &mask, int step)
{
    unsigned bits = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int block = 2 * step + half;
                const bool has = TRANSPOSED ? own_pair(mask, r, block, e) : is_allowed(mask, r, block, e);
                bits |= has ? 1u << (2 * LANE_ROWS * half + 2 * r + e) : 0;
            }
    return bits;
}

// ---- Results ----

// Takes y through the warp's own rows in shared memory to whole-chunk stores. The block has passed a barrier since x was last read.
__device__ __forceinline__ void store_results(unsigned shared, const Work &work, const Outputs &o, const sp_launch_args &args)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, t = lane % 4;
    const int batch = work.pair / args.heads, head = work.pair % args.heads;
    const RowMap rows = map_rows(args, work.row_tile.tile);
    const unsigned warp_rows = shared + warp * WARP_ROWS * X_PITCH;
    char *y = static_cast<char *>(args.o) + 2 * (batch * args.o_batch + head * args.o_head);
#pragma unroll
    for (int block = 0; block < VALUE_BLOCKS; ++block)
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
            store_shared_u32(warp_rows + (g + 8 * r) * X_PITCH + 16 * block + 4 * t,
                             pack(o[r / 2][block][2 * (r % 2)] * args.scale, o[r / 2][block][2 * (r % 2) + 1] * args.scale));
    warp_barrier();
#pragma unroll 4
    for (int index = lane; index < WARP_ROWS * VALUE_CHUNKS; index += 32) {
        const int row = index / VALUE_CHUNKS, chunk = index % VALUE_CHUNKS;
        const int to = query_of(rows, warp * WARP_ROWS + row);
        if (to < args.q_len)
            *reinterpret_cast<Chunk *>(y + to * (2 * args.o_row) + 16 * chunk) =
                load_shared_chunk(warp_rows + row * X_PITCH + 16 * chunk);
    }
}

// ---- The kernel ----

// Grid: row_tile_count * batch * heads blocks. Block: THREADS. Dynamic shared memory: SHARED_BYTES.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    splat_spmm(const __grid_constant__ sp_sparse_args sparse)
{
    const sp_launch_args &args = sparse.plan;
    const Work work = find_work(args, static_cast<int>(block_index()));
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int batch = work.pair / args.heads, head = work.pair % args.heads;
    const int tile_row = work.row_tile.tile * TILE_ROWS; // position
    const unsigned shared = shared_base();
    // The row each lane points ldmatrix at (transposed): rows 0-15 twice, the second time 8 columns on.
    const unsigned x_lane = shared + lane % 16 * X_PITCH + lane / 16 * 16;
    Outputs o = {};

    if (work.row_tile.segment_count > 0) {
        const char *x = head_rows(args.v, batch * args.v_batch + head / args.group * args.v_head);
        const char *values = head_rows(sparse.values, batch * sparse.values_batch + head * sparse.values_head);
        if constexpr (!LATTICE)
            x = own_source<TILE_COLS, VALUE_CHUNKS>(x, 2 * args.v_row);
        const RowMap map = map_rows(args, work.row_tile.tile);
        Rows rows;
        int tile_number = 0;
        if constexpr (TRANSPOSED)
            tile_number = static_cast<int>(sparse.first_tiles[work.number]);
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r) {
            const int query = query_of(map, warp * WARP_ROWS + lane / 4 + 8 * r);
            rows.present[r] = query < args.q_len;
            if constexpr (!TRANSPOSED)
                rows.next[r] = values + (rows.present[r] ? 2 * row_offsets_of(sparse, work.pair)[query] : 0);
        }
        Cursor cursor;
        cursor.segment = work.row_tile.segment;
        cursor.end = cursor.segment + work.row_tile.segment_count;
        enter_segment(cursor, args);

        // Starts copying x and the values of the tile at the cursor.
        const auto copy = [&](int stage) {
            copy_tile<TILE_COLS, VALUE_CHUNKS, VALUE_CHUNKS, X_PITCH>(shared + stage * X_BYTES, x, 2 * args.v_row,
                                                                      column_view(args, cursor), cursor.column,
                                                                      args.kv_len, args.v);
            if constexpr (TRANSPOSED)
                note(shared, copy_columns_of_values(cursor, tile_row, tile_number++, shared, stage, values, rows, sparse));
            else
                note(shared, copy_rows_of_values(rows, cursor, tile_row, shared + LINES_OFFSET + stage * LINES_BYTES, args));
        };
        copy(0);
        copy_commit();
        int stage = 0;
        for (bool more = true; more; stage ^= 1) {
            // The tile has landed, and every warp is done with the one before.
            copy_wait<0>();
            const Tile tile = noted(shared);
            const unsigned x_tile = shared + stage * X_BYTES;
            bool apart = false;
            if (tile.mask.kind != PRED_NONE)
                apart = block_barrier_or(own_nonfinite(x_tile));
            else
                block_barrier();
            more = next_tile(cursor, args);
            if (more)
                copy(stage ^ 1);
            copy_commit();
#pragma unroll
            for (int step = 0; step < KEY_STEPS; ++step) {
                Fragment a;
                if constexpr (TRANSPOSED)
                    load_column_fragment(tile, shared, stage, rows, step, a);
                else
                    load_row_fragment(tile, step, a);
                if (HAS_PARTIAL && apart)
                    multiply_apart(a, fragment_bits(tile.mask, step), x_tile, step, o);
                else
                    multiply(a, x_lane + stage * X_BYTES, step, o);
            }
        }
        block_barrier(); // y takes the place of x
    }
    // Which work this was is found out once more, which keeps it out of the registers of the loop.
    store_results(shared, find_work(args, static_cast<int>(block_index())), o, args);
}
