/* Takes a problem: gives operands, tiles and grid. Every number of the cost model is a property of the chip or of
 * the template's inner loop, in bytes and clocks of one multiprocessor; see predict(). */
#include "analysis/kron_plan.h"

#define BLOCK_THREADS_MAX 256

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static int element_bytes(const struct sp_kron_spec *spec)
{
    return spec->dtype == SPLAT_FP32 ? 4 : 2;
}

/* ---- Operands ---- */

/* Whether each warp has one matrix of a run: products in fp32, which then load least. Measured: where runs fill
 * sectors, and where matrices fill tiles; else what stages the results costs more. */
static int run_by_warps(const struct sp_kron_problem *p)
{
    return p->dtype == SPLAT_FP32 && !p->tf32 && p->pass != SP_KRON_WEIGHT_GRADIENT &&
           p->layout == SPLAT_BATCH_FIRST &&
           (p->kron.d % 8 == 0 || (p->kron.d == 4 && p->kron.b % 64 == 0 && p->kron.c % 64 == 0));
}

/* Matrices that a block takes together: as many consecutive j as 16 bytes hold, where they lie side by side; or as
 * 32 bytes do, which cost no more to store than half of them. */
static int run_of(const struct sp_kron_problem *p)
{
    int run = 1, most_of_them = p->dtype == SPLAT_FP32 && !run_by_warps(p) ? 4 : 8;
    if (p->layout == SPLAT_BATCH_FIRST)
        while (run < most_of_them && run < p->kron.d)
            run *= 2;
    return run;
}

/* left and right are weights and activations, or both activations; the contiguous axis of each follows from the
 * layout. */
static void set_operands(const struct sp_kron_problem *p, struct sp_kron_spec *s)
{
    const int first = p->layout == SPLAT_BATCH_FIRST, runs = first && p->kron.d > 1;
    const int weights_gradient = p->pass == SP_KRON_WEIGHT_GRADIENT;
    const enum sp_kron_along weights = p->pass == SP_KRON_FORWARD ? SP_ALONG_K : SP_ALONG_ROW;
    enum sp_kron_along activations;
    if (weights_gradient) /* k counts the batch */
        activations = runs ? SP_RUN_ALONG_ROW : first ? SP_ALONG_ROW : SP_ALONG_K;
    else
        activations = runs ? SP_RUN_ALONG_K : first ? SP_ALONG_K : SP_ALONG_ROW;
    const int left_is_activations = weights_gradient || (first && !runs);
    s->left = left_is_activations ? activations : weights;
    s->right = left_is_activations && !weights_gradient ? weights : activations;
    s->run = run_of(p);
    s->run_warps = run_by_warps(p) ? s->run : 1;
    s->out_run = runs && !weights_gradient;
    s->out_float = weights_gradient;
    s->bias_rows = !left_is_activations;
}

void sp_kron_sizes_of(const struct sp_kron_problem *p, const struct sp_kron_spec *spec, int64_t n,
                      struct sp_kron_sizes *sizes)
{
    const int64_t outputs = p->pass == SP_KRON_INPUT_GRADIENT ? p->kron.c : p->kron.b;
    const int64_t inputs = p->pass == SP_KRON_INPUT_GRADIENT ? p->kron.b : p->kron.c;
    const int moves_rows = p->layout == SPLAT_BATCH_FIRST && p->kron.d == 1 && p->pass != SP_KRON_WEIGHT_GRADIENT;
    *sizes = (struct sp_kron_sizes){.runs = ceil_div(p->kron.d, spec->run), .moves_rows = moves_rows};
    if (p->pass == SP_KRON_WEIGHT_GRADIENT)
        sizes->rows = p->kron.b, sizes->cols = p->kron.c, sizes->depth = n;
    else
        sizes->rows = moves_rows ? n : outputs, sizes->cols = moves_rows ? outputs : n, sizes->depth = inputs;
}

/* ---- Shared memory: as struct Tile of the template ---- */

