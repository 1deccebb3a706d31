// Sparse matrix times dense: y = scale * A x, or y = scale * A^T x, A given by the values of a mask's allowed pairs, row by row in
// the order of columns.
//
// Takes struct sp_sparse_args: values, x, the plan's tables (of the transposed mask for A^T) and where values are. Gives y in
// the type of x. Keeps true: a pair that is not allowed contributes nothing, even when x holds NaN or inf; an allowed pair
// contributes its product, even when its value is 0; a row of y without pairs is 0; nothing is read beyond the rows of x
// or the values of a row; a block sums its column tiles in the order of its segments, so that results repeat bit for bit.
//
// One block takes one row tile of one (batch, head), a warp 16 or 32 of its rows, and walks the column tiles in ascending order. Values
// begin at any multiple of 2 bytes; they arrive in shared memory in the chunks of 16 bytes in which they lie in global memory, and each
// lane shifts (FULL tiles) or picks (PARTIAL tiles) those of its fragments of A. The columns of a product's steps may be taken in any
// order, as long as A and x agree: it is such that the values of a lane lie together (place_of_x).
//
// A x: rows of the tile are rows of A, and the values of a row are one stream through all its tiles. Each row has a ring of chunks, filled
// up again after every tile, so that values are on their way two tiles and more before they are needed, whatever the masks.
//
// A^T x: columns of the tile are rows of A. The plan says where the values of each in the tile begin; they are copied with x two tiles ahead.
// Which value is whose follows from how many pairs of the column lie above: masks of rows are turned into masks of columns one
// tile ahead, and those of the warps above are in shared memory.

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

constexpr int STEPS = TILE_COLS / 16;               // of 16 columns
constexpr int VALUE_BLOCKS = VALUE_DIM / 8;         // blocks of 8 columns of x and y
constexpr int VALUE_PAIRS = (VALUE_BLOCKS + 1) / 2; // one ldmatrix of x each; the last may hold one block only
constexpr int VALUE_CHUNKS = VALUE_DIM / 8;
constexpr int X_PITCH = 16 * (VALUE_CHUNKS | 1);
constexpr int X_BYTES = TILE_COLS * X_PITCH;
constexpr int X_STAGES = TRANSPOSED ? 3 : 2;

// A x: a ring of four lines of 128 bytes for each row, and behind it the first chunk once more, so that what lies across its end can be read at one
// go. Rings begin half of the banks apart.
constexpr int LINE = 64; // values
constexpr int RING_LINES = 4, RING_BYTES = 2 * LINE * RING_LINES, RING_PITCH = RING_BYTES + 64;
constexpr int RINGS_OFFSET = X_STAGES * X_BYTES;
constexpr int RINGS_BYTES = TRANSPOSED ? 0 : TILE_ROWS * RING_PITCH;

// A^T x: in each stage a line for each row of A in the tile, of at most TILE_ROWS values, from any place in a chunk on, and the shared address
// of its first value; and masks of the tile's columns, those of a warp's rows together.
constexpr int LINE_CHUNKS = TILE_ROWS / 8 + 1;
constexpr int LINE_PITCH = 16 * LINE_CHUNKS;
constexpr int LINES_OFFSET = RINGS_OFFSET + RINGS_BYTES;
constexpr int LINES_BYTES = TRANSPOSED ? TILE_COLS * LINE_PITCH : 0;
constexpr int BEGINS_OFFSET = LINES_OFFSET + X_STAGES * LINES_BYTES;
constexpr int BEGINS_BYTES = TRANSPOSED ? 4 * TILE_COLS : 0;
constexpr int MASKS_OFFSET = BEGINS_OFFSET + X_STAGES * BEGINS_BYTES; // of two tiles
constexpr int MASKS_BYTES = TRANSPOSED ? 4 * TILE_COLS * WARPS : 0;
constexpr int OWN_BEGINS_OFFSET = MASKS_OFFSET + 2 * MASKS_BYTES; // of each warp: where the values of its rows begin
static_assert(OWN_BEGINS_OFFSET + MASKS_BYTES == SHARED_BYTES, "host and kernel agree on the shared memory");
static_assert(TILE_ROWS <= 2 * TILE_COLS, "y takes the place of x at the end");

