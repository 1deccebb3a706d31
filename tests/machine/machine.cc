// The scheduler, and the instructions that the lanes of a warp or the threads of a block execute together.
#include "machine.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "block.h"
#include "numbers.h"

namespace machine
{

Block block;
static const Launch *launch;

static Thread &self()
{
    return block.threads[block.current];
}

Index thread_index()
{
    return {static_cast<unsigned>(block.current)};
}

Index block_index()
{
    return {block.index};
}

unsigned grid_size()
{
    return block.grid;
}

unsigned shared_base()
{
    return block.shared_begin;
}

// ---- What a thread does at a meeting point ----

void wait_in(State state)
{
    self().state = state;
    fiber_leave(self().fiber);
}

static Operands &collective(Collective what, int number, int line, Place place)
{
    Operands &mine = self().operands;
    mine.what = what;
    mine.number = number;
    mine.line = line;
    mine.place = place;
    return mine;
}

__attribute__((noinline)) bool block_barrier(bool flag, int line)
{
    self().flag = flag;
    self().line = line;
    self().place = __builtin_return_address(0);
    wait_in(State::AT_BLOCK);
    return block.vote;
}

__attribute__((noinline)) void warp_barrier(int line)
{
    collective(Collective::WARP_BARRIER, 0, line, __builtin_return_address(0));
    wait_in(State::AT_WARP);
}

__attribute__((noinline)) unsigned shuffle_xor(unsigned value, int mask, int line)
{
    Operands &mine = collective(Collective::SHUFFLE, mask, line, __builtin_return_address(0));
    mine.in[0] = value;
    wait_in(State::AT_WARP);
    return mine.out[0];
}

__attribute__((noinline)) void load_matrices(unsigned *to, int count, bool transposed, unsigned address, int line)
{
    Operands &mine = collective(transposed ? Collective::LOAD_TRANSPOSED : Collective::LOAD_MATRICES, count, line,
                                __builtin_return_address(0));
    mine.in[0] = address;
    wait_in(State::AT_WARP);
    std::copy(mine.out, mine.out + count, to);
}

__attribute__((noinline)) void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool bf16,
                                        int line)
{
    Operands &mine = collective(bf16 ? Collective::MULTIPLY_BF16 : Collective::MULTIPLY_F16, 0, line,
                                __builtin_return_address(0));
    std::copy(a, a + 4, mine.in);
    mine.in[4] = b0;
    mine.in[5] = b1;
    std::copy(d, d + 4, mine.sum);
    wait_in(State::AT_WARP);
    std::copy(mine.sum, mine.sum + 4, d);
}

__attribute__((noinline)) void multiply_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                             int line)
{
    Operands &mine = collective(Collective::MULTIPLY_TF32, 0, line, __builtin_return_address(0));
    std::copy(a, a + 4, mine.in);
    mine.in[4] = b0;
    mine.in[5] = b1;
    std::copy(d, d + 4, mine.sum);
    wait_in(State::AT_WARP);
    std::copy(mine.sum, mine.sum + 4, d);
}

__attribute__((noinline)) bool vote_any(bool flag, int line)
{
    Operands &mine = collective(Collective::VOTE, 0, line, __builtin_return_address(0));
    mine.in[0] = flag;
    wait_in(State::AT_WARP);
    return mine.out[0] != 0;
}

__attribute__((noinline)) int broadcast(int value, int line)
{
    Operands &mine = collective(Collective::BROADCAST, 0, line, __builtin_return_address(0));
    mine.in[0] = static_cast<unsigned>(value);
    wait_in(State::AT_WARP);
    return static_cast<int>(mine.out[0]);
}

__attribute__((noinline)) bool elect(int line)
{
    Operands &mine = collective(Collective::ELECT, 0, line, __builtin_return_address(0));
    wait_in(State::AT_WARP);
    return mine.out[0] != 0;
}

