/* What the cache's files share: names, the entry format, the checked folder.
 *
 * An entry is one file, <32 hexadecimal digits of the key's XXH3-128>.splat, little-endian:
 *
 *     offset  bytes  what
 *          0      8  magic
 *          8      4  format version
 *         12      4  offset of the first part
 *         16     16  XXH3-128 of all that follows, low half first
 *         32   4*8   bytes of key, metadata, log, cubin: together the rest of the file
 *         64         key, metadata, log, cubin, without gaps or terminators
 *
 * Metadata: registers, shared bytes, spill bytes, whether a self-check was passed; 4 bytes each. A file that is
 * being written is called tmp-<pid>-<16 hexadecimal digits> until it is complete.
 */
#ifndef SP_CACHE_ENTRY_H
#define SP_CACHE_ENTRY_H

#include "runtime/cache.h"

enum {
    SP_ENTRY_FORMAT = 2, /* also in every key: other formats live under other names */
    SP_ENTRY_NAME = 40,  /* 32 digits, ".splat", NUL, rounded up */
    SP_ENTRY_MAX_BYTES = 256 << 20
};

enum sp_entry_state {
    SP_ENTRY_SOUND,
    SP_ENTRY_ABSENT,     /* or removed while it was looked at */
    SP_ENTRY_DAMAGED,    /* no reader will ever use it */
    SP_ENTRY_UNREADABLE, /* cannot be told now: no descriptors, a failing disk */
    SP_ENTRY_NO_MEMORY   /* sp_no_memory has been called */
};

/* Reads and checks the entry `file` of the folder. `key` NULL: its key must only fit its name. `image`, filled when
 * sound, may be NULL. *reason: what is wrong (DAMAGED, UNREADABLE), a part of a sentence, static or per thread.
 * `refresh`: a sound entry's time becomes now. */
enum sp_entry_state sp_entry_read(int folder, const char *file, const char *key, int refresh,
                                  struct sp_image *image, const char **reason);

/* Opens the cache's folder once it is known to be ours and closed to others. SPLAT_OK with *folder = -1 when it is
 * absent and not to be created; else SPLAT_IO with a sentence that says what to do. */
enum splat_status sp_cache_open_folder(const struct sp_cache *cache, int create, int *folder);

/* After a store: removes temporaries long forgotten and the least recently used entries beyond cache->max_bytes,
 * but never `keep`. What cannot be removed is logged. */
void sp_cache_evict(const struct sp_cache *cache, int folder, const char *keep);

#endif
