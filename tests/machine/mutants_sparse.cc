// The list, for the kernels of the operators on values.
#include "mutants.h"

namespace machine
{

// Where to look.
static const char SDDMM[] = "splat_sddmm(const";
static const char SPMM[] = "splat_spmm(const";
static const char LOOP[] = "for (bool more = true; more; stage ^= 1) {"; // of SDDMM and A x

const std::vector<Mutant> &sparse_mutants()
{
    static const std::vector<Mutant> mutants = {
        // -- SDDMM
        {"no wait for k", "sddmm-all", LOOP, "copy_wait<0>();", "", "is under way"},
        {"no barrier before k is overwritten", "sddmm-128", LOOP, "block_barrier();", "", "a race"},
        {"k of the other stage", "sddmm-128", LOOP, "k_lane + stage * K_BYTES", "k_lane + (1 - stage) * K_BYTES"},
        {"k in its own order", "sddmm-128", SDDMM, "PITCH, place_by_eights>", "PITCH>"},
        {"no warp barrier before values are stored", "sddmm-all", LOOP, "warp_barrier();", "", "a race"},
        {"no warp barrier before what waits is moved", "sddmm-all", "Chunk last[LANE_ROWS];", "warp_barrier();", "", "a race"},
        {"no warp barrier before the last values", "sddmm-all", "// What did not fill", "warp_barrier();", "", "a race"},
        {"the last values are not stored", "sddmm-all", "// What did not fill", "rows[r].chunk != nullptr", "false"},
        {"every lane stores the last values", "sddmm-all", "// What did not fill", "lane % 4 == 0", "true", "a race"},
        {"the row before is written over", "sddmm-all", "void store_chunk(", "row.foreign > 0", "false", "stored"},
        {"the row before is written over by one value", "sddmm-all", "void store_chunk(", "x >= row.foreign", "x + 1 >= row.foreign", "stored"},
        {"a first chunk stays the first", "sddmm-128", "void store_row(", "row.foreign = 0;", ""},
        {"what waits is not moved", "sddmm-all", "Chunk last[LANE_ROWS];", "if (lane % 4 == 0)", "if (false)"},
        {"what waits begins one value late", "sddmm-all", LOOP, "gathered(rows[r], row_count(mask, r))", "gathered(rows[r], row_count(mask, r) + (row_count(mask, r) > 0 && row_count(mask, r) < 60))"},
        {"one chunk too many is moved on", "sddmm-all", "void store_gathered(", "16 * whole", "16 * whole + 16"},
        {"the last chunk is stored before it is full", "sddmm-all", "void store_gathered(", "(row.held + count - 1) / 8", "(row.held + count) / 8"},
        {"the neighbour's neighbour", "sddmm-128", "void store_row(", "(t + 3) % 4", "(t + 2) % 4"},
        {"the second half follows nothing", "sddmm-128", "void store_row(", "t == 3 && half_tile > 0", "false"},
        {"what waits is left out", "sddmm-128", "void store_row(", "if (t == 0 && half_tile == 0)", "if (false)"},
        {"the shift by whole words", "sddmm-128", "Chunk shifted(", "bytes & 2 ?", "false ?"},
        {"the shift by one word", "sddmm-128", "Chunk shifted(", "one = bytes & 4", "one = false"},
        {"rows begin at the chunk", "sddmm-all", SDDMM, "static_cast<int>(first & 7) + 1", "8"},
        {"rows beyond the last are stored", "sddmm", SDDMM, "query < args.q_len ? results", "true ? results"},
        {"a rank counts the pair itself", "sddmm-all", "void gather(", "(1u << column) - 1", "(2u << column) - 1"},
        {"the second word's values over the first's", "sddmm-all", "void gather(", "to += 2 * count_bits(word);", ""},
        {"offsets of the first mask", "sddmm-all", "row_offsets_of(", "mask * (args.value_rows + 1)", "0 * mask"},
        {"offsets one short", "sddmm-all", "row_offsets_of(", "(args.value_rows + 1)", "args.value_rows"},
        {"scale left out", "sddmm", "Chunk packed(", "products[2 * (r % 2)] * scale", "products[2 * (r % 2)]"},
        {"k head of the query head", "sddmm", SDDMM, "head / args.group", "head", "byte"},
        {"bitmasks do not step", "sddmm-all", "bool next_tile(", "cursor.mask += cursor.code >> 4 & 1;", ""},
        {"columns do not step", "sddmm-128", "bool next_tile(", "cursor.column += TILE_COLS;", ""},
        {"the segment after the next", "sddmm-all", "void enter_segment(", "cursor.segment + 1)", "cursor.segment + 2)"},
        // -- masks of rows
        {"a lower bound one late", "sddmm-all", "void clear_below(", "- column - 32 * w", "- column - 32 * w + 1"},
        {"an upper bound one early", "sddmm-all", "void clear_from(", "- column - 32 * w", "- column - 32 * w - 1"},
        {"a negative bound", "sddmm-all", "void clear_from(", "(hi > 0 ? hi : 0)", "(hi > -9 ? hi : 9)"},
        {"bits of the row before", "sddmm-all", "MaskData load_mask_data(", "from[WORDS * row]", "from[WORDS * (row > 0 ? row - 1 : row)]"},
        {"the first word twice", "sddmm-all", "MaskData load_mask_data(", "from[WORDS * row + WORDS - 1]", "from[WORDS * row]"},
        {"tables: bounds swapped", "sddmm-all", "RowMask row_mask(", "clear_below(mask, data.word[0]", "clear_below(mask, data.word[1]"},
        {"periods: no block before the first", "sddmm-all", "void clear_outside(", "if (rest > 0)", "if (false)"},
        {"periods begin one late", "sddmm-all", "void clear_outside(", "blocks << (stride - first)", "blocks << (stride - first + 1)"},
        {"periods: blocks do not repeat", "sddmm-all", "void clear_outside(", "blocks |= blocks << step;", ""},
        {"masks of other rows", "sddmm-all", "TileMask spread(", "8 * r + ", "8 * (LANE_ROWS - 1 - r) + "},
        // -- A x
        {"no wait for values", "spmm-all", LOOP, "copy_wait<1>();", "", "is under way"},
        {"a turn's values in the same turn", "spmm-128", LOOP, "copy_wait<1>();", "copy_wait<2>();", "is under way"},
        {"rings too short for what is on its way", "spmm-wide", "constexpr int RING_CHUNKS", "= 32", "= 8"},
        {"no barrier before x is overwritten", "spmm", LOOP, "block_barrier();", ""},
        {"bad values are multiplied by zeros", "spmm-all", SPMM, "again = block_barrier_or(", "again = false && block_barrier_or("},
        {"care with FULL tiles alone", "spmm-all", LOOP, "walk.careful && kind != PRED_NONE", "walk.careful && kind == PRED_NONE"},
        {"sums are kept when all is done again", "spmm-all", SPMM, "o[b][block][n] = 0.0f;", ""},
        {"each thread decides alone on bad values", "spmm-all", SPMM, "block_barrier_or(HAS_PARTIAL && partial && !walk.careful && has_nonfinite(o))",
         "(block_barrier(), HAS_PARTIAL && partial && !walk.careful && has_nonfinite(o))"},
        {"a copy reads beyond the row's values", "spmm", "void fill_rings(", "left < 8 ? 2 * left : 16", "16", "byte"},
        {"a copy ends one value early", "spmm-all", "void fill_rings(", "2 * left : 16", "2 * left - 2 : 16"},
        {"chunks are asked for twice", "spmm-wide", "void fill_rings(", "s.filled[r] = until;", ""},
        {"values from the chunk on", "spmm-all", "Streams open_streams(", "8 * skew + odd", "8 * skew"},
        {"the skew of the source", "spmm-all", "Streams open_streams(", "- 16 * skew", ""},
        {"rows beyond the last read on", "spmm", "Streams open_streams(", "if (query >= sparse.plan.q_len)", "if (false)"},
        {"the second chunk always", "spmm-narrow", "Chunk row_values(", "from + 14", "from + 16"},
        {"rings do not wrap", "spmm-wide", "Chunk row_values(", "from & (RING_BYTES - 16)", "from & ~15u"},
        {"rings do not wrap for single values", "spmm-wide", "unsigned from = 2 * (s.at[r] + before);", "ring + from % RING_BYTES", "ring + from"},
        {"rows do not count on", "spmm-128", LOOP, "streams.at[r] += row_count(tile, r);", ""},
        {"the second of a pair has the first's rank", "spmm-all", "unsigned from = 2 * (s.at[r] + before);", "from += 2 * even;", ""},
        {"a rank forgets the first word", "spmm-all", "const TileMask &mask)", "if (half_tile > 0)", "if (false)"},
        {"rows of a fragment swapped", "spmm", "void load_rows(", "r % 2 + k % 2 * 2", "1 - r % 2 + k % 2 * 2"},
        {"x in its own order", "spmm", "void copy_x(", ", place_of_x>", ">"},
        {"x: the rows of a fragment", "spmm", SPMM, "lane % 16 * X_PITCH", "lane % 8 * X_PITCH"},
        {"no barrier before y takes the place of x", "spmm-128", SPMM, "again = block_barrier_or(HAS_PARTIAL && partial && !walk.careful && has_nonfinite(o))", "again = false", "a race"},
        {"no warp barrier before y is stored", "spmm", "void store_results(", "warp_barrier();\n#pragma", "\n#pragma", "a race"},
        {"x head of the query head", "spmm", SPMM, "head / args.group", "head", "byte"},
        {"apart: the other element", "spmm-all", "void multiply_apart(", "e = k % 2", "e = 1 - k % 2"},
        {"apart: pairs that are not allowed", "spmm-all", "void multiply_apart(", "if (has[r])", "if (true)"},
        {"apart: bits of the other step", "spmm-all", "unsigned fragment_bits(", "4 * (step % 2)", "0 * step"},
        // -- A^T x
        {"no wait for lines", "spmm-t-128", "bool walk_columns(", "copy_wait<1>();", "", "is under way"},
        {"lines of two tiles ahead in the stage at hand", "spmm-t-128", "bool walk_columns(", "stage == 0 ? 2 : stage - 1", "stage"},
        {"no barrier before lines are overwritten", "spmm-t-128", "bool walk_columns(", "block_barrier();", ""},
        {"places of the tile before", "spmm-t-128", "bool walk_columns(", "first + n + 3", "first + n + 2"},
        {"begins forget the warps above", "spmm-t-all", "void find_own_begins(", "above < warp_number()", "above < 0"},
        {"begins of the other stage", "spmm-t-all", "void find_own_begins(", "stage * BEGINS_BYTES", "(stage + 1) % 3 * BEGINS_BYTES"},
        {"no warp barrier behind the begins", "spmm-t-all", "void find_own_begins(", "warp_barrier();", "", "a race"},
        {"masks of the other tile", "spmm-t-all", "unsigned column_masks(", "tile % 2", "(tile + 1) % 2"},
        {"ranks count the row itself", "spmm-t-all", "void load_allowed_columns(", "(1u << row) - 1", "(2u << row) - 1"},
        {"the second row forgets the first", "spmm-t-all", "void load_allowed_columns(", "from + 2 * even", "from"},
        {"rows by a quarter", "spmm-t", "void load_columns(", "lane_number() / 4 * LANE_ROWS", "lane_number() / 4 * (LANE_ROWS - 1)"},
        {"rows of A swapped", "spmm-t", "void join_columns(", "permute(first[b], second[b], 0x5410)", "permute(second[b], first[b], 0x5410)"},
        {"a pair at an odd place", "spmm-t-128", "void load_columns(", "from & 2 ?", "false ?"},
        {"masks half turned", "spmm-t-all", "unsigned turned(", "n >= 0", "n > 0"},
        {"absent rows take part", "spmm-t", "void store_column_masks(", "present && ", ""},
        {"lanes without a row take part", "spmm-t-128-64", "void store_column_masks(", " && lane_number() < WARP_ROWS", ""},
        {"tiles of another row tile", "spmm-t-128", "bool walk_columns(", "first_tiles[walk.work.number]", "first_tiles[0]"},
        {"apart: bits of another row", "spmm-t-all", "// The first of the four columns", "(masks.word[n] >> (lane_number() / 4 * LANE_ROWS + r) & 1)", "(masks.word[n] >> (lane_number() / 4 * LANE_ROWS) & 1)"},
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
