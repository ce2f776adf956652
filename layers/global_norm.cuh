// The status of a step on the Cuda device, in device memory: its loss, the norm of its gradients, and whether to apply
// its update. Sums are in double, and their order depends on n and alignment alone: the same bits on every GPU.
#pragma once

#include "device/cuda/common.cuh"
#include "device/update.h"

constexpr int norm_threads = 512, most_norm_blocks = 1024;

// Returns the sum of x over the block's norm_threads threads to thread 0.
__device__ __forceinline__ double block_sum(double x) {
    __shared__ double warps[norm_threads / 32];
    const auto of_warp = [](double y) {
        UNROLL for (int distance = 16; distance > 0; distance /= 2) y += __shfl_xor_sync(0xffffffff, y, distance);
        return y;
    };
    x = of_warp(x);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x >= 32) return x;
    return of_warp(threadIdx.x < norm_threads / 32 ? warps[threadIdx.x] : 0);
}

// s->loss += scale * sum of losses (n). One block.
static __global__ void __launch_bounds__(norm_threads)
    add_loss_kernel(StepStatus* s, const float* __restrict__ losses, int64_t n, double scale) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += norm_threads) sum += static_cast<double>(losses[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) s->loss += scale * sum;
}

// partial (blocks): each block's share of the sum of squares.
template <int V>
__global__ void __launch_bounds__(norm_threads)
    sum_of_squares_kernel(double* __restrict__ partial, const float* __restrict__ x, int64_t n) {
    double sum = 0;
    const int64_t vectors = n / V;
    const auto add = [&]<int W>(int64_t i) {
        float y[W];
        load_once<W>(y, x + i);
        UNROLL for (int v = 0; v < W; ++v) sum += static_cast<double>(y[v]) * static_cast<double>(y[v]);
    };
    const int64_t thread = int64_t{blockIdx.x} * norm_threads + threadIdx.x,
                  threads = int64_t{gridDim.x} * norm_threads;
    for (int64_t i = thread; i < vectors; i += threads) add.template operator()<V>(i * V);
    if (vectors * V + thread < n) add.template operator()<1>(vectors * V + thread);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block. A NaN compares false, so the update is skipped.
static __global__ void __launch_bounds__(norm_threads)
    decide_kernel(StepStatus* s, const double* __restrict__ partial, int blocks,
                  const UpdateParams* __restrict__ params) {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < blocks; i += norm_threads) sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    const double norm = sqrt(sum);
    s->squared_norm = sum;
    // As clip_scale in layers/global_norm.h, without its NaN: if the norm is not finite the update is skipped.
    s->grad_scale = params->clip > 0 ? fmin(1.0, params->clip / (norm + 1e-6)) : 1;
    s->apply = s->loss <= params->max_loss && norm <= params->max_norm;
}

// s->loss += scale * sum of losses (n)
inline void add_loss(Cuda& dev, StepStatus* s, const float* losses, int64_t n, double scale) {
    const Timed timed(dev, "add_loss", 0, 4 * prod(n));
    LAUNCH(add_loss_kernel, 1, norm_threads, 0, dev.stream, s, losses, n, scale);
}

// Computes s->squared_norm, grad_scale and apply from all gradients (n), s->loss and the limits in params. s and params
// are in device memory.
inline void decide(Cuda& dev, StepStatus* s, const float* gradients, int64_t n, const UpdateParams* params) {
    const Timed timed(dev, "global_norm", 0, 4 * prod(n));
    constexpr int64_t share = 16 * norm_threads;  // the least that is worth a block
    const int blocks = static_cast<int>(std::clamp<int64_t>(n / share, 1, most_norm_blocks));
    double* const partial = reinterpret_cast<double*>(dev.scratch(2 * blocks));
    if (can_pack<float>(packed<float>, gradients))
        LAUNCH(sum_of_squares_kernel<packed<float>>, blocks, norm_threads, 0, dev.stream, partial, gradients, n);
    else
        LAUNCH(sum_of_squares_kernel<1>, blocks, norm_threads, 0, dev.stream, partial, gradients, n);
    LAUNCH(decide_kernel, 1, norm_threads, 0, dev.stream, s, partial, blocks, params);
}
