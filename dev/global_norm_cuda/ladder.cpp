// The global norm's ladder on a GPU: one number from millions. The question is how threads add up.
#include "dev/ladder_cuda.h"
#include "layers/global_norm.cuh"
#include "layers/global_norm.h"

constexpr unsigned grid = on_gpu ? 512 : 3;
const Kernel kernel{"global_norm_cuda",
                    "the sum of squares of a flat buffer, on a GPU or in its emulator",
                    {{"N", on_gpu ? 124475904 : 20001, "values"}}};  // GPT-2 124M's

namespace {

__global__ void start(double* total) { *total = 0; }
__global__ void finish(float* out, const double* total) { *out = static_cast<float>(*total); }

// 1. Each thread adds its square to the one total: they all wait for each other, and come in any order.
__global__ void __launch_bounds__(256) atomics(double* total, const float* x, int64_t n) {
    const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (i < n) atomicAdd(total, static_cast<double>(x[i]) * static_cast<double>(x[i]));
}

// 2. The threads of a block add up first, in shared memory by halves; a block's sum is one atomic addition, still in
// any order.
__global__ void __launch_bounds__(256) trees(double* total, const float* x, int64_t n) {
    __shared__ double tile[256];
    const unsigned t = threadIdx.x;
    const int64_t i = int64_t{blockIdx.x} * 256 + t;
    tile[t] = i < n ? static_cast<double>(x[i]) * static_cast<double>(x[i]) : 0;
    for (unsigned half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) tile[t] += tile[t + half];
    }
    if (t == 0) atomicAdd(total, tile[0]);
}

// 3. A grid of a fixed size, so that a thread adds many squares in a register; then warps add up by shuffles, without
// shared memory and its barriers.
__global__ void __launch_bounds__(norm_threads) shuffles(double* total, const float* x, int64_t n) {
    double sum = 0;
    for (int64_t i = int64_t{blockIdx.x} * norm_threads + threadIdx.x; i < n; i += int64_t{gridDim.x} * norm_threads)
        sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) atomicAdd(total, sum);
}

}  // namespace

void climb(Ladder& ladder) {
    CudaLadder cuda(ladder);
    Cuda& dev = cuda.dev;
    const int64_t n = ladder.shape<1>()[0];
    const auto &values = ladder.input({n}), &sum = ladder.output("sum", {1});
    float *const x = cuda.memory(values), *const out = cuda.memory(sum);
    const unsigned blocks = static_cast<unsigned>((n + 255) / 256);
    const auto total = cuda_allocate<double>(1);
    const auto status = allocate<StepStatus>(dev, 1);
    const auto params = cuda_allocate<UpdateParams>(1);
    const UpdateParams unlimited;
    to_device(dev, params.get(), &unlimited, 1);
    const auto rung = [&](const char* name, const char* adds, void (*kernel_of)(double*, const float*, int64_t),
                          unsigned grid_size, unsigned block) {
        ladder.rung(
            name, adds,
            [&, kernel_of, grid_size, block] {
                LAUNCH(start, 1, 1, 0, dev.stream, total.get());
                LAUNCH(kernel_of, grid_size, block, 0, dev.stream, total.get(), x, n);
                LAUNCH(finish, 1, 1, 0, dev.stream, out, total.get());
            },
            false);
    };
    ladder.pass("sum of squares", bytes(4 * prod(n)), {&sum},
                [&](Reference<double>& d) { sum.on(d)[0] = global_norm_squared(d, values.on(d), n); });
    rung("atomics", "every thread adds to one total", atomics, blocks, 256);
    rung("trees", "a block adds up in shared memory", trees, blocks, 256);
    rung("shuffles", "registers first, then warps by shuffles", shuffles, grid, norm_threads);
    ladder.rung("production", "a warp sums 4096 values, one block their sums: layers/global_norm.cuh", [&] {
        decide(dev, status.get(), x, n, params.get());
        LAUNCH(finish, 1, 1, 0, dev.stream, out, &status.get()->squared_norm);
    });
    ladder.run();
}
