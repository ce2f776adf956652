#include "io/file/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "io/file/bus_error.h"
#include "io/file/checksum.h"
#include "io/file/error.h"

MappedFile::MappedFile(const std::string& path) : path_(path) {
    // O_NONBLOCK, because opening a pipe would otherwise wait for its writer; it is refused below.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) system_error(path, "open", errno, "check the path");
    struct stat info {};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        throw InputError(path + ": this is " + (S_ISDIR(info.st_mode) ? "a directory" : "not a regular file") +
                         "; check the path");
    }
    size_ = info.st_size;
    if (size_ > 0) {
        void* map = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, fd, 0);
        const int error = errno;
        if (map == MAP_FAILED) {
            close(fd);
            system_error(path, "mapping into memory", error, "copy it to a local disk");
        }
        data_ = static_cast<const uint8_t*>(map);
        note_mapping(data_, size_, path);
    }
    close(fd);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
    if (!data_) return;
    forget_mapping(data_);
    munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
}

void MappedFile::forget(const uint8_t* begin, int64_t bytes) const {
    // Only whole pages, from the one that holds `begin`: the bytes before it on that page have been read too.
    const int64_t page = sysconf(_SC_PAGESIZE), first = (begin - data_) / page * page,
                  last = (begin - data_ + bytes) / page * page;
    if (last > first) madvise(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(last - first), MADV_DONTNEED);
}

// The process number in the temporary name separates two runs that write the same file: the last one to commit wins.
FileWriter::FileWriter(const std::string& path)
    : file_{path}, temporary_(path + "." + std::to_string(getpid()) + ".tmp") {
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) fail(errno);
}

FileWriter::~FileWriter() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(temporary_.c_str());
}

void FileWriter::fail(int error) const {
    system_error(file_.path, "write", error,
                 error == ENOSPC || error == EDQUOT ? "free some space or write elsewhere"
                                                    : "check the path, its permissions and the disk");
}

void FileWriter::write(const void* data, int64_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
        // Small pieces: what the kernel has just copied is still in the cache when its checksum is computed.
        constexpr int64_t cached = 256 << 10;
        const int64_t in_piece = file_.bytes % checksum_piece;
        const int64_t size = std::min({bytes, cached, checksum_piece - in_piece});
        const ssize_t written = ::write(fd_, p, static_cast<size_t>(size));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail(errno);
        if (in_piece == 0) file_.checksums.push_back(0);
        file_.checksums.back() = checksum(p, written, file_.checksums.back());
        p += written, bytes -= written, file_.bytes += written;
    }
}

WrittenFile FileWriter::commit() {
    if (fsync(fd_) != 0) fail(errno);
    if (std::rename(temporary_.c_str(), file_.path.c_str()) != 0) fail(errno);
    close(std::exchange(fd_, -1));
    const std::string parent = std::filesystem::path(file_.path).parent_path().string();
    sync_directory(parent.empty() ? "." : parent);
    return std::move(file_);
}

WrittenFile write_file_atomically(const std::string& path, std::string_view bytes) {
    FileWriter file(path);
    file.write(bytes.data(), static_cast<int64_t>(bytes.size()));
    return file.commit();
}

void sync_directory(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) system_error(path, "open", errno, "check the path");
    // Some file systems do not support fsync of directories (EINVAL); nothing more can be done there.
    const int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    if (error != 0 && error != EINVAL) system_error(path, "fsync", error, "check the disk");
}

void occupy_standard_streams() {
    int fd = 0;
    do fd = open("/dev/null", O_RDONLY);
    while (0 <= fd && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

bool path_exists(const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
}

bool is_directory(const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored);
}
