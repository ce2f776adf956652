// Token and position embedding on the Cpu.
#pragma once

#include "layers/embedding.h"
#include "layers/gemm_cpu.h"
#include "layers/simd.h"

// out (B,T,C) = wte[tokens[b,t]] + wpe[t]
inline void embedding_forward(Cpu& dev, float* out, const int32_t* tokens, const float* wte, const float* wpe,
                              int64_t B, int64_t T, int64_t C) {
    const Timed timed(dev, "embedding_forward", 0, 8 * product(B, T, C));
    using namespace simd;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < B * T; ++row) {
        const float *token = wte + tokens[row] * C, *position = wpe + row % T * C;
        for (int64_t c = 0; c < C; c += W)
            store_n(out + row * C + c, load_n(token + c, C - c) + load_n(position + c, C - c), C - c);
    }
}

// dwte (Vp,C) += dout summed over the token's places        dwpe (maxT,C) += dout summed over the batch
// A thread takes a strip of channels of all rows: no two threads add to the same place, and rows are added in order.
inline void embedding_backward(Cpu& dev, float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t B,
                               int64_t T, int64_t C) {
    const Timed timed(dev, "embedding_backward", 0, 12 * product(B, T, C));
    using namespace simd;
    const int64_t strips = (C + W - 1) / W;
#pragma omp parallel
    {
        const gemm::Range mine = gemm::part_of(strips, omp_get_num_threads(), omp_get_thread_num());
        for (int64_t row = 0; row < B * T; ++row) {
            const float* const next = dwte + tokens[std::min(row + 1, B * T - 1)] * C;  // where is known to us alone
            for (int64_t c = mine.begin * W; c < std::min(C, mine.end * W); c += W) {
                __builtin_prefetch(next + c, 1);
                const vfloat d = load_n(dout + row * C + c, C - c);
                float *token = dwte + tokens[row] * C + c, *position = dwpe + row % T * C + c;
                store_n(token, load_n(token, C - c) + d, C - c);
                store_n(position, load_n(position, C - c) + d, C - c);
            }
        }
    }
}
