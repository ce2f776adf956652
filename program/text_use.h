// How much of a long text a run with --minutes uses: to tokenize what it never comes to takes its time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

constexpr int64_t bytes_alone = 256;          // the vocabulary of a tokenizer that learns nothing
constexpr double training_part = 0.9;         // of a text
constexpr int64_t largest_measured_mb = 100;  // of a text that recipes were compared on

// The tokens of a run, as far as the plan has to know them.
struct TokenKind {
    int64_t vocab;
    bool superwords = false;  // an eighth of them
};
// A token of a learned vocabulary of 2^n is about n/4 bytes long, or n/3 with superwords.
inline double bytes_per_token(const TokenKind& tokens) {
    return tokens.vocab > bytes_alone ? std::log2(static_cast<double>(tokens.vocab)) / (tokens.superwords ? 3 : 4) : 1;
}

// Of the training part of a text, about. Token shards (0 bytes) count as large.
inline double text_tokens(int64_t text_bytes, const TokenKind& kind) {
    return text_bytes == 0 ? std::numeric_limits<double>::infinity()
                           : training_part * static_cast<double>(text_bytes) / bytes_per_token(kind);
}
// Whether a run comes to little text more than twice. Recipes for new text were measured up to 2.1 passes, others from
// 3 on.
inline bool is_new_text(int64_t text_bytes, const TokenKind& kind, double tokens_of_run) {
    return tokens_of_run <= 2.2 * text_tokens(text_bytes, kind);
}
// Whether a run reads a text too often for the many tokens of a sampled softmax. 5.6 passes over State of the Union, by
// the estimate above, gain 0.018 against 8,192 tokens and the softmax of all of them, and 8.8 lose 0.016.
inline bool is_read_too_often(int64_t text_bytes, const TokenKind& kind, double tokens_of_run) {
    return tokens_of_run > 7 * text_tokens(text_bytes, kind);
}

struct RunOnText {
    double seconds, tokens;  // of the run, and that it comes to in this time
    TokenKind kind;
    int64_t threads;
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
    const double tokenized = run.kind.superwords ? 5 : 8;
    constexpr double read = 500, merge = 2e-5, lines = 3;  // seconds for the lines of superwords
    const auto seconds_for = [&](double used) {
        if (run.kind.vocab <= bytes_alone) return 0.0;
        return all / read + used / (tokenized * static_cast<double>(run.threads)) +
               merge * static_cast<double>(run.kind.vocab) + (run.kind.superwords ? lines : 0);
    };
    if (run.given_mb > 0) return {run.given_mb, seconds_for(std::min(static_cast<double>(run.given_mb), all))};
    const double enough = std::ceil(2e-6 * run.tokens * bytes_per_token(run.kind) / training_part);
    const auto mb = std::max(static_cast<int64_t>(enough), largest_measured_mb);
    const double part = seconds_for(static_cast<double>(mb));
    if (seconds_for(all) - part < 0.02 * run.seconds) return {0, seconds_for(all)};
    return {mb, part};
}
