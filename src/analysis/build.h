/* Builder: the tile lists of a plan, pass by pass, for one chosen tile shape. */
#ifndef SP_TILE_BUILD_H
#define SP_TILE_BUILD_H

#include <stdbool.h>
#include <stdint.h>

#include "acsr/acsr.h"
#include "analysis/alike.h"
#include "analysis/cover.h"
#include "analysis/fit.h"
#include "analysis/plan.h"
#include "analysis/pool.h"
#include "analysis/view.h"

/* A part of a pass: pairs of row and column positions, and the pass's column view these columns belong to. */
struct sp_builder_part {
    const splat_acsr *acsr;
    int32_t view;
};

enum { SP_BUILDER_PARTS_MAX = 4 };

/* A row tile that later ones may be like, in the order of the hashes seen. */
struct sp_builder_model {
    int64_t row0, origins[SP_BUILDER_PARTS_MAX];
    int64_t segment, segment_count;
    int64_t full_tiles, partial_tiles;
};

/* Zero-initialise, then sp_builder_init; sp_builder_free whatever happened. */
struct sp_builder {
    int64_t tile_rows, tile_cols; /* M, N */
    struct sp_row_tile *row_tiles;
    int64_t row_tile_count, row_tile_capacity;
    struct sp_segment *segments;
    int64_t segment_count, segment_capacity;
    int64_t row_tile_first_segment; /* of the row tile in work */
    int32_t view;                   /* of the part in work */
    struct sp_pool predicates;      /* struct sp_predicate; item 0 is zero */
    struct sp_pool tables;          /* 2 * M int32 */
    struct sp_pool bits;            /* M * N/32 uint32 */
    uint32_t predicate_mask;
    int64_t full_tiles, partial_tiles;
    enum splat_status status; /* first failure; later calls do nothing */
    struct sp_hash_set seen;  /* likenesses of row tiles */
    struct sp_builder_model *models;
    int64_t model_capacity;

    /* Scratch */
    struct sp_alike_scratch alike;
    struct sp_cover_scratch cover_scratch[SP_BUILDER_PARTS_MAX];
    struct sp_cover cover;
    struct sp_spans touched, full;
    uint32_t *raster;    /* M rows of up to RASTER_COLUMNS columns */
    uint32_t *tile_bits; /* one bitmask */
    int32_t *table;      /* pending TABLE: M pairs, of tiles [table_first, table_end) */
    int64_t table_first, table_end;
};

enum splat_status sp_builder_init(struct sp_builder *builder, int64_t tile_rows, int64_t tile_cols);

/* Adds the row tiles of one pass, longest first; those without column tiles only if `keep_empty`. */
enum splat_status sp_builder_add_pass(struct sp_builder *builder, const struct sp_view *rows,
                                      const struct sp_builder_part *parts, int part_count, bool keep_empty);

/* The order of row tiles in a launch, for qsort: longest first, ties by number, then by slot. */
int sp_row_tile_order(const void *x, const void *y);

/* Moves the tables into the plan. */
void sp_builder_finish(struct sp_builder *builder, struct splat_plan *plan);
void sp_builder_free(struct sp_builder *builder);

/* ---- Between build.c and raster.c ---- */

/* Appends tiles [first, first + count) to the row tile in work, joined to the last segment where possible:
 * sp_builder_emit with a predicate in closed form (NULL for FULL tiles), sp_builder_emit_table with a stored table.
 */
void sp_builder_emit_table(struct sp_builder *builder, int64_t first, int64_t count, int64_t number);
void sp_builder_emit(struct sp_builder *builder, int64_t first, int64_t count, enum sp_pred_kind kind,
                     const struct sp_predicate *predicate);

/* Appends one tile by the number of its bitmask. */
void sp_builder_emit_bits(struct sp_builder *builder, int64_t tile, int64_t number);

/* The number of a stored table with its columns moved; 0 after a failure. */
int32_t sp_builder_move_table(struct sp_builder *builder, int32_t number, int64_t columns);

/* PARTIAL tiles [first, end) with no closed form: drawn into bits, then the cheapest predicate tile by tile. */
void sp_builder_raster(struct sp_builder *builder, const splat_acsr *acsr, const struct sp_tile_groups *tile,
                       int64_t first, int64_t end);

void sp_builder_fail(struct sp_builder *builder, enum splat_status status);

enum { SP_RASTER_COLUMNS = 4096 };

#endif
