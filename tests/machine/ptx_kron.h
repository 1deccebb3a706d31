// The functions of templates/ptx_kron.cuh, for a kernel that is compiled as host C++.
#pragma once
#include "ptx_sm80.h"

__forceinline__ unsigned thread_index()
{
    return machine::thread_index().x;
}

__forceinline__ void load_shared_pair(unsigned (&d)[2], unsigned address)
{
    machine::read_shared(address, d, 8);
}

// To nearest, ties away from zero. NaN and infinity stay.
inline unsigned round_tf32(unsigned bits)
{
    return (bits & 0x7f800000u) == 0x7f800000u ? bits & ~0x1fffu : (bits + 0x1000u) & ~0x1fffu;
}

__forceinline__ void mma_16x8x8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, HERE)
{
    machine::multiply_tf32(d, a, b0, b1, line);
}
