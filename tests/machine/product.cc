// Warpgroup products (wgmma): the text of the instruction, matrices in shared memory, registers that a product
// under way has, groups of products and the wait for them.
//
// The four warps of a warpgroup meet at a product; from then on it is under way for each of them until that warp
// has waited for its group. It is done, once for the warpgroup and in the order of the starts, at a random moment
// in between. Meanwhile its words of shared memory must not be written and its registers not be touched: what a
// thread has on its stack stands for its registers, and the compiler tells of every access to what a product was
// given.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include <sys/mman.h>

#include "block.h"
#include "numbers.h"

namespace machine
{

// ---- The instruction ----

namespace
{
struct Instruction {
    bool bf16 = false, tf32 = false, a_in_registers = false, a_transposed = false, b_transposed = false;
    int n = 0, depth = 16; // depth: of 32 bytes
    int a = 0, b = 0;      // operands with the descriptors; `a`: the first of four registers when it is there
    int scale_operand = 0; // whose value says whether to add to the sums; NOBODY: `scale`
    bool scale = false;
    std::string trouble;
};

// What a thread brings.
struct Brought {
    const Instruction *instruction = nullptr;
    std::vector<float *> sums;
    const unsigned *factors[4] = {};
    unsigned factor_values[4] = {};
    uint64_t a = 0, b = 0;
    bool add = false;
    int line = 0;
    Place place = nullptr;
};

// The sums of a warpgroup, while products have them.
struct Sums {
    std::vector<float *> registers[128];
    std::vector<float> values; // 64 rows of n
    int n = 0, users[4] = {};  // products under way that a warp has not waited for
};

// Bytes of shared memory, as offsets of its words.
typedef std::vector<unsigned> Words;

struct Product {
    const Instruction *instruction;
    int group; // warpgroup
    Sums *sums;
    bool add, done = false;
    std::vector<const unsigned *> factors[128];
    std::vector<unsigned> factor_values;                // 128 * 4
    std::vector<unsigned> a, b;                         // offset of each element: [row][k]
    Words a_words[4], b_words;                          // of the rows of a warp; of all
    int in_group[4] = {NOBODY, NOBODY, NOBODY, NOBODY}; // by warp: the group it was committed to
    bool waited[4] = {};
    int line;
    Place place;
};

struct Warp {
    int groups = 0; // committed so far
};
} // namespace

static std::vector<Brought> brought;                   // by thread
static std::vector<std::unique_ptr<Product>> products; // under way for some warp, oldest first
static std::vector<std::unique_ptr<Sums>> all_sums;
static std::vector<Warp> warps;
static uint32_t fences;      // that threads have executed
static uint32_t first_fence; // of them, before this block

void watch_registers(bool yes)
{
    block.products = yes;
}

void reset_products()
{
    if (block.products) {
        brought.assign(static_cast<size_t>(block.thread_count), Brought());
        warps.assign(static_cast<size_t>(block.thread_count) / 32, Warp());
    }
    products.clear();
    all_sums.clear();
    first_fence = fences;
}

// ---- Text ----

static std::vector<std::string> split(const std::string &text, char separator)
{
    std::vector<std::string> parts;
    std::string part;
    int depth = 0;
    for (char c : text) {
        c = c == '\n' ? ' ' : c;
        depth += c == '{' ? 1 : c == '}' ? -1 : 0;
        if (c == separator && depth <= 0) {
            parts.push_back(part);
            part.clear();
        } else if (c != ' ' || !part.empty()) {
            part += c;
        }
    }
    parts.push_back(part);
    for (std::string &p : parts)
        while (!p.empty() && p.back() == ' ')
            p.pop_back();
    return parts;
}

static int operand_number(const std::string &text)
{
    int number = 0, end = 0;
    if (sscanf(text.c_str(), "%%%d%n", &number, &end) != 1 || static_cast<size_t>(end) != text.size())
        return NOBODY;
    return number;
}

// "{%4, %5, ...}" must be the operands from `first` on; returns how many, or -1.
static int count_list(const std::string &text, int first)
{
    if (text.size() < 2 || text.front() != '{' || text.back() != '}')
        return -1;
    const std::vector<std::string> parts = split(text.substr(1, text.size() - 2), ',');
    for (size_t i = 0; i < parts.size(); ++i)
        if (operand_number(parts[i]) != first + static_cast<int>(i))
            return -1;
    return static_cast<int>(parts.size());
}

static std::string read_immediate(const std::string &text, int least, int *value)
{
    int end = 0;
    if (sscanf(text.c_str(), "%d%n", value, &end) == 1 && static_cast<size_t>(end) == text.size() &&
        *value >= least && *value <= 1)
        return "";
    return "\"" + text + "\" where " + std::to_string(least) + " or 1 must be";
}

// "wgmma.mma_async... d, a, b, scale-d, scale-a, scale-b[, trans-a], trans-b"; `predicates` are set by operands.
static std::string parse_product(const std::string &text, const std::map<std::string, int> &predicates,
                                 Instruction *made)
{
    char type_a[8] = "", type_b[8] = "";
    int end = 0;
    if (sscanf(text.c_str(), "wgmma.mma_async.sync.aligned.m64n%dk%d.f32.%7[a-z0-9].%7[a-z0-9] %n", &made->n,
               &made->depth, type_a, type_b, &end) != 4 ||
        end == 0)
        return "not a product that the machine knows: " + text;
    if (made->n < 8 || made->n > 256 || made->n % 8 != 0)
        return "n is " + std::to_string(made->n) + "; it must be a multiple of 8 from 8 to 256";
    made->bf16 = strcmp(type_a, "bf16") == 0;
    made->tf32 = strcmp(type_a, "tf32") == 0;
    if (strcmp(type_a, type_b) != 0 || (!made->bf16 && !made->tf32 && strcmp(type_a, "f16") != 0))
        return "types that the machine does not know";
    if (made->depth != (made->tf32 ? 8 : 16))
        return "a depth that products of this type do not have";
    const std::vector<std::string> parts = split(text.substr(static_cast<size_t>(end)), ',');
    if (parts.size() < 6)
        return "too few operands";
    const int sums = made->n / 2;
    if (count_list(parts[0], 0) != sums)
        return "the sums must be " + std::to_string(sums) + " operands in order";
    made->a = sums;
    made->a_in_registers = parts[1][0] == '{';
    if (made->a_in_registers ? count_list(parts[1], sums) != 4 : operand_number(parts[1]) != sums)
        return "the left matrix must be one descriptor or four registers";
    made->b = operand_number(parts[2]);
    if (made->b != sums + (made->a_in_registers ? 4 : 1))
        return "the right matrix must be the descriptor that follows";
    const auto predicate = predicates.find(parts[3]);
    made->scale_operand = predicate == predicates.end() ? NOBODY : predicate->second;
    int scale = 1, sign_a, sign_b, trans_a = 0, trans_b = 0;
    const size_t flags = made->tf32 ? 6 : made->a_in_registers ? 7 : 8; // tf32 always runs along k
    if (parts.size() != flags)
        return "it takes " + std::to_string(flags) + " operands";
    std::string trouble = made->scale_operand >= 0 ? "" : read_immediate(parts[3], 0, &scale);
    if (trouble.empty())
        trouble = read_immediate(parts[4], -1, &sign_a);
    if (trouble.empty())
        trouble = read_immediate(parts[5], -1, &sign_b);
    if (trouble.empty() && !made->a_in_registers && !made->tf32)
        trouble = read_immediate(parts[6], 0, &trans_a);
    if (trouble.empty() && !made->tf32)
        trouble = read_immediate(parts.back(), 0, &trans_b);
    if (!trouble.empty())
        return trouble;
    if (sign_a != 1 || sign_b != 1)
        return "negated matrices are not modelled";
    made->scale = scale != 0;
    made->a_transposed = trans_a != 0;
    made->b_transposed = trans_b != 0;
    return "";
}

// Statements: `.reg .pred p`, `setp.ne.b32 p, %66, 0` and one product, braces around them or not.
static Instruction parse(std::string text)
{
    Instruction made;
    std::map<std::string, int> predicates;
    const size_t open = text.find_first_not_of(" \n");
    if (open != std::string::npos && text[open] == '{') {
        text = text.substr(open + 1);
        text = text.substr(0, text.find_last_of('}'));
    }
    bool found = false;
    for (const std::string &statement : split(text, ';')) {
        char name[16] = "";
        int operand = 0;
        if (statement.empty() || statement.compare(0, 10, ".reg .pred") == 0)
            continue;
        if (sscanf(statement.c_str(), "setp.ne.b32 %15[a-z0-9], %%%d, 0", name, &operand) == 2)
            predicates[name] = operand;
        else if (made.trouble.empty()) {
            made.trouble = found ? "more than one product" : parse_product(statement, predicates, &made);
            found = true;
        }
    }
    if (!found)
        made.trouble = "there is no product";
    return made;
}

// ---- Registers ----

static Register *registers_of(Thread &thread)
{
    if (!thread.registers) {
        const size_t bytes = thread.fiber.stack_bytes / 4 * sizeof(Register);
        void *memory =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            perror("machine: no memory for registers");
            exit(1);
        }
        thread.registers = static_cast<Register *>(memory);
    }
    return thread.registers;
}

