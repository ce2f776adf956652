// Matmuls of few rows by int8 weights (few_rows.h) as sums of integer products, of which one instruction computes twice
// as many as an FMA, without converting the weights to fp32. Each row of A is rounded to 16 bits with a scale of its
// own, which changes a value by at most 1/65534 of the row's largest magnitude: an int8 weight's rounding is 250 times
// as large.
#pragma once

#include <bit>

#include "device/cpu/gemm/few_rows.h"

namespace simd {

using vshort = int16_t __attribute__((vector_size(4 * W), may_alias));

// 2W values, with intrinsics because GCC 12 would convert them by way of memory.
inline vshort load_shorts(const int8_t* p) {
    int8_t __attribute__((vector_size(2 * W))) v;
    std::memcpy(&v, p, sizeof v);
#if defined(__AVX512BW__)
    return (vshort)_mm512_maskz_cvtepi8_epi16(0xffffffff, (__m256i)v);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (vshort)_mm256_cvtepi8_epi16((__m128i)v);
#else
    return __builtin_convertvector(v, vshort);
#endif
}
inline vshort load_shorts(const int16_t* p) {
    vshort v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
// The first n of 2W values, 0 < n < 2W; the others are zero. Memory after them is not read.
inline vshort load_shorts(const int8_t* p, int64_t n) {
    int8_t values[2 * W] = {};
    std::memcpy(values, p, static_cast<size_t>(n));
    return load_shorts(values);
}

// sums + a * b, where two neighbours are added to each lane.
inline vint multiply_add(vshort a, vshort b, vint sums) {
#if defined(__AVX512VNNI__)
    return (vint)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sums + (vint)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (vint)_mm256_dpwssd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sums + (vint)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && !defined(__AVX2__)
    return sums + (vint)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sums + ((vint)a >> 16) * ((vint)b >> 16) + ((vint)a << 16 >> 16) * ((vint)b << 16 >> 16);
#endif
}

}  // namespace simd

namespace gemm {

using simd::vint;
using simd::vshort;

// A's rows, rounded: value = scale * integer. Vectors of 2W integers of each row follow each other in the order in
// which they are read.
struct RoundedRows {
    static constexpr int step = 2 * W;  // values of K

    const int16_t* first;
    const float* scales;
    int64_t all;  // the number of rows

