// Compares LayerNorm and RMSNorm on Cuda with Reference: in the emulator, with several thread orders, or on a GPU.
#include "layers/rmsnorm.cuh"

#include "dev/test/cuda/cuda_check.h"

namespace {

// Its tolerances are numbers of roundoffs.
template <class T>
struct Tensor : CudaTensor<T> {
    using CudaTensor<T>::CudaTensor;
    template <class Allowed>
    void expect_close(const char* name, const Allowed& allowed) const {
        CudaTensor<T>::expect_close(name, [&](int64_t i) { return roundoff * allowed(i); });
    }
};

enum class Norm { layer, rms };
struct Options {
    bool weight = true, bias = true, residual = false, misaligned = false;
    bool dinp = true, dweight = true, dbias = true, dresidual = true, in_place = false;
};

// All inputs and outputs of forward and backward.
template <class T>
struct Layer {
    Layer(Norm n, int64_t rows, int64_t columns, const Options& options) : norm(n), N(rows), C(columns), o(options) {}
    template <class Device>
    void forward(Device& d) {
        const auto w = o.weight ? weight.on(d) : nullptr, b = o.bias ? bias.on(d) : nullptr;
        if (norm == Norm::layer && o.residual)
            residual_layernorm_forward(d, residual.on(d), out.on(d), mean.on(d), rstd.on(d), inp.on(d), branch.on(d), w,
                                       b, N, C);
        else if (norm == Norm::layer)
            layernorm_forward(d, out.on(d), mean.on(d), rstd.on(d), inp.on(d), w, b, N, C);
        else if (o.residual)
            residual_rmsnorm_forward(d, residual.on(d), out.on(d), rstd.on(d), inp.on(d), branch.on(d), w, N, C);
        else
            rmsnorm_forward(d, out.on(d), rstd.on(d), inp.on(d), w, N, C);
    }
    template <class Device>
    void backward(Device& d) {
        const auto w = o.weight ? weight.on(d) : nullptr, past = o.dresidual ? dresidual.on(d) : nullptr;
        const auto dx = o.dinp ? (o.in_place ? dresidual.on(d) : dinp.on(d)) : nullptr;
        const auto dw = o.dweight ? dweight.on(d) : nullptr, db = o.dbias ? dbias.on(d) : nullptr;
        if (norm == Norm::layer)
            layernorm_backward(d, dx, dw, db, dout.on(d), normed().on(d), w, mean.on(d), rstd.on(d), past, N, C);
        else
            rmsnorm_backward(d, dx, dw, dout.on(d), normed().on(d), w, rstd.on(d), past, N, C);
    }
    Tensor<T>& normed() { return o.residual ? residual : inp; }

