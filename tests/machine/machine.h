// A model of one streaming multiprocessor, on which the kernels that splat generates are executed in tests.
//
// Takes a kernel compiled as host C++ against it (see ptx_sm80.h, ptx_sm90.h and compile.h), its parameters and a
// seed. Runs the blocks of a launch one after another, each thread as a fiber, warps and lanes in an order that
// follows from the seed. Ends the process with a report on any fault: a race, a read of what was never written or
// is still being copied, an access beyond or across a buffer, lanes that are not together where they must be, a
// register that a product under way has, a deadlock.
//
// Two accesses are in order when a chain of barriers leads from one to the other (vector clocks, so that this does
// not depend on how the run happened to go). Shared memory is tracked by 4-byte words. A copy under way owns the
// words that it writes, and a product under way those that it reads, until it has been waited for, while the bytes
// land, or the product is done, at a random moment before that.
#pragma once
#include <cstddef>
#include <cstdint>

namespace machine
{

// ---- For tests ----

enum class Access {
    READ,
    WRITE_ONCE, // each byte is stored once a launch at most
    WRITE,      // by one thread of a launch, which may store what it has stored again
    UPDATE      // the same, and the block that stores it may load it before that, in order
};

// Memory that kernels may access: every access must lie inside one buffer and be of a kind that it allows.
void forget_buffers();
void add_buffer(const char *name, const void *begin, size_t bytes, Access access);

struct Launch {
    void (*kernel)(void *const *parameters);
    void *const *parameters; // as cuLaunchKernel takes them
    unsigned blocks;
    int threads, shared_bytes; // a block
    int blocks_per_sm;         // that the kernel is compiled for: decides the registers of a thread
    uint64_t seed;
};

// Whether the kernels that follow have warpgroup products: then what a thread has on its stack is watched, for it
// stands for the registers that a product under way has.
void watch_registers(bool yes);

// How many bytes of shared memory are tracked as one: 4, or 2 for kernels whose threads share words.
void track_by(unsigned bytes);

constexpr int FAULT_EXIT = 3; // the process's exit code after a report

void run(const Launch &launch);

// Signals (bad memory, division by zero, failed bounds checks, the alarm) become reports too. `object` is the file
// of the kernel, for source lines.
void catch_signals(const char *object);

// What cuTensorMapEncodeTiled does: fills 128 bytes that only this machine can read. nullptr, or the rule of the
// driver's reference that the values break.
const char *encode_tensor_map(void *map, int type, uint32_t rank, const void *address, const uint64_t *dims,
                              const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                              int interleave, int swizzle, int promotion, int fill);

// ---- For instructions ----
//
// `line` is that of the instruction in the kernel: the lanes of a warp, or the threads of a block, must come
// together at one line.

struct Index {
    unsigned x;
};
Index thread_index();
Index block_index();
unsigned grid_size();

// The address of shared memory: a multiple of 16 that follows from the seed.
unsigned shared_base();

void read_shared(unsigned address, void *to, unsigned bytes);
void write_shared(unsigned address, const void *from, unsigned bytes);

// cp.async: zeros instead of the source's bytes when not `present`.
void start_copy(unsigned address, const void *from, unsigned bytes, bool present);
void start_copy_part(unsigned address, const void *from, int read); // of 16 bytes; zeros for the others
void commit_copies();
void wait_copies(int pending);

// Returns whether any thread's flag was set.
bool block_barrier(bool flag, int line);
void warp_barrier(int line);
unsigned shuffle_xor(unsigned value, int mask, int line);

// ldmatrix of `count` 8x8 matrices: of lane l the address of row l % 8 of matrix l / 8.
void load_matrices(unsigned *to, int count, bool transposed, unsigned address, int line);

// mma.m16n8k16, fp32 sums.
void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool bf16, int line);

// mma.m16n8k8 of tf32, fp32 sums.
void multiply_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, int line);

// ---- Instructions of sm_90a ----
bool vote_any(bool flag, int line);
int broadcast(int value, int line); // of lane 0
bool elect(int line);

// Barriers in shared memory; `count` arrivals a phase.
void barrier_init(unsigned barrier, int count);
void barrier_init_fence();
void barrier_arrive(unsigned barrier, int bytes); // and so many more bytes are expected; 0: none
bool barrier_try_wait(unsigned barrier, int parity, int line);
void barrier_wait(unsigned barrier, int parity, int line);

// Returns, to those who wait, whether any thread's flag was set.
bool named_barrier(int number, int threads, bool wait, bool flag, int line);

// A relaxed read sees what the atomic operations before it left, and of those that are in no order with it any.
void atomic_min_shared(unsigned address, int value);
int load_shared_relaxed(unsigned address);

// cp.async.bulk.tensor from global to shared memory, `rank` coordinates, innermost first.
void copy_tensor(unsigned to, const void *map, unsigned barrier, const int *coordinates, int rank);

// cp.async.bulk from global to shared memory.
void copy_bulk(unsigned to, const void *from, int bytes, unsigned barrier);

void prefetch_tensor_map(const void *map);
void prefetch(const void *address); // of a buffer
void fence_async_proxy();

void product_fence(int line);
void product_commit(int line);
void product_wait(int pending, int line);
void hold(float *x);
void set_registers(int count, bool more, int line);

// An asm statement of the kernel's text, its operands in order. Knows wgmma.mma_async alone.
struct Operand {
    const char *constraint;
    const void *address; // of the variable, or of a copy of the value
    int bytes;
};
void execute_asm(const char *text, const Operand *outputs, int output_count, const Operand *inputs, int input_count,
                 int line);

} // namespace machine
