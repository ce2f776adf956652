// Training by several processes under mpirun: the same files as by one, resumed on any number; failures of one rank.
#include <cmath>
#include <csignal>
#include <thread>

#include "dev/test/program/program.h"
#include "device/cpu/gemm/gemm.h"
#include "io/data/dataset.h"
#include "program/log.h"

namespace fs = std::filesystem;

namespace {

class RanksOfMpi : public Program {
protected:
    RanksOfMpi() {
        // Open MPI refuses to start as root, or more processes than there are cores, unless it is told to: version 4 by
        // the first of these, version 5 by the others. Its ranks share memory here: it takes two thirds less time to
        // start if it does not search for networks (tcp would only warn).
        for (const auto& [variable, value] : Args{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                  {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                  {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                                  {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                                  {"OMPI_MCA_pml", "ob1"},
                                                  {"OMPI_MCA_btl", "^tcp,openib,ofi,uct,usnic"},
                                                  {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
                                                  {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                  {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                                  {"PRTE_MCA_hwloc_default_binding_policy", "none"}})
            setenv(variable.c_str(), value.c_str(), 1);
        std::signal(SIGPIPE, SIG_IGN);        // else it may end Open MPI 4.1's mpirun when all ranks are done
        setenv("HWLOC_HIDE_ERRORS", "2", 1);  // of a container without /sys
        setenv("OMP_NUM_THREADS", "1", 1);
        setenv("ASAN_OPTIONS", "detect_leaks=0:verify_asan_link_order=0", 1);  // Open MPI leaks when it ends
        if (std::system("command -v mpirun >/dev/null 2>&1") != 0)
            missing = "no mpirun";
        else if (!fs::exists(fs::path(fs::canonical(binary())).replace_filename("train_gpt2_mpi.so")))
            missing = "built without MPI (no mpicxx)";
    }
    void SetUp() override {
        if (!missing.empty()) GTEST_SKIP() << missing;
    }
    void start_with(int ranks) {
        launcher.clear();
        if (ranks > 0) launcher = {"mpirun", "-n", std::to_string(ranks)};
    }
    // Odd sizes, several batches per step and shard, and more than one epoch.
    Args odd(const Args& more = {}) const {
        Args args = more;
        args.insert({{"layers", "2"},
                     {"heads", "3"},
                     {"channels", "33"},
                     {"context", "21"},
                     {"seq", "21"},
                     {"batch", "3"},
                     {"total-batch", "1008"},
                     {"shards", "8"},
                     {"steps", "6"},
                     {"save-every", "3"},
                     {"eval-every", "2"},
                     {"keep", "0"}});
        return args;
    }
    // Many parameters, and few tokens, as each costs all of them.
    Args large(const Args& more) const {
        Args args = more;
        args.insert({{"channels", "384"},
                     {"vocab", "5000"},
                     {"optimizer", "adamw"},
                     {"context", "5"},
                     {"seq", "5"},
                     {"batch", "1"},
                     {"total-batch", "40"},
                     {"steps", "2"},
                     {"eval-every", "0"}});
        return odd(args);
    }
    // Trains with these options by one process and by each of these numbers, and expects the same files.
    void expect_same_for_any_number(const std::string& name, const Args& options, const std::vector<int>& numbers) {
        start_with(0);
        train(name, options);
        for (const int ranks : numbers) {
            start_with(ranks);
            SCOPED_TRACE(name + ", " + std::to_string(ranks) + " ranks");
            const std::string out = train(name + std::to_string(ranks), options);
            EXPECT_NE(out.find("ranks: " + std::to_string(ranks) + " on 1 machine, 1 thread each"), std::string::npos)
                << out;
            expect_same_run(name, name + std::to_string(ranks));
        }
        start_with(0);
    }
    static std::string shim() {
        const fs::path path = fs::read_symlink("/proc/self/exe").parent_path() / "fault_shim.so";
        if (!fs::exists(path)) throw std::runtime_error(path.string() + " is missing");
        return path.string();
    }
    // Starts the program on `ranks` ranks by commands of the shell, in which $rank is the rank, and "$@" the program.
    void start_by_shell(int ranks, const std::string& commands) {
        launcher = {"mpirun", "-n", std::to_string(ranks),
                    "sh",     "-c", "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; " + commands,
                    "sh"};
    }
    static std::vector<pid_t> children_of(pid_t pid) {
        std::istringstream list(
            read_bytes("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children"));
        std::vector<pid_t> children;
        for (pid_t child; list >> child;) children.push_back(child);
        return children;
    }
    // The ranks' processes, in their order: children of mpirun, or, with MPICH, of its only child.
    static std::vector<pid_t> ranks_of(const Child& job) {
        const std::vector<pid_t> children = children_of(job.pid);
        return children.size() == 1 ? children_of(children[0]) : children;
    }
    // Expects that the job ends soon, and all of its ranks with it.
    static Result finish_within_seconds(const Child& job, const std::vector<pid_t>& ranks) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        const Result result = finish(job);
        for (const pid_t rank : ranks) {  // on a busy machine, those that mpirun has killed end after it
            const auto command = [&] { return read_bytes("/proc/" + std::to_string(rank) + "/cmdline"); };
            while (!command().empty() && std::chrono::steady_clock::now() < end) usleep(1000);
            EXPECT_EQ(command(), "") << "it is still there";
        }
        EXPECT_LT(std::chrono::steady_clock::now(), end);
        return result;
    }
    // MPICH's mpirun sometimes returns 0 when the ranks have not.
    void expect_status(const Result& result, int status) const {
        EXPECT_TRUE(result.status == status || (is_mpich && result.status == 0)) << result.status << result.err;
    }
    int64_t log_lines(const std::string& out) const {
        return std::ranges::count(read_bytes(at(out + "/log.jsonl")), '\n');
    }
    std::string missing;
    const bool is_mpich = std::system("mpirun --version 2>/dev/null | grep -q HYDRA") == 0;
};

}  // namespace

TEST_F(RanksOfMpi, TrainTheModelOfOneProcess) {
    expect_same_for_any_number(
        "adamw", odd({{"clip", "0.3"}, {"dropout", "0.1"}, {"sample-every", "3"}, {"sample-tokens", "5"}}),
        is_sanitized() ? std::vector{2} : std::vector{2, 4});
    if (is_sanitized()) return;
    expect_same_for_any_number(
        "muon", odd({{"optimizer", "muon"}, {"recompute", "block"}, {"embedding", "pairs"}, {"sampled-softmax", "9"}}),
        {2, 4});
    // Slices so large that their sums are received in several pieces, which with 8 ranks takes the fewest parameters.
    expect_same_for_any_number("pieces", large({{"save-every", "2"}}), {8});
    expect_same_for_any_number("outliers", odd({{"skip-outliers", "0.5"}, {"steps", "40"}, {"save-every", "40"}}), {4});
    if (gemm::has_bf16) expect_same_for_any_number("bf16", odd({{"matmul", "bf16"}}), {2});
}

// They read the examples each, so that one who has others is named.
TEST_F(RanksOfMpi, ShareTheExamplesOfChoices) {
    std::string lines;
    for (int i = 0; i < 40; ++i)
        lines += R"({"ctx": "line )" + std::to_string(i) + R"(", "endings": ["of it", "s", "and )" +
                 std::to_string(i * i) + R"("], "label": )" + std::to_string(i % 3) + "}\n";
    write_bytes(at("choices.jsonl"), lines);
    write_bytes(at("others.jsonl"), lines + lines.substr(0, lines.find('\n') + 1));
    expect_same_for_any_number("choices", odd({{"choices", at("choices.jsonl")}, {"steps", "2"}}), {2});
    EXPECT_TRUE(timeless_log("choices").back().contains("choices_accuracy"));
    start_by_shell(2, "examples='" + at("choices.jsonl") + "'; [ $rank = 0 ] || examples='" + at("others.jsonl") +
                          "'; exec \"$@\" --choices \"$examples\"");
    const Result result = run(training("others", odd()));
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find("train_gpt2: rank 1 on "), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("the examples on this machine are not those of rank 0"), std::string::npos) << result.err;
}

