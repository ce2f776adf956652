// The parts of training that are not layers: the learning-rate schedule, batches, the sampler, the initial parameters.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "io/data/batch_sampler.h"
#include "program/batches.h"
#include "dev/test/test_directory.h"
#include "gpt2_init.h"
#include "program/outliers.h"
#include "program/sampler.h"
#include "program/schedule.h"

namespace {

Schedule schedule(const std::string& name, int64_t warmup = 10, int64_t steps = 110) {
    return {.name = name, .lr = 2, .final_lr_frac = 0.1, .warmup = warmup, .steps = steps};
}

// Draws one token many times, and counts each id.
std::map<int32_t, int> draw(const std::vector<float>& logits, const Sampling& sampling, int draws, uint64_t seed = 7) {
    const Random random{seed, Purpose::sampling};
    std::map<int32_t, int> counts;
    for (int i = 0; i < draws; ++i) ++counts[sample_token(logits, sampling, random.uniform(i))];
    return counts;
}

// Pearson's statistic of the draws against softmax(logits / temperature) over `ids`.
double chi_square(const std::vector<float>& logits, double temperature, const std::vector<int32_t>& ids,
                  const std::map<int32_t, int>& counts) {
    double total = 0, statistic = 0;
    int draws = 0;
    for (const int32_t id : ids) total += std::exp(logits[id] / temperature);
    for (const auto& [id, count] : counts) draws += count;
    for (const int32_t id : ids) {
        const double expected = draws * std::exp(logits[id] / temperature) / total;
        const double found = counts.contains(id) ? counts.at(id) : 0;
        statistic += (found - expected) * (found - expected) / expected;
    }
    return statistic;
}

const std::vector<float> uneven = {0.5f, -1.0f, 2.0f, 0.0f, 1.5f, -0.5f, 1.0f, 0.25f};

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

TEST(Sampler, DrawsBySoftmax) {
    const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
    for (const double temperature : {0.5, 1.0, 3.0}) {
        const auto counts = draw(uneven, {.temperature = temperature}, 20'000);
        EXPECT_LT(chi_square(uneven, temperature, all, counts), 24.3) << temperature;        // 1 in 1000 with 7 degrees
        EXPECT_GT(chi_square(uneven, temperature * 1.2, all, counts), 24.3) << temperature;  // it would be seen
    }
}

TEST(Sampler, TopKLeavesTheLikeliest) {
    const auto counts = draw(uneven, {.temperature = 1, .top_k = 3}, 20'000);
    EXPECT_EQ(counts.size(), 3u);
    EXPECT_LT(chi_square(uneven, 1, {2, 4, 6}, counts), 13.8);  // 1 in 1000 with 2 degrees
    for (const int64_t k : {8, 9, 1'000'000})                   // all of them: as if it were not there
        EXPECT_EQ(draw(uneven, {.temperature = 1, .top_k = k}, 1000), draw(uneven, {.temperature = 1}, 1000));
}

TEST(Sampler, TiesGoToTheSmallerId) {
    const std::vector<float> tied = {0, 3, 3, 3, 3, 0};
    EXPECT_EQ(draw(tied, {.temperature = 0}, 10), (std::map<int32_t, int>{{1, 10}}));
    const auto counts = draw(tied, {.temperature = 1, .top_k = 2}, 1000);
    EXPECT_EQ(counts.size(), 2u);
    EXPECT_TRUE(counts.contains(1) && counts.contains(2));
}

TEST(Sampler, TemperatureZeroAndTopOneAreTheLikeliest) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
        EXPECT_EQ(draw(uneven, {.temperature = 0}, 100, seed), (std::map<int32_t, int>{{2, 100}}));
        EXPECT_EQ(draw(uneven, {.temperature = 100, .top_k = 1}, 100, seed), (std::map<int32_t, int>{{2, 100}}));
    }
}

TEST(Sampler, LogitsOfAnySize) {
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(draw({-1e30f, 3e38f, -3e38f}, {.temperature = 1}, 50), (std::map<int32_t, int>{{1, 50}}));
    EXPECT_EQ(draw({0, -infinity, 0}, {.temperature = 1}, 1000).size(), 2u);  // the impossible is not drawn
    EXPECT_EQ(draw({1, 2}, {.temperature = 1e-300}, 50), (std::map<int32_t, int>{{1, 50}}));
    EXPECT_EQ(draw({1}, {.temperature = 1}, 50), (std::map<int32_t, int>{{0, 50}}));
}

TEST(Sampler, SameSeedSameTokens) {
    EXPECT_EQ(draw(uneven, {}, 500, 3), draw(uneven, {}, 500, 3));
    EXPECT_NE(draw(uneven, {}, 500, 3), draw(uneven, {}, 500, 4));
}

// A model that computes nothing.
struct Idle : Model {
    Idle() : Model(GPT2Config{.context = 4, .vocab = 8, .layers = 1, .heads = 1, .channels = 1}, {1, 4}) {}
    HostState download() override { return {}; }
    void upload(const HostState&) override {}
    void forward_backward(const int32_t*, const int32_t*, int64_t, int64_t, double) override {}
    double loss() override { return 0; }
    double evaluate(const int32_t*, const int32_t*, int64_t, int64_t) override { return 0; }
    StepResult update(const UpdateParams&) override { return {}; }
    void set_profile(Profile*) override {}
    void append(float*, const int32_t*, int64_t, int64_t) override {}
};

// A model that depends only on the last token. It notes what is appended, and at which position.
struct Counting : Idle {
    void append(float* logits, const int32_t* x, int64_t, int64_t T) override {
        pieces.emplace_back(appended(), std::vector<int32_t>(x, x + T));
        appended_ += T;
        for (int32_t id = 0; id < 8; ++id) logits[id] = id == (x[T - 1] + 1) % 8 ? 1.0f : 0.0f;
    }
    std::vector<std::pair<int64_t, std::vector<int32_t>>> pieces;
};

// The draws are the same as from the first logits alone, as if the model had no rows beyond the tokenizer.
TEST(Sampler, OnlyIdsThatTheTokenizerHas) {
    std::vector<float> logits = uneven;
    logits.insert(logits.end(), {9.0f, std::numeric_limits<float>::quiet_NaN()});
    for (const Sampling& sampling : {Sampling{.temperature = 0}, Sampling{.temperature = 1, .top_k = 3},
                                     Sampling{.temperature = 1}, Sampling{.temperature = 1, .top_k = 9}}) {
        Sampling limited = sampling;
        limited.ids = std::ssize(uneven);
        EXPECT_EQ(draw(logits, limited, 1000), draw(uneven, sampling, 1000));
        limited.ids = 20;  // more tokens than rows
        EXPECT_EQ(draw(uneven, limited, 1000), draw(uneven, sampling, 1000));
    }
}

TEST(Generate, AppendsEachTokenOnceAndForgetsTheOlderHalfOfAFullContext) {
    using Pieces = decltype(Counting::pieces);
    Counting model;
    std::vector<int32_t> tokens;
    generate(model, {5, 6}, 4, {.temperature = 0}, {1, Purpose::sampling}, [&](int32_t id) { tokens.push_back(id); });
    EXPECT_EQ(tokens, (std::vector<int32_t>{7, 0, 1, 2}));
    EXPECT_EQ(model.pieces, (Pieces{{0, {5, 6}}, {2, {7}}, {3, {0}}, {0, {0, 1}}}));
    model.pieces.clear();
    generate(model, {1, 2, 3, 4, 5, 6}, 1, {.temperature = 0}, {1, Purpose::sampling}, [](int32_t) {});
    EXPECT_EQ(model.pieces, (Pieces{{0, {3, 4, 5, 6}}}));
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
