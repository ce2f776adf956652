// The properties of LayerNorm: which values share statistics, the properties of normalized rows and of their gradients,
// and input that breaks a careless implementation. BatchNorm on the same input shows the opposite.
#include <numeric>

#include "dev/layernorm/batchnorm.h"
#include "dev/test/layers/layer_check.h"
#include "layers/layernorm_cpu.h"

namespace {

using Floats = std::vector<float>;

// LayerNorm without weight and bias of N rows of C, on the Cpu.
struct Normalised {
    Normalised(const Floats& inp, int64_t n, int64_t c, float eps = 1e-5f)
        : N(n), C(c), out(inp.size()), mean(static_cast<size_t>(n)), rstd(static_cast<size_t>(n)) {
        Cpu dev;
        layernorm_forward(dev, out.data(), mean.data(), rstd.data(), inp.data(), nullptr, nullptr, N, C, eps);
    }
    int64_t N, C;
    Floats out, mean, rstd;
};

Floats floats(const std::vector<double>& x) { return {x.begin(), x.end()}; }
Floats count(int64_t n) {  // 1, 2, … n
    Floats x(static_cast<size_t>(n));
    std::iota(x.begin(), x.end(), 1.0f);
    return x;
}

TEST(LayerNormProperties, BeforeTheAffineStepRowsHaveMean0AndDeviation1) {
    for (const int64_t C : {2, 3, 17, 64, 768, 5003})
        for (const double spread : {0.1, 1.0, 30.0}) {
            const int64_t N = 5;
            const Normalised ln(floats(uniform(N * C, spread)), N, C);
            for (int64_t row = 0; row < N; ++row) {
                double mean = 0, squares = 0;
                for (int64_t c = 0; c < C; ++c)
                    mean += static_cast<double>(ln.out[row * C + c]) / static_cast<double>(C);
                for (int64_t c = 0; c < C; ++c)
                    squares += std::pow(static_cast<double>(ln.out[row * C + c]) - mean, 2) / static_cast<double>(C);
                // eps reduces the variance to v / (v + eps) = 1 - eps * rstd².
                const double r = static_cast<double>(ln.rstd[static_cast<size_t>(row)]);
                EXPECT_LT(std::abs(mean), 1e-6) << C << " " << spread;
                EXPECT_NEAR(std::sqrt(squares), std::sqrt(1 - 1e-5 * r * r), 1e-5) << C << " " << spread;
            }
        }
}

TEST(LayerNormProperties, StatisticsArePerTimeStep) {
    EXPECT_EQ(Normalised(count(24), 6, 4).mean, (Floats{2.5, 6.5, 10.5, 14.5, 18.5, 22.5}));  // (2,3,4)
    EXPECT_EQ(Normalised(count(12), 4, 3).mean, (Floats{2, 5, 8, 11}));  // (2,2,3); over time it would be 3.5, 9.5
}

TEST(LayerNormProperties, NormalizedShapeMakesRows) {
    const auto expect = [](const std::vector<int64_t>& shape, const std::vector<int64_t>& over, int64_t N, int64_t C) {
        const Rows rows = normalized_rows(shape, over);
        EXPECT_EQ(rows.N, N);
        EXPECT_EQ(rows.C, C);
    };
    expect({2, 3, 4}, {4}, 6, 4);            // (B,T,C) over C
    expect({2, 3, 4, 5}, {3, 4, 5}, 2, 60);  // images (B,C,H,W) over all of an image
    expect({7, 2, 9}, {9}, 14, 9);           // an RNN's (T,B,d) over d
    expect({3, 4}, {3, 4}, 1, 12), expect({5}, {5}, 1, 5), expect({0, 5}, {5}, 0, 5);
}

TEST(LayerNormProperties, AShapeThatDoesNotFitIsAnErrorThatNamesBoth) {
    const auto message = [](const std::vector<int64_t>& shape, const std::vector<int64_t>& over) {
        try {
            normalized_rows(shape, over);
        } catch (const std::invalid_argument& e) {
            return std::string(e.what());
        }
        return std::string("no error");
    };
    for (const auto& [over, text] : {std::pair<std::vector<int64_t>, const char*>{{3}, "(3)"},
                                     {{4, 3}, "(4,3)"},
                                     {{2, 3}, "(2,3)"},
                                     {{1, 2, 3, 4}, "(1,2,3,4)"},
                                     {{}, "()"}})
        EXPECT_EQ(message({2, 3, 4}, over), std::string("normalized_shape ") + text +
                                                ": expected one or more of the last dimensions of the input's shape "
                                                "(2,3,4)");
    EXPECT_NE(message({-2, 3}, {3}), "no error");
}

TEST(LayerNormProperties, ChangingOneRowChangesNoOther) {
    const int64_t N = 9, C = 37;
    Floats inp = floats(uniform(N * C));
    const Normalised before(inp, N, C);
    inp[4 * C + 11] += 1;
    const Normalised after(inp, N, C);
    for (int64_t row = 0; row < N; ++row)
        EXPECT_EQ(std::memcmp(&before.out[row * C], &after.out[row * C], C * sizeof(float)) == 0, row != 4) << row;
}

TEST(LayerNormProperties, TheSameWhateverTheBatchOneIncluded) {
    const int64_t N = 70, C = 33;
    const Floats inp = floats(uniform(N * C));
    const Normalised all(inp, N, C);
    for (const int64_t batch : {1, 2, 7, 35})
        for (int64_t row = 0; row < N; row += batch) {
            const Normalised part(Floats(inp.begin() + row * C, inp.begin() + (row + batch) * C), batch, C);
            ASSERT_EQ(std::memcmp(part.out.data(), &all.out[row * C], batch * C * sizeof(float)), 0);
        }
}

// ---- BatchNorm on the same input -----------------------------------------------------------------------------------

TEST(BatchNormBeside, SharesStatisticsAlongTheOtherAxis) {
    const Floats x = count(24);
    std::vector<double> inp(x.begin(), x.end()), out(24);
    BatchNorm bn(4);
    bn.training(out.data(), inp.data(), 6, 1.0);
    EXPECT_EQ(bn.running_mean, (std::vector<double>{11, 12, 13, 14}));  // of each feature, over the 6 rows
}

TEST(BatchNormBeside, ARowsResultDependsOnTheBatch) {
    std::vector<double> inp = uniform(6 * 4), before(24), after(24);
    BatchNorm(4).training(before.data(), inp.data(), 6);
    inp[5 * 4] += 1;  // the last row
    BatchNorm(4).training(after.data(), inp.data(), 6);
    EXPECT_GT(std::abs(before[0] - after[0]), 0.01);  // the first row's first feature
    EXPECT_EQ(before[1], after[1]);
}

TEST(BatchNormBeside, EvaluationIsNotTraining) {
    const std::vector<double> inp = uniform(6 * 4);
    std::vector<double> training(24), evaluation(24), one(4);
    BatchNorm bn(4);
    for (int step = 0; step < 3; ++step) bn.training(training.data(), inp.data(), 6);
    bn.evaluation(evaluation.data(), inp.data(), 6);
    EXPECT_GT(std::abs(training[0] - evaluation[0]), 0.01);
    bn.evaluation(one.data(), inp.data(), 1);
    EXPECT_EQ(one[0], evaluation[0]);  // now each row is by itself
}

// ---- the gradient ---------------------------------------------------------------------------------------------------

// LayerNorm is invariant to a shift of the row and, up to eps, to its scale: no gradient points along either.
TEST(LayerNormProperties, DxSumsTo0AndIsOrthogonalToNorm) {
    for (const int64_t C : {2, 17, 768})
        for (const bool with_weight : {true, false}) {
            const int64_t N = 4;
            const Floats inp = floats(uniform(N * C)), dout = floats(uniform(N * C)), weight = floats(uniform(C, 3));
            const Normalised ln(inp, N, C);
            Floats dx(inp.size());
            Cpu dev;
            layernorm_backward(dev, dx.data(), nullptr, nullptr, dout.data(), inp.data(),
                               with_weight ? weight.data() : nullptr, ln.mean.data(), ln.rstd.data(), nullptr, N, C);
            for (int64_t row = 0; row < N; ++row) {
                const double r = static_cast<double>(ln.rstd[static_cast<size_t>(row)]);
                double sum = 0, along_norm = 0, dnorm_norm = 0, size = 0;
                for (int64_t i = row * C; i < (row + 1) * C; ++i) {
                    const double d = static_cast<double>(dx[i]), norm = static_cast<double>(ln.out[i]);
                    const double w = with_weight ? static_cast<double>(weight[i % C]) : 1;
                    const double dnorm = static_cast<double>(dout[i]) * w;
                    sum += d, along_norm += d * norm, dnorm_norm += dnorm * norm;
                    size += r * std::abs(dnorm) * (1 + std::abs(norm));
                }
                // Each term has a dozen roundings. eps leaves a share eps / (variance + eps) = eps * r² along norm.
                EXPECT_LE(std::abs(sum), 12 * roundoff * size);
                EXPECT_LE(std::abs(along_norm - r * dnorm_norm * 1e-5 * r * r), 12 * roundoff * size * 2);
            }
        }
}

// ---- hard input -----------------------------------------------------------------------------------------------------

TEST(LayerNormProperties, AConstantRowIsAllZeros) {
    for (const float value : {0.0f, 1.0f, 3.7f, -1e4f, 1e30f, 1e-40f}) {
        const Normalised ln(Floats(2 * 77, value), 2, 77);
        for (const float x : ln.out) ASSERT_EQ(x, 0.0f) << value;
    }
}

// Squares of 1e4 have an error of 1e8 * 2^-24 = 6, compared with a variance of 1e-4: E[x²] - E[x]² would be noise, or
// negative.
TEST(LayerNormProperties, ASmallSpreadFarFrom0Survives) {
    for (const int64_t C : {4, 33, 768}) {
        const Floats inp = floats([&] {
            std::vector<double> x = uniform(C, 1e-2);
            for (double& v : x) v += 1e4;
            return x;
        }());
        const Normalised ln(inp, 1, C);
        double mean = 0, variance = 0, squares = 0;
        for (const float x : inp) mean += static_cast<double>(x) / static_cast<double>(C);
        for (const float x : inp) variance += std::pow(static_cast<double>(x) - mean, 2) / static_cast<double>(C);
        const double r = 1 / std::sqrt(variance + 1e-5);
        EXPECT_NEAR(ln.rstd[0], r, 1e-2 * r);  // the mean is known to 1e4 * 2^-24, a tenth of the deviation
        float near_square = 0, near_mean = 0;
        for (const float x : inp) near_square += x * x / static_cast<float>(C), near_mean += x / static_cast<float>(C);
        squares = static_cast<double>(near_square - near_mean * near_mean);
        EXPECT_GT(std::abs(squares - variance), 100 * variance);  // the result of the one-pass formula for the same row
    }
}

TEST(LayerNormProperties, HugeAndTinyValuesAreNormalisedLikeAnyOthers) {
    for (const int64_t C : {4, 33, 768}) {
        const std::vector<double> x = uniform(C);
        const auto scaled = [&](double factor, float eps) {
            Floats y(x.size());
            for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(x[i] * factor);
            return Normalised(y, 1, C, eps).out;
        };
        const Floats one = scaled(1, 0);
        for (const double factor : {0x1p100, 0x1p64, 0x1p-30}) {  // 2^100 = 1.3e30, its square overflows
            const Floats other = scaled(factor, 0);
            for (size_t i = 0; i < one.size(); ++i)
                ASSERT_NEAR(other[i], one[i], 1e-5f * std::abs(one[i])) << factor << " " << i;
        }
        for (const float v : scaled(1e-42, 1e-5f)) ASSERT_LE(std::abs(v), 1e-38f);  // denormals: far below eps
    }
}

TEST(LayerNormProperties, RowsOfOneAreTheirBias) {
    const Floats inp{-3, 0, 1e30f, 1e-40f}, weight{2}, bias{0.5};
    Floats out(4), mean(4), rstd(4);
    Cpu dev;
    layernorm_forward(dev, out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), 4, 1);
    EXPECT_EQ(out, Floats(4, 0.5f));
    EXPECT_EQ(mean, inp);
}

TEST(LayerNormProperties, NoRowsAreFine) {
    Cpu dev;
    float* const none = nullptr;
    float dweight[3] = {1, 2, 3};
    layernorm_forward(dev, none, none, none, none, nullptr, nullptr, 0, 3);
    layernorm_backward(dev, none, dweight, nullptr, none, none, nullptr, none, none, nullptr, 0, 3);
    EXPECT_EQ(dweight[0] + dweight[1] + dweight[2], 6);
}

TEST(LayerNormProperties, NaNAndInfinityStayInTheirRow) {
    const int64_t N = 5, C = 19;
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
        Floats inp = floats(uniform(N * C));
        inp[2 * C + 18] = bad;
        const Normalised ln(inp, N, C);
        for (int64_t i = 0; i < N * C; ++i) ASSERT_EQ(std::isnan(ln.out[i]), i / C == 2) << bad << " " << i;
    }
}

}  // namespace
