// GELU (Hendrycks & Gimpel 2016) in the tanh form that GPT-2 uses: torch.nn.GELU(approximate="tanh").
#pragma once

#include <cmath>

#include "device/device.h"

constexpr double gelu_scale = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double gelu_cubic = 0.044715;

// x / 2 * (1 + tanh(u)),  u = sqrt(2/pi) * (x + 0.044715 x³)
template <class T>
T gelu(T x) {
    return x / 2 * (1 + std::tanh(T(gelu_scale) * (x + T(gelu_cubic) * x * x * x)));
}

// forward: x / 2 * (1 + tanh(u))
// d/dx = (1 + tanh(u)) / 2 + x / 2 * (1 - tanh²(u)) * du/dx
template <class T>
T gelu_derivative(T x) {
    const T t = std::tanh(T(gelu_scale) * (x + T(gelu_cubic) * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * T(gelu_scale) * (1 + 3 * T(gelu_cubic) * x * x);
}

// out (N) = gelu(inp)
template <class T>
void gelu_forward(Reference<T>&, T* out, const T* inp, int64_t N) {
    for (int64_t i = 0; i < N; ++i) out[i] = gelu(inp[i]);
}

// dinp (N) = dout * gelu'(inp); may be dout itself
template <class T>
void gelu_backward(Reference<T>&, T* dinp, const T* inp, const T* dout, int64_t N) {
    for (int64_t i = 0; i < N; ++i) dinp[i] = dout[i] * gelu_derivative(inp[i]);
}
