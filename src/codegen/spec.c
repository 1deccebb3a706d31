/* From a plan to the few numbers that decide a kernel's text.
 *
 * Takes a plan, the options it was made with and a concrete architecture. Gives a canonical spec: equal specs give
 * equal texts, and what the text does not depend on is not in it. Keeps true: a spec that sp_spec_make accepts
 * compiles, without spilling registers and within the shared memory of the architecture.
 */
#include "codegen/emit.h"
#include "common/error.h"

/* Shared memory a block may ask for. sm_80 kernels also run on chips that allow less; the runtime asks the device.
 */
static int64_t shared_limit(enum splat_arch arch)
{
    return arch == SPLAT_ARCH_SM90A ? 227 * 1024 : 163 * 1024;
}

static int64_t odd_chunks(int64_t dim_bytes)
{
    return 16 * (dim_bytes / 16 | 1);
}

/* What a PARTIAL tile brings along: a table, a bitmask or a predicate, the largest of those that may occur. */
static int64_t mask_bytes(const struct sp_spec *spec)
{
    int64_t table = spec->predicate_mask >> SP_PRED_TABLE & 1 ? 8 * spec->tile_rows : 0;
    int64_t bits = spec->predicate_mask >> SP_PRED_BITS & 1 ? spec->tile_rows * (spec->tile_cols / 8) : 0;
    int64_t words = table > bits ? table : bits, predicate = (int64_t)sizeof(struct sp_predicate);
    return words > predicate ? words : predicate;
}

/* The layout of attention_sm90.cuh: q of one or two items, stages of k and of v, twice as many tiles' masks and
 * records, items' records, what is left for later, barriers and flags, and what rounding up to 1024 may take. */
static int64_t hopper_bytes(const struct sp_spec *spec, struct sp_stages stages)
{
    int64_t head = (spec->head_dim + 63) / 64 * 128, value = (spec->value_dim + 63) / 64 * 128, kv = stages.kv;
    return stages.q * spec->tile_rows * head + kv * spec->tile_cols * (head + value) +
           2 * kv * (mask_bytes(spec) + 16) + 4 * 48 + 4 * 8 + 8 + 8 * 24 + 4 * 4 * 3 + 1024;
}

/* Blocks share what a multiprocessor has, each with a kilobyte that the system takes. Three warpgroups hide what a
 * third stage would, and finding the stage of a tile costs them more. */
struct sp_stages sp_spec_stages(const struct sp_spec *spec)
{
    static const struct sp_stages wanted[] = {{2, 3}, {2, 2}, {1, 2}};
    int k = spec->tile_rows > 128;
    while (k < 2 && hopper_bytes(spec, wanted[k]) > (shared_limit(spec->arch) + 1024) / spec->blocks_per_sm - 1024)
        k++;
    return wanted[k];
}

/* The layouts of sddmm_sm80.cuh and spmm_sm80.cuh. */
static int64_t sparse_bytes(const struct sp_spec *spec)
{
    const int64_t rows = spec->tile_rows, cols = spec->tile_cols, lane_rows = rows / spec->warps / 8;
    const int64_t notes = 32 * spec->warps * ((lane_rows * (cols / 32 + 1) + 4) / 4) * 16;
    const int64_t head_pitch = odd_chunks(2 * ((spec->head_dim + 15) / 16 * 16)),
                  value_pitch = odd_chunks(2 * spec->value_dim);
    switch (spec->op) {
    case SPLAT_OP_SDDMM:
        return (rows + 2 * cols) * head_pitch + rows * 2 * (cols + 8);
    case SPLAT_OP_SPMM:
        return 2 * cols * value_pitch + 2 * rows * 2 * (cols + 8) + notes;
    case SPLAT_OP_SPMM_TRANSPOSED:
        return 2 * cols * value_pitch + 2 * cols * 2 * (rows + 8) + 2 * 4 * cols + 2 * 4 * cols * spec->warps +
               notes;
    case SPLAT_OP_SOFTMAX:
    case SPLAT_OP_ATTENTION:
        break;
    }
    return 0;
}

