/* System calls of the disk cache that fail, lie, or are the process's last: for every kind of failure and every n,
 * the n-th call of a store, of a load, and of the calls that look after the folder. Whatever happens, the next
 * reader gets the bytes that were stored or none, and a fresh store is found again.
 *
 * The calls are replaced in this program: the library, linked in, calls these.
 */
#include "faults.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "common/files.h"
#include "runtime/cache_entry.h"

/* ---- The calls ---- */

enum fault {
    NONE,
    FAILS,          /* the call does nothing and reports an error */
    FAILS_FOR_GOOD, /* and so do all that follow */
    LIES,           /* the call does its work and reports an error: a file server whose answer was lost */
    STOPS_SHORT,    /* a write or read takes half */
    DIES_BEFORE,    /* the process is killed */
    DIES_AFTER
};

static struct {
    int armed, made, at, error;
    enum fault fault;
    char journal[1024]; /* names of the calls, each after a blank */
} calls;

/* 1: the call is to report calls.error without doing anything; 2: after doing it. */
static int enter(const char *name)
{
    if (!calls.armed)
        return 0;
    size_t used = strlen(calls.journal);
    snprintf(calls.journal + used, sizeof calls.journal - used, " %s", name);
    int now = ++calls.made;
    if (now < calls.at || (now > calls.at && calls.fault != FAILS_FOR_GOOD) || !calls.at)
        return 0;
    if (calls.fault == DIES_BEFORE)
        kill(getpid(), SIGKILL);
    return calls.fault == FAILS || calls.fault == FAILS_FOR_GOOD ? 1 : calls.fault == LIES ? 2 : 0;
}

static void leave(void)
{
    if (calls.armed && calls.made == calls.at && calls.fault == DIES_AFTER)
        kill(getpid(), SIGKILL);
}

static int half(void)
{
    return calls.armed && calls.made == calls.at && calls.fault == STOPS_SHORT;
}

static long refuse(void)
{
    errno = calls.error;
    return -1;
}

/* Does `call` unless it is to fail. */
#define REPLACED(name, call)                                                                                       \
    do {                                                                                                           \
        int entered = enter(name);                                                                                 \
        long result = entered == 1 ? -1 : (call);                                                                  \
        leave();                                                                                                   \
        return entered ? (int)refuse() : (int)result;                                                              \
    } while (0)

