// The elements of tensors and values: fp16 or bf16, as IS_BF16 says.

// ---- Element type ----

// Exponent bits of an element.
constexpr unsigned EXPONENT = IS_BF16 ? 0x7f80u : 0x7c00u;

__device__ __forceinline__ unsigned pack(float low, float high)
{
    if constexpr (IS_BF16)
        return pack_bf16(low, high);
    else
        return pack_f16(low, high);
}

// Half e of a word as fp32.
__device__ __forceinline__ float unpack(unsigned pair, int e)
{
    if constexpr (IS_BF16)
        return __int_as_float(static_cast<int>(e ? pair & 0xffff0000u : pair << 16));
    else
        return unpack_f16(pair, e);
}

// Bit 15 of each half that is inf or NaN: adding the lowest exponent bit to a full exponent carries into it.
__device__ __forceinline__ unsigned nonfinite_bits(unsigned pair)
{
    constexpr unsigned lowest = EXPONENT & (~EXPONENT + 1);
    return ((pair & (EXPONENT * 0x10001u)) + lowest * 0x10001u) & 0x80008000u;
}

__device__ __forceinline__ float infinity()
{
    return __int_as_float(0x7f800000);
}