static int64_t tile_bytes(const struct sp_kron_spec *s, enum sp_kron_along along, int rows)
{
    const int element = element_bytes(s), in_runs = along == SP_RUN_ALONG_K || along == SP_RUN_ALONG_ROW;
    const int k_inside = along == SP_ALONG_K || along == SP_RUN_ALONG_K;
    const int lines = k_inside ? rows : s->k_tile, inside = k_inside ? s->k_tile : rows;
    const int chunks = inside * (in_runs ? s->run : 1) * element / 16;
    const int at_once = s->run * element * (element == 2 ? 2 : 1);
    const int fp32 = s->dtype == SPLAT_FP32 && !s->tf32;
    const int residue = along == SP_ALONG_K || (fp32 && k_inside) ? 1
                        : along != SP_RUN_ALONG_K                 ? (element == 2 ? 1 : 2)
                        : at_once == 32                           ? 1
                        : at_once == 16                           ? 4
                                                                  : 2;
    const int step = residue == 1 ? 2 : 8;
    return (int64_t)lines * (in_runs ? 1 : s->run) * 16 * (chunks + (residue + 2 * step - chunks % step) % step);
}

static int block_rows(const struct sp_kron_spec *s)
{
    return s->row_warps * s->row_tiles * 16;
}

static int block_cols(const struct sp_kron_spec *s)
{
    return s->col_warps * s->col_tiles * 8;
}

int64_t sp_kron_shared_bytes(const struct sp_kron_spec *s)
{
    if (s->small_rows)
        return 0;
    const int staged = s->run_warps > 1 ? 4 * s->run * block_cols(s) * s->row_warps * 12 : 0;
    return (s->keep_left ? s->keep_left : s->stages) * tile_bytes(s, s->left, block_rows(s)) +
           (s->keep_right ? s->keep_right : s->stages) * tile_bytes(s, s->right, block_cols(s)) + staged;
}

/* ---- Grids ---- */

/* Thread blocks for `tiles` tiles along the moving axis when there are `others` blocks beside: the number that lets
 * the busiest slot of the chip have the fewest tiles, and of those the least. */
static int64_t moving_blocks(int64_t tiles, int64_t others, int64_t slots)
{
    const int64_t enough = least(tiles, ceil_div(4 * slots, others));
    int64_t best = 1, best_tiles = INT64_MAX;
    for (int64_t blocks = 1; blocks <= enough; blocks++) {
        int64_t busiest = ceil_div(others * blocks, slots) * ceil_div(tiles, blocks);
        if (busiest < best_tiles) {
            best_tiles = busiest;
            best = blocks;
        }
    }
    return best;
}

/* Enough blocks for every thread that the chip holds, four at least on each multiprocessor; each takes several
 * samples, or chunks of them, where there are more. */
static void small_grid(const struct sp_kron_problem *p, const struct sp_kron_spec *s, int64_t n,
                       int multiprocessors, struct sp_kron_grid *grid)
{
    const int width = s->dtype == SPLAT_FP32 ? 4 : 8, along_matrices = s->run > 1;
    const int64_t matrices = p->kron.a * p->kron.d, wanted = 8 * (int64_t)multiprocessors;
    const int64_t steps = along_matrices ? n : ceil_div(ceil_div(n, width), SP_KRON_SMALL_THREADS);
    *grid = (struct sp_kron_grid){.splits = 1, .split_depth = p->kron.b * p->kron.c};
    grid->row_blocks = along_matrices ? ceil_div(matrices / width, SP_KRON_SMALL_THREADS) : matrices;
    grid->col_blocks = least(steps, ceil_div(wanted, grid->row_blocks));
    grid->blocks = grid->row_blocks * grid->col_blocks;
}

void sp_kron_grid_of(const struct sp_kron_problem *p, const struct sp_kron_spec *s, int64_t n, int multiprocessors,
                     struct sp_kron_grid *grid)
{
    if (s->small_rows) {
        small_grid(p, s, n, multiprocessors, grid);
        return;
    }
    struct sp_kron_sizes sizes;
    sp_kron_sizes_of(p, s, n, &sizes);
    const int64_t row_tiles = ceil_div(sizes.rows, block_rows(s)), col_tiles = ceil_div(sizes.cols, block_cols(s));
    const int64_t slots = (int64_t)multiprocessors * s->blocks_per_sm, batch = sizes.runs * p->kron.a;
    *grid = (struct sp_kron_grid){row_tiles, col_tiles, 1, ceil_div(sizes.depth, s->k_tile) * s->k_tile, 0};
    if (p->pass == SP_KRON_WEIGHT_GRADIENT) {
        /* Parts of at least four steps. */
        int64_t k_tiles = ceil_div(sizes.depth, s->k_tile), most_parts = ceil_div(k_tiles, 4);
        int64_t parts = moving_blocks(most_parts, batch * row_tiles * col_tiles, slots);
        grid->split_depth = ceil_div(k_tiles, parts) * s->k_tile;
        grid->splits = ceil_div(sizes.depth, grid->split_depth);
    } else if (sizes.moves_rows) {
        grid->row_blocks = moving_blocks(row_tiles, batch * col_tiles, slots);
    } else {
        grid->col_blocks = moving_blocks(col_tiles, batch * row_tiles, slots);
    }
    grid->blocks = batch * grid->row_blocks * grid->col_blocks * grid->splits;
}

