// Models whose vocabulary differs from the tokenizer's: more rows than tokens, fewer, or no tokenizer at all.
#include "dev/test/program/program.h"
#include "gpt2.h"
#include "io/model/checkpoint.h"
#include "io/data/dataset.h"
#include "program/log.h"

namespace fs = std::filesystem;

namespace {

constexpr GPT2Config rows300{.context = 16, .vocab = 300, .layers = 1, .heads = 2, .channels = 8};

// The mean over all predictions in windows of the context, by plain loops in double precision.
double reference_loss(const GPT2Config& config, const std::vector<float>& parameters, const std::vector<int32_t>& ids) {
    GPT2<Reference<double>> model({}, config, 1, config.context, ActivationPolicy::inference);
    std::copy(parameters.begin(), parameters.end(), model.parameters.get());
    const int64_t predictions = std::ssize(ids) - 1;
    double sum = 0;
    for (int64_t at = 0; at < predictions; at += config.context)
        sum += model.evaluate(&ids[at], &ids[at + 1], 1, std::min(config.context, predictions - at));
    return sum / static_cast<double>(predictions);
}

std::string printed(double loss) {
    char line[64];
    std::snprintf(line, sizeof line, "loss %.6f\n", loss);
    return line;
}

// Parameters far from uniform, so that one more or fewer row in the softmax is visible in the loss.
std::vector<float> spread_parameters(const GPT2Config& config) {
    std::vector<float> values = random_parameters(config);
    for (float& v : values) v *= 20;
    return values;
}

class VocabularyTest : public Program {
protected:
    void learn_on_the_way(const std::string& tokenizer, Args how);
    std::string model(const std::string& name, const GPT2Config& config, const std::vector<float>& parameters,
                      const Tokenizer* tokenizer) const {
        fs::create_directory(at(name));
        write_model_directory(at(name), config, parameters.data(), tokenizer);
        return at(name);
    }
    std::string eval(const std::string& from, const std::string& data, const Args& more = {}) const {
        Args args = more;
        args.insert({{"from", from}, {"data", data}});
        const std::string printed = expect_done(words("eval", args));
        return printed.substr(0, printed.find(" nats")) + "\n";
    }
    std::string generate(const std::string& from, const Args& more = {}) const {
        Args args = more;
        args.insert({{"from", from}, {"tokens", "40"}});
        return expect_text(words("generate", args));
    }
    // Expects success, with a single line on standard error that contains `part`.
    std::string expect_warned(std::vector<std::string> arguments, const std::string& part) const {
        const Result result = run(std::move(arguments));
        EXPECT_EQ(result.status, 0) << result.err;
        EXPECT_NE(result.err.find(part), std::string::npos) << result.err << "lacks: " << part;
        EXPECT_EQ(result.err.find('\n') + 1, result.err.size()) << result.err;
        return result.out;
    }
    // The run was of 6 steps, saved every 3.
    void resume_is_as_unbroken(const std::string& out) const {
        const std::string unbroken = read_bytes(at(out + "/step_000006/model.safetensors"));
        fs::remove_all(at(out + "/step_000006"));
        expect_done({"train", "--resume", "--out", at(out)});
        EXPECT_TRUE(read_bytes(at(out + "/step_000006/model.safetensors")) == unbroken);
    }
    std::vector<int32_t> bytes_of_text() const {
        std::vector<int32_t> ids;
        for (const char c : read_bytes(text)) ids.push_back(static_cast<uint8_t>(c));
        return ids;
    }
    static std::vector<int32_t> random_ids(size_t count) {
        std::mt19937 random(7);
        std::vector<int32_t> ids(count);
        for (int32_t& id : ids) id = static_cast<int32_t>(random() % 299);
        return ids;
    }
    void shard(const std::string& name, const std::vector<int32_t>& ids) const {
        write_shard(at(name), {ids.begin(), ids.end()});
    }
    nlohmann::json config_of(const std::string& directory) const {
        return nlohmann::json::parse(read_bytes(directory + "/config.json"));
    }
};

}  // namespace

