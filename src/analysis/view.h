/* Views: how tiles walk a sequence axis.
 *
 * A view (n0, c) lays token t = n0*y + x out as a grid of rows of n0 tokens and cuts the grid into zones, vertical
 * strips of c tokens: zone z holds x in [z*c, z*c + c). The tokens of a zone, in their own order, have ranks 0, 1,
 * ...; rank r is (y, x) = (r / c, z*c + r % c). A tile of M tokens is M consecutive ranks of one zone, a box of M/c
 * rows and c columns of the grid, which is one bulk copy.
 *
 *     linear   n0 = 1, c = 1     consecutive tokens
 *     residue  c = 1             tokens n0 apart
 *     comb     some zones used   c tokens of every n0
 *     grid     all zones used    patches of an image n0 wide
 *
 * Positions number the tokens tile by tile: position z*pitch + r. `pitch` is a multiple of every tile size, so that
 * tiles never straddle zones; positions between a zone's last token and the next zone hold nothing. A mask under
 * views is a mask of positions, and everything after the views (tiles, segments, predicates) speaks of positions.
 *
 * Where n0 does not divide the length, the last grid row is not complete. Zones that end before its end have a rank
 * more for each column. The zone that its end cuts comes twice: once with that row, holding the columns before the
 * end, and once without, holding the others. Its other ranks hold nothing, so that every zone is a box of one of
 * two grids, of n0 columns and the whole rows, or of the columns before the end and one row more.
 */
#ifndef SP_VIEW_H
#define SP_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "acsr/acsr.h"
#include "analysis/plan.h"

/* Every tile height and width divides it. */
enum { SP_ZONE_ALIGN = 1920 };

/* c is a power of two up to 32, which divides every tile size, and divides n0; n0 of a linear view is 1. */
struct sp_view sp_view_make(enum sp_view_kind kind, int64_t n0, int64_t c, int64_t len);

/* Whether the view has fewer than 2^31 positions. */
bool sp_view_fits(const struct sp_view *view);

int64_t sp_view_positions(const struct sp_view *view);

/* A zone's place in the grid: rank 0 is in column `x`; its tokens are in columns [begin, end) of `rows` grid rows.
 */
struct sp_strip {
    int64_t x, begin, end, rows;
};

struct sp_strip sp_view_strip(const struct sp_view *view, int64_t zone);

/* The zone that holds column x of the grid, and whether some zone comes twice. */
int64_t sp_view_zone_of(const struct sp_view *view, int64_t x);
bool sp_view_is_cut(const struct sp_view *view);

/* Ranks of a zone, those that hold nothing included. */
int64_t sp_view_zone_ranks(const struct sp_view *view, int64_t zone);

/* The token at a position, or -1 where there is none. */
int64_t sp_view_token(const struct sp_view *view, int64_t position);

/* Visits the real tiles of `tile` tokens in ascending order: *position is 0 at first, then what was returned plus
 * `tile`. False when there is none left; else *position is the next tile's first position and *count its tokens. */
bool sp_view_next_tile(const struct sp_view *view, int64_t tile, int64_t *position, int64_t *count);

#endif
