/* Row blocks one after another (rows.h). */
#include <stdlib.h>

#include "acsr/build.h"
#include "analysis/ints.h"
#include "analysis/rows.h"
#include "common/error.h"

enum { PAUSE_MAX = 64 };

static struct sp_run_drift drift_of(const struct sp_run_template *run)
{
    return (struct sp_run_drift){run->d_start, run->d_count, run->d_width};
}

/* Whether all rows of the group drift alike, so that it stays one group wherever its families go on. Takes each
 * row's reach off walk->steady. */
static bool drifts_alike(struct sp_row_walk *walk, const struct sp_group *group)
{
    const splat_acsr *acsr = walk->acsr;
    struct sp_run_drift *drift = group->run_count > 0 ? walk->drift + (group->runs - walk->groups.runs) : NULL;
    for (int64_t i = group->row0; i < group->row0 + group->rows; i++) {
        int64_t t;
        const struct sp_family *family = sp_acsr_family_of(acsr, i, &t);
        walk->steady = sp_min64(walk->steady, (family->row_count - 1 - t) * acsr->row_stride);
        for (int32_t k = 0; k < group->run_count; k++) {
            struct sp_run_drift own = drift_of(&acsr->templates[family->first + (uint64_t)k]);
            if (i == group->row0)
                drift[k] = own;
            else if (own.start != drift[k].start || own.count != drift[k].count || own.width != drift[k].width)
                return false;
        }
    }
    return true;
}

/* Finds how far the block in hand may move. Without memory for it, it simply may not. */
static void look_for_steadiness(struct sp_row_walk *walk)
{
    const struct sp_groups *groups = &walk->groups;
    if (groups->run_count > walk->drift_capacity) {
        struct sp_run_drift *grown = realloc(walk->drift, (size_t)groups->run_count * sizeof *grown);
        if (!grown)
            return;
        walk->drift = grown;
        walk->drift_capacity = groups->run_count;
    }
    walk->steady = INT64_MAX;
    for (int64_t g = 0; g < groups->count && walk->steady > 0; g++)
        if (!drifts_alike(walk, &groups->groups[g]))
            walk->steady = 0;
    bool in_vain = walk->steady < walk->row_end - walk->row_begin;
    walk->pause = in_vain ? sp_min64(2 * walk->pause + 1, PAUSE_MAX) : 0;
    walk->wait = walk->pause;
}

static void move(struct sp_row_walk *walk, int64_t rows)
{
    struct sp_groups *groups = &walk->groups;
    int32_t steps = (int32_t)(rows / walk->acsr->row_stride);
    for (int64_t g = 0; g < groups->count; g++)
        groups->groups[g].row0 += (int32_t)rows;
    for (int64_t k = 0; k < groups->run_count; k++) {
        groups->runs[k].start += steps * walk->drift[k].start;
        groups->runs[k].count += steps * walk->drift[k].count;
        groups->runs[k].width += steps * walk->drift[k].width;
    }
    walk->row_begin += rows;
    walk->row_end += rows;
    walk->steady -= rows;
}

enum splat_status sp_walk_to(struct sp_row_walk *walk, const splat_acsr *acsr, int64_t row_begin, int64_t row_end)
{
    int64_t rows = row_begin - walk->row_begin;
    if (walk->acsr == acsr && rows == 0 && row_end == walk->row_end)
        return SPLAT_OK;
    if (walk->acsr == acsr && rows > 0 && rows <= walk->steady && rows % acsr->row_stride == 0 &&
        row_end - row_begin == walk->row_end - walk->row_begin) {
        move(walk, rows);
        return SPLAT_OK;
    }
    enum splat_status status = sp_acsr_groups(acsr, row_begin, row_end, &walk->groups);
    walk->acsr = status == SPLAT_OK ? acsr : NULL;
    walk->row_begin = row_begin;
    walk->row_end = row_end;
    walk->steady = 0;
    if (status == SPLAT_OK && acsr->row_stride > 1 && (row_end - row_begin) % acsr->row_stride == 0 &&
        walk->wait-- <= 0)
        look_for_steadiness(walk);
    return status;
}

void sp_walk_free(struct sp_row_walk *walk)
{
    sp_groups_free(&walk->groups);
    free(walk->drift);
    *walk = (struct sp_row_walk){0};
}
