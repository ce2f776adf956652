// Writing with a model: tokens that continue a prompt, for several samples at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gpt2_model.h"
#include "device/random.h"
#include "io/file/error.h"
#include "program/sampler.h"

// Calls emit(sample, token) for each token of `samples` continuations of the prompt, until each has `count` tokens or
// emit has returned false for it. Sample s draws from the stream of step `step` + s, so its tokens depend neither on
// the samples beside it nor on the number of threads. When the model has no room for another token, the older half is
// forgotten: positions are absolute, so the newer half is appended anew from position 0 on. Throws CheckFailed if the
// logits are not finite.
inline void generate(Model& model, const std::vector<int32_t>& prompt, int64_t samples, int64_t count,
                     const Sampling& sampling, Random random,
                     const std::function<bool(int64_t sample, int32_t token)>& emit) {
    const int64_t V = model.config.vocab, most = model.cache.positions;
    std::vector<std::vector<int32_t>> texts(static_cast<size_t>(samples), prompt);
    std::vector<char> ended(texts.size(), 0);
    std::vector<float> logits(static_cast<size_t>(samples * V));
    // Appends the last n tokens of the first B texts.
    const auto append = [&](int64_t n, int64_t B) {
        std::vector<int32_t> tokens;
        for (int64_t b = 0; b < B; ++b) tokens.insert(tokens.end(), texts[b].end() - n, texts[b].end());
        model.append(logits.data(), tokens.data(), B, n);
    };
    const int64_t step = random.step;
    for (int64_t i = 0; i < count; ++i) {
        if (i == 0) {
            model.restart();
            append(std::min(most, std::ssize(prompt)), 1);
            model.branch(samples);
            for (int64_t b = 1; b < samples; ++b) std::copy_n(logits.begin(), V, logits.begin() + b * V);
        } else if (model.appended() == most) {
            model.restart();
            append(std::max<int64_t>(1, most / 2), samples);
        } else {
            append(1, samples);
        }
        for (int64_t b = 0; b < samples; ++b) {
            const std::span<const float> row(logits.data() + b * V, static_cast<size_t>(V));
            if (!std::ranges::all_of(row, [](float v) { return std::isfinite(v); }))
                throw CheckFailed("the logits of token " + std::to_string(i + 1) +
                                  " are NaN or infinite, although the weights are finite: the forward pass overflows; "
                                  "use another checkpoint");
            random.step = step + b;
            const int32_t token = draw(candidates(row, sampling, texts[b]), random.uniform(static_cast<uint64_t>(i)));
            texts[b].push_back(token);
            if (!ended[b]) ended[b] = !emit(b, token);
        }
        if (std::ranges::all_of(ended, [](char e) { return e != 0; })) return;
    }
}
