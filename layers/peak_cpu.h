// What this machine can do at best, measured: the ceilings that speeds are given as a share of.
#pragma once

#include <algorithm>
#include <chrono>

#include "layers/device.h"
#include "layers/simd.h"

inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Fused multiply-adds on registers alone, on all threads; FLOP/s (two for each lane), the best of `tries` times 5 ms.
inline double measure_fma_peak(int tries = 8) {
    constexpr int chains = 16;  // more than latency times units
    constexpr int64_t rounds = 250'000;
    double best = 0;
    for (int i = 0; i < tries; ++i) {
        double flops = 0;
        const double start = seconds_now();
#pragma omp parallel reduction(+ : flops)
        {
            simd::vfloat x[chains];
            for (auto& v : x) v = simd::set1(1.0f);
            const simd::vfloat factor = simd::set1(0.999f), term = simd::set1(0.001f);
            for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
                for (int c = 0; c < chains; ++c) x[c] = simd::fma(x[c], factor, term);
            }
            simd::vfloat total{};
            for (auto& v : x) total += v;
            flops = simd::sum(total) > 0 ? 2.0 * simd::W * chains * rounds : 0;  // the sum keeps the loop alive
        }
        best = std::max(best, flops / (seconds_now() - start));
    }
    return best;
}

// Copying 256 MiB with streaming stores on all threads; bytes/s read and written, the best of `tries`.
inline double measure_copy_bandwidth(int tries = 5) {
    constexpr int64_t n = int64_t{32} << 20;
    const HostBuffer<float> from = host_allocate<float>(n), to = host_allocate<float>(n);
    double best = 0;
    for (int i = 0; i < tries + 1; ++i) {  // the first touches the pages
        const double start = seconds_now();
#pragma omp parallel for schedule(static)
        for (int64_t j = 0; j < n; j += simd::W) simd::stream(to.get() + j, simd::load(from.get() + j));
        best = std::max(best, 2.0 * static_cast<double>(n) * sizeof(float) / (seconds_now() - start));
    }
    return best;
}
