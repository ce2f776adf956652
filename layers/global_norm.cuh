// The status of a step on the Cuda device, in device memory: its loss, the norm of its gradients, and whether to apply
// its update. Sums are in double, and their order depends on n and alignment alone: the same bits on every GPU, and on
// any number of them.
#pragma once

#include "device/cuda/common.cuh"
#include "device/update.h"
#include "layers/global_norm.h"

constexpr int norm_threads = 512;

__device__ __forceinline__ double warp_sum(double x) {
    UNROLL for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}
// Returns the sum of x over the block's norm_threads threads to thread 0.
__device__ __forceinline__ double block_sum(double x) {
    __shared__ double warps[norm_threads / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x >= 32) return x;
    return warp_sum(threadIdx.x < norm_threads / 32 ? warps[threadIdx.x] : 0);
}

// s->loss += scale * sum of losses (n). One block.
static __global__ void __launch_bounds__(norm_threads)
    add_loss_kernel(StepStatus* s, const float* __restrict__ losses, int64_t n, double scale) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += norm_threads) sum += static_cast<double>(losses[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) s->loss += scale * sum;
}

// sums (runs of n): a warp sums a run.
template <int V>
__global__ void __launch_bounds__(norm_threads)
    sums_of_squares_kernel(double* __restrict__ sums, const float* __restrict__ x, int64_t n) {
    const int lane = threadIdx.x % 32;
    const int64_t run = (int64_t{blockIdx.x} * norm_threads + threadIdx.x) / 32, first = run * global_norm::run;
    if (first >= n) return;
    const int64_t end = min(n, first + global_norm::run), rest = end - (end - first) % V;
    double sum = 0;
    const auto add = [&]<int W>(int64_t i) {
        float y[W];
        load_once<W>(y, x + i);
        UNROLL for (int v = 0; v < W; ++v) sum += static_cast<double>(y[v]) * static_cast<double>(y[v]);
    };
    for (int64_t i = first + lane * V; i < rest; i += 32 * V) add.template operator()<V>(i);
    if (rest + lane < end) add.template operator()<1>(rest + lane);
    sum = warp_sum(sum);
    if (lane == 0) sums[run] = sum;
}

// One block. A NaN compares false, so the update is skipped.
static __global__ void __launch_bounds__(norm_threads)
    decide_kernel(StepStatus* s, const double* __restrict__ sums, int64_t runs,
                  const UpdateParams* __restrict__ params) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < runs; i += norm_threads) sum += sums[i];
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

// sums (runs of n, layers/global_norm.h) = the sum of squares of each run of x (n)
inline void sums_of_squares(Cuda& dev, double* sums, const float* x, int64_t n) {
    const Timed timed(dev, "global_norm", 0, 4 * prod(n));
    const auto blocks = static_cast<unsigned>((32 * global_norm::runs(n) + norm_threads - 1) / norm_threads);
    if (n == 0) return;
    if (can_pack<float>(packed<float>, x))
        LAUNCH(sums_of_squares_kernel<packed<float>>, blocks, norm_threads, 0, dev.stream, sums, x, n);
    else
        LAUNCH(sums_of_squares_kernel<1>, blocks, norm_threads, 0, dev.stream, sums, x, n);
}

// Computes s->squared_norm, grad_scale and apply from the sums of squares of all runs, s->loss and the limits in
// params. All are in device memory.
inline void decide_by_sums(Cuda& dev, StepStatus* s, const double* sums, int64_t runs, const UpdateParams* params) {
    LAUNCH(decide_kernel, 1, norm_threads, 0, dev.stream, s, sums, runs, params);
}

// The same from all gradients (n).
inline void decide(Cuda& dev, StepStatus* s, const float* gradients, int64_t n, const UpdateParams* params) {
    double* const sums = reinterpret_cast<double*>(dev.scratch(2 * global_norm::runs(n)));
    sums_of_squares(dev, sums, gradients, n);
    decide_by_sums(dev, s, sums, global_norm::runs(n), params);
}