// As in transformers, every row of the model takes part in the softmax of the loss.
TEST_F(VocabularyTest, RowsBeyondTheTokenizerTakePartInTheLoss) {
    const std::vector<float> parameters = spread_parameters(rows300);
    const std::string from = model("model", rows300, parameters, load_tokenizer("byte").get()),
                      loss = printed(reference_loss(rows300, parameters, bytes_of_text()));
    EXPECT_EQ(eval(from, text), loss);
    expect_done({"convert", from, at("model.bin")});
    EXPECT_EQ(eval(at("model.bin"), text, {{"tokenizer", "byte"}}), loss);
    expect_done({"tokenize", text, at("text.bin")});
    EXPECT_EQ(eval(from, at("text.bin")), loss);
}

// The size that nanoGPT uses, and to which pad_to_multiple_of=64 pads GPT-2's 50257.
TEST_F(VocabularyTest, Gpt2WithRowsUpTo50304) {
    const GPT2Config config{.context = 16, .vocab = 50304, .layers = 1, .heads = 1, .channels = 4};
    const std::vector<float> parameters = spread_parameters(config);
    const auto gpt2 = load_tokenizer("gpt2");
    write_bytes(text, read_bytes(text).substr(0, 200));
    const std::string from = model("model", config, parameters, gpt2.get());
    const std::string loss = printed(reference_loss(config, parameters, gpt2->encode(read_bytes(text))));
    EXPECT_EQ(eval(from, text), loss);
    expect_done({"convert", from, at("model.bin")});
    EXPECT_EQ(eval(at("model.bin"), text, {{"tokenizer", "gpt2"}}), loss);
    // A warning if there are far more rows than tokens.
    expect_warned({"eval", "--from", from, "--data", text, "--tokenizer", "byte"},
                  "256 tokens and the model has 50304");
}

TEST_F(VocabularyTest, RowsBeyondTheTokenizerAreNeverDrawn) {
    std::vector<float> parameters = random_parameters(rows300);
    const ParameterTable table(rows300);
    const int64_t C = rows300.channels;
    for (int64_t c = 0; c < C; ++c) {  // whatever the context, each of these rows is by far the likeliest
        parameters[table.lnfb.at() + c] = 5;
        for (int64_t id = 256; id < rows300.vocab; ++id) parameters[table.wte.at() + id * C + c] = 5;
    }
    const std::string from = model("model", rows300, parameters, load_tokenizer("byte").get());
    for (const char* temperature : {"0", "1"})
        EXPECT_EQ(generate(from, {{"temperature", temperature}, {"prompt", "a"}}).size(), 1u + 40 + 1);
    EXPECT_EQ(generate(from, {{"top-k", "3"}, {"prompt", "a"}}).size(), 1u + 40 + 1);
    expect_done(words("train", {{"init", from},
                                {"data", text},
                                {"out", at("run")},
                                {"seq", "16"},
                                {"steps", "1"},
                                {"lr", "0"},
                                {"sample-tokens", "40"}}));
    EXPECT_FALSE(read_samples(at("run/samples.jsonl"), 1).at(0).text.empty());
}

TEST_F(VocabularyTest, TrainingWithMoreRowsThanTokens) {
    const std::string out = train("run", {{"vocab", "300"}, {"save-every", "3"}, {"sample-tokens", "5"}});
    EXPECT_NE(out.find("vocabulary 300"), std::string::npos) << out;
    resume_is_as_unbroken("run");
    EXPECT_EQ(config_of(at("run/latest"))["vocab_size"], 300);
    EXPECT_EQ(load_tokenizer(at("run/latest"))->name(), "byte");
    EXPECT_NEAR(std::stod(eval(at("run"), at("run/data/val.bin")).substr(5)), read_log(at("run/log.jsonl")).back().loss,
                2e-6);

    // Fine-tuned, it keeps its rows and its tokenizer.
    const Args tune = {{"init", at("run")}, {"data", text}, {"out", at("tuned")}, {"seq", "16"}, {"steps", "2"}};
    expect_done(words("train", tune));
    EXPECT_EQ(config_of(at("tuned/latest"))["vocab_size"], 300);
    EXPECT_EQ(load_tokenizer(at("tuned/latest"))->name(), "byte");
    expect_done({"train", "--resume", "--out", at("tuned"), "--steps", "3"});

    expect_refused(training("out", {{"vocab", "255"}}), {"--vocab: 255 is less than the 256 tokens", "byte"});
    expect_refused({"train", "--resume", "--out", at("run"), "--vocab", "301"}, {"--vocab", "301", "300"});
    expect_refused({"train", "--data", text, "--init", at("run"), "--vocab", "400"}, {"--vocab", "--init"});
}

