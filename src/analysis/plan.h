/* The plan: which tiles are computed, under which views, in which order, and what the choice was.
 *
 * A plan is a function of the mask's pairs and of the options only. Its tables are plain arrays of 32-bit integers,
 * read as they are by the CPU engine and copied as they are to the device.
 */
#ifndef SP_PLAN_H
#define SP_PLAN_H

#include <stdbool.h>

#include "acsr/mask.h"
#include "splat.h"

/* ---- Views ---- */

enum sp_view_kind { SP_VIEW_LINEAR = 0, SP_VIEW_RESIDUE, SP_VIEW_GRID, SP_VIEW_COMB };

/* How tiles walk a sequence axis (view.h): token n0*y + x is in zone x / c, at rank c*y + x % c of it, which is
 * position zone*pitch + rank. */
struct sp_view {
    int32_t kind;  /* enum sp_view_kind: a name for people */
    int32_t n0, c; /* 1, 1 for linear views */
    int32_t len;   /* tokens */
    int32_t zones, pitch;
    int32_t whole, rest; /* len / n0, len % n0 */
};

/* ---- Predicates ---- */

/* Which pairs of a PARTIAL tile are allowed. i and j are positions of the row view and of the segment's column view
 * (for linear views, rows and columns of the mask). Cheapest first; a plan's `predicate_mask` has bit (1 << kind)
 * set for each it needs. */
enum sp_pred_kind {
    SP_PRED_NONE = 0, /* FULL tiles */
    SP_PRED_LOWER,    /* j >= lo(i),              lo(i) = lo_slope*i + lo_offset */
    SP_PRED_UPPER,    /* j <  hi(i),              hi(i) = hi_slope*i + hi_offset */
    SP_PRED_BOUNDS,   /* lo(i) <= j < hi(i) */
    SP_PRED_TABLE,    /* lo[r] <= j < hi[r], from a table of M pairs; r = row within the tile */
    SP_PRED_PERIODIC, /* lo(i) <= j < hi(i) and (j - phase(i)) mod stride < width, phase(i) = phase_slope*i +
                         phase_offset */
    SP_PRED_BITS,     /* bit j - col0 of row r of a bitmask: M rows of N/32 words */
    SP_PRED_COUNT
};

/* Parameters of one predicate with a closed form. */
struct sp_predicate {
    int32_t lo_slope, lo_offset;
    int32_t hi_slope, hi_offset;
    int32_t stride, width;
    int32_t phase_slope, phase_offset; /* 0 <= phase_offset < stride; mod is the non-negative remainder */
};

/* ---- Segments, row tiles, passes ---- */

/* Consecutive column tiles [first, first + count) of one column view that share kind and predicate; tile k holds
 * positions k*N to k*N + N - 1. `predicate` is the number of a predicate, of a table for TABLE, or of a bitmask for
 * BITS; when `step` is 1 (only for BITS) tile first + t uses bitmask number predicate + t. */
struct sp_segment {
    int32_t first, count;
    int32_t code;      /* view << 8 | step << 4 | enum sp_pred_kind; view counts from the pass's column_view */
    int32_t predicate; /* 0 for FULL */
};
#define SP_SEGMENT_KIND(code) ((code)&15)
#define SP_SEGMENT_STEP(code) (((code) >> 4) & 1)
#define SP_SEGMENT_VIEW(code) ((code) >> 8)

struct sp_row_tile {
    int32_t tile;          /* positions tile*M to tile*M + M - 1 of the pass's row view */
    int32_t segment;       /* first segment */
    int32_t segment_count; /* 0: no allowed pair: o = 0, lse = -inf */
    int32_t tiles;         /* column tiles in all, its length for scheduling */
    int32_t slot;          /* of a part of a row tile: 1 + the number of its place in the workspace; 0: the whole */
    int32_t reserved[3];
};

/* A row tile whose column tiles are dealt to several parts (split.h). Each part leaves (o, lse) of its own in the
 * workspace, at slots first_slot, first_slot + 1, ...; they are combined at the end of the launch. */
struct sp_split {
    int32_t tile, first_slot, parts;
    int32_t launch;
};

/* Row tiles of one row view, for one distinct mask, longest first (ties by tile number). Passes of equal `launch`
 * have the same views and the same number of row tiles and run together; launches run in order. */
struct sp_pass {
    struct sp_view row_view;
    int32_t column_view, column_view_count; /* into the plan's views */
    int32_t first_row_tile, row_tile_count; /* into the plan's row tiles, in the order of launch */
    int32_t mask_index;
    int32_t launch;
    int32_t merge; /* 0: initialises o and lse of every row; 1: merges into them */
};

/* The values of a row of A that a tile of A^T holds: `count` of them, one after the other from `first`, in one
 * word. */
#define SP_TILE_VALUES(first, count) ((first) | (int64_t)(count) << 48)
#define SP_TILE_VALUES_FIRST(word)   ((word) & (((int64_t)1 << 48) - 1))
#define SP_TILE_VALUES_COUNT(word)   ((word) >> 48)

struct sp_candidate {
    char summary[176];
    char reason[160];
    double predicted_us;
    int64_t full_tiles, partial_tiles;
    int32_t tune_row;
};

enum { SP_LAUNCHES_MAX = 2 };

