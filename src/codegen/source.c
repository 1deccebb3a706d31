/* Assembles the source of a kernel: a template whose regions are replaced by generated or pasted text.
 *
 * Takes a spec. Gives one flat CUDA text without any #include, a pure function of the spec: no clock, path, pointer
 * or environment goes into it. Keeps true: every region of the template is known here and filled once, and every
 * region known here is in the template; anything else is SPLAT_INTERNAL.
 */
#include <string.h>

#include "codegen/emit.h"
#include "common/error.h"

/* ---- What fills the regions ---- */

/* Registers of a thread. A block starts with 128, 168 or 128 a thread for one, two or three warpgroups that
 * multiply; what they get and what the producer keeps must not exceed that. Wide results want more. */
static void write_registers(const struct sp_spec *spec, struct sp_strbuf *out)
{
    static const int consumer[] = {0, 200, 224, 160}, producer[] = {0, 56, 56, 32};
    int groups = spec->tile_rows / 64, wide = groups == 2 && spec->value_dim > 192;
    sp_strbuf_printf(out, "constexpr int CONSUMER_REGISTERS = %d;\n", wide ? 232 : consumer[groups]);
    sp_strbuf_printf(out, "constexpr int PRODUCER_REGISTERS = %d;\n", wide ? 40 : producer[groups]);
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
        sp_strbuf_printf(out, "constexpr int Q_STAGES = %d;\n", sp_spec_q_stages(spec));
    } else {
        sp_strbuf_printf(out, "constexpr int WARPS = %d;\n", (int)spec->warps);
        sp_strbuf_printf(out, "constexpr int BLOCKS_PER_SM = %d;\n", (int)spec->blocks_per_sm);
    }
    sp_strbuf_printf(out, "constexpr bool MASK_MAP = %s;\n", spec->mask_map ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool LATTICE = %s;\n", spec->lattice ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool MERGE = %s;\n", spec->merge ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool FOLD = %s;\n", spec->fold ? "true" : "false");
    sp_strbuf_printf(out, "constexpr bool SPLIT = %s;\n", spec->split ? "true" : "false");
    sp_strbuf_printf(out, "constexpr unsigned PREDICATE_MASK = 0x%x;\n", (unsigned)spec->predicate_mask);
    sp_strbuf_printf(out, "constexpr int SHARED_BYTES = %lld;\n", (long long)sp_spec_shared_bytes(spec));
    return SPLAT_OK;
}

static enum splat_status paste(const char *begin, const char *end, struct sp_strbuf *out)
{
    sp_strbuf_add(out, begin, (size_t)(end - begin));
    return SPLAT_OK;
}

static enum splat_status paste_launch_args(const struct sp_spec *spec, struct sp_strbuf *out)
{
    (void)spec;
    return paste(sp_file_launch_args_begin, sp_file_launch_args_end, out);
}

static enum splat_status paste_ptx(const struct sp_spec *spec, struct sp_strbuf *out)
{
    enum splat_status status = paste(sp_file_ptx_sm80_begin, sp_file_ptx_sm80_end, out);
    if (status == SPLAT_OK && spec->family == SP_FAMILY_HOPPER)
        status = paste(sp_file_ptx_sm90_begin, sp_file_ptx_sm90_end, out);
    return status;
}

static enum splat_status paste_combine(const struct sp_spec *spec, struct sp_strbuf *out)
{
    return spec->split ? paste(sp_file_combine_begin, sp_file_combine_end, out) : SPLAT_OK;
}

#define PORTABLE (1 << SP_FAMILY_PORTABLE)
#define HOPPER   (1 << SP_FAMILY_HOPPER)

struct region {
    const char *name;
    int families; /* whose templates must have it */
    enum splat_status (*write)(const struct sp_spec *spec, struct sp_strbuf *out); /* NULL: the common template */
};

static const struct region regions[] = {
    {"params", PORTABLE | HOPPER, write_params},
    {"launch_args", PORTABLE | HOPPER, paste_launch_args},
    {"ptx", PORTABLE | HOPPER, paste_ptx},
    {"common", PORTABLE | HOPPER, NULL},
    {"predicates", PORTABLE | HOPPER, sp_emit_predicates},
    {"wgmma", HOPPER, sp_emit_wgmma},
    {"combine", PORTABLE | HOPPER, paste_combine},
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
    return splice(s, sp_file_attention_common_begin, sp_file_attention_common_end);
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
    int hopper = spec->family == SP_FAMILY_HOPPER;
    enum splat_status status = splice(&s, hopper ? sp_file_attention_sm90_begin : sp_file_attention_sm80_begin,
                                      hopper ? sp_file_attention_sm90_end : sp_file_attention_sm80_end);
    for (size_t r = 0; r < REGION_COUNT && status == SPLAT_OK; ++r)
        if (s.filled[r] != (regions[r].families >> spec->family & 1))
            status = sp_fail(SPLAT_INTERNAL, "the template %s region \"%s\"",
                             s.filled[r] ? "must not have the" : "has no", regions[r].name);
    return status;
}

/* ---- The text ---- */

static void write_opening(const struct sp_spec *spec, struct sp_strbuf *out)
{
    const char *letter = spec->arch == SPLAT_ARCH_SM90A ? "a" : "";
    sp_strbuf_puts(out, "// splat: attention kernel, generated.\n//\n");
    sp_strbuf_printf(out, "//   type        %s, head dim %d, value dim %d\n",
                     spec->dtype == SPLAT_BF16 ? "bf16" : "fp16", (int)spec->head_dim, (int)spec->value_dim);
    if (spec->family == SP_FAMILY_HOPPER)
        sp_strbuf_printf(
            out, "//   tile        %d queries x %d keys, %d consumer warpgroups of 64 queries and a producer\n",
            (int)spec->tile_rows, (int)spec->tile_cols, (int)spec->tile_rows / 64);
    else
        sp_strbuf_printf(out, "//   tile        %d queries x %d keys, %d warps of %d queries\n",
                         (int)spec->tile_rows, (int)spec->tile_cols, (int)spec->warps,
                         (int)(spec->tile_rows / spec->warps));
    sp_strbuf_puts(out, "//   predicates  ");
    sp_emit_predicate_names(spec, out);
    sp_strbuf_printf(out, "\n//   masks       %s\n",
                     spec->mask_map ? "one for each (batch, head), by a map" : "one");
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
        .entry = "splat_attention",
        .threads = 32 * spec->warps,
        .shared_bytes = (int32_t)sp_spec_shared_bytes(spec),
        .persistent = spec->family == SP_FAMILY_HOPPER,
        .blocks_per_sm = spec->blocks_per_sm,
        .lattice = spec->lattice,
        .combine = "",
    };
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
