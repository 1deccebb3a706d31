/* Folded masks (fold.h). */
#include "analysis/fold.h"

#include "acsr/build.h"

enum { FOLD_MAX = 64, SHORTEST_TILE = 64 };

int64_t sp_fold_for(const splat_mask *mask, const splat_options *options)
{
    const int64_t rows = splat_mask_q_len(mask), kv_heads = options->kv_heads ? options->kv_heads : options->heads;
    const int64_t group = options->heads / kv_heads;
    if (options->op != SPLAT_OP_ATTENTION || options->device == SPLAT_DEVICE_CPU || options->dtype == SPLAT_FP32 || group == 1 || rows >= SHORTEST_TILE)
        return 1;
    if (mask->kind == SP_MASK_MAP && mask->heads > 1)
        return 1; /* heads of a group may have masks of their own */
    int64_t fold = 1;
    while (fold < group && fold < FOLD_MAX)
        fold *= 2;
    const int64_t tiles = (rows * fold + SHORTEST_TILE - 1) / SHORTEST_TILE * sp_fold_parts(group, fold);
    return tiles < group ? fold : 1;
}

struct folded_source {
    struct sp_row_source base;
    struct sp_acsr_source rows;
    int64_t fold;
};

static void folded_row(struct sp_row_source *self, struct sp_row_eval *eval, struct sp_runs *out)
{
    struct folded_source *s = (struct folded_source *)self;
    const int64_t row = eval->row, step = eval->step;
    if (step % s->fold != 0) /* what one query's rows share is found by the builder */
        eval->valid = 1;
    eval->row = row / s->fold;
    eval->step = step % s->fold == 0 ? step / s->fold : 1;
    s->rows.base.row(&s->rows.base, eval, out);
    eval->row = row;
    eval->step = step;
}

enum splat_status sp_fold_acsr(const splat_acsr *acsr, int64_t fold, splat_acsr **folded)
{
    struct folded_source source = {.base.row = folded_row, .fold = fold};
    sp_acsr_source_init(&source.rows, acsr);
    return sp_acsr_build(&source.base, fold * acsr->q_len, acsr->kv_len, folded);
}
