// Layer normalization on the Cpu. A row stays in L1 or L2 for its two passes, and is read from memory only once. S is
// float or bf16.
#pragma once

#include "layers/layernorm.h"
#include "layers/norm_backward_cpu.h"
#include "device/cpu/rows.h"

namespace layernorm_cpu {

// Sums over a row that give its mean and variance. A value near the mean is subtracted first, so that the sum of
// squares loses no precision.
struct Moments {
    float near, rest, squares;
};
// The same sums as vectors, while a row is read. Functions return Moments instead: GCC returns structs of vectors
// through memory.
struct MomentVectors {
    float near;
    simd::vfloat rest[4]{}, squares[4]{};
    [[gnu::always_inline]] void add(simd::vfloat x, int64_t n, int k) {
        const simd::vfloat d = simd::first(x - near, n);
        rest[k] += d;
        squares[k] = simd::fma(d, d, squares[k]);
    }
    [[gnu::always_inline]] Moments total() const { return {near, sum(rest), sum(squares)}; }
};

// A row of inp or, with Residual, of inp + branch.
template <bool Residual, class S>
struct InputRow {
    const S *inp, *branch;
    [[gnu::always_inline]] simd::vfloat operator()(int64_t c, int64_t n) const {
        const simd::vfloat v = simd::load_n(inp + c, n);
        return Residual ? simd::rounded<S>(v + simd::load_n(branch + c, n)) : v;
    }
    [[gnu::always_inline]] void prefetch(int64_t c, int k) const {
        prefetch_ahead(inp + c, k);
        if (Residual) prefetch_ahead(branch + c, k);
    }
};

template <class X>
Moments moments_about(float near, const X& x, int64_t C) {
    MomentVectors moments{near};
    each_vector(C, [&](int64_t c, int64_t n, int k) { moments.add(x(c, n), n, k); });
    return moments.total();
}

// The mean of the first elements, which is usually near the row's mean.
template <class X>
float guess(const X& x, int64_t C) {
    const int64_t few = std::min<int64_t>(C, 4 * simd::W);
    simd::vfloat total[4]{};
    each_vector(few, [&](int64_t c, int64_t n, int k) { total[k] += x(c, n); });
    return sum(total) / static_cast<float>(few);
}

// out = (x - m) * r * weight + bias, and residual = x if not null. Returns the moments of the next row. Inputs are
// arguments, not captures: those would be loaded again after each store, as a vector may alias anything.
template <class X, class S>
Moments finish_row(S* residual, S* out, float m, float r, X x, X next_x, const S* weight, const S* bias, int64_t C,
                   bool streaming) {
    using namespace simd;
    MomentVectors next{guess(next_x, C)};
    each_vector(C, [&](int64_t c, int64_t n, int k) {
        next_x.prefetch(c, k);
        next.add(next_x(c, n), n, k);
        const vfloat v = x(c, n), norm = (v - m) * r;
        const vfloat scaled = weight ? norm * load_n(weight + c, n) : norm;
        if (residual) store_row(residual + c, v, n, streaming);
        store_row(out + c, bias ? scaled + load_n(bias + c, n) : scaled, n, streaming);
    });
    return next.total();
}

// With Residual, a row is inp + branch, which is stored as residual.
template <bool Residual, class S>
void forward(S* residual, S* out, float* mean, float* rstd, const S* inp, const S* branch, const S* weight,
             const S* bias, int64_t N, int64_t C, float eps) {
    const bool streaming = should_stream(out, N, C) && (!Residual || should_stream(residual, N, C));
    const auto row_at = [=](int64_t row) {
        return InputRow<Residual, S>{inp + row * C, Residual ? branch + row * C : nullptr};
    };
    const auto finish = [=](int64_t row, int64_t next_row, Moments moments) __attribute__((always_inline)) {
        const auto x = row_at(row);
        float m = 0, variance = 0;
        for (const bool last : {false, true}) {
            const float shift = moments.rest / static_cast<float>(C);
            m = moments.near + shift;
            variance = std::max(moments.squares / static_cast<float>(C) - shift * shift, 0.0f);  // NaN stays
            if (last || !(shift * shift > variance)) break;
            moments = moments_about(m, x, C);  // the guess was more than a standard deviation off
        }
        const float r = variance < INFINITY ? 1 / std::sqrt(variance + eps) : rstd_of_huge(x, m, C, eps);
        mean[row] = m;
        rstd[row] = r;
        return finish_row(Residual ? residual + row * C : nullptr, out + row * C, m, r, x, row_at(next_row), weight,
                          bias, C, streaming);
    };
    each_row_and_next(
        N,
        [=](int64_t row) {
            const auto x = row_at(row);
            return moments_about(guess(x, C), x, C);
        },
        finish);
}

}  // namespace layernorm_cpu

// out (N,C) = (inp - mean) * rstd * weight + bias        mean (N), rstd (N)        weight, bias (C) may be null
template <class S>
void layernorm_forward(Cpu& dev, S* out, float* mean, float* rstd, const S* inp, const std::type_identity_t<S>* weight,
                       const std::type_identity_t<S>* bias, int64_t N, int64_t C, float eps = 1e-5f) {
    const Timed timed(dev, "layernorm_forward", 0, 2 * sizeof(S) * prod(N, C));
    layernorm_cpu::forward<false, S>(nullptr, out, mean, rstd, inp, nullptr, weight, bias, N, C, eps);
}

// residual (N,C) = inp + branch        out, mean, rstd: layernorm_forward of residual
// residual may be inp or branch itself.
template <class S>
void residual_layernorm_forward(Cpu& dev, S* residual, S* out, float* mean, float* rstd, const S* inp, const S* branch,
                                const std::type_identity_t<S>* weight, const std::type_identity_t<S>* bias, int64_t N,
                                int64_t C, float eps = 1e-5f) {
    const Timed timed(dev, "residual_layernorm_forward", 0, 4 * sizeof(S) * prod(N, C));
    layernorm_cpu::forward<true, S>(residual, out, mean, rstd, inp, branch, weight, bias, N, C, eps);
}

// dinp (N,C) = dresidual + rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)),  dnorm = dout * weight
// dweight (C) += sum over rows of dout * norm        dbias (C) += sum over rows of dout
// dresidual may be dinp itself or null; any of dinp, dweight, dbias may be null.
template <class S>
void layernorm_backward(Cpu& dev, std::type_identity_t<S>* dinp, std::type_identity_t<S>* dweight,
                        std::type_identity_t<S>* dbias, const S* dout, const S* inp,
                        const std::type_identity_t<S>* weight, const float* mean, const float* rstd,
                        const std::type_identity_t<S>* dresidual, int64_t N, int64_t C) {
    const Timed timed(dev, "layernorm_backward", 0, (dresidual ? 4 : 3) * sizeof(S) * prod(N, C));
    norm_cpu::backward<true, S>(dev, dinp, dweight, dbias, dout, inp, weight, mean, rstd, dresidual, N, C);
}
