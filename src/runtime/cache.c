/* The disk cache: where it is, what an entry is called, reading and writing one.
 *
 * Whatever is on the disk is data from outside: nothing in an entry is believed before its sizes fit the file, its
 * checksum fits and its key is the one asked for. Everything goes through the folder's descriptor, so that the
 * folder that was checked is the one that is used.
 */
#include "runtime/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/error.h"
#include "common/files.h"
#include "common/strbuf.h"
#include "runtime/cache_entry.h"

#define DEFAULT_MAX_BYTES ((int64_t)256 << 20)

enum { CHECKSUM_AT = 16, LENGTHS_AT = 32, PARTS_AT = 64, METADATA_BYTES = 16 };
enum part { KEY, METADATA, LOG, CUBIN, PARTS };

/* Not text, so that a transfer that rewrites line ends shows here. */
static const unsigned char magic[8] = {0x89, 'S', 'P', 'L', 'A', 'T', '\r', '\n'};

void sp_log_message(const struct sp_log *log, enum splat_log_level level, const char *format, ...)
{
    if (!log->log)
        return;
    char message[2560];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    for (char *at = message; (at = strchr(at, '\n')); at++)
        *at = ' ';
    log->log(level, message, log->user);
}

/* ---- Settings ---- */

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static enum splat_status choose_mode(enum splat_cache_mode given, enum splat_cache_mode *mode)
{
    *mode = given;
    if (given == SPLAT_CACHE_ON || given == SPLAT_CACHE_READ_ONLY || given == SPLAT_CACHE_OFF)
        return SPLAT_OK;
    if (given != SPLAT_CACHE_ENV)
        return sp_fail(SPLAT_INVALID,
                       "cache_mode is %d; it must be SPLAT_CACHE_ENV, _ON, _READ_ONLY or _OFF (0 to 3)",
                       (int)given);
    const char *word = environment("SPLAT_CACHE");
    if (!word || strcmp(word, "on") == 0)
        *mode = SPLAT_CACHE_ON;
    else if (strcmp(word, "ro") == 0)
        *mode = SPLAT_CACHE_READ_ONLY;
    else if (strcmp(word, "off") == 0)
        *mode = SPLAT_CACHE_OFF;
    else
        return sp_fail(SPLAT_INVALID, "SPLAT_CACHE is '%s'; it must be on, ro or off", word);
    return SPLAT_OK;
}

/* NULL in *directory when nothing names a folder. */
static enum splat_status choose_directory(const char *given, char **directory)
{
    const char *base = given ? given : environment("SPLAT_CACHE_DIR"), *below = "";
    *directory = NULL;
    if (base && !*base)
        return sp_fail(SPLAT_INVALID,
                       "cache_dir is empty; it must be the path of a folder, or NULL for the default");
    if (!base) {
        base = environment("XDG_CACHE_HOME");
        below = "/splat";
        if (base && *base != '/')
            base = NULL; /* a relative one is to be ignored, says its specification */
    }
    if (!base) {
        base = environment("HOME");
        below = "/.cache/splat";
    }
    if (!base)
        return SPLAT_OK;
    size_t size = strlen(base) + strlen(below) + 1;
    if (!(*directory = malloc(size)))
        return sp_no_memory("the path of the cache folder", size);
    snprintf(*directory, size, "%s%s", base, below);
    return SPLAT_OK;
}

enum splat_status sp_self_check_wanted(enum splat_self_check given, int *wanted)
{
    *wanted = given == SPLAT_SELF_CHECK_ON;
    if (given == SPLAT_SELF_CHECK_ON || given == SPLAT_SELF_CHECK_OFF)
        return SPLAT_OK;
    if (given != SPLAT_SELF_CHECK_ENV)
        return sp_fail(SPLAT_INVALID, "self_check is %d; it must be SPLAT_SELF_CHECK_ENV, _ON or _OFF (0 to 2)",
                       (int)given);
    const char *word = environment("SPLAT_SELF_CHECK");
    *wanted = !word || strcmp(word, "on") == 0;
    if (!*wanted && strcmp(word, "off") != 0)
        return sp_fail(SPLAT_INVALID, "SPLAT_SELF_CHECK is '%s'; it must be on or off", word);
    return SPLAT_OK;
}