int64_t sp_spec_shared_bytes(const struct sp_spec *spec)
{
    if (spec->op != SPLAT_OP_ATTENTION)
        return sparse_bytes(spec);
    if (spec->family == SP_FAMILY_HOPPER)
        return hopper_bytes(spec, sp_spec_stages(spec));
    int64_t k_pitch = odd_chunks(2 * ((spec->head_dim + 15) / 16 * 16));
    int64_t v_pitch = odd_chunks(2 * spec->value_dim);
    int64_t q_pitch = k_pitch > v_pitch ? k_pitch : v_pitch;
    return spec->tile_rows * q_pitch + spec->tile_cols * (k_pitch + v_pitch) + mask_bytes(spec) + 16;
}

static enum splat_status check_dims(const struct sp_spec *spec)
{
    if (spec->head_dim < 8 || spec->head_dim > 256 || spec->head_dim % 8 != 0)
        return sp_fail(SPLAT_UNSUPPORTED, "head_dim is %d; the kernel needs a multiple of 8 from 8 to 256",
                       (int)spec->head_dim);
    if (spec->value_dim < 8 || spec->value_dim > 256 || spec->value_dim % 8 != 0)
        return sp_fail(SPLAT_UNSUPPORTED, "value_dim is %d; the kernel needs a multiple of 8 from 8 to 256",
                       (int)spec->value_dim);
    return SPLAT_OK;
}

/* The registers of a thread hold its share of o, its scores, and little more. */
static enum splat_status check_shape(const struct sp_spec *spec)
{
    int rows = spec->tile_rows, cols = spec->tile_cols, warps = spec->warps;
    if (spec->op != SPLAT_OP_ATTENTION) {
        if (spec->family != SP_FAMILY_PORTABLE || (rows != 16 * warps && rows != 32 * warps) || warps > 8 ||
            cols < 32 || cols > 64 || cols % 32 != 0 || rows > 2 * cols)
            return sp_fail(SPLAT_UNSUPPORTED,
                           "tile %dx%d with %d warps; operators on values take 16 or 32 rows a warp, at most 8 "
                           "warps, 32 or 64 columns, and at most twice as many rows as columns",
                           rows, cols, warps);
        return SPLAT_OK;
    }
    if (spec->family == SP_FAMILY_HOPPER) {
        if (spec->arch != SPLAT_ARCH_SM90A)
            return sp_fail(SPLAT_UNSUPPORTED, "arch is sm_%d; the Hopper kernel needs sm_90a", (int)spec->arch);
        if ((rows != 64 && rows != 128 && rows != 192) || warps != rows / 16 + 4 || cols < 32 || cols > 256 ||
            cols % 32 != 0)
            return sp_fail(
                SPLAT_UNSUPPORTED,
                "tile %dx%d with %d warps; the Hopper kernel takes 64, 128 or 192 rows, a multiple of 32 columns "
                "up to 256, and 4 warps for every 64 rows and 4 more",
                rows, cols, warps);
        if (spec->blocks_per_sm < (rows == 64 ? 2 : 1) || spec->blocks_per_sm > (rows == 64 ? 3 : 1))
            return sp_fail(
                SPLAT_UNSUPPORTED,
                "blocks_per_sm is %d with %d rows; the Hopper kernel's registers are dealt for 2 or 3 blocks of "
                "64 rows, or one of more",
                (int)spec->blocks_per_sm, rows);
        return SPLAT_OK;
    }
    if (warps != 4 && warps != 8)
        return sp_fail(SPLAT_UNSUPPORTED, "warps is %d; the kernel is built for 4 or 8", warps);
    if (rows != 16 * warps && rows != 32 * warps)
        return sp_fail(SPLAT_UNSUPPORTED, "tile_rows is %d with %d warps; a warp takes 16 or 32 rows", rows, warps);
    if (cols < 32 || cols > 128 || cols % 32 != 0)
        return sp_fail(SPLAT_UNSUPPORTED, "tile_cols is %d; the kernel needs a multiple of 32 from 32 to 128",
                       cols);
    if (rows == 32 * warps && spec->value_dim > 128)
        return sp_fail(
            SPLAT_UNSUPPORTED,
            "value_dim is %d with 32 rows a warp; o fits the registers up to 128 (up to 256 with 16 rows)",
            (int)spec->value_dim);
    if (spec->blocks_per_sm < 1)
        return sp_fail(SPLAT_UNSUPPORTED, "blocks_per_sm is %d; it must be at least 1", (int)spec->blocks_per_sm);
    return SPLAT_OK;
}

