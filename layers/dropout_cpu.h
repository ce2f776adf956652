// Dropout on the Cpu.
#pragma once

#include "layers/dropout.h"
#include "device/cpu/philox.h"
#include "device/cpu/rows.h"

// The mask of a dropout that is on, as bits.
inline simd::AtLeast mask_of(const Dropout& d) { return {d.random(), d.site, d.threshold}; }

// out (B,T,C) = residual + mask * inp / (1 - p); residual may be null, and out may be inp or residual.
inline void apply_dropout(Cpu& dev, float* out, const float* inp, const float* residual, const Dropout& dropout,
                          int64_t B, int64_t T, int64_t C) {
    const Timed timed(dev, "dropout", 0, (residual ? 12 : 8) * prod(B, T, C));
    const simd::AtLeast mask = mask_of(dropout);
    const auto scale = static_cast<float>(dropout.scale());
    parallel_for(B * T, [=, &mask](int64_t row) {
        const uint64_t first = dropout.first_draw(row, T, C);
        for (int64_t begin = 0; begin < C; begin += 64) {
            const uint64_t kept = mask.bits(first + static_cast<uint64_t>(begin / 8));
            for (int64_t c = begin; c < std::min(C, begin + 64); c += simd::W) {
                const int64_t i = row * C + c, left = C - c;
                const simd::vfloat x = simd::where(kept >> (c - begin), simd::load_n(inp + i, left)) * scale;
                simd::store_n(out + i, residual ? simd::load_n(residual + i, left) + x : x, left);
            }
        }
    });
}
