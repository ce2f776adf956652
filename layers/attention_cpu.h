// Causal attention on the Cpu. A thread takes one head of one sequence; a block of queries meets all its keys at once,
// so what is stored of the scores is a block's rows (at most 48 x T), and softmax is exact and in one go.
#pragma once

#include <cstring>

#include "layers/attention.h"
#include "layers/gemm_cpu.h"
#include "layers/simd.h"

namespace attention {

using gemm::Order;
using gemm::Range;

constexpr int NV = 2, NR = NV * simd::W, MR = gemm::max_rows(NV);  // a head's 64 values are whole panels

// Queries are cut into nearly equal blocks of at most 4 tiles.
inline int64_t query_blocks(int64_t T) { return gemm::ceil_div(T, 4 * MR); }
// Row length of a block of scores: odd in cache lines, or the rows of a power of two would fall on the same L1 set.
inline int64_t score_stride(int64_t T) { return (gemm::ceil_div(T, 32) * 2 + 1) * 16; }
inline int64_t panel_floats(int64_t columns, int64_t K) { return gemm::ceil_div(columns, NR) * NR * K; }

// Panels of NR columns of B (K,N), each K rows long.
template <Order B>
void pack(float* panels, const float* b, int64_t ldb, int64_t K, int64_t N) {
    for (int64_t n = 0; n < N; n += NR)
        gemm::pack_panel<B, NV>(panels + n * K, b + (B == Order::k_last ? n * ldb : n), ldb, K,
                                std::min<int64_t>(NR, N - n));
}

// c (M,N) [+]= A (M,K) · panels (K,N) where a panel is `panel_rows` >= K long
template <Order A>
void multiply(int64_t M, int64_t N, int64_t K, const float* a, int64_t lda, const float* panels, int64_t panel_rows,
              float* c, int64_t ldc, bool accumulate) {
    const int64_t k_blocks = gemm::ceil_div(K, gemm::KC), m_tiles = gemm::ceil_div(M, MR);
    for (int64_t kb = 0; kb < k_blocks; ++kb) {
        const Range k = gemm::part_of(K, k_blocks, kb);
        for (int64_t n = 0; n < N; n += NR)
            for (int64_t i = 0; i < m_tiles; ++i) {
                const Range m = gemm::part_of(M, m_tiles, i);
                const float* rows = a + (A == Order::k_last ? m.begin * lda + k.begin : k.begin * lda + m.begin);
                gemm::tile<A, NV>(m.size())(k.size(), rows, lda, panels + n * panel_rows + k.begin * NR,
                                            c + m.begin * ldc + n, ldc, accumulate || kb > 0,
                                            std::min<int64_t>(NR, N - n));
            }
    }
}

}  // namespace attention

// score = q·k / sqrt(C/NH) over the keys up to the query        logsumexp (B,NH,T) = log of the sum of e^score
// out (B,T,C) = sum over keys of e^(score - logsumexp) * v        qkv (B,T,3C)
inline void attention_forward(Cpu& dev, float* out, float* logsumexp, const float* qkv, int64_t B, int64_t T, int64_t C,
                              int64_t NH) {
    const Timed timed(dev, "attention_forward", 2 * product(B, T, T + 1, C), 16 * product(B, T, C));
    using namespace attention;
    using simd::vfloat;
    const int64_t hs = C / NH, blocks = query_blocks(T), stride = score_stride(T);
    const float scale = 1 / std::sqrt(static_cast<float>(hs));
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < NH; ++h) {
            const float *q = qkv + b * T * 3 * C + h * hs, *k = q + C, *v = k + C;
            float* const keys = dev.scratch(panel_floats(T, hs) + panel_floats(hs, T) + 4 * MR * stride);
            float* const values = keys + panel_floats(T, hs);
            float* const scores = values + panel_floats(hs, T);
            pack<Order::k_last>(keys, k, 3 * C, hs, T);
            pack<Order::k_first>(values, v, 3 * C, T, hs);
            for (int64_t i = 0; i < blocks; ++i) {
                const Range queries = gemm::part_of(T, blocks, i);
                multiply<Order::k_last>(queries.size(), queries.end, hs, q + queries.begin * 3 * C, 3 * C, keys, hs,
                                        scores, stride, false);
                float inverse[4 * MR];
                for (int64_t t = queries.begin; t < queries.end; ++t) {
                    float* const row = scores + (t - queries.begin) * stride;
                    const int64_t n = t + 1;
                    vfloat largest = simd::set1(row[0]);
                    for (int64_t s = 0; s < n; s += simd::W)
                        largest = simd::max(largest, simd::first(simd::load_n(row + s, n - s), n - s, row[0]));
                    const float top = simd::max(largest);
                    vfloat total{};
                    simd::map(row, n, [&](vfloat x, int64_t, int64_t left) {
                        const vfloat e = simd::exp((x - top) * scale);
                        total += simd::first(e, left);
                        return e;
                    });
                    std::fill(row + n, row + queries.end, 0.0f);
                    const float sum = simd::sum(total);
                    inverse[t - queries.begin] = 1 / sum;
                    logsumexp[(b * NH + h) * T + t] = top * scale + std::log(sum);
                }
                float* const o = out + (b * T + queries.begin) * C + h * hs;
                multiply<Order::k_last>(queries.size(), hs, queries.end, scores, stride, values, T, o, C, false);
                for (int64_t r = 0; r < queries.size(); ++r)
                    simd::map(o + r * C, hs, [=](vfloat x, int64_t, int64_t) { return x * inverse[r]; });
            }
        }
}