static Register *register_at(Thread &thread, const void *address)
{
    const auto offset = static_cast<size_t>(static_cast<const char *>(address) - thread.fiber.stack);
    return offset < thread.fiber.stack_bytes ? registers_of(thread) + offset / 4 : nullptr;
}

void touch_registers(Thread &thread, const char *first, size_t bytes, bool store, Place place)
{
    Register *r = registers_of(thread) + (first - thread.fiber.stack) / 4;
    for (Register *end = r + (bytes + 3) / 4; r != end; ++r) {
        if (r->sums == 1)
            fault(place, "a register is %s which a product under way adds to", store ? "written" : "read");
        if (r->sums == 2 && r->touched > first_fence)
            fault(place,
                  "a register is %s which a product has added to, and hold was not called since it was waited for",
                  store ? "written" : "read");
        if (store && r->factors > 0)
            fault(place, "a register is written which a product under way reads");
        r->touched = thread.fence;
    }
}

void hold(float *x)
{
    if (block.current < 0 || !block.products)
        return;
    Thread &thread = block.threads[block.current];
    Register *r = register_at(thread, x);
    if (r && r->sums == 2)
        r->sums = 0;
}

// ---- Matrices in shared memory ----

// Where element (row, k) of a matrix lies, as an offset from the start of shared memory. `row` counts along the
// dimension that is not summed over. The descriptor's strides are in the units that the PTX reference calls the
// canonical layouts; a swizzle permutes 16-byte chunks by the address.
static void decode_matrix(uint64_t descriptor, bool transposed, int rows, int depth, std::vector<unsigned> *offsets,
                          Place place)
{
    const auto size = 32u / static_cast<unsigned>(depth),
               half = static_cast<unsigned>(depth) / 2; // of an element; 16 bytes

    const auto start = static_cast<unsigned>(descriptor & 0x3fff) << 4;
    const auto leading = static_cast<unsigned>(descriptor >> 16 & 0x3fff) << 4;
    const auto stride = static_cast<unsigned>(descriptor >> 32 & 0x3fff) << 4;
    const auto mode = static_cast<unsigned>(descriptor >> 62);
    if (descriptor & 0x3ff1c000c000c000u)
        fault(place, "a matrix descriptor 0x%llx with bits that have no meaning",
              static_cast<unsigned long long>(descriptor));
    if (descriptor >> 49 & 7)
        fault(place, "a matrix descriptor with a base offset, which is not modelled");
    const unsigned chunks = mode == 0 ? 1 : 16u >> mode; // of 16 bytes in a row of the pattern: 8, 4, 2
    offsets->resize(static_cast<size_t>(rows) * static_cast<size_t>(depth));
    for (unsigned row = 0; row < static_cast<unsigned>(rows); ++row)
        for (unsigned k = 0; k < static_cast<unsigned>(depth); ++k) {
            unsigned at;
            if (!transposed)
                at = row / 8 * stride + row % 8 * (16 * chunks) +
                     (mode == 0 ? k / half * leading + k % half * size : k * size);
            else if (mode == 0)
                at = row / 8 * stride + k / 8 * leading + k % 8 * 16 + row % 8 * 2;
            else
                at = row / (8 * chunks) * leading + k / 8 * stride + k % 8 * (16 * chunks) + row % (8 * chunks) * 2;
            at += start;
            at ^= (at >> 7 & (chunks - 1)) << 4;
            const unsigned offset = at - block.shared_begin;
            if (at < block.shared_begin || offset + size > block.shared.size())
                fault(place, "a product reads shared address base + %d; the block has %zu bytes",
                      static_cast<int>(offset), block.shared.size());
            (*offsets)[static_cast<size_t>(row) * static_cast<size_t>(depth) + k] = offset;
        }
}

