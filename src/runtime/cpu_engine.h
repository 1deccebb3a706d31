/* The same plan, executed by host threads. */
#ifndef SP_CPU_ENGINE_H
#define SP_CPU_ENGINE_H

#include "analysis/plan.h"
#include "splat.h"

/* Computes attention as splat_run does, on host pointers. Arguments were validated. threads: 0 = OpenMP's default.
 * The result does not depend on the number of threads, bit for bit. SPLAT_NO_MEMORY. */
enum splat_status sp_cpu_run(const splat_plan *plan, const splat_options *options, const splat_attention_args *args,
                             int threads);

/* The same for splat_run_sparse. */
enum splat_status sp_cpu_run_sparse(const splat_plan *plan, const splat_options *options,
                                    const splat_sparse_args *args, int threads);

#endif
