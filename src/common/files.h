/* Files written whole, so that a reader sees the old content, the new one or none. Failures are errno values. */
#ifndef SP_FILES_H
#define SP_FILES_H

#include <stddef.h>
#include <sys/types.h>

/* Creates `path` and what is missing above it, each with `mode`. 0 when it is there in the end. */
int sp_make_folders(const char *path, mode_t mode);

/* Reads exactly `size` bytes from where fd stands; ENODATA when the file ends before. */
int sp_read_exactly(int fd, void *data, size_t size);

/* Puts a file `name` of these bytes into the open folder, in place of one that was there: written as `temporary`
 * (must not exist) with mode 0600, flushed to the disk, renamed. On failure `temporary` is gone and `name` as
 * before, except that a failure to flush the folder comes after the rename. */
int sp_replace_file(int folder, const char *temporary, const char *name, const void *data, size_t size);

#endif
