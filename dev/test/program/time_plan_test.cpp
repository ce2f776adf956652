// --minutes: what it chooses and keeps, that the choice is a run like any other, and what it refuses.
#include <signal.h>

#include <chrono>
#include <thread>

#include "dev/test/program/program.h"
#include "device/cpu/gemm/gemm.h"
#include "program/recipes.h"
#include "program/text_use.h"

namespace {

class TimePlan : public Program {
protected:
    // The words after "the same run again, on any machine with bf16: ", with the steps that the run has ended with.
    static std::vector<std::string> again(const std::string& printed) {
        const auto words_at = [&](size_t at) {
            std::istringstream line(printed.substr(at, printed.find('\n', at) - at));
            std::vector<std::string> all;
            for (std::string word; line >> word;) all.push_back(word);
            return all;
        };
        std::vector<std::string> all = words_at(printed.find(": ", printed.find("on any machine")) + 2);
        const std::string corrected = "than planned: now ";
        if (const size_t last = printed.rfind(corrected); last != std::string::npos) {
            const std::vector<std::string> now = words_at(last + corrected.size());
            *(std::ranges::find(all, "--steps") + 1) = now.at(1);
            all.insert(all.end(), now.begin() + 2, now.end());
        }
        return all;
    }
    // What a run chooses, which is stopped in its first step: the rest of it takes the time that it was given.
    std::vector<std::string> chosen_by(Args args, const std::string& out) const {
        args["out"] = at(out);
        const Child child = start(words("train", args));
        wait_for_log(child, out);
        kill(child.pid, SIGTERM);
        const Result stopped = finish(child);
        EXPECT_EQ(stopped.status, 128 + SIGTERM) << stopped.err;
        return again(stopped.out);
    }
    // A run with the options that `run` chose in the place of --minutes gives the same bits.
    void expect_same_again(const std::string& run, Args args, const std::vector<std::string>& chosen) const {
        args.erase("minutes");
        args["out"] = at(run + "-again");
        std::vector<std::string> repeat = words("train", args);
        repeat.insert(repeat.end(), chosen.begin(), chosen.end());
        expect_done(repeat);
        expect_same_run(run + "-again", run);
    }
};

// A model that takes no time, so that the plan is all that is tested.
const Args small = {{"layers", "1"}, {"heads", "2"}, {"channels", "16"},  {"context", "16"},
                    {"seq", "16"},   {"batch", "2"}, {"minutes", "0.02"}, {"sample-tokens", "4"}};

// For texts that a busy machine may take a second to tokenize.
constexpr const char* minutes_of_long_text = "0.05";

}  // namespace

TEST_F(TimePlan, RunsToItsEndAndTheSameRunAgainGivesTheSameBits) {
    Args args = small;
    args.insert({{"data", text}, {"out", at("run")}});
    const std::string printed = expect_done(words("train", args));
    EXPECT_NE(printed.find("done: "), std::string::npos);
    const std::vector<std::string> chosen = again(printed);
    const auto steps = std::ranges::find(chosen, "--steps");
    ASSERT_NE(steps, chosen.end());
    EXPECT_EQ(std::ranges::find(chosen, "--layers"), chosen.end()) << "given by hand";
    const auto optimizer = std::ranges::find(chosen, "--optimizer");
    EXPECT_TRUE(optimizer != chosen.end() && optimizer[1] == "normuon");
    EXPECT_EQ(std::ranges::find(chosen, "--matmul") != chosen.end(), gemm::has_bf16) << "what trains fastest";
    EXPECT_EQ(std::to_string(timeless_log("run").back().at("step").get<int64_t>()), steps[1]);

    expect_same_again("run", args, chosen);
    // The steps are the run's, not the time.
    EXPECT_NE(expect_done({"train", "--resume", "--out", at("run")}).find("all " + steps[1] + " steps are done"),
              std::string::npos);

    const std::vector<std::string> from_model = again(expect_done(
        {"train", "--init", at("run"), "--minutes", "0.02", "--data", text, "--out", at("tuned"), "--seq", "16"}));
    EXPECT_EQ(std::ranges::find(from_model, "--matmul") != from_model.end(), gemm::has_bf16) << "fine-tuning too";
}

