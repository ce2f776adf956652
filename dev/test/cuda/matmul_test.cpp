// Compares linear layers on Cuda with Reference: every function, with epilogues fused by cuBLASLt, and with separate
// kernels.
#include "layers/matmul.cuh"

#include "dev/test/cuda/cuda_check.h"
#include "device/cuda/peak.cuh"

namespace {

struct Shape {
    int64_t N, C, OC;
};
// Rows that are aligned for everything, for nothing, and for only one side; more rows and columns than one block sums.
const Shape shapes[] = {{1, 1, 1}, {1, 8, 8}, {7, 3, 5}, {18, 24, 16}, {9, 40, 22}, {17, 37, 32}, {65, 8, 264}};

struct Options {
    bool fused = true, misaligned = false, bias = true, accumulate = true;
};

// All inputs and outputs of the five functions. pre is of a GELU before or after the layer, so it can have either size.
template <class T>
struct Linear {
    Linear(const Shape& shape, const Options& options) : N(shape.N), C(shape.C), OC(shape.OC), o(options) {
        cuda.fuse_gelu = o.fused;
#ifndef __CUDACC__
        emulator::unsupported_epilogues = o.fused ? 0 : ~0u;
#endif
    }
    // In the emulator, the requested epilogues show whether everything was fused.
    bool all_fused() const {
        return std::all_of(cuda.cublas->plans.begin(), cuda.cublas->plans.end(),
                           [](const auto& plan) { return plan.second.found; });
    }

    int seeded = (generator().seed(1234), 0);
    int64_t N, C, OC;
    Options o;
    Cuda cuda{};
    Reference<double> reference{};
    CudaTensor<T> inp{cuda, uniform(N*C), o.misaligned}, weight{cuda, uniform(OC*C), o.misaligned};
    CudaTensor<T> bias{cuda, uniform(OC), o.misaligned}, residual{cuda, uniform(N*OC), o.misaligned};
    CudaTensor<T> dout{cuda, uniform(N*OC), o.misaligned}, pre_in{cuda, uniform(N*C, 4), o.misaligned};
    CudaTensor<T> out{cuda, nans(N*OC), o.misaligned}, pre{cuda, nans(N*OC), o.misaligned};
    CudaTensor<T> dinp{cuda, nans(N* C), o.misaligned};
    CudaTensor<float> dweight{cuda, o.accumulate ? uniform(OC* C) : nans(OC* C), o.misaligned};
    CudaTensor<float> dbias{cuda, uniform(OC), o.misaligned};

    template <class Device>
    auto bias_on(Device& dev) {
        return o.bias ? bias.on(dev) : nullptr;
    }
};

std::vector<double> absolute(std::vector<double> x) {
    for (double& value : x) value = std::abs(value);
    return x;
}
// |a| · |b| and the like: the total size of the terms of each element of a matmul.
template <class T>
std::vector<double> forward_size(Linear<T>& t, bool residual) {
    std::vector<double> size(static_cast<size_t>(t.N * t.OC));
    const std::vector<double> inp = absolute(t.inp.exact), w = absolute(t.weight.exact), b = absolute(t.bias.exact);
    matmul_forward(t.reference, size.data(), inp.data(), w.data(), t.o.bias ? b.data() : nullptr, t.N, t.C, t.OC);
    for (size_t i = 0; residual && i < size.size(); ++i) size[i] += std::abs(t.residual.exact[i]);
    return size;
}

#ifdef __CUDACC__
constexpr bool gpu = true;
#else
constexpr bool gpu = false;
#endif

// The error of a sum of K products is the size of its terms times the roundings on one path through it. Their signs are
// random, so they grow as the root of K. Values that are stored as bf16 between kernels are rounded once more. On a GPU
// the library stores them so, too, in epilogues of matrices whose rows are not aligned (seen on an H100).
template <class T>
double loss(const Linear<T>& t, int64_t K) {
    return roundoff * (8 + std::sqrt(static_cast<double>(K))) +
           (std::is_same_v<T, bf16> && (gpu || !t.all_fused()) ? 0x1p-8 : 0);
}

template <class T>
void expect_forward(Linear<T>& t) {
    const auto run = [&](auto& dev) {
        matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias_on(dev), t.N, t.C, t.OC);
    };
    run(t.cuda), run(t.reference);
    const std::vector<double> size = forward_size(t, false);
    t.out.expect_close("out", [&](int64_t i) { return loss(t, t.C) * size[i]; });
}

