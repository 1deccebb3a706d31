// The plan as kernels read it, positions and tokens, and which work comes next: what every kernel shares that
// walks a plan.
//
// Takes, from the template that it is pasted into, its parameters. Keeps true: no asm and no memory but the plan's tables.

// ---- The plan ----

// LATTICE: tiles may walk the sequence otherwise than token by token. MERGE: launches may merge into earlier ones' results.

// The kinds of predicate, numbered as enum sp_pred_kind, and which of them this kernel knows.
enum PredicateKind { PRED_NONE, PRED_LOWER, PRED_UPPER, PRED_BOUNDS, PRED_TABLE, PRED_PERIODIC, PRED_BITS };
constexpr bool HAS_PARTIAL = (PREDICATE_MASK & ~1u) != 0;
constexpr bool HAS_TABLE = (PREDICATE_MASK >> PRED_TABLE & 1) != 0;
constexpr bool HAS_BITS = (PREDICATE_MASK >> PRED_BITS & 1) != 0;

// The plan's records, as src/analysis/plan.h has them.
struct alignas(16) sp_row_tile {
    int tile, segment, segment_count, tiles;
    int slot; // 1 + place of a part in the workspace; 0: the results are final
    int reserved[3];
};
struct alignas(16) sp_segment {
    int first, count, code, predicate;
};
struct alignas(16) sp_predicate {
    int lo_slope, lo_offset;
    int hi_slope, hi_offset;
    int stride, width;
    int phase_slope, phase_offset;
};

// Bytes of a row of a tile's bitmask.
constexpr int BITS_ROW_BYTES = TILE_COLS / 8;
static_assert(sizeof(sp_predicate) == 32, "two chunks");

// What a PARTIAL tile needs to know: its predicate, bounds table or bitmask.
constexpr int TABLE_BYTES = HAS_TABLE ? 8 * TILE_ROWS : 0;
constexpr int BITS_BYTES = HAS_BITS ? TILE_ROWS * BITS_ROW_BYTES : 0;
constexpr int WORDS_BYTES = TABLE_BYTES > BITS_BYTES ? TABLE_BYTES : BITS_BYTES;
constexpr int MASK_BYTES = WORDS_BYTES > static_cast<int>(sizeof(sp_predicate)) ? WORDS_BYTES
                                                                                 : static_cast<int>(sizeof(sp_predicate));

// Where in global memory that is for predicate, table or bitmask `number`, and how many bytes of it.
__device__ __forceinline__ const char *mask_data(const sp_launch_args &args, int kind, sp_i64 number, int &bytes)
{
    const void *from = args.predicates;
    bytes = static_cast<int>(sizeof(sp_predicate));
    if (HAS_TABLE && kind == PRED_TABLE) {
        from = args.table;
        bytes = TABLE_BYTES;
    }
    if (HAS_BITS && kind == PRED_BITS) {
        from = args.bits;
        bytes = BITS_BYTES;
    }
    return static_cast<const char *>(from) + number * bytes;
}

// ---- Positions and tokens ----

// Where a tile begins under a view: the first token's place in the grid, and the step from one grid row to the next.
struct Place {
    int x, y;
    int longer; // 1: the zone has the last grid row, which is not complete, and columns below view.rest only; 0: the others
};

__device__ __forceinline__ Place place_of(const sp_launch_view &view, int position)
{
    const int zone = position / view.pitch;
    Place place;
    place.x = zone << view.c_log2;
    place.y = (position - zone * view.pitch) >> view.c_log2;
    if constexpr (CUT_ZONES) {
        const int columns = 1 << view.c_log2;
        place.longer = place.x < view.rest;
        if (!place.longer && view.rest & (columns - 1))
            place.x -= columns; // the zone cut by the end of the last row comes twice
    } else {
        place.longer = place.x + (1 << view.c_log2) <= view.rest;
    }
    return place;
}

// The token of row `row` of a tile, or a number beyond every length where there is none.
__device__ __forceinline__ int token_of(const sp_launch_view &view, const Place &place, int row)
{
    const int x = place.x + (row & ((1 << view.c_log2) - 1));
    if constexpr (CUT_ZONES)
        return (x < view.rest) == place.longer ? view.n0 * (place.y + (row >> view.c_log2)) + x : 0x7fffffff;
    else
        return x < view.n0 ? view.n0 * (place.y + (row >> view.c_log2)) + x : 0x7fffffff;
}

// The query of row `row` of a row tile.
struct RowMap {
    const sp_launch_view *view;
    Place place;
    int first; // without views
};

__device__ __forceinline__ RowMap map_rows(const sp_launch_args &args, int tile)
{
    RowMap map = {};
    map.first = tile * TILE_ROWS;
    if constexpr (LATTICE) {
        map.view = &args.row_view;
        map.place = place_of(args.row_view, map.first);
    }
    return map;
}

__device__ __forceinline__ int query_of(const RowMap &map, int row)
{
    if constexpr (LATTICE)
        return token_of(*map.view, map.place, row);
    else
        return map.first + row;
}

// ---- Which work comes next ----

struct Work {
    int pair;       // batch * heads + head
    sp_i64 number; // of the row tile in the launch's list
    sp_row_tile row_tile;
};

// Blocks are numbered section by section of (batch, head) pairs, whose keys and values share the L2 cache; within a
// section by place in the launch order, longest row tile first; then by pair.
__device__ __forceinline__ Work find_work(const sp_launch_args &args, int item)
{
    const int pairs = args.batch * args.heads;
    const int section = args.section < pairs ? args.section : pairs;
    const int first_pair = item / (args.row_tile_count * section) * section;
    const int within = item - first_pair * args.row_tile_count;
    const int width = pairs - first_pair < section ? pairs - first_pair : section;
    Work work;
    work.pair = first_pair + within % width;
    sp_i64 index = within / width;
    if constexpr (MASK_MAP) {
        const int map_batch = args.map_batch == 1 ? 0 : work.pair / args.heads;
        const int map_head = args.map_heads == 1 ? 0 : work.pair % args.heads;
        index += sp_i64(args.row_tile_count) *
                 static_cast<const int *>(args.map)[sp_i64(map_batch) * args.map_heads + map_head];
    }
    work.number = index;
    work.row_tile = static_cast<const sp_row_tile *>(args.row_tiles)[index];
    return work;
}
