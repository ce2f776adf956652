// Prints the table of --profile.
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <vector>

#include "device/profile.h"

// Prints one row per layer function: its time per step, its share of the step, and its rate compared with the device's
// peak. The rows and "all else" (drawing batches, summing the losses) add up to the time of a step.
inline void print_profile(const Profile& profile, int64_t steps, double step_seconds, double flops_peak,
                          double bytes_peak) {
    if (steps == 0) return;
    using Named = std::pair<std::string, Profile::Totals>;
    std::vector<Named> rows(profile.totals().begin(), profile.totals().end());
    std::sort(rows.begin(), rows.end(),
              [](const Named& a, const Named& b) { return a.second.seconds > b.second.seconds; });
    const double each = 1e3 / static_cast<double>(steps);
    std::printf("profile of %" PRId64 " steps; peak %.0f GFLOP/s, streaming copy %.1f GB/s, measured now\n", steps,
                flops_peak / 1e9, bytes_peak / 1e9);
    double rest = step_seconds;
    for (const auto& [name, row] : rows) {
        const bool flops = row.flops > 0;
        const double rate = (flops ? row.flops : row.bytes) / row.seconds;
        rest -= row.seconds;
        std::printf("%-28s %9.3f ms/step %5.1f %%  %8.1f %s %4.0f %% of peak\n", name.c_str(), row.seconds * each,
                    100 * row.seconds / step_seconds, rate / 1e9, flops ? "GFLOP/s" : "GB/s   ",
                    100 * rate / (flops ? flops_peak : bytes_peak));
    }
    std::printf("%-28s %9.3f ms/step %5.1f %%\n", "all else", rest * each, 100 * rest / step_seconds);
    std::printf("%-28s %9.3f ms/step\n", "step", step_seconds * each);
}
