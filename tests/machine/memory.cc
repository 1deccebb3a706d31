// Memory: shared memory with its races and copies under way, and the buffers in global memory.
//
// The compiler tells of direct accesses by the calls that it makes for a thread sanitizer; they are answered at the
// end of this file.
#include <algorithm>
#include <cstring>

#include "block.h"

namespace machine
{

// ---- Order ----

void synchronise(int first, int count)
{
    const int all = block.thread_count;
    static std::vector<uint32_t> latest;
    latest.assign(static_cast<size_t>(all), 0);
    for (int t = first; t < first + count; ++t)
        for (int u = 0; u < all; ++u)
            latest[u] = std::max(latest[u], clock_of(t, u));
    for (int t = first; t < first + count; ++t) {
        std::copy(latest.begin(), latest.end(), &clock_of(t, 0));
        ++clock_of(t, t);
    }
}

static bool before(const Touch &touch, int thread)
{
    return touch.thread < 0 || clock_of(thread, touch.thread) >= touch.clock;
}

// ---- Shared memory ----

void reset_memory(int shared_bytes)
{
    block.shared.assign(static_cast<size_t>(shared_bytes), 0xff);
    block.words.resize(static_cast<size_t>(shared_bytes) / 4);
    for (Word &word : block.words) {
        word.written = false;
        word.copier = -1;
        word.write.thread = -1;
        word.reads.clear();
    }
    const auto count = static_cast<size_t>(block.thread_count);
    block.clocks.assign(count * count, 0);
    for (int t = 0; t < block.thread_count; ++t)
        clock_of(t, t) = 1;
}

static void check_extent(unsigned address, unsigned bytes, const char *what, Place place)
{
    if (address % bytes != 0)
        fault(place, "%s of %u bytes at shared address base + %d, which is not a multiple of %u", what, bytes,
              static_cast<int>(address - SHARED_BASE), bytes);
    if (address < SHARED_BASE || address - SHARED_BASE + bytes > block.shared.size())
        fault(place, "%s of %u bytes at shared address base + %d; the block has %zu bytes", what, bytes,
              static_cast<int>(address - SHARED_BASE), block.shared.size());
}

[[noreturn]] static void race(unsigned offset, const char *now, const char *then, const Touch &touch, Place place)
{
    fault(place,
          "a race: %s of shared address base + %u, and no barrier since the %s by warp %d, lane %d at\n%s  now:",
          now, offset, then, touch.thread / 32, touch.thread % 32, source_of(touch.place).c_str());
}

static void check_no_copy(const Word &word, unsigned offset, const char *what, Place place)
{
    if (word.copier >= 0)
        fault(place,
              "%s of shared address base + %u, to which a copy by warp %d, lane %d is under way since\n%s  now:",
              what, offset, word.copier / 32, word.copier % 32, source_of(word.copy_place).c_str());
}

void note_read(unsigned address, unsigned bytes, int thread, Place place)
{
    check_extent(address, bytes, "a read", place);
    const unsigned offset = address - SHARED_BASE;
    const Touch now{thread, clock_of(thread, thread), place};
    for (unsigned w = offset / 4; w < (offset + bytes) / 4; ++w) {
        Word &word = block.words[w];
        check_no_copy(word, 4 * w, "a read", place);
        if (!word.written)
            fault(place, "a read of shared address base + %u, where nothing was written", 4 * w);
        if (!before(word.write, thread))
            race(4 * w, "a read", "write", word.write, place);
        size_t kept = 0;
        for (const Touch &read : word.reads)
            if (!before(read, thread))
                word.reads[kept++] = read;
        word.reads.resize(kept);
        word.reads.push_back(now);
    }
}

// `what`: a write, or a copy.
static void note_write(unsigned address, unsigned bytes, const char *what, Place place)
{
    check_extent(address, bytes, what, place);
    const unsigned offset = address - SHARED_BASE;
    const int thread = block.current;
    for (unsigned w = offset / 4; w < (offset + bytes) / 4; ++w) {
        Word &word = block.words[w];
        check_no_copy(word, 4 * w, what, place);
        if (!before(word.write, thread))
            race(4 * w, what, "write", word.write, place);
        for (const Touch &read : word.reads)
            if (!before(read, thread))
                race(4 * w, what, "read", read, place);
        word.reads.clear();
        word.write = {thread, clock_of(thread, thread), place};
        word.written = true;
    }
}

__attribute__((noinline)) void read_shared(unsigned address, void *to, unsigned bytes)
{
    note_read(address, bytes, block.current, __builtin_return_address(0));
    memcpy(to, &block.shared[address - SHARED_BASE], bytes);
}

__attribute__((noinline)) void write_shared(unsigned address, const void *from, unsigned bytes)
{
    note_write(address, bytes, "a write", __builtin_return_address(0));
    memcpy(&block.shared[address - SHARED_BASE], from, bytes);
}

// ---- Global memory ----

struct Buffer {
    const char *name;
    uintptr_t begin, end;
    Access access;
    std::vector<int> writer; // by byte: the block that wrote it, or -1
};

static std::vector<Buffer> buffers;

void forget_buffers()
{
    buffers.clear();
}

void add_buffer(const char *name, const void *begin, size_t bytes, Access access)
{
    const auto first = reinterpret_cast<uintptr_t>(begin);
    buffers.push_back(
        {name, first, first + bytes, access, std::vector<int>(access == Access::WRITE_ONCE ? bytes : 0, -1)});
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

static void check_global(uintptr_t address, size_t bytes, bool store, Place place)
{
    const char *what = store ? "a store" : "a load";
    if ((bytes & (bytes - 1)) == 0 && address % bytes != 0)
        fault(place, "%s of %zu bytes that is not aligned, at %s", what, bytes, where(address).c_str());
    for (Buffer &b : buffers) {
        if (address < b.begin || address >= b.end || (b.access == Access::WRITE_ONCE) != store)
            continue;
        if (address + bytes > b.end)
            break;
        for (size_t at = address - b.begin; store && at < address - b.begin + bytes; ++at) {
            if (b.writer[at] >= 0)
                fault(place, "byte %zu of %s is stored a second time; the first was by block %d", at, b.name,
                      b.writer[at]);
            b.writer[at] = static_cast<int>(block.index);
        }
        return;
    }
    fault(place, "%s of %zu bytes at %s", what, bytes, where(address).c_str());
}

// Direct accesses of the kernel. Its own variables are on the stack of its fiber.
static void direct(const void *pointer, size_t bytes, bool store, Place place)
{
    if (block.current < 0 || bytes == 0)
        return;
    const Fiber &fiber = block.threads[block.current].fiber;
    const auto offset = static_cast<size_t>(static_cast<const char *>(pointer) - fiber.stack);
    if (offset < fiber.stack_bytes)
        return;
    check_global(reinterpret_cast<uintptr_t>(pointer), bytes, store, place);
}

// ---- Asynchronous copies ----

__attribute__((noinline)) void start_copy(unsigned address, const void *from, unsigned bytes, bool present)
{
    const Place place = __builtin_return_address(0);
    // The address must be valid even when nothing is read from it.
    check_global(reinterpret_cast<uintptr_t>(from), bytes, false, place);
    note_write(address, bytes, "a copy", place);
    const unsigned offset = address - SHARED_BASE;
    for (unsigned w = offset / 4; w < (offset + bytes) / 4; ++w) {
        block.words[w].copier = block.current;
        block.words[w].copy_place = place;
    }
    Thread &thread = block.threads[block.current];
    thread.copies.push_back({offset, bytes, from, present, false, thread.group, place});
}

static void land(Copy &copy)
{
    if (copy.present)
        memcpy(&block.shared[copy.offset], copy.from, copy.bytes);
    else
        memset(&block.shared[copy.offset], 0, copy.bytes);
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
        for (unsigned w = copy.offset / 4; w < (copy.offset + copy.bytes) / 4; ++w) {
            block.words[w].copier = -1;
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
