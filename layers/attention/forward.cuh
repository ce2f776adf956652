// Attention's forward on tensor cores, after FlashAttention-2 (Dao 2023): bf16 operands, fp32 sums.
#pragma once

#include "layers/attention/tiles.cuh"

namespace attention_mma {

// s (16,16 groups) = -inf for keys after their query; the warp's queries begin at `query` and the keys at `key`.
template <int GROUPS>
__device__ __forceinline__ void hide_later_keys(float (&s)[2 * GROUPS][4], int query, int key) {
    UNROLL for (int n = 0; n < 2 * GROUPS; ++n) UNROLL for (int i = 0; i < 4; ++i) {
        if (key + n / 2 * 16 + result_column(n % 2, i) > query + result_row(i)) s[n][i] = -INFINITY;
    }
}

// A step of the online softmax for 16 queries. Scores s become probabilities 2^(factor * (s - largest)), relative to
// the largest score so far, and are added to sum. sum and o are rescaled if this tile has a larger score than those
// before.
template <int HS, int GROUPS>
__device__ __forceinline__ void softmax_step(float (&s)[2 * GROUPS][4], float (&o)[HS / 8][4], float (&largest)[2],
                                             float (&sum)[2], float factor) {
    UNROLL for (int half = 0; half < 2; ++half) {
        const float before = largest[half];
        float most = before;
        UNROLL for (int n = 0; n < 2 * GROUPS; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
        largest[half] = most;
        const float shift = most == -INFINITY ? 0 : most * factor;  // no score is visible yet, or all overflowed
        const float rescale = exp2_approx(before * factor - shift);
        sum[half] *= rescale;
        UNROLL for (int n = 0; n < HS / 8; ++n) o[n][2 * half] *= rescale, o[n][2 * half + 1] *= rescale;
        UNROLL for (int n = 0; n < 2 * GROUPS; ++n) UNROLL for (int i = 2 * half; i < 2 * half + 2; ++i) {
            s[n][i] = exp2_approx(s[n][i] * factor - shift);
            sum[half] += s[n][i];
        }
    }
}

// out (16,HS) = o * out_scale / sum and logsumexp (16), for the 16 queries from `first` on, if they exist.
template <int HS>
__device__ __forceinline__ void write_rows(bf16* out, float* logsumexp, const float (&o)[HS / 8][4],
                                           const float (&largest)[2], const float (&sum)[2], int first, int seq,
                                           int64_t C, float factor, float out_scale) {
    UNROLL for (int half = 0; half < 2; ++half) {
        float total = sum[half];
        total += __shfl_xor_sync(0xffffffff, total, 1);
        total += __shfl_xor_sync(0xffffffff, total, 2);
        const int t = first + result_row(2 * half);
        if (t >= seq) continue;
        const float inverse = out_scale / total;
        UNROLL for (int n = 0; n < HS / 8; ++n) {
            bf16* const to = out + t * C + n * 8 + result_column(0, 0);
            store_pair(to, o[n][2 * half] * inverse, o[n][2 * half + 1] * inverse);
        }
        if (threadIdx.x % 4 == 0) logsumexp[t] = largest[half] * factor * ln2 + logf(total);
    }
}

// s (16,16 groups) = 0 for the weights that dropout drops; queries and keys as for hide_later_keys.
template <int GROUPS>
__device__ __forceinline__ void drop_weights(float (&s)[2 * GROUPS][4], const SomeKept& weights, int query, int key) {
    UNROLL for (int group = 0; group < GROUPS; ++group) {
        if (key + group * 16 > query) continue;  // no query sees these keys: query is a multiple of 16 too
        const SomeKept::OfQueries of = weights.of_queries(query, key + group * 16);
        UNROLL for (int half = 0; half < 2; ++half) UNROLL for (int i = 0; i < 4; ++i) if (!of.kept(half, i))
            s[2 * group + half][i] = 0;
    }
}

// out (B,T,C), logsumexp (B,NH,T) as attention_forward. A warp keeps the fragments of 16 M queries in registers and
// loops over tiles of keys and values; the next tile is copied while one is computed. factor is log2(e) / sqrt(HS).
// Sums are relative to 2^(factor * largest), for the largest score so far.
template <int HS, int M, bool DROP>
__global__ void __launch_bounds__(threads)
    forward_kernel(bf16* __restrict__ out, float* __restrict__ logsumexp, const bf16* __restrict__ qkv, int seq,
                   int64_t C, int NH, int64_t heads, float factor, Dropout dropout, float dropout_scale) {
    constexpr int queries = 16 * warps * M, size = tile_rows * HS, groups = tile_rows / 16;
    static_assert(queries <= 2 * tile_rows);  // queries pass through the second stage
    DYN_SHARED(bf16, stages);                 // 2 stages of (keys, values)
    const BlockTile tile = block_tile(true, queries, seq, C, NH, HS, heads);
    const Weights<DROP> weights(dropout, tile.head, seq, NH);
    const bf16* const base = qkv + tile.qkv;
    const int warp = static_cast<int>(threadIdx.x) / 32, warp_first = tile.first + warp * 16 * M;
    const auto copy_tile = [&](int first, int stage) {
        copy_keys_and_values<HS>(stages + stage * 2 * size, base, C, first, seq);
    };

    copy_rows<HS, queries>(stages + 2 * size, base, 3 * C, tile.first, seq);
    copy_tile(0, 0);
    wait_for_copies<0>();
    __syncthreads();
    unsigned q[M][HS / 16][4];
    UNROLL for (int m = 0; m < M; ++m) UNROLL for (int k = 0; k < HS / 16; ++k)
        load_left<HS>(q[m][k], stages + 2 * size + (warp * M + m) * 16 * HS, k);

    float o[M][HS / 8][4] = {}, largest[M][2], sum[M][2] = {};
    UNROLL for (int m = 0; m < M; ++m) largest[m][0] = largest[m][1] = -INFINITY;

    const auto work_on = [&]<bool DIAGONAL>(const bf16* keys, const bf16* values, int first) {
        // These queries see the first `visible` groups of 16 keys of this tile, the last of them in part.
        const auto visible = [&](int m) { return DIAGONAL ? (warp_first + 16 * m - first) / 16 + 1 : groups; };
        float s[M][2 * groups][4];
        UNROLL for (int group = 0; group < groups; ++group) {
            UNROLL for (int m = 0; m < M; ++m) {
                UNROLL for (int i = 0; i < 4; ++i) s[m][2 * group][i] = s[m][2 * group + 1][i] = 0;
            }
            if (DIAGONAL && group >= visible(M - 1)) continue;
            UNROLL for (int k = 0; k < HS / 16; ++k) {
                unsigned b[4];
                load_columns<HS>(b, keys + group * 16 * HS, k);
                UNROLL for (int m = 0; m < M; ++m) mma_m16n16k16(s[m][2 * group], s[m][2 * group + 1], q[m][k], b);
            }
        }
        UNROLL for (int m = 0; m < M; ++m) {
            if (DIAGONAL) hide_later_keys<groups>(s[m], warp_first + 16 * m, first);
            softmax_step<HS, groups>(s[m], o[m], largest[m], sum[m], factor);
            if constexpr (DROP) drop_weights<groups>(s[m], weights, warp_first + 16 * m, first);
        }
        unsigned last[M][4];  // p of the groups on the diagonal, which are multiplied after the others
        UNROLL for (int group = 0; group < groups; ++group) {
            if (DIAGONAL && group >= visible(M - 1)) continue;
            unsigned p[M][4];
            UNROLL for (int m = 0; m < M; ++m) {
                as_left(p[m], s[m][2 * group], s[m][2 * group + 1]);
                if (DIAGONAL && group == visible(m) - 1) UNROLL for (int i = 0; i < 4; ++i) last[m][i] = p[m][i];
            }
            UNROLL for (int k = 0; k < HS / 16; ++k) {
                unsigned b[4];
                load_rows<HS>(b, values + group * 16 * HS, k);
                UNROLL for (int m = 0; m < M; ++m) if (!DIAGONAL || group < visible(m) - 1)
                    mma_m16n16k16(o[m][2 * k], o[m][2 * k + 1], p[m], b);
            }
        }
        if constexpr (DIAGONAL) {
            UNROLL for (int m = 0; m < M; ++m) {
                const int group = visible(m) - 1;
                if (group < 0 || group >= groups) continue;
                UNROLL for (int k = 0; k < HS / 16; ++k) {
                    unsigned b[4];
                    load_rows<HS>(b, values + group * 16 * HS, k);
                    mma_on_diagonal<true>(o[m][2 * k], o[m][2 * k + 1], last[m], b);
                }
            }
        }
    };

    const int end = min(tile.first + queries, seq);  // the end of the queries
    for (int first = 0, stage = 0; first < end; first += tile_rows, stage ^= 1) {
        wait_for_copies<0>();
        __syncthreads();  // this tile has arrived, and all warps have finished the previous one or read their queries
        if (first + tile_rows < end) copy_tile(first + tile_rows, stage ^ 1);
        const bf16 *const keys = stages + stage * 2 * size, *const values = keys + size;
        if (first + tile_rows <= tile.first)
            work_on.template operator()<false>(keys, values, first);
        else
            work_on.template operator()<true>(keys, values, first);
    }

    UNROLL for (int m = 0; m < M; ++m)
        write_rows<HS>(out + tile.out, logsumexp + tile.head * seq, o[m], largest[m], sum[m], warp_first + 16 * m, seq,
                       C, factor, DROP ? dropout_scale : 1);
}

// Returns false if the tensor-core kernels do not support these sizes.
inline bool forward(Cuda& dev, bf16* out, float* logsumexp, const bf16* qkv, int64_t B, int64_t seq, int64_t C,
                    int64_t NH, const Dropout& dropout) {
    const auto launch = [&]<int HS, bool DROP>() {
        constexpr int M = HS == 64 ? 2 : 1, queries = 16 * warps * M;
        constexpr int bytes = 4 * tile_rows * HS * static_cast<int>(sizeof(bf16));
        allow_shared_memory(forward_kernel<HS, M, DROP>, bytes);
        LAUNCH((forward_kernel<HS, M, DROP>), static_cast<unsigned>(B * NH * ((seq + queries - 1) / queries)), threads,
               bytes, dev.stream, out, logsumexp, qkv, static_cast<int>(seq), C, static_cast<int>(NH), B * NH,
               log2e / std::sqrt(static_cast<float>(HS)), dropout, static_cast<float>(dropout.scale()));
    };
    return for_head_size(C / NH, dropout, launch, qkv, out);
}

}  // namespace attention_mma
