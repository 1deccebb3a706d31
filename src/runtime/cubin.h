/* Whether an image may be given to the driver, which takes no size and believes what the image says of itself. */
#ifndef SP_CUBIN_H
#define SP_CUBIN_H

#include <stddef.h>

#include "splat.h"

/* Checks a cubin before it is used: an ELF file for CUDA, whose every table and section lies inside its `size`
 * bytes, compiled for a chip whose code runs at `capability` (major * 10 + minor), with a kernel called `entry`.
 * Returns NULL, or what is wrong: a part of a sentence, kept per thread until the next call. */
const char *sp_cubin_fault(const void *cubin, size_t size, int capability, const char *entry);

/* The lowest capability that `arch` was made for. */
int sp_cubin_capability(enum splat_arch arch);

#endif