/* A descriptor that nobody is told of is closed, as the kernel would for a call that failed. */
static int opened(int entered, long fd)
{
    leave();
    if (entered != 2)
        return entered ? (int)refuse() : (int)fd;
    if (fd >= 0)
        syscall(SYS_close, (int)fd);
    return (int)refuse();
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    unsigned mode = flags & O_CREAT ? va_arg(more, unsigned) : 0;
    va_end(more);
    int entered = enter("open");
    return opened(entered, entered == 1 ? -1 : syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    unsigned mode = flags & O_CREAT ? va_arg(more, unsigned) : 0;
    va_end(more);
    int entered = enter("openat");
    return opened(entered, entered == 1 ? -1 : syscall(SYS_openat, folder, path, flags, mode));
}

/* A close that fails has closed, on Linux. */
int close(int fd)
{
    int entered = enter("close");
    long result = syscall(SYS_close, fd);
    leave();
    return entered ? (int)refuse() : (int)result;
}

ssize_t write(int fd, const void *data, size_t size)
{
    int entered = enter("write");
    ssize_t result = entered == 1 ? -1 : syscall(SYS_write, fd, data, half() && size > 1 ? size / 2 : size);
    leave();
    return entered ? refuse() : result;
}

ssize_t read(int fd, void *data, size_t size)
{
    int entered = enter("read");
    ssize_t result = entered == 1 ? -1 : syscall(SYS_read, fd, data, half() && size > 1 ? size / 2 : size);
    leave();
    return entered ? refuse() : result;
}

int fsync(int fd)
{
    REPLACED("fsync", syscall(SYS_fsync, fd));
}

int fstat(int fd, struct stat *info)
{
    REPLACED("fstat", syscall(SYS_newfstatat, fd, "", info, AT_EMPTY_PATH));
}

int stat(const char *path, struct stat *info)
{
    REPLACED("stat", syscall(SYS_newfstatat, AT_FDCWD, path, info, 0));
}

int lstat(const char *path, struct stat *info)
{
    REPLACED("lstat", syscall(SYS_newfstatat, AT_FDCWD, path, info, AT_SYMLINK_NOFOLLOW));
}

int fstatat(int folder, const char *path, struct stat *info, int flags)
{
    REPLACED("fstatat", syscall(SYS_newfstatat, folder, path, info, flags));
}

int mkdir(const char *path, mode_t mode)
{
    REPLACED("mkdir", syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    REPLACED("renameat", syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
}

int unlinkat(int folder, const char *path, int flags)
{
    REPLACED("unlinkat", syscall(SYS_unlinkat, folder, path, flags));
}

int futimens(int fd, const struct timespec times[2])
{
    REPLACED("futimens", syscall(SYS_utimensat, fd, NULL, times, 0));
}

ssize_t getrandom(void *data, size_t size, unsigned flags)
{
    int entered = enter("getrandom");
    ssize_t result = entered == 1 ? -1 : syscall(SYS_getrandom, data, size, flags);
    leave();
    return entered ? refuse() : result;
}

static void arm(enum fault fault, int at, int error)
{
    memset(&calls, 0, sizeof calls);
    calls.fault = fault;
    calls.at = at;
    calls.error = error;
    calls.armed = 1;
}

/* The number of calls made since arm. */
static int disarm(void)
{
    calls.armed = 0;
    return calls.made;
}

/* ---- Entries ---- */

struct entry {
    char key[2000];
    struct sp_hash name;
    struct sp_image image;
};

/* Of one key, with another image for every `version`. */
static struct entry *entry_of(int version)
{
    static struct entry made[3];
    struct entry *entry = &made[version];
    if (entry->image.cubin)
        return entry;
    for (int k = 0, at = 0; k < 60; k++)
        at += snprintf(entry->key + at, sizeof entry->key - (size_t)at, "line %d of a source\n", k);
    entry->name = sp_hash_bytes(entry->key, strlen(entry->key));
    entry->image = (struct sp_image){.cubin = need(30000),
                                     .cubin_bytes = 30000,
                                     .log = strdup("a log"),
                                     .registers = 100 + version,
                                     .shared_bytes = 7};
    for (int k = 0; k < 30000; k++)
        entry->image.cubin[k] = (unsigned char)(k * 13 + version * 101);
    return entry;
}

static struct sp_cache cache_in(struct sandbox *box, enum splat_cache_mode mode)
{
    struct sp_cache cache;
    splat_context_options options;
    splat_context_options_init(&options);
    options.cache_dir = box->cache;
    options.cache_mode = mode;
    options.log = keep_last;
    options.log_user = box;
    OK(sp_cache_init(&cache, &options));
    return cache;
}

static enum splat_status store(const struct sp_cache *cache, int version)
{
    const struct entry *entry = entry_of(version);
    return sp_cache_store(cache, entry->name, entry->key, &entry->image);
}

/* The version that is found; 0 for a miss; -1 for bytes that nobody stored. */
static int found_version(const struct sp_cache *cache, enum splat_status *status)
{
    const struct entry *entry = entry_of(1);
    struct sp_image image = {0};
    int found = 0, version = -1;
    *status = sp_cache_load(cache, entry->name, entry->key, &image, &found);
    if (!found)
        return 0;
    for (int v = 1; v <= 2; v++) {
        const struct sp_image *want = &entry_of(v)->image;
        if (image.cubin_bytes == want->cubin_bytes && memcmp(image.cubin, want->cubin, want->cubin_bytes) == 0 &&
            image.registers == want->registers && strcmp(image.log, want->log) == 0)
            version = v;
    }
    sp_image_free(&image);
    return version;
}

/* ---- The attack on a store ---- */

static const struct {
    const char *name;
    enum fault fault;
    int error;
} faults[] = {
    {"fails with ENOSPC", FAILS, ENOSPC},
    {"fails with EIO", FAILS, EIO},
    {"fails with EACCES", FAILS, EACCES},
    {"fails with EINTR", FAILS, EINTR},
    {"fails with ENOENT", FAILS, ENOENT},
    {"fails with EROFS for good", FAILS_FOR_GOOD, EROFS},
    {"fails with ENOSPC for good", FAILS_FOR_GOOD, ENOSPC},
    {"fails with EIO for good", FAILS_FOR_GOOD, EIO},
    {"works and says EIO", LIES, EIO},
    {"works and says ENOENT", LIES, ENOENT},
    {"works and says EEXIST", LIES, EEXIST},
    {"stops half way", STOPS_SHORT, 0},
    {"is never made", DIES_BEFORE, 0},
    {"is the last", DIES_AFTER, 0},
};
enum { FAULTS = sizeof faults / sizeof faults[0] };

static int kills(int f)
{
    return faults[f].fault == DIES_BEFORE || faults[f].fault == DIES_AFTER;
}

/* Stores version 2 with fault f at call n. The status; -1 when the process died of it. *made: calls. */
static int store_with_fault(const struct sp_cache *cache, int f, int n, int *made)
{
    if (!kills(f)) {
        arm(faults[f].fault, n, faults[f].error);
        enum splat_status status = store(cache, 2);
        *made = disarm();
        return (int)status;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        arm(faults[f].fault, n, 0);
        store(cache, 2);
        _exit(disarm() >= n ? 100 : 101);
    }
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    *made = WIFSIGNALED(ended) ? n : WEXITSTATUS(ended) == 101 ? n - 1 : 1000;
    return WIFSIGNALED(ended) ? -1 : SPLAT_OK;
}

/* `before`: 0 no folder, 1 an empty folder, 2 an older entry of the same key. Returns whether call n was made. */
static int attack_store(struct sandbox *box, int before, int f, int n)
{
    char what[160];
    snprintf(what, sizeof what, "call %d of a store %s, %s", n, faults[f].name,
             before == 0   ? "no folder before"
             : before == 1 ? "an empty folder before"
                           : "an older entry before");
    remove_cache(box);
    if (before)
        assert_int_equal(syscall(SYS_mkdirat, AT_FDCWD, box->cache, 0700), 0);
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON);
    if (before == 2)
        OK(store(&cache, 1));
    int descriptors = open_descriptors(), made = 0;
    int status = store_with_fault(&cache, f, n, &made);
    if (open_descriptors() != descriptors)
        FAIL("%s: a descriptor is left open", what);
    if (status > 0 && (status != SPLAT_IO || !strstr(splat_last_error(), box->cache)))
        FAIL("%s: %s: %s", what, splat_status_name((enum splat_status)status), splat_last_error());

    enum splat_status loading;
    int version = found_version(&cache, &loading);
    OK(loading);
    if (version < 0)
        FAIL("%s: the next reader gets bytes that nobody stored", what);
    if (status == SPLAT_OK && version != 2)
        FAIL("%s: the store said it was done, and version %d is found", what, version);
    if (before == 2 && version == 0)
        FAIL("%s: the entry that was there is gone", what);
    if (before != 2 && version == 1)
        FAIL("%s: an entry from nowhere", what);
    splat_cache_info info;
    splat_cache_info_init(&info);
    OK(sp_cache_verify(&cache, &info));
    if (info.damaged)
        FAIL("%s: %lld damaged entries", what, (long long)info.damaged);
    /* What is left of a writer: nothing, unless it was killed, or could not remove it, or was told that it is not
     * there. */
    int left = count_files(box->cache, "tmp-");
    int may_be_left = kills(f) || faults[f].fault == FAILS_FOR_GOOD || faults[f].fault == LIES;
    if (left > 1 || (left == 1 && !may_be_left))
        FAIL("%s: %d temporaries are left", what, left);
    OK(store(&cache, 2));
    if (found_version(&cache, &loading) != 2)
        FAIL("%s: what is stored next is not found", what);
    if (kills(f)) {
        OK(sp_cache_prune(&cache, -1, &info));
        if (count_files(box->cache, "tmp-") != 0)
            FAIL("%s: the temporary of a dead writer is left by prune", what);
    }
    sp_cache_free(&cache);
    return made >= n;
}

static void stores_survive_any_call(void **state)
{
    struct sandbox *box = *state;
    int runs = 0, most = 0;
    for (int before = 0; before < 3; before++)
        for (int f = 0; f < FAULTS; f++) {
            int n = 1;
            while (attack_store(box, before, f, n))
                n++;
            runs += n;
            most = n - 1 > most ? n - 1 : most;
            if (n < 12)
                FAIL("only %d calls of a store pass through the shim", n - 1);
        }
    print_message("%d stores, up to %d calls each\n", runs, most);
}

/* What makes a store safe from a power failure is the order of its calls. */
static void entries_are_flushed_before_they_are_named(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON);
    OK(store(&cache, 1));
    arm(NONE, 0, 0);
    OK(store(&cache, 2));
    disarm();
    const char *written = strstr(calls.journal, " write"), *named = strstr(calls.journal, " renameat");
    assert_non_null(written);
    assert_non_null(named);
    const char *flushed = strstr(written, " fsync"), *again = strstr(named, " fsync");
    if (!flushed || flushed > named || !again)
        FAIL("the calls of a store are%s; fsync must come before renameat, and once more after it", calls.journal);
    for (const char *at = written; (at = strstr(at + 1, " write"));)
        assert_true(at < flushed);
    sp_cache_free(&cache);
}

/* ---- Loads, and the calls that look after the folder ---- */

static void loads_survive_any_call(void **state)
{
    struct sandbox *box = *state;
    int misses = 0, hits = 0;
    for (int f = 0; f < FAULTS; f++) {
        if (kills(f))
            continue;
        for (int n = 1, made = 1; made >= n - 1; n++) {
            struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON);
            OK(store(&cache, 2));
            enum splat_status status;
            int descriptors = open_descriptors();
            arm(faults[f].fault, n, faults[f].error);
            int version = found_version(&cache, &status);
            made = disarm();
            if (status != SPLAT_OK)
                FAIL("call %d of a load %s: %s", n, faults[f].name, splat_last_error());
            if (version != 0 && version != 2)
                FAIL("call %d of a load %s: bytes that nobody stored", n, faults[f].name);
            if (open_descriptors() != descriptors)
                FAIL("call %d of a load %s: a descriptor is left open", n, faults[f].name);
            misses += version == 0;
            hits += version == 2;
            OK(store(&cache, 2));
            if (found_version(&cache, &status) != 2)
                FAIL("call %d of a load %s: what is stored next is not found", n, faults[f].name);
            sp_cache_free(&cache);
        }
    }
    print_message("%d loads missed, %d found the entry all the same\n", misses, hits);
    assert_true(misses > 20 && hits > 10);
}

