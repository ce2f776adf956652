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

// The choices of the loops, as measured with AVX2 on a Zen 3 and with AVX-512 on a Sapphire Rapids and a Zen 4: how
// many rows of A have their sums in registers at once, beside how many rows of B; how far ahead B is prefetched, and
// into which cache. A single row of A takes less time if each step reads one line of B instead of eight: with AVX-512 a
// fifth to a third, with int8 a tenth.
constexpr bool wide_vectors = W == 16, more_registers = max_rows(1) == 8;
constexpr int a_rows = wide_vectors ? 8 : 4;
template <class Rows, class Element>
constexpr int b_rows_with_one = wide_vectors || sizeof(Element) == 1
                                    ? static_cast<int>(cache_line) / (Rows::step * sizeof(Element))
                                    : 8;
constexpr int b_rows = more_registers && !wide_vectors ? 6 : 3;
constexpr Cache ahead_cache = wide_vectors ? Cache::L2 : Cache::L1;
// Where the prefetches of a group of rows begin, in floats from its first row. Zen 4: near what is read after the
// group. From 12 KiB on, one fp32 row takes 8 to 20 % longer there, other numbers of rows up to 8 %.
#if defined(__AMX_TILE__)
constexpr bool prefetches_near = false;
#else
constexpr bool prefetches_near = wide_vectors;
#endif
template <int RS>
int64_t first_ahead(int64_t stride) {
    return prefetches_near ? (RS > 1 ? RS * stride : 0) + 3072 / 4 : 12288 / 4;
}
// From how many rows of A on each operand is held in a register. With AVX2, GCC would load 16 vectors instead of 7 for
// 12 FMAs: eight rows take 4 to 9 % less time in fp32, 18 to 25 % less in bf16. Two rows, and three in fp32, gain
// nothing. With AVX-512 it would load 27 instead of 11 for 24 FMAs: eight rows take 10 to 19 % less in bf16 (Zen 4);
// fp32 and fewer rows gain nothing.
template <class Element>
constexpr int rows_in_register = wide_vectors ? (sizeof(Element) == 4 ? a_rows + 1 : a_rows)
                                              : (sizeof(Element) == 4 ? 4 : 3);

// Instructions bound eight rows with AVX2: two passes over three rows of B take 24 FMAs, 14 loads and, unless B is
// fp32, 12 instructions to convert, for each vector of K. Tried and dropped on the Zen 3: the first pass stores the
// converted weights for the second (bf16 takes a sixth longer); blocks of K, so that A stays in L1 (fp32 takes
// a tenth longer); A packed in the order of its loads; two vectors of K per iteration; prefetches into L2, nearer or
// farther.

// A's rows as they are.
struct FloatRows {
    static constexpr int step = W;  // values of K that are computed at once

    const float* first;
    int64_t stride;

    FloatRows from(int64_t m) const { return {first + m * stride, stride}; }
};

// c (MS,RS) = the dot products of MS rows of a and RS rows of b, of K values. At each vector of K, LINES cache lines
// are prefetched, from `ahead` on.
template <int MS, int RS, int LINES, class Element>
[[gnu::always_inline]] inline void dot_products(int64_t K, FloatRows a, const WeightRows<Element>& b, float* c,
                                                int64_t ldc, const float* ahead) {
    constexpr int64_t line = cache_line / 4;
    const auto operand = [](vfloat v) { return RS > 1 && MS >= rows_in_register<Element> ? simd::in_register(v) : v; };
    vfloat sums[MS * RS] = {};
    int64_t k = 0;
    for (; k + W <= K; k += W) {
        vfloat weights[RS];
#pragma GCC unroll 8
        for (int i = 0; i < LINES; ++i) prefetch_line<Access::read, ahead_cache>(ahead + i * line);
        ahead += LINES * line;
#pragma GCC unroll 8
        for (int r = 0; r < RS; ++r) weights[r] = operand(simd::load(b.row(r) + k));
#pragma GCC unroll 8
        for (int m = 0; m < MS; ++m) {
            const vfloat x = operand(simd::load(a.first + m * a.stride + k));
#pragma GCC unroll 8
            for (int r = 0; r < RS; ++r) sums[m * RS + r] = simd::fma(x, weights[r], sums[m * RS + r]);
        }
    }
    if (k < K)
        for (int m = 0; m < MS; ++m)
            for (int r = 0; r < RS; ++r)
                sums[m * RS + r] = simd::fma(simd::load_n(a.first + m * a.stride + k, K - k),
                                             simd::load_n(b.row(r) + k, K - k), sums[m * RS + r]);
    float products[MS * RS + W];
    simd::store_sums<MS * RS>(products, sums);
    for (int m = 0; m < MS; ++m)
        for (int r = 0; r < RS; ++r) c[m * ldc + r] = products[m * RS + r];
}

// Calls f(MS, m) for the rows [m, m + MS) of each part, in as few parts of M rows as possible.
template <class F>
void for_parts(int64_t M, const F& f) {
    int64_t m = 0;
    const auto run = [&](auto rows) {
        for (; m + rows <= M; m += rows) f(rows, m);
    };
    run(std::integral_constant<int, a_rows>());
    run(std::integral_constant<int, 4>());
    run(std::integral_constant<int, 3>());
    run(std::integral_constant<int, 2>());
    run(std::integral_constant<int, 1>());
}

// c (M,RS). While its first rows are computed, later rows of b are prefetched.
template <int RS, class Element>
void dot_columns(int64_t M, int64_t K, const FloatRows& a, const WeightRows<Element>& b, float* c, int64_t ldc) {
    constexpr int bytes = RS * W * sizeof(Element), lines = (bytes + cache_line - 1) / cache_line;
    const float* const ahead = b.first + first_ahead<RS>(b.stride);
    for_parts(M, [&](auto rows, int64_t m) {
        if (m == 0)
            dot_products<rows, RS, lines>(K, a, b, c, ldc, ahead);
        else
            dot_products<rows, RS, 0>(K, a.from(m), b, c + m * ldc, ldc, nullptr);
    });
}

// What remains to do for sums in c (M,columns), which is nothing if neither operand has scales.
template <class Element>
void scale_columns(int64_t, int64_t, const FloatRows&, const WeightRows<Element>&, float*, int64_t) {}

constexpr int64_t columns_at_once = 48;  // for which the epilogue runs

// C's rectangle [0, M) x [columns), then its epilogue, on the calling thread.
template <class Rows, class Element>
void few_rows_block(int64_t M, Range columns, int64_t K, const Rows& a, const WeightRows<Element>& b, float* c,
                    int64_t ldc, EpilogueRef epilogue) {
    for (int64_t begin = columns.begin; begin < columns.end; begin += columns_at_once) {
        const int64_t end = std::min(columns.end, begin + columns_at_once);
        const auto compute = [&](auto rows, int64_t n) {
            dot_columns<rows>(M, K, a, b.from(n), c + n, ldc);
            return n + rows;
        };
        constexpr std::integral_constant<int, b_rows_with_one<Rows, Element>> with_one;
        constexpr std::integral_constant<int, b_rows> with_more;
        int64_t n = begin;
        while (M == 1 && n + with_one <= end) n = compute(with_one, n);
        while (M > 1 && n + with_more <= end) n = compute(with_more, n);
        while (n < end) n = compute(std::integral_constant<int, 1>(), n);
        scale_columns(M, end - begin, a, b.from(begin), c + begin, ldc);
        epilogue({0, M}, begin, end - begin, c + begin, ldc);
    }
}

}  // namespace gemm
