/* 128-bit content hashes (XXH3), and sets of them. */
#ifndef SP_HASH_H
#define SP_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sp_hash {
    uint64_t low, high;
};

struct sp_hash sp_hash_bytes(const void *data, size_t size);
int sp_hash_equal(struct sp_hash a, struct sp_hash b);
void sp_hash_hex(struct sp_hash hash, char hex[33]);

/* Distinct hashes, numbered from 0 in the order of their first appearance. All zero: empty. */
struct sp_hash_set {
    struct sp_hash *hashes;
    int32_t *table; /* open addressing: 1 + number */
    int64_t count, size;
};

/* The number of a hash, which is added when it is new (*fresh). -1 without memory. */
int32_t sp_hash_set_add(struct sp_hash_set *set, struct sp_hash hash, bool *fresh);
void sp_hash_set_free(struct sp_hash_set *set);

#endif
