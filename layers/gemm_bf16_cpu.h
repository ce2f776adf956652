// The matrix product with its factors rounded to bf16 and sums in fp32, for CPUs with instructions for it: AMX's tiles
// of 16 x 16 sums (TDPBF16PS), else AVX512-BF16's VDPBF16PS. Both multiply pairs of neighbours in k and add them to one
// sum, so factors are packed as words of two bf16, in tiles of 16 x 16 words, 1 KiB each:
//   A: word [m][p] holds A[m][2p], A[m][2p + 1]        B: word [p][n] holds B[2p][n], B[2p + 1][n]
// With AMX, four tiles of sums (32 x 32 of C) meet two tiles of A and two of B at each step of 32 in k: 4 loads of 8
// cycles, 4 products of 16 cycles. That is 16 times the multiply-adds of fp32, so copying and rounding would take as
// long as the products: A's rows are packed once (MC x KC, 4 MiB), B's columns once for each MC rows (KC x NC, 768 KiB,
// in L2), and a long KC keeps C's tiles from being read and written often.
#pragma once

#include "layers/gemm_cpu.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gemm_bf16 {

constexpr bool available = true;

using gemm::ceil_div;
using gemm::Order;
using gemm::part_of;
using gemm::Range;
using simd::vfloat;

constexpr int64_t tile = 16;        // rows or columns, and words of k
constexpr int64_t side = 2 * tile;  // of a block of C; also the k's of a step
constexpr int64_t KC = 1024, MC = 2048, NC = 12 * side;
constexpr int64_t words(int64_t n) { return n * KC / 2; }             // of n packed rows or columns
constexpr int64_t scratch_floats() { return words(MC) + words(NC); }  // of each thread

#if defined(__AMX_BF16__)
// Linux gives a process AMX's registers when it asks for them.
inline bool amx_permitted() {
    constexpr long request_permission = 0x1023, tile_data = 18;
    static const bool permitted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return permitted;
}
// Eight registers of 16 rows of 64 bytes, for the calling thread.
inline void configure_amx() {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    _tile_loadconfig(&config);
}

// c (32,32) [+]= a · b over `steps` of 32 in k; a and b hold two tiles for each.
inline void multiply_amx(int64_t steps, const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, bool accumulate) {
    constexpr int64_t size = tile * tile, row = 64;
    float* const below = c + tile * ldc;
    const int64_t c_row = ldc * static_cast<int64_t>(sizeof(float));
    asm volatile("" ::: "memory");  // GCC's tile loads do not say that they read memory
    if (accumulate) {
        _tile_loadd(0, c, c_row);
        _tile_loadd(1, c + tile, c_row);
        _tile_loadd(2, below, c_row);
        _tile_loadd(3, below + tile, c_row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t s = 0; s < steps; ++s, a += 2 * size, b += 2 * size) {
        _tile_loadd(4, a, row);
        _tile_loadd(6, b, row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + size, row);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + size, row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_row);
    _tile_stored(1, c + tile, c_row);
    _tile_stored(2, below, c_row);
    _tile_stored(3, below + tile, c_row);
}
#endif

// The same with 8 x 2 vectors of sums at a time.
inline void multiply_avx512(int64_t steps, const uint32_t* a, const uint32_t* b, float* c, int64_t ldc,
                            bool accumulate) {
    constexpr int M = 8;
    for (int64_t m = 0; m < side; m += M) {
        __m512 acc[M][2];
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i)
#pragma GCC unroll 2
            for (int j = 0; j < 2; ++j)
                acc[i][j] = accumulate ? (__m512)simd::load(c + (m + i) * ldc + j * tile) : __m512{};
        for (int64_t s = 0; s < steps; ++s) {
            const uint32_t* const rows = a + (2 * s * tile + m) * tile;
            for (int64_t p = 0; p < tile; ++p) {
                const uint32_t* const columns = b + (2 * s * tile + p) * tile;
                const auto left = (__m512bh)simd::load(reinterpret_cast<const float*>(columns)),
                           right = (__m512bh)simd::load(reinterpret_cast<const float*>(columns + tile * tile));
#pragma GCC unroll 8
                for (int i = 0; i < M; ++i) {
                    const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(rows[i * tile + p]));
                    acc[i][0] = _mm512_dpbf16_ps(acc[i][0], x, left);
                    acc[i][1] = _mm512_dpbf16_ps(acc[i][1], x, right);
                }
            }
        }
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < 2; ++j) simd::store(c + (m + i) * ldc + j * tile, (vfloat)acc[i][j]);
    }
}

