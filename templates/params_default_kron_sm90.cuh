// Parameters with which kron_sm90.cuh compiles on its own. src/codegen/kron_source.c generates the same names from a
// spec; here they describe the forward pass of kron(4, 128, 128, 4) with activations batch-last.
//
// Takes nothing. Gives every size and switch of the kernel. Keeps true: what the kernel asserts.

enum Left { WEIGHTS_LEFT, SAMPLES_ALONG_K, SAMPLES_IN_RUNS, SAMPLES_IN_LINES };
constexpr int ELEMENT = 2;               // bytes of an element
constexpr bool IS_BF16 = true;           // 16-bit elements are bf16; false: fp16
constexpr bool OUT_FLOAT = false;        // results are fp32, whatever the elements are
constexpr Left LEFT = WEIGHTS_LEFT;      // which operand has the rows, and how samples lie in memory
constexpr bool WEIGHTS_ALONG_K = true;   // a row of the weights is contiguous along the depth; false: along the outputs
constexpr int RUN = 1;                   // consecutive matrices j that a block takes together
constexpr bool WHOLE_RUN = true;         // RUN is d: depth and matrices are one axis of samples
constexpr int ROW_GROUPS = 2, COL_GROUPS = 1, RUN_GROUPS = 1; // consumer warpgroups along each axis of a tile
constexpr int ROW_BLOCKS = 1;            // of 64 rows, a warpgroup
constexpr int GROUP_COLS = 128;          // columns of a warpgroup
constexpr int DEPTH = 128;               // of a matrix
constexpr int K_TILE = 64;               // depth of a step
constexpr int STAGES = 4;                // steps whose operands are in shared memory at once
constexpr int KEEP = 2;                  // tiles of weights that stay, those of all outputs of a matrix; or 0
constexpr int KEPT_UNITS = 2;            // matrices whose weights stay at once: the next one's come while the last one's are used
constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40; // a thread, after reallocation
constexpr int SHARED_BYTES = 132192;     // dynamic shared memory a block
