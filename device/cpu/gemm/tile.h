// A tile of C in registers: the kernel that computes it from A and a panel of packed B.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "device/cpu/gemm/order.h"
#include "device/cpu/gemm/prefetch_schedule.h"
#include "device/cpu/gemm/sizes.h"
#include "device/cpu/gemm/words.h"

namespace gemm {

// c (M,lanes) [+]= A (M,K) · the first NV vectors of each row of panel (K,PV vectors), K in words; ldc is c's row
// length.
template <class Words, int M, int NV, int PV, Order A>
void multiply_tile(int64_t K, const float* a, int64_t lda, const float* panel, float* c, int64_t ldc, Store how,
                   int64_t lanes, const PrefetchLines& prefetches) {
    vfloat acc[M][NV];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) acc[i][j] = vfloat{};
    const auto step = [&](int64_t k) __attribute__((always_inline)) {
        vfloat b[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) b[j] = simd::load(panel + (k * PV + j) * W);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
            const vfloat x = Words::set1(A == Order::k_last ? a[i * lda + k] : a[k * lda + i]);
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) acc[i][j] = Words::multiply_add(x, b[j], acc[i][j]);
        }
    };
    int64_t k = 0;
    for (int row = 0; k + PrefetchLines::step <= K; k += PrefetchLines::step) {
        for (const int two = row + 2; row < std::min(two, M); ++row) prefetches.issue_row_of_c(row, NV * W);
        prefetches.issue(k);
#pragma GCC unroll 8
        for (int u = 0; u < PrefetchLines::step; ++u) step(k + u);
    }
    for (int u = 1; u < PrefetchLines::step && k < K; ++u, ++k) step(k);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            float* p = c + i * ldc + j * W;
            const int64_t n = lanes - j * W;
            if (n >= W && how == Store::stream)
                simd::stream(p, acc[i][j]);
            else if (n >= W)
                simd::store(p, how == Store::add ? simd::load(p) + acc[i][j] : acc[i][j]);
            else if (n > 0)
                simd::store_n(p, how == Store::add ? simd::load_n(p, n) + acc[i][j] : acc[i][j], n);
        }
}

using TileKernel = void (*)(int64_t, const float*, int64_t, const float*, float*, int64_t, Store, int64_t,
                            const PrefetchLines&);

template <class Words, Order A, int NV, size_t... I>
constexpr std::array<TileKernel, sizeof...(I)> tile_kernels(std::index_sequence<I...>) {
    return {multiply_tile<Words, static_cast<int>(I) + 1, NV, NV, A>...};
}
// The kernel for tiles of M rows, 1 <= M <= max_rows(NV), and panels of NV vectors.
template <Order A, int NV, class Words = Floats>
TileKernel tile_kernel(int64_t M) {
    static constexpr auto table = tile_kernels<Words, A, NV>(std::make_index_sequence<max_rows(NV)>());
    return table[static_cast<size_t>(M - 1)];
}
// The kernel for tiles of MR rows and the first NV of a panel's PV vectors.
template <Order A, int NV, int PV, class Words>
constexpr TileKernel first_columns_kernel = multiply_tile<Words, MR, NV, PV, A>;

}  // namespace gemm
