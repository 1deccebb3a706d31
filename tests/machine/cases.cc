// The table of cases: small sizes, so that all run in seconds; each tile shape, type, head dim, predicate and
// special circumstance at least once (run_cases checks that from the plans that come of them).
#include "cases.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace machine
{

constexpr auto HALF = SPLAT_FP16;
constexpr auto BF16 = SPLAT_BF16;
constexpr auto BHSD = Layout::BHSD;
constexpr auto BSHD = Layout::BSHD;

const std::vector<Case> &all_cases()
{
    // clang-format off
    static const std::vector<Case> cases = {
        // name            masks                                   q_len  kv_len type  D    D_v  tile      B  H  Hkv layout  traits
        // -- every shape of the tune tables
        {"full",           "full",                                  256,  256, BF16,  64,  64, 128, 128,  1, 1, 1, BHSD, PLAIN},
        {"causal",         "causal",                                257,  257, HALF,  64,  64, 128,  64,  1, 2, 1, BSHD, GAPS},
        {"window",         "window(40)",                            190,  190, BF16,  64,  64,  64,  64,  1, 2, 2, BHSD, LARGE_SCORES},
        {"wide-causal",    "causal",                                150,  170, BF16,  40,  40, 128,  32,  1, 2, 2, BSHD, BAD_VALUES},
        {"dilated",        "dilated(20, 3)",                        129,  129, HALF,   8,   8,  64,  32,  2, 2, 1, BSHD, GAPS},
        {"causal-128",     "causal & window(100, 0)",               200,  200, BF16, 128, 128, 128,  64,  1, 2, 1, BHSD, BAD_VALUES},
        {"random-128",     "random 30",                             140,  100, HALF, 128, 128, 128,  32,  1, 1, 1, BSHD, BAD_VALUES},
        {"sinks",          "causal & (window(50, 0) | cols(0, 4))", 130,  260, BF16,  72,  72,  64,  64,  1, 3, 1, BHSD, BAD_VALUES},
        {"documents",      "documents(30, 57, 9, 54)",              150,  150, HALF, 128,  72,  64,  32,  1, 2, 1, BSHD, NO_LSE},
        {"wide-head",      "causal",                                100,  100, BF16, 256, 256,  64,  64,  1, 1, 1, BHSD, LARGE_SCORES},
        {"head-192",       "strided(5)",                             70,  130, HALF, 192, 128,  64,  32,  1, 1, 1, BSHD, BAD_VALUES},
        {"eight-warps",    "window(30, 10)",                        140,  110, BF16, 256, 192, 128,  32,  1, 2, 2, BHSD, GAPS},
        // -- every predicate at both ends of the range of shapes
        {"all-predicates", "causal; ~causal; window(9); documents(33, 57, 40, 50); strided(3); random 20",
                                                                    180,  180, BF16,  64,  64, 128, 128,  1, 6, 2, BSHD, BAD_VALUES | GAPS},
        {"anticausal",     "~causal",                               128,  128, HALF,  72,  40,  64,  64,  1, 2, 2, BHSD, BAD_KEYS},
        {"periodic",       "causal & (window(20, 0) | strided(7))", 130,  200, BF16,  40,  64, 128,  32,  1, 1, 1, BHSD, BAD_KEYS | BAD_VALUES},
        {"random-8-256",   "random 60",                             100,  140, BF16,   8, 256,  64,  64,  1, 1, 1, BSHD, BAD_VALUES},
        // -- periods: of several columns; a stride that divides 8; a stride above the width of a tile
        {"comb",           "causal & comb(7, 3)",                   140,  200, HALF,  64,  64, 128,  64,  1, 1, 1, BSHD, BAD_VALUES},
        {"stride-4",       "dilated(30, 4)",                        150,  150, BF16,  64,  64,  64,  64,  1, 1, 1, BHSD, BAD_VALUES},
        {"long-period",    "strided(150)",                          330,  330, HALF, 128, 128,  64,  64,  1, 1, 1, BHSD, BAD_VALUES},
        // -- maps, empty rows, lengths that differ
        {"empty-head",     "causal; full - full; window(12)",       100,  100, BF16,  64,  64,  64,  32,  2, 3, 3, BHSD, BAD_VALUES},
        {"map-of-batches", "causal; full; full - full; random 10",   90,   70, HALF,  40,  40,  64,  32,  2, 2, 1, BSHD, TOP_LEFT},
        {"empty-rows",     "rows(10, 70) & window(20)",             150,  150, HALF,  64,  64, 128,  64,  1, 1, 1, BHSD, BAD_VALUES},
        {"more-queries",   "causal",                                190,   60, BF16,  64,  64,  64,  64,  1, 1, 1, BHSD, BAD_KEYS},
        {"one-query",      "full",                                    1,  300, BF16, 128, 128,  64,  64,  2, 4, 1, BSHD, GAPS},
        {"one-key",        "full",                                   65,    1, HALF,  64,  64,  64,  64,  1, 1, 1, BHSD, PLAIN},
        {"nothing",        "full - full",                            40,   40, BF16,  64,  64,  64,  64,  1, 1, 1, BHSD, BAD_VALUES},
    };
    // clang-format on
    return cases;
}

const Case &case_named(const char *name)
{
    for (const Case &one : all_cases())
        if (strcmp(one.name, name) == 0)
            return one;
    fprintf(stderr, "there is no case \"%s\"\n", name);
    exit(1);
}

} // namespace machine
