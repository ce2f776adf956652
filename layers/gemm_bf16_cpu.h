// The matrix product by instructions for bf16, with sums in fp32: AMX's tiles of 16 x 16 sums (TDPBF16PS), else
// AVX512-BF16's VDPBF16PS. With one plane, factors are rounded to bf16. With three, a float is split into three bf16
// that add up to it, 8 of its 24 bits each, and of the nine products of two such floats' parts the six above 2^-24 are
// summed: as exact as fp32's own, and faster by AMX, which does 16 times the multiply-adds of fp32. (Henry, Tang &
// Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations")
//
// Both instructions multiply pairs in k and add them to one sum, so factors are packed as words of two bf16, in tiles
// of 16 x 16 words, 1 KiB each. For a step of 32 in k:
//   A: word [m][p] holds A[m][p], A[m][p + 16]        B: word [p][n] holds B[p][n], B[p + 16][n]
// With AMX, four tiles of sums (32 x 32 of C) meet two tiles of A and two of B: 4 loads of 8 cycles, 4 products of 16
// cycles. Copying and rounding would take as long as the products: A's rows are packed once (MC x KC), B's columns once
// for each MC rows (KC x NC, 768 KiB, in L2), and a long KC keeps C's tiles from being read and written often.
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
using vuint = uint32_t __attribute__((vector_size(64), may_alias));

constexpr int64_t tile = 16;        // rows or columns, and words of k
constexpr int64_t side = 2 * tile;  // of a block of C; also the k's of a step
constexpr int64_t words_of_tile = tile * tile;

// The blocks' sizes by the number of planes.
template <int planes>
struct Blocks;
template <>
struct Blocks<1> {
    static constexpr int64_t KC = 1024, MC = 2048, NC = 12 * side;
};
template <>
struct Blocks<3> {
    static constexpr int64_t KC = 512, MC = 1024, NC = 8 * side;
};
// Which planes of A and B are multiplied, the smaller products first; neighbours have one in common.
struct Pair {
    int a, b;
};
template <int planes>
constexpr Pair products[1] = {{0, 0}};
template <>
constexpr Pair products<3>[6] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};

template <int planes>
constexpr int64_t words(int64_t n) {  // of n packed rows or columns
    return n * Blocks<planes>::KC / 2 * planes;
}
template <int planes>
constexpr int64_t scratch_floats() {  // of each thread
    return words<planes>(Blocks<planes>::MC) + words<planes>(Blocks<planes>::NC);
}

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
    asm volatile("" ::"r"(&config) : "memory");  // GCC's intrinsic says that it reads 8 bytes, of 64
    _tile_loadconfig(&config);
}

// c (32,32) [+]= a · b over `steps` of 32 in k; a and b hold two tiles for each, of each plane.
template <int planes>
void multiply_amx(int64_t steps, const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, bool accumulate) {
    constexpr int64_t size = words_of_tile, row = 64;
    float* const below = c + tile * ldc;
    const int64_t c_row = ldc * static_cast<int64_t>(sizeof(float));
    for (int64_t i = 0; i < side; ++i)
        for (int64_t j = 0; j < side; j += tile) __builtin_prefetch(c + i * ldc + j, 1);
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
    const auto multiply = [&](int a_plane, int b_plane, bool load_a, bool load_b) __attribute__((always_inline)) {
        if (load_a) {
            _tile_loadd(4, a + 2 * a_plane * size, row);
            _tile_loadd(5, a + (2 * a_plane + 1) * size, row);
        }
        if (load_b) {
            _tile_loadd(6, b + 2 * b_plane * size, row);
            _tile_loadd(7, b + (2 * b_plane + 1) * size, row);
        }
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    };
    for (int64_t s = 0; s < steps; ++s, a += 2 * planes * size, b += 2 * planes * size) {
        Pair loaded{-1, -1};
#pragma GCC unroll 6
        for (const auto& [a_plane, b_plane] : products<planes>) {
            multiply(a_plane, b_plane, a_plane != loaded.a, b_plane != loaded.b);
            loaded = {a_plane, b_plane};
        }
    }
    _tile_stored(0, c, c_row);
    _tile_stored(1, c + tile, c_row);
    _tile_stored(2, below, c_row);
    _tile_stored(3, below + tile, c_row);
}
#endif

