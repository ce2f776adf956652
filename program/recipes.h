// Recipes for --minutes: what gives the lowest loss for so many operations. dev/recipes has the measurements.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

// Of a model, and of its batches, whose sequences are as long as the context.
struct Shape {
    int64_t layers, channels, context, batch;
    constexpr int64_t heads() const { return channels / 32; }
    bool operator==(const Shape&) const = default;
};
struct Rates {
    double lr;                           // AdamW's
    std::optional<double> muon_lr = {};  // of the blocks' matrices, which NorMuon updates; empty: --muon-lr's default
};
struct Recipe {
    double flops;  // of the whole training, for which this is best
    Shape shape;
    int64_t vocab;  // with the softmax of all tokens
    Rates rates;
    Rates of_new_text;  // if the text is new to the run, with a sampled softmax
    bool compared;      // with others at so many operations; false: it extends the recipes before it
    Shape with_few_tokens = shape;
    Shape for_new_text = shape;  // in the same case
    // From here on --embedding pairs gains, below it loses, and a sampled softmax saves most of the classifier's time.
    static constexpr int64_t many_tokens = 4096;
    static constexpr int64_t drawn_tokens = 256;  // of it, beside the targets; half or four times as many are no better
    // Bytes of text that teach a token. Tiny Shakespeare, 1 MB, gains nothing from more than 1,024 tokens. With a
    // sampled softmax more tokens take little time: then 3 MB gain from 8,192, but 1.5 MB lose by 4,096 against
    // 2,048. Beyond the most, twice as many gain a third of what the last doubling did, and files double.
    static constexpr int64_t bytes_for_a_token = 640, bytes_for_a_sampled_token = 320;
    static constexpr int64_t least_sampled_tokens = 8192, most_sampled_tokens = 131072;
    // How many tokens a text can teach, a power of two, without a sampled softmax and with it.
    static int64_t tokens_for(int64_t text_bytes) { return power_of_two(text_bytes / bytes_for_a_token); }
    static int64_t sampled_tokens_for(int64_t text_bytes) {
        return std::min(most_sampled_tokens, power_of_two(text_bytes / bytes_for_a_sampled_token));
    }
    static int64_t power_of_two(int64_t most) {
        return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(most)));
    }
    // Another vocabulary than the recipe's is that of a smaller text. With 1,024 tokens a run has fewer operations for
    // the same text, and larger models and longer sequences (128 are as much text as 64 of 8,192) are better.
    constexpr const Shape& shape_for(int64_t vocabulary, bool new_text) const {
        return vocabulary < many_tokens ? with_few_tokens : new_text ? for_new_text : shape;
    }
    // AdamW's rate is best from 8,192 tokens on. The fewer they are, the more often each occurs. With 1,024 higher
    // rates than 0.003 gained nothing, and all runs of more operations had it.
    Rates rates_for(int64_t vocabulary, bool new_text) const {
        const auto [lr, muon_lr] = new_text ? of_new_text : rates;
        const double fraction = static_cast<double>(vocabulary) / 8192;
        return {std::clamp(lr * std::cbrt(fraction * fraction), std::min(lr, 0.003), lr), muon_lr};
    }
};

// From one to the next the operations double to quintuple. Beyond what was compared, parameters and tokens both grow
// with the root of the operations (Hoffmann et al. 2022), and so does the batch.
// clang-format off
inline constexpr std::array recipes = {
    Recipe{7e12, {2, 64, 64, 32}, 8192, {0.012}, {0.008, 0.01}, true, {4, 64, 128, 16}},
    Recipe{2.2e13, {4, 96, 64, 32}, 8192, {0.012}, {0.008, 0.01}, true, {4, 96, 128, 16}, {4, 64, 64, 32}},
    Recipe{4.6e13, {4, 96, 128, 16}, 8192, {0.012}, {0.006, 0.007}, true, {6, 128, 128, 16}},
    Recipe{1.5e14, {4, 160, 128, 16}, 8192, {0.012}, {0.006, 0.007}, true, {6, 192, 128, 16}},
    Recipe{5e14, {6, 192, 256, 16}, 8192, {0.006}, {0.006, 0.007}, false},
    Recipe{1.5e15, {6, 256, 256, 16}, 16384, {0.006}, {0.006, 0.007}, false},
    Recipe{7e15, {8, 288, 512, 16}, 16384, {0.003}, {0.003, 0.007}, false},
    Recipe{2.2e16, {8, 384, 512, 32}, 16384, {0.002}, {0.002, 0.007}, false},
    Recipe{7e16, {8, 512, 512, 64}, 32768, {0.001}, {0.001, 0.007}, false},
    Recipe{2.2e17, {12, 512, 1024, 64}, 32768, {0.001}, {0.001, 0.007}, false},
    Recipe{7e17, {12, 640, 1024, 64}, 32768, {0.001}, {0.001, 0.007}, false},
    Recipe{2.2e18, {12, 768, 1024, 64}, 32768, {0.0006}, {0.0006, 0.007}, false},
};
// clang-format on

