// Combines the parts of split row tiles, and what the launches before left of their rows.
//
// Takes the launch's arguments: its splits, and each part's outputs and log-sum-exps in the workspace. A block does a row: its
// warps share the parts, a lane takes every 32nd group of four columns. Pasted behind an attention kernel, whose sizes and types
// it shares. Keeps true: sums are in the same order in every run.

struct alignas(16) sp_split {
    int tile, first_slot, parts, launch;
};

struct alignas(16) Four {
    float x[4];
};

struct alignas(8) PackedFour {
    unsigned word[2];
};

constexpr int COMBINE_WARPS = 8;
constexpr int COLUMN_GROUPS = (VALUE_DIM / 4 + 31) / 32;
constexpr int COMBINE_ROW = 4 * VALUE_DIM + 16; // bytes of a warp's outputs, and of its sum of weights

// A weight that is 0 must not meet an infinity.
__device__ __forceinline__ void add_weighted(Four &sum, const Four &o, float weight)
{
    if (weight != 0.0f)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            sum.x[e] = fmaf(weight, o.x[e], sum.x[e]);
}

__device__ __forceinline__ float float_at(unsigned address)
{
    return __int_as_float(static_cast<int>(load_shared_u32(address)));
}

// Grid: split_count * batch * heads * TILE_ROWS blocks. Block: 32 * COMBINE_WARPS threads. Dynamic shared memory: COMBINE_WARPS *
// COMBINE_ROW bytes.
extern "C" __global__ void __launch_bounds__(32 * COMBINE_WARPS)
    splat_combine(const __grid_constant__ sp_launch_args args)
{
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int pairs = args.batch * args.heads, number = static_cast<int>(block_index());
    const int row = number % TILE_ROWS, index = number / TILE_ROWS % pairs;
    const sp_split split = static_cast<const sp_split *>(args.splits)[number / TILE_ROWS / pairs];
    const Pair pair = pair_of(args, index);
    const RowOwner owner = owner_of(args, map_queries(args, split.tile, pair), row);
    if (!owner.present)
        return;
    const sp_i64 first = part_row(args, split.first_slot + 1, index, row), step = sp_i64(pairs) * TILE_ROWS;
    char *o = static_cast<char *>(args.o) + 2 * (pair.batch * args.o_batch + pair.head * args.o_head) +
              o_offset(args, owner);
    float *lse = args.lse ? args.lse + pair.batch * args.lse_batch + pair.head * args.lse_head + lse_offset(args, owner)
                          : nullptr;
    const bool merge = MERGE && args.merge;
    const float before = merge ? *lse : -infinity();

    float top = before;
    for (int part = lane; part < split.parts; part += 32)
        top = fmaxf(top, args.part_lse[first + part * step]);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        top = fmaxf(top, shuffle_xor(top, lanes));
    const float base = top == -infinity() ? 0.0f : top;

    // Each warp's share of the parts.
    Four sum[COLUMN_GROUPS] = {};
    float total = 0.0f;
#pragma unroll 4
    for (int part = warp; part < split.parts; part += COMBINE_WARPS) {
        const float weight = exp2_approx((args.part_lse[first + part * step] - base) * 1.44269504f);
        const float *from = args.part_o + (first + part * step) * VALUE_DIM;
        total += weight;
#pragma unroll
        for (int k = 0; k < COLUMN_GROUPS; ++k)
            if (4 * (lane + 32 * k) < VALUE_DIM)
                add_weighted(sum[k], *reinterpret_cast<const Four *>(from + 4 * (lane + 32 * k)), weight);
    }
    const unsigned shared = shared_base(), own = shared + warp * COMBINE_ROW;
#pragma unroll
    for (int k = 0; k < COLUMN_GROUPS; ++k)
        if (4 * (lane + 32 * k) < VALUE_DIM)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                store_shared_u32(own + 16 * (lane + 32 * k) + 4 * e, static_cast<unsigned>(__float_as_int(sum[k].x[e])));
    if (lane == 0)
        store_shared_u32(own + 4 * VALUE_DIM, static_cast<unsigned>(__float_as_int(total)));
    block_barrier();

    // All of them, and what was there before: a thread takes four columns.
    if (4 * thread >= VALUE_DIM)
        return;
    Four all = {};
    total = 0.0f;
#pragma unroll
    for (int other = 0; other < COMBINE_WARPS; ++other) {
        total += float_at(shared + other * COMBINE_ROW + 4 * VALUE_DIM);
#pragma unroll
        for (int e = 0; e < 4; ++e)
            all.x[e] += float_at(shared + other * COMBINE_ROW + 16 * thread + 4 * e);
    }
    if (merge) {
        const PackedFour old = *reinterpret_cast<const PackedFour *>(o + 8 * thread);
        const Four values = {{unpack(old.word[0], 0), unpack(old.word[0], 1), unpack(old.word[1], 0), unpack(old.word[1], 1)}};
        const float weight = exp2_approx((before - base) * 1.44269504f);
        total += weight;
        add_weighted(all, values, weight);
    }
    const float factor = total == 0.0f ? 0.0f : 1.0f / total;
    PackedFour packed;
    packed.word[0] = pack(all.x[0] * factor, all.x[1] * factor);
    packed.word[1] = pack(all.x[2] * factor, all.x[3] * factor);
    *reinterpret_cast<PackedFour *>(o + 8 * thread) = packed;
    if (lse && thread == 0)
        *lse = total == 0.0f ? -infinity() : base + log2_approx(total) * 0.693147181f;
}