// Each word once.
static Words words_of(const unsigned *offsets, size_t count)
{
    static std::vector<bool> seen;
    seen.resize(block.words.size());
    Words words;
    for (size_t i = 0; i < count; ++i)
        if (!seen[offsets[i] / grain]) {
            seen[offsets[i] / grain] = true;
            words.push_back(offsets[i] / grain);
        }
    for (unsigned w : words)
        seen[w] = false;
    return words;
}

// What every thread of a warpgroup knows.
static const int32_t *known_to_all(int group)
{
    static std::vector<int32_t> all;
    const size_t count = static_cast<size_t>(KNOWLEDGES) * everyone();
    all.assign(clocks_of(128 * group), clocks_of(128 * group) + count);
    for (int t = 128 * group + 1; t < 128 * (group + 1); ++t) {
        const int32_t *one = clocks_of(t);
        for (size_t i = 0; i < count; ++i)
            all[i] = std::min(all[i], one[i]);
    }
    return all.data();
}

static void start_reading(const Words &words, int readers, const int32_t *known, Place place)
{
    for (unsigned w : words) {
        Word &word = block.words[w];
        if (word.copier >= 0 || word.bulk >= 0)
            fault(place,
                  "a product reads shared address base + %u, to which %s is under way since\n%s  now:", grain * w,
                  word.bulk >= 0 ? describe_bulk_copy(word.bulk).c_str() : "a copy",
                  source_of(word.copy_place).c_str());
        if (!word.written)
            fault(place, "a product reads shared address base + %u, where nothing was written", grain * w);
        if (!word.atomics.empty())
            fault(place, "a product reads shared address base + %u, where atomic operations were", grain * w);
        const Touch &write = word.write;
        const bool generic = write.who < block.thread_count;
        if (known[write.who] < write.clock)
            fault(place,
                  "a race: a product reads shared address base + %u, and not all its threads have met a barrier "
                  "since "
                  "the write by %s at\n%s  now:",
                  grain * w, generic ? ("warp " + std::to_string(write.who / 32)).c_str() : "a bulk copy",
                  source_of(write.place).c_str());
        if (generic && known[FENCED * everyone() + write.who] < write.clock)
            fault(
                place,
                "a product reads shared address base + %u, and no proxy fence since the write by warp %d, lane %d "
                "at\n%s  now:",
                grain * w, write.who / 32, write.who % 32, source_of(write.place).c_str());
        word.products += readers;
    }
}