static enum splat_status check_shared(const struct sp_spec *spec)
{
    int64_t bytes = sp_spec_shared_bytes(spec), limit = shared_limit(spec->arch);
    if (bytes <= limit)
        return SPLAT_OK;
    return sp_fail(SPLAT_UNSUPPORTED,
                   "tile %dx%d with head_dim %d and value_dim %d needs %lld bytes of shared memory; sm_%d has %lld",
                   (int)spec->tile_rows, (int)spec->tile_cols, (int)spec->head_dim, (int)spec->value_dim,
                   (long long)bytes, (int)spec->arch, (long long)limit);
}

/* Whether any tile walks the sequence otherwise than token by token. */
static int has_lattice(const splat_plan *plan)
{
    int lattice = 0;
    for (int64_t p = 0; p < plan->pass_count; ++p) {
        const struct sp_pass *pass = &plan->passes[p];
        lattice |= pass->row_view.zones > 1;
        for (int32_t v = 0; v < pass->column_view_count; ++v)
            lattice |= plan->views[pass->column_view + v].zones > 1;
    }
    return lattice;
}

/* The predicates a kernel is built with: the affine ones, or all. A plan's own set may change with the length of
 * the sequence (a ragged tail adds an upper bound); the kernel must not. */
static uint32_t predicate_set(uint32_t needed)
{
    const uint32_t affine = 1u << SP_PRED_LOWER | 1u << SP_PRED_UPPER | 1u << SP_PRED_BOUNDS;
    const uint32_t all = affine | 1u << SP_PRED_TABLE | 1u << SP_PRED_PERIODIC | 1u << SP_PRED_BITS;
    return needed & all & ~affine ? all : affine;
}

