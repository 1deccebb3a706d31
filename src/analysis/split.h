/* Splitting: overlong row tiles in parts.
 *
 * A launch takes at least as long as its longest row tile. When that is long and there is too little other work to
 * fill the chip meanwhile (few heads, a global row, one query before a long cache), the column tiles of long row
 * tiles are dealt to parts that run side by side. Each part leaves an output and a log-sum-exp of its own in the
 * workspace; a second, small kernel combines them.
 */
#ifndef SP_SPLIT_H
#define SP_SPLIT_H

#include "analysis/choose.h"
#include "analysis/plan.h"

/* Whether plans for these masks and options may be split: not on the CPU, whose threads share rows otherwise, nor
 * when masks run together, whose row tiles must keep their numbers. */
bool sp_split_serves(const struct sp_mask_set *set, const splat_options *options);

/* What combining adds to a launch. */
double sp_split_cost_ns(const struct sp_tune_table *table);

/* The row tiles of a launch as if none were split; *split becomes how many are, *parts in how many parts. */
int64_t sp_split_count(const splat_plan *plan, const struct sp_pass *pass, int64_t *split, int64_t *parts);

/* Splits the row tiles of the plan's launches where that is predicted to pay. SPLAT_NO_MEMORY. */
enum splat_status sp_split_rows(struct splat_plan *plan, const splat_options *options,
                                const struct sp_mask_set *set);

#endif
