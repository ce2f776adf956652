// Weights in bf16 and int8: what is stored, and that the layers compute with exactly these values. Beside int8, few
// rows of activations are rounded to 16 bits.
#include "device/cpu/weight_rows.h"

#include "layers/embedding_cpu.h"
#include "layers/matmul_cpu.h"
#include "dev/test/layers/layer_check.h"

namespace {

const WeightType types[] = {WeightType::bf16, WeightType::int8};

// A matrix (N,K): as it is stored, and the values that it stands for.
struct Stored {
    Stored(WeightType type, const std::vector<double>& original, int64_t N, int64_t K)
        : memory(std::vector<double>(static_cast<size_t>(N * weight_floats(type, K)), nan64)),
          values(read(type, original, N, K)) {}
    float* on(Cpu&) { return memory.get(); }
    double* on(Reference<double>& dev) { return values.on(dev); }
    double* on(Magnitude& dev) { return values.on(dev); }

    Padded memory;
    Values values;

private:
    std::vector<double> read(WeightType type, const std::vector<double>& original, int64_t N, int64_t K) {
        const Padded floats(original);
        store_weights(type, memory.get(), floats.get(), N, K);
        Padded row(std::vector<double>(static_cast<size_t>(K)));
        std::vector<double> all;
        with_rows(type, memory.get(), K, [&](const auto& rows) {
            for (int64_t n = 0; n < N; ++n) {
                read_row(row.get(), rows, n, K);
                all.insert(all.end(), row.get(), row.get() + K);
            }
        });
        return all;
    }
};

// The most by which out (N,OC) may differ because few rows of activations are rounded to 16 bits beside int8 weights:
// half a step for each value, where a step is 1/32767 of the largest magnitude of the row.
std::vector<double> rounding_errors(const Values& inp, const Values& weight, int64_t N, int64_t C, int64_t OC) {
    std::vector<double> errors;
    for (int64_t n = 0; n < N; ++n) {
        double largest = 0;
        for (int64_t c = 0; c < C; ++c) largest = std::max(largest, std::abs(inp[n * C + c]));
        for (int64_t o = 0; o < OC; ++o) {
            double sum = 0;
            for (int64_t c = 0; c < C; ++c) sum += std::abs(weight[o * C + c]);
            errors.push_back(0.5 / 32767 * largest * sum);
        }
    }
    return errors;
}

}  // namespace

TEST(StoredWeights, Bf16RoundsToNearest) {
    for (const int64_t K : {1, 2, 7, 16, 33}) {
        const std::vector<double> original = uniform(3 * K);
        const Stored stored(WeightType::bf16, original, 3, K);
        for (int64_t i = 0; i < 3 * K; ++i) {
            const auto value = static_cast<float>(original[static_cast<size_t>(i)]);
            EXPECT_EQ(stored.values[i], static_cast<float>(bf16(value)));
        }
    }
}

// int8 is at most half a step from the value, and a step is 1/127 of the row's largest magnitude. Half a step may be
// exceeded by the rounding of the division.
TEST(StoredWeights, Int8RoundsToNearest) {
    for (const int64_t K : {1, 2, 7, 16, 33, 768}) {
        std::vector<double> original = uniform(4 * K);
        for (int64_t k = 0; k < K; ++k) {
            original[static_cast<size_t>(K + k)] *= 1e-30;
            original[static_cast<size_t>(2 * K + k)] *= 1e30;
            original[static_cast<size_t>(3 * K + k)] = 0;
        }
        const Stored stored(WeightType::int8, original, 4, K);
        for (int64_t n = 0; n < 4; ++n) {
            const auto row = original.begin() + n * K;
            const double step = std::abs(*std::max_element(
                                    row, row + K, [](double a, double b) { return std::abs(a) < std::abs(b); })) /
                                127;
            for (int64_t k = 0; k < K; ++k) EXPECT_LE(std::abs(stored.values[n * K + k] - row[k]), step * 0.50001);
        }
    }
}

// A row of denormal numbers has a scale of one bit, or none: its values stay finite and small.
TEST(StoredWeights, Int8OfTheSmallestNumbersIsFinite) {
    const Stored stored(WeightType::int8, {1e-45, -1e-45, 1e-40, 3e-42, 0, 1e-44, 1e-43, -1e-40}, 2, 4);
    for (int64_t i = 0; i < 8; ++i) EXPECT_LE(std::abs(stored.values[i]), 2e-40);
}

