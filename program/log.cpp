#include "program/log.h"

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"

namespace {

std::string to_line(const LogEntry& e) {
    nlohmann::ordered_json line{{"step", e.step}, {"split", e.split}};
    for (const auto& [key, value] : values_of(e)) line[key] = value;  // NaN is dumped as null
    line["seconds"] = e.seconds;
    if (e.skipped) line["skipped"] = true;
    return line.dump() + "\n";
}

double number(const nlohmann::json& line, const char* key) {
    const nlohmann::json& value = line.at(key);
    return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

// Parses a line of the log or of the samples. Throws nlohmann::json::exception or InputError.
template <class Entry>
Entry from_line(std::string_view text);

template <>
LogEntry from_line(std::string_view text) {
    const nlohmann::json line = parse_json_object("", text);
    LogEntry e{.step = json_integer("", line, "step", 0, std::numeric_limits<int64_t>::max()),
               .split = line.at("split").get<std::string>()};
    e.loss = number(line, "loss");
    e.seconds = number(line, "seconds");
    if (line.contains("nats_per_byte")) e.nats_per_byte = number(line, "nats_per_byte");
    if (line.contains("choices_accuracy")) e.choices_accuracy = number(line, "choices_accuracy");
    if (e.split != "train") return e;
    e.lr = number(line, "lr");
    e.grad_norm = number(line, "grad_norm");
    e.tokens_per_second = number(line, "tokens_per_second");
    e.skipped = line.contains("skipped") && line["skipped"].get<bool>();
    return e;
}

// A sample may contain bytes that are not UTF-8; they become U+FFFD.
std::string to_line(const Sample& sample) {
    const nlohmann::ordered_json line{{"step", sample.step}, {"text", sample.text}};
    return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

template <>
Sample from_line(std::string_view text) {
    const nlohmann::json line = parse_json_object("", text);
    return {json_integer("", line, "step", 0, std::numeric_limits<int64_t>::max()), line.at("text").get<std::string>()};
}

// Calls take(line, entry) for each line, or damaged(line number) if it is not an entry. A last line without a line
// break, as a crash leaves it, is ignored.
template <class Entry>
void for_each_line(const std::string& path, const auto& take, const auto& damaged) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
    int64_t number = 1;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1, number++) {
        const std::string_view line = text.substr(begin, end - begin);
        std::optional<Entry> entry;
        try {
            entry = from_line<Entry>(line);
        } catch (const nlohmann::json::exception&) {
        } catch (const InputError&) {
        }
        if (entry)
            take(line, *entry);
        else
            damaged(number);
    }
}

template <class Entry>
void for_each_line(const std::string& path, const auto& take) {
    for_each_line<Entry>(path, take, [&](int64_t line) {
        throw InputError(path + ": line " + std::to_string(line) +
                         ": not a log entry (a JSON object with step, split, loss, …); remove the line");
    });
}

// Copies the file to a free name beside it, and replaces its content by `text`.
std::string set_aside(const std::string& path, const std::string& text) {
    std::string copy = path + ".damaged";
    for (int n = 2; path_exists(copy); n++) copy = path + ".damaged-" + std::to_string(n);
    std::error_code error;
    std::filesystem::copy_file(path, copy, error);
    if (error) throw InputError(copy + ": copying the damaged log failed: " + error.message() + "; check --out");
    write_file_atomically(path, text);
    return copy;
}

// Removes the lines after `step`, and an incomplete last line. Training can continue without its log, so damaged lines
// are no error: they are removed, the damaged file is copied, and the message about it is returned ("" if there is
// none).
template <class Entry>
std::string cut(const std::string& path, int64_t step) {
    if (step < 0 || !path_exists(path)) return "";
    uintmax_t kept = 0, read = 0;
    int64_t damaged = 0, first = 0;
    const auto take = [&](std::string_view line, const Entry& entry) {
        read += line.size() + 1;
        if (entry.step <= step) kept = read;
    };
    for_each_line<Entry>(path, take, [&](int64_t line) {
        if (damaged++ == 0) first = line;
    });
    if (damaged > 0) {
        std::string good;
        for_each_line<Entry>(
            path, [&](std::string_view line, const Entry&) { good.append(line) += '\n'; }, [](int64_t) {});
        const std::string copy = set_aside(path, good.substr(0, kept));
        return path + ": line " + std::to_string(first) +
               (damaged > 1 ? " and " + std::to_string(damaged - 1) + " more" : "") +
               ": not a log entry; the other lines are kept, and a copy of the damaged file is " + copy;
    }
    std::error_code error;
    std::filesystem::resize_file(path, kept, error);
    if (error)
        throw InputError(path + ": removing the lines after the checkpoint failed: " + error.message() +
                         "; check --out");
    return "";
}

LogEntry mean(const LogEntry& a, double weight_of_a, const LogEntry& b, double weight_of_b) {
    LogEntry m = b;  // the later step
    for (double LogEntry::*value :
         {&LogEntry::loss, &LogEntry::lr, &LogEntry::grad_norm, &LogEntry::tokens_per_second, &LogEntry::seconds})
        m.*value = (a.*value * weight_of_a + b.*value * weight_of_b) / (weight_of_a + weight_of_b);
    return m;
}

}  // namespace

