// The sum of squares of a flat buffer on the Cpu.
#pragma once

#include <vector>

#include "layers/global_norm.h"
#include "layers/simd.h"

// Runs of 4096 are summed in fp32 lanes, the runs in double, in order: the bits do not depend on the number of threads.
inline double global_norm_squared(Cpu& dev, const float* x, int64_t n) {
    const Timed timed(dev, "global_norm", 0, 4 * product(n));
    using namespace simd;
    constexpr int64_t run = 4096;
    const int64_t runs = (n + run - 1) / run;
    std::vector<double> sums(static_cast<size_t>(runs));
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < runs; ++r) {
        const int64_t end = std::min(n, (r + 1) * run);
        vfloat squares[4] = {};
        for (int64_t i = r * run; i < end; i += 4 * W)
            for (int j = 0; j < 4; ++j) {
                const int64_t left = std::max<int64_t>(0, end - i - j * W);
                const vfloat v = load_n(x + i + j * W, left);
                squares[j] = fma(v, v, squares[j]);
            }
        sums[static_cast<size_t>(r)] = static_cast<double>(sum((squares[0] + squares[1]) + (squares[2] + squares[3])));
    }
    double total = 0;
    for (const double s : sums) total += s;
    return total;
}
