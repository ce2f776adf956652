// Shared by the layers that work on rows: loops over a row, streaming stores, and sums over rows whose bits do not
// depend on the number of threads.
#pragma once

#include <algorithm>
#include <cmath>

#include "device/bf16.h"
#include "device/device.h"
#include "device/cpu/prefetch.h"
#include "device/cpu/simd.h"

// Calls f(c, n, k) for each vector of a row of C values. The vector starts at c and has n values (W or more: all
// lanes). k counts from 0 to 3, so that a sum can have four parts, whose additions do not wait for each other.
template <class F>
[[gnu::always_inline]] inline void each_vector(int64_t C, const F& f) {
    int64_t c = 0;
    for (; c + 4 * simd::W <= C; c += 4 * simd::W) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) f(c + k * simd::W, simd::W, k);
    }
    for (; c < C; c += simd::W) f(c, C - c, 0);
}
// The sum of such parts. It is always inlined, as each_vector is: passing the address of the parts to a function would
// keep them in memory.
[[gnu::always_inline]] inline float sum(const simd::vfloat (&parts)[4]) {
    return simd::sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

// Calls f(i) for i = 0 … n - 1 on all threads. Every thread may then read what f wrote by streaming stores.
template <class F>
void parallel_for(int64_t n, const F& f) {
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; ++i) f(i);
        simd::stream_fence();
    }
}

// Runs two passes over each row but reads it from memory once: while a row is finished from the caches, the sums for
// the next row are computed. first(row) returns the sums of a row; finish(row, next, sums) returns those of the next
// row.
template <class First, class Finish>
void each_row_and_next(int64_t N, const First& first, const Finish& finish) {
#pragma omp parallel
    {
        const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num(), end = N * (me + 1) / threads;
        int64_t row = N * me / threads;
        if (row < end) {
            auto sums = first(row);
            for (; row < end; ++row) sums = finish(row, std::min(row + 1, end - 1), sums);
        }
        simd::stream_fence();
    }
}

// Whether the rows of a result start on a vector boundary, as streaming stores require.
template <class S>
bool rows_aligned(const S* out, int64_t C) {
    constexpr int64_t vector = simd::W * static_cast<int64_t>(sizeof(S));
    return reinterpret_cast<uintptr_t>(out) % vector == 0 && C % simd::W == 0;
}
// Whether to write a result by streaming stores: it is so large that it would leave the caches before it is read, and
// loading its lines before overwriting them is wasted. Measured together with the matmul that reads it: 12 MiB written
// this way took 6 % more time, 24 MiB 1 % less; layernorm alone gains 40 % on 24 MiB.
template <class S>
bool should_stream(const S* out, int64_t N, int64_t C) {
    return rows_aligned(out, C) && prod(N, C) * sizeof(S) >= 16 << 20;
}
template <class S>
inline void store_row(S* p, simd::vfloat v, int64_t n, bool streaming) {
    streaming ? simd::stream(p, v) : simd::store_n(p, v, n);
}

// 1 / sqrt(mean of (x - m)² + eps) of a row x(c, n) whose squares overflow.
template <class X>
float rstd_of_huge(const X& x, float m, int64_t C, float eps) {
    constexpr float down = 0x1p-64f;
    simd::vfloat squares{};
    for (int64_t c = 0; c < C; c += simd::W) {
        const simd::vfloat d = simd::first(x(c, C - c) * down - m * down, C - c);
        squares += d * d;
    }
    const double mean = static_cast<double>(simd::sum(squares)) / static_cast<double>(C) * 0x1p128;
    return static_cast<float>(1 / std::sqrt(mean + static_cast<double>(eps)));
}

// sum1 (C) += and sum2 (C) += sums over N rows; either may be null. visit(row, end, s1, s2) is called for each run of
// rows and adds what rows [row, end) contribute to s1 (C) and s2 (C).
// Rows are cut into at most 64 runs, by N alone; the sums of the runs are added in order. A run has at least 32 rows,
// or its sums would cost as much as its rows: with 8 rows, layernorm's backward is a third slower for 256 rows of 768.
// Where N allows 16 runs for the threads, a run has up to 128 rows: its sums cost as much memory traffic as 2 rows.
struct RowRuns {
    int64_t rows, runs, stride;  // rows of a run, runs, and floats from one sum to the next
    RowRuns(int64_t N, int64_t C)
        : rows(std::max({int64_t{32}, std::min<int64_t>(128, N / 16), (N + 63) / 64})),
          runs((N + rows - 1) / rows),
          stride((C + simd::W - 1) / simd::W * simd::W) {}
    int64_t shared_floats() const { return runs * 2 * stride; }
};
template <class S, class Visit>
void sum_over_rows(Cpu& dev, int64_t N, int64_t C, S* sum1, S* sum2, const Visit& visit) {
    using namespace simd;
    const RowRuns cut(N, C);
    const int64_t rows = cut.rows, runs = cut.runs, stride = cut.stride;
    float* const partial = dev.shared(cut.shared_floats());
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t run = 0; run < runs; ++run) {
            float *s1 = partial + run * 2 * stride, *s2 = s1 + stride;
            std::fill(s1, s1 + 2 * stride, 0.0f);
            visit(run * rows, std::min(N, (run + 1) * rows), s1, s2);
        }
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < 2 * stride; i += W) {
            S* const total = i < stride ? sum1 : sum2;
            if (!total) continue;
            vfloat sum{};
            for (int64_t run = 0; run < runs; ++run) sum += load(partial + run * 2 * stride + i);
            const int64_t c = i % stride;
            store_n(total + c, load_n(total + c, C - c) + sum, C - c);
        }
        stream_fence();  // for visit's streaming stores
    }
}
