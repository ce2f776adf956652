#include "dev/fuzz/memory_files.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "io/file/checksum.h"
#include "io/file/error.h"
#include "io/file/file.h"

namespace {

// A sorted map, in which a directory is the range of files whose names begin with its own.
std::map<std::string, std::string>& files() {
    static std::map<std::string, std::string> all;
    return all;
}

// The name as the system would look it up: "a//b" and "a/./b" are "a/b", and a name ends at its first NUL.
std::string key(const std::string& path) {
    if (path.find("//") == path.npos && path.find("/.") == path.npos) return path.c_str();
    std::string name;
    for (const char* p = path.c_str(); *p; p++) {
        const char c = *p;
        if (c == '/' && name.ends_with("/.")) name.resize(name.size() - 2);
        if (c != '/' || !name.ends_with('/')) name += c;
    }
    return name;
}

#ifdef GUARD_PAGES
// A file ends directly before a page that cannot be read. So its beginning has any alignment, unlike a mapping by the
// system: this is for compilers that do not rely on that (clang), with the alignment check off.
constexpr size_t page = 4096, room = 16 * page;
std::vector<uint8_t*> idle;  // the ends of unused rooms

uint8_t* place(size_t size) {
    if (size > room) std::abort();
    if (idle.empty()) {
        void* pages = mmap(nullptr, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) std::abort();
        idle.push_back(static_cast<uint8_t*>(pages) + room);
        mprotect(idle.back(), page, PROT_NONE);
    }
    uint8_t* end = idle.back();
    idle.pop_back();
    return end - size;
}

void remove(const uint8_t* data, int64_t size) {
    if (data) idle.push_back(const_cast<uint8_t*>(data) + size);
}
#else
uint8_t* place(size_t size) { return new uint8_t[size]; }
void remove(const uint8_t* data, int64_t) { delete[] data; }
#endif

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
    uint8_t* copy = place(it->second.size());
    std::copy(it->second.begin(), it->second.end(), copy);
    data_ = copy;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() { remove(data_, size_); }
void MappedFile::forget(const uint8_t*, int64_t) const {}

FileWriter::FileWriter(const std::string& path) : file_{path}, temporary_(path + ".tmp") {
    files()[key(temporary_)].clear();
}

FileWriter::~FileWriter() { files().erase(key(temporary_)); }

void FileWriter::write(const void* data, int64_t bytes) {
    files()[key(temporary_)].append(static_cast<const char*>(data), static_cast<size_t>(bytes));
}

WrittenFile FileWriter::commit() { return write_file_atomically(file_.path, files()[key(temporary_)]); }

WrittenFile write_file_atomically(const std::string& path, std::string_view bytes) {
    memory_files::put(path, bytes);
    return {path, std::ssize(bytes), piece_checksums(bytes.data(), std::ssize(bytes))};
}
void sync_directory(const std::string&) {}

bool is_directory(const std::string& path) {
    std::string name = key(path);
    if (!name.ends_with('/')) name += '/';
    const auto it = files().lower_bound(name);
    return it != files().end() && it->first.starts_with(name);
}

bool path_exists(const std::string& path) { return files().contains(key(path)) || is_directory(path); }