enum splat_status sp_cache_init(struct sp_cache *cache, const splat_context_options *options)
{
    *cache = (struct sp_cache){.log = {options->log, options->log_user}};
    if (options->cache_max_bytes < 0)
        return sp_fail(SPLAT_INVALID,
                       "cache_max_bytes is %" PRId64 "; it must be 0 (the default, %" PRId64 ") or more",
                       options->cache_max_bytes, DEFAULT_MAX_BYTES);
    cache->max_bytes = options->cache_max_bytes ? options->cache_max_bytes : DEFAULT_MAX_BYTES;
    enum splat_status status = choose_mode(options->cache_mode, &cache->mode);
    if (status == SPLAT_OK)
        status = choose_directory(options->cache_dir, &cache->directory);
    if (status == SPLAT_OK && !cache->directory && cache->mode != SPLAT_CACHE_OFF) {
        sp_log_message(
            &cache->log, SPLAT_LOG_WARNING,
            "the disk cache is off: none of cache_dir, SPLAT_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder");
        cache->mode = SPLAT_CACHE_OFF;
    }
    return status;
}

void sp_cache_free(struct sp_cache *cache)
{
    free(cache->directory);
    cache->directory = NULL;
}

/* ---- Keys ---- */

enum splat_status sp_cache_key(const struct sp_source *source, enum splat_arch arch, int nvrtc_version, char **key,
                               struct sp_hash *name)
{
    struct sp_strbuf text = SP_STRBUF_INIT;
    sp_strbuf_printf(&text, "splat entry format %d\nnvrtc %d\narch %d\noptions %s\n", SP_ENTRY_FORMAT,
                     nvrtc_version, (int)arch, sp_nvrtc_options(arch));
    sp_strbuf_printf(&text, "kernel %s, %d threads, %d bytes shared\n\n", source->entry, (int)source->threads,
                     (int)source->shared_bytes);
    sp_strbuf_add(&text, source->text.text, source->text.size);
    if (text.failed) {
        sp_strbuf_free(&text);
        return sp_no_memory("the key of a cache entry", source->text.size);
    }
    *key = text.text;
    *name = sp_hash_bytes(text.text, text.size);
    return SPLAT_OK;
}

static void entry_name(struct sp_hash hash, char file[SP_ENTRY_NAME])
{
    char hex[33];
    sp_hash_hex(hash, hex);
    snprintf(file, SP_ENTRY_NAME, "%s.splat", hex);
}

/* ---- The folder ---- */

/* A cubin is code: whoever can put a file here runs it as us. */
static enum splat_status check_folder(const char *path, int folder)
{
    struct stat info, link;
    if (fstat(folder, &info) != 0 || lstat(path, &link) != 0)
        return sp_fail(SPLAT_IO, "cache folder %s cannot be examined: %s", path, strerror(errno));
    if (S_ISLNK(link.st_mode) && link.st_uid != geteuid())
        return sp_fail(
            SPLAT_IO,
            "cache folder %s is a link that belongs to user %lu, not to user %lu; name a folder of your own "
            "with SPLAT_CACHE_DIR",
            path, (unsigned long)link.st_uid, (unsigned long)geteuid());
    if (info.st_uid != geteuid())
        return sp_fail(
            SPLAT_IO,
            "cache folder %s belongs to user %lu (mode %04o), not to user %lu; name a folder of your own "
            "with SPLAT_CACHE_DIR, or chown it",
            path, (unsigned long)info.st_uid, (unsigned)info.st_mode & 07777, (unsigned long)geteuid());
    if (info.st_mode & (S_IWGRP | S_IWOTH))
        return sp_fail(SPLAT_IO,
                       "cache folder %s can be written by others (owner %lu, mode %04o); take that away with chmod "
                       "go-w, after removing what you do not trust",
                       path, (unsigned long)info.st_uid, (unsigned)info.st_mode & 07777);
    return SPLAT_OK;
}

/* Whoever can write a folder above ours can move ours away and put another in its place, or have ours made where he
 * wants it. In a folder with the sticky bit, as /tmp is, only the owner of a thing moves it. */
static enum splat_status check_parents(const char *path, int folder)
{
    struct stat below = {0}, info = {0};
    int at = folder, error = fstat(folder, &below) != 0 ? errno : 0, open_to_all = 0;
    while (!error && !open_to_all) {
        int parent = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        error = parent < 0 || fstat(parent, &info) != 0 ? errno : 0;
        if (at != folder)
            close(at);
        at = parent;
        if (!error && info.st_dev == below.st_dev && info.st_ino == below.st_ino)
            break; /* the root is its own parent */
        open_to_all = !error && (info.st_mode & S_IWOTH) && !(info.st_mode & S_ISVTX);
        below = info;
    }
    if (at >= 0 && at != folder)
        close(at);
    if (error)
        return sp_fail(SPLAT_IO, "the folders above cache folder %s cannot be examined: %s", path, strerror(error));
    if (open_to_all)
        return sp_fail(SPLAT_IO,
                       "cache folder %s lies in a folder that everyone can write (owner %lu, mode %04o); name "
                       "another with SPLAT_CACHE_DIR, or take that away with chmod o-w, or chmod +t",
                       path, (unsigned long)info.st_uid, (unsigned)info.st_mode & 07777);
    return SPLAT_OK;
}

