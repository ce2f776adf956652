// The generator against its authors' numbers, and what is drawn with it.
#include "device/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace {

std::vector<uint32_t> words(const Philox& drawn) { return {drawn.x, drawn.x + 4}; }

// The vectors that its authors publish with it (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
    const auto expect = [](Philox counter, uint64_t key, const std::vector<uint32_t>& answer) {
        EXPECT_EQ(words(philox(counter, key)), answer);
    };
    expect({{0, 0, 0, 0}}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    expect({{~0u, ~0u, ~0u, ~0u}}, ~uint64_t{0}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822,
           {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Random, KeyAndCounterAreAsDocumented) {
    const Random random{0x299f31d0a4093822, static_cast<Purpose>(0x7344), 0x13198a2e};
    EXPECT_EQ(words(random.bits(0x85a308d3243f6a88, 0x0370)),
              words(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822)));
}

// Another seed, purpose, step, index or attempt: other bits.
TEST(Random, EachStreamIsItsOwn) {
    std::set<std::vector<uint32_t>> all;
    size_t count = 0;
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32})
        for (const Purpose purpose : {Purpose::rounding, Purpose::parameters, Purpose::shard_order,
                                      Purpose::block_shift, Purpose::block_order, Purpose::sampling, Purpose::dropout})
            for (const int64_t step : {0, 1, 2})
                for (const uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32})
                    for (const uint32_t attempt : {0, 1}) {
                        all.insert(words(Random{seed, purpose, step}.bits(index, attempt)));
                        ++count;
                    }
    EXPECT_EQ(all.size(), count);
}

// Mean and variance of n draws, each within 5 deviations; the numbers are the same at every run.
TEST(Random, UniformAndNormal) {
    constexpr int n = 100'000;
    const Random random{1, Purpose::parameters};
    double uniform_sum = 0, uniform_squares = 0, normal_sum = 0, normal_squares = 0, normal_fourths = 0;
    for (uint64_t i = 0; i < n; ++i) {
        const double u = random.uniform(i), z = random.normal(i);
        ASSERT_TRUE(0 < u && u < 1) << i;
        uniform_sum += u - 0.5, uniform_squares += (u - 0.5) * (u - 0.5);
        normal_sum += z, normal_squares += z * z, normal_fourths += z * z * z * z;
    }
    EXPECT_NEAR(uniform_sum / n, 0, 5 * std::sqrt(1.0 / 12 / n));
    EXPECT_NEAR(uniform_squares / n, 1.0 / 12, 5 * std::sqrt(1.0 / 180 / n));
    EXPECT_NEAR(normal_sum / n, 0, 5 * std::sqrt(1.0 / n));
    EXPECT_NEAR(normal_squares / n, 1, 5 * std::sqrt(2.0 / n));
    EXPECT_NEAR(normal_fourths / n, 3, 5 * std::sqrt(96.0 / n));
}

// n = 3 · 2^62: a quarter of the numbers are drawn again. Without that, those below 2^62 would come twice as often.
TEST(Random, BelowHasNoBias) {
    constexpr int draws = 30'000;
    const Random random{1, Purpose::block_order};
    for (const uint64_t n : {uint64_t{3}, uint64_t{3} << 62}) {
        std::map<uint64_t, int> thirds;
        for (uint64_t i = 0; i < draws; ++i) {
            const uint64_t x = random.below(n, i);
            ASSERT_LT(x, n);
            ++thirds[x / (n / 3)];
        }
        for (const uint64_t third : {0, 1, 2})
            EXPECT_NEAR(thirds[third], draws / 3, 5 * std::sqrt(draws * 2.0 / 9)) << n << ": " << third;
    }
    EXPECT_EQ(random.below(1, 7), 0u);
}

// Each of the 24 orders of 4 as often as the others.
TEST(Random, ShuffledGivesEachOrderAlike) {
    constexpr int draws = 24'000;
    std::map<std::vector<uint32_t>, int> counts;
    std::vector<uint32_t> order;
    for (uint64_t i = 0; i < draws; ++i) {
        shuffled(order, 4, {1, Purpose::block_order}, i << 32);
        ++counts[order];
    }
    ASSERT_EQ(counts.size(), 24u);
    for (const auto& [each, count] : counts) {
        EXPECT_TRUE(std::is_permutation(each.begin(), each.end(), std::vector<uint32_t>{0, 1, 2, 3}.begin()));
        EXPECT_NEAR(count, draws / 24, 5 * std::sqrt(draws / 24.0));
    }
    shuffled(order, 0, {1, Purpose::block_order});
    EXPECT_TRUE(order.empty());
}

}  // namespace
