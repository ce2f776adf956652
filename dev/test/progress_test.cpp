// The line that tells how training goes.
#include "program/progress.h"

#include <gtest/gtest.h>

namespace {

// A step of 100 tokens, 1 FLOP each, in 10 s; each report's share of the peak.
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

// Measured while other work ran, say: 200 % of it would be nonsense.
TEST(Progress, APeakThatWasTooLowIsMeasuredAgain) {
    EXPECT_EQ(reported({5, 20}, 1), "step 1/1  loss 2.5000  10 tokens/s  50 % of peak  0:00 left\n");
    EXPECT_EQ(reported({5, 8}, 2),
              "step 1/2  loss 2.5000  10 tokens/s  100 % of peak  0:10 left\n"
              "step 2/2  loss 2.5000  10 tokens/s  100 % of peak  0:00 left\n");
}

}  // namespace
