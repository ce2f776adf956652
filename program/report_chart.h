// One chart of the report: lines and points over steps, tokens or time, as HTML with an inline SVG.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

struct Series {
    enum class Style { thin, line, points };
    std::string name;   // shown in the legend with the last value; empty: not in the legend
    std::string color;  // the page's CSS class
    Style style = Style::line;
    std::vector<double> x{}, y{};  // non-finite values are gaps
};

struct Chart {
    std::string title, unit{};
    std::string x_name = "step";  // what x counts: "step", "tokens", "minutes"
    bool log_scale = false;       // use a logarithmic scale if the values span a factor above 1.8
    bool from_zero = false;       // begin a linear scale at 0, not at the smallest value
    double cropped = 0;           // the share of each series, at its start, that may leave the frame
    std::vector<Series> series{};
};

std::string draw_chart(const Chart& chart);

// The moving mean over `window` values: symmetric at the start, where the loss falls fast, and one-sided at the end.
std::vector<double> smooth(const std::vector<double>& y, int64_t window);

std::string short_number(double value);     // 1.547, 98.8k, 3e-4
std::string grouped_number(int64_t value);  // 12,000
// Any bytes as HTML text. Invalid UTF-8 becomes U+FFFD, and control characters become their Unicode pictures.
std::string escape_html(std::string_view bytes);
