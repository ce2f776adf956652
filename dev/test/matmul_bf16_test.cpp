// Matrix products of factors rounded to bf16 (--matmul bf16): against Reference on the rounded factors, for both kinds
// of instructions, any number of threads, NaN.
#include <cstdio>

#include "layers/bf16.h"
#include "layers/matmul_cpu.h"

#include "layer_check.h"

#if !defined(__AVX512BF16__)
TEST(MatmulBf16, ProductsAgreeWithReference) { GTEST_SKIP() << "this CPU has no AVX512-BF16"; }
#else
namespace {

// Products of two bf16 are exact in fp32 and summed as in layer_matmul_test.cpp, in an order of the instruction's own.
constexpr double sum_error = 8 * roundoff;

Values rounded_values(int64_t n) {
    std::vector<double> values = uniform(n);
    for (double& x : values) x = static_cast<float>(bf16(x));
    return Values(values);
}

struct Tensors {
    Tensors(int64_t N, int64_t C, int64_t OC)
        : inp(rounded_values(N * C)),
          weight(rounded_values(OC * C)),
          dout(rounded_values(N * OC)),
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
// Within a block of 32 x 32 and a step of 32, at their edges, and more than a block of k (1024) and of columns (384).
const Shape shapes[] = {{1, 1, 1},    {2, 3, 5},    {31, 33, 32},   {32, 32, 32},   {33, 31, 47},  {64, 96, 128},
                        {17, 16, 15}, {70, 100, 9}, {40, 1100, 65}, {1100, 40, 50}, {50, 60, 900}, {3, 2100, 5}};

void run(auto& dev, Tensors& t, const Shape& s) {
    matmul_forward(dev, t.out.on(dev), t.inp.on(dev), t.weight.on(dev), t.bias.on(dev), s.N, s.C, s.OC);
    matmul_backward(dev, t.dinp.on(dev), t.dweight.on(dev), t.dbias.on(dev), t.dout.on(dev), t.inp.on(dev),
                    t.weight.on(dev), s.N, s.C, s.OC);
}

TEST(MatmulBf16, ProductsAgreeWithReference) {
    std::printf("with %s\n", gemm_bf16::instructions());
    for (const Shape& s : shapes) {
        SCOPED_TRACE(testing::PrintToString(std::vector{s.N, s.C, s.OC}));
        Tensors t(s.N, s.C, s.OC);
        Cpu cpu(true);
        Reference<double> reference;
        Magnitude magnitude;
        run(cpu, t, s), run(reference, t, s), run(magnitude, t, s);
        t.out.expect_close("out", sum_error);
        t.dinp.expect_close("dinp", sum_error);
        t.dweight.expect_close("dweight", sum_error);
        t.dbias.expect_close("dbias", sum_error);
    }
}

TEST(MatmulBf16, FactorsAreRoundedAndSumsAreNot) {
    Cpu cpu(true);
    const float inp[] = {1 + 0x1p-9f, 1, 1}, weight[] = {1, 0x1p-12f, 0x1p-20f};
    float out = NAN;
    matmul_forward(cpu, &out, inp, weight, nullptr, 1, 3, 1);
    EXPECT_EQ(out, 1 + 0x1p-12f + 0x1p-20f);
}

// Both kernels, whichever this machine uses.
TEST(MatmulBf16, Avx512AgreesWithAmx) {
#if defined(__AMX_BF16__)
    if (!gemm_bf16::amx_permitted()) GTEST_SKIP() << "this system does not permit AMX";
    constexpr int64_t steps = 3, words = 2 * steps * gemm_bf16::tile * gemm_bf16::tile, side = gemm_bf16::side;
    std::vector<uint32_t> a(words), b(words);
    for (auto* factor : {&a, &b})
        for (uint32_t& word : *factor) {
            const auto pair = uniform(2);
            word = bf16(pair[0]).bits | static_cast<uint32_t>(bf16(pair[1]).bits) << 16;
        }
    for (const bool accumulate : {false, true}) {
        std::vector<float> amx(side * side, 0.5f), avx512 = amx;
        gemm_bf16::configure_amx();
        gemm_bf16::multiply_amx(steps, a.data(), b.data(), amx.data(), side, accumulate);
        gemm_bf16::multiply_avx512(steps, a.data(), b.data(), avx512.data(), side, accumulate);
        for (size_t i = 0; i < amx.size(); ++i) EXPECT_NEAR(amx[i], avx512[i], 32 * steps * sum_error) << i;
    }
#else
    GTEST_SKIP() << "this CPU has no AMX";
#endif
}

TEST(MatmulBf16, BitsDoNotDependOnTheThreads) {
    for (const Shape& s : {Shape{1, 1, 1}, Shape{37, 65, 100}, Shape{261, 1270, 430}})
        expect_same_bits_for_any_thread_count([&](Cpu& dev) {
            dev.bf16_products = true;
            std::vector<float> all;
            Tensors t(s.N, s.C, s.OC);
            run(dev, t, s);
            for (const Values* v : {&t.out, &t.dinp, &t.dweight, &t.dbias}) append(all, *v);
            return all;
        });
}

TEST(MatmulBf16, NaNStaysInItsRowAndColumn) {
    const Shape s{37, 41, 43};
    Cpu cpu(true);
    Tensors t(s.N, s.C, s.OC);
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
