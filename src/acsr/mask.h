/* splat_mask inside the library. */
#ifndef SP_MASK_H
#define SP_MASK_H

#include "acsr/acsr.h"
#include "splat.h"

struct sp_expr; /* parsed expression, expr.h */

enum sp_mask_kind { SP_MASK_EXPR, SP_MASK_ACSR, SP_MASK_MAP };

struct splat_mask {
    int refs; /* atomic */
    enum sp_mask_kind kind;
    int64_t q_len, kv_len;
    struct sp_expr *expr; /* SP_MASK_EXPR */
    splat_acsr *acsr;     /* SP_MASK_ACSR; made on demand for SP_MASK_EXPR (guarded by lock) */
    splat_mask **entries; /* SP_MASK_MAP: the distinct masks */
    int64_t entry_count;
    int32_t *map;         /* SP_MASK_MAP: batch * heads indices into entries */
    int64_t batch, heads; /* SP_MASK_MAP; 1, 1 otherwise */
    struct sp_hash key;   /* identifies the mask's contents or its expression, with lengths and alignment: two masks
                             with equal keys allow the same pairs. Cheap: never builds the ACSR of an expression. */
    void *lock;           /* pthread mutex guarding acsr */
};

/* The ACSR of distinct mask `index` (0 for anything but a map), built once and owned by the mask. Thread-safe. */
enum splat_status sp_mask_acsr(const splat_mask *mask, int64_t index, splat_acsr **acsr);

/* Number of distinct masks: entry_count of a map, else 1. */
int64_t sp_mask_count(const splat_mask *mask);

#endif
