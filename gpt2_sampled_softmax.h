// Sampled softmax: in training, a batch's softmax is computed over the tokens that are targets in it and some others,
// instead of all of the vocabulary, which takes most of a small model's step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "device/random.h"

// The tokens that a batch's softmax is computed over, in ascending order.
struct SoftmaxSample {
    std::vector<int32_t> tokens;   // (S)
    std::vector<float> counts;     // (S): for how many tokens of the vocabulary each stands
    std::vector<int32_t> targets;  // (N): where the batch's targets are in `tokens`
};

// Draws a batch's sample. The sum of all tokens' e^logit is estimated by that of a sample in which each term counts
// 1 / (the chance of its token to be in it) times: by importance sampling (Bengio & Senécal 2008, "Adaptive importance
// sampling to accelerate training of a neural probabilistic language model"). A token is in it if it is a target in the
// batch, of which any row's softmax can make use (Yi et al. 2019, "Sampling-bias-corrected neural modeling for large
// corpus item recommendations"), or if it is drawn, each with the same chance: from a random one on, tokens at equal
// distances (Madow & Madow 1944, "On the theory of systematic sampling"). Frequent tokens are in nearly all samples and
// count once; those that never are a target still learn that they are not.
class SoftmaxSampler {
public:
    // shares (V): how often each token occurs in the training data, as a part of all. `drawn` tokens are drawn, or all
    // if there are no more.
    SoftmaxSampler(std::vector<double> shares, int64_t drawn)
        : shares_(std::move(shares)), drawn_(std::min(drawn, std::ssize(shares_))) {}

    // The sample for targets (N), drawn for a batch's place in a run: the same for any number of threads and ranks. It
    // is valid until the next call.
    const SoftmaxSample& draw(const int32_t* targets, int64_t N, const BatchPlace& place) {
        if (N != counted_for_) count_for(N);
        in_sample_.assign(shares_.size(), absent);
        for (int64_t n = 0; n < N; ++n) in_sample_[static_cast<size_t>(targets[n])] = 0;
        const Random random{.seed = place.seed, .purpose = Purpose::softmax_sample, .step = place.step};
        const double start = random.uniform(static_cast<uint64_t>(place.first_sequence));
        for (int64_t i = 0; i < drawn_; ++i) {
            const auto v = static_cast<size_t>((static_cast<double>(i) + start) / chance_drawn());
            in_sample_[std::min(v, in_sample_.size() - 1)] = 0;
        }
        sample_.tokens.clear(), sample_.counts.clear();
        for (size_t v = 0; v < in_sample_.size(); ++v) {
            if (in_sample_[v] == absent) continue;
            in_sample_[v] = static_cast<int32_t>(sample_.tokens.size());
            sample_.tokens.push_back(static_cast<int32_t>(v));
            sample_.counts.push_back(counts_[v]);
        }
        sample_.targets.resize(static_cast<size_t>(N));
        for (size_t n = 0; n < sample_.targets.size(); ++n)
            sample_.targets[n] = in_sample_[static_cast<size_t>(targets[n])];
        return sample_;
    }

    // The mean size of a sample of N targets that were drawn from the training data one by one.
    int64_t expected_tokens(int64_t N) const {
        double sum = 0;
        for (const double share : shares_) sum += chance_of(share, N);
        return std::llround(sum);
    }

private:
    static constexpr int32_t absent = -1;

    double chance_drawn() const { return static_cast<double>(drawn_) / static_cast<double>(shares_.size()); }
    // The chance that a token with this share is drawn, or is the target of another of N rows.
    double chance_of(double share, int64_t N) const {
        return 1 - (1 - chance_drawn()) * std::pow(1 - share, static_cast<double>(N - 1));
    }
    void count_for(int64_t N) {
        counts_.clear();
        for (const double share : shares_) counts_.push_back(static_cast<float>(1 / chance_of(share, N)));
        counted_for_ = N;
    }

    std::vector<double> shares_;
    int64_t drawn_;
    std::vector<float> counts_;  // (V), for batches of counted_for_ targets
    int64_t counted_for_ = 0;
    std::vector<int32_t> in_sample_;  // (V): where the token is in the sample, or `absent`
    SoftmaxSample sample_;
};
