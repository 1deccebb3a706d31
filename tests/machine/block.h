// The state of the block that runs, shared by the files of the machine and seen by nobody else.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fiber.h"
#include "machine.h"

namespace machine
{

using Place = const void *; // an address in the kernel's code

// ---- Threads ----

enum class State { READY, AT_WARP, AT_GROUP, AT_BLOCK, AT_BARRIER, AT_NAMED, AT_REGISTERS, ENDED };
enum class Collective {
    NONE,
    LOAD_MATRICES,
    LOAD_TRANSPOSED,
    MULTIPLY_F16,
    MULTIPLY_BF16,
    MULTIPLY_TF32,
    SHUFFLE,
    BROADCAST,
    VOTE,
    ELECT,
    WARP_BARRIER,
    PRODUCT_FENCE,
    PRODUCT_COMMIT,
    PRODUCT_WAIT,
    REGISTERS
};

// What a lane brings to an instruction that its warp executes together, and takes from it.
struct Operands {
    Collective what = Collective::NONE;
    int line = 0, number = 0; // `number`: matrices to load, the mask of a shuffle, groups to leave, registers
    Place place = nullptr;
    unsigned in[6] = {}, out[4] = {};
    float sum[4] = {};
};

// An asynchronous copy that its thread has not waited for.
struct Copy {
    unsigned offset, bytes, read; // `read` bytes are copied, zeros stand for the others
    const void *from;
    bool landed;
    int group;
    Place place;
};

// What is known of a word of a thread's own memory, which stands for a register.
struct Register {
    uint32_t touched = 0; // the fence count (Thread::fence) at the thread's last access
    uint16_t sums = 0;    // 1: a product under way adds to it; 2: it has, and `hold` has not been called
    uint16_t factors = 0; // products under way that take it as part of the left matrix
};

struct Thread {
    Fiber fiber;
    State state = State::READY;
    Operands operands;
    std::vector<Copy> copies;
    int group = 0; // of the copies it starts now
    bool flag = false;
    int line = 0; // of the barrier it waits at
    Place place = nullptr;
    unsigned barrier = 0; // address, or number when it is a named one
    int parity = 0;
    uint32_t fence = 0; // a number of its own for the time since its last product fence; 0: there was none
    Register *registers = nullptr; // by word of its stack
};

// ---- Shared memory ----

struct Touch {
    int who;       // thread, or thread_count + number of the barrier in shared memory that a bulk copy reported to
    int32_t clock; // of that, when it did
    Place place;
};

constexpr int NOBODY = -1;

struct Atomic {
    Touch touch;
    int before, after; // values
};

// Bytes of shared memory, and of buffers that are updated, that are tracked as one.
extern unsigned grain;

struct Word {
    bool written = false;
    int copier = NOBODY;  // thread that has a cp.async to it under way
    int bulk = NOBODY;    // bulk copy to it under way
    int barrier = NOBODY; // barrier that it is part of
    int products = 0;     // warps that have a product under way which reads it
    Place copy_place = nullptr;
    Touch write{NOBODY, 0, nullptr};
    std::vector<Touch> reads;    // since the write, those that no later read follows
    std::vector<Touch> relaxed;  // likewise, relaxed reads
    std::vector<Atomic> atomics; // since the write; they are in no order with each other
};

struct Block {
    unsigned index = 0, grid = 1;
    int thread_count = 0;
    int current = -1; // thread that runs; -1: the scheduler
    std::vector<Thread> threads;
    unsigned shared_begin = 0; // address of the first byte
    std::vector<uint8_t> shared;
    std::vector<Word> words;
    std::vector<int32_t> clocks; // clocks_of
    bool vote = false;           // of the last block barrier
    unsigned elected = 0;        // the lane that elect.sync chooses
    bool products = false;       // the kernel has warpgroup products: own memory is watched
    std::mt19937_64 random;
};

extern Block block;

// ---- Order ----
//
// Everyone who does something has a clock that goes on at each meeting: the threads, and the barriers in shared
// memory, in whose name bulk copies write (their clock is the number of the phase that the copy's bytes completed).
// A thread knows, of everyone, up to which clock
//   DONE    all that it did came before,
//   READ    all that it read came before: an instruction of the warp that takes values from lanes comes behind the
//           reads that these values came from, though it orders nothing else,
//   FENCED  what it wrote may be read by products and bulk copies (fence.proxy.async lies in between).

constexpr int BARRIERS_MAX = 64;
enum Knowledge { DONE, READ, FENCED, KNOWLEDGES };

inline int everyone()
{
    return block.thread_count + BARRIERS_MAX;
}

inline int32_t *clocks_of(int thread)
{
    return &block.clocks[static_cast<size_t>(thread) * KNOWLEDGES * everyone()];
}

inline int32_t &clock_of(int thread, int other, Knowledge what = DONE)
{
    return clocks_of(thread)[what * everyone() + other];
}

inline bool knows(int thread, const Touch &touch, Knowledge what)
{
    return touch.who < 0 || clock_of(thread, touch.who, what) >= touch.clock;
}

// Brings what one knows to what another knows, in all regards.
void learn(int32_t *one, const int32_t *other);

// All that the threads [first, first + count) did before comes before all that they do after.
void synchronise(int first, int count);

// The same for reads alone.
void synchronise_reads(int first, int count);

// The thread's next accesses are later than what it has told others of.
inline void go_on(int thread)
{
    ++clock_of(thread, thread);
    clock_of(thread, thread, READ) = clock_of(thread, thread);
}

// ---- What the files of the machine do for each other ----

// Stops the thread at hand until someone sets its state to READY.
void wait_in(State state);

// Clears shared memory and what is known of it, for a new block.
void reset_memory(int shared_bytes);

void check_extent(unsigned address, unsigned bytes, unsigned alignment, const char *what, Place place);

// A read of `bytes` at `address` by a thread: faults, or is noted.
void note_read(unsigned address, unsigned bytes, int thread, Place place);

// Adds a read of a word, by whom it was done, to those that the word has.
void note_touch(std::vector<Touch> &reads, const Touch &now);

// A write by bulk copy number `copy`, of checked extent, which the thread at hand starts.
void note_bulk_write(unsigned address, unsigned bytes, int copy, Place place);

// A load from global memory: within one buffer, and aligned if it must be.
void check_load(const void *from, size_t bytes, bool aligned, Place place);

// What threads of the block have stored again must be what it was.
void check_stored_again();

// Buffers forget who stored to them.
void begin_launch();

// What must hold when all threads of a block have ended.
void end_block();

// Lets some cp.async copies land.
void land_some();

// Bulk copies (tensor_map.cc).
void reset_bulk_copies();
bool land_bulk_copy(); // one of those under way, if any
int bulk_copies();     // under way
std::string describe_bulk_copy(int copy);

// Barriers (barriers.cc).
void reset_barriers(int blocks_per_sm);
std::string describe_barrier(unsigned address, int parity);
std::string describe_named(int number);
void use_barrier(unsigned address, const char *what, Place place);
void complete_bytes(unsigned address, unsigned bytes, Place place);
int barrier_number(unsigned address);
int32_t barrier_phase(int number);
void check_barrier_fenced(unsigned address, Place place);
void change_registers(int warp); // what a warp met for
void grant_registers();

// Products (product.cc).
void reset_products();
void meet_for_product(int group);
void do_product_fence(int warp);
void do_product_commit(int warp);
void do_product_wait(int warp);
void run_some_product();
void check_products_over(int thread);
void touch_registers(Thread &thread, const char *first, size_t bytes, bool store, Place place);
[[noreturn]] void fault_read_by_product(unsigned offset, const char *what, Place place);

// ---- Reports ----

// Prints the sentence, where the thread at hand is, and ends the process.
[[noreturn]] void fault(Place place, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The lines of source that a place stands for, innermost first, each on a line of its own.
std::string source_of(Place place);

// Ends the process with what every warp waits for.
[[noreturn]] void report_deadlock(const char *why);

const char *collective_name(Collective what);

} // namespace machine
