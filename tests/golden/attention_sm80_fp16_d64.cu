// splat: attention kernel, generated.
//
//   type        fp16, head dim 64, value dim 64
//   tile        64 queries x 64 keys, 4 warps of 16 queries
//   predicates  upper
//   masks       one
//   launch      128 threads and 27696 bytes of dynamic shared memory a block
//   compile     nvcc -x cu -std=c++17 -arch=sm_80 -cubin

// Fused attention forward: o = softmax(scale * q k^T restricted to a mask) v and its log-sum-exp, for any tile
// plan.
//
// Takes struct sp_launch_args: tensors, and the plan's row tiles, segments, predicates, tables and bitmasks. Gives
// o in the type of q, and lse when wanted. Keeps true: a key that is masked out contributes nothing, even when it
// holds NaN or inf; a row with nothing allowed gets o = 0 and lse = -inf; nothing is read or written beyond q_len
// rows and kv_len keys; a block sums its column tiles in the order of its segments, so that results repeat bit for
// bit.
//
// One block takes one row tile of one (batch, head): TILE_ROWS queries, shared evenly by its warps, 16 or 32 rows
// each. It walks the row tile's column tiles of TILE_COLS keys with the running softmax. q, one tile of k and one
// of v are in shared memory. While the block multiplies q k^T of tile t, v of tile t is on its way; during p v, k
// of tile t + 1.
//
// Rows in shared memory are an odd number of 16-byte chunks apart, so that the eight rows of a matrix lie in
// different banks at any head dim. The head dim is padded by zeros to a multiple of 16.
//
// The regions between "splat:region" and "splat:end" are replaced when src/codegen/source.c assembles a kernel;
// what stands in them here makes this file compile on its own.

constexpr bool IS_BF16 = false;
constexpr int HEAD_DIM = 64;
constexpr int VALUE_DIM = 64;
constexpr int TILE_ROWS = 64;
constexpr int TILE_COLS = 64;
constexpr int WARPS = 4;
constexpr int BLOCKS_PER_SM = 2;
constexpr bool MASK_MAP = false;
constexpr bool LATTICE = false;
constexpr bool CUT_ZONES = false;
constexpr bool MERGE = false;
constexpr bool FOLD = false;
constexpr bool SPLIT = false;
constexpr unsigned PREDICATE_MASK = 0x4;
constexpr int SHARED_BYTES = 27696;

/* The kernel's one parameter: shared word for word by the host (C) and by the generated source (CUDA), which pastes
 * this file. Only fixed-width types and 8-byte alignment, so that both sides agree. */
#ifndef SP_LAUNCH_ARGS_H
#define SP_LAUNCH_ARGS_H

typedef long long sp_i64;

/* A view of a sequence (src/analysis/view.h): token n0*y + x is in zone x >> c_log2, at rank (y << c_log2) + x % c
 * of it, which is position zone*pitch + rank; beyond a zone that `rest` cuts, one zone further. */
struct sp_launch_view {
    int n0, c_log2, pitch;
    int rest; /* length % n0: columns below it have one grid row more, and zones of their own */
};

struct sp_launch_args {
    const void *q, *k, *v;
    void *o;
    float *lse;                    /* may be null */
    sp_i64 q_batch, q_head, q_row; /* strides in elements */
    sp_i64 k_batch, k_head, k_row;
    sp_i64 v_batch, v_head, v_row;
    sp_i64 o_batch, o_head, o_row;
    sp_i64 lse_batch, lse_head;
    const void *row_tiles;  /* struct sp_row_tile: row_tile_count of distinct mask 0, then of mask 1, ... */
    const void *segments;   /* struct sp_segment */
    const void *predicates; /* struct sp_predicate */
    const void *table;      /* int32 */
    const void *bits;       /* uint32 */
    const void *map;        /* int32 distinct mask of each (batch, head), or null */
    const void *schedule;   /* persistent kernels: int32 begin of each block's items and the end of all, then the
                               items;   or null: items are dealt out in turn */
    int q_len, kv_len;
    int batch, heads, group;  /* group = heads / kv_heads */
    int row_tile_count;       /* of one distinct mask */
    int section;              /* (batch, head) pairs that are walked together, longest row tile first */
    int map_batch, map_heads; /* 1 = broadcast */
    float scale, scale_log2;  /* scale and scale * log2(e) */
    struct sp_launch_view row_view, column_views[2]; /* read by kernels with views */
    int merge; /* 1: merges into the o and lse of the launches before; lse is not null then */
    /* Kernels whose heads share row tiles: row r is query r >> fold_log2 of head r % 2^fold_log2 of its part of a
     * group of fold_heads query heads. `heads` then counts the parts of groups, and `group` those of one. */
    int fold_log2, fold_heads;
    int split_count;    /* kernels that split row tiles: row tiles of this launch with parts */
    const void *splits; /* struct sp_split */
    float *part_o,
        *part_lse; /* of slot s and (batch, head) pair p, from s * batch * heads + p on, TILE_ROWS rows */
};

