/* Likeness of rows, by a hash of their run templates (alike.h).
 *
 * The groups are written down as numbers that stay the same when all columns move: row counts, run shapes, starts
 * from the origin on. Rows kept as bits do not move; they are alike when they are the same.
 */
#include <stdlib.h>

#include "analysis/alike.h"
#include "analysis/fit.h"
#include "analysis/ints.h"

/* Columns between the first and the last allowed ones; *bits when some rows are kept as bits. */
static void hull_of(const struct sp_groups *groups, int64_t *low, int64_t *high, bool *bits)
{
    *low = INT64_MAX;
    *high = 0;
    *bits = false;
    for (int64_t g = 0; g < groups->count; g++) {
        const struct sp_group *group = &groups->groups[g];
        *bits |= group->bits != NULL;
        for (int32_t k = 0; k < group->run_count; k++) {
            int64_t begin, end;
            sp_run_hull(&group->runs[k], group->rows, &begin, &end);
            *low = sp_min64(*low, begin);
            *high = sp_max64(*high, end);
        }
    }
}

static bool reserve(struct sp_alike_scratch *scratch, int64_t words)
{
    if (words <= scratch->capacity)
        return true;
    int32_t *grown = realloc(scratch->words, (size_t)words * sizeof *grown);
    if (!grown)
        return false;
    scratch->words = grown;
    scratch->capacity = words;
    return true;
}

bool sp_alike(const struct sp_groups *groups, int64_t row0, const splat_acsr *acsr, int64_t align,
              struct sp_alike_scratch *scratch, struct sp_likeness *likeness)
{
    enum { HEAD_WORDS = 2, GROUP_WORDS = 5, RUN_WORDS = sizeof(struct sp_run_template) / sizeof(int32_t) };
    if (!reserve(scratch, HEAD_WORDS + groups->count * GROUP_WORDS + groups->run_count * RUN_WORDS))
        return false;
    int64_t low, high;
    bool bits;
    hull_of(groups, &low, &high, &bits);
    const int64_t origin = bits || low > high ? 0 : low / align * align;
    const bool cut = bits || sp_ceil_div(high, align) * align > acsr->kv_len;
    int32_t *at = scratch->words;
    *at++ = (int32_t)align;
    *at++ = cut ? (int32_t)(acsr->kv_len - origin) : -1;
    for (int64_t g = 0; g < groups->count; g++) {
        const struct sp_group *group = &groups->groups[g];
        const int64_t word = group->bits ? group->bits - acsr->bits : 0;
        *at++ = group->row0 - (int32_t)row0;
        *at++ = group->rows;
        *at++ = group->run_count;
        *at++ = (int32_t)(word & INT32_MAX);
        *at++ = (int32_t)(word >> 31);
        for (int32_t k = 0; k < group->run_count; k++, at += RUN_WORDS) {
            const struct sp_run_template *run = &group->runs[k];
            const int32_t words[RUN_WORDS] = {run->start - (int32_t)origin,
                                              run->stride,
                                              run->count,
                                              run->width,
                                              run->d_start,
                                              run->d_count,
                                              run->d_width};
            for (int w = 0; w < RUN_WORDS; w++)
                at[w] = words[w];
        }
    }
    likeness->hash = sp_hash_bytes(scratch->words, (size_t)(at - scratch->words) * sizeof *at);
    likeness->origin = origin;
    return true;
}

void sp_alike_free(struct sp_alike_scratch *scratch)
{
    free(scratch->words);
    *scratch = (struct sp_alike_scratch){0};
}
