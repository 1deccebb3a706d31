/* NumPy's .npy arrays: versions 1.0, 2.0 and 3.0, little endian, C order. */
#ifndef SP_CLI_NPY_H
#define SP_CLI_NPY_H

#include "cli/cli.h"

enum { SP_NPY_MAX_DIMS = 8 };

/* A parsed header: `data` points into the file, whose size has been checked against shape and item size. */
struct sp_npy {
    char type[8]; /* such as "<f4" or "|b1" */
    int dims;
    int64_t shape[SP_NPY_MAX_DIMS];
    int64_t items;
    int item_bytes;
    const uint8_t *data;
};

/* Checks everything before a byte of the array is used: magic, version, header, order, type, shape, size. `path` is
 * for the sentences, `wanted` says what must be there instead of a type that is not read. SPLAT_INVALID. */
enum splat_status sp_npy_parse(const char *path, const struct sp_file *file, const char *wanted,
                               struct sp_npy *array);

/* The sentence for an array of the wrong type. */
enum splat_status sp_npy_wrong_type(const char *path, const struct sp_npy *array, const char *wanted);

/* Writes a C-order float32 array, version 1.0, to a file that takes its name when whole. "-" is stdout. */
enum splat_status sp_npy_write_float(const char *path, const float *data, int dims, const int64_t *shape);

#endif
