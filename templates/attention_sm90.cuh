// Fused attention forward for Hopper: the contract of attention_sm80.cuh, by bulk tensor copies and warpgroup products.
//
// Takes struct sp_launch_args and the tensor maps of q, k and v under the plan's views. A block has one producer warpgroup and
// one consumer warpgroup for each 64 rows of its row tile. One thread of the producer walks the plan: it keeps copies of q, k and
// v under way and leaves a record beside each, so that consumers read nothing from global memory but results to merge. A
// consumer multiplies q k^T of tile t + 1 while p v of tile t is under way, and does the softmax of t + 1 under p v of t;
// consumers take turns in issuing products, so that one's softmax runs under another's products. Blocks are persistent: each
// takes work items in turn, and the next item's q, k and v are on their way while this one is computed.
//
// Masked keys have weight 0, and 0 * NaN would be NaN. That v holds neither NaN nor inf is assumed and, for items with PARTIAL
// tiles, found out afterwards: such an item with a result that is not finite is left for later, and done again by the careful
// way, in which the producer's other warps look through the v of every PARTIAL tile before it is multiplied.
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
// splat:end

// splat:region(ptx_sm90)
#include "ptx_sm90.cuh"
// splat:end

// ---- Sizes ----

constexpr int GROUPS = TILE_ROWS / 64;      // consumer warpgroups
constexpr int CONSUMERS = 128 * GROUPS;     // threads
constexpr int THREADS = CONSUMERS + 128;    // and the producer
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
constexpr bool TURNS = GROUPS > 1 && VALUE_DIM <= 128;
constexpr bool CHAINED = Q_STAGES > 1 && GROUPS < 3; // registers hold an item's results and the next one's first scores
constexpr bool FETCH_TOGETHER = VALUE_DIM + TILE_COLS <= 192 && BLOCKS_PER_SM < 3; // registers hold all it merges with
constexpr int VIEWS = LATTICE ? 2 : 1;      // of the columns
constexpr int LENGTHS = LATTICE ? 2 : 1;    // of a view's zones: whole grid rows, and one more
constexpr int CHECKERS = 3;                 // warps that look through v

// Barriers: q, k and v have landed (FULL) or been used (EMPTY), and v has been looked through.
enum Barrier {
    Q_FULL,
    Q_EMPTY = Q_FULL + Q_STAGES,
    K_FULL = Q_EMPTY + Q_STAGES,
    K_EMPTY = K_FULL + STAGES,
    V_FULL = K_EMPTY + STAGES,
    V_EMPTY = V_FULL + STAGES,
    V_CHECKED = V_EMPTY + STAGES,
    BARRIERS = V_CHECKED + STAGES
};

// Named barriers: one a consumer warpgroup for its turn, one of all consumers.
enum Name { TURN = 1, ALL_CONSUMERS = TURN + 3 };

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

// An item that turned out not to be finite, as the number of its round, by that number modulo LATER_SLOTS.
constexpr int LATER_SLOTS = 8;
constexpr int NEVER = 0x7fffffff;
constexpr int CAREFUL_LAG = 6; // items from the one that was not finite to the first that is done the careful way

// An item's record is read once more when its results are stored, when the q of the second item after it may be under way.
constexpr int ITEM_RECORDS = 4;
constexpr int ITEM_RECORD_BYTES = 48;

// Where things lie, from the first multiple of 1024 in shared memory.
constexpr int K_OFFSET = Q_STAGES * Q_BYTES;
constexpr int V_OFFSET = K_OFFSET + STAGES * K_BYTES;
constexpr int MASK_OFFSET = V_OFFSET + STAGES * V_BYTES;
constexpr int TILE_RECORD_OFFSET = MASK_OFFSET + 2 * STAGES * MASK_BYTES;
constexpr int ITEM_RECORD_OFFSET = TILE_RECORD_OFFSET + 2 * STAGES * 16;
constexpr int LATER_OFFSET = ITEM_RECORD_OFFSET + ITEM_RECORDS * ITEM_RECORD_BYTES; // LATER_SLOTS rounds, then the first careful item
constexpr int BARRIER_OFFSET = LATER_OFFSET + 4 * LATER_SLOTS + 8;
constexpr int FLAG_OFFSET = BARRIER_OFFSET + 8 * 24;
constexpr int LAYOUT_BYTES = FLAG_OFFSET + 4 * 4 * CHECKERS + 1024;

static_assert(BARRIERS <= 24 && STAGES <= 4, "room for the barriers and flags");
static_assert(Q_STAGES == 1 || Q_STAGES == 2, "one or two items' q");
static_assert(TILE_ROWS % 64 == 0 && GROUPS <= 3, "64 rows a consumer, at most three");
static_assert(TILE_COLS % 32 == 0 && TILE_COLS <= 256, "a row of a bitmask is whole words");
static_assert(HEAD_DIM % 8 == 0 && VALUE_DIM % 8 == 0, "rows are whole chunks");
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

// A block's items, or -1 after the last: by the schedule, which gives each item to the block that is free first; without one,
// forwards through the grid in one round and backwards in the next. Items come longest first, so that each block gets long and
// short ones alike.
__device__ __forceinline__ int item_index(const sp_launch_args &args, int items, int round)
{
    const int block = static_cast<int>(block_index());
    if (args.schedule) {
        const int *schedule = static_cast<const int *>(args.schedule);
        const int at = schedule[block] + round;
        return at < schedule[block + 1] ? schedule[at] : -1;
    }
    const int grid = grid_size(), index = round * grid + (round % 2 ? grid - 1 - block : block);
    return index < items ? index : -1;
}

