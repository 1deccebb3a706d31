/* Mask files. What a file is, is told by its first bytes, not by its name. */
#ifndef SP_CLI_MASK_INPUT_H
#define SP_CLI_MASK_INPUT_H

#include "cli/cli.h"

/* pbm.c: a P1 or P4 bitmap, 1 (black) = allowed. Rows are queries. */
enum splat_status sp_pbm_mask(const char *path, const struct sp_file *file, splat_mask **mask);

/* npy.c: a 2-D bool, uint8 or int8 array in C order, non-zero = allowed. The mapped bytes are read in place. */
enum splat_status sp_npy_mask(const char *path, const struct sp_file *file, splat_mask **mask);

#endif
