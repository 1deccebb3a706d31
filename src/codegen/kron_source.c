/* Assembles the kernels of Kronecker-sparse layers: templates/kron_sm80.cuh and kron_sum.cuh with their regions
 * filled in, one flat CUDA text without any #include. */
#include "codegen/kron_source.h"

#include <string.h>

#include "codegen/emit.h"
#include "common/error.h"

extern const char sp_file_kron_sm80_begin[], sp_file_kron_sm80_end[];
extern const char sp_file_kron_sm90_begin[], sp_file_kron_sm90_end[];
extern const char sp_file_kron_common_begin[], sp_file_kron_common_end[];
extern const char sp_file_kron_small_begin[], sp_file_kron_small_end[];
extern const char sp_file_kron_sum_begin[], sp_file_kron_sum_end[];
extern const char sp_file_kron_args_begin[], sp_file_kron_args_end[];
extern const char sp_file_ptx_kron_begin[], sp_file_ptx_kron_end[];

static const char *truth(int value)
{
    return value ? "true" : "false";
}

static const char *along_name(enum sp_kron_along along)
{
    static const char *const names[] = {"ALONG_K", "ALONG_ROW", "RUN_ALONG_K", "RUN_ALONG_ROW"};
    return names[along];
}

static void write_element(enum splat_dtype dtype, struct sp_strbuf *out)
{
    sp_strbuf_printf(out, "constexpr int ELEMENT = %d;\n", dtype == SPLAT_FP32 ? 4 : 2);
    sp_strbuf_printf(out, "constexpr bool IS_BF16 = %s;\n", truth(dtype == SPLAT_BF16));
}

static void write_params(const struct sp_kron_spec *s, struct sp_strbuf *out)
{
    sp_strbuf_puts(out, "enum Along { ALONG_K, ALONG_ROW, RUN_ALONG_K, RUN_ALONG_ROW };\n");
    write_element(s->dtype, out);
    sp_strbuf_printf(out, "constexpr bool TF32 = %s;\n", truth(s->tf32));
    sp_strbuf_printf(out, "constexpr int RUN = %d;\n", s->run);
    sp_strbuf_printf(out, "constexpr Along LEFT = %s;\n", along_name(s->left));
    sp_strbuf_printf(out, "constexpr Along RIGHT = %s;\n", along_name(s->right));
    sp_strbuf_printf(out, "constexpr bool OUT_RUN = %s;\n", truth(s->out_run));
    sp_strbuf_printf(out, "constexpr bool OUT_FLOAT = %s;\n", truth(s->out_float));
    sp_strbuf_printf(out, "constexpr bool BIAS_ROWS = %s;\n", truth(s->bias_rows));
    sp_strbuf_printf(out, "constexpr int ROW_WARPS = %d, COL_WARPS = %d;\n", s->row_warps, s->col_warps);
    sp_strbuf_printf(out, "constexpr int RUN_WARPS = %d;\n", s->run_warps);
    sp_strbuf_printf(out, "constexpr int ROW_TILES = %d, COL_TILES = %d;\n", s->row_tiles, s->col_tiles);
    sp_strbuf_printf(out, "constexpr int K_TILE = %d;\n", s->k_tile);
    sp_strbuf_printf(out, "constexpr int STAGES = %d;\n", s->stages);
    sp_strbuf_printf(out, "constexpr int KEEP_LEFT = %d;\n", s->keep_left);
    sp_strbuf_printf(out, "constexpr int KEEP_RIGHT = %d;\n", s->keep_right);
    sp_strbuf_printf(out, "constexpr int BLOCKS_PER_SM = %d;\n", s->blocks_per_sm);
    sp_strbuf_printf(out, "constexpr int SHARED_BYTES = %lld;\n", (long long)sp_kron_shared_bytes(s));
}

static void paste(const char *begin, const char *end, struct sp_strbuf *out)
{
    sp_strbuf_add(out, begin, (size_t)(end - begin));
}

/* What is generated: the parameters, and for the Hopper kernel its product. */
struct texts {
    struct sp_strbuf params, product;
};

static int is_region(const char *name, size_t size, const char *region)
{
    return size == strlen(region) + 1 && memcmp(name, region, size - 1) == 0 && name[size - 1] == ')';
}

