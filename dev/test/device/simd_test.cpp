// The vector operations that all Cpu layers use, at the width that this program is built for.
#include "device/cpu/simd.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace {

using simd::vfloat;
using simd::W;

constexpr float inf = std::numeric_limits<float>::infinity(), nan32 = std::numeric_limits<float>::quiet_NaN();

vfloat lanes(float start, float step = 1) {
    vfloat v{};
    for (int i = 0; i < W; ++i) v[i] = start + step * static_cast<float>(i);
    return v;
}

// |value - exact| in units of the last place of a float as large as exact, denormals included.
double ulps(float value, double exact) {
    const int exponent = std::max(std::ilogb(exact), -126);
    return std::abs(static_cast<double>(value) - exact) / std::ldexp(1.0, exponent - 23);
}

using Function = vfloat (*)(vfloat);

double worst(Function function, double (*exact)(double), const std::vector<float>& inputs) {
    double worst = 0;
    for (size_t i = 0; i + W <= inputs.size(); i += W) {
        const vfloat y = function(simd::load(inputs.data() + i));
        for (int j = 0; j < W; ++j) {
            const double error = ulps(y[j], exact(static_cast<double>(inputs[i + static_cast<size_t>(j)])));
            if (!(error <= worst)) worst = error;
        }
    }
    return worst;
}
// Where exp2 and exp2_of_bounded give 0 and infinity.
#if defined(__AVX512DQ__)
constexpr float zero_below = -150.0f, infinite_from = 128.0f;
#else
constexpr float zero_below = -126.5f, infinite_from = 127.5f;
#endif
double worst_exp2(const std::vector<float>& inputs) { return worst(simd::exp2, std::exp2, inputs); }

TEST(Simd, Exp2IsWithinItsErrorOverAllExponents) {
    std::vector<float> inputs;
    for (uint32_t bits = 0; bits < 0x7f800000; bits += 1009)
        for (const uint32_t sign : {0u, 0x80000000u}) {
            const float x = std::bit_cast<float>(bits | sign);
            if (x > zero_below && x < infinite_from) inputs.push_back(x);
        }
    ASSERT_GT(inputs.size(), 2'000'000u);
    EXPECT_LE(worst_exp2(inputs), 1.25);
}

TEST(Simd, Exp2IsWithinItsErrorWhereItsValuesAre) {
    std::vector<float> inputs;
    for (double x = zero_below + 0.001; x < infinite_from - 0.001; x += 1.0 / 9973)
        inputs.push_back(static_cast<float>(x));
    EXPECT_LE(worst_exp2(inputs), 1.25);
    EXPECT_LE(worst(simd::exp2_of_bounded, std::exp2, inputs), 1.25);
}

TEST(Simd, Exp2AtItsEnds) {
    const auto at = [](float x) { return simd::exp2(simd::set1(x))[W - 1]; };
    for (int n = -149; n < 128; ++n) {
        const float x = static_cast<float>(n);
        EXPECT_EQ(at(x), x > zero_below ? std::ldexp(1.0f, n) : 0.0f) << n;
    }
    EXPECT_EQ(at(-0.0f), 1.0f);
    for (const float x :
         {zero_below - 0.01f, -151.0f, -152.0f, -1e4f, -1e30f, std::numeric_limits<float>::lowest(), -inf})
        EXPECT_EQ(std::bit_cast<uint32_t>(at(x)), 0u) << x;
    for (const float x : {infinite_from + 0.01f, 129.0f, 1e4f, 1e30f, inf}) EXPECT_EQ(at(x), inf) << x;
    EXPECT_TRUE(std::isnan(at(nan32)));
}

TEST(Simd, Exp2OfBoundedAtItsEnds) {
    const auto at = [](float x) { return simd::exp2_of_bounded(simd::set1(x))[W - 1]; };
    for (const float x : {-126.6f, -127.0f, -127.49f}) {
        EXPECT_LT(at(x), std::numeric_limits<float>::min()) << x;
        EXPECT_GE(at(x), 0.0f) << x;
    }
    for (const float x : {128.01f, 128.49f}) EXPECT_EQ(at(x), inf) << x;
    EXPECT_TRUE(std::isnan(at(nan32)));
}

TEST(Simd, ExpIsWithinItsErrorOverAllExponents) {
    constexpr float ln2 = std::numbers::ln2_v<float>, first = zero_below * ln2 + 0.001f,
                    last = infinite_from * ln2 - 0.001f;
    std::vector<float> inputs;
    for (uint32_t bits = 0; bits < 0x7f800000; bits += 1009)  // every exponent, thousands of mantissas each
        for (const uint32_t sign : {0u, 0x80000000u}) {
            const float x = std::bit_cast<float>(bits | sign);
            if (x > first && x < last) inputs.push_back(x);
        }
    for (double x = first; x < last; x += 1.0 / 9973) inputs.push_back(static_cast<float>(x));
    ASSERT_GT(inputs.size(), 2'000'000u);
    for (const float x : inputs) {
        const double exact = std::exp(static_cast<double>(x));
        ASSERT_LE(ulps(simd::exp(simd::set1(x))[0], exact), 1.25 + 1.25 * static_cast<double>(std::abs(x))) << x;
    }
}

