// AdamW on the Cpu: one pass over the four buffers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "layers/adamw.h"
#include "device/cpu/simd.h"

// m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g²,  g = grad_scale * grad
// param = param (1 - lr weight_decay) - lr * m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps)
inline void adamw_update(Cpu& dev, float* param, const float* grad, float* m, float* v, int64_t n,
                         const UpdateParams* params, bool decay, const StepStatus* status) {
    if (!status->apply) return;
    const Timed timed(dev, "adamw_update", 0, 28.0 * prod(n));
    using namespace simd;
    const float grad_scale = static_cast<float>(status->grad_scale);
    const float beta1 = static_cast<float>(params->beta1), beta2 = static_cast<float>(params->beta2);
    const float rest1 = static_cast<float>(1 - params->beta1), rest2 = static_cast<float>(1 - params->beta2);
    const float shrink = static_cast<float>(1 - params->lr * (decay ? params->weight_decay : 0));
    const float rate = static_cast<float>(params->lr / params->bias_correction1);
    const float unbias = static_cast<float>(1 / params->bias_correction2), eps = static_cast<float>(params->eps);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += W) {
        const int64_t left = n - i;
        const vfloat g = load_n(grad + i, left) * grad_scale;
        const vfloat mean = fma(set1(rest1), g, beta1 * load_n(m + i, left));
        const vfloat square = fma(rest2 * g, g, beta2 * load_n(v + i, left));
        store_n(m + i, mean, left);
        store_n(v + i, square, left);
        const vfloat step_size = rate * mean / (simd::sqrt(square * unbias) + eps);
        store_n(param + i, fma(load_n(param + i, left), set1(shrink), -step_size), left);
    }
}

// As for the Reference. Where all gradients of a run are 0, v is not even read; nor are these, if it is a row that is
// known to be unused.
inline void sparse_adamw_update(Cpu& dev, float* param, const float* grad, float* v, int64_t n,
                                const UpdateParams* params, const StepStatus* status, const UsedRows& rows = {}) {
    if (!status->apply) return;
    const float shrink = static_cast<float>(sparse_shrink(*params));
    const double profiled = rows.known() ? 20 * prod(rows.count(), rows.columns) : 4 * prod(n);
    const Timed timed(dev, "sparse_adamw_update", 0, profiled + (shrink == 1 ? 0 : 8) * prod(n));
    using namespace simd;
    const float grad_scale = static_cast<float>(status->grad_scale);
    const float beta2 = static_cast<float>(params->beta2), rest2 = static_cast<float>(1 - params->beta2);
    const float rate = static_cast<float>(params->lr), eps = static_cast<float>(params->eps);
    const float unbias = static_cast<float>(1 / params->bias_correction2);
    const int64_t run = rows.known() ? rows.columns : 64, runs = rows.known() ? rows.rows : (n + run - 1) / run;
    const auto is_zero = [=](int64_t begin, int64_t end) {
        uint32_t any = 0;
        for (int64_t i = begin; i < end; ++i) any |= std::bit_cast<uint32_t>(grad[i]);
        return any == 0;
    };
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < runs; ++r) {
        const int64_t begin = r * run, end = std::min(begin + run, n);
        if (rows.known() ? rows.used[r] == 0 : is_zero(begin, end)) {
            for (int64_t i = begin; shrink != 1 && i < end; ++i) param[i] *= shrink;
            continue;
        }
        for (int64_t i = begin; i < end; i += W) {
            const int64_t left = end - i;
            const vfloat given = load_n(grad + i, left), g = given * grad_scale, old = load_n(v + i, left);
            const vfloat square = given == 0.0f ? old : fma(rest2 * g, g, beta2 * old);
            store_n(v + i, square, left);
            const vfloat step_size = rate * g / (simd::sqrt(square * unbias) + eps);
            store_n(param + i, fma(load_n(param + i, left), set1(shrink), -step_size), left);
        }
    }
}
