// Reliable timing on a machine whose clock rate and other load vary: everything that is compared (versions, the
// machine's peak) runs in turn, and medians are compared.
#pragma once

#include <time.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <vector>

#include "device/cpu/peak.h"
#include "device/cpu/prefetch.h"

// Seconds per call, over as many calls as take `at_least`. The first call wakes the threads and fills the caches, so it
// counts only if it takes so long that this makes no difference.
inline double seconds_a_call(const std::function<void()>& work, double at_least = 0.02) {
    const double begun = seconds_now();
    work();
    if (const double first = seconds_now() - begun; first >= 10 * at_least) return first;
    int64_t calls = 0;
    double seconds = 0;
    for (const double start = seconds_now(); seconds < at_least; seconds = seconds_now() - start) work(), ++calls;
    return seconds / static_cast<double>(calls);
}

// Returns when this process's threads sleep: after work they spin for a while, and would disturb the next timing. Linux
// may count a thread's time only at its clock's ticks, 4 or 10 ms apart, so it must count none for 16 ms.
inline void rest() {
    const auto cpu_seconds = [] {
        timespec t{};
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    };
    const double give_up = seconds_now() + 0.5;  // OMP_WAIT_POLICY=active: they never sleep
    for (int quiet = 0; quiet < 16 && seconds_now() < give_up;) {
        const double cpu = cpu_seconds(), start = seconds_now();
        usleep(1000);
        quiet = cpu_seconds() - cpu < 0.1 * (seconds_now() - start) ? quiet + 1 : 0;
    }
}

struct Samples {
    std::vector<double> values;

    double median() const { return ::median(values); }
    // The middle half of the values lies within this share of the median.
    double spread() const {
        std::vector<double> sorted = values;
        std::sort(sorted.begin(), sorted.end());
        const size_t n = sorted.size();
        return (sorted[n - 1 - n / 4] - sorted[n / 4]) / median();
    }
};

// Calls each of `measures` in turn, `rounds` times, after one round to warm up, and returns their results. Every second
// round goes from the last to the first, so that none always follows the same other.
inline std::vector<Samples> in_turn(const std::vector<std::function<double()>>& measures, int rounds) {
    std::vector<Samples> samples(measures.size());
    for (int round = -1; round < rounds; ++round)
        for (size_t turn = 0; turn < measures.size(); ++turn) {
            const size_t i = round % 2 == 0 ? turn : measures.size() - 1 - turn;
            const double value = measures[i]();
            if (round >= 0) samples[i].values.push_back(value);
        }
    return samples;
}

// What bounds the work: arithmetic, or memory that is read and written, or memory that is only read.
enum class Unit { flops, bytes, reads };

// Reads 256 MiB on all threads, and returns the bytes/s.
class ReadPeak {
    static constexpr int64_t n = int64_t{64} << 20;

public:
    ReadPeak() {
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; ++i) from_[i] = 1;
    }

    double once() {
        double seconds = 0;
#pragma omp parallel
        {
            double start = 0;
            simd::vfloat sums[4] = {};
#pragma omp barrier  // all threads are awake
#pragma omp master
            start = seconds_now();
#pragma omp for schedule(static)
            for (int64_t i = 0; i < n; i += 4 * simd::W)
                for (int k = 0; k < 4; ++k) {
                    prefetch_ahead(from_.get() + i + k * simd::W, k);
                    sums[k] += simd::load(from_.get() + i + k * simd::W);
                }
#pragma omp master
            seconds = seconds_now() - start;
            for (const simd::vfloat& part : sums) asm volatile("" : : "m"(part));  // the sums are used
        }
        return static_cast<double>(n) * sizeof(float) / seconds;
    }

private:
    const HostBuffer<float> from_ = host_allocate<float>(n);
};

// A function that measures the machine's peak, in turn with the work: FLOP/s of such matmuls, or bytes/s.
inline std::function<double()> peak_of(Unit unit, MatmulKind matmul_kind = MatmulKind::fp32) {
    if (unit == Unit::flops)
        return [matmul_kind] {
            const double peak = measure_peak(matmul_kind, thorough);
            rest();
            return peak;
        };
    if (unit == Unit::reads)
        return [read = std::make_shared<ReadPeak>()] {
            const double peak = read->once();
            rest();
            return peak;
        };
    return [copy = std::make_shared<CopyPeak>()] {
        const double peak = copy->once();
        rest();
        return peak;
    };
}
