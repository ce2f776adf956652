// SIGINT, SIGTERM, SIGHUP and SIGUSR2 finish the step, save, report, and print how to continue; a second one ends the
// program at once. SIGUSR1 saves and continues. --resume completes what was interrupted, bit for bit.
#include "dev/test/program/program.h"
#include "io/model/checkpoint.h"
#include "io/file/file.h"
#include "program/log.h"

namespace fs = std::filesystem;

namespace {

const bool in_memory = access("/dev/shm", W_OK) == 0 && setenv("TMPDIR", "/dev/shm", 0) == 0;  // as in kill_test

class Signals : public Program {
protected:
    int64_t lines(const std::string& file) const {
        const std::string bytes = path_exists(at(file)) ? read_bytes(at(file)) : "";
        return std::ranges::count(bytes, '\n');
    }
    // Expects a checkpoint of the last step in the log, and the message of a stopped run.
    void expect_resumable(const Result& result, const std::string& out) const {
        EXPECT_EQ(result.err, "\n" + program_name() + ": stopping after this step; a second signal stops at once\n");
        EXPECT_NE(result.out.find("\n  " + program_name() + " --resume --out '" + at(out) + "'"), std::string::npos)
            << result.out;
        EXPECT_TRUE(path_exists(at(out + "/report.html")));
        std::vector<std::string> passed_over;
        const auto saved = checkpoint_to_resume(at(out), passed_over);
        ASSERT_TRUE(saved);
        EXPECT_EQ(read_trainer_state(*saved).step, read_log(at(out + "/log.jsonl")).back().step) << "a step was lost";
    }
    // Resumed to `steps`, the run `stopped` must equal an uninterrupted run.
    void expect_same_end(const std::string& stopped, Args options, int64_t steps) const {
        options["steps"] = std::to_string(steps);
        expect_done({"train", "--resume", "--out", at(stopped), "--steps", options["steps"], "--threads", "1"});
        train("unbroken " + stopped, options);
        EXPECT_TRUE(timeless_log(stopped) == timeless_log("unbroken " + stopped));
        for (const char* file : {"/latest/model.safetensors", "/samples.jsonl"})
            EXPECT_TRUE(read_bytes(at(stopped + file)) == read_bytes(at("unbroken " + stopped + file))) << file;
    }
    // A run that only a signal ends; its learning rate does not depend on --steps. It uses one thread: with two, other
    // work on this machine would make thousands of small passes wait for each other.
    const Args endless = {
        {"steps", "1000000"}, {"threads", "1"}, {"schedule", "constant"}, {"warmup", "3"}, {"save-every", "1000000"}};
};

Args with(Args args, const Args& more) {
    for (const auto& [name, value] : more) args[name] = value;
    return args;
}

}  // namespace

TEST_F(Signals, StopAfterTheStepSavedAndReported) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR2}) {
        const std::string out = "stopped by " + std::to_string(signal);
        const Child child = start(training(out, endless));
        wait_until(child, [&] { return lines(out + "/log.jsonl") > 5; });
        kill(child.pid, signal);
        const Result result = finish(child);
        EXPECT_EQ(result.status, 128 + signal);
        expect_resumable(result, out);
        EXPECT_FALSE(path_exists(at(out + "/.lock")));
        expect_same_end(out, endless, read_log(at(out + "/log.jsonl")).back().step + 2);
    }
}

TEST_F(Signals, ASecondOneEndsAtOnce) {
    // An update that takes an hour, which is too long to wait for.
    const Child child = start(training("run", with(endless, {{"total-batch", "3200000000"}, {"eval-every", "0"}})));
    wait_for_file(child, at("run/log.jsonl"));
    usleep(100'000);
    kill(child.pid, SIGINT);
    usleep(100'000);
    EXPECT_EQ(waitpid(child.pid, nullptr, WNOHANG), 0) << "the first one waits for the end of the step";
    kill(child.pid, SIGTERM);
    EXPECT_EQ(finish(child).status, 128 + SIGTERM);
    EXPECT_EQ(lines("run/log.jsonl"), 0);
}

TEST_F(Signals, Usr1SavesAndGoesOn) {
    const Child child = start(training("run", with(endless, {{"save-every", "0"}})));
    wait_until(child, [&] { return lines("run/log.jsonl") > 3; });
    kill(child.pid, SIGUSR1);
    wait_for_file(child, at("run/latest"));
    const int64_t then = lines("run/log.jsonl");
    wait_until(child, [&] { return lines("run/log.jsonl") > then + 3; });
    EXPECT_GT(lines("run/log.jsonl"), then + 3);
    kill(child.pid, SIGTERM);
    const Result result = finish(child);
    EXPECT_EQ(result.status, 128 + SIGTERM) << "an --save-every of 0 is no wish to lose the run";
    expect_resumable(result, "run");
    EXPECT_GE(std::ranges::count_if(listing(at("run")), [](const auto& name) { return name.starts_with("step_"); }), 2);
}

TEST_F(Signals, BreakOffAnEvaluationWhichIsThenMadeAtResume) {
    std::string much;  // more than 0.1 s of evaluation
    for (int i = 0; i < (is_sanitized() ? 6'000 : 60'000); ++i)
        much += std::to_string(i * 7919L % 100'003) + (i % 9 ? " " : "\n");
    write_bytes(at("much.txt"), much);
    const Args slow = with(endless, {{"val", at("much.txt")}, {"eval-batches", "1000000"}, {"eval-every", "2"}});
    const Child child = start(training("run", slow));
    wait_until(child, [&] { return lines("run/log.jsonl") > 2; });  // 0 val, 1, 2: it evaluates after step 2
    usleep(20'000);
    kill(child.pid, SIGTERM);
    const Result result = finish(child);
    EXPECT_EQ(result.status, 128 + SIGTERM);
    expect_resumable(result, "run");
    const auto last = read_log(at("run/log.jsonl")).back();
    EXPECT_EQ(last.split, "train") << "it waited for the evaluation's end";
    expect_same_end("run", slow, last.step + 1);
}

TEST_F(Signals, BreakOffASampleWhichIsThenMadeAtResume) {
    const Args slow = with(endless, {{"sample-every", "4"}, {"sample-tokens", "5000"}, {"eval-every", "0"}});
    const Child child = start(training("run", slow));
    wait_until(child, [&] { return lines("run/log.jsonl") > 3; });
    usleep(20'000);
    kill(child.pid, SIGINT);
    const Result result = finish(child);
    EXPECT_EQ(result.status, 128 + SIGINT);
    expect_resumable(result, "run");
    EXPECT_EQ(lines("run/samples.jsonl"), 0) << "it waited for the sample's end";
    expect_same_end("run", slow, 5);
    EXPECT_EQ(lines("run/samples.jsonl"), 2);
}

TEST_F(Signals, OtherCommandsEndAsUsual) {
    train("run");
    write_bytes(at("long"), std::string(100'000'000, 'x'));  // takes minutes to evaluate
    const Child child = start({"eval", "--from", at("run"), "--data", at("long")});
    usleep(500'000);
    kill(child.pid, SIGINT);
    const Result result = finish(child);
    EXPECT_EQ(result.status, 128 + SIGINT);
    EXPECT_EQ(result.err.find("stopping"), std::string::npos) << result.err;
}
