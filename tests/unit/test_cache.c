/* The disk cache below the compiler: entries survive whatever happens to their files, folders that cannot be
 * trusted are refused, size is bounded. Images are made up, so that no compiler is needed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

#include "runtime/cache.h"

/* ---- A folder for each test ---- */

struct sandbox {
    char folder[64], cache[80];
    int infos, warnings;
    char last[512];
};

static void count_log(enum splat_log_level level, const char *message, void *user)
{
    struct sandbox *box = user;
    box->infos += level == SPLAT_LOG_INFO;
    box->warnings += level == SPLAT_LOG_WARNING;
    snprintf(box->last, sizeof box->last, "%s", message);
}

static int open_sandbox(void **state)
{
    struct sandbox *box = need(sizeof *box);
    memset(box, 0, sizeof *box);
    strcpy(box->folder, "/tmp/splat_test_cache_XXXXXX");
    assert_non_null(mkdtemp(box->folder));
    snprintf(box->cache, sizeof box->cache, "%s/cache", box->folder);
    *state = box;
    return 0;
}

static int close_sandbox(void **state)
{
    struct sandbox *box = *state;
    char command[256];
    snprintf(command, sizeof command, "chmod -R u+rwx %s && rm -rf %s", box->folder, box->folder);
    int failed = system(command);
    free(box);
    return failed;
}

static struct sp_cache cache_in(struct sandbox *box, enum splat_cache_mode mode, int64_t max_bytes)
{
    struct sp_cache cache;
    splat_context_options options;
    splat_context_options_init(&options);
    options.cache_dir = box->cache;
    options.cache_mode = mode;
    options.cache_max_bytes = max_bytes;
    options.log = count_log;
    options.log_user = box;
    OK(sp_cache_init(&cache, &options));
    return cache;
}

/* ---- Made-up entries ---- */

struct entry {
    char key[4000];
    struct sp_hash name;
    struct sp_image image;
};

static struct entry entry_of(int number, size_t cubin_bytes)
{
    struct entry entry;
    memset(&entry, 0, sizeof entry);
    int at = snprintf(entry.key, sizeof entry.key, "key %d\n", number);
    for (int k = 0; k < 60; k++)
        at += snprintf(entry.key + at, sizeof entry.key - (size_t)at, "line %d of the source of %d\n", k, number);
    entry.name = sp_hash_bytes(entry.key, strlen(entry.key));
    entry.image.cubin = need(cubin_bytes);
    for (size_t k = 0; k < cubin_bytes; k++)
        entry.image.cubin[k] = (unsigned char)((k * 31 + (size_t)number * 7) >> (k % 5));
    entry.image.cubin_bytes = cubin_bytes;
    entry.image.log = strdup("a log\nof two lines");
    entry.image.registers = 100 + number % 100;
    entry.image.shared_bytes = 4096 + number;
    entry.image.spill_bytes = 0;
    entry.image.checked = number % 2;
    return entry;
}

static void entry_free(struct entry *entry)
{
    sp_image_free(&entry->image);
}

static void check_image(const struct sp_image *got, const struct sp_image *want)
{
    assert_int_equal(got->cubin_bytes, want->cubin_bytes);
    assert_memory_equal(got->cubin, want->cubin, want->cubin_bytes);
    assert_string_equal(got->log, want->log);
    assert_int_equal(got->registers, want->registers);
    assert_int_equal(got->shared_bytes, want->shared_bytes);
    assert_int_equal(got->spill_bytes, want->spill_bytes);
    assert_int_equal(got->checked, want->checked);
}

static void must_hit(const struct sp_cache *cache, const struct entry *entry)
{
    struct sp_image image;
    int found = -1;
    memset(&image, 0, sizeof image);
    OK(sp_cache_load(cache, entry->name, entry->key, &image, &found));
    if (found != 1)
        FAIL("the entry of %.10s was not found", entry->key);
    check_image(&image, &entry->image);
    sp_image_free(&image);
}

static void must_miss(const struct sp_cache *cache, const struct entry *entry, const char *what)
{
    struct sp_image image;
    int found = -1;
    memset(&image, 0, sizeof image);
    OK(sp_cache_load(cache, entry->name, entry->key, &image, &found));
    if (found != 0)
        FAIL("%s: found although it should not be", what);
}