/* A disk that fails for a moment, or too many open files, say nothing about the entry. */
static void what_cannot_be_read_now_stays(void **state)
{
    struct sandbox *box = *state;
    static const int errors[] = {EIO, EMFILE, ENFILE, ENOMEM, ESTALE};
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON);
    OK(store(&cache, 2));
    for (int e = 0; e < 5; e++)
        for (int n = 1, made = 1; made >= n - 1; n++) {
            enum splat_status status;
            arm(FAILS, n, errors[e]);
            found_version(&cache, &status);
            made = disarm();
            if (found_version(&cache, &status) != 2)
                FAIL("call %d of a load fails with %s: the entry is gone", n, strerror(errors[e]));
        }
    sp_cache_free(&cache);
}

static void care_survives_any_call(void **state)
{
    struct sandbox *box = *state;
    static enum splat_status (*const admin[])(const struct sp_cache *, splat_cache_info *) = {
        sp_cache_stat, sp_cache_verify, sp_cache_clear};
    for (int a = 0; a < 4; a++)
        for (int f = 0; f < FAULTS; f++) {
            if (kills(f))
                continue;
            for (int n = 1, made = 1; made >= n - 1; n++) {
                struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON);
                splat_cache_info info;
                splat_cache_info_init(&info);
                OK(store(&cache, 2));
                int descriptors = open_descriptors();
                arm(faults[f].fault, n, faults[f].error);
                enum splat_status status = a < 3 ? admin[a](&cache, &info) : sp_cache_prune(&cache, 0, &info);
                made = disarm();
                if (status != SPLAT_OK && (status != SPLAT_IO || !strstr(splat_last_error(), box->cache)))
                    FAIL("call %d %s: %s: %s", n, faults[f].name, splat_status_name(status), splat_last_error());
                if (open_descriptors() != descriptors)
                    FAIL("call %d %s: a descriptor is left open", n, faults[f].name);
                sp_cache_free(&cache);
            }
        }
}

