// What every attention kernel shares, whatever moves its data: the plan's records, masking, the running softmax, what to do
// about values that are not finite, and which work comes next.
//
// Takes, from the template that it is pasted into: the sizes ROW_BLOCKS, COL_BLOCKS, KEY_STEPS and VALUE_BLOCKS, and the
// functions that reach the tile's data where that template keeps it: struct MaskSource with predicate_word and mask_word,
// and value_address. Keeps true: no asm and no memory but through those functions and the plan's tables.

// splat:region(element)
#include "element_common.cuh"
// splat:end

// splat:region(plan)
#include "plan_common.cuh"
// splat:end

// FOLD: query heads of a group share row tiles. SPLIT: long row tiles come in parts, which are combined afterwards.

// ---- Heads and queries ----

// The heads of a (batch, head) pair, as work items count them.
struct Pair {
    int batch, head, kv_head; // the (first) query head, and the head of its keys
    int first;                // with FOLD: the same query head within its group
};

__device__ __forceinline__ Pair pair_of(const sp_launch_args &args, int pair)
{
    Pair p;
    p.batch = pair / args.heads;
    const int head = pair - p.batch * args.heads;
    p.kv_head = head / args.group;
    p.first = 0;
    p.head = head;
    if constexpr (FOLD) {
        p.first = (head - p.kv_head * args.group) << args.fold_log2;
        p.head = p.kv_head * args.fold_heads + p.first;
    }
    return p;
}

// The rows of a row tile of a pair.
struct QueryMap {
    RowMap rows;
    int heads; // with FOLD: query heads from the pair's first to the end of its group
};

__device__ __forceinline__ QueryMap map_queries(const sp_launch_args &args, int tile, const Pair &pair)
{
    QueryMap map = {};
    map.rows = map_rows(args, tile);
    map.heads = args.fold_heads - pair.first;
    return map;
}

// What row `row` of a row tile stands for: a query of the pair's head, or of one `head` further.
struct RowOwner {
    int query, head;
    bool present;
};

__device__ __forceinline__ RowOwner owner_of(const sp_launch_args &args, const QueryMap &map, int row)
{
    RowOwner owner;
    owner.query = query_of(map.rows, row);
    owner.head = 0;
    if constexpr (FOLD) {
        owner.head = owner.query & ((1 << args.fold_log2) - 1);
        owner.query >>= args.fold_log2;
    }
    owner.present = owner.query < args.q_len && (!FOLD || owner.head < map.heads);
    return owner;
}

// From the o of a pair, in bytes; from its lse, in floats.
__device__ __forceinline__ sp_i64 o_offset(const sp_launch_args &args, const RowOwner &owner)
{
    return 2 * (owner.query * args.o_row + (FOLD ? owner.head * args.o_head : 0));
}

__device__ __forceinline__ sp_i64 lse_offset(const sp_launch_args &args, const RowOwner &owner)
{
    return owner.query + (FOLD ? owner.head * args.lse_head : 0);
}

// Row `row` of the part in `slot` (1 + its place) of a pair, counted over all parts' rows.
__device__ __forceinline__ sp_i64 part_row(const sp_launch_args &args, int slot, int pair, int row)
{
    return (sp_i64(slot - 1) * (args.batch * args.heads) + pair) * TILE_ROWS + row;
}

// ---- What a thread holds ----

// Scores of a thread: [row block][key block][2 * half + e] is row 16 * block + 8 * half + g, key 8 * block + 2t +
// e, with g = lane / 4, t = lane % 4. Outputs likewise, with blocks of value columns.
typedef float Scores[ROW_BLOCKS][COL_BLOCKS][4];
typedef float Outputs[ROW_BLOCKS][VALUE_BLOCKS][4];
typedef float RowValues[ROW_BLOCKS][2];
typedef unsigned Weights[KEY_STEPS][ROW_BLOCKS][4]; // p, packed as the a operand of p v

__device__ __forceinline__ float &score(Scores &s, int thread_row, int block, int e)
{
    return s[thread_row / 2][block][2 * (thread_row % 2) + e];
}

