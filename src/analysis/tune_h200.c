/* NVIDIA H200 (sm_90a): the Hopper kernel, and the portable one for fine masks.
 *
 * Measured 2026-11-30 on an NVIDIA H200, driver 580.159.04, bf16, by bench/tile_rates.py
 * (bench/results/2026-11-30-h200-tiles*.json). partial_ns is the mean of a lower and an upper bound. Rows marked *
 * are scaled from their neighbours' rates and from whole runs at that shape, the row marked + from whole runs
 * alone (docs/kernels.md). copy_bytes_per_us: device copy, 4.26 TB/s, 2026-11-30. merge_ns: what
 * st_strided128 and axial128 took beyond the rest (bench/results/2026-11-30-h200-time-parts.json).
 */
#include "analysis/tune.h"

#define PORTABLE SP_FAMILY_PORTABLE
#define HOPPER   SP_FAMILY_HOPPER
#define ANY      SP_USE_ANY
#define AFFINE   SP_USE_AFFINE
#define FOLDED   SP_USE_FOLDED
#define UNFOLDED SP_USE_UNFOLDED

/* clang-format off */
static const struct sp_tune_row rows[] = {
    /* family   max rows cols warps blocks use        full  part- perio-  bits   row
                dim              per_sm            ns ial ns dic ns    ns    ns */
    {HOPPER,    64, 128, 192, 12,  1, AFFINE,        1640,   750,  2000,   950,   800}, /* * */
    {HOPPER,    64, 192, 128, 16,  1, AFFINE,        1480,   560,  1500,   700,  1000}, /* * */
    {HOPPER,    64, 128, 128, 12,  1, ANY,           1173,   490,  1403,   370,   796},
    {HOPPER,    64,  64, 128,  8,  2, ANY,           1220,   600,  1400,   450,   680},
    {HOPPER,    64,  64,  64,  8,  3, UNFOLDED,       965,   430,  1340,   430,  1000},
    {HOPPER,    64,  64,  64,  8,  2, FOLDED,         800,   320,   900,   230,   722}, /* * */
    {PORTABLE,  64, 128,  64,  4,  2, ANY,           1892,   544,  1379,   577,  3702},
    {PORTABLE,  64, 128,  32,  4,  2, ANY,           1097,   269,   644,   249,  3118},
    {PORTABLE,  64,  64,  32,  4,  3, ANY,            925,   256,   762,   301,  2698},
    {HOPPER,   128, 128, 160, 12,  1, AFFINE,        1900,   550,  1630,   400,  1200}, /* * */
    {HOPPER,   128, 128, 128, 12,  1, ANY,           1600,   560,  1304,   300,  1200}, /* * */
    {HOPPER,   128, 128,  64, 12,  1, ANY,            900,   340,  1117,   300,  1500},
    {HOPPER,   128,  64,  64,  8,  2, ANY,           1180,   200,  1100,   120,  1400}, /* + */
    {PORTABLE, 128, 128,  64,  4,  2, ANY,           3078,   510,  1274,   538,  5455},
    {PORTABLE, 128, 128,  32,  4,  2, ANY,           1690,   433,   879,   435,  5953},
    {PORTABLE, 128,  64,  32,  4,  3, ANY,           1594,   480,   793,   344,  4332},
    {HOPPER,   192, 128,  96, 12,  1, ANY,           1709,   800,  1062,   413,  4032},
    {HOPPER,   192, 128,  64, 12,  1, ANY,           1344,   690,   812,   356,  1883},
    {HOPPER,   256, 128,  64, 12,  1, ANY,           1624,   619,   875,   313,  4404},
    {PORTABLE, 256,  64,  64,  4,  1, ANY,           1733,   499,   663,   385,  3059},
    {PORTABLE, 256,  64,  32,  4,  2, ANY,           1988,   605,   894,   542,  5902},
    {PORTABLE, 256, 128,  32,  8,  1, ANY,           2314,   301,   868,   335,  5684},
};
/* clang-format on */

const struct sp_tune_table sp_tune_h200 = {
    .chip = "H200",
    .sm_count = 132,
    .copy_bytes_per_us = 4.26e+06,
    .launch_us = 4.0,
    .merge_ns = 700.0,
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};
