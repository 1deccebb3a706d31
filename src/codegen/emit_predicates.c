/* Writes the code of the predicates that a kernel knows.
 *
 * Takes a spec, of which only predicate_mask counts. Gives the text of the template's region "predicates". Keeps
 * true: a predicate that the spec does not name leaves no trace in the text. To add a predicate, write its emitter
 * and enter it in the table below; the template stays as it is.
 *
 * A predicate's function sets the scores of a thread that are not allowed to -inf; it never multiplies by a mask,
 * so that NaN at a masked position vanishes. Bounds are compared relative to the thread's first column, with
 * constants.
 */
#include "codegen/emit.h"
#include "common/error.h"

/* ---- Pieces ---- */

static void begin_function(struct sp_strbuf *out, const char *comment, const char *name)
{
    sp_strbuf_printf(out, "// %s\n__device__ __forceinline__ void mask_%s(const MaskTile &tile, Scores &s)\n{\n",
                     comment, name);
}

static void begin_rows(struct sp_strbuf *out)
{
    sp_strbuf_puts(out, "#pragma unroll\n"
                        "    for (int r = 0; r < THREAD_ROWS; ++r) {\n");
}

static void fields(struct sp_strbuf *out, const char *side, const char *slope, const char *offset)
{
    sp_strbuf_printf(out,
                     "    const int %s_slope = predicate_field(tile, %s), %s_offset = predicate_field(tile, %s);\n",
                     side, slope, side, offset);
}

static void bound(struct sp_strbuf *out, const char *side)
{
    sp_strbuf_printf(out, "        const int %s = relative(tile, affine(%s_slope, tile.row + 8 * r, %s_offset));\n",
                     side, side, side);
}

/* Every score of the row for which `condition` holds becomes -inf, and the function ends. */
static void end_function(struct sp_strbuf *out, const char *condition)
{
    sp_strbuf_printf(out,
                     "#pragma unroll\n"
                     "        for (int block = 0; block < COL_BLOCKS; ++block)\n"
                     "#pragma unroll\n"
                     "            for (int e = 0; e < 2; ++e)\n"
                     "                if (%s)\n"
                     "                    score(s, r, block, e) = -infinity();\n"
                     "    }\n"
                     "}\n\n",
                     condition);
}

/* One unsigned comparison tests both sides of [lo, lo + width). */
static const char outside_interval[] = "static_cast<unsigned>(8 * block + e - lo) >= static_cast<unsigned>(width)";

/* ---- Emitters, one a kind ---- */

static void emit_lower(struct sp_strbuf *out)
{
    begin_function(out, "lo(i) <= j", "lower");
    fields(out, "lo", "LO_SLOPE", "LO_OFFSET");
    begin_rows(out);
    bound(out, "lo");
    end_function(out, "8 * block + e < lo");
}

static void emit_upper(struct sp_strbuf *out)
{
    begin_function(out, "j < hi(i)", "upper");
    fields(out, "hi", "HI_SLOPE", "HI_OFFSET");
    begin_rows(out);
    bound(out, "hi");
    end_function(out, "8 * block + e >= hi");
}

static void emit_bounds(struct sp_strbuf *out)
{
    begin_function(out, "lo(i) <= j < hi(i)", "bounds");
    fields(out, "lo", "LO_SLOPE", "LO_OFFSET");
    fields(out, "hi", "HI_SLOPE", "HI_OFFSET");
    begin_rows(out);
    bound(out, "lo");
    bound(out, "hi");
    sp_strbuf_puts(out, "        const int width = hi > lo ? hi - lo : 0;\n");
    end_function(out, outside_interval);
}

static void emit_table(struct sp_strbuf *out)
{
    begin_function(out, "table[2r] <= j < table[2r + 1], r = row within the tile", "table");
    begin_rows(out);
    sp_strbuf_puts(out,
                   "        const int words = 8 * (tile.tile_row + 8 * r);\n"
                   "        const int lo = relative(tile, static_cast<int>(mask_word(tile.source, words)));\n"
                   "        const int hi = relative(tile, static_cast<int>(mask_word(tile.source, words + 4)));\n"
                   "        const int width = hi > lo ? hi - lo : 0;\n");
    end_function(out, outside_interval);
}