// As where other programs take the machine for a while: for so much of the time that not even a machine that has become
// several times as fast as it was measured makes up for it.
TEST_F(TimePlan, HasFewerStepsWhereARunIsHeldUp) {
    using namespace std::chrono_literals;
    Args args = small;
    args.insert({{"data", text}, {"out", at("run")}});
    args["minutes"] = "0.1", args["eval-every"] = "0", args["sample-every"] = "0";
    const Child child = start(words("train", args));
    wait_for_file(child, at("run/log.jsonl"));
    std::this_thread::sleep_for(500ms);
    kill(child.pid, SIGSTOP);
    std::this_thread::sleep_for(4500ms);
    kill(child.pid, SIGCONT);
    const Result done = finish(child);
    ASSERT_EQ(done.status, 0) << done.err;
    const size_t corrected = done.out.find("slower than planned: now --steps ");
    ASSERT_NE(corrected, std::string::npos) << done.out;
    const std::vector<std::string> chosen = again(done.out);
    const auto replanned = std::ranges::find(chosen, "--replanned"), steps = std::ranges::find(chosen, "--steps");
    ASSERT_TRUE(replanned != chosen.end() && steps != chosen.end());
    const std::string& first = replanned[1];  // STEP:STEPS
    EXPECT_LT(std::stoll(steps[1]), std::stoll(first.substr(first.find(':') + 1)));
    EXPECT_EQ(std::to_string(timeless_log("run").back().at("step").get<int64_t>()), steps[1]);

    expect_same_again("run", args, chosen);
}

TEST_F(TimePlan, ChoosesATokenizerThatTheTextCanTeach) {
    Args args = small;
    args["data"] = text;
    EXPECT_NE(chosen_by(args, "short")[0], "--tokenizer") << "60 lines are too few for a BPE";
    args["data"] = at("long.txt"), args["minutes"] = minutes_of_long_text;
    std::string lines;
    for (int i = 0; i < 60000; ++i) lines += std::to_string(i * i % 7919) + " brown foxes\n";
    write_bytes(at("long.txt"), lines);
    const std::vector<std::string> chosen = chosen_by(args, "long");
    EXPECT_EQ(chosen[0], "--tokenizer");
    EXPECT_EQ(chosen[1], "bpe:1024") << "each token occurs some hundred times";
    EXPECT_EQ(std::ranges::find(chosen, "--sampled-softmax"), chosen.end()) << "of few tokens it saves little";
}

TEST(TextUse, ReadsNoMoreOfALongTextThanARunHasTimeFor) {
    constexpr int64_t gigabyte = 1'000'000'000;
    const RunOnText minute{.seconds = 60, .tokens = 6e6, .kind = {65536}, .threads = 2};
    EXPECT_EQ(use_of_text(minute, 10 * gigabyte).mb, 100) << "it comes to 24 MB";
    EXPECT_EQ(use_of_text(minute, gigabyte / 10).mb, 0);
    EXPECT_EQ(use_of_text(minute, 0).seconds, 0) << "token shards";
    EXPECT_EQ(use_of_text(minute, gigabyte / 9).mb, 0) << "little is saved";
    EXPECT_NEAR(use_of_text(minute, 10 * gigabyte).seconds, 10e3 / 500 + 100. / 16 + 1.3, 0.1);
    RunOnText hour = minute;
    hour.seconds = 3600, hour.tokens = 9e7;
    EXPECT_EQ(use_of_text(hour, 10 * gigabyte).mb, 800) << "twice 360 MB, of nine tenths";
    EXPECT_EQ(use_of_text(hour, gigabyte).mb, 0) << "all of it takes a minute";
    RunOnText bytes = minute;
    bytes.kind = {256};
    EXPECT_EQ(use_of_text(bytes, 10 * gigabyte).seconds, 0) << "nothing is learned";
    EXPECT_EQ(bytes_per_token(bytes.kind), 1);
    RunOnText by_hand = minute;
    by_hand.given_mb = 5000;
    EXPECT_EQ(use_of_text(by_hand, 10 * gigabyte).mb, 5000);
    EXPECT_NEAR(use_of_text(by_hand, 10 * gigabyte).seconds, 10e3 / 500 + 5e3 / 16 + 1.3, 0.1);
}

