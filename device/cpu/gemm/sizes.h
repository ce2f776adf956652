// The sizes of tiles, and of the blocks that stay in each cache (gemm.h says why these).
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "device/cpu/simd.h"

namespace gemm {

using simd::W;

// Rows of a tile that is `vectors` wide, so that accumulators, a row of B and a value of A fit the registers.
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int max_rows(int vectors) { return vectors == 2 ? 12 : 8; }  // 32 registers
constexpr int NV = 3;
#else
constexpr int max_rows(int) { return 6; }  // 16 registers
constexpr int NV = 2;
#endif
constexpr int MR = max_rows(NV), NR = NV * W;
constexpr int64_t KC = 384, MC = 12 * MR, NC = 10 * NR, FEW = 256, FEW_NC = 32 * NR;
constexpr int64_t block_columns(int64_t rows) { return rows <= FEW ? FEW_NC : NC; }
constexpr int64_t scratch_floats() { return KC * std::max(NC + MC, NR + FEW); }  // of each thread

// Calls f with the number of vectors that a panel of `lanes` columns takes, as a constant: the last panel may be
// narrower than NV vectors.
template <class F>
auto for_width(int64_t lanes, const F& f) {
    static_assert(NV == 2 || NV == 3);
    if (lanes > 2 * W) return f(std::integral_constant<int, NV>());
    return lanes > W ? f(std::integral_constant<int, 2>()) : f(std::integral_constant<int, 1>());
}

}  // namespace gemm
