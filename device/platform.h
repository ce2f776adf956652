// Everything that only one operating system offers, each with a fallback for the others. make PORTABLE=1 builds the
// fallbacks on Linux, so that they can be tested. They have not been tried on a Mac.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#if defined(__APPLE__)
#include <mach-o/dyld.h>
#elif defined(__linux__)
#include <sys/syscall.h>
#endif

namespace platform {

#if defined(__linux__) && !defined(PORTABLE)
constexpr bool linux_only = true;  // calls and files of Linux: renameat2, fdatasync, /proc, control groups
#else
constexpr bool linux_only = false;
#endif

// The path of this program; empty if it is unknown.
inline std::string executable_path() {
    char path[PATH_MAX];
#if defined(__APPLE__) && !defined(PORTABLE)
    uint32_t size = sizeof path;
    return _NSGetExecutablePath(path, &size) == 0 ? path : "";
#else
    const ssize_t length = linux_only ? readlink("/proc/self/exe", path, sizeof path) : -1;
    return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
#endif
}

// The program's name, for messages before main.
inline const char* program_name() {
#if defined(__GLIBC__) && !defined(PORTABLE)
    return program_invocation_short_name;
#elif defined(__APPLE__) && !defined(PORTABLE)
    return getprogname();
#else
    return "train_gpt2";
#endif
}

// The value of the first line "name: value" of one of Linux's files below /proc; empty if there is none.
inline std::string value_in(const char* file, const std::string& name) {
    if (!linux_only) return {};
    char line[4096];
    std::string value;
    FILE* const lines = fopen(file, "re");
    while (lines && value.empty() && fgets(line, sizeof line, lines))
        if (const std::string text = line; text.starts_with(name)) {
            const size_t begin = text.find_first_not_of(": \t", name.size());
            if (begin != text.npos) value = text.substr(begin, text.find('\n') - begin);
        }
    if (lines) fclose(lines);
    return value;
}

// The CPU's name; empty if it is unknown.
inline std::string cpu_name() { return value_in("/proc/cpuinfo", "model name"); }

// The machine's cores, whether or not this process may use them.
inline int64_t cores() { return sysconf(_SC_NPROCESSORS_ONLN); }

// The numbers of the cores that this process may use, as "0-3,8"; empty if that is unknown.
inline std::string cores_of_this_process() { return value_in("/proc/self/status", "Cpus_allowed_list"); }

// Bytes of memory that are available on this machine. The fallback counts all of the machine's memory as free.
inline int64_t free_memory() {
    if (const std::string kib = value_in("/proc/meminfo", "MemAvailable"); !kib.empty())
        return atoll(kib.c_str()) * 1024;
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? pages * page : INT64_MAX;
}

// The memory that this process takes, in bytes. The fallback is an estimate for the program and its libraries.
struct ProcessMemory {
    int64_t address_space = int64_t{64} << 20;
    int64_t resident = int64_t{8} << 20;
};
inline ProcessMemory process_memory() {
    if (!linux_only) return {};
    long long address_space, resident;  // in pages
    FILE* const statm = fopen("/proc/self/statm", "re");
    const bool known = statm && fscanf(statm, "%lld %lld", &address_space, &resident) == 2;
    if (statm) fclose(statm);
    const int64_t page = sysconf(_SC_PAGESIZE);
    return known ? ProcessMemory{address_space * page, resident * page} : ProcessMemory{};
}

// Requests huge pages for large memory, to have fewer TLB misses. It is a hint, without effect in the fallback.
inline void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE) && !defined(PORTABLE)
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
}

// Requests permission to use AMX's registers, as Linux requires. The fallback does without AMX.
inline bool request_amx() {
#if defined(SYS_arch_prctl) && !defined(PORTABLE)
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

// Writes a file's contents to the disk. The fallback also writes its times.
inline int sync_data(int fd) {
#if defined(__linux__) && !defined(PORTABLE)
    return fdatasync(fd);
#else
    return fsync(fd);
#endif
}

inline int64_t modified_nanoseconds(const struct stat& info) {
#if defined(__APPLE__)
    const timespec time = info.st_mtimespec;
#else
    const timespec time = info.st_mtim;
#endif
    return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Exchanges two directories atomically. Returns -1, with errno set to ENOSYS, EINVAL or ENOTSUP, if the system or the
// file system does not support it.
inline int exchange([[maybe_unused]] const char* a, [[maybe_unused]] const char* b) {
#if defined(RENAME_EXCHANGE) && !defined(PORTABLE)
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
#elif defined(RENAME_SWAP) && !defined(PORTABLE)
    return renamex_np(a, b, RENAME_SWAP);
#else
    errno = ENOSYS;
    return -1;
#endif
}

}  // namespace platform
