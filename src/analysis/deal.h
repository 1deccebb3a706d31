/* Dealing work items to block slots, each to the one that is free first. */
#ifndef SP_DEAL_H
#define SP_DEAL_H

#include <stdint.h>

#include "splat.h"

/* Deals `count` items, item k of which takes ns[k], to `slots` slots; ties go to the lowest slot. First those that
 * take more than a quarter of a slot's share, for one that is begun late ends late; then the rest; both in order.
 * owner[k] becomes the slot of item k (owner may be NULL), *end_ns the time at which the last slot is free.
 * SPLAT_NO_MEMORY.
 */
enum splat_status sp_deal(const float *ns, int64_t count, int slots, int32_t *owner, double *end_ns);

#endif
