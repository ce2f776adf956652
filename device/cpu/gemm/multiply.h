// The one matrix product of the Cpu device, on all threads. Each computes its own rectangle of C with its own copies:
// nothing is shared, and there are no barriers but where two halves of K are added (sums_halves in multiply_cpu.cpp).
// Bits do not depend on the number of threads: an element's sum runs over K in an order that depends on sizes only.
#pragma once

#include "device/device.h"
#include "device/cpu/gemm/gemm_amx.h"
#include "device/cpu/gemm/gemm.h"

namespace gemm {

// What fp32 stands for with a product of these sizes: splitting costs as much as some 20 rows' or columns' products.
inline Products chosen(Products products, int64_t M, int64_t N) {
    if (products != Products::fp32) return products;
    return amx::permitted() && std::min(M, N) >= 32 ? Products::split : Products::fma;
}

// Calls f with what these products are made of: gemm's words or AMX's planes; not with fp32, which may be either.
template <class F>
auto for_kind([[maybe_unused]] Products products, const F& f) {
#if defined(__AMX_BF16__)
    if (products == Products::bf16 && amx::permitted()) return f(amx::Planes<1>());
    if (products == Products::split && amx::permitted()) return f(amx::Planes<3>());
#endif
#if defined(__AVX512BF16__)
    if (products == Products::bf16) return f(Bf16Pairs());
#endif
    return f(Floats());
}

constexpr int64_t most_halved = 1 << 18;  // C's size up to which K may be cut into halves, whose products are added

// Scratch memory of each thread for any matmul, in floats. For fp32 it is enough for both ways.
int64_t scratch_floats(Products products);

// Floats of Cpu::halves() for C (M,N) = A (M,K) · B: 0 where C is not the sum of two halves.
int64_t halves_floats(Order a, int64_t M, int64_t N, int64_t K);

// gemm::block or amx::block: C's rectangle [rows) x [columns) on the calling thread. `memory`: scratch_floats().
template <Order A, Order B>
void block_in(Products products, float* memory, Range rows, Range columns, int64_t K, const float* a, int64_t lda,
              const float* b, int64_t ldb, float* c, int64_t ldc, Store store, EpilogueRef epilogue, float* row_sums);

// C (M,N) = A · B, += with Store::add; then the epilogue. Store::past_caches is for what is not read soon, without an
// epilogue: it is a wish, and C = A · B in any case. row_sums (M) += A's sums over k, if not null (k_first A only,
// which has no epilogue). cpu.products says how.
template <Order A, Order B>
void multiply(Cpu& cpu, int64_t M, int64_t N, int64_t K, const float* a, int64_t lda, const float* b, int64_t ldb,
              float* c, int64_t ldc, Store store, EpilogueRef epilogue = {}, float* row_sums = nullptr);

}  // namespace gemm