/* ---- Choice ---- */

struct shape {
    int row_warps, col_warps, row_tiles, col_tiles, blocks_per_sm;
};

/* Sums of a thread: 4 * run * row_tiles * col_tiles = 64, or fewer for few rows, or 128. */
static const struct shape shapes_run8[] = {{4, 2, 1, 2, 1}, {2, 4, 1, 2, 1}, {1, 8, 1, 2, 1},
                                           {8, 1, 1, 2, 1}, {2, 4, 2, 2, 1}, {4, 2, 2, 2, 1}};
static const struct shape shapes_run4[] = {{4, 2, 2, 2, 1}, {1, 8, 2, 4, 1}, {1, 8, 3, 2, 1}, {2, 4, 2, 2, 1},
                                           {1, 8, 2, 2, 1}, {1, 8, 1, 4, 1}, {2, 4, 1, 4, 1}, {4, 2, 1, 4, 1},
                                           {1, 8, 1, 2, 1}, {2, 4, 2, 4, 1}, {4, 2, 2, 4, 1}};
static const struct shape shapes_run2[] = {{4, 2, 2, 4, 1}, {2, 4, 2, 4, 1}, {1, 8, 2, 4, 1},
                                           {1, 8, 1, 4, 1}, {8, 1, 2, 4, 1}, {2, 4, 4, 4, 1}};
static const struct shape shapes_run1[] = {{2, 4, 2, 4, 2}, {4, 2, 2, 4, 2}, {1, 8, 2, 4, 2}, {1, 8, 1, 4, 2},
                                           {8, 1, 1, 4, 2}, {4, 2, 2, 8, 1}, {2, 4, 2, 8, 1}, {1, 8, 2, 8, 1},
                                           {8, 1, 2, 4, 2}, {4, 2, 1, 4, 2}, {2, 4, 1, 4, 2}};

/* Products in fp32 want many sums for each number that is loaded. Those of runs: as above. */
static const struct shape shapes_fp32[] = {{2, 4, 4, 8, 1}, {4, 2, 4, 8, 1}, {1, 8, 4, 8, 1}, {8, 1, 4, 8, 1},
                                           {2, 4, 4, 4, 1}, {4, 2, 4, 4, 1}, {1, 8, 4, 4, 1}, {8, 1, 4, 4, 1},
                                           {1, 8, 3, 8, 1}, {2, 4, 3, 8, 1}, {1, 8, 2, 8, 1}, {2, 4, 2, 4, 2},
                                           {4, 2, 2, 4, 2}, {1, 8, 1, 4, 2}, {8, 1, 1, 4, 2}, {2, 4, 1, 4, 2}};

/* Each warp has one matrix of a run of 8, 4 or 2; the first numbers are of the warps for each. */
static const struct shape shapes_warps[] = {{1, 1, 4, 8, 1}, {1, 1, 3, 8, 1}, {1, 1, 2, 8, 1}, {1, 1, 4, 4, 1},
                                            {1, 1, 2, 4, 1}, {1, 2, 4, 8, 1}, {2, 1, 4, 8, 1}, {1, 2, 3, 8, 1},
                                            {1, 2, 2, 4, 1}, {1, 2, 1, 4, 1}, {2, 2, 4, 8, 1}, {1, 4, 4, 8, 1},
                                            {2, 2, 2, 4, 1}, {1, 4, 2, 4, 1}};

