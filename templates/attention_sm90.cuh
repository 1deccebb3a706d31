// Fused attention forward for Hopper: the contract of attention_sm80.cuh, by bulk tensor copies and warpgroup products.
//
// Takes struct sp_launch_args and the tensor maps of q, k and v under the plan's views. A block has one producer warpgroup and one consumer
// warpgroup for each 64 rows of its row tile. One thread of the producer keeps copies of k and v under way, two stages each;
// its three other warps look through the v of PARTIAL tiles for inf and NaN. A consumer multiplies q k^T of tile t + 1 while
// p v of tile t is under way, and does the softmax of t + 1 under p v of t; consumers take turns in issuing products, so that
// one's softmax runs under another's products. Blocks are persistent: each takes work items in turn, and the next item's q, k
// and v are on their way while this one's results are stored.
//
// Tiles lie in shared memory as the products want them: panels of 64 elements (128 bytes) a row with 128-byte swizzle. What a
// tile has beyond the tensor arrives as zero.
//
// splat:region(params)
#include "params_default_sm90.cuh"
// splat:end

// splat:region(launch_args)
#include "../src/codegen/launch_args.h"
// splat:end

// splat:region(ptx)
#include "ptx_sm80.cuh"
#include "ptx_sm90.cuh"
// splat:end

// ---- Sizes ----

constexpr int GROUPS = TILE_ROWS / 64;      // consumer warpgroups
constexpr int CONSUMERS = 128 * GROUPS;     // threads
constexpr int THREADS = CONSUMERS + 128;    // and the producer
constexpr int STAGES = 2;                   // of k, and of v
constexpr int ROW_BLOCKS = 1;               // blocks of 16 rows a warp
constexpr int COL_BLOCKS = TILE_COLS / 8;
constexpr int DIM_STEPS = (HEAD_DIM + 15) / 16;
constexpr int KEY_STEPS = TILE_COLS / 16;
constexpr int VALUE_BLOCKS = VALUE_DIM / 8;
constexpr int HEAD_PANELS = (HEAD_DIM + 63) / 64;
constexpr int VALUE_PANELS = (VALUE_DIM + 63) / 64;
constexpr int Q_BYTES = HEAD_PANELS * TILE_ROWS * 128;
constexpr int K_BYTES = HEAD_PANELS * TILE_COLS * 128;
constexpr int V_BYTES = VALUE_PANELS * TILE_COLS * 128;
constexpr int O_PITCH = VALUE_PANELS * 128; // of a row of results on its way out
constexpr bool TURNS = GROUPS > 1 && VALUE_DIM <= 128;
constexpr int VIEWS = LATTICE ? 2 : 1;      // of the columns
constexpr int LENGTHS = LATTICE ? 2 : 1;    // of a view's zones: whole grid rows, and one more

// Barriers: q, k and v have landed (FULL) or been used (EMPTY), and v has been looked through.
enum Barrier {
    Q_FULL,
    Q_EMPTY,
    K_FULL,
    K_EMPTY = K_FULL + STAGES,
    V_FULL = K_EMPTY + STAGES,
    V_EMPTY = V_FULL + STAGES,
    V_CHECKED = V_EMPTY + STAGES,
    BARRIERS = V_CHECKED + STAGES
};

// Named barriers: one a consumer warpgroup for its turn, one for all consumers.
enum Name { TURN = 1, ALL_CONSUMERS = TURN + 3 };

constexpr int CHECKERS = 3; // warps that look through v

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

// Shared address of chunk `chunk` (8 elements) of a row of a swizzled tile of ROWS rows.
template <int ROWS> __device__ __forceinline__ unsigned chunk_address(unsigned tile, int row, int chunk)
{
    return tile + chunk / 8 * (ROWS * 128) + row * 128 + (chunk % 8 ^ row % 8) * 16;
}

__device__ __forceinline__ unsigned value_address(unsigned v_tile, int key, int block)
{
    return chunk_address<TILE_COLS>(v_tile, key, block);
}

