// Settings of one optimizer step.
#pragma once

#include <optional>

#include "layers/adamw.h"
#include "layers/muon.h"
#include "device/update.h"

struct Optimizer {
    AdamW adamw{};
    std::optional<Muon> muon{};
};

struct StepSettings {
    Optimizer optimizer{};
    StepLimits limits{};
    std::optional<Rounding> rounding{};
    int64_t step = 1;  // counts from 1
};

// The same as the layers take it on a device that is called for each step. One that replays what it once was called for
// has settings_for of its own: there these are pointers to what it reads at each replay (layers/step_settings.cuh).
struct AdamWStep {
    AdamW o;
    int64_t step;
};
struct LayerSettings {
    StepLimits limits;
    Muon muon;
    std::optional<Rounding> rounding;
    AdamWStep with_decay, without_decay;
    const AdamWStep& adamw(bool decay) const { return decay ? with_decay : without_decay; }
};
template <HostDevice Device>
LayerSettings settings_for(Device&, const StepSettings& s) {
    LayerSettings all{s.limits,
                      s.optimizer.muon.value_or(Muon{}),
                      s.rounding,
                      {s.optimizer.adamw, s.step},
                      {s.optimizer.adamw, s.step}};
    all.without_decay.o.weight_decay = 0;
    return all;
}

template <HostDevice Device, class T>
void adamw_update(Device& dev, T* param, const T* grad, T* m, T* v, int64_t n, const AdamWStep& s, T grad_scale) {
    adamw_update(dev, param, grad, m, v, n, s.o, grad_scale, s.step);
}
