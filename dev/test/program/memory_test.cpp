// Compares the memory plan with the program's peak memory as the system counts it, for each optimizer, several numbers
// of threads and batches, with a checkpoint saved and read.
#include <regex>

#include "dev/test/program/program.h"

namespace {

class Memory : public Program {
protected:
    Memory() { setenv("OMP_NUM_THREADS", "2", 1); }
    void SetUp() override {
        if (is_sanitized()) GTEST_SKIP() << "AddressSanitizer takes memory of its own, which no plan counts";
    }

    // The bytes in "…, total 123 MiB"; -1 if there is no such text.
    static int64_t planned(const std::string& text) {
        std::smatch found;
        if (!std::regex_search(text, found, std::regex("total ([0-9.]+) (MiB|GiB)"))) return -1;
        return static_cast<int64_t>(std::stod(found[1]) * (found[2] == "GiB" ? 1 << 30 : 1 << 20));
    }
    static void expect_close(int64_t plan, const Result& result) {
        EXPECT_EQ(result.status, 0) << result.err;
        EXPECT_GT(plan, 0);
        EXPECT_LE(std::abs(plan - result.peak_memory), plan * 3 / 100 + 40'000'000)
            << plan << " bytes planned, " << result.peak_memory << " taken: " << result.out;
    }
    void expect_planned(const std::vector<std::string>& arguments) const {
        const Result result = run(arguments);
        expect_close(planned(result.out), result);
    }
    // One step of a model whose matrices are much larger than everything else.
    Args wide(const std::string& optimizer, int threads, const Args& more = {}) const {
        Args args = more;
        args.insert({{"optimizer", optimizer},
                     {"threads", std::to_string(threads)},
                     {"layers", "2"},
                     {"channels", "512"},
                     {"heads", "8"},
                     {"steps", "1"},
                     {"eval-every", "0"},
                     {"save-every", "0"}});
        return args;
    }
};

}  // namespace

TEST_F(Memory, IsPlannedForMuon) {
    for (const int threads : {1, 2, 8, 48}) {
        SCOPED_TRACE(threads);
        expect_planned(training("muon " + std::to_string(threads), wide("muon", threads)));
    }
}

// Its squares touch a page of each matrix.
TEST_F(Memory, IsPlannedForNorMuon) { expect_planned(training("normuon", wide("normuon", 2))); }

// Of 60,000 tokens a sample has a few hundred.
TEST_F(Memory, IsPlannedForASampledSoftmax) {
    expect_planned(training("sampled", wide("muon", 2, {{"vocab", "60000"}, {"sampled-softmax", "100"}})));
}

TEST_F(Memory, IsPlannedForAdamW) {
    for (const int threads : {2, 48}) {
        SCOPED_TRACE(threads);
        expect_planned(training("adamw " + std::to_string(threads), wide("adamw", threads)));
    }
}

TEST_F(Memory, IsPlannedForBatches) {
    const Args narrow{{"channels", "128"}, {"heads", "2"}, {"context", "1024"}, {"recompute", "gelu"}};
    for (const auto& [B, T] : std::vector<std::pair<int, int>>{{1, 1024}, {16, 256}}) {
        SCOPED_TRACE(T);
        Args args = narrow;
        args["batch"] = std::to_string(B), args["seq"] = std::to_string(T);
        expect_planned(training("batch " + std::to_string(B), wide("adamw", 16, args)));
    }
}

// Of 4 shards two sums wait while the third is computed.
TEST_F(Memory, IsPlannedForShards) {
    expect_planned(training("shards", wide("adamw", 2, {{"shards", "4"}, {"total-batch", "128"}})));
}

// The profile measures the memory's speed at the end, with buffers besides the model.
TEST_F(Memory, IsPlannedForTheProfile) {
    expect_planned(training("profiled", wide("adamw", 2, {{"profile", ""}, {"channels", "128"}})));
}

// Checksums and copies read whole files, whose pages count as this process's memory until they are released.
TEST_F(Memory, IsPlannedWhereCheckpointsAreSavedAndRead) {
    const std::string run_directory = at("saved");
    expect_planned(training("saved", wide("muon", 2, {{"save-every", "1"}})));
    expect_planned({"train", "--resume", "--out", run_directory, "--steps", "2", "--threads", "2"});
    expect_planned(words("train", {{"data", text},
                                   {"out", at("tuned")},
                                   {"init", run_directory},
                                   {"optimizer", "muon"},
                                   {"steps", "1"},
                                   {"batch", "2"},
                                   {"seq", "16"},
                                   {"sample-tokens", "0"}}));

    const std::vector<std::string> eval = {"eval", "--from", run_directory, "--data", text, "--batch", "64"};
    const Result refused = run(eval, {.memory = rlim_t{120} << 20}), result = run(eval);
    EXPECT_EQ(refused.status, 2) << refused.err;
    expect_close(planned(refused.err), result);
}
