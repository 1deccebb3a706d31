/* Layouts: the ways a mask may be cut into passes and parts with views of their own.
 *
 * Which layouts are worth counting tiles for is read from the ACSRs alone: the strides and widths of runs, and the
 * classes of rows. Every layout is exact; they differ in cost.
 */
#ifndef SP_LAYOUT_H
#define SP_LAYOUT_H

#include "analysis/choose.h"
#include "analysis/lattice.h"

enum { SP_PASSES_MAX = SP_LAUNCHES_MAX, SP_PARTS_MAX = 2, SP_LAYOUTS_MAX = 16 };

/* One launch: row tiles under one row view, each with the column tiles of every part. */
struct sp_layout_pass {
    struct sp_view rows;
    int part_count;
    struct sp_view columns[SP_PARTS_MAX];
    struct sp_part parts[SP_PARTS_MAX];
};

struct sp_layout {
    char name[80];
    int pass_count;
    struct sp_layout_pass passes[SP_PASSES_MAX];
    splat_acsr **acsr; /* [mask][pass][part], under the views; NULL until sp_layout_realise */
    int64_t mask_count;
};

static inline splat_acsr *sp_layout_acsr(const struct sp_layout *layout, int64_t mask, int pass, int part)
{
    return layout->acsr[(mask * SP_PASSES_MAX + pass) * SP_PARTS_MAX + part];
}

/* The layouts that the masks suggest, the plain linear one first. */
int sp_layouts_suggest(const struct sp_mask_set *set, struct sp_layout layouts[SP_LAYOUTS_MAX]);

/* Makes the masks of positions. *suited becomes false, and nothing is kept, when a view does not suit a mask.
 * SPLAT_NO_MEMORY. */
enum splat_status sp_layout_realise(struct sp_layout *layout, const struct sp_mask_set *set, bool *suited);

void sp_layout_free(struct sp_layout *layout);

#endif
