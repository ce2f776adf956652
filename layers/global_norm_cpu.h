// The sum of squares of a flat buffer on the Cpu.
#pragma once

#include <vector>

#include "layers/global_norm.h"
#include "layers/rows_cpu.h"

// Runs of 4096 are summed in fp32 lanes, the runs in double, in order: the bits do not depend on the number of threads.
inline double global_norm_squared(Cpu& dev, const float* x, int64_t n) {
    const Timed timed(dev, "global_norm", 0, 4 * product(n));
    using namespace simd;
    constexpr int64_t run = 4096;
    const int64_t runs = (n + run - 1) / run;
    std::vector<double> sums(static_cast<size_t>(runs));
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < runs; ++r) {
        vfloat squares[4]{};
        each_vector(std::min(run, n - r * run), [&](int64_t i, int64_t left, int k) {
            const vfloat v = load_n(x + r * run + i, left);
            squares[k] = fma(v, v, squares[k]);
        });
        sums[static_cast<size_t>(r)] = static_cast<double>(sum(squares));
    }
    double total = 0;
    for (const double s : sums) total += s;
    return total;
}
