/* Tensors of `splatc run`: contiguous [batch, heads, rows, dim] arrays in host memory, in the kernel's dtype. */
#ifndef SP_CLI_TENSORS_H
#define SP_CLI_TENSORS_H

#include "cli/cli.h"

struct sp_host_tensor {
    enum splat_dtype dtype;
    int64_t shape[4]; /* batch, heads, rows, dim */
    int64_t items;
    size_t bytes;
    void *data; /* owned */
};

/* The shape of a .npy file of rank 4 without converting it. */
enum splat_status sp_tensor_peek(const char *path, int64_t shape[4]);

/* Allocates, contents undefined. */
enum splat_status sp_tensor_make(enum splat_dtype dtype, const int64_t shape[4], struct sp_host_tensor *tensor);
void sp_tensor_free(struct sp_host_tensor *tensor);

/* Reads float32 or float16 from a .npy file and rounds to the dtype, to nearest even. */
enum splat_status sp_tensor_read(const char *path, enum splat_dtype dtype, struct sp_host_tensor *tensor);

/* Fills with random values of mean 0 and variance 1. Value n of stream s under a seed is
 *     z = splitmix64(splitmix64(seed + s) + n),  the sum of z's four 16-bit fields minus 131070, times sqrt(3) /
 * 65536, so that it can be made again anywhere, in any order. Streams: 0 = q, 1 = k, 2 = v. */
void sp_tensor_fill(struct sp_host_tensor *tensor, uint64_t seed, uint64_t stream);

/* splitmix64's output for state z, the mixing step alone. */
uint64_t sp_mix64(uint64_t z);

/* Element n as float. */
float sp_tensor_get(const struct sp_host_tensor *tensor, int64_t n);

#endif
