// Where a run writes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/model/checkpoint.h"

// A run's directory. Locked, so that no second run writes there: by a lock of the kernel's on OUT/.lock, which ends
// with the process, however that ends. The file goes at the end; where a crash has left it, it is in nobody's way.
class RunDirectory {
public:
    // A new run's directory must be empty or not there; what a run that is refused has put there goes again, unless
    // keep() was called. A resumed run's must be there. Throws InputError.
    RunDirectory(const std::string& path, bool resume);
    ~RunDirectory();
    RunDirectory(const RunDirectory&) = delete;
    void keep() { kept_ = true; }

    // OUT/options.json: what --resume begins again with when a run ended before its first checkpoint.
    void write_options(const std::string& json) const;
    std::optional<std::string> read_options() const;  // throws InputError where it is not what was written

private:
    void lock();
    void unlock();
    std::string path_;
    bool made_ = false, kept_ = false;
    int lock_ = -1;
};

// OUT/options.json compared with its checksum, for `info --verify`; none where there is no file, or no checksum.
std::vector<FileCheck> check_options(const std::string& out);
