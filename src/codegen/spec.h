/* The spec: the few plain numbers that decide the text of a kernel, and nothing else. Lengths, batch, heads and
 * strides are launch arguments and never appear here. */
#ifndef SP_SPEC_H
#define SP_SPEC_H

#include "analysis/plan.h"
#include "common/strbuf.h"
#include "splat.h"

struct sp_spec {
    enum splat_op op; /* decides the template, with the family */
    enum sp_kernel_family family;
    enum splat_arch arch;   /* SM80 or SM90A, never AUTO */
    enum splat_dtype dtype; /* FP16 or BF16 */
    int32_t head_dim, value_dim;
    int32_t tile_rows, tile_cols, warps;
    int32_t blocks_per_sm;   /* second argument of __launch_bounds__ */
    uint32_t predicate_mask; /* of enum sp_pred_kind: which predicates the kernel must know */
    int32_t mask_map;        /* 1: (batch, head) -> mask is looked up */
    int32_t lattice;         /* 1: tiles may walk the sequence in other orders than token by token */
    int32_t cut_zones;       /* 1: the last grid row of a view ends within a zone */
    int32_t merge;           /* 1: later launches merge into the results of earlier ones */
    int32_t fold;            /* 1: query heads of a group share row tiles */
    int32_t split;           /* 1: long row tiles come in parts; there is a second kernel that combines them */
};

/* SPLAT_UNSUPPORTED, with the argument and the limit, when no kernel exists for the plan and options. */
enum splat_status sp_spec_make(const splat_plan *plan, const splat_options *options, enum splat_arch arch,
                               struct sp_spec *spec);
/* As --op of the tool names it. */
const char *sp_spec_op_name(enum splat_op op);
void sp_spec_print(const struct sp_spec *spec, struct sp_strbuf *out);

/* The generated source: one flat CUDA text, a pure function of the spec. */
struct sp_source {
    struct sp_strbuf text;
    char entry[64];       /* name of the __global__ function, extern "C" */
    int32_t threads;      /* a block */
    int32_t shared_bytes; /* dynamic shared memory a block */
    int32_t persistent;   /* 1: the grid is as many blocks as run at once, and tensor maps follow the arguments */
    int32_t blocks_per_sm;
    int32_t lattice;  /* 1: maps for two column views and both lengths of zones */
    char combine[64]; /* name of the second kernel, which combines parts of row tiles; "" when there is none */
};

enum { SP_COMBINE_WARPS = 8 }; /* of a block of the second kernel, which combines a row */

/* Dynamic shared memory of such a block: each warp's outputs and its sum of weights. */
static inline int32_t sp_combine_shared_bytes(int64_t value_dim)
{
    return (int32_t)(SP_COMBINE_WARPS * (4 * value_dim + 16));
}

enum splat_status sp_source_make(const struct sp_spec *spec, struct sp_source *source);
void sp_source_free(struct sp_source *source);

#endif