// The same with 8 x 2 vectors of sums at a time.
template <int planes>
void multiply_avx512(int64_t steps, const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, bool accumulate) {
    constexpr int M = 8;
    for (int64_t m = 0; m < side; m += M) {
        __m512 acc[M][2];
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i)
#pragma GCC unroll 2
            for (int j = 0; j < 2; ++j)
                acc[i][j] = accumulate ? (__m512)simd::load(c + (m + i) * ldc + j * tile) : __m512{};
        const auto multiply = [&](const uint32_t* rows, const uint32_t* columns) {
            for (int64_t p = 0; p < tile; ++p, columns += tile) {
                const auto left = (__m512bh)simd::load(reinterpret_cast<const float*>(columns)),
                           right = (__m512bh)simd::load(reinterpret_cast<const float*>(columns + words_of_tile));
#pragma GCC unroll 8
                for (int i = 0; i < M; ++i) {
                    const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(rows[i * tile + p]));
                    acc[i][0] = _mm512_dpbf16_ps(acc[i][0], x, left);
                    acc[i][1] = _mm512_dpbf16_ps(acc[i][1], x, right);
                }
            }
        };
        for (int64_t s = 0; s < steps; ++s)
            for (const auto& [plane_a, plane_b] : products<planes>)
                multiply(a + 2 * ((s * planes + plane_a) * tile) * tile + m * tile,
                         b + 2 * ((s * planes + plane_b) * tile) * tile);
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < 2; ++j) simd::store(c + (m + i) * ldc + j * tile, (vfloat)acc[i][j]);
    }
}

// Words whose lower halves are bf16 of x's lanes and whose upper halves are of y's: with one plane the nearest, with
// three what adds up to x and y, exactly but for numbers below 2^-110 or so, whose last bits are lost, and for those
// that round to infinity, which become NaN.
template <int planes>
void split(vfloat x, vfloat y, vfloat (&words)[planes]) {
    if constexpr (planes == 1) {
        alignas(64) static constexpr uint16_t interleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        words[0] = (vfloat)_mm512_maskz_permutexvar_epi16(0xffffffff, _mm512_load_si512(interleave),
                                                          (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x));
    } else {
        const auto near = [](vfloat z) { return (vfloat)(((vuint)z + 0x8000u) & 0xffff0000u); };
        for (int i = 0; i < planes; ++i) {
            const bool last = i == planes - 1;  // fits without rounding; so NaN stays NaN
            const vfloat lower = last ? x : near(x), upper = last ? y : near(y);
            words[i] = (vfloat)_mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)((vuint)lower >> 16), (__m512i)upper);
            x -= lower, y -= upper;
        }
    }
}

// One tile of words of each plane from x (k_last: n rows of k values; k_first: k rows of n values), n <= 16, k <= 32,
// zeros where there are none. The words of a k lie in one row of the tile if `across`, in one column if not. A plane's
// tile is 2 tiles behind that of the one before.
// sums, if not null (k_first only): += the sum over k of each of the n.
template <Order O, bool across, int planes>
void pack_tile(uint32_t* words, const float* x, int64_t ld, int64_t n, int64_t k, vfloat* sums) {
    vfloat first[tile], second[tile];  // k = 0 … 15 and 16 … 31
    for (int64_t i = 0; i < tile; ++i) {
        if constexpr (O == Order::k_last) {
            first[i] = i < n ? simd::load_n(x + i * ld, k) : vfloat{};
            second[i] = i < n && k > tile ? simd::load_n(x + i * ld + tile, k - tile) : vfloat{};
        } else {
            first[i] = i < k ? simd::load_n(x + i * ld, n) : vfloat{};
            second[i] = i + tile < k ? simd::load_n(x + (i + tile) * ld, n) : vfloat{};
        }
    }
    if (sums)
        for (int64_t i = 0; i < tile; i += 4)
            *sums += ((first[i] + second[i]) + (first[i + 1] + second[i + 1])) +
                     ((first[i + 2] + second[i + 2]) + (first[i + 3] + second[i + 3]));
    if constexpr ((O == Order::k_last) == across) {
        const auto turn = [](vfloat(&rows)[tile]) {
            simd::exchange_all<8>(rows);
            simd::exchange_all<4>(rows);
            simd::exchange_all<2>(rows);
            simd::exchange_all<1>(rows);
        };
        turn(first), turn(second);
    }
    for (int64_t i = 0; i < tile; ++i) {
        vfloat of_planes[planes];
        split(first[i], second[i], of_planes);
        for (int p = 0; p < planes; ++p)
            simd::store(reinterpret_cast<float*>(words + 2 * p * words_of_tile + i * tile), of_planes[p]);
    }
}

