#include "program/report.h"

#include <algorithm>
#include <cmath>

#include "io/file/file.h"
#include "program/report_chart.h"
#include "program/report_style.h"

namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

// Draws short facts as cards, in rows of equal length, and long ones as lines below the title.
std::string draw_facts(const Values& facts) {
    std::string lines, cards;
    int64_t count = 0;
    for (const auto& [name, value] : facts) {
        if (value.size() > 14) {
            lines += "<p class=\"fact\">" + escape_html(name) + " <b>" + escape_html(value) + "</b></p>\n";
        } else {
            cards +=
                "<div class=\"card\"><dt>" + escape_html(name) + "</dt><dd>" + escape_html(value) + "</dd></div>\n";
            count++;
        }
    }
    const int64_t rows = (count + 5) / 6, columns = rows > 0 ? (count + rows - 1) / rows : 0;
    if (count > 0)
        cards = "<dl class=\"facts\" style=\"--columns:" + std::to_string(columns) + "\">\n" + cards + "</dl>\n";
    return lines + cards;
}

// One quantity of the log's entries of one split.
Series take(const std::vector<LogEntry>& log, const std::string& split, double LogEntry::*field, Series series) {
    for (const LogEntry& entry : log)
        if (entry.split == split) series.x.push_back(static_cast<double>(entry.step)), series.y.push_back(entry.*field);
    return series;
}

// Returns the noisy series, drawn thin, and its smoothed trend.
std::vector<Series> with_trend(Series noise) {
    Series trend = noise;
    noise.name.clear();
    noise.style = Series::Style::thin;
    trend.y = smooth(noise.y, std::ssize(noise.y) / 50);
    return {std::move(noise), std::move(trend)};
}

std::string draw_charts(const Report& report) {
    using Style = Series::Style;
    const auto& log = report.log;
    Chart loss{.title = "Loss", .unit = report.loss_unit, .log_scale = true};
    loss.series = with_trend(take(log, "train", &LogEntry::loss, {"training, smoothed", "train"}));
    loss.series.push_back(take(log, "val", &LogEntry::loss, {"validation", "val", Style::points}));
    Chart speed{.title = "Speed", .unit = "tokens/s", .from_zero = true};
    speed.series = with_trend(take(log, "train", &LogEntry::tokens_per_second, {"last", "speed"}));
    Chart rate{.title = "Learning rate", .from_zero = true};
    rate.series = {take(log, "train", &LogEntry::lr, {"last", "other"})};
    Chart norm{.title = "Gradient norm", .from_zero = true};
    norm.series = with_trend(take(log, "train", &LogEntry::grad_norm, {"last", "train"}));
    std::string html = draw_chart(loss);
    Series answers{"validation", "val", Style::points};
    for (const LogEntry& entry : log)
        if (entry.choices_accuracy)
            answers.x.push_back(static_cast<double>(entry.step)), answers.y.push_back(*entry.choices_accuracy);
    if (!answers.x.empty())
        html += draw_chart({.title = "Accuracy of --choices", .from_zero = true, .series = {answers}});
    return html + "<div class=\"row\">\n" + draw_chart(speed) + draw_chart(rate) + draw_chart(norm) + "</div>\n";
}

// A notice for a diverged run, which must not look like one that merely ended early.
std::string draw_notice(const std::vector<LogEntry>& log) {
    const auto bad = std::find_if(log.begin(), log.end(), [](const LogEntry& e) { return !std::isfinite(e.loss); });
    if (bad == log.end()) return "";
    return "<p class=\"notice\">The loss was not a number at step " + grouped_number(bad->step) + ".</p>\n";
}

// Draws the samples, of which only the newest is open. HTML ignores a line break directly after <pre>.
std::string draw_samples(std::vector<Sample> samples) {
    if (samples.empty()) return "";
    std::reverse(samples.begin(), samples.end());
    std::string html = "<section class=\"card samples\">\n<h2>Samples</h2>\n";
    for (size_t i = 0; i < samples.size(); i++)
        html += std::string("<details class=\"sample\"") + (i == 0 ? " open" : "") + "><summary>step " +
                grouped_number(samples[i].step) + "</summary><pre dir=\"auto\">\n" + escape_html(samples[i].text) +
                "</pre></details>\n";
    return html + "</section>\n";
}

std::string draw_configuration(const Values& configuration) {
    if (configuration.empty()) return "";
    std::string html = "<section class=\"card options\">\n<h2>Configuration</h2>\n<dl>\n";
    for (const auto& [name, value] : configuration)
        html += "<div><dt>" + escape_html(name) + "</dt><dd>" + (value.empty() ? "–" : escape_html(value)) +
                "</dd></div>\n";
    return html + "</dl>\n</section>\n";
}

// Bytes of the valid UTF-8 character at the start of `text`, or 0.
size_t character_length(std::string_view text) {
    const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t first = at(0);
    if (first < 0x80) return 1;
    const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
    for (size_t i = 1; i < length; i++)
        if ((at(i) & 0xc0) != 0x80) return 0;
    const bool overlong = (first == 0xe0 && at(1) < 0xa0) || (first == 0xf0 && at(1) < 0x90);
    const bool surrogate = first == 0xed && at(1) > 0x9f, too_high = first == 0xf4 && at(1) > 0x8f;
    return overlong || surrogate || too_high ? 0 : length;
}

}  // namespace

std::string escape_html(std::string_view bytes) {
    std::string html;
    while (!bytes.empty()) {
        const size_t length = character_length(bytes);
        const char c = bytes[0];
        if (c == '&')
            html += "&amp;";
        else if (c == '<')
            html += "&lt;";
        else if (c == '>')
            html += "&gt;";
        else if (c == '"')
            html += "&quot;";
        else if (length == 0 || (c == '\xc2' && static_cast<uint8_t>(bytes[1]) < 0xa0))
            html += "\ufffd";
        else if (length == 1 && c < ' ' && c != '\n' && c != '\t')
            html += {'\xe2', '\x90', static_cast<char>(0x80 + c)};
        else if (c == '\x7f')
            html += "\u2421";
        else
            html += bytes.substr(0, length);
        bytes.remove_prefix(std::max<size_t>(length, 1));
    }
    return html;
}

void write_page(const std::string& path, const std::string& title, const std::string& body,
                const std::string& more_style) {
    const std::string text = escape_html(title);
    write_file_atomically(path,
                          "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
                              text + "</title>\n<style>" + report_style + more_style +
                              "</style>\n</head>\n<body>\n<main>\n<h1>" + text + "</h1>\n" + body +
                              "</main>\n</body>\n</html>\n");
}

void write_report(const std::string& path, const Report& report) {
    write_page(path, report.title,
               draw_notice(report.log) + draw_facts(report.facts) + draw_charts(report) + draw_samples(report.samples) +
                   draw_configuration(report.configuration));
}
