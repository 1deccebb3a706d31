/* The tune tables, one file a chip (struct sp_tune_table is in plan.h). All list the same shapes in the same order:
 * a plan made before the chip is known keeps its tune_row when the chip turns out to be another. */
#ifndef SP_TUNE_H
#define SP_TUNE_H

#include "analysis/plan.h"

extern const struct sp_tune_table sp_tune_h200;
extern const struct sp_tune_table sp_tune_sm80;

#endif