#endif

// Everything the portable kernel asks of the machine beyond plain C++: one small function an instruction.
//
// Takes nothing but built-in types. Gives the instructions of sm_80 that have no C++ form, and all access to shared
// memory. Keeps true: asm occurs in this file only, so that a build which defines SPLAT_MACHINE and supplies the
// same names executes the kernel elsewhere. Shared memory is addressed by its 32-bit byte address. Functions that
// read or write memory, or wait for it, are volatile and clobber memory: their order is the program's. Arithmetic
// is pure.
//
// In the fragments below g = lane / 4 and t = lane % 4; a register holds two 16-bit elements, the lower index in
// the lower half.

// 16 bytes: eight 16-bit elements, the unit of every copy.
struct alignas(16) Chunk {
    unsigned word[4];
};

#ifndef SPLAT_MACHINE

// The number of this block in the grid, read anew each time: no call is merged with another.
__device__ __forceinline__ unsigned block_index()
{
    unsigned index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
}

// ---- Shared memory ----

// The address of the block's dynamic shared memory; a multiple of 16.
__device__ __forceinline__ unsigned shared_base()
{
    extern __shared__ Chunk dynamic_shared[];
    return static_cast<unsigned>(__cvta_generic_to_shared(dynamic_shared));
}

// Address a multiple of 4.
__device__ __forceinline__ unsigned load_shared_u32(unsigned address)
{
    unsigned value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_shared_u32(unsigned address, unsigned value)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Address a multiple of 2.
__device__ __forceinline__ unsigned load_shared_u16(unsigned address)
{
    unsigned short value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_shared_u16(unsigned address, unsigned value)
{
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<unsigned short>(value)) : "memory");
}

// Address a multiple of 16.
__device__ __forceinline__ Chunk load_shared_chunk(unsigned address)
{
    Chunk c;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(c.word[0]), "=r"(c.word[1]), "=r"(c.word[2]), "=r"(c.word[3])
                 : "r"(address)
                 : "memory");
    return c;
}

__device__ __forceinline__ void store_shared_chunk(unsigned address, Chunk c)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(c.word[0]), "r"(c.word[1]),
                 "r"(c.word[2]), "r"(c.word[3])
                 : "memory");
}

// Four 8x8 matrices of 16-bit elements. Lane l gives the address (a multiple of 16) of row l % 8 of matrix l / 8.
// Register m receives, from matrix m, elements 2t and 2t + 1 of row g. All 32 lanes take part.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&d)[4], unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}

// The same, each matrix transposed: register m receives elements 2t and 2t + 1 of column g.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&d)[4], unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}

// Two matrices, transposed: the addresses of lanes 0 to 15 count, those of the others are ignored.
__device__ __forceinline__ void ldmatrix_x2_trans(unsigned &d0, unsigned &d1, unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d0), "=r"(d1)
                 : "r"(address)
                 : "memory");
}

// The same address. The compiler takes it as it is: it does not keep the sum's terms alive to add them up again
// later.
__device__ __forceinline__ const char *settle(const char *address)
{
    asm volatile("" : "+l"(address));
    return address;
}

// ---- Asynchronous copies from global to shared memory ----

// Copies 16 bytes, past L1, when `present`; else writes 16 zero bytes and reads nothing. Both addresses are
// multiples of 16; the source must be a valid address even when it is not read.
__device__ __forceinline__ void copy_async_chunk(unsigned shared, const void *global, bool present)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(__cvta_generic_to_global(global)), "r"(present ? 16 : 0)
                 : "memory");
}

// Copies the first `bytes` of a chunk, 0 to 16, and writes zeros for the others, of which nothing is read. Both addresses are
// multiples of 16.
__device__ __forceinline__ void copy_async_part(unsigned shared, const void *global, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

// Copies 4 bytes; both addresses are multiples of 4.
__device__ __forceinline__ void copy_async_u32(unsigned shared, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(__cvta_generic_to_global(global))
                 : "memory");
}

// Closes the group of this thread's copies since the last call. A group may be empty.
__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING of this thread's youngest groups are under way. The older ones have then landed for
// this thread; for the others of the block only after a barrier.
template <int PENDING> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- Barriers and shuffles ----

// Every thread of the block arrives; what each wrote to shared memory before is seen by all after.
__device__ __forceinline__ void block_barrier()
{
    __syncthreads();
}

// The same, and says to all whether any thread's flag was set.
__device__ __forceinline__ bool block_barrier_or(bool flag)
{
    return __syncthreads_or(flag) != 0;
}

// The same for the 32 lanes of a warp.
__device__ __forceinline__ void warp_barrier()
{
    __syncwarp();
}