/* Runs with 128 sums leave no registers for both operands' runs, nor for rounding to tf32. */
static int has_registers(const struct sp_kron_problem *p, const struct sp_kron_spec *s)
{
    const int mine = s->run / s->run_warps;
    if (p->modest && mine * s->row_tiles * s->col_tiles > 16)
        return 0;
    return s->run == 1 || s->run_warps > 1 || s->run * s->row_tiles * s->col_tiles <= 16 ||
           (!s->out_float && !s->tf32);
}

static int shapes_of(int run, int run_warps, int fp32, const struct shape **shapes)
{
    if (run_warps > 1) {
        *shapes = shapes_warps;
        return (int)(sizeof shapes_warps / sizeof *shapes_warps);
    }
    if (run == 1 && fp32) {
        *shapes = shapes_fp32;
        return (int)(sizeof shapes_fp32 / sizeof *shapes_fp32);
    }
    *shapes = run == 8 ? shapes_run8 : run == 4 ? shapes_run4 : run == 2 ? shapes_run2 : shapes_run1;
    return (int)(run == 8   ? sizeof shapes_run8 / sizeof *shapes_run8
                 : run == 4 ? sizeof shapes_run4 / sizeof *shapes_run4
                 : run == 2 ? sizeof shapes_run2 / sizeof *shapes_run2
                            : sizeof shapes_run1 / sizeof *shapes_run1);
}

/* An H200: 132 multiprocessors at 1.7 GHz. Bytes a clock of one multiprocessor. */
enum { CHIP_MULTIPROCESSORS = 132, SHARED_SM80 = 163 * 1024, SHARED_SM90 = 227 * 1024 };
static const double clocks_a_us = 1700.0, memory_rate = 19.5, l2_rate = 32.0, shared_rate = 128.0;
static const double latency = 1000.0; /* clocks, from the start of a copy to its end */

/* Microseconds: the busiest slot's tiles, each the longest of its loads, its shared memory traffic and its
 * products, and a start; not below the whole traffic of memory. */
static double predict(const struct sp_kron_problem *p, const struct sp_kron_spec *s)
{
    struct sp_kron_sizes z;
    struct sp_kron_grid grid;
    sp_kron_sizes_of(p, s, p->n, &z);
    sp_kron_grid_of(p, s, p->n, CHIP_MULTIPROCESSORS, &grid);
    const int element = element_bytes(s), warps = s->row_warps * s->col_warps * s->run_warps,
              mine = s->run / s->run_warps;
    const double left = (double)tile_bytes(s, s->left, block_rows(s));
    const double right = (double)tile_bytes(s, s->right, block_cols(s));
    const double k_steps = s->k_tile * element / 32.0; /* of 32 bytes of depth */
    const int fp32 = s->dtype == SPLAT_FP32 && !s->tf32;
    /* Of one step of the depth. */
    const double loaded = (s->keep_left ? 0 : left) + (s->keep_right ? 0 : right);
    const double read = fp32 ? warps * mine * s->k_tile * 256.0 * (s->row_tiles + s->col_tiles)
                             : warps * mine * k_steps * 512.0 * (s->row_tiles + s->col_tiles / 2.0);
    const double products = warps * mine * k_steps * s->row_tiles * s->col_tiles * (fp32 ? 8.0 : 1.7);
    const double arrival =
        loaded > 0 ? latency / (s->stages - 1) / s->blocks_per_sm : 0; /* with so many under way */
    const double step = most(most(most(loaded / l2_rate, (loaded + read) / shared_rate), products), arrival) + 60.0;
    const double k_tiles = (double)ceil_div(grid.split_depth < z.depth ? grid.split_depth : z.depth, s->k_tile);
    const double stored = (double)block_rows(s) * block_cols(s) * s->run * (s->out_float ? 4 : element);
    const double tile = k_tiles * step + stored / l2_rate + 200.0;
    const int64_t row_tiles = ceil_div(z.rows, block_rows(s)), col_tiles = ceil_div(z.cols, block_cols(s));
    const double tiles_a_block =
        (double)(ceil_div(row_tiles, grid.row_blocks) * ceil_div(col_tiles, grid.col_blocks));
    const double kept = (s->keep_left ? left * s->keep_left : 0) + (s->keep_right ? right * s->keep_right : 0);
    const double block = tiles_a_block * tile + kept / l2_rate + 1500.0;
    /* Blocks that share a multiprocessor share its rates. */
    const double rounds = (double)ceil_div(grid.blocks, CHIP_MULTIPROCESSORS);
    const double least_time = (double)element *
                              ((double)p->n * (double)(p->kron.a * p->kron.d) * (double)(p->kron.b + p->kron.c) +
                               (double)(p->kron.a * p->kron.b * p->kron.c * p->kron.d)) /
                              memory_rate / CHIP_MULTIPROCESSORS;
    return most(rounds * block, least_time) / clocks_a_us + 2.0;
}