__device__ __forceinline__ int item_count(const sp_launch_args &args)
{
    return args.row_tile_count * args.batch * args.heads;
}

// What the producer leaves beside the k of a tile.
struct TileRecord {
    int what;   // the kind of its predicate, and flags
    int column; // position of the tile's first column
    int item;   // counts the block's items
    int view;   // of the columns
};

constexpr int LAST = 0x100;   // of its item
constexpr int NO_TILE = 0xff; // after the last tile

__device__ __forceinline__ int kind_of(int what)
{
    return what & 0xff;
}

// What it leaves beside the q of an item.
struct ItemRecord {
    int tile;  // the row tile; NO_ITEM after the last
    int tiles; // segments of column tiles
    int round; // of the block's items; for one that is done again, -1 - the place where it was kept for later
    int slot;  // of a part of a row tile, or 0
};

// And what it works out for storing its results: consumers have better to do than divide.
struct ItemPlace {
    sp_i64 o, lse; // of the (batch, head): bytes into o, floats into lse; of a part: its first row in both
    Place rows;    // with views: where the row tile begins
    int heads;     // with FOLD: as in RowMap
};

constexpr int NO_ITEM = -1;

// ---- Stages ----

// The n-th tile of a block uses stage n % STAGES, its n-th item that of q; the phase of its barriers alternates.
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

__device__ __forceinline__ unsigned q_stage(unsigned shared, int item)
{
    return shared + item % Q_STAGES * Q_BYTES;
}

__device__ __forceinline__ unsigned k_stage(unsigned shared, int n)
{
    return shared + K_OFFSET + stage_of(n) * K_BYTES;
}

__device__ __forceinline__ unsigned v_stage(unsigned shared, int n)
{
    return shared + V_OFFSET + stage_of(n) * V_BYTES;
}

// Masks and records are read until after their k has been let go; with twice the stages, they are not overwritten before their
// v has been.
__device__ __forceinline__ unsigned mask_stage(unsigned shared, int n)
{
    return shared + MASK_OFFSET + n % (2 * STAGES) * MASK_BYTES;
}

__device__ __forceinline__ unsigned tile_record_at(unsigned shared, int n)
{
    return shared + TILE_RECORD_OFFSET + n % (2 * STAGES) * 16;
}

__device__ __forceinline__ unsigned item_record_at(unsigned shared, int item)
{
    return shared + ITEM_RECORD_OFFSET + item % ITEM_RECORDS * ITEM_RECORD_BYTES;
}

__device__ __forceinline__ TileRecord read_tile(unsigned shared, int n)
{
    const Chunk c = load_shared_chunk(tile_record_at(shared, n));
    return TileRecord{static_cast<int>(c.word[0]), static_cast<int>(c.word[1]), static_cast<int>(c.word[2]),
                      static_cast<int>(c.word[3])};
}

__device__ __forceinline__ int read_what(unsigned shared, int n)
{
    return static_cast<int>(load_shared_u32(tile_record_at(shared, n)));
}

__device__ __forceinline__ ItemRecord read_item(unsigned shared, int item)
{
    const Chunk c = load_shared_chunk(item_record_at(shared, item));
    return ItemRecord{static_cast<int>(c.word[0]), static_cast<int>(c.word[1]), static_cast<int>(c.word[2]),
                      static_cast<int>(c.word[3])};
}

__device__ __forceinline__ sp_i64 wide(unsigned low, unsigned high)
{
    return static_cast<sp_i64>(static_cast<unsigned long long>(high) << 32 | low);
}

__device__ __forceinline__ ItemPlace read_place(unsigned shared, int item)
{
    const Chunk a = load_shared_chunk(item_record_at(shared, item) + 16);
    ItemPlace place;
    place.o = wide(a.word[0], a.word[1]);
    place.lse = wide(a.word[2], a.word[3]);
    if constexpr (LATTICE || FOLD) {
        const Chunk b = load_shared_chunk(item_record_at(shared, item) + 32);
        place.rows.x = static_cast<int>(b.word[0]);
        place.rows.y = static_cast<int>(b.word[1]);
        place.heads = static_cast<int>(b.word[2]);
        if constexpr (CUT_ZONES)
            place.rows.longer = static_cast<int>(b.word[3]);
    }
    return place;
}

__device__ __forceinline__ void write_record(unsigned at, int a, int b, int c, int d)
{
    Chunk chunk;
    chunk.word[0] = static_cast<unsigned>(a);
    chunk.word[1] = static_cast<unsigned>(b);
    chunk.word[2] = static_cast<unsigned>(c);
    chunk.word[3] = static_cast<unsigned>(d);
    store_shared_chunk(at, chunk);
}

__device__ __forceinline__ void write_wide(unsigned at, sp_i64 value)
{
    store_shared_u32(at, static_cast<unsigned>(value));
    store_shared_u32(at + 4, static_cast<unsigned>(value >> 32));
}