template <class T>
void expect_residual_forward(Linear<T>& t, bool in_place) {
    const std::vector<double> size = forward_size(t, true);
    CudaTensor<T>& out = in_place ? t.residual : t.out;
    const auto run = [&](auto& dev) {
        matmul_residual_forward(dev, out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), t.residual.on(dev),
                                t.N, t.C, t.OC);
    };
    run(t.cuda);
    const std::vector<double> residual = t.residual.exact;
    matmul_forward(t.reference, out.exact.data(), t.inp.exact.data(), t.weight.exact.data(), t.bias.exact.data(), t.N,
                   t.C, t.OC);
    for (size_t i = 0; i < residual.size(); ++i) out.exact[i] += residual[i];
    out.expect_close("out", [&](int64_t i) { return loss(t, t.C) * size[i]; });
}

// |gelu'| is below 1.13 everywhere. This program's and the emulator's tanh are exact to a few of the last bits. A GPU's
// library, if GELU is fused, may use the tanh instruction, whose relative error is 2^-11.
template <class T>
constexpr double of_tanh = gpu&& std::is_same_v<T, bf16> ? 0x1p-11 : 8 * roundoff;
template <class T>  // tanh times an x of at most 4, and twice itself
constexpr double of_derivative = gpu&& std::is_same_v<T, bf16> ? 5 * 0x1p-11 : 8 * roundoff;

template <class T>
void expect_gelu_forward(Linear<T>& t) {
    const auto run = [&](auto& dev) {
        matmul_gelu_forward(dev, t.out.on(dev), t.pre.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), t.N,
                            t.C, t.OC);
    };
    run(t.cuda), run(t.reference);
    const std::vector<double> size = forward_size(t, false);
    t.pre.expect_close("pre", [&](int64_t i) { return loss(t, t.C) * size[i]; });
    t.out.expect_close("out", [&](int64_t i) {
        return 1.13 * (loss(t, t.C) * size[i] + (loss(t, 0) + of_tanh<T>)*std::abs(t.pre.exact[i]));
    });
}

// Both backwards: gelu or not.
template <class T>
void expect_backward(Linear<T>& t, bool gelu) {
    const std::vector<double> dweight = t.dweight.exact, dbias = t.dbias.exact;
    if (!t.o.accumulate) std::fill(t.dweight.exact.begin(), t.dweight.exact.end(), 0.0);
    const auto run = [&](auto& dev, auto... accumulate) {
        const auto db = t.o.bias ? t.dbias.on(dev) : nullptr;
        if (gelu)
            matmul_gelu_backward(dev, t.dinp.on(dev), t.dweight.on(dev), db, t.dout.on(dev), t.inp.on(dev),
                                 t.pre_in.on(dev), t.weight.on(dev), t.N, t.C, t.OC, accumulate...);
        else
            matmul_backward(dev, t.dinp.on(dev), t.dweight.on(dev), db, t.dout.on(dev), t.inp.on(dev), t.weight.on(dev),
                            t.N, t.C, t.OC, accumulate...);
    };
    run(t.cuda, t.o.accumulate), run(t.reference);
    std::vector<double> size_dinp(t.dinp.exact.size(), nan64), size_dweight(dweight.size()), size_dbias(dbias.size());
    if (t.o.accumulate) size_dweight = absolute(dweight);
    if (t.o.bias) size_dbias = absolute(dbias);
    const std::vector<double> dout = absolute(t.dout.exact), inp = absolute(t.inp.exact), w = absolute(t.weight.exact);
    matmul_backward(t.reference, size_dinp.data(), size_dweight.data(), t.o.bias ? size_dbias.data() : nullptr,
                    dout.data(), inp.data(), w.data(), t.N, t.C, t.OC);
    t.dinp.expect_close("dinp", [&](int64_t i) {
        const double derivative = gelu ? std::abs(gelu_derivative(t.pre_in.exact[i])) : 1;
        // Near 0, gelu' is a difference, and its error is that of 1.
        return size_dinp[i] * (derivative * loss(t, t.OC) + (gelu ? of_derivative<T> : 0));
    });
    // gradients of parameters are floats, whatever T is
    const double rows_loss = roundoff * (8 + std::sqrt(static_cast<double>(t.N)));
    t.dweight.expect_close("dweight", [&](int64_t i) { return rows_loss * size_dweight[i]; });
    t.dbias.expect_close("dbias", [&](int64_t i) { return rows_loss * size_dbias[i]; });
}

