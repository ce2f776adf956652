// OUT/log.jsonl: one JSON object a line, appended as training goes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

struct LogEntry {
    int64_t step = 0;
    std::string split;  // "train" or "val"
    double loss = 0;    // nats per token
    double lr = 0, grad_norm = 0, tokens_per_second = 0,
           seconds = 0;  // seconds since start of training; lr … 0 for val
};

class Log {
public:
    // Opens OUT/log.jsonl. A new run (`resume_step` < 0) must find none; a resumed one drops lines after `resume_step`,
    // and a torn last line (written atomically: temporary name, rename). Throws InputError.
    Log(const std::string& out, int64_t resume_step);
    ~Log();
    Log(const Log&) = delete;
    void write(const LogEntry& entry);  // one line, flushed
private:
    std::FILE* file_ = nullptr;
    std::string path_;
};

std::vector<LogEntry> read_log(const std::string& path);
