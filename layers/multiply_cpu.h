// The one matrix product of the Cpu device, on all threads. Each computes its own rectangle of C with its own copies:
// nothing is shared, there are no barriers, and bits do not depend on the number of threads, since an element's sum
// runs over K in an order that depends on K only.
#pragma once

#include "layers/gemm_bf16_cpu.h"
#include "layers/gemm_cpu.h"

namespace gemm {

// What fp32 stands for with a product of these sizes: splitting costs as much as some 20 rows' or columns' products.
inline Products chosen(Products products, int64_t M, int64_t N) {
    if (products != Products::fp32) return products;
    return gemm_bf16::split_pays() && std::min(M, N) >= 32 ? Products::split : Products::fma;
}

// Calls f with gemm_bf16's number of planes for these products, 0 for gemm's; not with fp32, which is neither.
template <class F>
auto for_planes([[maybe_unused]] Products products, const F& f) {
#if defined(__AVX512BF16__)
    if (products == Products::bf16) return f(std::integral_constant<int, 1>());
    if (products == Products::split) return f(std::integral_constant<int, 3>());
#endif
    return f(std::integral_constant<int, 0>());
}

// How C is cut: nearly equal parts of whole tiles, and what the copies of a thread's rows and columns cost it: to copy
// a value takes as long as `copy` multiply-adds; rows of A are copied once for each `block_columns`.
struct Cut {
    int64_t tile_rows, tile_columns, block_columns;
    bool copies_a;
    int64_t copy;
};

inline Cut cut_of(Products products, Order a) {
    return for_planes(products, [=]([[maybe_unused]] auto planes) -> Cut {
#if defined(__AVX512BF16__)
        constexpr int64_t side = gemm_bf16::side, all_columns = int64_t{1} << 40;
        if constexpr (planes > 0) return {side, side, all_columns, true, planes == 1 ? 75 : 50};
#endif
        return {MR, NR, NC, a == Order::k_first, 20};
    });
}

// How many threads C (M,N) is cut among across its columns; the others, threads / across of them, go down its rows.
// The least of what one thread has to do: its products, and copying its columns of B and its rows of A.
inline int64_t threads_across(int64_t threads, int64_t M, int64_t N, const Cut& cut) {
    int64_t best = 1, least = 0;
    for (int64_t across = 1; across <= threads; ++across) {
        if (threads % across) continue;
        const int64_t rows = ceil_div(ceil_div(M, cut.tile_rows), threads / across) * cut.tile_rows,
                      columns = ceil_div(ceil_div(N, cut.tile_columns), across) * cut.tile_columns;
        const int64_t work =
            rows * columns + cut.copy * (columns + (cut.copies_a ? rows * ceil_div(columns, cut.block_columns) : 0));
        if (across == 1 || work < least) best = across, least = work;
    }
    return best;
}

// What a product takes of each thread's scratch memory. Of fp32: of the larger of its two ways.
inline int64_t scratch_floats(Products products) {
    if (products == Products::fp32)
        return std::max(scratch_floats(Products::fma), gemm_bf16::split_pays() ? scratch_floats(Products::split) : 0);
    return for_planes(products, []([[maybe_unused]] auto planes) {
#if defined(__AVX512BF16__)
        if constexpr (planes > 0) return gemm_bf16::scratch_floats<planes>();
#endif
        return scratch_floats();
    });
}

// gemm::block or gemm_bf16::block: C's rectangle [rows) x [columns) on the calling thread. `memory`: scratch_floats().
template <Order A, Order B, class... Arguments>
void block_in(Products products, Arguments&&... arguments) {
    for_planes(products, [&]([[maybe_unused]] auto planes) {
#if defined(__AVX512BF16__)
        if constexpr (planes > 0) return gemm_bf16::block<planes, A, B>(std::forward<Arguments>(arguments)...);
#endif
        block<A, B>(std::forward<Arguments>(arguments)...);
    });
}

// C (M,N) = A · B, += with `accumulate`; then the epilogue. row_sums (M) += A's sums over k (k_first only), if not
// null. cpu.products says how.
template <Order A, Order B, class Epilogue = NoEpilogue>
void multiply(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, int64_t lda, const float* b, int64_t ldb,
              float* c, int64_t ldc, bool accumulate, const Epilogue& epilogue = {}, float* row_sums = nullptr) {
    const Products products = chosen(cpu.products, M, N);
    const Cut cut = cut_of(products, A);
#pragma omp parallel
    {
        const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        const int64_t across = threads_across(threads, M, N, cut);
        const Range n = part_of(ceil_div(N, cut.tile_columns), across, me % across);
        const Range m = part_of(ceil_div(M, cut.tile_rows), threads / across, me / across);
        block_in<A, B>(products, cpu.scratch(scratch_floats(products)),
                       Range{m.begin * cut.tile_rows, std::min(M, m.end * cut.tile_rows)},
                       Range{n.begin * cut.tile_columns, std::min(N, n.end * cut.tile_columns)}, K, a, lda, b, ldb, c,
                       ldc, accumulate, epilogue, row_sums);
    }
}

}  // namespace gemm