struct splat_plan {
    int64_t q_len, kv_len;
    int32_t tile_rows, tile_cols; /* M, N */
    int32_t tune_row;             /* the row of the tune table that was chosen: decides warps and stages */
    int64_t mask_count;
    struct sp_pass *passes; /* launch by launch, mask by mask */
    int64_t pass_count;
    int64_t launch_count;
    struct sp_view *views;
    int64_t view_count;
    struct sp_row_tile *row_tiles;
    int64_t row_tile_count;
    struct sp_segment *segments;
    int64_t segment_count;
    struct sp_predicate *predicates; /* [0] is an unused zero entry */
    int64_t predicate_count;
    int32_t *table; /* tables of 2*M */
    int64_t table_count;
    uint32_t *bits; /* bitmasks of M * N/32 */
    int64_t bits_count;
    uint32_t predicate_mask;         /* of enum sp_pred_kind */
    struct sp_split *splits;         /* launch by launch; slots are numbered from 0 in each */
    int64_t split_count, slot_count; /* slot_count: the most of a launch */
    int32_t fold; /* query heads of a group that share a row tile (fold.h): row r is query r / fold; 1: none */
    int32_t *map; /* batch*heads entries: distinct mask of each (batch, head); NULL when mask_count is 1 */
    int64_t map_batch, map_heads; /* of a map, also where its masks are all equal; else 1, 1 */
    /* Operators on values (values.h); NULL and 0 else. Of each distinct mask of values: q_len + 1 offsets of rows.
     */
    int64_t *row_offsets;
    int64_t row_offset_count; /* of one mask */
    /* Transposed: SP_TILE_VALUES of column k of tile t of a row tile: tile_values[(first_tile[row tile] + t) * N +
     * k]. */
    int64_t *tile_values;
    int64_t tile_value_count;
    int64_t *first_tiles; /* by row tile */
    int64_t allowed_pairs, full_tiles, partial_tiles, families;
    double plan_ms, predicted_us;
    struct sp_candidate *candidates; /* ascending predicted time */
    int64_t candidate_count;
};

/* ---- Predicates as the CPU engine and the tests evaluate them ---- */

/* Whether the segment's predicate allows positions (i, j); row0, col0 are the tile's origin, t its place in its
 * segment. */
int sp_predicate_allows(const splat_plan *plan, const struct sp_segment *segment, int32_t t, int64_t row0,
                        int64_t col0, int64_t i, int64_t j);

/* Whether the last grid row of some view ends within a zone, so that some ranks hold nothing (view.h). */
bool sp_plan_has_cut_zones(const splat_plan *plan);

const char *sp_predicate_name(enum sp_pred_kind kind);
const char *sp_view_name(enum sp_view_kind kind);

/* Appends the plan as text: header, candidates, predicates, segments by row tile; long lists are cut in the middle.
 */
struct sp_strbuf;
void sp_plan_print(const splat_plan *plan, struct sp_strbuf *out);

/* ---- Tune tables: one file a chip ---- */

/* Which template a kernel is made from. */
enum sp_kernel_family {
    SP_FAMILY_PORTABLE = 0, /* attention_sm80.cuh: mma.sync, cp.async; every chip */
    SP_FAMILY_HOPPER = 1    /* attention_sm90.cuh: wgmma, bulk tensor copies, persistent blocks; sm_90a */
};

/* What a row serves: its registers may do for some masks only (spec.h). */
enum sp_row_use {
    SP_USE_ANY = 0,
    SP_USE_AFFINE = 1,   /* masks that need affine predicates only */
    SP_USE_FOLDED = 2,   /* folded masks (fold.h) only */
    SP_USE_UNFOLDED = 3, /* the others only */
};

/* A tile shape that kernels are built for, and what a tile of it costs on the chip. */
struct sp_tune_row {
    int16_t family;            /* enum sp_kernel_family */
    int16_t max_dim;           /* serves head dims up to this: max(head_dim, value_dim) */
    int16_t rows, cols, warps; /* warps: of a block; a Hopper block has 4 for every 64 rows and 4 more */
    int16_t blocks_per_sm;
    int16_t use;       /* enum sp_row_use */
    float full_ns;     /* one FULL tile of dimension max_dim on one block slot, all slots busy */
    float partial_ns;  /* extra for PARTIAL, affine predicate */
    float periodic_ns; /* extra for PARTIAL, periodic predicate */
    float bits_ns;     /* extra for PARTIAL, bitmask or table */
    float row_ns;      /* prologue and epilogue of one row tile */
};

struct sp_tune_table {
    const char *chip;
    int sm_count;
    double copy_bytes_per_us;
    double launch_us;
    double merge_ns; /* extra for a row tile of a launch that merges */
    const struct sp_tune_row *rows;
    int row_count;
};

const struct sp_tune_table *sp_tune_table_for(enum splat_arch arch);

/* The table of the kernels of an operator. */
const struct sp_tune_table *sp_tune_table_of(enum splat_op op, enum splat_arch arch);

/* Checks the options alone: sizes, types, combinations; every stage's first call. */
enum splat_status sp_options_check(const splat_options *options);

/* Gives the dims that the operator does not use the value of one that it does, so that equal kernels have equal
 * options. */
void sp_options_dims(splat_options *options);

#endif
