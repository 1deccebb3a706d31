/* How the CPU walks a plan: tokens of tiles, allowed pairs, the pass of a (batch, head). */
#ifndef SP_CPU_TILES_H
#define SP_CPU_TILES_H

#include "analysis/plan.h"

/* The pass of one (batch, head) in a launch. */
const struct sp_pass *sp_cpu_pass_of(const splat_plan *plan, int64_t launch, int64_t batch, int64_t head);

/* The tokens of positions [first, first + count), -1 where there is none; how many of them lie before the end of
 * the zone. */
int64_t sp_cpu_find_tokens(const struct sp_view *view, int64_t first, int64_t count, int64_t *tokens);

/* Sets the `cols` bytes that row r of tile `t` of the segment allows; the others stay. The tile's first row and
 * column are positions row0 and col0. */
void sp_cpu_allow_row(const splat_plan *plan, const struct sp_segment *segment, int32_t t, int64_t row0,
                      int64_t col0, int64_t cols, int64_t r, uint8_t *allowed);

#endif
