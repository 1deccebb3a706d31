// Parameters with which spmm_sm80.cuh compiles on its own; src/codegen/source.c generates the same names from a spec.

constexpr bool IS_BF16 = true;           // bf16; false: fp16
constexpr bool TRANSPOSED = false;       // y = A^T x; else y = A x
constexpr int VALUE_DIM = 128;           // of x and y
constexpr int TILE_ROWS = 128;           // rows of y a block
constexpr int TILE_COLS = 64;            // rows of x a step
constexpr int WARPS = 4;                 // of a block
constexpr int BLOCKS_PER_SM = 2;         // that registers must allow
constexpr bool MASK_MAP = false;         // (batch, head) -> distinct mask is looked up
constexpr bool LATTICE = false;          // tiles may walk the sequence in other orders
constexpr bool CUT_ZONES = false;        // the last grid row of a view ends within a zone
constexpr unsigned PREDICATE_MASK = 0x4; // bit k: predicate kind k occurs (here: upper)
constexpr int SHARED_BYTES = 79872;      // dynamic shared memory a block
