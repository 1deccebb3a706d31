/* Takes a problem: gives tiles of the Hopper kernel (templates/kron_sm90.cuh) and their grid, or says that another
 * kernel must do it. Numbers of the cost model as in kron_plan.c: bytes and clocks of one multiprocessor. */
#include "analysis/kron_plan.h"

enum { SHARED_LIMIT = 227 * 1024, STAGES_MAX = 8, CHIP_MULTIPROCESSORS = 132 };
static const double clocks_a_us = 1700.0, memory_rate = 17.0, l2_rate = 28.0, shared_rate = 128.0;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static int element_bytes(const struct sp_kron_hopper *s)
{
    return s->dtype == SPLAT_FP32 ? 4 : 2;
}

/* ---- Tiles ---- */

static int tile_rows(const struct sp_kron_hopper *s)
{
    return 64 * s->row_groups * s->row_blocks;
}

static int tile_cols(const struct sp_kron_hopper *s)
{
    return s->col_groups * s->group_cols;
}

int sp_kron_hopper_samples(const struct sp_kron_hopper *s)
{
    return s->left == SP_WEIGHTS_LEFT ? tile_cols(s) : tile_rows(s);
}

int sp_kron_hopper_outputs(const struct sp_kron_hopper *s)
{
    return s->left == SP_WEIGHTS_LEFT ? tile_rows(s) : tile_cols(s);
}

static int64_t sample_tile_bytes(const struct sp_kron_hopper *s)
{
    return (int64_t)sp_kron_hopper_samples(s) * s->k_tile * s->run * element_bytes(s);
}

static int64_t weight_tile_bytes(const struct sp_kron_hopper *s)
{
    const int64_t line = 128 / element_bytes(s), outputs = sp_kron_hopper_outputs(s);
    return s->weights_along_k ? (int64_t)s->k_tile * element_bytes(s) * s->run * outputs
                              : ceil_div(outputs, line) * s->run * s->k_tile * 128;
}

int64_t sp_kron_hopper_shared_bytes(const struct sp_kron_hopper *s)
{
    const int64_t staged = s->run_groups > 1 ? (int64_t)tile_rows(s) * 8 * s->run * element_bytes(s) : 0;
    return s->stages * (sample_tile_bytes(s) + (s->keep ? 0 : weight_tile_bytes(s))) +
           s->kept_units * s->keep * weight_tile_bytes(s) + staged + 8 * (2 * s->stages + 2 * s->kept_units) + 1024;
}

/* ---- Grid ---- */

static int64_t outputs_of(const struct sp_kron_problem *p)
{
    return p->pass == SP_KRON_INPUT_GRADIENT ? p->kron.c : p->kron.b;
}

static int64_t inputs_of(const struct sp_kron_problem *p)
{
    return p->pass == SP_KRON_INPUT_GRADIENT ? p->kron.b : p->kron.c;
}

void sp_kron_hopper_grid_of(const struct sp_kron_problem *p, const struct sp_kron_hopper *s, int64_t n,
                            int multiprocessors, struct sp_kron_hopper_grid *g)
{
    g->runs = p->kron.d / s->run;
    g->teams = s->run > 1 && !s->whole_run ? g->runs : 1;
    g->units = p->kron.a * g->runs / g->teams;
    g->sample_tiles = ceil_div(n, sp_kron_hopper_samples(s));
    g->output_tiles = ceil_div(outputs_of(p), sp_kron_hopper_outputs(s));
    const int64_t items = g->units * g->sample_tiles * g->output_tiles;
    const int64_t parts = multiprocessors / g->teams;
    g->blocks = g->teams * (items < parts ? items : parts > 0 ? parts : 1);
}

/* ---- Choice ---- */

/* A warpgroup's sums are run / run_groups * row_blocks * group_cols / 2 registers a thread. */
struct shape {
    enum sp_kron_left left;
    int run; /* 0: any */
    int row_groups, col_groups, run_groups, row_blocks, cols_max;
};

