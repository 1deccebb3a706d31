/* XXH3-128, compiled in: no library is needed at run time. */
#include "common/hash.h"

#include <stdio.h>
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct sp_hash sp_hash_bytes(const void *data, size_t size)
{
    XXH128_hash_t hash = XXH3_128bits(data, size);
    return (struct sp_hash){hash.low64, hash.high64};
}

int sp_hash_equal(struct sp_hash a, struct sp_hash b)
{
    return a.low == b.low && a.high == b.high;
}

void sp_hash_hex(struct sp_hash hash, char hex[33])
{
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)hash.high, (unsigned long long)hash.low);
}

/* The place of a hash in the table, or the empty place that it would take. */
static int64_t place_of(const struct sp_hash_set *set, struct sp_hash hash)
{
    int64_t at = (int64_t)(hash.low & (uint64_t)(set->size - 1));
    while (set->table[at] && !sp_hash_equal(set->hashes[set->table[at] - 1], hash))
        at = (at + 1) & (set->size - 1);
    return at;
}

static bool grow(struct sp_hash_set *set)
{
    int64_t size = set->size ? 2 * set->size : 64;
    struct sp_hash *hashes = realloc(set->hashes, (size_t)size / 2 * sizeof *hashes);
    if (!hashes)
        return false;
    set->hashes = hashes;
    int32_t *table = calloc((size_t)size, sizeof *table);
    if (!table)
        return false;
    free(set->table);
    set->table = table;
    set->size = size;
    for (int64_t n = 0; n < set->count; n++)
        table[place_of(set, hashes[n])] = (int32_t)n + 1;
    return true;
}

int32_t sp_hash_set_add(struct sp_hash_set *set, struct sp_hash hash, bool *fresh)
{
    *fresh = false;
    if (2 * set->count == set->size && !grow(set)) /* half of the table stays empty */
        return -1;
    int64_t at = place_of(set, hash);
    if (!set->table[at]) {
        set->hashes[set->count] = hash;
        set->table[at] = (int32_t)++set->count;
        *fresh = true;
    }
    return set->table[at] - 1;
}

void sp_hash_set_free(struct sp_hash_set *set)
{
    free(set->hashes);
    free(set->table);
    *set = (struct sp_hash_set){0};
}