// The value of lane (own lane ^ mask); all 32 lanes take part.
__device__ __forceinline__ float shuffle_xor(float value, int mask)
{
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

__device__ __forceinline__ unsigned shuffle_xor_u32(unsigned value, int mask)
{
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

// Bit l is lane l's flag; all 32 lanes take part.
__device__ __forceinline__ unsigned warp_ballot(bool flag)
{
    return __ballot_sync(0xffffffffu, flag);
}

// The bitwise or over the four lanes that differ in the last two bits of their number; all 32 lanes take part.
__device__ __forceinline__ unsigned quad_or(unsigned value)
{
    value |= __shfl_xor_sync(0xffffffffu, value, 1);
    return value | __shfl_xor_sync(0xffffffffu, value, 2);
}

// ---- Arithmetic ----

// d += a * b for a 16x16 a, a 16x8 b and a 16x8 d in fp32. a: registers 0..3 are (row g, k 2t), (g + 8, 2t), (g, 2t
// + 8), (g + 8, 2t + 8). b: b0, b1 are (k 2t, column g), (2t + 8, g). d: (row g, columns 2t and 2t + 1), (row g +
// 8, the same).
__device__ __forceinline__ void mma_16x8x16_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_16x8x16_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two fp32 to two 16-bit elements, to nearest even, `low` in the lower half. NaN stays NaN; what is too large
// becomes inf.
__device__ __forceinline__ unsigned pack_bf16(float low, float high)
{
    unsigned d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

__device__ __forceinline__ unsigned pack_f16(float low, float high)
{
    unsigned d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// Half e of a word, as fp32.
__device__ __forceinline__ float unpack_f16(unsigned pair, int e)
{
    float x;
    asm("{\n"
        ".reg .b16 h;\n"
        "cvt.u16.u32 h, %1;\n"
        "cvt.f32.f16 %0, h;\n"
        "}\n"
        : "=f"(x)
        : "r"(e ? pair >> 16 : pair & 0xffffu));
    return x;
}

// Bits that are set.
__device__ __forceinline__ int count_bits(unsigned word)
{
    return __popc(word);
}

// 1 / x to about 1 ulp.
__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2^x to about 2 ulp; 2^-inf = 0, subnormal results are 0, NaN stays NaN.
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log2(x), absolute error about 2^-22 near 1; log2(0) = -inf.
__device__ __forceinline__ float log2_approx(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

// ---- Sizes ----

constexpr int THREADS = 32 * WARPS;
constexpr int WARP_ROWS = TILE_ROWS / WARPS;
constexpr int ROW_BLOCKS = WARP_ROWS / 16;          // blocks of 16 rows a warp
constexpr int COL_BLOCKS = TILE_COLS / 8;           // blocks of 8 keys a tile
constexpr int COL_PAIRS = COL_BLOCKS / 2;           // one ldmatrix of k each
constexpr int DIM_STEPS = (HEAD_DIM + 15) / 16;     // steps of q k^T
constexpr int KEY_STEPS = TILE_COLS / 16;           // steps of p v
constexpr int VALUE_BLOCKS = VALUE_DIM / 8;         // blocks of 8 columns of v and o
constexpr int VALUE_PAIRS = (VALUE_BLOCKS + 1) / 2; // one ldmatrix of v each; the last may hold one block only

// Chunks of a row, and bytes from one row in shared memory to the next.
constexpr int HEAD_CHUNKS = 2 * DIM_STEPS;
constexpr int VALUE_CHUNKS = VALUE_DIM / 8;
constexpr int K_PITCH = 16 * (HEAD_CHUNKS | 1);
constexpr int V_PITCH = 16 * (VALUE_CHUNKS | 1);
constexpr int Q_PITCH = K_PITCH > V_PITCH ? K_PITCH : V_PITCH; // o takes the place of q at the end

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

// Shared address of 8 columns of a key's values.
__device__ __forceinline__ unsigned value_address(unsigned v_tile, int key, int block)
{
    return v_tile + key * V_PITCH + 16 * block;
}

// What every attention kernel shares, whatever moves its data: the plan's records, masking, the running softmax, what to do
// about values that are not finite, and which work comes next.
//
// Takes, from the template that it is pasted into: the sizes ROW_BLOCKS, COL_BLOCKS, KEY_STEPS and VALUE_BLOCKS, and the
// functions that reach the tile's data where that template keeps it: struct MaskSource with predicate_word and mask_word,
// and value_address. Keeps true: no asm and no memory but through those functions and the plan's tables.

// The elements of tensors and values: fp16 or bf16, as IS_BF16 says.

// ---- Element type ----

// Exponent bits of an element.
constexpr unsigned EXPONENT = IS_BF16 ? 0x7f80u : 0x7c00u;

__device__ __forceinline__ unsigned pack(float low, float high)
{
    if constexpr (IS_BF16)
        return pack_bf16(low, high);
    else
        return pack_f16(low, high);
}

// Half e of a word as fp32.
__device__ __forceinline__ float unpack(unsigned pair, int e)
{
    if constexpr (IS_BF16)
        return __int_as_float(static_cast<int>(e ? pair & 0xffff0000u : pair << 16));
    else
        return unpack_f16(pair, e);
}

// Bit 15 of each half that is inf or NaN: adding the lowest exponent bit to a full exponent carries into it.
__device__ __forceinline__ unsigned nonfinite_bits(unsigned pair)
{
    constexpr unsigned lowest = EXPONENT & (~EXPONENT + 1);
    return ((pair & (EXPONENT * 0x10001u)) + lowest * 0x10001u) & 0x80008000u;
}

__device__ __forceinline__ float infinity()
{
    return __int_as_float(0x7f800000);
}

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

// ---- Shared memory ----

// Where things lie in shared memory.
constexpr int K_OFFSET = TILE_ROWS * Q_PITCH;
constexpr int V_OFFSET = K_OFFSET + TILE_COLS * K_PITCH;
constexpr int MASK_OFFSET = V_OFFSET + TILE_COLS * V_PITCH; // of the PARTIAL tile at hand
constexpr int RECORD_OFFSET = MASK_OFFSET + MASK_BYTES;
constexpr int LAYOUT_BYTES = RECORD_OFFSET + 16;

static_assert(WARP_ROWS == 16 || WARP_ROWS == 32, "a warp takes 16 or 32 rows");
static_assert(TILE_ROWS == WARP_ROWS * WARPS, "warps share the rows evenly");
static_assert(TILE_COLS == 32 || TILE_COLS == 64 || TILE_COLS == 128, "a row of a bitmask is whole words");
static_assert(HEAD_DIM % 8 == 0 && VALUE_DIM % 8 == 0, "rows are whole chunks");
static_assert(LAYOUT_BYTES == SHARED_BYTES, "host and kernel agree on the shared memory");

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    if constexpr (IS_BF16)
        mma_16x8x16_bf16(d, a, b0, b1);
    else
        mma_16x8x16_f16(d, a, b0, b1);
}

// ---- Walking the tiles ----

// The column tile at hand. Moves through the segments of a row tile in order. Registers are short, so that what is
// seldom needed is kept in shared memory, as a record: thread 0 writes it, and all may read it a barrier later.
struct Cursor {
    int segment; // the one it is in
    int left;    // tiles left in the segment, this one included
    int column;  // position of the tile's first column
    int view;    // with views: which of the column views
};

enum RecordField {
    SEGMENT_END, // the end of the row tile's segments
    TILE_CODE,   // of the tile's segment: view, step and kind
    TILE_MASK    // number of the tile's predicate, table or bitmask
};

__device__ __forceinline__ int read_record(unsigned shared, RecordField field)
{
    return static_cast<int>(load_shared_u32(shared + RECORD_OFFSET + 4 * field));
}

__device__ __forceinline__ void write_record(unsigned shared, RecordField field, int value)
{
    store_shared_u32(shared + RECORD_OFFSET + 4 * field, static_cast<unsigned>(value));
}

__device__ __forceinline__ void enter_segment(Cursor &cursor, unsigned shared, const sp_launch_args &args)
{
    const sp_segment s = static_cast<const sp_segment *>(args.segments)[cursor.segment];
    cursor.left = s.count;
    cursor.column = s.first * TILE_COLS;
    if constexpr (LATTICE)
        cursor.view = s.code >> 8;
    if constexpr (HAS_PARTIAL)
        if (threadIdx.x == 0) {
            write_record(shared, TILE_CODE, s.code);
            write_record(shared, TILE_MASK, s.predicate);
        }
}

// False when there is no further tile.
__device__ __forceinline__ bool next_tile(Cursor &cursor, unsigned shared, const sp_launch_args &args)
{
    if (--cursor.left > 0) {
        cursor.column += TILE_COLS;
        if constexpr (HAS_BITS)
            if (threadIdx.x == 0)
                write_record(shared, TILE_MASK,
                             read_record(shared, TILE_MASK) + (read_record(shared, TILE_CODE) >> 4 & 1));
        return true;
    }
    if (++cursor.segment == read_record(shared, SEGMENT_END))
        return false;
    enter_segment(cursor, shared, args);
    return true;
}

__device__ __forceinline__ const sp_launch_view &column_view(const sp_launch_args &args, const Cursor &cursor)
{
    return args.column_views[LATTICE ? cursor.view : 0];
}

// Tiles of a tensor to shared memory, by cp.async.
//
// Takes, from the template that it is pasted into, THREADS, LATTICE, and what plan_common.cuh gives.

// ---- Copies ----

// How many columns of chunks the threads of a block are laid out in: a power of two, the surplus idle, so that a
// thread stays in one column and steps down by the same number of rows, at most all of them.
__host__ __device__ constexpr int thread_columns(int rows, int chunks)
{
    int columns = 1;
    while (columns < chunks || columns * rows < THREADS)
        columns *= 2;
    return columns;
}

// Calls visit(row, chunk) for this thread's share of ROWS rows of CHUNKS chunks. The same thread gets the same ones
// each time.
template <int ROWS, int CHUNKS, class Visit> __device__ __forceinline__ void for_own_chunks(Visit visit)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS), STEP = THREADS / COLUMNS;
    static_assert(ROWS % STEP == 0, "every thread has the same number of rows");
    const int row = static_cast<int>(threadIdx.x) / COLUMNS, chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    if (chunk < CHUNKS)
#pragma unroll
        for (int step = 0; step < ROWS; step += STEP)
            visit(row + step, chunk);
}

// The address of this thread's first chunk among ROWS rows of CHUNKS chunks.
template <int ROWS, int CHUNKS>
__device__ __forceinline__ const char *own_source(const char *rows, sp_i64 row_bytes)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS);
    const int row = static_cast<int>(threadIdx.x) / COLUMNS, chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    return settle(rows + row * row_bytes + 16 * chunk);
}

