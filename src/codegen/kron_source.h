/* The text of the kernels of Kronecker-sparse layers. */
#ifndef SP_KRON_SOURCE_H
#define SP_KRON_SOURCE_H

#include "analysis/kron_plan.h"
#include "codegen/spec.h"

/* The products of a pass: a pure function of the spec. */
enum splat_status sp_kron_source_make(const struct sp_kron_spec *spec, struct sp_source *source);

/* The same by the Hopper kernel. */
enum splat_status sp_kron_hopper_source_make(const struct sp_kron_hopper *spec, struct sp_source *source);

/* The sums over the parts of the depth that weight gradients are computed in, rounded to dtype. */
enum splat_status sp_kron_sum_source_make(enum splat_dtype dtype, struct sp_source *source);

#endif
