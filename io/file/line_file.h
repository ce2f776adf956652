// A file to which lines are appended as training goes. A full disc does not tear it: what could not be written waits in
// memory, and goes first once there is room again.
#pragma once

#include <string>
#include <string_view>

class LineFile {
public:
    // Opens or makes it; a new one must not be there yet. Throws InputError.
    LineFile(const std::string& path, bool must_be_new);
    ~LineFile();
    LineFile(const LineFile&) = delete;
    void append(std::string_view line);  // whole, with its line break
    void sync();                         // onto the disc, so that no checkpoint is ahead of its log
    // One line that says what failed, or "" while every line is in the file.
    const std::string& trouble() const { return trouble_; }
    const std::string& path() const { return path_; }

private:
    void write_waiting();
    std::string path_, waiting_, trouble_;
    int fd_ = -1;
};
