// The sum of squares of a flat buffer on the Cpu.
#pragma once

#include <numeric>

#include "layers/global_norm.h"
#include "device/cpu/rows.h"

namespace global_norm {

inline int64_t shared_floats(int64_t n) { return 2 * runs(n); }  // a double for each run

}  // namespace global_norm

// sums (runs(n)) = the sum of squares of each run of x (n), in fp32 lanes.
inline void sums_of_squares(Cpu& dev, double* sums, const float* x, int64_t n, const UsedRows& embedding = {}) {
    const Timed timed(dev, "global_norm", 0, 4 * prod(n - (embedding.rows - embedding.count()) * embedding.columns));
    using namespace simd;
    constexpr int64_t run = global_norm::run;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < global_norm::runs(n); ++r) {
        if (!embedding.any(r * run, std::min((r + 1) * run, n))) {
            sums[r] = 0;
            continue;
        }
        vfloat squares[4]{};
        each_vector(std::min(run, n - r * run), [&](int64_t i, int64_t left, int k) {
            const vfloat v = load_n(x + r * run + i, left);
            squares[k] = fma(v, v, squares[k]);
        });
        sums[r] = static_cast<double>(sum(squares));
    }
}

// The sums of the runs are added in double and in order, so the bits do not depend on the number of threads.
inline double global_norm_squared(Cpu& dev, const float* x, int64_t n, const UsedRows& embedding = {}) {
    double* const sums = reinterpret_cast<double*>(dev.shared(global_norm::shared_floats(n)));
    sums_of_squares(dev, sums, x, n, embedding);
    return std::accumulate(sums, sums + global_norm::runs(n), 0.0);
}
