// --choices, in `eval` and in training, compared with a plain computation in double.
#include <cmath>
#include <random>

#include "dev/test/program/program.h"
#include "gpt2.h"
#include "io/data/choices.h"
#include "io/model/checkpoint.h"
#include "program/choices.h"

namespace fs = std::filesystem;

namespace {

constexpr GPT2Config config{.context = 24, .vocab = 256, .layers = 2, .heads = 2, .channels = 16};

std::string json_lines(const std::vector<nlohmann::json>& lines) {
    std::string text;
    for (const nlohmann::json& line : lines) text += line.dump() + "\n";
    return text;
}

class Choices : public Program {
protected:
    Choices() {
        for (float& v : parameters) v *= 20;  // far from uniform
        fs::create_directory(at("model"));
        write_model_directory(at("model"), config, parameters.data(), load_tokenizer("byte").get());
        std::copy(parameters.begin(), parameters.end(), reference.parameters.get());
    }
    std::string random_text(int64_t most) {
        std::string letters(1 + random() % static_cast<uint64_t>(most), 'a');
        for (char& c : letters) c = static_cast<char>(random() % 8 == 0 ? ' ' : 'a' + random() % 26);
        return letters;
    }
    // Some examples are longer than the context.
    std::string hellaswag(int64_t count) {
        std::vector<nlohmann::json> lines;
        for (int64_t i = 0; i < count; ++i) {
            nlohmann::json endings = nlohmann::json::array();
            for (int e = 0; e < 4; ++e) endings.push_back(random_text(9));
            lines.push_back({{"ctx", random_text(20)}, {"endings", endings}, {"label", random() % 4}});
        }
        write_bytes(at("hellaswag.jsonl"), json_lines(lines));
        return at("hellaswag.jsonl");
    }
    std::string lambada(int64_t count) {
        std::vector<nlohmann::json> lines;
        for (int64_t i = 0; i < count; ++i) {
            const std::string before = random_text(15);
            lines.push_back({{"text", before + "x " + random_text(2) + "y"}});
        }
        write_bytes(at("lambada.jsonl"), json_lines(lines));
        return at("lambada.jsonl");
    }
    // The sum of the losses of the last `count` of these tokens, of which the model sees `seq` before the last.
    double nats(std::vector<int32_t> tokens, int64_t& count, int64_t seq) {
        if (std::ssize(tokens) > seq + 1) tokens.erase(tokens.begin(), tokens.end() - seq - 1);
        const int64_t predictions = std::ssize(tokens) - 1;
        count = std::min(count, predictions);
        const auto sum = [&](int64_t T) { return T > 0 ? reference.evaluate(&tokens[0], &tokens[1], 1, T) : 0.0; };
        return sum(predictions) - sum(predictions - count);
    }
    ChoicesResult expected(const ExampleSet& set, int64_t seq) {
        ChoicesResult result{.last_word = set.last_word, .examples = std::ssize(set.examples)};
        for (const Example& example : set.examples) {
            std::vector<double> sums, means;
            for (const auto& ending : example.endings) {
                std::vector<int32_t> tokens = example.context;
                tokens.insert(tokens.end(), ending.begin(), ending.end());
                int64_t count = std::ssize(ending);
                sums.push_back(nats(tokens, count, seq));
                means.push_back(sums.back() / static_cast<double>(count));
            }
            result.nats += sums[static_cast<size_t>(example.label)];
            result.by_sum += std::ranges::min_element(sums) - sums.begin() == example.label;
            result.by_mean += std::ranges::min_element(means) - means.begin() == example.label;
        }
        return result;
    }
    ExampleSet examples(const std::string& path, int64_t limit = 0) const {
        return read_examples(path, *load_tokenizer("byte"), config.vocab, limit);
    }
    // What eval prints; the note that examples are cut is the only line on standard error.
    std::string eval(const std::string& file, const Args& more = {}) const {
        Args args = more;
        args.insert({{"from", at("model")}, {"choices", file}});
        const Result result = run(words("eval", args));
        EXPECT_EQ(result.status, 0) << result.err;
        if (!result.err.empty()) {
            EXPECT_NE(result.err.find("longer than the"), std::string::npos) << result.err;
            EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
        }
        return result.out;
    }
    std::vector<float> parameters = random_parameters(config);
    GPT2<Reference<double>> reference{{}, config, 1, config.context, ActivationPolicy::inference, {1, config.context}};
    std::mt19937_64 random{5};
};

}  // namespace

