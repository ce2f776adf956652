// Dropout: its masks on vectors against single draws, how many values they keep and that no two are alike, and Cpu
// against Reference. dev/test/layers/attention_test.cpp has attention's.
#include "layers/dropout_cpu.h"

#include "dev/test/layers/layer_check.h"

namespace {

TEST(Dropout, MasksOnVectorsAreThoseOfSingleDraws) {
    const Random random{0x299f31d0a4093822, Purpose::dropout, 77};
    for (const uint64_t index : {uint64_t{0}, uint64_t{5}, uint64_t{0xfffffffd}, uint64_t{1} << 40 | 3})
        for (const uint32_t threshold : {1u, 6554u, 32768u, 40000u, 65535u})
            for (const uint32_t site : {0u, 3000u}) {
                uint64_t expected = 0;
                for (int i = 0; i < 64; ++i)
                    expected |=
                        uint64_t{random.bits(index + static_cast<uint64_t>(i / 8), site).bits16(i % 8) >= threshold}
                        << i;
                EXPECT_EQ(simd::AtLeast(random, site, threshold).bits(index), expected) << index << ", " << threshold;
            }
}

TEST(Dropout, BitsSelectLanes) {
    std::vector<float> x(simd::W);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) + 1;
    for (uint64_t bits = 0; bits < 1 << simd::W; bits += 1 + bits / 7) {
        const simd::vfloat kept = simd::where(bits | uint64_t{1} << 40, simd::load(x.data()));
        for (int i = 0; i < simd::W; ++i)
            ASSERT_EQ(kept[i], bits >> i & 1 ? x[static_cast<size_t>(i)] : 0) << bits << ", lane " << i;
    }
}

constexpr int64_t many = 1 << 16;

// Which of `many` values of one row are kept.
std::vector<bool> mask(const Dropout& dropout, int64_t row = 0) {
    std::vector<bool> kept;
    for (int64_t i = 0; i < many; ++i) kept.push_back(dropout.keeps(dropout.first_draw(row, 2, many), i));
    return kept;
}

// The number of values that are kept is binomial: six standard deviations are left once in 5e8 cases.
TEST(Dropout, KeepsTheRightShareOfValues) {
    const BatchPlace place{.seed = 1, .step = 1};
    for (const double p : {0.001, 0.1, 0.5, 0.9}) {
        const Dropout dropout{&place, Dropout::threshold_of(p)};
        const auto kept = static_cast<double>(std::ranges::count(mask(dropout), true));
        EXPECT_NEAR(kept, many * (1 - p), 6 * std::sqrt(many * p * (1 - p)));
        EXPECT_NEAR(dropout.scale() * (1 - p), 1, 1e-4) << "the expected value is the input's";
    }
    EXPECT_FALSE(Dropout{}.on());
    EXPECT_EQ(Dropout::threshold_of(0), 0u);
    EXPECT_EQ(Dropout::threshold_of(0.5), 32768u);
    EXPECT_EQ(Dropout::threshold_of(0.999999), 65535u) << "the scale stays finite";
}

// Another seed, step, sequence, row, layer or site: a mask that agrees with no other in more values than by chance.
TEST(Dropout, NoTwoMasksAreAlike) {
    const BatchPlace first{.seed = 1, .step = 1}, seed{.seed = 2, .step = 1}, step{.seed = 1, .step = 2},
        sequence{.seed = 1, .step = 1, .first_sequence = 1};
    const auto of = [](const BatchPlace& place) { return Dropout{&place, 32768}; };
    std::vector<std::vector<bool>> masks = {mask(of(first)), mask(of(seed)), mask(of(step)), mask(of(sequence)),
                                            mask(of(first), 1)};
    for (const int64_t layer : {0, 1})
        for (const DropoutSite site :
             {DropoutSite::attention, DropoutSite::attention_projection, DropoutSite::mlp_projection})
            masks.push_back(mask(of(first).at(layer, site)));
    for (size_t i = 0; i < masks.size(); ++i)
        for (size_t j = 0; j < i; ++j) {
            double same = 0;
            for (size_t k = 0; k < many; ++k) same += masks[i][k] == masks[j][k];
            EXPECT_NEAR(same, many / 2, 6 * std::sqrt(many / 4.0)) << i << " and " << j;
        }
    EXPECT_EQ(mask(of(sequence)), mask(of(first), 2))
        << "a sequence has two rows here: it does not depend on the batch";
}

TEST(Dropout, CpuAgreesWithReference) {
    const BatchPlace place{.seed = 3, .step = 5, .first_sequence = 9};
    Cpu cpu;
    Reference<double> reference;
    for (const int64_t C : {1, 7, 8, 17, 64, 100, 128, 199})
        for (const bool with_residual : {false, true}) {
            const int64_t B = 2, T = 3;
            const Dropout dropout = Dropout{&place, Dropout::threshold_of(0.3)}.at(1, DropoutSite::mlp_projection);
            Values out = nan_values(B * T * C), inp = random_values(B * T * C), residual = random_values(B * T * C);
            const auto run = [&](auto& dev) {
                apply_dropout(dev, out.on(dev), inp.on(dev), with_residual ? residual.on(dev) : nullptr, dropout, B, T,
                              C);
            };
            run(cpu), run(reference);
            // Rounding the scale, the product and the sum.
            for (int64_t i = 0; i < out.size(); ++i)
                out.magnitude[static_cast<size_t>(i)] = 4 * std::abs(inp[i]) + std::abs(out[i]);
            out.expect_close("out", roundoff);
            // In place.
            const std::vector<float> expected(out.cpu.get(), out.cpu.get() + out.size());
            apply_dropout(cpu, inp.on(cpu), inp.on(cpu), with_residual ? residual.on(cpu) : nullptr, dropout, B, T, C);
            EXPECT_EQ(std::memcmp(inp.cpu.get(), expected.data(), expected.size() * sizeof(float)), 0);
        }
}

TEST(Dropout, BitsDoNotDependOnTheThreads) {
    const BatchPlace place{.seed = 3, .step = 5};
    expect_same_bits_for_any_thread_count([&](Cpu& dev) {
        Values x = random_values(5 * 7 * 33);
        apply_dropout(dev, x.on(dev), x.on(dev), static_cast<float*>(nullptr), {&place, 20000}, 5, 7, 33);
        return std::vector<float>(x.cpu.get(), x.cpu.get() + x.size());
    });
}

}  // namespace
