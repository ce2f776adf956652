// Bad input to the tools of dev/ gives a one-line error and exit status 2. The ladders are in ladder_test.
#include <sys/wait.h>

#include <cstdlib>

#include "dev/test/test_directory.h"

namespace fs = std::filesystem;

namespace {

class DevTools : public TestDirectory {
protected:
    void expect_bad(const std::string& tool, const std::string& arguments, const std::string& part) const {
        SCOPED_TRACE(tool + " " + arguments);
        const fs::path built = fs::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path();
        const std::string command = "timeout 20 '" + (built / tool).string() + "' " + arguments;
        const int status = std::system((command + " >'" + at("out") + "' 2>'" + at("err") + "'").c_str());
        const std::string err = read_bytes(at("err"));
        EXPECT_EQ(WEXITSTATUS(status), 2);
        EXPECT_TRUE(err.starts_with(tool + ": ")) << err;
        EXPECT_EQ(err.find('\n') + 1, err.size()) << err;
        EXPECT_NE(err.find(part), std::string::npos) << err;
    }
};

TEST_F(DevTools, TheExampleTheExerciseAndTheMeasurementTakeNoArguments) {
    for (const char* tool : {"layernorm_example", "layernorm_faulty", "layernorm_measure"}) {
        expect_bad(tool, "--shape 3x4", "found --shape, expected no arguments");
        expect_bad(tool, "''", "expected no arguments");
    }
}

TEST_F(DevTools, TheExperimentChecksItsOptionsBeforeItWritesOrTrains) {
    const std::string csv = "--csv '" + at("results") + "' ";
    write_bytes(at("results"), "of an hour");
    for (const char* value : {"0", "-1", "-0", "nan", "1e400", "1.5", "''", "' 3'", "99999999999999999999"})
        for (const std::string option : {"--layers ", "--steps ", "--seeds "})
            expect_bad("norm_experiment", csv + option + value, option.substr(0, option.size() - 1) + ": found '");
    expect_bad("norm_experiment", csv + "--layers 101", "--layers: found '101', expected 1 to 100");
    expect_bad("norm_experiment", csv + "--warmup -1", "--warmup: found '-1', expected 0 to 300");
    expect_bad("norm_experiment", csv + "--steps 7 --warmup 8", "--warmup: found '8', expected 0 to 7");
    expect_bad("norm_experiment", csv + "--norm batch", "--norm: found 'batch', expected pre, post, rms, none, or all");
    expect_bad("norm_experiment", csv + "--lr 0.1", "--lr: found '0.1', expected 0.001, 0.003, 0.01, 0.03, or all");
    expect_bad("norm_experiment", csv + "--data '" + at("none") + "'", "none: text: found no readable file");
    expect_bad("norm_experiment", csv + "--data '" + at("results") + "'", "found 10 bytes, expected 10000 or more");
    expect_bad("norm_experiment", csv + "--step 3", "--step: expected --csv, --data");
    expect_bad("norm_experiment", csv + "--steps", "--steps: expected --csv, --data");
    expect_bad("norm_experiment", "--steps 1", "--csv: found none");
    EXPECT_EQ(read_bytes(at("results")), "of an hour");
    write_bytes(at("text"), std::string(20'000, 'a'));
    expect_bad("norm_experiment", "--csv /nowhere/results --data '" + at("text") + "'", "/nowhere/results: file: ");
}

// A warm-up of one step is none; a longer one has smaller first steps, and gives another loss.
TEST_F(DevTools, TheExperimentWarmsUp) {
    std::string text;
    for (int i = 0; i < 20'000; ++i) text += static_cast<char>('a' + i * i % 23);
    write_bytes(at("text"), text);
    const fs::path built = fs::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path();
    const auto results = [&](const std::string& options) {
        const std::string command = "OMP_NUM_THREADS=1 '" + (built / "norm_experiment").string() + "' --csv '" +
                                    at("csv") + "' --data '" + at("text") +
                                    "' --layers 1 --seeds 1 --norm pre --lr 0.001 --steps 6 " + options;
        EXPECT_EQ(std::system((command + " >'" + at("out") + "'").c_str()), 0);
        return read_bytes(at("csv"));
    };
    const std::string without = results(""), one = results("--warmup 1"), six = results("--warmup 6");
    EXPECT_EQ(std::count(without.begin(), without.end(), '\n'), 7) << without;
    EXPECT_EQ(one, without);
    EXPECT_NE(six, without);
}

TEST_F(DevTools, ADumpOfSomethingElseIsRefused) {
    expect_bad("test_gpt2", "--dump dev/layernorm/state.safetensors",
               "metadata \"context\": found none, expected a number");
    expect_bad("test_gpt2", "--dump README.md", "header length");
}

}  // namespace