__device__ __forceinline__ void init_shared(unsigned shared)
{
    for (int stage = 0; stage < Q_STAGES; ++stage) {
        barrier_init(barrier_at(shared, Q_FULL + stage), 1);
        barrier_init(barrier_at(shared, Q_EMPTY + stage), CONSUMERS / 32);
    }
    for (int stage = 0; stage < STAGES; ++stage) {
        barrier_init(barrier_at(shared, K_FULL + stage), 1);
        barrier_init(barrier_at(shared, K_EMPTY + stage), CONSUMERS / 32);
        barrier_init(barrier_at(shared, V_FULL + stage), 1);
        barrier_init(barrier_at(shared, V_EMPTY + stage), CONSUMERS / 32 + (HAS_PARTIAL ? CHECKERS : 0));
        barrier_init(barrier_at(shared, V_CHECKED + stage), CHECKERS);
    }
    barrier_init_fence();
    for (int slot = 0; slot < LATER_SLOTS; ++slot)
        store_shared_u32(shared + LATER_OFFSET + 4 * slot, NEVER);
    store_shared_u32(shared + LATER_OFFSET + 4 * LATER_SLOTS, NEVER);
}

// Each warp says for itself that it is done.
__device__ __forceinline__ void release(unsigned barrier)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

// ---- The careful way ----

// A consumer that finishes item i sets the first careful item to i + CAREFUL_LAG at most. No one begins an item before all
// consumers have finished the fourth before it, so everyone who begins that one has seen it.
__device__ __forceinline__ bool is_careful(unsigned shared, int item)
{
    return item >= load_shared_relaxed(shared + LATER_OFFSET + 4 * LATER_SLOTS);
}

__device__ __forceinline__ void leave_for_later(unsigned shared, int item, int round)
{
    atomic_min_shared(shared + LATER_OFFSET + 4 * (item % LATER_SLOTS), round);
    atomic_min_shared(shared + LATER_OFFSET + 4 * LATER_SLOTS, item + CAREFUL_LAG);
}

__device__ __forceinline__ int round_for_later(unsigned shared, int slot)
{
    return static_cast<int>(load_shared_u32(shared + LATER_OFFSET + 4 * slot));
}

__device__ __forceinline__ bool anything_for_later(unsigned shared)
{
    bool any = false;
    for (int slot = 0; slot < LATER_SLOTS; ++slot)
        any |= round_for_later(shared, slot) != NEVER;
    return any;
}

// Whether there is a phase `phase`: items were left for later in the first, and all are careful in the second. The whole block
// comes here.
__device__ __forceinline__ bool another_phase(unsigned shared, int phase)
{
    if (!HAS_PARTIAL || phase > 1)
        return false;
    block_barrier();
    if (threadIdx.x == 0)
        store_shared_u32(shared + LATER_OFFSET + 4 * LATER_SLOTS, 0);
    block_barrier();
    return anything_for_later(shared);
}

// ---- Producer ----

// Where the producer is: the block's tiles and items so far.
struct Progress {
    int n, item;
};

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

// The column tiles of an item that are still to be copied: those of a segment, the first of them at hand, and of the segments
// after it.
struct Rest {
    sp_segment segment;
    int next, end; // segments after this one
};

__device__ __forceinline__ bool is_last(const Rest &rest)
{
    return rest.segment.count == 1 && rest.next == rest.end;
}

__device__ __forceinline__ void take_segment(const sp_launch_args &args, Rest &rest)
{
    rest.segment = static_cast<const sp_segment *>(args.segments)[rest.next++];
}

__device__ __forceinline__ void step(const sp_launch_args &args, Rest &rest)
{
    if (--rest.segment.count > 0) {
        ++rest.segment.first;
        rest.segment.predicate += rest.segment.code >> 4 & 1;
    } else {
        take_segment(args, rest);
    }
}

// The n-th tile's k, its record, and what it needs to know if it is PARTIAL.
__device__ __forceinline__ void copy_keys(const sp_launch_args &args, const TensorMaps &maps, unsigned shared,
                                          const Progress &at, const Rest &rest, int head, int batch)
{
    const sp_segment &segment = rest.segment;
    const int view = LATTICE ? segment.code >> 8 : 0, kind = HAS_PARTIAL ? segment.code & 15 : static_cast<int>(PRED_NONE);
    const int column = segment.first * TILE_COLS;
    const unsigned barrier = barrier_at(shared, K_FULL + stage_of(at.n));
    barrier_wait(barrier_at(shared, K_EMPTY + stage_of(at.n)), phase_of(at.n) ^ 1);
    write_record(tile_record_at(shared, at.n), kind | (is_last(rest) ? LAST : 0), column, at.item, view);
    int bytes = 0;
    if (kind != PRED_NONE) {
        const char *mask = mask_data(args, kind, segment.predicate, bytes);
        barrier_expect(barrier, K_BYTES + bytes);
        copy_bulk(mask_stage(shared, at.n), mask, bytes, barrier);
    } else {
        barrier_expect(barrier, K_BYTES);
    }
    copy_tile<HEAD_PANELS, TILE_COLS>(k_stage(shared, at.n), maps.k[view], args.column_views[view], barrier, column, head,
                                      batch);
}

// The n-th tile's v: its record says where it lies.
__device__ __forceinline__ void copy_values(const sp_launch_args &args, const TensorMaps &maps, unsigned shared, int n,
                                            int head, int batch)
{
    const TileRecord tile = read_tile(shared, n);
    const int view = LATTICE ? tile.view : 0;
    const unsigned barrier = barrier_at(shared, V_FULL + stage_of(n));
    barrier_wait(barrier_at(shared, V_EMPTY + stage_of(n)), phase_of(n) ^ 1);
    barrier_expect(barrier, V_BYTES);
    copy_tile<VALUE_PANELS, TILE_COLS>(v_stage(shared, n), maps.v[view], args.column_views[view], barrier, tile.column,
                                       head, batch);
}

