// Tensor cores and their data paths through shared memory, one function for each PTX instruction. NVIDIA's PTX ISA
// describes which elements of a matrix a lane holds, under the instruction's name. The emulator has its own file of
// this name (dev/emulator/include/).
#pragma once

#include "device/cuda/common.cuh"

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// d (16,8) += a (16,16) * b (16,8): a and b of bf16, d in fp32
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four matrices (8,8) of 16-bit numbers from shared memory: lane 8 * i + j gives the address of row j of the
// i-th.
__device__ __forceinline__ void ldmatrix(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// Does the same with each matrix transposed.
__device__ __forceinline__ void ldmatrix_transposed(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Begins to copy 16 bytes from global to shared memory, bypassing L1. Copies zeros if not `present`.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool present = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(present ? 16 : 0)
                 : "memory");
}
// The thread's copies since the last call become a group.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all of the thread's groups but the last N; other threads see them after a barrier.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// 2^x with an error of 2 units in the last place. Results below 2^-126 are 0.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two numbers as bf16, the first in the lower half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned packed_pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed_pair) : "f"(high), "f"(low));
    return packed_pair;
}
