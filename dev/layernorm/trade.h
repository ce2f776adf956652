// What the forward can save for the backward, and its cost: the norm itself (N·C floats), mean and rstd (2N floats, as
// layers/layernorm_cpu.h does), or nothing. All three use the same two kernels, so that nothing else differs.
#pragma once

#include "layers/layernorm_cpu.h"

namespace layernorm_trade {

enum class Saved { norm, statistics, nothing };

struct Statistics {
    float mean, rstd;
};

// With two passes over a row, memory would be idle in the second, which finds the row in the caches. So each pass
// prefetches one half of the cache lines of a later row. It is called with each_vector's c and k.
struct Ahead {
    const float *row, *next;
    int64_t half;  // where the second pass starts
    Ahead(const float* x, int64_t C) : row(x), next(x + std::max(C, far<float>)), half(C / 2) {}
    void first(int64_t c, int k) const { both(c, next + c / 2, k); }
    void second(int64_t c, int k) const { both(c, next + half + c / 2, k); }

private:
    void both(int64_t c, const float* later, int k) const {
        if (k * simd::W % 32 == 0)
            prefetch_vector<Cache::L2>(later, 0);  // at half of the speed: every second line of 16
        prefetch_vector<Cache::L1>(row + c + near<float>, k);
    }
};

// Calls prefetch(c, k) for each vector of the second pass.
template <class Prefetch>
Statistics statistics(const float* x, int64_t C, float eps, const Prefetch& prefetch) {
    using namespace simd;
    vfloat total[4]{}, squares[4]{};
    each_vector(C, [&](int64_t c, int64_t n, int k) { total[k] += load_n(x + c, n); });
    const float m = sum(total) / static_cast<float>(C);
    each_vector(C, [&](int64_t c, int64_t n, int k) {
        prefetch(c, k);
        const vfloat d = simd::first(load_n(x + c, n) - m, n);
        squares[k] = fma(d, d, squares[k]);
    });
    return {m, 1 / std::sqrt(sum(squares) / static_cast<float>(C) + eps)};
}

// out (N,C) = norm * weight + bias        saved in `kept`: norm (N,C) and rstd (N), or mean and rstd (N), or nothing
template <Saved saved>
void forward(float* out, float* norm, float* mean, float* rstd, const float* inp, const float* weight,
             const float* bias, int64_t N, int64_t C) {
    using namespace simd;
    const bool streaming = should_stream(out, N, C);
    parallel_for(N, [=](int64_t row) {
        const float* const x = inp + row * C;
        const Ahead next(x, C);
        const auto moments = statistics(x, C, 1e-5f, [&](int64_t c, int k) { next.first(c, k); });
        const float m = moments.mean, r = moments.rstd;
        each_vector(C, [&](int64_t c, int64_t n, int k) {
            next.second(c, k);
            const vfloat v = (load_n(x + c, n) - m) * r;
            if (saved == Saved::norm) store_row(norm + row * C + c, v, n, streaming);
            store_row(out + row * C + c, v * load_n(weight + c, n) + load_n(bias + c, n), n, streaming);
        });
        if (saved == Saved::statistics) mean[row] = m;
        if (saved != Saved::nothing) rstd[row] = r;
    });
}

// dinp (N,C) =, dweight, dbias (C) +=, as layernorm_backward. kept (N,C) is the norm if it was saved, otherwise inp.
template <Saved saved>
void backward(Cpu& dev, float* dinp, float* dweight, float* dbias, const float* dout, const float* kept,
              const float* weight, const float* mean, const float* rstd, int64_t N, int64_t C) {
    using namespace simd;
    const bool streaming = should_stream(dinp, N, C);
    sum_over_rows(dev, N, C, dweight, dbias, [=](int64_t row, int64_t end, float* dw, float* db) {
        for (; row < end; ++row) {
            const float *x = kept + row * C, *dy = dout + row * C;
            const Ahead next_x(x, C), next_dy(dy, C);
            Statistics s{0, 0};
            if (saved == Saved::nothing) s = statistics(x, C, 1e-5f, [](int64_t, int) {});
            if (saved == Saved::statistics) s.mean = mean[row];
            if (saved != Saved::nothing) s.rstd = rstd[row];
            const auto norm = [=](int64_t c, int64_t n) {
                const vfloat v = load_n(x + c, n);
                return saved == Saved::norm ? v : (v - s.mean) * s.rstd;
            };
            vfloat sum_dnorm[4]{}, sum_dnorm_norm[4]{};
            each_vector(C, [&](int64_t c, int64_t n, int k) {
                next_x.first(c, k), next_dy.first(c, k);
                const vfloat d = load_n(dy + c, n) * load_n(weight + c, n);
                sum_dnorm[k] += d;
                sum_dnorm_norm[k] = fma(d, norm(c, n), sum_dnorm_norm[k]);
            });
            const float mean_dnorm = sum(sum_dnorm) / static_cast<float>(C);
            const float mean_dnorm_norm = sum(sum_dnorm_norm) / static_cast<float>(C);
            each_vector(C, [&](int64_t c, int64_t n, int k) {
                next_x.second(c, k), next_dy.second(c, k);
                const vfloat d = load_n(dy + c, n), xn = norm(c, n);
                store_n(dw + c, fma(d, xn, load_n(dw + c, n)), n);
                store_n(db + c, load_n(db + c, n) + d, n);
                const vfloat dx = s.rstd * (d * load_n(weight + c, n) - mean_dnorm - xn * mean_dnorm_norm);
                store_row(dinp + row * C + c, dx, n, streaming);
            });
        }
    });
}

}  // namespace layernorm_trade
