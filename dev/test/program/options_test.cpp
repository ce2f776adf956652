// The command line: defaults, presets, refusals and their messages, and the options that --resume takes from a
// checkpoint.
#include "program/options.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "io/file/error.h"

namespace {

using Words = std::vector<std::string>;

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
    EXPECT_EQ(o.data, Words{"data/tinyshakespeare.txt"});
    EXPECT_EQ(o.tokenizer, "byte");
    EXPECT_EQ(o.model, "tiny");
    EXPECT_EQ(o.layers, gpt2_preset("tiny")->layers);
    EXPECT_EQ(o.context, gpt2_preset("tiny")->context);
    EXPECT_EQ(o.total_batch, o.batch * o.seq);
    EXPECT_EQ(o.out, "out/tiny");
    EXPECT_EQ(o.clip, 1.0);
    EXPECT_EQ(o.dropout, 0.0);
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
    const Options t = parse({"tokenize", "--train", "a.txt", "--vocab", "4096", "b.json"});
    EXPECT_TRUE(t.train_tokenizer);
    EXPECT_EQ(t.in_path, "a.txt");
    EXPECT_EQ(t.vocab, 4096);
    EXPECT_EQ(parse({"--tokenizer", "bpe:4096"}).tokenizer, "bpe:4096");
    const Options r = parse({"report", "a", "b", "c", "page.html"});
    EXPECT_EQ(r.runs, (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(r.out_path, "page.html");
    EXPECT_TRUE(parse({"info", "train", "--verify"}).verify);  // a path may be called as a command
}

TEST(Options, BadValuesNameOptionFoundAndExpected) {
    const auto refused = [](std::vector<const char*> words, const std::string& message) {
        EXPECT_EQ(error_of(std::move(words)), message);
    };
    const std::string batch = "; give a whole number from 1 to 65536", lr = "; give a number from 0 to 10";
    for (const char* value : {"-3", "0", "65537", "4.5", "4x", "0x10", "+4", " 4", "4 ", "99999999999999999999"})
        refused({"--batch", value}, "--batch: invalid value " + std::string(value) + batch);
    for (const char* value : {"nan", "inf", "-0.1", "10.1", "1e999", "0x1p-3", "+1", "1e", "0,1", "fast"})
        refused({"--lr", value}, "--lr: invalid value " + std::string(value) + lr);
    for (const char* value : {".5", "5e-1", "0.50"}) EXPECT_EQ(parse({"--lr", value}).lr, 0.5);
    refused({"--batch", ""}, "--batch: no value" + batch);
    refused({"--batch"}, "--batch: no value" + batch);
    refused({"--lr", "0.1", "--batch"}, "--batch: no value" + batch);
    refused({"--final-lr-frac", "1.5"}, "--final-lr-frac: invalid value 1.5; give a number from 0 to 1");
    refused({"--schedule", "step"}, "--schedule: invalid value step; choose cosine, linear, constant or wsd");
    refused({"--val", ""}, "--val: no value; give PATH");
    refused({"generate", "--temperature", "-1"}, "--temperature: invalid value -1; give a number from 0 to 100");
    EXPECT_TRUE(contains(error_of({"generate", "--top-k", "-1"}), "--top-k: invalid value -1"));
    EXPECT_EQ(parse({"--seed", "9223372036854775807"}).seed, INT64_MAX);
    EXPECT_TRUE(contains(error_of({"--seed", "9223372036854775808"}), "--seed: invalid value 9223372036854775808"));
    EXPECT_EQ(parse({"generate", "--prompt", "[a,b]"}).prompt, "[a,b]");
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
    EXPECT_TRUE(contains(error_of({"-v"}), "-v: unknown option of train; see train_gpt2 train --help"));
    EXPECT_TRUE(contains(error_of({"--"}), "--: unknown option of train; see train_gpt2 train --help"));
    EXPECT_EQ(error_of({"--total_batch=4"}), "--total_batch: unknown option of train; did you mean --total-batch?");
    EXPECT_TRUE(contains(error_of({"--wandb"}), "--wandb: unknown option of train; see train_gpt2 train --help"));
    EXPECT_TRUE(contains(error_of({"generate", "--batch", "4"}),
                         "--batch: unknown option of generate; see train_gpt2 generate --help"));
    EXPECT_TRUE(contains(error_of({"finetune"}),
                         "finetune: unknown command; choose train, generate, eval, convert, tokenize, report or info"));
    EXPECT_TRUE(contains(error_of({"--data", "a.bin", "b.bin"}), "b.bin: unexpected argument; put"));
    EXPECT_TRUE(contains(error_of({"--seed", "1", "--seed", "2"}), "--seed: given 2 times; give it once"));
    EXPECT_TRUE(contains(error_of({"--resume=maybe"}), "--resume"));
}

TEST(Options, ChoicesAreRefusedByName) {
    EXPECT_TRUE(contains(error_of({"--matmul", "fp16"}), "fp32 or bf16"));
    EXPECT_EQ(parse({"--optimizer", "muon", "--matmul", "bf16", "--recompute", "block"}).matmul, "bf16");
}

TEST(Options, Contradictions) {
    EXPECT_TRUE(
        contains(error_of({"--seq", "129"}), "--seq: 129 is more than the model's context 128; give at most 128"));
    EXPECT_TRUE(contains(error_of({"--total-batch", "5000"}),
                         "--total-batch: 5000 is not a multiple of batch * seq = 2048; choose 4096 or 6144"));
    EXPECT_TRUE(contains(error_of({"--total-batch", "5"}), "choose 2048"));
    EXPECT_EQ(parse({"--total-batch", "4096"}).total_batch, 4096);
    EXPECT_TRUE(contains(error_of({"--shards", "7"}), "--shards: 7 is not a power of two; choose 4"));
    EXPECT_TRUE(contains(error_of({"--shards", "2", "--total-batch", "2048"}),
                         "--shards: 2 does not divide the 1 batches of a step"));
    EXPECT_EQ(parse({"--shards", "2"}).total_batch, 4096);
    EXPECT_TRUE(contains(error_of({"--shards", "8", "--total-batch", "24576"}),
                         "does not divide the 12 batches of a step, which are total-batch / (batch * seq); choose 4"));
    EXPECT_EQ(parse({"--shards", "4", "--total-batch", "24576"}).shards, 4);
    EXPECT_TRUE(contains(error_of({"--channels", "130"}), "--channels: 130 is not a multiple of --heads 4; change"));
    EXPECT_TRUE(contains(error_of({"--warmup", "4000"}), "--warmup: 4000 is more than --steps 3000; change"));
    EXPECT_TRUE(
        contains(error_of({"--replanned", "900:800"}), "--replanned: 900:800 does not say STEP:STEPS,... with"));
    EXPECT_TRUE(contains(error_of({"--replanned", "900:5000", "--steps", "900"}), "below --steps 900, each below"));
    EXPECT_TRUE(contains(error_of({"--optimizer", "adamw", "--muon-lr", "0.1"}),
                         "--muon-lr: is for --optimizer muon and normuon, not adamw;"));
    EXPECT_TRUE(contains(error_of({"--resume", "--init", "x"}), "--init: cannot be used with --resume; leave one"));
    for (const std::string shape : {"--layers", "--heads", "--channels", "--context", "--vocab"})
        EXPECT_EQ(error_of({"--init", "x", shape.c_str(), "8"}),
                  shape + ": cannot be used with --init; leave one of them out");
    EXPECT_TRUE(
        contains(error_of({"--init", "x", "--model", "d12"}), "--model: cannot be used with --init; leave one"));
    EXPECT_TRUE(contains(error_of({"--init", "x", "--embedding", "pairs"}), "--embedding: cannot be used with --init"));
    EXPECT_TRUE(contains(error_of({"tokenize", "a", "b.json", "--train"}), "--vocab: missing with --train; give"));
    EXPECT_TRUE(
        contains(error_of({"tokenize", "a", "b.bin", "--train", "--vocab", "300"}), "b.bin does not end in .json"));
    EXPECT_TRUE(contains(error_of({"tokenize", "a", "b.bin", "--vocab", "300"}), "--vocab: is for --train"));
    EXPECT_TRUE(contains(error_of({"tokenize", "a", "b.bin", "--superwords"}), "--superwords: is for --train"));
    EXPECT_TRUE(contains(error_of({"tokenize", "--train", "a", "--vocab", "256", "b.json"}), "from 257 to 1048576"));
    EXPECT_TRUE(contains(error_of({"tokenize", "--train", "a", "--vocab", "300", "b.json", "--tokenizer", "gpt2"}),
                         "--tokenizer: cannot be used with --train"));
    EXPECT_TRUE(contains(error_of({"--tokenizer", "bpe:256"}), "--tokenizer: invalid value bpe:256; give bpe:N"));
    EXPECT_TRUE(contains(error_of({"--tokenizer", "bpe:300", "--init", "x"}), "bpe:300 learns new tokens"));
    EXPECT_TRUE(contains(error_of({"tokenize", "a", "b"}), "OUT: b does not end in .bin; give"));
    EXPECT_TRUE(contains(error_of({"eval"}), "--data: missing; give a text file"));
    for (const std::vector<const char*>& words : {std::vector<const char*>{"report"}, {"report", "a.html"}})
        EXPECT_EQ(error_of(words), "RUN...: missing; usage: train_gpt2 report RUN... OUT [OPTIONS]");
    EXPECT_EQ(error_of({"report", "a", "b"}), "OUT: b does not end in .html; give the page a name that does");
    EXPECT_EQ(error_of({"convert", "a"}), "OUT: missing; usage: train_gpt2 convert IN OUT [OPTIONS]");
}

TEST(Options, HelpShowsEveryOptionWithItsRangeAndDefault) {
    const std::string all = help_of({"--help"});
    for (const char* part : {"--batch N", "[1 to 65536; default: tiny 16, others 4]", "--layers N", "d48 48",
                             "--optimizer adamw|muon|normuon", "train_gpt2 convert IN OUT", "--bf16", "--top-k K",
                             "[default: out/tiny]", "maximum norm (0: off)"})
        EXPECT_TRUE(contains(all, part)) << part;
    const std::string generate = help_of({"generate", "--help"});
    EXPECT_TRUE(contains(generate, "--temperature T"));
    EXPECT_FALSE(contains(generate, "--batch"));
    EXPECT_TRUE(contains(help_of({"--batch", "4", "-h"}), "--total-batch"));
    for (const auto& [name, value] : parse({}).list())
        EXPECT_TRUE(contains(help_of({"train", "--help"}), "\n  --" + name)) << name;
    for (std::istringstream lines(all); lines.good();) {
        std::string line;
        std::getline(lines, line);
        EXPECT_LT(line.size(), 80u) << line;
    }
}

TEST(Options, CheckpointsKeepWhatDefinesARun) {
    const auto saved = nlohmann::json::parse(parse({}).to_json());
    for (const auto& [name, value] : parse({}).list()) {
        const bool unsaved =
            std::set<std::string>{"model", "out", "resume", "threads", "profile", "minutes", "hours"}.contains(name);
        EXPECT_EQ(saved.contains(name), !unsaved) << name;
    }
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
    EXPECT_EQ(o.val, Words{"v.txt"});
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
        EXPECT_EQ(o.data, Words{path});
        EXPECT_EQ(o.tokenizer, path);
        EXPECT_EQ(o.to_json(), run);
        EXPECT_EQ(o.list()[0], (std::pair<std::string, std::string>{"data", path}));
    }
    EXPECT_TRUE(contains(parse({"--data", "caf\u00E9.txt"}).to_json(), "\"data\": \"caf\u00E9.txt\"")) << "readable";
}

TEST(Options, ResumeTakesModelAndShapeGivenAgain) {
    const std::vector<const char*> words = {"--model", "d12", "--layers", "2"};
    Options o = parse({"--resume", "--model", "d12", "--layers", "2"});
    o.fill_from_json(parse(words).to_json());
    EXPECT_EQ(o.to_json(), parse(words).to_json());
    EXPECT_EQ(o.out, "out/d12");
}

TEST(Options, ResumeStaysInItsDirectory) {
    Options tuned = parse({"--init", "x", "--out", "out/tiny"}), o = parse({"--resume"});
    tuned.use_model({.context = 64, .layers = 12, .heads = 12, .channels = 768}, "gpt2");
    o.fill_from_json(tuned.to_json());
    EXPECT_EQ(o.init, "x");
    EXPECT_EQ(o.out, "out/tiny");
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
    EXPECT_TRUE(contains(resume({"--resume", "--layers", "6"}, run),
                         "--layers: 6 differs from 4 in the run to resume; leave it out"));
    EXPECT_TRUE(contains(resume({"--resume", "--model", "d12"}, run), "--layers: 12 differs from 4 in"));
    for (const std::string& saved : {run, std::string("{}")})  // versions without shards summed all batches in order
        EXPECT_TRUE(contains(resume({"--resume", "--shards", "2", "--total-batch", "4096"}, saved),
                             "--shards: 2 differs from 1 in the run to resume; leave it out"));
    EXPECT_TRUE(contains(resume({"--resume", "--no-special-tokens"}, R"({"no-special-tokens": false})"),
                         "--no-special-tokens: true differs from false in"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"no-special-tokens": 2})"),
                         "--no-special-tokens: invalid value 2; choose true or false"));
    EXPECT_TRUE(contains(resume({"--resume", "--tokenizer", "gpt2"}, run), "--tokenizer: gpt2 differs from byte in"));
    EXPECT_EQ(resume({"--resume", "--model", "tiny"}, run), "no error");
    EXPECT_TRUE(contains(resume({"--resume", "--steps", "50"}, run), "--warmup: 100 is more than --steps 50"));
    EXPECT_TRUE(contains(resume({"--resume"}, "[1]"), "the checkpoint's options"));
    EXPECT_TRUE(
        contains(resume({"--resume"}, R"({"batch": -1})"), "the checkpoint's options: --batch: invalid value -1"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"lr": null})"), "--lr: invalid value null"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"mixup": 0.1})"), "mixup is not an option"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"batch": [56]})"), "--batch: invalid value [56]"))
        << "bytes are for paths";
    EXPECT_TRUE(
        contains(resume({"--resume"}, R"({"optimizer": ""})"), "--optimizer: no value; choose adamw, muon or normuon"));
    EXPECT_TRUE(contains(resume({"--resume"}, R"({"data": ""})"), "--data: no value; give PATH"));
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
