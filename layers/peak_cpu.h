// What this machine can do at best, measured: the ceilings that speeds are given as a share of. Clocks and neighbours
// vary: a share means something only if its peak was measured beside it, in turn with the work (dev/harness.h).
#pragma once

#include <algorithm>
#include <vector>

#include "layers/device.h"
#include "layers/multiply_cpu.h"
#include "layers/simd.h"

inline double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// Fused multiply-adds on registers alone, on all threads, for some 5 ms; FLOP/s, two for each lane of a multiply-add.
// z = z² + c stays within [-2, 2] and never settles for c around -1.85: bits toggle as they do in real work.
inline double fma_peak_once() {
#if defined(__AVX512F__) || defined(__ARM_NEON)
    constexpr int chains = 24;  // more than latency times units; of 32 registers
#else
    constexpr int chains = 12;  // of 16
#endif
    constexpr int64_t rounds = 4'000'000 / chains;
    double flops = 0;
    const double start = seconds_now();
#pragma omp parallel reduction(+ : flops)
    {
        simd::vfloat z[chains], c[3];
        for (int i = 0; i < 3; ++i) c[i] = simd::set1(-1.80f - 0.05f * static_cast<float>(i));
        for (int i = 0; i < chains; ++i)
            for (int lane = 0; lane < simd::W; ++lane) z[i][lane] = static_cast<float>(i * simd::W + lane) / 512;
        for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
            for (int i = 0; i < chains; ++i) z[i] = simd::fma(z[i], z[i], c[i % 3]);
        }
        simd::vfloat total{};
        for (const auto& v : z) total += v;
        flops = simd::sum(total) < 1e9f ? 2.0 * simd::W * chains * rounds : 0;  // the sum keeps the loop alive
    }
    return flops / (seconds_now() - start);
}

inline double peak_once(gemm::Floats) { return fma_peak_once(); }

// The same for products of other kinds, of factors that stay in L1: F makes them and returns its multiplications on the
// calling thread, in FLOP.
template <class F>
double peak_of_threads(const F& multiply) {
    double flops = 0;
    const double start = seconds_now();
#pragma omp parallel reduction(+ : flops)
    flops = multiply();
    return flops / (seconds_now() - start);
}
#if defined(__AVX512BF16__)
inline double peak_once(gemm::Bf16Pairs) {
    return peak_of_threads([] {
        using namespace gemm;
        constexpr int64_t K = 128, rounds = 10'000;
        alignas(64) float a[K * MR] = {}, b[K * NR] = {}, c[MR * NR] = {};
        const Tile multiply = tile<Order::k_first, NV, Bf16Pairs>(MR);
        for (int64_t r = 0; r < rounds; ++r) {
            multiply(K, a, MR, b, c, NR, Store::add, NR, {});
            asm volatile("" ::: "memory");  // or all rounds would be one
        }
        return c[0] == 0 ? 4.0 * MR * NR * K * rounds : 0;
    });
}
#endif
#if defined(__AMX_BF16__)
template <int planes>
double peak_once(amx::Planes<planes>) {
    return peak_of_threads([] {
        using namespace amx;
        constexpr int64_t steps = 2, rounds = 10'000 / planes, words = 2 * planes * steps * words_of_tile;
        alignas(64) uint32_t a[words] = {}, b[words] = {};
        alignas(64) float c[side * side] = {};
        configure();
        for (int64_t r = 0; r < rounds; ++r) multiply_block<planes>(steps, a, b, c, side, true, side, side, [] {});
        return c[0] == 0 ? 2.0 * side * side * side * steps * rounds : 0;
    });
}
#endif

// Copying 256 MiB with streaming stores on all threads; bytes/s read and written.
class CopyPeak {
public:
    CopyPeak() {  // touches the pages: what was never written is read from one page of zeros, out of the cache
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; ++i) from_[i] = 1;
        once();
    }

    double once() {
        const double start = seconds_now();
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i += simd::W) simd::stream(to_.get() + i, simd::load(from_.get() + i));
        return 2.0 * static_cast<double>(n) * sizeof(float) / (seconds_now() - start);
    }

private:
    static constexpr int64_t n = int64_t{32} << 20;
    const HostBuffer<float> from_ = host_allocate<float>(n), to_ = host_allocate<float>(n);
};

// The median of `tries`.
inline double measure_fma_peak(int tries = 9) {
    std::vector<double> rates;
    for (int i = 0; i < tries; ++i) rates.push_back(fma_peak_once());
    return median(rates);
}
// What matrix products of this kind can reach at best.
inline double measure_peak(Products products) {
    constexpr int64_t large = 1024;
    return gemm::for_kind(gemm::chosen(products, large, large), [](auto kind) {
        std::vector<double> rates;
        for (int i = 0; i < 9; ++i) rates.push_back(peak_once(kind));
        return median(rates);
    });
}
inline double measure_copy_bandwidth(int tries = 5) {
    CopyPeak copy;
    std::vector<double> rates;
    for (int i = 0; i < tries; ++i) rates.push_back(copy.once());
    return median(rates);
}
