// AdamW on the Cuda device, in fp32.
#pragma once

#include "layers/adamw.h"
#include "device/cuda/common.cuh"
#include "device/update.h"

struct alignas(16) AdamWFactors {  // what is the same for all parameters of a call
    float lr, beta1, beta2, eps, keep, correction1, correction2;
};
// step counts from 1.
inline AdamWFactors adamw_factors(const AdamW& o, int64_t step) {
    return {static_cast<float>(o.lr),
            static_cast<float>(o.beta1),
            static_cast<float>(o.beta2),
            static_cast<float>(o.eps),
            static_cast<float>(1 - o.lr * o.weight_decay),
            static_cast<float>(1 - std::pow(o.beta1, step)),
            static_cast<float>(1 - std::pow(o.beta2, step))};
}

template <int V>
__global__ void __launch_bounds__(elements_block)
    adamw_kernel(float* __restrict__ param, const float* __restrict__ grad, float* __restrict__ m,
                 float* __restrict__ v, int64_t n, const AdamWFactors* __restrict__ factors,
                 const StepStatus* __restrict__ status) {
    const AdamWFactors o = *factors;
    if (!status->apply) return;
    const float grad_scale = static_cast<float>(status->grad_scale);
    each_element<V>(n, [&]<int W>(int64_t i) {
        float p[W], g[W], first[W], second[W];
        load_once(p, param + i);
        load_once(g, grad + i);
        load_once(first, m + i);
        load_once(second, v + i);
        UNROLL for (int w = 0; w < W; ++w) {
            const float x = grad_scale * g[w];
            first[w] = o.beta1 * first[w] + (1 - o.beta1) * x;
            second[w] = o.beta2 * second[w] + (1 - o.beta2) * x * x;
            p[w] = p[w] * o.keep - o.lr * (first[w] / o.correction1) / (sqrtf(second[w] / o.correction2) + o.eps);
        }
        store(param + i, p);
        store(m + i, first);
        store(v + i, second);
    });
}

// For each of n parameters, with gradient g = status->grad_scale * grad; nothing where status->apply is 0. factors,
// made of AdamW's settings and step, and status are in device memory:
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g²
//   param = param (1 - lr weight_decay) - lr * m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps)
inline void adamw_update(Cuda& dev, float* param, const float* grad, float* m, float* v, int64_t n,
                         const AdamWFactors* factors, const StepStatus* status) {
    const Timed timed(dev, "adamw_update", 0, 28 * product(n));
    launch_elements<float>(
        n,
        [&]<int V>(unsigned blocks) {
            LAUNCH(adamw_kernel<V>, blocks, elements_block, 0, dev.stream, param, grad, m, v, n, factors, status);
        },
        param, grad, m, v);
}