// splat:region(common)
#include "attention_common.cuh"
// splat:end

// ---- Shared memory ----

// Where things lie, from the first multiple of 1024 in shared memory. Results leave through memory of their own, or, where that
// does not fit, through that of q.
constexpr int K_OFFSET = Q_BYTES;
constexpr int V_OFFSET = K_OFFSET + STAGES * K_BYTES;
constexpr int O_OFFSET = O_IN_Q ? 0 : V_OFFSET + STAGES * V_BYTES;
constexpr int MASK_OFFSET = V_OFFSET + STAGES * V_BYTES + (O_IN_Q ? 0 : TILE_ROWS * O_PITCH);
constexpr int BARRIER_OFFSET = MASK_OFFSET + 2 * STAGES * MASK_BYTES;
constexpr int FLAG_OFFSET = BARRIER_OFFSET + 8 * BARRIERS;
constexpr int LAYOUT_BYTES = FLAG_OFFSET + 4 * STAGES * CHECKERS + 1024;

static_assert(TILE_ROWS % 64 == 0 && GROUPS <= 3, "64 rows a consumer, at most three");
static_assert(TILE_COLS % 32 == 0 && TILE_COLS <= 256, "a row of a bitmask is whole words");
static_assert(HEAD_DIM % 8 == 0 && VALUE_DIM % 8 == 0, "rows are whole chunks");
static_assert(!O_IN_Q || VALUE_PANELS <= HEAD_PANELS, "results fit the memory of q");
static_assert(LAYOUT_BYTES == SHARED_BYTES, "host and kernel agree on the shared memory");

struct alignas(64) TensorMap {
    char bytes[128];
};

// The tensors as a row view and the column views see them, [batch, heads, y, x, dim] with boxes of one tile, for zones of
// whole grid rows and for zones with one grid row more. Without views, [batch, heads, 1, rows, dim].
struct TensorMaps {
    TensorMap q[LENGTHS], k[VIEWS][LENGTHS], v[VIEWS][LENGTHS];
};

// ---- Products ----

// splat:region(wgmma)
#include "wgmma_default.cuh"
// splat:end

__device__ __forceinline__ void multiply_scores(Scores &s, sp_i64 q, sp_i64 k)
{
#pragma unroll
    for (int step = 0; step < DIM_STEPS; ++step)
        wgmma_scores_step(s, q + (step / 4 * TILE_ROWS * 128 + step % 4 * 32) / 16,
                          k + (step / 4 * TILE_COLS * 128 + step % 4 * 32) / 16, step > 0);
}

__device__ __forceinline__ void multiply_values(Outputs &o, const Weights &p, sp_i64 v)
{
#pragma unroll
    for (int step = 0; step < KEY_STEPS; ++step)
        wgmma_values_step(o, p[step][0], v + step * (2048 / 16));
}

template <int BLOCKS> __device__ __forceinline__ void hold_all(float (&x)[1][BLOCKS][4])
{
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            hold(x[0][block][e]);
}

// ---- Work and tiles ----

// A block's items: forwards through the grid in one round and backwards in the next. Items come longest first, so that each
// block gets long and short ones alike.
__device__ __forceinline__ int item_index(int round)
{
    const int grid = grid_size(), block = static_cast<int>(block_index());
    return round * grid + (round % 2 ? grid - 1 - block : block);
}

__device__ __forceinline__ int item_count(const sp_launch_args &args)
{
    return args.row_tile_count * args.batch * args.heads;
}

// The column tile at hand. Moves through the segments of a row tile in order.
struct Cursor {
    int segment, end; // the one it is in, and the end of the row tile's
    int left;         // tiles left in the segment, this one included
    int column;       // position of the tile's first column
    int code;         // view, step and kind
    int mask;         // number of its predicate, table or bitmask
};

__device__ __forceinline__ int kind_of(const Cursor &cursor)
{
    return HAS_PARTIAL ? cursor.code & 15 : static_cast<int>(PRED_NONE);
}

