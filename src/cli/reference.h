/* The double-precision reference that `run --check` compares with. */
#ifndef SP_CLI_REFERENCE_H
#define SP_CLI_REFERENCE_H

#include "cli/tensors.h"

struct sp_check {
    int64_t rows, values, wrong;
    double largest_error; /* of the values that are right */
    double worst_ratio;   /* largest error / its own tolerance, likewise */
    char first[512];      /* a sentence about the first wrong value */
};

/* What was computed. q, k, v and o are [batch, heads, rows, dim]; lse is [batch, heads, q_len] floats. */
struct sp_problem {
    const struct sp_host_tensor *q, *k, *v, *o;
    const float *lse;
    double scale;
    uint64_t seed;
};

/* Recomputes sampled rows of every (batch, head): the first, the last, one with nothing allowed (when there is one)
 * and random ones. Fills *check; a difference is not an error of this call. */
enum splat_status sp_check_rows(const splat_mask *mask, const struct sp_problem *problem, struct sp_check *check);

#endif
