/* NVIDIA A100 80 GB (sm_80), portable kernel (mma.sync); serves every chip from Ampere on that has no table of its
 * own.
 *
 * Derived, not measured: from an assumed rate of the kernel at each shape (195 TFLOP/s at 128 x 64, D 128, bf16)
 * spread over 108 SMs x blocks_per_sm slots; masking at 12 % of a tile for an affine predicate, 40 % for a
 * periodic one and 22 % for a table or bitmask; a row tile's prologue and epilogue from its Q and O bytes at the
 * copy rate plus 1.5 us of latency; merge_ns as on an H200. Replace a row by measured numbers with date, clock and
 * driver.
 */
#include "analysis/tune.h"

#define PORTABLE SP_FAMILY_PORTABLE

/* clang-format off */
static const struct sp_tune_row rows[] = {
    /* family  max_dim rows cols warps blocks affine full partial periodic bits row, all in ns
                                      per_sm only */
    {PORTABLE,  64, 128, 128,  4,  1,  0,  2640,   317,  1056,   581,  4372},
    {PORTABLE,  64, 128,  64,  4,  2,  0,  2701,   324,  1080,   594,  6599},
    {PORTABLE,  64,  64,  64,  4,  3,  0,  2354,   283,   941,   518,  5406},
    {PORTABLE,  64, 128,  32,  4,  2,  0,  1659,   199,   663,   365,  6339},
    {PORTABLE,  64,  64,  32,  4,  3,  0,  1452,   174,   580,   319,  5181},
    {PORTABLE, 128, 128,  64,  4,  1,  0,  2323,   279,   929,   511,  6504},
    {PORTABLE, 128, 128,  32,  4,  2,  0,  2978,   357,  1191,   655, 11092},
    {PORTABLE, 128,  64,  64,  4,  2,  0,  2765,   332,  1106,   608,  6615},
    {PORTABLE, 128,  64,  32,  4,  2,  0,  1760,   211,   704,   387,  6364},
    {PORTABLE, 256,  64,  64,  4,  1,  0,  3226,   387,  1290,   710,  6730},
    {PORTABLE, 256,  64,  32,  4,  1,  0,  1873,   225,   749,   412,  6392},
    {PORTABLE, 256, 128,  32,  8,  1,  0,  3319,   398,  1327,   730, 11177},
};
/* clang-format on */

const struct sp_tune_table sp_tune_sm80 = {
    .chip = "A100",
    .sm_count = 108,
    .copy_bytes_per_us = 1.60e+06,
    .launch_us = 4.0,
    .merge_ns = 700.0,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};
