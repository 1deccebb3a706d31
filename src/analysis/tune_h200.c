/* NVIDIA H200 (sm_90a): the Hopper kernel, and the portable one for fine masks.
 *
 * PORTABLE rows: measured 2026-11-30 on an NVIDIA H200, driver 580.159.04, bf16, by bench/tile_rates.py
 * (bench/results/2026-11-30-h200-tiles.json). partial_ns is the mean of a lower and an upper bound; a periodic predicate takes
 * about twice that. HOPPER rows: derived, not measured, from 600 TFLOP/s at D 128 and 480 at D 64.
 * copy_bytes_per_us: measured device copy, 4.26 TB/s, 2026-11-30.
 */
#include "analysis/tune.h"

#define PORTABLE SP_FAMILY_PORTABLE
#define HOPPER SP_FAMILY_HOPPER

/* clang-format off */
static const struct sp_tune_row rows[] = {
    /* family   max rows cols warps blocks   full partial  bits   row
                dim               per_sm     ns      ns    ns    ns */
    {HOPPER,     64, 128, 128, 12,  1,      1220,    250,  300,  1300},
    {PORTABLE,   64, 128, 128,  4,  2,      3502,    810,  875,  3547},
    {PORTABLE,   64, 128,  64,  4,  2,      1892,    544,  577,  3702},
    {PORTABLE,   64,  64,  64,  4,  3,      1558,    497,  630,  1893},
    {PORTABLE,   64, 128,  32,  4,  2,      1097,    269,  249,  3118},
    {PORTABLE,   64,  64,  32,  4,  3,       925,    256,  301,  2698},
    {HOPPER,    128, 128, 128, 12,  1,      1850,    300,  400,  1800},
    {HOPPER,    128, 128,  64, 12,  1,      1050,    180,  220,  1800},
    {PORTABLE,  128, 128,  64,  4,  2,      3078,    510,  538,  5455},
    {PORTABLE,  128, 128,  32,  4,  2,      1690,    433,  435,  5953},
    {PORTABLE,  128,  64,  64,  4,  2,      2086,    536,  464,  3366},
    {PORTABLE,  128,  64,  32,  4,  3,      1594,    480,  344,  4332},
    {HOPPER,    192, 128,  96, 12,  1,      2220,    250,  320,  3000},
    {HOPPER,    192, 128,  64, 12,  1,      1600,    180,  220,  3000},
    {HOPPER,    256, 128,  64, 12,  1,      2010,    180,  220,  4000},
    {PORTABLE,  256,  64,  64,  4,  1,      1733,    499,  385,  3059},
    {PORTABLE,  256,  64,  32,  4,  2,      1988,    605,  542,  5902},
    {PORTABLE,  256, 128,  32,  8,  1,      2314,    301,  335,  5684},
};
/* clang-format on */

const struct sp_tune_table sp_tune_h200 = {
    .chip = "H200",
    .sm_count = 132,
    .copy_bytes_per_us = 4.26e+06,
    .launch_us = 3.9,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};