// Starts copying rows first .. first + ROWS of a tensor to rows PITCH bytes apart; `source` is own_source of its
// row 0. Its rows hold FILLED chunks; rows from `limit` on, and chunks from FILLED on, become zero (`anywhere` is a
// valid address for them). Shares the chunks out like for_own_chunks; the source address moves on by additions, so
// that no other need be kept.
template <int ROWS, int CHUNKS, int FILLED, int PITCH>
__device__ __forceinline__ void copy_rows(unsigned shared, const char *source, sp_i64 row_bytes, int first,
                                          int limit, const void *anywhere)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS), STEP = THREADS / COLUMNS;
    static_assert(ROWS % STEP == 0, "every thread has the same number of rows");
    const int row = static_cast<int>(threadIdx.x) / COLUMNS, chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    const int rows_left = CHUNKS == FILLED || chunk < FILLED ? limit - first - row : 0;
    source += first * row_bytes;
    if (chunk < CHUNKS)
#pragma unroll
        for (int step = 0; step < ROWS; step += STEP) {
            const bool present = step < rows_left;
            copy_async_chunk(shared + (row + step) * PITCH + 16 * chunk, present ? source : anywhere, present);
            source += STEP * row_bytes;
        }
}

// The same for the ROWS tokens of a tile at position `first` of a view; `rows` is the head's row 0.
template <int ROWS, int CHUNKS, int FILLED, int PITCH>
__device__ __forceinline__ void copy_lattice(unsigned shared, const char *rows, sp_i64 row_bytes,
                                             const sp_launch_view &view, int first, int limit, const void *anywhere)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS), STEP = THREADS / COLUMNS;
    const Place place = place_of(view, first);
    const int chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    if (chunk < CHUNKS)