/* The only regular file in the cache folder; fails when there are several. */
static void only_file(const struct sandbox *box, char *path, size_t size)
{
    DIR *folder = opendir(box->cache);
    int count = 0;
    assert_non_null(folder);
    for (struct dirent *d; (d = readdir(folder));)
        if (d->d_name[0] != '.') {
            snprintf(path, size, "%s/%s", box->cache, d->d_name);
            count++;
        }
    closedir(folder);
    assert_int_equal(count, 1);
}

static int64_t count_files(const char *path)
{
    DIR *folder = opendir(path);
    int64_t count = 0;
    if (!folder)
        return -1;
    for (struct dirent *d; (d = readdir(folder));)
        count += strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
    closedir(folder);
    return count;
}

static size_t read_file(const char *path, unsigned char *data, size_t capacity)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(data, 1, capacity, file);
    assert_true(size < capacity);
    fclose(file);
    return size;
}

static void write_file(const char *path, const void *data, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), (ssize_t)size);
    close(fd);
}

static splat_cache_info info_of(enum splat_status (*call)(const struct sp_cache *, splat_cache_info *),
                                const struct sp_cache *cache)
{
    splat_cache_info info;
    splat_cache_info_init(&info);
    OK(call(cache, &info));
    return info;
}

/* ---- Round trips ---- */

static void what_is_stored_is_found(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 5000), b = entry_of(2, 0), c = entry_of(3, 300000);
    assert_int_equal(count_files(box->cache), -1); /* nothing touches the disk before it must */
    must_miss(&cache, &a, "an empty cache");
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    OK(sp_cache_store(&cache, b.name, b.key, &b.image));
    OK(sp_cache_store(&cache, c.name, c.key, &c.image));
    struct stat info;
    assert_int_equal(stat(box->cache, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_int_equal(count_files(box->cache), 3);
    must_hit(&cache, &a);
    must_hit(&cache, &b);
    must_hit(&cache, &c);
    sp_cache_free(&cache);
    cache = cache_in(box, SPLAT_CACHE_ON, 0); /* a later process */
    must_hit(&cache, &a);
    OK(sp_cache_store(&cache, a.name, a.key, &a.image)); /* storing again replaces */
    assert_int_equal(count_files(box->cache), 3);
    assert_int_equal(box->warnings, 0);
    entry_free(&a);
    entry_free(&b);
    entry_free(&c);
    sp_cache_free(&cache);
}

/* A hash may collide, a key may not: the whole key is compared. */
static void another_key_of_the_same_name_is_a_miss(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 500), b = entry_of(2, 500);
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    b.name = a.name;
    must_miss(&cache, &b, "another key under the same name");
    entry_free(&a);
    entry_free(&b);
    sp_cache_free(&cache);
}

static void keys_hold_all_that_decides_the_cubin(void **state)
{
    (void)state;
    struct sp_source source = {
        .text = SP_STRBUF_INIT, .entry = "splat_attention", .threads = 128, .shared_bytes = 9};
    sp_strbuf_puts(&source.text, "the source text");
    char *keys[4];
    struct sp_hash names[4];
    OK(sp_cache_key(&source, SPLAT_ARCH_SM80, 13000, &keys[0], &names[0]));
    OK(sp_cache_key(&source, SPLAT_ARCH_SM90A, 13000, &keys[1], &names[1]));
    OK(sp_cache_key(&source, SPLAT_ARCH_SM80, 12080, &keys[2], &names[2]));
    sp_strbuf_puts(&source.text, "!");
    OK(sp_cache_key(&source, SPLAT_ARCH_SM80, 13000, &keys[3], &names[3]));
    assert_non_null(strstr(keys[0], "the source text"));
    for (int a = 0; a < 4; a++) {
        assert_true(sp_hash_equal(names[a], sp_hash_bytes(keys[a], strlen(keys[a]))));
        for (int b = 0; b < a; b++)
            assert_false(sp_hash_equal(names[a], names[b]));
    }
    for (int a = 0; a < 4; a++)
        free(keys[a]);
    sp_source_free(&source);
}

