/* Images of this process, by the full key of their source. A key is BUILDING, READY or FAILED: the first thread
 * that asks for it builds it outside the lock, others wait. A key that failed is tried again by the next caller.
 * An image that was READY without a trial is BUILDING again while it has one; it stays where it is, for callers
 * have it, even when it does not pass. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "runtime/context.h"
#include "runtime/cubin.h"

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

/* What a call of sp_registry_image is about. */
struct request {
    const struct sp_source *source;
    enum splat_arch arch;
    int require_store;
    const struct sp_image_trial *trial; /* may be NULL */
    int hit;                            /* result: the image was on disk or in this process */
    int passed;                         /* result: the image has passed the trial */
    enum splat_status stored;           /* result: SPLAT_OK, or why the image is not on disk; the sentence stands */
};

static const char *image_fault(const struct request *request, const struct sp_registry_entry *entry)
{
    return sp_cubin_fault(entry->image.cubin, entry->image.cubin_bytes, sp_cubin_capability(request->arch),
                          request->source->entry);
}

/* Compiles into entry->image. */
static enum splat_status compile(splat_context *context, struct request *request, struct sp_registry_entry *entry)
{
    double start = sp_now_ms();
    request->hit = 0;
    enum splat_status status = sp_nvrtc_compile(request->source, request->arch, &entry->image);
    if (status != SPLAT_OK)
        return status;
    const char *fault = image_fault(request, entry);
    if (fault) {
        sp_image_free(&entry->image);
        return sp_fail(SPLAT_COMPILE, "the image that NVRTC made %s", fault);
    }
    char hex[33];
    sp_hash_hex(entry->name, hex);
    sp_log_message(&context->log, SPLAT_LOG_INFO, "compiled kernel %s in %.0f ms (%d registers, %d bytes spilled)",
                   hex, sp_now_ms() - start, entry->image.registers, entry->image.spill_bytes);
    return SPLAT_OK;
}

/* What was on disk is whole, and under the right key, yet not what that key is compiled to. */
static void refuse_stored(splat_context *context, struct request *request, struct sp_registry_entry *entry,
                          const char *why)
{
    char hex[33];
    sp_hash_hex(entry->name, hex);
    sp_log_message(&context->log, SPLAT_LOG_WARNING, "cache entry %s is not used: %s", hex, why);
    sp_image_free(&entry->image);
    request->hit = 0;
}

/* Puts an image that is new, or newly tried, into the disk cache if it can: one that cannot be stored still serves.
 */
static void store(splat_context *context, struct request *request, const struct sp_registry_entry *entry)
{
    if ((request->hit && !request->passed) || (context->cache.mode != SPLAT_CACHE_ON && !request->require_store))
        return;
    struct sp_image image = entry->image;
    image.checked |= request->passed;
    request->stored = sp_cache_store(&context->cache, entry->name, entry->key, &image);
    if (request->stored == SPLAT_OK || request->require_store)
        return;
    char hex[33];
    sp_hash_hex(entry->name, hex);
    sp_log_message(&context->log, SPLAT_LOG_WARNING, "kernel %s was not cached: %s", hex, splat_last_error());
}

/* From disk or NVRTC, into entry->image. */
static enum splat_status build(splat_context *context, struct request *request, struct sp_registry_entry *entry)
{
    enum splat_status status =
        sp_cache_load(&context->cache, entry->name, entry->key, &entry->image, &request->hit);
    const char *fault = request->hit ? image_fault(request, entry) : NULL;
    if (fault) {
        char why[200];
        snprintf(why, sizeof why, "its image %s", fault);
        refuse_stored(context, request, entry, why);
    }
    return status != SPLAT_OK || request->hit ? status : compile(context, request, entry);
}

static enum splat_status run_trial(splat_context *context, struct request *request, struct sp_registry_entry *entry)
{
    double start = sp_now_ms();
    enum splat_status status = request->trial->run(request->trial->user, &entry->image, &request->passed);
    if (status != SPLAT_OK || !request->passed)
        return status;
    char hex[33];
    sp_hash_hex(entry->name, hex);
    sp_log_message(&context->log, SPLAT_LOG_INFO,
                   "kernel %s gives the CPU's results: loaded and checked in %.1f ms", hex, sp_now_ms() - start);
    return SPLAT_OK;
}

/* An image for `entry` that has passed the request's trial if there is one, also on disk. `given_out`: there is one
 * already, which callers have. */
