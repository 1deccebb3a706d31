/* The tune tables, one file a chip (struct sp_tune_table is in plan.h). A plan is made for one arch
 * and its tune_row is an index into that arch's table: resolve SPLAT_ARCH_AUTO first. */
#ifndef SP_TUNE_H
#define SP_TUNE_H

#include "analysis/plan.h"

extern const struct sp_tune_table sp_tune_h200;
extern const struct sp_tune_table sp_tune_sm80;
extern const struct sp_tune_table sp_tune_sddmm_h200, sp_tune_sddmm_sm80; /* and softmax */
extern const struct sp_tune_table sp_tune_spmm_h200, sp_tune_spmm_sm80;

#endif