/* Matrices of a few inputs and outputs would leave most of a tile empty: they have a kernel of their own where 16
 * bytes hold as many neighbours as they can. Its weights stay in registers. */
static int is_small(const struct sp_kron_problem *p, const struct sp_kron_spec *s)
{
    const int width = p->dtype == SPLAT_FP32 ? 4 : 8;
    if (p->pass == SP_KRON_WEIGHT_GRADIENT || (s->run > 1 && p->kron.d % width != 0))
        return 0;
    if (p->layout == SPLAT_BATCH_FIRST && s->run == 1)
        return 0;
    return p->kron.b <= 8 && p->kron.c <= 8 && p->kron.b * p->kron.c * (s->run > 1 ? width : 4) <= 64;
}

/* Puts what stays into the spec if it fits beside the stages. */
static void keep_weights(const struct sp_kron_problem *p, struct sp_kron_spec *s)
{
    struct sp_kron_sizes z;
    sp_kron_sizes_of(p, s, p->n, &z);
    int64_t k_tiles = ceil_div(z.depth, s->k_tile);
    if (p->pass == SP_KRON_WEIGHT_GRADIENT || k_tiles > 64)
        return;
    *(z.moves_rows ? &s->keep_right : &s->keep_left) = (int)k_tiles;
}

static int fits(const struct sp_kron_spec *s)
{
    const int64_t limit = s->arch == SPLAT_ARCH_SM80 ? SHARED_SM80 : SHARED_SM90;
    return s->blocks_per_sm * (sp_kron_shared_bytes(s) + 1024) <= limit + 1024;
}

void sp_kron_plan(const struct sp_kron_problem *p, struct sp_kron_spec *best, double *predicted_us)
{
    static const int k_tiles[] = {8, 16, 32, 64, 128};
    struct sp_kron_spec s = {.arch = p->arch, .dtype = p->dtype, .tf32 = p->tf32};
    const struct shape *shapes;
    double best_us = -1;
    set_operands(p, &s);
    if (is_small(p, &s)) {
        const int forward = p->pass == SP_KRON_FORWARD, element = element_bytes(&s);
        s.small_rows = (int)(forward ? p->kron.b : p->kron.c);
        s.small_depth = (int)(forward ? p->kron.c : p->kron.b);
        *best = s;
        *predicted_us = (double)element * (double)p->n * (double)(p->kron.a * p->kron.d) *
                            (double)(p->kron.b + p->kron.c) / memory_rate / CHIP_MULTIPROCESSORS / clocks_a_us +
                        2.0;
        return;
    }
    const int count = shapes_of(s.run, s.run_warps, s.dtype == SPLAT_FP32 && !s.tf32, &shapes);
    for (int x = 0; x < count; x++)
        for (int k = s.run_warps > 1 ? 0 : 1; k < 5; k++)
            for (int stages = 2; stages <= 4; stages++)
                for (int keep = 0; keep < 2; keep++) {
                    s.row_warps = shapes[x].row_warps, s.col_warps = shapes[x].col_warps;
                    s.row_tiles = shapes[x].row_tiles, s.col_tiles = shapes[x].col_tiles;
                    s.blocks_per_sm = shapes[x].blocks_per_sm;
                    s.k_tile = k_tiles[k];
                    s.stages = stages;
                    s.keep_left = s.keep_right = 0;
                    if (keep)
                        keep_weights(p, &s);
                    if (!fits(&s) || !has_registers(p, &s) || s.row_warps * s.col_warps * s.run_warps > 8)
                        continue;
                    /* Two stages leave no copy under way while a tile is stored; four hide more. */
                    double us = predict(p, &s) * (stages == 2 ? 1.15 : stages == 3 ? 1.0 : 0.995);
                    if (best_us < 0 || us < best_us) {
                        best_us = us;
                        *best = s;
                    }
                }
    *predicted_us = best_us;
}
