// The progress of reading a large text: a line on a terminal's standard error, removed at the end.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "device/profile.h"
#include "io/text/documents.h"

class TextProgress {
public:
    explicit TextProgress(std::string title = "") : title_(std::move(title)) {}
    ~TextProgress() {
        if (shown_) std::fprintf(stderr, "\r\033[K");
    }
    TextProgress(const TextProgress&) = delete;
    TextProgress& operator=(const TextProgress&) = delete;

    void show(const char* what, int64_t done, int64_t all) {
        const double now = seconds_now();
        if (!live_ || now - last_ < 0.1) return;
        last_ = now, shown_ = true;
        std::fprintf(stderr, "\r\033[K%s%s %.0f %%", title_.c_str(), what,
                     100 * static_cast<double>(done) / static_cast<double>(all));
    }
    ReadProgress reader() {
        return [this](const char* what, int64_t done, int64_t all) { show(what, done, all); };
    }

private:
    std::string title_;
    bool live_ = isatty(STDERR_FILENO), shown_ = false;
    double last_ = seconds_now();
};
