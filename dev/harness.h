// Timing that can be trusted on a machine whose clock and neighbours vary: what is compared (versions, the machine's
// peak) runs in turn, and medians are compared.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "layers/peak_cpu.h"

// Seconds a call, over as many as take `at_least`.
inline double seconds_a_call(const std::function<void()>& work, double at_least = 0.02) {
    int64_t calls = 0;
    double seconds = 0;
    for (const double start = seconds_now(); seconds < at_least; seconds = seconds_now() - start) work(), ++calls;
    return seconds / static_cast<double>(calls);
}

// The median over at least `runs` calls and 0.3 s, after one call to warm up.
inline double median_seconds(const std::function<void()>& work, int runs = 5) {
    work();
    std::vector<double> times;
    for (double total = 0; static_cast<int>(times.size()) < runs || total < 0.3;) {
        const double start = seconds_now();
        work();
        times.push_back(seconds_now() - start);
        total += times.back();
    }
    return median(times);
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

// Calls each of `measures` in turn, `rounds` times, after one round to warm up; what each returned.
inline std::vector<Samples> in_turn(const std::vector<std::function<double()>>& measures, int rounds) {
    std::vector<Samples> samples(measures.size());
    for (int round = -1; round < rounds; ++round)
        for (size_t i = 0; i < measures.size(); ++i) {
            const double value = measures[i]();
            if (round >= 0) samples[i].values.push_back(value);
        }
    return samples;
}

enum class Unit { flops, bytes };  // what bounds the work

// The machine's peak in that unit, to be measured in turn with the work: FLOP/s or bytes/s.
inline std::function<double()> peak_of(Unit unit) {
    if (unit == Unit::flops) return fma_peak_once;
    return [copy = std::make_shared<CopyPeak>()] { return copy->once(); };
}
