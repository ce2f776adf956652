// The other commands of the program, on a model that it trained: generate, eval, convert, tokenize and info.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "dev/test/program/program.h"
#include "io/model/checkpoint.h"
#include "io/file/file.h"
#include "program/log.h"

namespace fs = std::filesystem;

namespace {

class Tools : public Program {
protected:
    Tools() {
        train("run", {{"steps", "30"}});
        read_model_files = snapshot().size();
    }
    std::string generate(const Args& more) const {
        Args args = more;
        args.insert({{"from", at("run")}, {"prompt", "line"}, {"tokens", "40"}});
        return expect_text(words("generate", args));
    }
    std::string eval(const std::string& from, const std::string& data, const Args& more = {}) const {
        Args args = more;
        args.insert({{"from", from}, {"data", data}});
        return expect_done(words("eval", args));
    }
    static double loss(const std::string& printed) {
        double value = 0;
        EXPECT_EQ(sscanf(printed.c_str(), "loss %lf", &value), 1) << printed;
        return value;
    }
    size_t read_model_files = 0;
};

}  // namespace

TEST_F(Tools, GenerateAddsTokensToThePrompt) {
    const std::string out = generate({});
    EXPECT_TRUE(out.starts_with("line")) << out;
    EXPECT_EQ(out.size(), 4u + 40 + 1);  // bytes are the tokens; then a line break
    EXPECT_EQ(generate({{"tokens", "1"}}), out.substr(0, 5) + "\n");
    const std::string prompt = "naïve 日本語 🙂\n";
    EXPECT_TRUE(generate({{"prompt", prompt}}).starts_with(prompt));
    const std::string invalid = "\xff\x80";
    EXPECT_TRUE(generate({{"prompt", invalid}}).starts_with(invalid));
}

TEST_F(Tools, GenerateIsDeterminedByItsSeed) {
    const std::string out = generate({{"seed", "5"}});
    EXPECT_EQ(generate({{"seed", "5"}}), out);
    EXPECT_EQ(generate({{"seed", "5"}, {"threads", "3"}}), out);
    EXPECT_NE(generate({{"seed", "6"}}), out);
    EXPECT_NE(generate({{"seed", "5"}, {"temperature", "2"}}), out);
    EXPECT_NE(generate({{"seed", "5"}, {"top-k", "2"}}), out);
}

TEST_F(Tools, GenerateTheLikeliest) {
    const std::string out = generate({{"temperature", "0"}, {"seed", "1"}});
    EXPECT_EQ(generate({{"temperature", "0"}, {"seed", "2"}}), out);
    EXPECT_EQ(generate({{"top-k", "1"}, {"seed", "3"}}), out);
}

TEST_F(Tools, GenerateFromAPromptBeyondTheContext) {
    const std::string prompt = "only the last sixteen bytes of this count";
    const std::string out = generate({{"prompt", prompt}, {"temperature", "0"}});
    EXPECT_TRUE(out.starts_with(prompt));
    const std::string end = prompt.substr(prompt.size() - 16);
    EXPECT_EQ(generate({{"prompt", end}, {"temperature", "0"}}), out.substr(prompt.size() - 16));
}

TEST_F(Tools, EvalAgreesWithTheLogsLastValidation) {
    const std::string printed = eval(at("run"), at("run/data/val.bin"));
    double nats = 0, perplexity = 0, bits = 0;
    ASSERT_EQ(sscanf(printed.c_str(), "loss %lf nats per token, perplexity %lf, %lf bits per byte\n", &nats,
                     &perplexity, &bits),
              3)
        << printed;
    EXPECT_NEAR(perplexity, std::exp(nats), 1e-3);
    EXPECT_NEAR(bits, nats / std::numbers::ln2, 1e-5) << "a token is a byte";
    EXPECT_NEAR(loss(printed), read_log(at("run/log.jsonl")).back().loss, 2e-6);
    for (const char* batch : {"1", "7", "1000"})
        EXPECT_NEAR(loss(eval(at("run"), at("run/data/val.bin"), {{"batch", batch}})), loss(printed), 2e-6);
    EXPECT_GT(loss(eval(at("run"), at("run/data/val.bin"), {{"seq", "1"}})), loss(printed));  // sees one byte only
}

