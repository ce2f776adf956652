// The embedding's ladder on a GPU. The forward copies rows. In the backward, thousands of threads add to the same rows,
// and should do so in the same order in every run.
#include "dev/ladder_cuda.h"
#include "layers/embedding.cuh"

const Kernel kernel{"embedding_cuda",
                    "token and position embedding, forward and backward, on a GPU or in its emulator",
                    {{"B", on_gpu ? 64 : 3, "sequences"},
                     {"T", on_gpu ? 1024 : 50, "tokens each"},
                     {"C", on_gpu ? 768 : 40, "channels"},
                     {"V", on_gpu ? 50257 : 60, "in the vocabulary"}}};

namespace {

// forward: out (B,T,C) = wte[tokens[b,t]] + wpe[t]

// 1. One thread per value: a division for each to find its row, and 4 bytes per access.
__global__ void __launch_bounds__(256) forward_naive(float* out, const int32_t* tokens, const float* wte,
                                                     const float* wpe, int64_t N, int64_t T, int64_t C) {
    const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x, row = i / C, c = i % C;
    if (row < N) out[i] = wte[tokens[row] * C + c] + wpe[row % T * C + c];
}

// backward: dwte[tokens[b,t]] += dout[b,t]        dwpe[t] += dout[b,t]

// 1. One thread per value, and atomic additions: fast if tokens differ, but in another order in every run.
__global__ void __launch_bounds__(256) backward_atomics(float* dwte, float* dwpe, const float* dout,
                                                        const int32_t* tokens, int64_t N, int64_t T, int64_t C) {
    const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x, row = i / C, c = i % C;
    if (row >= N) return;
    atomicAdd(&dwte[tokens[row] * C + c], dout[i]);
    atomicAdd(&dwpe[row % T * C + c], dout[i]);
}

// 2. One thread per channel goes through all rows: the order is always the same, but only C threads work.
__global__ void __launch_bounds__(32) backward_channels(float* dwte, float* dwpe, const float* dout,
                                                        const int32_t* tokens, int64_t N, int64_t T, int64_t C) {
    const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
    if (c >= C) return;
    for (int64_t row = 0; row < N; ++row) {
        dwte[tokens[row] * C + c] += dout[row * C + c];
        dwpe[row % T * C + c] += dout[row * C + c];
    }
}

}  // namespace

void climb(Ladder& ladder) {
    CudaLadder cuda(ladder);
    Cuda& dev = cuda.dev;
    const auto shape = ladder.shape<4>();
    const int64_t B = shape[0], T = shape[1], C = shape[2], V = shape[3], N = B * T;
    const auto &wte = ladder.input({V, C}), &wpe = ladder.input({T, C}), &out = ladder.output("out", {B, T, C});
    const std::vector<int32_t> random = ladder.tokens(N, V);
    const int32_t* const on_host = random.data();
    const auto on_device = cuda_allocate<int32_t>(N);
    to_device(dev, on_device.get(), on_host, N);
    const int32_t* const tokens = on_device.get();
    const unsigned blocks = static_cast<unsigned>((N * C + 255) / 256);
    float *const y = cuda.memory(out), *const wt = cuda.memory(wte), *const wp = cuda.memory(wpe);
    ladder.pass("forward", bytes(8 * prod(N, C)), {&out},
                [&](Reference<double>& d) { embedding_forward(d, out.on(d), on_host, wte.on(d), wpe.on(d), B, T, C); });
    ladder.rung("naive", "one thread per value",
                [&] { LAUNCH(forward_naive, blocks, 256, 0, dev.stream, y, tokens, wt, wp, N, T, C); });
    ladder.rung("production", "one warp per row, 16 bytes per access: layers/embedding.cuh",
                [&] { embedding_forward(dev, y, tokens, wt, wp, B, T, C); });

    const auto& dout = ladder.input({B, T, C});
    const auto &dwte = ladder.updated("dwte", {V, C}, B), &dwpe = ladder.updated("dwpe", {T, C}, B);
    float *const dy = cuda.memory(dout), *const dt = cuda.memory(dwte), *const dp = cuda.memory(dwpe);
    ladder.pass("backward", bytes(12 * prod(N, C)), {&dwte, &dwpe}, [&](Reference<double>& d) {
        embedding_backward(d, dwte.on(d), dwpe.on(d), dout.on(d), on_host, B, T, C);
    });
    ladder.rung(
        "atomics", "one thread per value",
        [&] { LAUNCH(backward_atomics, blocks, 256, 0, dev.stream, dt, dp, dy, tokens, N, T, C); }, false);
    ladder.rung("channels", "one thread per channel: the same order in every run", [&] {
        LAUNCH(backward_channels, static_cast<unsigned>((C + 31) / 32), 32, 0, dev.stream, dt, dp, dy, tokens, N, T, C);
    });
    ladder.rung("production", "sorted tokens, cut into chunks: layers/embedding.cuh",
                [&] { embedding_backward(dev, dt, dp, dy, tokens, B, T, C); });
    ladder.run();
}