TEST(TextUse, KnowsWhatTextIsNewToARunAndWhatIsReadTooOften) {
    constexpr int64_t megabytes = 100'000'000;
    EXPECT_NEAR(text_tokens(megabytes, {131072, true}), 15.9e6, 0.1e6) << "enwik8 has 15.6 million";
    EXPECT_NEAR(text_tokens(megabytes, {131072, false}), 21.2e6, 0.1e6) << "enwik8 has 21.9 million";
    const auto is_new = [](int64_t bytes, double tokens) { return is_new_text(bytes, {131072, true}, tokens); };
    EXPECT_TRUE(is_new(megabytes, 34e6)) << "as far as it was measured, and a little more";
    EXPECT_FALSE(is_new(megabytes, 36e6));
    EXPECT_TRUE(is_new(0, 1e12)) << "token shards";
    const auto is_read_often = [](int64_t bytes, double tokens) { return is_read_too_often(bytes, {32768}, tokens); };
    EXPECT_FALSE(is_read_often(12'186'248, 16.3e6)) << "State of the Union in 1.5e14 operations";
    EXPECT_TRUE(is_read_often(12'186'248, 25.8e6)) << "and in 5.6e14";
    EXPECT_FALSE(is_read_often(0, 1e12)) << "token shards";
    const RunOnText minute{.seconds = 60, .tokens = 6e6, .kind = {131072, true}, .threads = 2};
    RunOnText words = minute;
    words.kind.superwords = false;
    EXPECT_GT(use_of_text(minute, megabytes).seconds, use_of_text(words, megabytes).seconds + 3);
}

