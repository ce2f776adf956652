// Times a piece of work, and prints it as a row: time, GFLOP/s or GB/s, share of the machine's measured peak.
#pragma once

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "layers/peak_cpu.h"

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
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
}

enum class Unit { flops, bytes };  // what bounds the work

class Table {
public:
    Table() : flops_(measure_fma_peak(20)), bandwidth_(measure_copy_bandwidth()) {
        std::printf("%d threads, FMA peak %.0f GFLOP/s, streaming copy %.1f GB/s (both measured now)\n\n",
                    omp_get_max_threads(), flops_ / 1e9, bandwidth_ / 1e9);
        std::printf("%-38s %12s %16s %7s\n", "work", "time", "rate", "of peak");
    }

    void row(const std::string& name, Unit unit, double amount, const std::function<void()>& work, int runs = 5) {
        const double seconds = median_seconds(work, runs), rate = amount / seconds;
        const double share = rate / (unit == Unit::flops ? flops_ : bandwidth_);
        std::printf("%-38s %9.3f ms %9.1f %s %5.0f %%\n", name.c_str(), seconds * 1e3, rate / 1e9,
                    unit == Unit::flops ? "GFLOP/s" : "GB/s   ", 100 * share);
        std::fflush(stdout);
        char line[160];
        std::snprintf(line, sizeof line, "\"%s\",%.6g,%.6g,%s,%.4f\n", name.c_str(), seconds, rate / 1e9,
                      unit == Unit::flops ? "GFLOP/s" : "GB/s", share);
        csv_ += line;
    }

    void write_csv(const std::string& path) const {
        std::ofstream(path) << "work,seconds,rate,unit,share of peak\n" << csv_;
    }

private:
    double flops_, bandwidth_;
    std::string csv_;
};