// The record of an item, and its q unless it has no tiles.
__device__ __forceinline__ void copy_queries(const sp_launch_args &args, const TensorMaps &maps, unsigned shared, int item,
                                             const Work &work, const Pair &pair, int round)
{
    const int stage = item % Q_STAGES;
    const unsigned barrier = barrier_at(shared, Q_FULL + stage);
    barrier_wait(barrier_at(shared, Q_EMPTY + stage), item / Q_STAGES % 2 ^ 1);
    const unsigned record = item_record_at(shared, item);
    const int slot = SPLIT ? work.row_tile.slot : 0;
    write_record(record, work.row_tile.tile, work.row_tile.segment_count, round, slot);
    if (SPLIT && slot) {
        const sp_i64 first = part_row(args, slot, work.pair, 0);
        write_wide(record + 16, first);
        write_wide(record + 24, first);
    } else {
        write_wide(record + 16, 2 * (pair.batch * args.o_batch + pair.head * args.o_head));
        write_wide(record + 24, pair.batch * args.lse_batch + pair.head * args.lse_head);
    }
    if constexpr (LATTICE || FOLD) {
        const QueryMap rows = map_queries(args, work.row_tile.tile, pair);
        write_record(record + 32, rows.rows.place.x, rows.rows.place.y, rows.heads, CUT_ZONES ? rows.rows.place.longer : 0);
    }
    if (work.row_tile.segment_count == 0) {
        barrier_arrive(barrier);
        return;
    }
    barrier_expect(barrier, Q_BYTES);
    const int row = work.row_tile.tile * TILE_ROWS;
    if constexpr (FOLD) {
        for (int panel = 0; panel < HEAD_PANELS; ++panel)
            copy_tensor(q_stage(shared, item) + panel * TILE_ROWS * 128, &maps.q[0], barrier, 64 * panel, pair.first,
                        row >> args.fold_log2, pair.kv_head, pair.batch);
    } else {
        copy_tile<HEAD_PANELS, TILE_ROWS>(q_stage(shared, item), maps.q, args.row_view, barrier, row, pair.head,
                                          pair.batch);
    }
}

// All copies of one item; k runs one tile ahead of v.
__device__ __forceinline__ void produce_item(const sp_launch_args &args, const TensorMaps &maps, unsigned shared,
                                             Progress &at, const Work &work, int round)
{
    const Pair pair = pair_of(args, work.pair);
    copy_queries(args, maps, shared, at.item, work, pair, round);
    const int batch = pair.batch, head = pair.kv_head;
    Rest rest;
    rest.next = work.row_tile.segment;
    rest.end = work.row_tile.segment + work.row_tile.segment_count;
    bool more = rest.next < rest.end;
    if (more) {
        take_segment(args, rest);
        copy_keys(args, maps, shared, at, rest, head, batch);
    }
    while (more) {
        more = !is_last(rest);
        ++at.n;
        if (more) {
            step(args, rest);
            copy_keys(args, maps, shared, at, rest, head, batch);
        }
        copy_values(args, maps, shared, at.n - 1, head, batch);
    }
    ++at.item;
}

// Tells consumers and checkers that there is nothing more.
__device__ __forceinline__ void produce_end(unsigned shared, Progress &at)
{
    barrier_wait(barrier_at(shared, K_EMPTY + stage_of(at.n)), phase_of(at.n) ^ 1);
    write_record(tile_record_at(shared, at.n), NO_TILE, 0, at.item, 0);
    barrier_arrive(barrier_at(shared, K_FULL + stage_of(at.n)));
    barrier_wait(barrier_at(shared, V_EMPTY + stage_of(at.n)), phase_of(at.n) ^ 1);
    barrier_arrive(barrier_at(shared, V_FULL + stage_of(at.n)));
    ++at.n;
    const int stage = at.item % Q_STAGES;
    barrier_wait(barrier_at(shared, Q_EMPTY + stage), at.item / Q_STAGES % 2 ^ 1);
    write_record(item_record_at(shared, at.item), NO_ITEM, 0, 0, 0);
    barrier_arrive(barrier_at(shared, Q_FULL + stage));
    ++at.item;
}

// One thread. Phase 0: the block's items in turn. Phase 1: those left for later.
__device__ __forceinline__ void produce(const sp_launch_args &args, const TensorMaps &maps, unsigned shared, int phase,
                                        Progress &at)
{
    const int items = item_count(args);
#pragma unroll 1
    for (int k = 0; phase == 0 || k < LATER_SLOTS; ++k) {
        const int round = phase == 0 ? k : round_for_later(shared, k);
        if (phase > 0 && round == NEVER)
            continue;
        const int index = item_index(args, items, round);
        if (index < 0)
            break;
        produce_item(args, maps, shared, at, find_work(args, index), phase == 0 ? round : -1 - k);
    }
    produce_end(shared, at);
}

__device__ __forceinline__ unsigned flag_at(unsigned shared, int stage, int checker)
{
    return shared + FLAG_OFFSET + 4 * (stage * CHECKERS + checker);
}

