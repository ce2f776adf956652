// AdamW's ladder on a GPU: 28 bytes of memory traffic for each parameter, and little to compute.
#include "dev/adamw/factors.h"
#include "dev/ladder_cuda.h"
#include "layers/adamw.cuh"

const Kernel kernel{"adamw_cuda",
                    "AdamW over a flat buffer, on a GPU or in its emulator",
                    {{"N", on_gpu ? 124475904 : 3001, "parameters"}}};  // GPT-2 124M's

namespace {

using adamw_rungs::Factors;

__device__ int64_t my_element() { return int64_t{blockIdx.x} * 256 + threadIdx.x; }

// 1. A kernel for each formula: moments and gradients come from memory twice.
__global__ void __launch_bounds__(256) first_moment(float* m, const float* grad, int64_t n, Factors f) {
    const int64_t i = my_element();
    if (i < n) m[i] = f.beta1 * m[i] + (1 - f.beta1) * grad[i];
}
__global__ void __launch_bounds__(256) second_moment(float* v, const float* grad, int64_t n, Factors f) {
    const int64_t i = my_element();
    if (i < n) v[i] = f.beta2 * v[i] + (1 - f.beta2) * grad[i] * grad[i];
}
__global__ void __launch_bounds__(256) parameters(float* param, const float* m, const float* v, int64_t n, Factors f) {
    const int64_t i = my_element();
    if (i < n) param[i] = param[i] * f.decay - f.lr * (m[i] / f.correction1) / (sqrtf(v[i] / f.correction2) + f.eps);
}

// 2. One kernel: everything is read and written once.
__global__ void __launch_bounds__(256)
    fused(float* param, const float* grad, float* m, float* v, int64_t n, Factors f) {
    const int64_t i = my_element();
    if (i >= n) return;
    const float g = grad[i], first = f.beta1 * m[i] + (1 - f.beta1) * g,
                second = f.beta2 * v[i] + (1 - f.beta2) * g * g;
    m[i] = first, v[i] = second;
    param[i] = param[i] * f.decay - f.lr * (first / f.correction1) / (sqrtf(second / f.correction2) + f.eps);
}

// 3. Four parameters a thread: fewer accesses, more bytes on their way.
__global__ void __launch_bounds__(256)
    vectors(float* param, const float* grad, float* m, float* v, int64_t n, Factors f) {
    each_element<4>(n, [&]<int W>(int64_t i) {
        float p[W], g[W], first[W], second[W];
        load<W>(p, param + i), load<W>(g, grad + i), load<W>(first, m + i), load<W>(second, v + i);
        for (int w = 0; w < W; ++w) {
            first[w] = f.beta1 * first[w] + (1 - f.beta1) * g[w];
            second[w] = f.beta2 * second[w] + (1 - f.beta2) * g[w] * g[w];
            p[w] = p[w] * f.decay - f.lr * (first[w] / f.correction1) / (sqrtf(second[w] / f.correction2) + f.eps);
        }
        store(param + i, p), store(m + i, first), store(v + i, second);
    });
}

}  // namespace

void climb(Ladder& ladder) {
    CudaLadder cuda(ladder);
    Cuda& dev = cuda.dev;
    const int64_t n = ladder.shape<1>()[0];
    const auto &param = ladder.updated("param", {n}), &grad = ladder.input({n}), &m = ladder.updated("m", {n}),
               &v = ladder.updated("v", {n}, 1, 0, 1);
    float *const p = cuda.memory(param), *const g = cuda.memory(grad), *const m1 = cuda.memory(m),
                 *const m2 = cuda.memory(v);
    const unsigned blocks = static_cast<unsigned>((n + 255) / 256);
    const Factors f;
    const auto status = cuda_allocate<StepStatus>(1);
    to_device(dev, status.get(), &adamw_rungs::unclipped, 1);
    const auto device_params = cuda_allocate<UpdateParams>(1);
    to_device(dev, device_params.get(), &adamw_rungs::params, 1);
    ladder.pass("update", bytes(28 * prod(n)), {&param, &m, &v}, [&](Reference<double>& d) {
        adamw_update(d, param.on(d), grad.on(d), m.on(d), v.on(d), n, &adamw_rungs::params, true,
                     &adamw_rungs::unclipped);
    });
    ladder.rung("naive", "a kernel for each formula", [&] {
        LAUNCH(first_moment, blocks, 256, 0, dev.stream, m1, g, n, f);
        LAUNCH(second_moment, blocks, 256, 0, dev.stream, m2, g, n, f);
        LAUNCH(parameters, blocks, 256, 0, dev.stream, p, m1, m2, n, f);
    });
    ladder.rung("fused", "one kernel: memory is gone through once",
                [&] { LAUNCH(fused, blocks, 256, 0, dev.stream, p, g, m1, m2, n, f); });
    ladder.rung("vectors", "16 bytes in one access", [&] {
        LAUNCH(vectors, static_cast<unsigned>((n / 4 + n % 4 + 255) / 256), 256, 0, dev.stream, p, g, m1, m2, n, f);
    });
    ladder.rung("production", "params and status from device memory: layers/adamw.cuh",
                [&] { adamw_update(dev, p, g, m1, m2, n, device_params.get(), true, status.get()); });
    ladder.run();
}
