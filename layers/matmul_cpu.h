// Linear layers on the Cpu: each is one matmul (device/cpu/gemm/matmul.h) whose epilogue runs while a tile is in L1.
#pragma once

#include "layers/gelu_cpu.h"
#include "layers/matmul.h"
#include "device/cpu/gemm/matmul.h"

// out (N,OC) = inp (N,C) · weight (OC,C)ᵀ + bias (OC)
inline void matmul_forward(Cpu& dev, float* out, const float* inp, const float* weight, const float* bias, int64_t N,
                           int64_t C, int64_t OC) {
    const Timed timed(dev, "matmul_forward", 2 * prod(N, C, OC), 0);
    const auto add_bias = [=](int64_t n, int64_t o, int64_t left, const float* sums) {
        simd::store_n(out + n * OC + o, simd::load_n(sums, left) + simd::load_n(bias + o, left), left);
    };
    gemm::matmul_weights(dev, N, OC, C, inp, weight, out, bias ? gemm::EpilogueRef(add_bias) : gemm::EpilogueRef());
}

// dinp = dout · weight
inline void matmul_backward_input(Cpu& dev, float* dinp, const float* dout, const float* weight, int64_t N, int64_t C,
                                  int64_t OC) {
    const Timed timed(dev, "matmul_backward_input", 2 * prod(N, C, OC), 0);
    using enum gemm::Order;
    gemm::matmul<k_last, k_first>(dev, N, C, OC, dout, OC, weight, C, dinp, C, gemm::Store::set);
}

// dweight += doutᵀ · inp, = unless accumulate        dbias += sum over rows of dout        (dbias may be null)
inline void matmul_backward_weight(Cpu& dev, float* dweight, float* dbias, const float* dout, const float* inp,
                                   int64_t N, int64_t C, int64_t OC, bool accumulate = true) {
    const Timed timed(dev, "matmul_backward_weight", 2 * prod(N, C, OC), 0);
    using enum gemm::Order;
    gemm::matmul<k_first, k_first>(dev, OC, C, N, dout, OC, inp, C, dweight, C,
                                   accumulate ? gemm::Store::add : gemm::Store::stream, {}, dbias);
}

inline void matmul_backward(Cpu& dev, float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                            const float* weight, int64_t N, int64_t C, int64_t OC, bool accumulate = true) {
    matmul_backward_input(dev, dinp, dout, weight, N, C, OC);
    matmul_backward_weight(dev, dweight, dbias, dout, inp, N, C, OC, accumulate);
}

// pre = inp · weightᵀ + bias        out = gelu(pre)
inline void matmul_gelu_forward(Cpu& dev, float* out, float* pre, const float* inp, const float* weight,
                                const float* bias, int64_t N, int64_t C, int64_t OC) {
    const Timed timed(dev, "matmul_gelu_forward", 2 * prod(N, C, OC), 0);
    const bool streaming = should_stream(out, N, OC);
    gemm::matmul_weights(dev, N, OC, C, inp, weight, pre, [=](int64_t n, int64_t o, int64_t left, const float* sums) {
        const int64_t at = n * OC + o;
        if (!streaming) prefetch_line<Access::write>(out + at + gemm::NR);
        const simd::vfloat x = simd::load_n(sums, left) + simd::load_n(bias + o, left);
        store_row(out + at, gelu(x), left, streaming);
        simd::store_n(pre + at, x, left);
    });
}

// dpre (N,C) = (dout · weight) * gelu'(pre)        dweight, dbias as matmul_backward_weight's
// If inp is null it is recomputed and overwrites pre, while pre is in the cache.
inline void matmul_gelu_backward(Cpu& dev, float* dpre, float* dweight, float* dbias, const float* dout,
                                 const float* inp, float* pre, const float* weight, int64_t N, int64_t C, int64_t OC,
                                 bool accumulate = true) {
    {
        const Timed timed(dev, "matmul_gelu_backward_input", 2 * prod(N, C, OC), 0);
        using enum gemm::Order;
        gemm::matmul<k_last, k_first>(dev, N, C, OC, dout, OC, weight, C, dpre, C, gemm::Store::set,
                                      [=](int64_t n, int64_t c, int64_t left, const float* sums) {
                                          float* const x = pre + n * C + c;
                                          prefetch_line(x + gemm::NR);
                                          const auto [value, derivative] = gelu_parts(simd::load_n(x, left));
                                          if (!inp) simd::store_n(x, value, left);
                                          simd::store_n(dpre + n * C + c, simd::load_n(sums, left) * derivative, left);
                                      });
    }
    matmul_backward_weight(dev, dweight, dbias, dout, inp ? inp : pre, N, C, OC, accumulate);
}

// out = residual + inp · weightᵀ + bias
inline void matmul_residual_forward(Cpu& dev, float* out, const float* inp, const float* weight, const float* bias,
                                    const float* residual, int64_t N, int64_t C, int64_t OC) {
    const Timed timed(dev, "matmul_residual_forward", 2 * prod(N, C, OC), 0);
    gemm::matmul_weights(dev, N, OC, C, inp, weight, out, [=](int64_t n, int64_t o, int64_t left, const float* sums) {
        const int64_t at = n * OC + o;
        prefetch_line(residual + at + gemm::NR);
        const simd::vfloat sum = simd::load_n(sums, left) + simd::load_n(bias + o, left);
        simd::store_n(out + at, simd::load_n(residual + at, left) + sum, left);
    });
}
