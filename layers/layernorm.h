// Layer normalisation over the last dimension (Ba, Kiros & Hinton 2016), as torch.nn.LayerNorm.
#pragma once

#include <cmath>

#include "layers/device.h"

// norm = (inp - mean) * rstd,  rstd = 1 / sqrt(variance + eps),  variance biased: divided by C
// out (N,C) = norm * weight + bias        mean (N), rstd (N): kept for the backward
// weight (C) null means 1, bias (C) null means 0.
template <class T>
void layernorm_forward(Reference<T>&, T* out, T* mean, T* rstd, const T* inp, const T* weight, const T* bias, int64_t N,
                       int64_t C, T eps = T(1e-5)) {
    for (int64_t row = 0; row < N; ++row) {
        const T* x = inp + row * C;
        T m = 0, variance = 0;
        for (int64_t c = 0; c < C; ++c) m += x[c];
        m /= static_cast<T>(C);
        for (int64_t c = 0; c < C; ++c) variance += (x[c] - m) * (x[c] - m);
        variance /= static_cast<T>(C);
        const T r = 1 / std::sqrt(variance + eps);
        for (int64_t c = 0; c < C; ++c)
            out[row * C + c] = (x[c] - m) * r * (weight ? weight[c] : 1) + (bias ? bias[c] : 0);
        mean[row] = m;
        rstd[row] = r;
    }
}

// forward: out = norm * weight + bias
// dinp (N,C) = dresidual + rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)),  dnorm = dout * weight
// dweight (C) += sum over rows of dout * norm        dbias (C) += sum over rows of dout
// dresidual (N,C): the gradient that reaches inp past the norm; may be dinp itself; null means 0.
// Any of dinp, dweight, dbias may be null.
template <class T>
void layernorm_backward(Reference<T>&, T* dinp, T* dweight, T* dbias, const T* dout, const T* inp, const T* weight,
                        const T* mean, const T* rstd, const T* dresidual, int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row) {
        const T *x = inp + row * C, *dy = dout + row * C;
        const T m = mean[row], r = rstd[row];
        T mean_dnorm = 0, mean_dnorm_norm = 0;
        for (int64_t c = 0; c < C; ++c) {
            const T norm = (x[c] - m) * r, dnorm = dy[c] * (weight ? weight[c] : 1);
            mean_dnorm += dnorm;
            mean_dnorm_norm += dnorm * norm;
            if (dweight) dweight[c] += dy[c] * norm;
            if (dbias) dbias[c] += dy[c];
        }
        mean_dnorm /= static_cast<T>(C);
        mean_dnorm_norm /= static_cast<T>(C);
        if (!dinp) continue;
        for (int64_t c = 0; c < C; ++c) {
            const T norm = (x[c] - m) * r, dnorm = dy[c] * (weight ? weight[c] : 1);
            dinp[row * C + c] =
                (dresidual ? dresidual[row * C + c] : 0) + r * (dnorm - mean_dnorm - norm * mean_dnorm_norm);
        }
    }
}