// splat:region(mask)
#include "mask_common.cuh"
// splat:end

// ---- Running softmax ----

// Raises the maxima, of raw scores, to those of a tile's, and gives the factors that bring sums and outputs so far to them. A row
// with nothing allowed yet has maximum -inf; 0 stands for it in the exponents, so that its weights and its factor are exp(-inf) = 0
// and not exp(-inf + inf).
__device__ __forceinline__ void raise_maxima(const Scores &s, RowValues &row_max, RowValues &factors, float scale_log2)
{
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = row_max[b][half];
#pragma unroll
            for (int block = 0; block < COL_BLOCKS; ++block)
                top = fmaxf(top, fmaxf(s[b][block][2 * half], s[b][block][2 * half + 1]));
            top = fmaxf(top, shuffle_xor(top, 1));
            top = fmaxf(top, shuffle_xor(top, 2));
            factors[b][half] = exp2_approx(fmaf(row_max[b][half], scale_log2, top == -infinity() ? 0.0f : -top * scale_log2));
            row_max[b][half] = top;
        }
}

// Turns scores into weights exp(scale * (s - max)), and adds them to the sums so far times the factors. `row_sum` is this
// thread's part of the sum.
__device__ __forceinline__ void weigh(Scores &s, const RowValues &row_max, RowValues &row_sum, const RowValues &factors,
                                      float scale_log2)
{
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float bias = row_max[b][half] == -infinity() ? 0.0f : -row_max[b][half] * scale_log2;
            float sum = row_sum[b][half] * factors[b][half];
#pragma unroll
            for (int block = 0; block < COL_BLOCKS; ++block)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &x = s[b][block][2 * half + e];
                    x = exp2_approx(fmaf(x, scale_log2, bias));
                    sum += x;
                }
            row_sum[b][half] = sum;
        }
}

__device__ __forceinline__ void rescale(Outputs &o, const RowValues &factors)
{
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int block = 0; block < VALUE_BLOCKS; ++block)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                o[b][block][x] *= factors[b][x / 2];
}

// The layout of scores is the layout of the a operand: no lane needs another's weights.
__device__ __forceinline__ void pack_weights(const Scores &s, Weights &p)
{
#pragma unroll
    for (int step = 0; step < KEY_STEPS; ++step)
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const float(&pair)[4] = s[b][2 * step + x / 2];
                p[step][b][x] = pack(pair[2 * (x % 2)], pair[2 * (x % 2) + 1]);
            }
}

// ---- Results of several launches ----

// What the launches before left of a query's outputs, in this thread's columns: where it is, or its words at hand.
struct OldInMemory {
    const char *o; // null: there is no such query

    __device__ __forceinline__ unsigned word(int block) const
    {
        return o ? *reinterpret_cast<const unsigned *>(o + 16 * block + 4 * (threadIdx.x % 4)) : 0;
    }
};

struct OldAtHand {
    unsigned words[VALUE_BLOCKS];

    __device__ __forceinline__ unsigned word(int block) const
    {
        return words[block];
    }
};

// Starts reading them; nothing waits for the loads here.
__device__ __forceinline__ void fetch(const OldInMemory &from, OldAtHand &to)
{
#pragma unroll
    for (int block = 0; block < VALUE_BLOCKS; ++block)
        to.words[block] = from.word(block);
}

// Brings them into this launch's: o, not yet divided by `sum`, becomes the final output; gives the joint log-sum-exp. `before`
// is theirs. A weight that is 0 must not meet an infinity.
template <int HALF, class Old>
__device__ __forceinline__ float merge_row(Outputs &o, int b, float sum, float lse, float before, const Old &old)
{
    const float top = fmaxf(lse, before), base = top == -infinity() ? 0.0f : top;
    const float mine = exp2_approx((lse - base) * 1.44269504f), theirs = exp2_approx((before - base) * 1.44269504f);
    const float total = mine + theirs, scale = total == 0.0f ? 0.0f : 1.0f / total;
    const float own = sum == 0.0f ? 0.0f : mine * scale / sum, other = theirs * scale;
#pragma unroll
    for (int block = 0; block < VALUE_BLOCKS; ++block) {
        const unsigned pair = old.word(block);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float &x = o[b][block][2 * HALF + e];
            x = (own == 0.0f ? 0.0f : x * own) + (other == 0.0f ? 0.0f : unpack(pair, e) * other);
        }
    }
    return total == 0.0f ? -infinity() : base + log2_approx(total) * 0.693147181f;
}