// One tile of words from x (k_last: n rows of k values; k_first: k rows of n values), n <= 16, k <= 32, zeros where
// there are none. The words of a k lie in one row of the tile if `across`, in one column if not.
// sums, if not null (k_first only): += the sum over k of each of the n.
template <Order O, bool across>
void pack_tile(uint32_t* words, const float* x, int64_t ld, int64_t n, int64_t k, vfloat* sums) {
    vfloat rows[tile];
    if constexpr (O == Order::k_last) {
        for (int64_t i = 0; i < tile; ++i) {
            const float* const row = x + i * ld;
            rows[i] =
                i >= n ? vfloat{}
                       : (vfloat)_mm512_cvtne2ps_pbh(k > tile ? (__m512)simd::load_n(row + tile, k - tile) : __m512{},
                                                     (__m512)simd::load_n(row, k));
        }
    } else {
        alignas(64) static constexpr uint16_t interleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        for (int64_t p = 0; p < tile; ++p) {
            const vfloat even = 2 * p < k ? simd::load_n(x + 2 * p * ld, n) : vfloat{},
                         odd = 2 * p + 1 < k ? simd::load_n(x + (2 * p + 1) * ld, n) : vfloat{};
            if (sums) *sums += even + odd;
            rows[p] = (vfloat)_mm512_maskz_permutexvar_epi16(0xffffffff, _mm512_load_si512(interleave),
                                                             (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
        }
    }
    if constexpr ((O == Order::k_last) == across) {
        simd::exchange_all<8>(rows);
        simd::exchange_all<4>(rows);
        simd::exchange_all<2>(rows);
        simd::exchange_all<1>(rows);
    }
    for (int64_t i = 0; i < tile; ++i) simd::store(reinterpret_cast<float*>(words + i * tile), rows[i]);
}

// n rows of A (or columns of B, then `across`) and K of k: blocks of 32, each with its steps one after another.
template <Order O, bool across>
void pack(uint32_t* words, const float* x, int64_t ld, int64_t n, int64_t K, float* row_sums) {
    for (int64_t i = 0; i < n; i += side)
        for (int64_t half = i; half < i + side; half += tile) {
            vfloat sums{};
            const int64_t count = std::clamp<int64_t>(n - half, 0, tile);
            for (int64_t k = 0; k < K; k += side)
                pack_tile<O, across>(words + (i * ceil_div(K, side) + k + (half - i)) * tile,
                                     x + (O == Order::k_last ? half * ld + k : k * ld + half), ld, count, K - k,
                                     row_sums ? &sums : nullptr);
            if (row_sums && count) simd::store_n(row_sums + half, simd::load_n(row_sums + half, count) + sums, count);
        }
}

inline const char* instructions() {
#if defined(__AMX_BF16__)
    if (amx_permitted()) return "AMX";
#endif
    return "AVX512-BF16";
}

// c (rows,columns) [+]= a · b, rows and columns at most 32: at C's edges by way of a block of its own.
inline void multiply_block(int64_t steps, const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, bool accumulate,
                           int64_t rows, int64_t columns) {
#if defined(__AMX_BF16__)
    const auto multiply = amx_permitted() ? multiply_amx : multiply_avx512;
#else
    const auto multiply = multiply_avx512;
#endif
    if (rows == side && columns == side) return multiply(steps, a, b, c, ldc, accumulate);
    alignas(64) float block[side * side];
    const auto copy = [&](float* to, int64_t to_row, const float* from, int64_t from_row) {
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; j += tile)
                simd::store_n(to + i * to_row + j, simd::load_n(from + i * from_row + j, columns - j), columns - j);
    };
    std::fill_n(block, side * side, 0.0f);
    if (accumulate) copy(block, side, c, ldc);
    multiply(steps, a, b, block, side, true);
    copy(c, ldc, block, side);
}

// As gemm::block. `memory`: scratch_floats().
template <Order A, Order B, class Epilogue>
void block(float* memory, Range rows, Range columns, int64_t K, const float* a, int64_t lda, const float* b,
           int64_t ldb, float* c, int64_t ldc, bool accumulate, const Epilogue& epilogue, float* row_sums) {
#if defined(__AMX_BF16__)
    if (amx_permitted()) configure_amx();
#endif
    uint32_t* const packed_a = reinterpret_cast<uint32_t*>(memory);
    uint32_t* const packed_b = packed_a + words(MC);
    const int64_t k_blocks = ceil_div(K, KC), k_block = ceil_div(ceil_div(K, k_blocks), side) * side;
    for (int64_t m0 = rows.begin; m0 < rows.end; m0 += MC)
        for (int64_t k = 0; k < K; k += k_block) {
            const int64_t m1 = std::min(rows.end, m0 + MC), k_size = std::min(k_block, K - k);
            const int64_t steps = ceil_div(k_size, side);
            pack<A, false>(packed_a, a + (A == Order::k_last ? m0 * lda + k : k * lda + m0), lda, m1 - m0, k_size,
                           row_sums && columns.begin == 0 ? row_sums + m0 : nullptr);
            for (int64_t n0 = columns.begin; n0 < columns.end; n0 += NC) {
                const int64_t n1 = std::min(columns.end, n0 + NC);
                pack<B, true>(packed_b, b + (B == Order::k_last ? n0 * ldb + k : k * ldb + n0), ldb, n1 - n0, k_size,
                              nullptr);
                for (int64_t m = m0; m < m1; m += side)
                    for (int64_t n = n0; n < n1; n += side) {
                        const int64_t height = std::min(side, m1 - m), width = std::min(side, n1 - n);
                        multiply_block(steps, packed_a + (m - m0) * steps * tile, packed_b + (n - n0) * steps * tile,
                                       c + m * ldc + n, ldc, accumulate || k > 0, height, width);
                        if (k + k_size == K)
                            for (int64_t r = m; r < m + height; ++r) epilogue(r, n, width);
                    }
            }
        }
}

}  // namespace gemm_bf16
#else
namespace gemm_bf16 {
constexpr bool available = false;
}
#endif