TEST_F(Tools, EvalOfTextIsThatOfItsShard) {
    EXPECT_NE(expect_done({"tokenize", text, at("text.bin")}).find(" tokens"), std::string::npos);
    EXPECT_EQ(eval(at("run"), text), eval(at("run"), at("text.bin")));
    EXPECT_EQ(read_bytes(at("text.bin")).size(), 1024 + 2 * read_bytes(text).size());
    for (size_t i = 0; i < 100; ++i) {
        EXPECT_EQ(read_bytes(at("text.bin"))[1024 + 2 * i], read_bytes(text)[i]);
        EXPECT_EQ(read_bytes(at("text.bin"))[1025 + 2 * i], 0);
    }
}

// Standard output contains only the result.
TEST_F(Tools, WhatIsToldOfTheDataGoesToStandardError) {
    const std::string marked = at("marked.txt"), note = marked + ": begins with a byte-order mark";
    write_bytes(marked, "\xEF\xBB\xBF" + read_bytes(text));
    const auto expect_note = [&](const std::vector<std::string>& arguments) {
        const Result result = run(arguments);
        EXPECT_EQ(result.status, 0);
        EXPECT_TRUE(result.err.starts_with(program_name() + ": " + note)) << result.err;
        EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
        EXPECT_EQ(result.out.find(note), std::string::npos);
    };
    expect_note({"eval", "--from", at("run"), "--data", marked});
    expect_note({"tokenize", marked, at("marked.bin")});
    expect_note(training("marked", {{"data", marked}}));
    EXPECT_NE(expect_done({"tokenize", text, at("bytes.bin")}).find("(--tokenizer byte)"), std::string::npos);
}

TEST_F(Tools, ConvertThereAndBack) {
    const std::string original = eval(at("run"), text);
    EXPECT_NE(expect_done(words("eval", {{"from", at("run/step_000030")}, {"data", text}})), "");
    expect_done({"convert", at("run"), at("model.bin")});
    expect_done({"convert", at("model.bin"), at("hf")});
    expect_done({"convert", at("hf/model.safetensors"), at("again.bin")});
    EXPECT_EQ(read_bytes(at("again.bin")), read_bytes(at("model.bin")));
    EXPECT_EQ(read_bytes(at("hf/model.safetensors")), read_bytes(at("run/latest/model.safetensors")));
    for (const char* form : {"run/latest", "model.bin", "hf", "hf/model.safetensors"})
        EXPECT_EQ(eval(at(form), text), original) << form;

    expect_done({"convert", at("run"), at("half.bin"), "--bf16"});
    EXPECT_LT(read_bytes(at("half.bin")).size(), read_bytes(at("model.bin")).size() * 52 / 100);
    EXPECT_NEAR(loss(eval(at("half.bin"), text)), loss(original), 0.02);
    EXPECT_NE(eval(at("half.bin"), text), original);
}

TEST_F(Tools, InitGoesOnFromEveryForm) {
    expect_done({"convert", at("run"), at("model.bin")});
    expect_done({"convert", at("run"), at("hf")});
    double first = 0;
    for (const std::string form : {"run", "hf", "model.bin"}) {
        const std::string out = "from " + form;
        expect_done(words("train", {{"data", text},
                                    {"out", at(out)},
                                    {"init", at(form)},
                                    {"steps", "3"},
                                    {"batch", "2"},
                                    {"seq", "16"},
                                    {"sample-tokens", "0"}}));
        const auto log = read_log(at(out + "/log.jsonl"));
        EXPECT_NEAR(log[0].loss, read_log(at("run/log.jsonl")).back().loss, 1e-9) << form;
        if (first == 0) first = log.back().loss;
        EXPECT_EQ(log.back().loss, first) << form;
    }
}

TEST_F(Tools, InfoKnowsEveryFileOfARun) {
    expect_done({"convert", at("run"), at("model.bin")});
    const std::pair<const char*, const char*> forms[] = {{"run", "checkpoint"},
                                                         {"run/latest", "checkpoint"},
                                                         {"run/latest/model.safetensors", "safetensors"},
                                                         {"run/latest/optimizer.safetensors", "adam_m"},
                                                         {"run/log.jsonl", "30"},
                                                         {"run/data/train.bin", "shard"},
                                                         {"model.bin", "llm.c"},
                                                         {"text.txt", "text"}};
    for (const auto& [path, word] : forms)
        for (const bool verify : {false, true}) {
            std::vector<std::string> arguments = {"info", at(path)};
            if (verify) arguments.push_back("--verify");
            const std::string out = expect_done(arguments);
            EXPECT_NE(out.find(word), std::string::npos) << path << ":\n" << out;
        }
    expect_done({"info", at("run/latest/tokenizer.json")});
    expect_done({"info", at("run/latest/trainer_state.json")});
    expect_done({"info", at("run/latest/config.json")});
}