typedef float Outputs[ROW_BLOCKS][VALUE_BLOCKS][4];
typedef unsigned Fragment[ROW_BLOCKS][4]; // of A: the warp's rows by 16 columns

// ---- The order of columns ----

// In a step's fragments lane t has columns 2t, 2t + 1 (half 0) and 2t + 8, 2t + 9 (half 1). The column of the tile that is column 8 * half +
// 2t + e of step `step`: 32 * (step / 2) + 8t + 4 * (step % 2) + 2 * half + e for A x, where a lane has eight values of a row side by
// side (place_by_eights), and 16 * step + 4t + 2 * half + e for A^T x, where a lane has four rows of A and rows far apart would meet in the same banks.

// Where row `row` of a tile of x lies: rows are in the order in which steps take them.
__host__ __device__ constexpr int place_of_x(int row)
{
    return TRANSPOSED ? (row & ~14) | (row & 2) << 2 | (row >> 1 & 6) : place_by_eights(row);
}

// The first of the four columns that the lane has in a step (A^T x).
__device__ __forceinline__ int step_column(int step)
{
    return 16 * step + lane_number() % 4 * 4;
}

// ---- A x: the rows of a tile are rows of A ----

// The values of the lane's rows on their way; the four lanes of a quad have the same but for where they copy from. Values of a row are numbered
// from a multiple of 128 bytes on; line n is at place n % RING_LINES of the ring, of which a lane copies chunks t and t + 4.
struct Streams {
    int at[LANE_ROWS];           // the next value
    const char *from[LANE_ROWS]; // global address of the lane's chunk t of the next line that is to be copied
    int left[LANE_ROWS];         // values from there to the row's end; 0 or less: none
};

__device__ __forceinline__ unsigned ring_of(unsigned shared, int r)
{
    return shared + RINGS_OFFSET + (warp_number() * WARP_ROWS + 8 * r + lane_number() / 4) * RING_PITCH;
}

// Rows beyond the last do as the tile's first: what they give is not stored.
__device__ __forceinline__ Streams open_streams(const sp_sparse_args &sparse, const Work &work, const char *values)
{
    const RowMap map = map_rows(sparse.plan, work.row_tile.tile);
    const sp_i64 *offsets = row_offsets_of(sparse, work.pair);
    const int t = lane_number() % 4;
    Streams s;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
        const int own = query_of(map, warp_number() * WARP_ROWS + 8 * r + lane_number() / 4);
        const unsigned query = static_cast<unsigned>(own < sparse.plan.q_len ? own : query_of(map, 0));
        const sp_i64 first = offsets[query], end = offsets[query + 1];
        const char *address = values + 2 * first;
        const int beyond = static_cast<int>(reinterpret_cast<unsigned long long>(address) % 128);
        s.at[r] = beyond / 2;
        s.from[r] = address - beyond + 16 * t;
        s.left[r] = static_cast<int>(end - first) + s.at[r] - 8 * t;
    }
    return s;
}

// Starts copying the lane's chunks of row r's next line to place `place`, those that hold values from `first` on, and zeros for what is behind
// the row's end in its last chunk or in the one that follows.
__device__ __forceinline__ void copy_line_part(const Streams &s, unsigned shared, int r, int place, int first)
{
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const int number = 8 * (lane_number() % 4) + 32 * k, left = s.left[r] - 32 * k; // of the chunk's first value
        const unsigned to = ring_of(shared, r) + 2 * LINE * place + 2 * number;
        if (number + 8 <= first || left < 0)
            continue;
        copy_async_part(to, left > 0 ? s.from[r] + 64 * k : s.from[r] + 64 * k - 16, left < 8 ? 2 * left : 16);
        if (number + place == 0)
            copy_async_part(to + RING_BYTES, left > 0 ? s.from[r] : s.from[r] - 16, left < 8 ? 2 * left : 16);
    }
}