template <class T>
class CudaMatmul : public testing::Test {
protected:
    ~CudaMatmul() override {
#ifndef __CUDACC__
        emulator::unsupported_epilogues = emulator::refused_with_beta = 0;
#endif
    }
};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(CudaMatmul, StorageTypes);

template <class Test>
void for_each_case(const Test& test) {
    for (const Shape& shape : shapes)
        for (const Options& options : {Options{}, Options{.fused = false}, Options{.misaligned = true},
                                       Options{.fused = false, .misaligned = true}}) {
            SCOPED_TRACE(testing::Message()
                         << shape.N << " x " << shape.C << " x " << shape.OC << (options.fused ? "" : ", unfused")
                         << (options.misaligned ? ", misaligned" : ""));
            if (!options.fused && shape.N * shape.OC < 1000)  // separate kernels
                in_every_order([&] { test(shape, options); });
            else
                test(shape, options);
            if (testing::Test::HasFatalFailure()) return;
        }
}

TYPED_TEST(CudaMatmul, ForwardAgreesWithReference) {
    for_each_case([](const Shape& shape, Options options) {
        for (const bool bias : {true, false}) {
            options.bias = bias;
            Linear<TypeParam> t(shape, options);
            expect_forward(t);
        }
    });
}

TYPED_TEST(CudaMatmul, ResidualForwardAgreesWithReference) {
    for_each_case([](const Shape& shape, const Options& options) {
        for (const bool in_place : {false, true}) {
            Linear<TypeParam> t(shape, options);
            expect_residual_forward(t, in_place);
        }
    });
}

TYPED_TEST(CudaMatmul, GeluForwardAgreesWithReference) {
    for_each_case([](const Shape& shape, const Options& options) {
        Linear<TypeParam> t(shape, options);
        expect_gelu_forward(t);
    });
}

TYPED_TEST(CudaMatmul, BackwardsAgreeWithReference) {
    for_each_case([](const Shape& shape, const Options& options) {
        for (const bool gelu : {false, true}) {
            Linear<TypeParam> t(shape, options);
            expect_backward(t, gelu);
        }
    });
}

TYPED_TEST(CudaMatmul, BackwardWithoutBiasAndWithoutAccumulation) {
    for (const Shape& shape : {Shape{5, 24, 16}, Shape{70, 37, 64}})
        for (const bool gelu : {false, true})
            for (const bool bias : {false, true}) {
                Linear<TypeParam> t(shape, {.bias = bias, .accumulate = false});
                expect_backward(t, gelu);
            }
}

TYPED_TEST(CudaMatmul, NoRows) {
    Linear<TypeParam> t({0, 24, 16}, {}), u({0, 24, 16}, {.accumulate = false});
    Cuda& dev = t.cuda;
    matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), 0, 24, 16);
    for (auto* l : {&t, &u})
        matmul_backward(dev, l->dinp.on(dev), l->dweight.on(dev), l->dbias.on(dev), l->dout.on(dev), l->inp.on(dev),
                        l->weight.on(dev), 0, 24, 16, l->o.accumulate);
    t.dweight.expect_close("dweight", [](int64_t) { return 0.0; });
    for (const float x : u.dweight.values()) EXPECT_EQ(x, 0);
}

