// Compares the rungs of dev/layernorm/rungs.cuh with Reference, in the emulator or on a GPU, where they are also timed.
#include "dev/layernorm/rungs.cuh"

#include <chrono>
#include <cstdio>

#include "dev/test/layers/layer_check.h"

namespace {

using rungs::Pass;

// A tensor on the device, and the same values in double.
struct Tensor {
    Tensor(Cuda& dev, const std::vector<double>& values)
        : exact(values.size()), memory(cuda_allocate<float>(static_cast<int64_t>(values.size()))) {
        const std::vector<float> rounded(values.begin(), values.end());
        std::copy(rounded.begin(), rounded.end(), exact.begin());
        to_device(dev, memory.get(), rounded.data(), static_cast<int64_t>(rounded.size()));
    }
    // Expects equality to `tolerance` times the largest value; NaN fails.
    void expect_close(Cuda& dev, const char* name, double tolerance) const {
        const std::vector<float> got = to_host(dev, memory.get(), static_cast<int64_t>(exact.size()));
        double largest = 0;
        for (const double x : exact) largest = std::max(largest, std::abs(x));
        for (size_t i = 0; i < exact.size(); ++i)
            ASSERT_LE(std::abs(static_cast<double>(got[i]) - exact[i]), tolerance * largest)
                << name << ", number " << i;
    }
    std::vector<double> exact;
    CudaBuffer<float> memory;
};

struct Case {
    Case(int64_t rows, int64_t columns) : N(rows), C(columns) {
        Reference<double> reference;
        layernorm_forward(reference, out.exact.data(), mean.exact.data(), rstd.exact.data(), inp.exact.data(),
                          weight.exact.data(), bias.exact.data(), N, C);
    }
    rungs::Tensors on_device() {
        return {residual.memory.get(),
                out.memory.get(),
                mean.memory.get(),
                rstd.memory.get(),
                inp.memory.get(),
                branch.memory.get(),
                weight.memory.get(),
                bias.memory.get(),
                dinp.memory.get(),
                dweight.memory.get(),
                dbias.memory.get(),
                dout.memory.get(),
                N,
                C};
    }
    int64_t N, C;
    Cuda dev{};
    Tensor inp{dev, uniform(N*C)}, branch{dev, uniform(N*C)}, weight{dev, uniform(C)}, bias{dev, uniform(C)},
        dout{dev, uniform(N*C)};
    Tensor residual{dev, uniform(N*C)}, out{dev, uniform(N*C)}, mean{dev, uniform(N)}, rstd{dev, uniform(N)},
        dinp{dev, uniform(N*C)}, dweight{dev, uniform(C)}, dbias{dev, uniform(C)};
};

void expect_right(const rungs::Rung& rung, int64_t N, int64_t C) {
    Case t(N, C);
    Reference<double> reference;
    // Sums of C, or N, terms, with rounding errors of random sign.
    const double tolerance = roundoff * (16 + 2 * std::sqrt(static_cast<double>(std::max(N, C))));
    const auto x = [](Tensor& tensor) { return tensor.exact.data(); };
    if (rung.pass == Pass::backward) {
        rungs::production_forward(t.dev, t.on_device());  // mean and rstd
        rung.run(t.dev, t.on_device());
        const double* const no_residual = nullptr;
        layernorm_backward(reference, x(t.dinp), x(t.dweight), x(t.dbias), x(t.dout), x(t.inp), x(t.weight), x(t.mean),
                           x(t.rstd), no_residual, N, C);
        t.dinp.expect_close(t.dev, "dinp", 4 * tolerance);
        t.dweight.expect_close(t.dev, "dweight", 4 * tolerance);
        t.dbias.expect_close(t.dev, "dbias", 4 * tolerance);
        return;
    }
    rung.run(t.dev, t.on_device());
    if (rung.pass == Pass::fused) {
        residual_layernorm_forward(reference, x(t.residual), x(t.out), x(t.mean), x(t.rstd), x(t.inp), x(t.branch),
                                   x(t.weight), x(t.bias), N, C);
        t.residual.expect_close(t.dev, "residual", roundoff);
    }
    t.mean.expect_close(t.dev, "mean", 8 * tolerance);  // of values around 0: small beside them
    t.rstd.expect_close(t.dev, "rstd", tolerance);
    t.out.expect_close(t.dev, "out", 4 * tolerance);
}

TEST(CudaLayerNormRungs, AgreeWithReference) {
    for (const rungs::Rung& rung : rungs::ladder)
        for (const auto& [N, C] : std::vector<std::pair<int64_t, int64_t>>{
                 {1, 4}, {5, 36}, {9, 260}, {131, 33}, {3, 768}, {2, 1024}, {2, 1999}}) {
            if (C % rung.vector != 0 || C > rung.most) continue;
            SCOPED_TRACE(testing::Message() << rung.name << ", " << N << " x " << C);
#ifdef __CUDACC__
            expect_right(rung, N, C);
#else
            for (const uint64_t seed : {1, 2, 3}) emulator::seed = seed, expect_right(rung, N, C);
#endif
        }
}

#ifdef __CUDACC__
// Prints a table, and passes if it gets to the end. Tensors of 128 MiB are larger than any cache.
TEST(CudaLayerNormRungs, Time) {
    for (const int64_t C : {768, 1024, 4096}) {
        const int64_t N = (int64_t{1} << 25) / C;
        Case t(N, C);
        const auto seconds = [&](const auto& run) {
            run(), run();
            cuda_check(cudaStreamSynchronize(t.dev.stream), "the rung");
            const auto start = std::chrono::steady_clock::now();
            for (int i = 0; i < 20; ++i) run();
            cuda_check(cudaStreamSynchronize(t.dev.stream), "the rung");
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 20;
        };
        const double bytes = 4.0 * static_cast<double>(N * C);
        const double copy =
            2 * bytes / seconds([&] {
                cuda_check(cudaMemcpyAsync(t.out.memory.get(), t.inp.memory.get(), static_cast<size_t>(bytes),
                                           cudaMemcpyDeviceToDevice, t.dev.stream),
                           "copy");
            });
        std::printf("%lld x %lld: copy %.0f GB/s\n", static_cast<long long>(N), static_cast<long long>(C), copy / 1e9);
        double before = 0;
        for (const rungs::Rung& rung : rungs::ladder) {
            if (C % rung.vector != 0 || C > rung.most) continue;
            const double s = seconds([&] { rung.run(t.dev, t.on_device()); });
            const double speed = (rung.pass == Pass::forward ? 2 : rung.pass == Pass::fused ? 4 : 3) * bytes / s;
            std::printf("  %-8s %-16s %8.3f ms %7.0f GB/s %3.0f %% of copy  x %.2f\n",
                        rung.pass == Pass::forward ? "forward"
                        : rung.pass == Pass::fused ? "fused"
                                                   : "backward",
                        rung.name, s * 1e3, speed / 1e9, 100 * speed / copy, before > 0 ? before / s : 1.0);
            before = s;
        }
    }
}
#endif

}  // namespace
