// Chooses the number of threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "device/platform.h"
#include "device/parallel/ranks.h"
#include "program/control_group.h"

// The control group's CPU quota if it decides the number of threads, otherwise infinity. --threads and OMP_NUM_THREADS
// have priority, and so has a smaller number of cores, of the machine or of the process's affinity (taskset).
inline double deciding_quota(int64_t threads_option, const char* omp_num_threads, int processors, double quota) {
    const bool decides = threads_option == 0 && !omp_num_threads && quota < processors;
    return decides ? quota : std::numeric_limits<double>::infinity();
}
inline double deciding_quota(int64_t threads_option) {
    return deciding_quota(threads_option, std::getenv("OMP_NUM_THREADS"), omp_get_num_procs(),
                          control_group_processors());
}

inline int threads_for(double quota) { return static_cast<int>(std::ceil(quota)); }

// Sets the number of threads: --threads or, if it is 0, the number of cores, or fewer if the CPU quota is smaller.
inline void choose_threads(int64_t threads_option) {
    const double quota = deciding_quota(threads_option);
    if (threads_option > 0) omp_set_num_threads(static_cast<int>(threads_option));
    if (std::isfinite(quota)) omp_set_num_threads(threads_for(quota));
}

// Ranks that may use the same cores share them, unless --threads or OMP_NUM_THREADS decides.
inline void share_cores(Ranks& ranks, int64_t threads_option) {
    if (ranks.count() == 1 || threads_option > 0 || std::getenv("OMP_NUM_THREADS")) return;
    const std::string mine =
        ranks.hosts()[static_cast<size_t>(ranks.rank())] + ": " + platform::cores_of_this_process();
    const auto sharing = static_cast<int>(std::ranges::count(all_gather(ranks, mine), mine));
    omp_set_num_threads(std::max(1, omp_get_max_threads() / sharing));
}

// "2 threads", "1 thread (CPU quota 0.5)"
inline std::string threads_text(int threads, double quota) {
    char of_quota[64] = "";
    if (std::isfinite(quota)) std::snprintf(of_quota, sizeof of_quota, " (CPU quota %.3g)", quota);
    return std::to_string(threads) + (threads == 1 ? " thread" : " threads") + of_quota;
}
inline std::string threads_text(int64_t threads_option) {
    return threads_text(omp_get_max_threads(), deciding_quota(threads_option));
}
