/* Files written whole; folders with their parents. Nothing here knows what the bytes mean. */
#include "common/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int make_folder(const char *path, mode_t mode)
{
    if (mkdir(path, mode) == 0)
        return 0;
    int error = errno;
    struct stat info; /* there already, or on a read-only file system, which is said before EEXIST */
    if (stat(path, &info) != 0)
        return error == EEXIST ? errno : error; /* a dangling link */
    return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
}

int sp_make_folders(const char *path, mode_t mode)
{
    int error = make_folder(path, mode);
    if (error != ENOENT || !*path)
        return error;
    char *part = strdup(path);
    if (!part)
        return ENOMEM;
    error = 0;
    for (char *at = part + 1; !error && (at = strchr(at, '/')); at++) {
        *at = '\0';
        error = make_folder(part, mode);
        *at = '/';
    }
    free(part);
    return error ? error : make_folder(path, mode);
}

int sp_read_exactly(int fd, void *data, size_t size)
{
    char *to = data;
    while (size > 0) {
        ssize_t got = read(fd, to, size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? errno : ENODATA;
        to += got;
        size -= (size_t)got;
    }
    return 0;
}

static int write_all(int fd, const void *data, size_t size)
{
    const char *from = data;
    while (size > 0) {
        ssize_t put = write(fd, from, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? errno : ENOSPC;
        from += put;
        size -= (size_t)put;
    }
    return 0;
}

int sp_replace_file(int folder, const char *temporary, const char *name, const void *data, size_t size)
{
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    int error = write_all(fd, data, size);
    if (!error && fsync(fd) != 0)
        error = errno;
    if (close(fd) != 0 && !error && errno != EINTR)
        error = errno; /* some file systems report a full disk only here */
    if (!error && renameat(folder, temporary, folder, name) != 0)
        error = errno;
    if (error) {
        unlinkat(folder, temporary, 0);
        return error;
    }
    /* Some file systems cannot flush a folder: the rename is then as durable as they make it. */
    if (fsync(folder) != 0 && errno != EINVAL && errno != ENOTSUP)
        return errno;
    return 0;
}