// n rows of A (or columns of B, then `across`) and K of k: blocks of 32, each with its steps one after another.
template <Order O, bool across, int planes>
void pack(uint32_t* words, const float* x, int64_t ld, int64_t n, int64_t K, float* row_sums) {
    for (int64_t i = 0; i < n; i += side)
        for (int64_t half = i; half < i + side; half += tile) {
            vfloat sums{};
            const int64_t count = std::clamp<int64_t>(n - half, 0, tile);
            for (int64_t k = 0; k < K; k += side)
                pack_tile<O, across, planes>(words + (i * ceil_div(K, side) + k) * planes * tile + (half - i) * tile,
                                             x + (O == Order::k_last ? half * ld + k : k * ld + half), ld, count, K - k,
                                             row_sums ? &sums : nullptr);
            if (row_sums && count) simd::store_n(row_sums + half, simd::load_n(row_sums + half, count) + sums, count);
        }
}

// Whether three planes are faster than fp32: by AMX.
inline bool split_pays() {
#if defined(__AMX_BF16__)
    return amx_permitted();
#else
    return false;
#endif
}

inline const char* instructions() {
#if defined(__AMX_BF16__)
    if (amx_permitted()) return "AMX";
#endif
    return "AVX512-BF16";
}

// c (rows,columns) [+]= a · b, rows and columns at most 32: at C's edges by way of a block of its own.
template <int planes>
void multiply_block(int64_t steps, const uint32_t* a, const uint32_t* b, float* c, int64_t ldc, bool accumulate,
                    int64_t rows, int64_t columns) {
    auto multiply = multiply_avx512<planes>;
#if defined(__AMX_BF16__)
    if (amx_permitted()) multiply = multiply_amx<planes>;
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

// A thread's call before its multiply_block's.
inline void start_block() {
#if defined(__AMX_BF16__)
    if (amx_permitted()) configure_amx();
#endif
}

// As gemm::block. `memory`: scratch_floats().
template <int planes, Order A, Order B, class Epilogue>
void block(float* memory, Range rows, Range columns, int64_t K, const float* a, int64_t lda, const float* b,
           int64_t ldb, float* c, int64_t ldc, bool accumulate, const Epilogue& epilogue, float* row_sums) {
    start_block();
    constexpr int64_t KC = Blocks<planes>::KC, MC = Blocks<planes>::MC, NC = Blocks<planes>::NC;
    uint32_t* const packed_a = reinterpret_cast<uint32_t*>(memory);
    uint32_t* const packed_b = packed_a + words<planes>(MC);
    const int64_t k_blocks = ceil_div(K, KC), k_block = ceil_div(ceil_div(K, k_blocks), side) * side;
    for (int64_t m0 = rows.begin; m0 < rows.end; m0 += MC)
        for (int64_t k = 0; k < K; k += k_block) {
            const int64_t m1 = std::min(rows.end, m0 + MC), k_size = std::min(k_block, K - k);
            const int64_t steps = ceil_div(k_size, side);
            pack<A, false, planes>(packed_a, a + (A == Order::k_last ? m0 * lda + k : k * lda + m0), lda, m1 - m0,
                                   k_size, row_sums && columns.begin == 0 ? row_sums + m0 : nullptr);
            for (int64_t n0 = columns.begin; n0 < columns.end; n0 += NC) {
                const int64_t n1 = std::min(columns.end, n0 + NC);
                pack<B, true, planes>(packed_b, b + (B == Order::k_last ? n0 * ldb + k : k * ldb + n0), ldb, n1 - n0,
                                      k_size, nullptr);
                for (int64_t m = m0; m < m1; m += side)
                    for (int64_t n = n0; n < n1; n += side) {
                        const int64_t height = std::min(side, m1 - m), width = std::min(side, n1 - n);
                        multiply_block<planes>(steps, packed_a + (m - m0) * steps * tile * planes,
                                               packed_b + (n - n0) * steps * tile * planes, c + m * ldc + n, ldc,
                                               accumulate || k > 0, height, width);
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
inline bool split_pays() { return false; }
}  // namespace gemm_bf16
#endif