__device__ __forceinline__ sp_segment segment_of(const Cursor &cursor, const sp_launch_args &args)
{
    return static_cast<const sp_segment *>(args.segments)[cursor.segment];
}

__device__ __forceinline__ void enter_segment(Cursor &cursor, const sp_launch_args &args)
{
    const sp_segment s = segment_of(cursor, args);
    cursor.left = s.count;
    cursor.column = s.first * TILE_COLS;
    cursor.code = s.code;
    cursor.mask = s.predicate;
}

__device__ __forceinline__ Cursor first_tile(const sp_launch_args &args, const sp_row_tile &row_tile)
{
    Cursor cursor;
    cursor.segment = row_tile.segment;
    cursor.end = row_tile.segment + row_tile.segment_count;
    enter_segment(cursor, args);
    return cursor;
}

// False when there is no further tile.
__device__ __forceinline__ bool next_tile(Cursor &cursor, const sp_launch_args &args)
{
    if (--cursor.left > 0) {
        cursor.column += TILE_COLS;
        cursor.mask += cursor.code >> 4 & 1;
        return true;
    }
    if (++cursor.segment == cursor.end)
        return false;
    enter_segment(cursor, args);
    return true;
}

// ---- Stages ----

// The n-th tile of a block uses stage n % STAGES; the phase of its barriers alternates.
__device__ __forceinline__ int stage_of(int n)
{
    return n % STAGES;
}

__device__ __forceinline__ int phase_of(int n)
{
    return n / STAGES % 2;
}

__device__ __forceinline__ unsigned barrier_at(unsigned shared, int index)
{
    return shared + BARRIER_OFFSET + 8 * index;
}

__device__ __forceinline__ unsigned k_stage(unsigned shared, int n)
{
    return shared + K_OFFSET + stage_of(n) * K_BYTES;
}

__device__ __forceinline__ unsigned v_stage(unsigned shared, int n)
{
    return shared + V_OFFSET + stage_of(n) * V_BYTES;
}

// A mask is used until after its k has been let go; with twice the stages, it is not overwritten before its v has been.
__device__ __forceinline__ unsigned mask_stage(unsigned shared, int n)
{
    return shared + MASK_OFFSET + n % (2 * STAGES) * MASK_BYTES;
}

__device__ __forceinline__ void init_barriers(unsigned shared)
{
    barrier_init(barrier_at(shared, Q_FULL), 1);
    barrier_init(barrier_at(shared, Q_EMPTY), CONSUMERS / 32);
    for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(barrier_at(shared, K_FULL + stage), 1);
        barrier_init(barrier_at(shared, K_EMPTY + stage), CONSUMERS / 32);
        barrier_init(barrier_at(shared, V_FULL + stage), 1);
        barrier_init(barrier_at(shared, V_EMPTY + stage), CONSUMERS / 32 + (HAS_PARTIAL ? CHECKERS : 0));
        barrier_init(barrier_at(shared, V_CHECKED + stage), CHECKERS);
    }
    barrier_init_fence();
}

// Each warp says for itself that it is done.
__device__ __forceinline__ void release(unsigned barrier)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

// ---- Producer ----

// Starts the copy of ROWS rows from position `row` on, panel by panel; the barrier must expect their bytes.
template <int PANELS, int ROWS>
__device__ __forceinline__ void copy_tile(unsigned to, const TensorMap (&maps)[LENGTHS], const sp_launch_view &view,
                                          unsigned barrier, int row, int head, int batch)
{
    const TensorMap *map = &maps[0];
    int x = row, y = 0;
    if constexpr (LATTICE) {
        const Place place = place_of(view, row);
        map = &maps[place.longer];
        x = place.x;
        y = place.y;
    }
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel)
        copy_tensor(to + panel * ROWS * 128, map, barrier, 64 * panel, x, y, head, batch);
}

