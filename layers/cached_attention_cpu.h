// Attention for generation on the Cpu. A head of a sequence belongs to one thread, so that the bits do not depend on
// the number of threads.
#pragma once

#include <algorithm>

#include "layers/cached_attention.h"
#include "device/cpu/rows.h"
#include "device/cpu/simd.h"

namespace cached_attention {

// Floats of scratch memory of each thread: the scores of a position.
inline int64_t scratch_floats(int64_t capacity) { return capacity; }

// scores (n) = q·k scaled, for the keys (n,hs). Returns the largest.
inline float scores_of(float* scores, const float* q, const float* keys, int64_t n, int64_t hs, float scale) {
    float largest = -INFINITY;
    for (int64_t s = 0; s < n; ++s) {
        const float* const k = keys + s * hs;
        simd::vfloat parts[4] = {};
        each_vector(hs, [&](int64_t c, int64_t left, int part) {
            parts[part] = simd::fma(simd::load_n(q + c, left), simd::load_n(k + c, left), parts[part]);
        });
        scores[s] = sum(parts) * scale;
        if (!(scores[s] <= largest)) largest = scores[s];  // NaN stays visible
    }
    return largest;
}

// scores (n) = e^(score - largest). Returns their sum.
inline float exponentials(float* scores, int64_t n, float largest) {
    simd::vfloat total{};
    simd::map(scores, n, [&](simd::vfloat x, int64_t, int64_t left) {
        const simd::vfloat e = simd::exp(x - largest);
        total += simd::first(e, left);
        return e;
    });
    return simd::sum(total);
}

// out (lanes of VECTORS vectors) = factor * sum over n rows of weights * values, whose rows are hs apart.
template <int VECTORS>
void weighted_sum(float* out, const float* weights, const float* values, int64_t n, int64_t hs, int64_t lanes,
                  float factor) {
    simd::vfloat sums[VECTORS] = {};
    for (int64_t s = 0; s < n; ++s)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; ++j) {
            const int64_t c = j * simd::W;
            sums[j] = simd::fma(simd::set1(weights[s]), simd::load_n(values + s * hs + c, lanes - c), sums[j]);
        }
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; ++j) simd::store_n(out + j * simd::W, sums[j] * factor, lanes - j * simd::W);
}

}  // namespace cached_attention

// keys, values at positions past … past+T-1 = those of qkv (B,T,3C)
inline void append_keys_values(Cpu& dev, const KeysValues<float>& kept, const float* qkv, int64_t B, int64_t T,
                               int64_t C, int64_t NH) {
    const Timed timed(dev, "append_keys_values", 0, 16 * prod(B, T, C));
    const int64_t hs = C / NH;
    parallel_for(B * NH, [&](int64_t head) {
        for (int64_t t = 0; t < T; ++t) {
            const float* const k = qkv + (head / NH * T + t) * 3 * C + C + head % NH * hs;
            const int64_t at = (head * kept.capacity + kept.past + t) * hs;
            std::copy_n(k, hs, kept.keys + at);
            std::copy_n(k + C, hs, kept.values + at);
        }
    });
}

// score = q_t·k / sqrt(C/NH) over the kept keys up to position past + t
// out (B,T,C) = sum over these keys of softmax(score) * v        qkv (B,T,3C); only its q are read
inline void cached_attention_forward(Cpu& dev, float* out, const KeysValues<float>& kept, const float* qkv, int64_t B,
                                     int64_t T, int64_t C, int64_t NH) {
    const Timed timed(dev, "cached_attention_forward", 4 * prod(B, T, C, kept.past + T), 0);
    const int64_t hs = C / NH;
    const float scale = 1 / std::sqrt(static_cast<float>(hs));
    const int64_t floats = cached_attention::scratch_floats(kept.capacity);
    dev.reserve(floats);
    parallel_for(B * NH, [&](int64_t head) {
        using namespace cached_attention;
        const float *const keys = kept.keys + head * kept.capacity * hs, *const values =
                                                                             kept.values + head * kept.capacity * hs;
        float* const scores = dev.scratch(floats);
        for (int64_t t = 0; t < T; ++t) {
            const int64_t row = head / NH * T + t, n = kept.past + t + 1;
            const float* const q = qkv + row * 3 * C + head % NH * hs;
            float* const o = out + row * C + head % NH * hs;
            const float largest = scores_of(scores, q, keys, n, hs, scale);
            const float factor = 1 / exponentials(scores, n, largest);
            int64_t c = 0;
            for (; c + 4 * simd::W <= hs; c += 4 * simd::W)
                weighted_sum<4>(o + c, scores, values + c, n, hs, 4 * simd::W, factor);
            for (; c < hs; c += simd::W)
                weighted_sum<1>(o + c, scores, values + c, n, hs, std::min<int64_t>(simd::W, hs - c), factor);
        }
    });
}
