// Barriers in shared memory (mbarrier), named barriers, and the pool of registers that warpgroups share.
#include <algorithm>
#include <cstdlib>

#include "block.h"

namespace machine
{

// ---- Barriers in shared memory ----

namespace
{
struct Barrier {
    unsigned address;
    int count, pending;
    int64_t bytes;                        // expected and not there yet
    int32_t phase;                        // phases completed
    bool fenced;                          // bulk copies may see it
    std::vector<int32_t> told, completed; // what arrivals knew; until the last completed phase
};

struct Named {
    int threads = 0; // 0: nobody has come
    int line = 0;
    bool flag = false; // of any that has come
    std::vector<int> arrived, waiting;
    std::vector<int32_t> told;
};

// setmaxnreg instructions that a warp has executed, as count * 2 + (more).
struct Registers {
    std::vector<int> history;
    int count, wanted; // of a thread; `wanted` while it waits for more
};
} // namespace

static std::vector<Barrier> barriers;
static Named named[16];
static std::vector<Registers> warp_registers;
static int free_registers;

void reset_barriers(int blocks_per_sm)
{
    barriers.clear();
    for (Named &one : named)
        one = Named();
    // What the compiler may give a thread under __launch_bounds__(threads, blocks_per_sm).
    const int each = std::min(255, 65536 / (block.thread_count * blocks_per_sm)) / 8 * 8;
    warp_registers.assign(static_cast<size_t>(block.thread_count) / 32, {{}, each, 0});
    free_registers = 0;
}

int barrier_number(unsigned address)
{
    for (size_t i = 0; i < barriers.size(); ++i)
        if (barriers[i].address == address)
            return static_cast<int>(i);
    return NOBODY;
}

int32_t barrier_phase(int number)
{
    return barriers[number].phase;
}

void use_barrier(unsigned address, const char *what, Place place)
{
    check_extent(address, 8, 8, what, place);
    const int number = barrier_number(address);
    if (number < 0)
        fault(place, "%s at shared address base + %u, where there is no barrier", what,
              address - block.shared_begin);
    const int thread = block.current;
    if (thread < 0)
        return;
    const Touch &init = block.words[(address - block.shared_begin) / grain].write;
    if (!knows(thread, init, DONE))
        fault(
            place,
            "a race: %s of the barrier at base + %u, and no barrier of the block since it was initialised by warp "
            "%d, lane %d at\n%s  now:",
            what, address - block.shared_begin, init.who / 32, init.who % 32, source_of(init.place).c_str());
}

void check_barrier_fenced(unsigned address, Place place)
{
    if (!barriers[barrier_number(address)].fenced)
        fault(place, "a bulk copy that reports to the barrier at base + %u, and no fence since it was initialised",
              address - block.shared_begin);
}

__attribute__((noinline)) void barrier_init(unsigned address, int count)
{
    const Place place = __builtin_return_address(0);
    check_extent(address, 8, 8, "a barrier", place);
    if (count < 1 || count > (1 << 20) - 1)
        fault(place, "a barrier of %d arrivals", count);
    if (barriers.size() == BARRIERS_MAX)
        fault(place, "more than %d barriers: let the machine have more", BARRIERS_MAX);
    const auto all = static_cast<size_t>(KNOWLEDGES) * everyone();
    const int thread = block.current;
    for (unsigned w = (address - block.shared_begin) / grain, end = w + 8 / grain; w < end; ++w) {
        Word &word = block.words[w];
        if (word.written || word.barrier >= 0 || word.bulk >= 0)
            fault(place, "a barrier at shared address base + %u, where something else is", grain * w);
        word.barrier = static_cast<int>(barriers.size());
        word.write = {thread, clock_of(thread, thread), place};
    }
    barriers.push_back({address, count, count, 0, 0, false, std::vector<int32_t>(all), std::vector<int32_t>(all)});
}

void barrier_init_fence()
{
    for (Barrier &b : barriers)
        b.fenced |= block.words[(b.address - block.shared_begin) / grain].write.who == block.current;
}

static void complete_phase_if_due(Barrier &b)
{
    if (b.pending != 0 || b.bytes != 0)
        return;
    const int number = static_cast<int>(&b - barriers.data());
    ++b.phase;
    b.pending = b.count;
    // Everything that reported bytes has done so.
    for (Knowledge what : {DONE, READ, FENCED})
        b.told[static_cast<size_t>(what) * everyone() + block.thread_count + number] = b.phase;
    b.completed = b.told;
    for (Thread &thread : block.threads)
        if (thread.state == State::AT_BARRIER && thread.barrier == b.address)
            thread.state = State::READY;
}

static void check_bytes(const Barrier &b, Place place)
{
    if (std::abs(b.bytes) >= 1 << 20)
        fault(place, "the barrier at base + %u expects %lld bytes; it counts to %d", b.address - block.shared_begin,
              static_cast<long long>(b.bytes), (1 << 20) - 1);
}

__attribute__((noinline)) void barrier_arrive(unsigned address, int bytes)
{
    const Place place = __builtin_return_address(0);
    use_barrier(address, "an arrival", place);
    if (bytes < 0)
        fault(place, "%d bytes to expect", bytes);
    Barrier &b = barriers[barrier_number(address)];
    if (b.pending == 0)
        fault(place, "an arrival at the barrier at base + %u beyond its %d; it still waits for %lld bytes",
              address - block.shared_begin, b.count, static_cast<long long>(b.bytes));
    learn(b.told.data(), clocks_of(block.current));
    go_on(block.current);
    b.bytes += bytes;
    check_bytes(b, place);
    --b.pending;
    complete_phase_if_due(b);
}

void complete_bytes(unsigned address, unsigned bytes, Place place)
{
    Barrier &b = barriers[barrier_number(address)];
    b.bytes -= bytes;
    check_bytes(b, place);
    complete_phase_if_due(b);
}

// Whether the phase of this parity is over: the one at hand has the other parity.
static bool is_over(const Barrier &b, int parity)
{
    return b.phase % 2 != parity;
}

__attribute__((noinline)) bool barrier_try_wait(unsigned address, int parity, int)
{
    const Place place = __builtin_return_address(0);
    use_barrier(address, "a wait", place);
    if (parity != 0 && parity != 1)
        fault(place, "a wait for parity %d; it is 0 or 1", parity);
    wait_in(State::READY); // others run in between
    const Barrier &b = barriers[barrier_number(address)];
    if (!is_over(b, parity))
        return false;
    learn(clocks_of(block.current), b.completed.data());
    return true;
}

__attribute__((noinline)) void barrier_wait(unsigned address, int parity, int line)
{
    const Place place = __builtin_return_address(0);
    use_barrier(address, "a wait", place);
    if (parity != 0 && parity != 1)
        fault(place, "a wait for parity %d; it is 0 or 1", parity);
    const int number = barrier_number(address);
    while (!is_over(barriers[number], parity)) {
        Thread &self = block.threads[block.current];
        self.barrier = address;
        self.parity = parity;
        self.line = line;
        self.place = place;
        wait_in(State::AT_BARRIER);
    }
    learn(clocks_of(block.current), barriers[number].completed.data());
}

std::string describe_barrier(unsigned address, int parity)
{
    const Barrier &b = barriers[barrier_number(address)];
    return "the barrier at base + " + std::to_string(address - block.shared_begin) + ", number " +
           std::to_string(barrier_number(address)) + ", parity " + std::to_string(parity) + " (its phase is " +
           std::to_string(b.phase) + ", " + std::to_string(b.pending) + " of " + std::to_string(b.count) +
           " arrivals and " + std::to_string(b.bytes) + " bytes to come)";
}

// ---- Named barriers ----

__attribute__((noinline)) bool named_barrier(int number, int threads, bool wait, bool flag, int line)
{
    const Place place = __builtin_return_address(0);
    if (number < 0 || number > 15)
        fault(place, "named barrier %d; they are 0 to 15", number);
    if (threads <= 0 || threads % 32 != 0 || threads > block.thread_count)
        fault(place, "named barrier %d for %d threads; it takes whole warps of the block's %d threads", number,
              threads, block.thread_count);
    Named &b = named[number];
    if (b.threads != 0 && b.threads != threads)
        fault(place, "named barrier %d is for %d threads in line %d, and for %d here", number, b.threads, b.line,
              threads);
    const int thread = block.current;
    if (std::find(b.arrived.begin(), b.arrived.end(), thread) != b.arrived.end())
        fault(place, "the thread arrives twice at named barrier %d, and %zu of %d threads have come", number,
              b.arrived.size(), threads);
    if (b.threads == 0)
        b.told.assign(static_cast<size_t>(KNOWLEDGES) * everyone(), 0);
    b.threads = threads;
    b.line = line;
    b.flag |= flag;
    b.arrived.push_back(thread);
    if (wait)
        b.waiting.push_back(thread);
    learn(b.told.data(), clocks_of(thread));
    go_on(thread);
    Thread &self = block.threads[thread];
    if (static_cast<int>(b.arrived.size()) == threads) {
        for (int t : b.waiting) {
            learn(clocks_of(t), b.told.data());
            block.threads[t].flag = b.flag;
            block.threads[t].state = State::READY;
        }
        self.flag = b.flag;
        b = Named();
        return self.flag;
    }
    if (!wait)
        return false;
    self.barrier = static_cast<unsigned>(number);
    self.line = line;
    self.place = place;
    wait_in(State::AT_NAMED);
    return self.flag;
}

std::string describe_named(int number)
{
    const Named &b = named[number];
    return "named barrier " + std::to_string(number) + " (" + std::to_string(b.arrived.size()) + " of " +
           std::to_string(b.threads) + " threads have come)";
}

// ---- Registers ----

static void set_state(int warp, State state)
{
    for (int t = 32 * warp; t < 32 * (warp + 1); ++t)
        block.threads[t].state = state;
}

void change_registers(int warp)
{
    const Thread &lead = block.threads[static_cast<size_t>(32) * warp];
    const int count = lead.operands.number;
    const bool more = lead.operands.in[0] != 0;
    Registers &mine = warp_registers[warp];
    block.current = 32 * warp;
    if (count < 24 || count > 256 || count % 8 != 0)
        fault(lead.operands.place, "%d registers; it must be a multiple of 8 from 24 to 256", count);
    if (more ? count < mine.count : count > mine.count)
        fault(lead.operands.place, "registers go %s from %d to %d", more ? "up" : "down", mine.count, count);
    mine.history.push_back(2 * count + more);
    for (int other = warp / 4 * 4; other < warp / 4 * 4 + 4; ++other) {
        const std::vector<int> &theirs = warp_registers[other].history;
        const size_t both = std::min(theirs.size(), mine.history.size());
        if (!std::equal(theirs.begin(), theirs.begin() + static_cast<ptrdiff_t>(both), mine.history.begin()))
            fault(lead.operands.place, "warps %d and %d of a warpgroup set other numbers of registers", other,
                  warp);
    }
    block.current = -1;
    if (more) {
        mine.wanted = count;
        set_state(warp, State::AT_REGISTERS);
        return;
    }
    free_registers += 32 * (mine.count - count);
    mine.count = count;
    set_state(warp, State::READY);
}

void grant_registers()
{
    for (size_t warp = 0; warp < warp_registers.size(); ++warp) {
        Registers &r = warp_registers[warp];
        if (r.wanted == 0 || 32 * (r.wanted - r.count) > free_registers)
            continue;
        free_registers -= 32 * (r.wanted - r.count);
        r.count = r.wanted;
        r.wanted = 0;
        set_state(static_cast<int>(warp), State::READY);
    }
}

void end_block()
{
    check_stored_again();
    if (bulk_copies() > 0)
        fault(nullptr, "the block ends with %d bulk copies under way", bulk_copies());
    for (size_t warp = 0; warp < warp_registers.size(); ++warp)
        if (warp_registers[warp].history != warp_registers[warp / 4 * 4].history)
            fault(nullptr, "warps %zu and %zu of a warpgroup have set other numbers of registers", warp / 4 * 4,
                  warp);
}

} // namespace machine
