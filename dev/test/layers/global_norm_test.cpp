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

// Unused rows are 0, so that the bits are the same. They are not read: a NaN in them does not show, if no used row lies
// in the same run.
TEST(GlobalNorm, UnusedRowsAreNotRead) {
    Cpu cpu;
    constexpr int64_t n = 3 * run + 100;
    for (const int64_t C : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{100}, run, 2 * run - 1}) {
        SCOPED_TRACE(C);
        Values x = random_values(n);
        const int64_t rows = (n - 90) / C;
        std::vector<uint8_t> used(static_cast<size_t>(rows));
        const UsedRows embedding{.used = used.data(), .rows = rows, .columns = C};
        for (const int64_t first_used : {int64_t{0}, (run - 1) / C, run / C, rows - 1, rows}) {
            std::ranges::fill(used, uint8_t{0});
            for (int64_t v = first_used; v < std::min(rows, first_used + 3); ++v) used[static_cast<size_t>(v)] = 1;
            for (int64_t i = 0; i < n; ++i)
                x.on(cpu)[i] = i >= rows * C || used[static_cast<size_t>(i / C)] ? 0.01f * static_cast<float>(i) : 0;
            EXPECT_EQ(global_norm_squared(cpu, x.on(cpu), n, embedding), global_norm_squared(cpu, x.on(cpu), n));
            if (C > 64 || first_used != rows) continue;
            x.on(cpu)[run] = NAN;
            EXPECT_TRUE(std::isfinite(global_norm_squared(cpu, x.on(cpu), n, embedding)));
        }
    }
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
