#include "io/file/bus_error.h"

#include <signal.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "io/file/error.h"

namespace {

struct Mapping {
    const uint8_t* end;
    std::string path;
};

struct Mappings {
    std::mutex mutex;
    std::map<const uint8_t*, Mapping> by_begin;
    std::string program;
};

// Never destroyed: a thread may still read a file when main() has returned.
Mappings& mappings() {
    static Mappings& all = *new Mappings;
    return all;
}

// Unlike most handlers this one may lock and allocate: the signal comes from an instruction that reads a mapped file,
// and no such instruction runs inside malloc or while the mutex is held.
extern "C" void print_and_exit(int number, siginfo_t* info, void*) {
    Mappings& all = mappings();
    const std::lock_guard lock(all.mutex);
    const auto* const address = static_cast<const uint8_t*>(info->si_addr);
    auto next = all.by_begin.upper_bound(address);
    if (next == all.by_begin.begin() || address >= (--next)->second.end) {
        signal(number, SIG_DFL);  // not a file's: the instruction runs again, and the signal ends the process
        return;
    }
    const std::string message = "\n" + all.program + ": " + without_controls(next->second.path) +
                                ": read failed: the file was truncated while it was in use, or its disk fails; restore "
                                "it and run again (continue training with --resume)\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message.data(), message.size());
    _exit(2);
}

}  // namespace

void explain_bus_errors(const std::string& program) {
    mappings().program = program;
    struct sigaction action {};
    action.sa_sigaction = print_and_exit;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}

void note_mapping(const uint8_t* begin, int64_t bytes, const std::string& path) {
    const std::lock_guard lock(mappings().mutex);
    mappings().by_begin[begin] = {begin + bytes, path};
}

void forget_mapping(const uint8_t* begin) {
    const std::lock_guard lock(mappings().mutex);
    mappings().by_begin.erase(begin);
}
