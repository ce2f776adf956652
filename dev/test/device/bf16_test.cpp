// bf16: rounding of every kind of float to nearest even; vectors agree with scalars; only the first lanes are touched.
#include "device/bf16.h"

#include "dev/test/layers/layer_check.h"

namespace {

using namespace simd;

TEST(BF16, RoundsToNearestEvenAndKeepsNaN) {
    const auto bits = [](float x) { return bf16(x).bits; };
    EXPECT_EQ(bits(1.0f), 0x3F80);
    EXPECT_EQ(bits(1.0f + 0x1p-8f), 0x3F80);             // half way: to the even
    EXPECT_EQ(bits(1.0f + 0x3p-8f), 0x3F82);             // half way: to the even, up
    EXPECT_EQ(bits(1.0f + 0x1p-8f + 0x1p-20f), 0x3F81);  // a little more than half
    EXPECT_EQ(bits(3.4e38f), 0x7F80);                    // beyond the largest: infinity
    EXPECT_EQ(bits(-INFINITY), 0xFF80);
    EXPECT_EQ(bits(-0.0f), 0x8000);
    EXPECT_EQ(bits(0x1p-133f), 0x0001);                                 // the smallest denormal
    for (const uint32_t nan : {0x7F800001u, 0x7FFFFFFFu, 0xFFC00000u})  // adding to the first two would carry
        EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(nan)))));
    for (uint32_t b = 0; b < 0x10000; ++b) {  // every bf16 is itself again
        const float x = float_from_bf16(static_cast<uint16_t>(b));
        if (std::isnan(x)) continue;
        ASSERT_EQ(bits(x), b);
    }
}

TEST(BF16, VectorsConvertAsScalars) {
    for (uint32_t i = 0; i < (1u << 20); i += W) {
        float x[W];
        for (uint32_t k = 0; k < W; ++k) x[k] = std::bit_cast<float>((i + k) * 4093u + (i << 12));  // all exponents
        bf16 narrow[W];
        float wide[W];
        store(narrow, load(x));
        store(wide, load(narrow));
        for (int k = 0; k < W; ++k) {
            ASSERT_EQ(narrow[k].bits, bf16(x[k]).bits) << x[k];
            ASSERT_EQ(std::bit_cast<uint32_t>(wide[k]), uint32_t{narrow[k].bits} << 16);
        }
        const vfloat again = rounded<bf16>(load(x));
        ASSERT_EQ(std::memcmp(&again, wide, sizeof wide), 0);
    }
}

TEST(BF16, TheFirstLanesAndNoOthers) {
    for (int n = 0; n <= W + 3; ++n) {
        alignas(64) bf16 from[W + 4], to[W + 4], streamed[W];
        for (int i = 0; i < W + 4; ++i) from[i] = bf16(1.0f + static_cast<float>(i)), to[i] = bf16(-1.0f);
        const vfloat v = load_n(from, n);
        store_n(to, v + 0.0f, n);
        stream(streamed, v);
        for (int i = 0; i < W + 4; ++i) {
            const float expected = i < std::min(n, W) ? 1.0f + static_cast<float>(i) : 0;
            ASSERT_EQ(static_cast<float>(to[i]), i < std::min(n, W) ? expected : -1.0f);
            if (i >= W) continue;
            ASSERT_EQ(v[i], expected);
            ASSERT_EQ(static_cast<float>(streamed[i]), expected);
        }
    }
}

}  // namespace
