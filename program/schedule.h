// The learning rate of each step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

struct Schedule {
    std::string name;  // cosine, linear, constant, wsd
    double lr = 0;     // the peak
    double final_lr_frac = 0;
    int64_t warmup = 0, steps = 0;
    double decay_frac = 1;

    // The rate of update `step`, 1 … steps: linear warm-up to lr, which lasts, then over the last decay_frac of the
    // steps after the warm-up a decay to lr * final_lr_frac at the last one. That of wsd (warm-up, stable, decay:
    // Hägele et al. 2024) is 1 - sqrt. Rates before the decay do not depend on `steps`.
    double at(int64_t step) const {
        if (step < warmup) return lr * static_cast<double>(step) / static_cast<double>(warmup);
        const double progress =
            step > warmup ? static_cast<double>(step - warmup) / static_cast<double>(steps - warmup) : 0.0;
        const double decayed = std::max(0.0, (progress - (1 - decay_frac)) / decay_frac);
        double weight = 1;  // 1 at the peak, 0 at the end
        if (name == "cosine") weight = 0.5 * (1 + std::cos(std::numbers::pi * decayed));
        if (name == "linear") weight = 1 - decayed;
        if (name == "wsd") weight = 1 - std::sqrt(decayed);
        return lr * (final_lr_frac + (1 - final_lr_frac) * weight);
    }
    // The first step whose rate is below the peak after the warm-up.
    int64_t decay_begin() const {
        return warmup + 1 + static_cast<int64_t>(std::floor((1 - decay_frac) * static_cast<double>(steps - warmup)));
    }
    // The number of steps nearest to `wanted` that leaves the rates of the `done` steps as they were.
    int64_t steps_after(int64_t done, int64_t wanted) const {
        Schedule other = *this;
        for (other.steps = std::max(wanted, done + 1); other.decay_begin() <= done; ++other.steps) {
        }
        return other.steps;
    }
};
