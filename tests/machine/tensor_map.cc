// Tensor maps, and the bulk copies that they describe.
//
// A map's 128 bytes hold a mark and the number of the values that it was made from. A copy lands as a whole, at a
// random moment after its start; what it writes is known to whoever has waited for the phase of the barrier in
// which its bytes were counted. The layout in shared memory is the box, innermost coordinate first, without gaps;
// the swizzle permutes the 16-byte chunks of every 128, by address.
#include <algorithm>
#include <cstring>

#include "block.h"

namespace machine
{

namespace
{
struct Map {
    int rank, element_bytes, swizzle;
    const char *address;
    uint64_t dims[5], strides[5]; // strides in bytes; [0] is that of an element
    uint32_t box[5], steps[5];
    bool nan_fill;
};

struct BulkCopy {
    int number;
    const Map *map; // nullptr: the bytes follow each other
    const char *from;
    int at[5];
    unsigned to, bytes, barrier;
    int thread;
    Place place;
};
} // namespace

static const char MARK[] = "a map of this machine";
static std::vector<Map *> maps; // they live as long as the process
static std::vector<BulkCopy> copies;
static int started;

// ---- Maps ----

static int element_bytes_of(int type)
{
    static const int bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    return type >= 0 && type < static_cast<int>(sizeof bytes / sizeof *bytes) ? bytes[type] : 0;
}

constexpr int SWIZZLE_BYTES[] = {16, 32, 64, 128};

const char *encode_tensor_map(void *to, int type, uint32_t rank, const void *address, const uint64_t *dims,
                              const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                              int interleave, int swizzle, int, int fill)
{
    Map map = {};
    map.element_bytes = element_bytes_of(type);
    if (map.element_bytes == 0)
        return "the data type is not one that the machine knows";
    if (reinterpret_cast<uintptr_t>(to) % 64 != 0)
        return "the map must be aligned to 64 bytes";
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
        return "the tensor must be aligned to 16 bytes";
    if (rank < 1 || rank > 5)
        return "the rank must be 1 to 5";
    if (interleave != 0)
        return "interleaved layouts are not modelled";
    if (swizzle < 0 || swizzle > 3)
        return "the swizzle must be none, 32, 64 or 128 bytes";
    if (fill < 0 || fill > 1)
        return "the fill must be zero or NaN";
    map.rank = static_cast<int>(rank);
    map.address = static_cast<const char *>(address);
    map.swizzle = swizzle;
    map.nan_fill = fill == 1;
    for (uint32_t a = 0; a < rank; ++a) {
        map.dims[a] = dims[a];
        map.strides[a] = a == 0 ? static_cast<uint64_t>(map.element_bytes) : strides[a - 1];
        map.steps[a] = a == 0 ? 1 : element_strides[a]; // of the innermost axis it is ignored
        map.box[a] = box[a];
        if (dims[a] < 1 || dims[a] > static_cast<uint64_t>(1) << 32)
            return "a dimension must be 1 to 2^32";
        if (a > 0 && (map.strides[a] % 16 != 0 || map.strides[a] >= static_cast<uint64_t>(1) << 40))
            return "a stride must be a multiple of 16 bytes below 2^40";
        if (box[a] < 1 || box[a] > 256)
            return "a box has 1 to 256 elements along each axis";
        if (element_strides[a] < 1 || element_strides[a] > 8)
            return "an element stride is 1 to 8";
    }
    const uint64_t inner = static_cast<uint64_t>(box[0]) * static_cast<uint64_t>(map.element_bytes);
    if (inner % 16 != 0)
        return "the inner axis of the box must be a multiple of 16 bytes";
    if (swizzle != 0 && inner > static_cast<uint64_t>(SWIZZLE_BYTES[swizzle]))
        return "the inner axis of the box must not exceed the swizzle's span";
    if (swizzle != 0 && inner != static_cast<uint64_t>(SWIZZLE_BYTES[swizzle]))
        return "boxes narrower than the swizzle's span are not modelled";
    memset(to, 0, 128);
    memcpy(to, MARK, sizeof MARK);
    const size_t number = maps.size();
    memcpy(static_cast<char *>(to) + 64, &number, sizeof number);
    maps.push_back(new Map(map));
    return nullptr;
}

static const Map &map_at(const void *bytes, Place place)
{
    if (reinterpret_cast<uintptr_t>(bytes) % 64 != 0)
        fault(place, "a tensor map that is not aligned to 64 bytes");
    size_t number;
    memcpy(&number, static_cast<const char *>(bytes) + 64, sizeof number);
    if (memcmp(bytes, MARK, sizeof MARK) != 0 || number >= maps.size())
        fault(place, "these 128 bytes are no tensor map");
    return *maps[number];
}

__attribute__((noinline)) void prefetch_tensor_map(const void *map)
{
    map_at(map, __builtin_return_address(0));
}

// Elements along an axis of the box that are copied.
static unsigned count_along(const Map &map, int axis)
{
    return (map.box[axis] + map.steps[axis] - 1) / map.steps[axis];
}

static unsigned bytes_of(const Map &map)
{
    unsigned bytes = static_cast<unsigned>(map.element_bytes);
    for (int a = 0; a < map.rank; ++a)
        bytes *= count_along(map, a);
    return bytes;
}

// ---- Copies ----

void reset_bulk_copies()
{
    copies.clear();
    started = 0;
}

int bulk_copies()
{
    return static_cast<int>(copies.size());
}

std::string describe_bulk_copy(int number)
{
    for (const BulkCopy &c : copies)
        if (c.number == number)
            return "a bulk copy by warp " + std::to_string(c.thread / 32) + ", lane " +
                   std::to_string(c.thread % 32);
    return "a bulk copy";
}

static void start(const BulkCopy &copy, unsigned alignment)
{
    use_barrier(copy.barrier, "a bulk copy", copy.place);
    check_barrier_fenced(copy.barrier, copy.place);
    check_extent(copy.to, copy.bytes, alignment, "a bulk copy", copy.place);
    note_bulk_write(copy.to, copy.bytes, copy.number, copy.place);
    copies.push_back(copy);
}

__attribute__((noinline)) void copy_tensor(unsigned to, const void *bytes, unsigned barrier, const int *coordinates,
                                           int rank)
{
    const Place place = __builtin_return_address(0);
    const Map &map = map_at(bytes, place);
    if (map.rank != rank)
        fault(place, "a bulk copy of %d coordinates by a tensor map of rank %d", rank, map.rank);
    BulkCopy copy = {started++, &map, nullptr, {}, to, bytes_of(map), barrier, block.current, place};
    std::copy(coordinates, coordinates + rank, copy.at);
    start(copy, 128);
}

__attribute__((noinline)) void copy_bulk(unsigned to, const void *from, int bytes, unsigned barrier)
{
    const Place place = __builtin_return_address(0);
    if (bytes <= 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
        fault(place, "a bulk copy of %d bytes from %p; both must be multiples of 16", bytes, from);
    start({started++,
           nullptr,
           static_cast<const char *>(from),
           {},
           to,
           static_cast<unsigned>(bytes),
           barrier,
           block.current,
           place},
          16);
}

static unsigned swizzled(unsigned address, int swizzle)
{
    const unsigned bits = (1u << swizzle) - 1; // chunks that change places: 1, 2, 4, 8
    return address ^ (address >> 7 & bits) << 4;
}

// One line of the box along the innermost axis: what lies in the tensor is read, the rest filled.
static void land_line(const BulkCopy &copy, const char *line, bool inside, unsigned to)
{
    const Map &map = *copy.map;
    const int size = map.element_bytes, count = static_cast<int>(map.box[0]);
    static std::vector<char> bytes;
    bytes.resize(static_cast<size_t>(size) * map.box[0]);
    if (map.nan_fill)
        std::fill(bytes.begin(), bytes.end(), static_cast<char>(0xff));
    else
        std::fill(bytes.begin(), bytes.end(), 0);
    const int64_t begin = copy.at[0] < 0 ? -static_cast<int64_t>(copy.at[0]) : 0;
    const int64_t end = std::min<int64_t>(count, static_cast<int64_t>(map.dims[0]) - copy.at[0]);
    if (inside && begin < end) {
        const char *from = line + (copy.at[0] + begin) * size;
        check_load(from, static_cast<size_t>((end - begin) * size), false, copy.place);
        memcpy(&bytes[static_cast<size_t>(begin * size)], from, static_cast<size_t>((end - begin) * size));
    }
    for (unsigned chunk = 0; chunk < bytes.size(); chunk += 16)
        memcpy(&block.shared[swizzled(to + chunk, map.swizzle) - block.shared_begin], &bytes[chunk], 16);
}

static void land_box(const BulkCopy &copy)
{
    const Map &map = *copy.map;
    const unsigned line_bytes = static_cast<unsigned>(map.element_bytes) * map.box[0];
    unsigned counter[5] = {}, to = copy.to;
    for (;;) {
        const char *line = map.address;
        bool inside = true;
        for (int a = 1; a < map.rank; ++a) {
            const int64_t x = static_cast<int64_t>(copy.at[a]) + static_cast<int64_t>(counter[a]) * map.steps[a];
            inside &= x >= 0 && x < static_cast<int64_t>(map.dims[a]);
            line += x * static_cast<int64_t>(map.strides[a]);
        }
        land_line(copy, line, inside, to);
        to += line_bytes;
        int axis = 1;
        while (axis < map.rank && ++counter[axis] == count_along(map, axis))
            counter[axis++] = 0;
        if (axis >= map.rank)
            return;
    }
}

static void land(const BulkCopy &copy)
{
    if (copy.map) {
        land_box(copy);
    } else {
        check_load(copy.from, copy.bytes, false, copy.place);
        memcpy(&block.shared[copy.to - block.shared_begin], copy.from, copy.bytes);
    }
    const int number = barrier_number(copy.barrier);
    // The phase that these bytes count for.
    const Touch write = {block.thread_count + number, barrier_phase(number) + 1, copy.place};
    const unsigned offset = copy.to - block.shared_begin;
    for (unsigned w = offset / grain; w < (offset + copy.bytes) / grain; ++w) {
        block.words[w].bulk = NOBODY;
        block.words[w].written = true;
        block.words[w].write = write;
    }
    complete_bytes(copy.barrier, copy.bytes, copy.place);
}

bool land_bulk_copy()
{
    if (copies.empty())
        return false;
    const size_t which = block.random() % copies.size();
    const BulkCopy copy = copies[which];
    copies.erase(copies.begin() + static_cast<ptrdiff_t>(which));
    land(copy);
    return true;
}

} // namespace machine
