// The functions of templates/ptx_sm90.cuh, and what stands for an asm statement, for a kernel that is compiled as
// host C++.
//
// Included before the generated text, behind ptx_sm80.h. Gives the same names with the same contracts, by way of
// machine.h. The text of the products (src/codegen/emit_wgmma.c) is not replaced: compile.cc turns its asm
// statements into calls of execute_asm, with the instruction's text and its operands.
#pragma once
#include <initializer_list>

#include "machine.h"

typedef long long sp_i64; // as the kernel's text defines it again

// ---- asm ----

template <class T> __forceinline__ machine::Operand asm_operand(const char *constraint, const T &x)
{
    return {constraint, &x, static_cast<int>(sizeof x)};
}

__forceinline__ void asm_statement(const char *text, std::initializer_list<machine::Operand> outputs,
                                   std::initializer_list<machine::Operand> inputs, HERE)
{
    machine::execute_asm(text, outputs.begin(), static_cast<int>(outputs.size()), inputs.begin(),
                         static_cast<int>(inputs.size()), line);
}

// ---- Barriers in shared memory ----

__forceinline__ void barrier_init(unsigned barrier, int arrivals)
{
    machine::barrier_init(barrier, arrivals);
}

__forceinline__ void barrier_init_fence()
{
    machine::barrier_init_fence();
}

__forceinline__ void barrier_arrive(unsigned barrier)
{
    machine::barrier_arrive(barrier, 0);
}

__forceinline__ void barrier_expect(unsigned barrier, int bytes)
{
    machine::barrier_arrive(barrier, bytes);
}

__forceinline__ bool barrier_try_wait(unsigned barrier, int parity, HERE)
{
    return machine::barrier_try_wait(barrier, parity, line);
}

__forceinline__ void barrier_wait(unsigned barrier, int parity, HERE)
{
    machine::barrier_wait(barrier, parity, line);
}

__forceinline__ void named_sync(int name, int threads, HERE)
{
    machine::named_barrier(name, threads, true, false, line);
}

__forceinline__ void named_arrive(int name, int threads, HERE)
{
    machine::named_barrier(name, threads, false, false, line);
}

__forceinline__ bool named_sync_or(int name, int threads, bool flag, HERE)
{
    return machine::named_barrier(name, threads, true, flag, line);
}

__forceinline__ void atomic_min_shared(unsigned address, int value)
{
    machine::atomic_min_shared(address, value);
}

__forceinline__ int load_shared_relaxed(unsigned address)
{
    return machine::load_shared_relaxed(address);
}

// ---- Bulk tensor copies ----

__forceinline__ void copy_tensor(unsigned shared, const void *map, unsigned barrier, int c0, int c1, int c2, int c3,
                                 int c4)
{
    const int coordinates[5] = {c0, c1, c2, c3, c4};
    machine::copy_tensor(shared, map, barrier, coordinates, 5);
}

__forceinline__ void copy_bulk(unsigned shared, const void *from, int bytes, unsigned barrier)
{
    machine::copy_bulk(shared, from, bytes, barrier);
}

__forceinline__ void prefetch_map(const void *map)
{
    machine::prefetch_tensor_map(map);
}

__forceinline__ void prefetch_l2(const void *address)
{
    machine::prefetch(address);
}

__forceinline__ void fence_async_proxy()
{
    machine::fence_async_proxy();
}

// ---- Warpgroup products ----

__forceinline__ void wgmma_fence(HERE)
{
    machine::product_fence(line);
}

__forceinline__ void wgmma_commit(HERE)
{
    machine::product_commit(line);
}

template <int PENDING> __forceinline__ void wgmma_wait(HERE)
{
    machine::product_wait(PENDING, line);
}

__forceinline__ void hold(float &x)
{
    machine::hold(&x);
}

template <int COUNT> __forceinline__ void registers_down_to(HERE)
{
    machine::set_registers(COUNT, false, line);
}

template <int COUNT> __forceinline__ void registers_up_to(HERE)
{
    machine::set_registers(COUNT, true, line);
}

// ---- The rest ----

__forceinline__ bool warp_any(bool flag, HERE)
{
    return machine::vote_any(flag, line);
}

__forceinline__ int warp_uniform(int value, HERE)
{
    return machine::broadcast(value, line);
}

__forceinline__ int grid_size()
{
    return static_cast<int>(machine::grid_size());
}

__forceinline__ bool elect_lane(HERE)
{
    return machine::elect(line);
}

// Compiles in half the time; reports then name the innermost function alone.
#ifdef MACHINE_QUICK
#undef __forceinline__
#define __forceinline__ inline
#endif
