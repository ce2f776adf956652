// A run's directory, its lock and its options.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/model/checkpoint.h"

// A run's directory. A kernel lock on OUT/.lock keeps out a second run. The lock ends with the process, however that
// ends. The file is removed at the end; if a crash leaves it, it does no harm.
class RunDirectory {
public:
    // The directory of a new run must be empty or not exist. What a run writes there is removed if it fails before
    // commit() is called. The directory of a resumed run must exist. Throws InputError.
    RunDirectory(const std::string& path, bool resume);
    ~RunDirectory();
    RunDirectory(const RunDirectory&) = delete;
    void commit() { kept_ = true; }

    // OUT/options.json: what --resume uses if a run ended before its first checkpoint.
    void write_options(const std::string& json) const;

private:
    void lock();
    void unlock();
    std::string path_;
    bool made_ = false, kept_ = false;
    int lock_ = -1;
};

// What write_options() wrote into OUT, if it did. Throws InputError if it was edited or damaged.
std::optional<std::string> read_options(const std::string& out);

// Throws InputError if OUT is not the directory that rank 0 has locked, as on a machine that does not share the file
// system. `holder` is rank 0's process.
void check_run_directory(const std::string& out, int64_t holder);

// Compares OUT/options.json with its checksum, for `info --verify`; empty if there is no file or no checksum.
std::vector<FileCheck> check_options(const std::string& out);
