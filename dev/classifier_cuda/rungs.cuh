// The ladder of softmax and cross-entropy on a GPU: rows of V logits, Vp floats apart, become their losses and, in
// place, their gradients, 0 in the padding. Only passes over memory matter: a row has to be read once and written once.
#pragma once

#include "layers/classifier.cuh"

namespace rungs {

// loss = log(sum of e^logits) - logits[target]        dlogits = scale * (softmax(logits) - onehot(target))
struct Task {
    float *losses, *logits;
    const int32_t* targets;
    int64_t N, V, Vp;
    float scale;
};

// The gradient of a logit, given the row's largest logit and sum.
__device__ inline float gradient(const Task& t, float logit, float largest, float sum, bool valid, bool target) {
    return valid ? t.scale * (expf(logit - largest) / sum - (target ? 1.0f : 0.0f)) : 0;
}

// 1. One thread per row, in three passes: the largest logit, the sum of e^x, the gradient. Neighbouring threads read
// addresses a row apart, and there are only as many threads as rows.
__global__ void naive_kernel(Task t) {
    const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (n >= t.N) return;
    float* const row = t.logits + n * t.Vp;
    float largest = row[0], sum = 0;
    for (int64_t v = 1; v < t.V; ++v) largest = fmaxf(largest, row[v]);
    for (int64_t v = 0; v < t.V; ++v) sum += expf(row[v] - largest);
    t.losses[n] = logf(sum) + largest - row[t.targets[n]];
    for (int64_t v = 0; v < t.Vp; ++v) row[v] = gradient(t, row[v], largest, sum, v < t.V, v == t.targets[n]);
}
inline void naive(Cuda& dev, const Task& t) {
    LAUNCH(naive_kernel, static_cast<unsigned>((t.N + 31) / 32), 32, 0, dev.stream, t);
}

// Combines the values of all threads of a block by f, halving their number in shared memory in each step.
constexpr unsigned threads = 256;
template <class F>
__device__ float of_block(float x, float (&tile)[threads], const F& f) {
    tile[threadIdx.x] = x;
    __syncthreads();
    for (unsigned half = threads / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) tile[threadIdx.x] = f(tile[threadIdx.x], tile[threadIdx.x + half]);
        __syncthreads();
    }
    const float result = tile[0];
    __syncthreads();
    return result;
}

// 2. One block per row: neighbouring threads read neighbouring logits, and there is work for the whole GPU.
__global__ void __launch_bounds__(threads) block_kernel(Task t) {
    __shared__ float tile[threads];
    float* const row = t.logits + blockIdx.x * t.Vp;
    const int target = t.targets[blockIdx.x];
    const float target_logit = row[target];
    float largest = -INFINITY, sum = 0;
    for (int64_t v = threadIdx.x; v < t.V; v += threads) largest = fmaxf(largest, row[v]);
    largest = of_block(largest, tile, [](float a, float b) { return fmaxf(a, b); });
    for (int64_t v = threadIdx.x; v < t.V; v += threads) sum += expf(row[v] - largest);
    sum = of_block(sum, tile, [](float a, float b) { return a + b; });
    for (int64_t v = threadIdx.x; v < t.Vp; v += threads)
        row[v] = gradient(t, row[v], largest, sum, v < t.V, v == target);
    if (threadIdx.x == 0) t.losses[blockIdx.x] = logf(sum) + largest - target_logit;
}
inline void block_per_row(Cuda& dev, const Task& t) {
    LAUNCH(block_kernel, static_cast<unsigned>(t.N), threads, 0, dev.stream, t);
}

// 3. Online softmax: the sum is relative to the largest logit so far, and multiplied by e^(before - now) when that
// grows. One pass gives both the largest logit and the sum, so there are two passes over the row instead of three.
__global__ void __launch_bounds__(threads) online_kernel(Task t) {
    __shared__ float tile[threads];
    float* const row = t.logits + blockIdx.x * t.Vp;
    const int target = t.targets[blockIdx.x];
    const float target_logit = row[target];
    ExpSum mine = no_terms();
    for (int64_t v = threadIdx.x; v < t.V; v += threads) mine = merge(mine, {row[v], 1});
    const float largest = of_block(mine.largest, tile, [](float a, float b) { return fmaxf(a, b); });
    const float sum = of_block(mine.sum * exp_of(mine.largest - largest), tile, [](float a, float b) { return a + b; });
    for (int64_t v = threadIdx.x; v < t.Vp; v += threads)
        row[v] = gradient(t, row[v], largest, sum, v < t.V, v == target);
    if (threadIdx.x == 0) t.losses[blockIdx.x] = logf(sum) + largest - target_logit;
}
inline void online(Cuda& dev, const Task& t) {
    LAUNCH(online_kernel, static_cast<unsigned>(t.N), threads, 0, dev.stream, t);
}

// 4. The classifier's own kernel: 16 bytes per access, one rescaling per vector of logits, and shuffles instead of most
// barriers.
inline void production(Cuda& dev, const Task& t) {
    LAUNCH((cross_entropy_kernel<true, float>), static_cast<unsigned>(t.N), cross_entropy_block, 0, dev.stream,
           t.losses, t.logits, t.targets, static_cast<int>(t.V), static_cast<int>(t.Vp), t.scale);
}

}  // namespace rungs
