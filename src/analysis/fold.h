/* Folding: the query heads of a group share row tiles.
 *
 * Query heads that read the same keys may stand in one row tile: row r of a folded mask is query r / fold of head
 * r % fold of its part of the group. Few queries before a long cache (decoding) then fill a tile that would be
 * mostly empty, and keys and values are read once for the group.
 */
#ifndef SP_FOLD_H
#define SP_FOLD_H

#include "acsr/mask.h"
#include "splat.h"

/* Heads that should share a row tile: a power of two, 1 when folding saves no row tile or does not suit the mask.
 */
int64_t sp_fold_for(const splat_mask *mask, const splat_options *options);

/* Parts of a group of `group` query heads, each of at most `fold` of them. */
static inline int64_t sp_fold_parts(int64_t group, int64_t fold)
{
    return (group + fold - 1) / fold;
}

/* The mask with every row `fold` times. SPLAT_NO_MEMORY. */
enum splat_status sp_fold_acsr(const splat_acsr *acsr, int64_t fold, splat_acsr **folded);

#endif