enum splat_status sp_cache_open_folder(const struct sp_cache *cache, int create, int *folder)
{
    const char *path = cache->directory;
    *folder = -1;
    if (!path)
        return sp_fail(SPLAT_IO,
                       "there is no cache folder: none of cache_dir, SPLAT_CACHE_DIR, XDG_CACHE_HOME and HOME "
                       "names one");
    int error = create ? sp_make_folders(path, 0700) : 0;
    if (error)
        return sp_fail(SPLAT_IO, "cache folder %s cannot be created: %s; name another with SPLAT_CACHE_DIR", path,
                       strerror(error));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && !create)
        return SPLAT_OK;
    if (fd < 0)
        return sp_fail(SPLAT_IO, "cache folder %s cannot be opened: %s; name another with SPLAT_CACHE_DIR", path,
                       strerror(errno));
    enum splat_status status = check_folder(path, fd);
    if (status == SPLAT_OK)
        status = check_parents(path, fd);
    if (status == SPLAT_OK)
        *folder = fd;
    else
        close(fd);
    return status;
}

/* ---- The format ---- */

static void put_number(unsigned char *at, uint64_t value, int bytes)
{
    for (int k = 0; k < bytes; k++)
        at[k] = (unsigned char)(value >> (8 * k));
}

static uint64_t get_number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int k = 0; k < bytes; k++)
        value |= (uint64_t)at[k] << (8 * k);
    return value;
}

static int get_int(const unsigned char *at)
{
    return (int)(int32_t)(uint32_t)get_number(at, 4);
}

/* The bytes of an entry, malloced; *size of them. NULL with *status. */
static unsigned char *encode(const char *key, const struct sp_image *image, size_t *size, enum splat_status *status)
{
    unsigned char metadata[METADATA_BYTES];
    put_number(metadata, (uint32_t)image->registers, 4);
    put_number(metadata + 4, (uint32_t)image->shared_bytes, 4);
    put_number(metadata + 8, (uint32_t)image->spill_bytes, 4);
    put_number(metadata + 12, image->checked != 0, 4);
    const char *log = image->log ? image->log : "";
    const void *const parts[PARTS] = {key, metadata, log, image->cubin};
    const size_t lengths[PARTS] = {strlen(key), sizeof metadata, strlen(log), image->cubin_bytes};

    size_t total = PARTS_AT;
    for (int p = 0; p < PARTS; p++) {
        if (lengths[p] > SP_ENTRY_MAX_BYTES - total) {
            *status = sp_fail(SPLAT_IO, "the cache entry would exceed %d bytes, the most an entry may have",
                              SP_ENTRY_MAX_BYTES);
            return NULL;
        }
        total += lengths[p];
    }
    unsigned char *data = malloc(total);
    if (!data) {
        *status = sp_no_memory("a cache entry", total);
        return NULL;
    }
    unsigned char *to = data + PARTS_AT;
    for (int p = 0; p < PARTS; p++) {
        put_number(data + LENGTHS_AT + 8 * p, lengths[p], 8);
        if (lengths[p])
            memcpy(to, parts[p], lengths[p]);
        to += lengths[p];
    }
    struct sp_hash sum = sp_hash_bytes(data + LENGTHS_AT, total - LENGTHS_AT);
    memcpy(data, magic, sizeof magic);
    put_number(data + 8, SP_ENTRY_FORMAT, 4);
    put_number(data + 12, PARTS_AT, 4);
    put_number(data + CHECKSUM_AT, sum.low, 8);
    put_number(data + CHECKSUM_AT + 8, sum.high, 8);
    *size = total;
    return data;
}

