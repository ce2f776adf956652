// GELU on the Cpu. 1 + tanh(u) = 2 / (1 + e^-2u): one exponential, without cancellation for negative x.
#pragma once

#include <limits>
#include <numbers>

#include "layers/gelu.h"
#include "device/cpu/rows.h"

struct GeluParts {
    simd::vfloat value, derivative;
};
// value = x * s,  s = sigmoid(2u) = 1 / (1 + e),  e = e^-2u,  u = sqrt(2/pi) * (x + 0.044715 x³)
// derivative = s + x * s * (1 - s) * d(2u)/dx,  where 1 - s = e * s without cancellation
// y is x where that matters, and keeps e's power within the bounds of exp2_of_bounded: below -10.07 e is infinite and s
// is 0, and above 9.9 s is 1.
inline GeluParts gelu_parts(simd::vfloat x) {
    constexpr double linear = 2 * gelu_scale, cubic = linear * gelu_cubic, log2e = std::numbers::log2e;
    const simd::vfloat y = simd::min(simd::set1(9.9f), simd::max(simd::set1(-10.07f), x)), yy = y * y;
    const simd::vfloat power = y * simd::fma(yy, simd::set1(float(-cubic * log2e)), simd::set1(float(-linear * log2e)));
    const simd::vfloat e = simd::exp2_of_bounded(power), s = 1.0f / (1.0f + e);
    const simd::vfloat rest = simd::min(simd::set1(std::numeric_limits<float>::max()), e) * s;
    const simd::vfloat d2u = simd::fma(yy, simd::set1(float(3 * cubic)), simd::set1(float(linear)));
    return {x * s, simd::fma(y * s * rest, d2u, s)};
}
inline simd::vfloat gelu(simd::vfloat x) { return gelu_parts(x).value; }
inline simd::vfloat gelu_derivative(simd::vfloat x) { return gelu_parts(x).derivative; }

// out (N) = gelu(inp)
inline void gelu_forward(Cpu& dev, float* out, const float* inp, int64_t N) {
    const Timed timed(dev, "gelu_forward", 0, 8 * prod(N));
    const bool streaming = should_stream(out, 1, N);
    parallel_for(simd::vectors(N), [=](int64_t vector) {
        const int64_t i = vector * simd::W;
        store_row(out + i, gelu(simd::load_n(inp + i, N - i)), N - i, streaming);
    });
}

// dinp (N) = dout * gelu'(inp); may be dout itself
inline void gelu_backward(Cpu& dev, float* dinp, const float* inp, const float* dout, int64_t N) {
    const Timed timed(dev, "gelu_backward", 0, 12 * prod(N));
    const bool streaming = should_stream(dinp, 1, N);
    parallel_for(simd::vectors(N), [=](int64_t vector) {
        const int64_t i = vector * simd::W;
        store_row(dinp + i, simd::load_n(dout + i, N - i) * gelu_derivative(simd::load_n(inp + i, N - i)), N - i,
                  streaming);
    });
}
