// The cases: which masks, shapes and inputs the kernels are run with.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "splat_internal.h"

namespace machine
{

enum class Layout { BHSD, BSHD };

// What is special about a case's inputs.
enum Trait : unsigned {
    PLAIN = 0,
    TOP_LEFT = 1,      // alignment of the masks
    BAD_VALUES = 2,    // NaN and inf in v, at keys that some rows may see and others not
    BAD_KEYS = 4,      // NaN in k, likewise
    NO_LSE = 8,        // lse is not wanted
    LARGE_SCORES = 16, // q is large: the softmax is close to a maximum
    GAPS = 32,         // rows of the tensors are further apart than they need be
    ONE_BAD_VALUE = 64, // NaN or inf at one place of v
    IN_PLACE = 128,     // softmax of rows: over what it is taken of
    RISING = 256,       // scores rise by 2^18 in weight every 70 keys
    LEAPING = 512       // or by more than an fp32 exponent holds
};

struct Case {
    const char *name;
    enum splat_arch arch;
    // One mask, or one for each head, or for each (batch, head), separated by ';'. A pattern expression, or "random
    // P": each pair with a probability of P percent, some rows with nothing.
    std::string masks;
    int q_len, kv_len;
    enum splat_dtype dtype;
    int head_dim, value_dim;
    int tile_rows, tile_cols;
    int batch, heads, kv_heads;
    Layout layout;
    unsigned traits;
    int views = 1; // as splat_options.layout: 1 is token order
    enum splat_op op = SPLAT_OP_ATTENTION;
};

const std::vector<Case> &all_cases();

// The case with so many more queries and keys; lists of documents begin with one more.
Case lengthened(const Case &given, int longer);

// The case of that name; ends the process when there is none.
const Case &case_named(const char *name);

} // namespace machine
