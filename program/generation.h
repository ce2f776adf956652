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

// Continues texts with several samples at once. Sample s draws from the stream of step `step` + s, so its tokens depend
// neither on the samples beside it nor on the number of threads. When the model has no room for more tokens, the older
// half is forgotten: positions are absolute, so the newer half is appended anew from position 0 on.
class Generator {
public:
    // Returns false if this sample ends with the token.
    using Emit = std::function<bool(int64_t sample, int32_t token)>;

    Generator(Model& model, int64_t samples, const Sampling& sampling, Random random)
        : model_(model), sampling_(sampling), random_(random), texts_(static_cast<size_t>(samples)) {
        model.truncate(0);
    }

    // Appends tokens to every sample's text.
    void append(const std::vector<int32_t>& tokens) {
        for (auto& text : texts_) text.insert(text.end(), tokens.begin(), tokens.end());
        pending_ += std::ssize(tokens);
    }

    bool has_text() const { return !texts_[0].empty(); }

    // Calls emit(sample, token) for each new token, until each sample has `count` of them or emit has returned false
    // for it. At least one token was appended before. Throws CheckFailed if the logits are not finite.
    void generate(int64_t count, const Emit& emit) {
        const int64_t V = model_.config.vocab, samples = std::ssize(texts_);
        std::vector<char> ended(texts_.size(), 0);
        std::vector<float> logits(static_cast<size_t>(samples * V));
        for (int64_t i = 0; i < count; ++i, ++drawn_) {
            next_logits(logits.data());
            for (int64_t b = 0; b < samples; ++b) {
                std::vector<int32_t>& text = texts_[static_cast<size_t>(b)];
                const std::span<const float> row(logits.data() + b * V, static_cast<size_t>(V));
                if (!std::ranges::all_of(row, [](float v) { return std::isfinite(v); }))
                    throw CheckFailed("the logits of token " + std::to_string(drawn_ + 1) +
                                      " are NaN or infinite, although the weights are finite: the forward pass "
                                      "overflows; use another checkpoint");
                Random stream = random_;
                stream.step += b;
                const int32_t token =
                    draw(candidates(row, sampling_, text), stream.uniform(static_cast<uint64_t>(drawn_)));
                text.push_back(token);
                if (!ended[static_cast<size_t>(b)]) ended[static_cast<size_t>(b)] = !emit(b, token);
            }
            pending_ = 1;
            if (std::ranges::all_of(ended, [](char e) { return e != 0; })) {
                ++drawn_;
                return;
            }
        }
    }

private:
    // The logits (samples,V) of the tokens that follow the texts.
    void next_logits(float* logits) {
        const int64_t most = model_.cache.positions, samples = std::ssize(texts_), V = model_.config.vocab;
        int64_t count = pending_;
        if (model_.appended() + count > most) {
            model_.truncate(0);
            const int64_t kept = std::max({int64_t{1}, most / 2, std::min(most, count)});
            count = std::min(kept, std::ssize(texts_[0]));
        }
        const int64_t B = drawn_ == 0 ? 1 : samples;  // until the first token is drawn, all texts are equal
        std::vector<int32_t> tokens;
        for (int64_t b = 0; b < B; ++b) {
            const std::vector<int32_t>& text = texts_[static_cast<size_t>(b)];
            tokens.insert(tokens.end(), text.end() - count, text.end());
        }
        model_.append(logits, tokens.data(), B, count);
        if (B == samples) return;
        model_.branch(samples);
        for (int64_t b = 1; b < samples; ++b) std::copy_n(logits, V, logits + b * V);
    }

    Model& model_;
    const Sampling sampling_;
    const Random random_;
    std::vector<std::vector<int32_t>> texts_;
    int64_t pending_ = 0;  // tokens at the end of each text that the model does not have yet
    int64_t drawn_ = 0;    // tokens of each sample
};
