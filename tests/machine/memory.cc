// Memory: shared memory with its races and copies under way, and the buffers in global memory.
//
// The compiler tells of direct accesses by the calls that it makes for a thread sanitizer; they are answered at the
// end of this file.
#include <algorithm>
#include <cstring>
#include <map>

#include "block.h"

namespace machine
{

// ---- Order ----

void learn(int32_t *one, const int32_t *other)
{
    const int count = KNOWLEDGES * everyone();
    for (int i = 0; i < count; ++i)
        one[i] = std::max(one[i], other[i]);
}

void synchronise(int first, int count)
{
    static std::vector<int32_t> latest;
    latest.assign(static_cast<size_t>(KNOWLEDGES) * everyone(), 0);
    for (int t = first; t < first + count; ++t)
        learn(latest.data(), clocks_of(t));
    for (int t = first; t < first + count; ++t) {
        std::copy(latest.begin(), latest.end(), clocks_of(t));
        go_on(t);
    }
}

void synchronise_reads(int first, int count)
{
    static std::vector<int32_t> latest;
    latest.assign(static_cast<size_t>(everyone()), 0);
    for (int t = first; t < first + count; ++t)
        for (int u = 0; u < everyone(); ++u)
            latest[u] = std::max(latest[u], clock_of(t, u, READ));
    for (int t = first; t < first + count; ++t) {
        std::copy(latest.begin(), latest.end(), &clock_of(t, 0, READ));
        go_on(t);
    }
}

void fence_async_proxy()
{
    int32_t *mine = clocks_of(block.current);
    for (int u = 0; u < everyone(); ++u)
        mine[FENCED * everyone() + u] = std::max(mine[FENCED * everyone() + u], mine[DONE * everyone() + u]);
    go_on(block.current);
}

// ---- Shared memory ----

unsigned grain = 4;

void track_by(unsigned bytes)
{
    grain = bytes;
}

// How many of a word's atomic operations a thread has seen by relaxed reads: it does not see fewer later.
static std::map<std::pair<unsigned, int>, size_t> seen;

void reset_memory(int shared_bytes)
{
    block.shared.assign(static_cast<size_t>(shared_bytes), 0xff);
    block.words.resize(static_cast<size_t>(shared_bytes) / grain);
    for (Word &word : block.words) {
        word.written = false;
        word.copier = word.bulk = word.barrier = NOBODY;
        word.products = 0;
        word.write.who = NOBODY;
        word.reads.clear();
        word.relaxed.clear();
        word.atomics.clear();
    }
    seen.clear();
    block.clocks.assign(static_cast<size_t>(block.thread_count) * KNOWLEDGES * everyone(), 0);
    for (int t = 0; t < block.thread_count; ++t)
        go_on(t);
}

void check_extent(unsigned address, unsigned bytes, unsigned alignment, const char *what, Place place)
{
    const int offset = static_cast<int>(address - block.shared_begin);
    if (address % alignment != 0)
        fault(place, "%s of %u bytes at shared address base + %d, address %u, which is not a multiple of %u", what,
              bytes, offset, address, alignment);
    if (offset < 0 || static_cast<size_t>(offset) + bytes > block.shared.size())
        fault(place, "%s of %u bytes at shared address base + %d; the block has %zu bytes", what, bytes, offset,
              block.shared.size());
}

static std::string name_of(int who)
{
    if (who >= block.thread_count)
        return "a bulk copy";
    return "warp " + std::to_string(who / 32) + ", lane " + std::to_string(who % 32);
}

[[noreturn]] static void race(unsigned offset, const char *now, const char *then, const Touch &touch, Place place)
{
    fault(place, "a race: %s of shared address base + %u, and no barrier since the %s by %s at\n%s  now:", now,
          offset, then, name_of(touch.who).c_str(), source_of(touch.place).c_str());
}

// Nothing asynchronous may have the word, nor may it be a barrier.
static void check_free(const Word &word, unsigned offset, const char *what, Place place)
{
    if (word.copier >= 0)
        fault(place, "%s of shared address base + %u, to which a copy by %s is under way since\n%s  now:", what,
              offset, name_of(word.copier).c_str(), source_of(word.copy_place).c_str());
    if (word.bulk >= 0)
        fault(place, "%s of shared address base + %u, to which %s is under way since\n%s  now:", what, offset,
              describe_bulk_copy(word.bulk).c_str(), source_of(word.copy_place).c_str());
    if (word.barrier >= 0)
        fault(place, "%s of shared address base + %u, which is part of a barrier", what, offset);
}

// Reads that later ones follow are dropped when there is no room for one more, so that each costs little.
void note_touch(std::vector<Touch> &reads, const Touch &now)
{
    if (!reads.empty() && reads.back().who == now.who) {
        reads.back() = now;
        return;
    }
    if (reads.size() == reads.capacity()) {
        const auto followed = [&](const Touch &read) { return knows(now.who, read, READ); };
        reads.erase(std::remove_if(reads.begin(), reads.end(), followed), reads.end());
        if (2 * reads.size() >= reads.capacity())
            reads.reserve(std::max<size_t>(4, 2 * reads.capacity()));
    }
    reads.push_back(now);
}

static void check_atomics(const Word &word, unsigned offset, const char *what, Place place)
{
    for (const Atomic &one : word.atomics)
        if (!knows(block.current, one.touch, DONE))
            race(offset, what, "atomic operation", one.touch, place);
}

void note_read(unsigned address, unsigned bytes, int thread, Place place)
{
    check_extent(address, bytes, bytes, "a read", place);
    const unsigned offset = address - block.shared_begin;
    const Touch now{thread, clock_of(thread, thread), place};
    for (unsigned w = offset / grain; w < (offset + bytes) / grain; ++w) {
        Word &word = block.words[w];
        check_free(word, grain * w, "a read", place);
        if (!word.written)
            fault(place, "a read of shared address base + %u, where nothing was written", grain * w);
        if (!knows(thread, word.write, DONE))
            race(grain * w, "a read", "write", word.write, place);
        check_atomics(word, grain * w, "a read", place);
        note_touch(word.reads, now);
    }
}

// The word is free to be written by the thread at hand, or by a copy that it starts. Atomic operations are in no
// order with each other and with relaxed reads.
static void check_write(const Word &word, unsigned offset, const char *what, Place place, bool atomic = false)
{
    const int thread = block.current;
    check_free(word, offset, what, place);
    if (word.products > 0)
        fault_read_by_product(offset, what, place);
    if (!knows(thread, word.write, DONE))
        race(offset, what, "write", word.write, place);
    for (const Touch &read : word.reads)
        if (!knows(thread, read, READ))
            race(offset, what, "read", read, place);
    if (atomic)
        return;
    for (const Touch &read : word.relaxed)
        if (!knows(thread, read, READ))
            race(offset, what, "relaxed read", read, place);
    check_atomics(word, offset, what, place);
}

static void forget_accesses(unsigned w)
{
    Word &word = block.words[w];
    word.reads.clear();
    if (word.atomics.empty() && word.relaxed.empty())
        return;
    word.relaxed.clear();
    word.atomics.clear();
    seen.erase(seen.lower_bound({w, 0}), seen.lower_bound({w + 1, 0}));
}

// `what`: a write, or a copy.
static void note_write(unsigned address, unsigned bytes, const char *what, Place place)
{
    check_extent(address, bytes, bytes, what, place);
    const unsigned offset = address - block.shared_begin;
    const int thread = block.current;
    for (unsigned w = offset / grain; w < (offset + bytes) / grain; ++w) {
        Word &word = block.words[w];
        check_write(word, grain * w, what, place);
        forget_accesses(w);
        word.write = {thread, clock_of(thread, thread), place};
        word.written = true;
    }
}

void note_bulk_write(unsigned address, unsigned bytes, int copy, Place place)
{
    const unsigned offset = address - block.shared_begin;
    const int thread = block.current;
    for (unsigned w = offset / grain; w < (offset + bytes) / grain; ++w) {
        Word &word = block.words[w];
        check_write(word, grain * w, "a bulk copy", place);
        if (word.write.who < block.thread_count && !knows(thread, word.write, FENCED))
            fault(place,
                  "a bulk copy to shared address base + %u, and no proxy fence since the write by %s at\n%s  now:",
                  grain * w, name_of(word.write.who).c_str(), source_of(word.write.place).c_str());
        forget_accesses(w);
        word.bulk = copy;
        word.copy_place = place;
    }
}

__attribute__((noinline)) void read_shared(unsigned address, void *to, unsigned bytes)
{
    note_read(address, bytes, block.current, __builtin_return_address(0));
    memcpy(to, &block.shared[address - block.shared_begin], bytes);
}

__attribute__((noinline)) void write_shared(unsigned address, const void *from, unsigned bytes)
{
    note_write(address, bytes, "a write", __builtin_return_address(0));
    memcpy(&block.shared[address - block.shared_begin], from, bytes);
}

__attribute__((noinline)) void atomic_min_shared(unsigned address, int value)
{
    const Place place = __builtin_return_address(0);
    check_extent(address, 4, 4, "an atomic operation", place);
    const unsigned offset = address - block.shared_begin;
    const int thread = block.current;
    Word &word = block.words[offset / grain];
    check_write(word, offset, "an atomic operation", place, true);
    if (!word.written)
        fault(place, "an atomic operation on shared address base + %u, where nothing was written", offset);
    int before;
    memcpy(&before, &block.shared[offset], 4);
    const int after = std::min(before, value);
    memcpy(&block.shared[offset], &after, 4);
    word.atomics.push_back({{thread, clock_of(thread, thread), place}, before, after});
}

// The value that some atomic operation left: the last that the thread knows of or has seen, or a later one.
__attribute__((noinline)) int load_shared_relaxed(unsigned address)
{
    const Place place = __builtin_return_address(0);
    check_extent(address, 4, 4, "a relaxed read", place);
    const unsigned offset = address - block.shared_begin, w = offset / grain;
    const int thread = block.current;
    Word &word = block.words[w];
    check_free(word, offset, "a relaxed read", place);
    if (!word.written)
        fault(place, "a relaxed read of shared address base + %u, where nothing was written", offset);
    if (!knows(thread, word.write, DONE))
        race(offset, "a relaxed read", "write", word.write, place);
    note_touch(word.relaxed, {thread, clock_of(thread, thread), place});
    if (word.atomics.empty()) {
        int value;
        memcpy(&value, &block.shared[offset], 4);
        return value;
    }
    size_t &count = seen[{w, thread}];
    for (size_t i = word.atomics.size(); i > count; --i)
        if (knows(thread, word.atomics[i - 1].touch, DONE))
            count = i;
    count += block.random() % (word.atomics.size() - count + 1);
    return count > 0 ? word.atomics[count - 1].after : word.atomics[0].before;
}

// ---- Global memory ----

// What is known of 4 bytes of an UPDATE buffer.
struct Cell {
    int writer = NOBODY, reader = NOBODY; // the thread that stores and the block that loads it in this launch
    Touch write{NOBODY, 0, nullptr};      // by threads of the block that runs
    std::vector<Touch> reads;
};

struct Buffer {
    const char *name;
    uintptr_t begin, end;
    Access access;
    std::vector<int> writer; // WRITE_ONCE, WRITE: by byte, the thread that stored it in this launch, or NOBODY
    std::vector<Cell> cells; // UPDATE
};

static std::vector<Buffer> buffers;

// A byte that is stored again, and what was there before.
struct Again {
    const char *name;
    const char *at;
    char before;
    size_t number;
    Place place;
};

static std::vector<Again> stored_again; // by the block that runs

void forget_buffers()
{
    buffers.clear();
}

void add_buffer(const char *name, const void *begin, size_t bytes, Access access)
{
    const auto first = reinterpret_cast<uintptr_t>(begin);
    buffers.push_back(
        {name, first, first + bytes, access,
         std::vector<int>(access == Access::WRITE_ONCE || access == Access::WRITE ? bytes : 0, NOBODY),
         std::vector<Cell>(access == Access::UPDATE ? (bytes + grain - 1) / grain : 0)});
}

void begin_launch()
{
    for (Buffer &b : buffers) {
        std::fill(b.writer.begin(), b.writer.end(), NOBODY);
        std::fill(b.cells.begin(), b.cells.end(), Cell());
    }
}

// Where an address lies, for the sentence: in or between which buffers.
static std::string where(uintptr_t address)
{
    for (const Buffer &b : buffers)
        if (address >= b.begin && address < b.end)
            return std::string("byte ") + std::to_string(address - b.begin) + " of " + b.name + ", which has " +
                   std::to_string(b.end - b.begin);
    const Buffer *near = nullptr;
    long best = 0;
    for (const Buffer &b : buffers) {
        const long past =
            address >= b.end ? static_cast<long>(address - b.end) : -static_cast<long>(b.begin - address);
        if (!near || std::labs(past) < std::labs(best))
            near = &b, best = past;
    }
    if (!near)
        return "no buffer";
    return std::to_string(std::labs(best)) + (best < 0 ? " bytes before " : " bytes past ") + near->name;
}

// The thread at hand, as one of all the threads of the launch.
static int thread_of_launch()
{
    return static_cast<int>(block.index) * block.thread_count + block.current;
}

// A store of a byte or cell that has been stored in this launch. What it stores is not known yet.
static void note_store_again(const Buffer &b, size_t at, size_t bytes, int writer, Place place)
{
    if (b.access == Access::WRITE_ONCE || writer != thread_of_launch())
        fault(place, "byte %zu of %s is stored a second time; the first was by block %d, warp %d, lane %d", at,
              b.name, writer / block.thread_count, writer % block.thread_count / 32, writer % 32);
    for (size_t i = at; i < std::min(at + bytes, b.end - b.begin); ++i) {
        const auto *byte = reinterpret_cast<const char *>(b.begin + i);
        stored_again.push_back({b.name, byte, *byte, i, place});
    }
}

void check_stored_again()
{
    for (const Again &one : stored_again)
        if (*one.at != one.before)
            fault(one.place, "byte %zu of %s is stored a second time, and is another then", one.number, one.name);
    stored_again.clear();
}

static void note_store(Buffer &b, size_t at, Place place)
{
    if (b.writer[at] >= 0)
        note_store_again(b, at, 1, b.writer[at], place);
    b.writer[at] = thread_of_launch();
}

[[noreturn]] static void race_in(const Buffer &b, size_t cell, const char *now, const char *then,
                                 const Touch &touch, Place place)
{
    fault(place, "a race: %s of byte %zu of %s, and no barrier since the %s by warp %d, lane %d at\n%s  now:", now,
          grain * cell, b.name, then, touch.who / 32, touch.who % 32, source_of(touch.place).c_str());
}

// A bulk copy reads when it lands: no thread is at hand then.
static void note_update(Buffer &b, size_t at, bool store, Place place)
{
    const int here = static_cast<int>(block.index), thread = block.current;
    Cell &cell = b.cells[at];
    const int storing = cell.writer < 0 ? NOBODY : cell.writer / block.thread_count; // block
    if (storing >= 0 && storing != here)
        fault(place, "byte %zu of %s is %s, and block %d stores it", grain * at, b.name, store ? "stored" : "loaded",
              storing);
    if (store && cell.reader >= 0 && cell.reader != here)
        fault(place, "byte %zu of %s is stored, and block %d loads it", grain * at, b.name, cell.reader);
    if (thread >= 0 && !knows(thread, cell.write, DONE))
        race_in(b, at, store ? "a store" : "a load", "store", cell.write, place);
    if (!store && storing >= 0)
        fault(place, "byte %zu of %s is loaded, and was stored in this launch before", grain * at, b.name);
    if (!store)
        cell.reader = here;
    if (thread < 0)
        return;
    const Touch now{thread, clock_of(thread, thread), place};
    if (!store) {
        cell.reads.push_back(now);
        return;
    }
    for (const Touch &read : cell.reads)
        if (!knows(thread, read, READ))
            race_in(b, at, "a store", "load", read, place);
    if (storing >= 0)
        note_store_again(b, grain * at, grain, cell.writer, place);
    cell.writer = thread_of_launch();
    cell.write = now;
}

static void check_global(uintptr_t address, size_t bytes, bool store, bool aligned, Place place)
{
    const char *what = store ? "a store" : "a load";
    // What is larger than a chunk is several accesses.
    if (aligned && (bytes & (bytes - 1)) == 0 && address % std::min<size_t>(bytes, 16) != 0)
        fault(place, "%s of %zu bytes that is not aligned, at %s", what, bytes, where(address).c_str());
    for (Buffer &b : buffers) {
        const bool allowed = b.access == Access::UPDATE || store == (b.access != Access::READ);
        if (address < b.begin || address >= b.end || !allowed)
            continue;
        if (address + bytes > b.end)
            break;
        const size_t first = address - b.begin, last = first + bytes;
        if (b.access == Access::WRITE_ONCE || b.access == Access::WRITE)
            for (size_t at = first; at < last; ++at)
                note_store(b, at, place);
        if (b.access == Access::UPDATE)
            for (size_t at = first / grain; at < (last + grain - 1) / grain; ++at)
                note_update(b, at, store, place);
        return;
    }
    fault(place, "%s of %zu bytes at %s", what, bytes, where(address).c_str());
}

void check_load(const void *from, size_t bytes, bool aligned, Place place)
{
    check_global(reinterpret_cast<uintptr_t>(from), bytes, false, aligned, place);
}

// A prefetch reads nothing, but one beyond all buffers is a slip.
__attribute__((noinline)) void prefetch(const void *address)
{
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (const Buffer &b : buffers)
        if (at >= b.begin && at < b.end)
            return;
    fault(__builtin_return_address(0), "a prefetch of %s", where(at).c_str());
}

// Direct accesses of the kernel. Its own variables are on the stack of its fiber.
static void direct(const void *pointer, size_t bytes, bool store, Place place)
{
    if (block.current < 0 || bytes == 0)
        return;
    Thread &thread = block.threads[block.current];
    const char *first = static_cast<const char *>(pointer);
    if (static_cast<size_t>(first - thread.fiber.stack) >= thread.fiber.stack_bytes)
        check_global(reinterpret_cast<uintptr_t>(pointer), bytes, store, true, place);
    else if (block.products)
        touch_registers(thread, first, bytes, store, place);
}

// ---- Asynchronous copies ----

static void start(unsigned address, const void *from, unsigned bytes, unsigned read, Place place)
{
    note_write(address, bytes, "a copy", place);
    const unsigned offset = address - block.shared_begin;
    for (unsigned w = offset / grain; w < (offset + bytes) / grain; ++w) {
        block.words[w].copier = block.current;
        block.words[w].copy_place = place;
    }
    Thread &thread = block.threads[block.current];
    thread.copies.push_back({offset, bytes, read, from, false, thread.group, place});
}

__attribute__((noinline)) void start_copy(unsigned address, const void *from, unsigned bytes, bool present)
{
    const Place place = __builtin_return_address(0);
    // The address must be valid even when nothing is read from it.
    check_load(from, bytes, true, place);
    start(address, from, bytes, present ? bytes : 0, place);
}

__attribute__((noinline)) void start_copy_part(unsigned address, const void *from, int read)
{
    const Place place = __builtin_return_address(0);
    if (read < 0 || read > 16)
        fault(place, "a copy of %d bytes of 16", read);
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
        fault(place, "a copy from an address that is not aligned, at %s", where(reinterpret_cast<uintptr_t>(from)).c_str());
    if (read > 0)
        check_load(from, static_cast<size_t>(read), false, place);
    start(address, from, 16, static_cast<unsigned>(read), place);
}

static void land(Copy &copy)
{
    memset(&block.shared[copy.offset], 0, copy.bytes);
    memcpy(&block.shared[copy.offset], copy.from, copy.read);
    copy.landed = true;
}

void land_some()
{
    Thread &thread = block.threads[block.random() % block.threads.size()];
    for (Copy &copy : thread.copies)
        if (!copy.landed && block.random() % 2)
            land(copy);
}

void commit_copies()
{
    ++block.threads[block.current].group;
}

__attribute__((noinline)) void wait_copies(int pending)
{
    Thread &thread = block.threads[block.current];
    size_t kept = 0;
    for (Copy &copy : thread.copies) {
        if (copy.group >= thread.group - pending) {
            thread.copies[kept++] = copy;
            continue;
        }
        if (!copy.landed)
            land(copy);
        for (unsigned w = copy.offset / grain; w < (copy.offset + copy.bytes) / grain; ++w) {
            block.words[w].copier = NOBODY;
            block.words[w].write = {block.current, clock_of(block.current, block.current), copy.place};
        }
    }
    thread.copies.resize(kept);
}

} // namespace machine

// ---- What the compiler calls ----

extern "C" {
#define ACCESS(name, bytes, store)                                                                                 \
    void __tsan_##name(const void *pointer);                                                                       \
    void __tsan_##name(const void *pointer)                                                                        \
    {                                                                                                              \
        machine::direct(pointer, bytes, store, __builtin_return_address(0));                                       \
    }
#define ACCESSES(bytes)                                                                                            \
    ACCESS(read##bytes, bytes, false)                                                                              \
    ACCESS(write##bytes, bytes, true)                                                                              \
    ACCESS(unaligned_read##bytes, bytes, false)                                                                    \
    ACCESS(unaligned_write##bytes, bytes, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

#define RANGE(name, store)                                                                                         \
    void __tsan_##name(const void *pointer, unsigned long bytes);                                                  \
    void __tsan_##name(const void *pointer, unsigned long bytes)                                                   \
    {                                                                                                              \
        machine::direct(pointer, bytes, store, __builtin_return_address(0));                                       \
    }
RANGE(read_range, false)
RANGE(write_range, true)

void __tsan_init(void);
void __tsan_init(void)
{
}
void __tsan_func_entry(void *);
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}
}
