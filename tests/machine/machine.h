// A model of one streaming multiprocessor, on which the kernels that splat generates are executed in tests.
//
// Takes a kernel compiled as host C++ against it (see ptx_sm80.h and compile.h), its arguments and a seed. Runs the
// blocks of a launch one after another, each thread as a fiber, warps and lanes in an order that follows from the
// seed. Ends the process with a report on any fault: a race, a read of what was never written or is still being
// copied, an access beyond or across a buffer, lanes that are not together where they must be, a deadlock.
//
// Two accesses are in order when a chain of barriers leads from one to the other (vector clocks, so that this does
// not depend on how the run happened to go). Shared memory is tracked by 4-byte words. A copy under way owns the
// words that it writes until its thread has waited for it, while the bytes land at a random moment before that.
#pragma once
#include <cstddef>
#include <cstdint>

namespace machine
{

// ---- For tests ----

enum class Access { READ, WRITE_ONCE };

// Memory that kernels may access: every load must lie inside a READ buffer, every store inside a WRITE_ONCE buffer,
// whose bytes may be written once.
void forget_buffers();
void add_buffer(const char *name, const void *begin, size_t bytes, Access access);

struct Launch {
    void (*kernel)(const void *args);
    const void *args;
    unsigned blocks;
    int threads, shared_bytes; // a block
    uint64_t seed;
};

constexpr int FAULT_EXIT = 3; // the process's exit code after a report

void run(const Launch &launch);

// Signals (bad memory, division by zero, failed bounds checks, the alarm) become reports too. `object` is the file
// of the kernel, for source lines.
void catch_signals(const char *object);

// ---- For instructions ----
//
// `line` is that of the instruction in the kernel: the lanes of a warp, or the threads of a block, must come
// together at one line. Shared addresses begin at SHARED_BASE, as they do not begin at 0 on hardware.

constexpr unsigned SHARED_BASE = 1024;

struct Index {
    unsigned x;
};
Index thread_index();
Index block_index();

void read_shared(unsigned address, void *to, unsigned bytes);
void write_shared(unsigned address, const void *from, unsigned bytes);

// cp.async: zeros instead of the source's bytes when not `present`.
void start_copy(unsigned address, const void *from, unsigned bytes, bool present);
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

} // namespace machine
