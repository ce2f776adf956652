// The parts of training that are not layers: the learning-rate schedule, batches, the initial parameters.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <set>

#include "io/data/batch_sampler.h"
#include "program/batches.h"
#include "dev/test/program/idle_model.h"
#include "dev/test/test_directory.h"
#include "gpt2_init.h"
#include "program/outliers.h"
#include "program/schedule.h"

namespace {

Schedule schedule(const std::string& name, int64_t warmup = 10, int64_t steps = 110) {
    return {.name = name,
            .lr = 2,
            .final_lr_frac = 0.1,
            .warmup = warmup,
            .steps = steps,
            .decay_frac = name == "wsd" ? 0.2 : 1,
            .replanned = {}};
}

const GPT2Config small{.context = 24, .vocab = 200, .layers = 3, .heads = 4, .channels = 64};

std::vector<float> initial(const GPT2Config& config, uint64_t seed, int threads) {
    const ParameterTable table(config);
    std::vector<float> parameters(table.size, std::numeric_limits<float>::quiet_NaN());
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    initialize_parameters(config, table, seed, parameters.data());
    omp_set_num_threads(before);
    return parameters;
}

}  // namespace

TEST(Schedules, RiseToTheTopAtTheEndOfWarmUp) {
    for (const char* name : {"cosine", "linear", "constant", "wsd"}) {
        const Schedule s = schedule(name);
        EXPECT_DOUBLE_EQ(s.at(1), 0.2) << name;  // not zero: the first update would be lost
        EXPECT_DOUBLE_EQ(s.at(9), 1.8) << name;
        EXPECT_DOUBLE_EQ(s.at(10), 2) << name;
        EXPECT_DOUBLE_EQ(schedule(name, 1).at(1), 2) << name;
    }
}

TEST(Schedules, ReachTheTopWhereWarmUpLastsToTheLastStep) {
    for (const char* name : {"cosine", "linear", "constant", "wsd"})
        for (const int64_t steps : {1, 2, 10}) {
            EXPECT_EQ(schedule(name, steps, steps).at(steps), 2) << name << ", " << steps;
            EXPECT_EQ(schedule(name, steps, steps).at(1), 2.0 / static_cast<double>(steps)) << name << ", " << steps;
        }
}

TEST(Schedules, EndAtTheirFraction) {
    for (const char* name : {"cosine", "linear", "wsd"}) {
        EXPECT_NEAR(schedule(name).at(110), 0.2, 1e-15) << name;
        EXPECT_NEAR(schedule(name, 0, 1).at(1), 0.2, 1e-15) << name;  // of one step, the only is the last
    }
    EXPECT_EQ(schedule("constant").at(110), 2);
}

TEST(Schedules, HaveTheirShapes) {
    EXPECT_NEAR(schedule("cosine").at(60), 0.2 + 1.8 * 0.5, 1e-15);
    EXPECT_NEAR(schedule("cosine").at(35), 0.2 + 1.8 * 0.5 * (1 + std::sqrt(0.5)), 1e-15);
    EXPECT_NEAR(schedule("linear").at(35), 0.2 + 1.8 * 0.75, 1e-15);
    EXPECT_EQ(schedule("constant").at(60), 2);
    EXPECT_EQ(schedule("wsd").at(90), 2);                         // stable for four fifths
    EXPECT_NEAR(schedule("wsd").at(95), 0.2 + 1.8 * 0.5, 1e-12);  // 1 - sqrt(1/4)
    for (const char* name : {"cosine", "linear", "wsd"})
        for (int64_t step = 11; step <= 110; ++step)
            EXPECT_LE(schedule(name).at(step), schedule(name).at(step - 1)) << name << ", step " << step;
}

TEST(Schedules, DecayOverTheLastPartOnly) {
    Schedule s = schedule("linear");
    s.decay_frac = 0.5;
    EXPECT_EQ(s.at(60), 2);
    EXPECT_NEAR(s.at(61), 2 - 1.8 / 50, 1e-12);
    EXPECT_NEAR(s.at(85), 0.2 + 1.8 * 0.5, 1e-12);
    EXPECT_NEAR(s.at(110), 0.2, 1e-15);
    Schedule longer = s;
    longer.steps = 220;
    for (int64_t step = 1; step <= 60; ++step) EXPECT_EQ(longer.at(step), s.at(step)) << step;
    s.decay_frac = 0.2;
    const Schedule linear = s;
    s.name = "wsd";
    EXPECT_EQ(s.at(90), linear.at(90));
    EXPECT_LT(s.at(95), linear.at(95)) << "1 - sqrt falls faster at first";
}

