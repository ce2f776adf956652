// Which token follows: the rules that choose among a model's logits. They are those of transformers, in its order:
// repetition penalty, temperature, top-k, top-p, min-p.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

struct Sampling {
    double temperature = 0.8;       // 0: always the likeliest token
    int64_t top_k = 0;              // 0: all tokens
    double top_p = 1;               // 1: all
    double min_p = 0;               // 0: all
    double repetition_penalty = 1;  // 1: none
    int64_t ids = 0;                // samples ids below this, the tokenizer's size; 0: all ids of the model
};

// The tokens that may follow, and their probabilities up to a common factor. The ids rise.
struct Candidates {
    std::vector<int32_t> ids;
    std::vector<double> weights;
};

namespace sampler {

// Keeps the candidates of which keep(i) is true.
template <class Keep>
void filter(Candidates& c, const Keep& keep) {
    size_t kept = 0;
    for (size_t i = 0; i < c.ids.size(); ++i) {
        if (!keep(i)) continue;
        c.ids[kept] = c.ids[i], c.weights[kept] = c.weights[i];
        ++kept;
    }
    c.ids.resize(kept), c.weights.resize(kept);
}

// Keeps the k largest weights, and those equal to the smallest of these.
inline void keep_top_k(Candidates& c, int64_t k) {
    if (k <= 0 || k >= std::ssize(c.ids)) return;
    std::vector<double> weights = c.weights;
    std::nth_element(weights.begin(), weights.begin() + (k - 1), weights.end(), std::greater());
    const double smallest = weights[static_cast<size_t>(k - 1)];
    filter(c, [&](size_t i) { return c.weights[i] >= smallest; });
}

// Drops the smallest weights as long as their sum is at most 1 - p of all, but never the last (Holtzman et al. 2020,
// "nucleus sampling"). Of equal weights the larger id is dropped first.
inline void keep_top_p(Candidates& c, double p) {
    if (p >= 1 || c.ids.size() < 2) return;
    double total = 0, dropped = 0;
    for (const double w : c.weights) total += w;
    const double most = (1 - p) * total;
    // All weights below this together are below `most`: they need no sorting.
    const double surely = most / static_cast<double>(c.weights.size());
    std::vector<size_t> order;
    std::vector<char> keep(c.ids.size(), 1);
    for (size_t i = 0; i < c.ids.size(); ++i)
        if (c.weights[i] < surely)
            dropped += c.weights[i], keep[i] = 0;
        else
            order.push_back(i);
    std::ranges::sort(
        order, [&](size_t a, size_t b) { return c.weights[a] != c.weights[b] ? c.weights[a] < c.weights[b] : a > b; });
    for (size_t i = 0; i + 1 < order.size() && (dropped += c.weights[order[i]]) <= most; ++i) keep[order[i]] = 0;
    filter(c, [&](size_t i) { return keep[i] != 0; });
}

}  // namespace sampler

// The candidates after `tokens`, from the model's logits.
inline Candidates candidates(std::span<const float> logits, const Sampling& sampling, std::span<const int32_t> tokens) {
    const int64_t all = std::ssize(logits), V = sampling.ids > 0 ? std::min(sampling.ids, all) : all;
    Candidates c;
    c.weights.assign(logits.begin(), logits.begin() + V);
    c.ids.resize(c.weights.size());
    for (size_t i = 0; i < c.ids.size(); ++i) c.ids[i] = static_cast<int32_t>(i);
    if (sampling.repetition_penalty != 1)  // Keskar et al. 2019, "CTRL", for each token once
        for (const int32_t token : tokens)
            if (const auto id = static_cast<size_t>(token); token < V) {
                const double logit = logits[id], penalty = sampling.repetition_penalty;
                c.weights[id] = logit < 0 ? logit * penalty : logit / penalty;
            }
    const auto likeliest = std::ranges::max_element(c.weights);
    if (sampling.temperature == 0) return {{static_cast<int32_t>(likeliest - c.weights.begin())}, {1}};
    const double largest = *likeliest;
    for (double& w : c.weights) w = std::exp((w - largest) / sampling.temperature);
    sampler::keep_top_k(c, sampling.top_k);
    sampler::keep_top_p(c, sampling.top_p);
    if (sampling.min_p > 0)  // the largest weight is 1
        sampler::filter(c, [&](size_t i) { return c.weights[i] >= sampling.min_p; });
    return c;
}

// Draws one of the candidates by a random number in (0,1).
inline int32_t draw(const Candidates& c, double random) {
    std::vector<double> cumulative(c.weights.size());
    double total = 0;
    for (size_t i = 0; i < cumulative.size(); ++i) cumulative[i] = total += c.weights[i];
    const auto at = std::ranges::upper_bound(cumulative, random * total) - cumulative.begin();
    return c.ids[std::min(static_cast<size_t>(at), c.ids.size() - 1)];
}
