// The classifier on the Cpu. It works on a chunk of rows at a time, and replaces logits by the terms of their softmax.
#pragma once

#include "layers/classifier.h"
#include "device/bf16.h"
#include "device/cpu/gemm/matmul.h"
#include "device/cpu/simd.h"

namespace classifier {

// At most 64 MiB of logits are computed at a time: all logits of a large vocabulary would take most of the memory. N
// rows are cut into nearly equal chunks.
inline int64_t most_rows(int64_t V) { return std::max<int64_t>(64, (int64_t{16} << 20) / V); }
inline int64_t chunks(int64_t N, int64_t V) { return gemm::ceil_div(N, most_rows(V)); }

// The floats from one row of logits to the next: an odd number of cache lines. The matmuls read and write eight rows at
// a time, which evict each other from L1 where they lie a power of two apart.
inline int64_t row_floats(int64_t V) {
    constexpr int64_t line = cache_line / 4;
    return (gemm::ceil_div(V, line) | 1) * line;
}

// Floats of Cpu::shared() for N or fewer rows: fewer rows may have larger chunks than N rows have.
inline int64_t shared_floats(int64_t N, int64_t C, int64_t V) {
    return std::min(N, most_rows(V)) * (row_floats(V) + C + 1);
}

// A row is treated in runs of this many logits, which stay in L1. Their terms are summed apart: if all are nearly
// equal, the rounding errors of one long sum would all have the same sign.
constexpr int64_t run = 1024;

// The values that `Words` consist of.
template <class Words>
using Term = std::conditional_t<Words::size == 1, float, bf16>;

// Replaces n logits by e^(logit - top), written from `terms` on, which may be `logits` or lie before it. Returns the
// sums of the lanes.
template <class Words>
simd::vfloat make_terms(float* terms, const float* logits, int64_t n, float top) {
    using namespace simd;
    constexpr int64_t at_once = W * Words::size;
    vfloat sums{};
    const auto some = [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        vfloat e[Words::size];
        for (int64_t u = 0; u < Words::size; ++u) {
            const int64_t left = std::clamp<int64_t>(count - u * W, 0, W);
            e[u] = first(exp(load_n(logits + i + u * W, left) - top), left);
            sums += e[u];
        }
        store_n(terms + i / Words::size, Words::along(e), gemm::ceil_div(count, Words::size));
    };
    int64_t i = 0;
    for (; i + at_once <= n; i += at_once) some(i, at_once);
    if (i < n) some(i, n - i);
    return sums;
}

inline float largest_of(const float* logits, int64_t n) {
    using namespace simd;
    vfloat largest = set1(logits[0]);
    for (int64_t i = 0; i < n; i += W) largest = max(largest, first(load_n(logits + i, n - i), n - i, logits[0]));
    return max(largest);
}

// Turns one row of V logits into e^(logit - top), stored as `Words`, and returns their sum; `loss` = log(sum of
// e^logits) - logits[target]. The row is read once: top is the largest logit of the first run. Only if another exceeds
// it by more than 30, what was done before is brought to the new top (Milakov & Gimelshein 2018).
template <class Words = gemm::Floats>
float softmax_row(float* row, int64_t V, int32_t target, float* loss) {
    using namespace simd;
    const float target_logit = row[target];
    float top = 0;
    vfloat sums{};
    for (int64_t v = 0; v < V; v += run) {
        const int64_t n = std::min(run, V - v);
        const float largest = largest_of(row + v, n);
        if (v == 0) top = largest;
        if (largest > top + 30) {
            const float factor = std::exp(top - largest);
            auto* const terms = reinterpret_cast<Term<Words>*>(row);
            for (int64_t i = 0; i < v; i += W) store(terms + i, load(terms + i) * factor);
            sums *= factor;
            top = largest;
        }
        sums += make_terms<Words>(row + v / Words::size, row + v, n, top);
    }
    const float denominator = sum(sums);
    *loss = std::log(denominator) + top - target_logit;
    return denominator;
}

// Calls f(begin, end, logits) for each chunk, after the logits (end - begin, V) of its rows [begin, end) are computed,
// row_floats(V) from row to row. The rest of the shared memory follows them.
template <class F>
void each_chunk(Cpu& dev, const float* inp, const float* weight, int64_t N, int64_t C, int64_t V, const F& f) {
    float* const logits = dev.shared(shared_floats(N, C, V));
    for (int64_t i = 0; i < chunks(N, V); ++i) {
        const gemm::Range rows = gemm::part_of(N, chunks(N, V), i);
        gemm::matmul_weights(dev, rows.size(), V, C, inp + rows.begin * C, weight, logits, row_floats(V));
        f(rows.begin, rows.end, logits);
    }
}

// Replaces term i of a row.
template <class Words>
void set_term(float* row, int64_t i, float x) {
    const Term<Words> term(x);
    std::memcpy(reinterpret_cast<Term<Words>*>(row) + i, &term, sizeof term);
}

// The backward of N rows, whose logits become the softmax's terms. dlogits = terms * factors, row by row, once each
// target's term is less by the sum of its row. dinp is multiplied by the factors after its matmul, and dweight is a sum
// of inp * factors, so that the terms are not read and written once more. inp * factors (N,C) and the factors (N)
// follow the terms in memory.
template <class Words>
void backward_of_chunk(Cpu& dev, float* terms, float* losses, float* dinp, float* dweight, const float* inp,
                       const float* weight, const int32_t* targets, int64_t N, int64_t C, int64_t V, float scale,
                       bool accumulate) {
    using enum gemm::Order;
    const int64_t ld = row_floats(V);
    float* const scaled = terms + N * ld;
    float* const factors = scaled + N * C;
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; ++n) {
        float* const row = terms + n * ld;
        const float sum = softmax_row<Words>(row, V, targets[n], losses + n);
        set_term<Words>(row, targets[n], sum * std::expm1(-losses[n]));  // sum * (softmax - 1)
        factors[n] = scale / sum;
        for (int64_t c = 0; c < C; ++c) scaled[n * C + c] = inp[n * C + c] * factors[n];
    }
    const auto times_factor = [=](int64_t n, int64_t c, int64_t left, const float* sums) {
        simd::store_n(dinp + n * C + c, simd::load_n(sums, left) * factors[n], left);
    };
    gemm::matmul<k_last, k_first, Words>(dev, N, C, V, terms, ld, weight, C, dinp, C, gemm::Store::set, times_factor);
    gemm::matmul<k_first, k_first, Words>(dev, V, C, N, terms, ld, scaled, C, dweight, C,
                                          accumulate ? gemm::Store::add : gemm::Store::stream);
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
            classifier::softmax_row(logits + (n - begin) * classifier::row_floats(V), V, targets[n], losses + n);
    });
}

// forward: losses = log(sum of e^logits) - logits[target]
// dlogits = scale * (softmax(logits) - onehot(target))
// dinp (N,C) = dlogits · weight        dweight (V rows of Vp,C) += dlogitsᵀ · inp, = unless accumulate
inline void classifier_forward_backward(Cpu& dev, float* losses, float* dinp, float* dweight, const float* inp,
                                        const float* weight, const int32_t* targets, int64_t N, int64_t C, int64_t V,
                                        float scale, bool accumulate = true) {
    const Timed timed(dev, "classifier_forward_backward", 6 * prod(N, C, V), 0);
    gemm::for_stored(dev.matmul_kind, [&]<class Words>(Words) {
        classifier::each_chunk(dev, inp, weight, N, C, V, [=, &dev](int64_t begin, int64_t end, float* terms) {
            classifier::backward_of_chunk<Words>(dev, terms, losses + begin, dinp + begin * C, dweight, inp + begin * C,
                                                 weight, targets + begin, end - begin, C, V, scale,
                                                 accumulate || begin > 0);
        });
    });
}
