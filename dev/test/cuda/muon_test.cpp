// Compares Muon and NorMuon on Cuda with Reference, in fp32 and with bf16 matmuls: in the emulator or on a GPU.
#include "layers/muon.cuh"

#include "dev/test/cuda/cuda_check.h"

namespace {

struct Matrix {
    Matrix(Cuda& dev, int64_t r, int64_t c)
        : rows(r),
          cols(c),
          param(dev, uniform(r * c)),
          momentum(dev, uniform(r * c)),
          grad(dev, uniform(r * c)),
          squares(dev, neuron_squares(r, c)) {}
    // NorMuon's, unless it is Muon.
    template <class Device>
    auto on(Device& dev, bool normuon = true) {
        return MuonMatrix<typename Device::scalar>{
            param.on(dev), momentum.on(dev), grad.on(dev), rows, cols, normuon ? squares.on(dev) : nullptr};
    }
    int64_t neurons() const { return std::max(rows, cols); }
    int64_t rows, cols;
    CudaTensor<float> param, momentum, grad, squares;
};

const UpdateParams settings{.weight_decay = 0.3, .muon_lr = 0.05, .momentum = 0.9};
const std::pair<int64_t, int64_t> shapes[] = {{1, 1},   {1, 7},   {9, 1},    {5, 5},   {16, 16},  {47, 49},
                                              {49, 47}, {96, 33}, {31, 160}, {64, 24}, {130, 300}};

TEST(CudaMuon, AgreesWithReference) {
    for (const auto& [bf16_matmuls, normuon] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}})
        for (const auto& [rows, cols] : shapes) {
            SCOPED_TRACE(testing::Message()
                         << rows << " x " << cols << (bf16_matmuls ? ", bf16" : "") << (normuon ? ", NorMuon" : ""));
            Cuda dev;
            dev.bf16_matmuls = bf16_matmuls;
            Reference<double> reference;
            Matrix w(dev, rows, cols);
            const StepStatus quartered{.grad_scale = 0.25, .apply = 1};
            const auto status = copied(dev, quartered);
            const std::vector<double> before = w.param.exact;
            muon_update(dev, {w.on(dev, normuon)}, copied(dev, settings).get(), status.get());
            muon_update(reference, {w.on(reference, normuon)}, &settings, &quartered);
            w.momentum.expect_close("momentum", [](int64_t) { return 3 * roundoff; });
            // The error of the step's direction, relative to its norm. fp32: each of five steps multiplies an error in
            // a small singular value by up to 3.4; 3.4^5 = 480 roundings. bf16: the last step adds terms of 3.4, 4.8
            // and 2 times its values, each stored in 8 bits; it corrects most errors of earlier steps, as it has the
            // same target.
            double error = 0, size = 0;
            const std::vector<float> got = w.param.values();
            for (size_t i = 0; i < got.size(); ++i) {
                const double step = w.param.exact[i] - before[i] * (1 - settings.muon_lr * settings.weight_decay);
                error += std::pow(static_cast<double>(got[i]) - w.param.exact[i], 2), size += step * step;
            }
            EXPECT_LE(std::sqrt(error / size), bf16_matmuls ? 16 * 0x1p-9 : 480 * roundoff);
            w.squares.expect_close("squares", [&](int64_t) {  // means of X²: twice the relative error of its values
                return 2 * (bf16_matmuls ? 16 * 0x1p-9 : 480 * roundoff) * 3.5 / static_cast<double>(w.neurons());
            });
        }
}

// A matrix that is not on a vector's boundary, several at once, and the same bits in every order.
TEST(CudaMuon, TheSameBitsInEveryOrder) {
    for (const bool bf16_matmuls : {false, true})
        expect_same_bits([&] {
            generator().seed(5);
            Cuda dev;
            dev.bf16_matmuls = bf16_matmuls;
            Matrix a(dev, 24, 40), b(dev, 33, 7);
            const auto status = copied(dev, StepStatus{0, 0, 1, 1});
            CudaTensor<float> param(dev, uniform(35), true), momentum(dev, uniform(35), true),
                grad(dev, uniform(35), true);
            muon_update(dev, {a.on(dev), b.on(dev), {param.on(dev), momentum.on(dev), grad.on(dev), 5, 7}},
                        copied(dev, settings).get(), status.get());
            std::vector<float> all;
            for (const CudaTensor<float>* t :
                 {&a.param, &a.momentum, &a.squares, &b.param, &b.momentum, &b.squares, &param, &momentum}) {
                const std::vector<float> x = t->values();
                all.insert(all.end(), x.begin(), x.end());
            }
            return all;
        });
}

TEST(CudaMuon, LeftOutWhereTheStepIsNotApplied) {
    Cuda dev;
    Matrix w(dev, 12, 20);
    w.grad = CudaTensor<float>(dev, nans(12 * 20));
    const std::vector<float> param = w.param.values(), momentum = w.momentum.values(), squares = w.squares.values();
    const auto status = copied(dev, StepStatus{0, 0, nan64, 0});
    muon_update(dev, {w.on(dev)}, copied(dev, settings).get(), status.get());
    EXPECT_EQ(w.param.values(), param);
    EXPECT_EQ(w.momentum.values(), momentum);
    EXPECT_EQ(w.squares.values(), squares);
}

TEST(CudaMuon, AZeroGradientOnlyDecays) {
    Cuda dev;
    Matrix w(dev, 6, 40);
    w.grad = CudaTensor<float>(dev, std::vector<double>(240)),
    w.momentum = CudaTensor<float>(dev, std::vector<double>(240)),
    w.squares = CudaTensor<float>(dev, std::vector<double>(40));
    const auto status = copied(dev, StepStatus{0, 0, 1, 1});
    muon_update(dev, {w.on(dev)}, copied(dev, settings).get(), status.get());
    const std::vector<float> got = w.param.values();
    for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(static_cast<double>(got[i]), w.param.exact[i] * (1 - 0.05 * 0.3), 1e-7);
}

}  // namespace
