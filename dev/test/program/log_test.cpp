// The log of a run: it is read back as written, interruptions do no harm, and damage is reported.
#include "program/log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "dev/test/io/model_files.h"

namespace fs = std::filesystem;

namespace {

class LogTest : public TestDirectory {
protected:
    std::string contents() const { return read_bytes(path); }
    const std::string path = at("log.jsonl");
};

LogEntry train_entry(int64_t step, double value) {
    return {.step = step,
            .split = "train",
            .loss = value,
            .lr = value,
            .grad_norm = value,
            .tokens_per_second = value,
            .seconds = value};
}
std::string train_line(int step) {
    return "{\"step\":" + std::to_string(step) +
           R"(,"split":"train","loss":0.5,"lr":0.5,"grad_norm":0.5,"tokens_per_second":0.5,"seconds":0.5})" + "\n";
}
const LogEntry val_entry{.step = 1, .split = "val", .loss = 5.25, .seconds = 0.75};
const std::string val_line = R"({"step":1,"split":"val","loss":5.25,"seconds":0.75})" + std::string("\n");

// Scripts and users rely on these names.
TEST_F(LogTest, LinesHaveTheContractsKeys) {
    Log log(path, -1);
    log.write(train_entry(1, 0.5));
    log.write(val_entry);
    EXPECT_EQ(contents(), train_line(1) + val_line) << "each line must be there as soon as it is written";
}

TEST_F(LogTest, NumbersRoundTripToTheLastBit) {
    Log log(path, -1);
    for (const double odd : {1.0 / 3, 0x1.fffffffffffffp-1022, 1e300, 5e-324, 0.1 + 0.2}) {
        log.write(train_entry(int64_t{1} << 40, odd));
        const LogEntry read = read_log(path).back();
        EXPECT_EQ(read.step, int64_t{1} << 40);
        for (const double v : {read.loss, read.lr, read.grad_norm, read.tokens_per_second, read.seconds})
            EXPECT_EQ(v, odd);
    }
    for (const double none : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        log.write(train_entry(2, none));
        EXPECT_TRUE(std::isnan(read_log(path).back().loss)) << "a diverged loss must stay visible";
    }
}

TEST_F(LogTest, KeepsTheLossPerByteAndTheAccuracyOfChoices) {
    LogEntry entry = val_entry;
    entry.nats_per_byte = 1.5, entry.choices_accuracy = 1.0 / 3;
    Log(path, -1).write(entry);
    EXPECT_EQ(
        contents(),
        R"({"step":1,"split":"val","loss":5.25,"nats_per_byte":1.5,"choices_accuracy":0.3333333333333333,"seconds":0.75})"
        "\n");
    EXPECT_EQ(read_log(path).back().nats_per_byte, 1.5);
    EXPECT_EQ(read_log(path).back().choices_accuracy, 1.0 / 3);
    write_bytes(path, val_line);
    EXPECT_EQ(read_log(path).back().choices_accuracy, std::nullopt);
    write_bytes(path, R"({"step":1,"split":"val","loss":5.25,"choices_accuracy":"x","seconds":0.75})"
                      "\n");
    EXPECT_NE(error_of([&] { read_log(path); }).find("log.jsonl: line 1: "), std::string::npos);
}

TEST_F(LogTest, ANewRunDoesNotTouchAnOldLog) {
    write_bytes(path, val_line);
    EXPECT_NE(error_of([&] { Log(path, -1); }).find("log.jsonl: this is the log of an earlier run"), std::string::npos);
    EXPECT_EQ(contents(), val_line);
    EXPECT_NE(error_of([&] { Log(at("absent/log.jsonl"), -1); }).find("No such file"), std::string::npos);
}

TEST_F(LogTest, ResumeDropsWhatTheBreakLeftBehind) {
    write_bytes(path, train_line(1) + val_line + train_line(2) + train_line(3) + train_line(3).substr(0, 40));
    Log(path, 2).write(val_entry);
    EXPECT_EQ(contents(), train_line(1) + val_line + train_line(2) + val_line);
    { Log log(path, 0); }
    EXPECT_EQ(contents(), "");
    fs::remove(path);
    { Log log(path, 5); }  // a removed log is no error
    EXPECT_EQ(listing(root), std::vector<std::string>{"log.jsonl"}) << "a temporary file was left";
}

TEST_F(LogTest, ATornLastLineIsPassedByOtherDamageIsNamed) {
    write_bytes(path, val_line + val_line.substr(0, 30));
    EXPECT_EQ(read_log(path).size(), 1u);
    write_bytes(path, "");
    EXPECT_EQ(read_log(path).size(), 0u);
    for (const std::string bad :
         {"", "\xff\xfe", "7", R"({"step":1})", R"({"step":1e30,"split":"val","loss":1,"seconds":1})",
          R"({"step":1,"split":"train","loss":1,"seconds":1})"}) {
        write_bytes(path, val_line + bad + "\n" + val_line);
        EXPECT_NE(error_of([&] { read_log(path); }).find("log.jsonl: line 2: "), std::string::npos) << bad;
    }
    EXPECT_NE(error_of([&] { read_log(at("absent")); }).find("absent: open"), std::string::npos);
}

// A log is only a record: a run with a whole checkpoint continues, and nothing of the damaged file is lost.
TEST_F(LogTest, ResumeLeavesDamagedLinesOutAndKeepsTheFileBeside) {
    const std::string damaged = train_line(1) + "\xff\n" + val_line + "{}\n" + train_line(2) + val_line.substr(0, 9);
    for (const std::string copy : {"log.jsonl.damaged", "log.jsonl.damaged-2"}) {  // one does not overwrite another
        write_bytes(path, damaged);
        const std::string damage = Log(path, 1).damage();
        EXPECT_NE(damage.find("log.jsonl: line 2 and 1 more: "), std::string::npos) << damage;
        EXPECT_TRUE(damage.ends_with(at(copy))) << damage;
        EXPECT_EQ(contents(), train_line(1) + val_line);
        EXPECT_EQ(read_bytes(at(copy)), damaged);
    }
    EXPECT_EQ(Log(path, 2).damage(), "");
}

// Lines that do not fit on a full disk are written once there is space, and no line is torn.
TEST_F(LogTest, AFullDiskIsReportedAndLosesNoLine) {
    Log log(path, -1);
    {
        const FullDisk full(10);
        log.write(val_entry);
        EXPECT_NE(log.trouble().find("log.jsonl: write failed: File too large"), std::string::npos) << log.trouble();
        log.write(val_entry);
        EXPECT_EQ(contents(), val_line.substr(0, 10));
    }
    log.write(val_entry);
    EXPECT_EQ(log.trouble(), "");
    EXPECT_EQ(contents(), val_line + val_line + val_line);
}

// A report's curves have the same size after a week as after an hour, and still begin and end where the run does.
TEST_F(LogTest, AHistoryOfAnyLengthIsBoundedAndKeepsMeans) {
    LogHistory history;
    const int64_t steps = 300'000;
    for (int64_t step = 1; step <= steps; step++) {
        history.add({.step = step, .split = "train", .loss = static_cast<double>(step)});
        if (step % 10 == 0) history.add({.step = step, .split = "val", .loss = static_cast<double>(step)});
    }
    const auto all = history.entries();
    EXPECT_LE(all.size(), 2u * 8193);
    EXPECT_EQ(all.back().step, steps) << "the newest validation";
    double train = 0, last = 0;
    for (const LogEntry& e : all) {
        if (e.split != "train") continue;
        EXPECT_GT(e.step, last);
        EXPECT_NEAR(e.loss, (last + 1 + static_cast<double>(e.step)) / 2, 1e-6) << "a mean over its steps";
        last = static_cast<double>(e.step), ++train;
    }
    EXPECT_EQ(last, steps);
    EXPECT_GT(train, 4096);
    history.add({.step = steps + 1, .split = "train", .loss = std::nan("")});
    EXPECT_TRUE(std::ranges::any_of(history.entries(), [](const LogEntry& e) { return std::isnan(e.loss); }));
}

TEST_F(LogTest, SamplesOfAnyBytesSurviveAResumedRun) {
    const std::string samples = at("samples.jsonl");
    {
        SampleLog log(samples, -1);
        log.write({3, "a line\nand \"another\""});
        log.write({6, "\xff\xfe"});
        log.write({9, "later"});
    }
    { SampleLog log(samples, 6); }
    const Sample first{3, "a line\nand \"another\""}, second{6, "\uFFFD\uFFFD"};  // not UTF-8: replaced
    EXPECT_EQ(read_samples(samples, 5), (std::vector{first, second}));
    EXPECT_EQ(read_samples(samples, 1), std::vector{second});
}

}  // namespace
