#include "dev/test/program/program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

std::vector<std::string> words(const std::string& command, const Args& args) {
    std::vector<std::string> all{command};
    for (const auto& [name, value] : args) {
        all.push_back("--" + name);
        if (!value.empty()) all.push_back(value);
    }
    return all;
}

std::string Program::binary() {
    const char* named = std::getenv("TRAIN_GPT2");
    return named ? named : "./train_gpt2";
}

bool Program::is_sanitized() { return binary().find("sanitize") != std::string::npos; }

std::string Program::program_name() {
    const bool on_gpu = std::filesystem::path(binary()).filename().string().starts_with("train_gpt2cu");
    return on_gpu ? "train_gpt2cu" : "train_gpt2";
}

Program::Program() {
    setenv("OMP_WAIT_POLICY", "passive", 1);  // several runs may share this machine
    setenv("OMP_NUM_THREADS", "2", 1);
    std::string lines;
    for (int i = 1; i <= 60; ++i)
        lines += "line " + std::to_string(i) + ": the quick brown fox jumps over the lazy dog\n";
    write_bytes(text, lines);
}

Program::Child Program::start(std::vector<std::string> arguments, const Limits& limits) const {
    arguments.insert(arguments.begin(), binary());
    arguments.insert(arguments.begin(), launcher.begin(), launcher.end());
    std::vector<char*> argv;
    for (std::string& word : arguments) argv.push_back(word.data());
    argv.push_back(nullptr);
    int out[2], err[2];
    if (pipe(out) != 0 || pipe(err) != 0) throw std::runtime_error("pipe");
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(120);  // a program that hangs is a failure, not a hung test
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        for (const int fd : {out[0], out[1], err[0], err[1]}) close(fd);
        const rlimit memory{limits.memory, limits.memory}, file{limits.file, limits.file};
        setrlimit(RLIMIT_AS, &memory);
        setrlimit(RLIMIT_FSIZE, &file);
        std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit fails, as on a full disk
        execvp(argv[0], argv.data());
        perror(argv[0]);
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    return {pid, out[0], err[0]};
}

Result Program::finish(const Child& child) {
    const auto read_all = [](int fd) {
        std::string all;
        char block[4096];
        for (ssize_t n; (n = read(fd, block, sizeof block)) > 0;) all.append(block, static_cast<size_t>(n));
        close(fd);
        return all;
    };
    Result result;
    result.out = read_all(child.out);
    result.err = read_all(child.err);
    int status = 0;
    rusage usage{};
    wait4(child.pid, &status, 0, &usage);
    result.peak_memory = usage.ru_maxrss * 1024;
    result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result;
}

void Program::wait_until(const Child& child, const std::function<bool()>& done) {
    siginfo_t ended{};
    const auto runs = [&] {
        return waitid(P_PID, static_cast<id_t>(child.pid), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
               ended.si_pid == 0;
    };
    while (!done() && runs()) usleep(500);
}

void Program::wait_for_file(const Child& child, const std::string& path) {
    wait_until(child, [&] { return path_exists(path); });
}

void Program::wait_for_log(const Child& child, const std::string& out) const {
    const std::string log = at(out + "/log.jsonl");
    wait_until(child, [&] { return path_exists(log) && !read_bytes(log).empty(); });
}

Result Program::run(std::vector<std::string> arguments, const Limits& limits) const {
    return finish(start(std::move(arguments), limits));
}

std::string Program::expect_done(std::vector<std::string> arguments) const {
    const Result result = run(std::move(arguments));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
}

std::string Program::expect_text(std::vector<std::string> arguments) const {
    const Result result = run(std::move(arguments));
    EXPECT_EQ(result.status, 0) << result.err;
    std::istringstream lines(result.err);
    for (std::string line; std::getline(lines, line);)
        EXPECT_TRUE(line.ends_with(" tokens/s") || line.ends_with(", its context")) << line;
    return result.out;
}

std::vector<std::string> Program::training(const std::string& out, const Args& more) const {
    Args args = more;
    args.insert({{"data", text},
                 {"out", at(out)},
                 {"layers", "1"},
                 {"heads", "2"},
                 {"channels", "16"},
                 {"context", "16"},
                 {"batch", "2"},
                 {"seq", "16"},
                 {"steps", "6"},
                 {"sample-tokens", "0"}});
    return words("train", args);
}

std::string Program::train(const std::string& out, const Args& more) const { return expect_done(training(out, more)); }

void Program::set_parameter(const std::string& model, const std::string& tensor, float value) const {
    const std::string path = at(model + "/model.safetensors");
    std::string bytes = read_bytes(path);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    const auto json = nlohmann::json::parse(bytes.substr(8, header));
    const int64_t begin = json.at(tensor).at("data_offsets").at(0);
    std::memcpy(bytes.data() + 8 + header + static_cast<size_t>(begin), &value, sizeof value);
    write_bytes(path, bytes);
}

std::vector<nlohmann::json> Program::timeless_log(const std::string& out) const {
    std::vector<nlohmann::json> lines;
    std::istringstream file(read_bytes(at(out + "/log.jsonl")));
    for (std::string line; std::getline(file, line);) {
        lines.push_back(nlohmann::json::parse(line));
        lines.back().erase("seconds"), lines.back().erase("tokens_per_second");
    }
    return lines;
}

void Program::expect_same_run(const std::string& a, const std::string& b) const {
    for (const char* file : {"/latest/model.safetensors", "/latest/optimizer.safetensors"})
        EXPECT_TRUE(read_bytes(at(a + file)) == read_bytes(at(b + file))) << a << ", " << b << ": " << file;
    EXPECT_TRUE(timeless_log(a) == timeless_log(b)) << a << ", " << b << ": log.jsonl";
    const auto state = [&](const std::string& out) {
        auto json = nlohmann::json::parse(read_bytes(at(out + "/latest/trainer_state.json")));
        json.erase("seconds"), json.erase("crc32");
        return json;
    };
    EXPECT_EQ(state(a), state(b));
}

std::map<std::string, std::string> Program::snapshot() const {
    std::map<std::string, std::string> files;
    for (const auto& item : std::filesystem::recursive_directory_iterator(root))
        files[item.path().string().substr(root.size() + 1)] =
            item.is_symlink()     ? "-> " + std::filesystem::read_symlink(item.path()).string()
            : item.is_directory() ? "directory"
                                  : read_bytes(item.path().string());
    return files;
}

void Program::expect_refused(std::vector<std::string> arguments, const std::vector<std::string>& parts,
                             const Limits& limits) const {
    std::string command = program_name();
    for (const std::string& word : arguments) command += " " + word;
    SCOPED_TRACE(command);
    const auto before = snapshot();
    const Result result = run(std::move(arguments), limits);
    EXPECT_EQ(result.status, 2);
    EXPECT_TRUE(result.err.starts_with(program_name() + ": ")) << result.err;
    EXPECT_EQ(result.err.find('\n') + 1, result.err.size()) << result.err;
    for (const std::string& part : parts)
        EXPECT_NE(result.err.find(part), std::string::npos) << result.err << "lacks: " << part;
    const auto after = snapshot();
    for (const auto& [name, bytes] : after) {
        const auto old = before.find(name);
        EXPECT_TRUE(old != before.end() && old->second == bytes) << name << " was made or changed";
    }
    EXPECT_EQ(before.size(), after.size());
}
