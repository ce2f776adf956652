// Root-mean-square normalization (Zhang & Sennrich 2019), as torch.nn.RMSNorm: layernorm without mean and bias.
// A, S, N and C have the same meaning as in layers/layernorm.h.
#pragma once

#include <cmath>
#include <type_traits>

#include "device/device.h"
#include "layers/normalized_shape.h"

// norm = inp * rrms,  rrms = 1 / sqrt(mean(inp²) + eps)
// out (N,C) = norm, rounded to S, * weight        rrms (N): saved for the backward        weight (C) null means 1.
template <class A, class S>
void rmsnorm_forward(Reference<A>&, S* out, A* rrms, const S* inp, const std::type_identity_t<S>* weight, int64_t N,
                     int64_t C, std::type_identity_t<A> eps = A(1e-6)) {
    for (int64_t row = 0; row < N; ++row) {
        const S* x = inp + row * C;
        A squares = 0;
        for (int64_t c = 0; c < C; ++c) squares += A(x[c]) * A(x[c]);
        const A r = 1 / std::sqrt(squares / A(C) + eps);
        for (int64_t c = 0; c < C; ++c) {
            const A norm = A(S(A(x[c]) * r));
            out[row * C + c] = S(weight ? norm * A(weight[c]) : norm);
        }
        rrms[row] = r;
    }
}

// residual (N,C) = inp + branch, as it is stored        out, rrms: rmsnorm_forward of residual
// residual may be inp or branch itself.
template <class A, class S>
void residual_rmsnorm_forward(Reference<A>& dev, S* residual, S* out, A* rrms, const S* inp, const S* branch,
                              const std::type_identity_t<S>* weight, int64_t N, int64_t C,
                              std::type_identity_t<A> eps = A(1e-6)) {
    for (int64_t i = 0; i < N * C; ++i) residual[i] = S(A(inp[i]) + A(branch[i]));
    rmsnorm_forward(dev, out, rrms, residual, weight, N, C, eps);
}

// forward: out = norm * weight
// dinp (N,C) = dresidual + rrms * (dnorm - norm * mean(dnorm * norm)),  dnorm = dout * weight
// dweight (C) += sum over rows of dout * norm, which is not rounded to S here: the derivative of rounding counts as 1.
// dresidual (N,C) may be dinp itself; null means 0. Either of dinp, dweight may be null.
template <class A, class S>
void rmsnorm_backward(Reference<A>&, std::type_identity_t<S>* dinp, std::type_identity_t<S>* dweight, const S* dout,
                      const S* inp, const std::type_identity_t<S>* weight, const A* rrms,
                      const std::type_identity_t<S>* dresidual, int64_t N, int64_t C) {
    const auto norm = [&](int64_t row, int64_t c) { return A(inp[row * C + c]) * rrms[row]; };
    const auto dy = [&](int64_t row, int64_t c) { return A(dout[row * C + c]); };
    const auto dnorm = [&](int64_t row, int64_t c) { return weight ? dy(row, c) * A(weight[c]) : dy(row, c); };
    for (int64_t c = 0; dweight && c < C; ++c) {
        A dw = 0;
        for (int64_t row = 0; row < N; ++row) dw += dy(row, c) * norm(row, c);
        dweight[c] = S(A(dweight[c]) + dw);
    }
    for (int64_t row = 0; dinp && row < N; ++row) {
        A mean_dnorm_norm = 0;
        for (int64_t c = 0; c < C; ++c) mean_dnorm_norm += dnorm(row, c) * norm(row, c);
        mean_dnorm_norm /= A(C);
        for (int64_t c = 0; c < C; ++c) {
            const A residual = dresidual ? A(dresidual[row * C + c]) : A(0);
            dinp[row * C + c] = S(residual + rrms[row] * (dnorm(row, c) - norm(row, c) * mean_dnorm_norm));
        }
    }
}
