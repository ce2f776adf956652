// The classifier on the Cuda device. For a few thousand rows at a time, cuBLASLt computes the logits in scratch memory,
// one kernel overwrites them by their gradient, and cuBLASLt multiplies that. T is the type of tensors, float or bf16,
// logits included; softmax and losses are fp32.
#pragma once

#include "layers/classifier.h"
#include "device/cuda/cublaslt.cuh"

// weight has Vp rows; those of the padding must be finite. All Vp columns of logits are computed, so that their rows
// are aligned for the widest accesses and for cuBLASLt.
constexpr int64_t classifier_padded(int64_t V) { return (V + 127) / 128 * 128; }
// Scratch memory of the classifier, in floats: the logits of a chunk of rows. With GPT-2's vocabulary, 8192 rows in
// bf16 are 786 MiB. Larger chunks would gain little: the matmuls of a chunk have 1.9e12 operations, milliseconds on a
// large GPU, and reading and writing all of dweight (148 MiB) once per chunk takes little time in comparison.
template <class T>
int64_t classifier_scratch(const Cuda& dev, int64_t N, int64_t V) {
    return std::min(N, dev.classifier_rows) * classifier_padded(V) * static_cast<int64_t>(sizeof(T)) / 4;
}

// The sum of e^x over some x, as sum * e^largest (Milakov & Gimelshein 2018, "Online normalizer calculation for
// softmax"). If some x is NaN, the sum is NaN.
struct ExpSum {
    float largest, sum;
};
__device__ __forceinline__ ExpSum no_terms() { return {-3.402823466e38f, 0}; }  // finite, so that it can be merged
__device__ __forceinline__ float exp_of(float x) { return exp2f(x * 1.44269504089f); }
__device__ __forceinline__ ExpSum merge(ExpSum a, ExpSum b) {
    const float largest = fmaxf(a.largest, b.largest);
    return {largest, a.sum * exp_of(a.largest - largest) + b.sum * exp_of(b.largest - largest)};
}
__device__ __forceinline__ ExpSum warp_merge(ExpSum x) {
    UNROLL for (int distance = 16; distance > 0; distance /= 2) x =
        merge(x, {__shfl_xor_sync(0xffffffff, x.largest, distance), __shfl_xor_sync(0xffffffff, x.sum, distance)});
    return x;
}

// losses (rows) = log(sum of e^logits) - logits[target]. With GRADIENT also logits (rows,Vp) = scale * (softmax -
// onehot(target)), and 0 in the padding, which is not read. One block per row, of whole vectors: it reads the row once
// for the sum and again, from the caches, for the gradient.
constexpr int cross_entropy_block = 512;
template <bool GRADIENT, class T>
__global__ void __launch_bounds__(cross_entropy_block)
    cross_entropy_kernel(float* __restrict__ losses, T* logits, const int32_t* __restrict__ targets, int V, int Vp,
                         float scale) {
    constexpr int W = packed<T>, WARPS = cross_entropy_block / 32;
    __shared__ ExpSum sums[WARPS];
    __shared__ ExpSum total;
    T* const row = logits + int64_t{blockIdx.x} * Vp;
    const int target = targets[blockIdx.x], start = static_cast<int>(threadIdx.x) * W;
    // Read before any thread overwrites it.
    const float target_logit = threadIdx.x == 0 ? to_float(row[target]) : 0;

    ExpSum mine = no_terms();
    for (int c = start; c < V; c += cross_entropy_block * W) {
        float x[W];
        load(x, row + c);
        float largest = mine.largest;
        UNROLL for (int w = 0; w < W; ++w) if (c + w < V) largest = fmaxf(largest, x[w]);
        mine.sum *= exp_of(mine.largest - largest);
        UNROLL for (int w = 0; w < W; ++w) if (c + w < V) mine.sum += exp_of(x[w] - largest);
        mine.largest = largest;
    }
    mine = warp_merge(mine);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        const ExpSum all = warp_merge(threadIdx.x < WARPS ? sums[threadIdx.x] : no_terms());
        if (threadIdx.x == 0) {
            losses[blockIdx.x] = logf(all.sum) + (all.largest - target_logit);
            total = all;
        }
    }
    if constexpr (GRADIENT) {
        __syncthreads();
        const float largest = total.largest, factor = scale / total.sum;
        for (int c = start; c < Vp; c += cross_entropy_block * W) {
            float x[W];
            load(x, row + c);
            UNROLL for (int w = 0; w < W; ++w) x[w] =
                c + w < V ? factor * exp_of(x[w] - largest) - (c + w == target ? scale : 0) : 0;
            store(row + c, x);
        }
    }
}

