// The content of OUT/report.html for a run in its current state.
#pragma once

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gpt2_model.h"
#include "io/model/checkpoint.h"
#include "program/log.h"
#include "program/options.h"
#include "program/progress.h"
#include "program/report.h"
#include "program/report_chart.h"

inline Report run_report(const Options& options, const Model& model, const Tokenizer& tokenizer,
                         const TrainerState& state, std::vector<LogEntry> log, std::vector<Sample> samples) {
    Report page{.title = std::filesystem::path(options.out).filename().string() + " on " + options.data_names().text()};
    page.loss_unit = tokenizer.name() == "byte" ? "nats per byte" : "nats per token";
    page.log = std::move(log);
    page.samples = std::move(samples);
    page.configuration = options.list();
    char text[64];
    const auto fact = [&](const char* name, const char* format, double value) {
        std::snprintf(text, sizeof text, format, value);
        page.facts.emplace_back(name, text);
    };
    fact("parameters", "%.2f M", static_cast<double>(model.table.size) / 1e6);
    const auto val_entry =
        std::find_if(page.log.rbegin(), page.log.rend(), [](const LogEntry& entry) { return entry.split == "val"; });
    if (val_entry != page.log.rend()) fact("validation loss", "%.4f", val_entry->loss);
    if (val_entry != page.log.rend() && val_entry->nats_per_byte) fact("per byte", "%.4f", *val_entry->nats_per_byte);
    if (val_entry != page.log.rend() && val_entry->choices_accuracy)
        fact("accuracy", "%.4f", *val_entry->choices_accuracy);
    page.facts.emplace_back("steps", grouped_number(state.step));
    // Time and speed are those that the comparison of runs shows.
    page.facts.emplace_back("training time", duration(state.seconds));
    if (state.seconds > 0)
        page.facts.emplace_back("tokens/s overall",
                                short_number(static_cast<double>(state.step * options.total_batch) / state.seconds));
    return page;
}
