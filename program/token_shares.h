// How often each token occurs in the training data.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "io/data/dataset.h"

// The tokens' parts (V) of all tokens. The beginning of the data is counted, 64 Mi tokens, whose ids are less than V.
inline std::vector<double> token_shares(const Dataset& dataset, int64_t V) {
    constexpr int64_t most = int64_t{64} << 20;
    std::vector<int64_t> counts(static_cast<size_t>(V));
    int64_t total = 0;
    for (const Shard& shard : dataset.shards) {
        const int64_t n = std::min(shard.size(), most - total);
        shard.part(0, n).with_ids([&](auto ids) {
            for (const auto id : ids) ++counts[id];
        });
        total += n;
    }
    std::vector<double> shares;
    for (const int64_t count : counts) shares.push_back(static_cast<double>(count) / static_cast<double>(total));
    return shares;
}

// Those of words by Zipf's law, which stand for the data before they are tokenized.
inline std::vector<double> zipf_shares(int64_t V) {
    std::vector<double> shares;
    const double total = std::log(static_cast<double>(V) + 1);
    for (int64_t v = 0; v < V; ++v) shares.push_back(std::log1p(1 / static_cast<double>(v + 1)) / total);
    return shares;
}
// The token at place u, 0 <= u < 1, of V tokens with these shares.
inline int64_t zipf_token(double u, int64_t V) {
    return std::min(static_cast<int64_t>(std::pow(static_cast<double>(V) + 1, u)), V) - 1;
}