static const struct shape shapes[] = {
    {SP_WEIGHTS_LEFT, 1, 1, 2, 1, 1, 128},     {SP_WEIGHTS_LEFT, 1, 1, 2, 1, 1, 64},
    {SP_WEIGHTS_LEFT, 1, 2, 1, 1, 1, 128},     {SP_WEIGHTS_LEFT, 1, 2, 1, 1, 1, 64},
    {SP_WEIGHTS_LEFT, 1, 2, 1, 1, 1, 256},     {SP_WEIGHTS_LEFT, 1, 2, 1, 1, 2, 128},
    {SP_WEIGHTS_LEFT, 1, 1, 2, 1, 2, 128},     {SP_SAMPLES_ALONG_K, 1, 2, 1, 1, 1, 256},
    {SP_SAMPLES_ALONG_K, 1, 2, 1, 1, 2, 128},  {SP_SAMPLES_ALONG_K, 1, 2, 1, 1, 1, 128},
    {SP_SAMPLES_ALONG_K, 1, 1, 2, 1, 1, 128},  {SP_SAMPLES_IN_LINES, 1, 2, 1, 1, 2, 128},
    {SP_SAMPLES_IN_LINES, 1, 1, 2, 1, 2, 128}, {SP_SAMPLES_IN_RUNS, 2, 2, 1, 1, 1, 192},
    {SP_SAMPLES_IN_RUNS, 2, 2, 1, 1, 2, 80},   {SP_SAMPLES_IN_RUNS, 4, 2, 1, 1, 1, 88},
    {SP_SAMPLES_IN_RUNS, 8, 2, 1, 1, 1, 48},   {SP_SAMPLES_IN_RUNS, 8, 1, 1, 2, 1, 88},
    {SP_SAMPLES_IN_RUNS, 16, 1, 1, 2, 1, 32},
};

/* How the problem's operands lie, or 0 where the kernel does not take them. */
static int set_operands(const struct sp_kron_problem *p, struct sp_kron_hopper *s)
{
    const int element = p->dtype == SPLAT_FP32 ? 4 : 2, sector = 32 / element;
    const int64_t d = p->kron.d;
    if (p->arch != SPLAT_ARCH_SM90A || p->pass == SP_KRON_WEIGHT_GRADIENT || (element == 4 && !p->tf32) ||
        p->kron.c * element % 16 != 0 || p->kron.a > INT32_MAX / 2 || d > INT32_MAX / 2)
        return 0;
    *s = (struct sp_kron_hopper){
        .dtype = p->dtype, .run = 1, .whole_run = 1, .kept_units = 1, .depth = (int)inputs_of(p)};
    s->weights_along_k = p->pass == SP_KRON_FORWARD;
    if (element == 4 && !s->weights_along_k)
        return 0;
    if (p->layout == SPLAT_BATCH_LAST) {
        s->left = element == 4 ? SP_SAMPLES_IN_LINES : SP_WEIGHTS_LEFT;
        return 1;
    }
    s->left = d == 1 ? SP_SAMPLES_ALONG_K : SP_SAMPLES_IN_RUNS;
    if (d == 2 || d == 4 || (d == 8 && element == 2)) {
        s->run = (int)d;
    } else if (d > 1) {
        if (d % sector != 0)
            return 0;
        s->run = sector;
        s->whole_run = d == sector;
    }
    return inputs_of(p) * d * element % 16 == 0; /* of a block's samples */
}

/* Whether panels of samples are whole for this depth of a step. */
static int lies_well(const struct sp_kron_hopper *s)
{
    const int element = element_bytes(s), bytes = s->k_tile * s->run * element;
    if (s->left == SP_SAMPLES_IN_RUNS && !s->whole_run)
        return 1;
    if (s->left == SP_SAMPLES_ALONG_K || s->left == SP_SAMPLES_IN_RUNS)
        return bytes >= 32 && (bytes <= 128 ? 128 % bytes == 0 : bytes % 128 == 0);
    return 1;
}

