// Root-mean-square normalization on the Cuda device: layernorm's kernels without mean and bias.
#pragma once

#include "layers/layernorm.cuh"
#include "layers/rmsnorm.h"

// out (N,C) = inp * rrms, rounded to T, * weight        rrms (N) = 1 / sqrt(mean(inp²) + eps)        weight (C) null: 1
template <class T>
void rmsnorm_forward(Cuda& dev, T* out, float* rrms, const T* inp, const std::type_identity_t<T>* weight, int64_t N,
                     int64_t C, float eps = 1e-6f) {
    norm_forward<false, false, T>(dev, "rmsnorm_forward", nullptr, out, nullptr, rrms, inp, nullptr, weight, nullptr, N,
                                  C, eps);
}

// residual (N,C) = inp + branch        out, rrms: rmsnorm_forward of residual, which may be inp or branch itself
template <class T>
void residual_rmsnorm_forward(Cuda& dev, T* residual, T* out, float* rrms, const T* inp, const T* branch,
                              const std::type_identity_t<T>* weight, int64_t N, int64_t C, float eps = 1e-6f) {
    norm_forward<false, true, T>(dev, "residual_rmsnorm_forward", residual, out, nullptr, rrms, inp, branch, weight,
                                 nullptr, N, C, eps);
}

// dinp (N,C) = dresidual + rrms * (dnorm - norm * mean(dnorm * norm)),  dnorm = dout * weight
// dweight (C) += sum over rows of dout * norm
// dresidual may be dinp itself or null; either of dinp, dweight may be null.
template <class T>
void rmsnorm_backward(Cuda& dev, std::type_identity_t<T>* dinp, float* dweight, const T* dout, const T* inp,
                      const std::type_identity_t<T>* weight, const float* rrms,
                      const std::type_identity_t<T>* dresidual, int64_t N, int64_t C) {
    norm_backward<false, T>(dev, "rmsnorm_backward", dinp, dweight, nullptr, dout, inp, weight, nullptr, rrms,
                            dresidual, N, C);
}
