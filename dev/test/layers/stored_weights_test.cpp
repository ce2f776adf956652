// Weights in bf16 and int8: what is stored, and that the layers compute with exactly these values.
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
                sum.expect_close("sum", error);
                out.expect_close("out", error);
                pre.expect_close("pre", error);
                gelu.magnitude = pre.magnitude;
                gelu.expect_close("gelu", 1.13 * error + 8 * roundoff);
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