/* ---- Damage ---- */

/* Every damage to the file must read as a miss, be said in the log, and leave room for a fresh entry. */
static void damage(struct sandbox *box, const struct sp_cache *cache, const struct entry *entry, const char *path,
                   const unsigned char *data, size_t size, const char *what)
{
    int before = box->warnings;
    write_file(path, data, size);
    must_miss(cache, entry, what);
    if (box->warnings == before)
        FAIL("%s: discarded without a word", what);
    if (access(path, F_OK) == 0)
        FAIL("%s: left on the disk", what);
}

static void truncated_entries_are_misses(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 9000);
    char path[512], what[64];
    unsigned char *sound = need(1 << 17);
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    only_file(box, path, sizeof path);
    size_t size = read_file(path, sound, 1 << 17);
    for (size_t cut = 0; cut < size; cut += cut < 128 ? 1 : 64) {
        snprintf(what, sizeof what, "cut at byte %zu of %zu", cut, size);
        damage(box, &cache, &a, path, sound, cut, what);
    }
    damage(box, &cache, &a, path, sound, size - 1, "one byte short");
    damage(box, &cache, &a, path, sound, size + 1, "one byte long");
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    must_hit(&cache, &a);
    free(sound);
    entry_free(&a);
    sp_cache_free(&cache);
}

static void flipped_bytes_are_misses(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 300);
    char path[512], what[64];
    unsigned char *data = need(1 << 17);
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    only_file(box, path, sizeof path);
    size_t size = read_file(path, data, 1 << 17);
    for (size_t at = 0; at < size; at++) {
        unsigned char flip = (unsigned char)(1u << (at % 8));
        snprintf(what, sizeof what, "byte %zu of %zu flipped", at, size);
        data[at] ^= flip;
        damage(box, &cache, &a, path, data, size, what);
        data[at] ^= flip;
    }
    /* Lengths of every size in every place of the first lines: a header field must not be believed. */
    for (size_t at = 0; at + 8 <= 96 && at + 8 <= size; at += 4) {
        static const unsigned char huge[2][8] = {{255, 255, 255, 255, 255, 255, 255, 127},
                                                 {0, 0, 0, 0, 0, 0, 0, 128}};
        for (int h = 0; h < 2; h++) {
            unsigned char kept[8];
            memcpy(kept, data + at, 8);
            memcpy(data + at, huge[h], 8);
            if (memcmp(kept, huge[h], 8) != 0)
                damage(box, &cache, &a, path, data, size, "a huge length");
            memcpy(data + at, kept, 8);
        }
    }
    write_file(path, data, size);
    must_hit(&cache, &a); /* undamaged, it is sound again */
    free(data);
    entry_free(&a);
    sp_cache_free(&cache);
}

static void strangers_under_an_entrys_name_are_misses(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 700), b = entry_of(2, 900);
    char path[512];
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    only_file(box, path, sizeof path);
    damage(box, &cache, &a, path, (const unsigned char *)"hello", 5, "a text file");
    damage(box, &cache, &a, path,
           (const unsigned char *)"\x7f"
                                  "ELF\2\1\1",
           7, "an ELF file");
    /* the sound entry of another key, renamed */
    OK(sp_cache_store(&cache, b.name, b.key, &b.image));
    char other[512];
    only_file(box, other, sizeof other);
    assert_int_equal(rename(other, path), 0);
    must_miss(&cache, &a, "the entry of another key");
    /* not a file at all */
    assert_int_equal(mkdir(path, 0700), 0);
    must_miss(&cache, &a, "a folder");
    rmdir(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    must_miss(&cache, &a, "a link to a device");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20); /* a pipe must not be waited for */
    must_miss(&cache, &a, "a pipe");
    alarm(0);
    entry_free(&a);
    entry_free(&b);
    sp_cache_free(&cache);
}

