// The rungs of attention on a GPU that lead to layers/attention.cuh.
#pragma once

#include "layers/attention.cuh"

namespace rungs {

struct Tensors {
    float *out, *logsumexp, *dqkv;
    const float *qkv, *dout;
    float *probabilities, *dscores;  // (B,NH,T,T)
    int64_t B, T, NH, hs;
    __host__ __device__ int64_t C() const { return NH * hs; }
    unsigned blocks(int64_t per_head, int64_t per_block) const {
        return static_cast<unsigned>((B * NH * per_head + per_block - 1) / per_block);
    }
};
constexpr int threads = 128;

// The rows of a head: where those of q begin in qkv, and those of out.
struct Head {
    int64_t qkv, out;
};
__device__ inline Head head_of(const Tensors& x, int64_t head) {
    const int64_t b = head / x.NH, h = head % x.NH;
    return {b * x.T * 3 * x.C() + h * x.hs, b * x.T * x.C() + h * x.hs};
}

// --- 1. The formula with whole matrices: T x T scores in global memory, and one thread per element of each matrix.
__device__ inline float dot(const float* a, const float* b, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}
__global__ void __launch_bounds__(threads) scores_kernel(Tensors x, float scale) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x, head = i / x.T / x.T, t = i / x.T % x.T, s = i % x.T;
    if (head >= x.B * x.NH) return;
    const float* const q = x.qkv + head_of(x, head).qkv;
    x.probabilities[i] = s <= t ? dot(q + t * 3 * x.C(), q + s * 3 * x.C() + x.C(), x.hs) * scale : -INFINITY;
}
__global__ void __launch_bounds__(threads) softmax_kernel(Tensors x) {
    const int64_t row = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (row >= x.B * x.NH * x.T) return;
    float* const p = x.probabilities + row * x.T;
    float largest = -INFINITY, sum = 0;
    for (int64_t s = 0; s < x.T; ++s) largest = fmaxf(largest, p[s]);
    for (int64_t s = 0; s < x.T; ++s) sum += p[s] = expf(p[s] - largest);
    for (int64_t s = 0; s < x.T; ++s) p[s] /= sum;
    x.logsumexp[row] = largest + logf(sum);
}
__global__ void __launch_bounds__(threads) out_kernel(Tensors x) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x, c = i % x.hs, t = i / x.hs % x.T,
                  head = i / x.hs / x.T;
    if (head >= x.B * x.NH) return;
    const Head at = head_of(x, head);
    float sum = 0;
    for (int64_t s = 0; s < x.T; ++s)
        sum += x.probabilities[(head * x.T + t) * x.T + s] * x.qkv[at.qkv + s * 3 * x.C() + 2 * x.C() + c];
    x.out[at.out + t * x.C() + c] = sum;
}
inline void forward_naive(Cuda& dev, const Tensors& x) {
    LAUNCH(scores_kernel, x.blocks(x.T * x.T, threads), threads, 0, dev.stream, x,
           1 / std::sqrt(static_cast<float>(x.hs)));
    LAUNCH(softmax_kernel, x.blocks(x.T, threads), threads, 0, dev.stream, x);
    LAUNCH(out_kernel, x.blocks(x.T * x.hs, threads), threads, 0, dev.stream, x);
}

// --- 2. One warp per query, and a lane for every 32nd channel: a score is used before the next is computed (Milakov
// and Gimelshein 2018), so no score is written to memory. Keys and values are read from memory once per query.
constexpr int most_channels = 8;  // of a lane
__global__ void __launch_bounds__(threads) rows_kernel(Tensors x, float scale) {
    const int64_t row = int64_t{blockIdx.x} * (threads / 32) + threadIdx.x / 32, head = row / x.T, t = row % x.T;
    if (head >= x.B * x.NH) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Head at = head_of(x, head);
    const float* const base = x.qkv + at.qkv;
    float q[most_channels], o[most_channels] = {}, largest = -INFINITY, sum = 0;
    UNROLL for (int i = 0; i < most_channels; ++i) {
        const int64_t c = lane + 32 * i;
        q[i] = c < x.hs ? base[t * 3 * x.C() + c] * scale : 0;
    }
    for (int64_t s = 0; s <= t; ++s) {
        const float *const k = base + s * 3 * x.C() + x.C(), *const v = k + x.C();
        float score = 0;
        UNROLL for (int i = 0; i < most_channels; ++i) {
            const int64_t c = lane + 32 * i;
            if (c < x.hs) score += q[i] * k[c];
        }
        score = warp_sum(score);
        const float before = largest;
        largest = fmaxf(largest, score);
        const float rescale = expf(before - largest), p = expf(score - largest);
        sum = sum * rescale + p;
        UNROLL for (int i = 0; i < most_channels; ++i) {
            const int64_t c = lane + 32 * i;
            if (c < x.hs) o[i] = o[i] * rescale + p * v[c];
        }
    }
    UNROLL for (int i = 0; i < most_channels; ++i) {
        const int64_t c = lane + 32 * i;
        if (c < x.hs) x.out[at.out + t * x.C() + c] = o[i] / sum;
    }
    if (lane == 0) x.logsumexp[row] = largest + logf(sum);
}
inline void forward_rows(Cuda& dev, const Tensors& x) {
    LAUNCH(rows_kernel, x.blocks(x.T, threads / 32), threads, 0, dev.stream, x,
           1 / std::sqrt(static_cast<float>(x.hs)));
}

