// Muon and NorMuon: Cpu against Reference over shapes, its symmetric products, the same bits for any number of threads,
// NaN.
#include "layers/muon_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

struct Matrix {
    Matrix(int64_t r, int64_t c) : Matrix(r, c, uniform(r * c), uniform(r * c)) {}
    Matrix(int64_t r, int64_t c, const std::vector<double>& m, const std::vector<double>& g)
        : rows(r), cols(c), param(uniform(r * c)), momentum(m), grad(g), squares(neuron_squares(r, c)) {}
    template <class Device>
    auto on(Device& dev) {
        return MuonMatrix<typename Device::scalar>{
            param.on(dev), momentum.on(dev), grad.on(dev), rows, cols, normuon ? squares.on(dev) : nullptr};
    }
    int64_t rows, cols;
    Values param, momentum, grad, squares;
    bool normuon = false;
};

const UpdateParams settings{.weight_decay = 0.3, .muon_lr = 0.05, .momentum = 0.9};

template <class Device>
void update(Device& dev, const std::vector<MuonMatrix<typename Device::scalar>>& matrices, double grad_scale) {
    const StepStatus status{.grad_scale = grad_scale, .apply = 1};
    muon_update(dev, matrices, &settings, &status);
}

void expect_close(Matrix& w) {
    for (double& m : w.param.magnitude)
        m = 1 + settings.muon_lr * 3.5;  // the parameter, and a step of an orthogonal direction
    for (double& m : w.momentum.magnitude) m = 1;
    // Each of five steps multiplies an error in a small singular value by up to 3.4: 3.4^5 = 480 roundings of the step.
    w.param.expect_close("param", 32 * roundoff);
    w.momentum.expect_close("momentum", 3 * roundoff);
    // The mean of an orthogonal matrix's squares, with twice the relative error of its values.
    for (double& square : w.squares.magnitude) square = 3.5 / static_cast<double>(std::max(w.rows, w.cols));
    w.squares.expect_close("squares", 64 * roundoff);
}

void expect_as_reference(Matrix& w, bool normuon = false) {
    w.normuon = normuon;
    Cpu cpu = cpu_with_stale_scratch();
    Reference<double> reference;
    update(cpu, {w.on(cpu)}, 0.25);
    update(reference, {w.on(reference)}, 0.25);
    expect_close(w);
}

TEST(MuonLayer, CpuAgreesWithReference) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                     {1, 7},
                                     {9, 1},
                                     {5, 5},
                                     {16, 16},
                                     {47, 49},
                                     {49, 47},
                                     {96, 33},
                                     {31, 160}}) {
        for (const bool normuon : {false, true}) {
            SCOPED_TRACE(testing::PrintToString(std::tuple{rows, cols, normuon}));
            Matrix w(rows, cols);
            expect_as_reference(w, normuon);
        }
    }
}

// Threads take matrices in an order of their own, the largest first.
TEST(MuonLayer, EachOfSeveralMatricesIsUpdatedOnce) {
    std::vector<std::unique_ptr<Matrix>> matrices;
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{7, 3}, {30, 50}, {48, 48}, {64, 32}, {30, 50}})
        matrices.push_back(std::make_unique<Matrix>(rows, cols));
    Cpu cpu = cpu_with_stale_scratch();
    std::vector<MuonMatrix<float>> updates;
    for (const auto& w : matrices) updates.push_back(w->on(cpu));
    update(cpu, updates, 0.25);
    for (const auto& w : matrices) {
        SCOPED_TRACE(testing::PrintToString(std::pair{w->rows, w->cols}));
        Reference<double> reference;
        update(reference, {w->on(reference)}, 0.25);
        expect_close(*w);
    }
}

// Four directions of sizes 1 to 0.01 and the others near 0, as gradients are. The squares of small singular values
// drown in rounding errors: were the Gram matrix not taken anew in between, param would be off by 2 to 5 times what is
// allowed.
TEST(MuonLayer, CpuAgreesWithReferenceOnMatricesOfLowRank) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{16, 16}, {47, 49}, {96, 33}, {31, 160}}) {
        SCOPED_TRACE(testing::PrintToString(std::pair{rows, cols}));
        std::vector<double> sum = uniform(rows * cols, 1e-4);
        for (const double size : {1.0, 0.3, 0.1, 0.01}) {
            const std::vector<double> left = uniform(rows, size), right = uniform(cols);
            for (int64_t i = 0; i < rows * cols; ++i)
                sum[static_cast<size_t>(i)] +=
                    left[static_cast<size_t>(i / cols)] * right[static_cast<size_t>(i % cols)];
        }
        Matrix w(rows, cols, sum, sum);
        expect_as_reference(w);
    }
}

