// The progress line.
#include "program/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace {

// While it exists, standard output is a terminal of its own.
class Terminal {
public:
    explicit Terminal(unsigned short columns) : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
        if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) throw std::runtime_error("posix_openpt");
        resize(columns);
        std::fflush(stdout);
        stdout_ = dup(STDOUT_FILENO);
        const int slave = open(ptsname(master_), O_RDWR | O_NOCTTY);
        dup2(slave, STDOUT_FILENO);
        close(slave);
    }
    ~Terminal() {
        std::fflush(stdout);
        dup2(stdout_, STDOUT_FILENO);
        close(stdout_), close(master_);
    }
    void resize(unsigned short columns) const {
        const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
        ioctl(master_, TIOCSWINSZ, &size);
    }
    std::string shown() const {  // since the last time
        char text[4096];
        std::fflush(stdout);
        const ssize_t n = read(master_, text, sizeof text);
        return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
    }

private:
    int master_, stdout_ = -1;
};

// Some containers and chroots have no /dev/pts.
bool has_terminals() {
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master >= 0) close(master);
    return master >= 0;
}
constexpr char no_terminals[] = "this machine has no pseudo-terminals: posix_openpt failed";

// Steps of 100 tokens, 1 FLOP each, in 10 s. Returns each report's share of the peak.
std::string reported(std::vector<double> peaks, int64_t steps) {
    size_t measured = 0;
    testing::internal::CaptureStdout();
    Progress progress(0, steps, 100, 1, [&] { return peaks.at(measured++); });
    for (int64_t step = 1; step <= steps; ++step) progress.step(step, 2.5, 10);
    const std::string lines = testing::internal::GetCapturedStdout();
    EXPECT_EQ(measured, peaks.size());
    return lines;
}

TEST(Progress, ReportsSpeedShareAndTimeLeft) {
    EXPECT_EQ(reported({40}, 2),
              "step 1/2  loss 2.5000  10 tokens/s  25 % of peak  0:10 left\n"
              "step 2/2  loss 2.5000  10 tokens/s  25 % of peak  0:00 left\n");
}

TEST(Progress, IsCutToARowWhoseLastColumnStaysEmpty) {
    EXPECT_EQ(cut_to_row("step 1/4", 9), "step 1/4");
    EXPECT_EQ(cut_to_row("step 1/4", 8), "step 1/");
    EXPECT_EQ(cut_to_row("step 1/4", 1), "s");
}

// A longer line would wrap, and each update would then begin a new row.
TEST(Progress, FitsOnOneRowOfTheTerminal) {
    if (!has_terminals()) GTEST_SKIP() << no_terminals;
    const std::string row = "\r\033[K", whole = "step 1/4  loss 2.5000  10 tokens/s  25 % of peak  0:30 left";
    std::vector<std::string> shown;
    {
        const Terminal terminal(40);
        Progress progress(0, 4, 100, 1, [] { return 40.0; });
        int64_t step = 0;
        for (const int columns : {40, 1, 200, 60}) {
            terminal.resize(static_cast<unsigned short>(columns));
            progress.step(++step, 2.5, 10);
            shown.push_back(terminal.shown());
        }
        progress.clear();
        shown.push_back(terminal.shown());
    }
    EXPECT_EQ(shown[0], row + whole.substr(0, 39));
    EXPECT_EQ(shown[1], row + "s");
    EXPECT_EQ(shown[2], row + "step 3/4  loss 2.5000  10 tokens/s  25 % of peak  0:10 left");
    EXPECT_EQ(shown[3], row + "step 4/4  loss 2.5000  10 tokens/s  25 % of peak  0:00 left");
    EXPECT_EQ(shown[4], "\r\n");
}

// As over a serial line.
TEST(Progress, TakesTheShellsColumnsWhereTheTerminalDoesNotSay) {
    if (!has_terminals()) GTEST_SKIP() << no_terminals;
    const char* before = std::getenv("COLUMNS");
    const std::string kept = before ? before : "";
    std::vector<size_t> columns;
    {
        const Terminal terminal(0);
        for (const char* value : {"33", "", "wide", "-4"}) {
            setenv("COLUMNS", value, 1);
            columns.push_back(terminal_columns());
        }
    }
    before ? setenv("COLUMNS", kept.c_str(), 1) : unsetenv("COLUMNS");
    EXPECT_EQ(columns, (std::vector<size_t>{33, 80, 80, 80}));
}

// A peak can be too low, for example if it was measured while other work ran: 200 % of it would be nonsense.
TEST(Progress, APeakThatWasTooLowIsMeasuredAgain) {
    EXPECT_EQ(reported({5, 20}, 1), "step 1/1  loss 2.5000  10 tokens/s  50 % of peak  0:00 left\n");
    EXPECT_EQ(reported({5, 8}, 2),
              "step 1/2  loss 2.5000  10 tokens/s  100 % of peak  0:10 left\n"
              "step 2/2  loss 2.5000  10 tokens/s  100 % of peak  0:00 left\n");
}

}  // namespace
