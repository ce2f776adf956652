// The PTX instructions of device/cuda/mma.cuh on the CPU, with the layouts of NVIDIA's PTX ISA 9, sections 9.7.14.5.8
// (mma.m16n8k16) and 9.7.14.5.15 (ldmatrix .m8n8.x4). With g = lane / 4 and t = lane % 4, a lane holds, lower half of a
// register first:
//   a[i]  row g + 8 * (i % 2), columns 2t + 8 * (i / 2) and the next        b[i]  rows 2t + 8i and the next, column g
//   d[i]  row g + 8 * (i / 2), column 2t + i % 2
//   r[i]  of ldmatrix's i-th matrix: row g, columns 2t and the next; with .trans rows 2t and the next, column g
// The bytes of cp.async arrive at the wait, not before. Until then they are NaN, and unwritten for the checks of
// accesses.
#pragma once

#include "dev/emulator/cuda_on_cpu.h"

namespace emulator {
void mma(float* d, const unsigned* a, const unsigned* b, Site site);
void ldmatrix(unsigned* r, const void* row, bool transposed, Site site);
void copy_async(void* shared, const void* global, size_t bytes, Site site);
void commit_copies();
void wait_for_copies(size_t but);

// For blocks: a block starts, without unfinished copies; and the current thread leaves the kernel.
void copies_begin();
void copies_end();
}  // namespace emulator

inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], EMULATOR_SITE) {
    emulator::mma(d, a, b, site);
}
__forceinline__ void ldmatrix(unsigned (&r)[4], const void* row, EMULATOR_SITE) {
    emulator::ldmatrix(r, row, false, site);
}
__forceinline__ void ldmatrix_transposed(unsigned (&r)[4], const void* row, EMULATOR_SITE) {
    emulator::ldmatrix(r, row, true, site);
}
__forceinline__ void copy_async(void* shared, const void* global, bool present = true, EMULATOR_SITE) {
    emulator::copy_async(shared, global, present ? 16 : 0, site);
}
inline void commit_copies() { emulator::commit_copies(); }
template <int N>
__forceinline__ void wait_for_copies() {
    emulator::wait_for_copies(N);
}

inline float exp2_approx(float x) {
    const float y = std::exp2(x);
    return y < 0x1p-126f ? 0 : y;  // NaN stays
}
inline unsigned pack_bf16(float low, float high) {
    const auto half = [](float x) {
        const unsigned bits = std::bit_cast<unsigned>(x), nan = bits | 0x400000;
        return (x == x ? bits + 0x7fff + (bits >> 16 & 1) : nan) >> 16;
    };
    return half(low) | half(high) << 16;
}
