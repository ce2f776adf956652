// The classifier: logits = inp · weightᵀ for the V tokens (rows V … Vp-1 of weight are padding and are left out), and
// the cross-entropy of their softmax. Logits are computed for a few rows at a time, so that they never fill the memory.
// inp (N,C), weight (Vp,C), targets (N) in 0 … V-1.
//
// Where `counts` (V) is given, the sum of e^logits of each row counts that of token v counts[v] times, but that of the
// row's own target once: the sampled softmax, whose V tokens stand for a larger vocabulary (gpt2_sampled_softmax.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "device/device.h"

// logits (N,V) = inp (N,C) · weightᵀ
template <class T>
void classifier_logits(Reference<T>&, T* logits, const T* inp, const T* weight, int64_t N, int64_t C, int64_t V) {
    for (int64_t n = 0; n < N; ++n)
        for (int64_t v = 0; v < V; ++v) {
            T sum = 0;
            for (int64_t c = 0; c < C; ++c) sum += inp[n * C + c] * weight[v * C + c];
            logits[n * V + v] = sum;
        }
}

// How often token v counts in the sum of a row with this target.
inline float count_of(const float* counts, int64_t v, int32_t target) {
    return counts == nullptr || v == target ? 1.0f : counts[v];
}

// losses (N) = log(sum of e^logits) - logits[target]
template <class T>
void classifier_forward(Reference<T>& dev, T* losses, const T* inp, const T* weight, const int32_t* targets, int64_t N,
                        int64_t C, int64_t V, const float* counts = nullptr) {
    std::vector<T> logits(static_cast<size_t>(V));
    for (int64_t n = 0; n < N; ++n) {
        classifier_logits(dev, logits.data(), inp + n * C, weight, 1, C, V);
        T largest = logits[0], sum = 0;
        for (const T logit : logits) largest = std::max(largest, logit);
        for (int64_t v = 0; v < V; ++v)
            sum += count_of(counts, v, targets[n]) * std::exp(logits[static_cast<size_t>(v)] - largest);
        losses[n] = largest + std::log(sum) - logits[static_cast<size_t>(targets[n])];
    }
}

// forward: losses = log(sum of e^logits) - logits[target]
// dlogits = scale * (softmax(logits) - onehot(target)): the gradient of scale * (sum of losses)
// dinp (N,C) = dlogits · weight        dweight (V rows of Vp,C) += dlogitsᵀ · inp, = unless accumulate
template <class T>
void classifier_forward_backward(Reference<T>& dev, T* losses, T* dinp, T* dweight, const T* inp, const T* weight,
                                 const int32_t* targets, int64_t N, int64_t C, int64_t V, T scale,
                                 bool accumulate = true, const float* counts = nullptr) {
    if (!accumulate) std::fill_n(dweight, V * C, T(0));
    classifier_forward(dev, losses, inp, weight, targets, N, C, V, counts);
    std::vector<T> logits(static_cast<size_t>(V));
    for (int64_t n = 0; n < N; ++n) {
        const T* const x = inp + n * C;
        classifier_logits(dev, logits.data(), x, weight, 1, C, V);
        const T log_sum = losses[n] + logits[static_cast<size_t>(targets[n])];
        for (int64_t c = 0; c < C; ++c) dinp[n * C + c] = 0;
        for (int64_t v = 0; v < V; ++v) {
            const T probability = count_of(counts, v, targets[n]) * std::exp(logits[static_cast<size_t>(v)] - log_sum);
            const T dlogit = scale * (probability - (v == targets[n] ? 1 : 0));
            for (int64_t c = 0; c < C; ++c) {
                dinp[n * C + c] += dlogit * weight[v * C + c];
                dweight[v * C + c] += dlogit * x[c];
            }
        }
    }
}
