/* Pools by hash and full comparison (pool.h). */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/pool.h"
#include "common/hash.h"

struct sp_pool_slot {
    uint32_t tag; /* low bits of the hash */
    int32_t item; /* number + 1; 0 = free */
};

static bool grow_items(struct sp_pool *pool)
{
    if (pool->count < pool->capacity)
        return true;
    int64_t capacity = pool->capacity ? pool->capacity + pool->capacity / 2 + 1 : 16;
    char *grown = realloc(pool->items, (size_t)capacity * pool->item_size);
    if (!grown)
        return false;
    pool->items = grown;
    pool->capacity = capacity;
    return true;
}

/* Keeps at least half of the slots free. */
static bool grow_slots(struct sp_pool *pool)
{
    if (2 * (pool->count + 1) <= pool->slot_count)
        return true;
    int64_t slot_count = pool->slot_count ? 2 * pool->slot_count : 64;
    struct sp_pool_slot *slots = calloc((size_t)slot_count, sizeof *slots);
    if (!slots)
        return false;
    for (int64_t old = 0; old < pool->slot_count; old++) {
        if (pool->slots[old].item == 0)
            continue;
        int64_t at = pool->slots[old].tag & (slot_count - 1);
        while (slots[at].item)
            at = (at + 1) & (slot_count - 1);
        slots[at] = pool->slots[old];
    }
    free(pool->slots);
    pool->slots = slots;
    pool->slot_count = slot_count;
    return true;
}

int64_t sp_pool_add(struct sp_pool *pool, const void *item)
{
    if (!grow_slots(pool))
        return -1;
    uint32_t tag = (uint32_t)sp_hash_bytes(item, pool->item_size).low;
    int64_t at = tag & (pool->slot_count - 1);
    for (; pool->slots[at].item; at = (at + 1) & (pool->slot_count - 1)) {
        int64_t number = pool->slots[at].item - 1;
        if (pool->slots[at].tag == tag &&
            memcmp(pool->items + (size_t)number * pool->item_size, item, pool->item_size) == 0)
            return number;
    }
    if (pool->count >= INT32_MAX - 1 || !grow_items(pool))
        return -1;
    memcpy(pool->items + (size_t)pool->count * pool->item_size, item, pool->item_size);
    pool->slots[at] = (struct sp_pool_slot){tag, (int32_t)pool->count + 1};
    return pool->count++;
}

void sp_pool_free(struct sp_pool *pool)
{
    free(pool->items);
    free(pool->slots);
    *pool = (struct sp_pool){.item_size = pool->item_size};
}
