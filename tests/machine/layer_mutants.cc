// Slips that an author of the layers' kernels may make. Each must be found.
#include "layers.h"

namespace machine
{

constexpr auto FORWARD = SP_KRON_FORWARD;
constexpr auto BACK = SP_KRON_INPUT_GRADIENT;
constexpr auto WEIGHTS = SP_KRON_WEIGHT_GRADIENT;
static const char KERNEL[] = "splat_kron(const";
static const char HOPPER[] = "void consume(";

const std::vector<LayerMutant> &layer_mutants()
{
    static const std::vector<LayerMutant> mutants = {
        {"no wait for a step", "run-8", FORWARD, KERNEL, "copy_wait<STAGES - 2>();", "", "is under way"},
        {"waits for all but one step more", "run-8", FORWARD, KERNEL, "copy_wait<STAGES - 2>();",
         "copy_wait<STAGES - 1>();", "is under way"},
        {"no barrier before a step is read", "run-4", FORWARD, KERNEL, "block_barrier();", "", ""},
        {"copies are not committed", "gemm-first", FORWARD, KERNEL, "copy_commit();", "", "is under way"},
        {"the slot before", "many-samples", FORWARD, KERNEL, "slot = slot + 1 == STAGES",
         "slot = slot + 1 == STAGES - 1"},
        {"lines beyond the end are read", "gemm-last", FORWARD, "void copy_tile(", "line < lines_left", "true"},
        {"the tail of a line is read", "odd-last", FORWARD, "void copy_elements(", "inside < inside_left", "true"},
        {"matrices beyond the last are read", "d-12", FORWARD, "void copy_elements(", "matrix < left.matrices",
         "true"},
        {"the matrices of a run swapped", "run-8", FORWARD, "void load_pairs(", "j % 2 ?", "j % 2 == 0 ?"},
        {"k of a pair swapped", "run-8", FORWARD, "void load_pairs(", "words[HALF + j / 2]", "words[j / 2]"},
        {"k of a pair from the same line", "run-8", WEIGHTS, "void load_pairs(", "row, k + 1)", "row, k)"},
        {"left: the halves of a fragment", "run-4", FORWARD, "void load_left_matrix(", "n / 16 * 8",
         "n / 8 % 2 * 8"},
        {"left transposed: rows", "run-4", BACK, "void load_left_matrix(", "n / 8 % 2 * 8, k", "n / 16 * 8, k"},
        {"right: the order of matrices", "gemm-first", FORWARD, "void load_right_matrix(", "n / 8 % 2 * 8",
         "n / 16 * 8"},
        {"right transposed: columns", "gemm-last", FORWARD, "void load_right_matrix(",
         "col + n / 16 * 8, k + n % 16", "col, k + n % 16"},
        {"tf32: the second half of the depth", "tf32-run", FORWARD, "void load_run(", "4 * half", "2 * half"},
        {"tf32: columns of the second tile", "tf32-last", FORWARD, "void load_right_matrix(", "r / 2 * 8",
         "r % 2 * 8"},
        {"a row's columns not gathered", "gemm-last", FORWARD, "Chunk gather_row(", "odd ? x : w[0]", "w[0]"},
        {"results of rows beyond the last", "gemm-last", FORWARD, "void store_rows(", "row < to.rows && ", ""},
        {"results of columns beyond the last", "run-8", FORWARD, "void store_runs(",
         " && col + 8 * n + e < to.cols", ""},
        {"results of matrices beyond the last", "d-12", FORWARD, "void store_runs(", "to.matrices", "RUN"},
        {"the bias of the row before", "run-4", FORWARD, "void add_bias(", "at * args.bias_step",
         "(at > 0 ? at - 1 : 0) * args.bias_step"},
        {"kept weights copied over", "many-samples", FORWARD, KERNEL, "(!KEEP_LEFT || first_tile)", "(true)"},
        {"the depth of the last part", "many-samples", WEIGHTS, KERNEL,
         "smaller(args.depth - k_begin, args.split_depth)", "args.split_depth"},
        {"every part at the same place", "many-samples", WEIGHTS, KERNEL, "split * args.out_split", "0", ""},
        {"one tile a block", "many-samples", FORWARD, KERNEL, "            col += col_step;\n    }\n    copy_wait",
         "            break;\n    }\n    copy_wait"},
        {"small: the last samples", "radix-2-odd", FORWARD, "splat_kron_small(const", "left_over > WIDTH",
         "left_over > 0"},
        {"small: weights of the matrix before", "radix-2", BACK, "splat_kron_small(const",
         "(matrix + e) * args.left.matrix", "(matrix + e / 2) * args.left.matrix"},
        {"small: samples left out", "radix-2", FORWARD, "splat_kron_small(const", "at += step", "at += step + 1"},
        {"fp32: columns of a load", "fp32-last", FORWARD, "void multiply_four(", "QUADS ? col + x : col",
         "QUADS ? col + x / 2 : col"},
        {"fp32: k of a load", "fp32-first", FORWARD, "void multiply_four(", "as_float(b[e])", "as_float(b[e / 2])"},
        {"fp32: a row's columns", "fp32-last", FORWARD, "int column_of(", "n / 2 * 16 + 4 * t",
         "n / 2 * 16 + 2 * t"},
        {"fp32: staged over what is not stored", "fp32-run", FORWARD, "void store_staged(", "block_barrier();", "",
         "race"},
        {"fp32: the matrix of another warp", "fp32-run-64", FORWARD, "void load_mine(",
         "+ (Tile<ALONG, ROWS>::IN_RUNS ? 4 * lane.run : 0)", ""},
        // -- the Hopper kernel
        {"h: a stage is not waited for", "h-last", FORWARD, HOPPER,
         "barrier_wait(barrier_at(shared, FULL + ring.slot), ring.parity);", "", ""},
        {"h: the kept weights are not waited for", "h-run-4", FORWARD, HOPPER,
         "barrier_wait(barrier_at(shared, KEPT_FULL + kept.slot), kept.parity);", "", ""},
        {"h: a stage is given back before its products are over", "h-last-deep", FORWARD, HOPPER,
         "wgmma_wait<1>();", "", ""},
        {"h: the stage after", "h-first-deep", FORWARD, HOPPER, "ring.slot ? ring.slot - 1 : STAGES - 1",
         "ring.slot", ""},
        {"h: registers of products under way", "h-tf32-last", FORWARD, "void multiply_tile(", "wgmma_wait<1>();",
         "", ""},
        {"h: sums of the tile before", "h-last-wide", FORWARD, HOPPER, "k > 0, this_lane", "true, this_lane", ""},
        {"h: samples of the tile before", "h-first-deep", FORWARD, "Work first_work(", "rest % args.sample_tiles",
         "0"},
        {"h: the next unit's matrices", "h-last", FORWARD, "void next_work(", "find_matrices(args, work);", ""},
        {"h: outputs beyond the last", "h-last", FORWARD, "void store_rows(", "row < rows && ", "", ""},
        {"h: samples beyond the last", "h-run-4", FORWARD, "void store_runs(", "sample < to.samples", "true"},
        {"h: swizzle of whole runs", "h-run-4", FORWARD, "unsigned run_address(", "% (SPAN / 16) * 16",
         "% (SPAN / 32) * 16"},
        {"h: swizzle of parts of runs", "h-run-16-of-48", FORWARD, "unsigned run_address(", "address >> 7",
         "address >> 8"},
        {"h: matrices of a pair", "h-run-2", FORWARD, "void load_pairs(", "j % 2 ?", "j % 2 == 0 ?"},
        {"h: outputs are not traded", "h-run-8", FORWARD, "void store_runs(", "trade(values[0], values[1], lane);",
         ""},
        {"h: the staging area is not waited for", "h-run-16", FORWARD, "void store_staged(",
         "named_sync(1, 128 * GROUPS);", "", "race"},
        {"h: tf32: samples of a thread", "h-tf32-last", FORWARD, "void load_lines(", "e % 2 + 2 * half",
         "e % 2 + half", ""},
        {"h: the bias of the output before", "h-last", FORWARD, "void add_bias(", "load_bias(to.bias + output",
         "load_bias(to.bias + output / 2"},
        {"h: weights along outputs", "h-last", BACK, "sp_i64 weights_at(", "step * 2048", "step * 1024", ""},
    };
    return mutants;
}

} // namespace machine