static enum splat_status make_ready(splat_context *context, struct request *request,
                                    struct sp_registry_entry *entry, int given_out)
{
    enum splat_status status = given_out ? SPLAT_OK : build(context, request, entry);
    if (status != SPLAT_OK)
        return status;
    if (request->trial && !entry->image.checked)
        status = run_trial(context, request, entry);
    if (status == SPLAT_COMPILE && request->hit && !given_out) {
        refuse_stored(context, request, entry, splat_last_error());
        status = compile(context, request, entry);
        if (status == SPLAT_OK)
            status = run_trial(context, request, entry);
    }
    if (status == SPLAT_OK)
        store(context, request, entry);
    else if (status == SPLAT_COMPILE && !given_out)
        sp_image_free(&entry->image);
    return status;
}

/* An image of this process may be missing on disk: it could not be stored, or was cleared or evicted since. */
static enum splat_status make_stored(splat_context *context, const struct sp_registry_entry *entry)
{
    pthread_mutex_lock(&context->lock);
    const struct sp_image image = entry->image; /* a trial may end meanwhile */
    pthread_mutex_unlock(&context->lock);
    struct sp_image copy = {0};
    int found = 0;
    enum splat_status status = sp_cache_load(&context->cache, entry->name, entry->key, &copy, &found);
    if (found)
        sp_image_free(&copy);
    if (status != SPLAT_OK || found)
        return status;
    return sp_cache_store(&context->cache, entry->name, entry->key, &image);
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

static void finish(splat_context *context, struct sp_registry_entry *entry, int passed, enum splat_status status)
{
    pthread_mutex_lock(&context->lock);
    free(entry->sentence);
    entry->sentence = status == SPLAT_OK ? NULL : strdup(splat_last_error());
    entry->status = status;
    entry->state = entry->image.cubin ? READY : FAILED; /* one that could not be tried may pass later */
    entry->image.checked |= passed;
    pthread_cond_broadcast(&context->built);
    pthread_mutex_unlock(&context->lock);
}

/* Finds or adds the entry of `key`, which it takes over, and waits while another thread builds it. *mine: the
 * caller is to build it, or, with a trial, to try what is there. */
static enum splat_status claim(splat_context *context, struct sp_hash name, char *key, int trial,
                               struct sp_registry_entry **claimed, int *mine)
{
    enum splat_status status = SPLAT_OK;
    int waited = 0;
    pthread_mutex_lock(&context->lock);
    struct sp_registry_entry *entry = find(context, name, key);
    for (; entry && entry->state == BUILDING; waited = 1)
        pthread_cond_wait(&context->built, &context->lock);
    *mine =
        !entry || (entry->state == FAILED && !waited) || (entry->state == READY && trial && !entry->image.checked);
    if (!entry && (entry = add(context, name, key))) {
        key = NULL;
    } else if (!entry) {
        status = sp_no_memory("a registry entry", sizeof *entry);
    } else if (*mine) {
        entry->state = BUILDING;
    } else if (entry->state == FAILED) {
        status = sp_fail(entry->status, "%s", entry->sentence ? entry->sentence : "the build failed");
    }
    pthread_mutex_unlock(&context->lock);
    free(key);
    *claimed = entry;
    return status;
}

enum splat_status sp_registry_image(splat_context *context, const struct sp_source *source, enum splat_arch arch,
                                    int require_store, const struct sp_image_trial *trial,
                                    const struct sp_image **image, struct sp_image_origin *origin)
{
    double start = sp_now_ms();
    struct request request = {source, arch, require_store, trial, .hit = 1, .stored = SPLAT_OK};
    struct sp_registry_entry *entry;
    struct sp_hash name;
    char *key;
    int version, mine;
    enum splat_status status = sp_nvrtc_version(&version);
    if (status == SPLAT_OK)
        status = sp_cache_key(source, arch, version, &key, &name);
    if (status != SPLAT_OK)
        return status;
    sp_hash_hex(name, origin->key);
    status = claim(context, name, key, trial != NULL, &entry, &mine);
    if (status == SPLAT_OK && mine) {
        status = make_ready(context, &request, entry, entry->image.cubin != NULL);
        finish(context, entry, request.passed, status);
    } else if (status == SPLAT_OK && require_store) {
        request.stored = make_stored(context, entry);
    }
    if (status == SPLAT_OK && require_store)
        status = request.stored;
    origin->hit = request.hit;
    origin->ms = sp_now_ms() - start;
    if (status == SPLAT_OK)
        *image = &entry->image;
    return status;
}
