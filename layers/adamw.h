// AdamW (Loshchilov & Hutter 2019), as torch.optim.AdamW: decoupled weight decay, bias-corrected, eps outside the root.
#pragma once

#include <cmath>

#include "device/device.h"
#include "device/update.h"
#include "layers/used_rows.h"

// For each of n parameters, with gradient g = grad_scale * grad, unless status says to skip the update:
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g²
//   param = param (1 - lr weight_decay) - lr * m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps)
// Without `decay` weight_decay counts as 0.
template <class T>
void adamw_update(Reference<T>&, T* param, const T* grad, T* m, T* v, int64_t n, const UpdateParams* params, bool decay,
                  const StepStatus* status) {
    if (!status->apply) return;
    const T beta1 = T(params->beta1), beta2 = T(params->beta2), grad_scale = T(status->grad_scale);
    const T correction1 = T(params->bias_correction1), correction2 = T(params->bias_correction2);
    const T lr = T(params->lr), eps = T(params->eps);
    const T shrink = T(1 - params->lr * (decay ? params->weight_decay : 0));
    for (int64_t i = 0; i < n; ++i) {
        const T g = grad_scale * grad[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        param[i] = param[i] * shrink - lr * (m[i] / correction1) / (std::sqrt(v[i] / correction2) + eps);
    }
}

// The weight decay of sparse_adamw_update() comes in every so many steps, for all of them: it is all that reads and
// writes the values without gradient.
constexpr int64_t sparse_decay_every = 8;

// What the parameters are multiplied with.
inline double sparse_shrink(const UpdateParams& params) {
    const bool due = params.step % sparse_decay_every == 0;
    return due ? std::pow(1 - params.lr * params.weight_decay, sparse_decay_every) : 1;
}

// AdamW for an embedding of which a step uses few rows: as torch.optim.SparseAdam with beta1 = 0, but with weight
// decay and eps as in AdamW. For each of n parameters, with g and correction as above, unless status says to skip the
// update:
//   param = sparse_shrink * param
//   where grad is not 0:  v = beta2 v + (1 - beta2) g²,  param -= lr * g / (sqrt(v / (1 - beta2^step)) + eps)
// v is the mean of the squares in the steps that used a row. AdamW's would fade between them, so that each gradient of
// a rare token would count as much as its first, and its momentum would repeat it for ten steps. If the rows that the
// step used are known, the n are all of the embedding, and what pads it.
template <class T>
void sparse_adamw_update(Reference<T>&, T* param, const T* grad, T* v, int64_t n, const UpdateParams* params,
                         const StepStatus* status, const UsedRows& = {}) {
    if (!status->apply) return;
    const T beta2 = T(params->beta2), correction2 = T(params->bias_correction2);
    const T lr = T(params->lr), eps = T(params->eps), shrink = T(sparse_shrink(*params));
    for (int64_t i = 0; i < n; ++i) {
        param[i] *= shrink;
        if (grad[i] == 0) continue;
        const T g = T(status->grad_scale) * grad[i];
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        param[i] -= lr * g / (std::sqrt(v[i] / correction2) + eps);
    }
}