// Starts copying the first lines of all rows.
template <int FIRST, int COUNT> __device__ __forceinline__ void fill_rings(Streams &s, unsigned shared)
{
#pragma unroll 1
    for (int place = FIRST; place < FIRST + COUNT; ++place)
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r) {
            copy_line_part(s, shared, r, place, place == 0 ? s.at[r] : 0);
            s.from[r] += 2 * LINE;
            s.left[r] -= LINE;
        }
}

// Moves on behind the values of a tile, of which each row has a line's at most, and starts copying a line in the place of each that is done
// with. All lanes of the warp have passed a barrier since they read the rings.
__device__ __forceinline__ void advance(Streams &s, unsigned shared, const TileMask &mask)
{
    bool last = false, moved[LANE_ROWS];
    int place[LANE_ROWS];
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
        const int before = s.at[r];
        s.at[r] += row_count(mask, r);
        moved[r] = (before ^ s.at[r]) >= LINE;
        place[r] = before / LINE % RING_LINES;
        const bool whole = s.left[r] >= 40;
        if (moved[r] && whole) {
            const unsigned to = ring_of(shared, r) + 2 * LINE * place[r] + 16 * (lane_number() % 4);
            copy_async_whole(to, s.from[r]);
            copy_async_whole(to + 64, s.from[r] + 64);
            if (place[r] + lane_number() % 4 == 0)
                copy_async_whole(to + RING_BYTES, s.from[r]);
        }
        last |= moved[r] && !whole && s.left[r] >= 0;
    }
    if (last)
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
            if (moved[r] && s.left[r] < 40)
                copy_line_part(s, shared, r, place[r], 0);
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
        if (moved[r]) {
            s.from[r] += 2 * LINE;
            s.left[r] -= LINE;
        }
}

// The lane's eight values of row r of 32 columns of a FULL tile.
__device__ __forceinline__ Chunk row_values(const Streams &s, unsigned shared, int r, int half_tile)
{
    const unsigned from = 2 * (s.at[r] + 32 * half_tile + 8 * (lane_number() % 4)), place = ring_of(shared, r) + (from & (RING_BYTES - 8));
    unsigned w[6];
#pragma unroll
    for (int k = 0; k < 3; ++k)
        load_shared_u64(w[2 * k], w[2 * k + 1], place + 8 * k);
    const bool one = from & 4;
#pragma unroll
    for (int k = 0; k < 5; ++k)
        w[k] = one ? w[k + 1] : w[k];
    const unsigned selector = from & 2 ? 0x5432u : 0x3210u;
    Chunk made;
#pragma unroll
    for (int k = 0; k < 4; ++k)
        made.word[k] = permute(w[k], w[k + 1], selector);
    return made;
}

// The same of a PARTIAL tile, with zeros where no pair is allowed.
__device__ __forceinline__ Chunk row_values(const Streams &s, unsigned shared, int r, int half_tile, const TileMask &mask)
{
    const int column = 8 * (lane_number() % 4);
    int before = count_bits(mask.word[r][half_tile] & ((1u << column) - 1));
    if (half_tile > 0)
        before += count_bits(mask.word[r][0]);
    const unsigned allowed = mask.word[r][half_tile] >> column;
    unsigned place = ring_of(shared, r) + (2 * (s.at[r] + before) & (RING_BYTES - 1)); // they may lie across the end, as above
    Chunk made;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const unsigned low = take_shared_u16(place, allowed, 1u << (2 * k));
        made.word[k] = low | take_shared_u16(place, allowed, 2u << (2 * k)) << 16;
    }
    return made;
}

// Fragments of two steps.
__device__ __forceinline__ void join_rows(const Chunk (&values)[LANE_ROWS], Fragment (&a)[2])
{
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
#pragma unroll
        for (int k = 0; k < 4; ++k)
            a[k / 2][r / 2][r % 2 + k % 2 * 2] = values[r].word[k];
}

__device__ __forceinline__ void load_rows(const Streams &s, unsigned shared, int half_tile, Fragment (&a)[2])
{
    Chunk values[LANE_ROWS];
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
        values[r] = row_values(s, shared, r, half_tile);
    join_rows(values, a);
}

__device__ __forceinline__ void load_rows(const Streams &s, unsigned shared, int half_tile, const TileMask &mask,
                                          Fragment (&a)[2])
{
    Chunk values[LANE_ROWS];
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r)
        values[r] = row_values(s, shared, r, half_tile, mask);
    join_rows(values, a);
}