TEST(Simd, ExpAtItsEnds) {
    const auto at = [](float x) {
        const vfloat y = simd::exp(simd::set1(x));
        for (int i = 1; i < W; ++i) EXPECT_EQ(std::bit_cast<int32_t>(y[i]), std::bit_cast<int32_t>(y[0]));
        return y[0];
    };
    EXPECT_EQ(at(0.0f), 1.0f);
    EXPECT_EQ(at(-0.0f), 1.0f);
    for (const float x : {0.7f * zero_below, -105.0f, -200.0f, -1e30f, -inf}) EXPECT_EQ(at(x), 0.0f) << x;
    for (const float x : {88.73f, 89.0f, 90.0f, 200.0f, 1e30f, inf}) EXPECT_EQ(at(x), inf) << x;
    EXPECT_TRUE(std::isfinite(at(0.999f * std::numbers::ln2_v<float> * infinite_from)));
    EXPECT_TRUE(std::isnan(at(nan32)));
    EXPECT_TRUE(std::isnan(at(-nan32)));
}

TEST(Simd, ExpKeepsLanesApart) {
    vfloat x = simd::set1(1.0f);
    x[W - 1] = nan32, x[0] = inf, x[1] = -inf;
    const vfloat y = simd::exp(x);
    EXPECT_EQ(y[0], inf);
    EXPECT_EQ(y[1], 0.0f);
    EXPECT_TRUE(std::isnan(y[W - 1]));
    EXPECT_LE(ulps(y[2], std::exp(1.0)), 2.5);
}