/* Fills the region that a template's line opens. */
static enum splat_status fill_region(const char *name, size_t size, const struct texts *texts,
                                     struct sp_strbuf *out)
{
    if (is_region(name, size, "params")) {
        sp_strbuf_add(out, texts->params.text, texts->params.size);
    } else if (is_region(name, size, "wgmma")) {
        sp_strbuf_add(out, texts->product.text, texts->product.size);
    } else if (is_region(name, size, "kron_args")) {
        paste(sp_file_kron_args_begin, sp_file_kron_args_end, out);
    } else if (is_region(name, size, "ptx")) {
        paste(sp_file_ptx_sm80_begin, sp_file_ptx_sm80_end, out);
        paste(sp_file_ptx_kron_begin, sp_file_ptx_kron_end, out);
    } else if (is_region(name, size, "ptx_sm90")) {
        paste(sp_file_ptx_sm90_begin, sp_file_ptx_sm90_end, out);
    } else if (is_region(name, size, "common")) {
        paste(sp_file_kron_common_begin, sp_file_kron_common_end, out);
    } else {
        return sp_fail(SPLAT_INTERNAL, "a template has the region \"%.*s\", which no writer knows", (int)size - 1,
                       name);
    }
    return SPLAT_OK;
}

/* The template line by line, what stands between a region's two marks replaced. */
static enum splat_status splice(const char *text, const char *end, const struct texts *texts, struct sp_strbuf *out)
{
    static const char begin_mark[] = "// splat:region(", end_mark[] = "// splat:end";
    const size_t begin_size = sizeof begin_mark - 1, end_size = sizeof end_mark - 1;
    enum splat_status status = SPLAT_OK;
    int inside = 0;
    for (const char *line = text; line < end && status == SPLAT_OK;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *next = newline ? newline + 1 : end;
        const size_t size = (size_t)((newline ? newline : end) - line);
        if (size > begin_size && memcmp(line, begin_mark, begin_size) == 0) {
            inside = 1;
            status = fill_region(line + begin_size, size - begin_size, texts, out);
        } else if (size == end_size && memcmp(line, end_mark, end_size) == 0) {
            inside = 0;
        } else if (!inside) {
            sp_strbuf_add(out, line, (size_t)(next - line));
        }
        line = next;
    }
    return status;
}

static enum splat_status finish(enum splat_status status, struct texts *texts, struct sp_source *made,
                                struct sp_source *source)
{
    if (status == SPLAT_OK && (made->text.failed || texts->params.failed || texts->product.failed))
        status = sp_no_memory("generated source", made->text.size);
    sp_strbuf_free(&texts->params);
    sp_strbuf_free(&texts->product);
    if (status == SPLAT_OK)
        *source = *made;
    else
        sp_strbuf_free(&made->text);
    return status;
}

static enum splat_status make_small(const struct sp_kron_spec *spec, struct sp_source *source)
{
    struct sp_source made = {
        .text = SP_STRBUF_INIT, .entry = "splat_kron_small", .threads = SP_KRON_SMALL_THREADS, .blocks_per_sm = 2};
    struct texts texts = {SP_STRBUF_INIT, SP_STRBUF_INIT};
    write_element(spec->dtype, &texts.params);
    sp_strbuf_printf(&texts.params, "constexpr int ROWS = %d;\n", spec->small_rows);
    sp_strbuf_printf(&texts.params, "constexpr int DEPTH = %d;\n", spec->small_depth);
    sp_strbuf_printf(&texts.params, "constexpr bool MATRICES = %s;\n", truth(spec->run > 1));
    sp_strbuf_puts(&made.text, "// splat: products of a Kronecker-sparse layer of small matrices, generated.\n\n");
    enum splat_status status = splice(sp_file_kron_small_begin, sp_file_kron_small_end, &texts, &made.text);
    return finish(status, &texts, &made, source);
}

enum splat_status sp_kron_source_make(const struct sp_kron_spec *spec, struct sp_source *source)
{
    if (spec->small_rows)
        return make_small(spec, source);
    struct sp_source made = {
        .text = SP_STRBUF_INIT,
        .entry = "splat_kron",
        .threads = 32 * spec->row_warps * spec->col_warps * spec->run_warps,
        .shared_bytes = (int32_t)sp_kron_shared_bytes(spec),
        .blocks_per_sm = spec->blocks_per_sm,
    };
    struct texts texts = {SP_STRBUF_INIT, SP_STRBUF_INIT};
    write_params(spec, &texts.params);
    sp_strbuf_printf(&made.text,
                     "// splat: products of a Kronecker-sparse layer, generated.\n//\n"
                     "//   tile        %d rows x %d columns of %d matrices, steps of %d\n"
                     "//   launch      %d threads and %d bytes of dynamic shared memory a block\n"
                     "//   compile     nvcc -x cu -std=c++17 -arch=sm_%d%s -cubin\n\n",
                     16 * spec->row_warps * spec->row_tiles, 8 * spec->col_warps * spec->col_tiles, spec->run,
                     spec->k_tile, (int)made.threads, (int)made.shared_bytes, (int)spec->arch,
                     spec->arch == SPLAT_ARCH_SM90A ? "a" : "");
    enum splat_status status = splice(sp_file_kron_sm80_begin, sp_file_kron_sm80_end, &texts, &made.text);
    return finish(status, &texts, &made, source);
}