static void verify_counts_and_prune_removes(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 700), b = entry_of(2, 900);
    char path[512], readme[128];
    unsigned char *data = need(1 << 16);
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    only_file(box, path, sizeof path);
    size_t size = read_file(path, data, 1 << 16);
    data[size / 2] ^= 4;
    write_file(path, data, size);
    OK(sp_cache_store(&cache, b.name, b.key, &b.image));
    snprintf(readme, sizeof readme, "%s/README", box->cache);
    write_file(readme, "mine", 4);
    splat_cache_info info = info_of(sp_cache_verify, &cache);
    assert_string_equal(info.directory, box->cache);
    assert_int_equal(info.entries, 1);
    assert_int_equal(info.damaged, 1);
    assert_int_equal(access(path, F_OK), 0); /* verify removes nothing */
    splat_cache_info_init(&info);
    OK(sp_cache_prune(&cache, -1, &info));
    assert_int_equal(info.removed, 1);
    assert_int_equal(info.entries, 1);
    assert_int_not_equal(access(path, F_OK), 0);
    must_hit(&cache, &b);
    info = info_of(sp_cache_stat, &cache);
    assert_int_equal(info.entries, 1);
    assert_true(info.bytes > 900);
    info = info_of(sp_cache_clear, &cache);
    assert_int_equal(info.removed, 1);
    assert_int_equal(access(readme, F_OK), 0); /* what is not a cache entry stays */
    assert_int_equal(count_files(box->cache), 1);
    must_miss(&cache, &b, "a cleared cache");
    free(data);
    entry_free(&a);
    entry_free(&b);
    sp_cache_free(&cache);
}

static void an_absent_folder_is_an_empty_cache(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    assert_int_equal(info_of(sp_cache_stat, &cache).entries, 0);
    assert_int_equal(info_of(sp_cache_verify, &cache).damaged, 0);
    assert_int_equal(info_of(sp_cache_clear, &cache).removed, 0);
    sp_cache_free(&cache);
}

/* ---- Modes and folders ---- */

static void read_only_reads_and_off_does_neither(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache on = cache_in(box, SPLAT_CACHE_ON, 0), ro = cache_in(box, SPLAT_CACHE_READ_ONLY, 0);
    struct sp_cache off = cache_in(box, SPLAT_CACHE_OFF, 0);
    struct entry a = entry_of(1, 700), b = entry_of(2, 10);
    REFUSED(sp_cache_store(&ro, a.name, a.key, &a.image), SPLAT_UNSUPPORTED, "read-only");
    REFUSED(sp_cache_store(&off, a.name, a.key, &a.image), SPLAT_UNSUPPORTED, "off");
    assert_int_equal(count_files(box->cache), -1);
    OK(sp_cache_store(&on, a.name, a.key, &a.image));
    must_hit(&ro, &a);
    must_miss(&ro, &b, "an absent entry");
    must_miss(&off, &a, "a cache that is off");
    char path[512];
    only_file(box, path, sizeof path);
    write_file(path, "damaged", 7);
    must_miss(&ro, &a, "a damaged entry");
    assert_int_equal(access(path, F_OK), 0); /* read-only removes nothing */
    entry_free(&a);
    entry_free(&b);
    sp_cache_free(&on);
    sp_cache_free(&ro);
    sp_cache_free(&off);
}

static void the_environment_names_mode_and_folder(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache;
    splat_context_options options;
    char want[128];
    splat_context_options_init(&options);
    static const struct {
        const char *value;
        enum splat_cache_mode mode;
    } modes[] = {
        {"on", SPLAT_CACHE_ON}, {"ro", SPLAT_CACHE_READ_ONLY}, {"off", SPLAT_CACHE_OFF}, {NULL, SPLAT_CACHE_ON}};
    setenv("SPLAT_CACHE_DIR", box->cache, 1);
    for (int k = 0; k < 4; k++) {
        if (modes[k].value)
            setenv("SPLAT_CACHE", modes[k].value, 1);
        else
            unsetenv("SPLAT_CACHE");
        OK(sp_cache_init(&cache, &options));
        assert_int_equal(cache.mode, modes[k].mode);
        if (cache.mode != SPLAT_CACHE_OFF)
            assert_string_equal(cache.directory, box->cache);
        sp_cache_free(&cache);
    }
    setenv("SPLAT_CACHE", "perhaps", 1);
    REFUSED(sp_cache_init(&cache, &options), SPLAT_INVALID, "SPLAT_CACHE", "perhaps", "on, ro or off");
    options.cache_mode = SPLAT_CACHE_ON; /* what the program says goes before the environment */
    OK(sp_cache_init(&cache, &options));
    sp_cache_free(&cache);
    unsetenv("SPLAT_CACHE");
    unsetenv("SPLAT_CACHE_DIR");
    setenv("XDG_CACHE_HOME", box->folder, 1);
    OK(sp_cache_init(&cache, &options));
    snprintf(want, sizeof want, "%s/splat", box->folder);
    assert_string_equal(cache.directory, want);
    sp_cache_free(&cache);
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", box->folder, 1);
    OK(sp_cache_init(&cache, &options));
    snprintf(want, sizeof want, "%s/.cache/splat", box->folder);
    assert_string_equal(cache.directory, want);
    struct entry a = entry_of(1, 10);
    OK(sp_cache_store(&cache, a.name, a.key, &a.image)); /* parents are made as well */
    must_hit(&cache, &a);
    entry_free(&a);
    sp_cache_free(&cache);
    assert_int_equal(count_files(box->cache), -1);
}

