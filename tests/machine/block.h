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

enum class State { READY, AT_WARP, AT_BLOCK, ENDED };
enum class Collective { NONE, LOAD_MATRICES, LOAD_TRANSPOSED, MULTIPLY_F16, MULTIPLY_BF16, SHUFFLE, WARP_BARRIER };

// What a lane brings to an instruction that its warp executes together, and takes from it.
struct Operands {
    Collective what = Collective::NONE;
    int line = 0, number = 0; // `number`: matrices to load, or the mask of a shuffle
    Place place = nullptr;
    unsigned in[6] = {}, out[4] = {};
    float sum[4] = {};
};

// An asynchronous copy that its thread has not waited for.
struct Copy {
    unsigned offset, bytes;
    const void *from;
    bool present, landed;
    int group;
    Place place;
};

struct Thread {
    Fiber fiber;
    State state = State::READY;
    Operands operands;
    std::vector<Copy> copies;
    int group = 0; // of the copies it starts now
    bool flag = false;
    int line = 0; // of the block barrier it waits at
    Place place = nullptr;
};

// ---- Shared memory ----

struct Touch {
    int thread;
    uint32_t clock; // of that thread, when it did
    Place place;
};

struct Word {
    bool written = false;
    int copier = -1; // thread that has a copy to it under way
    Place copy_place = nullptr;
    Touch write{-1, 0, nullptr};
    std::vector<Touch> reads; // since the write, those that no later read follows
};

struct Block {
    unsigned index = 0;
    int thread_count = 0;
    int current = -1; // thread that runs; -1: the scheduler
    std::vector<Thread> threads;
    std::vector<uint8_t> shared;
    std::vector<Word> words;
    // clock[t * thread_count + u]: what thread u did until then, thread t comes after.
    std::vector<uint32_t> clocks;
    bool vote = false; // of the last block barrier
    std::mt19937_64 random;
};

extern Block block;

inline uint32_t &clock_of(int thread, int other)
{
    return block.clocks[static_cast<size_t>(thread) * block.thread_count + other];
}

// All that the threads [first, first + count) did before comes before all that they do after.
void synchronise(int first, int count);

// Clears shared memory and what is known of it, for a new block.
void reset_memory(int shared_bytes);

// A read of `bytes` at `offset` by a thread: faults, or is noted.
void note_read(unsigned address, unsigned bytes, int thread, Place place);

// Lets some copies land.
void land_some();

// ---- Reports ----

// Prints the sentence, where the thread at hand is, and ends the process.
[[noreturn]] void fault(Place place, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The lines of source that a place stands for, innermost first, each on a line of its own.
std::string source_of(Place place);

// Ends the process with what every warp waits for.
[[noreturn]] void report_deadlock(const char *why);

const char *collective_name(Collective what);

} // namespace machine
