// What a training step knows of itself when it comes to its update. It lies where the device's kernels can read and
// write it, so that a GPU decides about an update without the host waiting for it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

struct StepStatus {
    double loss;          // sum over the step's batches of scale * (sum of their losses)
    double squared_norm;  // of all gradients
    double grad_scale;    // what the gradients are multiplied by, to clip them
    int apply;            // 0: the update is left out
};

// An update is applied if loss and norm are at most these: NaN and infinity never are.
struct StepLimits {
    double clip = 0;  // the norm that gradients are scaled down to; 0: never
    double loss = std::numeric_limits<double>::max();
    double norm = std::numeric_limits<double>::max();
};

struct StepResult {
    double loss = 0, grad_norm = 0;
    bool applied = true;
};

inline bool is_finite(const StepResult& r) { return std::isfinite(r.loss) && std::isfinite(r.grad_norm); }

inline StepResult step_result(const StepStatus& s) { return {s.loss, std::sqrt(s.squared_norm), s.apply != 0}; }

// How a device that stores parameters in bf16 rounds them from fp32: by random numbers of their own for each seed, step
// and place.
struct Rounding {
    uint64_t seed;
    int64_t step;  // the last whose update was applied
};
