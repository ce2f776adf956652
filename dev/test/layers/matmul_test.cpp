// Linear layers in all their forms: Cpu against Reference, Reference against differences, threads, NaN.
#include "layers/matmul_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

// A sum of K products in float: every partial sum is rounded once. As the products' signs differ, partial sums are
// small compared with the sum of the |products|; as the rounding errors' signs differ, most of them cancel. For any K,
// some 0.6 of a roundoff of that sum is lost, and 4.4 in the worst of a million results.
constexpr double sum_error = 8 * roundoff;

struct Shape {
    int64_t N, C, OC;
};
std::vector<Shape> shapes() {
    std::vector<Shape> all = {{1, 1, 1},    {2, 3, 5},   {7, 11, 13},  {64, 128, 64}, {12, 16, 32}, {13, 17, 33},
                              {11, 15, 31}, {1, 257, 3}, {1, 13, 600}, {67, 1, 3},    {3, 5, 1021}};
    for (const int64_t edge : {4, 8, 12, 16, 24, 32, 48})  // tiles of registers and their neighbours
        for (const int64_t by : {-1, 0, 1}) {
            all.push_back({edge + by, 19, 23});
            all.push_back({9, edge + by, 10});
            all.push_back({5, 21, edge + by});
        }
    return all;
}

// More than a block of rows, of columns and of the sum, in each of the three matmuls; and enough rows that the
// gradient of the weights is computed as the sum of two halves.
const Shape large_shapes[] = {{250, 1100, 40}, {500, 40, 530}, {50, 300, 1100},
                              {241, 257, 263}, {9, 800, 1700}, {1001, 50, 130}};

struct Tensors {
    explicit Tensors(const Shape& s)
        : inp(random_values(s.N * s.C)),
          weight(random_values(s.OC * s.C)),
          bias(random_values(s.OC)),
          residual(random_values(s.N * s.OC)),
          pre(nan_values(s.N * s.OC)),
          out(nan_values(s.N * s.OC)),
          dout(random_values(s.N * s.OC)),
          hidden(random_values(s.N * s.C, 3)),
          dinp(nan_values(s.N * s.C)),
          dweight(random_values(s.OC * s.C)),
          dbias(random_values(s.OC)) {}
    Values inp, weight, bias, residual, pre, out, dout;
    Values hidden;  // the input of the GELU whose output is inp, in matmul_gelu_backward
    Values dinp, dweight, dbias;
};

template <class F>
void on_all_devices(const F& run, MatmulKind matmul_kind = MatmulKind::fp32) {
    Cpu cpu = cpu_with_stale_scratch(matmul_kind);
    Reference<double> reference;
    Magnitude magnitude;
    run(cpu), run(reference), run(magnitude);
}

// The shapes are run on one thread; another test checks that more threads give the same bits.
class Matmul : public ::testing::TestWithParam<bool> {};

void expect_forward(const Shape& s, bool with_bias, MatmulKind matmul_kind = MatmulKind::fp32) {
    SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
    Tensors t(s);
    on_all_devices(
        [&](auto& dev) {
            matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), with_bias ? t.bias.on(dev) : nullptr,
                           s.N, s.C, s.OC);
        },
        matmul_kind);
    t.out.expect_close("out", sum_error);
}

void expect_backward(const Shape& s, bool with_bias, MatmulKind matmul_kind = MatmulKind::fp32) {
    SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
    Tensors t(s);
    on_all_devices(
        [&](auto& dev) {
            matmul_backward(dev, t.dinp.on(dev), t.dweight.on(dev), with_bias ? t.dbias.on(dev) : nullptr,
                            t.dout.on(dev), t.inp.on(dev), t.weight.on(dev), s.N, s.C, s.OC);
        },
        matmul_kind);
    t.dinp.expect_close("dinp", sum_error);
    t.dweight.expect_close("dweight", sum_error);
    t.dbias.expect_close("dbias", with_bias ? sum_error : 0);
}

