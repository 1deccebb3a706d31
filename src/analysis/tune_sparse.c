/* The kernels of the operators on values: shapes for SDDMM (and for the softmax, which has no tiles) and for both SpMM, and a chip's rates.
 *
 * Derived, not measured: a tile of 64 x 64 moves 8 KB of values, which at the chip's copy rate is what a block slot
 * takes when all slots are busy; products at half the rate of the attention kernels; masking at 25 % for affine
 * predicates, 60 % for periodic ones and 40 % for tables and bits. Replace a row by measured numbers with date,
 * clock and driver.
 */
#include "analysis/tune.h"

#define PORTABLE SP_FAMILY_PORTABLE

/* clang-format off */
static const struct sp_tune_row sddmm_rows[] = {
    /* family   max rows cols warps blocks affine   full  part- perio-  bits   row
                dim              per_sm  only      ns ial ns dic ns    ns    ns */
    {PORTABLE,  64, 128,  64,  8,  3,    0,      1700,   425,  1020,   680,  1500},
    {PORTABLE,  64,  64,  64,  4,  4,    0,      1200,   300,   720,   480,  1200},
    {PORTABLE,  64,  64,  32,  4,  4,    0,       750,   190,   450,   300,  1200},
    {PORTABLE, 128, 128,  64,  4,  2,    0,      1900,   475,  1140,   760,  2000},
    {PORTABLE, 128,  64,  64,  4,  3,    0,      1500,   375,   900,   600,  1600},
    {PORTABLE, 128,  64,  32,  4,  3,    0,       950,   240,   570,   380,  1600},
    {PORTABLE, 256, 128,  64,  8,  1,    0,      2300,   575,  1380,   920,  3000},
    {PORTABLE, 256,  64,  64,  4,  1,    0,      1700,   425,  1020,   680,  2200},
    {PORTABLE, 256,  64,  32,  4,  2,    0,      1600,   400,   960,   640,  2200},
};
static const struct sp_tune_row spmm_rows[] = {
    {PORTABLE,  64, 128,  64,  4,  3,    0,      1950,   325,   780,   520,  1500},
    {PORTABLE,  64,  64,  64,  4,  4,    0,      1300,   325,   780,   520,  1200},
    {PORTABLE,  64,  64,  32,  4,  4,    0,       800,   200,   480,   320,  1200},
    {PORTABLE, 128, 128,  64,  4,  2,    0,      2000,   500,  1200,   800,  2000},
    {PORTABLE, 128,  64,  64,  4,  3,    0,      1600,   400,   960,   640,  1600},
    {PORTABLE, 128,  64,  32,  4,  3,    0,      1000,   250,   600,   400,  1600},
    {PORTABLE, 256, 128,  64,  8,  1,    0,      2400,   600,  1440,   960,  3000},
    {PORTABLE, 256,  64,  64,  4,  1,    0,      1800,   450,  1080,   720,  2200},
    {PORTABLE, 256,  64,  32,  4,  2,    0,      1700,   425,  1020,   680,  2200},
};
/* clang-format on */

#define TABLE(name, chip_name, sms, copy_rate, of_rows)                                                            \
    const struct sp_tune_table name = {                                                                            \
        .chip = chip_name,                                                                                         \
        .sm_count = sms,                                                                                           \
        .copy_bytes_per_us = copy_rate,                                                                            \
        .launch_us = 4.0,                                                                                          \
        .rows = of_rows,                                                                                           \
        .row_count = sizeof of_rows / sizeof *of_rows,                                                             \
    }
TABLE(sp_tune_sddmm_h200, "H200", 132, 4.26e+06, sddmm_rows);
TABLE(sp_tune_spmm_h200, "H200", 132, 4.26e+06, spmm_rows);
TABLE(sp_tune_sddmm_sm80, "A100", 108, 1.60e+06, sddmm_rows);
TABLE(sp_tune_spmm_sm80, "A100", 108, 1.60e+06, spmm_rows);
