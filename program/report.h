// OUT/report.html: one self-contained page about a run, with loss and speed as inline SVG, samples and configuration.
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
    // "parameters" "0.8 M", "validation loss" "1.55", …: values of up to 14 bytes become cards, longer ones lines.
    std::vector<std::pair<std::string, std::string>> facts{};
};

// Writes the page to a temporary file and renames it to `path`. Throws InputError.
void write_report(const std::string& path, const Report& report);

// The same for any page in the report's style, with more style sheet if it needs that. `body` follows the title.
void write_page(const std::string& path, const std::string& title, const std::string& body,
                const std::string& more_style = "");
