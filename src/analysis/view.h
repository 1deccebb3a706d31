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

/* The zone where the last, incomplete row of the grid ends inside the zone, or -1. Its tokens of that row cannot be
 * part of a copy: a box that holds them would reach beyond the tensor. */
int32_t sp_view_cut_zone(const struct sp_view *view);

int64_t sp_view_positions(const struct sp_view *view);

/* Tokens of a zone. */
int64_t sp_view_zone_ranks(const struct sp_view *view, int64_t zone);

/* The token at a position, or -1 where there is none. */
int64_t sp_view_token(const struct sp_view *view, int64_t position);

/* Visits the real tiles of `tile` tokens in ascending order: *position is 0 at first, then what was returned plus
 * `tile`. False when there is none left; else *position is the next tile's first position and *count its tokens. */
bool sp_view_next_tile(const struct sp_view *view, int64_t tile, int64_t *position, int64_t *count);

#endif