[[noreturn]] void fault_read_by_product(unsigned offset, const char *what, Place place)
{
    const auto has = [&](const Words &words) { return std::count(words.begin(), words.end(), offset / grain) > 0; };
    for (const auto &p : products)
        for (int warp = 0; warp < 4; ++warp) {
            const bool reads = has(p->b_words) || has(p->a_words[warp]);
            if (!p->waited[warp] && reads)
                fault(
                    place,
                    "%s of shared address base + %u, which a product under way for warp %d reads, since\n%s  now:",
                    what, offset, 4 * p->group + warp, source_of(p->place).c_str());
        }
    fault(place, "%s of shared address base + %u, which a product under way reads", what, offset);
}

// ---- A start ----

static uint64_t value_of(const Operand &operand)
{
    uint64_t value = 0;
    memcpy(&value, operand.address, static_cast<size_t>(operand.bytes));
    return value;
}

__attribute__((noinline)) void execute_asm(const char *text, const Operand *outputs, int output_count,
                                           const Operand *inputs, int input_count, int line)
{
    static std::map<const char *, Instruction> known;
    const Place place = __builtin_return_address(0);
    auto found = known.find(text);
    if (found == known.end())
        found = known.emplace(text, parse(text)).first;
    const Instruction &it = found->second;
    if (!it.trouble.empty())
        fault(place, "an asm statement: %s", it.trouble.c_str());
    const auto input = [&](int number, const char *constraint) -> const Operand & {
        const int i = number - output_count;
        if (i < 0 || i >= input_count || strcmp(inputs[i].constraint, constraint) != 0 ||
            inputs[i].bytes != (constraint[0] == 'l' ? 8 : 4))
            fault(place, "an asm statement: operand %d is not \"%s\"", number, constraint);
        return inputs[i];
    };
    Brought &mine = brought[block.current];
    mine.instruction = &it;
    mine.line = line;
    mine.place = place;
    mine.sums.clear();
    if (output_count != it.n / 2)
        fault(place, "an asm statement: %d sums, n is %d", output_count, it.n);
    for (int i = 0; i < output_count; ++i) {
        if (strcmp(outputs[i].constraint, "+f") != 0)
            fault(place, "an asm statement: operand %d is not \"+f\"", i);
        mine.sums.push_back(static_cast<float *>(const_cast<void *>(outputs[i].address)));
    }
    if (it.a_in_registers)
        for (int i = 0; i < 4; ++i) {
            mine.factors[i] = static_cast<const unsigned *>(input(it.a + i, "r").address);
            mine.factor_values[i] = static_cast<unsigned>(value_of(input(it.a + i, "r")));
        }
    else
        mine.a = value_of(input(it.a, "l"));
    mine.b = value_of(input(it.b, "l"));
    mine.add = it.scale_operand >= 0 ? value_of(input(it.scale_operand, "r")) != 0 : it.scale;
    block.threads[block.current].line = line;
    block.threads[block.current].place = place;
    wait_in(State::AT_GROUP);
}