// ---- A^T x: the columns of a tile are rows of A ----

constexpr int QUADS = THREADS / 4, QUAD_LINES = TILE_COLS / QUADS; // lines that a quad copies
static_assert(!TRANSPOSED || QUADS * QUAD_LINES == TILE_COLS, "quads share the lines evenly");

// Where the values of the quad's lines are in global memory, and how many; read ahead of the copies.
struct Places {
    sp_i64 word[QUAD_LINES > 0 ? QUAD_LINES : 1];
};

__device__ __forceinline__ Places places_of(const sp_sparse_args &args, sp_i64 tile)
{
    Places places;
#pragma unroll
    for (int n = 0; n < QUAD_LINES; ++n)
        places.word[n] = args.tile_values[tile * TILE_COLS + static_cast<int>(threadIdx.x) / 4 + n * QUADS];
    return places;
}

// Starts copying the tile's values; the quad's lanes take turns. Chunks are copied whole, with what else they hold, but not beyond the
// matrix, whose values end at `total`. With `fill` the rest of a line becomes zero: what no turn has written is not to be read.
__device__ __forceinline__ void copy_lines(const Places &places, unsigned shared, int stage, const char *values, sp_i64 total,
                                           bool fill)
{
    const int t = lane_number() % 4;
#pragma unroll
    for (int n = 0; n < QUAD_LINES; ++n) {
        const int number = static_cast<int>(threadIdx.x) / 4 + n * QUADS, count = static_cast<int>(places.word[n] >> 48);
        const sp_i64 first = places.word[n] & ((sp_i64(1) << 48) - 1);
        const int odd = static_cast<int>(first) & 7, end = count > 0 ? odd + count : 0;
        const sp_i64 inside = total - (first - odd);
        const int whole = inside < end + 7 ? static_cast<int>(inside) & ~7 : (end + 7) & ~7; // values in chunks that are copied whole
        const char *from = values + 2 * (first - odd) + 16 * t;
        const unsigned line = shared + LINES_OFFSET + stage * LINES_BYTES + number * LINE_PITCH;
#pragma unroll
        for (int k = 0; k < LINE_CHUNKS; k += 4)
            if (8 * (k + t) < whole)
                copy_async_whole(line + 16 * (k + t), from + 16 * k);
        if (fill || end > whole)
#pragma unroll 1
            for (int chunk = whole / 8 + ((t - whole / 8) & 3); chunk < LINE_CHUNKS; chunk += 4) {
                const int left = end - 8 * chunk;
                if (left > 0 || fill)
                    copy_async_part(line + 16 * chunk, left > 0 ? values + 2 * (first - odd) + 16 * chunk : values,
                                    left > 0 ? 2 * left : 0);
            }
        if (t == 0)
            store_shared_u32(shared + BEGINS_OFFSET + stage * BEGINS_BYTES + 4 * number, line + 2 * odd);
    }
}

// Of 32 words, one a lane, bit l of word n becomes bit n of word l.
__device__ __forceinline__ unsigned turned(unsigned word)
{
    constexpr unsigned kept[5] = {0x55555555u, 0x33333333u, 0x0f0f0f0fu, 0x00ff00ffu, 0x0000ffffu};
#pragma unroll
    for (int n = 4; n >= 0; --n) {
        const int step = 1 << n;
        const unsigned other = shuffle_xor_u32(word, step);
        word = lane_number() & step ? (word & ~kept[n]) | (other >> step & kept[n])
                                    : (word & kept[n]) | (other << step & ~kept[n]);
    }
    return word;
}

__device__ __forceinline__ unsigned column_masks(unsigned shared, int tile, int warp)
{
    return shared + MASKS_OFFSET + tile % 2 * MASKS_BYTES + 4 * TILE_COLS * warp;
}

// Leaves the masks of the columns, of the warp's own rows, for all warps. Rows beyond the last, whatever their masks say, come behind all
// others and are not stored.
__device__ __forceinline__ void store_column_masks(unsigned shared, int tile, const RowMask &mask)
{
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
        store_shared_u32(column_masks(shared, tile, warp_number()) + 4 * (32 * w + lane_number()),
                         turned(lane_number() < WARP_ROWS ? mask.word[w] : 0));
}

