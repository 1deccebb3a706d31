/* Cover: which column granules a block of rows touches, and which it fills.
 *
 * A granule is SP_GRANULE consecutive columns, granule g = columns [g*SP_GRANULE, (g+1)*SP_GRANULE). Every tile
 * width is a multiple of it, so tiles of any width are classified from one cover. Both lists are exact for every
 * mask.
 */
#ifndef SP_COVER_H
#define SP_COVER_H

#include <stdbool.h>
#include <stdint.h>

#include "acsr/acsr.h"
#include "analysis/rows.h"

enum { SP_GRANULE = 32, SP_BASE_ROWS = 64 }; /* common divisors of all tile widths and heights */

/* Half-open stretch [low, high) of granules, or of tiles. */
struct sp_span {
    int32_t low, high;
};

/* Ascending, disjoint, never adjacent once normalised. A failed allocation sticks. */
struct sp_spans {
    struct sp_span *at;
    int64_t count, capacity;
    bool unsorted, failed;
};

struct sp_cover {
    struct sp_spans touched; /* granules that hold an allowed pair */
    struct sp_spans inner;   /* complete granules in which every pair of every row is allowed */
    bool periodic;           /* rows have blocks closer than a tile is wide: a hint, as is the next */
    bool irregular;          /* bounds of these rows are unlikely to be affine: a hint for the cost model */
};

/* Zero-initialise, reuse, free. walk.groups holds the rows of the last call. */
struct sp_cover_scratch {
    struct sp_row_walk walk;
    struct sp_spans row, kept;
    uint64_t *words; /* bitmaps of the dense path */
    int64_t word_capacity;
};

/* Covers rows [row_begin, row_end), all of them < q_len. */
enum splat_status sp_cover_rows(const splat_acsr *acsr, int64_t row_begin, int64_t row_end,
                                struct sp_cover_scratch *scratch, struct sp_cover *cover);

/* into = into | other by touched, into & other by inner: the cover of both row blocks. */
void sp_cover_join(struct sp_cover *into, const struct sp_cover *other, struct sp_spans *scratch);
void sp_cover_copy(struct sp_cover *into, const struct sp_cover *from);
bool sp_cover_failed(const struct sp_cover *cover);

/* Tiles of `granules` granules each, as spans of tile numbers: touched, and full. */
void sp_cover_tiles(const struct sp_cover *cover, int64_t granules, struct sp_spans *touched,
                    struct sp_spans *full);

/* The same, only counted; `stretches` is an upper bound of the stretches of equal kind. */
struct sp_tile_count {
    int64_t touched, full, stretches;
};
struct sp_tile_count sp_cover_count(const struct sp_cover *cover, int64_t granules);

void sp_spans_push(struct sp_spans *spans, int64_t low, int64_t high);
void sp_spans_free(struct sp_spans *spans);
void sp_cover_free(struct sp_cover *cover);
void sp_cover_scratch_free(struct sp_cover_scratch *scratch);

#endif
