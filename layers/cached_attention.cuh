// Attention for generation on the Cuda device. T is the type of tensors, float or bf16; all arithmetic is in fp32.
#pragma once

#include "device/cuda/common.cuh"
#include "layers/attention/plain.cuh"
#include "layers/cached_attention.h"

namespace cached_attention {

constexpr int threads = 128, warps = threads / 32;

// One thread per key channel of qkv.
template <class T>
__global__ void __launch_bounds__(threads)
    append_kernel(KeysValues<T> kept, const T* __restrict__ qkv, int64_t count, int64_t seq, int64_t C, int64_t hs) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= count) return;
    const int64_t row = i / C, c = i % C, head = row / seq * (C / hs) + c / hs;
    const T* const k = qkv + row * 3 * C + C + c;
    const int64_t at = (head * kept.capacity + kept.past + row % seq) * hs + c % hs;
    kept.keys[at] = k[0];
    kept.values[at] = k[C];
}

// One block per head and new position. Each warp takes every fourth key, a lane every 32nd channel of it, and keeps a
// softmax of its own, whose largest score may grow (Milakov & Gimelshein 2018). The warps' sums are then added in
// order.
template <int CHANNELS, class T>
__global__ void __launch_bounds__(threads)
    forward_kernel(T* __restrict__ out, KeysValues<T> kept, const T* __restrict__ qkv, int64_t seq, int64_t C, int hs,
                   float scale) {
    __shared__ float sums[warps][32 * CHANNELS];
    __shared__ float largest[warps];
    __shared__ float denominators[warps];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t NH = C / hs, head = blockIdx.x / seq, t = blockIdx.x % seq, row = head / NH * seq + t;
    const T* const q = qkv + row * 3 * C + head % NH * hs;
    const int64_t first = head * kept.capacity * hs;
    float query[CHANNELS], sum[CHANNELS] = {}, top = -3.402823466e38f, denominator = 0;
    UNROLL for (int j = 0; j < CHANNELS; ++j) {
        const int c = lane + 32 * j;
        query[j] = c < hs ? to_float(q[c]) * scale : 0;
    }
    for (int64_t s = warp; s <= kept.past + t; s += warps) {
        const T *const k = kept.keys + first + s * hs, *const v = kept.values + first + s * hs;
        float score = 0;
        UNROLL for (int j = 0; j < CHANNELS; ++j) if (lane + 32 * j < hs) score +=
            query[j] * to_float(k[lane + 32 * j]);
        score = warp_sum(score);
        const float before = top;
        top = fmaxf(top, score);
        const float shrink = exp2f((before - top) * attention_plain::log2e);
        const float e = exp2f((score - top) * attention_plain::log2e);
        denominator = denominator * shrink + e;
        UNROLL for (int j = 0; j < CHANNELS; ++j) if (lane + 32 * j < hs) sum[j] =
            sum[j] * shrink + e * to_float(v[lane + 32 * j]);
    }
    UNROLL for (int j = 0; j < CHANNELS; ++j) sums[warp][lane + 32 * j] = sum[j];
    if (lane == 0) largest[warp] = top, denominators[warp] = denominator;
    __syncthreads();
    float total_top = largest[0], total = 0, factors[warps];
    UNROLL for (int w = 1; w < warps; ++w) total_top = fmaxf(total_top, largest[w]);
    UNROLL for (int w = 0; w < warps; ++w) {
        factors[w] = exp2f((largest[w] - total_top) * attention_plain::log2e);
        total += denominators[w] * factors[w];
    }
    T* const o = out + row * C + head % NH * hs;
    for (int c = static_cast<int>(threadIdx.x); c < hs; c += threads) {
        float x = 0;
        UNROLL for (int w = 0; w < warps; ++w) x += sums[w][c] * factors[w];
        o[c] = from_float<T>(x / total);
    }
}

}  // namespace cached_attention

// keys, values at positions past … past+seq-1 = those of qkv (B,seq,3C)
template <class T>
void append_keys_values(Cuda& dev, const KeysValues<T>& kept, const T* qkv, int64_t B, int64_t seq, int64_t C,
                        int64_t NH) {
    const Timed timed(dev, "append_keys_values", 0, 4 * prod(B, seq, C, sizeof(T)));
    using namespace cached_attention;
    const int64_t count = B * seq * C;
    if (count == 0) return;
    LAUNCH(append_kernel<T>, static_cast<unsigned>((count + threads - 1) / threads), threads, 0, dev.stream, kept, qkv,
           count, seq, C, C / NH);
}

// score = q_t·k / sqrt(C/NH) over the kept keys up to position past + t
// out (B,seq,C) = sum over these keys of softmax(score) * v        qkv (B,seq,3C); only its q are read
template <class T>
void cached_attention_forward(Cuda& dev, T* out, const KeysValues<T>& kept, const T* qkv, int64_t B, int64_t seq,
                              int64_t C, int64_t NH) {
    const Timed timed(dev, "cached_attention_forward", 4 * prod(B, seq, C, kept.past + seq), 0);
    if (B == 0 || seq == 0) return;
    const int64_t hs = C / NH;
    const float scale = 1 / std::sqrt(static_cast<float>(hs));
    const auto launch = [&]<int CHANNELS>() {
        LAUNCH((cached_attention::forward_kernel<CHANNELS, T>), static_cast<unsigned>(B * NH * seq),
               cached_attention::threads, 0, dev.stream, out, kept, qkv, seq, C, static_cast<int>(hs), scale);
    };
    if (hs > attention_plain::most_channels) throw attention_plain::too_wide(hs);
    hs <= 64 ? launch.template operator()<2>() : launch.template operator()<attention_plain::most_channels / 32>();
}
