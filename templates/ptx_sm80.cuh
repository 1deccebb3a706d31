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