// Warp `checker` of three: in careful items, looks through its part of the v of every PARTIAL tile. It lets go of all tiles, as
// consumers do, so that it can fall behind them, or run ahead, by no more than the stages.
__device__ __forceinline__ void check_values(unsigned shared, int checker, int &n)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (;; ++n) {
        barrier_wait(barrier_at(shared, V_FULL + stage_of(n)), phase_of(n));
        const TileRecord tile = read_tile(shared, n);
        const int kind = kind_of(tile.what);
        if (kind != PRED_NONE && kind != NO_TILE && is_careful(shared, tile.item)) {
            unsigned found = 0;
#pragma unroll 1
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
        warp_barrier(); // all lanes have read the record
        release(barrier_at(shared, V_EMPTY + stage_of(n)));
        if (kind == NO_TILE)
            break;
    }
    ++n;
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

// The n-th tile, of the block's item `item`. Where it lies is read from the records: few tiles need it.
__device__ __forceinline__ void mask_scores(unsigned shared, int n, int item, int kind, int tile_row, Scores &s)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    MaskTile tile;
    tile.source.address = mask_stage(shared, n);
    tile.tile_row = tile_row + lane / 4;
    tile.row = read_item(shared, item).tile * TILE_ROWS + tile.tile_row;
    tile.column = read_tile(shared, n).column + lane % 4 * 2;
    apply_predicate(kind, tile, s);
}

// The v of a PARTIAL tile of a careful item: when it holds inf or NaN, adds what they bring to o and sets them to zero. All
// consumers come here together.
__device__ __forceinline__ void settle_values(unsigned shared, int n, unsigned &flags, const Weights &p, Outputs &o)
{
    const int stage = stage_of(n);
    barrier_wait(barrier_at(shared, V_CHECKED + stage), static_cast<int>(flags >> stage & 1));
    flags ^= 1u << stage;
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

// Whether one of the warp's results is inf or NaN.
__device__ __forceinline__ bool any_nonfinite(const Outputs &o)
{
    float zero[4] = {};
#pragma unroll
    for (int block = 0; block < VALUE_BLOCKS; ++block)
#pragma unroll
        for (int x = 0; x < 4; ++x)
            zero[x] = fmaf(o[0][block][x], 0.0f, zero[x]);
    return warp_any(zero[0] + zero[1] + (zero[2] + zero[3]) != 0.0f); // NaN is not 0
}

// Four words of each of four lanes: lane t gets the t-th word of every lane, in the order of the lanes.
__device__ __forceinline__ void transpose_quad(unsigned (&word)[4], int t)
{
#pragma unroll
    for (int step = 1; step <= 2; ++step)
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if ((k & step) == 0) {
                const unsigned got = shuffle_xor_u32(t & step ? word[k] : word[k + step], step);
                word[k] = t & step ? got : word[k];
                word[k + step] = t & step ? word[k + step] : got;
            }
}

// Eight rows of results, times a factor each, to memory: `to` is the row of this lane, or null where there is none. Lanes trade
// words so that each has whole chunks.
template <int HALF> __device__ __forceinline__ void store_rows(const Outputs &o, float factor, char *to)
{
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int first = 0; first < VALUE_BLOCKS; first += 4) {
        unsigned word[4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (first + k < VALUE_BLOCKS)
                word[k] = pack(o[0][first + k][2 * HALF] * factor, o[0][first + k][2 * HALF + 1] * factor);
        if (first + 4 <= VALUE_BLOCKS) {
            transpose_quad(word, t);
            Chunk chunk;
#pragma unroll
            for (int k = 0; k < 4; ++k)
                chunk.word[k] = word[k];
            if (to)
                *reinterpret_cast<Chunk *>(to + 16 * (first + t)) = chunk;
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (first + k < VALUE_BLOCKS && to)
                    *reinterpret_cast<unsigned *>(to + 16 * (first + k) + 4 * t) = word[k];
        }
    }
}

// Where a thread's two rows go: null where there is none.
struct ResultRows {
    char *o[2];
    float *lse[2];
};

__device__ __forceinline__ QueryMap rows_of(const sp_launch_args &args, unsigned shared, int item, const ItemPlace &place)
{
    QueryMap map;
    map.rows.first = read_item(shared, item).tile * TILE_ROWS;
    map.rows.view = &args.row_view;
    map.rows.place = place.rows;
    map.heads = place.heads;
    return map;
}

__device__ __forceinline__ ResultRows result_rows(const sp_launch_args &args, unsigned shared, int item, int tile_row)
{
    const ItemPlace place = read_place(shared, item);
    const QueryMap rows = rows_of(args, shared, item, place);
    ResultRows to;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const RowOwner owner = owner_of(args, rows, tile_row + 8 * half + static_cast<int>(threadIdx.x) % 32 / 4);
        to.o[half] = owner.present ? static_cast<char *>(args.o) + place.o + o_offset(args, owner) : nullptr;
        to.lse[half] = owner.present && args.lse ? args.lse + place.lse + lse_offset(args, owner) : nullptr;
    }
    return to;
}

__device__ __forceinline__ bool is_part(unsigned shared, int item)
{
    return SPLIT && read_item(shared, item).slot;
}

// A row of each quad of lanes: divides by the sum, or merges, and writes o and lse.
template <int HALF, class Old>
__device__ __forceinline__ void store_half(const sp_launch_args &args, const ResultRows &to, float row_max, float row_sum,
                                           float before, const Old &old, Outputs &o)
{
    float sum = row_sum;
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const bool empty = sum == 0.0f;
    float factor = empty ? 0.0f : reciprocal(sum);
    float lse = empty ? -infinity() : row_max * args.scale + log2_approx(sum) * 0.693147181f;
    if constexpr (MERGE)
        if (args.merge) {
            lse = merge_row<HALF>(o, 0, sum, lse, before, old);
            factor = 1.0f;
            warp_barrier(); // lanes of a row have read its lse and its outputs
        }
    store_rows<HALF>(o, factor, to.o[HALF]);
    if (to.lse[HALF] && threadIdx.x % 4 == 0)
        *to.lse[HALF] = lse;
}

