// A disk that fails at any one call, or from that call on; NaN; outliers; two runs in one directory; odd paths.
// Training continues if it can and reports what failed, the last good checkpoint is untouched, and --resume completes
// the run. FAULTS=all tries every single call (make test-long); otherwise some of them.
#include <algorithm>
#include <cmath>

#include "dev/test/program/program.h"
#include "io/model/checkpoint.h"
#include "io/file/file.h"
#include "program/log.h"
#include "io/file/utf8.h"
#include "io/model/safetensors.h"

namespace fs = std::filesystem;

namespace {

const bool in_memory = access("/dev/shm", W_OK) == 0 && setenv("TMPDIR", "/dev/shm", 0) == 0;  // as in kill_test

class Faults : public Program {
protected:
    // Runs the program with the shim and these environment variables.
    Result run_with(const Args& environment, std::vector<std::string> arguments) const {
        const fs::path shim = fs::read_symlink("/proc/self/exe").parent_path() / "fault_shim.so";
        if (!fs::exists(shim)) throw std::runtime_error(shim.string() + " is missing");
        setenv("LD_PRELOAD", shim.c_str(), 1);
        setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
        for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
        const Child child = start(std::move(arguments));
        for (const auto& [name, value] : environment) unsetenv(name.c_str());
        unsetenv("LD_PRELOAD");
        return finish(child);
    }
};

}  // namespace

