#include "dev/emulator/memory.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <stdexcept>

#include "dev/emulator/access.h"
#include "dev/emulator/cuda_on_cpu.h"

namespace emulator {

static const std::vector<uint16_t> pattern(page / 2 + 1, poison_pattern);
static const char* pattern_at(const void* p) {  // its parity is that of p
    return reinterpret_cast<const char*>(pattern.data()) + reinterpret_cast<uintptr_t>(p) % 2;
}

void poison(void* p, size_t bytes) {
    char* to = static_cast<char*>(p);
    for (; bytes > page; bytes -= page, to += page) std::memcpy(to, pattern_at(p), page);
    std::memcpy(to, pattern_at(p), bytes);
}

bool poisoned(const void* p, size_t bytes) {
    const char* from = static_cast<const char*>(p);
    for (; bytes > page; bytes -= page, from += page)
        if (std::memcmp(from, pattern_at(p), page) != 0) return false;
    return std::memcmp(from, pattern_at(p), bytes) == 0;
}

char* map_guarded(size_t bytes) {
    void* const p =
        mmap(nullptr, bytes + 2 * guard_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    char* const begin = static_cast<char*>(p) + guard_size;
    if (bytes && mprotect(begin, bytes, PROT_READ | PROT_WRITE)) throw std::bad_alloc();
    return begin;
}

void unmap_guarded(char* p, size_t bytes) { munmap(p - guard_size, bytes + 2 * guard_size); }

// --- device memory
static std::mutex allocations_mutex;
static std::map<uintptr_t, Allocation> allocations;  // by the end of their guard pages

static std::atomic<Allocation*> last_found = nullptr;  // a cache, as a kernel accesses few allocations

Allocation* find_allocation(const void* p) {
    const auto within = [p](const Allocation& a) {
        return p >= a.mapping - guard_size && p < a.mapping + a.mapping_size + guard_size;
    };
    if (Allocation* const a = last_found.load(std::memory_order_relaxed); a && within(*a)) return a;
    const auto found = allocations.upper_bound(reinterpret_cast<uintptr_t>(p));
    if (found == allocations.end() || !within(found->second)) return nullptr;
    return last_found = &found->second;
}

static std::atomic<const char*> lowest = reinterpret_cast<const char*>(UINTPTR_MAX), highest = nullptr;

bool near_device_memory(const void* p) { return p >= lowest.load() && p < highest.load(); }

std::string allocation_fault(const void* p, size_t size) {
    const Allocation* const a = find_allocation(p);
    if (!a) return "which is no device memory";
    const int64_t at = static_cast<const char*>(p) - a->begin, end = static_cast<int64_t>(a->size);
    if (at >= 0 && at + static_cast<int64_t>(size) <= end) return "";
    return "out of bounds: at byte " + std::to_string(at) + " of an allocation of " + std::to_string(end) + " bytes";
}

std::string damaged_allocation() {
    std::string what;
    const auto check = [&](const Allocation& a, char* red_zone, size_t bytes, const char* where) {
        if (poisoned(red_zone, bytes)) return;
        what = std::string("something was written out of bounds, ") + where + " an allocation of " +
               std::to_string(a.size) + " bytes";
        poison(red_zone, bytes);  // reported once
    };
    for (const auto& [_, a] : allocations) {
        char* const end = a.begin + a.size;
        check(a, a.mapping, static_cast<size_t>(a.begin - a.mapping), "before");
        check(a, end, static_cast<size_t>(a.mapping + a.mapping_size - end), "past the end of");
    }
    return what;
}

void* device_allocate(size_t bytes) {
    const size_t size = (bytes + page - 1) / page * page;
    try {
        char* const mapping = map_guarded(size);
        poison(mapping, size);
        char* const begin = mapping + size - (bytes + 15) / 16 * 16;
        const Allocation a{begin, bytes, mapping, size, new_bytes(bytes)};
        const std::lock_guard lock(allocations_mutex);
        lowest = std::min<const char*>(lowest, mapping - guard_size);
        highest = std::max<const char*>(highest, mapping + size + guard_size);
        allocations[reinterpret_cast<uintptr_t>(mapping + size + guard_size)] = a;
        return begin;
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

bool device_free(void* p) {
    const std::lock_guard lock(allocations_mutex);
    const Allocation* const a = find_allocation(p);
    if (!a || a->begin != p) return false;
    const Allocation freed = *a;
    last_found = nullptr;
    allocations.erase(reinterpret_cast<uintptr_t>(freed.mapping + freed.mapping_size + guard_size));
    unmap_guarded(freed.mapping, freed.mapping_size);
    return true;
}

size_t device_memory_in_use() {
    const std::lock_guard lock(allocations_mutex);
    size_t bytes = 0;
    for (const auto& [_, a] : allocations) bytes += a.mapping_size;
    return bytes;
}

bool can_copy(const void* to, const void* from, size_t bytes, bool to_device, bool from_device) {
    const auto is_there = [&](const void* p, bool on_device) {
        return on_device ? allocation_fault(p, bytes).empty() : !find_allocation(p);
    };
    return is_there(to, to_device) && is_there(from, from_device);
}

void copy(void* to, const void* from, size_t bytes, bool to_device) {
    std::memmove(to, from, bytes);
    if (to_device) host_has_written(to, bytes);
}

bool fill(void* p, int value, size_t bytes) {
    if (!allocation_fault(p, bytes).empty()) return false;
    std::memset(p, value, bytes);
    host_has_written(p, bytes);
    return true;
}

// --- shared memory
// The program's thread_locals are one block of memory for each OS thread, laid out by the linker. Those of a function
// are named _ZZ<function>E<variable>; if a function has red zones among them, they are shared memory.
static std::vector<SharedVariable> read_symbols() {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const size_t size = std::filesystem::file_size("/proc/self/exe");
    void* const exe = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (exe == MAP_FAILED) throw Error("cannot read the program's file, whose symbols name the shared variables");
    const auto at = [&](size_t offset) { return static_cast<const char*>(exe) + offset; };
    ElfW(Ehdr) header;
    std::memcpy(&header, at(0), sizeof header);
    const auto section = [&](size_t i) {
        ElfW(Shdr) s;
        std::memcpy(&s, at(header.e_shoff + i * sizeof s), sizeof s);
        return s;
    };
    std::vector<SharedVariable> all;
    for (size_t i = 0; i < header.e_shnum; ++i) {
        const ElfW(Shdr) symbols = section(i);
        if (symbols.sh_type != SHT_SYMTAB) continue;
        const ElfW(Shdr) names = section(symbols.sh_link);
        for (size_t s = 0; s < symbols.sh_size / sizeof(ElfW(Sym)); ++s) {
            ElfW(Sym) symbol;
            std::memcpy(&symbol, at(symbols.sh_offset + s * sizeof symbol), sizeof symbol);
            if (ELF64_ST_TYPE(symbol.st_info) != STT_TLS) continue;
            const std::string name = at(names.sh_offset + symbol.st_name);
            if (name.starts_with("_ZZ"))
                all.push_back(
                    {symbol.st_value, symbol.st_size, name, name.find("emulator_red_zone_") != std::string::npos});
        }
    }
    munmap(exe, size);
    std::vector<SharedVariable> shared;
    for (SharedVariable v : all) {
        const auto in_its_function = [&](const SharedVariable& zone) {
            if (!zone.red_zone) return false;
            const size_t end = zone.name.find_last_not_of("0123456789", zone.name.find("emulator_red_zone_") - 1);
            return v.name.compare(0, end + 1, zone.name, 0, end + 1) == 0;
        };
        if (std::none_of(all.begin(), all.end(), in_its_function)) continue;
        char* const plain = abi::__cxa_demangle(v.name.c_str(), nullptr, nullptr, nullptr);
        if (plain) v.name = plain, v.name.erase(0, v.name.rfind("::") + 2);
        std::free(plain);
        shared.push_back(v);
    }
    std::sort(shared.begin(), shared.end(), [](auto& a, auto& b) { return a.offset < b.offset; });
    for (size_t i = 1; i < shared.size(); ++i)
        if (!shared[i - 1].red_zone && !shared[i].red_zone)
            throw Error("the shared variables " + shared[i - 1].name + " and " + shared[i].name +
                        " need declarations of their own, to have a red zone between them");
    return shared;
}

const std::vector<SharedVariable>& shared_variables() {
    static const std::vector<SharedVariable> variables = read_symbols();
    return variables;
}

std::string damaged_shared_variable() {
    const std::vector<SharedVariable>& all = shared_variables();
    for (size_t i = 0; i < all.size(); ++i) {
        if (!all[i].red_zone || poisoned(thread_locals() + all[i].offset, all[i].size)) continue;
        std::string what = "something was written out of bounds,";
        if (i > 0) what += " past the end of the shared variable " + all[i - 1].name;
        if (i + 1 < all.size()) what += " or before " + all[i + 1].name;
        return what;
    }
    return "";
}

const SharedVariable* shared_variable_near(size_t offset) {
    const std::vector<SharedVariable>& all = shared_variables();
    const auto after = [&](size_t o) {
        return std::upper_bound(all.begin(), all.end(), o, [](size_t x, auto& v) { return x < v.offset; });
    };
    const auto next = after(offset);
    if (next == all.begin()) return nullptr;
    const SharedVariable& v = next[-1];
    if (!v.red_zone) return offset < v.offset + v.size ? &v : nullptr;
    if (offset >= v.offset + v.size) return nullptr;
    // A red zone belongs to the nearer variable.
    const bool low = offset - v.offset < v.size / 2;
    if (low && next - 1 > all.begin()) return &next[-2];
    return next < all.end() ? &*next : next - 1 > all.begin() ? &next[-2] : nullptr;
}

static thread_local char* tls = nullptr;
static thread_local size_t tls_size = 0;
static ptrdiff_t loaded_at = 0;  // addresses in memory minus those of the program's file
static void find_program() {
    dl_iterate_phdr(
        [](dl_phdr_info* program, size_t, void*) {
            loaded_at = static_cast<ptrdiff_t>(program->dlpi_addr);
            tls = static_cast<char*>(program->dlpi_tls_data);
            for (int i = 0; i < program->dlpi_phnum; ++i)
                if (program->dlpi_phdr[i].p_type == PT_TLS) tls_size = program->dlpi_phdr[i].p_memsz;
            return 1;  // stop after the first entry, the program itself, before its libraries
        },
        nullptr);
}
char* thread_locals() { return tls ? tls : (find_program(), tls); }
size_t thread_locals_size() { return thread_locals(), tls_size; }

static std::vector<std::string> addr2line(const char* options, const void* pc) {
    static std::map<std::pair<std::string, const void*>, std::vector<std::string>> known;  // a query takes 50 ms
    std::vector<std::string>& lines = known[{options, pc}];
    if (!lines.empty()) return lines;
    find_program();
    char command[128], line[2048];
    std::snprintf(command, sizeof command, "addr2line %s -e /proc/%d/exe 0x%tx 2>/dev/null", options, getpid(),
                  static_cast<const char*>(pc) - reinterpret_cast<char*>(loaded_at));
    FILE* const f = popen(command, "r");
    while (f && std::fgets(line, sizeof line, f)) lines.emplace_back(line, std::strcspn(line, "\n"));
    if (f) pclose(f);
    return lines;
}

std::string source_lines(const void* pc) {
    std::string all, here = std::filesystem::current_path().string() + "/";
    for (std::string s : addr2line("-i", static_cast<const char*>(pc) - 1)) {
        s.erase(std::min(s.size(), s.find(' ')));  // "(discriminator 2)"
        if (s.starts_with(here)) s.erase(0, here.size());
        if (s.starts_with("./")) s.erase(0, 2);
        if (s.starts_with("/") || s.starts_with("dev/emulator/") || s.starts_with("?")) continue;
        all += (all.empty() ? "" : ", called from ") + s;
    }
    return all.empty() ? "at an unknown line" : all;
}

std::string function_name(const void* function) {
    const std::vector<std::string> lines = addr2line("-f -C", function);
    const std::string name = lines.empty() ? "" : lines[0].substr(0, lines[0].find('('));
    return name.starts_with("void ") ? name.substr(5) : name;  // a template's instance has its type before it
}

}  // namespace emulator