TEST_F(Choices, AnswersAreThoseOfThePlainComputation) {
    const std::string file = hellaswag(60);
    const ExampleSet set = examples(file);
    for (const int64_t seq : {24, 5}) {
        const ChoicesResult wanted = expected(set, seq);
        EXPECT_NE(wanted.by_sum, wanted.by_mean) << "the test must tell them apart";
        const std::string S = std::to_string(seq);
        EXPECT_EQ(eval(file, {{"seq", S}}), wanted.text() + "\n");
        for (const char* batch : {"1", "3", "100"})
            EXPECT_EQ(eval(file, {{"batch", batch}, {"seq", S}}), wanted.text() + "\n");
    }
    EXPECT_EQ(eval(file, {{"limit", "7"}}), expected(examples(file, 7), 24).text() + "\n");
    EXPECT_NE(eval(file, {{"data", text}}).find("\naccuracy by summed log-likelihood 0."), std::string::npos);
}

TEST_F(Choices, InfoCountsTheExamples) {
    const std::string file = hellaswag(60);
    const Result result = run({"info", file});
    EXPECT_EQ(result.out, file + ": multiple choice for --choices, 60 examples with 240 endings\n") << result.err;
    EXPECT_NE(run({"info", lambada(40)}).out.find("lambada.jsonl: text, "), std::string::npos);
}

TEST_F(Choices, LastWords) {
    const std::string file = lambada(40);
    const ChoicesResult wanted = expected(examples(file), 24);
    double accuracy = -1, error = -1, perplexity = 0;
    int count = 0;
    const std::string printed = eval(file);
    ASSERT_EQ(sscanf(printed.c_str(), "last word: accuracy %lf +- %lf, perplexity %lf (%d examples)", &accuracy, &error,
                     &perplexity, &count),
              4)
        << printed;
    EXPECT_EQ(count, 40);
    EXPECT_NEAR(perplexity, std::exp(wanted.nats / 40), 1e-5 * perplexity);
}

// Endings that the model itself would write, and others.
TEST_F(Choices, LastWordsThatAreTheGreedyPrediction) {
    ExampleSet set{.source = "set", .last_word = true};
    int64_t greedy = 0;
    std::vector<float> logits(256);
    for (int i = 0; i < 50; ++i) {
        Example example;
        for (uint64_t t = 0; t < 1 + random() % 15; ++t)
            example.context.push_back(static_cast<int32_t>(random() % 256));
        std::vector<int32_t> tokens = example.context;
        for (uint64_t t = 0; t < 1 + random() % 4; ++t) {
            reference.truncate(0);
            reference.append(logits.data(), tokens.data(), 1, std::ssize(tokens));
            tokens.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
        }
        example.endings = {{tokens.begin() + std::ssize(example.context), tokens.end()}};
        const size_t wrong = random() % 4;  // often beyond the ending
        if (wrong < example.endings[0].size())
            example.endings[0][wrong] ^= 1;
        else
            ++greedy;
        set.examples.push_back(example);
    }
    EXPECT_GT(greedy, 10);
    EXPECT_LT(greedy, 40);
    const auto answers = [&](auto device, int64_t batch) {
        GPT2<decltype(device)> model(std::move(device), config, batch, 24, ActivationPolicy::inference, {1, 1});
        std::copy(parameters.begin(), parameters.end(), model.parameters.get());
        int64_t last = -1;
        const ChoicesResult result = *evaluate_choices(model, set, batch, 24, [&](int64_t tokens) {
            EXPECT_GT(tokens, last);
            last = tokens;
            return true;
        });
        EXPECT_LT(last, tokens_to_evaluate(set, 24));
        return result;
    };
    const ChoicesResult wanted = expected(set, 24);
    for (const int64_t batch : {1, 5}) {
        const ChoicesResult cpu = answers(Cpu{}, batch), exact = answers(Reference<double>{}, batch);
        EXPECT_EQ(cpu.by_sum, greedy);
        EXPECT_EQ(exact.by_sum, greedy);
        EXPECT_NEAR(cpu.nats, wanted.nats, 1e-5 * wanted.nats);
        EXPECT_NEAR(exact.nats, wanted.nats, 1e-6 * wanted.nats);
    }
}

