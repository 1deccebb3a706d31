/* Choice: counts tiles for every shape of the tune table, predicts times, ranks. */
#ifndef SP_CHOOSE_H
#define SP_CHOOSE_H

#include <stdbool.h>

#include "acsr/acsr.h"
#include "analysis/plan.h"

/* The distinct masks of a plan, and how many (batch, head) pairs of one launch use each. */
struct sp_mask_set {
    splat_acsr **acsr;
    int64_t *uses;
    int64_t count;
    int64_t q_len, kv_len;
};

/* Fills the plan's candidates, tile shape, tune row and predicted time. SPLAT_UNSUPPORTED when options force a
 * shape that the table does not have. */
enum splat_status sp_choose(const struct sp_mask_set *set, const splat_options *options, bool affine_rows,
                            struct splat_plan *plan);

#endif
