// The learning rate of each step.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

// Up to `step`, the number of steps was to be another.
struct Replanned {
    int64_t step, steps;
};

struct Schedule {
    std::string name;  // cosine, linear, constant, wsd
    double lr = 0;     // the peak
    double final_lr_frac = 0;
    int64_t warmup = 0, steps = 0;
    double decay_frac = 1;
    std::vector<Replanned> replanned;  // in the order of their steps

    // The rate of update `step`, 1 … steps: linear warm-up to lr, which lasts, then over the last decay_frac of the
    // steps after the warm-up a decay to lr * final_lr_frac at the last one. That of wsd (warm-up, stable, decay:
    // Hägele et al. 2024) is 1 - sqrt.
    double at(int64_t step) const {
        const double place = place_of(step), peak_at = static_cast<double>(warmup);
        if (place < peak_at) return lr * place / peak_at;
        const double progress = place > peak_at ? (place - peak_at) / (first_plan() - peak_at) : 0.0;
        const double decayed = std::clamp((progress - (1 - decay_frac)) / decay_frac, 0.0, 1.0);
        double weight = 1;  // 1 at the peak, 0 at the end
        if (name == "cosine") weight = 0.5 * (1 + std::cos(std::numbers::pi * decayed));
        if (name == "linear") weight = 1 - decayed;
        if (name == "wsd") weight = 1 - std::sqrt(decayed);
        return lr * (final_lr_frac + (1 - final_lr_frac) * weight);
    }

private:
    double first_plan() const { return static_cast<double>(replanned.empty() ? steps : replanned.front().steps); }

    // The step of the first plan that has the rate of this one. With each other number of steps, what is left of the
    // schedule is spread over the steps that are left.
    double place_of(int64_t step) const {
        double place = 0;
        int64_t done = 0;
        const auto advance = [&](int64_t until, int64_t planned) {
            const int64_t here = std::min(step, until);
            place += (first_plan() - place) * static_cast<double>(here - done) / static_cast<double>(planned - done);
            done = here;
        };
        for (const Replanned& before : replanned) advance(before.step, before.steps);
        advance(step, steps);
        return place;
    }
};

// Reads STEP:STEPS,STEP:STEPS of a run that has so many steps now, or returns nothing where that is not its form, or
// where a number of steps does not lie beyond the step at which it changed, or these do not rise.
inline std::optional<std::vector<Replanned>> parse_replanned(const std::string& text, int64_t steps) {
    std::vector<Replanned> all;
    std::istringstream in(text);
    for (std::string word; std::getline(in, word, ',');) {
        Replanned one{};
        const char* const end = word.data() + word.size();
        const auto [colon, error] = std::from_chars(word.data(), end, one.step);
        if (error != std::errc() || colon == end || *colon != ':') return std::nullopt;
        const auto [rest, error_of_steps] = std::from_chars(colon + 1, end, one.steps);
        if (error_of_steps != std::errc() || rest != end) return std::nullopt;
        if (one.step <= (all.empty() ? 0 : all.back().step) || one.step >= one.steps) return std::nullopt;
        all.push_back(one);
    }
    if (text.ends_with(',') || (!all.empty() && all.back().step >= steps)) return std::nullopt;
    return all;
}
