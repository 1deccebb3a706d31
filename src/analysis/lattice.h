/* Lattice: a mask, or a part of it, as a mask of positions under two views (view.h).
 *
 * The parts of a mask are disjoint and together the whole, so that each can have views of its own:
 *
 *     PART_ALL      every pair
 *     PART_STRIDED  pairs of runs whose blocks are at most `width` wide, and which are single or stand a multiple
 * of `stride` apart PART_REST     the others; where a wide block begins or ends just where a strided run would go
 * on, its first or last `width` columns belong to the strided part PART_LONG     every pair of the rows with more
 * than `width` pairs PART_SHORT    every pair of the other rows
 */
#ifndef SP_LATTICE_H
#define SP_LATTICE_H

#include "analysis/view.h"

enum sp_part_kind { SP_PART_ALL, SP_PART_STRIDED, SP_PART_REST, SP_PART_LONG, SP_PART_SHORT };

struct sp_part {
    enum sp_part_kind kind;
    int64_t stride, width;
};

/* *made becomes the part as an ACSR of row positions x column positions, or NULL when these views do not suit it:
 * rows of bits, rows that fall into too many pieces, or keys beyond a column view that is shorter than they.
 * SPLAT_NO_MEMORY. */
enum splat_status sp_lattice_acsr(const splat_acsr *acsr, const struct sp_view *rows, const struct sp_view *columns,
                                  const struct sp_part *part, splat_acsr **made);

/* An estimate, mostly from below, of the column tiles of `tile` positions that a row tile touches in the part: the
 * mean over `samples` places, spread evenly, of what one row touches there, or three rows of a tile in token order
 * when they touch different zones. HUGE_VAL when a row falls into too many pieces. Quick: for leaving out layouts
 * that cannot pay. */
enum splat_status sp_lattice_sample(const splat_acsr *acsr, const struct sp_view *rows,
                                    const struct sp_view *columns, const struct sp_part *part, int64_t tile,
                                    int64_t samples, double *tiles);

#endif
