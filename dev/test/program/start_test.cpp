// The start of the program: it does not execute itself again, it sets up OpenMP's threads, and prints --version.
#include <fcntl.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/ptrace.h>
#endif

#include <filesystem>

#include "dev/test/program/program.h"

namespace fs = std::filesystem;

namespace {

class Start : public Program {
protected:
    Start() {
        for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) unsetenv(name);
    }
    std::string version() const { return expect_done({"--version"}); }

#if defined(__linux__)
    // The number of programs that the process executes, this one included; -1 if it may not be traced.
    int programs_executed() const {
        const pid_t pid = fork();
        if (pid == 0) {
            if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(126);
            raise(SIGSTOP);
            setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // LeakSanitizer cannot work in a process that is traced
            dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
            execl(binary().c_str(), binary().c_str(), "--version", nullptr);
            _exit(127);
        }
        int status = 0, count = 0;
        waitpid(pid, &status, 0);
        if (!WIFSTOPPED(status)) return -1;
        ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
        while (WIFSTOPPED(status)) {
            const bool executed = status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8);
            const int signal = executed || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
            count += executed;
            ptrace(PTRACE_CONT, pid, nullptr, signal);
            if (waitpid(pid, &status, 0) != pid) return -1;
        }
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        return count;
    }
#endif
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_F(Start, VersionNamesProgramCompilerVectorsAndDevice) {
    const std::string printed = version();
    EXPECT_TRUE(printed.starts_with(program_name() + " ")) << printed;
    for (const char* part : {"built by ", "+ ", " floats\n", "\ndevice: CPU; matmuls in fp32", "\n2 threads"})
        EXPECT_TRUE(contains(printed, part)) << printed << "lacks " << part;
    EXPECT_EQ(expect_done({"eval", "--version"}), printed);
}

TEST_F(Start, ThreadsSpinAShortWhileUnlessTheUserSaysOtherwise) {
    if (!contains(version(), "spin")) GTEST_SKIP() << "the program is linked with a shared OpenMP";
    EXPECT_TRUE(contains(version(), "each spins 10000 times")) << version();
    setenv("GOMP_SPINCOUNT", "7", 1);
    EXPECT_TRUE(contains(version(), "each spins 7 times")) << version();
    unsetenv("GOMP_SPINCOUNT");
    setenv("OMP_WAIT_POLICY", "active", 1);
    EXPECT_TRUE(contains(version(), "each spins 30000000000 times")) << version();
}

#if defined(__linux__)
TEST_F(Start, ExecutesNothingElse) {
    const int count = programs_executed();
    if (count < 0) GTEST_SKIP() << "processes may not be traced here";
    EXPECT_EQ(count, 1);
}

// As debuggers and some launchers do. /proc/self/exe is then the loader.
TEST_F(Start, ByTheDynamicLoader) {
    for (const std::string loader : {"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"}) {
        if (!fs::exists(loader)) continue;
        const std::string file = at("version");
        ASSERT_EQ(std::system((loader + " '" + binary() + "' --version >'" + file + "'").c_str()), 0);
        EXPECT_EQ(read_bytes(file), version());
        return;
    }
    GTEST_SKIP() << "no glibc loader here";
}

// As set by taskset.
TEST_F(Start, AsManyThreadsAsTheAffinityAllowsUnlessTheUserSaysOtherwise) {
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_TRUE(contains(version(), "\n2 threads")) << version();
    unsetenv("OMP_NUM_THREADS");
    EXPECT_TRUE(contains(version(), "\n1 thread")) << version();
    sched_setaffinity(0, sizeof all, &all);
}
#endif
