// What the runs of problem.cc and sparse_problem.cc share: tensors between NaN, sentences, sound calls.
#pragma once
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cases.h"
#include "numbers.h"

namespace machine
{

inline void need(enum splat_status status, const Case &given)
{
    if (status == SPLAT_OK)
        return;
    fprintf(stderr, "case %s: %s: %s\n", given.name, splat_status_name(status), splat_last_error());
    exit(1);
}

struct Tensor {
    std::vector<uint16_t> data;
    bool bf16;
    int heads, rows, dim;
    int64_t batch, head, row; // strides in elements

    int64_t at(int b, int h, int i, int d) const
    {
        return b * batch + h * head + i * row + d;
    }
    double operator()(int b, int h, int i, int d) const
    {
        const uint16_t bits = data[static_cast<size_t>(at(b, h, i, d))];
        return bf16 ? bf16_value(bits) : half_value(bits);
    }
    void set(int b, int h, int i, int d, float value)
    {
        data[static_cast<size_t>(at(b, h, i, d))] = bf16 ? bf16_of(value) : half_of(value);
    }
    // Bytes from the first element to the last.
    size_t extent(int batches) const
    {
        return 2 * static_cast<size_t>(at(batches - 1, heads - 1, rows - 1, dim - 1) + 1);
    }
};

constexpr uint16_t UNTOUCHED = 0x5a5a;
constexpr float UNTOUCHED_LSE = 12345.0f;
constexpr size_t GUARD = 4096; // elements behind each tensor that belong to no buffer

// Holds NaN everywhere, gaps between the rows included.
inline Tensor make_tensor(const Case &given, int heads, int rows, int dim)
{
    Tensor t{{}, given.dtype == SPLAT_BF16, heads, rows, dim, 0, 0, 0};
    const int64_t pitch = dim + (given.traits & GAPS ? 8 : 0);
    t.row = given.layout == Layout::BHSD ? pitch : pitch * heads;
    t.head = given.layout == Layout::BHSD ? pitch * rows : pitch;
    t.batch = pitch * rows * heads + (given.traits & GAPS ? 16 : 0);
    t.data.assign(static_cast<size_t>(t.batch * given.batch) + GUARD, t.bf16 ? 0x7fc1 : 0x7e01);
    return t;
}

inline splat_tensor tensor_of(Tensor &t)
{
    splat_tensor made = {};
    made.data = t.data.data();
    made.row_stride = t.row, made.head_stride = t.head, made.batch_stride = t.batch;
    return made;
}

inline std::string say(const char *format, ...) __attribute__((format(printf, 1, 2)));
inline std::string say(const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

// Whether two numbers are NaN, or the same infinity, or both finite.
inline bool same_kind(double got, double want)
{
    if (std::isnan(want) || std::isnan(got))
        return std::isnan(want) && std::isnan(got);
    return std::isinf(want) || std::isinf(got) ? got == want : true;
}

// The tables of a plan become buffers that may be read.
void add_inputs(const splat_plan &p);

} // namespace machine
