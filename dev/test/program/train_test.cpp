// Training runs: their files, exact resume, accumulation, schedules, clipping, and the order of events.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "dev/test/program/program.h"
#include "io/data/dataset.h"
#include "io/model/checkpoint.h"
#include "io/file/json.h"
#include "program/log.h"
#include "io/model/safetensors.h"
#include "device/cpu/gemm/gemm.h"

namespace fs = std::filesystem;

namespace {

class Train : public Program {
protected:
    std::vector<LogEntry> log_of(const std::string& out, const std::string& split) const {
        std::vector<LogEntry> entries;
        for (const LogEntry& e : read_log(at(out + "/log.jsonl")))
            if (e.split == split) entries.push_back(e);
        return entries;
    }
    std::vector<int64_t> steps_of(const std::string& out, const std::string& split) const {
        std::vector<int64_t> steps;
        for (const LogEntry& e : log_of(out, split)) steps.push_back(e.step);
        return steps;
    }
    std::vector<float> parameters_of(const std::string& out) const {
        const SafetensorsFile file(at(out + "/latest/model.safetensors"));
        std::vector<float> all;
        for (const auto& entry : file.entries()) {
            all.resize(all.size() + entry.elements());
            file.read(entry, all.data() + all.size() - entry.elements());
        }
        return all;
    }
    // Makes `to` a copy of `from` at the time when its checkpoint of `step` was saved, with a few more lines in the
    // log.
    void rewind(const std::string& from, const std::string& to, const std::string& step) const {
        fs::copy(at(from), at(to), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
        for (const std::string& name : listing(at(to)))
            if (name.starts_with("step_") && name > step) fs::remove_all(at(to + "/" + name));
        fs::remove(at(to + "/latest"));
        fs::create_directory_symlink(step, at(to + "/latest"));
    }
};

// Odd sizes, enough rows for several threads, and more steps than the text has batches, so that a second epoch begins.
const Args odd = {{"layers", "2"}, {"heads", "3"},  {"channels", "33"},  {"context", "37"},   {"batch", "7"},
                  {"seq", "37"},   {"steps", "14"}, {"save-every", "7"}, {"eval-every", "4"}, {"keep", "0"}};

Args with(Args args, const Args& more) {
    for (const auto& [name, value] : more) args[name] = value;
    return args;
}

}  // namespace

// Its loss may be higher than the one before it for that reason alone.
TEST_F(Train, SaysWhereTheLastValidationIsOfMoreText) {
    const std::string note = " (of more text than before)\n";
    const Args often = {{"batch", "1"}, {"eval-every", "2"}, {"eval-batches", "1"}};
    const std::string printed = train("few", often);
    const size_t at_end = printed.find(note);
    ASSERT_NE(at_end, std::string::npos) << printed;
    EXPECT_EQ(printed.rfind("validation loss"), printed.rfind("validation loss", at_end));
    EXPECT_EQ(train("all", with(often, {{"eval-batches", "1000"}})).find(note), std::string::npos);
}

// The loss on a text of other words falls while letters are learned, and rises when the training text is remembered.
TEST_F(Train, KeepsTheBestModelAndEndsWithoutPatience) {
    std::string lines;
    for (int i = 1; i <= 40; ++i)
        lines += "a dog over there, and the lazy line " + std::to_string(i) + " of brown quirks\n";
    write_bytes(at("val.txt"), lines);
    const Args options = with(odd, {{"val", at("val.txt")},
                                    {"steps", "60"},
                                    {"lr", "0.01"},
                                    {"schedule", "constant"},
                                    {"warmup", "1"},
                                    {"eval-batches", "2"},
                                    {"patience", "3"}});
    const std::string out = train("run", options);
    const std::vector<LogEntry> losses = log_of("run", "val");
    const auto best = std::ranges::min_element(losses, {}, &LogEntry::loss);
    const int64_t last = losses.back().step;
    ASSERT_EQ(losses.end() - 1 - best, 3) << "three evaluations find no lower loss";
    ASSERT_LT(last, 60);
    EXPECT_EQ(steps_of("run", "train").back(), last);
    EXPECT_NE(out.find("stopped after step " + std::to_string(last)), out.npos) << out;
    EXPECT_NE(out.find("the best, of step " + std::to_string(best->step) + ", in "), out.npos) << out;
    EXPECT_EQ(read_trainer_state(at("run/latest")).step, last);

    // The model is the one that a run of so many steps ends with.
    train("short", with(options, {{"steps", std::to_string(best->step)}}));
    EXPECT_TRUE(read_bytes(at("run/best/model.safetensors")) == read_bytes(at("short/latest/model.safetensors")));

    // A resumed run still knows which was the best, and how often it has waited.
    const Result done = run({"train", "--resume", "--out", at("run")});
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_NE(done.out.find("a larger --patience"), done.out.npos) << done.out;
    expect_done({"train", "--resume", "--out", at("run"), "--patience", "4"});
    EXPECT_EQ(log_of("run", "val").size(), losses.size() + 1);
}

// The first loss is that of the initial parameters. A resumed run has those of its checkpoint.
TEST_F(Train, EmbeddingsFromPairsOnlyChangeTheStart) {
    train("random", odd);
    train("pairs", with(odd, {{"embedding", "pairs"}, {"threads", "1"}}));
    EXPECT_NE(log_of("pairs", "train").front().loss, log_of("random", "train").front().loss);
    train("pairs2", with(odd, {{"embedding", "pairs"}, {"threads", "3"}}));
    expect_same_run("pairs", "pairs2");
    rewind("pairs", "resumed", "step_000007");
    expect_done({"train", "--resume", "--out", at("resumed")});
    expect_same_run("pairs", "resumed");
}

TEST_F(Train, LeavesLogReportAndCheckpoint) {
    const std::string out = train("run", {{"steps", "60"}, {"eval-every", "20"}});
    EXPECT_EQ(listing(at("run")), (std::vector<std::string>{"best", "data", "latest", "log.jsonl", "options.json",
                                                            "report.html", "step_000060"}));
    const auto files = listing(at("run/latest"));
    for (const char* name : {"config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json",
                             "tokenizer_config.json", "trainer_state.json"})
        EXPECT_TRUE(std::ranges::count(files, name)) << name;
    EXPECT_EQ(fs::read_symlink(at("run/latest")), "step_000060");
    EXPECT_TRUE(read_bytes(at("run/best/model.safetensors")) == read_bytes(at("run/latest/model.safetensors")))
        << "the loss fell until the end";

    std::istringstream log(read_bytes(at("run/log.jsonl")));
    int64_t train_lines = 0, val_lines = 0;
    for (std::string line; std::getline(log, line);) {
        const auto entry = nlohmann::ordered_json::parse(line);
        std::vector<std::string> keys;
        for (const auto& item : entry.items()) keys.push_back(item.key());
        const bool val = entry["split"] == "val";
        const std::vector<std::string> wanted =
            val ? std::vector<std::string>{"step", "split", "loss", "seconds"}
                : std::vector<std::string>{"step", "split", "loss", "lr", "grad_norm", "tokens_per_second", "seconds"};
        EXPECT_EQ(keys, wanted);
        ++(val ? val_lines : train_lines);
    }
    EXPECT_EQ(train_lines, 60);
    EXPECT_EQ(val_lines, 4);  // before the first step, then every 20
    const auto losses = log_of("run", "train"), vals = log_of("run", "val");
    EXPECT_NEAR(losses.front().loss, std::log(256.0), 0.1);  // an untrained model
    EXPECT_LT(losses.back().loss, 4.0);
    EXPECT_LT(vals.back().loss, 4.0);
    for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_EQ(losses[i].step, static_cast<int64_t>(i) + 1);
        EXPECT_GT(losses[i].tokens_per_second, 0);
        EXPECT_GT(losses[i].seconds, i == 0 ? 0 : losses[i - 1].seconds);
    }

