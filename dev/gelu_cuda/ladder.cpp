// GELU's ladder on a GPU. A GPU can do some hundred operations in the time in which a value is read and written, so
// tanhf is no problem. The question is how many bytes are in flight at once.
#include "dev/ladder_cuda.h"
#include "layers/gelu.cuh"

// 192 MiB: beyond any cache
const Kernel kernel{"gelu_cuda",
                    "GELU in its tanh form, forward and backward, on a GPU or in its emulator",
                    {{"N", on_gpu ? 16384 : 7, "rows"}, {"C", on_gpu ? 3072 : 333, "channels"}}};

namespace {

unsigned blocks(int64_t threads) { return static_cast<unsigned>((threads + 255) / 256); }

// 1. One thread per value, by the formula. A warp loads 128 bytes at once, and then waits.
__global__ void __launch_bounds__(256) forward_naive(float* out, const float* inp, int64_t n) {
    const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (i >= n) return;
    const float x = inp[i];
    out[i] = x / 2 * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}
__global__ void __launch_bounds__(256) backward_naive(float* dinp, const float* inp, const float* dout, int64_t n) {
    const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (i >= n) return;
    const float x = inp[i], t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    dinp[i] = dout[i] * ((1 + t) / 2 + x / 2 * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x));
}

// 2. Four values per thread, 16 bytes in one access: four times as many bytes in flight.
__global__ void __launch_bounds__(256) forward_vectors(float* out, const float* inp, int64_t n) {
    each_element<4>(n, [&]<int W>(int64_t i) {
        float x[W];
        load<W>(x, inp + i);
        for (float& v : x) v = v / 2 * (1 + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
        store(out + i, x);
    });
}

}  // namespace

void climb(Ladder& ladder) {
    CudaLadder cuda(ladder);
    Cuda& dev = cuda.dev;
    const auto shape = ladder.shape<2>();
    const int64_t N = shape[0], C = shape[1], n = N * C;
    const auto &inp = ladder.input({N, C}, -5, 5), &out = ladder.output("out", {N, C});
    float *const x = cuda.memory(inp), *const y = cuda.memory(out);
    ladder.pass("forward", bytes(8 * prod(n)), {&out},
                [&](Reference<double>& d) { gelu_forward(d, out.on(d), inp.on(d), n); });
    ladder.rung("naive", "one thread per value",
                [&] { LAUNCH(forward_naive, blocks(n), 256, 0, dev.stream, y, x, n); });
    ladder.rung("vectors", "16 bytes in one access",
                [&] { LAUNCH(forward_vectors, blocks(n / 4 + n % 4), 256, 0, dev.stream, y, x, n); });
    ladder.rung("production", "exp instead of tanh: layers/gelu.cuh", [&] { gelu_forward(dev, y, x, n); });

    const auto &dout = ladder.input({N, C}), &dinp = ladder.output("dinp", {N, C}, 8);  // 1 - t² cancels
    float *const dy = cuda.memory(dout), *const dx = cuda.memory(dinp);
    ladder.pass("backward", bytes(12 * prod(n)), {&dinp},
                [&](Reference<double>& d) { gelu_backward(d, dinp.on(d), inp.on(d), dout.on(d), n); });
    ladder.rung("naive", "one thread per value",
                [&] { LAUNCH(backward_naive, blocks(n), 256, 0, dev.stream, dx, x, dy, n); });
    ladder.rung("production", "16 bytes in one access, exp: layers/gelu.cuh",
                [&] { gelu_backward(dev, dx, x, dy, n); });
    ladder.run();
}
