// The ladder of softmax and cross-entropy: a row of V logits becomes its loss and, in place, its gradient. (For the
// matmuls around it see matmul's ladder; the program fuses all three in layers/classifier_cpu.h.)
//
// A row of GPT-2's vocabulary takes 200 KB: too large for L1, but it stays in L2. So every pass over it that is avoided
// matters, and so does every nanosecond of e^x.
#include "dev/ladder.h"
#include "layers/classifier_cpu.h"

const Kernel kernel{
    "classifier", "softmax, cross-entropy and its gradient from logits", {{"N", 512, "rows"}, {"V", 50257, "tokens"}}};

namespace {

// loss = log(sum of e^logits) - logits[target]        dlogits = scale * (softmax(logits) - onehot(target))

// 1. The formulas, step by step: probabilities in memory of their own, then the loss, then the gradient from them. The
// largest logit is subtracted first, because e^100 would overflow; it cancels in the quotient.
void naive(float* logits, float* losses, float* probabilities, const int32_t* targets, float scale, int64_t N,
           int64_t V) {
    for (int64_t n = 0; n < N; ++n) {
        const float* row = logits + n * V;
        float largest = row[0];
        double sum = 0;
        for (int64_t v = 1; v < V; ++v) largest = std::max(largest, row[v]);
        for (int64_t v = 0; v < V; ++v) sum += static_cast<double>(std::exp(row[v] - largest));
        for (int64_t v = 0; v < V; ++v) probabilities[n * V + v] = std::exp(row[v] - largest) / static_cast<float>(sum);
    }
    for (int64_t n = 0; n < N; ++n) losses[n] = -std::log(probabilities[n * V + targets[n]]);
    for (int64_t n = 0; n < N; ++n)
        for (int64_t v = 0; v < V; ++v)
            logits[n * V + v] = scale * (probabilities[n * V + v] - (v == targets[n] ? 1.0f : 0.0f));
}

// 2. In place, row by row: each e^x is computed once and stays where its logit was until it becomes the gradient.
void in_place(float* logits, float* losses, const int32_t* targets, float scale, int64_t N, int64_t V) {
    for (int64_t n = 0; n < N; ++n) {
        float* row = logits + n * V;
        const float target = row[targets[n]];
        float largest = row[0];
        double sum = 0;
        for (int64_t v = 1; v < V; ++v) largest = std::max(largest, row[v]);
        for (int64_t v = 0; v < V; ++v) {
            row[v] = std::exp(row[v] - largest);
            sum += static_cast<double>(row[v]);
        }
        losses[n] = static_cast<float>(std::log(sum)) + largest - target;
        const float factor = scale / static_cast<float>(sum);
        for (int64_t v = 0; v < V; ++v) row[v] *= factor;
        row[targets[n]] -= scale;
    }
}

// 3. Vectors: e^x by a polynomial (dev/gelu explains it), maximum and sum in lanes. A lane sums 1024 / W terms at a
// time: if all terms are nearly equal, the rounding errors of one long sum would all have the same sign.
void row_simd(float* row, float* loss, int32_t target, float scale, int64_t V) {
    using namespace simd;
    const float target_logit = row[target];
    vfloat tops = set1(row[0]), sums{};
    for (int64_t v = 0; v < V; v += W) tops = max(tops, first(load_n(row + v, V - v), V - v, row[0]));
    const float largest = max(tops);
    for (int64_t v = 0; v < V; v += 1024) {
        vfloat part{};
        map(row + v, std::min<int64_t>(1024, V - v), [&](vfloat x, int64_t, int64_t left) {
            const vfloat e = simd::exp(x - largest);
            part += first(e, left);
            return e;
        });
        sums += part;
    }
    const float total = sum(sums), factor = scale / total;
    *loss = std::log(total) + largest - target_logit;
    map(row, V, [=](vfloat e, int64_t, int64_t) { return e * factor; });
    row[target] -= scale;
}
void simd_rows(float* logits, float* losses, const int32_t* targets, float scale, int64_t N, int64_t V) {
    for (int64_t n = 0; n < N; ++n) row_simd(logits + n * V, losses + n, targets[n], scale, V);
}

// 4. Rows are distributed over threads.
void threads(float* logits, float* losses, const int32_t* targets, float scale, int64_t N, int64_t V) {
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; ++n) row_simd(logits + n * V, losses + n, targets[n], scale, V);
}

// The reference's classifier, used on logits: with one channel and an input of 1, weight is the row of logits, and its
// gradient is the row's gradient.
void cross_entropy(Reference<double>& dev, double* logits, double* losses, const int32_t* targets, double scale,
                   int64_t N, int64_t V) {
    const double one = 1;
    double dinp;
    for (int64_t n = 0; n < N; ++n) {
        std::vector<double> gradient(static_cast<size_t>(V));
        classifier_forward_backward(dev, losses + n, &dinp, gradient.data(), &one, logits + n * V, targets + n, 1, 1, V,
                                    scale);
        std::copy(gradient.begin(), gradient.end(), logits + n * V);
    }
}

// 5. The function of layers/classifier_cpu.h for a row of logits in memory. It reads them once: it subtracts the
// largest of the first 960 instead of all, and scales the terms so far only where a later one is larger by 30. The
// classifier leaves the scale to its matmuls, and makes most terms where the logits are made, in the epilogue of their
// matmul.
void cross_entropy(Cpu&, float* logits, float* losses, const int32_t* targets, double scale, int64_t N, int64_t V) {
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; ++n) {
        float* const row = logits + n * V;
        const float factor = static_cast<float>(scale) / classifier::softmax_row(row, V, targets[n], losses + n);
        simd::map(row, V, [=](simd::vfloat e, int64_t, int64_t) { return e * factor; });
        row[targets[n]] -= static_cast<float>(scale);
    }
}

}  // namespace

void climb(Ladder& ladder) {
    const auto shape = ladder.shape<2>();
    const int64_t N = shape[0], V = shape[1];
    const auto& logits = ladder.updated("dlogits", {N, V}, 1, -5, 5);
    const auto& losses = ladder.output("losses", {N});
    const std::vector<int32_t> random = ladder.tokens(N, V);
    const int32_t* const targets = random.data();
    const float scale = 1 / static_cast<float>(N);
    float* const probabilities = ladder.scratch({N, V});
    ladder.pass("loss and gradient", bytes(8 * prod(N, V)), {&logits, &losses}, [&](auto& dev) {
        cross_entropy(dev, logits.on(dev), losses.on(dev), targets, static_cast<double>(scale), N, V);
    });
    ladder.rung("naive", "probabilities in memory of their own, exp of the C library",
                [&] { naive(logits, losses, probabilities, targets, scale, N, V); });
    ladder.rung("in place", "row by row, each e^x once", [&] { in_place(logits, losses, targets, scale, N, V); });
    ladder.rung("simd", "e^x, maximum and sum in vectors", [&] { simd_rows(logits, losses, targets, scale, N, V); });
    ladder.rung("threads", "rows are distributed over the cores",
                [&] { threads(logits, losses, targets, scale, N, V); });
    ladder.production("layers/classifier_cpu.h");
    ladder.run();
}