__attribute__((noinline)) void product_fence(int line)
{
    collective(Collective::PRODUCT_FENCE, 0, line, __builtin_return_address(0));
    wait_in(State::AT_WARP);
}

__attribute__((noinline)) void product_commit(int line)
{
    collective(Collective::PRODUCT_COMMIT, 0, line, __builtin_return_address(0));
    wait_in(State::AT_WARP);
}

__attribute__((noinline)) void product_wait(int pending, int line)
{
    collective(Collective::PRODUCT_WAIT, pending, line, __builtin_return_address(0));
    wait_in(State::AT_WARP);
}

__attribute__((noinline)) void set_registers(int count, bool more, int line)
{
    Operands &mine = collective(Collective::REGISTERS, count, line, __builtin_return_address(0));
    mine.in[0] = more;
    wait_in(State::AT_WARP);
}

// ---- What a warp does there ----

static void do_load(int first, Thread *lanes)
{
    const int count = lanes[0].operands.number;
    const bool transposed = lanes[0].operands.what == Collective::LOAD_TRANSPOSED;
    for (int l = 0; l < 8 * count; ++l) {
        block.current = first + l;
        note_read(lanes[l].operands.in[0], 16, first + l, lanes[l].operands.place);
    }
    block.current = -1;
    for (int m = 0; m < count; ++m)
        for (int l = 0; l < 32; ++l) {
            unsigned pair = 0;
            for (int e = 0; e < 2; ++e) {
                const int row = transposed ? l % 4 * 2 + e : l / 4, column = transposed ? l / 4 : l % 4 * 2 + e;
                uint16_t element;
                memcpy(&element, &block.shared[lanes[8 * m + row].operands.in[0] - block.shared_begin + 2 * column],
                       2);
                pair |= static_cast<unsigned>(element) << (16 * e);
            }
            lanes[l].operands.out[m] = pair;
        }
}

static float value_of(unsigned bits, bool bf16)
{
    static const std::vector<float> halves = [] {
        std::vector<float> all(1 << 16);
        for (uint32_t b = 0; b < 1 << 16; ++b)
            all[b] = half_value(b);
        return all;
    }();
    return bf16 ? bf16_value(bits) : halves[bits & 0xffff];
}

static void do_multiply(Thread *lanes)
{
    const bool bf16 = lanes[0].operands.what == Collective::MULTIPLY_BF16;
    double a[16][16], b[16][8];
    for (int l = 0; l < 32; ++l) {
        const int g = l / 4, t = l % 4;
        const unsigned *in = lanes[l].operands.in;
        for (int e = 0; e < 2; ++e) {
            for (int half = 0; half < 2; ++half) {
                a[g][8 * half + 2 * t + e] = value_of(in[2 * half] >> (16 * e), bf16);
                a[g + 8][8 * half + 2 * t + e] = value_of(in[2 * half + 1] >> (16 * e), bf16);
                b[8 * half + 2 * t + e][g] = value_of(in[4 + half] >> (16 * e), bf16);
            }
        }
    }
    for (int row = 0; row < 16; ++row) {
        double sum[8];
        for (int c = 0; c < 8; ++c)
            sum[c] = lanes[row % 8 * 4 + c / 2].operands.sum[row / 8 * 2 + c % 2];
        for (int k = 0; k < 16; ++k)
            for (int c = 0; c < 8; ++c)
                sum[c] += a[row][k] * b[k][c];
        for (int c = 0; c < 8; ++c)
            lanes[row % 8 * 4 + c / 2].operands.sum[row / 8 * 2 + c % 2] = static_cast<float>(sum[c]);
    }
}

// The low 13 bits of a tf32 number are ignored.
static double value_of_tf32(unsigned bits)
{
    return float_of_bits(bits & ~0x1fffu);
}