// The sums that the warpgroup's registers stand for: those of a product under way, or new ones.
static Sums *find_sums(int group, const Brought *all, const Instruction &it, bool add)
{
    for (const auto &sums : all_sums) {
        bool same = sums->n == it.n;
        for (int t = 0; same && t < 128; ++t)
            same = sums->registers[t] == all[t].sums;
        if (same)
            return sums.get();
    }
    auto made = std::make_unique<Sums>();
    made->n = it.n;
    made->values.assign(static_cast<size_t>(64) * it.n, 0.0f);
    for (int t = 0; t < 128; ++t) {
        Thread &thread = block.threads[128 * group + t];
        block.current = 128 * group + t;
        made->registers[t] = all[t].sums;
        for (int i = 0; i < it.n / 2; ++i) {
            Register *r = register_at(thread, all[t].sums[i]);
            if (!r)
                fault(all[t].place, "a sum of a product that is not a variable of the thread");
            if (r->sums == 1)
                fault(all[t].place, "a register that a product of another shape under way adds to");
            if (r->sums == 0 && r->touched == thread.fence)
                fault(all[t].place, "a product adds to a register that was touched since the last product fence");
            if (r->factors > 0)
                fault(all[t].place, "a product adds to a register that a product under way reads");
            r->sums = 1;
            if (add) {
                const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2),
                          column = i / 4 * 8 + t % 4 * 2 + i % 2;
                made->values[static_cast<size_t>(row) * it.n + column] = *all[t].sums[i];
            }
            *all[t].sums[i] = float_of_bits(0x7fbadbad);
        }
    }
    block.current = -1;
    all_sums.push_back(std::move(made));
    return all_sums.back().get();
}

static void check_same(int group, const Brought *all)
{
    const Brought &lead = all[0];
    for (int t = 0; t < 128; ++t) {
        const Brought &other = all[t];
        block.current = 128 * group + t;
        if (other.instruction != lead.instruction || other.line != lead.line)
            fault(other.place, "warp %d is at the product of line %d, another of its warpgroup at that of line %d",
                  4 * group, lead.line, other.line);
        if (other.a != lead.a || other.b != lead.b || other.add != lead.add)
            fault(other.place, "a product whose descriptors or flags differ between threads of the warpgroup");
        if (block.threads[block.current].fence == 0)
            fault(other.place, "a product before the thread's first product fence");
    }
    block.current = -1;
}

