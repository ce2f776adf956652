// Random initial parameters, as GPT-2's.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "gpt2_tensors.h"

// A number in (0,1) that depends on (seed, index) only: splitmix64 (Steele, Lea & Flood 2014).
inline double uniform(uint64_t seed, uint64_t index) {
    uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (static_cast<double>(z >> 11) + 0.5) * 0x1p-53;
}

// N(0, 0.02²), the projections onto the residual path N(0, 0.02² / 2L), biases 0, norms 1 and 0, padding rows of wte 0.
// Each value depends on the seed and its place only, so the bits are the same for any number of threads.
inline void initialize_parameters(const GPT2Config& config, const ParameterTable& table, uint64_t seed,
                                  float* parameters) {
    for (const Parameter& p : table.rows) {
        double std = 0.02;
        if (p.init == Init::residual_projection) std /= std::sqrt(2.0 * static_cast<double>(config.layers));
        const bool random = p.init == Init::normal || p.init == Init::residual_projection;
        const int64_t filled = p.name == "wte" ? config.vocab * config.channels : p.copies * p.piece();
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < p.copies * p.piece(); ++i) {
            double value = p.init == Init::ones ? 1 : 0;
            if (random && i < filled) {  // Box-Muller
                const uint64_t at = 2 * static_cast<uint64_t>(p.offset + i);
                value = std * std::sqrt(-2 * std::log(uniform(seed, at))) *
                        std::cos(2 * std::numbers::pi * uniform(seed, at + 1));
            }
            parameters[p.offset + i] = static_cast<float>(value);
        }
    }
}
