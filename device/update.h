// The update that ends a training step: its parameters and its status. Both lie in the device's memory, so that a GPU
// decides whether to apply an update without the host waiting for it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

// What updates the matrices of the blocks. AdamW updates all other parameters.
enum class Optimizer { adamw, muon, normuon };

// Everything that an update depends on besides the gradients, computed on the host. A recorded graph launches its
// kernels with the same arguments each time: on a GPU this block is at a fixed address, and each step copies new values
// into it.
struct UpdateParams {
    // AdamW's, but weight_decay is for all parameters that decay.
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
    Optimizer optimizer = Optimizer::adamw;
    double muon_lr = 0.02, momentum = 0.95, normuon_beta2 = 0.95;
    // Gradient clipping: the maximum norm; 0: off.
    double clip = 0;
    // The update is applied if loss and gradient norm are at most these. NaN and infinity never are.
    double max_loss = std::numeric_limits<double>::max(), max_norm = std::numeric_limits<double>::max();
    // Parameters in bf16 are rounded with random numbers that depend on this seed, the step and the parameter's index.
    uint64_t rounding_seed = 0;
    // at_step() sets these.
    int64_t step = 0;
    double bias_correction1 = std::numeric_limits<double>::quiet_NaN();  // 1 - beta1^step
    double bias_correction2 = std::numeric_limits<double>::quiet_NaN();  // 1 - beta2^step
};

// The params of one step, which counts from 1.
inline UpdateParams at_step(UpdateParams params, int64_t step) {
    params.step = step;
    params.bias_correction1 = 1 - std::pow(params.beta1, step);
    params.bias_correction2 = 1 - std::pow(params.beta2, step);
    return params;
}

// What the device finds out during the step.
struct StepStatus {
    double loss = 0;          // sum over the step's batches of scale * (sum of their losses)
    double squared_norm = 0;  // of all gradients
    double grad_scale = 0;    // the factor that clips the gradients
    int apply = 0;            // 0: the update is skipped
};

struct StepResult {
    double loss = 0, grad_norm = 0;
    bool applied = true;
};

inline bool is_finite(const StepResult& r) { return std::isfinite(r.loss) && std::isfinite(r.grad_norm); }

inline StepResult step_result(const StepStatus& s) { return {s.loss, std::sqrt(s.squared_norm), s.apply != 0}; }
