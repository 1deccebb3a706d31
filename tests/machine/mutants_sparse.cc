// The list, for the kernels of the operators on values.
#include "mutants.h"

namespace machine
{

// Where to look.
static const char SDDMM[] = "splat_sddmm(const";
static const char SPMM[] = "splat_spmm(const";
static const char LOOP[] = "for (bool more = true; more; stage ^= 1) {";

const std::vector<Mutant> &sparse_mutants()
{
    static const std::vector<Mutant> mutants = {
        // -- SDDMM
        {"no wait for k", "sddmm-all", LOOP, "copy_wait<0>();", "", "is under way"},
        {"no barrier before k is overwritten", "sddmm-128", LOOP, "block_barrier();", "", "a race"},
        {"k of the other stage", "sddmm-128", LOOP, "k_lane + stage * K_BYTES", "k_lane + (1 - stage) * K_BYTES"},
        {"no warp barrier before values are stored", "sddmm-all", LOOP, "warp_barrier();", "", "a race"},
        {"the last values are not stored", "sddmm-all", LOOP, "store_elements(rows[r].chunk", "if (false) store_elements(rows[r].chunk"},
        {"every lane stores the last values", "sddmm-all", "// What did not fill", "lane % 4 == 0", "true", "a race"},
        {"the row before is written over", "sddmm-all", "void store_chunks(", "row.foreign > 0", "false", "stored"},
        {"what is left is not moved", "sddmm-all", "void advance(", "if (threadIdx.x % 4 == 0)", "if (false)"},
        {"one chunk too many is moved on", "sddmm-all", "void advance(", "row.chunk += 16 * whole", "row.chunk += 16 * whole + 16"},
        {"rows begin at the chunk", "sddmm-all", SDDMM, "static_cast<int>(first % 8)", "0"},
        {"rows beyond the last are stored", "sddmm", SDDMM, "query < args.q_len ? results", "true ? results"},
        {"a rank counts the pair itself", "sddmm-all", "int rank_of(", ")) - 1;", "));"},
        {"a rank forgets the first word", "sddmm-all", "int rank_of(", "if (block >= 4)", "if (block > 4)"},
        {"offsets of the first mask", "sddmm-all", "row_offsets_of(", "mask * (args.value_rows + 1)", "0 * mask"},
        {"offsets one short", "sddmm-all", "row_offsets_of(", "(args.value_rows + 1)", "args.value_rows"},
        {"scale left out", "sddmm", "void gather(", "products[2 * (r % 2)] * scale", "products[2 * (r % 2)]"},
        {"k head of the query head", "sddmm", SDDMM, "head / args.group", "head", "byte"},
        {"bitmasks do not step", "sddmm-all", "bool next_tile(", "cursor.mask += cursor.code >> 4 & 1;", ""},
        {"columns do not step", "sddmm-128", "bool next_tile(", "cursor.column += TILE_COLS;", ""},
        // -- A x
        {"no wait for values", "spmm-all", LOOP, "copy_wait<0>();", "", "is under way"},
        {"no barrier before x is overwritten", "spmm", LOOP, "else\n                block_barrier();", ""},
        {"each thread decides alone on bad values", "spmm-all", LOOP, "block_barrier_or(own_nonfinite(x_tile))",
         "(block_barrier(), own_nonfinite(x_tile))"},
        {"bad values are multiplied by zeros", "spmm-all", LOOP, "HAS_PARTIAL && apart", "false"},
        {"a copy reads beyond the row's values", "spmm", "unsigned copy_line(", "left < 0 ? 0 : left < 16 ? left : 16", "16", "byte"},
        {"a copy ends one value early", "spmm-all", "unsigned copy_line(", "+ 2 * count", "+ 2 * count - 2"},
        {"values from the chunk on", "spmm-all", "unsigned copy_line(", "threadIdx.x % 4 * 16 + shift", "threadIdx.x % 4 * 16"},
        {"a pair at an odd place", "spmm-narrow", "unsigned load_pair(", "if (!(address & 2))", "if (true)"},
        {"rows do not count on", "spmm-128", "Tile copy_rows_of_values(", "rows.next[r] += 2 * count;", ""},
        {"the second of a pair has the first's rank", "spmm-all", "void load_row_fragment(", "rank + first", "rank"},
        {"rows of a fragment swapped", "spmm", "void load_row_fragment(", "x / 4 * 2 + x % 2", "x / 4 * 2 + 1 - x % 2"},
        {"x: the rows of a fragment", "spmm", SPMM, "lane % 16 * X_PITCH", "lane % 8 * X_PITCH"},
        {"no barrier before y takes the place of x", "spmm-128", SPMM, "block_barrier(); // y", "// y", "a race"},
        {"no warp barrier before y is stored", "spmm", "void store_results(", "warp_barrier();\n#pragma", "\n#pragma", "a race"},
        {"x head of the query head", "spmm", SPMM, "head / args.group", "head", "byte"},
        {"apart: the other element", "spmm-all", "void multiply_apart(", "e = k % 2", "e = 1 - k % 2"},
        {"apart: pairs that are not allowed", "spmm-all", "void multiply_apart(", "if (has[r])", "if (true)"},
        // -- A^T x
        {"ranks forget the warps above", "spmm-t-all", "void load_column_fragment(", "above < warp", "above < 0"},
        {"ranks of the other stage", "spmm-t-all", "void load_column_fragment(", "COUNTS_OFFSET + stage * COUNTS_BYTES",
         "COUNTS_OFFSET + (1 - stage) * COUNTS_BYTES"},
        {"ranks count the row itself", "spmm-t-all", "void load_column_fragment(", "(1u << (4 * g)) - 1", "(2u << (4 * g)) - 1"},
        {"the lower half forgets the upper", "spmm-t-all", "void load_column_fragment(", "rank += count_bits(bits);", ""},
        {"bits of another column", "spmm-t-all", "unsigned column_bits(", ">> (threadIdx.x % 4)", ">> 0"},
        {"absent rows take part", "spmm-t", "Tile copy_columns_of_values(", "rows.present[r] ? own.word[r][w] : 0", "own.word[r][w]"},
        {"tiles of another row tile", "spmm-t-128", SPMM, "sparse.first_tiles[work.number]", "sparse.first_tiles[0]"},
        {"the tile's number stands still", "spmm-t-128", SPMM, "tile_number++", "tile_number"},
        // -- softmax
        {"a chunk of another row is whole", "softmax", "bool is_whole(", "8 * chunk >= row.first", "true"},
        {"a row ends one value early", "softmax", "splat_softmax(", "static_cast<int>(end - begin)", "static_cast<int>(end - begin) - 1"},
        {"the maximum of half a warp", "softmax-long", "splat_softmax(", "mask = 16", "mask = 8"},
        {"sums of half a warp", "softmax-long", "float sum = 0.0f;", "mask = 16", "mask = 8"},
        {"exp of -inf less -inf", "softmax", "splat_softmax(", "top == -infinity() ? 0.0f", "false ? 0.0f"},
        {"only what is held", "softmax-long", "void for_chunks(", "for (; 8 * chunk < row.end", "for (; false"},
    };
    return mutants;
}

} // namespace machine
