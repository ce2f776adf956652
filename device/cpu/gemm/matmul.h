// The GEMM of the Cpu device on all threads. Each thread computes its own rectangle of C with its own packed operands:
// nothing is shared, and the only barrier is where two halves of K are added (sums_halves in matmul.cpp). The bits do
// not depend on the number of threads: an element's sum runs over K in an order that depends on sizes only.
#pragma once

#include "device/device.h"
#include "device/cpu/gemm/gemm_amx.h"
#include "device/cpu/gemm/gemm.h"

namespace gemm {

// The kind that fp32 stands for at these sizes: splitting costs as much as some 20 rows or columns of the matmul.
inline MatmulKind chosen(MatmulKind matmul_kind, int64_t M, int64_t N) {
    if (matmul_kind != MatmulKind::fp32) return matmul_kind;
    return amx::permitted() && std::min(M, N) >= 32 ? MatmulKind::split : MatmulKind::fma;
}

// Calls f with the kind of words (gemm) or planes (AMX). Not for fp32, which may be either.
template <class F>
auto for_kind([[maybe_unused]] MatmulKind matmul_kind, const F& f) {
#if defined(__AMX_BF16__)
    if (matmul_kind == MatmulKind::bf16 && amx::permitted()) return f(amx::Planes<1>());
    if (matmul_kind == MatmulKind::split && amx::permitted()) return f(amx::Planes<3>());
#endif
#if defined(__AVX512BF16__)
    if (matmul_kind == MatmulKind::bf16) return f(Bf16Pairs());
#endif
    return f(Floats());
}

// Calls f with the smallest words of which the memory of matmul's A may consist (StoredA).
template <class F>
auto for_stored([[maybe_unused]] MatmulKind matmul_kind, const F& f) {
#if defined(__AVX512BF16__)
    if (matmul_kind == MatmulKind::bf16) return f(Bf16Pairs());
#endif
    return f(Floats());
}

// Whether B, stored along K, is read in place for A of M rows (few_rows.h), without scratch memory.
constexpr int64_t few_rows = 16;  // packing a value of B costs as much as 20 FMAs (cut_of in matmul.cpp)
inline bool reads_in_place(MatmulKind chosen_kind, int64_t M) {
    return M <= few_rows && chosen_kind == MatmulKind::fma;
}

// Whether all of K fits in one block, so that the sums of a tile are complete before any of them is written to C.
bool one_block(MatmulKind chosen_kind, int64_t K);

constexpr int64_t most_halved = 1 << 18;  // the largest C for which K may be cut into halves

// Scratch memory of each thread for any matmul, in floats. For fp32 it is enough for both kinds, fma and split.
int64_t scratch_floats(MatmulKind matmul_kind);

// Floats of Cpu::halves() for C (M,N) = A (M,K) · B, or 0 if C is not computed as the sum of two halves.
int64_t halves_floats(Order a, int64_t M, int64_t N, int64_t K);

// Computes C's rectangle [rows) x [columns) on the calling thread, by gemm::block or amx::block. `memory` is scratch
// memory of scratch_floats() floats.
template <Order A, Order B, class StoredA = Floats>
void block_in(MatmulKind matmul_kind, float* memory, Range rows, Range columns, int64_t K, const float* a, int64_t lda,
              const float* b, int64_t ldb, float* c, int64_t ldc, Store store, EpilogueRef epilogue, float* row_sums);

// The lower part of C (n,n) = A (n,K) · B, computed on the calling thread as block_in does.
template <Order A, Order B>
void lower_part_in(MatmulKind matmul_kind, float* memory, int64_t n, int64_t K, const float* a, int64_t lda,
                   const float* b, int64_t ldb, float* c, int64_t ldc);

// Floats of scratch memory that each thread needs for matmul_weights with M rows of K values.
int64_t weights_scratch_floats(MatmulKind matmul_kind, WeightType weights, int64_t M, int64_t K);

// C (M,N) = A (M,K) · Bᵀ, then the epilogue, where B (N,K) is a weight matrix, stored as cpu.weights says. C's rows lie
// ldc floats apart, N if it is left out.
void matmul_weights(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, const float* weights, float* c,
                    int64_t ldc, EpilogueRef epilogue = {});
inline void matmul_weights(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, const float* weights, float* c,
                           EpilogueRef epilogue = {}) {
    matmul_weights(cpu, M, N, K, a, weights, c, N, epilogue);
}

// C (M,N) = A · B, += with Store::add; then the epilogue. Store::stream is a hint, for results that are not read
// soon and have no epilogue; in any case C = A · B. row_sums (M), if not null: += A's sums over K (k_first A only,
// which has no epilogue). cpu.matmul_kind chooses the kind. StoredA: A's memory consists of these words, of neighbours
// in a row; lda counts words, a k_last row of an odd number of values ends in a zero, and row_sums is null.
template <Order A, Order B, class StoredA = Floats>
void matmul(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, int64_t lda, const float* b, int64_t ldb,
            float* c, int64_t ldc, Store store, EpilogueRef epilogue = {}, float* row_sums = nullptr);

}  // namespace gemm