static void do_multiply_tf32(Thread *lanes)
{
    double a[16][8], b[8][8];
    for (int l = 0; l < 32; ++l) {
        const int g = l / 4, t = l % 4;
        const unsigned *in = lanes[l].operands.in;
        for (int r = 0; r < 4; ++r)
            a[g + r % 2 * 8][t + r / 2 * 4] = value_of_tf32(in[r]);
        for (int r = 0; r < 2; ++r)
            b[t + 4 * r][g] = value_of_tf32(in[4 + r]);
    }
    for (int row = 0; row < 16; ++row)
        for (int c = 0; c < 8; ++c) {
            float &sum = lanes[row % 8 * 4 + c / 2].operands.sum[row / 8 * 2 + c % 2];
            double exact = sum;
            for (int k = 0; k < 8; ++k)
                exact += a[row][k] * b[k][c];
            sum = static_cast<float>(exact);
        }
}

static void do_collective(int warp)
{
    Thread *lanes = &block.threads[static_cast<size_t>(32) * warp];
    const Operands &lead = lanes[0].operands;
    for (int l = 1; l < 32; ++l) {
        const Operands &other = lanes[l].operands;
        if (other.what != lead.what || other.number != lead.number || other.line != lead.line) {
            block.current = 32 * warp + l;
            fault(other.place,
                  "lane 0 of the warp is at %s of line %d, another at %s of line %d; all must be at one",
                  collective_name(lead.what), lead.line, collective_name(other.what), other.line);
        }
    }
    switch (lead.what) {
    case Collective::LOAD_MATRICES:
    case Collective::LOAD_TRANSPOSED:
        do_load(32 * warp, lanes);
        break;
    case Collective::MULTIPLY_F16:
    case Collective::MULTIPLY_BF16:
        do_multiply(lanes);
        break;
    case Collective::MULTIPLY_TF32:
        do_multiply_tf32(lanes);
        break;
    case Collective::SHUFFLE:
        synchronise_reads(32 * warp, 32);
        for (int l = 0; l < 32; ++l)
            lanes[l].operands.out[0] = lanes[(l ^ lead.number) & 31].operands.in[0];
        break;
    case Collective::BROADCAST:
        synchronise_reads(32 * warp, 32);
        for (int l = 0; l < 32; ++l)
            lanes[l].operands.out[0] = lead.in[0];
        break;
    case Collective::VOTE: {
        synchronise_reads(32 * warp, 32);
        unsigned any = 0;
        for (int l = 0; l < 32; ++l)
            any |= lanes[l].operands.in[0];
        for (int l = 0; l < 32; ++l)
            lanes[l].operands.out[0] = any;
        break;
    }
    case Collective::ELECT:
        for (unsigned l = 0; l < 32; ++l)
            lanes[l].operands.out[0] = l == block.elected;
        break;
    case Collective::WARP_BARRIER:
        synchronise(32 * warp, 32);
        break;
    case Collective::PRODUCT_FENCE:
        do_product_fence(warp);
        break;
    case Collective::PRODUCT_COMMIT:
        do_product_commit(warp);
        break;
    case Collective::PRODUCT_WAIT:
        do_product_wait(warp);
        break;
    case Collective::REGISTERS:
        change_registers(warp); // decides on when the lanes go on
        return;
    case Collective::NONE:
        break;
    }
    for (int l = 0; l < 32; ++l)
        lanes[l].state = State::READY;
}

static void do_block_barrier()
{
    block.vote = false;
    for (int t = 0; t < block.thread_count; ++t) {
        block.vote |= block.threads[t].flag;
        if (block.threads[t].line != block.threads[0].line) {
            block.current = t;
            fault(block.threads[t].place, "thread 0 is at the block barrier of line %d, another at that of line %d",
                  block.threads[0].line, block.threads[t].line);
        }
    }
    synchronise(0, block.thread_count);
    for (Thread &thread : block.threads)
        thread.state = State::READY;
}

// ---- The scheduler ----

static void thread_body()
{
    launch->kernel(launch->parameters);
    if (!self().copies.empty())
        fault(self().copies[0].place, "the thread ends with %zu copies under way", self().copies.size());
    check_products_over(block.current);
    wait_in(State::ENDED);
}