#pragma unroll 1
        for (int row = static_cast<int>(threadIdx.x) / COLUMNS; row < ROWS; row += STEP) {
            const int token = token_of(view, place, row);
            const bool present = token < limit && (CHUNKS == FILLED || chunk < FILLED);
            copy_async_chunk(shared + row * PITCH + 16 * chunk,
                             present ? rows + token * row_bytes + 16 * chunk : anywhere, present);
        }
}

// One tile of queries, keys or values, under its view: `rows` is the head's row 0, or this thread's own_source of it without
// views.
template <int ROWS, int CHUNKS, int FILLED, int PITCH>
__device__ __forceinline__ void copy_tile(unsigned shared, const char *rows, sp_i64 row_bytes,
                                          const sp_launch_view &view, int first, int limit, const void *anywhere)
{
    if constexpr (LATTICE)
        copy_lattice<ROWS, CHUNKS, FILLED, PITCH>(shared, rows, row_bytes, view, first, limit, anywhere);
    else
        copy_rows<ROWS, CHUNKS, FILLED, PITCH>(shared, rows, row_bytes, first, limit, anywhere);
}

// Starts copying the ROWS rows of a row tile whose heads share it; `rows` is query 0 of the pair's first head.
template <int ROWS, int CHUNKS, int FILLED, int PITCH>
__device__ __forceinline__ void copy_folded(unsigned shared, const char *rows, const sp_launch_args &args,
                                            const QueryMap &map)
{
    constexpr int COLUMNS = thread_columns(ROWS, CHUNKS), STEP = THREADS / COLUMNS;
    const int chunk = static_cast<int>(threadIdx.x) % COLUMNS;
    if (chunk < CHUNKS)
#pragma unroll 1
        for (int row = static_cast<int>(threadIdx.x) / COLUMNS; row < ROWS; row += STEP) {
            const RowOwner owner = owner_of(args, map, row);
            const bool present = owner.present && (CHUNKS == FILLED || chunk < FILLED);
            const char *from = rows + 2 * (owner.query * args.q_row + owner.head * args.q_head) + 16 * chunk;
            copy_async_chunk(shared + row * PITCH + 16 * chunk, present ? from : args.q, present);
        }
}