__device__ __forceinline__ unsigned own_begins(unsigned shared)
{
    return shared + OWN_BEGINS_OFFSET + 4 * TILE_COLS * warp_number();
}

// Finds where the values of the warp's rows begin in each line of a PARTIAL tile: behind those of the warps above.
__device__ __forceinline__ void find_own_begins(unsigned shared, int stage, int tile)
{
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        const int column = 32 * w + lane_number();
        int before = 0;
        for (int above = 0; above < warp_number(); ++above)
            before += count_bits(load_shared_u32(column_masks(shared, tile, above) + 4 * column));
        store_shared_u32(own_begins(shared) + 4 * column,
                         load_shared_u32(shared + BEGINS_OFFSET + stage * BEGINS_BYTES + 4 * column) + 2 * before);
    }
    warp_barrier();
}

// A lane has rows LANE_ROWS * g + r of the warp's. Words 0 and 1 of a row of A hold the lane's values of its one or two blocks, those of rows 2b and
// 2b + 1 in word b; what two rows of A hold for the same row of the tile then comes together.
__device__ __forceinline__ void join_columns(const unsigned (&first)[ROW_BLOCKS], const unsigned (&second)[ROW_BLOCKS],
                                             int half, Fragment &a)
{
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b) {
        a[b][2 * half] = permute(first[b], second[b], 0x5410);
        a[b][2 * half + 1] = permute(first[b], second[b], 0x7632);
    }
}

// The fragment of a step of a FULL tile.
__device__ __forceinline__ void load_columns(unsigned shared, int stage, int step, Fragment &a)
{
    const Chunk begins = load_shared_chunk(shared + BEGINS_OFFSET + stage * BEGINS_BYTES + 4 * step_column(step));
    const int row = warp_number() * WARP_ROWS + lane_number() / 4 * LANE_ROWS;
    unsigned values[4][ROW_BLOCKS];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const unsigned from = begins.word[n] + 2 * row, selector = from & 2 ? 0x5432u : 0x3210u;
        unsigned words[ROW_BLOCKS + 1];
#pragma unroll
        for (int b = 0; b <= ROW_BLOCKS; ++b)
            words[b] = load_shared_u32((from & ~3u) + 4 * b);
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS; ++b)
            values[n][b] = permute(words[b], words[b + 1], selector);
    }
    join_columns(values[0], values[1], 0, a);
    join_columns(values[2], values[3], 1, a);
}

// The same of a PARTIAL tile, with zeros where no pair is allowed.
__device__ __forceinline__ void load_allowed_columns(unsigned shared, int tile, int step, Fragment &a)
{
    const Chunk begins = load_shared_chunk(own_begins(shared) + 4 * step_column(step));
    const Chunk masks = load_shared_chunk(column_masks(shared, tile, warp_number()) + 4 * step_column(step));
    const int row = lane_number() / 4 * LANE_ROWS;
    unsigned values[4][ROW_BLOCKS];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        unsigned from = begins.word[n] + 2 * count_bits(masks.word[n] & ((1u << row) - 1));
        const unsigned allowed = masks.word[n] >> row;
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS; ++b) {
            const unsigned low = take_shared_u16(from, allowed, 1u << (2 * b));
            values[n][b] = low | take_shared_u16(from, allowed, 2u << (2 * b)) << 16;
        }
    }
    join_columns(values[0], values[1], 0, a);
    join_columns(values[2], values[3], 1, a);
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

