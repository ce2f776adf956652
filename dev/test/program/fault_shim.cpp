// A library for LD_PRELOAD that makes a disk fail, or records what is written. It prints "fault" to standard error when
// a call fails.
//   FAULT_BELOW=DIR    only paths that contain DIR
//   FAULT=fsync:3:5    the third such call fails with errno 5; with "fsync:3:5:on" all later ones fail too. The calls
//   are
//                      open (for writing), write, fsync, rename, mkdir, symlink
//   FAULT_RECORD=FILE  a line for every path that is opened for writing, made, renamed or removed
//   FAULT_CLOCK=FILE   once this file exists, the steady clock passes a minute in a second
//   FAULT_CPUINFO=FILE is read in the place of /proc/cpuinfo
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

template <class Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::string path_of(int fd) {
    char path[4096];
    const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
    return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

void record(int directory, const std::string& path) {
    const char* file = std::getenv("FAULT_RECORD");
    if (!file) return;
    const bool absolute = path.starts_with('/');
    char here[4096] = "";
    const std::string base = absolute                ? ""
                             : directory == AT_FDCWD ? std::string(getcwd(here, sizeof here)) + "/"
                                                     : path_of(directory) + "/";
    const std::string line = base + path + "\n";
    const int fd = next<int(const char*, int, ...)>("open")(file, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (next<ssize_t(int, const void*, size_t)>("write")(fd, line.data(), line.size()) < 0) std::abort();
    close(fd);
}

// Whether this call of `name` on `path` is the one that fails; errno is set then.
bool strikes(const char* name, const std::string& path) {
    static int calls = 0;
    const char *below = std::getenv("FAULT_BELOW"), *fault = std::getenv("FAULT");
    if (!below || !fault || path.find(below) == std::string::npos) return false;
    char wanted[16] = "", on[8] = "";
    int number = 0, error = 0;
    std::sscanf(fault, "%15[^:]:%d:%d:%7s", wanted, &number, &error, on);
    if (std::strcmp(wanted, name) != 0 || ++calls < number || (calls > number && std::strcmp(on, "on") != 0))
        return false;
    constexpr char text[] = "fault\n";
    if (calls == number && next<ssize_t(int, const void*, size_t)>("write")(2, text, 6) < 0) std::abort();
    errno = error;
    return true;
}

int open_at(const char* name, int directory, const char* path, int flags, mode_t mode) {
    if (flags & (O_WRONLY | O_RDWR | O_CREAT)) {
        record(directory, path);
        if (strikes("open", path)) return -1;
    }
    return next<int(int, const char*, int, ...)>(name)(directory, path, flags, mode);
}

mode_t mode_argument(int flags, va_list arguments) {
    return flags & O_CREAT ? static_cast<mode_t>(va_arg(arguments, unsigned)) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mode_argument(flags, arguments);
    va_end(arguments);
    return open_at("openat", AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mode_argument(flags, arguments);
    va_end(arguments);
    return open_at("openat64", AT_FDCWD, path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mode_argument(flags, arguments);
    va_end(arguments);
    return open_at("openat", directory, path, flags, mode);
}
FILE* fopen(const char* path, const char* mode) {
    if (const char* other = std::getenv("FAULT_CPUINFO"); other && std::strcmp(path, "/proc/cpuinfo") == 0)
        path = other;
    if (std::strpbrk(mode, "wa+")) {
        record(AT_FDCWD, path);
        if (strikes("open", path)) return nullptr;
    }
    return next<FILE*(const char*, const char*)>("fopen")(path, mode);
}
FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }

ssize_t write(int fd, const void* data, size_t bytes) {
    if (fd > 2 && strikes("write", path_of(fd))) return -1;
    return next<ssize_t(int, const void*, size_t)>("write")(fd, data, bytes);
}
int fsync(int fd) { return strikes("fsync", path_of(fd)) ? -1 : next<int(int)>("fsync")(fd); }
int fdatasync(int fd) { return strikes("fsync", path_of(fd)) ? -1 : next<int(int)>("fdatasync")(fd); }

int rename(const char* from, const char* to) noexcept {
    record(AT_FDCWD, to);
    return strikes("rename", to) ? -1 : next<int(const char*, const char*)>("rename")(from, to);
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
    record(b, to);
    if (strikes("rename", to)) return -1;
    return next<int(int, const char*, int, const char*, unsigned)>("renameat2")(a, from, b, to, flags);
}
int mkdir(const char* path, mode_t mode) noexcept {
    record(AT_FDCWD, path);
    return strikes("mkdir", path) ? -1 : next<int(const char*, mode_t)>("mkdir")(path, mode);
}
int symlink(const char* target, const char* path) noexcept {
    record(AT_FDCWD, path);
    return strikes("symlink", path) ? -1 : next<int(const char*, const char*)>("symlink")(target, path);
}
int clock_gettime(clockid_t clock, timespec* now) noexcept {
    static auto* const real = next<int(clockid_t, timespec*)>("clock_gettime");
    static time_t begin = 0;
    const int status = real(clock, now);
    const char* const file = std::getenv("FAULT_CLOCK");
    if (status != 0 || clock != CLOCK_MONOTONIC || !file || (begin == 0 && access(file, F_OK) != 0)) return status;
    if (begin == 0) begin = now->tv_sec;
    now->tv_sec += 60 * (now->tv_sec - begin);
    return status;
}

int unlink(const char* path) noexcept {
    record(AT_FDCWD, path);
    return next<int(const char*)>("unlink")(path);
}
int unlinkat(int directory, const char* path, int flags) noexcept {
    record(directory, path);
    return next<int(int, const char*, int)>("unlinkat")(directory, path, flags);
}
int remove(const char* path) noexcept {
    record(AT_FDCWD, path);
    return next<int(const char*)>("remove")(path);
}

}  // extern "C"
