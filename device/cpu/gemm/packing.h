// Packs B in panels, and A in tiles, in the order in which a tile's kernel reads them.
#pragma once

#include <algorithm>
#include <cstring>

#include "device/cpu/gemm/order.h"
#include "device/cpu/gemm/sizes.h"
#include "device/cpu/gemm/words.h"
#include "device/cpu/prefetch.h"

namespace gemm {

// Packs a panel of NV vectors of B's columns: panel[w * NV * W + j] = word w of column j, for K values of each column.
// Columns from `lanes` on are zero. Columns that lie apart (k_last) are read one vector of them at a time: with three
// vectors at a time, weights came up to 15 % slower from memory.
template <Order B, int NV, class Words = Floats>
void pack_panel(float* panel, const float* b, int64_t ldb, int64_t K, int64_t lanes) {
    constexpr int64_t width = NV * W, at_once = W * Words::size;
    if constexpr (B == Order::k_first) {
        for (int64_t k = 0; k < K; k += Words::size, panel += width)
            for (int64_t j = 0; j < width; j += W)
                simd::store(panel + j,
                            Words::across(b + k * ldb + j, ldb, K - k, std::clamp<int64_t>(lanes - j, 0, W)));
        return;
    }
    for (int64_t j = 0; j < width; j += W) {
        const int64_t n = std::clamp<int64_t>(lanes - j, 0, W);
        float* words = panel + j;
        for (int64_t k = 0; k < K; k += at_once, words += W * width) {
            const float* const columns = b + j * ldb + k;
            if (n == W && K - k >= at_once)
                simd::transpose(words, width, W, [=](int64_t i) { return Words::along(columns + i * ldb, at_once); });
            else
                simd::transpose(words, width, ceil_div(K - k, Words::size),
                                [=](int64_t i) { return i < n ? Words::along(columns + i * ldb, K - k) : vfloat{}; });
        }
    }
}

// Packs all panels of `columns` columns of B, NR columns each.
template <Order B, class Words>
void pack_panels(float* panels, const float* b, int64_t ldb, int64_t K, int64_t columns) {
    for (int64_t n = 0; n < columns; n += NR) {
        const int64_t lanes = std::min<int64_t>(NR, columns - n);
        for_width(lanes, [&](auto vectors) {
            pack_panel<B, vectors, Words>(panels + n * ceil_div(K, Words::size), b + n * (B == Order::k_last ? ldb : 1),
                                          ldb, K, lanes);
        });
    }
}

// Packs at most MC rows of a k_first A in tiles of MR rows: packed[m * K + k * MR + i] = A[k * lda + m + i] for m = 0,
// MR, …, with K and k in words; the last tile has as many rows as are left. row_sums (rows), if not null: += the sums
// over K. The hardware does not prefetch strided rows, so this function does. It writes whole cache lines of each tile
// at once: tiles lie whole pages apart, so L1 would evict the first tile's line before the last tile's is written.
// A's memory may consist of pairs of bf16 (StoredA), without row_sums.
//
// With 16 registers MR is 6, and a tile's six values are copied as vectors that are two values longer. The next word
// overwrites those two, so only the last one is copied exactly. With this, and `at_once` words instead of 2, gradients
// of weights with 64 to 128 columns take 4 to 9 % less time on a Zen 3. Reading A in place takes up to 65 % more time
// instead, where rows are 1.5 KiB or longer: the tile's lines evict each other from L1.
template <class Words, class StoredA = Floats>
void pack_rows(float* packed, const float* a, int64_t lda, int64_t K, int64_t rows, float* row_sums) {
    constexpr int64_t values = StoredA::size;  // in the place of a float
    constexpr bool longer = MR % 8 != 0;
    constexpr int64_t ahead = 8, at_once = longer ? 8 : 2, size = Words::size;
    const int64_t full = rows - rows % MR, K_words = ceil_div(K, size);
    vfloat sums[MC / W + 1] = {};
    for (int64_t w = 0; w < K_words; w += at_once) {
        const int64_t n = std::min(at_once, K_words - w), k_begin = w * size, k_end = std::min(K, k_begin + n * size);
        for (int64_t k = k_begin + ahead; k < std::min(K, k_end + ahead); ++k)
            prefetch_range(a + k * lda, rows / values);
        for (int64_t m = 0; row_sums && m < rows; m += W) {
            vfloat& sum = sums[m / W];
            if (rows - m >= W)
                for (int64_t k = k_begin; k < k_end; ++k) sum += simd::load(a + k * lda + m);
            else
                for (int64_t k = k_begin; k < k_end; ++k) sum += simd::load_n(a + k * lda + m, rows - m);
        }
        const float* words = a + k_begin * lda;
        int64_t ld = lda;
        float made[at_once][MC + W];
        if constexpr (size > 1) {
            for (int64_t k = k_begin; k < k_end; k += size)
                for (int64_t m = 0; m < rows; m += W) {
                    const float* const from = a + k * lda + m / values;
                    simd::store(made[k / size - w] + m, Words::across(StoredA(), from, lda, K - k, rows - m));
                }
            words = made[0], ld = MC + W;
        }
        const int64_t longer_ones = longer ? n - (w + n == K_words) : 0;
        for (int64_t m = 0; m < full; m += MR) {
            float* const tile = packed + m * K_words + w * MR;
            int64_t u = 0;
            for (; u < longer_ones; ++u)
                for (int64_t i = 0; i < MR; i += W) simd::store(tile + u * MR + i, simd::load(words + u * ld + m + i));
            for (; u < n; ++u) std::memcpy(tile + u * MR, words + u * ld + m, MR * sizeof(float));
        }
        for (int64_t u = 0; u < n; ++u)
            for (int64_t m = full; m < rows; ++m)
                packed[full * K_words + (w + u) * (rows - full) + m - full] = words[u * ld + m];
    }
    if (!row_sums) return;
    for (int64_t m = 0; m < rows; m += W)
        simd::store_n(row_sums + m, simd::load_n(row_sums + m, rows - m) + sums[m / W], rows - m);
}

// Packs rows of a k_last A into packed (rows, K in words).
template <class Words>
void pack_rows(float* packed, const float* a, int64_t lda, int64_t K, int64_t rows) {
    const int64_t K_words = ceil_div(K, Words::size);
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t w = 0; w < K_words; w += W)
            simd::store_n(packed + m * K_words + w, Words::along(a + m * lda + w * Words::size, K - w * Words::size),
                          K_words - w);
}

}  // namespace gemm