// forward: p = e^(score - logsumexp),  out = sum of p * v
// dqkv (B,T,3C) =:  dv_s = sum_t p dout_t,  dscore = p * (dout_t·v_s - dout_t·out_t),
//                   dq_t = sum_s dscore k_s / sqrt(hs),  dk_s = sum_t dscore q_t / sqrt(hs)
inline void attention_backward(Cpu& dev, float* dqkv, const float* dout, const float* out, const float* qkv,
                               const float* logsumexp, int64_t B, int64_t T, int64_t C, int64_t NH) {
    const Timed timed(dev, "attention_backward", 5 * product(B, T, T + 1, C), 32 * product(B, T, C));
    using namespace attention;
    using simd::vfloat;
    const int64_t hs = C / NH, blocks = query_blocks(T), stride = score_stride(T), block_rows = 4 * MR;
    const float scale = 1 / std::sqrt(static_cast<float>(hs));
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < NH; ++h) {
            const float *q = qkv + b * T * 3 * C + h * hs, *k = q + C, *v = k + C;
            float *dq = dqkv + b * T * 3 * C + h * hs, *dk = dq + C, *dv = dk + C;
            float* const keys_last =
                dev.scratch(2 * panel_floats(T, hs) + panel_floats(hs, T) + 2 * panel_floats(hs, block_rows) +
                            2 * block_rows * stride + 2 * T * hs);
            float* const values_last = keys_last + panel_floats(T, hs);
            float* const keys_first = values_last + panel_floats(T, hs);
            float* const queries_first = keys_first + panel_floats(hs, T);
            float* const dout_first = queries_first + panel_floats(hs, block_rows);
            float* const p = dout_first + panel_floats(hs, block_rows);
            float* const dscores = p + block_rows * stride;
            float *const dk_sum = dscores + block_rows * stride, *const dv_sum = dk_sum + T * hs;  // (T,hs) each
            pack<Order::k_last>(keys_last, k, 3 * C, hs, T);
            pack<Order::k_last>(values_last, v, 3 * C, hs, T);
            pack<Order::k_first>(keys_first, k, 3 * C, T, hs);
            std::fill(dk_sum, dk_sum + 2 * T * hs, 0.0f);
            for (int64_t i = 0; i < blocks; ++i) {
                const Range queries = gemm::part_of(T, blocks, i);
                const int64_t rows = queries.size(), keys = queries.end;
                const float *q_block = q + queries.begin * 3 * C,
                            *d_block = dout + (b * T + queries.begin) * C + h * hs;
                multiply<Order::k_last>(rows, keys, hs, q_block, 3 * C, keys_last, hs, p, stride, false);
                multiply<Order::k_last>(rows, keys, hs, d_block, C, values_last, hs, dscores, stride, false);
                for (int64_t t = queries.begin; t < queries.end; ++t) {
                    const float *d = d_block + (t - queries.begin) * C, *o = out + (b * T + t) * C + h * hs;
                    vfloat products{};
                    for (int64_t c = 0; c < hs; c += simd::W)
                        products = simd::fma(simd::load_n(d + c, hs - c), simd::load_n(o + c, hs - c), products);
                    const float dout_out = simd::sum(products), log_sum = logsumexp[(b * NH + h) * T + t];
                    float *const p_row = p + (t - queries.begin) * stride, *const ds_row =
                                                                               dscores + (t - queries.begin) * stride;
                    simd::map(p_row, t + 1, [=](vfloat score, int64_t s, int64_t left) {
                        const vfloat prob = simd::exp(score * scale - log_sum);
                        simd::store_n(ds_row + s, prob * (simd::load_n(ds_row + s, left) - dout_out) * scale, left);
                        return prob;
                    });
                    std::fill(p_row + t + 1, p_row + keys, 0.0f);
                    std::fill(ds_row + t + 1, ds_row + keys, 0.0f);
                }
                multiply<Order::k_last>(rows, hs, keys, dscores, stride, keys_first, T, dq + queries.begin * 3 * C,
                                        3 * C, false);
                pack<Order::k_first>(queries_first, q_block, 3 * C, rows, hs);
                pack<Order::k_first>(dout_first, d_block, C, rows, hs);
                multiply<Order::k_first>(keys, hs, rows, dscores, stride, queries_first, rows, dk_sum, hs, true);
                multiply<Order::k_first>(keys, hs, rows, p, stride, dout_first, rows, dv_sum, hs, true);
            }
            for (int64_t t = 0; t < T; ++t) {
                std::memcpy(dk + t * 3 * C, dk_sum + t * hs, static_cast<size_t>(hs) * sizeof(float));
                std::memcpy(dv + t * 3 * C, dv_sum + t * hs, static_cast<size_t>(hs) * sizeof(float));
            }
        }
}
