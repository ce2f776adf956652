// Softmax and cross-entropy's ladder on a GPU: the rungs of rungs.cuh.
#include "dev/classifier_cuda/rungs.cuh"
#include "dev/ladder_cuda.h"

const Kernel kernel{"classifier_cuda",
                    "softmax, cross-entropy and its gradient from logits, on a GPU or in its emulator",
                    {{"N", on_gpu ? 8192 : 5, "rows"}, {"V", on_gpu ? 50257 : 3001, "tokens"}}};

void climb(Ladder& ladder) {
    static CudaLadder cuda(ladder);
    const auto shape = ladder.shape<2>();
    const int64_t N = shape[0], V = shape[1];
    const int64_t Vp = classifier_padded(V);
    constexpr float scale = 0.125f;
    const auto &logits = ladder.updated("logits", {N, Vp}, 1, -8, 8), &losses = ladder.output("losses", {N}, V);
    const std::vector<int32_t> targets = ladder.tokens(N, V);
    const CudaBuffer<int32_t> on_device = cuda_allocate<int32_t>(N);
    to_device(cuda.dev, on_device.get(), targets.data(), N);

    ladder.pass("loss and gradient", bytes(8 * prod(N, V)), {&logits, &losses},
                [&, N = N, V = V](Reference<double>& dev) {
                    const double one = 1;  // the classifier with one channel: weight is the row of logits
                    for (int64_t n = 0; n < N; ++n) {
                        double* const row = logits.on(dev) + n * Vp;
                        std::vector<double> gradient(static_cast<size_t>(Vp));
                        double dinp;
                        classifier_forward_backward(dev, losses.on(dev) + n, &dinp, gradient.data(), &one, row,
                                                    targets.data() + n, 1, 1, V, static_cast<double>(scale));
                        std::copy(gradient.begin(), gradient.end(), row);
                    }
                });
    const rungs::Task task{cuda.memory(losses), cuda.memory(logits), on_device.get(), N, V, Vp, scale};
    ladder.rung("naive", "one thread per row, three passes", [task] { rungs::naive(cuda.dev, task); });
    ladder.rung("block per row", "neighbouring threads read neighbouring logits",
                [task] { rungs::block_per_row(cuda.dev, task); });
    ladder.rung("online", "the largest and the sum in one pass", [task] { rungs::online(cuda.dev, task); });
    ladder.rung("production", "loads of 16 bytes, shuffles", [task] { rungs::production(cuda.dev, task); });
    ladder.run();
}
