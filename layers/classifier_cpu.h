// The classifier on the Cpu. It works on a chunk of rows at a time, and stores the terms of their softmax in place of
// the logits.
#pragma once

#include "layers/classifier.h"
#include "device/bf16.h"
#include "device/cpu/gemm/matmul.h"
#include "device/cpu/simd.h"
#include "device/cpu/weight_rows.h"

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

// The terms of a row are summed in runs of about this many, in lanes: if all are nearly equal, the rounding errors of
// one long sum would all have the same sign. Logits in memory, which are read twice, stay in L1 meanwhile.
constexpr int64_t run = 960;

// The memory in Cpu::shared() for a chunk of N rows, whose terms take `words` floats each row.
struct Memory {
    int64_t runs, ld;      // of a row; floats from one row of terms to the next
    float* row;            // (V)
    float* terms;          // (N,ld)
    float* sums;           // (N,runs,W), of a run's terms
    float* expected;       // (N), the targets' logits, up to rounding
    float* target_logits;  // (N)
    float* factors;        // (N): the sum of a row's terms, then scale / sum
    float* scaled;         // (N,C): inp * factors

    Memory(float* shared, int64_t N, int64_t V, int64_t words)
        : runs(gemm::ceil_div(V, run)),
          ld(row_floats(words)),
          row(shared),
          terms(row + row_floats(V)),
          sums(terms + N * ld),
          expected(sums + N * runs * simd::W),
          target_logits(expected + N),
          factors(target_logits + N),
          scaled(factors + N) {}
};
// Floats of Cpu::shared() for N or fewer rows: fewer rows may have larger chunks than N rows have.
inline int64_t shared_floats(int64_t N, int64_t C, int64_t V) {
    return row_floats(V) + std::min(N, most_rows(V)) * (row_floats(V) + gemm::ceil_div(V, run) * simd::W + 3 + C);
}

// At least as many for any number of columns up to V: the fewer they are, the more rows a chunk may have.
inline int64_t most_shared_floats(int64_t N, int64_t C, int64_t V) {
    const int64_t logits = std::min(N * V, std::max<int64_t>(64 * V, int64_t{16} << 20));
    const int64_t besides = 2 * cache_line / 4 + simd::W + 3 + C;  // of a row: what rounds its terms and sums up
    return row_floats(V) + logits + logits * simd::W / run + N * besides;
}

// The values that `Words` consist of.
template <class Words>
using Term = std::conditional_t<Words::size == 1, float, bf16>;