// ---- Parts of a row tile ----

// Half of a thread's rows of outputs, times a factor, to a row of the workspace: null where there is none.
template <int HALF> __device__ __forceinline__ void store_part(const Outputs &o, int b, float factor, float *to)
{
    struct alignas(8) Two {
        float x, y;
    };
    if (to)
#pragma unroll
        for (int block = 0; block < VALUE_BLOCKS; ++block)
            *reinterpret_cast<Two *>(to + 8 * block + 2 * (threadIdx.x % 4)) =
                Two{o[b][block][2 * HALF] * factor, o[b][block][2 * HALF + 1] * factor};
}

// ---- Values that are inf or NaN ----
//
// A masked key has weight 0, and 0 * NaN would be NaN. So a PARTIAL tile whose v holds such values takes a detour:
// what they bring to the rows that are allowed to see them is added apart, then they are set to zero for the
// product.

// Sets the halves of a word that are not finite to 0.
__device__ __forceinline__ unsigned clear_nonfinite(unsigned pair)
{
    return pair & ~((nonfinite_bits(pair) >> 15) * 0xffffu);
}

// A non-finite element, in the low half of x, as fp32.
__device__ __forceinline__ float widen_nonfinite(unsigned x)
{
    constexpr unsigned mantissa = EXPONENT & (~EXPONENT + 1);
    return __int_as_float(
        static_cast<int>((x & 0x8000u) << 16 | 0x7f800000u | (x & (mantissa - 1)) << (IS_BF16 ? 16 : 13)));
}

// Adds to o the non-finite values of the keys that have a weight in the row. Small rather than fast: it is seldom
// called.
__device__ __forceinline__ void add_nonfinite(const Weights &p, unsigned v_tile, Outputs &o)
{
    const int t = static_cast<int>(threadIdx.x) % 4;
    unsigned weighty[THREAD_ROWS][TILE_COLS / 32] = {}; // bit per key: the row gives it a weight
#pragma unroll
    for (int step = 0; step < KEY_STEPS; ++step)
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; ++r) {
            unsigned bits = 0;
#pragma unroll
            for (int x = 0; x < 2; ++x) {
                const unsigned pair = p[step][r / 2][2 * x + r % 2];
                bits |= ((pair & 0xffffu ? 1u : 0u) | (pair >> 16 ? 2u : 0u)) << (8 * x);
            }
            weighty[r][step / 2] |= bits << (16 * (step % 2) + 2 * t);
        }
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; ++r)
#pragma unroll
        for (int w = 0; w < TILE_COLS / 32; ++w)
            weighty[r][w] = quad_or(weighty[r][w]);
#pragma unroll 1
    for (int block = 0; block < VALUE_BLOCKS; ++block) {
        float sum[THREAD_ROWS][2] = {};
#pragma unroll
        for (int w = 0; w < TILE_COLS / 32; ++w)
#pragma unroll 1
            for (int key = 0; key < 32; ++key) {
                const unsigned pair = load_shared_u32(value_address(v_tile, 32 * w + key, block) + 4 * t);
                const unsigned found = nonfinite_bits(pair);
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (found & 0x8000u << (16 * e))
#pragma unroll
                        for (int r = 0; r < THREAD_ROWS; ++r)
                            if (weighty[r][w] >> key & 1)
                                sum[r][e] += widen_nonfinite(pair >> (16 * e));
            }
#pragma unroll
        for (int b = 0; b < VALUE_BLOCKS; ++b)
            if (b == block)
#pragma unroll
                for (int r = 0; r < THREAD_ROWS; ++r)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        o[r / 2][b][2 * (r % 2) + e] += sum[r][e];
    }
}
