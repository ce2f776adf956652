#include "io/file/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "io/file/error.h"
#include "device/platform.h"

LineFile::LineFile(const std::string& path, bool must_be_new) : path_(path) {
    fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (must_be_new ? O_EXCL : 0), 0666);
    if (fd_ >= 0) return;
    if (errno == EEXIST)
        throw InputError(
            path_ + ": this is the log of an earlier run; choose another --out, or continue that run with --resume");
    system_error(path_, "open", errno, "check --out");
}

LineFile::~LineFile() { close(fd_); }

void LineFile::append(std::string_view line) {
    waiting_ += line;
    write_waiting();
}

void LineFile::write_waiting() {
    while (!waiting_.empty()) {
        const ssize_t written = write(fd_, waiting_.data(), waiting_.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            trouble_ = path_ + ": write failed: " + std::strerror(errno) +
                       "; its newest lines are kept in memory until there is space";
            return;
        }
        waiting_.erase(0, static_cast<size_t>(written));
    }
    trouble_.clear();
}

void LineFile::sync() {
    write_waiting();
    if (trouble_.empty() && platform::sync_data(fd_) != 0)
        trouble_ = path_ + ": fsync failed: " + std::strerror(errno) + "; check the disk";
}
