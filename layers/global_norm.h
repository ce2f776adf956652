// The sum of squares of a flat buffer, for clipping by the global norm (Pascanu, Mikolov & Bengio 2013).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "device/device.h"
#include "device/update.h"
#include "layers/used_rows.h"

namespace global_norm {

// The squares are summed in runs of this many values, each by one rank. The sums of the runs are added in one order.
constexpr int64_t run = 4096;
constexpr int64_t runs(int64_t n) { return (n + run - 1) / run; }

}  // namespace global_norm

template <class T>
double global_norm_squared(Reference<T>&, const T* x, int64_t n, const UsedRows& = {}) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return sum;
}

// The factor that brings gradients of this norm to a norm of at most max_norm, as torch.nn.utils.clip_grad_norm_ does.
// It is 1 if max_norm is 0, and NaN if the norm is NaN or infinite.
inline double clip_scale(double norm, double max_norm) {
    if (!std::isfinite(norm)) return std::numeric_limits<double>::quiet_NaN();
    if (max_norm <= 0) return 1;
    return std::min(1.0, max_norm / (norm + 1e-6));
}

// s->loss += scale * sum of losses (n)
template <HostDevice Device, class T>
void add_loss(Device& dev, StepStatus* s, const T* losses, int64_t n, double scale) {
    s->loss += scale * sum(dev, losses, n);
}

// Computes s->grad_scale and apply from s->squared_norm, s->loss and the limits in params.
inline void decide_by_norm(StepStatus* s, const UpdateParams* params) {
    const double norm = std::sqrt(s->squared_norm);
    s->grad_scale = clip_scale(norm, params->clip);
    s->apply = s->loss <= params->max_loss && norm <= params->max_norm;
}

// The same from the sums of squares of all runs.
template <HostDevice Device>
void decide_by_sums(Device&, StepStatus* s, const double* sums, int64_t runs, const UpdateParams* params) {
    s->squared_norm = std::accumulate(sums, sums + runs, 0.0);
    decide_by_norm(s, params);
}

// Computes s->squared_norm, grad_scale and apply from all gradients (n), s->loss and the limits in params. The
// gradients may begin with those of an embedding whose used rows are known.
template <HostDevice Device, class T>
void decide(Device& dev, StepStatus* s, const T* gradients, int64_t n, const UpdateParams* params,
            const UsedRows& embedding = {}) {
    s->squared_norm = global_norm_squared(dev, gradients, n, embedding);
    decide_by_norm(s, params);
}