    static int64_t floats(int64_t M, int64_t K) { return M * ceil_div(K, step) * W + M; }
    RoundedRows from(int64_t m) const { return {first + m * step, scales + m, all}; }
};

// Rounds a (M,K) to nearest into `memory`, of RoundedRows::floats(). A row that contains NaN or infinity has a scale
// that is NaN or infinity, and so have its results.
inline RoundedRows round_rows(float* memory, int64_t M, int64_t K, const float* a, int64_t lda) {
    constexpr float smallest = 0x1p-100f;      // a scale whose reciprocal is finite
    constexpr float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the lowest 16 bits
    constexpr int step = RoundedRows::step;
    using half_vector = int16_t __attribute__((vector_size(2 * W), may_alias));  // of a vshort: W values
    const int64_t whole = K / W * W, padded = ceil_div(K, step) * step;
    float* const scales = memory + M * padded / 2;
    const auto integers = reinterpret_cast<int16_t*>(memory);
    for (int64_t m = 0; m < M; ++m) {
        const float* const row = a + m * lda;
        // As integers, magnitudes have the same order as the floats, and NaN is the largest.
        vint largest = (vint)simd::set1(smallest);
        const auto include = [&](vfloat x) {
            const vint magnitude = (vint)x & 0x7fffffff;
            largest = magnitude > largest ? magnitude : largest;
        };
        for (int64_t k = 0; k < whole; k += W) include(simd::load(row + k));
        if (whole < K) include(simd::load_n(row + whole, K - whole));
        int32_t bits = 0;
        for (int i = 0; i < W; ++i) bits = std::max(bits, largest[i]);
        scales[m] = std::bit_cast<float>(bits) / 32767;
        const vfloat factor = simd::set1(32767 / std::bit_cast<float>(bits));
        const auto put = [&](int64_t k, vfloat x) {
            const half_vector rounded =
                __builtin_convertvector((vint)simd::fma(x, factor, simd::set1(to_integer)), half_vector);
            std::memcpy(integers + (k / step * M + m) * step + k % step, &rounded, sizeof rounded);
        };
        for (int64_t k = 0; k < whole; k += W) put(k, simd::load(row + k));
        for (int64_t k = whole; k < padded; k += W) put(k, simd::load_n(row + k, std::max<int64_t>(0, K - k)));
    }
    return {integers, scales, M};
}

// c (MS,RS) = the sums of products of integers, of K values. A lane's sum of integers stays exact for 256 vectors, as
// 256 * 2 * 127 * 32768 < 2^31. Then it is added to a sum in fp32. At each vector of K, cache lines are prefetched from
// `ahead` on, which advances by `pace` floats.
template <int MS, int RS>
[[gnu::always_inline]] inline void dot_products(int64_t K, const RoundedRows& a, const WeightRows<int8_t>& b, float* c,
                                                int64_t ldc, const float* ahead, int64_t pace) {
    constexpr int step = RoundedRows::step;
    constexpr int64_t lines = ceil_div(RS * step, cache_line), most_exact = 256 * step;
    const int16_t* x = a.first;
    for (int64_t begin = 0; begin < K; begin += most_exact) {
        const int64_t end = std::min(K, begin + most_exact);
        vint exact[MS * RS] = {};
        int64_t k = begin;
        for (; k + step <= end; k += step, x += a.all * step) {
            vshort weights[RS];
#pragma GCC unroll 8
            for (int i = 0; i < lines; ++i) prefetch_line<Access::read, ahead_cache>(ahead + i * cache_line / 4);
            ahead += pace;
#pragma GCC unroll 8
            for (int r = 0; r < RS; ++r) weights[r] = simd::load_shorts(b.row(r) + k);
#pragma GCC unroll 8
            for (int m = 0; m < MS; ++m) {
                const vshort values = simd::load_shorts(x + m * step);
#pragma GCC unroll 8
                for (int r = 0; r < RS; ++r)
                    exact[m * RS + r] = simd::multiply_add(values, weights[r], exact[m * RS + r]);
            }
        }
        if (k < end)
            for (int m = 0; m < MS; ++m)
                for (int r = 0; r < RS; ++r)
                    exact[m * RS + r] = simd::multiply_add(simd::load_shorts(x + m * step),
                                                           simd::load_shorts(b.row(r) + k, end - k), exact[m * RS + r]);
        vfloat sums[MS * RS];
        float products[MS * RS + W];
#pragma GCC unroll 24
        for (int i = 0; i < MS * RS; ++i) sums[i] = __builtin_convertvector(exact[i], vfloat);
        simd::store_sums<MS * RS>(products, sums);
        for (int m = 0; m < MS; ++m)
            for (int r = 0; r < RS; ++r)
                c[m * ldc + r] = begin == 0 ? products[m * RS + r] : c[m * ldc + r] + products[m * RS + r];
    }
}

// c (M,RS). Meanwhile the next rows of b are prefetched, at an even pace: in bursts they would arrive too late. With
// AVX-512 they begin at least 8 KiB ahead: with 3.5 KiB, one row takes 10 to 20 % longer on a Zen 4.
template <int RS>
void dot_columns(int64_t M, int64_t K, const RoundedRows& a, const WeightRows<int8_t>& b, float* c, int64_t ldc) {
    const int64_t start = std::max<int64_t>(2048, wide_vectors ? 8192 - 4 * RS * b.stride : 0) / 4;
    for_parts(M, [&](auto rows, int64_t m) {
        dot_products<rows, RS>(K, a.from(m), b, c + m * ldc, ldc, b.first + RS * b.stride * (M + m) / M + start,
                               ceil_div(RS * RoundedRows::step / 4 * rows, M));
    });
}

// Multiplies the sums of integers in c (M,columns) by the scales of their rows.
inline void scale_columns(int64_t M, int64_t columns, const RoundedRows& a, const WeightRows<int8_t>& b, float* c,
                          int64_t ldc) {
    float scales[columns_at_once];
    for (int64_t n = 0; n < columns; ++n) scales[n] = b.scale(n);
    for (int64_t m = 0; m < M; ++m)
        simd::map(c + m * ldc, columns, [&](vfloat sums, int64_t n, int64_t left) {
            return simd::load_n(scales + n, left) * (a.scales[m] * sums);
        });
}

}  // namespace gemm