// The product of one fragment where x may not be finite: pair by pair, the allowed ones alone. Small rather than fast: it is seldom
// called. `allowed`: bit 2 * (LANE_ROWS * half + r) + e is the lane's element e of row r in that half.
__device__ __forceinline__ void multiply_apart(const Fragment &a, unsigned allowed, unsigned x_tile, int step, Outputs &o)
{
    const int t = lane_number() % 4;
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
            has[r] = quad_or(t == owner ? allowed : 0) >> (2 * (LANE_ROWS * half + r) + e) & 1;
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

// Which of the lane's elements of a fragment are allowed pairs.
__device__ __forceinline__ unsigned fragment_bits(const TileMask &mask, int step)
{
    unsigned bits = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
            bits |= (mask.word[r][step / 2] >> (8 * (lane_number() % 4) + 4 * (step % 2) + 2 * half) & 3)
                    << (2 * (LANE_ROWS * half + r));
    return bits;
}

__device__ __forceinline__ unsigned fragment_bits(unsigned shared, int tile, int step)
{
    const Chunk masks = load_shared_chunk(column_masks(shared, tile, warp_number()) + 4 * step_column(step));
    unsigned bits = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
            bits |= (masks.word[n] >> (lane_number() / 4 * LANE_ROWS + r) & 1) << (2 * (LANE_ROWS * (n / 2) + r) + n % 2);
    return bits;
}

// ---- Walking ----

// What a walk works with.
struct Walk {
    const sp_sparse_args &sparse;
    const Work &work;
    unsigned shared, x_lane;
    const char *x, *values; // of the (batch, head); x without views the thread's own_source
    bool careful;           // forbidden pairs of PARTIAL tiles are left out, not multiplied by zeros
};

__device__ __forceinline__ void copy_x(const Walk &walk, int stage, const Cursor &cursor)
{
    const sp_launch_args &args = walk.sparse.plan;
    if (!LATTICE && cursor.column + TILE_COLS <= args.kv_len)
        copy_whole_rows<TILE_COLS, VALUE_CHUNKS, X_PITCH, place_of_x>(walk.shared + stage * X_BYTES, walk.x, 2 * args.v_row,
                                                                      cursor.column);
    else
        copy_tile<TILE_COLS, VALUE_CHUNKS, VALUE_CHUNKS, X_PITCH, place_of_x>(walk.shared + stage * X_BYTES, walk.x,
                                                                              2 * args.v_row, column_view(args, cursor),
                                                                              cursor.column, args.kv_len, args.v);
}

// Sums are 0. Where they take most registers they are read from shared memory, where the last stage of x is free before the first turn:
// plain zeros the compiler would put in place before all that precedes a walk, which needs registers too.
__device__ __forceinline__ void clear(unsigned shared, Outputs &o)
{
    constexpr bool MANY = ROW_BLOCKS * VALUE_DIM > 128;
    static_assert(!MANY || 16 * THREADS <= X_BYTES, "a chunk for each thread");
    const unsigned own = shared + (X_STAGES - 1) * X_BYTES + 16 * threadIdx.x;
    if (MANY)
        store_shared_chunk(own, Chunk{});
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int block = 0; block < VALUE_BLOCKS; ++block) {
            const Chunk zeros = MANY ? load_shared_chunk(own) : Chunk{};
#pragma unroll
            for (int n = 0; n < 4; ++n)
                o[b][block][n] = __int_as_float(static_cast<int>(zeros.word[n]));
        }
}

