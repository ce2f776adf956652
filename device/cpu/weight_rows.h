// Weight matrices as the Cpu stores them for inference: in fp32, bf16 or int8. A matrix (N,K) is a sequence of rows, so
// that the output for one column is computed from one piece of memory. A row of int8 begins with its scale.
#pragma once

#include <algorithm>
#include <cmath>

#include "device/bf16.h"
#include "device/weight_type.h"
#include "device/cpu/simd.h"

namespace simd {

using vbyte = int8_t __attribute__((vector_size(W), may_alias));

// Uses intrinsics, because GCC 12 would convert by way of 16-bit integers.
inline vfloat widen(vbyte v) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)v));
#elif defined(__AVX2__)
    return (vfloat)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)v)));
#else
    return __builtin_convertvector(v, vfloat);
#endif
}
inline vfloat load_n(const int8_t* p, int64_t n) {
    vbyte v{};
    std::memcpy(&v, p, n >= W ? sizeof v : static_cast<size_t>(n));
    return widen(v);
}

}  // namespace simd

// The rows of a matrix whose values are stored as Element: float, bf16 or int8_t.
template <class Element>
struct WeightRows {
    static constexpr bool scaled = std::is_same_v<Element, int8_t>;

    const float* first;
    int64_t stride;  // floats from row to row

    const Element* row(int64_t n) const { return reinterpret_cast<const Element*>(first + n * stride + scaled); }
    float scale(int64_t n) const {  // of row n: value = scale * element
        if constexpr (scaled) return first[n * stride];
        return 1;
    }
    WeightRows from(int64_t n) const { return {first + n * stride, stride}; }
};

// Calls f with the rows of a matrix whose rows have K values.
template <class F>
auto with_rows(WeightType type, const float* weight, int64_t K, const F& f) {
    const int64_t stride = weight_floats(type, K);
    if (type == WeightType::bf16) return f(WeightRows<bf16>{weight, stride});
    if (type == WeightType::int8) return f(WeightRows<int8_t>{weight, stride});
    return f(WeightRows<float>{weight, stride});
}

// out (K floats) = the values of row n.
template <class Element>
void read_row(float* out, const WeightRows<Element>& rows, int64_t n, int64_t K) {
    for (int64_t k = 0; k < K; k += simd::W)
        simd::store_n(out + k, rows.scale(n) * simd::load_n(rows.row(n) + k, K - k), K - k);
}

// Stores the matrix w (N,K) to out, weight_floats(type, K) floats for each row. int8 rounds to nearest; the largest
// magnitude of a row becomes 127.
inline void store_weights(WeightType type, float* out, const float* w, int64_t N, int64_t K) {
    const int64_t stride = weight_floats(type, K);
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; ++n) {
        const float* const from = w + n * K;
        float* const to = out + n * stride;
        if (type == WeightType::bf16) {
            for (int64_t k = 0; k < K; k += simd::W)
                simd::store_n(reinterpret_cast<bf16*>(to) + k, simd::load_n(from + k, K - k), K - k);
        } else if (type == WeightType::int8) {
            float largest = 0;
            for (int64_t k = 0; k < K; ++k) largest = std::max(largest, std::abs(from[k]));
            *to = largest / 127;
            const auto bytes = reinterpret_cast<int8_t*>(to + 1);
            for (int64_t k = 0; k < K && largest > 0; ++k)
                bytes[k] = static_cast<int8_t>(std::lrint(from[k] / largest * 127));
        } else {
            std::copy_n(from, K, to);
        }
    }
}
