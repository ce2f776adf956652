// Matmuls by bf16 instructions, with operands rounded to bf16 (--matmul bf16) or split into three bf16 that add up to
// them: compared with Reference on the same operands, for both kinds of instructions, any number of threads, and NaN.
#include <bit>
#include <cstdio>
#include <limits>

#include "device/bf16.h"
#include "layers/matmul_cpu.h"
#include "device/cpu/peak.h"

#include "dev/test/layers/layer_check.h"

#if !defined(__AVX512BF16__)
TEST(MatmulBf16, AgreesWithReference) { GTEST_SKIP() << "this CPU has no AVX512-BF16"; }
#else
namespace {

// Products of two bf16 are exact in fp32 and summed as in layers/matmul_test.cpp, but in the instruction's order. The
// part that a split leaves out is less than a quarter of a rounding error of each product.
constexpr double sum_error = 8 * roundoff;

// Operands that are not rounded: large and small values with all 24 bits.
Values operands(MatmulKind matmul_kind, int64_t n) {
    std::vector<double> values = uniform(n);
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = matmul_kind == MatmulKind::bf16 ? static_cast<float>(bf16(values[i]))
                                                    : static_cast<float>(values[i] * (i % 5 ? 1 : 1e6));
    return Values(values);
}

struct Tensors {
    Tensors(MatmulKind matmul_kind, int64_t N, int64_t C, int64_t OC)
        : inp(operands(matmul_kind, N * C)),
          weight(operands(matmul_kind, OC * C)),
          dout(operands(matmul_kind, N * OC)),
          bias(random_values(OC)),
          out(nan_values(N * OC)),
          dinp(nan_values(N * C)),
          dweight(random_values(OC * C)),
          dbias(random_values(OC)) {}
    Values inp, weight, dout, bias, out, dinp, dweight, dbias;
};

struct Shape {
    int64_t N, C, OC;
};
// Sizes within a block of 32 x 32 and a step of 32, at their edges, and larger than a block of k (512), of rows and of
// columns (256 and 128 with three planes, 1024 and 384 with one).
const Shape shapes[] = {{1, 1, 1},     {2, 3, 5},    {31, 33, 32},    {32, 32, 32},    {33, 31, 47},
                        {64, 96, 128}, {17, 16, 15}, {70, 100, 9},    {40, 1100, 65},  {1100, 40, 50},
                        {50, 60, 900}, {3, 2100, 5}, {270, 530, 420}, {1060, 260, 400}};

void run(auto& dev, Tensors& t, const Shape& s) {
    matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), s.N, s.C, s.OC);
    matmul_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev), t.inp.on(dev),
                    t.weight.on(dev), s.N, s.C, s.OC);
}

class MatmulBf16 : public ::testing::TestWithParam<MatmulKind> {
    void SetUp() override {
        if (GetParam() == MatmulKind::split && !amx::permitted()) GTEST_SKIP() << "this CPU has no AMX";
    }
};
INSTANTIATE_TEST_SUITE_P(MatmulKind, MatmulBf16, ::testing::Values(MatmulKind::bf16, MatmulKind::split),
                         [](const auto& of) { return of.param == MatmulKind::bf16 ? "rounded" : "split"; });

TEST_P(MatmulBf16, AgreesWithReference) {
    std::printf("with %s\n", amx::permitted() ? "AMX" : "AVX512-BF16");
    for (const Shape& s : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
        Tensors t(GetParam(), s.N, s.C, s.OC);
        Cpu cpu(GetParam());
        Reference<double> reference;
        Magnitude magnitude;
        run(cpu, t, s), run(reference, t, s), run(magnitude, t, s);
        t.out.expect_close("out", sum_error);
        t.dinp.expect_close("dinp", sum_error);
        t.dweight.expect_close("dweight", sum_error);
        t.dbias.expect_close("dbias", sum_error);
    }
}

TEST(MatmulOfRounded, OperandsAreRoundedAndSumsAreNot) {
    Cpu cpu(MatmulKind::bf16);
    const float inp[] = {1 + 0x1p-9f, 1, 1}, weight[] = {1, 0x1p-12f, 0x1p-20f};
    float out = NAN;
    matmul_forward(cpu, &out, inp, weight, nullptr, 1, 3, 1);
    EXPECT_EQ(out, 1 + 0x1p-12f + 0x1p-20f);
}

// The loop that measures the peak multiplies, and is not computed ahead by the compiler, which seemed 5 times as fast.
// bf16 pairs have twice the products of FMAs, AMX has 16 times; other work may slow either loop.
TEST(MatmulOfRounded, ThePeakIsThatOfItsInstructions) {
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "without optimization and with the sanitizers the FMAs are slow, and tile products are not";
#endif
    const double ratio = measure_peak(MatmulKind::bf16, quick) / measure_peak(MatmulKind::fma, quick);
    EXPECT_LT(ratio, amx::permitted() ? 40 : 5);
}

