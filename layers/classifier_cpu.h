// The classifier on the Cpu. It works on a chunk of rows at a time, and replaces logits by their gradient in place.
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

// The denominator is summed in runs of this many terms: if all terms are nearly equal, the rounding errors of one long
// sum would all have the same sign.
constexpr int64_t run = 1024;

// Turns one row of V logits into e^(logit - largest), stored as `Words`, and returns their sum; `loss` = log(sum of
// e^logits) - logits[target].
template <class Words = gemm::Floats>
float softmax_row(float* logits, int64_t V, int32_t target, float* loss) {
    using namespace simd;
    vfloat largest = set1(logits[0]);
    for (int64_t v = 0; v < V; v += W) largest = max(largest, first(load_n(logits + v, V - v), V - v, logits[0]));
    const float top = max(largest), target_logit = logits[target];
    constexpr int64_t at_once = W * Words::size;
    vfloat total{}, part{};
    const auto make_terms = [&](int64_t v, int64_t n) __attribute__((always_inline)) {
        vfloat e[Words::size];
        for (int64_t u = 0; u < Words::size; ++u) {
            const int64_t left = std::clamp<int64_t>(n - u * W, 0, W);
            e[u] = first(exp(load_n(logits + v + u * W, left) - top), left);
            part += e[u];
        }
        store_n(logits + v / Words::size, Words::along(e), gemm::ceil_div(n, Words::size));
    };
    for (int64_t v = 0; v < V; v += at_once) {
        if (V - v >= at_once)
            make_terms(v, at_once);
        else
            make_terms(v, V - v);
        if ((v + at_once) % run == 0) total += part, part = vfloat{};
    }
    const float denominator = sum(total + part);
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
    if constexpr (Words::size == 1) {
        row[i] = x;
    } else {
        const bf16 half(x);
        std::memcpy(reinterpret_cast<bf16*>(row) + i, &half, sizeof half);
    }
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
    const auto times_factor = [=](int64_t n, int64_t c, int64_t left, const float* sums)
        __attribute__((always_inline)) {
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