/* Microseconds: the busiest block's tiles, each the longest of what it brings, its shared memory traffic and its
 * products, and a start; not below the whole traffic of memory. */
static double predict(const struct sp_kron_problem *p, const struct sp_kron_hopper *s)
{
    struct sp_kron_hopper_grid g;
    sp_kron_hopper_grid_of(p, s, p->n, CHIP_MULTIPROCESSORS, &g);
    const int element = element_bytes(s), groups = s->row_groups * s->col_groups * s->run_groups;
    const int64_t k_tiles = ceil_div(s->depth, s->k_tile), items = g.units * g.sample_tiles * g.output_tiles;
    const double present = (double)s->depth / (double)(k_tiles * s->k_tile); /* what lies beyond is not brought */
    const double samples = present * (double)sample_tile_bytes(s);
    const double weights = s->keep ? 0 : present * (double)weight_tile_bytes(s);
    const double steps = (double)(k_tiles == 1 ? ceil_div(s->depth * element, 32) : s->k_tile * element / 32);
    const double products = groups * steps * (s->run / s->run_groups) * s->row_blocks;
    const int registers = sp_kron_left_in_registers(s->left);
    const double multiplied = products * s->group_cols / 2.0;
    const double read = products * (s->group_cols * 32.0 + (registers ? 0 : 2048.0)) +
                        (registers ? 1.5 * samples * s->col_groups : 0) + samples + weights;
    const double stored = (double)tile_rows(s) * tile_cols(s) * s->run * element;
    /* A step's barriers, and where samples go through registers its loads before the first product. */
    const double begin = registers ? 150.0 : 60.0;
    const double busy = (double)k_tiles * (most(multiplied, read / shared_rate) + begin) + 400.0 + stored / 64.0;
    const double brought = ((double)k_tiles * (samples + weights) + stored) / l2_rate;
    const double item = most(busy, brought) + 0.1 * (busy < brought ? busy : brought);
    /* Weights that stay come under the unit before, or everyone waits for them. */
    const double kept =
        s->keep ? s->kept_units > 1 ? 100.0 : 3500.0 + s->keep * (double)weight_tile_bytes(s) / l2_rate : 0;
    const int64_t share = ceil_div(items * g.teams, g.blocks);
    /* Other weights that the busiest block meets. */
    const double changes = g.units > 1 ? (double)ceil_div(share, g.sample_tiles * g.output_tiles) : 0;
    const double busiest = (double)share * item + 3000.0;
    const double traffic = (double)element *
                           ((double)p->n * (double)(p->kron.a * p->kron.d) * (double)(p->kron.b + p->kron.c) +
                            (double)(p->kron.a * p->kron.b * p->kron.c * p->kron.d)) /
                           memory_rate / CHIP_MULTIPROCESSORS;
    /* Of two that memory bounds, the one that brings less. */
    return (most(busiest, traffic + 3000.0) + 0.05 * (double)share * brought + changes * kept) / clocks_a_us + 2.0;
}

/* As many stages as fit, of those that leave enough under way; 0 where too few do. */
static int set_stages(const struct sp_kron_hopper *given, struct sp_kron_hopper *s)
{
    *s = *given;
    s->stages = 2;
    if (sp_kron_hopper_shared_bytes(s) > SHARED_LIMIT)
        return 0;
    while (s->stages < STAGES_MAX) {
        s->stages++;
        if (sp_kron_hopper_shared_bytes(s) > SHARED_LIMIT) {
            s->stages--;
            break;
        }
    }
    return s->stages * (sample_tile_bytes(s) + (s->keep ? 0 : weight_tile_bytes(s))) >= 48 * 1024 ||
           s->stages == STAGES_MAX;
}

