// Compares Muon and NorMuon with scripts/dump_muon.py: the formulas in float64, and torch.optim.Muon.
#include <gtest/gtest.h>

#include <functional>

#include "io/model/safetensors.h"
#include "layers/muon.h"
#include "layers/muon_cpu.h"

namespace {

struct Steps {
    std::vector<double> param, momentum, formula, torch, squares;
};

// The dump's three steps on a matrix of each shape, on `device`: Muon's, or NorMuon's and its formula.
template <class Device>
void each_shape(Device dev, Optimizer optimizer,
                const std::function<void(const std::string& name, const Steps&, const Steps& expected)>& check) {
    using T = typename Device::scalar;
    const SafetensorsFile dump("dev/test/data/muon_reference.safetensors");
    int shapes = 0;
    for (const SafetensorsFile::Entry& entry : dump.entries()) {
        if (!entry.name.ends_with(".param")) continue;
        ++shapes;
        const std::string name = entry.name.substr(0, entry.name.find('.'));
        const auto read = [&](const std::string& part) {
            const SafetensorsFile::Entry& e = *dump.find(name + "." + part);
            std::vector<double> values(static_cast<size_t>(e.elements()));
            dump.read(e, values.data());
            return values;
        };
        const std::vector<double> start = read("param"), all_grads = read("grads");
        std::vector<T> param(start.begin(), start.end()), momentum(start.size()), grad(start.size()), squares;
        const bool normuon = optimizer == Optimizer::normuon;
        if (normuon) squares.resize(static_cast<size_t>(std::max(entry.shape[0], entry.shape[1])));
        for (size_t step = 0; step < all_grads.size() / start.size(); ++step) {
            for (size_t i = 0; i < grad.size(); ++i) grad[i] = static_cast<T>(2 * all_grads[step * grad.size() + i]);
            const std::vector<MuonMatrix<T>> matrix{{param.data(), momentum.data(), grad.data(), entry.shape[0],
                                                     entry.shape[1], normuon ? squares.data() : nullptr}};
            const UpdateParams params{.weight_decay = 0.1, .muon_lr = 0.02, .momentum = 0.95};
            const StepStatus halved{.grad_scale = 0.5, .apply = 1};
            muon_update(dev, matrix, &params, &halved);
        }
        check(name,
              {{param.begin(), param.end()},
               {momentum.begin(), momentum.end()},
               {},
               {},
               {squares.begin(), squares.end()}},
              {{}, read("momentum"), read(normuon ? "normuon" : "formula"), read("torch"), read("squares")});
    }
    EXPECT_EQ(shapes, 5);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double d = std::abs(a[i] - b[i]);
        largest = d <= largest ? largest : d;  // NaN stays
    }
    return largest;
}

TEST(Muon, ReferenceIsTheFormula) {
    each_shape(Reference<double>{}, Optimizer::muon,
               [](const std::string& name, const Steps& run, const Steps& expected) {
                   EXPECT_LE(largest_difference(run.param, expected.formula), 1e-10) << name;
                   EXPECT_LE(largest_difference(run.momentum, expected.momentum), 1e-10) << name;
               });
}

TEST(Muon, CpuIsTheFormulaInFloat) {  // parameters up to 3, three steps of 0.02: a few roundings of 1.2e-7 each
    each_shape(Cpu{}, Optimizer::muon, [](const std::string& name, const Steps& run, const Steps& expected) {
        EXPECT_LE(largest_difference(run.param, expected.formula), 2e-6) << name;
        EXPECT_LE(largest_difference(run.momentum, expected.momentum), 1e-6) << name;
    });
}

TEST(NorMuon, ReferenceIsTheFormula) {
    each_shape(Reference<double>{}, Optimizer::normuon,
               [](const std::string& name, const Steps& run, const Steps& expected) {
                   EXPECT_LE(largest_difference(run.param, expected.formula), 1e-10) << name;
                   EXPECT_LE(largest_difference(run.squares, expected.squares), 1e-10) << name;
               });
}

TEST(NorMuon, CpuIsTheFormulaInFloat) {  // as Muon, with one rounding more
    each_shape(Cpu{}, Optimizer::normuon, [](const std::string& name, const Steps& run, const Steps& expected) {
        EXPECT_LE(largest_difference(run.param, expected.formula), 2e-6) << name;
        EXPECT_LE(largest_difference(run.squares, expected.squares), 1e-6) << name;
    });
}

// PyTorch iterates in bf16 (2^-9 = 0.002 a rounding, five steps that amplify small singular values up to 3.4-fold
// each): its own distance from the formula, step for step, is what is allowed.
TEST(Muon, ReferenceDoesWhatPyTorchDoesToItsPrecision) {
    each_shape(Reference<double>{}, Optimizer::muon,
               [](const std::string& name, const Steps& run, const Steps& expected) {
                   EXPECT_LE(largest_difference(run.param, expected.torch), 3 * 0.02 * 0.1) << name;
               });
}

// The same roundings at other places, each amplified up to 480-fold: the worst of some hundred values may be three
// times PyTorch's worst.
TEST(Muon, CpuInBf16IsAsFarFromTheFormulaAsPyTorch) {
    if (!gemm::has_bf16) GTEST_SKIP() << "this CPU has no AVX512-BF16";
    each_shape(Cpu(MatmulKind::bf16), Optimizer::muon,
               [](const std::string& name, const Steps& run, const Steps& expected) {
                   EXPECT_LE(largest_difference(run.param, expected.formula),
                             3 * largest_difference(expected.torch, expected.formula))
                       << name;
                   EXPECT_LE(largest_difference(run.momentum, expected.momentum), 1e-6) << name;
               });
}

}  // namespace
