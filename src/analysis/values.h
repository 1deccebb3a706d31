/* What the operators on values (SDDMM, softmax, SpMM) add to a plan: where values are.
 *
 * A kernel walks a row tile's column tiles in ascending order of positions and counts the pairs of each row as it
 * goes, so that it needs no table but the offsets of rows. That asks of a layout that the positions of a row be in
 * the order of its columns. The product with A^T walks the transposed mask: a column of its tile is a row of A,
 * whose values in the tile lie together, and the plan says where.
 */
#ifndef SP_VALUES_H
#define SP_VALUES_H

#include "analysis/choose.h"
#include "analysis/layout.h"

/* Whether the values of a row can be found under a layout. `set` is the masks of the values, not transposed. */
bool sp_values_suit(const struct sp_layout *layout, const struct sp_mask_set *set, enum splat_op op);

/* The masks that the plan of an operator is made for: `set` itself, or those of A^T in *planned, which is to be
 * freed by sp_values_free. */
enum splat_status sp_values_masks(const struct sp_mask_set *set, enum splat_op op, struct sp_mask_set *planned);
void sp_values_free(const struct sp_mask_set *set, struct sp_mask_set *planned);

/* How many values distinct mask `mask` of an operator's plan has; and the most that any has. */
int64_t sp_mask_values(const struct splat_plan *plan, int64_t mask);
int64_t sp_most_values(const struct splat_plan *plan);

/* Fills the plan's row_offsets, and tile_values and first_tiles of a transposed one. */
enum splat_status sp_values_add(const struct sp_mask_set *set, enum splat_op op, struct splat_plan *plan);

#endif
