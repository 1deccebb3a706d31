// What the kernels of operators on values share: the walk over a row tile's column tiles, which pairs of a tile are allowed, and
// where the values of a matrix begin.
//
// Takes, from the template that it is pasted into, its parameters. A warp takes 16 or 32 rows of a tile; a lane, with g = lane / 4 and
// t = lane % 4, has rows 8r + g in products. Masks of rows are worked out by other lanes: lane l has that of row l of its warp,
// all columns of the tile as bits, and hands it to those that need it.

constexpr int THREADS = 32 * WARPS;
constexpr int WARP_ROWS = TILE_ROWS / WARPS;
constexpr int ROW_BLOCKS = WARP_ROWS / 16; // blocks of 16 rows a warp
constexpr int LANE_ROWS = 2 * ROW_BLOCKS;
constexpr int COL_BLOCKS = TILE_COLS / 8;
constexpr int WORDS = TILE_COLS / 32; // of a row of a tile's mask
static_assert(WARP_ROWS == 16 || WARP_ROWS == 32, "a warp takes 16 or 32 rows");
static_assert(TILE_ROWS == WARP_ROWS * WARPS, "warps share the rows evenly");
static_assert(TILE_COLS == 32 || TILE_COLS == 64, "rows of masks are whole words");

__device__ __forceinline__ int lane_number()
{
    return static_cast<int>(threadIdx.x) % 32;
}

__device__ __forceinline__ int warp_number()
{
    return static_cast<int>(threadIdx.x) / 32;
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
    sp_segment ahead; // the segment that follows, read before it is needed
};

__device__ __forceinline__ sp_segment segment_at(const sp_launch_args &args, int segment)
{
    return static_cast<const sp_segment *>(args.segments)[segment];
}

__device__ __forceinline__ void enter_segment(Cursor &cursor, const sp_segment &s)
{
    cursor.left = s.count;
    cursor.column = s.first * TILE_COLS;
    cursor.code = s.code;
    cursor.mask = s.predicate;
}

// The segment that follows; the last one stands for its own.
__device__ __forceinline__ void look_ahead(Cursor &cursor, const sp_launch_args &args)
{
    cursor.ahead = segment_at(args, cursor.segment + 1 < cursor.end ? cursor.segment + 1 : cursor.end - 1);
}

// The first tile of a row tile that has any.
__device__ __forceinline__ Cursor first_tile(const Work &work, const sp_launch_args &args)
{
    Cursor cursor = {};
    cursor.segment = work.row_tile.segment;
    cursor.end = cursor.segment + work.row_tile.segment_count;
    enter_segment(cursor, segment_at(args, cursor.segment));
    look_ahead(cursor, args);
    return cursor;
}

// False when there is no further tile.
__device__ __forceinline__ bool next_tile(Cursor &cursor, const sp_launch_args &args)
{
    bool more = true;
    if (--cursor.left > 0) {
        cursor.column += TILE_COLS;
        cursor.mask += cursor.code >> 4 & 1;
    } else if (++cursor.segment < cursor.end)
        enter_segment(cursor, cursor.ahead);
    else
        more = false;
    look_ahead(cursor, args);
    return more;
}

__device__ __forceinline__ int kind_of(const Cursor &cursor)
{
    return cursor.code & 15;
}

__device__ __forceinline__ const sp_launch_view &column_view(const sp_launch_args &args, const Cursor &cursor)
{
    return args.column_views[LATTICE ? cursor.code >> 8 : 0];
}

// ---- Which pairs are allowed ----

// What a PARTIAL tile's masks are worked out from, read ahead of time: the lane's row of a table or bitmask, or in word[0] field
// lane % 8 of the predicate. It is read for FULL tiles too, for which predicate 0 stands: a read that is left out now and then would
// be waited for at once where ways join.
struct MaskData {
    int word[2];
};

// `row` is the lane's, within the tile.
__device__ __forceinline__ MaskData load_mask_data(const Cursor &cursor, int row, const sp_launch_args &args)
{
    MaskData data;
    const int kind = kind_of(cursor);
    int bytes;
    const int *from = reinterpret_cast<const int *>(mask_data(args, kind, cursor.mask, bytes));
    int at = static_cast<int>(threadIdx.x) % 8, next = 0;
    if (HAS_TABLE && kind == PRED_TABLE) {
        at = 2 * row;
        next = 1;
    }
    if (HAS_BITS && kind == PRED_BITS) {
        at = WORDS * row;
        next = WORDS - 1;
    }
    data.word[0] = from[at];
    data.word[1] = HAS_TABLE || HAS_BITS ? from[at + next] : 0;
    return data;
}

// The allowed columns of a row of a tile; bit c of word w is column 32w + c.
struct RowMask {
    unsigned word[WORDS];
};

// Fields of struct sp_predicate, by their places.
enum PredicateField { LO_SLOPE, LO_OFFSET, HI_SLOPE, HI_OFFSET, STRIDE, WIDTH, PHASE_SLOPE, PHASE_OFFSET };

__device__ __forceinline__ int predicate_field(const MaskData &data, PredicateField field)
{
    return static_cast<int>(shuffle_from(static_cast<unsigned>(data.word[0]), field));
}

// slope * row + offset, which fits an int for every row of the mask; rows beyond it may wrap, and do not count.
__device__ __forceinline__ int affine(int slope, int row, int offset)
{
    return static_cast<int>(static_cast<unsigned>(slope) * static_cast<unsigned>(row) +
                            static_cast<unsigned>(offset));
}

