// Where a new run writes.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "io/error.h"
#include "io/file.h"

// A new run's directory, which must be empty: what a run that is refused has put there goes again.
class NewDirectory {
public:
    explicit NewDirectory(std::string path) : path_(std::move(path)) {
        std::error_code error;
        const bool taken = std::filesystem::exists(path_, error), directory = is_directory(path_);
        if (taken && !(directory && std::filesystem::is_empty(path_, error)))
            bad_input(path_, "output directory", directory ? "files in it" : "something else of this name",
                      "an empty directory or none", "continue that run with --resume, or choose another --out");
        made_ = std::filesystem::create_directories(path_, error);
        if (error)
            bad_input(path_, "output directory", error.message(), "one that can be made", "choose another --out");
    }
    ~NewDirectory() {
        if (kept_) return;
        std::error_code ignored;
        std::filesystem::remove_all(path_ + "/data", ignored);
        if (made_) std::filesystem::remove(path_, ignored);
    }
    NewDirectory(const NewDirectory&) = delete;
    void keep() { kept_ = true; }

private:
    std::string path_;
    bool made_ = false, kept_ = false;
};