// The n-th tile's k, and what it needs to know if it is PARTIAL.
__device__ __forceinline__ void copy_keys(const sp_launch_args &args, const TensorMaps &maps, unsigned shared, int n,
                                          const Cursor &cursor, int head, int batch)
{
    const int view = LATTICE ? cursor.code >> 8 : 0, kind = kind_of(cursor);
    const unsigned barrier = barrier_at(shared, K_FULL + stage_of(n));
    int bytes = 0;
    const char *mask = mask_data(args, kind, cursor.mask, bytes);
    barrier_wait(barrier_at(shared, K_EMPTY + stage_of(n)), phase_of(n) ^ 1);
    barrier_expect(barrier, K_BYTES + (kind != PRED_NONE ? bytes : 0));
    copy_tile<HEAD_PANELS, TILE_COLS>(k_stage(shared, n), maps.k[view], args.column_views[view], barrier, cursor.column,
                                      head, batch);
    if (kind != PRED_NONE)
        copy_bulk(mask_stage(shared, n), mask, bytes, barrier);
}

// One thread: k runs one tile ahead of v.
__device__ __forceinline__ void produce(const sp_launch_args &args, const TensorMaps &maps, unsigned shared)
{
    for (int map = 0; map < static_cast<int>(sizeof(TensorMaps) / sizeof(TensorMap)); ++map)
        prefetch_map(&maps.q[0] + map);
    int n = 0, uses_of_q = 0;
    for (int round = 0; item_index(round) < item_count(args); ++round) {
        const Work work = find_work(args, item_index(round));
        if (work.row_tile.segment_count == 0)
            continue;
        const int batch = work.pair / args.heads, head = work.pair % args.heads, kv_head = head / args.group;
        Cursor cursor = first_tile(args, work.row_tile);
        copy_keys(args, maps, shared, n, cursor, kv_head, batch);
        barrier_wait(barrier_at(shared, Q_EMPTY), uses_of_q % 2 ^ 1);
        barrier_expect(barrier_at(shared, Q_FULL), Q_BYTES);
        copy_tile<HEAD_PANELS, TILE_ROWS>(shared, maps.q, args.row_view, barrier_at(shared, Q_FULL),
                                          work.row_tile.tile * TILE_ROWS, head, batch);
        ++uses_of_q;
        bool more;
        do {
            const int column = cursor.column, view = LATTICE ? cursor.code >> 8 : 0;
            const unsigned barrier = barrier_at(shared, V_FULL + stage_of(n));
            more = next_tile(cursor, args);
            if (more)
                copy_keys(args, maps, shared, n + 1, cursor, kv_head, batch);
            barrier_wait(barrier_at(shared, V_EMPTY + stage_of(n)), phase_of(n) ^ 1);
            barrier_expect(barrier, V_BYTES);
            copy_tile<VALUE_PANELS, TILE_COLS>(v_stage(shared, n), maps.v[view], args.column_views[view], barrier, column,
                                               kv_head, batch);
            ++n;
        } while (more);
    }
}

__device__ __forceinline__ unsigned flag_at(unsigned shared, int stage, int checker)
{
    return shared + FLAG_OFFSET + 4 * (stage * CHECKERS + checker);
}

// Warp `checker` of three: looks through its part of the v of every PARTIAL tile. It lets go of FULL tiles too, as consumers do,
// so that it can fall behind them, or run ahead, by no more than the stages.
__device__ __forceinline__ void check_values(const sp_launch_args &args, unsigned shared, int checker)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int n = 0;
    for (int round = 0; item_index(round) < item_count(args); ++round) {
        const Work work = find_work(args, item_index(round));
        if (work.row_tile.segment_count == 0)
            continue;
        Cursor cursor = first_tile(args, work.row_tile);
        do {
            barrier_wait(barrier_at(shared, V_FULL + stage_of(n)), phase_of(n));
            if (kind_of(cursor) != PRED_NONE) {
                unsigned found = 0;
#pragma unroll 2
                for (int chunk = 32 * checker + lane; chunk < V_BYTES / 16; chunk += 32 * CHECKERS) {
                    const Chunk c = load_shared_chunk(v_stage(shared, n) + 16 * chunk);
                    found |= nonfinite_bits(c.word[0]) | nonfinite_bits(c.word[1]) | nonfinite_bits(c.word[2]) |
                             nonfinite_bits(c.word[3]);
                }
                const bool any = warp_any(found != 0);
                if (lane == 0) {
                    store_shared_u32(flag_at(shared, stage_of(n), checker), any);
                    barrier_arrive(barrier_at(shared, V_CHECKED + stage_of(n)));
                }
            }
            release(barrier_at(shared, V_EMPTY + stage_of(n)));
            ++n;
        } while (next_tile(cursor, args));
    }
}