    const std::string report = read_bytes(at("run/report.html"));
    EXPECT_NE(report.find("<svg"), std::string::npos);
    EXPECT_NE(report.find("</html>"), std::string::npos);
    EXPECT_LT(out.find("memory: "), out.find("step 0"));  // the plan comes before the first step
    EXPECT_NE(out.find("total "), std::string::npos);
}

// What is in them tensorboard_test and scripts/check_tensorboard.py read.
TEST_F(Train, WritesAnEventFileForTensorBoardAndResumeAnother) {
    const auto event_files = [&] {
        return std::ranges::count_if(listing(at("run")),
                                     [](const std::string& name) { return name.starts_with("events.out.tfevents."); });
    };
    train("run", {{"tensorboard", ""}});
    EXPECT_EQ(event_files(), 1);
    expect_done({"train", "--resume", "--out", at("run"), "--steps", "8"});
    EXPECT_EQ(event_files(), 2) << "the option is kept";
    expect_done({"train", "--resume", "--out", at("run"), "--steps", "9", "--tensorboard=false"});
    EXPECT_EQ(event_files(), 2);
}

TEST_F(Train, SameBitsForAnyNumberOfThreads) {
    for (const std::string optimizer : {"adamw", "normuon"}) {
        train(optimizer, with(odd, {{"threads", "1"}, {"optimizer", optimizer}}));
        for (const char* threads : {"2", "3", "4"}) {
            train(optimizer + threads, with(odd, {{"threads", threads}, {"optimizer", optimizer}}));
            expect_same_run(optimizer, optimizer + threads);
        }
    }
    EXPECT_NE(parameters_of("adamw"), parameters_of("normuon"));
}