// Starts copying what the tile in the record needs besides k and v if it is PARTIAL: its predicate, table or
// bitmask.
__device__ __forceinline__ void copy_mask(unsigned shared, const sp_launch_args &args)
{
    const int kind = read_record(shared, TILE_CODE) & 15;
    if (kind == PRED_NONE)
        return;
    int bytes = 0;
    const char *from = mask_data(args, kind, read_record(shared, TILE_MASK), bytes);
#pragma unroll 1
    for (int byte = 16 * static_cast<int>(threadIdx.x); byte < bytes; byte += 16 * THREADS)
        copy_async_chunk(shared + MASK_OFFSET + byte, from + byte, true);
}

// ---- s = q k^T ----

// q_lane and k_lane are the addresses of this lane's row for ldmatrix. The fragments of the next step are under way
// while the current one is multiplied.
__device__ __forceinline__ void multiply_scores(unsigned q_lane, unsigned k_lane, Scores &s)
{
    unsigned q[2][ROW_BLOCKS][4], k[2][4];
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
        ldmatrix_x4(q[0][b], q_lane + b * 16 * Q_PITCH);
    ldmatrix_x4(k[0], k_lane);
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int block = 0; block < COL_BLOCKS; ++block)
#pragma unroll
            for (int x = 0; x < 4; ++x)
                s[b][block][x] = 0.0f;
#pragma unroll
    for (int dim = 0; dim < DIM_STEPS; ++dim)
#pragma unroll
        for (int pair = 0; pair < COL_PAIRS; ++pair) {
            const int now = (dim * COL_PAIRS + pair) % 2;
            if (pair + 1 < COL_PAIRS)
                ldmatrix_x4(k[1 - now], k_lane + (pair + 1) * 16 * K_PITCH + 32 * dim);
            else if (dim + 1 < DIM_STEPS)
                ldmatrix_x4(k[1 - now], k_lane + 32 * (dim + 1));
            if (pair == 0 && dim + 1 < DIM_STEPS)
#pragma unroll
                for (int b = 0; b < ROW_BLOCKS; ++b)
                    ldmatrix_x4(q[(dim + 1) % 2][b], q_lane + b * 16 * Q_PITCH + 32 * (dim + 1));
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS; ++b) {
                mma(s[b][2 * pair], q[dim % 2][b], k[now][0], k[now][1]);
                mma(s[b][2 * pair + 1], q[dim % 2][b], k[now][2], k[now][3]);
            }
        }
}

// ---- o += p v ----

// v of 16 keys and a pair of blocks of 8 columns as b operands; the second one is left out when it does not exist.
__device__ __forceinline__ void load_values(unsigned (&v)[4], unsigned v_lane, int step, int pair)
{
    const unsigned address = v_lane + step * 16 * V_PITCH + 32 * pair;
    if (2 * pair + 1 < VALUE_BLOCKS)
        ldmatrix_x4_trans(v, address);
    else
        ldmatrix_x2_trans(v[0], v[1], address);
}

__device__ __forceinline__ void multiply_values(const Weights &p, unsigned v_lane, Outputs &o)
{
    unsigned v[2][4];
    load_values(v[0], v_lane, 0, 0);
#pragma unroll
    for (int step = 0; step < KEY_STEPS; ++step)
#pragma unroll
        for (int pair = 0; pair < VALUE_PAIRS; ++pair) {
            const int now = (step * VALUE_PAIRS + pair) % 2;
            if (pair + 1 < VALUE_PAIRS)
                load_values(v[1 - now], v_lane, step, pair + 1);
            else if (step + 1 < KEY_STEPS)
                load_values(v[1 - now], v_lane, step + 1, 0);
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS; ++b) {
                mma(o[b][2 * pair], p[step][b], v[now][0], v[now][1]);
                if (2 * pair + 1 < VALUE_BLOCKS)
                    mma(o[b][2 * pair + 1], p[step][b], v[now][2], v[now][3]);
            }
        }
}

// ---- Values that are inf or NaN ----

// Whether this thread's own chunks of v hold one; they must have landed for this thread.
__device__ __forceinline__ bool own_values_nonfinite(unsigned v_tile)
{
    unsigned found = 0;
    for_own_chunks<TILE_COLS, VALUE_CHUNKS>([&](int row, int chunk) {
        const Chunk c = load_shared_chunk(v_tile + row * V_PITCH + 16 * chunk);
#pragma unroll
        for (int w = 0; w < 4; ++w)
            found |= nonfinite_bits(c.word[w]);
    });
    return found != 0;
}

