/* Assembles the source of a kernel: a template whose regions are replaced by generated or pasted text.
 *
 * Takes a spec. Gives one flat CUDA text without any #include, a pure function of the spec: no clock, path, pointer
 * or environment goes into it. Keeps true: every region of the template is known here and filled once, and every
 * region known here is in the template; anything else is SPLAT_INTERNAL.
 */
#include <stdio.h>
#include <string.h>

#include "codegen/emit.h"
#include "common/error.h"

/* ---- What fills the regions ---- */

/* Registers of a thread, of a warpgroup that multiplies and of the producer's: reallocated among a block's
 * warpgroups, so that together they must not exceed the block's share of the 65536 of a multiprocessor. Wide
 * results want more. */
static void write_registers(const struct sp_spec *spec, struct sp_strbuf *out)
{
    static const struct {
        int groups, blocks, least_value_dim, consumer, producer;
    } table[] = {
        {1, 2, 8, 200, 56}, {1, 3, 8, 128, 32}, {2, 1, 200, 232, 40}, {2, 1, 8, 224, 56}, {3, 1, 8, 160, 32},
    };
    int k = 0;
    while (table[k].groups != spec->tile_rows / 64 || table[k].blocks != spec->blocks_per_sm ||
           table[k].least_value_dim > spec->value_dim)
        k++;
    sp_strbuf_printf(out, "constexpr int CONSUMER_REGISTERS = %d;\n", table[k].consumer);
    sp_strbuf_printf(out, "constexpr int PRODUCER_REGISTERS = %d;\n", table[k].producer);
}

