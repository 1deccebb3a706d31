/* The disk cache as a whole: counting, checking, bounding and emptying it.
 *
 * Only names of entries and of temporaries are ever touched; other files in the folder stay and are not counted.
 * Other processes may store and remove meanwhile: what has gone when its turn comes was removed by somebody else.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/error.h"
#include "runtime/cache_entry.h"

enum {
    FORGOTTEN = 600, /* seconds after which nobody is still writing a temporary */
    CLOCK_SLACK = 2  /* seconds a file server's clock may be ahead before a time is taken for wrong */
};

/* ---- What is in the folder ---- */

struct item {
    char name[SP_ENTRY_NAME];
    int64_t bytes;
    struct timespec used;
    int temporary, pid, regular, gone;
};

struct listing {
    struct item *items;
    size_t count, capacity;
    struct timespec now; /* taken when the list was complete */
};

static size_t hex_digits(const char *text)
{
    return strspn(text, "0123456789abcdef");
}

static int is_entry_name(const char *name)
{
    return hex_digits(name) == 32 && strcmp(name + 32, ".splat") == 0;
}

/* tmp-<pid>-<16 digits>; *pid is the writer's, 0 when it is no process id of this system. */
static int is_temporary_name(const char *name, int *pid)
{
    if (strncmp(name, "tmp-", 4) != 0)
        return 0;
    size_t digits = strspn(name + 4, "0123456789");
    const char *rest = name + 4 + digits;
    if (digits < 1 || digits > 10 || *rest != '-' || hex_digits(rest + 1) != 16 || rest[17])
        return 0;
    long long value = strtoll(name + 4, NULL, 10);
    *pid = value <= INT32_MAX ? (int)value : 0;
    return 1;
}

