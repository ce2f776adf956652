// Attention for generation: the keys and values of earlier positions are kept, so that a new token costs one pass of
// one position. append_keys_values stores those of new positions; then cached_attention_forward, or attention_forward
// where nothing came before, computes the output. They have no backward.
#pragma once

#include <cmath>
#include <vector>

#include "device/device.h"

// The kept keys and values of one block, (B,NH,capacity,C/NH) each: the rows of a head lie one after the other, because
// a new position reads all of them. `past` positions are filled.
template <class T>
struct KeysValues {
    T *keys, *values;
    int64_t capacity, past;
};

// keys, values at positions past … past+seq-1 = those of qkv (B,seq,3C). past + seq is at most capacity.
template <class T>
void append_keys_values(Reference<T>&, const KeysValues<T>& kept, const T* qkv, int64_t B, int64_t seq, int64_t C,
                        int64_t NH) {
    const int64_t hs = C / NH;
    for (int64_t b = 0; b < B; ++b)
        for (int64_t t = 0; t < seq; ++t)
            for (int64_t c = 0; c < C; ++c) {
                const T* const k = qkv + (b * seq + t) * 3 * C + C + c;
                const int64_t at = ((b * NH + c / hs) * kept.capacity + kept.past + t) * hs + c % hs;
                kept.keys[at] = k[0], kept.values[at] = k[C];
            }
}

// For the new position t: score = q_t·k / sqrt(C/NH) over the kept keys up to position past + t
// out (B,seq,C) = sum over these keys of softmax(score) * v        qkv (B,seq,3C); only its q are read
template <class T>
void cached_attention_forward(Reference<T>&, T* out, const KeysValues<T>& kept, const T* qkv, int64_t B, int64_t seq,
                              int64_t C, int64_t NH) {
    const int64_t hs = C / NH;
    const T scale = 1 / std::sqrt(T(hs));
    std::vector<T> scores(static_cast<size_t>(kept.past + seq));
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < NH; ++h)
            for (int64_t t = 0; t < seq; ++t) {
                const int64_t first = (b * NH + h) * kept.capacity * hs, row = b * seq + t;
                const T *const q = qkv + row * 3 * C + h * hs, *k = kept.keys + first, *v = kept.values + first;
                T* const o = out + row * C + h * hs;
                T largest = -INFINITY, sum = 0;
                for (int64_t s = 0; s <= kept.past + t; ++s) {
                    T score = 0;
                    for (int64_t i = 0; i < hs; ++i) score += q[i] * k[s * hs + i];
                    scores[static_cast<size_t>(s)] = score * scale;
                    largest = std::max(largest, score * scale);
                }
                for (int64_t i = 0; i < hs; ++i) o[i] = 0;
                for (int64_t s = 0; s <= kept.past + t; ++s) {
                    const T e = std::exp(scores[static_cast<size_t>(s)] - largest);
                    for (int64_t i = 0; i < hs; ++i) o[i] += e * v[s * hs + i];
                    sum += e;
                }
                for (int64_t i = 0; i < hs; ++i) o[i] /= sum;
            }
}
