// Parameters with which kron_sm80.cuh compiles on its own. src/codegen/kron_source.c generates the same names from a
// spec; here they describe the forward pass of kron(4, 64, 64, 64) with activations batch-first.
//
// Takes nothing. Gives every size and switch of the kernel. Keeps true: RUN is 1, 2, 4 or, for 16-bit elements, 8;
// K_TILE is a multiple of 16; COL_TILES is even; SHARED_BYTES is what the kernel's own layout adds up to.

enum Along { ALONG_K, ALONG_ROW, RUN_ALONG_K, RUN_ALONG_ROW };
constexpr int ELEMENT = 2;                  // bytes of an element
constexpr bool IS_BF16 = true;              // 16-bit elements are bf16; false: fp16
constexpr bool TF32 = false;                // 32-bit elements: products of tf32 on tensor cores; false: of fp32
constexpr int RUN = 8;                      // consecutive matrices j that a block takes together
constexpr Along LEFT = ALONG_K;             // how the left operand's elements lie in memory (struct Tile)
constexpr Along RIGHT = RUN_ALONG_K;        // and the right one's
constexpr bool OUT_RUN = true;              // results of a run's matrices lie side by side; false: those of columns
constexpr bool OUT_FLOAT = false;           // results are fp32, whatever the elements are
constexpr bool BIAS_ROWS = true;            // the bias is one for each row; false: for each column
constexpr int ROW_WARPS = 4, COL_WARPS = 2; // warps of a block
constexpr int RUN_WARPS = 1;                // warps that share a run: 1, or each has one of its matrices
constexpr int ROW_TILES = 1, COL_TILES = 2; // of 16 rows and of 8 columns, a warp
constexpr int K_TILE = 32;                  // depth of a step
constexpr int STAGES = 3;                   // steps whose operands are in shared memory at once
constexpr int KEEP_LEFT = 2;                // tiles of the left operand that stay, or 0: a block has all its depth
constexpr int KEEP_RIGHT = 0;               // likewise
constexpr int BLOCKS_PER_SM = 1;            // that registers must allow
constexpr int SHARED_BYTES = 132608;        // dynamic shared memory a block
