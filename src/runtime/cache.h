/* The disk cache of compiled images: one self-contained file an entry. */
#ifndef SP_CACHE_H
#define SP_CACHE_H

#include <stdarg.h>

#include "common/hash.h"
#include "runtime/nvrtc.h"
#include "splat.h"

/* Receives one message (no newline). */
struct sp_log {
    splat_log_fn log; /* may be NULL */
    void *user;
};
void sp_log_message(const struct sp_log *log, enum splat_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

struct sp_cache {
    char *directory;            /* NULL when the cache is off */
    enum splat_cache_mode mode; /* ON, READ_ONLY or OFF, never ENV */
    int64_t max_bytes;
    struct sp_log log;
};

/* Resolves folder and mode from options and environment ($SPLAT_CACHE_DIR, $XDG_CACHE_HOME/splat, ~/.cache/splat;
 * $SPLAT_CACHE = on, ro or off). Touches nothing on disk. SPLAT_INVALID for an unknown mode, SPLAT_NO_MEMORY. */
enum splat_status sp_cache_init(struct sp_cache *cache, const splat_context_options *options);
void sp_cache_free(struct sp_cache *cache);

/* Resolves self_check of the options and $SPLAT_SELF_CHECK to 0 or 1. SPLAT_INVALID for an unknown value. */
enum splat_status sp_self_check_wanted(enum splat_self_check given, int *wanted);

/* Key of an entry: a text that holds the format version, NVRTC version, arch, options and the whole source; its
 * name is the XXH3-128 of that text. */
enum splat_status sp_cache_key(const struct sp_source *source, enum splat_arch arch, int nvrtc_version, char **key,
                               struct sp_hash *name);

/* Looks an entry up. *found = 0 for a miss, for whatever reason: an entry that is damaged, of another format or
 * another key is removed (unless read-only) and logged. On a hit its time is refreshed. Fails only without memory.
 */
enum splat_status sp_cache_load(const struct sp_cache *cache, struct sp_hash name, const char *key,
                                struct sp_image *image, int *found);

/* Writes an entry: temporary in the same folder, fsync, rename; then removes the least recently used entries beyond
 * max_bytes. Creates the folder with mode 0700. SPLAT_IO with a sentence when it cannot (the caller may log that
 * and go on); SPLAT_UNSUPPORTED when the cache is off or read-only. */
enum splat_status sp_cache_store(const struct sp_cache *cache, struct sp_hash name, const char *key,
                                 const struct sp_image *image);

/* The public calls of the same names, on a cache. */
enum splat_status sp_cache_stat(const struct sp_cache *cache, splat_cache_info *info);
enum splat_status sp_cache_verify(const struct sp_cache *cache, splat_cache_info *info);
enum splat_status sp_cache_prune(const struct sp_cache *cache, int64_t max_bytes, splat_cache_info *info);
enum splat_status sp_cache_clear(const struct sp_cache *cache, splat_cache_info *info);

#endif