__device__ __forceinline__ void clear_own_nonfinite(unsigned v_tile)
{
    for_own_chunks<TILE_COLS, VALUE_CHUNKS>([&](int row, int chunk) {
        const unsigned address = v_tile + row * V_PITCH + 16 * chunk;
        Chunk c = load_shared_chunk(address);
#pragma unroll
        for (int w = 0; w < 4; ++w)
            c.word[w] = clear_nonfinite(c.word[w]);
        store_shared_chunk(address, c);
    });
}

// ---- Results ----

// Divides by the sums, or merges, writes lse, and takes o through the warp's own rows of q in shared memory to
// whole-chunk stores. `warp_row` is the warp's first row of the tile. The block has passed a barrier since q was last read.
__device__ __forceinline__ void store_results(unsigned q_warp, int warp_row, const Work &work, const RowValues &row_max,
                                              const RowValues &row_sum, Outputs &o, const sp_launch_args &args)
{
    const Pair pair = pair_of(args, work.pair);
    const QueryMap rows = map_queries(args, work.row_tile.tile, pair);
    char *o_pair = static_cast<char *>(args.o) + 2 * (pair.batch * args.o_batch + pair.head * args.o_head);
    float *lse_pair = args.lse ? args.lse + (pair.batch * args.lse_batch + pair.head * args.lse_head) : nullptr;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const int slot = SPLIT ? work.row_tile.slot : 0;
    if (MERGE && args.merge && work.row_tile.segment_count == 0)
        return; // what the launches before left there stays
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = 16 * b + 8 * half + g;
            const RowOwner owner = owner_of(args, rows, warp_row + row);
            float sum = row_sum[b][half];
            sum += shuffle_xor(sum, 1);
            sum += shuffle_xor(sum, 2);
            const bool empty = sum == 0.0f;
            float inverse = empty ? 0.0f : 1.0f / sum;
            float lse = empty ? -infinity() : row_max[b][half] * args.scale + log2_approx(sum) * 0.693147181f;
            if constexpr (SPLIT)
                if (slot) {
                    const sp_i64 part = part_row(args, slot, work.pair, warp_row + row);
                    float *to = owner.present ? args.part_o + part * VALUE_DIM : nullptr;
                    if (half)
                        store_part<1>(o, b, inverse, to);
                    else
                        store_part<0>(o, b, inverse, to);
                    if (to && t == 0)
                        args.part_lse[part] = lse;
                    continue;
                }
            if constexpr (MERGE)
                if (args.merge) {
                    const OldInMemory old = {owner.present ? o_pair + o_offset(args, owner) : nullptr};
                    const float before = owner.present ? lse_pair[lse_offset(args, owner)] : -infinity();
                    if (half)
                        lse = merge_row<1>(o, b, sum, lse, before, old);
                    else
                        lse = merge_row<0>(o, b, sum, lse, before, old);
                    inverse = 1.0f;
                    warp_barrier(); // lanes of a row have read its lse
                }
#pragma unroll
            for (int block = 0; block < VALUE_BLOCKS; ++block)
                store_shared_u32(q_warp + row * Q_PITCH + 16 * block + 4 * t,
                                 pack(o[b][block][2 * half] * inverse, o[b][block][2 * half + 1] * inverse));
            if (lse_pair && t == 0 && owner.present)
                lse_pair[lse_offset(args, owner)] = lse;
        }
    if (SPLIT && slot)
        return;
    warp_barrier();
#pragma unroll 4
    for (int index = lane; index < WARP_ROWS * VALUE_CHUNKS; index += 32) {
        const int row = index / VALUE_CHUNKS, chunk = index % VALUE_CHUNKS;
        const RowOwner owner = owner_of(args, rows, warp_row + row);
        if (owner.present)
            *reinterpret_cast<Chunk *>(o_pair + o_offset(args, owner) + 16 * chunk) =
                load_shared_chunk(q_warp + row * Q_PITCH + 16 * chunk);
    }
}

// ---- The kernel ----

// The rows of one head, `offset` elements into a tensor.
__device__ __forceinline__ const char *head_rows(const void *tensor, sp_i64 offset)
{
    return static_cast<const char *>(tensor) + 2 * offset;
}