std::vector<std::pair<const char*, double>> values_of(const LogEntry& entry) {
    std::vector<std::pair<const char*, double>> values{{"loss", entry.loss}};
    if (entry.split == "train") {
        values.emplace_back("lr", entry.lr);
        values.emplace_back("grad_norm", entry.grad_norm);
        values.emplace_back("tokens_per_second", entry.tokens_per_second);
    }
    if (entry.nats_per_byte) values.emplace_back("nats_per_byte", *entry.nats_per_byte);
    if (entry.choices_accuracy) values.emplace_back("choices_accuracy", *entry.choices_accuracy);
    return values;
}

template <class Entry>
EntryLog<Entry>::EntryLog(const std::string& path, int64_t resume_step)
    : damage_(cut<Entry>(path, resume_step)), file_(path, resume_step < 0) {}

template <class Entry>
void EntryLog<Entry>::write(const Entry& entry) {
    file_.append(to_line(entry));
}

template class EntryLog<LogEntry>;
template class EntryLog<Sample>;

std::vector<LogEntry> read_log(const std::string& path) {
    std::vector<LogEntry> entries;
    for_each_line<LogEntry>(path, [&](std::string_view, const LogEntry& entry) { entries.push_back(entry); });
    return entries;
}

void LogHistory::add(const LogEntry& entry) {
    if (entry.split != "train") {
        if (val_.size() == most) {
            for (size_t i = 0; i < most / 2; i++) val_[i] = val_[2 * i + 1];
            val_.resize(most / 2);
        }
        val_.push_back(entry);
        return;
    }
    sum_ = in_ == 0 ? entry : mean(sum_, static_cast<double>(in_), entry, 1);
    if (++in_ < each_) return;
    train_.push_back(sum_);
    in_ = 0;
    if (train_.size() < most) return;
    for (size_t i = 0; i < most / 2; i++) train_[i] = mean(train_[2 * i], 1, train_[2 * i + 1], 1);
    train_.resize(most / 2);
    each_ *= 2;
}

void LogHistory::add_file(const std::string& path) {
    for_each_line<LogEntry>(path, [&](std::string_view, const LogEntry& entry) { add(entry); });
}

std::vector<LogEntry> LogHistory::entries() const {
    std::vector<LogEntry> all = train_;
    if (in_ > 0) all.push_back(sum_);
    all.insert(all.end(), val_.begin(), val_.end());
    return all;
}

std::vector<Sample> read_samples(const std::string& path, size_t most) {
    std::vector<Sample> samples;
    for_each_line<Sample>(path, [&](std::string_view, const Sample& sample) {
        if (samples.size() == most) samples.erase(samples.begin());
        samples.push_back(sample);
    });
    return samples;
}
