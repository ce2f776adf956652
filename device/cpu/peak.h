// The measured peak of this machine; speeds are given as a share of it. Clock rates and the load of other tenants vary,
// so a share is meaningful only if the peak is measured in turn with the work (dev/harness.h).
#pragma once

#include <algorithm>
#include <vector>

#include "device/device.h"
#include "device/cpu/gemm/matmul.h"
#include "device/cpu/simd.h"

inline double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// How a peak is measured: the best of `tries`, each of which lasts for some `seconds`.
struct Effort {
    double seconds;
    int tries;
};
constexpr Effort quick{0.005, 3};     // when a run starts
constexpr Effort thorough{0.020, 3};  // in turn with the layers that make bench times

// FLOP/s of all threads together. Each thread calls `work`, which returns the FLOP it has done, for a while before the
// clock starts, so that threads are awake and their cores run at the clock rate for such work. A loop of less than a
// millisecond that began with sleeping threads gave as little as 60 % of the peak.
template <class F>
double rate_of_threads(const F& work, Effort effort) {
    double best = 0, flops = 0, start = 0;
    int64_t calls = 1;
#pragma omp parallel
    {
        int64_t warm_calls = 0;
        const double warm_seconds = effort.seconds / 2, woken = seconds_now();
        for (; seconds_now() - woken < warm_seconds; ++warm_calls) work();
#pragma omp master
        calls =
            std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(warm_calls) * effort.seconds / warm_seconds));
        for (int i = 0; i < effort.tries; ++i) {
#pragma omp barrier
#pragma omp master
            start = seconds_now();
#pragma omp barrier
            double own = 0;
            for (int64_t call = 0; call < calls; ++call) own += work();
#pragma omp atomic
            flops += own;
#pragma omp barrier
#pragma omp master
            best = std::max(best, flops / (seconds_now() - start)), flops = 0;
        }
    }
    return best;
}

// FMAs on registers alone; two FLOP per lane. z = z² + c stays within [-2, 2] and never settles for c around -1.85, so
// bits toggle as in real work.
inline double fma_work() {
#if defined(__AVX512F__) || defined(__ARM_NEON)
    constexpr int chains = 24;  // more than latency times units; of 32 registers
#else
    constexpr int chains = 12;  // of 16
#endif
    constexpr int64_t rounds = 240'000 / chains;
    float first = 0;
    asm volatile("" : "+m"(first));  // unknown to the compiler, which would otherwise remove all calls but the first
    simd::vfloat z[chains], c[3];
    for (int i = 0; i < 3; ++i) c[i] = simd::set1(-1.80f - 0.05f * static_cast<float>(i));
    for (int i = 0; i < chains; ++i)
        for (int lane = 0; lane < simd::W; ++lane) z[i][lane] = first + static_cast<float>(i * simd::W + lane) / 512;
    for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
        for (int i = 0; i < chains; ++i) z[i] = simd::fma(z[i], z[i], c[i % 3]);
    }
    simd::vfloat total{};
    for (const auto& v : z) total += v;
    return simd::sum(total) < 1e9f ? 2.0 * simd::W * chains * rounds : 0;  // uses the sum
}
inline double fma_peak(Effort effort) { return rate_of_threads(fma_work, effort); }

inline double peak_of_kind(gemm::Floats, Effort effort) { return fma_peak(effort); }

// The peaks of the other kinds of matmul, with operands that stay in L1.
#if defined(__AVX512BF16__)
inline double peak_of_kind(gemm::Bf16Pairs, Effort effort) {
    using namespace gemm;
    return rate_of_threads(
        [] {
            constexpr int64_t K = 128, rounds = 200;
            alignas(64) float a[K * MR] = {}, b[K * NR] = {}, c[MR * NR] = {};
            const TileKernel compute = tile_kernel<Order::k_first, NV, Bf16Pairs>(MR);
            for (int64_t r = 0; r < rounds; ++r) {
                // Otherwise the compiler would compute with the zeros itself, or merge the rounds.
                asm volatile("" ::"r"(a), "r"(b), "r"(c) : "memory");
                compute(K, a, MR, b, c, NR, Store::add, NR, {});
            }
            return c[0] == 0 ? 4.0 * MR * NR * K * rounds : 0;
        },
        effort);
}
#endif
#if defined(__AMX_BF16__)
template <int planes>
double peak_of_kind(amx::Planes<planes>, Effort effort) {
    using namespace amx;
    return rate_of_threads(
        [] {
            // Long enough that loading and storing the sums does not count. Bits toggle as in real work: with zeros AMX
            // is half as fast again.
            constexpr int64_t steps = 8, rounds = 160 / planes, words = 2 * planes * steps * words_of_tile;
            alignas(64) static thread_local uint32_t a[words], b[words];
            alignas(64) static thread_local float c[block_side * block_side];
            const auto of_size_one = [](uint32_t bits) { return (bits & 0x807f807f) | 0x3f003f00; };
            if (a[0] == 0)
                for (uint32_t i = 0; i < words; ++i)
                    a[i] = of_size_one(i * 2654435761u), b[i] = of_size_one(i * 2246822519u);
            configure();
            std::fill_n(c, block_side * block_side, 0.0f);
            for (int64_t r = 0; r < rounds; ++r)
                multiply_block<planes>(steps, a, b, c, block_side, true, block_side, block_side, [] {});
            return c[0] < 1e9f ? 2.0 * block_side * block_side * block_side * steps * rounds : 0;  // uses the sums
        },
        effort);
}
#endif

// Copies 256 MiB with streaming stores on all threads, and returns the bytes/s read and written.
class CopyPeak {
    static constexpr int64_t n = int64_t{32} << 20;

public:
    static constexpr int64_t bytes = 2 * host_bytes<float>(n);

    CopyPeak() {  // touches the pages, as memory never written is one page of zeros, read from the cache
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; ++i) from_[i] = 1;
        once();
    }

    double once() {
        double seconds = 0;
#pragma omp parallel
        {
            double start = 0;
#pragma omp barrier  // all threads are awake
#pragma omp master
            start = seconds_now();
#pragma omp for schedule(static)
            for (int64_t i = 0; i < n; i += simd::W) simd::stream(to_.get() + i, simd::load(from_.get() + i));
#pragma omp master
            seconds = seconds_now() - start;
        }
        return 2.0 * static_cast<double>(n) * sizeof(float) / seconds;
    }

private:
    const HostBuffer<float> from_ = host_allocate<float>(n), to_ = host_allocate<float>(n);
};

// The peak for matmuls of this kind.
inline double measure_peak(MatmulKind matmul_kind, Effort effort) {
    constexpr int64_t large = 1024;
    return gemm::for_kind(gemm::chosen(matmul_kind, large, large),
                          [&](auto kind) { return peak_of_kind(kind, effort); });
}
inline double measure_copy_bandwidth(int tries = 5) {
    CopyPeak copy;
    std::vector<double> rates;
    for (int i = 0; i < tries; ++i) rates.push_back(copy.once());
    return median(rates);
}