TEST_P(Matmul, ForwardAgreesWithReference) {
    const Threads one(1);
    for (const Shape& s : shapes()) expect_forward(s, GetParam());
}
TEST_P(Matmul, BackwardAgreesWithReference) {
    const Threads one(1);
    for (const Shape& s : shapes()) expect_backward(s, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Bias, Matmul, ::testing::Bool(),
                         [](const auto& with) { return with.param ? "with" : "without"; });

// Both kinds of matmul that are as exact as fp32, whichever this machine prefers.
TEST(Matmul, ManyBlocks) {
    for (const MatmulKind matmul_kind : {MatmulKind::fp32, MatmulKind::fma})
        for (const int threads : {1, 2}) {
            const Threads scope(threads);
            for (const Shape& s : large_shapes)
                expect_forward(s, true, matmul_kind), expect_backward(s, true, matmul_kind);
        }
}

TEST(MatmulGelu, ForwardAgreesWithReference) {
    const Threads one(1);
    for (const Shape& s : shapes()) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
        Tensors t(s);
        on_all_devices([&](auto& dev) {
            matmul_gelu_forward(dev, t.out.on(dev), t.pre.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), s.N,
                                s.C, s.OC);
        });
        t.pre.expect_close("pre", sum_error);
        // GELU's slope is at most 1.13; its own roundings are 8 of |out| at most where pre is of moderate size, |out|
        // <= |pre|. (The magnitude's GELU is meaningless.)
        t.out.magnitude = t.pre.magnitude;
        t.out.expect_close("out", 1.13 * sum_error + 8 * roundoff);
    }
}

TEST(MatmulGelu, BackwardAgreesWithReference) {
    const Threads one(1);
    for (const Shape& s : shapes()) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
        Tensors t(s);
        const auto run = [&](auto& dev) {
            matmul_gelu_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev), t.inp.on(dev),
                                 t.hidden.on(dev), t.weight.on(dev), s.N, s.C, s.OC);
        };
        Cpu cpu;
        Reference<double> reference;
        Magnitude magnitude;
        run(cpu), run(reference);
        matmul_backward(magnitude, t.dinp.on(magnitude), t.dweight.on(magnitude), t.dbias.on(magnitude),
                        t.dout.on(magnitude), t.inp.on(magnitude), t.weight.on(magnitude), s.N, s.C, s.OC);
        // times a derivative of at most 1.13 that is itself off by up to 24 roundoffs for |pre| <= 3 (layers/gelu_test)
        t.dinp.expect_close("dpre", 1.13 * sum_error + 24 * roundoff);
        t.dweight.expect_close("dweight", sum_error);
        t.dbias.expect_close("dbias", sum_error);
    }
}

// `--recompute gelu` gives the same bits.
TEST(MatmulGelu, BackwardMakesItsInputAgainToTheBit) {
    for (const Shape& s : shapes()) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
        const auto bits = [&](auto& dev, bool again) {
            generator().seed(1);
            Tensors t(s);
            auto *const inp = t.inp.on(dev), *const pre = t.hidden.on(dev);
            gelu_forward(dev, inp, pre, s.N * s.C);
            matmul_gelu_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev),
                                 again ? nullptr : inp, pre, t.weight.on(dev), s.N, s.C, s.OC);
            std::vector<double> all(inp, inp + s.N * s.C);
            if (again) std::copy_n(pre, s.N * s.C, all.begin());
            const auto add = [&](const auto* x, int64_t n) { all.insert(all.end(), x, x + n); };
            add(t.dinp.on(dev), t.dinp.size()), add(t.dweight.on(dev), t.dweight.size());
            add(t.dbias.on(dev), t.dbias.size());
            return all;
        };
        Cpu cpu;
        Reference<double> reference;
        EXPECT_EQ(bits(cpu, true), bits(cpu, false));
        EXPECT_EQ(bits(reference, true), bits(reference, false));
    }
}

TEST(MatmulResidual, ForwardAgreesWithReference) {
    const Threads one(1);
    for (const Shape& s : shapes()) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
        Tensors t(s);
        on_all_devices([&](auto& dev) {
            matmul_residual_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev),
                                    t.residual.on(dev), s.N, s.C, s.OC);
        });
        t.out.expect_close("out", sum_error);
    }
}

