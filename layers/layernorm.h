// Layer normalization over the last C values (Ba, Kiros & Hinton 2016), as torch.nn.LayerNorm. The derivation of the
// backward is in dev/layernorm/README.md.
#pragma once

#include <cmath>
#include <type_traits>

#include "device/device.h"
#include "layers/normalized_shape.h"

// On every device S is the type of stored tensors (float, double, bf16), and A is the type of the arithmetic:
// Reference<A>'s scalar, or float on the Cpu. The input is N rows of C values; normalized_rows() gives N and C for any
// normalized_shape.

// norm = (inp - mean) * rstd,  rstd = 1 / sqrt(variance + eps),  variance biased: divided by C
// out (N,C) = norm * weight + bias        mean (N), rstd (N): saved for the backward
// weight (C) null means 1, bias (C) null means 0.
template <class A, class S>
void layernorm_forward(Reference<A>&, S* out, A* mean, A* rstd, const S* inp, const std::type_identity_t<S>* weight,
                       const std::type_identity_t<S>* bias, int64_t N, int64_t C,
                       std::type_identity_t<A> eps = A(1e-5)) {
    for (int64_t row = 0; row < N; ++row) {
        const S* x = inp + row * C;
        A m = 0, variance = 0;
        for (int64_t c = 0; c < C; ++c) m += A(x[c]);
        m /= A(C);
        for (int64_t c = 0; c < C; ++c) variance += (A(x[c]) - m) * (A(x[c]) - m);
        variance /= A(C);
        const A r = 1 / std::sqrt(variance + eps);
        for (int64_t c = 0; c < C; ++c) {
            const A w = weight ? A(weight[c]) : A(1), b = bias ? A(bias[c]) : A(0);
            out[row * C + c] = S((A(x[c]) - m) * r * w + b);
        }
        mean[row] = m;
        rstd[row] = r;
    }
}

// residual (N,C) = inp + branch, as it is stored        out, mean, rstd: layernorm_forward of residual
// residual may be inp or branch itself.
template <class A, class S>
void residual_layernorm_forward(Reference<A>& dev, S* residual, S* out, A* mean, A* rstd, const S* inp, const S* branch,
                                const std::type_identity_t<S>* weight, const std::type_identity_t<S>* bias, int64_t N,
                                int64_t C, std::type_identity_t<A> eps = A(1e-5)) {
    for (int64_t i = 0; i < N * C; ++i) residual[i] = S(A(inp[i]) + A(branch[i]));
    layernorm_forward(dev, out, mean, rstd, residual, weight, bias, N, C, eps);
}

// forward: out = norm * weight + bias
// dinp (N,C) = dresidual + rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)),  dnorm = dout * weight
// dweight (C) += sum over rows of dout * norm        dbias (C) += sum over rows of dout
// dresidual (N,C): the gradient that reaches inp around the norm, by the residual connection; may be dinp itself; null
// means 0.
// Any of dinp, dweight, dbias may be null.
template <class A, class S>
void layernorm_backward(Reference<A>&, std::type_identity_t<S>* dinp, std::type_identity_t<S>* dweight,
                        std::type_identity_t<S>* dbias, const S* dout, const S* inp,
                        const std::type_identity_t<S>* weight, const A* mean, const A* rstd,
                        const std::type_identity_t<S>* dresidual, int64_t N, int64_t C) {
    const auto norm = [&](int64_t row, int64_t c) { return (A(inp[row * C + c]) - mean[row]) * rstd[row]; };
    const auto dy = [&](int64_t row, int64_t c) { return A(dout[row * C + c]); };
    const auto dnorm = [&](int64_t row, int64_t c) { return weight ? dy(row, c) * A(weight[c]) : dy(row, c); };
    for (int64_t c = 0; c < C; ++c) {
        A dw = 0, db = 0;
        for (int64_t row = 0; row < N; ++row) dw += dy(row, c) * norm(row, c), db += dy(row, c);
        if (dweight) dweight[c] = S(A(dweight[c]) + dw);
        if (dbias) dbias[c] = S(A(dbias[c]) + db);
    }
    for (int64_t row = 0; dinp && row < N; ++row) {
        A mean_dnorm = 0, mean_dnorm_norm = 0;
        for (int64_t c = 0; c < C; ++c) mean_dnorm += dnorm(row, c), mean_dnorm_norm += dnorm(row, c) * norm(row, c);
        mean_dnorm /= A(C);
        mean_dnorm_norm /= A(C);
        for (int64_t c = 0; c < C; ++c) {
            const A residual = dresidual ? A(dresidual[row * C + c]) : A(0);
            const A dx = rstd[row] * (dnorm(row, c) - mean_dnorm - norm(row, c) * mean_dnorm_norm);
            dinp[row * C + c] = S(residual + dx);
        }
    }
}
