// Recipes for --minutes: what gives the lowest loss for so many operations. dev/recipes has the measurements.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

struct Recipe {
    double flops;  // of the whole training, for which this is best
    int64_t layers, channels, context, batch, vocab;
    double lr, muon_lr;
    bool measured;  // false: the recipes before it, extended
    constexpr int64_t heads() const { return channels / 32; }
};

// From one to the next the operations triple, or about. Beyond what was measured, parameters and tokens both grow with
// the root of the operations (Hoffmann et al. 2022), and so does the batch.
inline constexpr std::array recipes = {
    Recipe{7e12, 4, 64, 128, 16, 1024, 0.003, 0.03, true},
    Recipe{2.2e13, 4, 96, 128, 16, 1024, 0.003, 0.03, true},
    Recipe{7e13, 4, 128, 128, 16, 1024, 0.003, 0.03, false},
    Recipe{2.2e14, 4, 160, 256, 8, 2048, 0.003, 0.03, false},
    Recipe{7e14, 6, 192, 256, 16, 2048, 0.003, 0.03, false},
    Recipe{2.2e15, 6, 256, 256, 16, 4096, 0.002, 0.03, false},
    Recipe{7e15, 8, 288, 512, 16, 8192, 0.002, 0.02, false},
    Recipe{2.2e16, 8, 384, 512, 32, 8192, 0.002, 0.02, false},
    Recipe{7e16, 8, 512, 512, 64, 16384, 0.001, 0.02, false},
    Recipe{2.2e17, 12, 512, 1024, 64, 16384, 0.001, 0.02, false},
    Recipe{7e17, 12, 640, 1024, 64, 32768, 0.001, 0.02, false},
    Recipe{2.2e18, 12, 768, 1024, 64, 32768, 0.0006, 0.02, false},
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
    MeasuredText{"Tiny Shakespeare", {{{7.2e12, 1.494}, {2.2e13, 1.449}}}},
    MeasuredText{"State of the Union", {{{7.2e12, 1.338}, {2.2e13, 1.243}}}},
};

// Interpolated over the logarithm of the operations, and extended to three times fewer or more than were measured.
inline std::optional<double> loss_at(const MeasuredText& text, double flops) {
    const auto& runs = text.runs;
    if (flops < runs.front().flops / 3 || flops > runs.back().flops * 3) return std::nullopt;
    size_t above = 1;
    while (above + 1 < runs.size() && runs[above].flops < flops) ++above;
    const auto& [from, to] = std::pair(runs[above - 1], runs[above]);
    const double place = std::log(flops / from.flops) / std::log(to.flops / from.flops);
    return from.loss + place * (to.loss - from.loss);
}