TEST_F(RanksOfMpi, ShareTokenShards) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 3000; ++i) tokens.push_back(static_cast<uint16_t>(i * i % 251));
    fs::create_directory(at("data"));
    write_shard(at("data/t_train_0.bin"), {tokens.begin(), tokens.begin() + 1700});
    write_shard(at("data/t_train_1.bin"), {tokens.begin() + 1700, tokens.end()});
    write_shard(at("data/t_val_0.bin"), {tokens.begin(), tokens.begin() + 400});
    expect_same_for_any_number(
        "shards", odd({{"data", at("data/t_train_*.bin")}, {"val", at("data/t_val_*.bin")}, {"tokenizer", "byte"}}),
        {4});
}

TEST_F(RanksOfMpi, ResumeOnAnotherNumberOfRanks) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    for (const std::string optimizer : {"adamw", "normuon"}) {
        const Args options = odd({{"optimizer", optimizer}, {"save-every", "2"}, {"schedule", "constant"}});
        start_with(0);
        train(optimizer, [&] {
            Args all = options;
            all["steps"] = "8";
            return all;
        }());
        const std::string out = optimizer + "-resumed";
        int steps = 0;
        for (const int ranks : {4, 1, 2, 4}) {
            start_with(ranks);
            steps += 2;
            if (steps == 2)
                train(out, [&] {
                    Args all = options;
                    all["steps"] = "2";
                    return all;
                }());
            else
                expect_done({"train", "--resume", "--out", at(out), "--steps", std::to_string(steps)});
        }
        for (const char* file : {"/latest/model.safetensors", "/latest/optimizer.safetensors"})
            EXPECT_TRUE(read_bytes(at(optimizer + file)) == read_bytes(at(out + file))) << optimizer << file;
    }
}