/* ---- Folders ---- */

static void links_to_our_own_folder_serve(void **state)
{
    struct sandbox *box = *state;
    char real[100];
    snprintf(real, sizeof real, "%s/real", box->folder);
    assert_int_equal(mkdir(real, 0700), 0);
    assert_int_equal(symlink(real, box->cache), 0);
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON);
    enum splat_status status;
    OK(store(&cache, 1));
    assert_int_equal(found_version(&cache, &status), 1);
    assert_int_equal(count_files(real, ""), 1);
    if (geteuid() == 0) { /* a link that another user made leads where he wants */
        assert_int_equal(lchown(box->cache, 65534, 65534), 0);
        assert_int_equal(found_version(&cache, &status), 0);
        REFUSED(store(&cache, 2), SPLAT_IO, box->cache, "link", "65534");
    }
    assert_int_equal(unlink(box->cache), 0);
    assert_int_equal(symlink("nowhere", box->cache), 0);
    assert_int_equal(found_version(&cache, &status), 0);
    REFUSED(store(&cache, 2), SPLAT_IO, box->cache, "SPLAT_CACHE_DIR");
    assert_int_equal(unlink(box->cache), 0);
    assert_int_equal(symlink(box->cache, box->cache), 0);
    assert_int_equal(found_version(&cache, &status), 0);
    REFUSED(store(&cache, 2), SPLAT_IO, box->cache, "SPLAT_CACHE_DIR");
    assert_int_equal(unlink(box->cache), 0);
    sp_cache_free(&cache);
}

