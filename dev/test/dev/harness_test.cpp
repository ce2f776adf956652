// The timing of make bench and the ladders: when the clock starts, nothing else runs, and threads are awake.
#include "dev/harness.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include <omp.h>

namespace {

void sleep_for(double seconds) { usleep(static_cast<useconds_t>(seconds * 1e6)); }

TEST(Harness, EverySecondRoundGoesTheOtherWay) {
    std::string order;
    const auto measure = [&](char name) {
        return [&order, name] {
            order += name;
            return 1.0;
        };
    };
    const std::vector<Samples> samples = in_turn({measure('a'), measure('b'), measure('c')}, 3);
    EXPECT_EQ(order,
              "cba"
              "abc"
              "cba"
              "abc");
    for (const Samples& s : samples) EXPECT_EQ(s.values.size(), 3u);
}

TEST(Harness, TheFirstCallCountsOnlyWhereItTakesLong) {
    int calls = 0;
    const auto slow_at_first = [&] { sleep_for(calls++ == 0 ? 0.05 : 0.001); };
    EXPECT_LT(seconds_a_call(slow_at_first), 0.03);
    calls = 0;
    EXPECT_GE(seconds_a_call(slow_at_first, 0.002), 0.05);
    EXPECT_EQ(calls, 1);
}

// The work of a thread that has just woken takes twenty times as long in this test: timed from then on, the rate would
// be 200.
TEST(Harness, APeakIsThatOfThreadsThatAreAwake) {
    omp_set_num_threads(2);
    double rate = 0;
    for (int i = 0; i < 10 && rate < 600; ++i) {  // other programs may keep the threads from waking in time
        const auto work = [begun = seconds_now()] {
            sleep_for(seconds_now() - begun < 0.009 ? 0.01 : 0.0005);
            return 1.0;
        };
        rate = rate_of_threads(work, {0.02, 1});
        EXPECT_LT(rate, 2 / 0.0005);
    }
    EXPECT_GE(rate, 600);
}

// If the compiler removed calls, or the clock was wrong, the peak would be above four instructions per cycle.
TEST(Harness, ThePeakIsThatOfMultiplyAdds) {
    const double most = 2.0 * simd::W * 4 * 6e9 * omp_get_max_threads();
    for (const Effort effort : {quick, thorough}) {
        const double peak = fma_peak(effort);
        EXPECT_GT(peak, 1e7);
        EXPECT_LT(peak, most);
    }
}

// rest() returns after 16 ms without work. A thread that ran for all but 5 of 50 ms has left no such gap, whatever the
// clock's ticks; one that other programs kept from running shows nothing.
TEST(Harness, RestWaitsUntilThreadsSleep) {
    double waited = 0, ran = 0;
    for (int i = 0; i < 40 && ran < 0.045; ++i) {
        std::thread spinning([&, until = seconds_now() + 0.05] {
            while (seconds_now() < until) {
            }
            timespec t{};
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
            ran = static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
        });
        const double start = seconds_now();
        rest();
        waited = seconds_now() - start;
        spinning.join();
    }
    if (ran < 0.045) GTEST_SKIP() << "other programs kept a thread from spinning for 50 ms";
    EXPECT_GE(waited, 0.03);
    const double start = seconds_now();
    rest();
    EXPECT_LT(seconds_now() - start, 0.4);
}

}  // namespace