// `--recompute gelu` gives the same bits if GELU is not fused into matmuls.
TYPED_TEST(CudaMatmul, TheBackwardMakesItsInputAgainToTheBit) {
    const auto bits = [](bool again) {
        generator().seed(1);
        Linear<TypeParam> t(Shape{9, 24, 16}, Options{.fused = false});
        Cuda& dev = t.cuda;
        gelu_forward(dev, t.inp.on(dev), t.pre_in.on(dev), 9 * 24);
        matmul_gelu_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev),
                             again ? nullptr : t.inp.on(dev), t.pre_in.on(dev), t.weight.on(dev), 9, 24, 16);
        std::vector<float> all = (again ? t.pre_in : t.inp).values();
        for (const auto& x : {t.dinp.values(), t.dweight.values(), t.dbias.values()})
            all.insert(all.end(), x.begin(), x.end());
        return all;
    };
    EXPECT_EQ(bits(true), bits(false));
}

// All results of the five functions.
template <class T>
std::vector<float> everything(const Shape& shape, const Options& options) {
    Linear<T> t(shape, options);
    Cuda& dev = t.cuda;
    std::vector<float> all;
    const auto append = [&](const auto& tensor) {
        const std::vector<float> x = tensor.values();
        all.insert(all.end(), x.begin(), x.end());
    };
    const auto [N, C, OC] = shape;
    matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), N, C, OC), append(t.out);
    matmul_gelu_forward(dev, t.out.on(dev), t.pre.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), N, C, OC);
    append(t.out), append(t.pre);
    matmul_gelu_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev), t.inp.on(dev),
                         t.pre_in.on(dev), t.weight.on(dev), N, C, OC);
    append(t.dinp), append(t.dweight), append(t.dbias);
    return all;
}

TYPED_TEST(CudaMatmul, TheSameBitsAtEveryRun) {
    for (const bool fused : {true, false})
        for (const int threads : {1, 2, 3}) {
            const Threads scope(threads);
            const auto run = [&] { return everything<TypeParam>({70, 40, 72}, {.fused = fused}); };
            expect_same_bits(run);
            static std::vector<float> first[2];
            if (first[fused].empty()) first[fused] = run();
            EXPECT_EQ(run(), first[fused]) << threads << " threads";
        }
}

// After a first pass that chooses algorithms and allocates, everything can be recorded and replayed.
TYPED_TEST(CudaMatmul, RunsFromAGraph) {
    for (const bool fused : {true, false}) {
        Linear<TypeParam> t({18, 24, 16}, {.fused = fused});
        Cuda& dev = t.cuda;
        cuda_check(cudaStreamCreateWithFlags(&dev.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        const auto run = [&] {
            matmul_gelu_forward(dev, t.out.on(dev), t.pre.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), 18,
                                24, 16);
            matmul_gelu_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.out.on(dev), t.inp.on(dev),
                                 t.pre_in.on(dev), t.weight.on(dev), 18, 24, 16, false);
        };
        run();
        const std::vector<float> out = t.out.values(), dinp = t.dinp.values(), dweight = t.dweight.values();
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        cuda_check(cudaStreamBeginCapture(dev.stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
        run();
        cuda_check(cudaStreamEndCapture(dev.stream, &graph), "cudaStreamEndCapture");
        cuda_check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
        zero(dev, t.out.on(dev), 18 * 16), zero(dev, t.dinp.on(dev), 18 * 24), zero(dev, t.dweight.on(dev), 24 * 16);
        cuda_check(cudaGraphLaunch(executable, dev.stream), "cudaGraphLaunch");
        EXPECT_EQ(t.out.values(), out);
        EXPECT_EQ(t.dinp.values(), dinp);
        EXPECT_EQ(t.dweight.values(), dweight);
        cudaGraphExecDestroy(executable), cudaGraphDestroy(graph), cudaStreamDestroy(dev.stream);
        dev.stream = nullptr;
    }
}

// A NaN in one row of inp or dout must reach its results, and no other rows.
TYPED_TEST(CudaMatmul, NaNStaysInItsRow) {
    Linear<TypeParam> t({9, 24, 16}, {});
    t.inp.exact[4 * 24 + 3] = nan64, t.dout.exact[6 * 16] = INFINITY;
    CudaTensor<TypeParam> inp(t.cuda, t.inp.exact), dout(t.cuda, t.dout.exact);
    Cuda& dev = t.cuda;
    matmul_gelu_forward(dev, t.out.on(dev), t.pre.on(dev), inp.on(dev), t.weight.on(dev), t.bias.on(dev), 9, 24, 16);
    matmul_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), dout.on(dev), inp.on(dev),
                    t.weight.on(dev), 9, 24, 16);
    const std::vector<float> out = t.out.values(), dinp = t.dinp.values(), dweight = t.dweight.values(),
                             dbias = t.dbias.values();
    for (int64_t i = 0; i < 9 * 16; ++i) ASSERT_EQ(std::isnan(out[i]), i / 16 == 4) << i;
    for (int64_t i = 0; i < 9 * 24; ++i) ASSERT_EQ(std::isfinite(dinp[i]), i / 24 != 6) << i;
    for (int64_t i = 0; i < 16 * 24; ++i) ASSERT_EQ(std::isfinite(dweight[i]), i / 24 != 0 && i % 24 != 3) << i;
    for (int64_t o = 0; o < 16; ++o) ASSERT_EQ(std::isfinite(dbias[o]), o != 0) << o;
}

