/* What a right kernel computes, for the driver's stand-in: the CPU engine on a plan read back from a launch. */
#ifndef CPU_KERNEL_H
#define CPU_KERNEL_H

#include "codegen/launch_args.h"
#include "codegen/sparse_args.h"
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

/* What of a plan a launch tells, and where it lies. The engine reads what a plan points to and writes none of it.
 */
struct launched {
    splat_plan plan;
    struct sp_pass passes[MOST_MASKS];
    struct sp_view views[2];
    splat_options options;
};

#define POINTER(type, from) ((type *)(uintptr_t)(from))

static inline void read_launch(const struct kernel_numbers *numbers, const struct sp_launch_args *a,
                               struct launched *l)
{
    l->views[0] = view_of(&a->column_views[0], a->kv_len);
    l->views[1] = a->column_views[1].n0 ? view_of(&a->column_views[1], a->kv_len) : (struct sp_view){0};
    for (int m = 0; m < MOST_MASKS; m++)
        l->passes[m] = (struct sp_pass){.row_view = view_of(&a->row_view, a->q_len),
                                        .column_view_count = 2,
                                        .first_row_tile = m * a->row_tile_count,
                                        .row_tile_count = a->row_tile_count,
                                        .mask_index = m,
                                        .merge = a->merge};
    l->plan = (splat_plan){.q_len = a->q_len,
                           .kv_len = a->kv_len,
                           .tile_rows = numbers->tile_rows,
                           .tile_cols = numbers->tile_cols,
                           .mask_count = a->map ? MOST_MASKS : 1,
                           .passes = l->passes,
                           .launch_count = 1,
                           .views = l->views,
                           .row_tiles = POINTER(struct sp_row_tile, a->row_tiles),
                           .segments = POINTER(struct sp_segment, a->segments),
                           .predicates = POINTER(struct sp_predicate, a->predicates),
                           .table = POINTER(int32_t, a->table),
                           .bits = POINTER(uint32_t, a->bits),
                           .map = POINTER(int32_t, a->map),
                           .map_batch = a->map_batch,
                           .map_heads = a->map_heads};
    splat_options_init(&l->options);
    l->options.op = (enum splat_op)numbers->op;
    l->options.dtype = numbers->bf16 ? SPLAT_BF16 : SPLAT_FP16;
    l->options.head_dim = numbers->head_dim ? numbers->head_dim : numbers->value_dim;
    l->options.value_dim = numbers->value_dim;
}

static inline int cpu_attention(const struct kernel_numbers *numbers, const struct sp_launch_args *a)
{
    struct launched l;
    read_launch(numbers, a, &l);
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
    return sp_cpu_run(&l.plan, &l.options, &args, 1) == SPLAT_OK ? 0 : SP_CU_OUT_OF_MEMORY;
}

static inline int cpu_operator(const struct kernel_numbers *numbers, const struct sp_sparse_args *s)
{
    const struct sp_launch_args *a = &s->plan;
    struct launched l;
    read_launch(numbers, a, &l);
    l.plan.row_offset_count = s->value_rows + 1;
    l.plan.row_offsets = POINTER(int64_t, s->row_offsets);
    l.plan.tile_values = POINTER(int64_t, s->tile_values);
    l.plan.first_tiles = POINTER(int64_t, s->first_tiles);
    const splat_values read = {POINTER(void, s->values), s->values_batch, s->values_head},
                       written = {s->results, s->results_batch, s->results_head};
    splat_sparse_args args;
    splat_sparse_args_init(&args);
    args.batch = a->batch, args.heads = a->heads, args.kv_heads = a->heads / a->group;
    args.q_len = a->q_len, args.kv_len = a->kv_len;
    args.q = (splat_tensor){POINTER(void, a->q), a->q_batch, a->q_head, a->q_row};
    args.k = (splat_tensor){POINTER(void, a->k), a->k_batch, a->k_head, a->k_row};
    args.x = (splat_tensor){POINTER(void, a->v), a->v_batch, a->v_head, a->v_row};
    args.y = (splat_tensor){a->o, a->o_batch, a->o_head, a->o_row};
    args.scores = read;
    args.values = numbers->op == SPLAT_OP_SDDMM || numbers->op == SPLAT_OP_SOFTMAX ? written : read;
    args.lse = a->lse;
    args.lse_batch_stride = a->lse_batch, args.lse_head_stride = a->lse_head;
    args.scale = a->scale;
    return sp_cpu_run_sparse(&l.plan, &l.options, &args, 1) == SPLAT_OK ? 0 : SP_CU_OUT_OF_MEMORY;
}

#undef POINTER

/* A layer's kernel computes nothing here. */
static inline int cpu_kernel(const struct kernel_numbers *numbers, const void *launch_args)
{
    return numbers->op < 0                     ? 0
           : numbers->op == SPLAT_OP_ATTENTION ? cpu_attention(numbers, launch_args)
                                               : cpu_operator(numbers, launch_args);
}

#endif