static void take_factors(int group, const Brought *all, Product *product)
{
    for (int t = 0; t < 128; ++t) {
        Thread &thread = block.threads[128 * group + t];
        block.current = 128 * group + t;
        for (int i = 0; i < 4; ++i) {
            Register *r = register_at(thread, all[t].factors[i]);
            product->factor_values.push_back(all[t].factor_values[i]);
            if (!r)
                continue; // a value that is no variable cannot change
            if (r->touched == thread.fence)
                fault(all[t].place, "a product reads a register that was touched since the last product fence");
            if (r->sums != 0)
                fault(all[t].place, "a product reads a register that a product under way adds to");
            ++r->factors;
            product->factors[t].push_back(all[t].factors[i]);
        }
    }
    block.current = -1;
}

void meet_for_product(int group)
{
    const Brought *all = &brought[static_cast<size_t>(128) * group];
    check_same(group, all);
    auto product = std::make_unique<Product>();
    const Instruction &it = *all[0].instruction;
    product->instruction = &it;
    product->group = group;
    product->add = all[0].add;
    product->line = all[0].line;
    product->place = all[0].place;
    product->sums = find_sums(group, all, it, product->add);
    for (int &users : product->sums->users)
        ++users;
    const int32_t *known = known_to_all(group);
    block.current = 128 * group;
    if (it.a_in_registers) {
        take_factors(group, all, product.get());
    } else {
        decode_matrix(all[0].a, it.a_transposed, 64, it.depth, &product->a, product->place);
        for (int warp = 0; warp < 4; ++warp) {
            const auto rows = static_cast<size_t>(16 * it.depth); // of a warp
            product->a_words[warp] = words_of(&product->a[static_cast<size_t>(warp) * rows], rows);
            start_reading(product->a_words[warp], 1, known, product->place);
        }
    }
    block.current = 128 * group;
    decode_matrix(all[0].b, it.b_transposed, it.n, it.depth, &product->b, product->place);
    product->b_words = words_of(product->b.data(), product->b.size());
    start_reading(product->b_words, 4, known, product->place);
    block.current = -1;
    products.push_back(std::move(product));
}

// ---- The arithmetic ----

static const float *values_of_all(bool bf16)
{
    static std::vector<float> tables[2];
    std::vector<float> &table = tables[bf16];
    if (table.empty())
        for (uint32_t bits = 0; bits < 1 << 16; ++bits)
            table.push_back(bf16 ? bf16_value(bits) : half_value(bits));
    return table.data();
}

// An element in shared memory. Of 32-bit numbers products see the upper 19 bits.
static float element_at(unsigned offset, const Instruction &it)
{
    if (it.tf32) {
        uint32_t bits;
        memcpy(&bits, &block.shared[offset], 4);
        return float_of_bits(bits & ~0x1fffu);
    }
    uint16_t bits;
    memcpy(&bits, &block.shared[offset], 2);
    return values_of_all(it.bf16)[bits];
}

// sums[64][n] += a[64][depth] * b[depth][n]; blocks of 8 columns, as compilers like them.
static void multiply_add(float *sums, const float *a, const float *b, int n, int depth, bool add)
{
    for (int row = 0; row < 64; ++row)
        for (int column = 0; column < n; column += 8) {
            float *out = sums + static_cast<ptrdiff_t>(row) * n + column, sum[8];
            for (int c = 0; c < 8; ++c)
                sum[c] = add ? out[c] : 0.0f;
            for (int k = 0; k < depth; ++k)
                for (int c = 0; c < 8; ++c)
                    sum[c] += a[depth * row + k] * b[static_cast<ptrdiff_t>(k) * n + column + c];
            for (int c = 0; c < 8; ++c)
                out[c] = sum[c];
        }
}

// The left matrix from the registers of the warpgroup's threads.
static void gather_factors(const Product &p, float *a)
{
    const Instruction &it = *p.instruction;
    const int each = it.tf32 ? 1 : 2; // elements of a register
    for (int t = 0; t < 128; ++t)
        for (int i = 0; i < 4; ++i)
            for (int e = 0; e < each; ++e) {
                const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i % 2),
                          k = it.depth / 2 * (i / 2) + t % 4 * each + e;
                const unsigned bits = p.factor_values[4 * t + i];
                a[it.depth * row + k] =
                    it.tf32 ? float_of_bits(bits & ~0x1fffu) : values_of_all(it.bf16)[bits >> (16 * e) & 0xffff];
            }
}