// Calls f(first row, rows, logits (rows,Vp)) for each chunk, after its losses and, with GRADIENT, the gradient of its
// logits are computed.
template <bool GRADIENT, class T, class F>
void classifier_chunks(Cuda& dev, float* losses, const T* inp, const T* weight, const int32_t* targets, int64_t N,
                       int64_t C, int64_t V, float scale, const F& f) {
    const int64_t Vp = classifier_padded(V);
    T* const logits = reinterpret_cast<T*>(dev.scratch(classifier_scratch<T>(dev, N, V)));
    for (int64_t first = 0; first < N; first += dev.classifier_rows) {
        const int64_t rows = std::min(dev.classifier_rows, N - first);
        matmul(dev,
               Matmul<T, T>{
                   .out = logits, .a = inp + first * C, .b = weight, .M = rows, .N = Vp, .K = C, .b_transposed = true});
        LAUNCH((cross_entropy_kernel<GRADIENT, T>), static_cast<unsigned>(rows), cross_entropy_block, 0, dev.stream,
               losses + first, logits, targets + first, static_cast<int>(V), static_cast<int>(Vp), scale);
        f(first, rows, logits);
    }
}

// logits (N,V) = inp (N,C) · weightᵀ; Out is float or T
template <class Out, class T>
void classifier_logits(Cuda& dev, Out* logits, const T* inp, const T* weight, int64_t N, int64_t C, int64_t V) {
    const Timed timed(dev, "classifier_logits", 2 * prod(N, C, V), 0);
    matmul(dev, Matmul<T, Out>{.out = logits, .a = inp, .b = weight, .M = N, .N = V, .K = C, .b_transposed = true});
}

// losses (N) = log(sum of e^logits) - logits[target]
template <class T>
void classifier_forward(Cuda& dev, float* losses, const T* inp, const T* weight, const int32_t* targets, int64_t N,
                        int64_t C, int64_t V) {
    const Timed timed(dev, "classifier_forward", 2 * prod(N, C, V), 0);
    classifier_chunks<false>(dev, losses, inp, weight, targets, N, C, V, 0, [](int64_t, int64_t, T*) {});
}

// forward: losses = log(sum of e^logits) - logits[target]
// dlogits = scale * (softmax(logits) - onehot(target)): the gradient of scale * (sum of losses)
// dinp (N,C) = dlogits · weight        dweight (Vp,C) += dlogitsᵀ · inp, = unless accumulate
template <class T>
void classifier_forward_backward(Cuda& dev, float* losses, T* dinp, float* dweight, const T* inp, const T* weight,
                                 const int32_t* targets, int64_t N, int64_t C, int64_t V, float scale,
                                 bool accumulate = true) {
    const Timed timed(dev, "classifier_forward_backward", 6 * prod(N, C, V), 0);
    const int64_t Vp = classifier_padded(V);
    if (N == 0 && !accumulate) zero(dev, dweight, Vp * C);
    classifier_chunks<true>(
        dev, losses, inp, weight, targets, N, C, V, scale, [&](int64_t first, int64_t rows, const T* dlogits) {
            matmul(dev, Matmul<T, float>{.out = dweight,
                                         .a = dlogits,
                                         .b = inp + first * C,
                                         .M = Vp,
                                         .N = C,
                                         .K = rows,
                                         .a_transposed = true,
                                         .beta = accumulate || first > 0 ? 1.0f : 0.0f});
            matmul(dev, Matmul<T, T>{.out = dinp + first * C, .a = dlogits, .b = weight, .M = rows, .N = C, .K = Vp});
        });
}
