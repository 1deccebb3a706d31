/* A pool of equal-sized items in which equal items are stored once. */
#ifndef SP_POOL_H
#define SP_POOL_H

#include <stddef.h>
#include <stdint.h>

struct sp_pool {
    char *items;
    size_t item_size;
    int64_t count, capacity;
    struct sp_pool_slot *slots; /* open addressing, a power of two of them */
    int64_t slot_count;
};

/* The number of the item equal to `item`, added when it is new; -1 when memory or the 2^31 numbers ran out. */
int64_t sp_pool_add(struct sp_pool *pool, const void *item);
void sp_pool_free(struct sp_pool *pool);

#endif
