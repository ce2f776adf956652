// How a step scales with threads: measured on one thread and on all, and estimated for more cores.
#include <algorithm>
#include <cmath>

#include "dev/bench_steps.h"

namespace {

struct Regions {
    double seconds = 0;
    int64_t count = 0;
} regions;  // the parallel regions that have run since they were last cleared

}  // namespace

// Every parallel region starts with a call of GOMP_parallel, which the linker (--wrap) replaces by
// __wrap_GOMP_parallel.
extern "C" void __real_GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
extern "C" void __wrap_GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
    const double began = seconds_now();
    __real_GOMP_parallel(body, data, threads, flags);
    regions.seconds += seconds_now() - began;
    ++regions.count;
}

namespace {

// The time of an empty parallel region.
double empty_region() {
    return seconds_a_call([] {
#pragma omp parallel
        asm volatile("");
    });
}

// The parts of a step, in seconds.
struct Parts {
    double one, all;  // on one thread, on all
    double serial;    // outside of parallel regions, on all threads
    double memory;    // in memory-bound layers, on one thread
    double regions;   // the number of parallel regions
    double empty;     // the time of an empty one, on all threads
    int threads;

    double speedup() const { return one / all; }
    // Amdahl (1967): 1 / speedup = serial + (1 - serial) / threads, solved for the serial share.
    double amdahl() const { return (threads / speedup() - 1) / (threads - 1); }
    // The estimated time on `cores`: serial work is unchanged; the cost of regions grows with the depth of a tree;
    // arithmetic is divided by the cores, and the memory-bound part by the increase in bandwidth over one thread.
    double on(double cores, double more_bandwidth) const {
        return serial + regions * empty * std::log2(cores) / std::log2(threads) + (one - serial - memory) / cores +
               memory / more_bandwidth;
    }
};

// Returns a function that calls `measure` on n threads.
std::function<double()> on(int n, const std::function<double()>& measure) {
    return [n, measure] {
        omp_set_num_threads(n);
        empty_region();  // starts the threads
        return measure();
    };
}

void thread_row(BenchTable& table, std::FILE* csv, const Step& s) {
    const std::string name = "threads " + s.name;
    table.group(name, {""}, [&] {
        const int threads = omp_get_max_threads();
        Training training(s, usual);
        Profile profile;  // of the steps on one thread
        training.model.set_profile(&profile);
        std::vector<double> serial;
        int64_t steps = 0;
        const auto step = [&] {
            regions = {};
            const double start = seconds_now();
            training.step();
            return seconds_now() - start;
        };
        const auto profiled = [&] {
            profile.start(), ++steps;
            const double seconds = step();
            profile.stop();
            return seconds;
        };
        int64_t count = 0;  // of a step's parallel regions
        const auto watched = [&] {
            const double seconds = step();
            serial.push_back(seconds - regions.seconds);
            count = regions.count;
            return seconds;
        };
        const auto peak_once = [] { return fma_peak(thorough); };
        const std::vector<Samples> samples = in_turn({on(1, profiled), on(1, peak_once), on(threads, peak_once),
                                                      on(threads, empty_region), on(threads, watched)},
                                                     std::min(s.rounds, 5));
        double memory = 0;
        for (const auto& [layer, row] : profile.totals())
            if (row.flops <= 0) memory += row.seconds / static_cast<double>(steps);
        const Parts p{.one = samples[0].median(),
                      .all = samples[4].median(),
                      .serial = median(serial),
                      .memory = memory,
                      .regions = static_cast<double>(count),
                      .empty = samples[3].median(),
                      .threads = threads};
        CopyPeak copy;
        const auto one_copy = [&] { return copy.once(); };
        const std::vector<Samples> bandwidth = in_turn({on(1, one_copy), on(threads, one_copy)}, 5);
        const double more = bandwidth[1].median() / bandwidth[0].median();
        const double peak = samples[2].median() / samples[1].median();

        std::printf("%-38s %9.1f ms %9.1f ms %6.2f (peak %4.2f) %7.2f %% %8.1f %% %8.0f", name.c_str(), 1e3 * p.one,
                    1e3 * p.all, p.speedup(), peak, 100 * p.serial / p.one, 100 * p.amdahl(), p.regions);
        for (const int cores : {8, 32, 128})
            std::printf("  %5.1f to %5.1f", p.one / p.on(cores, more), p.one / p.on(cores, more * cores / threads));
        std::printf("\n");
        if (!csv) return;
        std::fprintf(csv, "\"%s\",%.6g,%.6g,%.3f,%.3f,%.3f,%.5f,%.5f,%.0f,%.4g,%.4f,%.3f", s.name.c_str(), p.one, p.all,
                     p.speedup(), samples[4].spread(), peak, p.serial / p.one, p.amdahl(), p.regions, p.empty,
                     p.memory / p.one, more);
        for (const int cores : {8, 32, 128})
            std::fprintf(csv, ",%.2f,%.2f", p.one / p.on(cores, more), p.one / p.on(cores, more * cores / threads));
        std::fprintf(csv, "\n");
    });
}

constexpr const char* legend = R"(
From 1 thread to all: the speed-up, and that of the FMA peak; the time outside of parallel regions as a share of the
step on 1 thread; the serial share that Amdahl's law makes of the speed-up, uneven loads and waiting included; parallel
regions a step; and the speed-up reckoned for more cores, from the parts measured here:
    T(P) = serial + regions * empty region * log2(P) / log2(threads) + arithmetic / P + memory / more bandwidth
with bandwidth as it is on all threads, to bandwidth that grows with the cores. Uneven loads are left out.

)";

}  // namespace

void thread_rows(BenchTable& table, std::FILE* csv) {
    if (omp_get_max_threads() == 1) return;
    const std::vector<Step> all = {steps::short_124M, steps::nanogpt_gpu, steps::nanogpt_cpu, steps::tiny};
    const auto wanted = [&](const Step& s) { return table.wanted("threads " + s.name); };
    if (std::any_of(all.begin(), all.end(), wanted))
        std::printf("%s%-38s %12s %12s %18s %9s %10s %8s %15s %15s %15s\n", legend, "", "1 thread", "all", "speed-up",
                    "serial", "Amdahl", "regions", "8 cores", "32 cores", "128 cores");
    if (csv)
        std::fputs(
            "step,seconds on 1 thread,seconds on all,speed-up,spread,speed-up of the FMA peak,serial share,"
            "Amdahl's serial share,parallel regions,seconds of an empty region,memory-bound share,"
            "bandwidth of all threads / of 1,on 8 cores from,on 8 cores to,on 32 cores from,on 32 cores to,"
            "on 128 cores from,on 128 cores to\n",
            csv);
    for (const Step& s : all) thread_row(table, csv, s);
}
