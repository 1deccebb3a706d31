// What the Hopper kernel asks of the machine beyond ptx_sm80.cuh: barriers in shared memory, bulk tensor copies, warpgroup
// products, register reallocation.
//
// Takes ptx_sm80.cuh. Gives one small function an instruction of sm_90a. Keeps true: asm occurs in the ptx files only. The
// products themselves (wgmma_scores, wgmma_values) depend on the tile shape and are written by src/codegen/emit_wgmma.c.

#ifndef SPLAT_MACHINE

// ---- Barriers in shared memory ---------------------------------------------------------------------------------------
//
// A barrier counts arrivals and expected bytes; when both are complete its phase flips. `parity` names the phase a thread
// waits for: 0 for the first, then 1, 0, ... On a fresh barrier a wait for parity 1 returns at once.

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine; a block_barrier must follow for the other threads.
__device__ __forceinline__ void barrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival, and `bytes` more that copies will bring in this phase.
__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ bool barrier_try_wait(unsigned barrier, int parity)
{
    unsigned done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

__device__ __forceinline__ void barrier_wait(unsigned barrier, int parity)
{
    while (!barrier_try_wait(barrier, parity)) {
    }
}

// Named barriers of the block, 1 to 15, for `threads` threads: sync arrives and waits; arrive does not wait.
__device__ __forceinline__ void named_sync(int name, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int name, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// named_sync, and whether any of the threads brings the flag.
__device__ __forceinline__ bool named_sync_or(int name, int threads, bool flag)
{
    unsigned any;
    asm volatile("{\n"
                 ".reg .pred p, q;\n"
                 "setp.ne.u32 p, %3, 0;\n"
                 "barrier.red.or.pred q, %1, %2, p;\n"
                 "selp.u32 %0, 1, 0, q;\n"
                 "}\n"
                 : "=r"(any)
                 : "r"(name), "r"(threads), "r"(static_cast<unsigned>(flag))
                 : "memory");
    return any != 0;
}

// *address = min(*address, value) in shared memory.
__device__ __forceinline__ void atomic_min_shared(unsigned address, int value)
{
    asm volatile("red.shared::cta.min.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// A word that others may change by atomics at the same time.
__device__ __forceinline__ int load_shared_relaxed(unsigned address)
{
    int value;
    asm volatile("ld.relaxed.cta.shared::cta.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

// ---- Bulk tensor copies ------------------------------------------------------------------------------------------------

// Starts the copy of a map's box at element coordinates (c0 innermost) to shared memory; its bytes count towards the barrier.
// What lies outside the tensor arrives as zero.
__device__ __forceinline__ void copy_tensor(unsigned shared, const void *map, unsigned barrier, int c0, int c1, int c2, int c3,
                                            int c4)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
                 "%6, %7}], [%2];" ::"r"(shared),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
                 : "memory");
}

// Starts the copy of `bytes` bytes, a multiple of 16 at addresses that are too; they count towards the barrier.
__device__ __forceinline__ void copy_bulk(unsigned shared, const void *from, int bytes, unsigned barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void prefetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Starts bringing the line of global memory at an address into the L2 cache.
__device__ __forceinline__ void prefetch_l2(const void *address)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// What this thread wrote to shared memory by ordinary stores is seen by later products and bulk copies.
__device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Warpgroup products ------------------------------------------------------------------------------------------------

// Registers that a product reads or writes were touched by this thread before: call before the first product of a batch.
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most PENDING of the youngest batches are under way.
template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The compiler must not move accesses to this register across this point.
__device__ __forceinline__ void hold(float &x)
{
    asm volatile("" : "+f"(x)::"memory");
}

#endif

// Where a product finds a matrix in shared memory, written by copy_tensor with 128-byte swizzle: panels of 64 elements (128
// bytes) a row, `rows` rows each, the start a multiple of 1024. k_major: the product sums along the row (q, k); a step of
// 16 elements within a panel adds 32 bytes. mn_major: it sums down the rows (v); a step of 16 rows adds 2048 bytes.
// Adding a number of 16-byte units to a descriptor moves its start.
__device__ __forceinline__ sp_i64 matrix_k_major(unsigned address)
{
    return sp_i64((address & 0x3ffffu) >> 4) | sp_i64(1) << 16 | sp_i64(1024 >> 4) << 32 | sp_i64(1) << 62;
}

__device__ __forceinline__ sp_i64 matrix_mn_major(unsigned address, int rows)
{
    return sp_i64((address & 0x3ffffu) >> 4) | sp_i64(rows * 128 >> 4) << 16 | sp_i64(1024 >> 4) << 32 | sp_i64(1) << 62;
}

#ifndef SPLAT_MACHINE

// Gives registers of this warpgroup back, or takes more; the same for every thread of the warpgroup.
template <int COUNT> __device__ __forceinline__ void registers_down_to()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void registers_up_to()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Whether any lane of the warp has the flag; all 32 lanes take part.
__device__ __forceinline__ bool warp_any(bool flag)
{
    return __any_sync(0xffffffffu, flag) != 0;
}

// The same value in every lane, known to the compiler to be so: lane 0's.
__device__ __forceinline__ int warp_uniform(int value)
{
    return __shfl_sync(0xffffffffu, value, 0);
}

__device__ __forceinline__ int grid_size()
{
    return static_cast<int>(gridDim.x);
}

// One lane of the warp, the same each time; all 32 lanes take part.
__device__ __forceinline__ bool elect_lane()
{
    unsigned chosen;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(chosen));
    return chosen != 0;
}

#endif
