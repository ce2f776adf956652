// SIGINT, SIGTERM, SIGHUP and SIGUSR2 request training to stop, and SIGUSR1 to save. The handlers only set a flag.
// mpirun passes the last two on to its processes; after the others it gives them a second, then kills them.
#pragma once

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

namespace stop_signals {

inline std::atomic<int> stop_asked{0};  // the signal
inline std::atomic<bool> save_asked{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

inline char stopping_text[100];  // static, so that it exists as long as the handler can run
inline bool second_ends = true;  // a second signal ends the program at once
inline constexpr int stopping[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR2};

extern "C" inline void note_stop(int number) {
    stop_asked = number;
    for (const int n : stopping)
        if (second_ends) signal(n, SIG_DFL);
    if (write(STDERR_FILENO, stopping_text, strlen(stopping_text)) < 0) return;
}
extern "C" inline void note_save(int) { save_asked = true; }

inline void handle(int number, void (*handler)(int)) {
    struct sigaction old {
    }, action{};
    sigaction(number, nullptr, &old);
    if (old.sa_handler == SIG_IGN) return;  // the signal stays ignored, as under nohup and in a shell's background jobs
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(number, &action, nullptr);
}

// From now on neither SIGUSR1 nor a closed output pipe ends the program.
inline void catch_save() {
    handle(SIGUSR1, note_save);
    signal(SIGPIPE, SIG_IGN);
}
inline void catch_stop(const std::string& program, const char* after = "step") {
    std::snprintf(stopping_text, sizeof stopping_text, "\n%s: stopping after this %s; a second signal stops at once\n",
                  program.c_str(), after);
    for (const int number : stopping) handle(number, note_stop);
}
// The same for one of several ranks. Their launcher may pass one signal on twice, and kills them itself if it has to.
// Only one of them `prints`.
inline void catch_stop_of_rank(const std::string& program, bool prints) {
    second_ends = false;
    catch_stop(program);
    std::snprintf(stopping_text, sizeof stopping_text, prints ? "%s: stopping after this step\n" : "", program.c_str());
}

// From now on the signals end the program again, and none is pending.
inline void release() {
    for (const int number : stopping) {
        struct sigaction action {};
        sigaction(number, nullptr, &action);
        if (action.sa_handler != SIG_IGN) signal(number, SIG_DFL);
    }
    stop_asked = 0;
}

inline const char* name(int number) {
    return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : number == SIGHUP ? "SIGHUP" : "SIGUSR2";
}

}  // namespace stop_signals
