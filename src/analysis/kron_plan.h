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
    int keep_left, keep_right, blocks_per_sm;
};

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

#endif
