/* Assembles the kernels of Kronecker-sparse layers: templates/kron_sm80.cuh and kron_sum.cuh with their regions
 * filled in, one flat CUDA text without any #include. */
#include "codegen/kron_source.h"

#include <string.h>

#include "codegen/emit.h"
#include "common/error.h"

extern const char sp_file_kron_sm80_begin[], sp_file_kron_sm80_end[];
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

/* Fills the region that a template's line opens. */
static enum splat_status fill_region(const char *name, size_t size, const struct sp_strbuf *params,
                                     struct sp_strbuf *out)
{
    if (size == strlen("params)") && memcmp(name, "params)", size) == 0) {
        sp_strbuf_add(out, params->text, params->size);
    } else if (size == strlen("kron_args)") && memcmp(name, "kron_args)", size) == 0) {
        paste(sp_file_kron_args_begin, sp_file_kron_args_end, out);
    } else if (size == strlen("ptx)") && memcmp(name, "ptx)", size) == 0) {
        paste(sp_file_ptx_sm80_begin, sp_file_ptx_sm80_end, out);
        paste(sp_file_ptx_kron_begin, sp_file_ptx_kron_end, out);
    } else {
        return sp_fail(SPLAT_INTERNAL, "a template has the region \"%.*s\", which no writer knows", (int)size - 1,
                       name);
    }
    return SPLAT_OK;
}

/* The template line by line, what stands between a region's two marks replaced. */
static enum splat_status splice(const char *text, const char *end, const struct sp_strbuf *params,
                                struct sp_strbuf *out)
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
            status = fill_region(line + begin_size, size - begin_size, params, out);
        } else if (size == end_size && memcmp(line, end_mark, end_size) == 0) {
            inside = 0;
        } else if (!inside) {
            sp_strbuf_add(out, line, (size_t)(next - line));
        }
        line = next;
    }
    return status;
}

static enum splat_status finish(enum splat_status status, struct sp_strbuf *params, struct sp_source *made,
                                struct sp_source *source)
{
    if (status == SPLAT_OK && (made->text.failed || params->failed))
        status = sp_no_memory("generated source", made->text.size);
    sp_strbuf_free(params);
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
    struct sp_strbuf params = SP_STRBUF_INIT;
    write_element(spec->dtype, &params);
    sp_strbuf_printf(&params, "constexpr int ROWS = %d;\n", spec->small_rows);
    sp_strbuf_printf(&params, "constexpr int DEPTH = %d;\n", spec->small_depth);
    sp_strbuf_printf(&params, "constexpr bool MATRICES = %s;\n", truth(spec->run > 1));
    sp_strbuf_puts(&made.text, "// splat: products of a Kronecker-sparse layer of small matrices, generated.\n\n");
    enum splat_status status = splice(sp_file_kron_small_begin, sp_file_kron_small_end, &params, &made.text);
    return finish(status, &params, &made, source);
}

enum splat_status sp_kron_source_make(const struct sp_kron_spec *spec, struct sp_source *source)
{
    if (spec->small_rows)
        return make_small(spec, source);
    struct sp_source made = {
        .text = SP_STRBUF_INIT,
        .entry = "splat_kron",
        .threads = 32 * spec->row_warps * spec->col_warps,
        .shared_bytes = (int32_t)sp_kron_shared_bytes(spec),
        .blocks_per_sm = spec->blocks_per_sm,
    };
    struct sp_strbuf params = SP_STRBUF_INIT;
    write_params(spec, &params);
    sp_strbuf_printf(&made.text,
                     "// splat: products of a Kronecker-sparse layer, generated.\n//\n"
                     "//   tile        %d rows x %d columns of %d matrices, steps of %d\n"
                     "//   launch      %d threads and %d bytes of dynamic shared memory a block\n"
                     "//   compile     nvcc -x cu -std=c++17 -arch=sm_%d%s -cubin\n\n",
                     16 * spec->row_warps * spec->row_tiles, 8 * spec->col_warps * spec->col_tiles, spec->run,
                     spec->k_tile, (int)made.threads, (int)made.shared_bytes, (int)spec->arch,
                     spec->arch == SPLAT_ARCH_SM90A ? "a" : "");
    enum splat_status status = splice(sp_file_kron_sm80_begin, sp_file_kron_sm80_end, &params, &made.text);
    return finish(status, &params, &made, source);
}

enum splat_status sp_kron_sum_source_make(enum splat_dtype dtype, struct sp_source *source)
{
    struct sp_source made = {.text = SP_STRBUF_INIT, .entry = "splat_kron_sum", .threads = 256, .blocks_per_sm = 1};
    struct sp_strbuf params = SP_STRBUF_INIT;
    write_element(dtype, &params);
    sp_strbuf_puts(&made.text, "// splat: sums of the parts of weight gradients, generated.\n\n");
    enum splat_status status = splice(sp_file_kron_sum_begin, sp_file_kron_sum_end, &params, &made.text);
    return finish(status, &params, &made, source);
}
