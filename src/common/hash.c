/* XXH3-128, compiled in: no library is needed at run time. */
#include "common/hash.h"

#include <stdio.h>

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
