// The functions of templates/ptx_sm80.cuh, and the words of CUDA, for a kernel that is compiled as host C++.
//
// Included before the generated text (see compile.cc); with SPLAT_MACHINE defined the text leaves these functions
// out. Gives the same names with the same contracts, by way of machine.h.
#pragma once
#include <cmath>

#include "machine.h"
#include "numbers.h"

#define SPLAT_MACHINE
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx machine::thread_index()

// A call of these stands for the line it is written in.
#define HERE int line = __builtin_LINE()

struct Chunk; // the kernel's text defines it; what needs it whole is in ptx_after.h

inline float __int_as_float(int bits)
{
    return machine::float_of_bits(static_cast<unsigned>(bits));
}

inline int __float_as_int(float value)
{
    int bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

__forceinline__ unsigned block_index()
{
    return machine::block_index().x;
}

// ---- Shared memory ----

__forceinline__ unsigned shared_base()
{
    return machine::shared_base();
}

__forceinline__ unsigned load_shared_u32(unsigned address)
{
    unsigned value;
    machine::read_shared(address, &value, 4);
    return value;
}

__forceinline__ void store_shared_u32(unsigned address, unsigned value)
{
    machine::write_shared(address, &value, 4);
}

__forceinline__ unsigned load_shared_u16(unsigned address)
{
    unsigned short value;
    machine::read_shared(address, &value, 2);
    return value;
}

__forceinline__ void store_shared_u16(unsigned address, unsigned value)
{
    const auto low = static_cast<unsigned short>(value);
    machine::write_shared(address, &low, 2);
}

__forceinline__ Chunk load_shared_chunk(unsigned address);
__forceinline__ void store_shared_chunk(unsigned address, Chunk c);

__forceinline__ void ldmatrix_x4(unsigned (&d)[4], unsigned address, HERE)
{
    machine::load_matrices(d, 4, false, address, line);
}

__forceinline__ void ldmatrix_x4_trans(unsigned (&d)[4], unsigned address, HERE)
{
    machine::load_matrices(d, 4, true, address, line);
}

__forceinline__ void ldmatrix_x2_trans(unsigned &d0, unsigned &d1, unsigned address, HERE)
{
    unsigned d[2];
    machine::load_matrices(d, 2, true, address, line);
    d0 = d[0];
    d1 = d[1];
}

__forceinline__ const char *settle(const char *address)
{
    return address;
}

// ---- Asynchronous copies ----

__forceinline__ void copy_async_chunk(unsigned shared, const void *global, bool present)
{
    machine::start_copy(shared, global, 16, present);
}

__forceinline__ void copy_async_part(unsigned shared, const void *global, int bytes)
{
    machine::start_copy_part(shared, global, bytes);
}

__forceinline__ void copy_async_u32(unsigned shared, const void *global)
{
    machine::start_copy(shared, global, 4, true);
}

__forceinline__ void copy_commit()
{
    machine::commit_copies();
}

template <int PENDING> __forceinline__ void copy_wait()
{
    machine::wait_copies(PENDING);
}

// ---- Barriers and shuffles ----

__forceinline__ void block_barrier(HERE)
{
    machine::block_barrier(false, line);
}

__forceinline__ bool block_barrier_or(bool flag, HERE)
{
    return machine::block_barrier(flag, line);
}

__forceinline__ void warp_barrier(HERE)
{
    machine::warp_barrier(line);
}

__forceinline__ float shuffle_xor(float value, int mask, HERE)
{
    return machine::float_of_bits(machine::shuffle_xor(machine::bits_of_float(value), mask, line));
}

__forceinline__ unsigned shuffle_xor_u32(unsigned value, int mask, HERE)
{
    return machine::shuffle_xor(value, mask, line);
}

__forceinline__ unsigned warp_ballot(bool flag, HERE)
{
    unsigned flags = flag ? 1u << (machine::thread_index().x % 32) : 0;
    for (int mask = 1; mask < 32; mask *= 2)
        flags |= machine::shuffle_xor(flags, mask, line);
    return flags;
}

__forceinline__ unsigned quad_or(unsigned value, HERE)
{
    value |= machine::shuffle_xor(value, 1, line);
    return value | machine::shuffle_xor(value, 2, line);
}

// ---- Arithmetic ----

__forceinline__ void mma_16x8x16_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, HERE)
{
    machine::multiply(d, a, b0, b1, true, line);
}

__forceinline__ void mma_16x8x16_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, HERE)
{
    machine::multiply(d, a, b0, b1, false, line);
}

inline unsigned pack_bf16(float low, float high)
{
    return machine::bf16_of(low) | static_cast<unsigned>(machine::bf16_of(high)) << 16;
}

inline unsigned pack_f16(float low, float high)
{
    return machine::half_of(low) | static_cast<unsigned>(machine::half_of(high)) << 16;
}

inline float unpack_f16(unsigned pair, int e)
{
    return machine::half_value(e ? pair >> 16 : pair);
}

inline int count_bits(unsigned word)
{
    return __builtin_popcount(word);
}

inline float reciprocal(float x)
{
    const float y = 1.0f / (std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x);
    return std::fabs(y) < 0x1p-126f ? std::copysign(0.0f, y) : y; // a comparison that NaN fails
}

inline float exp2_approx(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y; // a comparison that NaN fails
}

inline float log2_approx(float x)
{
    return log2f(x);
}
