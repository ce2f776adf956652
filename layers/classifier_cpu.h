// The classifier on the Cpu. It works on a chunk of rows at a time, and replaces logits by their gradient in place.
#pragma once

#include "layers/classifier.h"
#include "device/cpu/gemm/matmul.h"
#include "device/cpu/simd.h"

namespace classifier {

// At most 64 MiB of logits are computed at a time: all logits of a large vocabulary would take most of the memory. N
// rows are cut into nearly equal chunks.
inline int64_t most_rows(int64_t V) { return std::max<int64_t>(64, (int64_t{16} << 20) / V); }
inline int64_t chunks(int64_t N, int64_t V) { return gemm::ceil_div(N, most_rows(V)); }

// Floats of Cpu::shared() for N or fewer rows: fewer rows may have larger chunks than N rows have.
inline int64_t shared_floats(int64_t N, int64_t V) { return std::min(N, most_rows(V)) * V; }

// The denominator is summed in runs of this many terms: if all terms are nearly equal, the rounding errors of one long
// sum would all have the same sign.
constexpr int64_t run = 1024;

// Turns one row of V logits into e^(logit - largest) and returns their sum; `loss` = log(sum of e^logits) -
// logits[target].
inline float softmax_row(float* logits, int64_t V, int32_t target, float* loss) {
    using namespace simd;
    vfloat largest = set1(logits[0]);
    for (int64_t v = 0; v < V; v += W) largest = max(largest, first(load_n(logits + v, V - v), V - v, logits[0]));
    const float top = max(largest), target_logit = logits[target];
    vfloat total{};
    for (int64_t v = 0; v < V; v += run) {
        vfloat part{};
        map(logits + v, std::min(run, V - v), [&](vfloat x, int64_t, int64_t left) {
            const vfloat e = exp(x - top);
            part += first(e, left);
            return e;
        });
        total += part;
    }
    const float denominator = sum(total);
    *loss = std::log(denominator) + top - target_logit;
    return denominator;
}

// Calls f(begin, end, logits) for each chunk, after the logits (end - begin, V) of its rows [begin, end) are computed.
template <class F>
void each_chunk(Cpu& dev, const float* inp, const float* weight, int64_t N, int64_t C, int64_t V, const F& f) {
    float* const logits = dev.shared(shared_floats(N, V));
    for (int64_t i = 0; i < chunks(N, V); ++i) {
        const gemm::Range rows = gemm::part_of(N, chunks(N, V), i);
        gemm::matmul_weights(dev, rows.size(), V, C, inp + rows.begin * C, weight, logits);
        f(rows.begin, rows.end, logits);
    }
}

}  // namespace classifier

// logits (N,V) = inp (N,C) · weight (Vp,C)ᵀ
inline void classifier_logits(Cpu& dev, float* logits, const float* inp, const float* weight, int64_t N, int64_t C,
                              int64_t V) {
    const Timed timed(dev, "classifier_logits", 2 * prod(N, C, V), 0);
    gemm::matmul_weights(dev, N, V, C, inp, weight, logits);
}

// losses (N) = log(sum of e^logits) - logits[target]
inline void classifier_forward(Cpu& dev, float* losses, const float* inp, const float* weight, const int32_t* targets,
                               int64_t N, int64_t C, int64_t V) {
    const Timed timed(dev, "classifier_forward", 2 * prod(N, C, V), 0);
    classifier::each_chunk(dev, inp, weight, N, C, V, [=](int64_t begin, int64_t end, float* logits) {
#pragma omp parallel for schedule(static)
        for (int64_t n = begin; n < end; ++n)
            classifier::softmax_row(logits + (n - begin) * V, V, targets[n], losses + n);
    });
}

// forward: losses = log(sum of e^logits) - logits[target]
// dlogits = scale * (softmax(logits) - onehot(target))
// dinp (N,C) = dlogits · weight        dweight (V rows of Vp,C) += dlogitsᵀ · inp, = unless accumulate
inline void classifier_forward_backward(Cpu& dev, float* losses, float* dinp, float* dweight, const float* inp,
                                        const float* weight, const int32_t* targets, int64_t N, int64_t C, int64_t V,
                                        float scale, bool accumulate = true) {
    const Timed timed(dev, "classifier_forward_backward", 6 * prod(N, C, V), 0);
    using enum gemm::Order;
    classifier::each_chunk(dev, inp, weight, N, C, V, [=, &dev](int64_t begin, int64_t end, float* logits) {
#pragma omp parallel for schedule(static)
        for (int64_t n = begin; n < end; ++n) {
            float* const row = logits + (n - begin) * V;
            const float factor = scale / classifier::softmax_row(row, V, targets[n], losses + n);
            simd::map(row, V, [=](simd::vfloat e, int64_t, int64_t) { return e * factor; });
            row[targets[n]] -= scale;
        }
        gemm::matmul<k_last, k_first>(dev, end - begin, C, V, logits, V, weight, C, dinp + begin * C, C,
                                      gemm::Store::set);
        gemm::matmul<k_first, k_first>(dev, V, C, end - begin, logits, V, inp + begin * C, C, dweight, C,
                                       accumulate || begin > 0 ? gemm::Store::add : gemm::Store::stream);
    });
}