    int seeded = (generator().seed(1234), 0);
    Norm norm;
    int64_t N, C;
    Options o;
    Cuda cuda{};
    Reference<double> reference{};
    Tensor<T> inp{cuda, uniform(N*C), o.misaligned}, branch{cuda, uniform(N*C), o.misaligned};
    Tensor<T> weight{cuda, uniform(C)}, bias{cuda, uniform(C)};
    Tensor<T> residual{cuda, nans(N*C), o.misaligned}, out{cuda, nans(N*C), o.misaligned};
    Tensor<float> mean{cuda, nans(N)}, rstd{cuda, nans(N)};
    Tensor<T> dout{cuda, uniform(N*C), o.misaligned}, dresidual{cuda, uniform(N*C), o.misaligned},
        dinp{cuda, nans(N*C), o.misaligned};
    Tensor<float> dweight{cuda, uniform(C)}, dbias{cuda, uniform(C)};
};

template <class T>
void expect_forward(Layer<T>& t) {
    t.forward(t.cuda), t.forward(t.reference);
    if (t.o.residual) {
        // A sum is rounded once; Reference's statistics are of the values that Cuda stored.
        t.residual.expect_close("residual", [&](int64_t i) { return std::abs(t.residual.exact[i]); });
        const std::vector<float> stored = t.residual.values();
        std::copy(stored.begin(), stored.end(), t.residual.exact.begin());
        const Options o = t.o;
        Tensor<T>& inp = t.inp;
        const std::vector<double> before = inp.exact;
        inp.exact = t.residual.exact, t.o.residual = false;
        t.forward(t.reference);
        inp.exact = before, t.o = o;
    }
    // A thread adds up to 32 values, or C/512 if that is more, then lanes and warps: some 16 roundings more. Their
    // errors have random signs, and grow as the root of their number.
    const double loss = 16 + std::sqrt(static_cast<double>(t.C) / 32);
    const Tensor<T>& x = t.normed();
    std::vector<double> size(t.N);  // the mean of a row's absolute values
    for (int64_t i = 0; i < t.N * t.C; ++i) size[i / t.C] += std::abs(x.exact[i]) / static_cast<double>(t.C);
    if (t.norm == Norm::layer) t.mean.expect_close("mean", [&](int64_t row) { return loss * size[row]; });
    t.rstd.expect_close("rstd", [&](int64_t row) { return loss * t.rstd.exact[row]; });
    t.out.expect_close("out", [&](int64_t i) {
        const int64_t row = i / t.C, c = i % t.C;
        const double m = t.norm == Norm::layer ? t.mean.exact[row] : 0, r = t.rstd.exact[row];
        const double norm = (x.exact[i] - m) * r, w = t.o.weight ? t.weight.exact[c] : 1,
                     b = t.o.bias && t.norm == Norm::layer ? t.bias.exact[c] : 0;
        const double rounded =
            t.norm == Norm::rms && std::is_same_v<T, bf16> ? std::abs(norm) * 0x1p16 : 0;  // norm, to bf16
        return std::abs(w) * (loss * (std::abs(norm) + size[row] * r) + rounded) + std::abs(b) + 1e-30;
    });
}

template <class T>
void expect_backward(Layer<T>& t) {
    t.forward(t.cuda), t.forward(t.reference);
    for (Tensor<float>* s : {&t.mean, &t.rstd}) {  // both devices read the same statistics
        const std::vector<float> values = s->values();
        std::copy(values.begin(), values.end(), s->exact.begin());
    }
    const std::vector<float> stored = t.normed().values();
    std::copy(stored.begin(), stored.end(), t.normed().exact.begin());
    const std::vector<double> past = t.o.dresidual ? t.dresidual.exact : std::vector<double>(t.dresidual.exact.size());
    const std::vector<double> dw = t.dweight.exact, db = t.dbias.exact;
    t.backward(t.cuda), t.backward(t.reference);
    const auto norm = [&](int64_t i) {
        return (t.normed().exact[i] - (t.norm == Norm::layer ? t.mean.exact[i / t.C] : 0)) * t.rstd.exact[i / t.C];
    };
    const auto dnorm = [&](int64_t i) { return t.dout.exact[i] * (t.o.weight ? t.weight.exact[i % t.C] : 1); };
    const double loss = 16 + std::sqrt(static_cast<double>(t.C) / 32);
    std::vector<double> row_size(t.N);
    for (int64_t i = 0; i < t.N * t.C; ++i)
        row_size[i / t.C] += std::abs(dnorm(i)) * (1 + std::abs(norm(i))) / static_cast<double>(t.C);
    if (t.o.dinp)
        (t.o.in_place ? t.dresidual : t.dinp).expect_close("dinp", [&](int64_t i) {
            return std::abs(past[i]) +
                   t.rstd.exact[i / t.C] * loss * (std::abs(dnorm(i)) + row_size[i / t.C] * (1 + std::abs(norm(i)))) +
                   1e-30;
        });
    // The terms of a column, added in groups of rows, then blocks.
    const double rows_loss = 8 + std::sqrt(static_cast<double>(t.N));
    const auto column = [&](int64_t c, bool with_norm) {
        double sum = 0;
        for (int64_t row = 0; row < t.N; ++row)
            sum += std::abs(t.dout.exact[row * t.C + c] * (with_norm ? norm(row * t.C + c) : 1));
        return sum;
    };
    t.dweight.expect_close("dweight",
                           [&](int64_t c) { return t.o.dweight ? std::abs(dw[c]) + rows_loss * column(c, true) : 0; });
    t.dbias.expect_close("dbias", [&](int64_t c) {
        return t.o.dbias && t.norm == Norm::layer ? std::abs(db[c]) + rows_loss * column(c, false) : 0;
    });
}

// Columns that are not whole vectors, for one, four or sixteen warps, or too long for registers; rows that are not
// whole blocks or groups, and more than a grid takes at once.
const std::pair<int64_t, int64_t> shapes[] = {{1, 1},    {5, 1},    {3, 31},    {2, 33},    {70, 40},  {9, 72},
                                              {150, 36}, {4, 256},  {3, 257},   {6, 260},   {5, 768},  {37, 770},
                                              {3, 1024}, {2, 1028}, {3, 1600},  {2, 4096},  {2, 4097}, {1, 5003},
                                              {2, 8192}, {1, 8200}, {1, 16384}, {1, 16385}, {2, 16392}};

template <class T>
class CudaNorm : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(CudaNorm, StorageTypes);

// Tests each norm and shape; rows that are not too long are run in every order of the threads.
template <class Test>
void for_each_shape(const Test& test) {
    for (const Norm norm : {Norm::layer, Norm::rms})
        for (const auto& [N, C] : shapes) {
            SCOPED_TRACE(testing::Message() << N << " x " << C << (norm == Norm::rms ? ", RMSNorm" : ""));
            if (C <= 1024)
                in_every_order([&, N = N, C = C] { test(norm, N, C); });
            else
                test(norm, N, C);
            if (testing::Test::HasFatalFailure()) return;
        }
}

TYPED_TEST(CudaNorm, ForwardAgreesWithReference) {
    for_each_shape([](Norm norm, int64_t N, int64_t C) {
        for (const bool residual : {false, true}) {
            Layer<TypeParam> layer(norm, N, C, {.residual = residual});
            expect_forward(layer);
        }
    });
}

TYPED_TEST(CudaNorm, BackwardAgreesWithReference) {
    for_each_shape([](Norm norm, int64_t N, int64_t C) {
        Layer<TypeParam> layer(norm, N, C, {});
        expect_backward(layer);
    });
}

TYPED_TEST(CudaNorm, WithoutEachOfItsOptionalArguments) {
    for (const Norm norm : {Norm::layer, Norm::rms})
        for (const int64_t C : {37, 64, 520})
            for (const Options& o :
                 {Options{.weight = false}, Options{.bias = false},
                  Options{.weight = false, .bias = false, .residual = true}, Options{.misaligned = true},
                  Options{.residual = true, .misaligned = true}, Options{.dinp = false}, Options{.dweight = false},
                  Options{.dbias = false}, Options{.dresidual = false}, Options{.in_place = true},
                  Options{.dinp = false, .dweight = false}, Options{.dweight = false, .dbias = false},
                  Options{.dinp = false, .dweight = false, .dbias = false}}) {
                Layer<TypeParam> forward(norm, 13, C, o), backward(norm, 13, C, o);
                expect_forward(forward);
                expect_backward(backward);
            }
}

TYPED_TEST(CudaNorm, NoRowsNoChange) {
    Layer<TypeParam> layer(Norm::layer, 0, 37, {});
    expect_forward(layer);
    expect_backward(layer);
}

TYPED_TEST(CudaNorm, TheResidualMayBeEitherOfItsTerms) {
    for (const int64_t C : {37, 64, 16392}) {
        Layer<TypeParam> t(Norm::layer, 3, C, {.residual = true});
        Cuda& dev = t.cuda;
        t.forward(dev);
        const std::vector<float> out = t.out.values(), residual = t.residual.values();
        for (Tensor<TypeParam>* target : {&t.inp, &t.branch}) {
            Layer<TypeParam> u(Norm::layer, 3, C, {.residual = true});
            Tensor<TypeParam>& onto = target == &t.inp ? u.inp : u.branch;
            residual_layernorm_forward(dev, onto.on(dev), u.out.on(dev), u.mean.on(dev), u.rstd.on(dev), u.inp.on(dev),
                                       u.branch.on(dev), u.weight.on(dev), u.bias.on(dev), 3, C);
            EXPECT_EQ(u.out.values(), out);
            EXPECT_EQ(onto.values(), residual);
        }
    }
}

// The bits do not depend on the order of the threads, as sums have a fixed shape.
TYPED_TEST(CudaNorm, TheSameBitsAtEveryRun) {
    for (const auto& [N, C] : std::vector<std::pair<int64_t, int64_t>>{{70, 40}, {9, 1001}, {5, 8200}}) {
        SCOPED_TRACE(testing::Message() << N << " x " << C);
        expect_same_bits([&, N = N, C = C] {
            Layer<TypeParam> t(Norm::layer, N, C, {});
            t.forward(t.cuda), t.backward(t.cuda);
            std::vector<float> all = t.mean.values();
            for (const std::vector<float>& x :
                 {t.rstd.values(), t.out.values(), t.dinp.values(), t.dweight.values(), t.dbias.values()})
                all.insert(all.end(), x.begin(), x.end());
            return all;
        });
    }
}

TYPED_TEST(CudaNorm, AConstantRowBecomesTheBias) {
    for (const double value : {3.0, -1e4, 1e8})
        for (const int64_t C : {1, 5, 64, 768, 1600, 16385}) {
            Layer<TypeParam> t(Norm::layer, 2, C, {});
            t.inp = Tensor<TypeParam>(t.cuda, std::vector<double>(static_cast<size_t>(2 * C), value));
            t.forward(t.cuda);
            const std::vector<float> out = t.out.values(), bias = t.bias.values();
            for (int64_t i = 0; i < 2 * C; ++i) ASSERT_EQ(out[i], bias[i % C]) << value << ", column " << i;
        }
}

TEST(CudaLayerNorm, LargeValuesOfSmallSpread) {  // where mean(x²) - mean(x)² fails
    for (const int64_t C : {33, 768, 16392}) {
        Layer<float> t(Norm::layer, 2, C, {});
        std::vector<double> x = uniform(2 * C, 1e-2);
        for (double& value : x) value += 1e4;
        t.inp = Tensor<float>(t.cuda, x);
        t.forward(t.cuda), t.forward(t.reference);
        // The distances from the mean are exact to the last bit of 1e4, a tenth of the smallest spread.
        t.out.expect_close("out", [&](int64_t) { return 1e4 * t.rstd.exact[0]; });
    }
}

TYPED_TEST(CudaNorm, HugeValuesAreNormalisedLikeAnyOthers) {  // 2^100 = 1.3e30, whose square overflows
    for (const Norm norm : {Norm::layer, Norm::rms})
        for (const int64_t C : {33, 768, 1600, 16385})
            for (const bool residual : {false, true}) {
                SCOPED_TRACE(testing::Message() << C << (norm == Norm::rms ? ", RMSNorm" : "") << residual);
                Layer<TypeParam> t(norm, 2, C, {.residual = residual});
                for (Tensor<TypeParam>* x : {&t.inp, &t.branch}) {
                    std::vector<double> huge = x->exact;
                    for (int64_t i = 0; i < C; ++i) huge[i] *= 0x1p100;  // the first row; the second stays as it is
                    *x = Tensor<TypeParam>(t.cuda, huge);
                }
                expect_forward(t);
            }
}

TEST(CudaLayerNorm, EpsIsAnArgument) {
    for (const float eps : {1e-12f, 1e-3f, 2.0f})
        for (const int64_t C : {33, 1600}) {
            Layer<float> t(Norm::layer, 2, C, {});
            const auto expect = [&](const char* name) {
                t.rstd.expect_close(name, [&](int64_t row) { return 64 * t.rstd.exact[row]; });
            };
            const auto run = [&](auto& dev) {
                layernorm_forward(dev, t.out.on(dev), t.mean.on(dev), t.rstd.on(dev), t.inp.on(dev), t.weight.on(dev),
                                  nullptr, 2, C, eps);
            };
            run(t.cuda), run(t.reference), expect("layernorm");
            const auto fused = [&](auto& dev) {
                residual_layernorm_forward(dev, t.residual.on(dev), t.out.on(dev), t.mean.on(dev), t.rstd.on(dev),
                                           t.inp.on(dev), t.branch.on(dev), t.weight.on(dev), nullptr, 2, C, eps);
            };
            fused(t.cuda), fused(t.reference), expect("with the residual");
            const auto rms = [&](auto& dev) {
                rmsnorm_forward(dev, t.out.on(dev), t.rstd.on(dev), t.inp.on(dev), t.weight.on(dev), 2, C, eps);
            };
            rms(t.cuda), rms(t.reference), expect("rmsnorm");
        }
}

TEST(CudaLayerNorm, DenormalsAreNothingBesideEps) {
    for (const int64_t C : {33, 768, 16392}) {
        Layer<float> t(Norm::layer, 2, C, {});
        t.inp = Tensor<float>(t.cuda, uniform(2 * C, 1e-42));
        t.forward(t.cuda);
        const std::vector<float> out = t.out.values(), bias = t.bias.values();
        for (int64_t i = 0; i < 2 * C; ++i) ASSERT_NEAR(out[i], bias[i % C], 1e-38f) << i;
    }
}

TYPED_TEST(CudaNorm, NaNStaysInItsRow) {
    Layer<TypeParam> t(Norm::layer, 9, 37, {});
    t.inp.exact[4 * 37 + 36] = nan64, t.inp.exact[7 * 37] = INFINITY, t.dout.exact[2 * 37 + 5] = nan64;
    t.inp = Tensor<TypeParam>(t.cuda, t.inp.exact), t.dout = Tensor<TypeParam>(t.cuda, t.dout.exact);
    t.forward(t.cuda), t.backward(t.cuda);
    const std::vector<float> out = t.out.values(), dinp = t.dinp.values(), dweight = t.dweight.values(),
                             dbias = t.dbias.values();
    for (int64_t i = 0; i < 9 * 37; ++i) {
        const int64_t row = i / 37;
        ASSERT_EQ(std::isnan(out[i]), row == 4 || row == 7) << i;
        ASSERT_EQ(std::isnan(dinp[i]), row == 4 || row == 7 || row == 2) << i;
    }
    for (int64_t c = 0; c < 37; ++c) EXPECT_TRUE(std::isnan(dweight[c]) && std::isnan(dbias[c]) == (c == 5)) << c;
}

}  // namespace