// Only a token for which the model has no row is an error, wherever it occurs.
TEST_F(VocabularyTest, MoreTokensThanRows) {
    write_bytes(at("merges.txt"), "#version: 0.2\na b\n");  // tokens 256, "ab", and 257, end of text
    const auto tokenizer = load_tokenizer(at("merges.txt"));
    const GPT2Config rows256{.context = 16, .vocab = 256, .layers = 1, .heads = 2, .channels = 8};
    const std::vector<float> parameters = spread_parameters(rows256);
    const std::string from = model("model", rows256, parameters, tokenizer.get());
    EXPECT_EQ(eval(from, text), printed(reference_loss(rows256, parameters, tokenizer->encode(read_bytes(text)))));
    EXPECT_EQ(generate(from).size(), 1u + 40 + 1);
    EXPECT_EQ(config_of(from)["eos_token_id"], nullptr);  // the model lacks it
    const Args tune = {{"init", from}, {"out", at("run")}, {"seq", "16"}, {"steps", "2"}, {"sample-tokens", "9"}};
    Args good = tune, bad = tune;
    good["data"] = text;
    expect_done(words("train", good));
    EXPECT_FALSE(read_samples(at("run/samples.jsonl"), 1).at(0).text.empty());

    write_bytes(at("bad.txt"), std::string(950, 'x') + "ab" + std::string(48, 'y'));
    const std::vector<std::string> place = {"bad.txt", "id 256 (\"ab\")", "outside the model's vocabulary of 256"};
    bad["data"] = at("bad.txt"), bad["out"] = at("out");
    expect_refused(words("train", bad), [&] {
        auto parts = place;
        parts.push_back("token 50 of its last tenth");
        return parts;
    }());
    for (const std::string& data : {at("bad.txt"), at("bad.bin")}) {
        if (data == at("bad.bin")) expect_done({"tokenize", at("bad.txt"), data, "--tokenizer", at("merges.txt")});
        expect_refused({"eval", "--from", from, "--data", data}, {data, "token 950", "id 256", "vocabulary of 256"});
    }
    expect_refused({"generate", "--from", from, "--prompt", "cab"}, {"--prompt", "token 1", "id 256 (\"ab\")", "256"});
    expect_warned({"eval", "--from", from, "--data", text, "--tokenizer", at("merges.txt")},
                  "258 tokens and the model has 256");
}

// A published GPT-2 for something other than text: only config.json and model.safetensors.
TEST_F(VocabularyTest, EvaluatesShardsWithoutATokenizer) {
    const std::vector<float> parameters = spread_parameters(rows300);
    const std::string from = model("model", rows300, parameters, nullptr);
    const std::vector<int32_t> ids = random_ids(201);
    shard("ids.bin", ids);
    const std::string loss = printed(reference_loss(rows300, parameters, ids));
    EXPECT_EQ(eval(from, at("ids.bin")), loss);
    EXPECT_EQ(eval(from, at("ids.bin"), {{"tokenizer", "none"}}), loss);
    expect_done({"convert", from, at("model.bin")});
    EXPECT_EQ(eval(at("model.bin"), at("ids.bin")), loss);
    const Result back = run({"convert", at("model.bin"), at("hf")});
    EXPECT_EQ(back.status, 0);
    EXPECT_EQ(back.err, "no tokenizer written: " + at("model.bin") + " has none\n");
    EXPECT_EQ(read_bytes(at("hf/model.safetensors")), read_bytes(from + "/model.safetensors"));
    EXPECT_NE(expect_done({"info", from}).find("tokenizer none"), std::string::npos);

    expect_refused({"eval", "--from", from, "--data", text}, {text, "there is no tokenizer", "--tokenizer", ".bin"});
    shard("beyond.bin", {1, 2, 300, 3});
    expect_refused({"eval", "--from", from, "--data", at("beyond.bin")}, {"beyond.bin", "token 2", "id 300", "of 300"});
}