// A recipe, and the operations that the machine does in the time of a run.
struct Choice {
    const Recipe* recipe;
    double flops;
};
// The largest recipe for which the machine does enough operations in the time: more than lie half way, on a logarithmic
// scale, between what is best for the recipe before it and for itself. most_flops(recipe) are those that the text is
// good for. flops_in_time(recipe) measures the machine. Small matrices are slow: a larger model may do up to twice as
// many operations, so that it is measured too.
template <class Flops, class Most>
Choice best_recipe(const Flops& flops_in_time, const Most& most_flops) {
    Choice best{recipes.data(), flops_in_time(recipes.front())};
    for (size_t i = 1; i < recipes.size(); ++i) {
        const double enough = std::sqrt(recipes[i - 1].flops * recipes[i].flops);
        if (2 * best.flops < enough || most_flops(recipes[i]) < enough) break;
        const double flops = flops_in_time(recipes[i]);
        if (flops < enough) break;
        best = {&recipes[i], flops};
    }
    return best;
}

// How much a model can memorize of a text: parameters x passes / tokens of the text. Without a sampled softmax it is
// operations / (6 tokens²).
inline double memorization(double parameters, double trained_tokens, double text_tokens) {
    return parameters * trained_tokens / (text_tokens * text_tokens);
}
constexpr double most_memorization =
    150;  // the most that still gained, and that was measured with so much weight decay

// The weight decay for so much memorization: 0.1, the default, is best for 3, 0.2 for 20, where 0.3 gains against 0.1
// too; 0.3 and 0.45 are equal for 42; 0.6 is better than 1.2 for 150.
inline double weight_decay_for(double memorization) { return std::clamp(0.2 * std::sqrt(memorization / 20), 0.1, 0.6); }

// The most operations that a text of so many tokens is good for. A model needs a number of steps, however short the
// text is.
inline double most_flops_for(double text_tokens) {
    return std::max(recipes.front().flops / 2, most_memorization * 6 * text_tokens * text_tokens);
}

struct MeasuredRun {
    double flops, loss;
};
// A text, and the losses that runs on it ended with, in the order of their operations; in nats per byte of the first
// 512 KiB of the text's last tenth. That of State of the Union in 5e14 had weight decay 0.16.
struct MeasuredText {
    const char* name;
    std::span<const MeasuredRun> runs;
};
inline constexpr std::array tiny_shakespeare = {MeasuredRun{7.2e12, 1.496}, MeasuredRun{2.2e13, 1.438},
                                                MeasuredRun{4.6e13, 1.418}, MeasuredRun{1.5e14, 1.399}};
inline constexpr std::array state_of_the_union = {MeasuredRun{7.2e12, 1.079}, MeasuredRun{2.2e13, 1.050},
                                                  MeasuredRun{4.6e13, 1.047}, MeasuredRun{1.5e14, 1.021},
                                                  MeasuredRun{5e14, 1.009}};
inline constexpr std::array enwik8 = {
    MeasuredRun{7.2e12, 1.137}, MeasuredRun{2.2e13, 1.091}, MeasuredRun{4.6e13, 1.054}, MeasuredRun{1.5e14, 1.007},
    MeasuredRun{2.3e14, 0.990}, MeasuredRun{5e14, 0.939},   MeasuredRun{1e15, 0.910}};
inline constexpr std::array measured_texts = {MeasuredText{"Tiny Shakespeare", tiny_shakespeare},
                                              MeasuredText{"State of the Union", state_of_the_union},
                                              MeasuredText{"enwik8", enwik8}};

// Interpolated over the logarithm of the operations. It is extended to three times fewer than were measured, and for up
// to three times more it is that of the most.
inline std::optional<double> loss_at(const MeasuredText& text, double flops) {
    const auto& runs = text.runs;
    if (flops < runs.front().flops / 3 || flops > runs.back().flops * 3) return std::nullopt;
    if (flops > runs.back().flops) return runs.back().loss;
    size_t above = 1;
    while (above + 1 < runs.size() && runs[above].flops < flops) ++above;
    const auto& [from, to] = std::pair(runs[above - 1], runs[above]);
    const double place = std::log(flops / from.flops) / std::log(to.flops / from.flops);
    return from.loss + place * (to.loss - from.loss);
}
