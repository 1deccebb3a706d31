/* Consecutive rows as groups of affine templates (acsr.h): what analysis walks a row tile by. */
#include <stdlib.h>
#include <string.h>

#include "acsr/acsr.h"
#include "acsr/build.h"
#include "common/error.h"

static void *grow(void *array, int64_t *capacity, int64_t need, size_t size)
{
    if (need <= *capacity)
        return array;
    int64_t grown_to = *capacity ? *capacity : 64;
    while (grown_to < need)
        grown_to *= 2;
    void *grown = realloc(array, (size_t)grown_to * size);
    if (grown)
        *capacity = grown_to;
    return grown;
}

/* Appends an empty group at `row` with room for run_count templates. */
static struct sp_group *add_group(struct sp_groups *s, int64_t row, int64_t rows, int32_t run_count)
{
    int64_t runs = run_count > 0 ? run_count : 0;
    void *groups = grow(s->groups, &s->group_capacity, s->count + 1, sizeof *s->groups);
    if (groups)
        s->groups = groups;
    void *first = grow(s->first, &s->first_capacity, s->count + 1, sizeof *s->first);
    if (first)
        s->first = first;
    void *pool = grow(s->runs, &s->run_capacity, s->run_count + runs, sizeof *s->runs);
    if (pool || runs == 0)
        s->runs = pool ? pool : s->runs;
    if (!groups || !first || (!pool && runs))
        return NULL;
    s->first[s->count] = s->run_count;
    s->run_count += runs;
    struct sp_group *group = &s->groups[s->count++];
    *group = (struct sp_group){.row0 = (int32_t)row, .rows = (int32_t)rows, .run_count = run_count};
    return group;
}

static struct sp_run_template *last_templates(struct sp_groups *s)
{
    return s->runs ? s->runs + s->first[s->count - 1] : NULL; /* rows of a mask that allows nothing have none */
}

/* Family of row i, found from where the class was left. */
static const struct sp_family *family_from_cursor(struct sp_groups *s, const splat_acsr *acsr, int64_t i,
                                                  int64_t *t)
{
    int64_t class = i % acsr->row_stride, at = s->cursor[class];
    const struct sp_family *family = &acsr->families[at];
    if (family->row0 <= i)
        while (i >= family->row0 + (int64_t)family->row_count * acsr->row_stride)
            family++, at++;
    else
        family = sp_acsr_family_of(acsr, i, t), at = family - acsr->families;
    s->cursor[class] = at;
    *t = (i - family->row0) / acsr->row_stride;
    return family;
}

/* Lets the last group take row i, when its runs continue that group affinely. */
static bool extend(struct sp_groups *s, const struct sp_run_template *tpl, int32_t run_count, int64_t t)
{
    if (s->count == 0)
        return false;
    struct sp_group *group = &s->groups[s->count - 1];
    if (group->run_count != run_count)
        return false;
    struct sp_run_template *mine = last_templates(s);
    for (int32_t k = 0; k < run_count; k++)
        if (mine[k].stride != tpl[k].stride)
            return false;
    if (group->rows == 1) {
        for (int32_t k = 0; k < run_count; k++) {
            splat_acsr_run run = sp_template_at(&tpl[k], t);
            mine[k].d_start = run.start - mine[k].start;
            mine[k].d_count = run.count - mine[k].count;
            mine[k].d_width = run.width - mine[k].width;
        }
    } else {
        for (int32_t k = 0; k < run_count; k++) {
            splat_acsr_run run = sp_template_at(&tpl[k], t), next = sp_template_at(&mine[k], group->rows);
            if (run.start != next.start || run.count != next.count || run.width != next.width)
                return false;
        }
    }
    group->rows++;
    return true;
}

/* One row at a time: rows of a tile belong to different classes. */
static bool add_row(struct sp_groups *s, const splat_acsr *acsr, int64_t i)
{
    int64_t t;
    const struct sp_family *family = family_from_cursor(s, acsr, i, &t);
    if (family->run_count < 0) {
        struct sp_group *group = add_group(s, i, 1, -1);
        if (group)
            group->bits = acsr->bits + family->first;
        return group != NULL;
    }
    const struct sp_run_template *tpl = acsr->templates + family->first;
    if (extend(s, tpl, family->run_count, t))
        return true;
    if (!add_group(s, i, 1, family->run_count))
        return false;
    struct sp_run_template *mine = last_templates(s);
    for (int32_t k = 0; k < family->run_count; k++) {
        splat_acsr_run run = sp_template_at(&tpl[k], t);
        mine[k] = (struct sp_run_template){run.start, run.stride, run.count, run.width, 0, 0, 0};
    }
    return true;
}

/* Row stride 1: families are groups already; takes the part below row_end. Returns the rows taken, or 0. */
static int64_t add_family(struct sp_groups *s, const splat_acsr *acsr, int64_t i, int64_t row_end)
{
    int64_t t;
    const struct sp_family *family = family_from_cursor(s, acsr, i, &t);
    int64_t rows = family->row_count - t < row_end - i ? family->row_count - t : row_end - i;
    if (family->run_count < 0)
        return add_row(s, acsr, i);
    if (!add_group(s, i, rows, family->run_count))
        return 0;
    struct sp_run_template *mine = last_templates(s);
    for (int32_t k = 0; k < family->run_count; k++) {
        const struct sp_run_template *tpl = &acsr->templates[family->first + (uint64_t)k];
        splat_acsr_run run = sp_template_at(tpl, t);
        mine[k] = (struct sp_run_template){run.start,    run.stride,   run.count,   run.width,
                                           tpl->d_start, tpl->d_count, tpl->d_width};
    }
    return rows;
}

enum splat_status sp_acsr_groups(const splat_acsr *acsr, int64_t row_begin, int64_t row_end, struct sp_groups *s)
{
    if (s->cursor_of != acsr) {
        size_t bytes = (size_t)acsr->row_stride * sizeof *s->cursor;
        free(s->cursor);
        s->cursor_of = NULL;
        if (!(s->cursor = malloc(bytes)))
            return sp_no_memory("row cursors", bytes);
        memcpy(s->cursor, acsr->class_first, bytes);
        s->cursor_of = acsr;
    }
    s->count = s->run_count = 0;
    row_end = row_end < acsr->q_len ? row_end : acsr->q_len;
    for (int64_t i = row_begin; i < row_end;) {
        int64_t taken = acsr->row_stride == 1 ? add_family(s, acsr, i, row_end) : add_row(s, acsr, i);
        if (taken == 0)
            return sp_no_memory("row groups", (size_t)s->run_count * sizeof *s->runs);
        i += taken;
    }
    for (int64_t g = 0; g < s->count; g++)
        s->groups[g].runs = s->runs ? s->runs + s->first[g] : NULL;
    return SPLAT_OK;
}

void sp_groups_free(struct sp_groups *s)
{
    free(s->groups);
    free(s->runs);
    free(s->cursor);
    free(s->first);
    *s = (struct sp_groups){0};
}
