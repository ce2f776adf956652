// The elements of tiles and panels: floats, or pairs of bf16 in the place of a float.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "device/cpu/gemm/order.h"
#include "device/cpu/simd.h"

namespace gemm {

using simd::vfloat;
using simd::W;

// A word holds `size` neighbours in K. along() makes a vector of words of one row (k_last), either from p on, where
// `left` values exist, or from `size` vectors of values. across() makes a vector with one word of each of n rows
// (k_first), or of each lane of `size` vectors. Values that do not exist are zeros.
struct Floats {
    static constexpr int64_t size = 1;
    static vfloat set1(float word) { return simd::set1(word); }
    static vfloat multiply_add(vfloat a, vfloat b, vfloat c) { return simd::fma(a, b, c); }
    static vfloat along(const float* p, int64_t left) { return simd::load_n(p, left); }
    static vfloat along(const vfloat (&x)[size]) { return x[0]; }
    static vfloat across(const float* p, int64_t, int64_t, int64_t n) { return simd::load_n(p, n); }
    static vfloat across(const vfloat (&rows)[size]) { return rows[0]; }
};
#if defined(__AVX512BF16__)
struct Bf16Pairs {
    static constexpr int64_t size = 2;
    static vfloat set1(float word) { return (vfloat)_mm512_set1_epi32(std::bit_cast<int>(word)); }
    static vfloat multiply_add(vfloat a, vfloat b, vfloat c) {
        return (vfloat)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
    }
    static vfloat along(const float* p, int64_t left) {
        const vfloat x[] = {simd::load_n(p, left), left > W ? simd::load_n(p + W, left - W) : vfloat{}};
        return along(x);
    }
    static vfloat along(const vfloat (&x)[size]) { return (vfloat)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]); }
    static vfloat across(const float* p, int64_t ld, int64_t left, int64_t n) {
        const vfloat rows[] = {simd::load_n(p, n), left > 1 ? simd::load_n(p + ld, n) : vfloat{}};
        return across(rows);
    }
    static vfloat across(const vfloat (&rows)[size]) { return interleaved((__m512i)along(rows)); }
    static vfloat across(Floats, const float* p, int64_t ld, int64_t left, int64_t n) { return across(p, ld, left, n); }
    // The same, of rows that are stored as words of another kind, here of bf16 (A as StoredA in gemm.h).
    static vfloat across(Bf16Pairs, const float* p, int64_t ld, int64_t left, int64_t n) {
        if (n >= W && left > 1) {
            const auto half = [](const float* row) {
                return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
            };
            return interleaved(_mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(half(p)), half(p + ld), 1));
        }
        const auto words = (__mmask8)((1u << ceil_div(std::min<int64_t>(n, W), size)) - 1);
        const __m512i first = _mm512_maskz_loadu_epi32(words, p);
        if (left == 1) return interleaved(first);
        return interleaved(_mm512_maskz_inserti64x4(0xff, first, _mm256_maskz_loadu_epi32(words, p + ld), 1));
    }

private:
    // The lower half's bf16, each before the upper half's.
    static vfloat interleaved(__m512i halves) {
        alignas(64) static constexpr uint16_t pairs[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        return (vfloat)_mm512_maskz_permutexvar_epi16(0xffffffff, _mm512_load_si512(pairs), halves);
    }
};
constexpr bool has_bf16 = true;
#else
constexpr bool has_bf16 = false;
#endif

}  // namespace gemm