TEST_F(Train, AnotherSeedIsAnotherRun) {
    train("run");
    train("other", {{"seed", "1"}});
    EXPECT_NE(parameters_of("run"), parameters_of("other"));
}

TEST_F(Train, SameBitsHoweverMuchIsRecomputed) {
    train("none", odd);
    for (const char* what : {"gelu", "ln", "block"}) {
        train(what, with(odd, {{"recompute", what}}));
        EXPECT_EQ(parameters_of("none"), parameters_of(what)) << what;
    }
}

TEST_F(Train, SameBitsForAnyNumberOfThreadsWithBf16Matmuls) {
    if (!gemm::has_bf16) GTEST_SKIP() << "this CPU has no AVX512-BF16";
    train("1", with(odd, {{"threads", "1"}, {"matmul", "bf16"}}));
    for (const char* threads : {"2", "3", "4"}) {
        train(threads, with(odd, {{"threads", threads}, {"matmul", "bf16"}}));
        expect_same_run("1", threads);
    }
}

// Rounding operands to 8 bits of fraction changes losses by some 0.001, and gradients enough for other parameters.
TEST_F(Train, Bf16MatmulsLearnTheSame) {
    if (!gemm::has_bf16) GTEST_SKIP() << "this CPU has no AVX512-BF16";
    train("fp32");
    train("bf16", {{"matmul", "bf16"}});
    EXPECT_NE(parameters_of("fp32"), parameters_of("bf16"));
    const auto fp32 = log_of("fp32", "train"), bf16 = log_of("bf16", "train");
    ASSERT_EQ(fp32.size(), bf16.size());
    for (size_t i = 0; i < fp32.size(); ++i) EXPECT_NEAR(fp32[i].loss, bf16[i].loss, 0.01) << i;
}