// Bits [begin, 32); `begin` may be any number.
__device__ __forceinline__ unsigned bits_from(int begin)
{
    return begin >= 32 ? 0 : ~0u << (begin > 0 ? begin : 0);
}

// Clears what lies before position `lo`, or from position `hi` on.
__device__ __forceinline__ void clear_below(RowMask &mask, int lo, int column)
{
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
        mask.word[w] &= bits_from((lo > 0 ? lo : 0) - column - 32 * w); // at least 0, so that the difference fits
}

__device__ __forceinline__ void clear_from(RowMask &mask, int hi, int column)
{
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
        mask.word[w] &= ~bits_from((hi > 0 ? hi : 0) - column - 32 * w);
}

// Leaves columns whose place in the period is below `width`; `first` is the place of the tile's first column.
__device__ __forceinline__ void clear_outside(RowMask &mask, int first, int stride, int width)
{
    unsigned long long blocks = width < 64 ? (1ull << width) - 1 : ~0ull; // as if a block began at the first column
    for (int step = stride; step < 64; step *= 2)
        blocks |= blocks << step;
    blocks = stride - first < 64 ? blocks << (stride - first) : 0;
    const int rest = width - first; // of the block that the first column lies in
    if (rest > 0)
        blocks |= rest < 64 ? (1ull << rest) - 1 : ~0ull;
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
        mask.word[w] &= static_cast<unsigned>(blocks >> (32 * w));
}

// The mask of the lane's row, at position `row`, of a PARTIAL tile whose first column is at position `column`. All lanes of the warp take
// part.
__device__ __forceinline__ RowMask row_mask(int kind, const MaskData &data, int row, int column)
{
    RowMask mask;
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
        mask.word[w] = ~0u;
    if (HAS_BITS && kind == PRED_BITS) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
            mask.word[w] = static_cast<unsigned>(data.word[w]);
        return mask;
    }
    if (HAS_TABLE && kind == PRED_TABLE) {
        clear_below(mask, data.word[0], column);
        clear_from(mask, data.word[1], column);
        return mask;
    }
    if (kind != PRED_UPPER)
        clear_below(mask, affine(predicate_field(data, LO_SLOPE), row, predicate_field(data, LO_OFFSET)), column);
    if (kind != PRED_LOWER)
        clear_from(mask, affine(predicate_field(data, HI_SLOPE), row, predicate_field(data, HI_OFFSET)), column);
    if (HAS_PERIODIC && kind == PRED_PERIODIC) {
        const int stride = predicate_field(data, STRIDE), width = predicate_field(data, WIDTH);
        const int slope = predicate_field(data, PHASE_SLOPE), offset = predicate_field(data, PHASE_OFFSET);
        int first; // the slope is below the stride, and so is the offset
        if (stride < 32768)
            first = (column % stride - slope * (row % stride) - offset) % stride;
        else
            first = static_cast<int>((column - (sp_i64(slope) * row + offset)) % stride);
        first += first < 0 ? stride : 0;
        clear_outside(mask, first, stride, width);
    }
    return mask;
}

// Masks of the rows that a lane has in products. `kind` is PRED_NONE where all are allowed; the words then say nothing.
struct TileMask {
    int kind;
    unsigned word[LANE_ROWS][WORDS];
};

__device__ __forceinline__ TileMask spread(int kind, const RowMask &mask)
{
    TileMask tile;
    tile.kind = kind;
    if (kind == PRED_NONE)
        return tile;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
            tile.word[r][w] = shuffle_from(mask.word[w], 8 * r + static_cast<int>(threadIdx.x) % 32 / 4);
    return tile;
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

// ---- Copies ----

// copy_tile for a tile without views of which every row and chunk is there.
template <int ROWS, int CHUNKS, int PITCH, int (*PLACE)(int)>
__device__ __forceinline__ void copy_whole_rows(unsigned shared, const char *source, sp_i64 row_bytes, int first)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS), STEP = THREADS / COLUMNS;
    const int row = static_cast<int>(threadIdx.x) / COLUMNS, chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    source += first * row_bytes;
    if (chunk < CHUNKS)
#pragma unroll
        for (int step = 0; step < ROWS; step += STEP) {
            copy_async_whole(shared + (PLACE(row) + PLACE(step)) * PITCH + 16 * chunk, source);
            source += STEP * row_bytes;
        }
}

// ---- Values side by side ----

// Products may take the columns of a tile in any order. Of block `block` of 8, where mma gives lane t numbers 2t and 2t + 1, it is columns
// 32 * (block / 4) + 8t + 2 * (block % 4) and the next: a lane then has eight columns side by side of every 32. For that row
// `row` of the other matrix lies at this place.
__host__ __device__ constexpr int place_by_eights(int row)
{
    return (row & ~30) | (row & 6) << 2 | (row >> 2 & 6);
}

// Eight elements from byte `bytes` (even, below 16) of two chunks on.
__device__ __forceinline__ Chunk shifted(const Chunk &low, const Chunk &high, unsigned bytes)
{
    unsigned w[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        w[k] = low.word[k];
        w[4 + k] = high.word[k];
    }
    const bool two = bytes & 8, one = bytes & 4;
#pragma unroll
    for (int k = 0; k < 6; ++k)
        w[k] = two ? w[k + 2] : w[k];
#pragma unroll
    for (int k = 0; k < 5; ++k)
        w[k] = one ? w[k + 1] : w[k];
    const unsigned selector = bytes & 2 ? 0x5432u : 0x3210u;
    Chunk made;
#pragma unroll
    for (int k = 0; k < 4; ++k)
        made.word[k] = permute(w[k], w[k + 1], selector);
    return made;
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