// Grid: row_tile_count * batch * heads blocks. Block: THREADS. Dynamic shared memory: SHARED_BYTES.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    splat_attention(const __grid_constant__ sp_launch_args args)
{
    const Work work = find_work(args, static_cast<int>(block_index()));
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int tile_row = work.row_tile.tile * TILE_ROWS; // position
    const unsigned shared = shared_base();
    const unsigned q_warp = shared + warp * WARP_ROWS * Q_PITCH;
    const unsigned k_tile = shared + K_OFFSET, v_tile = shared + V_OFFSET;
    // The row each lane points ldmatrix at. q: rows 0-15 twice, the second time 8 elements on. k: keys 0-7 twice,
    // then keys 8-15 twice. v (transposed): keys 0-15 twice, the second time 8 columns on.
    const unsigned q_lane = q_warp + lane % 16 * Q_PITCH + lane / 16 * 16;
    const unsigned k_lane = k_tile + (lane % 8 + lane / 16 * 8) * K_PITCH + lane / 8 % 2 * 16;
    const unsigned v_lane = v_tile + lane % 16 * V_PITCH + lane / 16 * 16;

    Outputs o = {};
    RowValues row_max, row_sum;
#pragma unroll
    for (int b = 0; b < ROW_BLOCKS; ++b)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            row_max[b][half] = -infinity();
            row_sum[b][half] = 0.0f;
        }

    if (work.row_tile.segment_count > 0) {
        const Pair pair = pair_of(args, work.pair);
        const char *q = head_rows(args.q, pair.batch * args.q_batch + pair.head * args.q_head);
        const char *k = head_rows(args.k, pair.batch * args.k_batch + pair.kv_head * args.k_head);
        const char *v = head_rows(args.v, pair.batch * args.v_batch + pair.kv_head * args.v_head);
        if constexpr (FOLD)
            copy_folded<TILE_ROWS, HEAD_CHUNKS, HEAD_DIM / 8, Q_PITCH>(shared, q, args,
                                                                       map_queries(args, work.row_tile.tile, pair));
        if constexpr (!LATTICE) {
            q = own_source<TILE_ROWS, HEAD_CHUNKS>(q, 2 * args.q_row);
            k = own_source<TILE_COLS, HEAD_CHUNKS>(k, 2 * args.k_row);
            v = own_source<TILE_COLS, VALUE_CHUNKS>(v, 2 * args.v_row);
        }
        if constexpr (!FOLD)
            copy_tile<TILE_ROWS, HEAD_CHUNKS, HEAD_DIM / 8, Q_PITCH>(shared, q, 2 * args.q_row, args.row_view, tile_row,
                                                                     args.q_len, args.q);
        Cursor cursor;
        cursor.segment = work.row_tile.segment;
        if (thread == 0)
            write_record(shared, SEGMENT_END, cursor.segment + work.row_tile.segment_count);
        enter_segment(cursor, shared, args);
        copy_tile<TILE_COLS, HEAD_CHUNKS, HEAD_DIM / 8, K_PITCH>(k_tile, k, 2 * args.k_row, column_view(args, cursor),
                                                                 cursor.column, args.kv_len, args.k);
        copy_commit();
        bool more;
        do {
            // k has landed, and every warp is done with the v, predicate and words of the tile before.
            copy_wait<0>();
            block_barrier();
            copy_tile<TILE_COLS, VALUE_CHUNKS, VALUE_CHUNKS, V_PITCH>(
                v_tile, v, 2 * args.v_row, column_view(args, cursor), cursor.column, args.kv_len, args.v);
            if constexpr (HAS_PARTIAL)
                copy_mask(shared, args);
            copy_commit();

            Scores s;
            multiply_scores(q_lane, k_lane, s);

            // v and the predicate have landed, and every warp is done with k.
            copy_wait<0>();
            int kind = PRED_NONE;
            bool nonfinite = false;
            if constexpr (HAS_PARTIAL)
                kind = read_record(shared, TILE_CODE) & 15;
            if (kind != PRED_NONE)
                nonfinite = block_barrier_or(own_values_nonfinite(v_tile));
            else
                block_barrier();
            if constexpr (HAS_PARTIAL)
                if (kind != PRED_NONE) {
                    MaskTile tile;
                    tile.source.address = shared + MASK_OFFSET;
                    tile.tile_row = warp * WARP_ROWS + lane / 4;
                    tile.row = tile_row + tile.tile_row;
                    tile.column = cursor.column + lane % 4 * 2;
                    apply_predicate(kind, tile, s);
                }
            RowValues factors;
            raise_maxima(s, row_max, factors, args.scale_log2);
            weigh(s, row_max, row_sum, factors, args.scale_log2);
            rescale(o, factors);
            Weights p;
            pack_weights(s, p);

            // Only now, when the scores no longer take registers; p v is long enough for k to arrive.
            more = next_tile(cursor, shared, args);
            if (more)
                copy_tile<TILE_COLS, HEAD_CHUNKS, HEAD_DIM / 8, K_PITCH>(
                    k_tile, k, 2 * args.k_row, column_view(args, cursor), cursor.column, args.kv_len, args.k);
            copy_commit();

            if constexpr (HAS_PARTIAL)
                if (nonfinite) {
                    add_nonfinite(p, v_tile, o);
                    block_barrier(); // everyone has read them
                    clear_own_nonfinite(v_tile);
                    block_barrier();
                }
            multiply_values(p, v_lane, o);
        } while (more);
    }

    // Which work this was is found out once more, which keeps it out of the registers of the loop.
    const Work done = find_work(args, static_cast<int>(block_index()));
    store_results(q_warp, warp * WARP_ROWS, done, row_max, row_sum, o, args);
}

