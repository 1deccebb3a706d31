// Faults put into generated kernels on purpose, to see that the machine or the reference finds each.
#pragma once
#include <vector>

namespace machine
{

// One edit of a case's text: the first `find` behind the first `after` becomes `replace`.
struct Mutant {
    const char *name;
    const char *of; // the case
    const char *after;
    const char *find;
    const char *replace;
    const char *by = ""; // what the report must hold: the finder that is meant to find it
};

const std::vector<Mutant> &portable_mutants();
const std::vector<Mutant> &hopper_mutants();
const std::vector<Mutant> &sparse_mutants();

} // namespace machine