TEST_F(Faults, OfTheDiskAtAnyCallLoseNoCheckpointAndTrainingGoesOn) {
    const char* wanted = std::getenv("FAULTS");
    const bool all = wanted && std::string(wanted) == "all";
    const Args options = {{"schedule", "constant"}, {"warmup", "0"}, {"sample-every", "2"}, {"sample-tokens", "3"}};
    Args four = options, three = options;
    four["steps"] = "4", three["steps"] = "3";
    train("whole", three);
    expect_done({"train", "--resume", "--out", at("whole"), "--steps", "4"});
    train("run", three);
    const std::string good = read_bytes(at("run/step_000003/trainer_state.json"));
    int64_t struck = 0, failed = 0;
    for (const auto& [call, stride] : std::map<std::string, int>{
             {"open", 5}, {"write", 5}, {"fsync", 6}, {"rename", 3}, {"mkdir", 1}, {"symlink", 1}})
        for (int number = 1;; number += all ? 1 : stride) {
            const bool on = number % 2 == 0;
            SCOPED_TRACE(call + " " + std::to_string(number) + (on ? " and all that follow" : ""));
            fs::remove_all(at("broken"));
            fs::copy(at("run"), at("broken"), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
            const std::string fault = call + ":" + std::to_string(number) + (on ? ":28:on" : ":5");  // ENOSPC, EIO
            const Args environment = {{"FAULT_BELOW", at("broken")}, {"FAULT", fault}};
            const Result result = run_with(environment, {"train", "--resume", "--out", at("broken"), "--steps", "4"});
            EXPECT_TRUE(result.status >= 0 && result.status <= 2) << result.status;
            if (result.err.find("fault\n") == std::string::npos) {
                EXPECT_EQ(result.status, 0) << result.err;
                break;
            }
            ++struck, failed += result.status != 0;
            if (result.status != 0) {
                EXPECT_NE(result.err.find(program_name() + ": "), std::string::npos) << result.err;
                EXPECT_NE(result.err.find(" failed: "), std::string::npos) << result.err;
            }
            EXPECT_EQ(read_bytes(at("broken/step_000003/trainer_state.json")), good);
            verify_checkpoint(at("broken/step_000003"));
            std::vector<std::string> passed_over;
            EXPECT_NO_THROW(EXPECT_TRUE(checkpoint_to_resume(at("broken"), passed_over)));
            EXPECT_TRUE(passed_over.empty());
            expect_done({"train", "--resume", "--out", at("broken"), "--steps", "4"});
            expect_same_run("broken", "whole");
        }
    std::cout << struck << " faults, of which " << failed << " ended a run with another status than 0\n";
    EXPECT_GE(struck, 20);
}

// In the middle of a run the disk is full for a while. The run continues, and nothing of its log is lost.
TEST_F(Faults, TrainingOutlivesADiskThatIsFullForAWhile) {
    Args options = {{"steps", "40"}, {"save-every", "10"}, {"keep", "0"}, {"eval-every", "10"}};
    train("whole", options);
    const Result result =
        run_with({{"FAULT_BELOW", at("broken") + "/.step"}, {"FAULT", "mkdir:2:28"}}, training("broken", options));
    EXPECT_EQ(result.status, 0) << "the last checkpoint was saved";
    EXPECT_NE(result.err.find("No space left on device"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("step 20 is not saved"), std::string::npos) << result.err;
    EXPECT_FALSE(path_exists(at("broken/step_000020")));
    EXPECT_TRUE(path_exists(at("broken/step_000030")));
    expect_same_run("broken", "whole");
    const Result log =
        run_with({{"FAULT_BELOW", "broken log/log.jsonl"}, {"FAULT", "write:7:28"}}, training("broken log", options));
    EXPECT_EQ(log.status, 0);
    EXPECT_NE(log.err.find("log.jsonl: write failed: No space left on device"), std::string::npos) << log.err;
    expect_same_run("broken log", "whole");
}

// The directory is read-only from the second save on; then from the start.
TEST_F(Faults, InAReadOnlyDirectoryTrainingGoesOnAndTheLastCheckpointStays) {
    const Args options = {{"steps", "40"}, {"save-every", "10"}, {"keep", "1"}};
    train("whole", options);
    const Result result =
        run_with({{"FAULT_BELOW", at("run") + "/.step"}, {"FAULT", "mkdir:2:30:on"}}, training("run", options));
    EXPECT_EQ(result.status, 1) << "the last checkpoint was not saved";
    for (const char* step : {"20", "30", "40"})
        EXPECT_NE(result.err.find(
                      "failed: Read-only file system; free some space, or check the path and its permissions; step " +
                      std::string(step) + " is not saved"),
                  std::string::npos)
            << result.err;
    EXPECT_EQ(read_log(at("run/log.jsonl")).back().step, 40) << "it went on";
    EXPECT_EQ(read_trainer_state(at("run/latest")).step, 10);
    verify_checkpoint(at("run/latest"));

    const auto before = snapshot();
    for (const std::string call : {"open", "mkdir"}) {
        const Result refused =
            run_with({{"FAULT_BELOW", at("run")}, {"FAULT", call + ":1:30:on"}},
                     call == "open" ? std::vector<std::string>{"train", "--resume", "--out", at("run")}
                                    : training("run/new", options));
        EXPECT_EQ(refused.status, 2);
        EXPECT_NE(refused.err.find(": " + call + " failed: Read-only file system; "), std::string::npos) << refused.err;
        EXPECT_TRUE(snapshot() == before);
    }
    expect_done({"train", "--resume", "--out", at("run")});
    expect_same_run("run", "whole");
}

TEST_F(Faults, NothingIsWrittenOutsideOut) {
    for (const std::vector<std::string>& command :
         {training("run", {{"sample-every", "3"}, {"sample-tokens", "3"}, {"save-every", "2"}}),
          std::vector<std::string>{"train", "--resume", "--out", at("run"), "--steps", "9"},
          std::vector<std::string>{"generate", "--from", at("run"), "--tokens", "3"},
          std::vector<std::string>{"info", at("run")}}) {
        EXPECT_EQ(run_with({{"FAULT_RECORD", at("record")}}, command).status, 0);
    }
    std::istringstream paths(read_bytes(at("record")));
    int64_t below = 0;
    for (std::string path; std::getline(paths, path);) {
        EXPECT_TRUE(path == at("run") || path.starts_with(at("run/"))) << path;
        ++below;
    }
    EXPECT_GT(below, 50);
}

TEST_F(Faults, NaNStopsWithTheFirstTensorAndLayerAndTheLastGoodStateIsSaved) {
    const Args shape = {{"layers", "3"}, {"save-every", "0"}};
    train("model", {{"layers", "3"}, {"steps", "1"}});
    const auto diverge = [&](const std::string& out, const Args& more, const std::vector<std::string>& parts) {
        std::vector<std::string> arguments = words("train", {{"data", text},
                                                             {"out", at(out)},
                                                             {"batch", "2"},
                                                             {"seq", "16"},
                                                             {"init", at("model/latest")},
                                                             {"steps", "5"},
                                                             {"sample-tokens", "0"}});
        for (const auto& [name, value] : more) arguments.insert(arguments.end(), {"--" + name, value});
        const Result result = run(arguments);
        EXPECT_EQ(result.status, 1) << result.err;
        for (const std::string& part : parts)
            EXPECT_NE(result.err.find(part), std::string::npos) << result.err << "lacks " << part;
        const LogEntry last = read_log(at(out + "/log.jsonl")).back();
        EXPECT_FALSE(std::isfinite(last.loss) && std::isfinite(last.grad_norm)) << "the step is in the log";
    };
    const std::string weights = "transformer.h.1.ln_2.weight";
    set_parameter("model/latest", weights, 3e38f);
    for (const std::string recompute : {"none", "ln", "block"})
        diverge("large " + recompute, {{"recompute", recompute}},
                {"step 1: loss ", "first appears in ln2 of layer 1", "position 0, seed 1337",
                 "the state after step 0 is saved"});
    EXPECT_TRUE(path_exists(at("large none/step_000000")));
    diverge("accumulated", {{"total-batch", "128"}}, {"in ln2 of layer 1"});

    set_parameter("model/latest", weights, std::nanf(""));
    const Result refused = run(words("train", {{"data", text}, {"out", at("nan")}, {"init", at("model/latest")}}));
    EXPECT_EQ(refused.status, 1);
    EXPECT_NE(refused.err.find("tensor " + weights + ": 1 NaN"), std::string::npos) << refused.err;
    EXPECT_FALSE(path_exists(at("nan"))) << "there is no state worth keeping";
}

TEST_F(Faults, OutliersAreSkippedLoggedAndTheSameAfterAResume) {
    const Args options = {{"steps", "220"}, {"skip-outliers", "0.5"}, {"save-every", "150"}, {"keep", "0"}};
    const std::string out = train("run", options);
    EXPECT_NE(out.find("update skipped"), std::string::npos);
    int64_t skipped = 0;
    for (const LogEntry& e : read_log(at("run/log.jsonl"))) {
        skipped += e.skipped;
        EXPECT_FALSE(e.skipped && e.step <= 128) << "before there is a history";
    }
    EXPECT_GT(skipped, 0);
    fs::copy(at("run"), at("resumed"), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    fs::remove_all(at("resumed/step_000220"));
    expect_done({"train", "--resume", "--out", at("resumed")});
    expect_same_run("run", "resumed");
    train("all", {{"steps", "220"}, {"save-every", "150"}});
    EXPECT_FALSE(read_bytes(at("all/latest/model.safetensors")) == read_bytes(at("run/latest/model.safetensors")));
}

TEST_F(Faults, ASecondRunInOnePlaceIsRefusedAStaleLockIsNot) {
    const Child first = start(training("run", {{"steps", "1000000"}, {"warmup", "0"}, {"save-every", "1000000"}}));
    wait_for_file(first, at("run/log.jsonl"));
    kill(first.pid, SIGUSR1);
    wait_for_file(first, at("run/latest"));
    for (const std::vector<std::string>& command :
         {training("run"), std::vector<std::string>{"train", "--resume", "--out", at("run")}}) {
        const Result second = run(command);
        EXPECT_EQ(second.status, 2);
        EXPECT_NE(second.err.find("another run (process " + std::to_string(first.pid) + ") is using this directory"),
                  std::string::npos)
            << second.err;
    }
    EXPECT_EQ(waitpid(first.pid, nullptr, WNOHANG), 0) << "the first goes on";
    kill(first.pid, SIGKILL);
    finish(first);
    EXPECT_TRUE(path_exists(at("run/.lock")));
    const int64_t step = read_trainer_state(at("run/latest")).step;
    expect_done({"train", "--resume", "--out", at("run"), "--steps", std::to_string(step + 1)});
    EXPECT_FALSE(path_exists(at("run/.lock")));
}

TEST_F(Faults, OddPathsWork) {
    const std::string odd = "a new\nline, 'quotes' \"and\" $HOME \xE2\x82\xAC";
    fs::create_directory(at(odd));
    write_bytes(at(odd + "/text"), read_bytes(text));
    train(odd + "/run", {{"data", at(odd + "/text")}});
    expect_done({"train", "--resume", "--out", at(odd + "/run"), "--steps", "8"});
    expect_text({"generate", "--from", at(odd + "/run"), "--tokens", "3"});

    fs::create_directory(at("real"));
    fs::create_directory_symlink(at("real"), at("link"));
    fs::create_symlink(text, at("link to text"));
    train("link", {{"data", at("link to text")}});
    EXPECT_TRUE(path_exists(at("real/latest/model.safetensors")));
    expect_done({"train", "--resume", "--out", at("link"), "--steps", "8"});
    expect_refused({"train", "--data", at("no\nsuch"), "--out", at("out")}, {"such: open failed: No such file"});
}

// Paths with bytes that JSON cannot contain: nothing of such a run is lost, and its report is UTF-8.
TEST_F(Faults, PathsThatAreNoUtf8AreFoundAgainAtResume) {
    const std::string odd = "caf\xE9 <b>\n\"\xFF", data = at(odd + "/text \xED\xA0\x80");
    fs::create_directory(at(odd));
    write_bytes(data, read_bytes(text));
    train(odd + "/run", {{"data", data}, {"val", data}, {"steps", "2"}, {"schedule", "constant"}});
    const std::vector<std::string> resume = {"train", "--resume", "--out", at(odd + "/run"), "--steps", "4"};
    expect_done(resume);
    EXPECT_EQ(read_trainer_state(at(odd + "/run/latest")).step, 4);
    train("plain", {{"val", text}, {"steps", "2"}, {"schedule", "constant"}});
    expect_done({"train", "--resume", "--out", at("plain"), "--steps", "4"});
    EXPECT_TRUE(timeless_log(odd + "/run") == timeless_log("plain"));
    expect_done(words("train", {{"init", at(odd + "/run")},
                                {"data", data},
                                {"out", at(odd + "/more")},
                                {"seq", "16"},
                                {"batch", "2"},
                                {"steps", "2"},
                                {"sample-tokens", "0"}}));
    expect_done({"train", "--resume", "--out", at(odd + "/more"), "--steps", "3"});
    expect_done({"info", at(odd + "/run"), "--verify"});
    const std::string html = read_bytes(at(odd + "/run/report.html"));
    EXPECT_EQ(replace_invalid_utf8(html), html);
    EXPECT_EQ(html.find("<b>\n\""), std::string::npos);
    // Before the first checkpoint the options come from options.json.
    for (const char* name : {"latest", "step_000002", "step_000004"}) fs::remove_all(at(odd + "/run/" + name));
    expect_done(resume);
    EXPECT_TRUE(read_bytes(at(odd + "/run/latest/model.safetensors")) ==
                read_bytes(at("plain/latest/model.safetensors")));
}

// A run that continues with other data is another run. A warning says so, unless the user gave other data.
TEST_F(Faults, OtherDataAtResumeIsSaid) {
    int steps = 2;
    const auto resumed = [&](const std::string& out, const Args& more = {}) {
        Args args = more;
        args.insert({{"resume", ""}, {"out", at(out)}, {"steps", std::to_string(++steps)}});
        const Result result = run(words("train", args));
        EXPECT_EQ(result.status, 0) << result.err;
        return result.err;
    };
    train("text run", {{"steps", "2"}});
    EXPECT_EQ(resumed("text run"), "");
    const std::string bytes = read_bytes(text);
    write_bytes(text, bytes);
    EXPECT_EQ(resumed("text run"), "") << "the same text, written later";
    for (const char* part : {"train", "val"}) {  // as an earlier version recorded the tokenizer, in 64 bits
        const std::string record = at("text run/data/" + std::string(part) + ".json");
        auto json = nlohmann::json::parse(read_bytes(record));
        json["tokenizer_hash"] = 0xcbf29ce484222325;
        write_bytes(record, json.dump());
    }
    EXPECT_EQ(resumed("text run"), "") << "the same text, tokenized by an earlier version";
    write_bytes(text, "The first line is new.\n" + bytes);
    const std::string said = resumed("text run");
    for (const char* part : {"train.bin", "val.bin"})
        EXPECT_NE(said.find(text + ": another text than " + at("text run/data/") + part), std::string::npos) << said;
    EXPECT_EQ(std::ranges::count(said, '\n'), 2) << said;
    EXPECT_EQ(resumed("text run"), "") << "once";
    write_bytes(at("other.txt"), bytes);
    EXPECT_EQ(resumed("text run", {{"data", at("other.txt")}}), "") << "it was asked for";

    for (const std::string name : {"1", "2", "3", "4"}) {
        write_bytes(text, name + bytes);
        expect_done({"tokenize", text, at(name + ".bin")});
    }
    train("shard run", {{"data", at("*.bin")}, {"steps", "2"}});
    EXPECT_EQ(resumed("shard run"), "");
    const std::string other =
        "*.bin: the tokens, or their order, are not those that the run was trained on up to step ";
    fs::remove(at("2.bin"));
    EXPECT_NE(resumed("shard run").find(other), std::string::npos) << "one of them is gone";
    EXPECT_EQ(resumed("shard run"), "") << "once";
    fs::rename(at("1.bin"), at("2.bin"));
    EXPECT_EQ(resumed("shard run"), "") << "the same tokens in the same order";
    fs::rename(at("4.bin"), at("1.bin"));
    EXPECT_NE(resumed("shard run").find(other), std::string::npos) << "another order";
    EXPECT_EQ(resumed("shard run", {{"data", at("2.bin")}}), "") << "it was asked for";
}

// Read errors of a mapped file end the program by a signal.
TEST_F(Faults, DataThatIsCutWhileItIsReadIsNamedAndTheRunGoesOnFromItsCheckpoint) {
    const std::string shard = at("a shard.bin");
    expect_done({"tokenize", text, shard});
    const std::string bytes = read_bytes(shard);
    for (const std::string& data : {shard, text}) {
        const std::string out = fs::path(data).stem().string(), cut = data == text ? at(out + "/data/train.bin") : data;
        const Child child =
            start(training(out, {{"data", data}, {"steps", "1000000"}, {"warmup", "0"}, {"save-every", "1000000"}}));
        wait_for_file(child, at(out + "/log.jsonl"));
        kill(child.pid, SIGUSR1);
        wait_for_file(child, at(out + "/latest"));
        fs::resize_file(cut, 0);
        const Result result = finish(child);
        EXPECT_EQ(result.status, 2);
        EXPECT_NE(result.err.find(program_name() + ": " + cut + ": read failed: the file was truncated"),
                  std::string::npos)
            << result.err;
        if (data == shard) write_bytes(shard, bytes);  // a text is tokenized again
        const std::string step = std::to_string(read_trainer_state(at(out + "/latest")).step + 2);
        const Result resumed = run({"train", "--resume", "--out", at(out), "--steps", step});
        EXPECT_EQ(resumed.status, 0) << resumed.err;
        EXPECT_EQ(resumed.err.empty(), data == shard) << resumed.err;
    }
}

// The first files to be opened would take the places of closed streams, and output would go into them.
TEST_F(Faults, ClosedStandardStreamsDoNotBecomeFiles) {
    const Args options = {{"sample-every", "2"}, {"sample-tokens", "3"}, {"save-every", "2"}};
    train("open", options);
    for (const std::string closed : {"<&-", "<&- >&-", "<&- >&- 2>&-", ">&- 2>&-", "2>&-"}) {
        std::string command = binary();
        for (const std::string& word : training("closed " + closed, options)) command += " '" + word + "'";
        const int status = system((command + " >/dev/null 2>&1 " + closed).c_str());
        EXPECT_EQ(WEXITSTATUS(status), closed.find(">&-") < closed.find("2>&-") ? 2 : 0) << closed;
        expect_same_run("closed " + closed, "open");
        EXPECT_TRUE(read_bytes(at("closed " + closed + "/samples.jsonl")) == read_bytes(at("open/samples.jsonl")));
    }
}

TEST_F(Faults, GPT2sMergesAreFoundBesideTheProgramFromAnyDirectory) {
    if (!path_exists("data/vocab.bpe")) GTEST_SKIP() << "no data/vocab.bpe: scripts/get_data.sh vocab.bpe";
    fs::copy_file(binary(), at("train_gpt2"));
    fs::create_directory(at("data"));
    fs::copy_file("data/vocab.bpe", at("data/vocab.bpe"));
    fs::create_directory(at("elsewhere"));
    const std::string command =
        "cd '" + at("elsewhere") + "' && ../train_gpt2 tokenize '" + text + "' text.bin --tokenizer gpt2 >/dev/null";
    EXPECT_EQ(system(command.c_str()), 0);
    EXPECT_GT(fs::file_size(at("elsewhere/text.bin")), 1024u);
}