// Scripts use the exit status.
TEST_F(Tools, InfoVerifyEndsWithStatus1WhereACheckpointIsDamaged) {
    for (const std::string file : {"model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json"}) {
        const std::string path = at("run/latest/" + file), good = read_bytes(path);
        std::string damaged = good;
        damaged[damaged.size() / 2] ^= 1;
        write_bytes(path, damaged);
        for (const char* named : {"run", "run/latest"}) {
            const Result result = run({"info", at(named), "--verify"});
            EXPECT_EQ(result.status, 1) << named << ", " << file << ": " << result.err;
            const size_t line = result.out.find("\"" + file + "\" "), end = result.out.find('\n', line);
            ASSERT_NE(line, std::string::npos) << result.out;
            EXPECT_NE(result.out.substr(line, end - line).find("DAMAGED"), std::string::npos) << result.out;
        }
        write_bytes(path, good);
    }
    expect_done({"info", at("run"), "--verify"});  // without damage it works
}

// The cached tokens of a run's text are checked too, and written again if they are damaged.
TEST_F(Tools, DamagedTokensOfATextAreFoundAndMadeAnew) {
    fs::copy(at("run"), at("damaged"), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const std::string shard = at("damaged/data/train.bin"), good = read_bytes(shard);
    std::string bad = good;
    bad[bad.size() / 2] ^= 1;
    write_bytes(shard, bad);
    for (const char* named : {"damaged", "damaged/data", "damaged/data/train.bin"}) {
        const Result verify = run({"info", at(named), "--verify"});
        EXPECT_EQ(verify.status, 1) << named << verify.out;
        EXPECT_NE(verify.out.find("DAMAGED: " + shard + ": CRC-32"), std::string::npos) << named << verify.out;
    }
    const Result resumed = run({"train", "--resume", "--out", at("damaged"), "--steps", "33"});
    EXPECT_EQ(resumed.status, 0);
    EXPECT_NE(resumed.err.find(shard + ": CRC-32"), std::string::npos) << resumed.err;
    EXPECT_EQ(std::ranges::count(resumed.err, '\n'), 1) << resumed.err;
    EXPECT_TRUE(read_bytes(shard) == good);
    expect_done({"info", at("damaged/data"), "--verify"});
    expect_done({"train", "--resume", "--out", at("run"), "--steps", "33"});
    expect_same_run("damaged", "run");
}

// A NaN in the weights gives neither text nor a loss.
TEST_F(Tools, AModelThatIsNotAllNumbersEndsWithStatus1) {
    const GPT2Config config = read_model_config(at("run"));
    const ParameterTable table(config);
    std::vector<float> parameters(table.size);
    read_model(at("run"), config, parameters.data());
    const auto tokenizer = load_tokenizer("byte");
    const auto write_with = [&](const std::string& name, const Parameter& where, int64_t count, float value) {
        std::vector<float> changed = parameters;
        std::fill_n(changed.begin() + where.at(), count, value);
        fs::create_directory(at(name));
        write_model_directory(at(name), config, changed.data(), tokenizer.get());
    };
    const auto expect_failed = [&](const std::vector<std::string>& arguments, const std::string& part) {
        const Result result = run(arguments);
        EXPECT_EQ(result.status, 1) << result.err;
        EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
        EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
        EXPECT_EQ(result.out.find("nan"), std::string::npos) << result.out;
        return result.out;
    };
    const auto expect_all_fail = [&](const std::string& from, const std::string& part) {
        for (const char* temperature : {"0", "0.8"})
            EXPECT_EQ(expect_failed({"generate", "--from", from, "--temperature", temperature}, part), "");
        EXPECT_EQ(expect_failed({"eval", "--from", from, "--data", text}, part), "");
    };
    const auto expect_init_fails = [&](const std::string& from, const std::string& part) {
        expect_failed(words("train", {{"init", from}, {"data", text}, {"out", at("from bad")}, {"seq", "16"}}), part);
        EXPECT_FALSE(path_exists(at("from bad")));
    };

    write_with("nan", table.fcw, 1, NAN);
    const std::string nan = "tensor transformer.h.0.mlp.c_fc.weight: 1 NaN or infinite value";
    expect_all_fail(at("nan"), nan);
    expect_init_fails(at("nan"), nan);
    write_with("infinite", table.wpe, 1, -INFINITY);
    expect_all_fail(at("infinite"), "tensor transformer.wpe.weight: 1 NaN or infinite value");
    write_with("overflowing", table.lnfw, 16, 3.4e38f);  // numbers, as are all the weights
    expect_failed({"eval", "--from", at("overflowing"), "--data", text}, "loss of sequences 1 to 4 of");
    write_bytes(at("choices"), R"({"ctx":"a","endings":["b","c"],"label":0})");
    expect_failed({"eval", "--from", at("overflowing"), "--choices", at("choices")}, "choices: the loss of example 0 ");
    EXPECT_EQ(expect_failed({"generate", "--from", at("overflowing"), "--prompt", "x"}, "logits of token 1"), "x");

    // convert copies them with a warning, and info counts them.
    const Result converted = run({"convert", at("nan"), at("nan.bin")});
    EXPECT_EQ(converted.status, 0);
    EXPECT_NE(converted.err.find(nan), std::string::npos) << converted.err;
    expect_failed({"eval", "--from", at("nan.bin"), "--data", text}, nan);
    EXPECT_NE(expect_done({"info", at("nan.bin")}).find("1 NaN or infinite"), std::string::npos);
}

// The handling of <|endoftext|> in a text is reported once, on standard output; standard error stays empty.
TEST_F(Tools, SpecialTokensOfATextAreSaid) {
    const std::string tokenizer = at("hf");
    fs::create_directory(tokenizer);
    load_tokenizer("byte")->save_hugging_face(tokenizer);
    auto file = nlohmann::json::parse(read_bytes(tokenizer + "/tokenizer.json"));
    file["added_tokens"] = {{{"id", 256}, {"content", "<|endoftext|>"}, {"special", true}}};
    write_bytes(tokenizer + "/tokenizer.json", file.dump());
    const std::string documents = at("documents.txt"), said = " <|endoftext|> tokens; --no-special-tokens reads";
    write_bytes(documents, read_bytes(text) + "<|endoftext|>" + read_bytes(text) + "<|endoftext|>");
    const auto count = [&](const std::string& printed) {
        EXPECT_LE(printed.find(said), printed.rfind(said)) << "once: " << printed;
        return printed.find(said) != std::string::npos && printed.find(said) == printed.rfind(said);
    };
    const Args with_tokenizer = {{"data", documents}, {"tokenizer", tokenizer}};
    Args as_text = with_tokenizer;
    as_text["no-special-tokens"] = "";
    EXPECT_TRUE(count(train("documents", with_tokenizer)));
    EXPECT_FALSE(count(train("as_text", as_text)));
    EXPECT_TRUE(count(eval(at("documents"), documents)));
    EXPECT_FALSE(count(eval(at("documents"), documents, {{"no-special-tokens", ""}})));
    EXPECT_TRUE(count(expect_done({"tokenize", documents, at("d.bin"), "--tokenizer", tokenizer})));
    EXPECT_TRUE(count(expect_done({"train", "--resume", "--out", at("documents"), "--steps", "12"})));
    EXPECT_FALSE(count(expect_done({"train", "--resume", "--out", at("as_text"), "--steps", "12"})));
    EXPECT_NE(run({"train", "--resume", "--out", at("as_text"), "--tokenizer", "gpt2"}).status, 0);
    EXPECT_EQ(read_bytes(at("documents/latest/tokenizer.json")), file.dump());
    const Result prompt =
        run(words("generate", {{"from", at("documents")}, {"prompt", "<|endoftext|>"}, {"tokens", "1"}}));
    EXPECT_EQ(prompt.status, 0);
    EXPECT_EQ(prompt.err, "--prompt: 1 <|endoftext|> token; --no-special-tokens reads it as text\n");
    EXPECT_TRUE(prompt.out.starts_with("<|endoftext|>"));
}

TEST_F(Tools, ReadingChangesNothing) {
    generate({{"tokens", "1"}});
    eval(at("run"), text);
    expect_done({"info", at("run")});
    EXPECT_EQ(snapshot().size(), read_model_files);
}

TEST_F(Tools, HelpOfEveryCommand) {
    for (const char* command : {"train", "generate", "eval", "convert", "tokenize", "info"}) {
        const std::string help = expect_done({command, "--help"});
        EXPECT_TRUE(help.starts_with("Usage: train_gpt2")) << help;
    }
    EXPECT_NE(expect_done({"--help"}).find("generate"), std::string::npos);
}
