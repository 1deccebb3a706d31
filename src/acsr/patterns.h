/* The table of primitive patterns. Adding one touches patterns.c alone: its row function and its line in the table.
 */
#ifndef SP_PATTERNS_H
#define SP_PATTERNS_H

#include "acsr/sym.h"

/* Arguments as written: numbers in order, where a ';' stood, and the named ones (0 when absent). */
struct sp_args {
    int64_t *values;
    int64_t *derived; /* of as many numbers: see SP_ANY_*; else NULL */
    int count;
    int split; /* index of the first value after ';', or 0 */
    int64_t dilation, stride;
};

/* max_args of patterns that take any number of values, and what is derived from those. */
enum {
    SP_ANY_SUMMED = -1, /* derived[k] = values[0] + ... + values[k] */
    SP_ANY_SORTED = -2  /* the values in descending order */
};

/* Lengths an argument check may need. */
struct sp_shape {
    int64_t q_len, kv_len;
};

struct sp_primitive {
    const char *name;
    const char *usage;      /* "window(l, r)" */
    const char *formula;    /* "-l <= j-i-off <= r" */
    int min_args, max_args; /* values; max_args below 0 = any number */
    bool named;             /* takes dilation= and stride= */
    /* Checks arguments; on failure writes one clause ("r is -3; it must be from 0 to 1073741824") to message. */
    bool (*check)(const struct sp_args *args, const struct sp_shape *shape, char message[200]);
    /* Pushes the runs of the row, ascending. */
    void (*row)(struct sp_row_eval *eval, const struct sp_args *args, struct sp_runs *out);
};

extern const struct sp_primitive sp_primitives[];
extern const int sp_primitive_count;

/* The r distinct block columns of block row I under random_blocks(b, r, seed), of n there are, ascending.
 * Generator: a splitmix64 stream whose state starts at seed * 0x9E3779B97F4A7C15 + I * 0xD1B54A32D192ED03 (mod
 * 2^64); then Floyd's sampling: for k = n-r .. n-1 draw t = next mod (k+1) and take t, or k when t is taken
 * already. r >= n takes all.
 * False without memory. */
bool sp_random_columns(int64_t seed, int64_t block_row, int64_t n, int64_t r, int64_t *columns);

#endif
