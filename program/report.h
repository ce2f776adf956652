// OUT/report.html: one self-contained page about a run: loss and speed as inline SVG, samples, configuration.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "program/log.h"

struct Report {
    std::string title;        // "tiny on data/tinyshakespeare.txt"
    std::string loss_unit{};  // "nats per byte" / "nats per token"
    std::vector<LogEntry> log{};
    std::vector<Sample> samples{};                                     // texts of any bytes
    std::vector<std::pair<std::string, std::string>> configuration{};  // option, value
    // "parameters" "0.8 M", "validation loss" "1.55", …: short ones (up to 14 bytes) become cards, long ones lines.
    std::vector<std::pair<std::string, std::string>> facts{};
};

// Written to a temporary file and renamed over the last one. Throws InputError.
void write_report(const std::string& path, const Report& report);
