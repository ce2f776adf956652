// How much of a long text a run with --minutes uses: to tokenize what it never comes to takes its time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

constexpr int64_t bytes_alone = 256;          // the vocabulary of a tokenizer that learns nothing
constexpr double training_part = 0.9;         // of a text
constexpr int64_t largest_measured_mb = 100;  // of a text that recipes were compared on

// A token of a learned vocabulary of 2^n is about n/4 bytes long.
inline double bytes_per_token(int64_t vocab) {
    return vocab > bytes_alone ? std::log2(static_cast<double>(vocab)) / 4 : 1;
}

struct RunOnText {
    double seconds, tokens;  // of the run, and that it comes to in this time
    int64_t vocab, threads;
    int64_t given_mb = 0;  // by --text-mb; 0: not given
};
struct TextUse {
    int64_t mb;      // 0: all
    double seconds;  // until it is tokenized
};

// Used is twice what the run comes to, as steps may become faster, and at least as much as the largest text that was
// measured: of 48 MB of enwik8, tokenizer and first embeddings are worse than those of all 100 MB, and a run that came
// to 25 MB ended 0.015 nats per byte higher. All is used if that takes less than a fiftieth of the time longer.
// Token shards have 0 bytes.
inline TextUse use_of_text(const RunOnText& run, int64_t all_bytes) {
    if (all_bytes == 0) return {0, 0};
    const double all = static_cast<double>(all_bytes) / 1e6;  // MB
    // Of a slow machine: MB per second, of one thread where all work, and seconds for a merge.
    constexpr double tokenized = 8, read = 500, merge = 2e-5;
    const auto seconds_for = [&](double used) {
        if (run.vocab <= bytes_alone) return 0.0;
        return all / read + used / (tokenized * static_cast<double>(run.threads)) +
               merge * static_cast<double>(run.vocab);
    };
    if (run.given_mb > 0) return {run.given_mb, seconds_for(std::min(static_cast<double>(run.given_mb), all))};
    const double enough = std::ceil(2e-6 * run.tokens * bytes_per_token(run.vocab) / training_part);
    const auto mb = std::max(static_cast<int64_t>(enough), largest_measured_mb);
    const double part = seconds_for(static_cast<double>(mb));
    if (seconds_for(all) - part < 0.02 * run.seconds) return {0, seconds_for(all)};
    return {mb, part};
}