static void folders_below_everyones_are_refused(void **state)
{
    struct sandbox *box = *state;
    char open_to_all[90], below[100];
    snprintf(open_to_all, sizeof open_to_all, "%s/all", box->folder);
    snprintf(below, sizeof below, "%s/mine", open_to_all);
    snprintf(box->cache, sizeof box->cache, "%s/c", below);
    assert_int_equal(mkdir(open_to_all, 0700), 0);
    assert_int_equal(mkdir(below, 0700), 0);
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON);
    enum splat_status status;
    OK(store(&cache, 1));
    assert_int_equal(found_version(&cache, &status), 1);
    static const struct {
        mode_t mode;
        int sound;
    } modes[] = {{0777, 0}, {0707, 0}, {0703, 0}, {01777, 1}, {0755, 1}, {0775, 1}, {0700, 1}};
    for (size_t k = 0; k < sizeof modes / sizeof modes[0]; k++)
        for (int near = 0; near < 2; near++) {
            const char *folder = near ? below : open_to_all;
            assert_int_equal(chmod(folder, modes[k].mode), 0);
            int warnings = box->warnings;
            if (modes[k].sound) {
                assert_int_equal(found_version(&cache, &status), 1);
                OK(store(&cache, 1));
            } else {
                assert_int_equal(found_version(&cache, &status), 0);
                assert_int_equal(box->warnings, warnings + 1);
                REFUSED(store(&cache, 2), SPLAT_IO, box->cache, "everyone can write", "SPLAT_CACHE_DIR");
            }
            assert_int_equal(chmod(folder, 0700), 0);
        }
    assert_int_equal(found_version(&cache, &status), 1);
    sp_cache_free(&cache);
}

/* The formats before this one, and later ones. */
static void entries_of_other_formats_are_rebuilt(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON);
    for (int version = 0; version < 5; version++) {
        if (version == SP_ENTRY_FORMAT)
            continue;
        OK(store(&cache, 1));
        char hex[33], path[260];
        sp_hash_hex(entry_of(1)->name, hex);
        snprintf(path, sizeof path, "%s/%s.splat", box->cache, hex);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        fseek(file, 8, SEEK_SET);
        fputc(version, file);
        fclose(file);
        enum splat_status status;
        assert_int_equal(found_version(&cache, &status), 0);
        assert_non_null(strstr(box->last, "format version"));
        OK(store(&cache, 2));
        assert_int_equal(found_version(&cache, &status), 2);
    }
    sp_cache_free(&cache);
}

int main(void)
{
    unsetenv("SPLAT_CACHE");
    unsetenv("SPLAT_CACHE_DIR");
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_sandbox, close_sandbox)
    const struct CMUnitTest tests[] = {
        TEST(stores_survive_any_call),
        TEST(entries_are_flushed_before_they_are_named),
        TEST(loads_survive_any_call),
        TEST(what_cannot_be_read_now_stays),
        TEST(care_survives_any_call),
        TEST(links_to_our_own_folder_serve),
        TEST(folders_below_everyones_are_refused),
        TEST(entries_of_other_formats_are_rebuilt),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
