// What was measured to give the lowest loss for so many operations: dev/recipes has the runs.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

struct Recipe {
    double flops;  // of the whole training, for which this is best
    int64_t layers, channels, context, vocab;
    double lr, muon_lr;
    constexpr int64_t heads() const { return channels / 32; }
};

inline constexpr std::array recipes = {
    Recipe{7e12, 2, 128, 128, 1024, 0.003, 0.03},
    Recipe{2e13, 4, 128, 128, 1024, 0.003, 0.03},
};

// The recipe whose operations are nearest on a logarithmic scale.
inline const Recipe& recipe_for(double flops) {
    const Recipe* best = recipes.data();
    for (const Recipe& r : recipes)
        if (std::abs(std::log(r.flops / flops)) < std::abs(std::log(best->flops / flops))) best = &r;
    return *best;
}

// A text, and the lowest losses that runs on it ended with, in the order of their operations; in nats per byte of the
// text's last tenth.
struct MeasuredText {
    const char* name;
    struct Run {
        double flops, loss;
    };
    std::array<Run, 2> runs;
};
inline constexpr std::array measured_texts = {
    MeasuredText{"Tiny Shakespeare", {{{7e12, 1.53}, {2e13, 1.449}}}},
};

// Interpolated over the logarithm of the operations, which runs of at most three times as few or as many extend.
inline std::optional<double> loss_at(const MeasuredText& text, double flops) {
    const auto& runs = text.runs;
    if (flops < runs.front().flops / 3 || flops > runs.back().flops * 3) return std::nullopt;
    size_t above = 1;
    while (above + 1 < runs.size() && runs[above].flops < flops) ++above;
    const auto& [from, to] = std::pair(runs[above - 1], runs[above]);
    const double place = std::log(flops / from.flops) / std::log(to.flops / from.flops);
    return from.loss + place * (to.loss - from.loss);
}
