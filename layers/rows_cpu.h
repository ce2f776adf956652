// Sums over rows whose bits do not depend on the number of threads.
#pragma once

#include <algorithm>

#include "layers/device.h"
#include "layers/simd.h"

// Calls visit(row, s1, s2) for every row; it adds the row's share to s1 (C) and s2 (C). Then sum1 (C) += the s1, sum2
// (C) += the s2 of all rows; either may be null. Rows are cut into at most 64 runs by N alone, each with its own s1 and
// s2; the runs' sums are added in order.
template <class Visit>
void sum_over_rows(Cpu& dev, int64_t N, int64_t C, float* sum1, float* sum2, const Visit& visit) {
    const int64_t rows = std::max<int64_t>(8, (N + 63) / 64), runs = (N + rows - 1) / rows;
    float* const partial = dev.shared(runs * 2 * C);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t run = 0; run < runs; ++run) {
            float *s1 = partial + run * 2 * C, *s2 = s1 + C;
            std::fill(s1, s1 + 2 * C, 0.0f);
            for (int64_t row = run * rows; row < std::min(N, (run + 1) * rows); ++row) visit(row, s1, s2);
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < 2 * C; ++c) {
            float* const total = c < C ? sum1 : sum2;
            if (!total) continue;
            float sum = 0;
            for (int64_t run = 0; run < runs; ++run) sum += partial[run * 2 * C + c];
            total[c % C] += sum;
        }
    }
}