// Computes the terms e^(logit - top) of n logits, each `counts` times unless that is null, and stores them as `Words`
// from `terms` on, which may be `logits` or lie before it. Returns their sums in lanes.
template <class Words, bool stored = true>
[[gnu::always_inline]] inline simd::vfloat make_terms(float* terms, const float* logits, int64_t n, float top,
                                                      const float* counts) {
    using namespace simd;
    constexpr int64_t at_once = W * Words::size;
    vfloat sums{};
    const auto some = [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        vfloat e[Words::size];
        for (int64_t u = 0; u < Words::size; ++u) {
            const int64_t left = std::clamp<int64_t>(count - u * W, 0, W);
            e[u] = first(exp(load_n(logits + i + u * W, left) - top), left);
            if (counts != nullptr) e[u] *= load_n(counts + i + u * W, left);
            sums += e[u];
        }
        if (stored) store_n(terms + i / Words::size, Words::along(e), gemm::ceil_div(count, Words::size));
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

// The sum of a row's terms, of which the target's, e^(its logit - top), shall count once instead of counts[target]
// times. It is at least that one term, which rounding errors may hide beside a large count.
inline float with_target_once(float sum, const float* counts, int32_t target, float logit_above_top) {
    if (counts == nullptr) return sum;
    const float term = std::exp(logit_above_top);
    return std::max(sum + (1 - counts[target]) * term, term);
}

// Turns one row of V logits into e^(logit - top), stored as `Words`, and returns their sum; `loss` = log(sum of
// e^logits) - logits[target]. The row is read once: top is the largest logit of the first run. Only if another exceeds
// it by more than 30, what was done before is brought to the new top (Milakov & Gimelshein 2018).
template <class Words = gemm::Floats>
float softmax_row(float* row, int64_t V, int32_t target, float* loss, const float* counts = nullptr) {
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
        sums += make_terms<Words>(row + v / Words::size, row + v, n, top, counts ? counts + v : nullptr);
    }
    const float denominator = with_target_once(sum(sums), counts, target, target_logit - top);
    *loss = std::log(denominator) + top - target_logit;
    return denominator;
}

// Where a tile of logits is complete while it is in L1, its terms are made there, and the logits are not stored at all.
// The largest logit is not known yet. Instead, e^(logit - expected) are a row's terms, where `expected` is about the
// target's logit: then their sum is about e^loss. Where it is not within these bounds, it may have overflowed or lost
// what matters, and softmax_row() computes the row again. NaN would be NaN again.
inline bool usable(float sum) { return !(sum < 1e-15f || sum > 1e15f); }

// Elsewhere pairs of bf16 would overwrite what other threads' tiles have of the sums over the first blocks of C.
inline bool in_epilogue(const Cpu& dev, int64_t C) {
    return dev.matmul_kind != MatmulKind::bf16 || gemm::one_block(dev.matmul_kind, C);
}

// inp (C) · row v of the weights, up to rounding.
template <class Element>
float dot(const float* inp, const WeightRows<Element>& weights, int64_t v, int64_t C) {
    simd::vfloat sums{};
    for (int64_t c = 0; c < C; c += simd::W)
        sums = simd::fma(simd::load_n(inp + c, C - c), simd::load_n(weights.row(v) + c, C - c), sums);
    return weights.scale(v) * simd::sum(sums);
}

// Computes the losses of N rows, their terms, and the sums of the terms as memory.factors, from logits in memory.
template <class Words>
void terms_of_logits(Cpu& dev, const Memory& memory, float* losses, const float* inp, const float* weight,
                     const int32_t* targets, int64_t N, int64_t C, int64_t V, const float* counts) {
    gemm::matmul_weights(dev, N, V, C, inp, weight, memory.terms, memory.ld);
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; ++n)
        memory.factors[n] = softmax_row<Words>(memory.terms + n * memory.ld, V, targets[n], losses + n, counts);
}

// The same in the epilogue of the logits' matmul, where terms need not be stored.
template <class Words, bool stored>
void terms_in_epilogue(Cpu& dev, const Memory& memory, float* losses, const float* inp, const float* weight,
                       const int32_t* targets, int64_t N, int64_t C, int64_t V, const float* counts) {
    using namespace simd;
    const auto [runs, ld, row, terms, sums, expected, target_logits, factors, scaled] = memory;
    with_rows(dev.weights, weight, C, [&](const auto& rows) {
#pragma omp parallel for schedule(static)
        for (int64_t n = 0; n < N; ++n) {
            expected[n] = dot(inp + n * C, rows, targets[n], C);
            std::fill_n(sums + n * runs * W, runs * W, 0.0f);
        }
    });
    const auto to_terms = [=](gemm::Range rows, int64_t v, int64_t lanes, const float* logits, int64_t logits_ld) {
        for (int64_t n = rows.begin; n < rows.end; ++n, logits += logits_ld) {
            const int64_t target = targets[n] - v;
            if (target >= 0 && target < lanes) target_logits[n] = logits[target];
            float* const run_sums = sums + (n * runs + v / run) * W;
            store(run_sums, load(run_sums) + make_terms<Words, stored>(terms + n * ld + v / Words::size, logits, lanes,
                                                                       expected[n], counts ? counts + v : nullptr));
        }
    };
    constexpr bool in_place = stored && Words::size == 1;
    gemm::matmul_weights(dev, N, V, C, inp, weight, terms, ld, gemm::EpilogueRef(to_terms, run, in_place));
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; ++n) {
        vfloat sum{};
        for (int64_t r = 0; r < runs; ++r) sum += load(sums + (n * runs + r) * W);
        factors[n] = with_target_once(simd::sum(sum), counts, targets[n], target_logits[n] - expected[n]);
        losses[n] = std::log(factors[n]) + (expected[n] - target_logits[n]);
    }
    for (int64_t n = 0; n < N; ++n) {
        if (usable(factors[n])) continue;
        gemm::matmul_weights(dev, 1, V, C, inp + n * C, weight, row);
        factors[n] = softmax_row<Words>(row, V, targets[n], losses + n, counts);
        if (stored) std::copy_n(row, gemm::ceil_div(V, Words::size), terms + n * ld);
    }
}

