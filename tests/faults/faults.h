/* What the fault tests share: a folder of their own, the stand-ins of NVRTC and the driver, contexts.
 *
 * SPLAT_DEEP in the environment asks for the sizes of `make check-deep`.
 */
#ifndef FAULTS_H
#define FAULTS_H

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../unit/support.h"

#include "stand_in.h"

struct sandbox {
    char folder[64], cache[160];
    int infos, warnings;
    char last[600], warning[600];
};

static inline void keep_last(enum splat_log_level level, const char *message, void *user)
{
    struct sandbox *box = user;
    box->infos += level == SPLAT_LOG_INFO;
    box->warnings += level == SPLAT_LOG_WARNING;
    snprintf(box->last, sizeof box->last, "%s", message);
    if (level == SPLAT_LOG_WARNING)
        snprintf(box->warning, sizeof box->warning, "%s", message);
}

static inline int deep(void)
{
    const char *word = getenv("SPLAT_DEEP");
    return word && *word;
}

static inline int open_sandbox(void **state)
{
    static struct sandbox box;
    memset(&box, 0, sizeof box);
    /* In memory where there is such a folder: thousands of stores would wait for the disk. */
    strcpy(box.folder,
           access("/dev/shm", W_OK) == 0 ? "/dev/shm/splat_test_faults_XXXXXX" : "/tmp/splat_test_faults_XXXXXX");
    assert_non_null(mkdtemp(box.folder));
    snprintf(box.cache, sizeof box.cache, "%s/cache", box.folder);
    *state = &box;
    return 0;
}

static inline int close_sandbox(void **state)
{
    struct sandbox *box = *state;
    char command[256];
    snprintf(command, sizeof command, "chmod -R u+rwx %s; rm -rf %s", box->folder, box->folder);
    return system(command);
}

/* Files beside this program. */
static inline void beside(const char *name, char path[PATH_MAX])
{
    ssize_t size = readlink("/proc/self/exe", path, PATH_MAX - 64);
    assert_true(size > 0);
    path[size] = 0;
    strcpy(strrchr(path, '/') + 1, name);
}

/* Before the library first looks for either. */
static inline struct stand_in *use_stand_in(const char *name)
{
    char path[PATH_MAX];
    beside(name, path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        FAIL("%s", dlerror());
    struct stand_in *control = dlsym(library, "stand_in");
    assert_non_null(control);
    if (strstr(name, "nvrtc"))
        setenv("SPLAT_NVRTC", path, 1);
    return control;
}

static inline enum splat_status context_in(struct sandbox *box, enum splat_cache_mode mode, splat_context **context)
{
    splat_context_options options;
    splat_context_options_init(&options);
    options.cache_dir = box->cache;
    options.cache_mode = mode;
    options.log = keep_last;
    options.log_user = box;
    options.threads = 2;
    return splat_context_create(&options, context);
}

static inline int count_files(const char *path, const char *prefix)
{
    DIR *folder = opendir(path);
    int count = 0;
    if (!folder)
        return -1;
    for (struct dirent *d; (d = readdir(folder));)
        count += d->d_name[0] != '.' && strncmp(d->d_name, prefix, strlen(prefix)) == 0;
    closedir(folder);
    return count;
}

/* The cache folder and the files in it. */
static inline void remove_cache(const struct sandbox *box)
{
    DIR *folder = opendir(box->cache);
    if (!folder)
        return;
    for (struct dirent *d; (d = readdir(folder));)
        unlinkat(dirfd(folder), d->d_name, 0);
    closedir(folder);
    assert_int_equal(rmdir(box->cache), 0);
}

static inline int open_descriptors(void)
{
    return count_files("/proc/self/fd", "");
}

#endif