// The sums of A x; whether any tile was PARTIAL.
__device__ __forceinline__ bool walk_rows(const Walk &walk, Outputs &o)
{
    const sp_launch_args &args = walk.sparse.plan;
    const unsigned shared = walk.shared;
    Cursor cursor = first_tile(walk.work, args);
    Streams streams = open_streams(walk.sparse, walk.work, walk.values);
    copy_x(walk, 0, cursor);
    fill_rings<0, 2>(streams, shared); // the first tile's
    copy_commit();
    fill_rings<2, RING_LINES - 2>(streams, shared);
    copy_commit();
    // The lane's row in masks.
    int row = warp_number() * WARP_ROWS + lane_number() % WARP_ROWS;
    if (query_of(map_rows(args, walk.work.row_tile.tile), row) >= args.q_len)
        row = 0;
    const int position = walk.work.row_tile.tile * TILE_ROWS + row;
    MaskData data = load_mask_data(cursor, row, args);
    bool partial = false;
    int stage = 0;
    clear(shared, o);
    for (bool more = true; more; stage ^= 1) {
        const int kind = kind_of(cursor);
        RowMask mask = {};
        if (kind != PRED_NONE)
            mask = row_mask(kind, data, position, cursor.column);
        // The tile has landed, and every warp is done with the one before. Lines that were asked for last are needed in the next turn or later.
        copy_wait<1>();
        block_barrier();
        more = next_tile(cursor, args);
        if (more)
            copy_x(walk, stage ^ 1, cursor);
        data = load_mask_data(cursor, row, args);
        copy_commit();
        const TileMask tile = spread(kind, mask);
        const unsigned x_lane = walk.x_lane + stage * X_BYTES;
        if (kind == PRED_NONE) {
            // Without a branch, and each half's values before the products of the other's last step: what is done to them then hides
            // behind products.
            Fragment a[2][2];
#pragma unroll
            for (int half_tile = 0; half_tile < STEPS / 2; ++half_tile) {
                if (half_tile == 0)
                    load_rows(streams, shared, half_tile, a[half_tile % 2]);
                multiply(a[half_tile % 2][0], x_lane, 2 * half_tile, o);
                if (half_tile + 1 < STEPS / 2)
                    load_rows(streams, shared, half_tile + 1, a[(half_tile + 1) % 2]);
                multiply(a[half_tile % 2][1], x_lane, 2 * half_tile + 1, o);
            }
        } else {
            partial = true;
#pragma unroll
            for (int half_tile = 0; half_tile < STEPS / 2; ++half_tile) {
                Fragment a[2];
                load_rows(streams, shared, half_tile, tile, a);
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const int step = 2 * half_tile + n;
                    if (HAS_PARTIAL && walk.careful)
                        multiply_apart(a[n], fragment_bits(tile, step), shared + stage * X_BYTES, step, o);
                    else
                        multiply(a[n], x_lane, step, o);
                }
            }
        }
        warp_barrier();
        advance(streams, shared, tile);
        copy_commit();
    }
    return partial;
}

// The sums of A^T x; whether any tile was PARTIAL.
__device__ __forceinline__ bool walk_columns(const Walk &walk, Outputs &o)
{
    const sp_launch_args &args = walk.sparse.plan;
    const unsigned shared = walk.shared;
    const sp_i64 total = row_offsets_of(walk.sparse, walk.work.pair)[walk.sparse.value_rows];
    const int row = warp_number() * WARP_ROWS + lane_number() % WARP_ROWS; // the lane's in masks
    const int position = walk.work.row_tile.tile * TILE_ROWS + row;
    const sp_i64 first = walk.sparse.first_tiles[walk.work.number];
    // Of tiles n, n + 1 and n + 2, where n is the turn: `cursor` is at n + 2, the next to be copied, if `more`.
    Cursor cursor = first_tile(walk.work, args);
    int kind = kind_of(cursor), next_kind = PRED_NONE, next_column = 0;
    MaskData next_data = load_mask_data(cursor, row, args);
    Places places = places_of(walk.sparse, first);
    copy_x(walk, 0, cursor);
    copy_lines(places, shared, 0, walk.values, total, true);
    copy_commit();
    if (kind != PRED_NONE)
        store_column_masks(shared, 0, row_mask(kind, next_data, position, cursor.column));
    bool more = next_tile(cursor, args);
    if (more) {
        next_kind = kind_of(cursor);
        next_column = cursor.column;
        next_data = load_mask_data(cursor, row, args);
        copy_x(walk, 1, cursor);
        copy_lines(places_of(walk.sparse, first + 1), shared, 1, walk.values, total, true);
        more = next_tile(cursor, args);
    }
    copy_commit();
    if (more)
        places = places_of(walk.sparse, first + 2);
    bool partial = false;
    const int tiles = walk.work.row_tile.tiles;
    int stage = 0;
    clear(shared, o);
    for (int n = 0; n < tiles; ++n) {
        // The tile has landed, and every warp is done with the one before.
        copy_wait<1>();
        block_barrier();
        if (next_kind != PRED_NONE)
            store_column_masks(shared, n + 1, row_mask(next_kind, next_data, position, next_column));
        const int tile_kind = kind;
        kind = next_kind;
        next_kind = PRED_NONE;
        next_data = load_mask_data(cursor, row, args);
        if (more) {
            next_kind = kind_of(cursor);
            next_column = cursor.column;
            const int to = stage == 0 ? 2 : stage - 1;
            copy_x(walk, to, cursor);
            copy_lines(places, shared, to, walk.values, total, n == 0);
            more = next_tile(cursor, args);
        }
        places = places_of(walk.sparse, first + (more ? n + 3 : 0));
        copy_commit();
        const unsigned x_lane = walk.x_lane + stage * X_BYTES;
        if (tile_kind == PRED_NONE) {
            Fragment a[2]; // as in walk_rows
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                if (step == 0)
                    load_columns(shared, stage, step, a[step % 2]);
                if (step + 1 < STEPS)
                    load_columns(shared, stage, step + 1, a[(step + 1) % 2]);
                multiply(a[step % 2], x_lane, step, o);
            }
        } else {
            find_own_begins(shared, stage, n);
            partial = true;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                Fragment a;
                load_allowed_columns(shared, n, step, a);
                if (HAS_PARTIAL && walk.careful)
                    multiply_apart(a, fragment_bits(shared, n, step), shared + stage * X_BYTES, step, o);
                else
                    multiply(a, x_lane, step, o);
            }
        }
        stage = stage == 2 ? 0 : stage + 1;
    }
    return partial;
}