// A sample of all tokens trains as their softmax does where neither has momentum, and one of some tokens differs from
// both, in the first step too. (A sample's token embeddings never have momentum, and their weight decay comes every few
// steps.)
TEST_F(Train, SampledSoftmax) {
    const Args plain = with(odd, {{"beta1", "0"}, {"weight-decay", "0"}});
    for (const char* const drawn : {"0", "65536", "20"}) train(drawn, with(plain, {{"sampled-softmax", drawn}}));
    const auto full = log_of("0", "train"), all = log_of("65536", "train"), some = log_of("20", "train");
    ASSERT_EQ(full.size(), all.size());
    for (size_t i = 0; i < full.size(); ++i) EXPECT_NEAR(full[i].loss, all[i].loss, 1e-3) << i;
    EXPECT_NE(full[0].loss, some[0].loss);
    EXPECT_NEAR(full[0].loss, some[0].loss, 0.3);
    const double before = log_of("20", "val").front().loss, after = log_of("20", "val").back().loss;
    EXPECT_LT(after, before);
}

TEST_F(Train, ResumedIsAsUnbroken) {
    for (const std::string optimizer : {"adamw", "muon", "normuon"}) {
        const std::string dropout = optimizer == "muon" ? "0.1" : "0", sampled = optimizer == "normuon" ? "9" : "0";
        train(optimizer,
              with(odd,
                   {{"threads", "2"}, {"optimizer", optimizer}, {"dropout", dropout}, {"sampled-softmax", sampled}}));
        for (const char* threads : {"1", "2", "3"}) {
            const std::string resumed = optimizer + threads;
            rewind(optimizer, resumed, "step_000007");
            const std::string out = expect_done({"train", "--resume", "--out", at(resumed), "--threads", threads});
            EXPECT_NE(out.find("after step 7"), std::string::npos) << out;
            expect_same_run(optimizer, resumed);
        }
    }
}

// The tree over which the gradients of shards are summed depends on --shards alone.
TEST_F(Train, EachNumberOfShardsHasItsOwnBits) {
    std::set<std::vector<float>> results;
    const auto all = is_sanitized() ? std::vector<std::string>{"1", "4"} : std::vector<std::string>{"1", "2", "4", "8"};
    for (const std::string& shards : all) {
        const Args of_shards = with(
            odd,
            {{"batch", "1"}, {"total-batch", "296"}, {"shards", shards}, {"dropout", "0.1"}, {"sampled-softmax", "9"}});
        train(shards, with(of_shards, {{"threads", "2"}}));
        train("other" + shards, with(of_shards, {{"threads", "1"}, {"recompute", "block"}}));
        EXPECT_EQ(parameters_of(shards), parameters_of("other" + shards));
        rewind(shards, "resumed" + shards, "step_000007");
        expect_done({"train", "--resume", "--out", at("resumed" + shards), "--threads", "3"});
        expect_same_run(shards, "resumed" + shards);
        results.insert(parameters_of(shards));
    }
    EXPECT_EQ(results.size(), all.size());
}

TEST_F(Train, ResumesAfterBeingKilled) {
    const Args long_run = {{"steps", "80"}, {"save-every", "10"}, {"eval-every", "25"}};
    train("whole", long_run);
    const Child child = start(training("killed", long_run));
    wait_for_file(child, at("killed/latest"));
    kill(child.pid, SIGKILL);
    finish(child);
    expect_done({"train", "--resume", "--out", at("killed")});
    expect_same_run("whole", "killed");
    for (const std::string& name : listing(at("killed"))) EXPECT_FALSE(name.ends_with(".tmp")) << name;
}

// A checkpoint of a version whose data came in another order has no field "data_order". It resumes with its exact
// weights and moments, and one line says that the order is another.
TEST_F(Train, ResumesCheckpointsOfAnotherOrderOfDataAndSaysSo) {
    train("new");
    fs::copy(at("new"), at("old"), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const std::string file = fs::canonical(at("old/latest")).string() + "/trainer_state.json";
    auto state = nlohmann::ordered_json::parse(read_bytes(file));
    EXPECT_EQ(state["data_order"], 2);
    state.erase("crc32"), state.erase("data_order");
    write_bytes(file, with_own_checksum(state.dump(2)));
    expect_done({"train", "--resume", "--out", at("new"), "--steps", "8"});
    const Result result = run({"train", "--resume", "--out", at("old"), "--steps", "8"});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.err.find("step_000006: saved by another version"), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find('\n') + 1, result.err.size()) << result.err;
    expect_same_run("new", "old");
    expect_done({"train", "--resume", "--out", at("old"), "--steps", "9"});  // it is said once
}

