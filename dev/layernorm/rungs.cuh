// The ladder of layer normalization on a GPU, in fp32: each rung adds one idea to the one before, and the last is the
// program's kernel. On a CPU the vectors of one core compute a row. A GPU needs enough loads in flight from enough
// threads, so the question is which threads share a row, and how they add up their sums.
// dev/test/cuda/layernorm_rungs_test.cpp compares each rung with Reference in the emulator, and times them on a GPU.
#pragma once

#include <vector>

#include "layers/layernorm.cuh"

namespace rungs {

// The arguments of a rung, all in device memory: those of layernorm_forward and layernorm_backward.
struct Tensors {
    float *residual, *out, *mean, *rstd;  // residual: for the fused rungs
    const float *inp, *branch, *weight, *bias;
    float *dinp, *dweight, *dbias;
    const float* dout;
    int64_t N, C;
};

constexpr float eps = 1e-5f;

// 1. One thread per row, with plain loops. Neighbouring threads read addresses a row apart: of each 32 bytes that
// memory delivers, 4 are used before the caches are full of other rows.
__global__ void forward_thread_per_row(float* out, float* mean, float* rstd, const float* inp, const float* weight,
                                       const float* bias, int64_t N, int64_t C) {
    const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (row >= N) return;
    const float* const x = inp + row * C;
    float sum = 0, squares = 0;
    for (int64_t c = 0; c < C; ++c) sum += x[c];
    const float m = sum / static_cast<float>(C);
    for (int64_t c = 0; c < C; ++c) squares += (x[c] - m) * (x[c] - m);
    const float r = 1 / sqrtf(squares / static_cast<float>(C) + eps);
    for (int64_t c = 0; c < C; ++c) out[row * C + c] = (x[c] - m) * r * weight[c] + bias[c];
    mean[row] = m;
    rstd[row] = r;
}
inline void thread_per_row(Cuda& dev, const Tensors& t) {
    LAUNCH(forward_thread_per_row, static_cast<unsigned>((t.N + 127) / 128), 128, 0, dev.stream, t.out, t.mean, t.rstd,
           t.inp, t.weight, t.bias, t.N, t.C);
}

// 2. One block per row: neighbouring threads read neighbouring floats. They add up through shared memory by halves: 8
// steps for 256 threads, with a barrier after each.
constexpr unsigned tree_threads = 256;
__device__ inline float tree_sum(float x, float* tile) {
    const unsigned t = threadIdx.x;
    tile[t] = x;
    __syncthreads();
    for (unsigned half = tree_threads / 2; half > 0; half /= 2) {
        if (t < half) tile[t] += tile[t + half];
        __syncthreads();
    }
    const float sum = tile[0];
    __syncthreads();  // the tile is free again
    return sum;
}
__global__ void forward_block_per_row(float* out, float* mean, float* rstd, const float* inp, const float* weight,
                                      const float* bias, int64_t C) {
    __shared__ float tile[tree_threads];
    const int64_t row = blockIdx.x;
    const float* const x = inp + row * C;
    float sum = 0, squares = 0;
    for (int64_t c = threadIdx.x; c < C; c += tree_threads) sum += x[c];
    const float m = tree_sum(sum, tile) / static_cast<float>(C);
    for (int64_t c = threadIdx.x; c < C; c += tree_threads) squares += (x[c] - m) * (x[c] - m);
    const float r = 1 / sqrtf(tree_sum(squares, tile) / static_cast<float>(C) + eps);
    for (int64_t c = threadIdx.x; c < C; c += tree_threads) out[row * C + c] = (x[c] - m) * r * weight[c] + bias[c];
    if (threadIdx.x == 0) mean[row] = m, rstd[row] = r;
}
inline void block_per_row(Cuda& dev, const Tensors& t) {
    LAUNCH(forward_block_per_row, static_cast<unsigned>(t.N), tree_threads, 0, dev.stream, t.out, t.mean, t.rstd, t.inp,
           t.weight, t.bias, t.C);
}

// 3. One warp per row: its lanes add up by 5 shuffles, without shared memory or barriers, and each load has 16 bytes,
// so that fewer instructions keep as many bytes in flight. From here on C is a multiple of 4.
__global__ void forward_warp_per_row(float* out, float* mean, float* rstd, const float* inp, const float* weight,
                                     const float* bias, int64_t N, int64_t C) {
    const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (row >= N) return;
    const int columns = static_cast<int>(C), start = static_cast<int>(threadIdx.x) * 4;
    float sum = 0, squares = 0, x[4], w[4], b[4];
    for (int c = start; c < columns; c += 128) {
        load(x, inp + row * C + c);
        sum += x[0] + x[1] + x[2] + x[3];
    }
    const float m = warp_sum(sum) / static_cast<float>(C);
    for (int c = start; c < columns; c += 128) {
        load(x, inp + row * C + c);
        for (const float value : x) squares += (value - m) * (value - m);
    }
    const float r = 1 / sqrtf(warp_sum(squares) / static_cast<float>(C) + eps);
    for (int c = start; c < columns; c += 128) {
        load(x, inp + row * C + c), load(w, weight + c), load(b, bias + c);
        for (int v = 0; v < 4; ++v) x[v] = (x[v] - m) * r * w[v] + b[v];
        store(out + row * C + c, x);
    }
    if (threadIdx.x == 0) mean[row] = m, rstd[row] = r;
}
inline void warp_per_row(Cuda& dev, const Tensors& t) {
    LAUNCH(forward_warp_per_row, static_cast<unsigned>((t.N + 3) / 4), dim3(32, 4), 0, dev.stream, t.out, t.mean,
           t.rstd, t.inp, t.weight, t.bias, t.N, t.C);
}

// 4. The row stays in registers: it is read once, and all of its loads are in flight together. The compiler must know
// the number of registers: up to 8 times 4 values per lane, for rows of up to 1024.
// 5. The residual is added in the same pass (FUSED): the sum is not read again, 4 passes over memory instead of 5.
constexpr int most_columns = 1024;
template <bool FUSED>
__global__ void forward_registers(float* residual, float* out, float* mean, float* rstd, const float* inp,
                                  const float* branch, const float* weight, const float* bias, int64_t N, int64_t C) {
    const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (row >= N) return;
    float x[8][4], sum = 0, squares = 0;
    each_vector<1, 4, 8>(C, [&](int k, int c) { load_once(x[k], inp + row * C + c); });
    if constexpr (FUSED) {
        float b[8][4];
        each_vector<1, 4, 8>(C, [&](int k, int c) { load_once(b[k], branch + row * C + c); });
        each_vector<1, 4, 8>(C, [&](int k, int c) {
            UNROLL for (int v = 0; v < 4; ++v) x[k][v] += b[k][v];
            store(residual + row * C + c, x[k]);
        });
    }
    each_vector<1, 4, 8>(C, [&](int k, int) { UNROLL for (int v = 0; v < 4; ++v) sum += x[k][v]; });
    const float m = warp_sum(sum) / static_cast<float>(C);
    each_vector<1, 4, 8>(
        C, [&](int k, int) { UNROLL for (int v = 0; v < 4; ++v) squares += (x[k][v] - m) * (x[k][v] - m); });
    const float r = 1 / sqrtf(warp_sum(squares) / static_cast<float>(C) + eps);
    each_vector<1, 4, 8>(C, [&](int k, int c) {
        float w[4], b[4];
        load(w, weight + c), load(b, bias + c);
        UNROLL for (int v = 0; v < 4; ++v) x[k][v] = (x[k][v] - m) * r * w[v] + b[v];
        store(out + row * C + c, x[k]);
    });
    if (threadIdx.x == 0) mean[row] = m, rstd[row] = r;
}
template <bool FUSED>
void in_registers(Cuda& dev, const Tensors& t) {
    LAUNCH(forward_registers<FUSED>, static_cast<unsigned>((t.N + 3) / 4), dim3(32, 4), 0, dev.stream, t.residual,
           t.out, t.mean, t.rstd, t.inp, t.branch, t.weight, t.bias, t.N, t.C);
}

// Backward. 1. One warp per row, which adds to dweight and dbias by atomics: as many warps wait for an address as there
// are rows, and the bits of the sums depend on their order.
__global__ void backward_atomics(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                                 const float* weight, const float* mean, const float* rstd, int64_t N, int64_t C) {
    const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if (row >= N) return;
    const float m = mean[row], r = rstd[row];
    float sum = 0, sum_norm = 0;
    for (int64_t c = threadIdx.x; c < C; c += 32) {
        const float dy = dout[row * C + c], norm = (inp[row * C + c] - m) * r;
        sum += dy * weight[c];
        sum_norm += dy * weight[c] * norm;
        atomicAdd(&dweight[c], dy * norm);
        atomicAdd(&dbias[c], dy);
    }
    const float mean_dnorm = warp_sum(sum) / static_cast<float>(C),
                mean_dnorm_norm = warp_sum(sum_norm) / static_cast<float>(C);
    for (int64_t c = threadIdx.x; c < C; c += 32) {
        const float norm = (inp[row * C + c] - m) * r;
        dinp[row * C + c] = r * (dout[row * C + c] * weight[c] - mean_dnorm - norm * mean_dnorm_norm);
    }
}
inline void with_atomics(Cuda& dev, const Tensors& t) {
    LAUNCH(backward_atomics, static_cast<unsigned>((t.N + 3) / 4), dim3(32, 4), 0, dev.stream, t.dinp, t.dweight,
           t.dbias, t.dout, t.inp, t.weight, t.mean, t.rstd, t.N, t.C);
}

inline void production_forward(Cuda& dev, const Tensors& t) {
    layernorm_forward(dev, t.out, t.mean, t.rstd, t.inp, t.weight, t.bias, t.N, t.C);
}
inline void production_fused(Cuda& dev, const Tensors& t) {
    residual_layernorm_forward(dev, t.residual, t.out, t.mean, t.rstd, t.inp, t.branch, t.weight, t.bias, t.N, t.C);
}
inline void production_backward(Cuda& dev, const Tensors& t) {
    const float* const no_residual = nullptr;
    layernorm_backward(dev, t.dinp, t.dweight, t.dbias, t.dout, t.inp, t.weight, t.mean, t.rstd, no_residual, t.N, t.C);
}

enum class Pass { forward, fused, backward };
struct Rung {
    Pass pass;
    const char *name, *adds;
    void (*run)(Cuda& dev, const Tensors& t);
    int vector = 1;          // C is a multiple of it
    int64_t most = 1 << 30;  // the largest C
};
inline const Rung ladder[] = {
    {Pass::forward, "thread per row", "the plain loops, a row for each thread", thread_per_row},
    {Pass::forward, "block per row", "neighbouring threads read neighbouring floats, and add up in shared memory",
     block_per_row},
    {Pass::forward, "warp per row", "sums by shuffles, without barriers; loads of 16 bytes", warp_per_row, 4},
    {Pass::forward, "registers", "the row is read once", in_registers<false>, 4, most_columns},
    {Pass::forward, "production", "any C, any option: several warps a row where it is long", production_forward},
    {Pass::fused, "registers", "the residual's addition in the same pass", in_registers<true>, 4, most_columns},
    {Pass::fused, "production", "any C, any option", production_fused},
    {Pass::backward, "atomics", "a warp per row, dweight and dbias by atomics", with_atomics},
    {Pass::backward, "production", "sums of a fixed shape in registers, then over the blocks", production_backward},
};

}  // namespace rungs