// Differences of sum(r * out) in each argument, for the plain and the fused forms.
TEST(Matmul, BackwardsAgreeWithDifferences) {
    const int64_t N = 3, C = 5, OC = 4;
    Reference<double> dev;
    std::vector<double> pre = uniform(N * C, 2), inp(pre.size()), weight = uniform(OC * C), bias = uniform(OC);
    const std::vector<double> dout = uniform(N * OC), residual = uniform(N * OC);
    std::vector<double> out(dout.size()), dinp(inp.size()), dpre(inp.size()), dweight(weight.size()),
        dbias(bias.size());
    std::vector<double> ignored_weight(weight.size()), ignored_bias(bias.size());
    gelu_forward(dev, inp.data(), pre.data(), N * C);
    const auto linear = [&] {
        matmul_residual_forward(dev, out.data(), inp.data(), weight.data(), bias.data(), residual.data(), N, C, OC);
        return dot(out, dout);
    };
    const auto from_pre = [&] {
        gelu_forward(dev, inp.data(), pre.data(), N * C);
        matmul_forward(dev, out.data(), inp.data(), weight.data(), bias.data(), N, C, OC);
        return dot(out, dout);
    };
    matmul_backward(dev, dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), weight.data(), N, C, OC);
    matmul_gelu_backward(dev, dpre.data(), ignored_weight.data(), ignored_bias.data(), dout.data(), inp.data(),
                         pre.data(), weight.data(), N, C, OC);
    expect_gradient("inp", linear, inp, dinp);
    expect_gradient("weight", linear, weight, dweight);
    expect_gradient("bias", linear, bias, dbias);
    expect_gradient("pre", from_pre, pre, dpre);
    EXPECT_EQ(ignored_weight, dweight);
    EXPECT_EQ(ignored_bias, dbias);
}

TEST(Matmul, BitsDoNotDependOnTheThreads) {
    for (const Shape& s : {Shape{1, 1, 1}, Shape{3, 7, 5}, Shape{1, 33, 1100}, Shape{37, 65, 100}, Shape{9, 800, 3300},
                           Shape{261, 270, 1300}, Shape{901, 65, 100}})
        expect_same_bits_for_any_thread_count([&](Cpu& dev) {
            std::vector<float> all;
            Tensors t(s);
            matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), s.N, s.C, s.OC);
            append(all, t.out);
            matmul_residual_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev),
                                    t.residual.on(dev), s.N, s.C, s.OC);
            append(all, t.out);
            matmul_gelu_forward(dev, t.out.on(dev), t.pre.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), s.N,
                                s.C, s.OC);
            append(all, t.out), append(all, t.pre);
            matmul_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev), t.inp.on(dev),
                            t.weight.on(dev), s.N, s.C, s.OC);
            append(all, t.dinp);
            matmul_gelu_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev), t.inp.on(dev),
                                 t.hidden.on(dev), t.weight.on(dev), s.N, s.C, s.OC);
            for (const Values* v : {&t.dinp, &t.dweight, &t.dbias}) append(all, *v);
            return all;
        });
}

