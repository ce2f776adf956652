// Attention's ladder on a GPU: which threads read the scores, and from where. The last rungs work on bf16, with the
// same numbers: the inputs are rounded to bf16 for all rungs.
#include "dev/attention_cuda/rungs.cuh"
#include "dev/ladder_cuda.h"
#ifdef CUDNN_RUNG  // make -C dev attention_cuda USE_CUDNN=1
#include "dev/attention_cuda/cudnn.cuh"
#endif

const Kernel kernel{"attention_cuda",
                    "causal self-attention, forward and backward, on a GPU or in its emulator",
                    {{"B", on_gpu ? 4 : 1, "sequences"},
                     {"T", on_gpu ? 1024 : 130, "tokens each"},
                     {"NH", on_gpu ? 12 : 2, "heads"},
                     {"hs", 64, "channels each, at most 256"}}};

namespace {

// The tolerance of rungs in bf16, a share of 2^-8, as the number of terms of an fp32 sum with the same error.
constexpr int64_t terms_of_bf16 = int64_t{1} << 26;

void round_to_bf16(Reference<double>&, double* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<double>(static_cast<float>(bf16(x[i])));
}

}  // namespace

void climb(Ladder& ladder) {
    CudaLadder cuda(ladder);
    Cuda& dev = cuda.dev;
    const auto shape = ladder.shape<4>();
    const int64_t B = shape[0], T = shape[1], NH = shape[2], hs = shape[3];
    const int64_t C = NH * hs, n = B * T * C;
    const auto &qkv = ladder.input({B, T, 3 * C}, -2, 2), &dout = ladder.input({B, T, C});
    const auto &saved_out = ladder.input({B, T, C}), &saved_logsumexp = ladder.input({B, NH, T});
    ladder.prepare({&qkv, &dout}, [&, n](Reference<double>& d) {
        round_to_bf16(d, qkv.on(d), 3 * n);
        round_to_bf16(d, dout.on(d), n);
    });
    ladder.prepare({&saved_out, &saved_logsumexp}, [&, C](Reference<double>& d) {
        attention_forward(d, saved_out.on(d), saved_logsumexp.on(d), qkv.on(d), B, T, C, NH);
        round_to_bf16(d, saved_out.on(d), B * T * C);
    });
    const CudaBuffer<float> probabilities = cuda_allocate<float>(B * NH * T * T),
                            dscores = cuda_allocate<float>(B * NH * T * T);

    const double work = prod(B, T, T + 1, C);
    const auto forward = [&, C](const auto& out, const auto& logsumexp) {
        return
            [&, C](Reference<double>& d) { attention_forward(d, out.on(d), logsumexp.on(d), qkv.on(d), B, T, C, NH); };
    };
    const auto &out = ladder.output("out", {B, T, C}, T), &logsumexp = ladder.output("logsumexp", {B, NH, T}, T + hs);
    rungs::Tensors x{cuda.memory(out),
                     cuda.memory(logsumexp),
                     nullptr,
                     cuda.memory(qkv),
                     cuda.memory(dout),
                     probabilities.get(),
                     dscores.get(),
                     B,
                     T,
                     NH,
                     hs};
    ladder.pass("forward", flops(2 * work), {&out, &logsumexp}, forward(out, logsumexp));
    ladder.rung("naive", "T x T scores in memory", [&dev, x] { rungs::forward_naive(dev, x); });
    ladder.rung("rows", "one warp per query, online softmax: no score in memory",
                [&dev, x] { rungs::forward_rows(dev, x); });
    ladder.rung("production", "tiles in shared memory for many queries: attention_plain.cuh",
                [&dev, x] { attention_forward(dev, x.out, x.logsumexp, x.qkv, x.B, x.T, x.C(), x.NH); });

    const auto &out16 = ladder.output("out", {B, T, C}, terms_of_bf16),
               &logsumexp16 = ladder.output("logsumexp", {B, NH, T}, T + hs);
    ladder.pass("forward in bf16", flops(2 * work), {&out16, &logsumexp16}, forward(out16, logsumexp16));
    x.out = cuda.memory(saved_out);
    const rungs::Bf16Tensors y(dev, x);
    const auto convert_out = [&dev, &y, to = cuda.memory(out16), n] { rungs::convert(dev, to, y.out.get(), n); };
#ifdef CUDNN_RUNG
    ladder.rung("cudnn", "NVIDIA's", [&, x, lse = cuda.memory(logsumexp16)] {
        if (!attention_cudnn::forward(dev, y.out.get(), lse, y.qkv.get(), x.B, x.T, x.C(), x.NH))
            throw std::runtime_error("cuDNN has none for this shape");
        convert_out();
    });
#endif
    ladder.rung("production", "tensor cores: layers/attention/forward.cuh", [&, x, lse = cuda.memory(logsumexp16)] {
        attention_forward(dev, y.out.get(), lse, y.qkv.get(), x.B, x.T, x.C(), x.NH);
        convert_out();
    });

    const auto &dqkv = ladder.output("dqkv", {B, T, 3 * C}, 2 * T + 2 * hs),
               &dqkv16 = ladder.output("dqkv", {B, T, 3 * C}, terms_of_bf16);
    const auto backward = [&, C](const auto& to) {
        return [&, C](Reference<double>& d) {
            attention_backward(d, to.on(d), dout.on(d), saved_out.on(d), qkv.on(d), saved_logsumexp.on(d), B, T, C, NH);
        };
    };
    x.dqkv = cuda.memory(dqkv), x.logsumexp = cuda.memory(saved_logsumexp);
    ladder.pass("backward", flops(5 * work), {&dqkv}, backward(dqkv));
    ladder.rung("naive", "T x T probabilities and gradients in memory", [&dev, x] { rungs::backward_naive(dev, x); });
    ladder.rung("production", "probabilities recomputed, tiles: attention_plain.cuh", [&dev, x] {
        attention_backward(dev, x.dqkv, x.dout, x.out, x.qkv, x.logsumexp, x.B, x.T, x.C(), x.NH);
    });
    ladder.pass("backward in bf16", flops(5 * work), {&dqkv16}, backward(dqkv16));
#ifdef CUDNN_RUNG
    ladder.rung("cudnn", "NVIDIA's", [&, x, to = cuda.memory(dqkv16)] {
        rungs::convert(dev, y.out.get(), x.out, n);
        if (!attention_cudnn::backward(dev, y.dqkv.get(), y.dout.get(), y.out.get(), y.qkv.get(), x.logsumexp, x.B, x.T,
                                       x.C(), x.NH))
            throw std::runtime_error("cuDNN has none for this shape");
        rungs::convert(dev, to, y.dqkv.get(), 3 * n);
    });
#endif
    ladder.rung("production", "tensor cores: layers/attention/backward.cuh", [&, x, to = cuda.memory(dqkv16)] {
        rungs::convert(dev, y.out.get(), x.out, n);  // forward wrote its own result there
        attention_backward(dev, y.dqkv.get(), y.dout.get(), y.out.get(), y.qkv.get(), x.logsumexp, x.B, x.T, x.C(),
                           x.NH);
        rungs::convert(dev, to, y.dqkv.get(), 3 * n);
    });
    ladder.run();
}
