// Matmuls of few rows by a weight matrix, such as a token's activations by weights: C (M,N) = A (M,K) · Bᵀ, B (N,K).
// Reading B takes the time, so B is neither packed nor read twice, and its rows are read in groups, each of which is
// one piece of memory. The sum of an element runs over K in an order that depends on K only: a row has the same bits
// whichever rows are beside it.
#pragma once

#include "device/cpu/gemm/gemm.h"
#include "device/cpu/prefetch.h"
#include "device/cpu/simd.h"
#include "device/cpu/weight_rows.h"

namespace gemm {

// c (MS,RS) = the dot products of MS rows of a and RS rows of b, of K values. At each vector of K, LINES cache lines
// are prefetched, from `ahead` on.
template <int MS, int RS, int LINES, class Element>
[[gnu::always_inline]] inline void dot_products(int64_t K, const float* a, int64_t lda, const WeightRows<Element>& b,
                                                float* c, int64_t ldc, const float* ahead) {
    constexpr int64_t line = cache_line / 4;
    vfloat sums[MS][RS] = {};
    int64_t k = 0;
    for (; k + W <= K; k += W) {
        vfloat weights[RS];
#pragma GCC unroll 8
        for (int i = 0; i < LINES; ++i) prefetch_line(ahead + i * line);
        ahead += LINES * line;
#pragma GCC unroll 8
        for (int r = 0; r < RS; ++r) weights[r] = simd::load(b.row(r) + k);
#pragma GCC unroll 4
        for (int m = 0; m < MS; ++m) {
            const vfloat x = simd::load(a + m * lda + k);
#pragma GCC unroll 8
            for (int r = 0; r < RS; ++r) sums[m][r] = simd::fma(x, weights[r], sums[m][r]);
        }
    }
    if (k < K)
        for (int m = 0; m < MS; ++m)
            for (int r = 0; r < RS; ++r)
                sums[m][r] =
                    simd::fma(simd::load_n(a + m * lda + k, K - k), simd::load_n(b.row(r) + k, K - k), sums[m][r]);
    for (int m = 0; m < MS; ++m)
        for (int r = 0; r < RS; ++r) c[m * ldc + r] = b.scale(r) * simd::sum(sums[m][r]);
}

// c (M,RS): four rows of a at a time. The next RS rows of b are prefetched beside the first rows of a: by two halves if
// there are more than four.
template <int RS, class Element>
void dot_columns(int64_t M, int64_t K, const float* a, int64_t lda, const WeightRows<Element>& b, float* c,
                 int64_t ldc) {
    constexpr int bytes = RS * W * sizeof(Element), lines = (bytes + cache_line - 1) / cache_line;
    constexpr int half = (lines + 1) / 2;
    const float* const ahead = b.from(RS).first;
    const int64_t halfway = half * (K / W) * (cache_line / 4);
    switch (M) {
        case 1:
            return dot_products<1, RS, lines>(K, a, lda, b, c, ldc, ahead);
        case 2:
            return dot_products<2, RS, lines>(K, a, lda, b, c, ldc, ahead);
        case 3:
            return dot_products<3, RS, lines>(K, a, lda, b, c, ldc, ahead);
        case 4:
            return dot_products<4, RS, lines>(K, a, lda, b, c, ldc, ahead);
    }
    dot_products<4, RS, half>(K, a, lda, b, c, ldc, ahead);
    int64_t m = 4;
    for (; m + 4 <= M; m += 4) dot_products<4, RS, half>(K, a + m * lda, lda, b, c + m * ldc, ldc, ahead + halfway);
    for (; m < M; ++m) dot_products<1, RS, half>(K, a + m * lda, lda, b, c + m * ldc, ldc, ahead + halfway);
}

// C's rectangle [0, M) x [columns), then its epilogue, on the calling thread.
template <class Element>
void few_rows_block(int64_t M, Range columns, int64_t K, const float* a, int64_t lda, const WeightRows<Element>& b,
                    float* c, int64_t ldc, EpilogueRef epilogue) {
    // Rows of b at a time: their sums, with those of one or of four rows of a, fill the registers.
    constexpr int with_one = 8, with_four = W == 16 || max_rows(1) == 8 ? 6 : 3;
    constexpr int64_t at_once = 48;  // columns, for which the epilogue runs
    for (int64_t begin = columns.begin; begin < columns.end; begin += at_once) {
        const int64_t end = std::min(columns.end, begin + at_once);
        const auto compute = [&](auto rows, int64_t n) {
            dot_columns<rows>(M, K, a, lda, b.from(n), c + n, ldc);
            return n + rows;
        };
        int64_t n = begin;
        if (M == 1)
            while (n + with_one <= end) n = compute(std::integral_constant<int, with_one>(), n);
        else
            while (n + with_four <= end) n = compute(std::integral_constant<int, with_four>(), n);
        while (n < end) n = compute(std::integral_constant<int, 1>(), n);
        epilogue({0, M}, begin, end - begin);
    }
}

}  // namespace gemm
