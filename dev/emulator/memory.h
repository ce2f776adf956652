// The memory that kernels may read and write, and its guards.
//   device memory: a mapping for each allocation; guard pages on both sides, the end as close to one as an alignment of
//     16 bytes allows; the rest of its first page and those last bytes are a red zone.
//   shared memory: `__shared__` variables are thread_locals of functions, each between two red zones, and are found in
//     the program's symbol table. Dynamic shared memory ends at a guard page.
// All of it is poisoned with bytes that are NaN as bf16, float and double: at allocation, or when a block starts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace emulator {

constexpr uint16_t poison_pattern = 0x7ffa;
void poison(void* p, size_t bytes);
bool poisoned(const void* p, size_t bytes);

// Reserves `bytes` (a multiple of the page size) between two guard pages of guard_size.
constexpr size_t page = 4096, guard_size = 16 * page;
char* map_guarded(size_t bytes);
void unmap_guarded(char* p, size_t bytes);

struct Byte;  // the state of a byte for the checks of single accesses (access.cpp)

struct Allocation {
    char* begin;
    size_t size;
    char* mapping;  // between the guard pages
    size_t mapping_size;
    std::shared_ptr<Byte[]> bytes;
};
// The allocation whose mapping or guard pages hold p, or null.
Allocation* find_allocation(const void* p);
// A fast check: false if p is outside of all allocations.
bool near_device_memory(const void* p);
// What is wrong with [p, p + size), or empty.
std::string allocation_fault(const void* p, size_t size);
void* device_allocate(size_t bytes);  // null if there is not enough
bool device_free(void* p);            // false if p is not an allocation
size_t device_memory_in_use();
// Whether `bytes` of both are device or host memory, as claimed.
bool can_copy(const void* to, const void* from, size_t bytes, bool to_device, bool from_device);
void copy(void* to, const void* from, size_t bytes, bool to_device);
bool fill(void* p, int value, size_t bytes);  // false if p is not device memory

// Describes an allocation whose red zone was written to, or empty.
std::string damaged_allocation();

struct SharedVariable {
    size_t offset, size;  // in the thread's block of thread_locals
    std::string name;
    bool red_zone;
};
// All shared variables, sorted by offset.
const std::vector<SharedVariable>& shared_variables();
// The variable that holds this byte, or in whose red zone it is, or null.
const SharedVariable* shared_variable_near(size_t offset);
// Describes a shared variable whose red zone was written to, or empty.
std::string damaged_shared_variable();
char* thread_locals();  // of the calling OS thread
size_t thread_locals_size();

constexpr size_t max_dynamic_shared = 228 * 1024;  // in whole pages; a launch may have 1 KiB less

// The source line of the instruction before `pc`, and of the calls inlined around it, from the debug information.
std::string source_lines(const void* pc);
// The name of a function, with template arguments.
std::string function_name(const void* function);

}  // namespace emulator
