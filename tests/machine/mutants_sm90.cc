// Mutants of the Hopper kernel. See mutants.cc.
#include "mutants.h"

namespace machine
{

// Where to look.
static const char TEXT[] = "";
static const char KERNEL[] = "splat_attention(const";
static const char INIT[] = "void init_shared(";
static const char COPY[] = "void copy_tile(";
static const char KEYS[] = "void copy_keys(";
static const char VALUES[] = "void copy_values(";
static const char QUERIES[] = "void copy_queries(";
static const char ITEM[] = "void produce_item(";
static const char END[] = "void produce_end(";
static const char PRODUCE[] = "void produce(const";
static const char CHECK[] = "void check_values(";
static const char SETTLE[] = "void settle_values(";
static const char PHASES[] = "bool another_phase(";
static const char LATER[] = "void leave_for_later(";
static const char ROWS[] = "ResultRows result_rows(";
static const char HALF[] = "void store_half(";
static const char BEGIN[] = "void begin(";
static const char FINISH[] = "void finish(";
static const char SOFTMAX[] = "void softmax(";
static const char LOWER[] = "void lower_weights(";
static const char AWAIT[] = "ItemRecord await_item(";
static const char RELEASE[] = "void release_keys(";
static const char FIRST[] = "void consume_items(";
static const char LOOP[] = "for (;;) {\n        // at.n is";
static const char NEXT_ITEM[] = "        if (last) {\n";
static const char SAME_ITEM[] = "        } else {\n            softmax(";
static const char TAIL[] = "at.item = next;\n    }\n";
static const char CONSUME[] = "void consume(const";
static const char K_MAJOR[] = "sp_i64 matrix_k_major(";
static const char MN_MAJOR[] = "sp_i64 matrix_mn_major(";

static const char WAIT_K[] = "barrier_wait(barrier_at(shared, K_FULL + stage_of(at.n)), phase_of(at.n));";
static const char WAIT_V[] = "barrier_wait(barrier_at(shared, V_FULL + stage_of(at.n)), phase_of(at.n));";
static const char WAIT_Q[] = "barrier_wait(barrier_at(shared, Q_FULL + item % Q_STAGES), item / Q_STAGES % 2);";
static const char FREE_Q[] = "release(barrier_at(shared, Q_EMPTY + item % Q_STAGES));";
static const char FREE_V[] = "release(barrier_at(shared, V_EMPTY + stage_of(at.n)));";
static const char EXPECT[] = "barrier_expect(barrier, V_BYTES);";
static const char FINISHED[] = "finish(args, shared, at.item, tile_row, r);";
static const char V_MATRIX[] = "matrix_mn_major(v_stage(shared, at.n), TILE_COLS)";

const std::vector<Mutant> &hopper_mutants()
{
    static const std::vector<Mutant> mutants = {
        // -- waits for copies
        {"no wait for q", "h-full", AWAIT, WAIT_Q, ""},
        {"no wait for the next item's q", "h-one-tile", LOOP, "await_item(shared, at.item + 1).tiles",
         "read_item(shared, at.item + 1).tiles"},
        {"no wait for the first k", "h-full", FIRST, WAIT_K, ""},
        {"no wait for the next k", "h-full", LOOP,
         "barrier_wait(barrier_at(shared, K_FULL + stage_of(at.n + 1)), phase_of(at.n + 1));", ""},
        {"no wait for v", "h-full", LOOP, WAIT_V, ""},
        {"no wait for the last v", "h-full", TAIL, WAIT_V, ""},
        {"one warp waits for v for all", "h-full", LOOP, WAIT_V,
         "if (tile_row % 64 == 0) barrier_wait(barrier_at(shared, V_FULL + stage_of(at.n)), phase_of(at.n));"},
        {"waits for the other phase of k", "h-full", FIRST, WAIT_K,
         "barrier_wait(barrier_at(shared, K_FULL + stage_of(at.n)), phase_of(at.n) ^ 1);"},
        {"waits for the other phase of v", "h-full", LOOP, WAIT_V,
         "barrier_wait(barrier_at(shared, V_FULL + stage_of(at.n)), phase_of(at.n) ^ 1);"},
        {"phases change at every tile", "h-full", TEXT, "n / STAGES % 2", "n % 2"},
        {"all tiles use one stage", "h-full", "int stage_of(", "n % STAGES", "0"},
        {"phases of q change at every item", "h-many", AWAIT, "item / Q_STAGES % 2", "item % 2"},
        {"the last tile is not counted", "h-many", TAIL, "++at.n;", ""},
        {"the item of the end is not counted", "h-many", CONSUME, "++at.n;\n    ++at.item;", "++at.n;"},
        {"the tile of the end is not counted", "h-many", END, "++at.n;", "", "a deadlock"},
        // -- stages filled too early, or never
        {"k is filled while it is used", "h-many", KEYS,
         "barrier_wait(barrier_at(shared, K_EMPTY + stage_of(at.n)), phase_of(at.n) ^ 1);", ""},
        {"v is filled while it is used", "h-many", VALUES,
         "barrier_wait(barrier_at(shared, V_EMPTY + stage_of(n)), phase_of(n) ^ 1);", ""},
        {"q is filled while it is used", "h-256", QUERIES,
         "barrier_wait(barrier_at(shared, Q_EMPTY + stage), item / Q_STAGES % 2 ^ 1);", ""},
        {"the producer waits for the wrong phase of v", "h-full", VALUES, "phase_of(n) ^ 1)", "phase_of(n))",
         "a deadlock"},
        {"k is let go before the product is over", "h-many", LOOP, "wgmma_wait<1>();",
         "release(barrier_at(shared, K_EMPTY + stage_of(at.n + 1))); wgmma_wait<1>();"},
        {"k and q are let go before the product is over", "h-many", LOOP,
         "wgmma_wait<1>();\n        hold_all(s);\n        release_keys(shared, at.n + 1, next, what);",
         "release_keys(shared, at.n + 1, next, what);\n        wgmma_wait<1>();\n        hold_all(s);"},
        {"v is let go before the product is over", "h-many", SAME_ITEM, "wgmma_wait<0>();",
         "if (threadIdx.x % 32 == 0) barrier_arrive(barrier_at(shared, V_EMPTY + stage_of(at.n))); "
         "wgmma_wait<0>();"},
        {"v of the last tile is let go before the product is over", "h-one-tile", NEXT_ITEM,
         "wgmma_wait<0>();\n            hold_all(r.o);\n            "
         "release(barrier_at(shared, V_EMPTY + stage_of(at.n)));",
         "release(barrier_at(shared, V_EMPTY + stage_of(at.n)));\n            wgmma_wait<0>();\n            "
         "hold_all(r.o);"},
        {"v is not let go", "h-many", SAME_ITEM, FREE_V, "", "a deadlock"},
        {"k is not let go", "h-full", RELEASE, "release(barrier_at(shared, K_EMPTY + stage_of(n)));", "",
         "a deadlock"},
        {"q is let go at every tile", "h-many", RELEASE, "if (what & LAST)", ""},
        {"q is let go a tile early", "h-sinks", LOOP, "what = read_what(shared, at.n + 1);",
         "what = read_what(shared, at.n + 1); if (!(what & LAST)) release(barrier_at(shared, Q_EMPTY + next % "
         "Q_STAGES));"},
        {"q is not let go", "h-many", RELEASE, "if (what & LAST)", "if (false)"},
        {"q is let go when the item is finished, too", "h-many", FINISH, "bool later",
         "release(barrier_at(shared, Q_EMPTY + item % Q_STAGES)); bool later"},
        {"an item without tiles is not let go", "h-between", CONSUME,
         "release(barrier_at(shared, Q_EMPTY + at.item % Q_STAGES));", "", "a deadlock"},
        {"an item without tiles does not arrive", "h-between", QUERIES, "barrier_arrive(barrier);\n        return;",
         "return;", "a deadlock"},
        {"an item without tiles is taken for one with", "h-between", LOOP, ".tiles == 0", ".tiles < 0"},
        {"the end is not let go", "h-many", CONSUME, "release(barrier_at(shared, V_EMPTY + stage_of(at.n)));", "",
         "a deadlock"},
        {"one warp too few lets k go", "h-many", INIT, "K_EMPTY + stage), CONSUMERS / 32",
         "K_EMPTY + stage), CONSUMERS / 32 - 1"},
        {"v is let go without the checkers", "h-many", INIT, "HAS_PARTIAL ? CHECKERS : 0", "0"},
        {"q is let go by the first warp", "h-many", INIT, "Q_EMPTY + stage), CONSUMERS / 32",
         "Q_EMPTY + stage), 1"},
        {"every lane lets go", "h-full", "void release(", "if (threadIdx.x % 32 == 0)", ""},
        // -- records
        {"an item's record is written after its arrival", "h-full", QUERIES, "barrier_expect(barrier, Q_BYTES);",
         "barrier_expect(barrier, Q_BYTES); write_record(record, work.row_tile.tile, "
         "work.row_tile.segment_count, round, slot);",
         "a race"},
        {"items' records are written while they are read", "h-nothing-at-all", QUERIES,
         "barrier_wait(barrier_at(shared, Q_EMPTY + stage), item / Q_STAGES % 2 ^ 1);", ""},
        {"tiles have no more records than stages", "h-many", "unsigned tile_record_at(", "n % (2 * STAGES)",
         "n % STAGES"},
        {"a record too few for items", "h-one-tile", "unsigned item_record_at(", "item % ITEM_RECORDS", "item % 3"},
        {"items have no more records than q", "h-one-tile", "unsigned item_record_at(", "item % ITEM_RECORDS",
         "item % Q_STAGES"},
        {"the record of the item after", "h-one-tile", FINISH, "read_item(shared, item)",
         "read_item(shared, item + 1)"},
        {"lanes read a record that is let go", "h-nothing-at-all", CONSUME, "warp_barrier(); // all", "//",
         "a race"},
        {"checkers read a record that is let go", "h-many", CHECK, "warp_barrier(); // all", "//", "a race"},
        {"an item ends with its segment", "h-sinks", "bool is_last(", " && rest.next == rest.end", ""},
        {"the last tile is not told of", "h-full", KEYS, "is_last(rest) ? LAST : 0", "0"},
        {"the end is not told of", "h-many", END, "NO_TILE, 0, at.item, 0", "0, 0, at.item, 0"},
        {"no end of items", "h-full", END, "NO_ITEM, 0, 0, 0", "0, 0, 0, 0"},
        {"a tile of the item before", "h-many", KEYS, "column, at.item, view", "column, at.item - 1, view"},
        // -- barriers
        {"barriers without their fence", "h-full", INIT, "barrier_init_fence();", "", "no fence since"},
        {"no block barrier after the barriers", "h-full", KERNEL, "block_barrier();", "", "barrier"},
        {"every warp initialises the barriers", "h-full", KERNEL, "if (threadIdx.x == 0)",
         "if (threadIdx.x % 32 == 0)", "where something else is"},
        {"a barrier off alignment", "h-full", "unsigned barrier_at(", "8 * index", "4 * index", "not a multiple"},
        {"a barrier in the memory of flags", "h-many", "unsigned flag_at(", "FLAG_OFFSET", "BARRIER_OFFSET + 8",
         "part of a barrier"},
        {"the bytes of one panel are expected", "h-one-tile", VALUES, EXPECT,
         "barrier_expect(barrier, V_BYTES / VALUE_PANELS);"},
        {"too many bytes are expected", "h-full", VALUES, EXPECT, "barrier_expect(barrier, V_BYTES + 16);",
         "a deadlock"},
        {"the turn goes back to the same group", "h-three", "void pass_turn(", "(group + 1) % GROUPS", "group"},
        {"nobody has the first turn", "h-three", KERNEL, "if (group == GROUPS - 1)\n            pass_turn(group);",
         "", "a deadlock"},
        {"turns for all groups", "h-three", "void take_turn(", "TURN + group, 256", "TURN + group, 384"},
        // -- products and their registers
        {"no fence before the first product", "h-full", FIRST, "wgmma_fence();", "", "product fence"},
        {"no fence before the next product", "h-full", LOOP, "wgmma_fence();", "", "product fence"},
        {"no fence before the last product", "h-full", TAIL, "wgmma_fence();", "", "product fence"},
        {"scores are not waited for", "h-full", LOOP, "wgmma_wait<1>();", "wgmma_wait<2>();", "a register is"},
        {"the first scores are not waited for", "h-full", FIRST, "wgmma_wait<0>();", "", "a register is"},
        {"outputs are not waited for", "h-full", SAME_ITEM, "wgmma_wait<0>();", "wgmma_wait<1>();"},
        {"outputs of an item are not waited for", "h-many", NEXT_ITEM, "wgmma_wait<0>();", "wgmma_wait<1>();"},
        {"the last outputs are not waited for", "h-full", TAIL, "wgmma_wait<0>();", "", "a register is"},
        {"scores are not held", "h-full", LOOP, "hold_all(s);", "", "hold was not called"},
        {"outputs are not held", "h-full", TAIL, "hold_all(r.o);", "", "hold was not called"},
        {"scores are not committed", "h-full", LOOP, "wgmma_commit();", "", "a register is"},
        {"outputs are not committed", "h-full", TAIL, "wgmma_commit();", "", "a register is"},
        {"weights change under the product", "h-full", LOOP, "wgmma_wait<1>();",
         "wgmma_wait<1>(); hold_all(s); pack_weights(s, p);"},
        {"outputs are rescaled under the product", "h-full", LOOP, "wgmma_wait<1>();",
         "wgmma_wait<1>(); rescale(r.o, factors);"},
        {"one warp leaves out a product", "h-full", TAIL, "multiply_values(",
         "if (tile_row % 64 != 32) multiply_values(", "a deadlock"},
        // -- matrices
        {"q: half a step", "h-full", "void multiply_scores(", "step % 4 * 32) / 16,", "step % 4 * 16) / 16,"},
        {"k: panels as far apart as those of q", "h-sinks", "void multiply_scores(", "TILE_COLS * 128",
         "TILE_ROWS * 128"},
        {"v: half a step", "h-full", "void multiply_values(", "2048 / 16", "1024 / 16"},
        {"v: panels as far apart as those of q", "h-sinks", LOOP, V_MATRIX,
         "matrix_mn_major(v_stage(shared, at.n), TILE_ROWS)"},
        {"v is taken for a matrix like k", "h-sinks", LOOP, V_MATRIX, "matrix_k_major(v_stage(shared, at.n))"},
        {"v of the next stage", "h-full", TAIL, "v_stage(shared, at.n)", "v_stage(shared, at.n + 1)"},
        {"q of the item before", "h-many", LOOP, "q_matrix(shared, group, next)",
         "q_matrix(shared, group, at.item)"},
        {"q of the group before", "h-full", "sp_i64 q_matrix(", "64 * 128 * group", "64 * 64 * group"},
        {"k-major: groups of rows too close", "h-full", K_MAJOR, "1024 >> 4", "512 >> 4"},
        {"k-major: another swizzle", "h-full", K_MAJOR, "sp_i64(1) << 62", "sp_i64(2) << 62"},
        {"k-major: an address of too few bits", "h-sinks", K_MAJOR, "0x3ffffu", "0xffffu"},
        {"mn-major: panels too close", "h-one-tile", MN_MAJOR, "rows * 128 >> 4", "rows * 64 >> 4"},
        {"mn-major: strides changed over", "h-one-tile", MN_MAJOR,
         "sp_i64(rows * 128 >> 4) << 16 | sp_i64(1024 >> 4) << 32",
         "sp_i64(1024 >> 4) << 16 | sp_i64(rows * 128 >> 4) << 32"},
        {"v is not transposed", "h-full", "void wgmma_values_step(", ", 1, 1, 1, 1;", ", 1, 1, 1, 0;"},
        {"k is transposed", "h-full", "void wgmma_scores_step(", "p, 1, 1, 0, 0;", "p, 1, 1, 0, 1;"},
        {"scores begin undefined", "h-full", "void multiply_scores(", "step > 0", "1"},
        {"weights in another order", "h-full", "void wgmma_values_step(", "\"r\"(p[1]), \"r\"(p[2])",
         "\"r\"(p[2]), \"r\"(p[1])"},
        {"n is not that of the registers", "h-full", "void wgmma_values_step(", "m64n64k16", "m64n32k16",
         "the sums must be"},
        // -- tiles
        {"shared memory is not rounded up", "h-full", "unsigned tiles_base(", "(shared_base() + 1023) & ~1023u",
         "shared_base()"},
        {"both panels to one place", "h-sinks", COPY, "to + panel * ROWS * 128", "to"},
        {"head and batch swapped", "h-empty-head", COPY, "head, batch);", "batch, head);"},
        {"k lands for v", "h-full", VALUES, "barrier_at(shared, V_FULL + stage_of(n))",
         "barrier_at(shared, K_FULL + stage_of(n))"},
        {"v of the tile after", "h-full", VALUES, "tile.column,", "tile.column + TILE_COLS,"},
        {"heads of a group spread", "h-full", "Pair pair_of(", "/ args.group", "% args.group"},
        {"every lane produces", "h-full", KERNEL, "if (elect_lane())", ""},
        // -- the softmax, and items in a row
        {"an item begins with the sums of the one before", "h-many", NEXT_ITEM,
         "begin(args, r, shared, next, tile_row);", ""},
        {"an item begins before the one before is stored", "h-many", NEXT_ITEM,
         "finish(args, shared, at.item, tile_row, r);\n            begin(args, r, shared, next, tile_row);",
         "begin(args, r, shared, next, tile_row);\n            finish(args, shared, at.item, tile_row, r);"},
        {"an item takes part in the maximum of the one before", "h-many", NEXT_ITEM, "wgmma_wait<0>();",
         "softmax(r, s, factors, args.scale_log2); wgmma_wait<0>();"},
        {"masked by the rows of the item before", "h-many", LOOP, "mask(shared, at.n + 1, next,",
         "mask(shared, at.n + 1, at.item,"},
        {"sums that grow too large are not noticed", "h-rising-128", SOFTMAX, "lower_weights(r, s, factors, scale_log2);", ";"},
        {"weights that were lost are not noticed", "h-leaping", LOWER, "r.flags |= LOST;", ";"},
        {"a maximum raised by half a row's sums", "h-rising-128", LOWER, "sum = fmaxf(sum, shuffle_xor(sum, 2));", ""},
        {"weights stay when their maximum is raised", "h-rising-128", LOWER, "s[0][block][2 * half] *= factor;", ""},
        {"rows that have no maximum keep it", "h-64-64", SOFTMAX, "!warp_any(!all)", "true"},
        {"left in another place than it is looked for", "h-many", FINISH, "LEFT << item % LATER_SLOTS", "LEFT << 7"},
        {"nothing is rescaled", "h-rising-128", SAME_ITEM, "rescale(r.o, factors);", ";"},
        {"each lane rescales if its own first row needs it", "h-64-64-128", SAME_ITEM,
         "warp_any(factors[0][0] != 1.0f || factors[0][1] != 1.0f)", "factors[0][0] != 1.0f"},
        // -- results
        {"transposed: the words that stay are sent", "h-full", "void transpose_quad(",
         "t & step ? word[k] : word[k + step], step", "t & step ? word[k + step] : word[k], step"},
        {"transposed by half", "h-full", "void transpose_quad(", "step <= 2", "step <= 1"},
        {"transposed: a word that came is thrown away", "h-full", "void transpose_quad(",
         "word[k + step] = t & step ? word[k + step] : got", "word[k + step] = word[k + step]"},
        {"all lanes store one chunk", "h-full", "void store_rows(", "16 * (first + t)", "16 * first",
         "a second time"},
        {"words that are left over in one place", "h-one-tile", "void store_rows(", "+ 4 * t) = word[k]",
         ") = word[k]", "a second time"},
        {"words that are left over are left out", "h-one-tile", "void store_rows(",
         "first + k < VALUE_BLOCKS && to", "first + 3 < VALUE_BLOCKS && to"},
        {"odd columns are not divided", "h-full", "void store_rows(", "[2 * HALF + 1] * factor", "[2 * HALF + 1]"},
        {"both halves are the first", "h-full", "void store_rows(", "o[0][first + k][2 * HALF] *",
         "o[0][first + k][0] *"},
        {"sum of half a row", "h-full", HALF, "sum += shuffle_xor(sum, 2);", ""},
        {"lse in the wrong base", "h-full", HALF, "row_max * args.scale +", "row_max * args.scale_log2 +"},
        {"lse of every lane", "h-full", HALF, "to.lse[HALF] && threadIdx.x % 4 == 0", "to.lse[HALF]",
         "a second time"},
        {"lse when it is not wanted", "h-comb", ROWS, "owner.present && args.lse ?", "owner.present ?"},
        {"lse of rows that are not there", "h-full", ROWS, "owner.present && args.lse ?", "args.lse ?"},
        {"rows that are not there are stored", "h-full", "RowOwner owner_of(", "query < args.q_len", "query <= args.q_len"},
        {"the second half at the rows of the first", "h-full", ROWS, "8 * half", "0 * half"},
        {"o and lse at one place", "h-many", "ItemPlace read_place(", "wide(a.word[2], a.word[3])",
         "wide(a.word[0], a.word[1])"},
        {"rows of a view as without", "h-grid-view", "ItemPlace read_place(",
         "place.rows.y = static_cast<int>(b.word[1])", "place.rows.y = 0"},
        {"old results of the other half", "h-launches", FINISH, "{to.o[1]}", "{to.o[0]}"},
        {"old lse of the other half", "h-launches", FINISH, "*to.lse[half] :", "*to.lse[0] :"},
        {"old words of the lane beside", "h-launches", "struct OldInMemory", "(threadIdx.x % 4)",
         "((threadIdx.x + 1) % 4)"},
        {"old results of the rows of another item", "h-launches", "void prefetch_results(", "owner.present", "true",
         "a prefetch"},
        {"q of the first head alone", "h-folded", QUERIES, "row >> args.fold_log2", "row"},
        {"q of the group's first heads", "h-folded-parts", QUERIES, "64 * panel, pair.first", "64 * panel, 0"},
        {"results at the group's first head", "h-folded", "sp_i64 o_offset(", "owner.head * args.o_head", "0"},
        {"lse at the group's first head", "h-folded-comb", "sp_i64 lse_offset(", "owner.head * args.lse_head", "0"},
        {"more heads than the group has", "h-folded", "RowOwner owner_of(", "owner.head < map.heads", "true"},
        {"parts over each other", "h-split", "sp_i64 part_row(", "(slot - 1)", "(0 * slot)"},
        {"a part of the rows of the first warp", "h-split", "void store_part_half(", "tile_row + 8 * HALF",
         "tile_row % 16 + 8 * HALF"},
        {"parts without their sums", "h-split", "void store_part_half(", "reciprocal(sum)", "1.0f"},
        {"combines from the second part on", "h-split", "splat_combine(const", "split.first_slot + 1",
         "split.first_slot + 2"},
        {"rows of nothing are left out", "h-between", CONSUME, "store_empty_rows(args, shared, at.item, tile_row);",
         ""},
        {"lse of rows of nothing is left out", "h-between", "void store_empty_rows(", "to.lse[half] &&",
         "to.lse[0] && half == 0 &&"},
        // -- what is not finite
        {"no proxy fence after bad values were cleared", "h-many", SETTLE, "fence_async_proxy();", "",
         "proxy fence"},
        {"no barrier before bad values are cleared", "h-one-tile", SETTLE,
         "named_sync(ALL_CONSUMERS, CONSUMERS); // everyone", "//", "a race"},
        {"no barrier after bad values were cleared", "h-one-tile", "fence_async_proxy();\n",
         "named_sync(ALL_CONSUMERS, CONSUMERS);", ""},
        {"checked values are not waited for", "h-many", SETTLE,
         "barrier_wait(barrier_at(shared, V_CHECKED + stage), static_cast<int>(flags >> stage & 1));", ""},
        {"the phase of checks stays", "h-many", SETTLE, "flags ^= 1u << stage;", ""},
        {"values are checked before they land", "h-many", CHECK,
         "barrier_wait(barrier_at(shared, V_FULL + stage_of(n)), phase_of(n));", ""},
        {"every lane reports a check", "h-many", CHECK, "if (lane == 0)", "if (true)"},
        {"one flag for all checkers", "h-many", CHECK, "stage_of(n), checker)", "stage_of(n), 0)", "a race"},
        {"a checker looks through half its part", "h-one-bad", CHECK, "chunk += 32 * CHECKERS",
         "chunk += 64 * CHECKERS"},
        {"values are looked up without the swizzle", "h-many", "chunk_address(", "(chunk % 8 ^ row % 8)",
         "chunk % 8"},
        {"bad values are not added", "h-many", SETTLE, "add_nonfinite(p, v_tile, o);", ""},
        {"bad values are not cleared", "h-many", SETTLE, "c.word[w] = clear_nonfinite(c.word[w]);", ""},
        {"what is not finite is stored", "h-many", FINISH, "(r.flags & UNSURE) && any_nonfinite(r.o)", "false"},
        {"no item is unsure", "h-many", LOOP, "r.flags |= UNSURE;", ";"},
        {"few columns are looked at", "h-one-bad", "bool any_nonfinite(", "block < VALUE_BLOCKS", "block < 1"},
        {"each lane leaves an item alone", "h-one-bad", "bool any_nonfinite(", "return warp_any(", "return ("},
        {"an item that is left is stored, too", "h-many", FINISH, "    } else {\n", "    }\n    {\n"},
        {"an unsure item makes those that follow unsure", "h-predicates", BEGIN,
         "r.flags &= ~(CAREFUL | UNSURE | SETTLED | LOST);", "r.flags &= ~(CAREFUL | SETTLED | LOST);"},
        {"no item is careful", "h-many", BEGIN, "r.flags |= CAREFUL;", ""},
        {"an item that is left is forgotten", "h-many", LATER,
         "atomic_min_shared(shared + LATER_OFFSET + 4 * (item % LATER_SLOTS), round);", ""},
        {"no item of the first phase becomes careful", "h-many", LATER,
         "atomic_min_shared(shared + LATER_OFFSET + 4 * LATER_SLOTS, item + CAREFUL_LAG);", ""},
        {"items are careful two later", "h-one-tile", "int LATER_SLOTS", "CAREFUL_LAG = 6", "CAREFUL_LAG = 2"},
        {"items are careful at once", "h-one-tile", "int LATER_SLOTS", "CAREFUL_LAG = 6", "CAREFUL_LAG = 1"},
        {"items are careful too late for the slots", "h-many", "int LATER_SLOTS", "CAREFUL_LAG = 6",
         "CAREFUL_LAG = 16"},
        {"too few slots", "h-many", LATER, "item % LATER_SLOTS", "item % 4"},
        {"no second phase", "h-many", PHASES, "phase > 1", "phase > 0"},
        {"a third phase", "h-merge-many", PHASES, "phase > 1", "phase > 2"},
        {"the second phase begins before the first ends", "h-many", PHASES, "block_barrier();", ""},
        {"the second phase is not waited for", "h-many", PHASES, "4 * LATER_SLOTS, 0);\n    block_barrier();",
         "4 * LATER_SLOTS, 0);"},
        {"items are not careful in the second phase", "h-many", PHASES, "if (threadIdx.x == 0)", "if (false)"},
        {"the item after one that was left is done again", "h-one-bad", PRODUCE, "round_for_later(shared, k)",
         "round_for_later(shared, k) + 1"},
        {"the second phase ends at an empty slot", "h-one-bad", PRODUCE, "continue;", "break;"},
        {"the slots begin undefined", "h-many", INIT, "store_shared_u32(shared + LATER_OFFSET + 4 * slot, NEVER);",
         ""},
        // -- what PARTIAL tiles need to know
        {"the bytes of a mask are not expected", "h-random", KEYS, "K_BYTES + bytes", "K_BYTES"},
        {"masks have no more stages than k", "h-random", "unsigned mask_stage(", "n % (2 * STAGES)", "n % STAGES"},
        {"the mask of the tile before", "h-random", "void mask_scores(", "mask_stage(shared, n)",
         "mask_stage(shared, n + 3)"},
        {"every tile has the first bitmask", "h-random", "void step(",
         "rest.segment.predicate += ", "rest.segment.predicate += 0 & "},
        {"half of a bitmask is copied", "h-random", "char *mask_data(", "bytes = BITS_BYTES",
         "bytes = BITS_BYTES / 2"},
        {"a bitmask from an address off alignment", "h-random", KEYS, "mask_stage(shared, at.n), mask,",
         "mask_stage(shared, at.n), mask + 4,", "multiples of 16"},
        {"tiles of a segment in one place", "h-sinks", "void step(", "++rest.segment.first;", ""},
        // -- views, and launches that merge
        {"zones one token wide", "h-grid-view", "Place place_of(", "zone << view.c_log2", "zone"},
        {"the coordinates of a grid swapped", "h-grid-view", COPY, "x, y, head", "y, x, head"},
        {"all zones are short", "h-residue", "Place place_of(", "place.longer = place.x +",
         "place.longer = 1000000 + place.x +"},
        {"all zones are long", "h-residue", "Place place_of(", "<= view.rest", "<= view.n0"},
        {"a cut zone's columns in the next", "h-cut-zone", "Place place_of(", "place.x -= columns;", ";"},
        {"columns of both halves of a cut zone", "h-cut-rows", "int token_of(", "(x < view.rest) == place.longer",
         "true"},
        {"columns under the view of the rows", "h-comb-view", KEYS, "args.column_views[view]", "args.row_view"},
        {"v under the other view", "h-comb-view", VALUES, "maps.v[view]", "maps.v[0]"},
        {"a later launch does not merge", "h-launches", HALF, "if (args.merge) {", "if (false) {"},
        {"merged results are divided again", "h-launches", HALF, "factor = 1.0f;", ""},
        // -- registers
        {"more registers than there are", "h-full", KERNEL, "registers_up_to<CONSUMER_REGISTERS>",
         "registers_up_to<CONSUMER_REGISTERS + 8>", "a deadlock"},
        {"the producer keeps its registers", "h-full", KERNEL, "registers_down_to<PRODUCER_REGISTERS>();", "",
         "a deadlock"},
        {"one warp keeps its registers", "h-full", KERNEL, "registers_up_to<CONSUMER_REGISTERS>();",
         "if (warp_of_block() != 5) registers_up_to<CONSUMER_REGISTERS>();", "other numbers of registers"},
        {"a number of registers that there is not", "h-full", KERNEL, "registers_up_to<CONSUMER_REGISTERS>",
         "registers_up_to<CONSUMER_REGISTERS - 4>", "a multiple of 8"},
        // -- work
        {"items are skipped", "h-many", "int item_index(", "round * grid +", "round * (grid + 1) +"},
        // -- predicates
        {"upper bound one off", "h-causal", "void mask_upper(", "e >= hi", "e > hi"},
        {"table: ends taken for begins", "h-192-64", "void mask_table(", "mask_word(tile.source, words + 4)",
         "mask_word(tile.source, words)"},
        {"bits of a pair swapped", "h-random", "void mask_bits(", "8 * (block % 4) + e", "8 * (block % 4) + 1 - e"},
        {"columns of the tile for columns of the mask", "h-many", "void mask_scores(",
         "read_tile(shared, n).column + lane % 4 * 2", "lane % 4 * 2"},
    };
    return mutants;
}

} // namespace machine
