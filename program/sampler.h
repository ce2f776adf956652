// Sampling tokens from a model's logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "gpt2_model.h"
#include "device/random.h"
#include "io/file/error.h"

struct Sampling {
    double temperature = 0.8;  // 0: always the likeliest token
    int64_t top_k = 0;         // 0: all tokens
    int64_t ids = 0;           // samples ids below this, the tokenizer's size; 0: all ids of the model
};

// Draws one token from softmax(logits / temperature) over the top_k likeliest of the allowed ids, by a random number in
// (0,1); ties go to the smaller id.
inline int32_t sample_token(const std::vector<float>& logits, const Sampling& sampling, double random) {
    const auto likelier = [&](int32_t a, int32_t b) {
        const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
    };
    const int64_t all = static_cast<int64_t>(logits.size()), V = sampling.ids > 0 ? std::min(sampling.ids, all) : all;
    std::vector<int32_t> ids(static_cast<size_t>(V));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    if (sampling.temperature == 0) return *std::min_element(ids.begin(), ids.end(), likelier);
    if (sampling.top_k > 0 && sampling.top_k < V) {
        std::nth_element(ids.begin(), ids.begin() + sampling.top_k, ids.end(), likelier);
        ids.resize(static_cast<size_t>(sampling.top_k));
    }
    const double largest = logits[static_cast<size_t>(*std::min_element(ids.begin(), ids.end(), likelier))];
    std::vector<double> cumulative(ids.size());
    double total = 0;
    for (size_t i = 0; i < ids.size(); ++i)
        cumulative[i] = total += std::exp((logits[static_cast<size_t>(ids[i])] - largest) / sampling.temperature);
    const size_t at = static_cast<size_t>(std::upper_bound(cumulative.begin(), cumulative.end(), random * total) -
                                          cumulative.begin());
    return ids[std::min(at, ids.size() - 1)];
}

// Appends `count` tokens to `tokens`, each sampled from the model given those before; `emit` is called with each. If
// the model has no room for more, it forgets the older half: its positions are absolute, so the newer half is computed
// again at the positions from 0 on. Throws CheckFailed if the logits are not finite.
inline void generate(Model& model, std::vector<int32_t> tokens, int64_t count, const Sampling& sampling,
                     const Random& random, const std::function<void(int32_t)>& emit) {
    std::vector<float> logits(static_cast<size_t>(model.config.vocab));
    const int64_t most = model.cache.positions;
    model.restart();
    for (int64_t i = 0; i < count; ++i) {
        int64_t unread = model.appended() > 0 ? 1 : std::min(most, std::ssize(tokens));
        if (model.appended() == most) {
            model.restart();
            unread = std::max<int64_t>(1, most / 2);
        }
        model.append(logits.data(), tokens.data() + std::ssize(tokens) - unread, 1, unread);
        if (!std::all_of(logits.begin(), logits.end(), [](float v) { return std::isfinite(v); }))
            throw CheckFailed("the logits of token " + std::to_string(i + 1) +
                              " are NaN or infinite, although the weights are finite: the forward pass overflows; use "
                              "another checkpoint");
        tokens.push_back(sample_token(logits, sampling, random.uniform(static_cast<uint64_t>(i))));
        emit(tokens.back());
    }
}
