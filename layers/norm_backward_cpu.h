// The backward pass that LayerNorm and RMSNorm share on the Cpu.
#pragma once

#include "layers/rows_cpu.h"

namespace norm_cpu {

// dinp = dresidual + r * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)) of R neighbouring rows, which share the
// loads of weight and of the sums dw (C) and db (C), +=. Mean: as LayerNorm has it; without it norm is inp * r, and
// neither mean(dnorm) nor db is there.
template <bool Mean, int R, class S>
void backward_rows(S* dinp, float* dw, float* db, const S* dout, const S* inp, const S* weight, const float* mean,
                   const float* rstd, const S* dresidual, int64_t row, int64_t C, bool past) {
    using namespace simd;
    const S *x = inp + row * C, *dy = dout + row * C;
    const Ahead next_x(x, C), next_dy(dy, C);
    const auto weight_at = [=](int64_t c, int64_t n) { return weight ? load_n(weight + c, n) : set1(1.0f); };
    float m[R], r[R];  // read from the tensors, they would be loaded again after each store
    for (int i = 0; i < R; ++i) m[i] = Mean ? mean[row + i] : 0, r[i] = rstd[row + i];
    const auto norm = [&](int i, int64_t c, int64_t n) __attribute__((always_inline)) {
        const vfloat v = load_n(x + i * C + c, n);
        return (Mean ? v - m[i] : v) * r[i];
    };
    float shift[R], slope[R];  // multiplied out, dinp is two multiply-adds: r * dnorm + shift + slope * norm
    for (int i = 0; i < R; ++i) {
        vfloat sum_dnorm[4]{}, sum_dnorm_norm[4]{};
        each_vector<16>(C, [&](int64_t c, int64_t n, int k) {
            if (R == 1) next_x.first(c, k), next_dy.first(c, k);
            const vfloat d = load_n(dy + i * C + c, n) * weight_at(c, n);
            if (Mean) sum_dnorm[k] += d;
            sum_dnorm_norm[k] = fma(d, norm(i, c, n), sum_dnorm_norm[k]);
        });
        shift[i] = Mean ? -r[i] * (sum(sum_dnorm) / static_cast<float>(C)) : 0.0f;
        slope[i] = -r[i] * (sum(sum_dnorm_norm) / static_cast<float>(C));
    }
    const auto finish = [&]<int U>(Vectors<U>, int64_t c0, int64_t n, int k) __attribute__((always_inline)) {
        vfloat w[U], dweight[U], dbias[U];
#pragma GCC unroll 2
        for (int u = 0; u < U; ++u) {
            const int64_t c = c0 + u * W;
            w[u] = weight_at(c, n), dweight[u] = load_n(dw + c, n);
            if (Mean) dbias[u] = load_n(db + c, n);
        }
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
            for (int u = 0; u < U; ++u) {
                const int64_t c = c0 + u * W, at = (row + i) * C + c;
                if (R == 1) next_x.second(c, k), next_dy.second(c, k);
                const vfloat d = load_n(dout + at, n), xn = norm(i, c, n);
                dweight[u] = fma(d, xn, dweight[u]);
                if (Mean) dbias[u] += d;
                if (!dinp) continue;
                const vfloat dx = fma(xn, set1(slope[i]), fma(d * r[i], w[u], set1(shift[i])));
                store_row(dinp + at, dresidual ? load_n(dresidual + at, n) + dx : dx, n, past);
            }
        }
#pragma GCC unroll 2
        for (int u = 0; u < U; ++u) {
            store_n(dw + c0 + u * W, dweight[u], n);
            if (Mean) store_n(db + c0 + u * W, dbias[u], n);
        }
    };
    if constexpr (R == 1)
        each_vector<16>(C, [&](int64_t c, int64_t n, int k) { finish(Vectors<1>{}, c, n, k); });
    else
        each_group<2>(C, [&](auto vectors, int64_t c, int64_t n) { finish(vectors, c, n, 0); });
}

// dinp (N,C) =, dweight (C) +=, dbias (C) +=: any may be null. So may weight (C), dresidual (N,C), and without Mean,
// mean.
template <bool Mean, class S>
void backward(Cpu& dev, S* dinp, S* dweight, S* dbias, const S* dout, const S* inp, const S* weight, const float* mean,
              const float* rstd, const S* dresidual, int64_t N, int64_t C) {
    const bool past = past_caches(dinp, N, C);
    const auto rows = [=]<int R>(int64_t row, float* dw, float* db) {
        backward_rows<Mean, R, S>(dinp, dw, db, dout, inp, weight, mean, rstd, dresidual, row, C, past);
    };
    constexpr int group = 4;  // rows too long for L1 take a tenth more time one by one
    const bool groups = !Ahead<S>::fits_L1(C);
    sum_over_runs(dev, N, C, dweight, dbias, [=](int64_t begin, int64_t end, float* dw, float* db) {
        int64_t row = begin;
        for (; groups && row + group <= end; row += group) rows.template operator()<group>(row, dw, db);
        for (; row < end; ++row) rows.template operator()<1>(row, dw, db);
    });
}

}  // namespace norm_cpu
