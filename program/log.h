// OUT/log.jsonl and OUT/samples.jsonl: one JSON object per line, appended during training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/file/line_file.h"

struct LogEntry {
    int64_t step = 0;
    std::string split;  // "train" or "val"
    double loss = 0;    // nats per token
    double lr = 0, grad_norm = 0, tokens_per_second = 0,
           seconds = 0;    // since the start of training; lr, grad_norm and tokens_per_second are 0 for val
    bool skipped = false;  // the step was an outlier, and its update was skipped
    std::optional<double> nats_per_byte{};     // val, where tokens are pieces of text longer than a byte
    std::optional<double> choices_accuracy{};  // val, with --choices
};

// The entry's numbers by their keys in log.jsonl, except for the step and the seconds.
std::vector<std::pair<const char*, double>> values_of(const LogEntry& entry);

// A sample of text, written after `step` steps.
struct Sample {
    int64_t step = 0;
    std::string text;
    bool operator==(const Sample&) const = default;
};

template <class Entry>
class EntryLog {
public:
    // Opens or creates the file. For a new run (`resume_step` < 0) it must not exist; for a resumed run the lines after
    // `resume_step` and an incomplete last line are removed. Throws InputError.
    EntryLog(const std::string& path, int64_t resume_step);
    void write(const Entry& entry);
    void sync() { file_.sync(); }
    const std::string& trouble() const { return file_.trouble(); }
    // One line about damaged lines that a resumed run removed, and the copy that still has them; or "".
    const std::string& damage() const { return damage_; }

private:
    std::string damage_;
    LineFile file_;
};
using Log = EntryLog<LogEntry>;
using SampleLog = EntryLog<Sample>;

std::vector<LogEntry> read_log(const std::string& path);
std::vector<Sample> read_samples(const std::string& path, size_t most);  // the newest `most`

// A log in bounded memory, for the report of a run of any length. Once there are too many training steps, each pair is
// replaced by its mean; of too many validations, every second one is dropped, never the newest.
class LogHistory {
public:
    void add(const LogEntry& entry);
    void add_file(const std::string& path);  // all of its lines
    std::vector<LogEntry> entries() const;   // training, then validation

private:
    static constexpr size_t most = 8192;
    std::vector<LogEntry> train_, val_;
    LogEntry sum_;               // the mean of the entries that will become one
    int64_t each_ = 1, in_ = 0;  // how many entries become one, and how many of them are in sum_
};
