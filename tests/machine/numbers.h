// 16-bit floating-point numbers, converted as the hardware does: to nearest even, NaN stays NaN.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace machine
{

inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float bf16_value(uint32_t bits)
{
    return float_of_bits((bits & 0xffff) << 16);
}

inline uint16_t bf16_of(float value)
{
    const uint32_t bits = bits_of_float(value);
    if (value != value)
        return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float half_value(uint32_t bits)
{
    const uint32_t sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0)
        return (sign ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(mantissa), -24);
    return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline uint16_t half_of(float value)
{
    const uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffff;
    const uint32_t sign = bits >> 16 & 0x8000;
    uint32_t half;
    if (magnitude > 0x7f800000)
        return 0x7fff;
    if (magnitude >= 0x477ff000) // halfway to 65536: infinity
        half = 0x7c00;
    else if (magnitude < 0x38800000) // subnormal: a multiple of 2^-24
        half = static_cast<uint32_t>(std::nearbyint(std::ldexp(float_of_bits(magnitude), 24)));
    else
        half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return static_cast<uint16_t>(sign | half);
}

} // namespace machine
