/* What the files of src/codegen share: the shape of a kernel's shared memory, the emitters, the embedded files. */
#ifndef SP_EMIT_H
#define SP_EMIT_H

#include "analysis/kron_plan.h"
#include "codegen/spec.h"

/* Bytes of dynamic shared memory a block takes; the kernel asserts the same number. */
int64_t sp_spec_shared_bytes(const struct sp_spec *spec);

/* Appends the names of the predicates of the spec, "lower, bits", or "none". */
void sp_emit_predicate_names(const struct sp_spec *spec, struct sp_strbuf *out);

/* Appends one mask_<name> function for each predicate of the spec, cheapest first, and apply_predicate, which calls
 * the one that a tile's kind asks for. SPLAT_INTERNAL when the spec names a kind that has no emitter. */
enum splat_status sp_emit_predicates(const struct sp_spec *spec, struct sp_strbuf *out);

/* Appends the warpgroup products of a Hopper kernel: wgmma_scores_step and wgmma_values_step. */
enum splat_status sp_emit_wgmma(const struct sp_spec *spec, struct sp_strbuf *out);

/* Appends the warpgroup product of a layer's Hopper kernel: wgmma_step. */
void sp_emit_kron_wgmma(const struct sp_kron_hopper *spec, struct sp_strbuf *out);

/* How much a Hopper kernel has in shared memory at once: items' q, and tiles' k and v. As much as fits, up to 2
 * and 3. */
struct sp_stages {
    int q, kv;
};

struct sp_stages sp_spec_stages(const struct sp_spec *spec);

/* Files taken into the library when it is built (embed.c). [begin, end), not NUL-terminated. */
#define SP_FILE(name) extern const char sp_file_##name##_begin[], sp_file_##name##_end[]
SP_FILE(attention_sm80);
SP_FILE(attention_sm90);
SP_FILE(attention_common);
SP_FILE(combine);
SP_FILE(element_common);
SP_FILE(plan_common);
SP_FILE(mask_common);
SP_FILE(copies_sm80);
SP_FILE(sparse_common);
SP_FILE(sddmm_sm80);
SP_FILE(spmm_sm80);
SP_FILE(softmax_rows);
SP_FILE(ptx_sm80);
SP_FILE(ptx_sm90);
SP_FILE(launch_args);
SP_FILE(sparse_args);

#endif