/* The tile without weights that stay, with those of a unit, and with those of two. */
static void consider(const struct sp_kron_problem *p, const struct sp_kron_hopper *tile,
                     struct sp_kron_hopper *best, double *best_us)
{
    if (sample_tile_bytes(tile) % 1024 != 0 || weight_tile_bytes(tile) % 1024 != 0)
        return; /* swizzles count from multiples of 1024 */
    const int64_t output_tiles = ceil_div(outputs_of(p), sp_kron_hopper_outputs(tile));
    const int64_t tiles = output_tiles * ceil_div(tile->depth, tile->k_tile);
    for (int units = 0; units <= 2; units++) {
        struct sp_kron_hopper s = *tile;
        if (units) {
            if (tiles > 64)
                continue;
            s.keep = (int)tiles;
            s.kept_units = units;
        }
        if (!set_stages(&s, &s))
            continue;
        double us = predict(p, &s) * (s.stages == 2 ? 1.1 : 1.0) * (s.keep ? 1.0 : 1.01);
        for (int bytes = s.k_tile * element_bytes(&s); bytes < 128; bytes *= 2)
            us *= 1.02; /* copies of short lines */
        if (s.left == SP_WEIGHTS_LEFT ? s.group_cols == 64 : s.left == SP_SAMPLES_IN_LINES && s.row_groups == 1)
            us *= 1.01; /* tiles for few samples */
        if (s.run > 1 && !s.whole_run && !s.keep)
            us *= 1.3; /* as measured */
        if (s.stages * (sample_tile_bytes(&s) + (s.keep ? 0 : weight_tile_bytes(&s))) < 72 * 1024)
            us *= 1.03; /* little under way */
        if (*best_us < 0 || us < *best_us) {
            *best_us = us;
            *best = s;
        }
    }
}

int sp_kron_hopper_plan(const struct sp_kron_problem *p, double portable_us, struct sp_kron_hopper *best,
                        double *predicted_us)
{
    struct sp_kron_hopper s;
    double best_us = -1;
    if (!set_operands(p, &s))
        return 0;
    const int64_t outputs = outputs_of(p);
    const int element = element_bytes(&s);
    for (size_t x = 0; x < sizeof shapes / sizeof *shapes; x++) {
        const struct shape *shape = &shapes[x];
        if (shape->left != s.left || shape->run != s.run)
            continue;
        s.row_groups = shape->row_groups, s.col_groups = shape->col_groups, s.run_groups = shape->run_groups;
        s.row_blocks = shape->row_blocks;
        if (s.run / s.run_groups * element > 16 || (s.run_groups == 2 && s.run / 2 * element < 16))
            continue; /* of a chunk of results */
        for (int parts = 1; parts <= 64; parts++) {
            s.group_cols = shape->cols_max;
            if (s.left != SP_WEIGHTS_LEFT) {
                const int64_t each = ceil_div(ceil_div(outputs, parts * s.col_groups), 8) * 8;
                if (each > shape->cols_max || (parts > 1 && each < 24))
                    continue;
                if (!s.weights_along_k && s.col_groups > 1)
                    continue;
                s.group_cols = (int)each;
            }
            if (p->modest && s.run / s.run_groups * s.row_blocks * s.group_cols > 256)
                continue;
            for (int k_tile = 32 / element; k_tile <= 128 / element; k_tile *= 2) {
                s.k_tile = k_tile;
                if (lies_well(&s) && (k_tile < 2 * s.depth || k_tile == 32 / element))
                    consider(p, &s, best, &best_us);
            }
            if (s.left == SP_WEIGHTS_LEFT)
                break;
        }
    }
    *predicted_us = best_us;
    /* What the portable kernel takes where it is not the start that counts, as measured: 1.7 times its prediction,
     * and 2.4 times where it stores half sectors. */
    const double factor = p->layout == SPLAT_BATCH_FIRST && p->kron.d > 8 ? 2.4 : 1.7;
    return best_us >= 0 && best_us < most(portable_us, factor * portable_us - 2.5);
}
