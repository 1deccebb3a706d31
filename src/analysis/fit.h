/* Fit: the cheapest exact predicate with a closed form for a stretch of columns of one row tile. */
#ifndef SP_FIT_H
#define SP_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "acsr/acsr.h"
#include "analysis/plan.h"

enum { SP_MAX_TILE_ROWS = 256 };

/* The rows of one row tile. */
struct sp_tile_groups {
    const struct sp_group *groups;
    int64_t count;
    int64_t row0, rows; /* valid rows: row0 + rows <= q_len */
    int64_t tile_rows;  /* rows a kernel evaluates predicates for, valid or not */
    int64_t kv_len;
};

struct sp_fit {
    enum sp_pred_kind kind;
    struct sp_predicate predicate;
};

/* One predicate that is exact for every valid row and every column in [col0, col1), columns beyond kv_len included.
 * Gives LOWER, UPPER, BOUNDS or PERIODIC; false when none of them fits. The stretch holds at least one pair that is
 * not allowed, or reaches beyond kv_len. */
bool sp_fit_groups(const struct sp_tile_groups *tile, int64_t col0, int64_t col1, struct sp_fit *fit);

/* The same for rows given as one interval each, clipped to [col0, col1); low == high where nothing is allowed.
 * Gives LOWER, UPPER or BOUNDS. */
bool sp_fit_intervals(const int32_t *low, const int32_t *high, int64_t row0, int64_t rows, int64_t tile_rows,
                      int64_t col0, int64_t col1, struct sp_fit *fit);

/* The predicate of a tile's stretch as it is for a tile that begins `rows` rows after row0 and looks the same
 * `columns` columns on (alike.h). False when its numbers no longer fit. */
bool sp_fit_moved(const struct sp_fit *fit, int64_t rows, int64_t columns, const struct sp_tile_groups *tile,
                  struct sp_predicate *moved);

/* Columns between the first and the last that the run allows in any row of its group. */
void sp_run_hull(const struct sp_run_template *run, int64_t rows, int64_t *begin, int64_t *end);

/* The run of a group that reaches into [col0, col1): SP_FIT_NO_RUN when none does, SP_FIT_MANY_RUNS when several do
 * or the group is kept as bits. Judged by the hull of the run over the group's rows. */
enum { SP_FIT_NO_RUN = -1, SP_FIT_MANY_RUNS = -2 };
int32_t sp_active_run(const struct sp_group *group, int64_t col0, int64_t col1);

#endif