// ---- Consumers ----

__device__ __forceinline__ void take_turn(int group)
{
    if constexpr (TURNS)
        named_sync(TURN + group, 256);
}

__device__ __forceinline__ void pass_turn(int group)
{
    if constexpr (TURNS)
        named_arrive(TURN + (group + 1) % GROUPS, 256);
}

__device__ __forceinline__ void mask_scores(unsigned shared, int n, const Cursor &cursor, int first_row, int tile_row, Scores &s)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    MaskTile tile;
    tile.source.address = mask_stage(shared, n);
    tile.tile_row = tile_row + lane / 4;
    tile.row = first_row + tile.tile_row;
    tile.column = cursor.column + lane % 4 * 2;
    apply_predicate(kind_of(cursor), tile, s);
}

// The v of a PARTIAL tile: when it holds inf or NaN, adds what they bring to o and sets them to zero. `checks` has a bit a stage,
// the phase of its V_CHECKED barrier. All consumers come here together.
__device__ __forceinline__ void settle_values(unsigned shared, int n, unsigned &checks, const Weights &p, Outputs &o)
{
    const int stage = stage_of(n);
    barrier_wait(barrier_at(shared, V_CHECKED + stage), static_cast<int>(checks >> stage & 1));
    checks ^= 1u << stage;
    unsigned found = 0;
#pragma unroll
    for (int checker = 0; checker < CHECKERS; ++checker)
        found |= load_shared_u32(flag_at(shared, stage, checker));
    if (found) {
        const unsigned v_tile = v_stage(shared, n);
        add_nonfinite(p, v_tile, o);
        named_sync(ALL_CONSUMERS, CONSUMERS); // everyone has read them
        for (int chunk = static_cast<int>(threadIdx.x) - 128; chunk < V_BYTES / 16; chunk += CONSUMERS) {
            Chunk c = load_shared_chunk(v_tile + 16 * chunk);
#pragma unroll
            for (int w = 0; w < 4; ++w)
                c.word[w] = clear_nonfinite(c.word[w]);
            store_shared_chunk(v_tile + 16 * chunk, c);
        }
        fence_async_proxy();
        named_sync(ALL_CONSUMERS, CONSUMERS);
    }
}

// The 16 rows of a warp, `tile_row` the first: divides by the sums, or merges, writes lse, and takes o through shared memory to
// whole-chunk stores. Chunks are swizzled like a tile's, so that neither way meets a bank conflict.
__device__ __forceinline__ void store_results(const sp_launch_args &args, unsigned o_warp, const Work &work, int tile_row,
                                              const RowValues &row_max, const RowValues &row_sum, Outputs &o)
{
    const int batch = work.pair / args.heads, head = work.pair % args.heads;
    const RowMap rows = map_rows(args, work.row_tile.tile);
    char *o_head = static_cast<char *>(args.o) + 2 * (batch * args.o_batch + head * args.o_head);
    float *lse_head = args.lse ? args.lse + (batch * args.lse_batch + head * args.lse_head) : nullptr;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    warp_barrier(); // the results before these have been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = 8 * half + g, query = query_of(rows, tile_row + row);
        float sum = row_sum[0][half];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        const bool empty = sum == 0.0f;
        float inverse = empty ? 0.0f : 1.0f / sum;
        float lse = empty ? -infinity() : row_max[0][half] * args.scale + log2_approx(sum) * 0.693147181f;
        if constexpr (MERGE)
            if (args.merge) {
                const bool present = query < args.q_len;
                const char *old = o_head + (present ? query : 0) * (2 * args.o_row) + 4 * t;
                const float before = present ? lse_head[query] : -infinity();
                if (half)
                    lse = merge_row<1>(o, 0, sum, lse, before, reinterpret_cast<const unsigned *>(old));
                else
                    lse = merge_row<0>(o, 0, sum, lse, before, reinterpret_cast<const unsigned *>(old));
                inverse = 1.0f;
                warp_barrier(); // lanes of a row have read its lse
            }
#pragma unroll
        for (int block = 0; block < VALUE_BLOCKS; ++block)
            store_shared_u32(o_warp + row * O_PITCH + (block ^ g) * 16 + 4 * t,
                             pack(o[0][block][2 * half] * inverse, o[0][block][2 * half + 1] * inverse));
        if (lse_head && t == 0 && query < args.q_len)
            lse_head[query] = lse;
    }
    warp_barrier();
