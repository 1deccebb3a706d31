// Slips that an author of the layers' kernels may make. Each must be found.
#include "layers.h"

namespace machine
{

constexpr auto FORWARD = SP_KRON_FORWARD;
constexpr auto BACK = SP_KRON_INPUT_GRADIENT;
constexpr auto WEIGHTS = SP_KRON_WEIGHT_GRADIENT;
static const char KERNEL[] = "splat_kron(const";

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
        {"fp32: columns of a pair", "fp32-last", FORWARD, "void multiply_single(", "b[n][1][j] = two[1]",
         "b[n][1][j] = two[0]"},
    };
    return mutants;
}

} // namespace machine