// Each rank has the moments of a slice, and what the ranks send is what their sums and slices take.
TEST_F(RanksOfMpi, ShareTheMomentsAndSendNoMoreThanTheFormula) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    start_with(4);
    const std::string out = train("profiled", large({{"profile", ""}}));
    double parameters = 0, moments = 0, sent = 0, formula = 0;
    const auto number = [&](const char* before, double& value) {
        const size_t at = out.find(before);
        ASSERT_NE(at, std::string::npos) << before << out;
        value = std::atof(out.c_str() + at + std::string(before).size());
    };
    number("memory of rank 0: parameters ", parameters);
    number("optimizer state ", moments);
    number("sent per step by each rank: ", sent);
    number("(R-1)/R each, ", formula);
    EXPECT_NEAR(moments, 2 * parameters / 4, 1.1) << out;  // in whole MiB
    EXPECT_NEAR(sent, formula, 0.01 * formula) << out;
}

TEST_F(RanksOfMpi, RefuseOnceWhatCannotBeShared) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    const auto expect_one_line = [&](int ranks, const std::vector<std::string>& arguments, const std::string& line) {
        if (ranks > 0) start_with(ranks);
        const Result result = run(arguments);
        EXPECT_EQ(result.status, 2);
        size_t lines = 0;
        for (size_t at = 0; (at = result.err.find("train_gpt2: ", at)) != std::string::npos; ++at) ++lines;
        EXPECT_EQ(lines, 1u) << result.err;
        EXPECT_NE(result.err.find("train_gpt2: " + line), std::string::npos) << result.err;
    };
    expect_one_line(3, training("run"), "mpirun: 3 processes are not a power of two; start 2 or 4");
    expect_one_line(4, training("run", {{"shards", "2"}}),
                    "--shards: 4 processes cannot share 2 shards; start fewer, or");
    expect_one_line(2, training("run", {{"data", at("nothing")}}), at("nothing"));
    expect_one_line(2, {"generate", "--from", at("run")},
                    "mpirun: generate runs in one process; start it without mpirun");
    // An environment as srun's.
    start_with(3);
    for (const char* word : {"env", "-u", "OMPI_COMM_WORLD_RANK", "-u", "MPI_LOCALRANKID", "SLURM_STEP_NUM_TASKS=3"})
        launcher.emplace_back(word);
    expect_one_line(0, training("run"), "srun: 3 processes are not a power of two; start 2 or 4");
    EXPECT_FALSE(fs::exists(at("run")));
    start_with(0);
    train("run", {{"shards", "2"}});
    expect_one_line(4, {"train", "--resume", "--out", at("run"), "--steps", "8"},
                    "--shards: 4 processes cannot share 2 shards, which the run has; start at most 2");
    expect_one_line(2, training("run"), at("run") + ": not empty");
}

