// The matmuls of attention on AMX, whose operands are words of two bf16 (device/cpu/gemm/words.h), in rows or panels
// that lie as the tiles read them.
#pragma once

#include "device/cpu/gemm/gemm_amx.h"

namespace amx {

// c (R tiles,C tiles) [+]= a · b over `words` of K, a multiple of 16. Rows of a, b and c lie lda, ldb and ldc floats
// apart, and the second tile of b's columns next_b floats behind the first.
template <int R, int C>
void multiply_tiles(float* c, int64_t ldc, bool accumulate, int64_t words, const float* a, int64_t lda, const float* b,
                    int64_t ldb, int64_t next_b);

#if defined(__AMX_BF16__)
template <int R, int C>
void multiply_tiles(float* c, int64_t ldc, bool accumulate, int64_t words, const float* a, int64_t lda, const float* b,
                    int64_t ldb, [[maybe_unused]] int64_t next_b) {
    constexpr auto bytes = [](int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); };
    float* const below = c + tile_side * ldc;
    asm volatile("" ::: "memory");  // GCC's tile loads do not declare that they read memory
    if (accumulate) {
        _tile_loadd(0, c, bytes(ldc));
        if (C > 1) _tile_loadd(1, c + tile_side, bytes(ldc));
        if (R > 1) _tile_loadd(2, below, bytes(ldc));
        if (R > 1 && C > 1) _tile_loadd(3, below + tile_side, bytes(ldc));
    } else {
        _tile_zero(0);
        if (C > 1) _tile_zero(1);
        if (R > 1) _tile_zero(2);
        if (R > 1 && C > 1) _tile_zero(3);
    }
    for (int64_t k = 0; k < words; k += tile_side) {
        _tile_loadd(4, a + k, bytes(lda));
        if (R > 1) _tile_loadd(5, a + k + tile_side * lda, bytes(lda));
        _tile_loadd(6, b + k * ldb, bytes(ldb));
        if (C > 1) _tile_loadd(7, b + k * ldb + next_b, bytes(ldb));
        _tile_dpbf16ps(0, 4, 6);
        if (C > 1) _tile_dpbf16ps(1, 4, 7);
        if (R > 1) _tile_dpbf16ps(2, 5, 6);
        if (R > 1 && C > 1) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, bytes(ldc));
    if (C > 1) _tile_stored(1, c + tile_side, bytes(ldc));
    if (R > 1) _tile_stored(2, below, bytes(ldc));
    if (R > 1 && C > 1) _tile_stored(3, below + tile_side, bytes(ldc));
}
#endif

}  // namespace amx
