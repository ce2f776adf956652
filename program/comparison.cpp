#include "program/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"
#include "io/model/checkpoint.h"
#include "program/log.h"
#include "program/progress.h"
#include "program/report.h"
#include "program/report_chart.h"
#include "program/report_style.h"
#include "program/run_directory.h"

namespace fs = std::filesystem;

namespace {

constexpr size_t colors = 7, dashes = 3, most_runs = 20;
static_assert(colors * dashes >= most_runs);

struct Validation {
    int64_t step = 0;
    double loss = NAN;
};

struct Run {
    std::string directory, name{}, color{};
    nlohmann::json options{};
    int64_t total_batch = 0;
    std::vector<LogEntry> log{};
    int64_t steps = 0;
    double seconds = 0;                 // to the end of the last step, as in the run's own report
    std::optional<int64_t> diverged{};  // the first step whose loss was not finite
    // Nats per byte over nats per token, of the newest validation; unknown where the log has no loss per byte.
    std::optional<double> tokens_per_byte{};
    Validation last{}, best{};

    double tokens_after(int64_t step) const { return static_cast<double>(step) * static_cast<double>(total_batch); }
};

// The options of the newest checkpoint, as --resume may have changed them, or those that the run began with.
nlohmann::json options_of(const std::string& directory) {
    const auto checkpoint = find_latest_checkpoint(directory);
    const auto text = checkpoint ? read_trainer_state(*checkpoint).options : read_options(directory);
    if (!text) throw InputError(directory + ": has neither options.json nor a checkpoint; copy options.json there too");
    return parse_json_object(directory + ": the run's options", *text);
}

// Words and paths as on the command line; numbers as JSON has them.
std::string option_text(const nlohmann::json& options, const std::string& name) {
    if (!options.contains(name)) return "–";
    const auto path = path_of_json(options[name]);
    return path ? (path->empty() ? "–" : *path) : options[name].dump();
}

Run read_run(const std::string& directory) {
    const std::string path = directory + "/log.jsonl";
    if (!is_directory(directory))
        throw InputError(directory + (path_exists(directory) ? ": not a directory" : ": no such directory") +
                         "; give the directories of runs, as --out named them");
    if (!path_exists(path))
        throw InputError(directory + ": not the directory of a run, as it has no log.jsonl; give one that --out named");
    Run run{.directory = directory};
    run.options = options_of(directory);
    run.total_batch = json_integer(directory + ": the run's options", run.options, "total-batch", 1, 1'000'000'000'000);
    run.log = read_log(path);
    for (const LogEntry& entry : run.log) {
        if (entry.split == "train") {
            run.steps = std::max(run.steps, entry.step);
            run.seconds = std::max(run.seconds, entry.seconds);
        }
        if (!std::isfinite(entry.loss) && !run.diverged) run.diverged = entry.step;
        const double ratio = entry.nats_per_byte ? *entry.nats_per_byte / entry.loss : NAN;
        if (ratio > 0 && std::isfinite(ratio)) run.tokens_per_byte = ratio;
    }
    if (option_text(run.options, "tokenizer") == "byte") run.tokens_per_byte = 1;
    if (run.steps == 0)
        throw InputError(directory + ": its log.jsonl has no training step yet; wait for the first, or leave it out");
    return run;
}

double loss_of(const Run& run, const LogEntry& entry, bool per_byte) {
    if (!per_byte) return entry.loss;
    return entry.nats_per_byte ? *entry.nats_per_byte : entry.loss * *run.tokens_per_byte;
}

// Finds the last and the best validation, and replaces a long log by the means of its entries.
void summarize(Run& run, bool per_byte) {
    LogHistory history;
    for (const LogEntry& entry : run.log) {
        history.add(entry);
        if (entry.split == "train") continue;
        run.last = {entry.step, loss_of(run, entry, per_byte)};
        if (!(run.best.loss <= run.last.loss)) run.best = run.last;
    }
    run.log = history.entries();
}

std::string last_component(const std::string& directory) {
    fs::path path = fs::absolute(directory).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    return path.filename().string();
}

// The last parts of the directories' paths, or all of the paths if two end in the same part.
void name_runs(std::vector<Run>& runs) {
    std::set<std::string> last;
    for (const Run& run : runs) last.insert(last_component(run.directory));
    for (size_t i = 0; i < runs.size(); i++) {
        runs[i].name = last.size() == runs.size() ? last_component(runs[i].directory) : runs[i].directory;
        runs[i].color = "run" + std::to_string(i % colors) + " dash" + std::to_string(i / colors);
    }
}

std::vector<Run> read_runs(const std::vector<std::string>& directories) {
    if (directories.size() > most_runs)
        throw InputError("RUN: " + std::to_string(directories.size()) + " runs; give at most " +
                         std::to_string(most_runs));
    std::vector<Run> runs;
    std::map<fs::path, std::string> seen;
    for (const std::string& directory : directories) {
        runs.push_back(read_run(directory));
        const auto [before, is_new] = seen.emplace(fs::canonical(directory), directory);
        if (!is_new) throw InputError(directory + ": the same run as " + before->second + "; give each run once");
    }
    name_runs(runs);
    return runs;
}

std::string fixed(double value, int digits) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return std::isfinite(value) ? text : "–";
}

