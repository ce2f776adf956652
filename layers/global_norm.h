// The sum of squares of a flat buffer, for clipping by the global norm (Pascanu, Mikolov & Bengio 2013).
#pragma once

#include "layers/device.h"

template <class T>
double global_norm_squared(Reference<T>&, const T* x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return sum;
}

// What to multiply gradients by so that their norm is at most max_norm, as torch.nn.utils.clip_grad_norm_; 1 for
// max_norm 0. NaN or infinity in the norm reaches every gradient, so that it shows.
inline double clip_scale(double norm, double max_norm) {
    if (max_norm <= 0) return 1;
    const double scale = max_norm / (norm + 1e-6);
    return scale > 1 ? 1 : scale;
}