TEST_F(RanksOfMpi, NameTheOneWithOtherData) {
    write_bytes(at("other.txt"), read_bytes(text) + "one more line\n");
    start_by_shell(
        2, "data='" + text + "'; [ $rank = 0 ] || data='" + at("other.txt") + "'; exec \"$@\" --data \"$data\"");
    std::vector<std::string> arguments = training("run");
    const auto given = std::ranges::find(arguments, "--data");
    arguments.erase(given, given + 2);
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find("train_gpt2: rank 1 on "), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("are not those of rank 0; give every machine the same files"), std::string::npos)
        << result.err;
}

TEST_F(RanksOfMpi, StopAtNaNAndSayWhereItBegins) {
    train("model", {{"layers", "3"}, {"steps", "1"}});
    set_parameter("model/latest", "transformer.h.1.ln_2.weight", 3e38f);
    std::vector<std::string> messages;
    for (const int ranks : {0, 4}) {
        start_with(ranks);
        const std::string out = at("large" + std::to_string(ranks));
        const Result result = run(words("train", {{"data", text},
                                                  {"out", out},
                                                  {"batch", "2"},
                                                  {"seq", "16"},
                                                  {"init", at("model/latest")},
                                                  {"steps", "5"},
                                                  {"sample-tokens", "0"},
                                                  {"shards", "4"},
                                                  {"total-batch", "256"}}));
        EXPECT_EQ(result.status, 1) << result.err;
        const size_t begin = result.err.find("train_gpt2: step 1: loss ");
        ASSERT_NE(begin, std::string::npos) << result.err;
        messages.push_back(result.err.substr(begin, result.err.find('\n', begin) - begin));
        EXPECT_TRUE(path_exists(out + "/step_000000")) << "the last good state";
    }
    EXPECT_EQ(messages[0], messages[1]);
}

// No rank can write a checkpoint; the run goes on, on all ranks, and says so once for each.
TEST_F(RanksOfMpi, GoOnIfTheDiskIsFull) {
    launcher = {"mpirun", "-n", "2", "env", "LD_PRELOAD=" + shim(), "FAULT_BELOW=.step_", "FAULT=write:1:28:on"};
    const Result result = run(training("run", odd()));
    EXPECT_EQ(result.status, 1);
    size_t warnings = 0;
    for (size_t at = 0; (at = result.err.find(" is not saved\n", at)) != std::string::npos; ++at) ++warnings;
    EXPECT_EQ(warnings, 2u) << result.err;
    EXPECT_EQ(read_log(at("run/log.jsonl")).size(), 6u + 4u);
}

// Only rank 0 writes, so that the others' disks do not matter.
TEST_F(RanksOfMpi, WriteOnRank0Only) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    start_by_shell(2, "[ $rank = 0 ] || export LD_PRELOAD=" + shim() + " FAULT_BELOW='" + root +
                          "' FAULT=open:1:28:on; exec \"$@\"");
    train("run", odd());
    EXPECT_EQ(read_log(at("run/log.jsonl")).size(), 6u + 4u);
}

