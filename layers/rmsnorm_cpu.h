// RMS normalization on the Cpu, in the same way as layers/layernorm_cpu.h.
#pragma once

#include "layers/norm_backward_cpu.h"
#include "layers/rmsnorm.h"
#include "device/cpu/rows.h"

namespace rmsnorm_cpu {

// With Residual, a row is inp + branch, which is stored as residual.
template <bool Residual, class S>
void forward(S* residual, S* out, float* rrms, const S* inp, const S* branch, const S* weight, int64_t N, int64_t C,
             float eps) {
    using namespace simd;
    const bool streaming = should_stream(out, N, C) && (!Residual || should_stream(residual, N, C));
    const auto x = [=](int64_t row, int64_t c, int64_t n) {
        const vfloat v = load_n(inp + row * C + c, n);
        return Residual ? rounded<S>(v + load_n(branch + row * C + c, n)) : v;
    };
    const auto squares_of = [=](int64_t row) {
        vfloat squares[4]{};
        each_vector(C, [&](int64_t c, int64_t n, int k) { squares[k] = fma(x(row, c, n), x(row, c, n), squares[k]); });
        return sum(squares);
    };
    const auto finish = [=](int64_t row, int64_t next_row, float squares) __attribute__((always_inline)) {
        const float mean = squares / static_cast<float>(C);
        const float r = mean < INFINITY ? 1 / std::sqrt(mean + eps)
                                        : rstd_of_huge([=](int64_t c, int64_t n) { return x(row, c, n); }, 0, C, eps);
        vfloat next[4]{};
        each_vector(C, [&](int64_t c, int64_t n, int k) {
            prefetch_ahead(inp + next_row * C + c, k);
            if (Residual) prefetch_ahead(branch + next_row * C + c, k);
            const vfloat next_x = x(next_row, c, n);
            next[k] = fma(next_x, next_x, next[k]);
            const int64_t at = row * C + c;
            const vfloat v = x(row, c, n), norm = rounded<S>(v * r);
            if (Residual) store_row(residual + at, v, n, streaming);
            store_row(out + at, weight ? norm * load_n(weight + c, n) : norm, n, streaming);
        });
        rrms[row] = r;
        return sum(next);
    };
    each_row_and_next(N, squares_of, finish);
}

}  // namespace rmsnorm_cpu

// out (N,C) = inp * rrms * weight        rrms (N)        weight (C) may be null
template <class S>
void rmsnorm_forward(Cpu& dev, S* out, float* rrms, const S* inp, const std::type_identity_t<S>* weight, int64_t N,
                     int64_t C, float eps = 1e-6f) {
    const Timed timed(dev, "rmsnorm_forward", 0, 2 * sizeof(S) * prod(N, C));
    rmsnorm_cpu::forward<false, S>(nullptr, out, rrms, inp, nullptr, weight, N, C, eps);
}

// residual (N,C) = inp + branch        out, rrms: rmsnorm_forward of residual
// residual may be inp or branch itself.
template <class S>
void residual_rmsnorm_forward(Cpu& dev, S* residual, S* out, float* rrms, const S* inp, const S* branch,
                              const std::type_identity_t<S>* weight, int64_t N, int64_t C, float eps = 1e-6f) {
    const Timed timed(dev, "residual_rmsnorm_forward", 0, 4 * sizeof(S) * prod(N, C));
    rmsnorm_cpu::forward<true, S>(residual, out, rrms, inp, branch, weight, N, C, eps);
}

// dinp (N,C) = dresidual + rrms * (dnorm - norm * mean(dnorm * norm)),  dnorm = dout * weight
// dweight (C) += sum over rows of dout * norm
// dresidual may be dinp itself or null; either of dinp, dweight may be null.
template <class S>
void rmsnorm_backward(Cpu& dev, std::type_identity_t<S>* dinp, std::type_identity_t<S>* dweight, const S* dout,
                      const S* inp, const std::type_identity_t<S>* weight, const float* rrms,
                      const std::type_identity_t<S>* dresidual, int64_t N, int64_t C) {
    const Timed timed(dev, "rmsnorm_backward", 0, (dresidual ? 4 : 3) * sizeof(S) * prod(N, C));
    norm_cpu::backward<false, S>(dev, dinp, dweight, nullptr, dout, inp, weight, nullptr, rrms, dresidual, N, C);
}