// Compares results on a vector's boundary, large enough for streaming stores, with the same results without them.
TEST(Matmul, PastTheCachesAreTheSameBits) {
    const auto random = [](int64_t n) {
        auto x = host_allocate<float>(n);
        for (int64_t i = 0; i < n; ++i) x[i] = std::uniform_real_distribution<float>(-1, 1)(generator());
        return x;
    };
    const int64_t C = 544, OC = 1031;
    // Some CPUs compute fp32 by AMX, which does not stream.
    for (const MatmulKind matmul_kind : {MatmulKind::fp32, MatmulKind::fma})
        for (const int64_t N : {3, 384, 385}) {  // one block of the sum, and more
            Cpu cpu;
            cpu.matmul_kind = matmul_kind;
            SCOPED_TRACE(testing::PrintToString(std::pair{static_cast<int>(matmul_kind), N}));
            const auto dout = random(N * OC), inp = random(N * C);
            auto set = random(OC * C), added = host_allocate<float>(OC * C);
            matmul_backward_weight(cpu, set.get(), nullptr, dout.get(), inp.get(), N, C, OC, false);
            matmul_backward_weight(cpu, added.get(), nullptr, dout.get(), inp.get(), N, C, OC, true);
            EXPECT_TRUE(std::equal(set.get(), set.get() + OC * C, added.get()));
            auto off = random(OC * C + 1);  // streaming stores would fault off a vector's boundary
            matmul_backward_weight(cpu, off.get() + 1, nullptr, dout.get(), inp.get(), N, C, OC, false);
            EXPECT_TRUE(std::equal(set.get(), set.get() + OC * C, off.get() + 1));
        }
    Cpu cpu;
    const int64_t rows = 1031, hidden = 4096, one = 3;
    const auto inp = random(rows * one), weight = random(hidden * one), bias = random(hidden);
    auto pre = host_allocate<float>(rows * hidden), streamed = host_allocate<float>(rows * hidden),
         cached = host_allocate<float>(rows * hidden + 1);
    for (float* const out : {streamed.get(), cached.get() + 1})
        matmul_gelu_forward(cpu, out, pre.get(), inp.get(), weight.get(), bias.get(), rows, one, hidden);
    EXPECT_TRUE(std::equal(streamed.get(), streamed.get() + rows * hidden, cached.get() + 1));
}

// Among few rows, whose weights are read in place, and among more.
TEST(Matmul, ARowsBitsDoNotDependOnTheRowsBesideIt) {
    const Shape s{29, 300, 70};
    Tensors t(s);
    Cpu cpu;
    const auto expect_same = [&](int64_t all, int64_t some) {
        Values out = nan_values(some * s.OC);
        matmul_forward(cpu, t.out.on(cpu), t.inp.on(cpu), t.weight.on(cpu), t.bias.on(cpu), all, s.C, s.OC);
        for (int64_t n = 0; n + some <= all; ++n) {
            matmul_forward(cpu, out.on(cpu), t.inp.on(cpu) + n * s.C, t.weight.on(cpu), t.bias.on(cpu), some, s.C,
                           s.OC);
            EXPECT_EQ(std::memcmp(out.on(cpu), t.out.on(cpu) + n * s.OC, some * s.OC * sizeof(float)), 0)
                << some << " of " << all << " rows, from " << n;
        }
    };
    for (int64_t some = 1; some <= gemm::few_rows; ++some) expect_same(gemm::few_rows, some);
    for (const int64_t some : {gemm::few_rows + 1, int64_t{24}}) expect_same(s.N, some);
}

TEST(Matmul, NaNStaysInItsRowAndColumn) {
    const Shape s{37, 41, 43};
    Cpu cpu;
    {
        Tensors t(s);
        t.inp.on(cpu)[5 * s.C + 3] = NAN;
        t.weight.on(cpu)[40 * s.C + 40] = NAN;
        matmul_forward(cpu, t.out.on(cpu), t.inp.on(cpu), t.weight.on(cpu), t.bias.on(cpu), s.N, s.C, s.OC);
        expect_nan_only_where("out", t.out, [&](int64_t i) { return i / s.OC == 5 || i % s.OC == 40; });
    }
    Tensors t(s);
    t.dout.on(cpu)[36 * s.OC + 42] = NAN;
    t.weight.on(cpu)[7 * s.C + 11] = NAN;
    t.inp.on(cpu)[2 * s.C + 9] = NAN;
    matmul_backward(cpu, t.dinp.on(cpu), t.dweight.on(cpu), t.dbias.on(cpu), t.dout.on(cpu), t.inp.on(cpu),
                    t.weight.on(cpu), s.N, s.C, s.OC);
    expect_nan_only_where("dinp", t.dinp, [&](int64_t i) { return i / s.C == 36 || i % s.C == 11; });
    expect_nan_only_where("dweight", t.dweight, [&](int64_t i) { return i / s.C == 42 || i % s.C == 9; });
    expect_nan_only_where("dbias", t.dbias, [&](int64_t i) { return i == 42; });
}

}  // namespace