#pragma unroll 4
    for (int index = lane; index < 16 * VALUE_BLOCKS; index += 32) {
        const int row = index / VALUE_BLOCKS, block = index % VALUE_BLOCKS, query = query_of(rows, tile_row + row);
        if (query < args.q_len)
            *reinterpret_cast<Chunk *>(o_head + query * (2 * args.o_row) + 16 * block) =
                load_shared_chunk(o_warp + row * O_PITCH + (block ^ row % 8) * 16);
    }
}

// Rows with nothing allowed: o = 0, lse = -inf, past shared memory. A launch that merges leaves them as they are.
__device__ __forceinline__ void store_empty_rows(const sp_launch_args &args, const Work &work, int tile_row)
{
    if (MERGE && args.merge)
        return;
    const int batch = work.pair / args.heads, head = work.pair % args.heads, lane = static_cast<int>(threadIdx.x) % 32;
    const RowMap rows = map_rows(args, work.row_tile.tile);
    char *o_head = static_cast<char *>(args.o) + 2 * (batch * args.o_batch + head * args.o_head);
    for (int index = lane; index < 16 * VALUE_BLOCKS; index += 32) {
        const int query = query_of(rows, tile_row + index / VALUE_BLOCKS);
        if (query < args.q_len)
            *reinterpret_cast<Chunk *>(o_head + query * (2 * args.o_row) + index % VALUE_BLOCKS * 16) = Chunk{};
    }
    const int query = query_of(rows, tile_row + lane % 16);
    if (args.lse && lane < 16 && query < args.q_len)
        args.lse[batch * args.lse_batch + head * args.lse_head + query] = -infinity();
}