// Another build on rank 1, and another CPU on rank 2: both are named, and the run goes on.
TEST_F(RanksOfMpi, NameThoseWithAnotherProgramOrCpu) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    const fs::path program = fs::canonical(binary()), copy = at("other");
    std::string bytes = read_bytes(program);
    // Of the text that describes the program, a part short enough to be whole if the compiler has cut it.
    const std::string known = "CPU; mat", other = "XPU; mat";
    size_t changed = 0;
    for (size_t i = 0; (i = bytes.find(known, i)) != std::string::npos; ++changed)
        bytes.replace(i, known.size(), other);
    ASSERT_GT(changed, 0u);
    write_bytes(copy, bytes);
    fs::permissions(copy, fs::perms::owner_all);
    fs::create_symlink(program.parent_path() / "train_gpt2_mpi.so", at("train_gpt2_mpi.so"));
    write_bytes(at("cpuinfo"), "model name\t: Abacus 3\n");
    start_by_shell(4, "program=$1; shift; [ $rank != 1 ] || program='" + copy.string() +
                          "'; [ $rank != 2 ] || export LD_PRELOAD=" + shim() + " FAULT_CPUINFO='" + at("cpuinfo") +
                          "'; exec \"$program\" \"$@\"");
    const Result result = run(training("run", odd({{"steps", "1"}})));
    EXPECT_EQ(result.status, 0) << result.err;
    std::istringstream lines(result.err);
    std::string first, second, more;
    std::getline(lines, first), std::getline(lines, second), std::getline(lines, more);
    EXPECT_TRUE(first.starts_with("train_gpt2: rank 1 on ") && first.find("XPU; mat") < first.find(", rank 0: "))
        << first;
    EXPECT_TRUE(second.starts_with("train_gpt2: rank 2 on ") && second.find("Abacus 3") < second.find(", rank 0: "))
        << second;
    EXPECT_TRUE(second.ends_with("; the last bits of results may differ from those of one process")) << second;
    EXPECT_EQ(more, "");
}

// A rank that has stopped for a minute (by the shim's clock, a second) is named, by one of those that wait for it.
TEST_F(RanksOfMpi, NameTheOneThatIsLate) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    launcher = {"mpirun", "-n", "4", "env", "LD_PRELOAD=" + shim(), "FAULT_CLOCK=" + at("hurry")};
    const Child job = start(training("run", odd({{"steps", "100000"}, {"save-every", "0"}, {"eval-every", "0"}})));
    wait_until(job, [&] { return log_lines("run") > 2; });
    const std::vector<pid_t> ranks = ranks_of(job);
    ASSERT_EQ(ranks.size(), 4u);
    write_bytes(at("hurry"), "");
    char host[256] = "";
    gethostname(host, sizeof host);
    const std::string on = std::string(" on ") + host, rank_0 = "train_gpt2: rank 0" + on;
    const std::string expected =
        rank_0 + " has waited for rank 2" + on + " for 1 min; it is busy, stopped or cut off\n";
    // A rank that stops after it has sent its part to some of the others has those wait for the rest: rank 0 then names
    // rank 1 or 3, truly, and another try stops it elsewhere.
    std::string late;
    for (int tries = 0; tries < 5 && late != expected; ++tries) {
        kill(ranks[2], SIGSTOP);
        do {
            late.clear();
            for (char c = 0; c != '\n' && read(job.err, &c, 1) == 1;) late += c;
        } while (!late.empty() && !late.starts_with(rank_0 + " has waited"));
        kill(ranks[2], SIGCONT);
    }
    EXPECT_EQ(late, expected);
    kill(ranks[3], SIGUSR2);
    const Result result = finish(job);
    expect_status(result, 128 + SIGUSR2);
    EXPECT_NE(result.err.find(rank_0 + " goes on\n"), std::string::npos) << result.err;
}

