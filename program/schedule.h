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

    // The rate of update `step`, 1 … steps: linear warm-up to lr, then decay to lr * final_lr_frac at the last step,
    // unless the warm-up lasts until then. wsd (warm-up, stable, decay: Hägele et al. 2024) stays at lr until the last
    // fifth and decays as 1 - sqrt.
    double at(int64_t step) const {
        if (step < warmup) return lr * static_cast<double>(step) / static_cast<double>(warmup);
        const double progress =
            step > warmup ? static_cast<double>(step - warmup) / static_cast<double>(steps - warmup) : 0.0;
        double weight = 1;  // 1 at the peak, 0 at the end
        if (name == "cosine") weight = 0.5 * (1 + std::cos(std::numbers::pi * progress));
        if (name == "linear") weight = 1 - progress;
        if (name == "wsd" && progress > 0.8) weight = 1 - std::sqrt((progress - 0.8) / 0.2);
        return lr * (final_lr_frac + (1 - final_lr_frac) * weight);
    }
};