// A row of each quad of lanes of a part of a row tile, to the workspace.
template <int HALF>
__device__ __forceinline__ void store_part_half(const sp_launch_args &args, unsigned shared, int item, int tile_row,
                                                float row_max, float row_sum, const Outputs &o)
{
    const ItemPlace place = read_place(shared, item);
    const int row = tile_row + 8 * HALF + static_cast<int>(threadIdx.x) % 32 / 4;
    const bool present = owner_of(args, rows_of(args, shared, item, place), row).present;
    float sum = row_sum;
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const bool empty = sum == 0.0f;
    store_part<HALF>(o, 0, empty ? 0.0f : reciprocal(sum), present ? args.part_o + (place.o + row) * VALUE_DIM : nullptr);
    if (present && threadIdx.x % 4 == 0)
        args.part_lse[place.lse + row] = empty ? -infinity() : row_max * args.scale + log2_approx(sum) * 0.693147181f;
}

// Rows with nothing allowed: o = 0, lse = -inf. A launch that merges leaves them as they are.
__device__ __forceinline__ void store_empty_rows(const sp_launch_args &args, unsigned shared, int item, int tile_row)
{
    if (MERGE && args.merge)
        return;
    const ResultRows to = result_rows(args, shared, item, tile_row);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        for (int block = static_cast<int>(threadIdx.x) % 4; block < VALUE_BLOCKS && to.o[half]; block += 4)
            *reinterpret_cast<Chunk *>(to.o[half] + 16 * block) = Chunk{};
        if (to.lse[half] && threadIdx.x % 4 == 0)
            *to.lse[half] = -infinity();
    }
}

// What a consumer keeps of the item it is at.
struct Running {
    Outputs o;
    RowValues row_max, row_sum;
    unsigned flags;
};

// Bit s of the flags, s < STAGES, is the phase of that stage's V_CHECKED barrier.
constexpr unsigned CAREFUL = 0x100; // the item's v is looked through
constexpr unsigned UNSURE = 0x200;  // it has a PARTIAL tile whose v was not: what is not finite may come of masked keys
constexpr unsigned SETTLED = 0x400; // every row of the warp has a maximum, which serves for the tiles to come
constexpr unsigned LOST = 0x800;    // but one of them had scores so much larger that their weights were not finite
constexpr unsigned LEFT = 0x10000;  // and the bits after it: the warp left the item in that place for later

// A thread's sum of weights from which on the row's maximum is raised after all. No weight is larger, and so all are finite in fp16.
constexpr float SUM_LIMIT = 16384.0f;

// Brings what the launches before left for the warp's rows closer.
__device__ __forceinline__ void prefetch_results(const sp_launch_args &args, unsigned shared, int item, int tile_row)
{
    const ItemPlace place = read_place(shared, item);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const RowOwner owner = owner_of(args, rows_of(args, shared, item, place), tile_row + lane / 2);
    if (owner.present && !is_part(shared, item))
        for (int byte = lane % 2 * 128; byte < 2 * VALUE_DIM; byte += 256)
            prefetch_l2(static_cast<const char *>(args.o) + place.o + o_offset(args, owner) + byte);
}

__device__ __forceinline__ void begin(const sp_launch_args &args, Running &r, unsigned shared, int item, int tile_row)
{
    if (MERGE && args.merge)
        prefetch_results(args, shared, item, tile_row);
    r.flags &= ~(CAREFUL | UNSURE | SETTLED | LOST);
    if (HAS_PARTIAL && is_careful(shared, item))
        r.flags |= CAREFUL;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        r.row_max[0][half] = -infinity();
        r.row_sum[0][half] = 0.0f;
    }
#pragma unroll
    for (int block = 0; block < VALUE_BLOCKS; ++block)
#pragma unroll
        for (int x = 0; x < 4; ++x)
            r.o[0][block][x] = 0.0f;
}

// Raises the maxima of rows whose sums have become too large, and brings the weights down to them.
__device__ __forceinline__ void lower_weights(Running &r, Scores &s, RowValues &factors, float scale_log2)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = r.row_sum[0][half];
        const bool lost = !(sum < infinity());
        sum = fmaxf(sum, shuffle_xor(sum, 1));
        sum = fmaxf(sum, shuffle_xor(sum, 2));
        const float old = r.row_max[0][half], top = sum > SUM_LIMIT ? old + log2_approx(sum) / scale_log2 : old;
        const float factor = exp2_approx(fmaf(old, scale_log2, -top * scale_log2));
#pragma unroll
        for (int block = 0; block < COL_BLOCKS; ++block) {
            s[0][block][2 * half] *= factor;
            s[0][block][2 * half + 1] *= factor;
        }
        r.row_sum[0][half] *= factor;
        r.row_max[0][half] = top;
        factors[0][half] = factor;
        if (warp_any(lost))
            r.flags |= LOST;
    }
}

