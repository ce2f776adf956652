// The log of a run: what is written is read back, breaks do no harm, damage is named.
#include "program/log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "dev/test/io/model_files.h"

namespace fs = std::filesystem;

namespace {

class LogTest : public TestDirectory {
protected:
    std::string contents() const {
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    void set_contents(const std::string& text) const { std::ofstream(path, std::ios::binary) << text; }
    const std::string &out = root, path = at("log.jsonl");
};

const std::string line1 =
    R"({"step":1,"split":"train","loss":5.5,"lr":0.003,"grad_norm":1.25,"tokens_per_second":1e+05,"seconds":0.5})"
    "\n";
const std::string val1 = R"({"step":1,"split":"val","loss":5.25,"seconds":0.75})"
                         "\n";

// Scripts and users rely on these names.
TEST_F(LogTest, LinesHaveTheContractsKeys) {
    Log log(out, -1);
    log.write({.step = 1,
               .split = "train",
               .loss = 5.5,
               .lr = 0.003,
               .grad_norm = 1.25,
               .tokens_per_second = 98765.4321,
               .seconds = 0.5});
    log.write({.step = 1, .split = "val", .loss = 5.25, .seconds = 0.75});
    EXPECT_EQ(
        contents(),
        R"({"step":1,"split":"train","loss":5.5,"lr":0.003,"grad_norm":1.25,"tokens_per_second":98765.4321,"seconds":0.5})"
        "\n" +
            val1)
        << "each line must be there as soon as it is written";
}

TEST_F(LogTest, NumbersRoundTripToTheLastBit) {
    const double odd[] = {1.0 / 3, 0x1.fffffffffffffp-1022, 1e300, 5e-324, 0.1 + 0.2};
    {
        Log log(out, -1);
        for (const double v : odd)
            log.write({.step = int64_t{1} << 40,
                       .split = "train",
                       .loss = v,
                       .lr = v,
                       .grad_norm = v,
                       .tokens_per_second = v,
                       .seconds = v});
        log.write(
            {.step = 2, .split = "train", .loss = std::nan(""), .grad_norm = std::numeric_limits<double>::infinity()});
    }
    const auto entries = read_log(path);
    ASSERT_EQ(entries.size(), 6u);
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(entries[i].step, int64_t{1} << 40);
        for (const double v :
             {entries[i].loss, entries[i].lr, entries[i].grad_norm, entries[i].tokens_per_second, entries[i].seconds})
            EXPECT_EQ(v, odd[i]);
    }
    EXPECT_TRUE(std::isnan(entries[5].loss)) << "a diverged loss must stay visible";
    EXPECT_NE(contents().find(R"("loss":null)"), std::string::npos);
}

TEST_F(LogTest, ANewRunDoesNotTouchAnOldLog) {
    set_contents(line1);
    EXPECT_NE(error_of([&] { Log(out, -1); }).find("log.jsonl: log: found that of an earlier run"), std::string::npos);
    EXPECT_EQ(contents(), line1);
    EXPECT_NE(error_of([&] { Log(out + "/absent", -1); }).find("No such file"), std::string::npos);
}

TEST_F(LogTest, ResumeDropsWhatTheBreakLeftBehind) {
    std::string line2 = line1, line3 = line1;
    line2.replace(8, 1, "2"), line3.replace(8, 1, "3");
    set_contents(line1 + val1 + line2 + line3 + line3.substr(0, 40));
    {
        Log log(out, 2);
        log.write({.step = 3, .split = "val", .loss = 1, .seconds = 2});
    }
    EXPECT_EQ(contents(), line1 + val1 + line2 + R"({"step":3,"split":"val","loss":1.0,"seconds":2.0})" + "\n");
    { Log log(out, 0); }
    EXPECT_EQ(contents(), "");
    fs::remove(path);
    { Log log(out, 5); }  // someone removed it: no reason not to go on
    EXPECT_EQ(contents(), "");
    EXPECT_EQ(std::distance(fs::directory_iterator(out), {}), 1) << "a temporary file was left";
}

TEST_F(LogTest, ATornLastLineIsPassedByOtherDamageIsNamed) {
    set_contents(line1 + line1.substr(0, 30));
    EXPECT_EQ(read_log(path).size(), 1u);
    set_contents("");
    EXPECT_EQ(read_log(path).size(), 0u);
    for (const std::string bad :
         {"{", "", "7", "{\"step\":1}", "{\"step\":1e30,\"split\":\"val\",\"loss\":1,\"seconds\":1}",
          "{\"step\":\"x\",\"split\":\"val\",\"loss\":1,\"seconds\":1}",
          "{\"step\":1,\"split\":\"train\",\"loss\":1,\"seconds\":1}", "\xff\xfe"}) {
        set_contents(line1 + bad + "\n" + line1);
        EXPECT_NE(error_of([&] { read_log(path); }).find("log.jsonl: line 2: "), std::string::npos) << bad;
    }
    EXPECT_NE(error_of([&] { read_log(out + "/absent"); }).find("absent: open"), std::string::npos);
}

// A log is only a record: a run whose checkpoint is whole goes on, and nothing of the damaged file is lost.
TEST_F(LogTest, ResumeLeavesDamagedLinesOutAndKeepsTheFileBeside) {
    std::string line2 = line1;
    line2.replace(8, 1, "2");
    const std::string damaged = line1 + "\xff\n" + val1 + "{}\n" + line2 + line1.substr(0, 9);
    for (const std::string copy : {"log.jsonl.damaged", "log.jsonl.damaged-2"}) {  // one does not overwrite another
        set_contents(damaged);
        {
            Log log(out, 1);
            EXPECT_NE(log.damage().find("log.jsonl: line 2 and 1 more: "), std::string::npos) << log.damage();
            EXPECT_TRUE(log.damage().ends_with(at(copy))) << log.damage();
            log.write({.step = 2, .split = "val", .loss = 1, .seconds = 2});
        }
        EXPECT_EQ(contents(), line1 + val1 + R"({"step":2,"split":"val","loss":1.0,"seconds":2.0})" + "\n");
        EXPECT_EQ(read_bytes(at(copy)), damaged);
    }
    EXPECT_EQ(Log(out, 2).damage(), "");
}

// What a full disc keeps out goes into the file once there is room, and no line is torn.
TEST_F(LogTest, AFullDiscIsReportedAndLosesNoLine) {
    Log log(out, -1);
    const LogEntry val{.step = 1, .split = "val", .loss = 5.25, .seconds = 0.75};
    {
        const FullDisc full(10);
        log.write(val);
        EXPECT_NE(log.trouble().find("log.jsonl: writing: found File too large"), std::string::npos) << log.trouble();
        log.write(val);
        EXPECT_EQ(contents(), val1.substr(0, 10));
    }
    log.write(val);
    EXPECT_EQ(log.trouble(), "");
    EXPECT_EQ(contents(), val1 + val1 + val1);
}

// A report's curves cost the same after a week as after an hour, and still begin and end where the run does.
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
    {
        SampleLog samples(out, -1);
        samples.write({3, "a line\nand \"another\""});
        samples.write({6, "\xff\xfe"});
        samples.write({9, "later"});
    }
    { SampleLog samples(out, 6); }
    EXPECT_EQ(read_samples(at("samples.jsonl"), 1).front().first, 6);
    const auto samples = read_samples(at("samples.jsonl"), 5);
    ASSERT_EQ(samples.size(), 2u);
    EXPECT_EQ(samples[0], (Sample{3, "a line\nand \"another\""}));
    EXPECT_EQ(samples[1], (Sample{6, "\uFFFD\uFFFD"}));  // no UTF-8
}

}  // namespace