static void folders_that_others_can_write_are_refused(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 700);
    static const mode_t bad[] = {0777, 0702, 0720, 0722, 01777};
    for (int k = 0; k < 5; k++) {
        OK(sp_cache_store(&cache, a.name, a.key, &a.image));
        must_hit(&cache, &a);
        assert_int_equal(chmod(box->cache, bad[k]), 0);
        int warnings = box->warnings;
        must_miss(&cache, &a, "a folder that others can write");
        REFUSED(sp_cache_store(&cache, a.name, a.key, &a.image), SPLAT_IO, box->cache);
        assert_true(box->warnings > warnings); /* somebody should know why the cache does not work */
        assert_int_equal(chmod(box->cache, 0700), 0);
    }
    must_hit(&cache, &a);
    entry_free(&a);
    sp_cache_free(&cache);
}

/* Runs `body` in a child without root's powers, to whom the cache folder may be given first. */
static void as_nobody(struct sandbox *box, int give_folder, void (*body)(struct sandbox *box))
{
    if (geteuid() == 0) {
        assert_int_equal(chmod(box->folder, 0755), 0);
        assert_int_equal(chown(box->folder, 65534, 65534), 0);
        if (give_folder) {
            char command[200];
            snprintf(command, sizeof command, "chown -R 65534:65534 %s", box->cache);
            assert_int_equal(system(command), 0);
        }
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            _exit(3);
        body(box);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0)
        FAIL("the child ended with %d: its words are above", status);
}

#define CHILD_CHECK(condition)                                                                                     \
    do {                                                                                                           \
        if (!(condition)) {                                                                                        \
            fprintf(stderr, "%s:%d: %s is false (last error: %s)\n", __FILE__, __LINE__, #condition,               \
                    splat_last_error());                                                                           \
            _exit(1);                                                                                              \
        }                                                                                                          \
    } while (0)

static void use_read_only_folder(struct sandbox *box)
{
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 700), b = entry_of(2, 10);
    struct sp_image image;
    int found = 0;
    CHILD_CHECK(sp_cache_load(&cache, a.name, a.key, &image, &found) == SPLAT_OK && found == 1);
    CHILD_CHECK(sp_cache_store(&cache, b.name, b.key, &b.image) == SPLAT_IO);
    CHILD_CHECK(strstr(splat_last_error(), box->cache) != NULL);
    CHILD_CHECK(sp_cache_load(&cache, b.name, b.key, &image, &found) == SPLAT_OK && found == 0);
}

static void a_folder_without_write_permission_still_reads(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 700);
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    assert_int_equal(chmod(box->cache, 0500), 0);
    as_nobody(box, 1, use_read_only_folder);
    assert_int_equal(count_files(box->cache), 1);
    entry_free(&a);
    sp_cache_free(&cache);
}

static void use_foreign_folder(struct sandbox *box)
{
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 700);
    struct sp_image image;
    int found = 1;
    CHILD_CHECK(sp_cache_load(&cache, a.name, a.key, &image, &found) == SPLAT_OK && found == 0);
    CHILD_CHECK(sp_cache_store(&cache, a.name, a.key, &a.image) == SPLAT_IO);
    CHILD_CHECK(strstr(splat_last_error(), box->cache) != NULL);
    CHILD_CHECK(strstr(splat_last_error(), "belongs to user 12345") != NULL);
}

