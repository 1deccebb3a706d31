/* What a right kernel computes, for the driver's stand-in: the CPU engine on a plan read back from a launch. */
#ifndef CPU_KERNEL_H
#define CPU_KERNEL_H

#include "codegen/launch_args.h"
#include "runtime/cpu_engine.h"
#include "runtime/driver.h"

#include "faults.h"

static inline struct sp_view view_of(const struct sp_launch_view *from, int len)
{
    struct sp_view view = {.n0 = from->n0, .c = 1 << from->c_log2, .len = len, .pitch = from->pitch};
    view.zones = (view.n0 + view.c - 1) / view.c;
    view.whole = len / view.n0;
    view.rest = len % view.n0;
    return view;
}

enum { MOST_MASKS = 8 };

static inline int cpu_kernel(const struct kernel_numbers *numbers, const void *launch_args)
{
    if (!numbers->head_dim)
        return 0; /* a layer's kernel: it computes nothing here */
    const struct sp_launch_args *a = launch_args;
    struct sp_view views[2] = {view_of(&a->column_views[0], a->kv_len), {0}};
    if (a->column_views[1].n0)
        views[1] = view_of(&a->column_views[1], a->kv_len);
    struct sp_pass passes[MOST_MASKS];
    for (int m = 0; m < MOST_MASKS; m++)
        passes[m] = (struct sp_pass){.row_view = view_of(&a->row_view, a->q_len),
                                     .column_view_count = 2,
                                     .first_row_tile = m * a->row_tile_count,
                                     .row_tile_count = a->row_tile_count,
                                     .merge = a->merge};
        /* The engine reads what a plan points to and writes none of it. */
#define POINTER(type, from) ((type *)(uintptr_t)(from))
    const splat_plan plan = {.q_len = a->q_len,
                             .kv_len = a->kv_len,
                             .tile_rows = numbers->tile_rows,
                             .tile_cols = numbers->tile_cols,
                             .mask_count = a->map ? MOST_MASKS : 1,
                             .passes = passes,
                             .launch_count = 1,
                             .views = views,
                             .row_tiles = POINTER(struct sp_row_tile, a->row_tiles),
                             .segments = POINTER(struct sp_segment, a->segments),
                             .predicates = POINTER(struct sp_predicate, a->predicates),
                             .table = POINTER(int32_t, a->table),
                             .bits = POINTER(uint32_t, a->bits),
                             .map = POINTER(int32_t, a->map),
                             .map_batch = a->map_batch,
                             .map_heads = a->map_heads};
    splat_options options;
    splat_options_init(&options);
    options.dtype = numbers->bf16 ? SPLAT_BF16 : SPLAT_FP16;
    options.head_dim = numbers->head_dim;
    options.value_dim = numbers->value_dim;
    splat_attention_args args;
    splat_attention_args_init(&args);
    args.batch = a->batch, args.heads = a->heads, args.kv_heads = a->heads / a->group;
    args.q_len = a->q_len, args.kv_len = a->kv_len;
    args.q = (splat_tensor){POINTER(void, a->q), a->q_batch, a->q_head, a->q_row};
    args.k = (splat_tensor){POINTER(void, a->k), a->k_batch, a->k_head, a->k_row};
    args.v = (splat_tensor){POINTER(void, a->v), a->v_batch, a->v_head, a->v_row};
    args.o = (splat_tensor){a->o, a->o_batch, a->o_head, a->o_row};
    args.lse = a->lse;
    args.lse_batch_stride = a->lse_batch, args.lse_head_stride = a->lse_head;
    args.scale = a->scale;
#undef POINTER
    return sp_cpu_run(&plan, &options, &args, 1) == SPLAT_OK ? 0 : SP_CU_OUT_OF_MEMORY;
}

#endif
