#include "dev/fuzz/memory_files.h"

#include <algorithm>
#include <map>
#include <utility>

#include "io/error.h"
#include "io/file.h"

namespace {

// Ordered, so that a directory is the files whose names begin with its own.
std::map<std::string, std::string>& files() {
    static std::map<std::string, std::string> all;
    return all;
}

// As the system would look it up: "a//b" and "a/./b" are "a/b", and a name ends at its first NUL.
std::string key(const std::string& path) {
    std::string name;
    for (const char c : std::string(path.c_str())) {
        if (c == '/' && name.ends_with("/.")) name.resize(name.size() - 2);
        if (c != '/' || !name.ends_with('/')) name += c;
    }
    return name;
}

}  // namespace

void memory_files::clear() { files().clear(); }
void memory_files::put(const std::string& path, std::string_view bytes) { files()[key(path)] = bytes; }
std::string memory_files::get(const std::string& path) {
    const auto it = files().find(key(path));
    return it == files().end() ? "" : it->second;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
    const auto it = files().find(key(path));
    if (it == files().end())
        bad_input(path, "open", is_directory(path) ? "a directory" : "No such file or directory", "a readable file",
                  "check the path");
    size_ = static_cast<int64_t>(it->second.size());
    if (size_ == 0) return;
    uint8_t* copy = new uint8_t[it->second.size()];
    std::copy(it->second.begin(), it->second.end(), copy);
    data_ = copy;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() { delete[] data_; }

FileWriter::FileWriter(const std::string& path) : path_(path), temporary_(path + ".tmp") {
    files()[key(temporary_)].clear();
}

FileWriter::~FileWriter() { files().erase(key(temporary_)); }

void FileWriter::write(const void* data, int64_t bytes) {
    files()[key(temporary_)].append(static_cast<const char*>(data), static_cast<size_t>(bytes));
}

void FileWriter::commit() { files()[key(path_)] = files()[key(temporary_)]; }

void write_file_atomically(const std::string& path, std::string_view bytes) { memory_files::put(path, bytes); }
void sync_directory(const std::string&) {}

bool is_directory(const std::string& path) {
    std::string name = key(path);
    if (!name.ends_with('/')) name += '/';
    const auto it = files().lower_bound(name);
    return it != files().end() && it->first.starts_with(name);
}

bool path_exists(const std::string& path) { return files().contains(key(path)) || is_directory(path); }
