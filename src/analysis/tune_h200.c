/* NVIDIA H200 (sm_90a), portable kernel (mma.sync).
 *
 * Derived, not measured: from an assumed rate of the kernel at each shape (340 TFLOP/s at 128 x 64, D 128, bf16;
 * less for smaller tiles and narrower heads) spread over 132 SMs x blocks_per_sm slots; masking at 12 % of a tile
 * for an affine predicate and 22 % for a table or bitmask; a row tile's prologue and epilogue from its Q and O
 * bytes at the copy rate plus 1.5 us of latency. Replace a row by measured numbers with date, clock and driver.
 * copy_bytes_per_us: measured device copy, 4.26 TB/s, 2026-11-30.
 */
#include "analysis/tune.h"

/* clang-format off */
static const struct sp_tune_row rows[] = {
    /* max_dim rows cols warps blocks   full   partial    bits     row
                            per_sm     ns        ns      ns      ns */
    {     64,  128,  128,    4,     2,   3972,     477,     874,    4524},
    {     64,  128,   64,    4,     2,   2035,     244,     448,    4040},
    {     64,   64,   64,    4,     3,   1850,     222,     407,    3486},
    {     64,  128,   32,    4,     2,   1313,     158,     289,    3859},
    {     64,   64,   32,    4,     3,   1174,     141,     258,    3317},
    {    128,  128,   64,    4,     2,   3257,     391,     716,    6376},
    {    128,  128,   32,    4,     2,   2171,     261,     478,    6104},
    {    128,   64,   64,    4,     2,   2035,     244,     448,    4040},
    {    128,   64,   32,    4,     3,   1970,     236,     433,    5038},
    {    256,   64,   64,    4,     1,   2326,     279,     512,    4112},
    {    256,   64,   32,    4,     2,   2626,     315,     578,    6218},
    {    256,  128,   32,    8,     1,   2326,     279,     512,    6143},
};
/* clang-format on */

const struct sp_tune_table sp_tune_h200 = {
    .chip = "H200",
    .sm_count = 132,
    .copy_bytes_per_us = 4.26e+06,
    .launch_us = 3.0,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};