// What mpirun passes on: SIGUSR1 saves, and SIGUSR2 saves and stops, on all ranks after the same step.
TEST_F(RanksOfMpi, SaveAndStopBySignals) {
    const Args options =
        odd({{"steps", "100000"}, {"save-every", "0"}, {"schedule", "constant"}, {"warmup", "0"}, {"eval-every", "0"}});
    start_with(2);
    const Child job = start(training("run", options));
    wait_until(job, [&] { return log_lines("run") > 2; });
    kill(job.pid, SIGUSR1);
    wait_for_file(job, at("run/latest"));
    const std::string saved = fs::read_symlink(at("run/latest")).string();
    wait_until(job, [&] { return log_lines("run") > std::stoi(saved.substr(5)) + 2; });
    // Twice, as a launcher may do. MPICH's does not pass this one on, but one rank is enough.
    for (int twice = 0; twice < 2; ++twice) kill(is_mpich ? ranks_of(job).back() : job.pid, SIGUSR2);
    const Result result = finish(job);
    expect_status(result, 128 + SIGUSR2);
    EXPECT_NE(result.out.find("stopped by SIGUSR2 after step "), std::string::npos) << result.out;
    const std::string last = fs::read_symlink(at("run/latest")).string();
    EXPECT_GT(last, saved);
    start_with(0);
    train("alone", [&] {
        Args all = options;
        all["steps"] = std::to_string(std::stoi(last.substr(5)));
        all["save-every"] = all["steps"];
        return all;
    }());
    for (const char* file : {"/latest/model.safetensors", "/latest/optimizer.safetensors"})
        EXPECT_TRUE(read_bytes(at(std::string("run") + file)) == read_bytes(at(std::string("alone") + file))) << file;
}

// kill -9 of one rank ends the job, which names it, and --resume on fewer ranks goes on to the same bits.
TEST_F(RanksOfMpi, EndTogetherWhenOneIsKilled) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    const Args options = odd({{"steps", "60"}, {"save-every", "4"}, {"keep", "2"}});
    train("whole", options);
    const char* wanted = std::getenv("KILLS");
    const int kills = wanted ? std::max(1, std::atoi(wanted) / 10) : 2;  // one resumed by two, one by one
    for (int k = 0; k < kills; ++k) {
        const std::string out = "killed" + std::to_string(k);
        start_with(4);
        const Child job = start(training(out, options));
        wait_for_file(job, at(out + "/latest"));
        usleep(static_cast<useconds_t>(k * 7919 % 50'000));
        const std::vector<pid_t> ranks = ranks_of(job);
        ASSERT_EQ(ranks.size(), 4u);
        kill(ranks[static_cast<size_t>(3 - k % 4)], SIGKILL);
        const Result result = finish_within_seconds(job, ranks);
        EXPECT_NE(result.status, 0);
        // MPICH's mpirun names a machine, and one of the ranks' processes.
        const std::string name = is_mpich ? "RUNNING AT " : "rank " + std::to_string(3 - k % 4);
        EXPECT_NE((result.out + result.err).find(name), std::string::npos) << result.out << result.err;
        start_with(k % 2 == 0 ? 2 : 0);
        expect_done({"train", "--resume", "--out", at(out)});
        expect_same_run("whole", out);
    }
}

// train_gpt2cu in the emulator, whose NCCL sends bytes between processes as NVIDIA's does between GPUs.
class RanksOfCuda : public RanksOfMpi {
protected:
    RanksOfCuda() : cpu(binary()) {
        setenv("TRAIN_GPT2", (cpu + "cu_emulated").c_str(), 1);
        if (!fs::exists(binary())) missing = "no emulator";
    }
    ~RanksOfCuda() override { setenv("TRAIN_GPT2", cpu.c_str(), 1); }
    // Odd sizes, so that slices begin within a vector, and few values, as the emulator is slow. Four batches a step.
    std::vector<std::string> small(const std::string& out, const Args& more = {}) const {
        Args args = more;
        args.insert({{"device", "0"},
                     {"heads", "3"},
                     {"channels", "21"},
                     {"context", "7"},
                     {"seq", "7"},
                     {"batch", "1"},
                     {"total-batch", "28"},
                     {"shards", "4"},
                     {"steps", "3"},
                     {"save-every", "1"},
                     {"keep", "0"},
                     {"eval-every", "0"},
                     {"schedule", "constant"},
                     {"clip", "0.3"}});
        return training(out, args);
    }
    // Expects the same log, and the same bytes in every file of every checkpoint, but for the time that it took.
    void expect_same_checkpoints(const std::string& a, const std::string& b) const {
        expect_same_run(a, b);
        int files = 0;
        for (const auto& item : fs::recursive_directory_iterator(at(a))) {
            const std::string file = item.path().string().substr(at(a).size());
            if (!file.starts_with("/step_") || !item.is_regular_file() || file.ends_with("trainer_state.json"))
                continue;
            EXPECT_TRUE(read_bytes(at(a) + file) == read_bytes(at(b) + file)) << a << ", " << b << ": " << file;
            ++files;
        }
        EXPECT_GT(files, 6);
    }
    const std::string cpu;
};

// In bf16, rounded stochastically by the owners; two batches per rank are accumulated where there are two ranks.
TEST_F(RanksOfCuda, TrainTheModelOfOneProcessAndResumeOnAnotherNumber) {
    start_with(0);
    expect_done(small("one"));
    start_with(2);
    expect_done(small("two"));
    expect_same_checkpoints("one", "two");
    if (is_sanitized()) return;
    expect_done(small("resumed", {{"steps", "1"}}));
    for (const int ranks : {4, 0}) {
        start_with(ranks);
        expect_done({"train", "--resume", "--out", at("resumed"), "--device", "0", "--steps", ranks == 4 ? "2" : "3"});
    }
    expect_same_checkpoints("one", "resumed");
}

// No rank has all fp32 originals, so that all must take part when the first one writes the best model.
TEST_F(RanksOfCuda, KeepTheBestModelOfOneProcess) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    const Args options = {{"steps", "1"}, {"eval-every", "1"}, {"eval-batches", "1"}};
    start_with(0);
    expect_done(small("one", options));
    start_with(2);
    expect_done(small("two", options));
    EXPECT_TRUE(read_bytes(at("one/best/model.safetensors")) == read_bytes(at("two/best/model.safetensors")));
}