// The last of some ranks, run after the others in one process: it receives what they would have sent.
struct OneOfMany final : Ranks {
    OneOfMany(int64_t rank, int64_t count, std::vector<std::vector<std::string>>& sent) : sent_by(sent) {
        rank_ = rank, count_ = count;
    }
    void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
        const Message& m = sends[0];  // in a gather, all get the same
        sent_by[static_cast<size_t>(rank_)].emplace_back(static_cast<const char*>(m.data), m.bytes);
        for (const Message& r : receives) {
            const auto& all = sent_by[static_cast<size_t>(r.rank)];
            if (exchanges < all.size())
                std::copy(all[exchanges].begin(), all[exchanges].end(), static_cast<char*>(r.data));
        }
        ++exchanges;
    }
    void abort(int) override {}
    std::vector<std::vector<std::string>>& sent_by;
    size_t exchanges = 0;
};

// Each of four ranks computes about a quarter of the tokens, and the last has the result of one rank, bit for bit.
TEST_F(Choices, AreSharedByRanks) {
    for (const std::string& file : {hellaswag(60), lambada(60)}) {
        const ExampleSet set = examples(file);
        GPT2<Cpu> model(Cpu{}, config, 2, 24, ActivationPolicy::inference, {1, 1});
        std::copy(parameters.begin(), parameters.end(), model.parameters.get());
        int64_t passes = 0;
        const auto count = [&](int64_t) { return ++passes > 0; };
        const ChoicesResult alone = *evaluate_choices(model, set, 2, 24, count);
        const int64_t of_one = std::exchange(passes, 0);
        std::vector<std::vector<std::string>> sent(4);
        ChoicesResult shared;
        for (int64_t rank = 0; rank < 4; ++rank) {
            OneOfMany ranks(rank, 4, sent);
            shared = *evaluate_choices(model, set, 2, 24, count, ranks);
            EXPECT_NEAR(static_cast<double>(std::exchange(passes, 0)), static_cast<double>(of_one) / 4, 1);
        }
        EXPECT_EQ(shared.by_sum, alone.by_sum);
        EXPECT_EQ(shared.by_mean, alone.by_mean);
        EXPECT_EQ(shared.nats, alone.nats);
    }
}

// The model prefers one byte whatever stands before it. A long ending of this byte has the best mean, a short one of
// another byte the best sum.
TEST_F(Choices, SumsPreferShortEndings) {
    const ParameterTable table(config);
    std::vector<float> values = random_parameters(config);
    for (int64_t c = 0; c < config.channels; ++c)
        values[table.lnfb.at() + c] = 1, values[table.wte.at() + 'e' * config.channels + c] = 0.25f;
    fs::create_directory(at("e"));
    write_model_directory(at("e"), config, values.data(), load_tokenizer("byte").get());
    write_bytes(at("e.jsonl"), R"({"ctx":"a","endings":["bcd","eeeeeeeeee","f"],"label":"1"})");
    EXPECT_EQ(expect_done({"eval", "--from", at("e"), "--choices", at("e.jsonl")}),
              "accuracy by summed log-likelihood 0.0000 +- 0.0000, by mean log-likelihood 1.0000 +- 0.0000 (1 "
              "examples)\n");
}

