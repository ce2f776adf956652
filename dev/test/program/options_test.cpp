// The command line: defaults, presets, what is refused and in which words, and what --resume takes from a checkpoint.
#include "program/options.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/file/error.h"

namespace {

Options parse(std::vector<const char*> words) {
    words.insert(words.begin(), "train_gpt2");
    return parse_options(static_cast<int>(words.size()), words.data());
}

std::string error_of(std::vector<const char*> words) {
    try {
        parse(std::move(words));
    } catch (const InputError& error) {
        return error.what();
    }
    return "no error";
}

std::string help_of(std::vector<const char*> words) {
    try {
        parse(std::move(words));
    } catch (const HelpRequest& help) {
        return help.text;
    }
    return "no help";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(Options, NoArgumentsTrainTheTinyModel) {
    const Options o = parse({});
    EXPECT_EQ(o.command, "train");
    EXPECT_EQ(o.data, "data/tinyshakespeare.txt");
    EXPECT_EQ(o.tokenizer, "byte");
    EXPECT_EQ(o.model, "tiny");
    EXPECT_EQ(o.layers, gpt2_preset("tiny")->layers);
    EXPECT_EQ(o.context, gpt2_preset("tiny")->context);
    EXPECT_EQ(o.total_batch, o.batch * o.seq);
    EXPECT_EQ(o.out, "out/tiny");
    EXPECT_EQ(o.clip, 1.0);
    EXPECT_FALSE(o.given("batch"));
}

TEST(Options, PresetBringsShapeAndDefaultsAndYieldsToWhatIsGiven) {
    const Options o = parse({"train", "--model", "d12", "--lr=1e-4", "--seq", "64"});
    EXPECT_EQ(o.channels, 768);
    EXPECT_EQ(o.context, 1024);
    EXPECT_EQ(o.lr, 1e-4);
    EXPECT_EQ(o.seq, 64);
    EXPECT_EQ(o.beta2, 0.95);
    EXPECT_EQ(o.total_batch, 4 * 64);
    EXPECT_TRUE(o.given("seq"));
    EXPECT_FALSE(o.given("beta2"));
}

TEST(Options, DefaultsFollowContextAndSteps) {
    EXPECT_EQ(parse({"--context", "48"}).seq, 48);
    EXPECT_EQ(parse({"--steps", "50"}).warmup, 5);
    EXPECT_EQ(parse({"--layers", "6"}).model, "custom");
}

TEST(Options, EveryCommandParses) {
    const Options g = parse({"generate", "--prompt", "--x [a,b]", "--temperature", "0", "--top-k", "40"});
    EXPECT_EQ(g.prompt, "--x [a,b]");
    EXPECT_EQ(g.temperature, 0);
    EXPECT_EQ(g.tokens, 256);
    EXPECT_EQ(parse({"generate"}).prompt, "\n");
    EXPECT_EQ(parse({"eval", "--data", "x.txt"}).seq, 0);
    const Options c = parse({"convert", "a", "b.bin", "--bf16"});
    EXPECT_EQ(c.in_path + " " + c.out_path, "a b.bin");
    EXPECT_TRUE(c.bf16);
    EXPECT_EQ(parse({"tokenize", "a.txt", "b.bin", "--tokenizer", "gpt2"}).tokenizer, "gpt2");
    EXPECT_TRUE(parse({"info", "train", "--verify"}).verify);  // a path may be called as a command
}

TEST(Options, BadValuesNameOptionFoundAndExpected) {
    EXPECT_EQ(error_of({"--batch", "-3"}),
              "--batch: found -3, expected a whole number 1 … 65536; --help lists the options");
    EXPECT_TRUE(contains(error_of({"--batch", "4.5"}), "found 4.5"));
    EXPECT_TRUE(contains(error_of({"--batch", "99999999999999999999"}), "expected a whole number"));
    EXPECT_TRUE(contains(error_of({"--batch", ""}), "found nothing"));
    EXPECT_TRUE(contains(error_of({"--lr", "nan"}), "--lr: found nan, expected 0 … 10"));
    EXPECT_TRUE(contains(error_of({"--final-lr-frac", "1.5"}), "expected 0 … 1;"));
    EXPECT_TRUE(contains(error_of({"--schedule", "step"}), "expected cosine, linear, constant or wsd"));
    EXPECT_TRUE(contains(error_of({"--val", ""}), "--val: found nothing"));
    EXPECT_TRUE(contains(error_of({"generate", "--temperature", "-1"}), "found -1"));
    EXPECT_TRUE(contains(error_of({"generate", "--top-k", "-1"}), "found -1"));
}

TEST(Options, VersionIsAskedOfAnyCommand) {
    EXPECT_THROW(parse({"--version"}), VersionRequest);
    EXPECT_THROW(parse({"generate", "--version"}), VersionRequest);
    EXPECT_THROW(parse({"convert", "--version"}), VersionRequest);
    EXPECT_TRUE(contains(help_of({"--help"}), "--version"));
}

TEST(Options, UnknownNamesFailAndTheNearestIsOffered) {
    EXPECT_TRUE(contains(error_of({"--bach", "4"}), "did you mean --batch?"));
    EXPECT_TRUE(contains(error_of({"--hlep"}), "did you mean --help?"));
    EXPECT_TRUE(contains(help_of({"-help"}), "--data")) << "-h and more";
    EXPECT_TRUE(contains(error_of({"--verison"}), "did you mean --version?"));
    EXPECT_TRUE(contains(error_of({"eval", "--form", "out"}), "did you mean --from?"));
    EXPECT_TRUE(contains(error_of({"--beta3", "0.9"}), "did you mean --beta1 or --beta2?"));
    EXPECT_TRUE(contains(error_of({"-v"}), "--help lists them"));
    EXPECT_TRUE(contains(error_of({"--"}), "--help lists them"));
    EXPECT_TRUE(contains(error_of({"--total_batch=4"}), "--total_batch: found an unknown name"));
    EXPECT_TRUE(contains(error_of({"--wandb"}), "train --help lists them"));
    EXPECT_TRUE(contains(error_of({"generate", "--batch", "4"}), "an option of generate"));
    EXPECT_TRUE(contains(error_of({"finetune"}), "expected train, generate, eval, convert, tokenize or info"));
    EXPECT_TRUE(contains(error_of({"--data", "a.bin", "b.bin"}), "b.bin: found after the options"));
    EXPECT_TRUE(contains(error_of({"--seed", "1", "--seed", "2"}), "give it once"));
    EXPECT_NE(error_of({"--batch"}), "no error");
    EXPECT_NE(error_of({"--resume=maybe"}), "no error");
}

TEST(Options, ChoicesAreRefusedByName) {
    EXPECT_TRUE(contains(error_of({"--matmul", "fp16"}), "fp32 or bf16"));
    EXPECT_EQ(parse({"--optimizer", "muon", "--matmul", "bf16", "--recompute", "block"}).matmul, "bf16");
}

TEST(Options, Contradictions) {
    EXPECT_TRUE(contains(error_of({"--seq", "129"}), "at most the model's context 128"));
    EXPECT_TRUE(contains(error_of({"--total-batch", "5000"}), "the nearest: 4096 or 6144"));
    EXPECT_TRUE(contains(error_of({"--total-batch", "5"}), "the nearest: 2048"));
    EXPECT_EQ(parse({"--total-batch", "4096"}).total_batch, 4096);
    EXPECT_TRUE(contains(error_of({"--channels", "130"}), "a multiple of --heads 4"));
    EXPECT_TRUE(contains(error_of({"--warmup", "4000"}), "at most --steps 3000"));
    EXPECT_TRUE(contains(error_of({"--optimizer", "adamw", "--muon-lr", "0.1"}), "--optimizer muon"));
    EXPECT_TRUE(contains(error_of({"--resume", "--init", "x"}), "with --resume"));
    for (const char* shape : {"--layers", "--heads", "--channels", "--context"})
        EXPECT_TRUE(contains(error_of({"--init", "x", shape, "8"}), "with --init")) << shape;
    EXPECT_TRUE(contains(error_of({"--init", "x", "--model", "d12"}), "--model: found with --init"));
    EXPECT_TRUE(contains(error_of({"convert", "a", "b", "--bf16"}), "ends in .bin"));
    EXPECT_TRUE(contains(error_of({"tokenize", "a", "b"}), "ends in .bin"));
    EXPECT_TRUE(contains(error_of({"eval"}), "--data: found nothing"));
    EXPECT_TRUE(contains(error_of({"convert", "a"}), "OUT: found nothing"));
}

TEST(Options, HelpShowsEveryOptionWithItsDefault) {
    const std::string all = help_of({"--help"});
    for (const char* part :
         {"--batch ROWS", "[tiny 16, d12 … init 4]", "--layers N", "d48 48", "--optimizer adamw|muon",
          "train_gpt2 convert IN OUT", "--bf16", "--top-k TOKENS", "[out/tiny]"})
        EXPECT_TRUE(contains(all, part)) << part;
    const std::string generate = help_of({"generate", "--help"});
    EXPECT_TRUE(contains(generate, "--temperature T"));
    EXPECT_FALSE(contains(generate, "--batch"));
    EXPECT_TRUE(contains(help_of({"--batch", "4", "-h"}), "--total-batch"));
}

TEST(Options, ResumeTakesWhatIsNotGivenFromTheCheckpoint) {
    const std::string run = parse({"--model", "d12", "--layers", "3", "--lr", "0.000123", "--val", "v.txt", "--steps",
                                   "50", "--batch", "2", "--seed", "7"})
                                .to_json();
    for (const bool value : {false, true}) {  // a flag that was saved as false stays off
        Options flag = parse({"--resume"});
        flag.fill_from_json(value ? R"({"no-special-tokens": true})" : R"({"no-special-tokens": false})");
        EXPECT_EQ(flag.no_special_tokens, value);
    }
    Options o = parse({"--resume", "--steps", "5000", "--threads", "2"});
    o.fill_from_json(run);
    EXPECT_EQ(o.layers, 3);
    EXPECT_EQ(o.channels, 768);
    EXPECT_EQ(o.model, "custom");
    EXPECT_EQ(o.lr, 0.000123);
    EXPECT_EQ(o.val, "v.txt");
    EXPECT_EQ(o.steps, 5000);
    EXPECT_EQ(o.warmup, 5);  // the run's, not what 5000 steps would have by default
    EXPECT_EQ(o.batch, 2);
    EXPECT_EQ(o.seed, 7);
    EXPECT_EQ(o.threads, 2);
    EXPECT_EQ(o.to_json(), [&] {
        Options again = parse({"--resume"});
        again.fill_from_json(o.to_json());
        return again.to_json();
    }());
}

// Linux's paths are bytes, JSON's strings are UTF-8.
TEST(Options, ResumeKeepsPathsOfAnyBytes) {
    std::string all;
    for (int byte = 1; byte < 256; byte++) all += static_cast<char>(byte);
    for (const std::string& path : {all, std::string("caf\xE9.txt"), std::string("\xEF\xBF\xBD caf\xE9"),
                                    std::string("caf\u00E9.txt"), std::string("\xF0\x9F\x98\x80 \"quoted\"\n")}) {
        const std::string run = parse({"--data", path.c_str(), "--tokenizer", path.c_str()}).to_json();
        EXPECT_TRUE(nlohmann::json::accept(run)) << run;
        Options o = parse({"--resume", "--tokenizer", path.c_str()});
        o.fill_from_json(run);
        EXPECT_EQ(o.data, path);
        EXPECT_EQ(o.tokenizer, path);
        EXPECT_EQ(o.to_json(), run);
        EXPECT_EQ(o.list()[0], (std::pair<std::string, std::string>{"data", path}));
    }
    EXPECT_TRUE(contains(parse({"--data", "caf\u00E9.txt"}).to_json(), "\"data\": \"caf\u00E9.txt\"")) << "readable";
}

TEST(Options, ResumeWithASmallerBatchKeepsTheTokensOfAnUpdate) {
    Options o = parse({"--resume", "--batch", "8"});
    o.fill_from_json(parse({}).to_json());
    EXPECT_EQ(o.batch, 8);
    EXPECT_EQ(o.total_batch, 16 * 128);
}

TEST(Options, ResumeRefusesAnotherModel) {
    const auto resume = [](std::vector<const char*> words, const std::string& json) -> std::string {
        Options o = parse(std::move(words));
        try {
            o.fill_from_json(json);
        } catch (const InputError& error) {
            return error.what();
        }
        return "no error";
    };
    const std::string run = parse({}).to_json();
    EXPECT_TRUE(contains(resume({"--resume", "--layers", "6"}, run), "--layers: found 6, expected 4"));
    EXPECT_TRUE(contains(resume({"--resume", "--model", "d12"}, run), "--layers: found 12, expected 4"));
    EXPECT_TRUE(contains(resume({"--resume", "--no-special-tokens"}, R"({"no-special-tokens": false})"),
                         "--no-special-tokens: found true, expected false"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"no-special-tokens": 2})"), "--no-special-tokens: found 2"));
    EXPECT_TRUE(contains(resume({"--resume", "--tokenizer", "gpt2"}, run), "--tokenizer: found gpt2, expected byte"));
    EXPECT_EQ(resume({"--resume", "--model", "tiny"}, run), "no error");
    EXPECT_TRUE(contains(resume({"--resume", "--steps", "50"}, run), "--warmup: found 100"));
    EXPECT_TRUE(contains(resume({"--resume"}, "[1]"), "the checkpoint's options"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"batch": -1})"), "the checkpoint's options: --batch: found -1"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"lr": null})"), "--lr: found null"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"dropout": 0.1})"), "found dropout"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"batch": [56]})"), "--batch: found [56]")) << "bytes are for paths";
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"optimizer": ""})"), "--optimizer: found nothing"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"data": ""})"), "--data: found nothing"));
}

TEST(Options, InitTakesShapeAndTokenizerFromTheModel) {
    Options o = parse({"--init", "gpt2", "--lr", "0.001"});
    EXPECT_EQ(o.out, "out/init");
    EXPECT_TRUE(o.tokenizer.empty());
    o.use_model({.context = 64, .layers = 12, .heads = 12, .channels = 768}, "gpt2");
    EXPECT_EQ(o.model, "d12");
    EXPECT_EQ(o.context, 64);
    EXPECT_EQ(o.seq, 64);
    EXPECT_EQ(o.tokenizer, "gpt2");
    EXPECT_EQ(o.lr, 0.001);
    Options long_rows = parse({"--init", "gpt2", "--seq", "65"});
    EXPECT_THROW(long_rows.use_model({.context = 64}, "gpt2"), InputError);
}

TEST(Options, ListIsForTheReport) {
    for (const auto& [name, value] : parse({"--lr", "0.00025"}).list())
        EXPECT_TRUE(name != "lr" || value == "0.00025") << value;
}
