/* Files in and out: inputs are mapped and never copied; outputs are written beside their name and renamed when
 * whole, so that a failure leaves what was there before. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/error.h"

/* ---- Input ---- */

#define STREAM_MAX ((size_t)1 << 30)

/* For pipes and other things that cannot be mapped. */
static enum splat_status read_all(int fd, const char *path, struct sp_file *file)
{
    size_t capacity = (size_t)1 << 16;
    uint8_t *data = malloc(capacity);
    while (data) {
        ssize_t got = read(fd, data + file->size, capacity - file->size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int error = errno;
            free(data);
            return sp_fail(SPLAT_IO, "file '%s' could not be read: %s", path, strerror(error));
        }
        if (got == 0)
            break;
        file->size += (size_t)got;
        if (file->size == capacity) {
            if (capacity >= STREAM_MAX) {
                free(data);
                return sp_fail(SPLAT_INVALID,
                               "'%s' gave more than %zu bytes; what is not a regular file may give that many", path,
                               STREAM_MAX);
            }
            uint8_t *grown = realloc(data, capacity * 2);
            if (!grown)
                free(data);
            data = grown;
            capacity *= 2;
        }
    }
    if (!data)
        return sp_no_memory(path, capacity);
    file->data = data;
    return SPLAT_OK;
}

enum splat_status sp_file_open(const char *path, struct sp_file *file)
{
    *file = (struct sp_file){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return sp_fail(SPLAT_IO, "file '%s' could not be opened: %s", path, strerror(error));
    }
    enum splat_status status = SPLAT_OK;
    void *map = MAP_FAILED;
    if (S_ISREG(info.st_mode) && info.st_size > 0)
        map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map != MAP_FAILED) {
        *file = (struct sp_file){map, (size_t)info.st_size, 1};
        (void)madvise(map, file->size, MADV_SEQUENTIAL);
    } else {
        status = read_all(fd, path, file);
    }
    close(fd);
    return status;
}

void sp_file_close(struct sp_file *file)
{
    if (file->mapped)
        munmap((void *)file->data, file->size);
    else
        free((void *)file->data);
    *file = (struct sp_file){0};
}

/* ---- Output ---- */

static enum splat_status cannot_write(const char *path, int error)
{
    if (strcmp(path, "-") == 0)
        return sp_fail(SPLAT_IO, "the result could not be written to stdout: %s", strerror(error));
    return sp_fail(SPLAT_IO, "file '%s' could not be written: %s", path, strerror(error));
}

enum splat_status sp_output_failed(const struct sp_output *output, int error)
{
    return cannot_write(output->path, error);
}

/* Devices and pipes (/dev/null, say) are written to directly: renaming onto them would replace them. */
static int written_directly(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

static enum splat_status open_temporary(struct sp_output *output)
{
    output->target = realpath(output->path, NULL);
    if (!output->target)
        output->target = strdup(output->path);
    size_t size = output->target ? strlen(output->target) + 32 : 0;
    output->temporary = output->target ? malloc(size) : NULL;
    if (!output->temporary)
        return sp_no_memory("output path", size);
    snprintf(output->temporary, size, "%s.%ld.tmp", output->target, (long)getpid());
    int fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        int error = errno;
        free(output->temporary);
        output->temporary = NULL; /* not ours to remove */
        return cannot_write(output->path, error);
    }
    output->stream = fdopen(fd, "wb");
    if (!output->stream) {
        int error = errno;
        close(fd);
        return cannot_write(output->path, error);
    }
    return SPLAT_OK;
}

enum splat_status sp_output_open(const char *path, struct sp_output *output)
{
    *output = (struct sp_output){.path = path};
    enum splat_status status = SPLAT_OK;
    if (strcmp(path, "-") == 0) {
        output->stream = stdout;
    } else if (written_directly(path)) {
        output->stream = fopen(path, "wbe");
        if (!output->stream)
            status = cannot_write(path, errno);
    } else {
        status = open_temporary(output);
    }
    if (status != SPLAT_OK)
        sp_output_abandon(output);
    return status;
}

enum splat_status sp_output_commit(struct sp_output *output)
{
    int error = fflush(output->stream) != 0 || ferror(output->stream) ? (errno ? errno : EIO) : 0;
    if (!error && output->temporary && fsync(fileno(output->stream)) != 0)
        error = errno;
    if (output->stream != stdout && fclose(output->stream) != 0 && !error)
        error = errno;
    output->stream = NULL;
    if (!error && output->temporary && rename(output->temporary, output->target) != 0)
        error = errno;
    if (!error) {
        free(output->temporary);
        output->temporary = NULL;
    }
    enum splat_status status = error ? cannot_write(output->path, error) : SPLAT_OK;
    sp_output_abandon(output);
    return status;
}

void sp_output_abandon(struct sp_output *output)
{
    if (output->stream && output->stream != stdout)
        fclose(output->stream);
    if (output->temporary)
        unlink(output->temporary);
    free(output->temporary);
    free(output->target);
    output->stream = NULL;
    output->temporary = output->target = NULL;
}

enum splat_status sp_output_check(const char *path)
{
    struct stat info;
    if (strcmp(path, "-") == 0)
        return SPLAT_OK;
    if (written_directly(path)) { /* opening a pipe would wait for its reader, or end what it reads */
        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
            return cannot_write(path, EISDIR);
        return access(path, W_OK) == 0 ? SPLAT_OK : cannot_write(path, errno);
    }
    struct sp_output output;
    enum splat_status status = sp_output_open(path, &output);
    if (status == SPLAT_OK)
        sp_output_abandon(&output);
    return status;
}
