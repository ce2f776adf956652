// Writing with a model: which tokens may follow, the text that is printed, several samples, the command `generate`.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "dev/test/program/idle_model.h"
#include "dev/test/program/program.h"
#include "gpt2.h"
#include "gpt2_init.h"
#include "program/generation.h"
#include "program/text_stream.h"

namespace {

// Draws one token many times, and counts each id.
std::map<int32_t, int> draw(const std::vector<float>& logits, const Sampling& sampling, int draws, uint64_t seed = 7) {
    const Random random{seed, Purpose::sampling};
    std::map<int32_t, int> counts;
    for (int i = 0; i < draws; ++i) ++counts[draw(candidates(logits, sampling, {}), random.uniform(i))];
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
    EXPECT_EQ(draw(tied, {.temperature = 1, .top_k = 2}, 1000).size(), 4u) << "as in transformers";
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

// The ids that may be drawn.
std::vector<int32_t> ids(const std::vector<float>& logits, const Sampling& sampling,
                         const std::vector<int32_t>& tokens = {}) {
    return candidates(logits, sampling, tokens).ids;
}

std::vector<float> logs(std::vector<double> probabilities) {
    std::vector<float> logits;
    for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
    return logits;
}

TEST(Sampler, TopPLeavesTheFewestThatTogetherHaveIt) {
    const std::vector<float> logits = logs({0.1, 0.4, 0.05, 0.3, 0.15});
    const auto with = [&](double p) { return ids(logits, {.temperature = 1, .top_p = p}); };
    using Ids = std::vector<int32_t>;
    EXPECT_EQ(with(0), (Ids{1}));
    EXPECT_EQ(with(0.39), (Ids{1}));
    EXPECT_EQ(with(0.41), (Ids{1, 3}));
    EXPECT_EQ(with(0.69), (Ids{1, 3}));
    EXPECT_EQ(with(0.71), (Ids{1, 3, 4}));
    EXPECT_EQ(with(0.94), (Ids{0, 1, 3, 4}));
    EXPECT_EQ(with(1), (Ids{0, 1, 2, 3, 4}));
    // After top-k the probabilities of the others are reckoned anew: 4/7 and 3/7.
    EXPECT_EQ(ids(logits, {.temperature = 1, .top_k = 2, .top_p = 0.56}), (Ids{1}));
    EXPECT_EQ(ids(logits, {.temperature = 1, .top_k = 2, .top_p = 0.58}), (Ids{1, 3}));
    EXPECT_EQ(ids(logs({0.25, 0.25, 0.25, 0.25}), {.temperature = 1, .top_p = 0.5}), (Ids{0, 1})) << "equal ones";
}

TEST(Sampler, MinPIsMeasuredByTheLikeliest) {
    const std::vector<float> logits = logs({0.1, 0.4, 0.05, 0.3, 0.15});
    using Ids = std::vector<int32_t>;
    EXPECT_EQ(ids(logits, {.temperature = 1, .min_p = 0.5}), (Ids{1, 3}));
    EXPECT_EQ(ids(logits, {.temperature = 1, .min_p = 0.2}), (Ids{0, 1, 3, 4}));
    EXPECT_EQ(ids(logits, {.temperature = 1, .min_p = 1}), (Ids{1}));
    EXPECT_EQ(ids(logits, {.temperature = 0.5, .min_p = 0.5}), (Ids{1, 3})) << "0.5625 after the temperature";
    EXPECT_EQ(ids(logits, {.temperature = 0.5, .min_p = 0.6}), (Ids{1}));
}

TEST(Sampler, RepetitionPenaltyIsForEachTokenOnce) {
    const std::vector<float> logits = {2, -2, 1, -1};
    const Candidates once = candidates(logits, {.temperature = 1, .repetition_penalty = 2}, std::vector<int32_t>{0, 1}),
                     twice = candidates(logits, {.temperature = 1, .repetition_penalty = 2},
                                        std::vector<int32_t>{1, 0, 1, 0, 0});
    EXPECT_EQ(once.weights, twice.weights);
    for (const auto& [id, logit] : std::vector<std::pair<size_t, double>>{{0, 1}, {1, -4}, {2, 1}, {3, -1}})
        EXPECT_DOUBLE_EQ(once.weights[id], std::exp(logit - 1)) << id;
    EXPECT_EQ(ids({2, 1.5}, {.temperature = 0, .repetition_penalty = 2}, {0}), (std::vector<int32_t>{1}));
    // A token of the prompt may be one that is never sampled.
    EXPECT_EQ(ids({1, 2, 3}, {.temperature = 0, .repetition_penalty = 2, .ids = 2}, {2}), (std::vector<int32_t>{1}));
}

// scripts/dump_sampling.py wrote the probabilities, to nine digits.
TEST(Sampler, ItsRulesAreThoseOfTransformers) {
    const auto cases = nlohmann::json::parse(std::ifstream("dev/test/data/sampling.json"));
    ASSERT_EQ(cases.size(), 60u);
    for (const auto& c : cases) {
        const auto logits = c["logits"].get<std::vector<float>>();
        const Candidates found = candidates(logits,
                                            {.temperature = c["temperature"],
                                             .top_k = c["top_k"],
                                             .top_p = c["top_p"],
                                             .min_p = c["min_p"],
                                             .repetition_penalty = c["repetition_penalty"]},
                                            c["tokens"].get<std::vector<int32_t>>());
        const double sum = std::accumulate(found.weights.begin(), found.weights.end(), 0.0);
        std::vector<double> probabilities(logits.size());
        for (size_t i = 0; i < found.ids.size(); ++i)
            probabilities[static_cast<size_t>(found.ids[i])] = found.weights[i] / sum;
        for (size_t i = 0; i < logits.size(); ++i) {
            const double expected = c["probabilities"][i];
            // Logits have three decimals, as floats and as doubles here and there.
            EXPECT_NEAR(probabilities[i], expected, 2e-6 * expected) << c.dump() << " id " << i;
        }
    }
}

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

// Appends a prompt, and returns the `count` tokens that follow.
std::vector<int32_t> continued(Generator& generator, const std::vector<int32_t>& prompt, int64_t count) {
    std::vector<int32_t> tokens;
    generator.append(prompt);
    generator.generate(count, [&](int64_t, int32_t id) {
        tokens.push_back(id);
        return true;
    });
    return tokens;
}

TEST(Generate, AppendsEachTokenOnceAndForgetsTheOlderHalfOfAFullContext) {
    using Pieces = decltype(Counting::pieces);
    Counting model;
    Generator generator(model, 1, {.temperature = 0}, {1, Purpose::sampling});
    EXPECT_EQ(continued(generator, {5, 6}, 4), (std::vector<int32_t>{7, 0, 1, 2}));
    EXPECT_EQ(model.pieces, (Pieces{{0, {5, 6}}, {2, {7}}, {3, {0}}, {0, {0, 1}}}));
    model.pieces.clear();
    Generator long_prompt(model, 1, {.temperature = 0}, {1, Purpose::sampling});
    continued(long_prompt, {1, 2, 3, 4, 5, 6}, 1);
    EXPECT_EQ(model.pieces, (Pieces{{0, {3, 4, 5, 6}}}));
}

// As --interactive does: the last token that was drawn and the next line are one piece.
TEST(Generate, ContinuesAfterMoreOfThePrompt) {
    using Pieces = decltype(Counting::pieces);
    Counting model;
    Generator generator(model, 1, {.temperature = 0}, {1, Purpose::sampling});
    EXPECT_EQ(continued(generator, {5}, 1), std::vector<int32_t>{6});
    EXPECT_EQ(continued(generator, {2, 3}, 1), std::vector<int32_t>{4});
    EXPECT_EQ(continued(generator, {0, 1, 2, 3, 4}, 1), std::vector<int32_t>{5});  // more than the context holds
    EXPECT_EQ(model.pieces, (Pieces{{0, {5}}, {1, {6, 2, 3}}, {0, {1, 2, 3, 4}}}));
}

// The samples of a small model whose context is too short for them.
struct Written {
    std::vector<std::vector<int32_t>> tokens;
    int64_t calls = 0;
};
Written write(int64_t samples, int threads, int64_t ends_at = -1) {
    const GPT2Config config{.context = 24, .vocab = 300, .layers = 2, .heads = 4, .channels = 64};
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    GPT2<Cpu> model(Cpu(), config, 1, config.context, ActivationPolicy::inference, {samples, config.context});
    initialize_parameters(config, model.table, 3, model.parameters.get());
    Written written;
    written.tokens.resize(static_cast<size_t>(samples));
    Generator generator(model, samples, {.temperature = 1}, {5, Purpose::sampling});
    generator.append({7, 299, 0});
    generator.generate(70, [&](int64_t s, int32_t id) {
        ++written.calls;
        written.tokens[static_cast<size_t>(s)].push_back(id);
        return ends_at < 0 || std::ssize(written.tokens[static_cast<size_t>(s)]) < ends_at + s;
    });
    omp_set_num_threads(before);
    return written;
}

TEST(Generate, SamplesDependNeitherOnThoseBesideThemNorOnThreads) {
    const Written many = write(35, 2);
    EXPECT_NE(many.tokens[0], many.tokens[1]);
    for (const int64_t samples : {1, 2, 17})
        for (const int threads : {1, 3}) {
            const Written few = write(samples, threads);
            for (size_t s = 0; s < few.tokens.size(); ++s)
                EXPECT_EQ(few.tokens[s], many.tokens[s]) << s << " of " << samples << ", " << threads << " threads";
        }
}

TEST(Generate, EachSampleEndsByItself) {
    const Written all = write(3, 1), ended = write(3, 1, 4);  // after 4, 5 and 6 tokens
    EXPECT_EQ(ended.calls, 4 + 5 + 6);
    for (size_t s = 0; s < 3; ++s) {
        ASSERT_EQ(ended.tokens[s].size(), 4 + s);
        EXPECT_TRUE(std::equal(ended.tokens[s].begin(), ended.tokens[s].end(), all.tokens[s].begin()));
    }
}

// What is printed after each piece, and at the end.
std::vector<std::string> printed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
    TextStream stream(stops);
    std::vector<std::string> all;
    for (const std::string& piece : pieces) all.push_back(stream.add(piece));
    all.push_back(stream.rest());
    return all;
}
using Texts = std::vector<std::string>;

TEST(TextStream, CharactersComeWhole) {
    EXPECT_EQ(printed({}, {"a\xc3",
                           "\xa9"
                           "b",
                           "\xe2", "\x82", "\xac", "\xf0\x9f\x99", "\x82"}),
              (Texts{"a",
                     "\xc3\xa9"
                     "b",
                     "", "", "\xe2\x82\xac", "", "\xf0\x9f\x99\x82", ""}));
    EXPECT_EQ(printed({}, {"x\xf0\x9f"}), (Texts{"x", ""})) << "half a character at the end is left out";
    // What cannot become a character is not held back.
    EXPECT_EQ(printed({}, {"\x80", "\xff", "\xc3", "\xc3", "(", "\xa9\xa9\xa9\xa9"}),
              (Texts{"\x80", "\xff", "", "\xc3", "\xc3(", "\xa9\xa9\xa9\xa9", ""}));
}

TEST(TextStream, EndsBeforeTheFirstStopText) {
    EXPECT_EQ(printed({"END"}, {"the E", "N", "ough, the EN", "D, and more", "never"}),
              (Texts{"the ", "", "ENough, the ", "", "", ""}));
    EXPECT_EQ(printed({"b", "abc"}, {"xab", "c"}), (Texts{"xa", "", ""})) << "the earliest";
    EXPECT_EQ(printed({"abab"}, {"aba", "ab", "a"}), (Texts{"", "aba", "", "aba"}));
    EXPECT_EQ(printed({"\n\n"}, {"one\n", "two\n"}), (Texts{"one", "\ntwo", "\n"}));
    TextStream stream({"stop"});
    stream.add("st"), stream.add("op");
    EXPECT_TRUE(stream.stopped());
}

class GenerateCommand : public Program {
protected:
    GenerateCommand() { train("run", {{"steps", "30"}}); }
    Result generate(const std::vector<std::string>& more) const {
        std::vector<std::string> all{"generate", "--from", at("run"), "--tokens", "40"};
        all.insert(all.end(), more.begin(), more.end());
        return run(all);
    }
};

TEST_F(GenerateCommand, SamplesBegunByAPromptFromAFile) {
    const std::string prompt = "line 7:\nthe";
    write_bytes(at("prompt"), prompt);
    const Result one = generate({"--prompt", prompt}),
                 three = generate({"--prompt-file", at("prompt"), "--samples", "3"});
    EXPECT_EQ(generate({"--prompt-file", at("prompt")}).out, one.out);
    EXPECT_TRUE(three.out.starts_with("--- sample 1\n" + one.out + "--- sample 2\n" + prompt)) << three.out;
    EXPECT_NE(three.out.find("--- sample 3\n" + prompt), std::string::npos);
    EXPECT_NE(one.err.find("40 tokens, "), std::string::npos) << one.err;
    EXPECT_NE(three.err.find("120 tokens, "), std::string::npos) << three.err;
    EXPECT_NE(generate({"--prompt-file", at("none")}).status, 0);
    EXPECT_NE(generate({"--prompt-file", at("prompt"), "--prompt", "x"}).status, 0);
}

TEST_F(GenerateCommand, EndsAtAStopText) {
    const std::string out = generate({"--prompt", "line"}).out;
    const std::string stop = out.substr(20, 3);
    EXPECT_EQ(generate({"--prompt", "line", "--stop", stop}).out, out.substr(0, out.find(stop, 4)) + "\n");
    EXPECT_EQ(generate({"--prompt", "line", "--stop", "never there", "--stop", stop}).out,
              out.substr(0, out.find(stop, 4)) + "\n");
    EXPECT_NE(generate({"--stop", ""}).status, 0);
}

// As Ctrl-C does, in the middle of a text that would take hours.
TEST_F(GenerateCommand, EndsWithWhatThereIsOnASignal) {
    const Child child = start({"generate", "--from", at("run"), "--prompt", "line", "--tokens", "1000000000"});
    std::string out(2000, 0);
    for (size_t have = 0; have < out.size();) {
        const ssize_t n = read(child.out, out.data() + have, out.size() - have);
        ASSERT_GT(n, 0);
        have += static_cast<size_t>(n);
    }
    kill(child.pid, SIGINT);
    const Result result = finish(child);
    EXPECT_EQ(result.status, 128 + SIGINT);
    EXPECT_TRUE(out.starts_with("line"));
    EXPECT_TRUE(result.out.ends_with("\n"));
    EXPECT_NE(result.err.find("tokens/s"), std::string::npos) << result.err;
}

// Standard output and the exit status of --interactive on lines from a pipe.
std::pair<std::string, int> interactive(const std::string& program, const std::string& options,
                                        const std::string& lines) {
    const std::string command = program + " generate --interactive --tokens 40 " + options + " < '" + lines + "' 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    if (!pipe) throw std::runtime_error("popen");
    std::string all;
    for (int c; (c = std::fgetc(pipe)) != EOF;) all += static_cast<char>(c);
    return {all, pclose(pipe)};
}

// The first line's continuation is that of the same prompt, and later lines continue the text so far.
TEST_F(GenerateCommand, InteractiveContinuesEachLineOfAPipe) {
    write_bytes(at("lines"), "line 7:\n\nthe quick\n");
    const std::string one = generate({"--prompt", "line 7:"}).out;
    const auto [all, status] = interactive(binary(), "--from '" + at("run") + "'", at("lines"));
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(all.starts_with(one.substr(7))) << all;
    EXPECT_GT(all.size(), one.size() + 40);
    EXPECT_NE(generate({"--interactive", "--samples", "2"}).status, 0);
}

// GPT-2's tokens with a model of bytes: a line whose ids the model lacks is refused, and the next line is continued.
TEST_F(GenerateCommand, InteractiveRefusesALineOfTokensThatTheModelLacks) {
    write_bytes(at("lines"), "Hello there\n!!\n");
    const auto [all, status] = interactive(binary(), "--tokenizer gpt2 --from '" + at("run") + "'", at("lines"));
    EXPECT_EQ(status, 0) << all;
    EXPECT_NE(all.find("is outside the model's vocabulary of 256"), std::string::npos) << all;
    EXPECT_GT(all.size(), all.find("is outside") + 100) << "the second line has a continuation";
}

}  // namespace