static int count_in(State state, int first, int count)
{
    int found = 0;
    for (int t = first; t < first + count; ++t)
        found += block.threads[t].state == state;
    return found;
}

// Runs every lane of a warp that can, in a random order, as far as it can, then what they met for.
static void run_warp(int warp)
{
    int order[32];
    std::iota(order, order + 32, 0);
    std::shuffle(order, order + 32, block.random);
    for (int l : order) {
        Thread &thread = block.threads[32 * warp + l];
        if (thread.state != State::READY)
            continue;
        block.current = 32 * warp + l;
        fiber_enter(thread.fiber);
        block.current = -1;
    }
    if (count_in(State::AT_WARP, 32 * warp, 32) == 32)
        do_collective(warp);
    const int group = warp / 4;
    if (block.thread_count >= 128 * (group + 1) && count_in(State::AT_GROUP, 128 * group, 128) == 128) {
        meet_for_product(group);
        for (int t = 128 * group; t < 128 * (group + 1); ++t)
            block.threads[t].state = State::READY;
    }
}

// A seed's manner: how often the scheduler stays with a warp, and how often copies land, and products are done,
// before they must.
struct Manner {
    unsigned stay, land; // of 16
};

// Some warp that can run; that it ran last, if the manner is so.
static int choose_warp(const Manner &manner, int last)
{
    static std::vector<int> runnable;
    runnable.clear();
    for (int w = 0; w < block.thread_count / 32; ++w)
        if (count_in(State::READY, 32 * w, 32) > 0)
            runnable.push_back(w);
    if (runnable.empty())
        return -1;
    if (std::find(runnable.begin(), runnable.end(), last) != runnable.end() && block.random() % 16 < manner.stay)
        return last;
    return runnable[block.random() % runnable.size()];
}

static void run_block(const Manner &manner)
{
    int warp = static_cast<int>(block.random() % static_cast<unsigned>(block.thread_count / 32));
    for (;;) {
        if (block.random() % 16 < manner.land) {
            land_some();
            land_bulk_copy();
            run_some_product();
        }
        grant_registers();
        const int chosen = choose_warp(manner, warp);
        if (chosen >= 0) {
            warp = chosen;
            run_warp(warp);
            continue;
        }
        if (land_bulk_copy())
            continue;
        if (count_in(State::ENDED, 0, block.thread_count) == block.thread_count)
            return;
        if (count_in(State::AT_BLOCK, 0, block.thread_count) != block.thread_count)
            report_deadlock("a deadlock: no thread can go on");
        do_block_barrier();
    }
}

static void reset_block(const Launch &given, unsigned index)
{
    block.index = index;
    block.grid = given.blocks;
    block.current = -1;
    block.shared_begin = 1024 + 16 * static_cast<unsigned>(block.random() % 64);
    block.elected = static_cast<unsigned>(block.random() % 32);
    reset_memory(given.shared_bytes);
    reset_bulk_copies();
    reset_barriers(given.blocks_per_sm);
    reset_products();
    for (Thread &thread : block.threads) {
        fiber_prepare(thread.fiber, thread_body);
        thread.state = State::READY;
        thread.copies.clear();
        thread.group = 0;
        thread.flag = false;
        thread.fence = 0;
    }
}

void run(const Launch &given)
{
    launch = &given;
    block.random.seed(given.seed * 0x9e3779b97f4a7c15u + 1);
    block.thread_count = given.threads;
    block.threads.resize(static_cast<size_t>(given.threads));
    static const unsigned stay[] = {0, 8, 16}, landing[] = {16, 4, 0};
    const Manner manner = {stay[given.seed % 3], landing[(given.seed + given.seed / 3) % 3]};
    begin_launch();
    std::vector<unsigned> order(given.blocks);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), block.random);
    for (unsigned index : order) {
        reset_block(given, index);
        run_block(manner);
        end_block();
    }
}

} // namespace machine
