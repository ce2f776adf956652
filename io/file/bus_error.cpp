#include "io/file/bus_error.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "device/platform.h"

namespace {

char prefix[64];  // what the handler writes must be there while it can run

// The file that is mapped at an address, by platform::mappings.
// Returns the path's length, 0 for none. Does only what a signal's handler may do.
size_t mapped_path(uintptr_t address, char* path, size_t room) {
    const int fd = open(platform::mappings, O_RDONLY | O_CLOEXEC);
    char block[4096];
    uintptr_t bounds[2] = {};
    size_t length = 0;
    enum { begin, end, between, name } field = begin;
    for (ssize_t n; fd >= 0 && (n = read(fd, block, sizeof block)) > 0;)
        for (ssize_t i = 0; i < n; i++) {
            const char c = block[i];
            if (c == '\n') {
                if (bounds[0] <= address && address < bounds[1]) return close(fd), length;
                bounds[0] = bounds[1] = length = 0, field = begin;
            } else if (field == begin && c == '-') {
                field = end;
            } else if (field == end && c == ' ') {
                field = between;
            } else if (field == begin || field == end) {
                bounds[field] = bounds[field] * 16 + static_cast<uintptr_t>(c <= '9' ? c - '0' : c - 'a' + 10);
            } else if (c == '/' || field == name) {
                field = name;
                const bool control = static_cast<unsigned char>(c) < ' ' || c == 0x7F;  // a terminal must not obey it
                if (length < room) path[length++] = control ? '?' : c;
            }
        }
    if (fd >= 0) close(fd);
    return 0;
}

extern "C" void tell_and_end(int number, siginfo_t* info, void*) {
    static std::atomic_flag telling;
    while (telling.test_and_set()) pause();  // another thread does, and ends the process
    char path[4096];
    const size_t length = platform::mappings[0]
                              ? mapped_path(reinterpret_cast<uintptr_t>(info->si_addr), path, sizeof path)
                              : strlen(strcpy(path, "a file that it had opened"));
    if (length == 0) {  // no file's: what read it reads it again, and ends as without us
        signal(number, SIG_DFL);
        telling.clear();
        return;
    }
    constexpr char text[] =
        ": reading: found that it was cut since it was opened, or that its disk fails, expected all of it; put it back "
        "and begin again, a training run with --resume\n";
    if (write(STDERR_FILENO, prefix, strlen(prefix)) < 0 || write(STDERR_FILENO, path, length) < 0 ||
        write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(2);
}

}  // namespace

void explain_bus_errors(const std::string& program) {
    std::snprintf(prefix, sizeof prefix, "\n%s: ", program.c_str());
    struct sigaction action {};
    action.sa_sigaction = tell_and_end;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}
