// AdamW (Loshchilov & Hutter 2019), as torch.optim.AdamW: decoupled weight decay, bias-corrected, eps outside the root.
#pragma once

#include <cmath>

#include "device/device.h"

struct AdamW {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
};

// For each of n parameters, with gradient g = grad_scale * grad:
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g²
//   param = param (1 - lr weight_decay) - lr * m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps)
// step counts from 1.
template <class T>
void adamw_update(Reference<T>&, T* param, const T* grad, T* m, T* v, int64_t n, const AdamW& o, T grad_scale,
                  int64_t step) {
    const T beta1 = T(o.beta1), beta2 = T(o.beta2);
    const T correction1 = T(1 - std::pow(o.beta1, step)), correction2 = T(1 - std::pow(o.beta2, step));
    for (int64_t i = 0; i < n; ++i) {
        const T g = grad_scale * grad[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        param[i] = param[i] * T(1 - o.lr * o.weight_decay) -
                   T(o.lr) * (m[i] / correction1) / (std::sqrt(v[i] / correction2) + T(o.eps));
    }
}
