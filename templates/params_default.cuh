// Parameters with which attention_sm80.cuh compiles on its own. src/codegen/source.c generates the same names from
// a spec; here they describe the kernel of a causal mask.
//
// Takes nothing. Gives every size and switch of the kernel. Keeps true: TILE_ROWS is 16 or 32 rows a warp;
// TILE_COLS is 32, 64 or 128; HEAD_DIM and VALUE_DIM are multiples of 8; SHARED_BYTES is what the kernel's own
// layout adds up to.

constexpr bool IS_BF16 = true;           // bf16; false: fp16
constexpr int HEAD_DIM = 128;            // of q and k
constexpr int VALUE_DIM = 128;           // of v and o
constexpr int TILE_ROWS = 128;           // queries a block
constexpr int TILE_COLS = 64;            // keys a step
constexpr int WARPS = 4;                 // of a block
constexpr int BLOCKS_PER_SM = 2;         // that registers must allow
constexpr bool MASK_MAP = false;         // (batch, head) -> distinct mask is looked up
constexpr bool LATTICE = false;          // tiles may walk the sequence in other orders
constexpr bool CUT_ZONES = false;        // the last grid row of a view ends within a zone
constexpr bool MERGE = false;            // launches may merge into the results of earlier ones
constexpr bool FOLD = false;             // query heads of a group share row tiles
constexpr bool SPLIT = false;            // long row tiles come in parts
constexpr unsigned PREDICATE_MASK = 0x4; // bit k: predicate kind k occurs (here: upper)
constexpr int SHARED_BYTES = 69680;      // dynamic shared memory a block
