// Causal multi-head self-attention (Vaswani et al. 2017). qkv (B,T,3C) holds q, k, v of NH heads of C/NH channels each.
// The forward saves one value per row for the backward, the log of the softmax's denominator (Dao et al. 2022), not T x
// T probabilities.
#pragma once

#include <cmath>
#include <vector>

#include "layers/dropout.h"

// The factor of the weight of key s in the softmax of a row of (B,NH,T): 1, or with dropout 0 or 1 / (1 - p).
template <class T>
T attention_factor(const Dropout& dropout, int64_t row, int64_t s, int64_t seq, int64_t NH) {
    if (!dropout.on()) return 1;
    return dropout.keeps(dropout.first_draw(row, NH * seq, seq), s) ? T(dropout.scale()) : 0;
}

// score = q·k / sqrt(C/NH) over the keys up to the query        logsumexp (B,NH,T) = log of the sum of e^score
// out (B,T,C) = sum over keys of factor * e^(score - logsumexp) * v
template <class T>
void attention_forward(Reference<T>&, T* out, T* logsumexp, const T* qkv, int64_t B, int64_t seq, int64_t C, int64_t NH,
                       const Dropout& dropout = {}) {
    const int64_t hs = C / NH;
    const T scale = 1 / std::sqrt(T(hs));
    std::vector<T> scores(static_cast<size_t>(seq));
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < NH; ++h)
            for (int64_t t = 0; t < seq; ++t) {
                const T* base = qkv + b * seq * 3 * C + h * hs;
                const T* q = base + t * 3 * C;
                T largest = -INFINITY, sum = 0;
                for (int64_t s = 0; s <= t; ++s) {
                    const T* k = base + s * 3 * C + C;
                    T score = 0;
                    for (int64_t i = 0; i < hs; ++i) score += q[i] * k[i];
                    scores[static_cast<size_t>(s)] = score * scale;
                    largest = std::max(largest, score * scale);
                }
                for (int64_t s = 0; s <= t; ++s) sum += std::exp(scores[static_cast<size_t>(s)] - largest);
                const T log_sum = largest + std::log(sum);
                const int64_t row = (b * NH + h) * seq + t;
                T* o = out + (b * seq + t) * C + h * hs;
                for (int64_t i = 0; i < hs; ++i) o[i] = 0;
                for (int64_t s = 0; s <= t; ++s) {
                    const T* v = base + s * 3 * C + 2 * C;
                    const T p = std::exp(scores[static_cast<size_t>(s)] - log_sum);
                    const T weight = attention_factor<T>(dropout, row, s, seq, NH) * p;
                    for (int64_t i = 0; i < hs; ++i) o[i] += weight * v[i];
                }
                logsumexp[row] = log_sum;
            }
}

// forward: p = e^(score - logsumexp),  out = sum of factor * p * v
// dqkv (B,T,3C) =:  dv_s = sum_t factor * p dout_t,  dscore = p * (factor * dout_t·v_s - dout_t·out_t),
//                   dq_t = sum_s dscore k_s / sqrt(hs),  dk_s = sum_t dscore q_t / sqrt(hs)
template <class T>
void attention_backward(Reference<T>&, T* dqkv, const T* dout, const T* out, const T* qkv, const T* logsumexp,
                        int64_t B, int64_t seq, int64_t C, int64_t NH, const Dropout& dropout = {}) {
    const int64_t hs = C / NH;
    const T scale = 1 / std::sqrt(T(hs));
    for (int64_t i = 0; i < B * seq * 3 * C; ++i) dqkv[i] = 0;
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < NH; ++h)
            for (int64_t t = 0; t < seq; ++t) {
                const int64_t base = b * seq * 3 * C + h * hs;
                const T *q = qkv + base + t * 3 * C, *o = out + (b * seq + t) * C + h * hs,
                        *d = dout + (b * seq + t) * C + h * hs;
                T* dq = dqkv + base + t * 3 * C;
                T dout_out = 0;
                for (int64_t i = 0; i < hs; ++i) dout_out += d[i] * o[i];
                for (int64_t s = 0; s <= t; ++s) {
                    const T *k = qkv + base + s * 3 * C + C, *v = k + C;
                    T *dk = dqkv + base + s * 3 * C + C, *dv = dk + C;
                    T score = 0, dout_v = 0;
                    for (int64_t i = 0; i < hs; ++i) score += q[i] * k[i], dout_v += d[i] * v[i];
                    const int64_t row = (b * NH + h) * seq + t;
                    const T p = std::exp(score * scale - logsumexp[row]);
                    const T factor = attention_factor<T>(dropout, row, s, seq, NH);
                    const T dscore = p * (factor * dout_v - dout_out) * scale;
                    for (int64_t i = 0; i < hs; ++i) {
                        dq[i] += dscore * k[i];
                        dk[i] += dscore * q[i];
                        dv[i] += factor * p * d[i];
                    }
                }
            }
}