// Over the sizes of tiles, of vectors, of panels and of blocks, with few rows (up to 256) and with more.
template <gemm::Order A, gemm::Order B>
void expect_lower_part_of_the_whole(MatmulKind matmul_kind, int64_t n, int64_t K) {
    SCOPED_TRACE(testing::PrintToString(std::tuple{static_cast<int>(matmul_kind), n, K}));
    const int64_t lda = A == gemm::Order::k_last ? K : n, ldb = B == gemm::Order::k_last ? K : n;
    Values a = random_values(n * K), b = random_values(n * K);
    Cpu cpu;
    const auto elements = static_cast<size_t>(n * n);
    std::vector<float> scratch(static_cast<size_t>(gemm::scratch_floats(matmul_kind)), NAN), whole(elements, NAN),
        lower(elements, NAN);
    gemm::block_in<A, B>(matmul_kind, scratch.data(), {0, n}, {0, n}, K, a.on(cpu), lda, b.on(cpu), ldb, whole.data(),
                         n, gemm::Store::set, {}, nullptr);
    gemm::lower_part_in<A, B>(matmul_kind, scratch.data(), n, K, a.on(cpu), lda, b.on(cpu), ldb, lower.data(), n);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t needed = std::min(n, (i / simd::W + 1) * simd::W), row = i * n;
        ASSERT_EQ(0, std::memcmp(whole.data() + row, lower.data() + row, static_cast<size_t>(needed) * sizeof(float)))
            << "row " << i;
    }
}

TEST(MuonLayer, TheLowerPartHasTheBitsOfTheWholeProduct) {
    using enum gemm::Order;
    std::vector<MatmulKind> kinds{MatmulKind::fma};
    if (gemm::has_bf16) kinds.push_back(MatmulKind::bf16);
    for (const MatmulKind matmul_kind : kinds)
        for (const auto& [n, K] : {std::pair<int64_t, int64_t>{1, 1},
                                   {7, 5},
                                   {16, 20},
                                   {17, 33},
                                   {48, 48},
                                   {53, 1000},
                                   {128, 128},
                                   {192, 400},
                                   {255, 64},
                                   {256, 800},
                                   {257, 31},
                                   {511, 900},
                                   {768, 40}}) {
            expect_lower_part_of_the_whole<k_last, k_last>(matmul_kind, n, K);
            expect_lower_part_of_the_whole<k_last, k_first>(matmul_kind, n, K);
            expect_lower_part_of_the_whole<k_first, k_first>(matmul_kind, n, K);
        }
}

TEST(MuonLayer, AZeroGradientOnlyDecays) {
    for (const bool normuon : {false, true}) {
        Cpu cpu;
        Matrix w(6, 40);
        w.normuon = normuon;
        std::fill_n(w.grad.on(cpu), w.grad.size(), 0.0f);
        std::fill_n(w.momentum.on(cpu), w.momentum.size(), 0.0f);
        std::fill_n(w.squares.on(cpu), w.squares.size(), 0.0f);
        update(cpu, {w.on(cpu)}, 1.0);
        for (int64_t i = 0; i < w.param.size(); ++i)
            EXPECT_NEAR(static_cast<double>(w.param.on(cpu)[i]), w.param[i] * (1 - 0.05 * 0.3), 1e-7);
    }
}

TEST(MuonLayer, SameBitsForAnyNumberOfThreads) {
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 3}) {
        omp_set_num_threads(threads);
        Cpu cpu;
        generator().seed(5);
        std::vector<std::unique_ptr<Matrix>> matrices;
        std::vector<MuonMatrix<float>> updates;
        std::vector<float> bits;
        for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{64, 32}, {30, 50}, {48, 48}, {32, 64}, {7, 3}})
            matrices.push_back(std::make_unique<Matrix>(rows, cols)), matrices.back()->normuon = rows != 48,
                                                                      updates.push_back(matrices.back()->on(cpu));
        update(cpu, updates, 0.5);
        for (const auto& w : matrices)
            for (Values* values : {&w->param, &w->squares})
                bits.insert(bits.end(), values->on(cpu), values->on(cpu) + values->size());
        results.push_back(bits);
    }
    omp_set_num_threads(omp_get_num_procs());
    EXPECT_EQ(0, std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)));
    EXPECT_EQ(0, std::memcmp(results[0].data(), results[2].data(), results[0].size() * sizeof(float)));
}

TEST(MuonLayer, NaNStaysInItsMatrixAndShows) {
    Cpu cpu;
    Matrix sick(8, 9), well(9, 8);
    sick.grad.on(cpu)[13] = NAN;
    sick.normuon = well.normuon = true;
    update(cpu, {sick.on(cpu), well.on(cpu)}, 1.0);
    EXPECT_TRUE(std::isnan(sick.param.on(cpu)[0]));
    for (int64_t i = 0; i < well.param.size(); ++i) EXPECT_TRUE(std::isfinite(well.param.on(cpu)[i]));
}

}  // namespace
