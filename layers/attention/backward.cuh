// Attention's backward on tensor cores. Probabilities are recomputed from logsumexp, once by a kernel for dk and dv
// that loops over queries, and once by a kernel for dq that loops over keys. That takes 7 matmuls instead of 5, but
// blocks share no sums, so there are no atomics, and the bits are the same in every run.
#pragma once

#include "layers/attention/plain.cuh"
#include "layers/attention/tiles.cuh"

namespace attention_mma {

// p and dscore (16,16) of 16 rows and 16 columns as left operands: p = 2^(scores * factor - log_sum(half, i)), dscore =
// p * (dprobabilities * dropout_scale - delta(half, i)). Both are 0 unless visible(row, column); p and dprobabilities
// are 0 unless weights.kept(half, i).
template <class Statistic, class Delta, class Visible, class Kept>
__device__ __forceinline__ void probabilities(unsigned (&p)[4], unsigned (&dscore)[4], float (&scores)[2][4],
                                              float (&dprobabilities)[2][4], float factor, Statistic log_sum,
                                              Delta delta, Visible visible, Kept weights, float dropout_scale) {
    UNROLL for (int half = 0; half < 2; ++half) UNROLL for (int i = 0; i < 4; ++i) {
        const bool seen = visible(result_row(i), result_column(half, i));
        const float x = seen ? exp2_approx(scores[half][i] * factor - log_sum(half, i)) : 0;
        const bool kept = weights.kept(half, i);
        const float dprobability = kept ? dprobabilities[half][i] * dropout_scale : 0;
        scores[half][i] = kept ? x : 0;
        dprobabilities[half][i] = seen ? x * (dprobability - delta(half, i)) : 0;
    }
    as_left(p, scores[0], scores[1]);
    as_left(dscore, dprobabilities[0], dprobabilities[1]);
}

// to (16,HS) = d * factor, for the rows that exist
template <int HS>
__device__ __forceinline__ void store_rows(bf16* to, const float (&d)[HS / 8][4], int64_t stride, int first, int seq,
                                           float factor) {
    UNROLL for (int half = 0; half < 2; ++half) {
        const int row = first + result_row(2 * half);
        if (row >= seq) continue;
        UNROLL for (int n = 0; n < HS / 8; ++n) store_pair(to + row * stride + n * 8 + result_column(0, 0),
                                                           d[n][2 * half] * factor, d[n][2 * half + 1] * factor);
    }
}

// dq of dqkv (B,T,3C). A warp keeps 16 M queries and their douts, and loops over tiles of keys and values.
template <int HS, int M, bool DROP>
__global__ void __launch_bounds__(threads)
    dq_kernel(bf16* __restrict__ dqkv, const bf16* __restrict__ dout, const bf16* __restrict__ qkv,
              const float* __restrict__ logsumexp, const float* __restrict__ delta, int seq, int64_t C, int NH,
              int64_t heads, float scale, Dropout dropout, float dropout_scale) {
    constexpr int queries = 16 * warps * M, size = tile_rows * HS;
    DYN_SHARED(bf16, stages);  // 2 stages of (keys, values); dout and the queries pass through them
    const BlockTile tile = block_tile(true, queries, seq, C, NH, HS, heads);
    const Weights<DROP> weights(dropout, tile.head, seq, NH);
    const bf16* const base = qkv + tile.qkv;
    const int warp = static_cast<int>(threadIdx.x) / 32, warp_first = tile.first + warp * 16 * M;
    const auto copy_tile = [&](int first, int stage) {
        copy_keys_and_values<HS>(stages + stage * 2 * size, base, C, first, seq);
    };

    copy_rows<HS, queries>(stages, base, 3 * C, tile.first, seq);
    copy_rows<HS, queries>(stages + 2 * size, dout + tile.out, C, tile.first, seq);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    unsigned q[M][HS / 16][4], dy[M][HS / 16][4];
    UNROLL for (int m = 0; m < M; ++m) UNROLL for (int k = 0; k < HS / 16; ++k) {
        load_left<HS>(q[m][k], stages + (warp * M + m) * 16 * HS, k);
        load_left<HS>(dy[m][k], stages + 2 * size + (warp * M + m) * 16 * HS, k);
    }
    __syncthreads();
    copy_tile(0, 0);

    float dq[M][HS / 8][4] = {}, log_sum[M][2], dout_out[M][2];
    UNROLL for (int m = 0; m < M; ++m) UNROLL for (int half = 0; half < 2; ++half) {
        const int t = warp_first + 16 * m + result_row(2 * half);
        log_sum[m][half] = t < seq ? logsumexp[tile.head * seq + t] * log2e : 0;
        dout_out[m][half] = t < seq ? delta[tile.head * seq + t] : 0;
    }

    const int last = min(tile.first + queries, seq);  // the end of the queries
    for (int first = 0, stage = 0; first < last; first += tile_rows, stage ^= 1) {
        wait_for_copies<0>();
        __syncthreads();  // the tile is here, and all have done with the one before
        if (first + tile_rows < last) copy_tile(first + tile_rows, stage ^ 1);
        const bf16 *const keys = stages + stage * 2 * size, *const values = keys + size;
        // Groups of 16 keys, up to the last one that these queries see.
        const int end = min(tile_rows, warp_first + 16 * M - first);
        const auto work_on = [&]<bool DIAGONAL>(int row) {
            float s[M][2][4] = {}, dp[M][2][4] = {};
            UNROLL for (int k = 0; k < HS / 16; ++k) {
                unsigned b[4];
                load_columns<HS>(b, keys + row * HS, k);
                UNROLL for (int m = 0; m < M; ++m) mma_m16n16k16(s[m][0], s[m][1], q[m][k], b);
                load_columns<HS>(b, values + row * HS, k);
                UNROLL for (int m = 0; m < M; ++m) mma_m16n16k16(dp[m][0], dp[m][1], dy[m][k], b);
            }
            unsigned p[4], dscore[M][4];
            UNROLL for (int m = 0; m < M; ++m) {
                const int ahead = warp_first + 16 * m - (first + row);  // of the keys
                probabilities(
                    p, dscore[m], s[m], dp[m], scale * log2e, [&](int, int i) { return log_sum[m][i / 2]; },
                    [&](int, int i) { return dout_out[m][i / 2]; },
                    [&](int query, int key) { return !DIAGONAL || key <= query + ahead; },
                    weights.of_queries(warp_first + 16 * m, first + row), DROP ? dropout_scale : 1);
            }
            UNROLL for (int k = 0; k < HS / 16; ++k) {
                unsigned b[4];
                load_rows<HS>(b, keys + row * HS, k);
                UNROLL for (int m = 0; m < M; ++m) {
                    const int ahead = warp_first + 16 * m - (first + row);
                    if (!DIAGONAL || ahead > 0)
                        mma_m16n16k16(dq[m][2 * k], dq[m][2 * k + 1], dscore[m], b);
                    else if (ahead == 0)
                        mma_on_diagonal<true>(dq[m][2 * k], dq[m][2 * k + 1], dscore[m], b);
                }
            }
        };
        const int whole = min(end, warp_first - first);
        for (int row = 0; row < whole; row += 16) work_on.template operator()<false>(row);
        for (int row = max(0, whole); row < end; row += 16) work_on.template operator()<true>(row);
    }
    UNROLL for (int m = 0; m < M; ++m) store_rows<HS>(dqkv + tile.qkv, dq[m], 3 * C, warp_first + 16 * m, seq, scale);
}

// dk and dv of dqkv (B,T,3C). A warp keeps 16 M keys and values in shared memory, as the sums take the registers, and
// loops over tiles of queries and their douts, logsumexp and delta. Everything is transposed: keys are the rows of
// scores.
template <int HS, int M, bool DROP>
__global__ void __launch_bounds__(threads)
    dkv_kernel(bf16* __restrict__ dqkv, const bf16* __restrict__ dout, const bf16* __restrict__ qkv,
               const float* __restrict__ logsumexp, const float* __restrict__ delta, int seq, int64_t C, int NH,
               int64_t heads, float scale, Dropout dropout, float dropout_scale) {
    constexpr int keys = 16 * warps * M, size = tile_rows * HS;
    DYN_SHARED(bf16, stages);  // 2 stages of (queries, douts); keys; values
    bf16* const own = stages + 4 * size;
    __shared__ float statistics[2][2][tile_rows];
    static_assert(threads == 2 * tile_rows);
    const BlockTile tile = block_tile(false, keys, seq, C, NH, HS, heads);
    const Weights<DROP> weights(dropout, tile.head, seq, NH);
    const bf16* const base = qkv + tile.qkv;
    const int warp = static_cast<int>(threadIdx.x) / 32, warp_first = tile.first + warp * 16 * M;
    const bf16 *const own_keys = own + warp * 16 * M * HS, *const own_values = own_keys + keys * HS;
    const auto copy_tile = [&](int first, int stage) {
        copy_rows<HS, tile_rows>(stages + stage * 2 * size, base, 3 * C, first, seq);
        copy_rows<HS, tile_rows>(stages + stage * 2 * size + size, dout + tile.out, C, first, seq);
        commit_copies();
    };
    // Each thread loads one value of a tile's statistics.
    const int which = static_cast<int>(threadIdx.x) / tile_rows, of_row = static_cast<int>(threadIdx.x) % tile_rows;
    const auto load_statistic = [&](int first) {
        const int t = first + of_row;
        if (t >= seq) return 0.0f;
        return which == 0 ? logsumexp[tile.head * seq + t] * log2e : delta[tile.head * seq + t];
    };

    copy_rows<HS, keys>(own, base + C, 3 * C, tile.first, seq);
    copy_rows<HS, keys>(own + keys * HS, base + 2 * C, 3 * C, tile.first, seq);
    copy_tile(tile.first, 0);
    statistics[0][which][of_row] = load_statistic(tile.first);

    float dk[M][HS / 8][4] = {}, dv[M][HS / 8][4] = {};
    for (int first = tile.first, stage = 0; first < seq; first += tile_rows, stage ^= 1) {
        wait_for_copies<0>();
        __syncthreads();  // the tile is here, and all have done with the one before
        const bool more = first + tile_rows < seq;
        if (more) copy_tile(first + tile_rows, stage ^ 1);
        const float next = more ? load_statistic(first + tile_rows) : 0;
        const bf16 *const queries = stages + stage * 2 * size, *const douts = queries + size;
        // Groups of 16 queries, from the first one that sees any of these keys.
        const auto work_on = [&]<bool DIAGONAL>(int row) {
            float s[M][2][4] = {}, dp[M][2][4] = {};
            UNROLL for (int k = 0; k < HS / 16; ++k) {
                unsigned b[4];
                load_columns<HS>(b, queries + row * HS, k);
                UNROLL for (int m = 0; m < M; ++m) {
                    unsigned a[4];
                    load_left<HS>(a, own_keys + m * 16 * HS, k);
                    mma_m16n16k16(s[m][0], s[m][1], a, b);
                }
                load_columns<HS>(b, douts + row * HS, k);
                UNROLL for (int m = 0; m < M; ++m) {
                    unsigned a[4];
                    load_left<HS>(a, own_values + m * 16 * HS, k);
                    mma_m16n16k16(dp[m][0], dp[m][1], a, b);
                }
            }
            unsigned p[M][4], dscore[M][4];
            const auto statistic = [&](int of, int half, int i) {
                return statistics[stage][of][row + result_column(half, i)];
            };
            UNROLL for (int m = 0; m < M; ++m) {
                const int ahead = first + row - (warp_first + 16 * m);  // of the keys
                probabilities(
                    p[m], dscore[m], s[m], dp[m], scale * log2e, [&](int half, int i) { return statistic(0, half, i); },
                    [&](int half, int i) { return statistic(1, half, i); },
                    [&](int key, int query) { return !DIAGONAL || key <= query + ahead; },
                    weights.of_keys(first + row, warp_first + 16 * m), DROP ? dropout_scale : 1);
            }
            const auto add = [&](float(&sum)[M][HS / 8][4], const unsigned(&left)[M][4], const bf16* rows) {
                UNROLL for (int k = 0; k < HS / 16; ++k) {
                    unsigned b[4];
                    load_rows<HS>(b, rows, k);
                    UNROLL for (int m = 0; m < M; ++m) {
                        const int ahead = first + row - (warp_first + 16 * m);
                        if (!DIAGONAL || ahead > 0)
                            mma_m16n16k16(sum[m][2 * k], sum[m][2 * k + 1], left[m], b);
                        else if (ahead == 0)
                            mma_on_diagonal<false>(sum[m][2 * k], sum[m][2 * k + 1], left[m], b);
                    }
                }
            };
            add(dv, p, douts + row * HS);
            add(dk, dscore, queries + row * HS);
        };
        const int begin = max(0, warp_first - first), whole = min(tile_rows, warp_first + 16 * M - first);
        for (int row = begin; row < whole; row += 16) work_on.template operator()<true>(row);
        for (int row = max(begin, whole); row < tile_rows; row += 16) work_on.template operator()<false>(row);
        if (more) statistics[stage ^ 1][which][of_row] = next;
    }
    UNROLL for (int m = 0; m < M; ++m) {
        store_rows<HS>(dqkv + tile.qkv + C, dk[m], 3 * C, warp_first + 16 * m, seq, scale);
        store_rows<HS>(dqkv + tile.qkv + 2 * C, dv[m], 3 * C, warp_first + 16 * m, seq, DROP ? dropout_scale : 1);
    }
}

// Returns false if the tensor-core kernels do not support these sizes.
inline bool backward(Cuda& dev, bf16* dqkv, const bf16* dout, const bf16* out, const bf16* qkv, const float* logsumexp,
                     int64_t B, int64_t seq, int64_t C, int64_t NH, const Dropout& dropout) {
    const auto launch = [&]<int HS, bool DROP>() {
        const float* const delta = attention_plain::delta(dev, dout, out, B, seq, C, NH);
        constexpr int M = HS == 64 ? 2 : 1, rows = 16 * warps * M;
        constexpr int bytes = 4 * tile_rows * HS * static_cast<int>(sizeof(bf16));
        const unsigned blocks = static_cast<unsigned>(B * NH * ((seq + rows - 1) / rows));
        const float scale = 1 / std::sqrt(static_cast<float>(HS));
        const auto dropout_scale = static_cast<float>(dropout.scale());
        allow_shared_memory(dq_kernel<HS, M, DROP>, bytes);
        LAUNCH((dq_kernel<HS, M, DROP>), blocks, threads, bytes, dev.stream, dqkv, dout, qkv, logsumexp, delta,
               static_cast<int>(seq), C, static_cast<int>(NH), B * NH, scale, dropout, dropout_scale);
        constexpr int with_own = bytes + 2 * rows * HS * static_cast<int>(sizeof(bf16));
        allow_shared_memory(dkv_kernel<HS, M, DROP>, with_own);
        LAUNCH((dkv_kernel<HS, M, DROP>), blocks, threads, with_own, dev.stream, dqkv, dout, qkv, logsumexp, delta,
               static_cast<int>(seq), C, static_cast<int>(NH), B * NH, scale, dropout, dropout_scale);
    };
    return for_head_size(C / NH, dropout, launch, dqkv, dout, qkv);
}

}  // namespace attention_mma