// What is left of the schedule is spread over the steps that are left, so that no rate jumps, or is left out.
TEST(Schedules, GoOnAtAnotherPaceWhereStepsWereReplanned) {
    for (const char* name : {"cosine", "linear", "constant", "wsd"}) {
        const Schedule planned = schedule(name, 10, 110);
        Schedule s = planned;
        s.steps = 85, s.replanned = {{60, 110}};  // the other 50 steps in 25
        for (int64_t step = 1; step <= 60; ++step) EXPECT_EQ(s.at(step), planned.at(step)) << name << ", " << step;
        for (int64_t step = 61; step <= 85; ++step)
            EXPECT_NEAR(s.at(step), planned.at(60 + 2 * (step - 60)), 1e-12) << name << ", " << step;
        s.steps = 130, s.replanned = {{60, 110}, {80, 85}};  // and the last 10 of these in 50
        for (int64_t step = 101; step <= 110; ++step)
            EXPECT_NEAR(s.at(80 + 5 * (step - 100)), planned.at(step), 1e-12) << name << ", " << step;
        EXPECT_NEAR(s.at(130), planned.at(110), 1e-12) << name;
    }
}

TEST(Schedules, ReadHowTheyWereReplanned) {
    EXPECT_TRUE(parse_replanned("", 100)->empty());
    const auto two = parse_replanned("60:110,80:85", 90);
    ASSERT_TRUE(two && two->size() == 2);
    EXPECT_TRUE((*two)[0].step == 60 && (*two)[0].steps == 110 && (*two)[1].step == 80 && (*two)[1].steps == 85);
    for (const char* bad :
         {"60", "60:", ":110", "a:110", "60:110b", "60:110,", ",60:110", "60:110;80:85", "60 :110", "0:110", "-1:110",
          "50:50", "110:120", "60:110,60:85", "60:110,50:85", "60:110,99:101,100:200"})
        EXPECT_FALSE(parse_replanned(bad, 100)) << bad;
}

TEST(Schedules, NeverLeaveTheirBounds) {
    for (const char* name : {"cosine", "linear", "constant", "wsd"})
        for (const int64_t steps : {1, 2, 3, 7})
            for (int64_t warmup = 0; warmup <= steps; ++warmup)
                for (int64_t step = 1; step <= steps; ++step) {
                    const double lr = schedule(name, warmup, steps).at(step);
                    EXPECT_TRUE(lr > 0 && lr <= 2)
                        << name << " " << warmup << " " << steps << " " << step << ": " << lr;
                }
}

TEST(Outliers, LimitsAreTheMeanAndDeviationsOfTheLast128) {
    Outliers outliers;
    const UpdateParams none;
    const auto limits = [&](double z) {
        UpdateParams params{.clip = 0.75};
        outliers.set_limits(params, z);
        EXPECT_EQ(params.clip, 0.75);
        return params;
    };
    for (int i = 0; i < 128; ++i) {
        EXPECT_EQ(limits(2).max_loss, none.max_loss) << "after " << i;
        EXPECT_EQ(limits(2).max_norm, none.max_norm) << "after " << i;
        outliers.add(i % 2 ? 3 : 5, i % 2 ? 10 : 30);  // means 4 and 20, deviations 1 and 10
    }
    EXPECT_DOUBLE_EQ(limits(2).max_loss, 6);
    EXPECT_DOUBLE_EQ(limits(2).max_norm, 40);
    EXPECT_DOUBLE_EQ(limits(-0.5).max_loss, 3.5);
    for (int i = 0; i < 128; ++i) outliers.add(7, i % 2 ? 1 : 2);
    EXPECT_EQ(outliers.losses, std::vector<double>(128, 7));  // none of those before is left
    EXPECT_EQ(outliers.norms.size(), 128u);
    EXPECT_EQ(limits(2).max_loss, none.max_loss);  // all are the same
    EXPECT_DOUBLE_EQ(limits(2).max_norm, 2.5);
}

using Tokens = std::vector<int32_t>;

class BatchesTest : public TestDirectory {
protected:
    static constexpr int64_t B = 2, T = 3;
    BatchesTest() {
        std::vector<uint16_t> tokens(50);  // 8 batches an epoch, or 7
        for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i);
        write_shard(at("data.bin"), tokens);
        data.shards.emplace_back(at("data.bin"));
        BatchSampler sampler(data, B, T, 5);
        Tokens x(B * T), y(B * T);
        for (int i = 0; i < 20; ++i) {
            sampler.next(x.data(), y.data());
            expected.push_back(joined(x.data(), y.data()));
        }
    }
    static Tokens joined(const int32_t* x, const int32_t* y) {
        Tokens both(x, x + B * T);
        both.insert(both.end(), y, y + B * T);
        return both;
    }
    Dataset data;
    std::vector<Tokens> expected;  // by the sampler alone
};