TEST_F(RanksOfCuda, ShareNorMuonInFp32) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    const Args options = {{"optimizer", "normuon"}, {"dtype", "fp32"}, {"steps", "2"}, {"eval-every", "2"}};
    start_with(0);
    expect_done(small("one", options));
    start_with(4);
    expect_done(small("ranks", options));
    expect_same_checkpoints("one", "ranks");
}

// NCCL fails on rank 1: when it connects, and in the sixth exchange, by which all ranks send their fp32 originals to
// the first checkpoint. Rank 0 waits for rank 1 until mpirun ends it.
TEST_F(RanksOfCuda, EndTogetherWhenNcclFailsOnOne) {
    if (is_sanitized()) GTEST_SKIP() << "takes long with the sanitizers";
    char host[256] = "";
    gethostname(host, sizeof host);
    for (const auto& [fault, cause] :
         Args{{"0", "ncclCommInitRank: unhandled system error"}, {"6", "NCCL: remote process exited or"}}) {
        SCOPED_TRACE(fault);
        start_by_shell(2, "[ $rank = 0 ] || export EMULATED_NCCL_FAULT=" + fault + "; exec \"$@\"");
        const Child job = start(small("lost" + fault));
        std::vector<pid_t> ranks;
        wait_until(job, [&] { return (ranks = ranks_of(job)).size() == 2; });
        const Result result = finish_within_seconds(job, ranks);
        expect_status(result, 1);
        const size_t first = result.err.find("train_gpt2cu: "), named = result.err.find("train_gpt2cu: rank 1 on ");
        EXPECT_EQ(first, named) << result.err;
        EXPECT_EQ(named, result.err.find(std::string("train_gpt2cu: rank 1 on ") + host + ": " + cause)) << result.err;
        EXPECT_EQ(named, result.err.rfind("train_gpt2cu: rank 1 on ")) << result.err;
    }
}