static enum splat_status write_params(const struct sp_spec *spec, struct sp_strbuf *out)
{
    sp_strbuf_printf(out, "constexpr bool IS_BF16 = %s;\n", spec->dtype == SPLAT_BF16 ? "true" : "false");
    sp_strbuf_printf(out, "constexpr int HEAD_DIM = %d;\n", (int)spec->head_dim);
    sp_strbuf_printf(out, "constexpr int VALUE_DIM = %d;\n", (int)spec->value_dim);
    sp_strbuf_printf(out, "constexpr int TILE_ROWS = %d;\n", (int)spec->tile_rows);
    sp_strbuf_printf(out, "constexpr int TILE_COLS = %d;\n", (int)spec->tile_cols);
    if (spec->family == SP_FAMILY_HOPPER) {
        write_registers(spec, out);
        sp_strbuf_printf(out, "constexpr int BLOCKS_PER_SM = %d;\n", (int)spec->blocks_per_sm);
        const struct sp_stages stages = sp_spec_stages(spec);
        sp_strbuf_printf(out, "constexpr int Q_STAGES = %d;\n", stages.q);
        sp_strbuf_printf(out, "constexpr int STAGES = %d;\n", stages.kv);
    } else {
        sp_strbuf_printf(out, "constexpr int WARPS = %d;\n", (int)spec->warps);
        sp_strbuf_printf(out, "constexpr int BLOCKS_PER_SM = %d;\n", (int)spec->blocks_per_sm);
    }
    sp_strbuf_printf(out, "constexpr bool MASK_MAP = %s;\n", spec->mask_map ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool LATTICE = %s;\n", spec->lattice ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool CUT_ZONES = %s;\n", spec->cut_zones ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool MERGE = %s;\n", spec->merge ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool FOLD = %s;\n", spec->fold ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool SPLIT = %s;\n", spec->split ? "true" : "false");
    sp_strbuf_printf(out, "constexpr unsigned PREDICATE_MASK = 0x%x;\n", (unsigned)spec->predicate_mask);
    sp_strbuf_printf(out, "constexpr int SHARED_BYTES = %lld;\n", (long long)sp_spec_shared_bytes(spec));
    return SPLAT_OK;
}

/* The parameters of an operator on values. */
static enum splat_status write_sparse_params(const struct sp_spec *spec, struct sp_strbuf *out)
{
    sp_strbuf_printf(out, "constexpr bool IS_BF16 = %s;\n", spec->dtype == SPLAT_BF16 ? "true" : "false");
    if (spec->op == SPLAT_OP_SOFTMAX) {
        sp_strbuf_printf(out, "constexpr int WARPS = %d;\n", (int)spec->warps);
        sp_strbuf_printf(out, "constexpr bool MASK_MAP = %s;\n", spec->mask_map ? "true" : "false");
        return SPLAT_OK;
    }
    if (spec->op == SPLAT_OP_SDDMM)
        sp_strbuf_printf(out, "constexpr int HEAD_DIM = %d;\n", (int)spec->head_dim);
    else
        sp_strbuf_printf(out, "constexpr bool TRANSPOSED = %s;\nconstexpr int VALUE_DIM = %d;\n",
                         spec->op == SPLAT_OP_SPMM_TRANSPOSED ? "true" : "false", (int)spec->value_dim);
    sp_strbuf_printf(out, "constexpr int TILE_ROWS = %d;\n", (int)spec->tile_rows);
    sp_strbuf_printf(out, "constexpr int TILE_COLS = %d;\n", (int)spec->tile_cols);
    sp_strbuf_printf(out, "constexpr int WARPS = %d;\n", (int)spec->warps);
    sp_strbuf_printf(out, "constexpr int BLOCKS_PER_SM = %d;\n", (int)spec->blocks_per_sm);
    sp_strbuf_printf(out, "constexpr bool MASK_MAP = %s;\n", spec->mask_map ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool LATTICE = %s;\n", spec->lattice ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool CUT_ZONES = %s;\n", spec->cut_zones ? "true" : "false");
    sp_strbuf_printf(out, "constexpr unsigned PREDICATE_MASK = 0x%x;\n", (unsigned)spec->predicate_mask);
    sp_strbuf_printf(out, "constexpr int SHARED_BYTES = %lld;\n", (long long)sp_spec_shared_bytes(spec));
    return SPLAT_OK;
}

/* ---- Templates and their regions ---- */

enum template_number { ATTENTION_SM80, ATTENTION_SM90, SDDMM, SPMM, SOFTMAX, TEMPLATE_COUNT };

/* A template, and what the text that is made from it says it is. */
struct template
{
    const char *begin, *end;
    const char *entry; /* of its kernel */
    const char *title;
    enum splat_status (*write_params)(const struct sp_spec *spec, struct sp_strbuf *out);
};

#define FILE_TEXT(name) sp_file_##name##_begin, sp_file_##name##_end

static const struct template templates[TEMPLATE_COUNT] = {
    [ATTENTION_SM80] = {FILE_TEXT(attention_sm80), "splat_attention", "attention", write_params},
    [ATTENTION_SM90] = {FILE_TEXT(attention_sm90), "splat_attention", "attention", write_params},
    [SDDMM] = {FILE_TEXT(sddmm_sm80), "splat_sddmm", "SDDMM", write_sparse_params},
    [SPMM] = {FILE_TEXT(spmm_sm80), "splat_spmm", "SpMM", write_sparse_params},
    [SOFTMAX] = {FILE_TEXT(softmax_rows), "splat_softmax", "softmax of rows of values", write_sparse_params},
};

static enum template_number template_of(const struct sp_spec *spec)
{
    switch (spec->op) {
    case SPLAT_OP_SDDMM:
        return SDDMM;
    case SPLAT_OP_SPMM:
    case SPLAT_OP_SPMM_TRANSPOSED:
        return SPMM;
    case SPLAT_OP_SOFTMAX:
        return SOFTMAX;
    case SPLAT_OP_ATTENTION:
        break;
    }
    return spec->family == SP_FAMILY_HOPPER ? ATTENTION_SM90 : ATTENTION_SM80;
}

static enum splat_status write_combine(const struct sp_spec *spec, struct sp_strbuf *out)
{
    if (spec->split)
        sp_strbuf_add(out, sp_file_combine_begin, (size_t)(sp_file_combine_end - sp_file_combine_begin));
    return SPLAT_OK;
}

static enum splat_status write_template_params(const struct sp_spec *spec, struct sp_strbuf *out)
{
    return templates[template_of(spec)].write_params(spec, out);
}

/* What fills a region: a writer, or a file, whose own regions are filled in turn. */
struct region {
    const char *name;
    unsigned templates; /* which must have it, a bit each */
    enum splat_status (*write)(const struct sp_spec *spec, struct sp_strbuf *out);
    const char *begin, *end;
};

#define BIT(number) (1u << (number))
#define ATTENTION   (BIT(ATTENTION_SM80) | BIT(ATTENTION_SM90))
#define TILED       (ATTENTION | BIT(SDDMM) | BIT(SPMM))
#define SPARSE      (BIT(SDDMM) | BIT(SPMM) | BIT(SOFTMAX))

static const struct region regions[] = {
    {"params", ATTENTION | SPARSE, write_template_params, NULL, NULL},
    {"launch_args", ATTENTION | SPARSE, NULL, FILE_TEXT(launch_args)},
    {"sparse_args", SPARSE, NULL, FILE_TEXT(sparse_args)},
    {"ptx", ATTENTION | SPARSE, NULL, FILE_TEXT(ptx_sm80)},
    {"ptx_sm90", BIT(ATTENTION_SM90), NULL, FILE_TEXT(ptx_sm90)},
    {"element", ATTENTION | SPARSE, NULL, FILE_TEXT(element_common)},
    {"plan", TILED, NULL, FILE_TEXT(plan_common)},
    {"mask", TILED, NULL, FILE_TEXT(mask_common)},
    {"predicates", TILED, sp_emit_predicates, NULL, NULL},
    {"common", ATTENTION, NULL, FILE_TEXT(attention_common)},
    {"copies", BIT(ATTENTION_SM80) | BIT(SDDMM) | BIT(SPMM), NULL, FILE_TEXT(copies_sm80)},
    {"sparse", BIT(SDDMM) | BIT(SPMM), NULL, FILE_TEXT(sparse_common)},
    {"wgmma", BIT(ATTENTION_SM90), sp_emit_wgmma, NULL, NULL},
    {"combine", ATTENTION, write_combine, NULL, NULL},
};

#define REGION_COUNT (sizeof regions / sizeof regions[0])

/* ---- Splicing ---- */

static const char region_begin[] = "// splat:region(";
static const char region_end[] = "// splat:end";

struct splicer {
    const struct sp_spec *spec;
    struct sp_strbuf *out;
    int filled[REGION_COUNT];
};

static int starts_with(const char *line, size_t size, const char *prefix)
{
    return size >= strlen(prefix) && memcmp(line, prefix, strlen(prefix)) == 0;
}

/* The index in `regions` of the region that a marker line opens, or REGION_COUNT. */
static size_t find_region(const char *line, size_t size)
{
    const char *name = line + strlen(region_begin);
    size_t rest = size - strlen(region_begin);
    for (size_t r = 0; r < REGION_COUNT; ++r) {
        size_t length = strlen(regions[r].name);
        if (rest == length + 1 && memcmp(name, regions[r].name, length) == 0 && name[length] == ')')
            return r;
    }
    return REGION_COUNT;
}

static enum splat_status splice(struct splicer *s, const char *text, const char *end);

static enum splat_status fill_region(struct splicer *s, const char *line, size_t size)
{
    size_t r = find_region(line, size);
    if (r == REGION_COUNT || s->filled[r])
        return sp_fail(SPLAT_INTERNAL, "template line \"%.*s\" is %s", (int)size, line,
                       r == REGION_COUNT ? "a region that no writer knows" : "a region that was filled before");
    s->filled[r] = 1;
    if (regions[r].write)
        return regions[r].write(s->spec, s->out);
    return splice(s, regions[r].begin, regions[r].end);
}

/* Copies [text, end) line by line, each region replaced by what its writer gives. */
static enum splat_status splice(struct splicer *s, const char *text, const char *end)
{
    int inside = 0;
    for (const char *line = text; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *next = newline ? newline + 1 : end;
        size_t size = (size_t)((newline ? newline : end) - line);
        int begins = starts_with(line, size, region_begin);
        int ends = size == strlen(region_end) && starts_with(line, size, region_end);
        if ((begins && inside) || (ends && !inside))
            return sp_fail(SPLAT_INTERNAL, "template line \"%.*s\" is %s", (int)size, line,
                           begins ? "inside another region" : "the end of a region that was not begun");
        if (begins) {
            enum splat_status status = fill_region(s, line, size);
            if (status != SPLAT_OK)
                return status;
        }
        inside = begins || (inside && !ends);
        if (!inside && !ends)
            sp_strbuf_add(s->out, line, (size_t)(next - line));
        line = next;
    }
    return inside ? sp_fail(SPLAT_INTERNAL, "a template does not end its last region") : SPLAT_OK;
}

static enum splat_status assemble(const struct sp_spec *spec, struct sp_strbuf *out)
{
    struct splicer s = {.spec = spec, .out = out};
    const enum template_number number = template_of(spec);
    enum splat_status status = splice(&s, templates[number].begin, templates[number].end);
    for (size_t r = 0; r < REGION_COUNT && status == SPLAT_OK; ++r)
        if (s.filled[r] != (int)(regions[r].templates >> number & 1))
            status = sp_fail(SPLAT_INTERNAL, "the template %s region \"%s\"",
                             s.filled[r] ? "must not have the" : "has no", regions[r].name);
    return status;
}

/* ---- The text ---- */

static void write_tile(const struct sp_spec *spec, struct sp_strbuf *out)
{
    const int rows = spec->tile_rows, cols = spec->tile_cols;
    if (spec->family == SP_FAMILY_HOPPER)
        sp_strbuf_printf(
            out, "//   tile        %d queries x %d keys, %d consumer warpgroups of 64 queries and a producer\n",
            rows, cols, rows / 64);
    else if (spec->op == SPLAT_OP_SPMM_TRANSPOSED)
        sp_strbuf_printf(out, "//   tile        %d columns of A x %d rows, %d warps of %d columns\n", rows, cols,
                         (int)spec->warps, (int)(rows / spec->warps));
    else
        sp_strbuf_printf(out, "//   tile        %d queries x %d keys, %d warps of %d queries\n", rows, cols,
                         (int)spec->warps, (int)(rows / spec->warps));
    sp_strbuf_puts(out, "//   predicates  ");
    sp_emit_predicate_names(spec, out);
    sp_strbuf_puts(out, "\n");
}

static void write_opening(const struct sp_spec *spec, struct sp_strbuf *out)
{
    const char *letter = spec->arch == SPLAT_ARCH_SM90A ? "a" : "";
    const char *type = spec->dtype == SPLAT_BF16 ? "bf16" : "fp16";
    sp_strbuf_printf(out, "// splat: %s%s kernel, generated.\n//\n", templates[template_of(spec)].title,
                     spec->op == SPLAT_OP_SPMM_TRANSPOSED ? " with the transposed matrix" : "");
    if (spec->op == SPLAT_OP_SOFTMAX)
        sp_strbuf_printf(out, "//   type        %s\n", type);
    else
        sp_strbuf_printf(out, "//   type        %s, head dim %d, value dim %d\n", type, (int)spec->head_dim,
                         (int)spec->value_dim);
    if (spec->op != SPLAT_OP_SOFTMAX)
        write_tile(spec, out);
    sp_strbuf_printf(out, "//   masks       %s\n", spec->mask_map ? "one for each (batch, head), by a map" : "one");
    if (spec->lattice || spec->merge)
        sp_strbuf_printf(out, "//   views       %s%s\n", spec->lattice ? "tiles walk lattices" : "linear",
                         spec->merge ? "; several launches, the later ones merge" : "");
    if (spec->fold || spec->split)
        sp_strbuf_printf(out, "//   rows        %s%s%s\n", spec->fold ? "heads of a group share row tiles" : "",
                         spec->fold && spec->split ? "; " : "",
                         spec->split ? "long row tiles come in parts, which splat_combine combines" : "");
    sp_strbuf_printf(out, "//   launch      %d threads and %lld bytes of dynamic shared memory a block\n",
                     (int)(32 * spec->warps), (long long)sp_spec_shared_bytes(spec));
    sp_strbuf_printf(out, "//   compile     nvcc -x cu -std=c++17 -arch=sm_%d%s -cubin\n\n", (int)spec->arch,
                     letter);
}

enum splat_status sp_source_make(const struct sp_spec *spec, struct sp_source *source)
{
    struct sp_source made = {
        .text = SP_STRBUF_INIT,
        .threads = 32 * spec->warps,
        .shared_bytes = (int32_t)sp_spec_shared_bytes(spec),
        .persistent = spec->family == SP_FAMILY_HOPPER,
        .blocks_per_sm = spec->blocks_per_sm,
        .lattice = spec->lattice,
        .combine = "",
    };
    snprintf(made.entry, sizeof made.entry, "%s", templates[template_of(spec)].entry);
    if (spec->split)
        strcpy(made.combine, "splat_combine");
    write_opening(spec, &made.text);
    enum splat_status status = assemble(spec, &made.text);
    if (status == SPLAT_OK && made.text.failed)
        status = sp_no_memory("generated source", made.text.size);
    if (status != SPLAT_OK) {
        sp_strbuf_free(&made.text);
        return status;
    }
    *source = made;
    return SPLAT_OK;
}

void sp_source_free(struct sp_source *source)
{
    sp_strbuf_free(&source->text);
}