static void another_users_folder_is_refused(void **state)
{
    struct sandbox *box = *state;
    if (geteuid() != 0) {
        print_message("skipped: only root can give a folder to another user\n");
        skip();
    }
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 700);
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    char path[512];
    only_file(box, path, sizeof path);
    assert_int_equal(chmod(path, 0644), 0); /* all may read the entry: it is its folder's owner that matters */
    assert_int_equal(chown(box->cache, 12345, 12345), 0);
    assert_int_equal(chmod(box->cache, 0755), 0);
    as_nobody(box, 0, use_foreign_folder);
    entry_free(&a);
    sp_cache_free(&cache);
}

static void impossible_folders_fail_with_a_sentence(void **state)
{
    struct sandbox *box = *state;
    char file[128];
    snprintf(file, sizeof file, "%s/file", box->folder);
    write_file(file, "x", 1);
    snprintf(box->cache, sizeof box->cache, "%s/file/cache", box->folder);
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 0);
    struct entry a = entry_of(1, 700);
    must_miss(&cache, &a, "a folder inside a file");
    REFUSED(sp_cache_store(&cache, a.name, a.key, &a.image), SPLAT_IO, box->cache, "Not a directory");
    entry_free(&a);
    sp_cache_free(&cache);
}

/* ---- Bounds ---- */

static void age(const struct sandbox *box, const struct sp_cache *cache, int seconds)
{
    DIR *folder = opendir(box->cache);
    (void)cache;
    assert_non_null(folder);
    for (struct dirent *d; (d = readdir(folder));)
        if (d->d_name[0] != '.') {
            struct stat info;
            assert_int_equal(fstatat(dirfd(folder), d->d_name, &info, 0), 0);
            struct timespec times[2] = {{info.st_mtim.tv_sec - seconds, 0}, {info.st_mtim.tv_sec - seconds, 0}};
            assert_int_equal(utimensat(dirfd(folder), d->d_name, times, 0), 0);
        }
    closedir(folder);
}

static void the_least_recently_used_goes_first(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 100000);
    struct entry entries[8];
    for (int k = 0; k < 8; k++)
        entries[k] = entry_of(k, 20000);
    for (int k = 0; k < 4; k++) { /* 4 of about 22 kB fit */
        OK(sp_cache_store(&cache, entries[k].name, entries[k].key, &entries[k].image));
        age(box, &cache, 1000);
    }
    assert_int_equal(info_of(sp_cache_stat, &cache).entries, 4);
    must_hit(&cache, &entries[0]); /* used again: now the youngest */
    for (int k = 4; k < 6; k++) {
        OK(sp_cache_store(&cache, entries[k].name, entries[k].key, &entries[k].image));
        assert_true(info_of(sp_cache_stat, &cache).bytes <= 100000);
        age(box, &cache, 10);
    }
    must_miss(&cache, &entries[1], "the oldest");
    must_miss(&cache, &entries[2], "the second oldest");
    must_hit(&cache, &entries[0]);
    must_hit(&cache, &entries[4]);
    must_hit(&cache, &entries[5]);
    splat_cache_info info;
    splat_cache_info_init(&info);
    OK(sp_cache_prune(&cache, 50000, &info));
    assert_true(info.bytes <= 50000 && info.entries == 2 && info.removed == 2);
    OK(sp_cache_prune(&cache, 0, &info));
    assert_int_equal(info_of(sp_cache_stat, &cache).entries, 0);
    for (int k = 0; k < 8; k++)
        entry_free(&entries[k]);
    sp_cache_free(&cache);
}

static void clocks_may_be_wrong(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 100000);
    struct entry a = entry_of(1, 20000), b = entry_of(2, 20000);
    OK(sp_cache_store(&cache, a.name, a.key, &a.image));
    age(box, &cache, -400000000); /* a dozen years ahead */
    must_hit(&cache, &a);
    age(box, &cache, 1900000000); /* before the epoch, nearly */
    must_hit(&cache, &a);
    OK(sp_cache_store(&cache, b.name, b.key, &b.image));
    must_hit(&cache, &a);
    entry_free(&a);
    entry_free(&b);
    sp_cache_free(&cache);
}