TEST_F(VocabularyTest, GeneratesIds) {
    const std::string from = model("model", rows300, spread_parameters(rows300), nullptr);
    const std::string out = generate(from, {{"prompt-ids", "7 299,0"}, {"tokens", "20"}});
    EXPECT_TRUE(out.starts_with("7 299 0 ") && out.ends_with(" \n")) << out;
    std::istringstream numbers(out);
    std::vector<int64_t> ids;
    for (int64_t id; numbers >> id;) ids.push_back(id);
    ASSERT_EQ(ids.size(), 23u) << out;
    EXPECT_LT(*std::ranges::max_element(ids), 300);
    EXPECT_EQ(generate(from, {{"prompt-ids", "7, 299 0"}, {"tokens", "20"}}), out);

    const auto refuse = [&](const Args& more, const std::vector<std::string>& parts) {
        Args args = more;
        args["from"] = from;
        expect_refused(words("generate", args), parts);
    };
    refuse({}, {"--prompt-ids", "no tokenizer"});
    refuse({{"prompt", "text"}}, {"--prompt", "no tokenizer", "--prompt-ids"});
    refuse({{"prompt-ids", "1 x2"}}, {"--prompt-ids", "token 1", "x2"});
    refuse({{"prompt-ids", "1 -2"}}, {"--prompt-ids", "token 1", "-2"});
    refuse({{"prompt-ids", "1 2.5"}}, {"--prompt-ids", "token 1", "2.5"});
    refuse({{"prompt-ids", "99999999999"}}, {"--prompt-ids", "token 0", "99999999999"});
    refuse({{"prompt-ids", "1 300"}}, {"--prompt-ids", "token 1", "300"});
    refuse({{"prompt-ids", " "}}, {"--prompt-ids", "empty"});
    refuse({{"prompt-ids", "1"}, {"prompt", "a"}}, {"--prompt-ids", "cannot be used with --prompt", "leave one"});

    // With the id with which GPT-2 begins, from config.json; and with a tokenizer.
    std::string config = read_bytes(from + "/config.json");
    for (const std::string key : {"bos_token_id", "eos_token_id"}) {
        const std::string none = "\"" + key + "\": null";
        ASSERT_NE(config.find(none), std::string::npos);
        config.replace(config.find(none), none.size(), "\"" + key + "\": 17");
    }
    write_bytes(from + "/config.json", config);
    EXPECT_TRUE(generate(from).starts_with("17 "));
    EXPECT_EQ(generate(from, {{"prompt-ids", "99 97"}, {"tokenizer", "byte"}}),
              generate(from, {{"prompt", "ca"}, {"tokenizer", "byte"}}));
}

