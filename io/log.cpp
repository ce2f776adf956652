#include "io/log.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/error.h"
#include "io/file.h"

namespace {

std::string to_line(const LogEntry& e) {
    nlohmann::ordered_json line{{"step", e.step}, {"split", e.split}, {"loss", e.loss}};  // NaN is dumped as null
    if (e.split == "train") {
        line["lr"] = e.lr;
        line["grad_norm"] = e.grad_norm;
        line["tokens_per_second"] = e.tokens_per_second;
    }
    line["seconds"] = e.seconds;
    return line.dump() + "\n";
}

double number(const nlohmann::json& line, const char* key) {
    const nlohmann::json& value = line.at(key);
    return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

// Throws nlohmann::json::exception.
LogEntry from_line(std::string_view text) {
    const auto line = nlohmann::json::parse(text);
    LogEntry e{.step = static_cast<int64_t>(line.at("step").get_ref<const uint64_t&>()),
               .split = line.at("split").get<std::string>()};
    e.loss = number(line, "loss");
    e.seconds = number(line, "seconds");
    if (e.split != "train") return e;
    e.lr = number(line, "lr");
    e.grad_norm = number(line, "grad_norm");
    e.tokens_per_second = number(line, "tokens_per_second");
    return e;
}

// Hands each line and its entry over. A last line that a break left unfinished is passed by.
void for_each_line(const std::string& path, const std::function<void(std::string_view, const LogEntry&)>& take) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
    int64_t number = 1;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1, number++) {
        const std::string_view line = text.substr(begin, end - begin);
        LogEntry entry;
        try {
            entry = from_line(line);
        } catch (const nlohmann::json::exception&) {
            bad_input(path, "line " + std::to_string(number), "what is no log entry",
                      "a JSON object with step, split, loss, …", "remove the line");
        }
        take(line, entry);
    }
}

}  // namespace

Log::Log(const std::string& out, int64_t resume_step) : path_(out + "/log.jsonl") {
    std::error_code ignored;
    const bool exists = std::filesystem::exists(path_, ignored);
    if (resume_step >= 0 && exists) {
        std::string kept;
        for_each_line(path_, [&](std::string_view line, const LogEntry& entry) {
            if (entry.step <= resume_step) kept.append(line).append("\n");
        });
        write_file_atomically(path_, kept);
    }
    file_ = std::fopen(path_.c_str(), resume_step < 0 ? "wxe" : "ae");  // x: must be new
    if (file_) return;
    if (errno == EEXIST)
        bad_input(path_, "log", "that of an earlier run", "none",
                  "choose another --out, or continue that run with --resume");
    bad_input(path_, "open", std::strerror(errno), "a file that can be written", "check --out");
}

Log::~Log() {
    if (file_) std::fclose(file_);
}

void Log::write(const LogEntry& entry) {
    const std::string line = to_line(entry);
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0)
        bad_input(path_, "writing", std::strerror(errno), "success", "free some space, then continue with --resume");
}

std::vector<LogEntry> read_log(const std::string& path) {
    std::vector<LogEntry> entries;
    for_each_line(path, [&](std::string_view, const LogEntry& entry) { entries.push_back(entry); });
    return entries;
}
