#include "program/run_directory.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"

namespace fs = std::filesystem;

namespace {

bool holds_files(const std::string& directory) {
    std::error_code ignored;
    for (const auto& item : fs::directory_iterator(directory, ignored))
        if (item.path().filename() != ".lock") return true;
    return false;
}

// Whether this is a temporary file of FileWriter: NAME.PROCESS.tmp
bool is_unfinished(const fs::path& path) {
    const std::string number = path.stem().extension().string(), name = path.stem().stem().string();
    if (path.extension() != ".tmp" || number.size() < 2 || number.find_first_not_of("0123456789", 1) != number.npos)
        return false;
    return path.parent_path().filename() == "data" ||
           std::ranges::count(
               std::array<std::string_view, 4>{"options.json", "log.jsonl", "samples.jsonl", "report.html"}, name) > 0;
}

// Removes the temporary files of a run that was killed while it wrote.
void remove_unfinished(const std::string& directory) {
    std::error_code ignored;
    std::vector<fs::path> found;
    for (const auto& item : fs::directory_iterator(directory, ignored))
        if (item.is_regular_file(ignored) && is_unfinished(item.path())) found.push_back(item.path());
    for (const fs::path& path : found) fs::remove(path, ignored);
}

// Reads options.json and checks its checksum. Files of early versions have none.
nlohmann::json read_checked(const std::string& path) {
    nlohmann::json root = read_json_file(path);
    if (root.contains("crc32"))
        check_own_checksum(path, root,
                           "it was edited or damaged: if there is no checkpoint yet, start again in another --out");
    return root;
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path, bool resume) : path_(path), kept_(resume) {
    const bool there = path_exists(path_), directory = is_directory(path_);
    if (resume) {
        if (!directory)
            throw InputError(path_ + (there ? ": not a directory" : ": no such directory") +
                             "; leave out --resume to start a run there, or name the directory of an earlier run with "
                             "--out");
        lock();
        return;
    }
    if (there && !directory) throw InputError(path_ + ": exists and is not a directory; choose another --out");
    std::error_code error;
    made_ = fs::create_directories(path_, error);
    if (error) throw InputError(path_ + ": mkdir failed: " + error.message() + "; choose another --out");
    lock();
    if (!holds_files(path_)) return;
    unlock();
    throw InputError(path_ + ": not empty; continue that run with --resume, or choose another --out");
}

RunDirectory::~RunDirectory() {
    std::error_code ignored;
    if (!kept_) {
        fs::remove_all(path_ + "/data", ignored);
        fs::remove(path_ + "/options.json", ignored);
    }
    unlock();
    if (!kept_ && made_) fs::remove(path_, ignored);
}

void RunDirectory::lock() {
    const std::string file = path_ + "/.lock";
    struct stat ours {
    }, named{};
    do {  // repeated if a run that just ended has removed the file between open and flock
        if (lock_ >= 0) close(lock_);
        lock_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (lock_ < 0) system_error(path_, "open", errno, "check its permissions, or choose another --out");
        if (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            char number[32] = "";
            const ssize_t length = pread(lock_, number, sizeof number - 1, 0);
            close(lock_);
            throw InputError(path_ + ": another run" + (length > 0 ? " (process " + std::string(number) + ")" : "") +
                             " is using this directory; wait until it ends or stop it, or choose another --out");
        }  // other errors mean a file system without locks
    } while (fstat(lock_, &ours) != 0 || stat(file.c_str(), &named) != 0 || ours.st_ino != named.st_ino);
    remove_unfinished(path_);
    remove_unfinished(path_ + "/data");
    const std::string number = std::to_string(getpid());
    if (ftruncate(lock_, 0) != 0 || pwrite(lock_, number.data(), number.size(), 0) < 0)
        return;  // the number is only for the message above
}

void RunDirectory::unlock() {
    if (lock_ < 0) return;
    unlink((path_ + "/.lock").c_str());
    close(lock_);
    lock_ = -1;
}

void RunDirectory::write_options(const std::string& json) const {
    write_file_atomically(path_ + "/options.json", with_own_checksum(json));
}

std::optional<std::string> read_options(const std::string& out) {
    const std::string path = out + "/options.json";
    if (!path_exists(path)) return std::nullopt;
    nlohmann::json root = read_checked(path);
    root.erase("crc32");
    return root.dump();
}

void check_run_directory(const std::string& out, int64_t holder) {
    std::ifstream lock(out + "/.lock");
    int64_t number = 0;
    if (lock >> number && number == holder) return;
    throw InputError(out + ": not the directory that rank 0 uses; choose an --out that all machines share");
}

std::vector<FileCheck> check_options(const std::string& out) {
    const std::string name = "options.json", path = out + "/" + name;
    if (!path_exists(path)) return {};
    try {
        if (!read_checked(path).contains("crc32")) return {};
        return {{name, ""}};
    } catch (const InputError& damage) {
        return {{name, damage.what()}};
    }
}
