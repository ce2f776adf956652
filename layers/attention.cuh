// Causal multi-head self-attention on the Cuda device (layers/attention.h). T is the type of tensors, float or bf16.
#pragma once

#include "layers/attention.h"
#include "layers/attention/backward.cuh"
#include "layers/attention/forward.cuh"
#include "layers/attention/plain.cuh"

// score = q·k / sqrt(C/NH) over the keys up to the query        logsumexp (B,NH,T) = log of the sum of e^score
// out (B,T,C) = sum over keys of factor * e^(score - logsumexp) * v; factor is 1, or with dropout 0 or 1 / (1 - p)
template <class T>
void attention_forward(Cuda& dev, T* out, float* logsumexp, const T* qkv, int64_t B, int64_t seq, int64_t C, int64_t NH,
                       const Dropout& dropout = {}) {
    const Timed timed(dev, "attention_forward", 2 * prod(B, seq, seq + 1, C), 4 * prod(B, seq, C, sizeof(T)));
    if (B == 0 || seq == 0) return;
    if constexpr (std::is_same_v<T, bf16>)
        if (attention_mma::forward(dev, out, logsumexp, qkv, B, seq, C, NH, dropout)) return;
    attention_plain::forward(dev, out, logsumexp, qkv, B, seq, C, NH, dropout);
}

// forward: p = e^(score - logsumexp),  out = sum of factor * p * v
// dqkv (B,T,3C) =:  dv_s = sum_t factor * p dout_t,  dscore = p * (factor * dout_t·v_s - dout_t·out_t),
//                   dq_t = sum_s dscore k_s / sqrt(hs),  dk_s = sum_t dscore q_t / sqrt(hs)
template <class T>
void attention_backward(Cuda& dev, T* dqkv, const T* dout, const T* out, const T* qkv, const float* logsumexp,
                        int64_t B, int64_t seq, int64_t C, int64_t NH, const Dropout& dropout = {}) {
    const Timed timed(dev, "attention_backward", 5 * prod(B, seq, seq + 1, C), 8 * prod(B, seq, C, sizeof(T)));
    if (B == 0 || seq == 0) return;
    if constexpr (std::is_same_v<T, bf16>)
        if (attention_mma::backward(dev, dqkv, dout, out, qkv, logsumexp, B, seq, C, NH, dropout)) return;
    attention_plain::backward(dev, dqkv, dout, out, qkv, logsumexp, B, seq, C, NH, dropout);
}