// What the curves are drawn over.
struct Axis {
    const char *id, *label;
    std::string unit;
    double per_unit;  // seconds per unit of time
};

std::vector<Axis> axes_for(const std::vector<Run>& runs) {
    double longest = 0;
    for (const Run& run : runs) longest = std::max(longest, run.seconds);
    const bool hours = longest > 5 * 3600, minutes = longest > 5 * 60;
    return {{"steps", "steps", "step", 1},
            {"tokens", "tokens", "tokens", 1},
            {"time", "time",
             hours     ? "hours"
             : minutes ? "minutes"
                       : "seconds",
             hours     ? 3600.0
             : minutes ? 60.0
                       : 1.0}};
}

double position(const Run& run, const LogEntry& entry, const Axis& axis) {
    const double x = axis.unit == "step"     ? static_cast<double>(entry.step)
                     : axis.unit == "tokens" ? run.tokens_after(entry.step)
                                             : entry.seconds / axis.per_unit;
    return x >= 0 ? std::min(x, 1e18) : 0;  // an int64 can hold it whatever an edited log says
}

std::string draw_loss(const std::vector<Run>& runs, const Axis& axis, const std::string& split, bool per_byte) {
    const bool training = split == "train";
    Chart chart{.title = training ? "Training loss, smoothed" : "Validation loss",
                .unit = per_byte ? "nats per byte" : "nats per token",
                .x_name = axis.unit,
                .log_scale = true,
                .cropped = 0.08};
    const bool by_ratio =
        training && per_byte && std::ranges::any_of(runs, [](const Run& run) { return *run.tokens_per_byte != 1; });
    if (by_ratio) chart.unit += ", by the validation text's tokens per byte";
    for (const Run& run : runs) {
        Series series{run.name, run.color, training ? Series::Style::line : Series::Style::points};
        for (const LogEntry& entry : run.log) {
            if (entry.split != split) continue;
            series.x.push_back(position(run, entry, axis));
            series.y.push_back(loss_of(run, entry, per_byte));
        }
        if (training) series.y = smooth(series.y, std::ssize(series.y) / 50);
        chart.series.push_back(std::move(series));
    }
    return draw_chart(chart);
}

// The charts over each axis, of which the chosen one is shown: by the style sheet alone.
std::string draw_curves(const std::vector<Run>& runs, bool per_byte) {
    const std::vector<Axis> axes = axes_for(runs);
    std::string choice, charts;
    for (const Axis& axis : axes) {
        const std::string id = axis.id;
        choice += "<input type=\"radio\" name=\"axis\" id=\"" + id + "\"" + (choice.empty() ? " checked" : "") +
                  "/><label for=\"" + id + "\">" + axis.label + "</label>\n";
        charts += "<div class=\"by-" + id + "\">\n" + draw_loss(runs, axis, "val", per_byte) +
                  draw_loss(runs, axis, "train", per_byte) + "</div>\n";
    }
    return "<section class=\"curves\">\n<span>Curves over</span>\n" + choice + charts + "</section>\n";
}

// A table with a row for each run, whose first column is the run's line and name. `key` returns the HTML of the name.
std::string draw_table(const std::string& title, const std::string& unit, const std::vector<std::string>& columns,
                       const std::vector<Run>& runs, const auto& key, const auto& cells) {
    std::string html = "<section class=\"card table\">\n<h2>" + title + " <small>" + unit +
                       "</small></h2>\n<div class=\"wide\"><table>\n<tr><th>run</th>";
    for (const std::string& column : columns) html += "<th>" + escape_html(column) + "</th>";
    html += "</tr>\n";
    for (const Run& run : runs) {
        html += "<tr><td class=\"key " + run.color + "\">" + key(run) + "</td>";
        for (const std::string& cell : cells(run)) html += "<td>" + cell + "</td>";
        html += "</tr>\n";
    }
    return html + "</table></div>\n</section>\n";
}

