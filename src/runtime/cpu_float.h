/* The element types of the CPU engine; the 16-bit ones are converted in software.
 *
 * Narrowing rounds to nearest, ties to even; overflow gives infinity and NaN stays NaN. Widening is exact, fp16
 * subnormals included. Written without branches where a loop over them is to be vectorised.
 */
#ifndef SP_CPU_FLOAT_H
#define SP_CPU_FLOAT_H

#include <stdint.h>
#include <string.h>

#include "splat.h"

static inline uint32_t sp_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float sp_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float sp_bf16_to_float(uint16_t half)
{
    return sp_bits_float((uint32_t)half << 16);
}

static inline uint16_t sp_float_to_bf16(float value)
{
    uint32_t bits = sp_float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* a payload in the low bits alone must not become infinity */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Shifting the fields into place leaves the exponent 112 too small, which a multiplication puts right, for
 * subnormals too; infinity and NaN get the exponent back that the product lost. */
static inline float sp_fp16_to_float(uint16_t half)
{
    uint32_t field = (uint32_t)(half & 0x7fffu) << 13, sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t bits = sp_float_bits(sp_bits_float(field) * 0x1p112f);
    uint32_t special = (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return sp_bits_float(bits | special | sign);
}

static inline uint16_t sp_float_to_fp16(float value)
{
    uint32_t bits = sp_float_bits(value), size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) /* 65520, half way between the largest fp16 and the next power of two */
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) /* below 2^-14: the addition rounds to multiples of 2^-24, half's subnormals */
        return (uint16_t)(sign | (sp_float_bits(sp_bits_float(size) + 0.5f) - sp_float_bits(0.5f)));
    size -= 112u << 23;
    return (uint16_t)(sign | (size + 0xfffu + (size >> 13 & 1u)) >> 13);
}

static inline size_t sp_element_size(enum splat_dtype dtype)
{
    return dtype == SPLAT_FP32 ? sizeof(float) : sizeof(uint16_t);
}

/* `count` elements as floats. */
static inline void sp_widen(enum splat_dtype dtype, const void *source, int64_t count, float *out)
{
    const uint16_t *halves = source;
    if (dtype == SPLAT_FP32) {
        memcpy(out, source, (size_t)count * sizeof *out);
    } else if (dtype == SPLAT_BF16) {
#pragma omp simd
        for (int64_t d = 0; d < count; d++)
            out[d] = sp_bf16_to_float(halves[d]);
    } else {
#pragma omp simd
        for (int64_t d = 0; d < count; d++)
            out[d] = sp_fp16_to_float(halves[d]);
    }
}

#endif