/* Finds the parts in `data`. NULL, or what is wrong with it. */
static const char *find_parts(const unsigned char *data, size_t size, const unsigned char *parts[PARTS],
                              size_t lengths[PARTS])
{
    if (size < PARTS_AT)
        return "it is shorter than its header";
    if (memcmp(data, magic, sizeof magic) != 0)
        return "it does not start as an entry does";
    if (get_number(data + 8, 4) != SP_ENTRY_FORMAT || get_number(data + 12, 4) != PARTS_AT)
        return "it is of another format version";
    size_t at = PARTS_AT;
    for (int p = 0; p < PARTS; p++) {
        uint64_t length = get_number(data + LENGTHS_AT + 8 * p, 8);
        if (length > size - at)
            return "it is shorter than its header says";
        parts[p] = data + at;
        lengths[p] = (size_t)length;
        at += lengths[p];
    }
    if (at != size)
        return "it is longer than its header says";
    if (lengths[METADATA] != METADATA_BYTES)
        return "its metadata has another size";
    struct sp_hash sum = {get_number(data + CHECKSUM_AT, 8), get_number(data + CHECKSUM_AT + 8, 8)};
    if (!sp_hash_equal(sum, sp_hash_bytes(data + LENGTHS_AT, size - LENGTHS_AT)))
        return "its checksum does not fit";
    return NULL;
}

static enum sp_entry_state copy_image(const unsigned char *const parts[PARTS], const size_t lengths[PARTS],
                                      struct sp_image *image)
{
    unsigned char *cubin = malloc(lengths[CUBIN] + 1);
    char *log = malloc(lengths[LOG] + 1);
    if (!cubin || !log) {
        free(cubin);
        free(log);
        sp_no_memory("an image from the cache", lengths[CUBIN] + lengths[LOG]);
        return SP_ENTRY_NO_MEMORY;
    }
    memcpy(cubin, parts[CUBIN], lengths[CUBIN]);
    memcpy(log, parts[LOG], lengths[LOG]);
    log[lengths[LOG]] = '\0';
    *image = (struct sp_image){.cubin = cubin,
                               .cubin_bytes = lengths[CUBIN],
                               .log = log,
                               .registers = get_int(parts[METADATA]),
                               .shared_bytes = get_int(parts[METADATA] + 4),
                               .spill_bytes = get_int(parts[METADATA] + 8),
                               .checked = get_int(parts[METADATA] + 12) == 1};
    return SP_ENTRY_SOUND;
}

/* ---- Reading ---- */

/* The whole file, malloced, in *data. It may be a pipe, a device, a link: then it is not an entry. */
static enum sp_entry_state read_file(int fd, unsigned char **data, size_t *size, const char **reason)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        *reason = strerror(errno);
        return SP_ENTRY_UNREADABLE;
    }
    *reason = "it is not a regular file";
    if (!S_ISREG(info.st_mode))
        return SP_ENTRY_DAMAGED;
    *reason = "it belongs to another user or can be written by others";
    if (info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)))
        return SP_ENTRY_DAMAGED;
    *reason = "it is larger than any entry";
    if (info.st_size > SP_ENTRY_MAX_BYTES)
        return SP_ENTRY_DAMAGED;
    *size = (size_t)info.st_size;
    if (!(*data = malloc(*size + 1))) {
        sp_no_memory("a cache entry", *size);
        return SP_ENTRY_NO_MEMORY;
    }
    int error = sp_read_exactly(fd, *data, *size);
    *reason = error == ENODATA ? "it ends early" : strerror(error);
    return error == 0 ? SP_ENTRY_SOUND : error == ENODATA ? SP_ENTRY_DAMAGED : SP_ENTRY_UNREADABLE;
}

static enum sp_entry_state check_entry(const unsigned char *data, size_t size, const char *file, const char *key,
                                       struct sp_image *image, const char **reason)
{
    const unsigned char *parts[PARTS];
    size_t lengths[PARTS];
    if ((*reason = find_parts(data, size, parts, lengths)))
        return SP_ENTRY_DAMAGED;
    char proper[SP_ENTRY_NAME];
    entry_name(sp_hash_bytes(parts[KEY], lengths[KEY]), proper);
    *reason = "it holds another key";
    if (key ? lengths[KEY] != strlen(key) || memcmp(parts[KEY], key, lengths[KEY]) != 0 : strcmp(proper, file) != 0)
        return SP_ENTRY_DAMAGED;
    return image ? copy_image(parts, lengths, image) : SP_ENTRY_SOUND;
}

