// PARTIAL tiles: which of a thread's pairs the tile's predicate forbids.
//
// Takes, from the template that it is pasted into: ROW_BLOCKS and COL_BLOCKS, struct MaskSource with predicate_word and
// mask_word, type Scores, and score(s, thread_row, block, e), to which -inf is assigned for a forbidden pair.

// ---- Masking ----

// A PARTIAL tile as a thread sees it.
struct MaskTile {
    MaskSource source; // its struct sp_predicate, bounds table or bitmask
    int tile_row;      // the thread's first row within the tile; the others are 8, 16 and 24 further
    int row;           // the same row's position
    int column;        // the position of the thread's first column; the others are 8 * block + e further
};

constexpr int THREAD_ROWS = 2 * ROW_BLOCKS;

// Field of the tile's predicate, by its place in struct sp_predicate.
enum PredicateField { LO_SLOPE, LO_OFFSET, HI_SLOPE, HI_OFFSET, STRIDE, WIDTH, PHASE_SLOPE, PHASE_OFFSET };

__device__ __forceinline__ int predicate_field(const MaskTile &tile, PredicateField field)
{
    return predicate_word(tile.source, field);
}

// slope * row + offset, which fits an int for every row of the mask; rows beyond it may wrap, and are not stored.
__device__ __forceinline__ int affine(int slope, int row, int offset)
{
    return static_cast<int>(static_cast<unsigned>(slope) * static_cast<unsigned>(row) +
                            static_cast<unsigned>(offset));
}

// A column bound relative to the thread's first column. Clamping to 0 first keeps the difference in range.
__device__ __forceinline__ int relative(const MaskTile &tile, int bound)
{
    return (bound > 0 ? bound : 0) - tile.column;
}

// splat:region(predicates)
// j < hi(i)
__device__ __forceinline__ void mask_upper(const MaskTile &tile, Scores &s)
{
    const int hi_slope = predicate_field(tile, HI_SLOPE), hi_offset = predicate_field(tile, HI_OFFSET);
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; ++r) {
        const int hi = relative(tile, affine(hi_slope, tile.row + 8 * r, hi_offset));
#pragma unroll
        for (int block = 0; block < COL_BLOCKS; ++block)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (8 * block + e >= hi)
                    score(s, r, block, e) = -infinity();
    }
}

__device__ __forceinline__ void apply_predicate(int kind, const MaskTile &tile, Scores &s)
{
    if (kind == PRED_UPPER)
        mask_upper(tile, s);
}
// splat:end
