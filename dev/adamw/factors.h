// What the rungs of AdamW, on a CPU and on a GPU, need besides the tensors.
#pragma once

#include "device/update.h"

namespace adamw_rungs {

const UpdateParams params = at_step({.lr = 1e-3, .weight_decay = 0.1}, 10);
const StepStatus unclipped{.grad_scale = 1, .apply = 1};

struct Factors {
    float beta1 = static_cast<float>(params.beta1), beta2 = static_cast<float>(params.beta2);
    float correction1 = static_cast<float>(params.bias_correction1);
    float correction2 = static_cast<float>(params.bias_correction2);
    float lr = static_cast<float>(params.lr), eps = static_cast<float>(params.eps);
    float decay = static_cast<float>(1 - params.lr * params.weight_decay);
};

}  // namespace adamw_rungs
