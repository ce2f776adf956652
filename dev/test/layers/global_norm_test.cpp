// The gradients' norm and what clipping makes of it.
#include "layers/global_norm_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

constexpr int64_t run = 4096;

TEST(GlobalNorm, CpuAgreesWithReference) {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{63},
                            int64_t{64}, int64_t{65}, run - 1, run, run + 1, 2 * run + 7, int64_t{300007}}) {
        SCOPED_TRACE(n);
        Values x = random_values(n, 3);
        Cpu cpu;
        Reference<double> reference;
        const double value = global_norm_squared(cpu, x.on(cpu), n),
                     exact = global_norm_squared(reference, x.on(reference), n);
        // A lane adds run / (4 W) squares, each sum rounded once; 2 + log2(W) <= 6 more add the lanes.
        EXPECT_LE(std::abs(value - exact), (run / (4 * simd::W) + 6) * roundoff * exact);
    }
}

TEST(GlobalNorm, IsTheSumOfSquares) {
    Reference<double> dev;
    const double x[] = {3, -4, 12};
    EXPECT_EQ(global_norm_squared(dev, x, 3), 169.0);
}

TEST(GlobalNorm, BitsDoNotDependOnTheThreads) {
    expect_same_bits_for_any_thread_count([](Cpu& dev) {
        Values x = random_values(100003);
        const double value = global_norm_squared(dev, x.on(dev), x.size());
        const auto bits = std::bit_cast<std::array<float, 2>>(value);
        return std::vector<float>(bits.begin(), bits.end());
    });
}

TEST(GlobalNorm, NaNAnywhereShows) {
    Cpu cpu;
    Values x = random_values(2 * run + 37);
    for (const int64_t i : {int64_t{0}, run - 1, run, x.size() - 1}) {
        const float before = x.on(cpu)[i];
        x.on(cpu)[i] = NAN;
        EXPECT_TRUE(std::isnan(global_norm_squared(cpu, x.on(cpu), x.size()))) << i;
        x.on(cpu)[i] = before;
    }
    EXPECT_TRUE(std::isfinite(global_norm_squared(cpu, x.on(cpu), x.size())));
}

TEST(GlobalNorm, ClipScale) {
    EXPECT_EQ(clip_scale(0.5, 1), 1.0);         // below the bound: unchanged
    EXPECT_NEAR(clip_scale(4, 1), 0.25, 1e-7);  // above: to the bound
    EXPECT_EQ(clip_scale(4, 0), 1.0);           // 0: no clipping
    EXPECT_EQ(clip_scale(0, 1), 1.0);           // no division by 0
    EXPECT_TRUE(std::isnan(clip_scale(NAN, 1)));
    EXPECT_TRUE(std::isnan(clip_scale(INFINITY, 1)));  // not 0, which would hide it
}

}  // namespace
