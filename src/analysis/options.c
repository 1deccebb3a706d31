/* Checks of splat_options, and the tune table that serves an architecture. */
#include "analysis/plan.h"
#include "analysis/tune.h"
#include "common/error.h"

const struct sp_tune_table *sp_tune_table_for(enum splat_arch arch)
{
    return arch == SPLAT_ARCH_SM80 ? &sp_tune_sm80 : &sp_tune_h200;
}

const struct sp_tune_table *sp_tune_table_of(enum splat_op op, enum splat_arch arch)
{
    if (op == SPLAT_OP_ATTENTION)
        return sp_tune_table_for(arch);
    if (op == SPLAT_OP_SDDMM || op == SPLAT_OP_SOFTMAX)
        return arch == SPLAT_ARCH_SM80 ? &sp_tune_sddmm_sm80 : &sp_tune_sddmm_h200;
    return arch == SPLAT_ARCH_SM80 ? &sp_tune_spmm_sm80 : &sp_tune_spmm_h200;
}

static enum splat_status check_dim(const char *name, int64_t dim)
{
    if (dim < 8 || dim > 256 || dim % 8 != 0)
        return sp_fail(SPLAT_INVALID, "%s is %lld; it must be a multiple of 8 from 8 to 256", name, (long long)dim);
    return SPLAT_OK;
}

static enum splat_status check_enums(const splat_options *o)
{
    if (o->dtype != SPLAT_FP16 && o->dtype != SPLAT_BF16 && o->dtype != SPLAT_FP32)
        return sp_fail(SPLAT_INVALID, "dtype is %d; it must be SPLAT_FP16, SPLAT_BF16 or SPLAT_FP32",
                       (int)o->dtype);
    if (o->device != SPLAT_DEVICE_AUTO && o->device != SPLAT_DEVICE_CPU && o->device != SPLAT_DEVICE_GPU)
        return sp_fail(SPLAT_INVALID,
                       "device is %d; it must be SPLAT_DEVICE_AUTO, SPLAT_DEVICE_CPU or SPLAT_DEVICE_GPU",
                       (int)o->device);
    if (o->arch != SPLAT_ARCH_AUTO && o->arch != SPLAT_ARCH_SM80 && o->arch != SPLAT_ARCH_SM90A)
        return sp_fail(SPLAT_INVALID, "arch is %d; it must be SPLAT_ARCH_AUTO, SPLAT_ARCH_SM80 or SPLAT_ARCH_SM90A",
                       (int)o->arch);
    if ((int)o->op < SPLAT_OP_ATTENTION || (int)o->op > SPLAT_OP_SPMM_TRANSPOSED)
        return sp_fail(SPLAT_INVALID,
                       "op is %d; it must be from SPLAT_OP_ATTENTION to SPLAT_OP_SPMM_TRANSPOSED (%d)", (int)o->op,
                       (int)SPLAT_OP_SPMM_TRANSPOSED);
    return SPLAT_OK;
}

/* Counts that steer the cost model; their product must stay a sane number of launches' worth of work. */
static enum splat_status check_counts(const splat_options *o)
{
    const struct {
        const char *name;
        int64_t value, least;
    } counts[] = {{"batch", o->batch, 1}, {"heads", o->heads, 1}, {"kv_heads", o->kv_heads, 0}};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        if (counts[k].value < counts[k].least || counts[k].value > INT32_MAX)
            return sp_fail(SPLAT_INVALID, "%s is %lld; it must be from %lld to 2^31 - 1", counts[k].name,
                           (long long)counts[k].value, (long long)counts[k].least);
    if (o->kv_heads > 0 && o->heads % o->kv_heads != 0)
        return sp_fail(SPLAT_INVALID, "heads is %lld; it must be a multiple of kv_heads, %lld", (long long)o->heads,
                       (long long)o->kv_heads);
    if (o->tile_rows < 0)
        return sp_fail(SPLAT_INVALID, "tile_rows is %lld; it must be 0 (choose) or a tile height",
                       (long long)o->tile_rows);
    if (o->tile_cols < 0)
        return sp_fail(SPLAT_INVALID, "tile_cols is %lld; it must be 0 (choose) or a tile width",
                       (long long)o->tile_cols);
    if (o->layout < 0)
        return sp_fail(SPLAT_INVALID, "layout is %lld; it must be 0 (choose) or the number of a layout",
                       (long long)o->layout);
    return SPLAT_OK;
}

enum splat_status sp_options_check(const splat_options *options)
{
    if (!options)
        return sp_fail(SPLAT_INVALID, "options is null");
    enum splat_status status =
        sp_check_struct_size("options", "splat_options_init", options->struct_size, sizeof *options);
    if (status == SPLAT_OK && options->op != SPLAT_OP_SOFTMAX)
        status = check_dim("head_dim", options->head_dim);
    if (status == SPLAT_OK && options->value_dim != 0)
        status = check_dim("value_dim", options->value_dim);
    if (status == SPLAT_OK)
        status = check_enums(options);
    return status == SPLAT_OK ? check_counts(options) : status;
}

void sp_options_dims(splat_options *options)
{
    if (options->op == SPLAT_OP_SDDMM)
        options->value_dim = options->head_dim;
    else if (options->op == SPLAT_OP_SOFTMAX)
        options->head_dim = options->value_dim = 8;
    else if (options->op != SPLAT_OP_ATTENTION)
        options->head_dim = options->value_dim = options->value_dim ? options->value_dim : options->head_dim;
}
