// bf16: the upper half of a float, with 8 bits of exponent and 7 of fraction. It is a storage type: all arithmetic is
// in fp32.
#pragma once

#include <concepts>
#include <type_traits>

#include "device/float_formats.h"
#include "device/cpu/simd.h"

struct bf16 {
    uint16_t bits;
    bf16() = default;
    template <std::floating_point T>
    explicit bf16(T x) : bits(bf16_from_float(static_cast<float>(x))) {}  // to nearest, ties to even; NaN stays NaN
    operator float() const { return float_from_bf16(bits); }
};

namespace simd {

using vhalf = uint16_t __attribute__((vector_size(2 * W), may_alias));
using vword = uint32_t __attribute__((vector_size(4 * W), may_alias));

// Uses intrinsics, because GCC 12 would convert 16 lanes one by one, and 8 lanes by six instructions instead of two.
// The masked forms avoid a warning of GCC.
inline vfloat widen(vhalf v) {
#if defined(__AVX512F__)
    return (vfloat)((vword)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v) << 16);
#elif defined(__AVX2__)
    return (vfloat)((vword)_mm256_cvtepu16_epi32((__m128i)v) << 16);
#else
    return (vfloat)(__builtin_convertvector(v, vword) << 16);
#endif
}
// Rounds every lane as bf16_from_float does.
inline vhalf narrow(vfloat x) {
    const vword bits = (vword)x, rounded = bits + 0x7FFF + ((bits >> 16) & 1), nan = bits | 0x400000;
    const vword half = (x == x ? rounded : nan) >> 16;
#if defined(__AVX512F__)
    return (vhalf)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)half);
#else
    return __builtin_convertvector(half, vhalf);
#endif
}

inline vfloat load(const bf16* p) {
    vhalf v;
    std::memcpy(&v, p, sizeof v);
    return widen(v);
}
inline void store(bf16* p, vfloat x) {
    const vhalf v = narrow(x);
    std::memcpy(p, &v, sizeof v);
}

// A streaming store, as for floats.
inline void stream(bf16* p, vfloat x) {
#if defined(__AVX512F__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)narrow(x));
#elif defined(__AVX2__)
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)narrow(x));
#else
    store(p, x);
#endif
}

// x rounded to S.
template <class S>
inline vfloat rounded(vfloat x) {
    if constexpr (std::is_same_v<S, bf16>) return widen(narrow(x));
    return x;
}

// The first n lanes, as for floats.
inline vfloat load_n(const bf16* p, int64_t n) {
    if (n >= W) return load(p);
    vhalf v{};
    std::memcpy(&v, p, static_cast<size_t>(n) * sizeof(bf16));
    return widen(v);
}
inline void store_n(bf16* p, vfloat x, int64_t n) {
    const vhalf v = narrow(x);
    std::memcpy(p, &v, n >= W ? sizeof v : static_cast<size_t>(n) * sizeof(bf16));
}

}  // namespace simd
