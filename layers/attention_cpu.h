// Causal attention on the Cpu.
#pragma once

#include "layers/attention.h"

// score = q·k / sqrt(C/NH) over the keys up to the query        logsumexp (B,NH,T) = log of the sum of e^score
// out (B,T,C) = sum over keys of factor * e^(score - logsumexp) * v        qkv (B,T,3C)
// factor is 1, or with dropout 0 or 1 / (1 - p).
void attention_forward(Cpu& dev, float* out, float* logsumexp, const float* qkv, int64_t B, int64_t T, int64_t C,
                       int64_t NH, const Dropout& dropout = {});

// forward: p = e^(score - logsumexp),  out = sum of factor * p * v
// dqkv (B,T,3C) =:  dv_s = sum_t factor * p dout_t,  dscore = p * (factor * dout_t·v_s - dout_t·out_t),
//                   dq_t = sum_s dscore k_s / sqrt(hs),  dk_s = sum_t dscore q_t / sqrt(hs)
void attention_backward(Cpu& dev, float* dqkv, const float* dout, const float* out, const float* qkv,
                        const float* logsumexp, int64_t B, int64_t T, int64_t C, int64_t NH,
                        const Dropout& dropout = {});

// Scratch memory of each thread, in floats.
int64_t attention_forward_scratch(int64_t T, int64_t C, int64_t NH, MatmulKind matmul_kind);
int64_t attention_backward_scratch(int64_t T, int64_t C, int64_t NH, MatmulKind matmul_kind);
