/* The kernel's one parameter: shared word for word by the host (C) and by the generated source (CUDA), which pastes
 * this file. Only fixed-width types and 8-byte alignment, so that both sides agree. */
#ifndef SP_LAUNCH_ARGS_H
#define SP_LAUNCH_ARGS_H

typedef long long sp_i64;

/* A view of a sequence (src/analysis/view.h): token n0*y + x is in zone x >> c_log2, at rank (y << c_log2) + x % c
 * of it, which is position zone*pitch + rank; beyond a zone that `rest` cuts, one zone further. */
struct sp_launch_view {
    int n0, c_log2, pitch;
    int rest; /* length % n0: columns below it have one grid row more, and zones of their own */
};

struct sp_launch_args {
    const void *q, *k, *v;
    void *o;
    float *lse;                    /* may be null */
    sp_i64 q_batch, q_head, q_row; /* strides in elements */
    sp_i64 k_batch, k_head, k_row;
    sp_i64 v_batch, v_head, v_row;
    sp_i64 o_batch, o_head, o_row;
    sp_i64 lse_batch, lse_head;
    const void *row_tiles;  /* struct sp_row_tile: row_tile_count of distinct mask 0, then of mask 1, ... */
    const void *segments;   /* struct sp_segment */
    const void *predicates; /* struct sp_predicate */
    const void *table;      /* int32 */
    const void *bits;       /* uint32 */
    const void *map;        /* int32 distinct mask of each (batch, head), or null */
    const void *schedule;   /* persistent kernels: int32 begin of each block's items and the end of all, then the
                               items;   or null: items are dealt out in turn */
    int q_len, kv_len;
    int batch, heads, group;  /* group = heads / kv_heads */
    int row_tile_count;       /* of one distinct mask */
    int section;              /* (batch, head) pairs that are walked together, longest row tile first */
    int map_batch, map_heads; /* 1 = broadcast */
    float scale, scale_log2;  /* scale and scale * log2(e) */
    struct sp_launch_view row_view, column_views[2]; /* read by kernels with views */
    int merge; /* 1: merges into the o and lse of the launches before; lse is not null then */
    /* Kernels whose heads share row tiles: row r is query r >> fold_log2 of head r % 2^fold_log2 of its part of a
     * group of fold_heads query heads. `heads` then counts the parts of groups, and `group` those of one. */
    int fold_log2, fold_heads;
    int split_count;    /* kernels that split row tiles: row tiles of this launch with parts */
    const void *splits; /* struct sp_split */
    float *part_o,
        *part_lse; /* of slot s and (batch, head) pair p, from s * batch * heads + p on, TILE_ROWS rows */
};

#endif