static void execute(Product &p)
{
    const Instruction &it = *p.instruction;
    const auto depth = static_cast<size_t>(it.depth);
    static std::vector<float> a, b;
    a.resize(64 * depth);
    b.resize(depth * static_cast<size_t>(it.n));
    if (it.a_in_registers) {
        gather_factors(p, a.data());
    } else {
        for (size_t i = 0; i < a.size(); ++i)
            a[i] = element_at(p.a[i], it);
    }
    for (int column = 0; column < it.n; ++column)
        for (int k = 0; k < it.depth; ++k)
            b[static_cast<size_t>(k) * it.n + column] =
                element_at(p.b[static_cast<size_t>(column) * depth + k], it);
    multiply_add(p.sums->values.data(), a.data(), b.data(), it.n, it.depth, p.add);
    p.done = true;
}

// The oldest of a warpgroup that is not done.
static Product *next_of(int group)
{
    for (const auto &p : products)
        if (p->group == group && !p->done)
            return p.get();
    return nullptr;
}

void run_some_product()
{
    if (products.empty())
        return;
    const int group = products[block.random() % products.size()]->group;
    if (Product *p = next_of(group))
        execute(*p);
}

// ---- Fences, groups, waits ----

void do_product_fence(int warp)
{
    for (int t = 32 * warp; t < 32 * (warp + 1); ++t)
        block.threads[t].fence = ++fences;
}

void do_product_commit(int warp)
{
    for (const auto &p : products)
        if (p->group == warp / 4 && p->in_group[warp % 4] == NOBODY)
            p->in_group[warp % 4] = warps[warp].groups;
    ++warps[warp].groups;
}

// Gives the warp its registers back when no product under way has them.
static void return_sums(int warp, Sums &sums)
{
    if (--sums.users[warp % 4] > 0)
        return;
    for (int t = 32 * (warp % 4); t < 32 * (warp % 4 + 1); ++t) {
        Thread &thread = block.threads[128 * (warp / 4) + t];
        for (int i = 0; i < sums.n / 2; ++i) {
            const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + t % 4 * 2 + i % 2;
            *sums.registers[t][i] = sums.values[static_cast<size_t>(row) * sums.n + column];
            Register *r = register_at(thread, sums.registers[t][i]);
            r->sums = 2;
            r->touched = thread.fence;
        }
    }
}

static void note_read_by_product(const Words &words, int thread, Place place)
{
    for (unsigned w : words) {
        --block.words[w].products;
        note_touch(block.words[w].reads, {thread, clock_of(thread, thread), place});
    }
}

static void finish(int warp, Product &p)
{
    while (!p.done)
        execute(*next_of(p.group));
    const int w = warp % 4;
    p.waited[w] = true;
    note_read_by_product(p.b_words, 32 * warp, p.place);
    if (!p.instruction->a_in_registers)
        note_read_by_product(p.a_words[w], 32 * warp, p.place);
    for (int t = 32 * w; t < 32 * (w + 1); ++t)
        for (const unsigned *factor : p.factors[t])
            --register_at(block.threads[128 * p.group + t], factor)->factors;
    return_sums(warp, *p.sums);
}

void do_product_wait(int warp)
{
    const int pending = block.threads[static_cast<size_t>(32) * warp].operands.number;
    for (const auto &p : products)
        if (p->group == warp / 4 && !p->waited[warp % 4] && p->in_group[warp % 4] != NOBODY &&
            p->in_group[warp % 4] < warps[warp].groups - pending)
            finish(warp, *p);
    // A product reads for all lanes of the warp.
    synchronise_reads(32 * warp, 32);
    const auto over = [](const std::unique_ptr<Product> &p) {
        return p->waited[0] && p->waited[1] && p->waited[2] && p->waited[3];
    };
    products.erase(std::remove_if(products.begin(), products.end(), over), products.end());
    const auto unused = [](const std::unique_ptr<Sums> &s) {
        return s->users[0] + s->users[1] + s->users[2] + s->users[3] == 0;
    };
    all_sums.erase(std::remove_if(all_sums.begin(), all_sums.end(), unused), all_sums.end());
}

void check_products_over(int thread)
{
    for (const auto &p : products)
        if (p->group == thread / 128 && !p->waited[thread % 128 / 32])
            fault(p->place, "the thread ends with this product under way");
}

} // namespace machine