static void emit_periodic(struct sp_strbuf *out)
{
    begin_function(out, "lo(i) <= j < hi(i) and (j - phase(i)) mod stride < width: one division, then steps of 8",
                   "periodic");
    fields(out, "lo", "LO_SLOPE", "LO_OFFSET");
    fields(out, "hi", "HI_SLOPE", "HI_OFFSET");
    fields(out, "phase", "PHASE_SLOPE", "PHASE_OFFSET");
    sp_strbuf_puts(out,
                   "    const int stride = predicate_field(tile, STRIDE), width = predicate_field(tile, WIDTH);\n"
                   "    const int step = 8 % stride;\n"
                   "    // Where the thread's first column is in the period, in its first row; 8 rows on the phase "
                   "has moved.\n"
                   "    int first = static_cast<int>((tile.column - (sp_i64(phase_slope) * tile.row + "
                   "phase_offset)) % stride);\n"
                   "    first += first < 0 ? stride : 0;\n"
                   "    const int row_step = static_cast<int>(sp_i64(8) * phase_slope % stride);\n");
    begin_rows(out);
    bound(out, "lo");
    bound(out, "hi");
    sp_strbuf_puts(out, "        int at = first;\n"
                        "        if (step == 0) { // the stride divides 8: all blocks of 8 columns are alike\n"
                        "            const int span = hi > lo ? hi - lo : 0;\n"
                        "            const unsigned even = at < width ? span : 0;\n"
                        "            const unsigned odd = (at + 1 == stride ? 0 : at + 1) < width ? span : 0;\n"
                        "#pragma unroll\n"
                        "            for (int block = 0; block < COL_BLOCKS; ++block) {\n"
                        "                if (static_cast<unsigned>(8 * block - lo) >= even)\n"
                        "                    score(s, r, block, 0) = -infinity();\n"
                        "                if (static_cast<unsigned>(8 * block + 1 - lo) >= odd)\n"
                        "                    score(s, r, block, 1) = -infinity();\n"
                        "            }\n"
                        "        } else {\n"
                        "#pragma unroll\n"
                        "            for (int block = 0; block < COL_BLOCKS; ++block) {\n"
                        "                const int after = at + 1 == stride ? 0 : at + 1;\n"
                        "                if (at >= width || 8 * block < lo || 8 * block >= hi)\n"
                        "                    score(s, r, block, 0) = -infinity();\n"
                        "                if (after >= width || 8 * block + 1 < lo || 8 * block + 1 >= hi)\n"
                        "                    score(s, r, block, 1) = -infinity();\n"
                        "                at += step;\n"
                        "                at -= at >= stride ? stride : 0;\n"
                        "            }\n"
                        "        }\n"
                        "        first -= row_step;\n"
                        "        first += first < 0 ? stride : first >= stride ? -stride : 0;\n"
                        "    }\n"
                        "}\n\n");
}

static void emit_bits(struct sp_strbuf *out)
{
    begin_function(out, "bit j - first column of the tile of the row's words", "bits");
    begin_rows(out);
    sp_strbuf_puts(out, "        const int words = (tile.tile_row + 8 * r) * BITS_ROW_BYTES;\n"
                        "        unsigned word = 0;\n"
                        "#pragma unroll\n"
                        "        for (int block = 0; block < COL_BLOCKS; ++block) {\n"
                        "            if (block % 4 == 0)\n"
                        "                word = mask_word(tile.source, words + block) >> tile.column % 8;\n"
                        "#pragma unroll\n"
                        "            for (int e = 0; e < 2; ++e)\n"
                        "                if (!(word >> (8 * (block % 4) + e) & 1))\n"
                        "                    score(s, r, block, e) = -infinity();\n"
                        "        }\n"
                        "    }\n"
                        "}\n\n");
}

struct emitter {
    enum sp_pred_kind kind;
    const char *name;     /* of the function, after mask_ */
    const char *constant; /* of the template */
    void (*emit)(struct sp_strbuf *out);
};

static const struct emitter emitters[] = {
    {SP_PRED_LOWER, "lower", "PRED_LOWER", emit_lower},
    {SP_PRED_UPPER, "upper", "PRED_UPPER", emit_upper},
    {SP_PRED_BOUNDS, "bounds", "PRED_BOUNDS", emit_bounds},
    {SP_PRED_TABLE, "table", "PRED_TABLE", emit_table},
    {SP_PRED_PERIODIC, "periodic", "PRED_PERIODIC", emit_periodic},
    {SP_PRED_BITS, "bits", "PRED_BITS", emit_bits},
};

#define EMITTER_COUNT (sizeof emitters / sizeof emitters[0])

static int wanted(const struct sp_spec *spec, const struct emitter *emitter)
{
    return (int)(spec->predicate_mask >> emitter->kind & 1u);
}

void sp_emit_predicate_names(const struct sp_spec *spec, struct sp_strbuf *out)
{
    const char *separator = "";
    for (size_t e = 0; e < EMITTER_COUNT; ++e)
        if (wanted(spec, &emitters[e])) {
            sp_strbuf_printf(out, "%s%s", separator, emitters[e].name);
            separator = ", ";
        }
    if (separator[0] == '\0')
        sp_strbuf_puts(out, "none");
}

/* Tests for the kinds in turn. */
static void emit_apply(const struct sp_spec *spec, struct sp_strbuf *out)
{
    if (spec->predicate_mask == 0) {
        sp_strbuf_puts(out,
                       "__device__ __forceinline__ void apply_predicate(int, const MaskTile &, Scores &)\n{\n}\n");
        return;
    }
    sp_strbuf_puts(
        out, "__device__ __forceinline__ void apply_predicate(int kind, const MaskTile &tile, Scores &s)\n{\n");
    const char *otherwise = "    ";
    for (size_t e = 0; e < EMITTER_COUNT; ++e) {
        if (!wanted(spec, &emitters[e]))
            continue;
        sp_strbuf_printf(out, "%sif (kind == %s)\n        mask_%s(tile, s);\n", otherwise, emitters[e].constant,
                         emitters[e].name);
        otherwise = "    else ";
    }
    sp_strbuf_puts(out, "}\n");
}

enum splat_status sp_emit_predicates(const struct sp_spec *spec, struct sp_strbuf *out)
{
    uint32_t known = 0;
    for (size_t e = 0; e < EMITTER_COUNT; ++e)
        known |= 1u << emitters[e].kind;
    if ((spec->predicate_mask & ~known) != 0)
        return sp_fail(SPLAT_INTERNAL, "predicate_mask is 0x%x; emitters exist for 0x%x",
                       (unsigned)spec->predicate_mask, (unsigned)known);
    for (size_t e = 0; e < EMITTER_COUNT; ++e)
        if (wanted(spec, &emitters[e]))
            emitters[e].emit(out);
    emit_apply(spec, out);
    return SPLAT_OK;
}
