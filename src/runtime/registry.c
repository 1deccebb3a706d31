/* Images of this process, by the full key of their source. A key is BUILDING, READY or FAILED: the first thread
 * that asks for it builds it outside the lock, others wait. A key that failed is tried again by the next caller. */
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "runtime/context.h"

enum state { BUILDING, READY, FAILED };

struct sp_registry_entry {
    struct sp_registry_entry *next;
    struct sp_hash name;
    char *key;
    enum state state;
    struct sp_image image;
    enum splat_status status; /* of the failure */
    char *sentence;
};

void sp_registry_free(struct sp_registry_entry *entry)
{
    while (entry) {
        struct sp_registry_entry *next = entry->next;
        sp_image_free(&entry->image);
        free(entry->key);
        free(entry->sentence);
        free(entry);
        entry = next;
    }
}

static struct sp_registry_entry *find(splat_context *context, struct sp_hash name, const char *key)
{
    struct sp_registry_entry *entry = context->entries;
    while (entry && (!sp_hash_equal(entry->name, name) || strcmp(entry->key, key) != 0))
        entry = entry->next;
    return entry;
}

/* From disk or NVRTC, into entry->image. *hit tells which. */
static enum splat_status build(splat_context *context, const struct sp_source *source, enum splat_arch arch,
                               int require_store, struct sp_registry_entry *entry, int *hit)
{
    enum splat_status status = sp_cache_load(&context->cache, entry->name, entry->key, &entry->image, hit);
    if (status != SPLAT_OK || *hit)
        return status;
    double start = sp_now_ms();
    status = sp_nvrtc_compile(source, arch, &entry->image);
    if (status != SPLAT_OK)
        return status;
    char hex[33];
    sp_hash_hex(entry->name, hex);
    sp_log_message(&context->log, SPLAT_LOG_INFO, "compiled kernel %s in %.0f ms (%d registers, %d bytes spilled)",
                   hex, sp_now_ms() - start, entry->image.registers, entry->image.spill_bytes);
    if (context->cache.mode != SPLAT_CACHE_ON && !require_store)
        return SPLAT_OK;
    status = sp_cache_store(&context->cache, entry->name, entry->key, &entry->image);
    if (status == SPLAT_OK || require_store)
        return status;
    sp_log_message(&context->log, SPLAT_LOG_WARNING, "kernel %s was not cached: %s", hex, splat_last_error());
    return SPLAT_OK;
}

/* Takes over `key`. NULL without memory. */
static struct sp_registry_entry *add(splat_context *context, struct sp_hash name, char *key)
{
    struct sp_registry_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    entry->name = name;
    entry->key = key;
    entry->next = context->entries;
    context->entries = entry;
    return entry;
}

static enum splat_status finish(splat_context *context, struct sp_registry_entry *entry, enum splat_status status)
{
    pthread_mutex_lock(&context->lock);
    free(entry->sentence);
    entry->sentence = status == SPLAT_OK ? NULL : strdup(splat_last_error());
    entry->status = status;
    entry->state = status == SPLAT_OK ? READY : FAILED;
    if (status != SPLAT_OK)
        sp_image_free(&entry->image);
    pthread_cond_broadcast(&context->built);
    pthread_mutex_unlock(&context->lock);
    return status;
}

enum splat_status sp_registry_image(splat_context *context, const struct sp_source *source, enum splat_arch arch,
                                    int require_store, const struct sp_image **image,
                                    struct sp_image_origin *origin)
{
    double start = sp_now_ms();
    int version;
    char *key;
    struct sp_hash name;
    enum splat_status status = sp_nvrtc_version(&version);
    if (status == SPLAT_OK)
        status = sp_cache_key(source, arch, version, &key, &name);
    if (status != SPLAT_OK)
        return status;
    sp_hash_hex(name, origin->key);
    origin->hit = 1;

    pthread_mutex_lock(&context->lock);
    struct sp_registry_entry *entry = find(context, name, key);
    int waited = 0;
    while (entry && entry->state == BUILDING) {
        waited = 1;
        pthread_cond_wait(&context->built, &context->lock);
    }
    int mine = !entry || (entry->state == FAILED && !waited);
    if (entry) {
        free(key);
        if (mine)
            entry->state = BUILDING;
        else if (entry->state == FAILED)
            status = sp_fail(entry->status, "%s", entry->sentence ? entry->sentence : "the build failed");
    } else if (!(entry = add(context, name, key))) {
        free(key);
        mine = 0;
        status = sp_no_memory("a registry entry", sizeof *entry);
    }
    pthread_mutex_unlock(&context->lock);

    if (mine)
        status = finish(context, entry, build(context, source, arch, require_store, entry, &origin->hit));
    origin->ms = sp_now_ms() - start;
    if (status == SPLAT_OK)
        *image = &entry->image;
    return status;
}