TEST(StoredWeights, MatmulsComputeWithTheStoredValues) {
    struct Shape {
        int64_t N, C, OC;
    };
    std::vector<Shape> shapes = {{1, 2, 1},   {2, 3, 5},    {5, 67, 49},   {8, 33, 97},    {15, 64, 50},
                                 {16, 65, 3}, {17, 65, 50}, {40, 130, 75}, {64, 3000, 40}, {33, 300, 1100}};
    for (const int64_t rows : {1, 3, 4, 9}) shapes.push_back({rows, 768, 101});
    for (const WeightType type : types)
        for (const int threads : {1, 2})
            for (const Shape& s : shapes) {
                SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
                const Threads scope(threads);
                Stored weight(type, uniform(s.OC * s.C), s.OC, s.C);
                Values inp = random_values(s.N * s.C), bias = random_values(s.OC), residual = random_values(s.N * s.OC),
                       sum = nan_values(s.N * s.OC), out = nan_values(s.N * s.OC), pre = nan_values(s.N * s.OC),
                       gelu = nan_values(s.N * s.OC);
                Cpu cpu = cpu_with_stale_scratch();
                cpu.weights = type;
                Reference<double> reference;
                Magnitude magnitude;
                const auto run = [&](auto& dev) {
                    matmul_forward(dev, sum.on(dev), inp.on(dev), weight.on(dev), bias.on(dev), s.N, s.C, s.OC);
                    matmul_residual_forward(dev, out.on(dev), inp.on(dev), weight.on(dev), bias.on(dev),
                                            residual.on(dev), s.N, s.C, s.OC);
                    matmul_gelu_forward(dev, gelu.on(dev), pre.on(dev), inp.on(dev), weight.on(dev), bias.on(dev), s.N,
                                        s.C, s.OC);
                };
                run(cpu), run(reference), run(magnitude);
                constexpr double error = 8 * roundoff;  // as matmul_test.cpp's sum_error
                if (type == WeightType::int8 && s.N <= gemm::few_rows) {
                    const std::vector<double> rounding = rounding_errors(inp, weight.values, s.N, s.C, s.OC);
                    for (Values* const values : {&sum, &out, &pre})
                        for (size_t i = 0; i < rounding.size(); ++i) values->magnitude[i] += rounding[i] / error;
                }
                sum.expect_close("sum", error);
                out.expect_close("out", error);
                pre.expect_close("pre", error);
                gelu.magnitude = pre.magnitude;
                gelu.expect_close("gelu", 1.13 * error + 8 * roundoff);
            }
}

// Few rows of activations are rounded to 16 bits beside int8 weights. The errors of the values are uniform within half
// a step and independent, so the error of a sum has the size that a random walk has, and is far smaller than the error
// that the rounding of the weights makes: here by 260 times, where one value is a thousand times the others by 16.
TEST(StoredWeights, RoundingActivationsChangesLessThanRoundingWeights) {
    const int64_t C = 768, OC = 400;
    const double sizes[] = {1, 1e-29, 1e29, 1};
    const auto N = std::ssize(sizes);
    std::vector<double> activations = uniform(N * C);
    for (int64_t i = 0; i < N * C; ++i) activations[static_cast<size_t>(i)] *= sizes[i / C];
    activations[static_cast<size_t>(3 * C)] = 1000;
    const Values original = random_values(OC * C);
    Stored weight(WeightType::int8, original.exact, OC, C);
    Values inp(activations), out = nan_values(N * OC);
    Cpu cpu;
    cpu.weights = WeightType::int8;
    matmul_forward(cpu, out.on(cpu), inp.on(cpu), weight.on(cpu), nullptr, N, C, OC);
    for (int64_t n = 0; n < N; ++n) {
        double largest = 0, of_activations = 0, of_weights = 0, of_walks = 0;
        for (int64_t c = 0; c < C; ++c) largest = std::max(largest, std::abs(inp[n * C + c]));
        for (int64_t o = 0; o < OC; ++o) {
            double exact = 0, before = 0, squares = 0;
            for (int64_t c = 0; c < C; ++c) {
                const double w = weight.values[o * C + c];
                exact += inp[n * C + c] * w;
                before += inp[n * C + c] * original[o * C + c];
                squares += w * w;
            }
            of_activations += std::pow(out.on(cpu)[n * OC + o] - exact, 2);
            of_weights += std::pow(exact - before, 2);
            of_walks += std::pow(largest / 32767, 2) / 12 * squares;
        }
        // 400 sums of 768 errors: their mean square is known to 8 %.
        EXPECT_NEAR(std::sqrt(of_activations / of_walks), 1, 0.15) << n;
        EXPECT_LE(std::sqrt(of_activations / of_weights), n == 3 ? 1.0 / 12 : 1.0 / 200) << n;
    }
}

