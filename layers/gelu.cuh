// GELU on the Cuda device. T is the type of tensors, float or bf16; all arithmetic is in fp32.
#pragma once

#include "device/cuda/common.cuh"
#include "layers/gelu.h"

// 1 + tanh(u) = 2 / (1 + e^-2u)
__device__ __forceinline__ float gelu_of(float x) {
    constexpr float two_scale = static_cast<float>(2 * gelu_scale);
    return x / (1 + expf(-two_scale * (x + static_cast<float>(gelu_cubic) * x * x * x)));
}

// With s = 1 / (1 + e^-2u): d/dx (x s) = s + x s (1 - s) 2 du/dx. The larger of s and 1 - s is 1 / (1 + e^-|2u|), and
// the smaller e^-|2u| / (1 + e^-|2u|), so nothing cancels or overflows.
__device__ __forceinline__ float gelu_derivative_of(float x) {
    constexpr float two_scale = static_cast<float>(2 * gelu_scale), cubic = static_cast<float>(gelu_cubic);
    const float e = expf(-fabsf(two_scale * (x + cubic * x * x * x)));
    const float larger = 1 / (1 + e), smaller = e * larger;
    const float y = fminf(fmaxf(x, -16.0f), 16.0f);  // e is 0 outside, and 0 times an infinite x³ would be NaN
    return (x < 0 ? smaller : larger) + larger * smaller * two_scale * y * (1 + 3 * cubic * y * y);
}

template <int V, class T>
__global__ void __launch_bounds__(elements_block) gelu_forward_kernel(T* out, const T* inp, int64_t n) {
    each_element<V>(n, [&]<int W>(int64_t i) {
        float x[W];
        load<W>(x, inp + i);
        UNROLL for (int v = 0; v < W; ++v) x[v] = gelu_of(x[v]);
        store(out + i, x);
    });
}

template <int V, class T>
__global__ void __launch_bounds__(elements_block)
    gelu_backward_kernel(T* dinp, const T* inp, const T* dout, int64_t n) {
    each_element<V>(n, [&]<int W>(int64_t i) {
        float x[W], dy[W];
        load<W>(x, inp + i);
        load<W>(dy, dout + i);
        UNROLL for (int v = 0; v < W; ++v) dy[v] *= gelu_derivative_of(x[v]);
        store(dinp + i, dy);
    });
}

// out (n) = gelu(inp); out may be inp itself
template <class T>
void gelu_forward(Cuda& dev, T* out, const T* inp, int64_t n) {
    const Timed timed(dev, "gelu_forward", 0, 2 * prod(n, sizeof(T)));
    launch_elements<T>(
        n,
        [&]<int V>(unsigned blocks) {
            LAUNCH((gelu_forward_kernel<V, T>), blocks, elements_block, 0, dev.stream, out, inp, n);
        },
        out, inp);
}

// dinp (n) = dout * gelu'(inp); may be dout or inp itself
template <class T>
void gelu_backward(Cuda& dev, T* dinp, const T* inp, const T* dout, int64_t n) {
    const Timed timed(dev, "gelu_backward", 0, 3 * prod(n, sizeof(T)));
    launch_elements<T>(
        n,
        [&]<int V>(unsigned blocks) {
            LAUNCH((gelu_backward_kernel<V, T>), blocks, elements_block, 0, dev.stream, dinp, inp, dout, n);
        },
        dinp, inp, dout);
}
