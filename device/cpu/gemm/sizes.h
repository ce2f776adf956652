// The sizes of tiles, and of the blocks that stay in each cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "device/cpu/simd.h"

namespace gemm {

using simd::W;

// Rows of a tile that is `vectors` wide, so that accumulators, a row of B and a value of A fit in the registers. Each
// step of K loads NV vectors of B and broadcasts MR values of A for MR * NV FMAs. With AVX-512, MR is 8 and NV is 3: 24
// accumulators, 3 vectors of B and 1 of A fill 28 of 32 registers, and 11 loads feed 24 FMAs, of which two start per
// cycle.
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int max_rows(int vectors) { return vectors == 2 ? 12 : 8; }  // 32 registers
constexpr int NV = 3;
#else
constexpr int max_rows(int) { return 6; }  // 16 registers
constexpr int NV = 2;
#endif
constexpr int MR = max_rows(NV), NR = NV * W;
// A's tile of MR x KC floats (8 * 384 * 4 B = 12 KiB) stays in L1 while all panels of B pass. Packed B, KC x NC (384 *
// 480 * 4 B = 720 KiB) in panels of NR columns, stays in L2. So does packed A, if A has to be packed: MC x KC (96 * 384
// * 4 B = 144 KiB), as more rows at a time come faster from memory. A long KC matters more than a panel that fits in
// L1: between blocks of K each tile of C is read and written again, while panels arrive from L2 at 12 bytes per cycle,
// a third of what L2 delivers.
constexpr int64_t KC = 384, MC = 12 * MR, NC = 10 * NR;
// With few rows, at most FEW, all of A's FEW x KC (256 * 384 * 4 B = 384 KiB) stays in L2 instead, and B is packed one
// panel at a time, so that L2 has room for the next panel before it is needed. C's columns are then taken FEW_NC at a
// time, so that between blocks of K they stay in L3.
constexpr int64_t FEW = 256, FEW_NC = 32 * NR;
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