enum splat_status sp_spec_make(const splat_plan *plan, const splat_options *options, enum splat_arch arch,
                               struct sp_spec *spec)
{
    if (arch != SPLAT_ARCH_SM80 && arch != SPLAT_ARCH_SM90A)
        return sp_fail(SPLAT_UNSUPPORTED, "arch is %d; kernels exist for sm_80 (80) and sm_90a (90)", (int)arch);
    if (options->dtype != SPLAT_FP16 && options->dtype != SPLAT_BF16)
        return sp_fail(SPLAT_UNSUPPORTED,
                       "dtype is %d; GPU kernels exist for fp16 (0) and bf16 (1), fp32 runs on the CPU",
                       (int)options->dtype);
    const struct sp_tune_table *tune = sp_tune_table_of(options->op, arch);
    if (plan->tune_row < 0 || plan->tune_row >= tune->row_count)
        return sp_fail(SPLAT_INTERNAL, "tune row is %d; the table of %s has %d rows", (int)plan->tune_row,
                       tune->chip, tune->row_count);
    const struct sp_tune_row *row = &tune->rows[plan->tune_row];
    if (row->rows != plan->tile_rows || row->cols != plan->tile_cols)
        return sp_fail(SPLAT_INTERNAL, "tile is %dx%d; row %d of the tune table of %s says %dx%d",
                       (int)plan->tile_rows, (int)plan->tile_cols, (int)plan->tune_row, tune->chip, row->rows,
                       row->cols);
    struct sp_spec made = {
        .op = options->op,
        .family = (enum sp_kernel_family)row->family,
        .arch = arch,
        .dtype = options->dtype,
        .head_dim = (int32_t)options->head_dim,
        .value_dim = (int32_t)(options->value_dim != 0 ? options->value_dim : options->head_dim),
        .tile_rows = plan->tile_rows,
        .tile_cols = plan->tile_cols,
        .warps = row->warps,
        .blocks_per_sm = row->blocks_per_sm,
        .predicate_mask = predicate_set(plan->predicate_mask),
        .mask_map = plan->map != NULL,
        .lattice = has_lattice(plan),
        .cut_zones = sp_plan_has_cut_zones(plan),
        .merge = plan->launch_count > 1,
        .fold = plan->fold > 1,
        .split = plan->split_count > 0,
    };
    if (made.op == SPLAT_OP_SOFTMAX) { /* no tiles: a warp takes a row */
        made = (struct sp_spec){.op = made.op,
                                .arch = arch,
                                .dtype = made.dtype,
                                .warps = 8,
                                .blocks_per_sm = 1,
                                .mask_map = made.mask_map};
        *spec = made;
        return SPLAT_OK;
    }
    enum splat_status status;
    if ((status = check_dims(&made)) != SPLAT_OK || (status = check_shape(&made)) != SPLAT_OK ||
        (status = check_shared(&made)) != SPLAT_OK)
        return status;
    *spec = made;
    return SPLAT_OK;
}

const char *sp_spec_op_name(enum splat_op op)
{
    static const char *const names[] = {"attention", "sddmm", "softmax", "spmm", "spmm_transposed"};
    return names[op];
}

void sp_spec_print(const struct sp_spec *spec, struct sp_strbuf *out)
{
    sp_strbuf_printf(out, "op             %s\n", sp_spec_op_name(spec->op));
    sp_strbuf_printf(out, "family         %s\n", spec->family == SP_FAMILY_HOPPER ? "hopper" : "portable");
    sp_strbuf_printf(out, "arch           sm_%d%s\n", (int)spec->arch, spec->arch == SPLAT_ARCH_SM90A ? "a" : "");
    sp_strbuf_printf(out, "dtype          %s\n", spec->dtype == SPLAT_BF16 ? "bf16" : "fp16");
    sp_strbuf_printf(out, "head_dim       %d\n", (int)spec->head_dim);
    sp_strbuf_printf(out, "value_dim      %d\n", (int)spec->value_dim);
    sp_strbuf_printf(out, "tile_rows      %d\n", (int)spec->tile_rows);
    sp_strbuf_printf(out, "tile_cols      %d\n", (int)spec->tile_cols);
    sp_strbuf_printf(out, "warps          %d\n", (int)spec->warps);
    sp_strbuf_printf(out, "blocks_per_sm  %d\n", (int)spec->blocks_per_sm);
    sp_strbuf_printf(out, "shared_bytes   %lld\n", (long long)sp_spec_shared_bytes(spec));
    sp_strbuf_puts(out, "predicates     ");
    sp_emit_predicate_names(spec, out);
    sp_strbuf_printf(out, "\nmask_map       %s\n", spec->mask_map ? "yes" : "no");
    sp_strbuf_printf(out, "lattice        %s\n", spec->lattice ? "yes" : "no");
    sp_strbuf_printf(out, "cut_zones      %s\n", spec->cut_zones ? "yes" : "no");
    sp_strbuf_printf(out, "merge          %s\n", spec->merge ? "yes" : "no");
    sp_strbuf_printf(out, "fold           %s\n", spec->fold ? "yes" : "no");
    sp_strbuf_printf(out, "split          %s\n", spec->split ? "yes" : "no");
}