// Scores to weights. Finding maxima took 12 % of `full` at D 128 (docs/kernels.md), and any reference will do that keeps
// weights finite: once every row has one, it stays, until a sum grows too large. Scores that rise by more than fp32 holds
// between two tiles are left for later, and careful items take the maxima of all tiles.
__device__ __forceinline__ void softmax(Running &r, Scores &s, RowValues &factors, float scale_log2)
{
    const bool settled = r.flags & SETTLED;
    if (settled) {
        factors[0][0] = factors[0][1] = 1.0f;
    } else {
        raise_maxima(s, r.row_max, factors, scale_log2);
        const bool all = r.row_max[0][0] > -infinity() && r.row_max[0][1] > -infinity() && scale_log2 > 1e-30f;
        if (!(r.flags & CAREFUL) && !warp_any(!all))
            r.flags |= SETTLED;
    }
    weigh(s, r.row_max, r.row_sum, factors, scale_log2);
    if (settled && warp_any(!(r.row_sum[0][0] <= SUM_LIMIT && r.row_sum[0][1] <= SUM_LIMIT)))
        lower_weights(r, s, factors, scale_log2);
}

// The item's tiles are done: stores it or leaves it for later.
__device__ __forceinline__ void finish(const sp_launch_args &args, unsigned shared, int item, int tile_row, Running &r)
{
    const ResultRows to = result_rows(args, shared, item, tile_row);
    const bool part = is_part(shared, item);
    const OldInMemory old[2] = {{to.o[0]}, {to.o[1]}};
    OldAtHand at_hand[2];
    float before[2] = {-infinity(), -infinity()};
    if (MERGE && args.merge && !part) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            before[half] = to.lse[half] ? *to.lse[half] : -infinity();
            if constexpr (FETCH_TOGETHER)
                fetch(old[half], at_hand[half]);
        }
    }
    bool later = (r.flags & LOST) || ((r.flags & UNSURE) && any_nonfinite(r.o));
    // Results must not be merged twice: then all warps of the block leave the item, or none does.
    if constexpr (MERGE)
        if (args.merge && !part)
            later = named_sync_or(ALL_CONSUMERS, CONSUMERS, later);
    const int round = read_item(shared, item).round;
    if (later) {
        leave_for_later(shared, item, round);
        r.flags |= LEFT << item % LATER_SLOTS;
    } else if (round < 0 && !(r.flags & LEFT << (-1 - round))) {
        // Stored the first time; other warps left the item.
    } else if (SPLIT && part) {
        store_part_half<0>(args, shared, item, tile_row, r.row_max[0][0], r.row_sum[0][0], r.o);
        store_part_half<1>(args, shared, item, tile_row, r.row_max[0][1], r.row_sum[0][1], r.o);
    } else {
        if constexpr (MERGE && FETCH_TOGETHER) {
            store_half<0>(args, to, r.row_max[0][0], r.row_sum[0][0], before[0], at_hand[0], r.o);
            store_half<1>(args, to, r.row_max[0][1], r.row_sum[0][1], before[1], at_hand[1], r.o);
        } else {
            store_half<0>(args, to, r.row_max[0][0], r.row_sum[0][0], before[0], old[0], r.o);
            store_half<1>(args, to, r.row_max[0][1], r.row_sum[0][1], before[1], old[1], r.o);
        }
    }
}

// Waits for an item's record. One without tiles has no q.
__device__ __forceinline__ ItemRecord await_item(unsigned shared, int item)
{
    barrier_wait(barrier_at(shared, Q_FULL + item % Q_STAGES), item / Q_STAGES % 2);
    return read_item(shared, item);
}

__device__ __forceinline__ sp_i64 q_matrix(unsigned shared, int group, int item)
{
    return matrix_k_major(q_stage(shared, item) + 64 * 128 * group);
}

// The scores of the n-th tile are there: its k is not needed any more, nor, if it is its item's last, q.
__device__ __forceinline__ void release_keys(unsigned shared, int n, int item, int what)
{
    release(barrier_at(shared, K_EMPTY + stage_of(n)));
    if (what & LAST)
        release(barrier_at(shared, Q_EMPTY + item % Q_STAGES));
}

// Masks the scores of the n-th tile, if it is PARTIAL.
__device__ __forceinline__ bool mask(unsigned shared, int n, int item, int what, int tile_row, Scores &s)
{
    const bool masked = kind_of(what) != PRED_NONE;
    if (masked)
        mask_scores(shared, n, item, kind_of(what), tile_row, s);
    return masked;
}

