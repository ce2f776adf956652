// Files, mapped for reading and written atomically. All functions throw InputError.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// A regular file, mapped read-only; data() is null if it is empty.
class MappedFile {
public:
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&&) = delete;
    const uint8_t* data() const { return data_; }
    int64_t size() const { return size_; }
    const std::string& path() const { return path_; }

    // Releases the memory of these bytes after they have been read, as a file may be larger than the free memory. If
    // they are read again, they come from the file again.
    void forget(const uint8_t* begin, int64_t bytes) const;
    // Calls use(begin, bytes) for one piece of the file after the other, and forgets each piece afterwards.
    template <class Use>
    void each_piece(const Use& use) const {
        constexpr int64_t piece = 16 << 20;
        for (int64_t at = 0; at < size_; at += piece) {
            const int64_t bytes = size_ - at < piece ? size_ - at : piece;
            use(data_ + at, bytes);
            forget(data_ + at, bytes);
        }
    }

private:
    std::string path_;
    const uint8_t* data_ = nullptr;
    int64_t size_ = 0;
};

// A file that was written, with the checksums of its pieces (as piece_checksums in checksum.h computes them).
struct WrittenFile {
    std::string path;
    int64_t bytes = 0;
    std::vector<uint32_t> checksums{};
};

// Writes to a temporary file beside `path`. commit() fsyncs it, renames it to `path` and fsyncs the directory. Without
// commit(), the destructor removes the temporary file and `path` stays as it was.
class FileWriter {
public:
    explicit FileWriter(const std::string& path);
    ~FileWriter();
    FileWriter(const FileWriter&) = delete;
    FileWriter& operator=(const FileWriter&) = delete;
    void write(const void* data, int64_t bytes);  // unbuffered: pass large pieces
    WrittenFile commit();

private:
    [[noreturn]] void fail(int error) const;
    WrittenFile file_;
    std::string temporary_;
    int fd_ = -1;
};

WrittenFile write_file_atomically(const std::string& path, std::string_view bytes);
void sync_directory(const std::string& path);  // makes renames and removals in it survive a power cut

// Whether a name, read from a file, can only mean a file in the same directory: no path, no "..", no zero byte, at
// which the system would cut the name.
inline bool is_file_name(std::string_view name) {
    return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

// Opens /dev/null for reading in place of each standard stream that is closed, so that printing to it fails. Otherwise
// the next files opened would take these places, and output would go into them. Call it before any file is opened.
void occupy_standard_streams();

bool path_exists(const std::string& path);  // false if that is unknown
bool is_directory(const std::string& path);
