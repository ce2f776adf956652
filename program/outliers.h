// Finds updates whose loss or gradient norm is far above those before, for --skip-outliers (llm.c's -sl and -sg).
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "device/update.h"

class Outliers {
public:
    static constexpr size_t window = 128;

    // Of the last updates, oldest first; a checkpoint saves them.
    std::vector<double> losses, norms;

    // Limits the next update to mean + z standard deviations of the last 128 losses and norms. No limit before there
    // are 128, or if they are all equal.
    void set_limits(UpdateParams& params, double z) const {
        if (losses.size() < window) return;
        params.max_loss = limit(losses, z, params.max_loss);
        params.max_norm = limit(norms, z, params.max_norm);
    }

    // Skipped updates are added too, so a level that stays high is no longer an outlier after a while.
    void add(double loss, double norm) {
        for (auto& [history, value] : {std::pair(&losses, loss), std::pair(&norms, norm)}) {
            if (history->size() == window) history->erase(history->begin());
            history->push_back(value);
        }
    }

private:
    static double limit(const std::vector<double>& history, double z, double none) {
        double mean = 0, squares = 0;
        for (const double x : history) mean += x / static_cast<double>(window);
        for (const double x : history) squares += (x - mean) * (x - mean);
        const double deviation = std::sqrt(squares / static_cast<double>(window));
        return deviation > 0 ? mean + z * deviation : none;
    }
};