// From an item with tiles through those that follow it, as long as these have tiles too: the first products of an item are under
// way while the one before it is finished. `at` is left at the last item.
__device__ __forceinline__ void consume_items(const sp_launch_args &args, unsigned shared, int group, int tile_row,
                                              Progress &at, Running &r)
{
    Scores s;
    Weights p;
    RowValues factors;
    begin(args, r, shared, at.item, tile_row);
    barrier_wait(barrier_at(shared, K_FULL + stage_of(at.n)), phase_of(at.n));
    take_turn(group);
    wgmma_fence();
    multiply_scores(s, q_matrix(shared, group, at.item), matrix_k_major(k_stage(shared, at.n)));
    wgmma_commit();
    pass_turn(group);
    int what = read_what(shared, at.n);
    wgmma_wait<0>();
    hold_all(s);
    release_keys(shared, at.n, at.item, what);
    bool masked = mask(shared, at.n, at.item, what, tile_row, s);
    softmax(r, s, factors, args.scale_log2);
    pack_weights(s, p);

    for (;;) {
        // at.n is the tile whose weights are in p; the next one may be the next item's first.
        if (masked) {
            if (r.flags & CAREFUL)
                settle_values(shared, at.n, r.flags, p, r.o);
            else
                r.flags |= UNSURE;
        }
        const bool last = what & LAST;
        if (last && (!CHAINED || await_item(shared, at.item + 1).tiles == 0))
            break;
        const int next = at.item + last;
        barrier_wait(barrier_at(shared, K_FULL + stage_of(at.n + 1)), phase_of(at.n + 1));
        take_turn(group);
        wgmma_fence();
        multiply_scores(s, q_matrix(shared, group, next), matrix_k_major(k_stage(shared, at.n + 1)));
        wgmma_commit();
        barrier_wait(barrier_at(shared, V_FULL + stage_of(at.n)), phase_of(at.n));
        wgmma_fence();
        multiply_values(r.o, p, matrix_mn_major(v_stage(shared, at.n), TILE_COLS));
        wgmma_commit();
        pass_turn(group);
        what = read_what(shared, at.n + 1);
        wgmma_wait<1>();
        hold_all(s);
        release_keys(shared, at.n + 1, next, what);
        masked = mask(shared, at.n + 1, next, what, tile_row, s);
        if (last) {
            wgmma_wait<0>();
            hold_all(r.o);
            release(barrier_at(shared, V_EMPTY + stage_of(at.n)));
            finish(args, shared, at.item, tile_row, r);
            begin(args, r, shared, next, tile_row);
            softmax(r, s, factors, args.scale_log2);
        } else {
            softmax(r, s, factors, args.scale_log2);
            wgmma_wait<0>();
            hold_all(r.o);
            release(barrier_at(shared, V_EMPTY + stage_of(at.n)));
            // Once the maxima have settled, which is soon, nothing is left to rescale.
            if (warp_any(factors[0][0] != 1.0f || factors[0][1] != 1.0f))
                rescale(r.o, factors);
        }
        pack_weights(s, p);
        ++at.n;
        at.item = next;
    }

    barrier_wait(barrier_at(shared, V_FULL + stage_of(at.n)), phase_of(at.n));
    wgmma_fence();
    multiply_values(r.o, p, matrix_mn_major(v_stage(shared, at.n), TILE_COLS));
    wgmma_commit();
    wgmma_wait<0>();
    hold_all(r.o);
    release(barrier_at(shared, V_EMPTY + stage_of(at.n)));
    ++at.n;
    finish(args, shared, at.item, tile_row, r);
}

__device__ __forceinline__ void consume(const sp_launch_args &args, unsigned shared, int group, Progress &at, Running &r)
{
    const int warp = warp_uniform(static_cast<int>(threadIdx.x) % 128 / 32);
    const int tile_row = 64 * group + 16 * warp; // the warp's first, within the tile
    for (;; ++at.item) {
        const ItemRecord item = await_item(shared, at.item);
        if (item.tile == NO_ITEM)
            break;
        if (item.tiles > 0) {
            consume_items(args, shared, group, tile_row, at, r);
        } else {
            store_empty_rows(args, shared, at.item, tile_row);
            warp_barrier(); // all lanes have read the record
            release(barrier_at(shared, Q_EMPTY + at.item % Q_STAGES));
        }
    }
    // The tile and the item that say that there is nothing more.
    release(barrier_at(shared, K_EMPTY + stage_of(at.n)));
    release(barrier_at(shared, V_EMPTY + stage_of(at.n)));
    release(barrier_at(shared, Q_EMPTY + at.item % Q_STAGES));
    ++at.n;
    ++at.item;
}

// ---- The kernel ----

__device__ __forceinline__ unsigned tiles_base()
{
    return (shared_base() + 1023) & ~1023u;
}

__device__ __forceinline__ int warp_of_block()
{
    return warp_uniform(static_cast<int>(threadIdx.x) / 32);
}

// Grid: any number of blocks; as many as the chip runs at once, or one a work item (row tiles * batch * heads of them). Block: THREADS.
// Dynamic shared memory: SHARED_BYTES.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    splat_attention(const __grid_constant__ sp_launch_args args, const __grid_constant__ TensorMaps maps)
{
    if (threadIdx.x == 0) {
        init_shared(tiles_base());
        for (int map = 0; map < static_cast<int>(sizeof(TensorMaps) / sizeof(TensorMap)); ++map)
            prefetch_map(&maps.q[0] + map);
    }
    block_barrier();
    // What both branches need is found out in each: kept across the reallocation, it would take a place in local memory.
    if (warp_of_block() < 4) {
        registers_down_to<PRODUCER_REGISTERS>();
        const unsigned shared = tiles_base();
        const int warp = warp_of_block();
        if (warp == 0) {
            Progress at = {0, 0};
            for (int phase = 0; phase == 0 || another_phase(shared, phase); ++phase)
                if (elect_lane())
                    produce(args, maps, shared, phase, at);
        } else if constexpr (HAS_PARTIAL) {
            int n = 0;
            for (int phase = 0; phase == 0 || another_phase(shared, phase); ++phase)
                check_values(shared, warp - 1, n);
        }
    } else {
        registers_up_to<CONSUMER_REGISTERS>();
        const unsigned shared = tiles_base();
        const int group = warp_of_block() / 4 - 1;
        Progress at = {0, 0};
        Running r;
        r.flags = 0;
        if (group == GROUPS - 1)
            pass_turn(group);
        for (int phase = 0; phase == 0 || another_phase(shared, phase); ++phase)
            consume(args, shared, group, at, r);
    }
}

// splat:region(combine)
#include "combine.cuh"
// splat:end