// Sums of integers must not overflow, however long the rows are: here every product is the largest possible.
TEST(StoredWeights, LongRowsOfTheLargestProductsAreSummed) {
    for (const int64_t C : {2048, 4097, 40000}) {
        const std::vector<double> ones(static_cast<size_t>(5 * C), 1);
        Stored weight(WeightType::int8, ones, 5, C);
        Values inp(ones), out = nan_values(5 * 5);
        Cpu cpu;
        cpu.weights = WeightType::int8;
        matmul_forward(cpu, out.on(cpu), inp.on(cpu), weight.on(cpu), nullptr, 5, C, 5);
        for (int64_t i = 0; i < 5 * 5; ++i) EXPECT_NEAR(out.on(cpu)[i] / static_cast<float>(C), 1, 8 * roundoff) << C;
    }
}

TEST(StoredWeights, ValuesThatAreNotFiniteStayVisibleInTheirRow) {
    const int64_t N = 9, C = 70, OC = 20;
    for (const WeightType type : types)
        for (const int64_t rows : {int64_t{1}, N}) {
            Stored weight(type, uniform(OC * C), OC, C);
            Values inp = random_values(N * C), out = nan_values(N * OC);
            Cpu cpu = cpu_with_stale_scratch();
            cpu.weights = type;
            inp.on(cpu)[0 * C + 3] = NAN;
            inp.on(cpu)[2 * C + 69] = INFINITY;
            inp.on(cpu)[4 * C + 17] = -INFINITY;
            inp.on(cpu)[6 * C] = -NAN;
            std::fill_n(inp.on(cpu) + 8 * C, C, 0.0f);
            for (int64_t n = 0; n < N; n += rows)
                matmul_forward(cpu, out.on(cpu) + n * OC, inp.on(cpu) + n * C, weight.on(cpu), nullptr, rows, C, OC);
            for (int64_t i = 0; i < N * OC; ++i)
                ASSERT_EQ(std::isfinite(out.on(cpu)[i]), i / OC % 2 == 1 || i / OC == 8) << i;
            for (int64_t o = 0; o < OC; ++o) EXPECT_EQ(out.on(cpu)[8 * OC + o], 0);
        }
}

TEST(StoredWeights, EmbeddingReadsTheStoredValues) {
    for (const WeightType type : types)
        for (const int64_t C : {2, 7, 16, 131}) {
            SCOPED_TRACE(C);
            const int64_t B = 2, T = 5, V = 9;
            const std::vector<int32_t> tokens = {0, 8, 3, 3, 1, 2, 7, 8, 0, 5};
            Stored wte(type, uniform(V * C), V, C);
            Values wpe = random_values(T * C), out = nan_values(B * T * C);
            Cpu cpu;
            cpu.weights = type;
            Reference<double> reference;
            Magnitude magnitude;
            const auto run = [&](auto& dev) {
                embedding_forward(dev, out.on(dev), tokens.data(), wte.on(dev), wpe.on(dev), B, T, C);
            };
            run(cpu), run(reference), run(magnitude);
            out.expect_close("out", 2 * roundoff);  // an addition, and for int8 the scale's product
        }
}

// Samples that are generated together must not depend on each other.
TEST(StoredWeights, ARowHasTheSameBitsWhicheverRowsAreBesideIt) {
    const int64_t C = 173, OC = 211;
    for (const WeightType type : {WeightType::fp32, WeightType::bf16, WeightType::int8}) {
        Stored weight(type, uniform(OC * C), OC, C);
        Values inp = random_values(gemm::few_rows * C), all = nan_values(gemm::few_rows * OC);
        Cpu cpu(MatmulKind::fma);
        cpu.weights = type;
        matmul_forward(cpu, all.on(cpu), inp.on(cpu), weight.on(cpu), nullptr, gemm::few_rows, C, OC);
        EXPECT_FALSE(std::isnan(all.on(cpu)[0])) << "the weights are stored";
        for (int64_t rows = 1; rows < gemm::few_rows; ++rows)
            for (int64_t first = 0; first + rows <= gemm::few_rows; first += rows) {
                Values some = nan_values(rows * OC);
                matmul_forward(cpu, some.on(cpu), inp.on(cpu) + first * C, weight.on(cpu), nullptr, rows, C, OC);
                ASSERT_EQ(
                    std::memcmp(some.on(cpu), all.on(cpu) + first * OC, static_cast<size_t>(rows * OC) * sizeof(float)),
                    0)
                    << rows;
            }
    }
}
