// Attention's kernels in fp32 arithmetic, for tensors of floats and for head sizes that the tensor-core kernels do not
// support. The channels of one position of a head are in the registers of LANES neighbouring lanes, 16 channels each.
// The rows of the other side are in shared memory, where all positions of a warp read the same row at a time.
#pragma once

#include "layers/attention/block_tile.cuh"
#include "layers/dropout.h"

namespace attention_plain {

constexpr int threads = 128, depth = 16;
constexpr float log2e = 1.44269504f, ln2 = 0.693147181f;  // the hardware computes powers of 2
// The number of positions of a block in registers, and of rows of a tile in shared memory.
template <int LANES>
constexpr int rows = threads / LANES;
template <int LANES>
constexpr int width = depth* LANES;  // channels
constexpr int chunk = 4;             // rows at a time, whose sums over lanes are independent of each other

// The first channel of a lane's i-th group of four.
template <int LANES>
__device__ __forceinline__ int channel(int i) {
    return (i * LANES + static_cast<int>(threadIdx.x) % LANES) * 4;
}
__device__ __forceinline__ void load_four(float (&x)[4], const float* p) {
    const int4 bits = *reinterpret_cast<const int4*>(p);
    memcpy(x, &bits, sizeof bits);
}

// x = the lane's channels of row (hs); 0 beyond the head, or if the row is `absent`
template <int LANES, class T>
__device__ __forceinline__ void load_row(float (&x)[depth], const T* row, int hs, bool absent) {
    UNROLL for (int i = 0; i < depth / 4; ++i) UNROLL for (int j = 0; j < 4; ++j) {
        const int c = channel<LANES>(i) + j;
        x[4 * i + j] = c < hs && !absent ? to_float(row[c]) : 0;
    }
}
template <int LANES, class T>
__device__ __forceinline__ void store_row(T* row, const float (&x)[depth], int hs, float factor) {
    UNROLL for (int i = 0; i < depth / 4; ++i) UNROLL for (int j = 0; j < 4; ++j) {
        const int c = channel<LANES>(i) + j;
        if (c < hs) row[c] = from_float<T>(x[4 * i + j] * factor);
    }
}
// tile = the rows first, first + 1, … of a tensor whose rows of one head lie `stride` apart; 0 for rows that do not
// exist
template <int LANES, class T>
__device__ __forceinline__ void load_tile(float (&tile)[rows<LANES>][width<LANES>], const T* source, int64_t stride,
                                          int first, int seq, int hs) {
    for (int i = static_cast<int>(threadIdx.x); i < rows<LANES> * width<LANES>; i += threads) {
        const int row = i / width<LANES>, c = i % width<LANES>;
        tile[row][c] = c < hs && first + row < seq ? to_float(source[(first + row) * stride + c]) : 0;
    }
}

// x·row over all channels, for every lane
template <int LANES>
__device__ __forceinline__ float dot(const float (&x)[depth], const float (&row)[width<LANES>]) {
    float sum = 0;
    UNROLL for (int i = 0; i < depth / 4; ++i) {
        float y[4];
        load_four(y, row + channel<LANES>(i));
        UNROLL for (int j = 0; j < 4; ++j) sum += x[4 * i + j] * y[j];
    }
    UNROLL for (int distance = LANES / 2; distance > 0; distance /= 2) sum +=
        __shfl_xor_sync(0xffffffff, sum, distance);
    return sum;
}
// x += factor * row
template <int LANES>
__device__ __forceinline__ void add(float (&x)[depth], float factor, const float (&row)[width<LANES>]) {
    UNROLL for (int i = 0; i < depth / 4; ++i) {
        float y[4];
        load_four(y, row + channel<LANES>(i));
        UNROLL for (int j = 0; j < 4; ++j) x[4 * i + j] += factor * y[j];
    }
}

// With DROP, what dropout does to the weights of a head: factor(t, s) is 0 or 1 / (1 - p) for query t and key s.
// Without, it is 1. factors(f, t, s) are those of the keys s to s + 3, of one draw, as s is a multiple of 4.
template <bool DROP>
struct Weights {
    Dropout dropout;
    float scale;
    int64_t head;
    int seq, NH;
    __device__ __forceinline__ float factor(int t, int s) const {
        if constexpr (DROP)
            return dropout.keeps(dropout.first_draw(head * seq + t, int64_t{NH} * seq, seq), s) ? scale : 0;
        else
            return 1;
    }
    __device__ __forceinline__ void factors(float (&f)[4], int t, int s) const {
        if constexpr (DROP) {
            const uint64_t first = dropout.first_draw(head * seq + t, int64_t{NH} * seq, seq);
            const Philox drawn = dropout.draw(first + static_cast<uint64_t>(s / 8));
            UNROLL for (int i = 0; i < 4; ++i) f[i] = drawn.bits16(s % 8 + i) >= dropout.threshold ? scale : 0;
        } else {
            UNROLL for (int i = 0; i < 4; ++i) f[i] = 1;
        }
    }
};

// The first position of the thread's warp. All lanes of a warp skip the same rows, those that are masked for all of
// them.
template <int LANES>
__device__ __forceinline__ int warp_first(const BlockTile& tile) {
    return tile.first + static_cast<int>(threadIdx.x) / 32 * (32 / LANES);
}

// out (B,T,C), logsumexp (B,NH,T) as attention_forward. factor is log2(e) / sqrt(hs), as the hardware computes powers
// of
// 2. The sums are relative to the largest score so far.
template <int LANES, bool DROP, class T>
__global__ void __launch_bounds__(threads, 4)
    forward_kernel(T* __restrict__ out, float* __restrict__ logsumexp, const T* __restrict__ qkv, int seq, int64_t C,
                   int NH, int hs, int64_t heads, float factor, Dropout dropout, float dropout_scale) {
    __shared__ __align__(16) float k[rows<LANES>][width<LANES>];
    __shared__ __align__(16) float v[rows<LANES>][width<LANES>];
    const BlockTile tile = block_tile(true, rows<LANES>, seq, C, NH, hs, heads);
    const Weights<DROP> weights{dropout, dropout_scale, tile.head, seq, NH};
    const int t = tile.first + static_cast<int>(threadIdx.x) / LANES;
    const int end = min(seq, warp_first<LANES>(tile) + 32 / LANES);  // of the keys that the warp's queries see
    const T* const base = qkv + tile.qkv;
    float q[depth], o[depth] = {}, largest = -INFINITY, sum = 0;
    load_row<LANES>(q, base + t * 3 * C, hs, t >= seq);
    UNROLL for (int i = 0; i < depth; ++i) q[i] *= factor;
    for (int first = 0; first <= tile.first; first += rows<LANES>) {
        __syncthreads();
        load_tile<LANES>(k, base + C, 3 * C, first, seq, hs);
        load_tile<LANES>(v, base + 2 * C, 3 * C, first, seq, hs);
        __syncthreads();
        const int last = min(rows<LANES>, end - first);
        for (int row = 0; row < last; row += chunk) {
            float score[chunk], before = largest;
            UNROLL for (int i = 0; i < chunk; ++i) {
                score[i] = dot<LANES>(q, k[row + i]);
                if (first + row + i > t) score[i] = -INFINITY;
                largest = fmaxf(largest, score[i]);
            }
            const float shift = largest == -INFINITY ? 0 : largest;  // no score that has not overflowed is visible yet
            const float rescale = exp2f(before - shift);
            sum *= rescale;
            UNROLL for (int i = 0; i < depth; ++i) o[i] *= rescale;
            float weight[chunk];
            weights.factors(weight, t, first + row);
            UNROLL for (int i = 0; i < chunk; ++i) {
                if (first + row + i > t) continue;  // 0 times its v could be NaN
                const float p = exp2f(score[i] - shift);
                sum += p;
                add<LANES>(o, p * weight[i], v[row + i]);
            }
        }
    }
    if (t >= seq) return;
    store_row<LANES>(out + tile.out + t * C, o, hs, 1 / sum);
    if (threadIdx.x % LANES == 0) logsumexp[tile.head * seq + t] = largest * ln2 + logf(sum);
}

// delta (B,NH,T) = dout·out of each head. One warp per head and position.
template <class T>
__global__ void __launch_bounds__(threads)
    delta_kernel(float* __restrict__ delta, const T* __restrict__ dout, const T* __restrict__ out, int seq, int64_t C,
                 int NH, int hs, int64_t count) {
    const int64_t i = int64_t{blockIdx.x} * (threads / 32) + threadIdx.x / 32;  // in (B,T,NH)
    if (i >= count) return;
    const int64_t position = i / NH, h = i % NH, start = position * C + h * hs;
    float sum = 0;
    for (int c = static_cast<int>(threadIdx.x) % 32; c < hs; c += 32)
        sum += to_float(dout[start + c]) * to_float(out[start + c]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) delta[(position / seq * NH + h) * seq + position % seq] = sum;
}

// dq of dqkv (B,T,3C). Queries stay in registers, in a loop over keys and values.
template <int LANES, bool DROP, class T>
__global__ void __launch_bounds__(threads, 3)
    dq_kernel(T* __restrict__ dqkv, const T* __restrict__ dout, const T* __restrict__ qkv,
              const float* __restrict__ logsumexp, const float* __restrict__ delta, int seq, int64_t C, int NH, int hs,
              int64_t heads, float scale, Dropout dropout, float dropout_scale) {
    __shared__ __align__(16) float k[rows<LANES>][width<LANES>];
    __shared__ __align__(16) float v[rows<LANES>][width<LANES>];
    const BlockTile tile = block_tile(true, rows<LANES>, seq, C, NH, hs, heads);
    const Weights<DROP> weights{dropout, dropout_scale, tile.head, seq, NH};
    const int t = tile.first + static_cast<int>(threadIdx.x) / LANES;
    const int end = min(seq, warp_first<LANES>(tile) + 32 / LANES);  // of the keys that the warp's queries see
    const bool absent = t >= seq;
    const T* const base = qkv + tile.qkv;
    float q[depth], dy[depth], dq[depth] = {};
    load_row<LANES>(q, base + t * 3 * C, hs, absent);
    load_row<LANES>(dy, dout + tile.out + t * C, hs, absent);
    UNROLL for (int i = 0; i < depth; ++i) q[i] *= scale * log2e;
    const float log_sum = absent ? 0 : logsumexp[tile.head * seq + t] * log2e;
    const float dout_out = absent ? 0 : delta[tile.head * seq + t];
    for (int first = 0; first <= tile.first; first += rows<LANES>) {
        __syncthreads();
        load_tile<LANES>(k, base + C, 3 * C, first, seq, hs);
        load_tile<LANES>(v, base + 2 * C, 3 * C, first, seq, hs);
        __syncthreads();
        const int last = min(rows<LANES>, end - first);
        for (int row = 0; row < last; row += chunk) {
            float dscore[chunk], weight[chunk];
            weights.factors(weight, t, first + row);
            UNROLL for (int i = 0; i < chunk; ++i) {
                const float p = exp2f(dot<LANES>(q, k[row + i]) - log_sum);
                dscore[i] = p * (weight[i] * dot<LANES>(dy, v[row + i]) - dout_out);
            }
            UNROLL for (int i = 0; i < chunk; ++i) if (first + row + i <= t) add<LANES>(dq, dscore[i], k[row + i]);
        }
    }
    if (!absent) store_row<LANES>(dqkv + tile.qkv + t * 3 * C, dq, hs, scale);
}

// dk and dv of dqkv (B,T,3C). Keys and values stay in registers, in a loop over queries and douts.
template <int LANES, bool DROP, class T>
__global__ void __launch_bounds__(threads, 2)
    dkv_kernel(T* __restrict__ dqkv, const T* __restrict__ dout, const T* __restrict__ qkv,
               const float* __restrict__ logsumexp, const float* __restrict__ delta, int seq, int64_t C, int NH, int hs,
               int64_t heads, float scale, Dropout dropout, float dropout_scale) {
    __shared__ __align__(16) float q[rows<LANES>][width<LANES>];
    __shared__ __align__(16) float dy[rows<LANES>][width<LANES>];
    __shared__ float log_sum[rows<LANES>];
    __shared__ float dout_out[rows<LANES>];
    const BlockTile tile = block_tile(false, rows<LANES>, seq, C, NH, hs, heads);
    const Weights<DROP> weights{dropout, dropout_scale, tile.head, seq, NH};
    const int s = tile.first + static_cast<int>(threadIdx.x) / LANES;
    const T* const base = qkv + tile.qkv;
    float k[depth], v[depth], dk[depth] = {}, dv[depth] = {};
    load_row<LANES>(k, base + s * 3 * C + C, hs, s >= seq);
    load_row<LANES>(v, base + s * 3 * C + 2 * C, hs, s >= seq);
    UNROLL for (int i = 0; i < depth; ++i) k[i] *= scale * log2e;
    for (int first = tile.first; first < seq; first += rows<LANES>) {
        __syncthreads();
        load_tile<LANES>(q, base, 3 * C, first, seq, hs);
        load_tile<LANES>(dy, dout + tile.out, C, first, seq, hs);
        for (int row = static_cast<int>(threadIdx.x); row < rows<LANES>; row += threads) {
            const bool absent = first + row >= seq;
            log_sum[row] = absent ? 0 : logsumexp[tile.head * seq + first + row] * log2e;
            dout_out[row] = absent ? 0 : delta[tile.head * seq + first + row];
        }
        __syncthreads();
        for (int row = 0; row < rows<LANES>; row += chunk) {  // bounds for each warp would take registers, and spill
            float p[chunk], dscore[chunk];
            UNROLL for (int i = 0; i < chunk; ++i) {
                p[i] = exp2f(dot<LANES>(k, q[row + i]) - log_sum[row + i]);
                const float weight = weights.factor(first + row + i, s);
                dscore[i] = p[i] * (weight * dot<LANES>(v, dy[row + i]) - dout_out[row + i]);
                p[i] *= weight;
            }
            UNROLL for (int i = 0; i < chunk; ++i) {
                const int t = first + row + i;
                if (t < s || t >= seq) continue;
                add<LANES>(dv, p[i], dy[row + i]);
                add<LANES>(dk, dscore[i], q[row + i]);
            }
        }
    }
    if (s >= seq) return;
    store_row<LANES>(dqkv + tile.qkv + s * 3 * C + C, dk, hs, scale);
    store_row<LANES>(dqkv + tile.qkv + s * 3 * C + 2 * C, dv, hs, 1);
}

constexpr int most_channels = 256;  // of a head
inline std::invalid_argument too_wide(int64_t hs) {
    return std::invalid_argument("attention on Cuda takes heads of up to " + std::to_string(most_channels) +
                                 " channels, not " + std::to_string(hs));
}

// Calls f<LANES>() for heads of hs channels.
template <class F>
void for_head_size(int64_t hs, F f) {
    if (hs <= 16) return f.template operator()<1>();
    if (hs <= 32) return f.template operator()<2>();
    if (hs <= 64) return f.template operator()<4>();
    if (hs <= 128) return f.template operator()<8>();
    if (hs <= most_channels) return f.template operator()<16>();
    throw too_wide(hs);
}
template <int LANES>
unsigned blocks(int64_t heads, int64_t seq) {
    return static_cast<unsigned>(heads * ((seq + rows<LANES> - 1) / rows<LANES>));
}

// Calls f<DROP>().
template <class F>
void for_dropout(const Dropout& dropout, F f) {
    if (dropout.on()) return f.template operator()<true>();
    f.template operator()<false>();
}

template <class T>
void forward(Cuda& dev, T* out, float* logsumexp, const T* qkv, int64_t B, int64_t seq, int64_t C, int64_t NH,
             const Dropout& dropout) {
    const int64_t hs = C / NH, heads = B * NH;
    const float factor = log2e / std::sqrt(static_cast<float>(hs));
    const auto dropout_scale = static_cast<float>(dropout.scale());
    for_head_size(hs, [&]<int LANES>() {
        for_dropout(dropout, [&]<bool DROP>() {
            LAUNCH((forward_kernel<LANES, DROP, T>), blocks<LANES>(heads, seq), threads, 0, dev.stream, out, logsumexp,
                   qkv, static_cast<int>(seq), C, static_cast<int>(NH), static_cast<int>(hs), heads, factor, dropout,
                   dropout_scale);
        });
    });
}

// Computes delta (B,NH,T) for the backward, in scratch memory.
template <class T>
float* delta(Cuda& dev, const T* dout, const T* out, int64_t B, int64_t seq, int64_t C, int64_t NH) {
    const int64_t count = B * seq * NH, warps = threads / 32;
    float* const d = dev.scratch(count);
    LAUNCH(delta_kernel<T>, static_cast<unsigned>((count + warps - 1) / warps), threads, 0, dev.stream, d, dout, out,
           static_cast<int>(seq), C, static_cast<int>(NH), static_cast<int>(C / NH), count);
    return d;
}

template <class T>
void backward(Cuda& dev, T* dqkv, const T* dout, const T* out, const T* qkv, const float* logsumexp, int64_t B,
              int64_t seq, int64_t C, int64_t NH, const Dropout& dropout) {
    const int64_t hs = C / NH, heads = B * NH;
    const float scale = 1 / std::sqrt(static_cast<float>(hs));
    const float* const dout_out = delta(dev, dout, out, B, seq, C, NH);
    const auto dropout_scale = static_cast<float>(dropout.scale());
    for_head_size(hs, [&]<int LANES>() {
        for_dropout(dropout, [&]<bool DROP>() {
            LAUNCH((dq_kernel<LANES, DROP, T>), blocks<LANES>(heads, seq), threads, 0, dev.stream, dqkv, dout, qkv,
                   logsumexp, dout_out, static_cast<int>(seq), C, static_cast<int>(NH), static_cast<int>(hs), heads,
                   scale, dropout, dropout_scale);
            LAUNCH((dkv_kernel<LANES, DROP, T>), blocks<LANES>(heads, seq), threads, 0, dev.stream, dqkv, dout, qkv,
                   logsumexp, dout_out, static_cast<int>(seq), C, static_cast<int>(NH), static_cast<int>(hs), heads,
                   scale, dropout, dropout_scale);
        });
    });
}

}  // namespace attention_plain
