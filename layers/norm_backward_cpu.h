// The backward pass that LayerNorm and RMSNorm share on the Cpu.
#pragma once

#include "layers/rows_cpu.h"

namespace norm_cpu {

// dinp = dresidual + r * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)) of one row, and += its part of the sums dw
// (C) and db (C). Mean: as LayerNorm has it; without it norm is inp * r, and neither mean(dnorm) nor db is there.
template <bool Mean, class S>
void backward_row(S* dinp, float* dw, float* db, const S* dout, const S* inp, const S* weight, const float* mean,
                  const float* rstd, const S* dresidual, int64_t row, int64_t C, bool past) {
    using namespace simd;
    const S *const x = inp + row * C, *const dy = dout + row * C, *const res = dresidual ? dresidual + row * C : dy;
    const Ahead next_x(x, C), next_dy(dy, C);
    const auto weight_at = [=](int64_t c, int64_t n) { return weight ? load_n(weight + c, n) : set1(1.0f); };
    const float m = Mean ? mean[row] : 0, r = rstd[row];
    const auto norm = [=](int64_t c, int64_t n) __attribute__((always_inline)) {
        const vfloat v = load_n(x + c, n);
        return (Mean ? v - m : v) * r;
    };
    vfloat sum_dnorm[4]{}, sum_dnorm_norm[4]{};
    each_vector(C, [&](int64_t c, int64_t n, int k) {
        next_x.first(c, k), next_dy.first(c, k);
        const vfloat d = load_n(dy + c, n) * weight_at(c, n);
        if (Mean) sum_dnorm[k] += d;
        sum_dnorm_norm[k] = fma(d, norm(c, n), sum_dnorm_norm[k]);
    });
    // Multiplied out, dinp is two multiply-adds: r * dnorm + shift + slope * norm.
    const float shift = Mean ? -r * (sum(sum_dnorm) / static_cast<float>(C)) : 0.0f;
    const float slope = -r * (sum(sum_dnorm_norm) / static_cast<float>(C));
    // All is loaded before anything is stored: with rows of whole pages a load just behind a store would wait for it,
    // as the CPU compares the lowest 12 bits of their addresses first.
    each_vector(C, [&](int64_t c, int64_t n, int k) {
        next_x.second(c, k), next_dy.second(c, k);
        if (dresidual) ask_ahead(res + c, k);
        const vfloat w = weight_at(c, n), dweight = load_n(dw + c, n), dbias = Mean ? load_n(db + c, n) : vfloat{};
        const vfloat d = load_n(dy + c, n), xn = norm(c, n);
        const vfloat dx = fma(xn, set1(slope), fma(d * r, w, set1(shift)));
        if (dinp) store_row(dinp + row * C + c, dresidual ? load_n(res + c, n) + dx : dx, n, past);
        store_n(dw + c, fma(d, xn, dweight), n);
        if (Mean) store_n(db + c, dbias + d, n);
    });
}

// dinp (N,C) =, dweight (C) +=, dbias (C) +=: any may be null. So may weight (C), dresidual (N,C), and without Mean,
// mean.
template <bool Mean, class S>
void backward(Cpu& dev, S* dinp, S* dweight, S* dbias, const S* dout, const S* inp, const S* weight, const float* mean,
              const float* rstd, const S* dresidual, int64_t N, int64_t C) {
    const bool past = past_caches(dinp, N, C);
    sum_over_rows(dev, N, C, dweight, dbias, [=](int64_t row, float* dw, float* db) {
        backward_row<Mean>(dinp, dw, db, dout, inp, weight, mean, rstd, dresidual, row, C, past);
    });
}

}  // namespace norm_cpu
