/* 128-bit content hashes (XXH3). */
#ifndef SP_HASH_H
#define SP_HASH_H

#include <stddef.h>
#include <stdint.h>

struct sp_hash {
    uint64_t low, high;
};

struct sp_hash sp_hash_bytes(const void *data, size_t size);
int sp_hash_equal(struct sp_hash a, struct sp_hash b);
void sp_hash_hex(struct sp_hash hash, char hex[33]);

#endif