// A page between two inaccessible pages: an access outside of it ends the program.
class GuardedPage : public ::testing::Test {
protected:
    GuardedPage() {
        base = static_cast<char*>(mmap(nullptr, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (base == MAP_FAILED || mprotect(base + page, page, PROT_READ | PROT_WRITE)) throw std::bad_alloc();
        begin = reinterpret_cast<float*>(base + page);
        end = reinterpret_cast<float*>(base + 2 * page);
    }
    ~GuardedPage() override { munmap(base, 3 * page); }
    static constexpr size_t page = 4096;
    char* base;
    float *begin, *end;
};

TEST_F(GuardedPage, LoadReadsTheFirstLanesOnly) {
    for (float* p = begin; p < end; ++p) *p = static_cast<float>(p - begin + 1);
    for (int n = 0; n <= 2 * W; ++n)
        for (const float* p : {static_cast<const float*>(begin), static_cast<const float*>(end - n)}) {
            const vfloat v = simd::load_n(p, n);
            for (int i = 0; i < W; ++i) EXPECT_EQ(v[i], i < n ? p[i] : 0.0f) << n;
        }
}

TEST_F(GuardedPage, StoreWritesTheFirstLanesOnly) {
    for (int n = 0; n <= 2 * W; ++n)
        for (float* p : {begin, end - n}) {
            std::fill(begin, end, -7.0f);
            simd::store_n(p, lanes(1), n);
            for (float* at = begin; at < end; ++at) {
                const bool written = at >= p && at < p + std::min(n, W);
                ASSERT_EQ(*at, written ? static_cast<float>(at - p + 1) : -7.0f) << n;
            }
        }
}

TEST_F(GuardedPage, MapTakesEachElementOnce) {
    for (int n = 0; n <= 4 * W + 1; ++n) {
        float* const p = end - n;
        for (int i = 0; i < n; ++i) p[i] = static_cast<float>(i);
        int64_t calls = 0;
        simd::map(p, n, [&](vfloat v, int64_t i, int64_t left) {
            EXPECT_EQ(i, calls++ * W);
            EXPECT_EQ(left, std::min<int64_t>(W, n - i));
            return v * 2.0f + static_cast<float>(i);
        });
        EXPECT_EQ(calls, (n + W - 1) / W);
        for (int i = 0; i < n; ++i) EXPECT_EQ(p[i], static_cast<float>(2 * i + i / W * W));
    }
}

TEST(Simd, FirstReplacesTheLanesBehind) {
    for (int n = 0; n <= 2 * W; ++n) {
        vfloat v = lanes(1);
        for (int i = n; i < W; ++i) v[i] = nan32;  // the memory after a row may contain anything
        const vfloat zeros = simd::first(v, n), fives = simd::first(v, n, 5);
        for (int i = 0; i < W; ++i) {
            EXPECT_EQ(zeros[i], i < n ? static_cast<float>(i + 1) : 0.0f) << n;
            EXPECT_EQ(fives[i], i < n ? static_cast<float>(i + 1) : 5.0f) << n;
        }
    }
}

TEST(Simd, TransposeMovesEveryElementAndNothingElse) {
    for (const int extra : {0, 1, 3, 17})
        for (const int rows : {0, 1, W - 1, W, W + 5}) {
            const int ld_in = W + extra, ld_out = W + 2 * extra;
            std::vector<float> in(static_cast<size_t>(W * ld_in)), out(static_cast<size_t>(W * ld_out), -1.0f);
            for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
            simd::transpose(out.data(), ld_out, rows, [&](int64_t i) { return simd::load(in.data() + i * ld_in); });
            for (int j = 0; j < W; ++j)
                for (int i = 0; i < ld_out; ++i)
                    ASSERT_EQ(out[static_cast<size_t>(j * ld_out + i)],
                              i < W && j < rows ? static_cast<float>(i * ld_in + j) : -1.0f)
                        << "row " << j << " of " << rows << ", column " << i;
        }
}

TEST(Simd, SumAddsHalvesOntoHalves) {
    float x[W];
    for (int i = 0; i < W; ++i) x[i] = std::ldexp(1.0f + 0.1f * static_cast<float>(i), (i * 7) % 23);
    const float result = simd::sum(simd::load(x));
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) x[i] = x[i] + x[i + half];
    EXPECT_EQ(result, x[0]);
    for (int i = 0; i < W; ++i) {
        vfloat v{};
        v[i] = nan32;
        EXPECT_TRUE(std::isnan(simd::sum(v))) << i;
    }
}

template <int N>
void expect_sums() {
    vfloat rows[N];
    float expected[N], found[N + W];
    for (int r = 0; r < N; ++r) {
        for (int i = 0; i < W; ++i)
            rows[r][i] = std::ldexp(1.0f + 0.1f * static_cast<float>(i + r), (i * 7 + r * 5) % 23);
        expected[r] = simd::sum(rows[r]);
    }
    simd::store_sums<N>(found, rows);
    for (int r = 0; r < N; ++r) EXPECT_EQ(found[r], expected[r]) << "row " << r << " of " << N;
}

TEST(Simd, SumsOfSeveralAreTheSameBits) {
    [&]<int... N>(std::integer_sequence<int, N...>) { (expect_sums<N + 1>(), ...); }
    (std::make_integer_sequence<int, 2 * W + 3>());
}

TEST(Simd, MaxFindsTheLargestInAnyLane) {
    for (int i = 0; i < W; ++i) {
        vfloat v = lanes(-100, -1);
        v[i] = -2;
        EXPECT_EQ(simd::max(v), -2.0f) << i;
        v[i] = inf;
        EXPECT_EQ(simd::max(v), inf) << i;
    }
    EXPECT_EQ(simd::max(simd::set1(-inf)), -inf);
}

TEST(Simd, BoundsKeepNaN) {
    EXPECT_TRUE(std::isnan(simd::max(simd::set1(1.0f), simd::set1(nan32))[0]));
    EXPECT_TRUE(std::isnan(simd::min(simd::set1(1.0f), simd::set1(nan32))[0]));
    EXPECT_EQ(simd::max(simd::set1(1.0f), simd::set1(2.0f))[0], 2.0f);
    EXPECT_EQ(simd::min(simd::set1(1.0f), simd::set1(2.0f))[0], 1.0f);
}

TEST(Simd, SqrtIsCorrectlyRounded) {
    for (uint32_t bits = 0; bits < 0x7f800000; bits += 99991) {
        const float x = std::bit_cast<float>(bits);
        ASSERT_EQ(simd::sqrt(simd::set1(x))[W - 1], std::sqrt(x));
    }
    EXPECT_TRUE(std::isnan(simd::sqrt(simd::set1(-1.0f))[0]));
    EXPECT_EQ(simd::sqrt(simd::set1(inf))[0], inf);
}

TEST(Simd, SmallOnes) {
    const vfloat minus_zero = simd::set1(-0.0f);
    EXPECT_TRUE(std::signbit(minus_zero[0]) && std::signbit(minus_zero[W - 1]));
    EXPECT_EQ(simd::set1(-3)[W - 1], -3);
    const vfloat product = simd::fma(lanes(1), lanes(2), lanes(3));
    for (int i = 0; i < W; ++i) EXPECT_EQ(product[i], static_cast<float>((1 + i) * (2 + i) + 3 + i));
    alignas(64) float streamed[W];
    simd::stream(streamed, lanes(4));
    for (int i = 0; i < W; ++i) EXPECT_EQ(streamed[i], static_cast<float>(4 + i));
}

// The compiler must not fuse multiplications and additions by itself, because bits would depend on it: only fma() does.
TEST(Simd, OnlyFmaIsFused) {
    const float x = 1 + 0x1p-12f;  // x² = 1 + 2^-11 + 2^-24 is rounded to 1 + 2^-11
    alignas(64) volatile float values[W];
    for (volatile float& value : values) value = x;
    const vfloat v = simd::load(const_cast<const float*>(values));
    EXPECT_EQ((v * v - (1 + 0x1p-11f))[0], 0);
    const float s = values[0];
    EXPECT_EQ(s * s - (1 + 0x1p-11f), 0);
#if defined(__FMA__) || defined(__ARM_NEON)
    EXPECT_EQ(simd::fma(v, v, simd::set1(-(1 + 0x1p-11f)))[0], 0x1p-24f);
#endif
}

}  // namespace