TEST_F(VocabularyTest, TrainsOnIdsThatAreNoText) {
    std::vector<int32_t> ids = random_ids(1000);
    shard("ids.bin", ids);
    const Args options = {
        {"data", at("ids.bin")}, {"tokenizer", "none"}, {"vocab", "300"}, {"save-every", "3"}, {"sample-tokens", "5"}};
    const std::string out = train("run", options);
    EXPECT_NE(out.find("vocabulary 300"), std::string::npos) << out;
    resume_is_as_unbroken("run");
    EXPECT_FALSE(path_exists(at("run/latest/tokenizer.json")));
    EXPECT_EQ(config_of(at("run/latest"))["vocab_size"], 300);
    const std::string sample = read_samples(at("run/samples.jsonl"), 1).at(0).text;
    EXPECT_EQ(std::ranges::count(sample, ' '), 5) << sample;
    EXPECT_EQ(sample.find_first_not_of("0123456789 "), std::string::npos) << sample;
    EXPECT_NE(read_bytes(at("run/report.html")).find(sample.substr(0, sample.size() - 1)), std::string::npos);
    expect_done({"info", at("run"), "--verify"});

    // Its validation loss is that of the last tenth, in every command that reads it, without an option.
    shard("val.bin", {ids.begin() + 900, ids.end()});
    const std::string loss = eval(at("run"), at("val.bin"));
    EXPECT_NEAR(std::stod(loss.substr(5)), read_log(at("run/log.jsonl")).back().loss, 2e-6);
    generate(at("run"), {{"prompt-ids", "1 2"}});
    expect_done({"convert", at("run"), at("model.bin")});
    EXPECT_EQ(eval(at("model.bin"), at("val.bin")), loss);
    Args tune = {{"init", at("model.bin")},
                 {"data", at("ids.bin")},
                 {"out", at("tuned")},
                 {"seq", "16"},
                 {"steps", "2"},
                 {"lr", "0"},
                 {"sample-tokens", "5"}};
    expect_done(words("train", tune));
    EXPECT_EQ(eval(at("tuned"), at("val.bin")), loss);
    expect_done({"train", "--resume", "--out", at("tuned"), "--steps", "3"});

    Args refused = options;
    refused["data"] = text;
    expect_refused(training("out", refused), {text, "there is no tokenizer", ".bin"});
    refused = options;
    refused.erase("vocab");
    expect_refused(training("out", refused), {"--vocab", "--tokenizer none"});
    refused["vocab"] = "299", ids[3] = 299, shard("ids.bin", ids);
    expect_refused(training("out", refused), {"ids.bin", "token 3", "id 299", "--vocab"});
    expect_refused({"tokenize", text, at("out.bin"), "--tokenizer", "none"}, {"--tokenizer", "none"});
    expect_refused({"train", "--resume", "--out", at("run"), "--tokenizer", "byte"}, {"--tokenizer", "byte", "none"});
}

// The run learns from its training part, keeps what it has learned, and does not tokenize the text again.
void VocabularyTest::learn_on_the_way(const std::string& tokenizer, Args how) {
    const std::string lines = read_bytes(text);
    write_bytes(text, lines + std::string(lines.size() / 10, '~'));  // in the last tenth only
    expect_done(training("run", {{"tokenizer", tokenizer}, {"save-every", "3"}}));
    write_bytes(at("part"),
                read_bytes(text).substr(0, static_cast<size_t>(0.9 * (static_cast<double>(lines.size()) +
                                                                      static_cast<double>(lines.size() / 10)))));
    how.insert({"vocab", "300"});
    std::vector<std::string> learn = words("tokenize", how);
    learn.insert(learn.end(), {"--train", at("part"), at("own.json")});
    expect_done(learn);
    const std::string learned = read_bytes(at("own.json"));
    EXPECT_EQ(read_bytes(at("run/latest/tokenizer.json")), learned);
    EXPECT_EQ(learned.find("~~"), std::string::npos) << "not from the validation part";
    EXPECT_EQ(config_of(at("run/latest"))["vocab_size"], 300);
    EXPECT_EQ(config_of(at("run/latest"))["eos_token_id"], 0);

    expect_done(training("same", {{"tokenizer", at("own.json")}, {"save-every", "3"}}));
    for (const char* file : {"/data/train.bin", "/data/val.bin", "/latest/model.safetensors"})
        EXPECT_TRUE(read_bytes(at("run") + file) == read_bytes(at("same") + file)) << file;

    const auto tokenized = fs::last_write_time(at("run/data/train.bin"));
    resume_is_as_unbroken("run");
    EXPECT_EQ(fs::last_write_time(at("run/data/train.bin")), tokenized);
    EXPECT_EQ(read_bytes(at("run/latest/tokenizer.json")), learned);
    expect_done({"convert", at("run"), at("run.gguf")});
    EXPECT_EQ(generate(at("run.gguf"), {{"prompt", "line"}}), generate(at("run"), {{"prompt", "line"}}));
    EXPECT_EQ(eval(at("run.gguf"), text), eval(at("run"), text));
}
TEST_F(VocabularyTest, ATokenizerLearnedOnTheWay) { learn_on_the_way("bpe:300", {}); }
TEST_F(VocabularyTest, SuperwordsLearnedOnTheWay) { learn_on_the_way("superbpe:300", {{"superwords", ""}}); }