/* ---- Several processes ---- */

static void store_forever(struct sandbox *box, size_t cubin_bytes)
{
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 1 << 30);
    struct entry a = entry_of(1, cubin_bytes);
    for (;;)
        sp_cache_store(&cache, a.name, a.key, &a.image);
}

static void a_killed_writer_leaves_nothing_wrong(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 1 << 30);
    struct entry a = entry_of(1, 2000000);
    struct rng rng = {1};
    int hits = 0;
    for (int round = 0; round < 25; round++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            store_forever(box, 2000000);
        /* Where even one store takes longer, as under a sanitizer, the writer lives longer until it gets one done.
         */
        struct timespec pause = {0, (long)rng_between(&rng, 100000, 30000000) * (hits ? 1 : 1 + round)};
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        struct sp_image image;
        int found = 0;
        OK(sp_cache_load(&cache, a.name, a.key, &image, &found));
        if (found) {
            hits++;
            check_image(&image, &a.image);
            sp_image_free(&image);
        }
        assert_int_equal(info_of(sp_cache_verify, &cache).damaged, 0);
    }
    assert_int_equal(box->warnings, 0);
    assert_true(hits > 0);
    age(box, &cache, 90000); /* left-overs of a living writer are young and stay; of a dead one they grow old */
    splat_cache_info info;
    splat_cache_info_init(&info);
    OK(sp_cache_prune(&cache, -1, &info));
    assert_int_equal(count_files(box->cache), 1);
    must_hit(&cache, &a);
    entry_free(&a);
    sp_cache_free(&cache);
}

static void writers_and_readers_never_disagree(void **state)
{
    struct sandbox *box = *state;
    struct sp_cache cache = cache_in(box, SPLAT_CACHE_ON, 1 << 30);
    struct entry a = entry_of(1, 200000);
    pid_t children[3];
    fflush(NULL);
    for (int k = 0; k < 3; k++)
        if ((children[k] = fork()) == 0)
            store_forever(box, 200000);
    int hits = 0;
    for (int round = 0; round < 300; round++) {
        struct sp_image image;
        int found = 0;
        OK(sp_cache_load(&cache, a.name, a.key, &image, &found));
        if (found) {
            hits++;
            check_image(&image, &a.image);
            sp_image_free(&image);
        } else if (hits) {
            FAIL("an entry that is replaced was gone for a moment (round %d)", round);
        } else {
            struct timespec pause = {0, 1000000};
            nanosleep(&pause, NULL);
        }
    }
    for (int k = 0; k < 3; k++) {
        kill(children[k], SIGKILL);
        waitpid(children[k], NULL, 0);
    }
    assert_true(hits > 0);
    assert_int_equal(box->warnings, 0);
    entry_free(&a);
    sp_cache_free(&cache);
}

int main(void)
{
    unsetenv("SPLAT_CACHE");
    unsetenv("SPLAT_CACHE_DIR");
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_sandbox, close_sandbox)
    const struct CMUnitTest tests[] = {
        TEST(what_is_stored_is_found),
        TEST(another_key_of_the_same_name_is_a_miss),
        TEST(keys_hold_all_that_decides_the_cubin),
        TEST(truncated_entries_are_misses),
        TEST(flipped_bytes_are_misses),
        TEST(strangers_under_an_entrys_name_are_misses),
        TEST(verify_counts_and_prune_removes),
        TEST(an_absent_folder_is_an_empty_cache),
        TEST(read_only_reads_and_off_does_neither),
        TEST(the_environment_names_mode_and_folder),
        TEST(folders_that_others_can_write_are_refused),
        TEST(a_folder_without_write_permission_still_reads),
        TEST(another_users_folder_is_refused),
        TEST(impossible_folders_fail_with_a_sentence),
        TEST(the_least_recently_used_goes_first),
        TEST(clocks_may_be_wrong),
        TEST(a_killed_writer_leaves_nothing_wrong),
        TEST(writers_and_readers_never_disagree),
    };
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
