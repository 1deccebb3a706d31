/* Writes the warpgroup products of a Hopper kernel: one wgmma instruction has as many operands as its tile has
 * registers, so the text depends on the tile shape and cannot stand in a template.
 *
 * Takes a spec. Gives the text of the region "wgmma": wgmma_scores_step (s += q k^T over 16 dims, both from shared
 * memory) and wgmma_values_step (o += p v over 16 keys, p from registers, v transposed from shared memory). */
#include "codegen/emit.h"

static void operands(struct sp_strbuf *out, int first, int count)
{
    sp_strbuf_puts(out, "\"{");
    for (int i = 0; i < count; ++i) {
        if (i > 0)
            sp_strbuf_puts(out, i % 16 ? ", " : ", \"\n        \"");
        sp_strbuf_printf(out, "%%%d", first + i);
    }
    sp_strbuf_puts(out, "}, \"\n");
}

/* Accumulator `name`[block][x] as read-write operands. */
static void accumulators(struct sp_strbuf *out, const char *name, int count)
{
    for (int i = 0; i < count; ++i)
        sp_strbuf_printf(out, "%s%s\"+f\"(%s[%d][%d])", i == 0 ? "        : " : ",",
                         i % 4 ? " "
                         : i   ? "\n          "
                               : "",
                         name, i / 4, i % 4);
    sp_strbuf_puts(out, "\n");
}

enum splat_status sp_emit_wgmma(const struct sp_spec *spec, struct sp_strbuf *out)
{
    const char *type = spec->dtype == SPLAT_BF16 ? "bf16" : "f16";
    int scores = spec->tile_cols / 2, values = spec->value_dim / 2; /* registers a thread */

    sp_strbuf_puts(out,
                   "// s = q k^T, or s += q k^T when `add`, over 16 dims.\n"
                   "__device__ __forceinline__ void wgmma_scores_step(Scores &s, sp_i64 q, sp_i64 k, int add)\n{\n"
                   "    asm volatile(\n        \"{\\n.reg .pred p;\\nsetp.ne.b32 p, ");
    sp_strbuf_printf(out, "%%%d, 0;\\n\"\n", scores + 2);
    sp_strbuf_printf(out, "        \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s \"\n        ",
                     (int)spec->tile_cols, type, type);
    operands(out, 0, scores);
    sp_strbuf_printf(out, "        \"%%%d, %%%d, p, 1, 1, 0, 0;\\n}\\n\"\n", scores, scores + 1);
    accumulators(out, "s[0]", scores);
    sp_strbuf_puts(out, "        : \"l\"(q), \"l\"(k), \"r\"(add));\n}\n\n");

    sp_strbuf_puts(
        out, "// o += p v over 16 keys.\n"
             "__device__ __forceinline__ void wgmma_values_step(Outputs &o, const unsigned (&p)[4], sp_i64 v)\n{\n"
             "    asm volatile(\n");
    sp_strbuf_printf(out, "        \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s \"\n        ",
                     (int)spec->value_dim, type, type);
    operands(out, 0, values);
    sp_strbuf_puts(out, "        ");
    operands(out, values, 4);
    sp_strbuf_printf(out, "        \"%%%d, 1, 1, 1, 1;\\n\"\n", values + 4);
    accumulators(out, "o[0]", values);
    sp_strbuf_puts(out, "        : \"r\"(p[0]), \"r\"(p[1]), \"r\"(p[2]), \"r\"(p[3]), \"l\"(v));\n}\n");
    return SPLAT_OK;
}

void sp_emit_kron_wgmma(const struct sp_kron_hopper *spec, struct sp_strbuf *out)
{
    const char *type = spec->dtype == SPLAT_FP32 ? "tf32" : spec->dtype == SPLAT_BF16 ? "bf16" : "f16";
    const int weights_left = spec->left == SP_WEIGHTS_LEFT, registers = sp_kron_left_in_registers(spec->left);
    const int sums = spec->group_cols / 2; /* registers a thread */
    sp_strbuf_printf(out,
                     "// s = left right, or s += left right when `add`, over %d of the depth.\n"
                     "__device__ __forceinline__ void wgmma_step(Block &s, %s, sp_i64 right, int add)\n{\n"
                     "    asm volatile(\n        \"{\\n.reg .pred p;\\nsetp.ne.b32 p, %%%d, 0;\\n\"\n"
                     "        \"wgmma.mma_async.sync.aligned.m64n%dk%d.f32.%s.%s \"\n        ",
                     spec->dtype == SPLAT_FP32 ? 8 : 16, registers ? "const unsigned (&left)[4]" : "sp_i64 left",
                     sums + (registers ? 5 : 2), spec->group_cols, spec->dtype == SPLAT_FP32 ? 8 : 16, type, type);
    operands(out, 0, sums);
    if (registers) {
        sp_strbuf_puts(out, "        ");
        operands(out, sums, 4);
        sp_strbuf_printf(out, "        \"%%%d, p, 1, 1", sums + 4);
    } else {
        sp_strbuf_printf(out, "        \"%%%d, %%%d, p, 1, 1", sums, sums + 1);
    }
    if (spec->dtype != SPLAT_FP32) { /* whether operands in shared memory run along rows and columns, not along k */
        if (!registers)
            sp_strbuf_printf(out, ", %d", weights_left && !spec->weights_along_k);
        sp_strbuf_printf(out, ", %d", weights_left || !spec->weights_along_k);
    }
    sp_strbuf_puts(out, ";\\n}\\n\"\n");
    accumulators(out, "s", sums);
    sp_strbuf_puts(out, registers ? "        : \"r\"(left[0]), \"r\"(left[1]), \"r\"(left[2]), \"r\"(left[3])"
                                  : "        : \"l\"(left)");
    sp_strbuf_puts(out, ", \"l\"(right), \"r\"(add));\n}\n");
}
