// bf16: a float's upper half, 8 bits of exponent and 7 of fraction. A storage type: numbers are computed in fp32.
#pragma once

#include <concepts>

#include "io/float_formats.h"
#include "layers/simd.h"

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

inline vfloat widen(vhalf v) { return (vfloat)(__builtin_convertvector(v, vword) << 16); }
// As bf16_from_float, in every lane.
inline vhalf narrow(vfloat x) {
    const vword bits = (vword)x, rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    const vword nan = bits | 0x400000;
    return __builtin_convertvector(((x == x) ? rounded : nan) >> 16, vhalf);
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
