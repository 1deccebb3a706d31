/* What explain says about a plan, gathered once for its text and its JSON. */
#ifndef SP_CLI_FINDINGS_H
#define SP_CLI_FINDINGS_H

#include "analysis/kron.h"
#include "splat.h"

enum { SP_PREDICATES_MAX = 16 };

/* The run shape that covers most allowed columns of the sampled rows. */
struct sp_texture {
    int64_t width, stride; /* stride 0: the rows' columns come in one block */
    double blocks;         /* blocks of consecutive columns in a mean row */
};

struct sp_findings {
    splat_plan_info info;
    int64_t all_tiles;                   /* tiles of the whole rectangle, all distinct masks */
    int64_t computed_tiles;              /* full + partial */
    int64_t packed_tiles;                /* the fewest tiles that could hold the allowed pairs */
    int split;                           /* 1: long row tiles come in parts */
    int lattice;                         /* 1: some tiles walk the sequence otherwise than token by token */
    int64_t row_tiles, longest_row_tile; /* row tiles with something to do; most column tiles of one */
    int predicate_count;
    struct {
        const char *name;
        int64_t tiles;
    } predicates[SP_PREDICATES_MAX]; /* of the partial tiles, most tiles first */
    struct sp_texture texture;
    struct sp_kron
        kron; /* of a Kronecker-sparse mask, which a layer (splat_layer) can have for weights; else a is 0 */
};

enum splat_status sp_findings_make(const splat_mask *mask, const splat_plan *plan, struct sp_findings *findings);

/* Writes sentences that say in plain words why the mask is fast or slow. */
void sp_findings_verdict(const struct sp_findings *findings, char *text, size_t size);

#endif
