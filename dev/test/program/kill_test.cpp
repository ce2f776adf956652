// kill -9 at any moment loses only the steps since the last checkpoint, and after --resume the run is, bit for bit, the
// uninterrupted one. KILLS=2000 makes this test longer (make test-long).
#include <random>

#include "dev/test/program/program.h"
#include "io/model/checkpoint.h"
#include "io/file/file.h"

namespace fs = std::filesystem;

namespace {

// Uses memory: a kill keeps what was written, whether or not it is on the disk, and waiting for a disk takes time.
const bool in_memory = access("/dev/shm", W_OK) == 0 && setenv("TMPDIR", "/dev/shm", 0) == 0;

class Killed : public Program {
protected:
    // Steps take half a millisecond, with a save after every second one: half of the time is spent saving.
    const Args tiny = {{"layers", "1"},       {"heads", "1"},           {"channels", "8"},
                       {"context", "8"},      {"batch", "2"},           {"seq", "8"},
                       {"schedule", "wsd"},   {"warmup", "0"},          {"eval-every", "25"},
                       {"eval-batches", "2"}, {"save-every", "2"},      {"keep", "2"},
                       {"sample-every", "7"}, {"skip-outliers", "1.5"}, {"sample-tokens", "3"},
                       {"dropout", "0.1"}};
    Args with_steps(int64_t steps) const {
        Args args = tiny;
        args["steps"] = std::to_string(steps);
        return args;
    }
    // Whether a process that was started then is in the middle of a save, or was when it was killed.
    bool saving(const std::string& out, fs::file_time_type started) const {
        if (!path_exists(at(out))) return false;
        return std::ranges::any_of(listing(at(out)), [&](const std::string& name) {
            std::error_code gone;
            return name.starts_with(".step_") && fs::last_write_time(at(out) + "/" + name, gone) > started && !gone;
        });
    }
};

// The last step that the run reported as saved.
int64_t last_saved(const std::string& printed) {
    const size_t at = printed.rfind("\nsaved ");
    if (at == std::string::npos) return -1;
    const size_t digits = printed.find("/step_", at);
    return std::stoll(printed.substr(digits + 6));
}

}  // namespace

TEST_F(Killed, AtRandomMomentsLosesNothingThatWasSaved) {
    const char* wanted = std::getenv("KILLS");
    const int64_t kills = wanted ? std::stoll(wanted) : 200;
    std::mt19937 random(1);
    int64_t during_saves = 0, begun_again = 0, newest = -1;
    for (int64_t k = 0; k < kills; ++k) {
        const bool begun = path_exists(at("killed/options.json"));
        begun_again += begun && newest < 0;
        std::vector<std::string> arguments = begun ? words("train", {{"resume", ""}, {"out", at("killed")}})
                                                   : training("killed", with_steps(20 * kills));
        arguments.insert(arguments.end(), {"--threads", std::to_string(1 + random() % 3)});
        const auto started = fs::file_time_type::clock::now();
        const Child child = start(arguments);
        std::string printed;
        if (k % 4 == 3) {  // while it saves, however slow the program or the machine is
            for (int tries = 0; tries < 100'000 && !saving("killed", started); ++tries) usleep(50);
        } else if (k % 4 > 0) {  // a moment after it has begun to print, else after it was started
            char block[4096];
            const ssize_t n = read(child.out, block, sizeof block);
            if (n > 0) printed.assign(block, static_cast<size_t>(n));
            usleep(static_cast<useconds_t>(random() % 15'000));
        } else {
            usleep(static_cast<useconds_t>(random() % 60'000));
        }
        kill(child.pid, SIGKILL);
        const Result result = finish(child);
        ASSERT_EQ(result.status, 128 + SIGKILL) << "it ended by itself: " << result.err << result.out;
        during_saves += saving("killed", started);
        newest = std::max(newest, last_saved(printed + result.out));
        if (newest < 0) continue;
        std::vector<std::string> passed_over;
        const auto found = checkpoint_to_resume(at("killed"), passed_over);
        ASSERT_TRUE(found && passed_over.empty());
        ASSERT_GE(read_trainer_state(*found).step, newest);
        newest = read_trainer_state(*found).step;
    }
    std::cout << kills << " kills, " << during_saves << " during a save, " << begun_again
              << " before the first; they reached step " << newest << "\n";
    EXPECT_GE(during_saves, kills / 10);

    expect_done({"train", "--resume", "--out", at("killed"), "--save-every", "1000000"});
    Args unbroken = with_steps(20 * kills);
    unbroken["save-every"] = "1000000";
    train("unbroken", unbroken);
    expect_same_run("killed", "unbroken");
    EXPECT_TRUE(read_bytes(at("killed/samples.jsonl")) == read_bytes(at("unbroken/samples.jsonl")));
    for (const std::string& name : listing(at("killed")))
        EXPECT_TRUE(name.find(".tmp") == std::string::npos && name != ".lock") << name;
}

TEST_F(Killed, BeforeTheFirstCheckpointItBeginsAgainWithItsOwnOptions) {
    const Args options = {{"steps", "9"}, {"eval-every", "3"}, {"lr", "0.001"}, {"save-every", "100"}};
    const Child child = start(training("killed", options));
    wait_for_file(child, at("killed/log.jsonl"));
    kill(child.pid, SIGKILL);
    finish(child);
    fs::remove_all(at("killed/step_000009")), fs::remove(at("killed/latest"));  // should it have been that fast
    fs::remove(at("killed/.lock"));
    expect_refused(training("killed", options), {"killed", "not empty", "--resume"});
    EXPECT_NE(expect_done({"train", "--resume", "--out", at("killed")}).find("starting again"), std::string::npos);
    train("unbroken", options);
    expect_same_run("killed", "unbroken");
}

// A crash leaves .lock and half-written files, which do not keep a new run with the same command from starting.
TEST_F(Killed, BeforeAnythingWasWrittenTheSameCommandWorks) {
    fs::create_directory(at("run"));
    write_bytes(at("run/.lock"), "12345");
    write_bytes(at("run/options.json.12345.tmp"), "{");
    train("run");
    EXPECT_EQ(listing(at("run")), (std::vector<std::string>{"best", "data", "latest", "log.jsonl", "options.json",
                                                            "report.html", "step_000006"}));
}