// tf32 keeps 10 bits of each operand's fraction: it is less exact than fp32, but not worse than that.
TEST(CudaMatmulTf32, IsUsedWhereAskedFor) {
    Linear<float> t({16, 64, 32}, {});
    t.cuda.tf32 = true;
    const auto run = [&](auto& dev) {
        matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), t.N, t.C, t.OC);
    };
    run(t.cuda), run(t.reference);
    const std::vector<double> size = forward_size(t, false);
    t.out.expect_close("out", [&](int64_t i) { return 2 * 0x1p-11 * size[i]; });
    const std::vector<float> out = t.out.values();
    double worst = 0;
    for (size_t i = 0; i < out.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(out[i]) - t.out.exact[i]) / size[i]);
    matmul_gelu_forward(t.cuda, t.out.on(t.cuda), t.pre.on(t.cuda), t.inp.on(t.cuda), t.weight.on(t.cuda),
                        t.bias.on(t.cuda), t.N, t.C, t.OC);
    for (double& x : t.out.exact) x = gelu(x);
    t.out.expect_close("gelu", [&](int64_t i) { return (1.13 * 2 + 1) * 0x1p-11 * size[i]; });
#ifndef __CUDACC__
    EXPECT_GT(worst, 100 * roundoff);  // a GPU's library may be more exact than required
#endif
}

#ifndef __CUDACC__
// Slow paths must not be taken unnoticed: GPT-2's rows are multiples of 8 values.
TYPED_TEST(CudaMatmul, AlignedRowsAreFused) {
    Linear<TypeParam> t({5, 24, 16}, {});
    expect_forward(t), expect_residual_forward(t, false), expect_gelu_forward(t);
    expect_backward(t, false), expect_backward(t, true);
    EXPECT_TRUE(t.all_fused());
}

TYPED_TEST(CudaMatmul, EpiloguesThatAreRefusedLateAreDoneByKernels) {
    Linear<TypeParam> t({5, 24, 16}, {});
    emulator::refused_epilogues = ~0u;
    expect_forward(t), expect_residual_forward(t, false), expect_gelu_forward(t);
    expect_backward(t, false), expect_backward(t, true);
    emulator::refused_epilogues = 0;
    EXPECT_FALSE(t.all_fused());
}

