// A file to which lines are appended during training. A full disk does not damage it: lines that cannot be written are
// kept in memory and written first when there is room again.
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
    void sync();                         // onto the disk, so that no checkpoint is ahead of its log
    // The failure in one line, or "" while every line is in the file.
    const std::string& trouble() const { return trouble_; }
    const std::string& path() const { return path_; }

private:
    void write_waiting();
    std::string path_, waiting_, trouble_;
    int fd_ = -1;
};
