/* Choice: counts tiles for every layout and every shape of the tune table, predicts times, ranks. */
#ifndef SP_CHOOSE_H
#define SP_CHOOSE_H

#include <stdbool.h>

#include "acsr/acsr.h"
#include "analysis/plan.h"

/* The distinct masks of a plan, folded where heads share row tiles (fold.h), and how many (batch, head) pairs of
 * one launch use each; a head is then a part of a group. */
struct sp_mask_set {
    splat_acsr **acsr;
    int64_t *uses;
    int64_t count;
    int64_t q_len, kv_len; /* of the folded masks */
    int64_t heads, kv_heads;
    int64_t fold;
    bool owned; /* the ACSRs are the set's own */
};

struct sp_choice;
struct sp_layout;

/* Cost of a tile at the options' head dims against one at row->max_dim. A part of a tile grows with the head dims
 * (products, loads), a part does not (softmax, masking). */
double sp_dim_factor(const struct sp_tune_row *row, const splat_options *options);

/* Counts and predicts. `values` is the masks of the values, for operators on them (values.h). The sets must outlive
 * the choice. SPLAT_UNSUPPORTED when options force a shape that the table does not have or a layout that does not
 * suit the masks, SPLAT_NO_MEMORY. */
enum splat_status sp_choice_make(const struct sp_mask_set *set, const struct sp_mask_set *values,
                                 const splat_options *options, struct sp_choice **choice);

/* Fills the plan's candidates, tile shape, tune row and predicted time, and gives the layout taken, which the
 * choice owns. Shapes for affine predicates only count when `affine_rows`. SPLAT_UNSUPPORTED when no shape is left.
 */
enum splat_status sp_choice_take(struct sp_choice *choice, bool affine_rows, struct splat_plan *plan,
                                 const struct sp_layout **layout);

void sp_choice_free(struct sp_choice *choice);

#endif