// Whether a sum is inf or NaN.
__device__ __forceinline__ bool has_nonfinite(const Outputs &o)
{
    float zero = 0.0f;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int block = 0; block < VALUE_BLOCKS; ++block)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                zero = fmaf(o[b][block][x], 0.0f, zero);
    return !(zero == 0.0f);
}

// ---- Results ----

// Takes y through the warp's own rows in shared memory to whole-chunk stores. The block has passed a barrier since x was last read.
__device__ __forceinline__ void store_results(unsigned shared, const Work &work, const Outputs &o, const sp_launch_args &args)
{
    const int lane = lane_number(), warp = warp_number(), g = lane / 4, t = lane % 4;
    const int batch = work.pair / args.heads, head = work.pair % args.heads;
    const RowMap rows = map_rows(args, work.row_tile.tile);
    const unsigned warp_rows = shared + warp * WARP_ROWS * X_PITCH;
    char *y = static_cast<char *>(args.o) + 2 * (batch * args.o_batch + head * args.o_head);
#pragma unroll
    for (int block = 0; block < VALUE_BLOCKS; ++block)
#pragma unroll
        for (int r = 0; r < LANE_ROWS; ++r)
            store_shared_u32(warp_rows + (TRANSPOSED ? LANE_ROWS * g + r : g + 8 * r) * X_PITCH + 16 * block + 4 * t,
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
    const int lane = lane_number();
    const unsigned pair = work.pair, heads = args.heads, group = args.group; // no sign to be kept in a register
    const unsigned batch = pair / heads, head = pair % heads;
    const unsigned shared = shared_base();
    Outputs o;
    if (work.row_tile.segment_count > 0) {
        const char *x = head_rows(args.v, batch * args.v_batch + head / group * args.v_head);
        if constexpr (!LATTICE)
            x = own_source<TILE_COLS, VALUE_CHUNKS>(x, 2 * args.v_row);
        // The row each lane points ldmatrix at (transposed): rows 0-15 twice, the second time 8 columns on.
        Walk walk = {sparse, work, shared, shared + lane % 16 * X_PITCH + lane / 16 * 16, x,
                     head_rows(sparse.values, batch * sparse.values_batch + head * sparse.values_head), false};
        // Zeros times what is not finite are NaN: when sums are not finite and that may be why, all is done again with care.
#pragma unroll 1
        for (bool again = true; again;) {
            bool partial;
            if constexpr (TRANSPOSED)
                partial = walk_columns(walk, o);
            else
                partial = walk_rows(walk, o);
            // After the barrier y, or the first x again, takes the place of x.
            again = block_barrier_or(HAS_PARTIAL && partial && !walk.careful && has_nonfinite(o));
            walk.careful = true;
        }
    } else
        clear(shared, o);
    // Which work this was is found out once more, which keeps it out of the registers of the loop.
    store_results(shared, find_work(args, static_cast<int>(block_index())), o, args);
}
