/* splat_kernel inside the library. */
#ifndef SP_KERNEL_H
#define SP_KERNEL_H

#include "analysis/plan.h"
#include "codegen/launch_args.h"
#include "codegen/sparse_args.h"
#include "codegen/spec.h"
#include "runtime/context.h"
#include "runtime/driver.h"
#include "splat.h"

/* Which block of a persistent launch takes which items, on the device (launch_args.h). */
struct sp_schedule {
    int64_t offset; /* in words, from args.schedule */
    int blocks;     /* 0: there is none */
};

struct splat_kernel {
    int refs;           /* atomic */
    struct sp_hash key; /* mask, options, device: equal keys are equal kernels */
    splat_options options;
    enum splat_device device; /* CPU or GPU */
    splat_plan *plan;
    int threads; /* CPU engine */
    /* GPU only */
    const struct sp_driver *driver;
    sp_cu_context cu_context;
    sp_cu_module module;
    sp_cu_function function, combine; /* combine: of plans that split row tiles */
    sp_cu_pointer tables;
    struct sp_launch_args args;   /* all that does not change from run to run */
    struct sp_sparse_args sparse; /* the tables of operators on values; its `plan` is not used */
    int block_threads, shared_bytes;
    int persistent; /* as in struct sp_source */
    int lattice;    /* likewise */
    int blocks_per_sm, multiprocessors;
    int64_t *launch_tiles;         /* column tiles of each launch of the plan, over its masks */
    struct sp_schedule *schedules; /* one a launch, for the batch and heads of the options */
    int64_t l2_bytes;
    splat_compile_info info;
};

/* Compute capability, major * 10 + minor. */
enum splat_status sp_device_capability(const struct sp_driver *driver, sp_cu_device device, int *capability);

/* Arch of a device's kernels. SPLAT_UNSUPPORTED, naming the capability, when there are none; or when `wanted` is
 * not AUTO and does not run there. */
enum splat_status sp_device_arch(const struct sp_driver *driver, sp_cu_device device, enum splat_arch wanted,
                                 enum splat_arch *arch);

/* A view as kernels take it. */
struct sp_launch_view sp_launch_view_of(const struct sp_view *view);

/* Column tiles of work item `item` of a pass, as find_work of the kernel numbers items; of the first mask when
 * there is a map. */
int64_t sp_item_tiles(const splat_plan *plan, const struct sp_pass *pass, int64_t pairs, int64_t section,
                      int64_t item);

/* Heads as work items count them: query heads, or parts of a group where its heads share row tiles. `group` of them
 * read the same keys. */
struct sp_heads {
    int64_t heads;
    int group;
};
struct sp_heads sp_kernel_heads(const splat_kernel *kernel, int64_t heads, int64_t kv_heads);

/* How many (batch, head) pairs are walked together, so that their keys and values stay in L2; `group` query heads
 * share them. */
int sp_section_pairs(const splat_kernel *kernel, int group);

/* Schedules for the launches of the kernel's plan at the batch and heads of its options: each item, in order, goes
 * to the block that is free first. *words becomes the array for the device, to be freed. SPLAT_NO_MEMORY. */
enum splat_status sp_schedule_make(splat_kernel *kernel, int32_t **words, int64_t *count);

/* What launches need beside the function, from kernel->plan: arguments, schedules, tables on the device.
 * splat_kernel_destroy gives them back. SPLAT_NO_MEMORY, SPLAT_CUDA. */
enum splat_status sp_kernel_tables(splat_kernel *kernel, const struct sp_source *source);

/* What SPLAT_ARCH_AUTO means without a context: the arch of device 0, or sm_90a when there is no device. */
enum splat_status sp_default_arch(enum splat_arch *arch);

/* options with defaults filled in: value_dim, kv_heads. */
enum splat_status sp_options_resolve(const splat_options *options, splat_options *full);

/* Source for a plan: spec and text in one. */
enum splat_status sp_plan_source(const splat_plan *plan, const splat_options *options, enum splat_arch arch,
                                 struct sp_spec *spec, struct sp_source *source);

#endif
