// What the kernels of Kronecker-sparse layers ask of the machine beyond ptx_sm80.cuh, under the same rules.
//
// In the fragments below g = lane / 4 and t = lane % 4.

#ifndef SPLAT_MACHINE

// The number of this thread in its block, read anew each time: what follows from it is not kept in registers from call to
// call.
__device__ __forceinline__ unsigned thread_index()
{
    unsigned index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}

// Address a multiple of 8.
__device__ __forceinline__ void load_shared_pair(unsigned (&d)[2], unsigned address)
{
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(d[0]), "=r"(d[1]) : "r"(address) : "memory");
}

// The nearest number with 10 bits of mantissa, ties away from zero.
__device__ __forceinline__ unsigned round_tf32(unsigned bits)
{
    unsigned d;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(__int_as_float(static_cast<int>(bits))));
    return d;
}

// d += a * b for a 16x8 a, an 8x8 b and a 16x8 d in fp32. a: registers 0..3 are (row g, k t), (g + 8, t), (g, t + 4),
// (g + 8, t + 4). b: b0, b1 are (k t, column g), (t + 4, g). d: (row g, columns 2t and 2t + 1), (row g + 8, the same).
__device__ __forceinline__ void mma_16x8x8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