// All 24 bits of each operand matter, so the small parts of products matter.
TEST(MatmulOfSplit, IsAsExactAsFp32) {
    if (!amx::permitted()) GTEST_SKIP() << "this CPU has no AMX";
    Cpu cpu(MatmulKind::split);
    const float x = 1 + 0x1p-23f, inp[] = {x, 1, 0x1.fffffep-100f}, weight[] = {1, -x + 1, 0};
    float out = NAN;
    matmul_forward(cpu, &out, inp, weight, nullptr, 1, 3, 1);
    EXPECT_EQ(out, 1);
    const float large[] = {0x1.fep127f}, small[] = {0x1.fffffep-90f};
    matmul_forward(cpu, &out, large, small, nullptr, 1, 1, 1);
    EXPECT_NEAR(out / (0x1.fep127 * 0x1.fffffep-90), 1, 2 * roundoff);
}

// NaN, infinity, and numbers that round to infinity in bf16 never give finite results.
TEST(MatmulOfSplit, WhatIsNotFiniteShows) {
    if (!amx::permitted()) GTEST_SKIP() << "this CPU has no AMX";
    Cpu cpu(MatmulKind::split);
    for (const float x : {NAN, std::bit_cast<float>(0x7fffffff), std::bit_cast<float>(0xffffffff), INFINITY, -INFINITY,
                          std::numeric_limits<float>::max()}) {
        float out = 0;
        const float one = 1;
        matmul_forward(cpu, &out, &x, &one, nullptr, 1, 1, 1);
        EXPECT_FALSE(std::isfinite(out)) << x;
        out = 0;
        matmul_forward(cpu, &out, &one, &x, nullptr, 1, 1, 1);
        EXPECT_FALSE(std::isfinite(out)) << x;
    }
}

float low_half(uint32_t word) { return std::bit_cast<float>(word << 16); }
float high_half(uint32_t word) { return std::bit_cast<float>(word & 0xffff0000u); }

// Packed operands for AMX, on any CPU that can pack them: the place of every value, and that its parts add up to it.
template <gemm::Order order, bool across>
void expect_packed() {
    constexpr int64_t n = 40, K = 50, steps = 2, words = 2 * 3 * steps * 2 * amx::words_of_tile;
    Values x = operands(MatmulKind::split, n * K);
    Cpu cpu;
    const float* const data = x.on(cpu);
    const bool k_last = order == gemm::Order::k_last;
    const auto at = [&](int64_t i, int64_t k) { return i < n && k < K ? data[k_last ? i * K + k : k * n + i] : 0.0f; };
    std::vector<uint32_t> packed(words, 0x7fc07fc0);
    amx::Packing<order, across, 3>(packed.data(), data, k_last ? K : n, n, K, nullptr).pack_all();
    for (int64_t i = 0; i < 48; ++i)
        for (int64_t k = 0; k < 64; ++k) {
            const int64_t tile = (i / 32 * steps + k / 32) * 3 * 2 + i % 32 / 16, m = i % 16, p = k % 32 / 2;
            double sum = 0;
            for (int64_t plane = 2; plane >= 0; --plane) {
                const uint32_t word = packed[static_cast<size_t>((tile + 2 * plane) * amx::words_of_tile +
                                                                 (across ? p * 16 + m : m * 16 + p))];
                sum += static_cast<double>(k % 2 == 0 ? low_half(word) : high_half(word));
            }
            ASSERT_EQ(sum, static_cast<double>(at(i, k))) << "row " << i << ", k " << k;
        }
}
TEST(AmxPacking, PartsStandInTheirPlacesAndAddUp) {
    using enum gemm::Order;
    expect_packed<k_last, false>(), expect_packed<k_last, true>();
    expect_packed<k_first, false>(), expect_packed<k_first, true>();
}

// NaN, infinity, and numbers that round to infinity in bf16 never become finite parts.
TEST(AmxPacking, WhatIsNotFiniteShows) {
    for (const float x : {NAN, std::bit_cast<float>(0x7fffffff), std::bit_cast<float>(0xffffffff), INFINITY, -INFINITY,
                          std::numeric_limits<float>::max()}) {
        simd::vfloat parts[3];
        amx::split(simd::set1(x), simd::set1(1.0f), parts);
        float sum = 0;
        for (const simd::vfloat part : parts) sum += low_half(std::bit_cast<uint32_t>(part[0]));
        EXPECT_FALSE(std::isfinite(sum)) << x;
    }
}

