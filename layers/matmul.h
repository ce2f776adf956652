// Linear layers, as torch.nn.Linear, with fused epilogues: GELU, or the residual addition. inp (N,C), weight (OC,C),
// bias (OC) or null, out (N,OC).
#pragma once

#include <vector>

#include "device/device.h"
#include "layers/gelu.h"

// out = inp · weightᵀ + bias
template <class T>
void matmul_forward(Reference<T>&, T* out, const T* inp, const T* weight, const T* bias, int64_t N, int64_t C,
                    int64_t OC) {
    for (int64_t n = 0; n < N; ++n)
        for (int64_t o = 0; o < OC; ++o) {
            T sum = bias ? bias[o] : 0;
            for (int64_t c = 0; c < C; ++c) sum += inp[n * C + c] * weight[o * C + c];
            out[n * OC + o] = sum;
        }
}

// forward: out = inp · weightᵀ + bias
// dinp = dout · weight        dweight += doutᵀ · inp        dbias += sum over rows of dout        (dbias may be null)
// Without `accumulate`, dweight is set, not added to, which saves zeroing and reading it; dbias is always +=.
template <class T>
void matmul_backward(Reference<T>&, T* dinp, T* dweight, T* dbias, const T* dout, const T* inp, const T* weight,
                     int64_t N, int64_t C, int64_t OC, bool accumulate = true) {
    for (int64_t i = 0; i < N * C; ++i) dinp[i] = 0;
    if (!accumulate) std::fill_n(dweight, OC * C, T(0));
    for (int64_t n = 0; n < N; ++n)
        for (int64_t o = 0; o < OC; ++o) {
            const T d = dout[n * OC + o];
            for (int64_t c = 0; c < C; ++c) {
                dinp[n * C + c] += d * weight[o * C + c];
                dweight[o * C + c] += d * inp[n * C + c];
            }
            if (dbias) dbias[o] += d;
        }
}

// pre = inp · weightᵀ + bias        out = gelu(pre)
template <class T>
void matmul_gelu_forward(Reference<T>& dev, T* out, T* pre, const T* inp, const T* weight, const T* bias, int64_t N,
                         int64_t C, int64_t OC) {
    matmul_forward(dev, pre, inp, weight, bias, N, C, OC);
    gelu_forward(dev, out, pre, N * OC);
}

// The backward of a linear layer whose input was inp = gelu(pre); dpre, pre (N,C).
// dpre = (dout · weight) * gelu'(pre)        dweight, dbias as matmul_backward's
// If inp is null it is recomputed and overwrites pre.
template <class T>
void matmul_gelu_backward(Reference<T>& dev, T* dpre, T* dweight, T* dbias, const T* dout, const T* inp, T* pre,
                          const T* weight, int64_t N, int64_t C, int64_t OC, bool accumulate = true) {
    std::vector<T> derivative(static_cast<size_t>(N * C));
    for (int64_t i = 0; i < N * C; ++i) derivative[static_cast<size_t>(i)] = gelu_derivative(pre[i]);
    if (!inp) gelu_forward(dev, pre, pre, N * C);
    matmul_backward(dev, dpre, dweight, dbias, dout, inp ? inp : pre, weight, N, C, OC, accumulate);
    for (int64_t i = 0; i < N * C; ++i) dpre[i] *= derivative[static_cast<size_t>(i)];
}

// out = residual + inp · weightᵀ + bias        residual (N,OC). The backward is matmul_backward; the gradient of
// residual is dout.
template <class T>
void matmul_residual_forward(Reference<T>& dev, T* out, const T* inp, const T* weight, const T* bias, const T* residual,
                             int64_t N, int64_t C, int64_t OC) {
    matmul_forward(dev, out, inp, weight, bias, N, C, OC);
    for (int64_t i = 0; i < N * OC; ++i) out[i] += residual[i];
}
