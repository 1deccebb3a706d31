// What the kernels of operators on values share: the walk over a row tile's column tiles, which pairs of a tile are allowed, and
// how many of a row lie before them.
//
// Takes, from the template that it is pasted into, its parameters. A warp takes 16 or 32 rows of a tile; a lane, with g = lane / 4 and
// t = lane % 4, has rows 8r + g and columns 8 * block + 2t + e: the layout of mma's results. The four lanes of a row (a quad)
// know how many of its values were passed.

constexpr int THREADS = 32 * WARPS;
constexpr int WARP_ROWS = TILE_ROWS / WARPS;
constexpr int ROW_BLOCKS = WARP_ROWS / 16; // blocks of 16 rows a warp
constexpr int LANE_ROWS = 2 * ROW_BLOCKS;
constexpr int COL_BLOCKS = TILE_COLS / 8;
constexpr int WORDS = TILE_COLS / 32; // of a row of a tile's mask
static_assert(WARP_ROWS == 16 || WARP_ROWS == 32, "a warp takes 16 or 32 rows");
static_assert(TILE_ROWS == WARP_ROWS * WARPS, "warps share the rows evenly");
static_assert(TILE_COLS == 32 || TILE_COLS == 64, "rows of masks are whole words");

// A PARTIAL tile's predicate, table or bitmask, in global memory.
struct MaskSource {
    const char *address;
};

__device__ __forceinline__ int predicate_word(const MaskSource &source, int index)
{
    return reinterpret_cast<const int *>(source.address)[index];
}

__device__ __forceinline__ unsigned mask_word(const MaskSource &source, int byte)
{
    return *reinterpret_cast<const unsigned *>(source.address + byte);
}

// What predicates act on: not scores but bits, of which they clear those of forbidden pairs. Bit 8 * (block % 4) + e of word
// block / 4.
struct Scores {
    unsigned word[LANE_ROWS][WORDS];
};

struct Pair {
    unsigned &word;
    unsigned bit;

    __device__ __forceinline__ void operator=(float)
    {
        word &= ~bit;
    }
};

__device__ __forceinline__ Pair score(Scores &s, int thread_row, int block, int e)
{
    return {s.word[thread_row][block / 4], 1u << (8 * (block % 4) + e)};
}

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    if constexpr (IS_BF16)
        mma_16x8x16_bf16(d, a, b0, b1);
    else
        mma_16x8x16_f16(d, a, b0, b1);
}

// splat:region(element)
#include "element_common.cuh"
// splat:end

// splat:region(plan)
#include "plan_common.cuh"
// splat:end

// splat:region(mask)
#include "mask_common.cuh"
// splat:end

// splat:region(copies)
#include "copies_sm80.cuh"
// splat:end

// ---- Walking the tiles ----

// The column tile at hand.
struct Cursor {
    int segment, end; // the one it is in; the end of the row tile's
    int left;         // tiles left in the segment, this one included
    int column;       // position of the tile's first column
    int code, mask;   // the segment's code; number of the tile's predicate, table or bitmask
};

__device__ __forceinline__ void enter_segment(Cursor &cursor, const sp_launch_args &args)
{
    const sp_segment s = static_cast<const sp_segment *>(args.segments)[cursor.segment];
    cursor.left = s.count;
    cursor.column = s.first * TILE_COLS;
    cursor.code = s.code;
    cursor.mask = s.predicate;
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

__device__ __forceinline__ const sp_launch_view &column_view(const sp_launch_args &args, const Cursor &cursor)
{
    return args.column_views[LATTICE ? cursor.code >> 8 : 0];
}

// ---- Which pairs are allowed ----

// A tile's mask as a lane has it: of its rows, all columns. `kind` is PRED_NONE where all are allowed; the words then say
// nothing.
struct TileMask {
    int kind;
    unsigned word[LANE_ROWS][WORDS];
};

// Of the lane's own columns only, as predicates give it.
__device__ __forceinline__ Scores own_pairs(const Cursor &cursor, int tile_row, const sp_launch_args &args)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Scores own;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
            own.word[r][w] = 0x03030303u;
    MaskTile tile;
    int bytes;
    const int kind = cursor.code & 15;
    tile.source.address = mask_data(args, kind, cursor.mask, bytes);
    tile.tile_row = static_cast<int>(threadIdx.x) / 32 * WARP_ROWS + lane / 4;
    tile.row = tile_row + tile.tile_row;
    tile.column = cursor.column + lane % 4 * 2;
    apply_predicate(kind, tile, own);
    return own;
}

__device__ __forceinline__ TileMask tile_mask(const Cursor &cursor, int tile_row, const sp_launch_args &args)
{
    TileMask mask;
    mask.kind = cursor.code & 15;
    if (mask.kind == PRED_NONE)
        return mask;
    const Scores own = own_pairs(cursor, tile_row, args);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
            mask.word[r][w] = quad_or(own.word[r][w] << (threadIdx.x % 4 * 2));
    return mask;
}

// Allowed pairs of the lane's row r in the tile.
__device__ __forceinline__ int row_count(const TileMask &mask, int r)
{
    if (mask.kind == PRED_NONE)
        return TILE_COLS;
    int count = 0;
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
        count += count_bits(mask.word[r][w]);
    return count;
}

// Whether column 8 * block + 2t + e of row r is allowed, and how many of the row's allowed ones lie before it.
__device__ __forceinline__ bool is_allowed(const TileMask &mask, int r, int block, int e)
{
    return mask.word[r][block / 4] >> (8 * (block % 4) + e + threadIdx.x % 4 * 2) & 1;
}

__device__ __forceinline__ int rank_of(const TileMask &mask, int r, int block, int e)
{
    const unsigned below = (1u << (8 * (block % 4) + e + threadIdx.x % 4 * 2)) - 1;
    int rank = count_bits(mask.word[r][block / 4] & below);
    if (block >= 4)
        rank += count_bits(mask.word[r][0]);
    return rank;
}

// The offsets of the rows of a (batch, head) pair's values.
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

// The rows of one head, `offset` elements into a tensor.
__device__ __forceinline__ const char *head_rows(const void *tensor, sp_i64 offset)
{
    return static_cast<const char *>(tensor) + 2 * offset;
}
