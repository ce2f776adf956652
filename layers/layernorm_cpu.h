// Layer normalisation on the Cpu: a row stays in L1 for its passes.
#pragma once

#include "layers/layernorm.h"
#include "layers/rows_cpu.h"
#include "layers/simd.h"

// out (N,C) = (inp - mean) * rstd * weight + bias        mean (N), rstd (N)        weight, bias (C) may be null
inline void layernorm_forward(Cpu& dev, float* out, float* mean, float* rstd, const float* inp, const float* weight,
                              const float* bias, int64_t N, int64_t C, float eps = 1e-5f) {
    const Timed timed(dev, "layernorm_forward", 0, 8 * product(N, C));
    using namespace simd;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; ++row) {
        const float* x = inp + row * C;
        float* y = out + row * C;
        vfloat total{}, rest{}, squares{};
        for (int64_t c = 0; c < C; c += W) total += load_n(x + c, C - c);
        const float near = sum(total) / static_cast<float>(C);  // off by the sum's roundings: many times the last place
        for (int64_t c = 0; c < C; c += W) {
            const vfloat d = first(load_n(x + c, C - c) - near, C - c);
            rest += d;
            squares = fma(d, d, squares);
        }
        const float shift = sum(rest) / static_cast<float>(C), m = near + shift;
        const float variance = std::max(sum(squares) / static_cast<float>(C) - shift * shift, 0.0f);  // NaN stays
        const float r = 1 / std::sqrt(variance + eps);
        for (int64_t c = 0; c < C; c += W) {
            const vfloat norm = (load_n(x + c, C - c) - m) * r;
            const vfloat scaled = weight ? norm * load_n(weight + c, C - c) : norm;
            store_n(y + c, bias ? scaled + load_n(bias + c, C - c) : scaled, C - c);
        }
        mean[row] = m;
        rstd[row] = r;
    }
}

// dinp (N,C) = dresidual + rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)),  dnorm = dout * weight
// dweight (C) += sum over rows of dout * norm        dbias (C) += sum over rows of dout
// dresidual may be dinp itself or null; any of dinp, dweight, dbias may be null.
inline void layernorm_backward(Cpu& dev, float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                               const float* weight, const float* mean, const float* rstd, const float* dresidual,
                               int64_t N, int64_t C) {
    const Timed timed(dev, "layernorm_backward", 0, (dresidual ? 16 : 12) * product(N, C));
    using namespace simd;
    const vfloat one = set1(1.0f);
    sum_over_rows(dev, N, C, dweight, dbias, [=](int64_t row, float* dw, float* db) {
        const float *x = inp + row * C, *dy = dout + row * C;
        const float m = mean[row], r = rstd[row];
        vfloat sum_dnorm{}, sum_dnorm_norm{};
        for (int64_t c = 0; c < C; c += W) {
            const int64_t n = C - c;
            const vfloat d = load_n(dy + c, n), norm = (load_n(x + c, n) - m) * r;
            const vfloat dnorm = d * (weight ? load_n(weight + c, n) : one);
            sum_dnorm += dnorm;
            sum_dnorm_norm = fma(dnorm, norm, sum_dnorm_norm);
            store_n(dw + c, fma(d, norm, load_n(dw + c, n)), n);
            store_n(db + c, load_n(db + c, n) + d, n);
        }
        if (!dinp) return;
        const float mean_dnorm = sum(sum_dnorm) / static_cast<float>(C);
        const float mean_dnorm_norm = sum(sum_dnorm_norm) / static_cast<float>(C);
        for (int64_t c = 0; c < C; c += W) {
            const int64_t n = C - c;
            const vfloat norm = (load_n(x + c, n) - m) * r;
            const vfloat dnorm = load_n(dy + c, n) * (weight ? load_n(weight + c, n) : one);
            const vfloat dx = r * (dnorm - mean_dnorm - norm * mean_dnorm_norm);
            store_n(dinp + row * C + c, dresidual ? load_n(dresidual + row * C + c, n) + dx : dx, n);
        }
    });
}