// A refusal concerns only matmuls with that beta: how others are computed does not depend on earlier calls, so that a
// resumed run computes the same as an uninterrupted one.
TYPED_TEST(CudaMatmul, WhatCameBeforeDecidesNothing) {
    emulator::refused_with_beta = ~0u;
    using Calls = std::vector<std::string>;
    // The results of the last call, and the numbers of epilogues fused and refused so far.
    const auto after = [](const Calls& calls) {
        Linear<TypeParam> t({16, 24, 24}, {});
        Cuda& dev = t.cuda;
        std::vector<float> last;
        for (const std::string& call : calls) {
            if (call == "plain" || call == "residual")
                linear_forward<TypeParam>(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev),
                                          call == "residual" ? t.residual.on(dev) : nullptr, t.N, t.C, t.OC);
            else
                linear_parameters_backward<TypeParam>(dev, t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev),
                                                      t.inp.on(dev), t.N, t.C, t.OC, call == "accumulate");
            last = t.out.values();
        }
        int fused = 0, refused = 0;
        for (const auto& [key, plan] : dev.cublas->plans)
            if (key[5] != CUBLASLT_EPILOGUE_DEFAULT) ++(plan.found ? fused : refused);  // key[5] is the epilogue
        return std::tuple(last, fused, refused);
    };
    const auto [plain, fused, _] = after({"plain"});
    EXPECT_EQ(fused, 1);
    const auto residual = std::get<0>(after({"residual"}));
    EXPECT_EQ(after({"residual", "plain"}), std::tuple(plain, 1, 1));
    EXPECT_EQ(after({"plain", "residual", "plain"}), std::tuple(plain, 1, 1));
    EXPECT_EQ(after({"plain", "residual"}), std::tuple(residual, 1, 1));
    for (const Calls& calls : {Calls{"assign", "accumulate"}, Calls{"accumulate", "assign"}}) {
        EXPECT_EQ(std::get<1>(after(calls)), 1);
        EXPECT_EQ(std::get<2>(after(calls)), 1);
    }
}

TYPED_TEST(CudaMatmul, AlgorithmsAreChosenOnce) {
    Linear<TypeParam> t({5, 24, 16}, {});
    Cuda& dev = t.cuda;
    emulator::matmul_workspace = 1 << 20;
    const auto run = [&](int64_t N) {
        matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), N, 24, 16);
        matmul_forward(dev, t.pre.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), N, 24, 16);
    };
    const int before = emulator::heuristics_asked;
    run(5);
    const char* const workspace = dev.cublas->workspace.get();
    EXPECT_NE(workspace, nullptr);
    for (int i = 0; i < 3; ++i) run(5);
    EXPECT_EQ(emulator::heuristics_asked, before + 1);
    run(4);
    EXPECT_EQ(emulator::heuristics_asked, before + 2);
    EXPECT_EQ(dev.cublas->workspace.get(), workspace);
    // another kind of numbers, and addresses that the algorithm is not for
    dev.tf32 = true, run(4);
    EXPECT_EQ(emulator::heuristics_asked, before + 3);
    dev.tf32 = false;
    matmul_forward(dev, t.out.on(dev), t.inp.on(dev) + 1, t.weight.on(dev), t.bias.on(dev), 4, 24, 16);
    for (const int off : {0, 1})
        matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev) + off, 4, 24, 8);
    emulator::matmul_workspace = 0;
}
#endif

TEST(DataSheetFlops, IsOfThatChipAlone) {
    EXPECT_EQ(data_sheet_flops("NVIDIA H100 80GB HBM3"), 989e12);
    EXPECT_EQ(data_sheet_flops("NVIDIA H100 PCIe"), 756e12);
    EXPECT_EQ(data_sheet_flops("NVIDIA H200"), 989e12);
    EXPECT_EQ(data_sheet_flops("NVIDIA GH200 480GB"), 989e12);
    EXPECT_EQ(data_sheet_flops("NVIDIA A100-SXM4-80GB"), 312e12);
    EXPECT_EQ(data_sheet_flops("NVIDIA A10G"), 70e12);
    EXPECT_EQ(data_sheet_flops("NVIDIA L4"), 121e12);
    EXPECT_EQ(data_sheet_flops("NVIDIA GeForce RTX 4090"), 165.2e12);
    for (const char* other :
         {"NVIDIA RTX A1000", "NVIDIA L40", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 3090 Ti", "emulated", "",
          "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"})
        EXPECT_EQ(data_sheet_flops(other), 0) << other;
}

}  // namespace
