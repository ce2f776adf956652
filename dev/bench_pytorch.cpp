#include "dev/bench_pytorch.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

namespace {

constexpr const char* python = ".venv/bin/python";
constexpr const char* script = "scripts/bench_pytorch.py";

// Opens a pipe that child processes do not inherit. Its numbers are above stdin, stdout and stderr, even if those are
// closed.
void open_pipe(int (&ends)[2]) {
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
}

}  // namespace

PyTorch::PyTorch(int threads) {
    int in[2], out[2];
    open_pipe(in), open_pipe(out);
    const std::string count = std::to_string(threads);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
    if (pid_ == 0) {
        dup2(in[0], STDIN_FILENO), dup2(out[1], STDOUT_FILENO);
        execl(python, python, script, count.c_str(), nullptr);
        _exit(127);
    }
    close(in[0]), close(out[1]);
    to_ = in[1], from_ = out[0];
    if (ask("hello") != "hello") throw std::runtime_error(std::string(script) + " does not start");
}

PyTorch& PyTorch::operator=(PyTorch&& other) noexcept {
    std::swap(to_, other.to_), std::swap(from_, other.from_), std::swap(pid_, other.pid_);
    return *this;
}

PyTorch::~PyTorch() {
    if (pid_ < 0) return;
    close(to_), close(from_);
    waitpid(pid_, nullptr, 0);
}

// Sends one line and returns the one-line answer.
std::string PyTorch::ask(const std::string& line) {
    const std::string all = line + "\n";
    std::string answer;
    if (write(to_, all.data(), all.size()) == static_cast<ssize_t>(all.size()))
        for (char c; read(from_, &c, 1) == 1;) {
            if (c == '\n') return answer;
            answer += c;
        }
    throw std::runtime_error(std::string(script) + " ended at: " + line);
}

bool PyTorch::prepare(const std::string& mode, const std::string& work) {
    static std::set<std::string> printed;
    if (pid_ < 0) return false;
    std::string answer;
    try {
        answer = ask("prepare " + mode + " " + work);
    } catch (const std::runtime_error&) {
        answer = "the process ended (out of memory?)";
    }
    if (answer == "ready") return true;
    if (answer != "-" && printed.insert(answer).second)
        std::fprintf(stderr, "PyTorch, %s of %s: %s\n", mode.c_str(), work.c_str(), answer.c_str());
    return false;
}

double PyTorch::run(const std::string& mode) { return std::atof(ask("run " + mode).c_str()); }
double PyTorch::memory() { return std::atof(ask("memory").c_str()); }