static const char *left_name(enum sp_kron_left left)
{
    static const char *const names[] = {"WEIGHTS_LEFT", "SAMPLES_ALONG_K", "SAMPLES_IN_RUNS", "SAMPLES_IN_LINES"};
    return names[left];
}

/* Registers of a thread: a block starts with as many for each as the chip has for all, which warpgroups then trade.
 */
static void write_hopper_params(const struct sp_kron_hopper *s, struct sp_strbuf *out)
{
    sp_strbuf_puts(out, "enum Left { WEIGHTS_LEFT, SAMPLES_ALONG_K, SAMPLES_IN_RUNS, SAMPLES_IN_LINES };\n");
    write_element(s->dtype, out);
    sp_strbuf_puts(out, "constexpr bool OUT_FLOAT = false;\n");
    sp_strbuf_printf(out, "constexpr Left LEFT = %s;\n", left_name(s->left));
    sp_strbuf_printf(out, "constexpr bool WEIGHTS_ALONG_K = %s;\n", truth(s->weights_along_k));
    sp_strbuf_printf(out, "constexpr int RUN = %d;\n", s->run);
    sp_strbuf_printf(out, "constexpr bool WHOLE_RUN = %s;\n", truth(s->whole_run));
    sp_strbuf_printf(out, "constexpr int ROW_GROUPS = %d, COL_GROUPS = %d, RUN_GROUPS = %d;\n", s->row_groups,
                     s->col_groups, s->run_groups);
    sp_strbuf_printf(out, "constexpr int ROW_BLOCKS = %d;\n", s->row_blocks);
    sp_strbuf_printf(out, "constexpr int GROUP_COLS = %d;\n", s->group_cols);
    sp_strbuf_printf(out, "constexpr int DEPTH = %d;\n", s->depth);
    sp_strbuf_printf(out, "constexpr int K_TILE = %d;\n", s->k_tile);
    sp_strbuf_printf(out, "constexpr int STAGES = %d;\n", s->stages);
    sp_strbuf_printf(out, "constexpr int KEEP = %d;\n", s->keep);
    sp_strbuf_printf(out, "constexpr int KEPT_UNITS = %d;\n", s->kept_units);
    sp_strbuf_puts(out, s->keep ? "constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40;\n"
                                : "constexpr int CONSUMER_REGISTERS = 240, PRODUCER_REGISTERS = 24;\n");
    sp_strbuf_printf(out, "constexpr int SHARED_BYTES = %lld;\n", (long long)sp_kron_hopper_shared_bytes(s));
}

enum splat_status sp_kron_hopper_source_make(const struct sp_kron_hopper *spec, struct sp_source *source)
{
    struct sp_source made = {
        .text = SP_STRBUF_INIT,
        .entry = "splat_kron_hopper",
        .threads = 128 * (spec->row_groups * spec->col_groups * spec->run_groups + 1),
        .shared_bytes = (int32_t)sp_kron_hopper_shared_bytes(spec),
        .blocks_per_sm = 1,
    };
    struct texts texts = {SP_STRBUF_INIT, SP_STRBUF_INIT};
    write_hopper_params(spec, &texts.params);
    sp_emit_kron_wgmma(spec, &texts.product);
    sp_strbuf_printf(&made.text,
                     "// splat: products of a Kronecker-sparse layer for Hopper, generated.\n//\n"
                     "//   tile        %d samples and %d outputs of %d matrices, steps of %d\n"
                     "//   launch      %d threads and %d bytes of dynamic shared memory a block\n"
                     "//   compile     nvcc -x cu -std=c++17 -arch=sm_90a -cubin\n\n",
                     sp_kron_hopper_samples(spec), sp_kron_hopper_outputs(spec), spec->run, spec->k_tile,
                     (int)made.threads, (int)made.shared_bytes);
    enum splat_status status = splice(sp_file_kron_sm90_begin, sp_file_kron_sm90_end, &texts, &made.text);
    return finish(status, &texts, &made, source);
}

enum splat_status sp_kron_sum_source_make(enum splat_dtype dtype, struct sp_source *source)
{
    struct sp_source made = {.text = SP_STRBUF_INIT, .entry = "splat_kron_sum", .threads = 256, .blocks_per_sm = 1};
    struct texts texts = {SP_STRBUF_INIT, SP_STRBUF_INIT};
    write_element(dtype, &texts.params);
    sp_strbuf_puts(&made.text, "// splat: sums of the parts of weight gradients, generated.\n\n");
    enum splat_status status = splice(sp_file_kron_sum_begin, sp_file_kron_sum_end, &texts, &made.text);
    return finish(status, &texts, &made, source);
}
