// LayerNorm and RMSNorm on Cuda, in the emulator where there is no GPU, against Reference.
#include "layers/layernorm.cuh"

#include "layer_check.h"

namespace {
TEST(CudaLayerNorm, Forward) {
    for (const auto& [N, C] : {std::pair<int64_t, int64_t>{3, 33}, {5, 768}, {2, 1600}, {1, 20000}}) {
        Cuda dev;
        Reference<double> reference;
        auto in = uniform(N * C);
        std::vector<float> f(in.begin(), in.end());
        std::vector<double> x(f.begin(), f.end()), out(N * C), mean(N), rstd(N);
        auto dx = allocate<float>(dev, N * C), dout = allocate<float>(dev, N * C), dm = allocate<float>(dev, N),
             dr = allocate<float>(dev, N);
        to_device(dev, dx.get(), f.data(), N * C);
        layernorm_forward(dev, dout.get(), dm.get(), dr.get(), dx.get(), nullptr, nullptr, N, C);
        layernorm_forward(reference, out.data(), mean.data(), rstd.data(), x.data(), nullptr, nullptr, N, C);
        const auto got = to_host(dev, dout.get(), N * C);
        for (int64_t i = 0; i < N * C; ++i) ASSERT_LE(std::abs(got[i] - out[i]), 1e-5) << i;
    }
}
}  // namespace
