// The progress line: rewritten in place on a terminal, otherwise printed as a new line every 10 s.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "device/profile.h"
#include "program/evaluation.h"
#include "program/terminal.h"

// "4:05" or "1 h 02 min"
inline std::string duration(double seconds) {
    const int64_t s = static_cast<int64_t>(seconds + 0.5);
    char text[48];
    if (s >= 3600)
        std::snprintf(text, sizeof text, "%" PRId64 " h %02" PRId64 " min", s / 3600, s % 3600 / 60);
    else
        std::snprintf(text, sizeof text, "%" PRId64 ":%02" PRId64, s / 60, s % 60);
    return text;
}

class Progress {
public:
    // flops_per_token and peak(), in FLOP/s, give the share of the machine's peak. The peak is measured again if it
    // turns out too low: other programs, or another clock rate, may have lowered it.
    Progress(int64_t done, int64_t steps, int64_t tokens_per_step, double flops_per_token, std::function<double()> peak,
             bool live = isatty(STDOUT_FILENO))
        : done_(done),
          steps_(steps),
          tokens_(static_cast<double>(tokens_per_step)),
          flops_(flops_per_token),
          measure_peak_(std::move(peak)),
          peak_(measure_peak_()),
          live_(live) {}

    void step(int64_t step, double loss, double seconds) {
        const double weight = std::max(0.05, 1.0 / static_cast<double>(++seen_));  // a mean over some twenty steps
        smooth_seconds_ += weight * (seconds - smooth_seconds_);
        smooth_loss_ += weight * (loss - smooth_loss_);
        since_ += seconds;
        const bool first = step == done_ + 1, last = step == steps_;
        if (!first && !last && since_ < (live_ ? 0.1 : 10.0)) return;
        since_ = 0;
        const double speed = tokens_ / smooth_seconds_, flops = speed * flops_;
        if (flops > peak_) peak_ = std::max(flops, measure_peak_());
        char line[256];
        std::snprintf(line, sizeof line,
                      "step %" PRId64 "/%" PRId64 "  loss %.4f  %.0f tokens/s  %.0f %% of peak  %s left", step, steps_,
                      smooth_loss_, speed, 100 * flops / peak_,
                      duration(static_cast<double>(steps_ - step) * smooth_seconds_).c_str());
        if (live_)
            std::printf("\r\033[K%s", cut_to_row(line, terminal_columns()).c_str());
        else
            std::printf("%s\n", line);
        std::fflush(stdout);
        on_line_ = live_;
    }

    void change_steps(int64_t steps) { steps_ = steps; }

    // Frees the terminal's line for other output.
    void clear() {
        if (on_line_) std::printf("\n");
        on_line_ = false;
    }

private:
    int64_t done_, steps_, seen_ = 0;
    double tokens_, flops_;
    std::function<double()> measure_peak_;
    double peak_;
    double smooth_seconds_ = 0, smooth_loss_ = 0, since_ = 0;
    bool live_, on_line_ = false;
};

// The progress line of an evaluation, on standard error: on a terminal from the start, otherwise every 10 s.
class EvaluationProgress {
public:
    explicit EvaluationProgress(int64_t tokens) : all_(tokens), live_(isatty(STDERR_FILENO)) {}
    ~EvaluationProgress() {
        if (shown_ && live_) std::fprintf(stderr, "\r\033[K");
    }
    EvaluationProgress(const EvaluationProgress&) = delete;

    void show(const Evaluation& so_far) {
        char loss[32];
        std::snprintf(loss, sizeof loss, "  loss %.4f", so_far.loss());
        show(so_far.predictions, loss);
    }
    void show(int64_t tokens, const char* result = "") {
        const double now = seconds_now();
        if (tokens == 0 || now - last_ < (live_ ? 0.1 : 10.0)) return;
        last_ = now, shown_ = true;
        const double done = static_cast<double>(tokens), speed = done / (now - start_);
        std::fprintf(stderr, "%s%.0f %%%s  %.0f tokens/s  %s left%s", live_ ? "\r\033[K" : "",
                     100 * done / static_cast<double>(all_), result, speed,
                     duration((static_cast<double>(all_) - done) / speed).c_str(), live_ ? "" : "\n");
    }

private:
    int64_t all_;
    double start_ = seconds_now(), last_ = start_;
    bool live_, shown_ = false;
};
