// Files mapped for reading, and written so that they are there whole or not at all. All throw InputError.
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

    // Gives back the memory of these bytes once they have been read: a file may be larger than the memory that is left.
    // Where they are read again, they come from the file again.
    void forget(const uint8_t* begin, int64_t bytes) const;
    // use(begin, bytes) for one piece of the file after the other, each of which is forgotten then.
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

// Writes to a temporary name beside `path`. commit() fsyncs, renames it over `path` and fsyncs the directory;
// destroyed without commit() it removes the temporary file and leaves `path` as it was.
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

// Whether a name that a file gives for another one beside it stays there: no path, no "..", nothing that the system
// would read as a shorter name.
inline bool is_file_name(std::string_view name) {
    return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

// Where standard input, output or error are closed, the next files opened would take their places, and what is printed
// would go into them: /dev/null stands there instead, so that printing fails. To be called before any file is opened.
void occupy_standard_streams();

bool path_exists(const std::string& path);  // false if that is unknown
bool is_directory(const std::string& path);