static enum splat_status add_item(struct listing *list, int folder, const char *name)
{
    struct item item = {0};
    struct stat info;
    item.temporary = is_temporary_name(name, &item.pid);
    if ((!item.temporary && !is_entry_name(name)) || fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return SPLAT_OK;
    memcpy(item.name, name, strlen(name) + 1); /* names of both kinds have at most 38 characters */
    item.bytes = info.st_size;
    item.used = info.st_mtim;
    item.regular = S_ISREG(info.st_mode);
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        struct item *items = realloc(list->items, capacity * sizeof *items);
        if (!items)
            return sp_no_memory("the list of cache entries", capacity * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return SPLAT_OK;
}

static enum splat_status list_folder(const struct sp_cache *cache, int folder, struct listing *list)
{
    *list = (struct listing){0};
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = copy < 0 ? NULL : fdopendir(copy);
    if (!stream) {
        int error = errno;
        if (copy >= 0)
            close(copy);
        return sp_fail(SPLAT_IO, "cache folder %s cannot be listed: %s", cache->directory, strerror(error));
    }
    enum splat_status status = SPLAT_OK;
    struct dirent *next = NULL;
    do {
        errno = 0;
        next = readdir(stream);
        if (next)
            status = add_item(list, folder, next->d_name);
        else if (errno)
            status = sp_fail(SPLAT_IO, "cache folder %s cannot be listed: %s", cache->directory, strerror(errno));
    } while (next && status == SPLAT_OK);
    closedir(stream);
    clock_gettime(CLOCK_REALTIME, &list->now);
    if (status != SPLAT_OK) {
        free(list->items);
        *list = (struct listing){0};
    }
    return status;
}

/* ---- Removing ---- */

struct removal {
    int64_t removed, failed;
    int error; /* of the last failure */
};

static void remove_item(int folder, struct item *item, struct removal *done)
{
    if (unlinkat(folder, item->name, 0) == 0) {
        done->removed++;
        item->gone = 1;
    } else if (errno == ENOENT) {
        item->gone = 1;
    } else {
        done->failed++;
        done->error = errno;
    }
}

static enum splat_status removal_status(const struct sp_cache *cache, const struct removal *done)
{
    if (!done->failed)
        return SPLAT_OK;
    return sp_fail(SPLAT_IO, "%lld of the files in cache folder %s cannot be removed: %s", (long long)done->failed,
                   cache->directory, strerror(done->error));
}

static int is_forgotten(const struct item *item, const struct listing *list)
{
    int64_t age = (int64_t)list->now.tv_sec - (int64_t)item->used.tv_sec;
    return age > FORGOTTEN || age < -FORGOTTEN;
}

static int writer_is_dead(const struct item *item)
{
    return item->pid <= 0 || (kill(item->pid, 0) != 0 && errno == ESRCH);
}

/* Times ahead of the clock say nothing about use: such entries go first, as the oldest. */
static void distrust_future(struct listing *list)
{
    for (size_t k = 0; k < list->count; k++)
        if (list->items[k].used.tv_sec > list->now.tv_sec + CLOCK_SLACK)
            list->items[k].used = (struct timespec){INT64_MIN, 0};
}

static int by_use(const void *left, const void *right)
{
    const struct item *a = left, *b = right;
    if (a->used.tv_sec != b->used.tv_sec)
        return a->used.tv_sec < b->used.tv_sec ? -1 : 1;
    if (a->used.tv_nsec != b->used.tv_nsec)
        return a->used.tv_nsec < b->used.tv_nsec ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Removes the least recently used until the rest has at most max_bytes; `keep` (may be NULL) stays. */
static void shrink(int folder, struct listing *list, int64_t max_bytes, const char *keep, struct removal *done)
{
    int64_t total = 0;
    for (size_t k = 0; k < list->count; k++)
        if (!list->items[k].temporary && list->items[k].regular && !list->items[k].gone)
            total += list->items[k].bytes;
    if (total <= max_bytes || !list->count)
        return;
    distrust_future(list);
    qsort(list->items, list->count, sizeof *list->items, by_use);
    for (size_t k = 0; k < list->count && total > max_bytes; k++) {
        struct item *item = &list->items[k];
        if (item->temporary || !item->regular || item->gone || (keep && strcmp(item->name, keep) == 0))
            continue;
        remove_item(folder, item, done);
        if (item->gone)
            total -= item->bytes;
    }
}

void sp_cache_evict(const struct sp_cache *cache, int folder, const char *keep)
{
    struct listing list;
    struct removal done = {0};
    enum splat_status status = list_folder(cache, folder, &list);
    if (status == SPLAT_OK) {
        /* Not those of dead writers: a process of another container looks dead from here. Prune takes them. */
        for (size_t k = 0; k < list.count; k++)
            if (list.items[k].temporary && is_forgotten(&list.items[k], &list))
                remove_item(folder, &list.items[k], &done);
        shrink(folder, &list, cache->max_bytes, keep, &done);
        status = removal_status(cache, &done);
        free(list.items);
    }
    if (status != SPLAT_OK)
        sp_log_message(&cache->log, SPLAT_LOG_WARNING, "the disk cache may outgrow its limit of %lld bytes: %s",
                       (long long)cache->max_bytes, splat_last_error());
}

/* ---- The public calls ---- */

static enum splat_status begin(const struct sp_cache *cache, splat_cache_info *info, int *folder,
                               struct listing *list)
{
    *list = (struct listing){0};
    info->entries = info->bytes = info->damaged = info->removed = 0;
    snprintf(info->directory, sizeof info->directory, "%s", cache->directory ? cache->directory : "");
    enum splat_status status = sp_cache_open_folder(cache, 0, folder);
    if (status != SPLAT_OK || *folder < 0)
        return status;
    status = list_folder(cache, *folder, list);
    if (status != SPLAT_OK) {
        close(*folder);
        *folder = -1;
    }
    return status;
}

/* Counts what is left. */
static void end(const struct listing *list, int folder, splat_cache_info *info)
{
    for (size_t k = 0; k < list->count; k++) {
        const struct item *item = &list->items[k];
        if (item->temporary || item->gone || !item->regular)
            continue;
        info->entries++;
        info->bytes += item->bytes;
    }
    free(list->items);
    if (folder >= 0)
        close(folder);
}

static enum splat_status must_not_be_read_only(const struct sp_cache *cache, const char *call)
{
    if (cache->mode != SPLAT_CACHE_READ_ONLY)
        return SPLAT_OK;
    return sp_fail(SPLAT_UNSUPPORTED, "the disk cache is read-only; to %s it, the mode must be on or off", call);
}

enum splat_status sp_cache_stat(const struct sp_cache *cache, splat_cache_info *info)
{
    struct listing list;
    int folder;
    enum splat_status status = begin(cache, info, &folder, &list);
    if (status == SPLAT_OK)
        end(&list, folder, info);
    return status;
}

/* Reads every entry. Damaged ones are said in the log, counted, and either removed or marked as not to be counted
 * among the sound ones. */
static enum splat_status check_all(const struct sp_cache *cache, int folder, struct listing *list,
                                   splat_cache_info *info, struct removal *remove)
{
    enum splat_status status = SPLAT_OK;
    for (size_t k = 0; k < list->count; k++) {
        struct item *item = &list->items[k];
        const char *reason = NULL;
        if (item->temporary)
            continue;
        enum sp_entry_state state = sp_entry_read(folder, item->name, NULL, 0, NULL, &reason);
        if (state == SP_ENTRY_NO_MEMORY)
            return SPLAT_NO_MEMORY;
        if (state == SP_ENTRY_SOUND)
            continue;
        if (state == SP_ENTRY_UNREADABLE)
            status =
                sp_fail(SPLAT_IO, "cache entry %s/%s cannot be read: %s", cache->directory, item->name, reason);
        if (state == SP_ENTRY_DAMAGED) {
            info->damaged++;
            sp_log_message(&cache->log, SPLAT_LOG_WARNING, "cache entry %s/%s is damaged: %s", cache->directory,
                           item->name, reason);
            if (remove)
                remove_item(folder, item, remove);
        }
        item->gone = 1; /* for the counts, even if it could not be removed */
    }
    return status;
}

enum splat_status sp_cache_verify(const struct sp_cache *cache, splat_cache_info *info)
{
    struct listing list;
    int folder;
    enum splat_status status = begin(cache, info, &folder, &list);
    if (status != SPLAT_OK)
        return status;
    status = check_all(cache, folder, &list, info, NULL);
    end(&list, folder, info);
    return status;
}

enum splat_status sp_cache_prune(const struct sp_cache *cache, int64_t max_bytes, splat_cache_info *info)
{
    struct listing list;
    struct removal done = {0};
    int folder;
    enum splat_status status = must_not_be_read_only(cache, "prune");
    if (status == SPLAT_OK)
        status = begin(cache, info, &folder, &list);
    if (status != SPLAT_OK)
        return status;
    for (size_t k = 0; k < list.count; k++)
        if (list.items[k].temporary && (is_forgotten(&list.items[k], &list) || writer_is_dead(&list.items[k])))
            remove_item(folder, &list.items[k], &done);
    status = check_all(cache, folder, &list, info, &done);
    if (status != SPLAT_NO_MEMORY)
        shrink(folder, &list, max_bytes < 0 ? cache->max_bytes : max_bytes, NULL, &done);
    if (status == SPLAT_OK)
        status = removal_status(cache, &done);
    info->removed = done.removed;
    end(&list, folder, info);
    return status;
}

enum splat_status sp_cache_clear(const struct sp_cache *cache, splat_cache_info *info)
{
    struct listing list;
    struct removal done = {0};
    int folder;
    enum splat_status status = must_not_be_read_only(cache, "clear");
    if (status == SPLAT_OK)
        status = begin(cache, info, &folder, &list);
    if (status != SPLAT_OK)
        return status;
    for (size_t k = 0; k < list.count; k++)
        remove_item(folder, &list.items[k], &done);
    info->removed = done.removed;
    status = removal_status(cache, &done);
    end(&list, folder, info);
    return status;
}
