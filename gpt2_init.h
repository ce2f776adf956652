// Random initial parameters, as GPT-2's.
#pragma once

#include <cmath>
#include <cstdint>

#include "gpt2_tensors.h"
#include "device/random.h"

// N(0, 0.02²), the projections onto the residual path N(0, 0.02² / 2L), biases 0, norms 1 and 0, padding rows of wte 0.
// Each value depends on the seed and its place only, so the bits are the same for any number of threads.
inline void initialize_parameters(const GPT2Config& config, const ParameterTable& table, uint64_t seed,
                                  float* parameters) {
    const Random random{seed, Purpose::parameters};
    for (const Parameter& p : table.rows) {
        double std = 0.02;
        if (p.init == Init::residual_projection) std /= std::sqrt(2.0 * static_cast<double>(config.layers));
        const bool is_random = p.init == Init::normal || p.init == Init::residual_projection;
        const int64_t filled = p.name == "wte" ? config.vocab * config.channels : p.copies * p.piece();
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < p.copies * p.piece(); ++i) {
            double value = p.init == Init::ones ? 1 : 0;
            if (is_random && i < filled) value = std * random.normal(static_cast<uint64_t>(p.offset + i));
            parameters[p.offset + i] = static_cast<float>(value);
        }
    }
}
