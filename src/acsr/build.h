/* Rows -> ACSR. */
#ifndef SP_BUILD_H
#define SP_BUILD_H

#include "acsr/acsr.h"
#include "acsr/sym.h"

/* What an ACSR may take beside the bits of a source's pool. A mask of 2^20 rows that all differ and are irregular
 * would take 2^37 bytes. */
#define SP_ACSR_MAX_BYTES ((int64_t)1 << 32)

/* Builds the canonical ACSR of the rows a source yields. SPLAT_NO_MEMORY; SPLAT_UNSUPPORTED when it is too large.
 */
enum splat_status sp_acsr_build(struct sp_row_source *source, int64_t q_len, int64_t kv_len, splat_acsr **acsr);

/* The same with another limit. */
enum splat_status sp_acsr_build_within(struct sp_row_source *source, int64_t q_len, int64_t kv_len,
                                       int64_t max_bytes, splat_acsr **acsr);

/* The same with the row stride given: exact, but canonical only for that stride. */
enum splat_status sp_acsr_build_classes(struct sp_row_source *source, int64_t q_len, int64_t kv_len,
                                        int64_t row_stride, splat_acsr **acsr);

/* A source that reads the rows of an ACSR, which must outlive it. */
struct sp_acsr_source {
    struct sp_row_source base;
    const splat_acsr *acsr;
};
void sp_acsr_source_init(struct sp_acsr_source *source, const splat_acsr *acsr);

/* The family that row i belongs to; *t becomes its index there. */
const struct sp_family *sp_acsr_family_of(const splat_acsr *acsr, int64_t i, int64_t *t);

#endif