TEST_F(Train, ResumesWithADamagedLogAndSaysSo) {
    train("whole", {{"schedule", "constant"}, {"warmup", "0"}, {"steps", "9"}});
    train("damaged", {{"schedule", "constant"}, {"warmup", "0"}});
    const std::string path = at("damaged/log.jsonl"), log = read_bytes(path);
    std::string bad = log;
    bad[log.find('\n') + 3] ^= 0x40;  // in line 2, which is step 1
    write_bytes(path, bad);
    const Result result = run({"train", "--resume", "--out", at("damaged"), "--steps", "9"});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.err.find("log.jsonl: line 2: "), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find('\n') + 1, result.err.size()) << result.err;
    EXPECT_EQ(read_bytes(path + ".damaged"), bad);
    EXPECT_EQ(steps_of("damaged", "train"), (std::vector<int64_t>{2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_TRUE(read_bytes(at("whole/latest/model.safetensors")) == read_bytes(at("damaged/latest/model.safetensors")));
}

TEST_F(Train, ResumeGoesFurtherWithMoreSteps) {
    train("run", {{"schedule", "constant"}, {"warmup", "0"}});
    train("whole", {{"schedule", "constant"}, {"warmup", "0"}, {"steps", "9"}});
    expect_done({"train", "--resume", "--out", at("run"), "--steps", "9"});
    EXPECT_EQ(read_bytes(at("run/latest/model.safetensors")), read_bytes(at("whole/latest/model.safetensors")));
    EXPECT_EQ(steps_of("run", "train"), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));

    const auto before = snapshot();  // a finished run stays unchanged
    EXPECT_NE(expect_done({"train", "--resume", "--out", at("run")}).find("all 9 steps are done"), std::string::npos);
    expect_done({"train", "--resume", "--out", at("run"), "--steps", "3"});
    EXPECT_TRUE(snapshot() == before);
}

TEST_F(Train, ResumeGoesFurtherBitForBitBeforeWsdDecays) {
    const Args wsd = {{"schedule", "wsd"}, {"warmup", "1"}, {"save-every", "4"}, {"keep", "0"}};
    train("whole", with(wsd, {{"steps", "9"}}));
    train("stopped", with(wsd, {{"steps", "6"}}));
    rewind("stopped", "resumed", "step_000004");  // of six steps the last alone decays
    expect_done({"train", "--resume", "--out", at("resumed"), "--steps", "9"});
    expect_same_run("whole", "resumed");
}

TEST_F(Train, ResumeSaysHowALongerScheduleStretches) {
    // The line of a run's output about the changed schedule.
    const auto change = [&](const Args& more) {
        Args args = more;
        args.insert({{"resume", ""}, {"out", at("run")}});
        std::istringstream out(expect_done(words("train", args)));
        for (std::string line; std::getline(out, line);)
            if (line.find("schedule") != std::string::npos) return line;
        return std::string();
    };
    const std::string unbroken = "; the result differs from an uninterrupted run with these options";
    train("run", {{"schedule", "linear"}, {"lr", "0.01"}, {"warmup", "0"}});
    EXPECT_EQ(change({{"steps", "4"}}), "") << "all are done";
    EXPECT_EQ(change({{"steps", "12"}}),
              "--steps 12: changes the linear schedule of the resumed run: the learning rate jumps from 0.001 at "
              "step 6 to 0.00475 at step 7" +
                  unbroken);
    const auto log = log_of("run", "train");
    ASSERT_EQ(log.size(), 12u);
    EXPECT_DOUBLE_EQ(log[5].lr, 0.001);
    EXPECT_DOUBLE_EQ(log[6].lr, 0.00475);
    EXPECT_EQ(change({{"steps", "13"}, {"lr", "0.02"}, {"schedule", "constant"}}),
              "--steps 13, --lr 0.02, --schedule constant: changes the constant schedule of the resumed run: the "
              "learning rate jumps from 0.001 at step 12 to 0.02 at step 13" +
                  unbroken);
    EXPECT_EQ(change({{"steps", "14"}}), "") << "constant";
}

TEST_F(Train, AccumulatedIsAsTheLargeBatch) {
    const Args large = {{"batch", "8"}, {"total-batch", "128"}, {"steps", "10"}};
    train("8", large);
    const auto wanted = log_of("8", "train");
    for (const char* batch : {"4", "2", "1"}) {
        train(batch, with(large, {{"batch", batch}}));
        const auto found = log_of(batch, "train");
        ASSERT_EQ(found.size(), wanted.size());
        for (size_t i = 0; i < found.size(); ++i) {
            EXPECT_NEAR(found[i].loss, wanted[i].loss, 1e-5 * wanted[i].loss)
                << "batch " << batch << ", step " << i + 1;
            EXPECT_NEAR(found[i].grad_norm, wanted[i].grad_norm, 1e-4 * wanted[i].grad_norm);
        }
    }
}

TEST_F(Train, SchedulesWarmUpAndFall) {
    const Args common = {{"steps", "20"}, {"warmup", "5"}, {"lr", "0.01"}, {"final-lr-frac", "0.2"}};
    for (const std::string schedule : {"cosine", "linear", "constant", "wsd"}) {
        train(schedule, with(common, {{"schedule", schedule}}));
        const auto log = log_of(schedule, "train");
        ASSERT_EQ(log.size(), 20u);
        for (int s = 1; s <= 20; ++s) {
            const double left = (20 - s) / 15.0;
            double lr = 0.01;
            if (s < 5)
                lr = 0.01 * s / 5;
            else if (schedule == "cosine")
                lr = 0.002 + 0.008 * (1 - std::cos(std::acos(-1.0) * left)) / 2;
            else if (schedule == "linear")
                lr = 0.002 + 0.008 * left;
            else if (schedule == "wsd" && s > 17)
                lr = 0.002 + 0.008 * (1 - std::sqrt((s - 17) / 3.0));
            EXPECT_NEAR(log[s - 1].lr, lr, 1e-12) << schedule << ", step " << s;
        }
    }
}

TEST_F(Train, ClippingShortensTheStepAndNotTheLog) {
    const Args adamw = {{"optimizer", "adamw"}, {"weight-decay", "0"}};
    train("still", with(adamw, {{"lr", "0"}}));  // the initial parameters
    train("free", with(adamw, {{"clip", "0"}}));
    train("loose", with(adamw, {{"clip", "1000000"}}));
    train("tight", with(adamw, {{"clip", "1e-9"}}));  // down to where AdamW's epsilon counts
    EXPECT_EQ(parameters_of("free"), parameters_of("loose"));
    EXPECT_EQ(log_of("free", "train")[0].grad_norm, log_of("tight", "train")[0].grad_norm);
    EXPECT_GT(log_of("tight", "train")[5].grad_norm, 0.1);
    const auto initial = parameters_of("still");
    const auto moved = [&](const std::string& out) {
        double sum = 0;
        const auto parameters = parameters_of(out);
        for (size_t i = 0; i < parameters.size(); ++i) sum += std::abs(parameters[i] - initial[i]);
        return sum;
    };
    EXPECT_GT(moved("free"), 0);
    EXPECT_GT(moved("tight"), 0);
    EXPECT_LT(moved("tight"), moved("free") / 100);
}

TEST_F(Train, OptimizersSettingsReachIt) {
    train("plain", {{"optimizer", "muon"}});
    const std::string plain = read_bytes(at("plain/latest/model.safetensors"));
    for (const auto& [name, value] :
         Args{{"lr", "0.002"}, {"weight-decay", "0.5"}, {"beta1", "0.8"}, {"beta2", "0.9"}, {"optimizer", "adamw"}}) {
        train(name, with({{"optimizer", "muon"}}, {{name, value}}));
        EXPECT_FALSE(read_bytes(at(name + "/latest/model.safetensors")) == plain) << name;
    }
}

TEST_F(Train, EveryManySteps) {
    const std::string often =
        train("often",
              {{"eval-every", "2"}, {"sample-every", "3"}, {"sample-tokens", "5"}, {"save-every", "1"}, {"keep", "2"}});
    EXPECT_EQ(steps_of("often", "val"), (std::vector<int64_t>{0, 2, 4, 6}));
    EXPECT_EQ(listing(at("often")),
              (std::vector<std::string>{"best", "data", "latest", "log.jsonl", "options.json", "report.html",
                                        "samples.jsonl", "step_000005", "step_000006"}));
    for (int step = 0; step <= 6; ++step)
        EXPECT_EQ(often.find("sample after step " + std::to_string(step)) != std::string::npos, step == 3 || step == 6);

    const std::string never =
        train("never", {{"eval-every", "0"}, {"sample-every", "0"}, {"sample-tokens", "5"}, {"save-every", "0"}});
    EXPECT_EQ(steps_of("never", "val"), (std::vector<int64_t>{}));
    EXPECT_EQ(listing(at("never")), (std::vector<std::string>{"data", "log.jsonl", "options.json", "report.html"}));
    EXPECT_EQ(never.find("sample"), std::string::npos);

    const std::string silent = train("silent", {{"sample-every", "1"}, {"save-every", "2"}, {"keep", "0"}});
    EXPECT_EQ(silent.find("sample"), std::string::npos);
    EXPECT_EQ(listing(at("silent")),
              (std::vector<std::string>{"best", "data", "latest", "log.jsonl", "options.json", "report.html",
                                        "step_000002", "step_000004", "step_000006"}));
}

TEST_F(Train, StartsInAnEmptyDirectory) {
    fs::create_directory(at("run"));
    train("run");
    EXPECT_TRUE(path_exists(at("run/latest/model.safetensors")));
}

TEST_F(Train, OnSeveralShards) {
    std::vector<uint16_t> tokens;
    for (const char c : read_bytes(text)) tokens.push_back(static_cast<uint8_t>(c));
    fs::create_directory(at("shards"));
    write_shard(at("shards/t_train_0.bin"), {tokens.begin(), tokens.begin() + 1000});
    write_shard(at("shards/t_train_1.bin"), {tokens.begin() + 1000, tokens.begin() + 2200});
    write_shard(at("shards/t_val_0.bin"), {tokens.begin() + 2200, tokens.end()});
    const std::string out = train("run", {{"data", at("shards/t_train_*.bin")}, {"val", at("shards/t_val_*.bin")}});
    EXPECT_NE(out.find("2200 tokens to train on, " + std::to_string(tokens.size() - 2200) + " to validate"),
              std::string::npos)
        << out;
    train("again", {{"data", at("shards/t_train_*.bin")}, {"val", at("shards/t_val_*.bin")}, {"threads", "3"}});
    EXPECT_EQ(parameters_of("run"), parameters_of("again"));
    const std::string held_out = train("held out", {{"data", at("shards/*.bin")}});  // the last of several
    EXPECT_NE(held_out.find("2200 tokens to train on"), std::string::npos) << held_out;
}

TEST_F(Train, WithMergesOfItsOwn) {
    write_bytes(at("merges.txt"), "#version: 0.2\nt h\nth e\n");
    const std::string out = train("run", {{"tokenizer", at("merges.txt")}, {"sample-tokens", "5"}});
    EXPECT_NE(out.find("vocabulary 259"), std::string::npos) << out;  // 256 bytes, two merges, end of text
    fs::remove(at("merges.txt"));                                     // the checkpoint has its own copy
    expect_done({"train", "--resume", "--out", at("run"), "--steps", "8"});
    expect_text({"generate", "--from", at("run"), "--prompt", "the", "--tokens", "4"});
}
