// The backward pass that LayerNorm and RMSNorm share on the Cpu.
#pragma once

#include "device/cpu/rows.h"

namespace norm_cpu {

// Sums over a row of dnorm and of dnorm * norm. They are scalars, because GCC returns structs of vectors through
// memory.
struct Sums {
    float dnorm, dnorm_norm;
};

// A row of dout and inp, and the places of its dinp and dresidual. Mean is true for LayerNorm. For RMSNorm it is false:
// norm is inp * r, and there is no sum(dnorm) and no db.
template <bool Mean, class S>
struct BackwardRow {
    const S *dout, *inp, *dresidual;
    S* dinp;
    float m, r;
    [[gnu::always_inline]] simd::vfloat norm(int64_t c, int64_t n) const {
        const simd::vfloat v = simd::load_n(inp + c, n);
        return (Mean ? v - m : v) * r;
    }
};

// Reads row `next` from memory: computes its sums, and adds its part to dw (C) and db (C). Finishes `row` from the
// caches: dinp = dresidual + r * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)), given its sums.
// All loads of a vector come before its stores: with rows of whole pages, a load right after a store would wait for it,
// because the CPU first compares the lowest 12 bits of their addresses.
template <bool Mean, bool Finish, bool Next, class S>
Sums finish_and_read(BackwardRow<Mean, S> row, const Sums& sums, BackwardRow<Mean, S> next, float* dw, float* db,
                     const S* weight, int64_t C, bool streaming) {
    using namespace simd;
    // Expanded, dinp takes two FMAs: r * dnorm + shift + slope * norm.
    const vfloat shift = set1(Mean ? -row.r * (sums.dnorm / static_cast<float>(C)) : 0.0f);
    const vfloat slope = set1(-row.r * (sums.dnorm_norm / static_cast<float>(C)));
    vfloat sum_dnorm[4]{}, sum_dnorm_norm[4]{};
    each_vector(C, [&](int64_t c, int64_t n, int k) {
        const vfloat w = weight ? load_n(weight + c, n) : set1(1.0f);
        vfloat dweight{}, dbias{};
        if (Next) {
            prefetch_ahead(next.inp + c, k), prefetch_ahead(next.dout + c, k);
            const vfloat d = load_n(next.dout + c, n), norm = next.norm(c, n);
            sum_dnorm[k] += d * w;
            sum_dnorm_norm[k] = fma(d * w, norm, sum_dnorm_norm[k]);
            dweight = fma(d, norm, load_n(dw + c, n));
            dbias = Mean ? load_n(db + c, n) + d : d;
        }
        if (Finish && row.dinp) {
            if (row.dresidual) prefetch_ahead(row.dresidual + c, k);
            const vfloat dx = fma(row.norm(c, n), slope, fma(load_n(row.dout + c, n) * row.r, w, shift));
            store_row(row.dinp + c, row.dresidual ? load_n(row.dresidual + c, n) + dx : dx, n, streaming);
        }
        if (Next) store_n(dw + c, dweight, n);
        if (Next && Mean) store_n(db + c, dbias, n);
    });
    return {sum(sum_dnorm), sum(sum_dnorm_norm)};
}

// dinp (N,C) =, dweight (C) +=, dbias (C) +=: any may be null. So may weight (C), dresidual (N,C), and without Mean,
// mean.
template <bool Mean, class S>
void backward(Cpu& dev, S* dinp, S* dweight, S* dbias, const S* dout, const S* inp, const S* weight, const float* mean,
              const float* rstd, const S* dresidual, int64_t N, int64_t C) {
    const bool streaming = should_stream(dinp, N, C);
    const auto at = [=](int64_t row) {
        return BackwardRow<Mean, S>{dout + row * C,
                                    inp + row * C,
                                    dresidual ? dresidual + row * C : nullptr,
                                    dinp ? dinp + row * C : nullptr,
                                    Mean ? mean[row] : 0,
                                    rstd[row]};
    };
    sum_over_rows(dev, N, C, dweight, dbias, [=](int64_t row, int64_t end, float* dw, float* db) {
        Sums sums = finish_and_read<Mean, false, true>(at(row), {}, at(row), dw, db, weight, C, streaming);
        for (; row + 1 < end; ++row)
            sums = finish_and_read<Mean, true, true>(at(row), sums, at(row + 1), dw, db, weight, C, streaming);
        finish_and_read<Mean, true, false>(at(row), sums, at(row), dw, db, weight, C, streaming);
    });
}

}  // namespace norm_cpu
