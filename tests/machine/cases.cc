// The table of cases: small sizes, so that all run in seconds; each tile shape, type, head dim, predicate and
// special circumstance at least once (run_cases checks that from the plans that come of them).
#include "cases.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace machine
{

constexpr auto SM80 = SPLAT_ARCH_SM80;
constexpr auto SM90 = SPLAT_ARCH_SM90A;
constexpr auto HALF = SPLAT_FP16;
constexpr auto BF16 = SPLAT_BF16;
constexpr auto BHSD = Layout::BHSD;
constexpr auto BSHD = Layout::BSHD;
constexpr auto SDDMM = SPLAT_OP_SDDMM;
constexpr auto SPMM = SPLAT_OP_SPMM;
constexpr auto SPMM_T = SPLAT_OP_SPMM_TRANSPOSED;
constexpr auto SOFTMAX = SPLAT_OP_SOFTMAX;

const std::vector<Case> &all_cases()
{
    // clang-format off
    static const std::vector<Case> cases = {
        // name            masks                                   q_len  kv_len type  D    D_v  tile      B  H  Hkv layout  traits
        // -- every shape of the tune tables
        {"full", SM80,           "full",                                  256,  256, BF16,  64,  64, 128, 128,  1, 1, 1, BHSD, PLAIN},
        {"causal", SM80,         "causal",                                257,  257, HALF,  64,  64, 128,  64,  1, 2, 1, BSHD, GAPS},
        {"window", SM80,         "window(40)",                            190,  190, BF16,  64,  64,  64,  64,  1, 2, 2, BHSD, LARGE_SCORES},
        {"wide-causal", SM80,    "causal",                                150,  170, BF16,  40,  40, 128,  32,  1, 2, 2, BSHD, BAD_VALUES},
        {"dilated", SM80,        "dilated(20, 3)",                        129,  129, HALF,   8,   8,  64,  32,  2, 2, 1, BSHD, GAPS},
        {"causal-128", SM80,     "causal & window(100, 0)",               200,  200, BF16, 128, 128, 128,  64,  1, 2, 1, BHSD, BAD_VALUES},
        {"random-128", SM80,     "random 30",                             140,  100, HALF, 128, 128, 128,  32,  1, 1, 1, BSHD, BAD_VALUES},
        {"sinks", SM80,          "causal & (window(50, 0) | cols(0, 4))", 130,  260, BF16,  72,  72,  64,  64,  1, 3, 1, BHSD, BAD_VALUES},
        {"documents", SM80,      "documents(30, 57, 9, 54)",              150,  150, HALF, 128,  72,  64,  32,  1, 2, 1, BSHD, NO_LSE},
        {"wide-head", SM80,      "causal",                                100,  100, BF16, 256, 256,  64,  64,  1, 1, 1, BHSD, LARGE_SCORES},
        {"head-192", SM80,       "strided(5)",                             70,  130, HALF, 192, 128,  64,  32,  1, 1, 1, BSHD, BAD_VALUES},
        {"eight-warps", SM80,    "window(30, 10)",                        140,  110, BF16, 256, 192, 128,  32,  1, 2, 2, BHSD, GAPS},
        // -- every predicate at both ends of the range of shapes
        {"all-predicates", SM80, "causal; ~causal; window(9); documents(33, 57, 40, 50); strided(3); random 20",
                                                                    180,  180, BF16,  64,  64, 128, 128,  1, 6, 2, BSHD, BAD_VALUES | GAPS},
        {"anticausal", SM80,     "~causal",                               128,  128, HALF,  72,  40,  64,  64,  1, 2, 2, BHSD, BAD_KEYS},
        {"periodic", SM80,       "causal & (window(20, 0) | strided(7))", 130,  200, BF16,  40,  64, 128,  32,  1, 1, 1, BHSD, BAD_KEYS | BAD_VALUES},
        {"random-8-256", SM80,   "random 60",                             100,  140, BF16,   8, 256,  64,  64,  1, 1, 1, BSHD, BAD_VALUES},
        // -- periods: of several columns; a stride that divides 8; a stride above the width of a tile
        {"comb", SM80,           "causal & comb(7, 3)",                   140,  200, HALF,  64,  64, 128,  64,  1, 1, 1, BSHD, BAD_VALUES},
        {"stride-4", SM80,       "dilated(30, 4)",                        150,  150, BF16,  64,  64,  64,  64,  1, 1, 1, BHSD, BAD_VALUES},
        {"long-period", SM80,    "strided(150)",                          330,  330, HALF, 128, 128,  64,  64,  1, 1, 1, BHSD, BAD_VALUES},
        // -- maps, empty rows, lengths that differ
        {"empty-head", SM80,     "causal; full - full; window(12)",       100,  100, BF16,  64,  64,  64,  32,  2, 3, 3, BHSD, BAD_VALUES},
        {"map-of-batches", SM80, "causal; full; full - full; random 10",   90,   70, HALF,  40,  40,  64,  32,  2, 2, 1, BSHD, TOP_LEFT},
        {"empty-rows", SM80,     "rows(10, 70) & window(20)",             150,  150, HALF,  64,  64, 128,  64,  1, 1, 1, BHSD, BAD_VALUES},
        {"more-queries", SM80,   "causal",                                190,   60, BF16,  64,  64,  64,  64,  1, 1, 1, BHSD, BAD_KEYS},
        {"one-query", SM80,      "full",                                    1,  300, BF16, 128, 128,  64,  64,  2, 4, 1, BSHD, GAPS},
        {"one-key", SM80,        "full",                                   65,    1, HALF,  64,  64,  64,  64,  1, 1, 1, BHSD, PLAIN},
        {"nothing", SM80,        "full - full",                            40,   40, BF16,  64,  64,  64,  64,  1, 1, 1, BHSD, BAD_VALUES},
        // -- views, and launches that merge
        {"residue",        SM80, "dilated(40, 3)",                  200,  200, HALF,  64,  64,  64,  64,  1, 2, 1, BSHD, BAD_VALUES, 3},
        {"comb-view",      SM80, "comb(16, 4)",                     130,  200, BF16,  40,  72,  64,  64,  1, 1, 1, BHSD, BAD_VALUES, 2},
        {"grid-view",      SM80, "grid(16, 5)",                     200,  200, HALF,  64,  64, 128,  64,  1, 1, 1, BHSD, GAPS, 5},
        {"cut-zone",       SM80, "grid(16, 5)",                     203,  221, BF16,  64,  64,  64,  64,  1, 1, 1, BSHD, BAD_VALUES, 5},
        {"launches",       SM80, "causal & (window(50, 0) | strided(16))",
                                                                    200,  200, BF16,  64,  64,  64,  64,  1, 2, 1, BSHD, BAD_VALUES, 3},
        {"launches-alone", SM80, "causal & (window(50, 0) | strided(16)); causal & (window(30, 0) | strided(16))",
                                                                    150,  150, HALF, 128, 128, 128,  64,  1, 2, 2, BHSD, NO_LSE, 3},
        // -- heads that share row tiles, row tiles in parts
        {"folded",         SM80, "causal",                            3,  500, BF16,  64,  64,  64,  64,  2, 6, 2, BSHD, BAD_VALUES},
        {"folded-parts",   SM80, "full",                              1,  300, HALF,   8,  40,  64,  32,  1,66, 1, BHSD, GAPS},
        {"split",          SM80, "window(20) | rows(0, 20) | cols(0, 9)",
                                                                    600,  600, HALF,  64,  72, 128,  64,  1, 1, 1, BHSD, BAD_VALUES},
        {"split-merge",    SM80, "window(30) | strided(2) | rows(0, 4)",
                                                                     70, 3000, BF16,   8,   8,  64,  64,  1, 1, 1, BSHD, BAD_VALUES, 3},
        // -- operators on values: every shape of their tables, every predicate, views, places of a row's first value
        {"sddmm",          SM80, "causal",                          257,  257, HALF,  64,  64, 128,  64,  1, 2, 1, BSHD, GAPS, 1, SDDMM},
        {"sddmm-all",      SM80, "causal; ~causal; window(9); documents(33, 57, 40, 50); strided(3); random 20",
                                                                    180,  180, BF16,  64,  64,  64,  64,  1, 6, 2, BSHD, BAD_KEYS | GAPS, 1, SDDMM},
        {"sddmm-narrow",   SM80, "full",                             70,  101, HALF,  40,  40,  64,  32,  2, 2, 2, BHSD, BAD_KEYS, 1, SDDMM},
        {"sddmm-128",      SM80, "causal & window(100, 0)",         200,  230, BF16, 128, 128, 128,  64,  1, 1, 1, BHSD, PLAIN, 1, SDDMM},
        {"sddmm-128-64",   SM80, "random 30",                       140,  180, HALF, 128, 128,  64,  64,  1, 1, 1, BSHD, PLAIN, 1, SDDMM},
        {"sddmm-72",       SM80, "rows(10, 70) & window(20)",       130,  130, BF16,  72,  72,  64,  32,  1, 1, 1, BSHD, PLAIN, 1, SDDMM},
        {"sddmm-256",      SM80, "causal",                          150,  150, HALF, 256, 256, 128,  64,  1, 1, 1, BHSD, PLAIN, 1, SDDMM},
        {"sddmm-256-64",   SM80, "~causal",                         100,  100, BF16, 256, 256,  64,  64,  1, 1, 1, BHSD, PLAIN, 1, SDDMM},
        {"sddmm-256-32",   SM80, "window(30)",                       70,   90, HALF, 192, 192,  64,  32,  1, 1, 1, BSHD, PLAIN, 1, SDDMM},
        {"sddmm-residue",  SM80, "dilated(40, 3)",                  200,  200, HALF,  64,  64,  64,  64,  1, 2, 1, BSHD, PLAIN, 3, SDDMM},
        {"sddmm-nothing",  SM80, "full - full",                      40,   40, BF16,  64,  64,  64,  64,  1, 1, 1, BHSD, PLAIN, 1, SDDMM},
        {"spmm",           SM80, "causal",                          257,  257, HALF,  64,  64, 128,  64,  1, 2, 1, BSHD, GAPS, 1, SPMM},
        {"spmm-all",       SM80, "causal; ~causal; window(9); documents(33, 57, 40, 50); strided(3); random 20",
                                                                    180,  180, BF16,  64,  64,  64,  64,  1, 6, 2, BSHD, BAD_VALUES | GAPS, 1, SPMM},
        {"spmm-narrow",    SM80, "full",                             70,  101, HALF,  40,  40,  64,  32,  2, 2, 2, BHSD, BAD_VALUES, 1, SPMM},
        {"spmm-128",       SM80, "causal & window(100, 0)",         200,  230, BF16, 128, 128, 128,  64,  1, 1, 1, BHSD, BAD_VALUES, 1, SPMM},
        {"spmm-128-64",    SM80, "random 30",                       140,  180, HALF, 128, 128,  64,  64,  1, 1, 1, BSHD, BAD_VALUES, 1, SPMM},
        {"spmm-72",        SM80, "rows(10, 70) & window(20)",       130,  130, BF16,  72,  72,  64,  32,  1, 1, 1, BSHD, BAD_VALUES, 1, SPMM},
        {"spmm-256",       SM80, "causal",                          150,  150, HALF, 256, 256, 128,  64,  1, 1, 1, BHSD, PLAIN, 1, SPMM},
        {"spmm-256-64",    SM80, "~causal",                         100,  100, BF16, 256, 256,  64,  64,  1, 1, 1, BHSD, BAD_VALUES, 1, SPMM},
        {"spmm-256-32",    SM80, "window(30)",                       70,   90, HALF, 192, 192,  64,  32,  1, 1, 1, BSHD, PLAIN, 1, SPMM},
        {"spmm-residue",   SM80, "dilated(40, 3)",                  200,  200, HALF,  64,  64,  64,  64,  1, 2, 1, BSHD, BAD_VALUES, 3, SPMM},
        {"spmm-nothing",   SM80, "full - full",                      40,   40, BF16,  64,  64,  64,  64,  1, 1, 1, BHSD, PLAIN, 1, SPMM},
        {"spmm-t",         SM80, "causal",                          257,  257, HALF,  64,  64, 128,  64,  1, 2, 2, BSHD, GAPS, 1, SPMM_T},
        {"spmm-t-all",     SM80, "causal; ~causal; window(9); documents(33, 57, 40, 50); strided(3); random 20",
                                                                    180,  180, BF16,  64,  64,  64,  64,  1, 6, 6, BSHD, BAD_VALUES | GAPS, 1, SPMM_T},
        {"spmm-t-narrow",  SM80, "full",                             70,  101, HALF,  40,  40,  64,  32,  2, 2, 2, BHSD, BAD_VALUES, 1, SPMM_T},
        {"spmm-t-128",     SM80, "causal & window(100, 0)",         200,  230, BF16, 128, 128, 128,  64,  1, 1, 1, BHSD, BAD_VALUES, 1, SPMM_T},
        {"spmm-t-128-64",  SM80, "random 30",                       180,  140, HALF, 128, 128,  64,  64,  1, 1, 1, BSHD, BAD_VALUES, 1, SPMM_T},
        {"spmm-t-72",      SM80, "rows(10, 70) & window(20)",       130,  130, BF16,  72,  72,  64,  32,  1, 1, 1, BSHD, BAD_VALUES, 1, SPMM_T},
        {"spmm-t-256",     SM80, "causal",                          150,  150, HALF, 256, 256, 128,  64,  1, 1, 1, BHSD, PLAIN, 1, SPMM_T},
        {"spmm-t-256-64",  SM80, "~causal",                         100,  100, BF16, 256, 256,  64,  64,  1, 1, 1, BHSD, BAD_VALUES, 1, SPMM_T},
        {"spmm-t-256-32",  SM80, "window(30)",                       70,   90, HALF, 192, 192,  64,  32,  1, 1, 1, BSHD, PLAIN, 1, SPMM_T},
        {"spmm-t-residue", SM80, "dilated(40, 3)",                  200,  200, HALF,  64,  64,  64,  64,  1, 2, 2, BSHD, BAD_VALUES, 3, SPMM_T},
        {"spmm-t-nothing", SM80, "full - full",                      40,   40, BF16,  64,  64,  64,  64,  1, 1, 1, BHSD, PLAIN, 1, SPMM_T},
        {"softmax",        SM80, "causal & window(100, 0); random 40", 130, 150, BF16, 8,   8,   0,   0,  2, 2, 2, BHSD, GAPS | BAD_VALUES, 1, SOFTMAX},
        {"softmax-long",   SM80, "causal & (window(2, 0) | rows(7, 9))", 20, 1500, HALF, 8, 8,   0,   0,  1, 1, 1, BSHD, LARGE_SCORES, 1, SOFTMAX},
        {"softmax-place",  SM80, "causal",                           90,   90, HALF,   8,   8,   0,   0,  1, 2, 2, BSHD, IN_PLACE | NO_LSE, 1, SOFTMAX},
        // -- Hopper kernels: every shape of the tune table
        {"h-full",         SM90, "full",                            140,  256, BF16,  64,  64, 128, 128,  1, 2, 1, BHSD, PLAIN},
        {"h-causal",       SM90, "causal",                          260,  260, HALF, 128, 128, 128, 128,  1, 2, 1, BSHD, GAPS},
        {"h-wide",         SM90, "causal",                          140,  390, HALF,  64,  64, 128, 192,  1, 1, 1, BSHD, BAD_VALUES},
        {"h-three",        SM90, "causal",                          390,  390, BF16,  64,  64, 192, 128,  1, 1, 1, BHSD, LARGE_SCORES},
        {"h-160",          SM90, "causal & window(200, 0)",         200,  330, BF16, 128, 128, 128, 160,  1, 2, 2, BHSD, GAPS},
        {"h-sinks",        SM90, "causal & (window(50, 0) | cols(0, 4))",
                                                                    130,  200, BF16, 128, 128, 128,  64,  1, 2, 1, BHSD, BAD_VALUES},
        {"h-192",          SM90, "strided(5)",                      140,  290, HALF, 192, 128, 128,  96,  1, 1, 1, BSHD, PLAIN},
        {"h-192-64",       SM90, "documents(60, 100, 40)",          200,  200, BF16, 192, 192, 128,  64,  1, 1, 1, BHSD, BAD_VALUES},
        {"h-256",          SM90, "causal & window(100, 0)",         200,  260, BF16, 256, 256, 128,  64,  1, 1, 1, BHSD, BAD_VALUES | GAPS},
        {"h-64-128",       SM90, "causal",                          150,  280, BF16,  64,  64,  64, 128,  1, 2, 1, BHSD, BAD_VALUES},
        {"h-64-64",        SM90, "causal & window(100, 0)",         200,  200, HALF,  64,  64,  64,  64,  1, 1, 1, BSHD, PLAIN},
        {"h-64-64-128",    SM90, "random 40",                       100,  200, BF16, 128, 128,  64,  64,  1, 2, 2, BHSD, BAD_VALUES},
        // -- every predicate
        {"h-predicates",   SM90, "causal; ~causal; window(9); documents(33, 57, 40, 50); strided(3); random 20",
                                                                    180,  180, BF16,  64,  64, 128, 128,  1, 6, 2, BSHD, BAD_VALUES | GAPS},
        {"h-anticausal",   SM90, "~causal",                         150,  256, HALF,  72,  40, 128, 128,  1, 2, 2, BHSD, BAD_KEYS},
        {"h-periodic",     SM90, "causal & (window(20, 0) | strided(7))",
                                                                    130,  200, BF16,  40,  72, 128, 128,  1, 1, 1, BHSD, BAD_KEYS | BAD_VALUES},
        {"h-random",       SM90, "random 40",                       140,  190, HALF,   8, 256, 128,  64,  1, 1, 1, BSHD, BAD_VALUES},
        {"h-comb",         SM90, "causal & comb(7, 3); dilated(30, 4); dilated(60, 3)",
                                                                    200,  200, HALF, 128, 128, 128,  64,  1, 3, 1, BSHD, NO_LSE},
        // -- maps, empty rows, lengths that differ
        {"h-empty-head",   SM90, "causal; full - full; window(12)", 150,  150, BF16,  64,  64, 128, 128,  2, 3, 3, BHSD, BAD_VALUES},
        {"h-of-batches",   SM90, "causal; full; full - full; random 10",
                                                                     90,   70, HALF,  40,   8, 128, 128,  2, 2, 1, BSHD, TOP_LEFT},
        {"h-empty-rows",   SM90, "rows(10, 120) & window(20)",      300,  300, HALF,  64,  64, 128, 128,  1, 1, 1, BHSD, BAD_VALUES},
        {"h-empty-256",    SM90, "rows(140, 200) & causal",         300,  300, HALF, 256, 256, 128,  64,  1, 1, 1, BHSD, PLAIN},
        {"h-more-queries", SM90, "causal",                          270,   90, BF16,  64,  64, 128, 128,  1, 1, 1, BHSD, BAD_KEYS},
        {"h-one-query",    SM90, "full",                              1,  300, BF16, 128, 128, 128,  64,  2, 4, 1, BSHD, GAPS},
        {"h-one-key",      SM90, "full",                            130,    1, HALF,  64,  64, 128, 128,  1, 1, 1, BHSD, PLAIN},
        {"h-nothing",      SM90, "full - full",                     140,   40, BF16,  64,  64, 128, 128,  1, 1, 1, BHSD, BAD_VALUES},
        // -- items in a row in one block: of one tile, of none, not finite, done again
        {"h-many",         SM90, "causal & window(40, 0)",          330,  330, BF16,  64,  64,  64,  64,  1, 3, 1, BHSD, BAD_VALUES},
        {"h-one-bad",      SM90, "window(40)",                      450,  450, HALF,  64,  64,  64, 128,  1, 2, 1, BHSD, ONE_BAD_VALUE},
        {"h-one-tile",     SM90, "strided(3)",                      650,   90, BF16,  64,  72, 128, 128,  1, 2, 1, BSHD, ONE_BAD_VALUE},
        {"h-between",      SM90, "causal; full - full; window(12); rows(64, 128) & causal",
                                                                    190,  190, HALF,  64,  64,  64,  64,  2, 4, 4, BHSD, BAD_VALUES},
        {"h-nothing-at-all", SM90, "full - full",                   300,   40, BF16,   8,   8,  64,  64,  1, 2, 1, BHSD, PLAIN},
        {"h-three-bad",    SM90, "causal & window(100, 0)",         390,  390, BF16,  64,  64, 192, 128,  1, 2, 1, BSHD, BAD_VALUES},
        // -- maxima that are kept: scores that rise, and that leap beyond fp32
        {"h-rising",       SM90, "causal & window(200, 0)",         330,  330, HALF,  64,  64,  64,  64,  1, 2, 1, BHSD, RISING},
        {"h-rising-128",   SM90, "full",                            140,  512, HALF, 128, 128, 128, 128,  1, 1, 1, BSHD, RISING},
        {"h-leaping",      SM90, "full",                            330,  320, HALF,  64,  64,  64,  64,  1, 2, 1, BHSD, LEAPING},
        {"h-leaping-merge", SM90, "causal & (window(90, 0) | strided(8))",
                                                                    330,  330, BF16,  64,  64,  64,  64,  1, 2, 2, BHSD, LEAPING, 3},
        // -- views, and launches that merge
        {"h-residue",      SM90, "dilated(60, 3)",                  301,  301, HALF,  64,  64,  64,  64,  1, 2, 1, BSHD, BAD_VALUES, 3},
        {"h-comb-view",    SM90, "comb(16, 4)",                     130,  300, BF16,  40,  72, 128, 128,  1, 1, 1, BHSD, BAD_VALUES, 2},
        {"h-grid-view",    SM90, "grid(16, 5)",                     200,  200, HALF, 128, 128,  64,  64,  1, 2, 1, BHSD, GAPS, 5},
        {"h-cut-zone",     SM90, "grid(16, 5) | window(3)",         203,  221, BF16,  64,  64,  64,  64,  1, 2, 2, BHSD, BAD_VALUES, 5},
        {"h-cut-rows",     SM90, "grid(16, 5) | rows(190, 200)",    205,  205, HALF, 128,  72, 128,  64,  1, 1, 1, BSHD, GAPS | BAD_KEYS, 5},
        {"h-launches",     SM90, "causal & (window(50, 0) | strided(16))",
                                                                    200,  200, BF16,  64,  64, 128, 128,  1, 2, 1, BSHD, BAD_VALUES, 3},
        {"h-merge-many",   SM90, "causal & (window(30, 0) | strided(8))",
                                                                    330,  330, HALF,  64,  24,  64,  64,  1, 3, 3, BHSD, BAD_VALUES, 3},
        {"h-merge-one",    SM90, "causal & (window(50, 0) | strided(16))",
                                                                    390,  390, BF16, 128, 128, 128,  64,  1, 2, 2, BSHD, ONE_BAD_VALUE, 3},
        {"h-alone",        SM90, "causal & (window(50, 0) | strided(16)); causal & (window(30, 0) | strided(16))",
                                                                    150,  150, HALF, 256, 256, 128,  64,  1, 2, 2, BHSD, NO_LSE, 3},
        // -- heads that share row tiles, row tiles in parts
        {"h-folded",       SM90, "causal",                           18,  700, BF16,  64,  64,  64,  64,  2, 6, 2, BSHD, BAD_VALUES},
        {"h-folded-128",   SM90, "causal & window(700, 0)",          17,  900, HALF, 128, 128, 128, 128,  1, 8, 2, BHSD, NO_LSE | BAD_VALUES},
        {"h-folded-parts", SM90, "full",                              1,  300, HALF,   8,  40,  64,  64,  1,66, 1, BHSD, GAPS},
        {"h-folded-comb",  SM90, "comb(16, 4)",                       5,  900, BF16,  64,  64,  64,  64,  2, 2, 1, BSHD, GAPS, 2},
        {"h-split",        SM90, "window(20) | rows(0, 20) | cols(0, 9)",
                                                                    600,  600, HALF,  64,  72,  64,  64,  1, 1, 1, BHSD, BAD_VALUES},
        {"h-split-256",    SM90, "window(20) | rows(0, 20)",        600,  600, BF16, 256, 256, 128,  64,  1, 1, 1, BHSD, NO_LSE | BAD_VALUES},
        {"h-split-merge",  SM90, "window(30) | strided(2) | rows(0, 4)",
                                                                     70, 4400, BF16,   8,   8,  64,  64,  1, 1, 1, BSHD, BAD_VALUES, 3},
    };
    // clang-format on
    return cases;
}

Case lengthened(const Case &given, int longer)
{
    Case made = given;
    made.q_len += longer;
    made.kv_len += longer;
    const std::string list = "documents(";
    for (size_t at = made.masks.find(list); longer && at != std::string::npos; at = made.masks.find(list, at + 1))
        made.masks.insert(at + list.size(), std::to_string(longer) + ", ");
    return made;
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