// Where the text can teach so many that it pays, unless it is not wanted, or --model brings its own defaults, or the
// run reads the text too often.
TEST_F(TimePlan, ChoosesMoreTokensWithASampledSoftmax) {
    std::string lines;
    for (uint64_t i = 0; lines.size() < 3'100'000; ++i) {
        for (const char digit : std::to_string(i * i % 999'983)) lines += static_cast<char>(digit - '0' + 'a');
        lines += " brown foxes\n";
    }
    write_bytes(at("text.txt"), lines);
    Args args = small;
    args["data"] = at("text.txt"), args["minutes"] = minutes_of_long_text;
    int runs = 0;
    for (const auto& [more, tokenizer, sampled] :
         {std::tuple(Args{}, "bpe:8192", "256"), std::tuple(Args{{"sampled-softmax", "0"}}, "bpe:4096", ""),
          std::tuple(Args{{"model", "tiny"}}, "bpe:4096", ""), std::tuple(Args{{"minutes", "600"}}, "bpe:4096", "")}) {
        Args all = more;
        all.insert(args.begin(), args.end());
        const std::vector<std::string> chosen = chosen_by(all, "run" + std::to_string(runs++));
        EXPECT_TRUE(chosen[1].ends_with(tokenizer)) << chosen[1] << ", superbpe on a machine that reads the text once";
        EXPECT_TRUE(chosen[1] == tokenizer || *sampled) << chosen[1];
        const auto choice = std::ranges::find(chosen, "--sampled-softmax");
        EXPECT_EQ(choice == chosen.end() ? "" : choice[1], sampled);
    }
}

// The text could teach 8,192 tokens, whose rate is four times as high.
TEST_F(TimePlan, ChoosesTheRateForTheTokenizerThatIsGiven) {
    Args args = small;
    write_bytes(at("long.txt"), std::string(5'300'000, 'x'));
    args.insert({{"data", at("long.txt")}, {"tokenizer", "byte"}});
    args["minutes"] = minutes_of_long_text;
    const std::vector<std::string> chosen = chosen_by(args, "run");
    const auto lr = std::ranges::find(chosen, "--lr");
    ASSERT_NE(lr, chosen.end());
    EXPECT_EQ(lr[1], "0.003");
    EXPECT_EQ(std::ranges::find(chosen, "--tokenizer"), chosen.end()) << "given by hand";
}

// How many tokens a file has is not looked up: they count as many.
TEST_F(TimePlan, ChoosesEmbeddingsFromPairsForManyTokens) {
    expect_done({"tokenize", "--train", text, "--vocab", "300", at("tokenizer.json")});
    Args args = small;
    args["data"] = text;
    for (const auto& [name, tokenizer, pairs] :
         {std::tuple("many", at("tokenizer.json"), true), std::tuple("bytes", std::string("byte"), false)}) {
        args["tokenizer"] = tokenizer;
        const std::vector<std::string> chosen = chosen_by(args, name);
        const auto embedding = std::ranges::find(chosen, "--embedding");
        EXPECT_EQ(embedding != chosen.end() && embedding[1] == "pairs", pairs) << name;
    }
}

// Without a text to validate on, the program stops after it has chosen.
TEST_F(TimePlan, NamesNoResultsOfRunsWithAnotherTokenizer) {
    Args args = small;
    args.erase("layers"), args.erase("heads"), args.erase("channels");
    write_bytes(at("empty.txt"), "");
    args.insert({{"data", text}, {"val", at("empty.txt")}, {"out", at("run")}});
    EXPECT_NE(run(words("train", args)).out.find("were best"), std::string::npos);
    args["tokenizer"] = "byte";
    const std::string printed = run(words("train", args)).out;
    EXPECT_NE(printed.find("operations"), std::string::npos);
    EXPECT_EQ(printed.find("were best"), std::string::npos);
}

// Long texts of so few words that each becomes a token before there are as many as their size lets expect.
TEST_F(TimePlan, ChoosesTheTokenizerAgainForATextOfFewWords) {
    for (const auto& [name, words_of_text, tokenizer] :
         {std::tuple("line", 1, "byte"), std::tuple("words", 150, "bpe:684")}) {
        std::string lines;
        for (int i = 0; lines.size() < 700'000; ++i) lines += "w" + std::to_string(i % words_of_text * 77'777) + "\n";
        write_bytes(at(std::string(name) + ".txt"), lines);
        Args args = small;
        args.insert({{"data", at(std::string(name) + ".txt")}, {"out", at(name)}});
        args["minutes"] = "0.03";
        const std::string printed = expect_done(words("train", args));
        const std::vector<std::string> chosen = again(printed);
        EXPECT_EQ(chosen[0], "--tokenizer");
        EXPECT_TRUE(chosen[1].starts_with(tokenizer)) << chosen[1];
        EXPECT_NE(printed.find("so --tokenizer is now " + chosen[1] + "\n"), std::string::npos) << printed;
        expect_same_again(name, args, chosen);
    }
}

// A text that is read often is learned by heart. A busy machine may take seconds to tokenize the long one.
TEST_F(TimePlan, ChoosesMoreWeightDecayForATextThatIsReadOften) {
    Args args = small;
    const auto weight_decay = [&](const std::string& name, size_t bytes) {
        write_bytes(at(name + ".txt"), std::string(bytes, 'x'));
        args["data"] = at(name + ".txt");
        const std::vector<std::string> chosen = chosen_by(args, name);
        const auto found = std::ranges::find(chosen, "--weight-decay");
        return found == chosen.end() ? "" : found[1];
    };
    EXPECT_EQ(weight_decay("short", 400), "0.6");
    args["weight-decay"] = "0.2";
    EXPECT_EQ(weight_decay("given", 400), "");
    args.erase("weight-decay"), args["minutes"] = "0.1";
    EXPECT_EQ(weight_decay("long", 3'000'000), "0.1");
}

// More would be worse (dev/recipes). Without a text to validate on, the program stops after it has chosen.
TEST_F(TimePlan, EndsEarlyWhereATextIsTooSmallForTheTime) {
    Args args = small;
    args.erase("layers"), args.erase("heads"), args.erase("channels");
    write_bytes(at("empty.txt"), "");
    args.insert({{"data", text}, {"val", at("empty.txt")}, {"out", at("run")}});
    const auto ends_early = [&](const char* minutes) {
        args["minutes"] = minutes;
        return run(words("train", args)).out.find("would be learned by heart, so the run ends after") !=
               std::string::npos;
    };
    EXPECT_TRUE(ends_early("600"));
    EXPECT_FALSE(ends_early("0.02"));
}

TEST(Recipes, EndWhereATextIsLearnedByHeart) {
    const auto most = [](const Recipe&) { return 5e13; };
    const Choice choice = best_recipe([](const Recipe&) { return 1e18; }, most);
    EXPECT_EQ(choice.recipe, &recipes[2]) << "the last for which 5e13 operations are enough";
    EXPECT_EQ(choice.flops, 1e18);
    EXPECT_DOUBLE_EQ(most_flops_for(4e5), 150 * 6 * 4e5 * 4e5);
    EXPECT_GT(most_flops_for(100), 1e12) << "for some steps, however short the text is";
}

TEST(Recipes, HaveMoreWeightDecayTheMoreIsMemorized) {
    EXPECT_DOUBLE_EQ(memorization(1e6, 8e6, 2e6), 2)
        << "a model of half as many parameters as the text's tokens, 4 passes";
    EXPECT_DOUBLE_EQ(weight_decay_for(3), 0.1);
    EXPECT_DOUBLE_EQ(weight_decay_for(20), 0.2);
    EXPECT_DOUBLE_EQ(weight_decay_for(80), 0.4);
    EXPECT_DOUBLE_EQ(weight_decay_for(1000), 0.6);
}

TEST_F(TimePlan, FitsWhatItChoosesToWhatIsGiven) {
    Args args = small;
    args.erase("seq");
    args.insert({{"data", text}, {"out", at("run")}});
    args["context"] = "24", args["optimizer"] = "adamw";
    const std::string printed = expect_done(words("train", args));
    EXPECT_NE(printed.find("context 24,"), std::string::npos);
    EXPECT_EQ(printed.find("normuon"), std::string::npos);
}

// Recipes for so short a time, and the default model, have a context of 128.
TEST_F(TimePlan, ChoosesAContextForTheSequencesThatAreGiven) {
    Args args = small;
    args.erase("context");
    args["data"] = text, args["seq"] = "130";
    const std::vector<std::string> chosen = chosen_by(args, "long");
    const auto context = std::ranges::find(chosen, "--context");
    ASSERT_NE(context, chosen.end());
    EXPECT_GE(std::stoi(context[1]), 130);
    args["out"] = at("short"), args["seq"] = "16";
    EXPECT_NE(expect_done(words("train", args)).find("--context 128"), std::string::npos) << "the recipe's";
    args["out"] = at("none"), args["seq"] = "130", args["context"] = "129";
    expect_refused(words("train", args), {"--seq: 130", "context 129; give at most 129"});
    args.erase("context");
    args["model"] = "tiny";
    expect_refused(words("train", args), {"--seq: 130", "context 128; give at most 128"});
}

TEST_F(TimePlan, RefusesTooLittleTimeAndWhatContradictsIt) {
    Args args = small;
    args.insert({{"data", text}, {"out", at("none")}});
    args["minutes"] = "0.0001";
    expect_refused(words("train", args), {"--minutes", "too few for ten steps", "give more time"});
    args["minutes"] = "1", args["steps"] = "10";
    expect_refused(words("train", args), {"--minutes", "cannot be used with --steps"});
}

const auto any = [](const Recipe&) { return 1e30; };

TEST(Recipes, AreTheLargestForWhichTheMachineDoesEnough) {
    const auto chosen = [](double flops) {
        const Choice choice = best_recipe([&](const Recipe&) { return flops; }, any);
        EXPECT_DOUBLE_EQ(choice.flops, flops);
        return choice.recipe;
    };
    for (const Recipe& r : recipes) {
        EXPECT_EQ(chosen(r.flops * 1.2), &r);
        EXPECT_EQ(chosen(r.flops / 1.2), &r);
        for (const Shape& shape : {r.shape, r.with_few_tokens}) EXPECT_EQ(shape.channels % shape.heads(), 0);
    }
    EXPECT_EQ(chosen(1), &recipes.front());
    EXPECT_EQ(chosen(1e30), &recipes.back());
}

// A model of few channels may be slow, and a larger one fast; large ones are not measured where they are out of reach.
TEST(Recipes, AreMeasuredUpToTheFirstThatIsTooLarge) {
    int64_t measured = 0;
    const Choice choice = best_recipe(
        [&](const Recipe& r) {
            ++measured;
            return &r == recipes.data() ? recipes[0].flops : recipes[1].flops;
        },
        any);
    EXPECT_EQ(choice.recipe, &recipes[1]);
    EXPECT_EQ(measured, 3);
}

// The rate of 1,024 tokens is that of the preset tiny, and no vocabulary has a lower or a higher one than measured.
TEST(Recipes, HaveALowerRateForFewerTokens) {
    const Recipe& r = recipes.front();
    const auto lr = [](const Recipe& recipe, int64_t vocab) { return recipe.rates_for(vocab, false).lr; };
    EXPECT_EQ(r.vocab, 8192);
    EXPECT_DOUBLE_EQ(lr(r, 8192), r.rates.lr);
    EXPECT_DOUBLE_EQ(lr(r, 1024), 0.003);
    EXPECT_DOUBLE_EQ(lr(r, 256), 0.003) << "bytes";
    EXPECT_DOUBLE_EQ(lr(r, 50257), r.rates.lr);
    EXPECT_NEAR(lr(r, 4096), 0.0076, 1e-4);
    for (const Recipe& each : recipes) EXPECT_DOUBLE_EQ(lr(each, 256), std::min(each.rates.lr, 0.003));
}

TEST(Recipes, HaveAsManyTokensAsATextCanTeach) {
    EXPECT_EQ(Recipe::tokens_for(1'115'394), 1024) << "Tiny Shakespeare";
    EXPECT_EQ(Recipe::sampled_tokens_for(12'186'248), 32768) << "State of the Union";
    EXPECT_EQ(Recipe::sampled_tokens_for(320 * 65536 - 1), 32768);
    EXPECT_EQ(Recipe::sampled_tokens_for(320 * 65536), 65536);
    EXPECT_EQ(Recipe::sampled_tokens_for(100'000'000), 131072) << "enwik8";
    EXPECT_EQ(Recipe::sampled_tokens_for(10'000'000'000), 131072);
    EXPECT_EQ(Recipe::tokens_for(0), 0);
}

TEST(Recipes, HaveLowerRatesForNewText) {
    for (const Recipe& each : recipes) EXPECT_LE(each.of_new_text.lr, each.rates.lr);
    const Recipe& r = recipes[2];
    EXPECT_DOUBLE_EQ(r.rates_for(65536, true).lr, 0.006);
    EXPECT_EQ(r.rates_for(65536, true).muon_lr, 0.007);
    EXPECT_DOUBLE_EQ(r.rates_for(65536, false).lr, 0.012);
    EXPECT_EQ(r.rates_for(65536, false).muon_lr, std::nullopt) << "the default";
    EXPECT_DOUBLE_EQ(r.rates_for(1024, true).lr, 0.003);
}

TEST(Recipes, HaveLargerModelsForFewTokensAndAsManyTokensInAStep) {
    for (const Recipe& r : recipes) {
        EXPECT_EQ(&r.shape_for(8192, false), &r.shape);
        EXPECT_EQ(&r.shape_for(4096, false), &r.shape);
        for (const bool new_text : {false, true}) EXPECT_EQ(&r.shape_for(1024, new_text), &r.with_few_tokens);
        EXPECT_EQ(&r.shape_for(4096, true), &r.for_new_text);
        EXPECT_LE(r.for_new_text.channels, r.shape.channels) << "it reads more of the text";
        EXPECT_EQ(r.for_new_text.batch * r.for_new_text.context, r.shape.batch * r.shape.context);
        const Shape &many = r.shape, &few = r.with_few_tokens;
        EXPECT_GE(few.layers, many.layers);
        EXPECT_GE(few.channels, many.channels);
        EXPECT_GE(few.context, 128);
        EXPECT_EQ(few.batch * few.context, many.batch * many.context);
    }
}

TEST(Recipes, ExpectALossOnlyNearWhatWasMeasured) {
    for (const MeasuredText& text : measured_texts) {
        const auto& runs = text.runs;
        EXPECT_EQ(loss_at(text, runs.front().flops), runs.front().loss);
        EXPECT_DOUBLE_EQ(*loss_at(text, runs.back().flops), runs.back().loss);
        const double between = std::sqrt(runs[0].flops * runs[1].flops);
        EXPECT_NEAR(*loss_at(text, between), (runs[0].loss + runs[1].loss) / 2, 1e-9);
        EXPECT_EQ(loss_at(text, 2 * runs.back().flops), runs.back().loss) << "no promise of what was not measured";
        EXPECT_FALSE(loss_at(text, runs.front().flops / 4));
        EXPECT_FALSE(loss_at(text, runs.back().flops * 4));
    }
}
