// AdamW on the Cuda device, in fp32.
#pragma once

#include "layers/adamw.h"
#include "device/cuda/common.cuh"
#include "device/update.h"

template <int V>
__global__ void __launch_bounds__(elements_block)
    adamw_kernel(float* __restrict__ param, const float* __restrict__ grad, float* __restrict__ m,
                 float* __restrict__ v, int64_t n, const UpdateParams* __restrict__ params, bool decay,
                 const StepStatus* __restrict__ status) {
    if (!status->apply) return;
    const float grad_scale = static_cast<float>(status->grad_scale);
    const float lr = static_cast<float>(params->lr), eps = static_cast<float>(params->eps);
    const float beta1 = static_cast<float>(params->beta1), beta2 = static_cast<float>(params->beta2);
    const float correction1 = static_cast<float>(params->bias_correction1);
    const float correction2 = static_cast<float>(params->bias_correction2);
    const float shrink = static_cast<float>(1 - params->lr * (decay ? params->weight_decay : 0));
    each_element<V>(n, [&]<int W>(int64_t i) {
        float p[W], g[W], first[W], second[W];
        load_once(p, param + i);
        load_once(g, grad + i);
        load_once(first, m + i);
        load_once(second, v + i);
        UNROLL for (int w = 0; w < W; ++w) {
            const float x = grad_scale * g[w];
            first[w] = beta1 * first[w] + (1 - beta1) * x;
            second[w] = beta2 * second[w] + (1 - beta2) * x * x;
            p[w] = p[w] * shrink - lr * (first[w] / correction1) / (sqrtf(second[w] / correction2) + eps);
        }
        store(param + i, p);
        store(m + i, first);
        store(v + i, second);
    });
}

// For each of n parameters, with gradient g = grad_scale * grad, unless status says to skip the update; params and
// status are in device memory:
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g²
//   param = param (1 - lr weight_decay) - lr * m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps)
inline void adamw_update(Cuda& dev, float* param, const float* grad, float* m, float* v, int64_t n,
                         const UpdateParams* params, bool decay, const StepStatus* status) {
    const Timed timed(dev, "adamw_update", 0, 28 * prod(n));
    launch_elements<float>(
        n,
        [&]<int V>(unsigned blocks) {
            LAUNCH(adamw_kernel<V>, blocks, elements_block, 0, dev.stream, param, grad, m, v, n, params, decay, status);
        },
        param, grad, m, v);
}