template <class Words, bool stored>
void compute_terms(Cpu& dev, const Memory& memory, float* losses, const float* inp, const float* weight,
                   const int32_t* targets, int64_t N, int64_t C, int64_t V, const float* counts = nullptr) {
    if (in_epilogue(dev, C))
        terms_in_epilogue<Words, stored>(dev, memory, losses, inp, weight, targets, N, C, V, counts);
    else
        terms_of_logits<Words>(dev, memory, losses, inp, weight, targets, N, C, V, counts);
}

// Replaces term i of a row.
template <class Words>
void set_term(float* row, int64_t i, float x) {
    const Term<Words> term(x);
    std::memcpy(reinterpret_cast<Term<Words>*>(row) + i, &term, sizeof term);
}

// The losses and the backward of N rows. dlogits = terms * factors, row by row, once each target's term is less by the
// sum of its row. dinp is multiplied by the factors after its matmul, and dweight is a sum of inp * factors, so that
// the terms are not read and written once more.
template <class Words>
void chunk_forward_backward(Cpu& dev, const Memory& memory, float* losses, float* dinp, float* dweight,
                            const float* inp, const float* weight, const int32_t* targets, int64_t N, int64_t C,
                            int64_t V, float scale, bool accumulate, const float* counts) {
    using enum gemm::Order;
    compute_terms<Words, true>(dev, memory, losses, inp, weight, targets, N, C, V, counts);
    float* const terms = memory.terms;
    float* const factors = memory.factors;
    float* const scaled = memory.scaled;
    const int64_t ld = memory.ld;
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; ++n) {
        const float sum = factors[n];
        set_term<Words>(terms + n * ld, targets[n], sum * std::expm1(-losses[n]));  // sum * (softmax - 1)
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

// Calls f(first row, rows, memory) for each chunk. Terms are stored as `Words`.
template <class Words, class F>
void each_chunk(Cpu& dev, int64_t N, int64_t C, int64_t V, const F& f) {
    float* const shared = dev.shared(shared_floats(N, C, V));
    const int64_t words = in_epilogue(dev, C) ? gemm::ceil_div(V, Words::size) : V;
    for (int64_t i = 0; i < chunks(N, V); ++i) {
        const gemm::Range rows = gemm::part_of(N, chunks(N, V), i);
        f(rows.begin, rows.size(), Memory(shared, rows.size(), V, words));
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
    using gemm::Floats;
    classifier::each_chunk<Floats>(dev, N, C, V, [=, &dev](int64_t n, int64_t rows, const classifier::Memory& memory) {
        classifier::compute_terms<Floats, false>(dev, memory, losses + n, inp + n * C, weight, targets + n, rows, C, V);
    });
}

// forward: losses = log(sum of e^logits) - logits[target]
// dlogits = scale * (softmax(logits) - onehot(target))
// dinp (N,C) = dlogits · weight        dweight (V rows of Vp,C) += dlogitsᵀ · inp, = unless accumulate
inline void classifier_forward_backward(Cpu& dev, float* losses, float* dinp, float* dweight, const float* inp,
                                        const float* weight, const int32_t* targets, int64_t N, int64_t C, int64_t V,
                                        float scale, bool accumulate = true, const float* counts = nullptr) {
    const Timed timed(dev, "classifier_forward_backward", 6 * prod(N, C, V), 0);
    gemm::for_stored(dev.matmul_kind, [&]<class Words>(Words) {
        classifier::each_chunk<Words>(
            dev, N, C, V, [=, &dev](int64_t n, int64_t rows, const classifier::Memory& memory) {
                classifier::chunk_forward_backward<Words>(dev, memory, losses + n, dinp + n * C, dweight, inp + n * C,
                                                          weight, targets + n, rows, C, V, scale, accumulate || n > 0,
                                                          counts);
            });
    });
}