// --- Backward with whole matrices: p and dscore in global memory, then one thread per element of dq, dk and dv.
__global__ void __launch_bounds__(threads) dscores_kernel(Tensors x, float scale) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x, head = i / x.T / x.T, t = i / x.T % x.T, s = i % x.T;
    if (head >= x.B * x.NH) return;
    const Head at = head_of(x, head);
    const float *const q = x.qkv + at.qkv + t * 3 * x.C(), *const k = x.qkv + at.qkv + s * 3 * x.C() + x.C();
    const float *const dout = x.dout + at.out + t * x.C(), *const out = x.out + at.out + t * x.C();
    const float p = s <= t ? expf(dot(q, k, x.hs) * scale - x.logsumexp[head * x.T + t]) : 0;
    x.probabilities[i] = p;
    x.dscores[i] = p * (dot(dout, k + x.C(), x.hs) - dot(dout, out, x.hs)) * scale;
}
__global__ void __launch_bounds__(threads) dqkv_kernel(Tensors x) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x, c = i % x.hs, row = i / x.hs % x.T,
                  head = i / x.hs / x.T;
    if (head >= x.B * x.NH) return;
    const Head at = head_of(x, head);
    const float *const p = x.probabilities + head * x.T * x.T, *const dscore = x.dscores + head * x.T * x.T;
    float dq = 0, dk = 0, dv = 0;
    for (int64_t other = 0; other < x.T; ++other) {
        const int64_t qkv = at.qkv + other * 3 * x.C() + c;
        dq += dscore[row * x.T + other] * x.qkv[qkv + x.C()];
        dk += dscore[other * x.T + row] * x.qkv[qkv];
        dv += p[other * x.T + row] * x.dout[at.out + other * x.C() + c];
    }
    float* const to = x.dqkv + at.qkv + row * 3 * x.C() + c;
    to[0] = dq, to[x.C()] = dk, to[2 * x.C()] = dv;
}
inline void backward_naive(Cuda& dev, const Tensors& x) {
    LAUNCH(dscores_kernel, x.blocks(x.T * x.T, threads), threads, 0, dev.stream, x,
           1 / std::sqrt(static_cast<float>(x.hs)));
    LAUNCH(dqkv_kernel, x.blocks(x.T * x.hs, threads), threads, 0, dev.stream, x);
}

// --- Tensors in bf16, for the rungs on tensor cores; the ladder compares floats.
template <class To, class From>
__global__ void __launch_bounds__(threads) convert_kernel(To* to, const From* from, int64_t n) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i < n) to[i] = from_float<To>(to_float(from[i]));
}
template <class To, class From>
void convert(Cuda& dev, To* to, const From* from, int64_t n) {
    LAUNCH((convert_kernel<To, From>), static_cast<unsigned>((n + threads - 1) / threads), threads, 0, dev.stream, to,
           from, n);
}
struct Bf16Tensors {
    CudaBuffer<bf16> qkv, out, dout, dqkv;
    Bf16Tensors(Cuda& dev, const Tensors& x)
        : qkv(cuda_allocate<bf16>(x.B * x.T * 3 * x.C())),
          out(cuda_allocate<bf16>(x.B * x.T * x.C())),
          dout(cuda_allocate<bf16>(x.B * x.T * x.C())),
          dqkv(cuda_allocate<bf16>(x.B * x.T * 3 * x.C())) {
        convert(dev, qkv.get(), x.qkv, x.B * x.T * 3 * x.C());
        convert(dev, dout.get(), x.dout, x.B * x.T * x.C());
        convert(dev, out.get(), x.out, x.B * x.T * x.C());
    }
};

}  // namespace rungs
