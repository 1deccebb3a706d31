// Parameters with which softmax_rows.cuh compiles on its own; src/codegen/source.c generates the same names from a spec.

constexpr bool IS_BF16 = true;  // bf16; false: fp16
constexpr int WARPS = 8;        // of a block
constexpr bool MASK_MAP = true; // (batch, head) -> distinct mask is looked up