enum sp_entry_state sp_entry_read(int folder, const char *file, const char *key, int refresh,
                                  struct sp_image *image, const char **reason)
{
    /* Nonblocking: opening a pipe must not wait for its writer. */
    int fd = openat(folder, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        int error = errno;
        *reason = error == ELOOP ? "it is a link" : strerror(error);
        if (error == ENOENT)
            return SP_ENTRY_ABSENT;
        int transient = error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO || error == ESTALE;
        return transient ? SP_ENTRY_UNREADABLE : SP_ENTRY_DAMAGED;
    }
    unsigned char *data = NULL;
    size_t size = 0;
    enum sp_entry_state state = read_file(fd, &data, &size, reason);
    if (state == SP_ENTRY_SOUND)
        state = check_entry(data, size, file, key, image, reason);
    if (state == SP_ENTRY_SOUND && refresh)
        futimens(fd, (const struct timespec[2]){{0, UTIME_NOW}, {0, UTIME_NOW}}); /* only eviction would notice */
    free(data);
    close(fd);
    return state;
}

enum splat_status sp_cache_load(const struct sp_cache *cache, struct sp_hash name, const char *key,
                                struct sp_image *image, int *found)
{
    *found = 0;
    if (cache->mode == SPLAT_CACHE_OFF || !cache->directory)
        return SPLAT_OK;
    int folder, writing = cache->mode == SPLAT_CACHE_ON;
    if (sp_cache_open_folder(cache, 0, &folder) != SPLAT_OK)
        sp_log_message(&cache->log, SPLAT_LOG_WARNING, "the disk cache is not used: %s", splat_last_error());
    if (folder < 0)
        return SPLAT_OK;
    char file[SP_ENTRY_NAME];
    const char *reason = NULL;
    entry_name(name, file);
    enum sp_entry_state state = sp_entry_read(folder, file, key, writing, image, &reason);
    *found = state == SP_ENTRY_SOUND;
    if (state == SP_ENTRY_DAMAGED || state == SP_ENTRY_UNREADABLE) {
        /* A writer may have replaced it just now; its entry is then compiled once more, which is harmless. */
        int gone = state == SP_ENTRY_DAMAGED && writing && unlinkat(folder, file, 0) == 0;
        sp_log_message(&cache->log, SPLAT_LOG_WARNING, "cache entry %s/%s is not used%s: %s", cache->directory,
                       file, gone ? " and was removed" : "", reason);
    }
    close(folder);
    return state == SP_ENTRY_NO_MEMORY ? SPLAT_NO_MEMORY : SPLAT_OK;
}

/* ---- Writing ---- */

static int write_entry(int folder, const char *file, const unsigned char *data, size_t size)
{
    uint64_t random = 0;
    char temporary[64];
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random) {
        struct timespec now; /* early after boot; O_EXCL keeps even equal names apart */
        clock_gettime(CLOCK_REALTIME, &now);
        random = (uint64_t)now.tv_nsec ^ (uint64_t)(uintptr_t)&now;
    }
    snprintf(temporary, sizeof temporary, "tmp-%ld-%016" PRIx64, (long)getpid(), random);
    return sp_replace_file(folder, temporary, file, data, size);
}

enum splat_status sp_cache_store(const struct sp_cache *cache, struct sp_hash name, const char *key,
                                 const struct sp_image *image)
{
    if (cache->mode != SPLAT_CACHE_ON)
        return sp_fail(SPLAT_UNSUPPORTED, "the disk cache is %s; storing an entry needs it on",
                       cache->mode == SPLAT_CACHE_OFF ? "off" : "read-only");
    char file[SP_ENTRY_NAME];
    size_t size = 0;
    enum splat_status status = SPLAT_OK;
    unsigned char *data = encode(key, image, &size, &status);
    if (!data)
        return status;
    entry_name(name, file);
    /* The folder or the temporary may vanish under us when somebody clears the cache: then once more. */
    int error = ENOENT;
    for (int attempt = 0; attempt < 4 && status == SPLAT_OK && (error == ENOENT || error == EEXIST); attempt++) {
        int folder;
        status = sp_cache_open_folder(cache, 1, &folder);
        if (status != SPLAT_OK)
            break;
        error = write_entry(folder, file, data, size);
        if (!error)
            sp_cache_evict(cache, folder, file);
        close(folder);
    }
    free(data);
    if (status == SPLAT_OK && error)
        status = sp_fail(SPLAT_IO, "cache entry %s/%s of %zu bytes cannot be written: %s; %s with SPLAT_CACHE_DIR",
                         cache->directory, file, size, strerror(error),
                         error == ENOSPC || error == EDQUOT ? "make room or name another folder"
                                                            : "name another folder");
    return status;
}
