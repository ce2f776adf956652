// Conversions between float and the 16-bit floating-point formats of model files.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

static_assert(std::endian::native == std::endian::little, "every file format here is little-endian");

inline float float_from_bf16(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

// Rounds to nearest, ties to even, as PyTorch does; NaN stays NaN (rounding could carry it into infinity).
inline uint16_t bf16_from_float(float f) {
    const uint32_t bits = std::bit_cast<uint32_t>(f);
    const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    const uint32_t nan = bits | 0x400000;
    return static_cast<uint16_t>(((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded) >> 16);
}

inline float float_from_f16(uint16_t h) {
    const uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);
    if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = static_cast<float>(fraction) * 0x1p-24f;  // subnormal or zero
    return sign ? -small : small;
}

// Rounds to nearest, ties to even; values above 65504 become infinity.
inline uint16_t f16_from_float(float f) {
    const uint32_t bits = std::bit_cast<uint32_t>(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);   // NaN
    if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7C00);  // 65536 or more
    if (magnitude < 0x38800000) {                                              // subnormal: a multiple of 2^-24
        const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;        // exact, below 1024
        return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(scaled)));
    }
    const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | (rounded - 0x38000000) >> 13);
}
