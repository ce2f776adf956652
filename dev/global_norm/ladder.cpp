// The ladder of the global norm: the sum of the squares of all gradients. One multiply-add for 4 bytes read: nothing
// could be simpler, and still the plain loop leaves most of the memory's bandwidth unused.
#include "dev/ladder.h"
#include "layers/global_norm_cpu.h"

const Kernel kernel{"global_norm", "the sum of squares of a flat buffer", {{"N", 33554432, "values"}}};

namespace {

// 1. In double, as a sum of millions of floats needs. One chain of additions: each waits 4 cycles for the one before.
double naive(const float* x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return sum;
}

// 2. Eight chains side by side: while one waits, the others go on. The compiler puts them into vectors.
double accumulators(const float* x, int64_t n) {
    double sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; ++j) sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
    for (; i < n; ++i) sums[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
}

// 3. Float lanes hold twice as many values as double ones and need no conversion. A run of 4096 puts at most 4096 / W
// / 4 terms into one lane, so the rounding stays small; the runs' sums are added in double.
constexpr int64_t run = 4096;
double run_sum(const float* x, int64_t n) {
    using namespace simd;
    vfloat sums[4] = {};
    for (int64_t i = 0; i < n; i += 4 * W)
        for (int j = 0; j < 4; ++j) {
            const vfloat v = load_n(x + i + j * W, std::max<int64_t>(0, n - i - j * W));
            sums[j] = fma(v, v, sums[j]);
        }
    return static_cast<double>(sum((sums[0] + sums[1]) + (sums[2] + sums[3])));
}
double simd_runs(const float* x, int64_t n) {
    double total = 0;
    for (int64_t i = 0; i < n; i += run) total += run_sum(x + i, std::min(run, n - i));
    return total;
}

// 4. Runs are shared out. `reduction(+)` would add the threads' sums, other bits for each number of threads; each run's
// sum gets a place instead, and the places are added in order.
double threads(const float* x, int64_t n) {
    std::vector<double> sums(static_cast<size_t>((n + run - 1) / run));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += run) sums[static_cast<size_t>(i / run)] = run_sum(x + i, std::min(run, n - i));
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
}

}  // namespace

void climb(Ladder& ladder) {
    const auto shape = ladder.shape<1>();
    const int64_t N = shape[0];
    const auto &x = ladder.input({N}), &sum = ladder.output("sum", {1});
    const auto rung = [&](const char* name, const char* adds, double (*norm_squared)(const float*, int64_t)) {
        ladder.rung(name, adds, [&, norm_squared] { sum[0] = static_cast<float>(norm_squared(x, N)); });
    };
    ladder.pass("sum of squares", bytes(4 * prod(N)), {&sum}, [&](auto& dev) {
        using T = typename std::remove_reference_t<decltype(dev)>::scalar;
        sum.on(dev)[0] = static_cast<T>(global_norm_squared(dev, x.on(dev), N));
    });
    rung("naive", "one chain of additions in double", naive);
    rung("accumulators", "eight chains side by side", accumulators);
    rung("simd", "runs of 4096 in float lanes, the runs in double", simd_runs);
    rung("threads", "runs are shared out, their sums added in order", threads);
    ladder.production("layers/global_norm_cpu.h");
    ladder.run();
}