TEST_F(BatchesTest, TheNextIsHandedOverBeforeTheStepsResultIsWaitedFor) {
    struct Ahead : Idle {
        void prefetch(const int32_t* x, const int32_t* y, int64_t, int64_t) override { fetched = joined(x, y); }
        Tokens fetched;
    } model;
    Batches batches(data, B, T, 5);
    size_t used = 0;
    for (int step = 1; step <= 6; ++step) {
        batches.each(model, 3, [&](const int32_t* x, const int32_t* y) {
            EXPECT_EQ(joined(x, y), expected[used]);
            EXPECT_TRUE(used == 0 || model.fetched == expected[used]) << used;
            EXPECT_EQ(batches.position(), static_cast<int64_t>(used) * B);
            ++used;
            return true;
        });
        EXPECT_EQ(model.fetched, expected[used]) << "as update() is called";
        EXPECT_EQ(batches.position(), static_cast<int64_t>(used) * B) << "what is drawn has not been used";
    }
    EXPECT_EQ(used, 18u);
}

TEST_F(BatchesTest, GoOnWhereTheyWereSoughtOrBrokenOff) {
    Idle model;
    Batches batches(data, B, T, 5);
    std::vector<Tokens> seen;
    const auto see = [&](int64_t count, size_t enough) {
        batches.each(model, count, [&](const int32_t* x, const int32_t* y) {
            seen.push_back(joined(x, y));
            return seen.size() < enough;
        });
    };
    see(5, 2);
    EXPECT_EQ(batches.position(), 2 * B);
    batches.seek(0);  // and what was drawn is forgotten
    see(1, 9);
    see(1, 9);
    batches.seek(11 * B);
    see(2, 9);
    const auto& e = expected;
    EXPECT_EQ(seen, (std::vector<Tokens>{e[0], e[1], e[0], e[1], e[11], e[12]}));
    EXPECT_EQ(batches.position(), 13 * B);
}

TEST(Init, EachTensorHasItsDistribution) {
    const ParameterTable table(small);
    const auto parameters = initial(small, 1, 2);
    for (const Parameter& p : table.rows) {
        const int64_t n = p.name == "wte" ? small.vocab * small.channels : p.copies * p.piece();
        double sum = 0, squares = 0, largest = 0;
        for (int64_t i = 0; i < n; ++i) {
            const double x = parameters[p.offset + i];
            sum += x, squares += x * x, largest = std::max(largest, std::abs(x));
        }
        const double count = static_cast<double>(n), mean = sum / count;
        const bool weight = p.shape.size() == 2, norm = p.name.starts_with("ln") && p.name.ends_with("w");
        if (!weight) {
            EXPECT_EQ(mean, norm ? 1 : 0) << p.name;
            EXPECT_EQ(squares, norm ? count : 0) << p.name;
            continue;
        }
        const bool residual = p.name == "attprojw" || p.name == "fcprojw";
        const double std = residual ? 0.02 / std::sqrt(6.0) : 0.02;
        EXPECT_LT(std::abs(mean), 4 * std / std::sqrt(count)) << p.name;
        EXPECT_NEAR(std::sqrt(squares / count), std, 4 * std / std::sqrt(2 * count)) << p.name;
        EXPECT_LT(largest, 6 * std) << p.name;
        EXPECT_GT(largest, 2.5 * std) << p.name;  // it has tails
    }
}

TEST(Init, PaddingRowsAreZero) {
    const auto parameters = initial(small, 1, 2);
    for (int64_t i = small.vocab * small.channels; i < small.padded_vocab() * small.channels; ++i)
        ASSERT_EQ(parameters[i], 0.0f) << i;
}

TEST(Init, SameBitsForAnyNumberOfThreadsAndOthersForAnotherSeed) {
    const auto parameters = initial(small, 1, 1);
    EXPECT_EQ(initial(small, 1, 2), parameters);
    EXPECT_EQ(initial(small, 1, 3), parameters);
    const auto other = initial(small, 2, 1);
    int64_t equal = 0;
    for (int64_t i = 0; i < small.vocab * small.channels; ++i) equal += parameters[i] == other[i];
    EXPECT_LT(equal, 10);
}

TEST(Init, NoTwoValuesHangTogether) {
    const ParameterTable table(small);
    const auto parameters = initial(small, 1, 2);
    std::set<float> different(parameters.begin() + table.qkvw.offset,
                              parameters.begin() + table.qkvw.offset + table.qkvw.piece());
    EXPECT_GT(static_cast<int64_t>(different.size()), table.qkvw.piece() * 99 / 100);
    double product = 0, squares = 0;  // of neighbours, and of blocks: correlation
    for (int64_t i = 0; i + 1 < table.qkvw.piece(); ++i) {
        const double x = parameters[table.qkvw.at(0) + i];
        product += x * parameters[table.qkvw.at(0) + i + 1] + x * parameters[table.qkvw.at(1) + i];
        squares += x * x;
    }
    EXPECT_LT(std::abs(product / squares), 0.05);
}