// The id of the checkbox that shows a run's curves: "run0-dash0".
std::string toggle(const Run& run) {
    std::string id = run.color;
    std::ranges::replace(id, ' ', '-');
    return id;
}

// Style sheet by which an unchecked box hides the run's curves.
std::string hiding_style(const std::vector<Run>& runs) {
    std::string rules;
    for (const Run& run : runs) {
        std::string line = run.color;  // a list of classes, of which a selector needs all
        std::ranges::replace(line, ' ', '.');
        rules += "main:has(#" + toggle(run) + ":not(:checked)) .curves ." + line + " { display: none; }\n";
    }
    return rules;
}

std::string draw_results(const std::vector<Run>& runs, bool per_byte) {
    double best = INFINITY;
    for (const Run& run : runs) best = std::min(best, std::isfinite(run.best.loss) ? run.best.loss : INFINITY);
    const auto cells = [&](const Run& run) -> std::vector<std::string> {
        const double tokens = run.tokens_after(run.steps);
        std::string lowest = fixed(run.best.loss, 4);
        if (run.best.loss == best) lowest = "<b>" + lowest + "</b>";
        if (std::isfinite(run.best.loss)) lowest += " <small>step " + grouped_number(run.best.step) + "</small>";
        return {fixed(run.last.loss, 4),   lowest,
                grouped_number(run.steps), short_number(tokens),
                duration(run.seconds),     run.seconds > 0 ? short_number(tokens / run.seconds) : "–"};
    };
    const auto key = [](const Run& run) {
        return "<label><input type=\"checkbox\" id=\"" + toggle(run) + "\" checked/>" + escape_html(run.name) +
               "</label>";
    };
    const std::string unit = per_byte ? "byte" : "token";
    return draw_table("Results", "losses in nats per " + unit + "; click on a run to hide it or show it",
                      {"last validation loss", "best", "steps", "tokens", "training time", "tokens/s overall"}, runs,
                      key, cells);
}

std::string draw_options(const std::vector<Run>& runs) {
    std::set<std::string> names;
    for (const Run& run : runs)
        for (const auto& item : run.options.items()) names.insert(item.key());
    std::erase_if(names, [&](const std::string& name) {
        return std::ranges::all_of(
            runs, [&](const Run& run) { return option_text(run.options, name) == option_text(runs[0].options, name); });
    });
    if (names.empty()) return "";
    const auto key = [](const Run& run) { return escape_html(run.name); };
    return draw_table("Options", "those that differ", {names.begin(), names.end()}, runs, key, [&](const Run& run) {
        std::vector<std::string> cells;
        for (const std::string& name : names) cells.push_back(escape_html(option_text(run.options, name)));
        return cells;
    });
}

std::string draw_notices(const std::vector<Run>& runs, bool per_byte) {
    std::string html;
    const auto tokenizer = [](const Run& run) { return option_text(run.options, "tokenizer"); };
    if (std::ranges::any_of(runs, [&](const Run& run) { return !per_byte && tokenizer(run) != tokenizer(runs[0]); }))
        for (const Run& run : runs)
            if (!run.tokens_per_byte)
                html += "<p class=\"notice\">" + escape_html(run.name) +
                        ": its log has no loss per byte, so that losses are per token, which do not compare between "
                        "tokenizers.</p>\n";
    for (const Run& run : runs)
        if (run.diverged)
            html += "<p class=\"notice\">" + escape_html(run.name) + ": the loss was not a number at step " +
                    grouped_number(*run.diverged) + ".</p>\n";
    return html;
}

}  // namespace

void compare_runs(const std::vector<std::string>& directories, const std::string& out) {
    if (path_exists(out)) throw InputError(out + ": exists already; choose another name");
    std::vector<Run> runs = read_runs(directories);
    const bool per_byte = std::ranges::all_of(runs, [](const Run& run) { return run.tokens_per_byte.has_value(); });
    for (Run& run : runs) summarize(run, per_byte);
    const std::string title =
        runs.size() == 1 ? runs[0].name : "Comparison of " + std::to_string(runs.size()) + " runs";
    write_page(
        out, title,
        draw_notices(runs, per_byte) + draw_results(runs, per_byte) + draw_curves(runs, per_byte) + draw_options(runs),
        comparison_style + hiding_style(runs));
    std::printf("%s: %zu run%s compared\n", out.c_str(), runs.size(), runs.size() == 1 ? "" : "s");
}