// The vector kernel, which --matmul bf16 does not use on a CPU with AMX.
TEST(MatmulBf16Kernels, PairsAgreeWithReference) {
    for (const Shape& s : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
        using enum gemm::Order;
        Tensors t(MatmulKind::bf16, s.N, s.C, s.OC);
        Cpu cpu(MatmulKind::bf16);
        Reference<double> reference;
        Magnitude magnitude;
        cpu.reserve(gemm::scratch_floats());
        gemm::block<gemm::Bf16Pairs, k_first, k_first>(cpu.scratch(gemm::scratch_floats()), {0, s.OC}, {0, s.C}, s.N,
                                                       t.dout.on(cpu), s.OC, t.inp.on(cpu), s.C, t.dweight.on(cpu), s.C,
                                                       gemm::Store::add, {}, t.dbias.on(cpu));
        run(reference, t, s), run(magnitude, t, s);
        t.dweight.expect_close("dweight", sum_error);
        t.dbias.expect_close("dbias", sum_error);
    }
}

// An A that is stored in pairs of bf16 (M rows of K or K rows of M values, up to an even number) gives the same bits as
// the same values in fp32. After a k_last row's pairs nothing may be read.
template <gemm::Order A>
void expect_bits_of_stored_pairs(int64_t M, int64_t N, int64_t K) {
    SCOPED_TRACE(testing::PrintToString(std::vector{M, N, K}));
    const int64_t rows = A == gemm::Order::k_last ? M : K, values = A == gemm::Order::k_last ? K : M;
    const int64_t words = (values + 1) / 2, ld = words + 3;
    Values a = operands(MatmulKind::bf16, rows * values), b = operands(MatmulKind::bf16, K * N);
    Cpu cpu(MatmulKind::bf16);
    std::vector<float> pairs(static_cast<size_t>(rows * ld), NAN);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t w = 0; w < words; ++w) {
            const auto half = [&](int64_t v) -> uint32_t {
                return v < values ? bf16(a.on(cpu)[i * values + v]).bits : uint16_t{0};
            };
            pairs[static_cast<size_t>(i * ld + w)] = std::bit_cast<float>(half(2 * w) | half(2 * w + 1) << 16);
        }
    Values c = nan_values(M * N), same = nan_values(M * N);
    const int64_t floats = gemm::scratch_floats();
    cpu.reserve(floats);
    gemm::block<gemm::Bf16Pairs, A, gemm::Order::k_first>(cpu.scratch(floats), {0, M}, {0, N}, K, a.on(cpu), values,
                                                          b.on(cpu), N, c.on(cpu), N, gemm::Store::set, {}, nullptr);
    gemm::block<gemm::Bf16Pairs, A, gemm::Order::k_first, gemm::Bf16Pairs>(cpu.scratch(floats), {0, M}, {0, N}, K,
                                                                           pairs.data(), ld, b.on(cpu), N, same.on(cpu),
                                                                           N, gemm::Store::set, {}, nullptr);
    EXPECT_EQ(std::memcmp(c.on(cpu), same.on(cpu), static_cast<size_t>(M * N) * sizeof(float)), 0);
}
TEST(MatmulBf16Kernels, StoredPairsGiveTheSameBits) {
    for (const Shape& s : shapes) {
        expect_bits_of_stored_pairs<gemm::Order::k_last>(s.N, s.OC, s.C);
        expect_bits_of_stored_pairs<gemm::Order::k_first>(s.OC, s.C, s.N);
    }
}

TEST_P(MatmulBf16, BitsDoNotDependOnTheThreads) {
    for (const Shape& s : {Shape{1, 1, 1}, Shape{37, 65, 100}, Shape{261, 1270, 430}})
        expect_same_bits_for_any_thread_count([&](Cpu& dev) {
            dev.matmul_kind = GetParam();
            std::vector<float> all;
            Tensors t(GetParam(), s.N, s.C, s.OC);
            run(dev, t, s);
            for (const Values* v : {&t.out, &t.dinp, &t.dweight, &t.dbias}) append(all, *v);
            return all;
        });
}

TEST_P(MatmulBf16, NaNStaysInItsRowAndColumn) {
    const Shape s{37, 41, 43};
    Cpu cpu(GetParam());
    Tensors t(GetParam(), s.N, s.C, s.OC);
    t.inp.on(cpu)[5 * s.C + 3] = NAN;
    t.weight.on(cpu)[40 * s.C + 40] = NAN;
    t.dout.on(cpu)[36 * s.OC + 42] = NAN;
    run(cpu, t, s);
    expect_nan_only_where("out", t.out, [&](int64_t i) { return i / s.OC == 5 || i % s.OC == 40; });
    expect_nan_only_where("dinp", t.dinp, [&](int64_t i) { return i / s.C == 36 || i % s.C == 40; });
    expect_nan_only_where("dweight", t.dweight, [&](int64_t i) { return i / s.C == 42 || i % s.C == 3; });
}

}  // namespace
#endif