__device__ __forceinline__ void consume(const sp_launch_args &args, unsigned shared, int group)
{
    const int warp = warp_uniform(static_cast<int>(threadIdx.x) % 128 / 32);
    const int tile_row = 64 * group + 16 * warp; // the warp's first, within the tile
    const unsigned o_warp = shared + O_OFFSET + tile_row * O_PITCH;
    const sp_i64 q_matrix = matrix_k_major(shared + 64 * 128 * group);
    int n = 0, uses_of_q = 0;
    unsigned checks = 0;
    if (group == GROUPS - 1)
        pass_turn(group);
    for (int round = 0; item_index(round) < item_count(args); ++round) {
        const Work work = find_work(args, item_index(round));
        const int first_row = work.row_tile.tile * TILE_ROWS;
        Outputs o;
        RowValues row_max, row_sum, factors;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            row_max[0][half] = -infinity();
            row_sum[0][half] = 0.0f;
        }
#pragma unroll
        for (int block = 0; block < VALUE_BLOCKS; ++block)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                o[0][block][x] = 0.0f;

        if (work.row_tile.segment_count > 0) {
            Scores s;
            Weights p;
            Cursor cursor = first_tile(args, work.row_tile);
            barrier_wait(barrier_at(shared, Q_FULL), uses_of_q % 2);
            barrier_wait(barrier_at(shared, K_FULL + stage_of(n)), phase_of(n));
            take_turn(group);
            wgmma_fence();
            multiply_scores(s, q_matrix, matrix_k_major(k_stage(shared, n)));
            wgmma_commit();
            pass_turn(group);
            wgmma_wait<0>();
            hold_all(s);
            release(barrier_at(shared, K_EMPTY + stage_of(n)));
            bool masked = kind_of(cursor) != PRED_NONE;
            if (masked)
                mask_scores(shared, n, cursor, first_row, tile_row, s);
            softmax(s, row_max, row_sum, factors, args.scale_log2);
            pack_weights(s, p);

            while (next_tile(cursor, args)) {
                // n is the tile whose weights are in p; the cursor is at the next.
                if (masked)
                    settle_values(shared, n, checks, p, o);
                barrier_wait(barrier_at(shared, K_FULL + stage_of(n + 1)), phase_of(n + 1));
                take_turn(group);
                wgmma_fence();
                multiply_scores(s, q_matrix, matrix_k_major(k_stage(shared, n + 1)));
                wgmma_commit();
                barrier_wait(barrier_at(shared, V_FULL + stage_of(n)), phase_of(n));
                wgmma_fence();
                multiply_values(o, p, matrix_mn_major(v_stage(shared, n), TILE_COLS));
                wgmma_commit();
                pass_turn(group);
                wgmma_wait<1>();
                hold_all(s);
                release(barrier_at(shared, K_EMPTY + stage_of(n + 1)));
                masked = kind_of(cursor) != PRED_NONE;
                if (masked)
                    mask_scores(shared, n + 1, cursor, first_row, tile_row, s);
                softmax(s, row_max, row_sum, factors, args.scale_log2);
                wgmma_wait<0>();
                hold_all(o);
                release(barrier_at(shared, V_EMPTY + stage_of(n)));
                // Once the maxima have settled, which is soon, nothing is left to rescale.
                if (warp_any(factors[0][0] != 1.0f || factors[0][1] != 1.0f))
                    rescale(o, factors);
                pack_weights(s, p);
                ++n;
            }

            if constexpr (!O_IN_Q)
                release(barrier_at(shared, Q_EMPTY));
            if (masked)
                settle_values(shared, n, checks, p, o);
            barrier_wait(barrier_at(shared, V_FULL + stage_of(n)), phase_of(n));
            wgmma_fence();
            multiply_values(o, p, matrix_mn_major(v_stage(shared, n), TILE_COLS));
            wgmma_commit();
            wgmma_wait<0>();
            hold_all(o);
            release(barrier_at(shared, V_EMPTY + stage_of(n)));
            ++n;
            ++uses_of_q;
        }

        if (work.row_tile.segment_count == 0) {
            store_empty_rows(args, work, tile_row);
            continue;
        }
        if constexpr (O_IN_Q)
            named_sync(ALL_CONSUMERS, CONSUMERS); // no consumer still reads q, whose memory the results take
        store_results(args, o_warp, work, tile_row, row_max, row_sum, o);
        if constexpr (O_IN_Q) {
            fence_async_proxy();
            warp_barrier();
            release(barrier_at(shared, Q_EMPTY));
        }
    }
}

// ---- The kernel ----

// Grid: any number of blocks; as many as the chip runs at once, or one a work item (row tiles * batch * heads of them). Block: THREADS.
// Dynamic shared memory: SHARED_BYTES.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    splat_attention(const __grid_constant__ sp_launch_args args, const __grid_constant__ TensorMaps maps)
{
    const unsigned shared = (shared_base() + 1023) & ~1023u;
    const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
    if (threadIdx.x == 0)
        init_barriers(shared);
    block_barrier();
    if (warp < 4) {
        registers_down_to<PRODUCER_REGISTERS>();
        if (warp == 0) {
            if (elect_lane())
                produce(args, maps, shared);
        } else if constexpr (HAS_PARTIAL) {
            check_values(args, shared, warp - 1);
        }
    } else {
        registers_up_to<CONSUMER_REGISTERS>();
        consume(args, shared, warp / 4 - 1);
    }
}
