// Kronecker-sparse layers on the machine: a case is a layer with its activations, run forward and backward through
// the library's own calls and compared with a product in double precision.
#pragma once
#include <string>
#include <vector>

#include "splat_internal.h"

namespace machine
{

struct LayerCase {
    const char *name;
    std::vector<sp_kron> factors;
    int64_t n;
    enum splat_dtype dtype;
    int tf32;
    enum splat_layout layout;
    int gap;             // elements between rows of activations beyond the packed ones
    int bias;            // 1: with a bias
    int64_t expected;    // n that the cost model is told
    bool hopper = false; // forward by the Hopper kernel, and backward where there is one
};

// One edit of the text of a pass's kernel: the first `find` behind the first `after` becomes `replace`.
struct LayerMutant {
    const char *name, *of;
    enum sp_kron_pass pass;
    const char *after, *find, *replace;
    const char *by = "";
};

const std::vector<LayerCase> &layer_cases();
const std::vector<LayerMutant> &layer_mutants();

// Compiles the kernels, those of `mutant`'s pass changed by it, and runs the case with as many seeds; returns an
// exit code: 0 all right, 1 a difference, 2 the case or the mutant could not be made. Prints why.
int run_layer(const LayerCase &given, const LayerMutant *mutant, unsigned from, unsigned seeds);

} // namespace machine