TEST_F(Choices, StandardErrors) {
    EXPECT_EQ((ChoicesResult{.examples = 10042, .by_sum = 2871, .by_mean = 2967, .nats = 0}).text(),
              "accuracy by summed log-likelihood 0.2859 +- 0.0045, by mean log-likelihood 0.2955 +- 0.0046 (10042 "
              "examples)");
    EXPECT_EQ((ChoicesResult{.last_word = true, .examples = 100, .by_sum = 50, .by_mean = 50, .nats = 0}).text(),
              "last word: accuracy 0.5000 +- 0.0500, perplexity 1.0000 (100 examples)");
}

// With each validation, and a resumed run has the same bits.
TEST_F(Choices, InTraining) {
    const Args options = {
        {"choices", hellaswag(20)}, {"limit", "15"}, {"eval-every", "2"}, {"save-every", "4"}, {"sample-every", "0"}};
    const auto trained = [&](const std::string& out, std::vector<std::string> arguments) {
        const Result result = run(std::move(arguments));
        EXPECT_EQ(result.status, 0) << result.err;
        EXPECT_NE(result.err.find("of 15 examples are longer than the 16 tokens"), std::string::npos) << result.err;
        std::vector<double> accuracies;
        for (const auto& line : timeless_log(out))
            if (line["split"] == "val") accuracies.push_back(line.at("choices_accuracy"));
        EXPECT_EQ(accuracies.size(), 4u);
        char last[32];
        std::snprintf(last, sizeof last, ", accuracy %.4f\n", accuracies.back());
        EXPECT_NE(result.out.find(last), std::string::npos) << result.out;
        return accuracies.back();
    };
    const double accuracy = trained("run", training("run", options));
    double mean = -1;
    const std::string printed = eval(at("hellaswag.jsonl"), {{"from", at("run")}, {"limit", "15"}});
    ASSERT_EQ(sscanf(printed.substr(printed.find("by mean")).c_str(), "by mean log-likelihood %lf", &mean), 1);
    EXPECT_NEAR(accuracy, mean, 1e-4);
    EXPECT_NE(read_bytes(at("run/report.html")).find("Accuracy of --choices"), std::string::npos);

    fs::copy(at("run"), at("resumed"), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    fs::remove_all(at("resumed/step_000006"));
    trained("resumed", {"train", "--resume", "--out", at("resumed")});
    expect_same_run("run", "resumed");

    train("without", {{"eval-every", "2"}, {"save-every", "4"}, {"sample-every", "0"}});
    EXPECT_EQ(read_bytes(at("without/latest/model.safetensors")), read_bytes(at("run/latest/model.safetensors")));
    EXPECT_EQ(read_bytes(at("without/report.html")).find("Accuracy of --choices"), std::string::npos);
}

TEST_F(Choices, LastWordsInTraining) {
    for (const char* sample_every : {"0", "3"}) {
        const std::string out = std::string("run") + sample_every;
        const Result result = run(training(out, {{"choices", lambada(5)}, {"sample-every", sample_every}}));
        EXPECT_EQ(result.status, 0) << result.err;
        EXPECT_NE(result.out.find(", accuracy 0."), std::string::npos) << result.out;
    }
}

TEST_F(Choices, Refusals) {
    const std::string file = hellaswag(3), model = at("model");
    write_bytes(at("bad.jsonl"), read_bytes(file) + "{}");
    expect_refused({"eval", "--from", model, "--choices", at("bad.jsonl")},
                   {"bad.jsonl: line 4", "\"ctx\" is missing"});
    expect_refused(training("out", {{"choices", at("bad.jsonl")}}), {"bad.jsonl: line 4", "\"ctx\" is missing"});
    expect_refused({"eval", "--from", model, "--choices", at("missing")}, {"missing", "No such file"});
    expect_refused({"eval", "--from", model, "--data", text, "--limit", "3"}, {"--limit", "--choices"});
    expect_refused(training("out", {{"limit", "3"}}), {"--limit", "--choices"});
    expect_refused({"eval", "--from", model, "--choices", file, "--stride", "3"}, {"--stride", "--data"});
    expect_refused({"eval", "--from", model}, {"--data: missing", "--choices"});
}
