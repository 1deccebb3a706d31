/* How a Kronecker-sparse factor is multiplied on a GPU: the numbers that decide a kernel's text
 * (templates/kron_sm80.cuh or kron_small.cuh says what each does), and how a launch is cut into blocks. */
#ifndef SP_KRON_PLAN_H
#define SP_KRON_PLAN_H

#include "analysis/kron.h"
#include "splat.h"

enum sp_kron_pass { SP_KRON_FORWARD, SP_KRON_INPUT_GRADIENT, SP_KRON_WEIGHT_GRADIENT, SP_KRON_PASSES };

/* As enum Along of the template. */
enum sp_kron_along { SP_ALONG_K, SP_ALONG_ROW, SP_RUN_ALONG_K, SP_RUN_ALONG_ROW };

struct sp_kron_spec {
    enum splat_arch arch;   /* SM80 or SM90A */
    enum splat_dtype dtype; /* of weights and activations */
    int tf32;
    int small_rows,
        small_depth; /* outputs and inputs of a matrix for kron_small.cuh, which takes nothing below; or 0 */
    int run;
    enum sp_kron_along left, right;
    int out_run, out_float, bias_rows;
    int row_warps, col_warps, row_tiles, col_tiles, k_tile, stages;
    int run_warps; /* 1, or run: each warp has one of the run's matrices */
    int keep_left, keep_right, blocks_per_sm;
};

/* As enum Left of templates/kron_sm90.cuh. */
enum sp_kron_left { SP_WEIGHTS_LEFT, SP_SAMPLES_ALONG_K, SP_SAMPLES_IN_RUNS, SP_SAMPLES_IN_LINES };

/* Products by the Hopper kernel (templates/kron_sm90.cuh). */
struct sp_kron_hopper {
    enum splat_dtype dtype; /* fp32: products of tf32 */
    enum sp_kron_left left;
    int weights_along_k, run, whole_run;
    int row_groups, col_groups, run_groups, row_blocks, group_cols;
    int depth, k_tile, stages, keep;
    int kept_units; /* 1, or 2 where the weights of two units stay */
};

static inline int sp_kron_left_in_registers(enum sp_kron_left left)
{
    return left == SP_SAMPLES_IN_RUNS || left == SP_SAMPLES_IN_LINES;
}

/* What is multiplied. */
struct sp_kron_problem {
    struct sp_kron kron;
    enum sp_kron_pass pass;
    enum splat_layout layout;
    enum splat_dtype dtype;
    int tf32;
    enum splat_arch arch;
    int64_t n;  /* expected */
    int modest; /* 1: only tiles that leave registers to spare */
};

/* The product of one matrix: rows x depth by cols x depth. Which of the two operands the weights are, if any. */
struct sp_kron_sizes {
    int64_t rows, cols, depth;
    int64_t runs;   /* of each block */
    int moves_rows; /* 1: the activations are the left operand: thread blocks go along rows; 0: along columns */
};

enum { SP_KRON_SMALL_THREADS = 256 };

/* The launch: thread blocks along each axis, and parts of the depth. */
struct sp_kron_grid {
    int64_t row_blocks, col_blocks, splits, split_depth;
    int64_t blocks; /* in all */
};

/* The cheapest of the table's tiles for the problem. Always possible. */
void sp_kron_plan(const struct sp_kron_problem *problem, struct sp_kron_spec *spec, double *predicted_us);

void sp_kron_sizes_of(const struct sp_kron_problem *problem, const struct sp_kron_spec *spec, int64_t n,
                      struct sp_kron_sizes *sizes);

/* The grid for n activations on a chip of so many multiprocessors. */
void sp_kron_grid_of(const struct sp_kron_problem *problem, const struct sp_kron_spec *spec, int64_t n,
                     int multiprocessors, struct sp_kron_grid *grid);

/* Dynamic shared memory of a block, in bytes; the kernel asserts the same number. */
int64_t sp_kron_shared_bytes(const struct sp_kron_spec *spec);

/* ---- The Hopper kernel (kron_hopper.c) ---- */

/* A tile of a block along samples and along the outputs of a matrix. */
int sp_kron_hopper_samples(const struct sp_kron_hopper *spec);
int sp_kron_hopper_outputs(const struct sp_kron_hopper *spec);
int64_t sp_kron_hopper_shared_bytes(const struct sp_kron_hopper *spec);

/* The launch: `teams` blocks side by side take runs side by side, each team its own. */
struct sp_kron_hopper_grid {
    int64_t runs, teams, units, sample_tiles, output_tiles, blocks;
};
void sp_kron_hopper_grid_of(const struct sp_kron_problem *problem, const struct sp_kron_hopper *spec, int64_t n,
                            int multiprocessors, struct sp_kron_hopper_grid *grid);

/* The cheapest tiles of the Hopper kernel for a problem that it can do, when the prediction is better than
 * `portable_us`: 1, else 0. What it cannot do: gradients of weights, strict fp32, tf32 whose weights do not run
 * along the depth, runs that do not fill sectors, weights whose rows are not whole chunks of 16 bytes, other chips.
 */
int sp_kron_hopper_plan(const struct sp_kron_problem *problem, double portable_us, struct sp_kron_hopper *spec,
                        double *predicted_us);

#endif
