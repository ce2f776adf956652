// Dropout on the Cuda device. T is the type of tensors, float or bf16. `place` is in device memory.
#pragma once

#include "device/cuda/common.cuh"
#include "layers/dropout.h"

// Each thread computes the 8 values of one draw; the last draw of a row may have fewer.
template <bool PACKED, class T>
__global__ void __launch_bounds__(elements_block)
    apply_dropout_kernel(T* out, const T* inp, const T* residual, Dropout dropout, float scale, int64_t N, int64_t seq,
                         int64_t C) {
    const int64_t draws = (C + 7) / 8, thread = int64_t{blockIdx.x} * elements_block + threadIdx.x;
    if (thread >= N * draws) return;
    const int64_t row = thread / draws, c = thread % draws * 8, i = row * C + c;
    const Philox drawn = dropout.draw(dropout.first_draw(row, seq, C) + static_cast<uint64_t>(c / 8));
    const auto apply = [&](float x, int v) { return drawn.bits16(v) >= dropout.threshold ? x * scale : 0; };
    if constexpr (PACKED) {
        float x[8], sum[8];
        load(x, inp + i);
        load_or(sum, residual, i, 0);
        UNROLL for (int v = 0; v < 8; ++v) sum[v] += apply(x[v], v);
        store(out + i, sum);
    } else {
        UNROLL for (int v = 0; v < 8; ++v) if (c + v < C) out[i + v] =
            from_float<T>((residual ? to_float(residual[i + v]) : 0) + apply(to_float(inp[i + v]), v));
    }
}

// out (B,T,C) = residual + mask * inp / (1 - p); residual may be null, and out may be inp or residual.
template <class T>
void apply_dropout(Cuda& dev, T* out, const T* inp, const T* residual, const Dropout& dropout, int64_t B, int64_t seq,
                   int64_t C) {
    const Timed timed(dev, "dropout", 0, (residual ? 3 : 2) * prod(B, seq, C, sizeof(T)));
    const int64_t N = B * seq, threads = N * ((C + 7) / 8);
    if (threads == 0) return;
    const auto blocks = static_cast<unsigned>((threads + elements_block - 1) / elements_block);
    const auto scale = static_cast<float>(dropout.scale());
    if (C % 8 == 0 && can_pack<T>(C, out, inp, residual))
        LAUNCH((apply_dropout_kernel<true, T>), blocks, elements_block, 0, dev.stream, out, inp, residual, dropout,
               scale, N, seq, C);
    else
        LAUNCH((apply_dropout_kernel<false, T>), blocks, elements_block, 0, dev.stream, out, inp, residual, dropout,
               scale, N, seq, C);
}
