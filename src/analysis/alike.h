/* Likeness: rows that look like earlier rows, moved.
 *
 * Away from borders most masks repeat themselves: a later tile's rows allow the columns of an earlier one's, all of
 * them moved by one distance. Equal likenesses mean just that, so that what was found for the earlier tile serves
 * the later one too.
 */
#ifndef SP_ALIKE_H
#define SP_ALIKE_H

#include "acsr/acsr.h"
#include "common/hash.h"

struct sp_likeness {
    struct sp_hash hash; /* of the rows as seen from `origin` */
    int64_t origin;      /* columns below it are not allowed; a multiple of `align` */
};

/* Zero-initialise, reuse, free. */
struct sp_alike_scratch {
    int32_t *words;
    int64_t capacity;
};

/* The likeness of `groups`, consecutive rows that begin at row0. Rows of equal likeness touch the same stretches of
 * `align` columns from their origins on, cut off by the last column in the same way. False without memory. */
bool sp_alike(const struct sp_groups *groups, int64_t row0, const splat_acsr *acsr, int64_t align,
              struct sp_alike_scratch *scratch, struct sp_likeness *likeness);
void sp_alike_free(struct sp_alike_scratch *scratch);

#endif
