/* Walk: the groups of one row block after another.
 *
 * Where families have a row stride, cutting a block into groups costs a step a row. Most often, though, the rows of
 * the next block continue the same families: then its groups are those of the last block, moved along.
 */
#ifndef SP_ROWS_H
#define SP_ROWS_H

#include <stdint.h>

#include "acsr/acsr.h"

/* What a run of a group gains when its rows move by one family step. */
struct sp_run_drift {
    int32_t start, count, width;
};

/* Zero-initialise, reuse, free. */
struct sp_row_walk {
    struct sp_groups groups; /* of the block in hand */
    const splat_acsr *acsr;
    int64_t row_begin, row_end;
    int64_t steady; /* the block may move by this many rows: its families reach that far. 0: not known */
    struct sp_run_drift *drift; /* one for each template of groups.runs */
    int64_t drift_capacity;
    int64_t wait, pause; /* cuts to let pass before the next look for steadiness; grows while looks are in vain */
};

/* Makes walk->groups the groups of rows [row_begin, row_end). Blocks of one height, visited in ascending order, are
 * fast. The groups are exact, though not always maximal. */
enum splat_status sp_walk_to(struct sp_row_walk *walk, const splat_acsr *acsr, int64_t row_begin, int64_t row_end);
void sp_walk_free(struct sp_row_walk *walk);

#endif
