/* Rows evaluated many at once: run lists whose numbers are affine in a row counter t.
 *
 * Takes a row, a step and how many rows to hope for; a row source then computes the runs of row `row + t*step` with
 * affine numbers. Every decision (is a < b? do these blocks touch?) is taken for t = 0, and the first t at which it
 * would come out differently bounds `valid`. When the evaluation ends, its result is exact for 0 <= t < valid. So a
 * window over a million rows costs three evaluations, and no expression ever needs a q_len x kv_len array.
 *
 * A run list is ascending, its blocks are maximal (two blocks never touch) and the hulls of its runs do not
 * overlap.
 */
#ifndef SP_SYM_H
#define SP_SYM_H

#include <stdbool.h>

#include "splat.h"

/* v + d*t */
struct sp_aff {
    int64_t v, d;
};

/* `count` blocks of `width` columns, one every `stride`. A single block has stride 0 and count {1, 0}. */
struct sp_sym_run {
    struct sp_aff start, count, width;
    int64_t stride;
};

struct sp_runs {
    struct sp_sym_run *runs;
    int64_t count, capacity;
};

struct sp_row_eval {
    int64_t q_len, kv_len;
    int64_t off;       /* kv_len - q_len, or 0 for top-left alignment */
    int64_t row, step; /* evaluates rows row + t*step */
    int64_t valid;     /* in: rows wanted; out: rows for which the result holds, >= 1 */
    bool failed;       /* out of memory: the result is worthless */
    const uint64_t
        *bits; /* set by a source that holds the row as the bits of an irregular row (acsr.h): no runs then */
};

/* Something that yields rows. `row` fills `out` (cleared by the callee), or sets eval->bits, and shrinks
 * eval->valid. */
struct sp_row_source {
    void (*row)(struct sp_row_source *self, struct sp_row_eval *eval, struct sp_runs *out);
    /* Where all of a source's eval->bits point into: distinct rows in the order of their first appearance. The ACSR
     * may take the array over, and then sets this to NULL. */
    uint64_t *pool;
    int64_t pool_words;
};

/* ---- Affine numbers ---- */

static inline struct sp_aff sp_const(int64_t v)
{
    return (struct sp_aff){v, 0};
}

static inline struct sp_aff sp_add(struct sp_aff a, struct sp_aff b)
{
    return (struct sp_aff){a.v + b.v, a.d + b.d};
}

static inline struct sp_aff sp_sub(struct sp_aff a, struct sp_aff b)
{
    return (struct sp_aff){a.v - b.v, a.d - b.d};
}

static inline struct sp_aff sp_addc(struct sp_aff a, int64_t c)
{
    return (struct sp_aff){a.v + c, a.d};
}

static inline struct sp_aff sp_mulc(struct sp_aff a, int64_t c)
{
    return (struct sp_aff){a.v * c, a.d * c};
}

/* The row index itself. */
static inline struct sp_aff sp_row_index(const struct sp_row_eval *eval)
{
    return (struct sp_aff){eval->row, eval->step};
}

bool sp_lt(struct sp_row_eval *eval, struct sp_aff a, struct sp_aff b); /* a < b */
bool sp_eq(struct sp_row_eval *eval, struct sp_aff a, struct sp_aff b);
struct sp_aff sp_min(struct sp_row_eval *eval, struct sp_aff a, struct sp_aff b);
struct sp_aff sp_max(struct sp_row_eval *eval, struct sp_aff a, struct sp_aff b);
struct sp_aff sp_floordiv(struct sp_row_eval *eval, struct sp_aff a, int64_t c); /* c > 0, towards -infinity */
struct sp_aff sp_mod(struct sp_row_eval *eval, struct sp_aff a, int64_t c);      /* 0 <= result < c */

/* The value at t = 0, with validity cut to the rows that share it. */
int64_t sp_concrete(struct sp_row_eval *eval, struct sp_aff a);

/* ---- Run lists ---- */

void sp_runs_free(struct sp_runs *runs);

/* Appends [begin, end) (nothing when empty), after everything already in the list; joins it to a block it touches.
 */
void sp_push_block(struct sp_row_eval *eval, struct sp_runs *out, struct sp_aff begin, struct sp_aff end);

/* Appends the part of a run that lies in [begin, end), after everything already in the list. stride >= width. */
void sp_push_clipped(struct sp_row_eval *eval, struct sp_runs *out, const struct sp_sym_run *run,
                     struct sp_aff begin, struct sp_aff end);

/* The same, clipped to [0, kv_len): what primitives use. `count` may reach beyond. */
void sp_push_run(struct sp_row_eval *eval, struct sp_runs *out, struct sp_aff start, int64_t stride,
                 struct sp_aff count, struct sp_aff width);
void sp_push_span(struct sp_row_eval *eval, struct sp_runs *out, struct sp_aff begin, struct sp_aff end);

/* out = a op b. */
void sp_runs_combine(struct sp_row_eval *eval, enum splat_set_op op, const struct sp_runs *a,
                     const struct sp_runs *b, struct sp_runs *out);
void sp_runs_complement(struct sp_row_eval *eval, const struct sp_runs *a, struct sp_runs *out);

/* Rewrites a list in the canonical row encoding (acsr.h). Stops when that has more than `most` runs. */
void sp_runs_canonical(struct sp_row_eval *eval, const struct sp_runs *in, int64_t most, struct sp_runs *out);

#endif
