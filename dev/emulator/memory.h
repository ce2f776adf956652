// What kernels may read and write, and what surrounds it.
//   device memory: a mapping for each allocation; guard pages on both sides, the end as close to one as an alignment of
//     16 bytes allows; the rest of its first page and those last bytes are a red zone.
//   shared memory: `__shared__` variables are thread_locals of functions, each between two red zones; the program's
//     symbol table says where. Dynamic shared memory ends at a guard page.
// All of it is poisoned with bytes that are NaN as bf16, float and double: at allocation, or where a block starts.
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

struct Byte;  // what the checks of single accesses know of a byte; access.cpp

struct Allocation {
    char* begin;
    size_t size;
    char* mapping;  // between the guard pages
    size_t mapping_size;
    std::shared_ptr<Byte[]> bytes;
};
// The allocation whose mapping or guard pages hold p, or null.
Allocation* find_allocation(const void* p);
// False for what lies outside of all of them; quickly.
bool near_device_memory(const void* p);
// Empty, or what is wrong with [p, p + size).
std::string allocation_fault(const void* p, size_t size);
void* device_allocate(size_t bytes);  // null where there is not as much
bool device_free(void* p);            // false where p is none
size_t device_memory_in_use();
// Whether `bytes` of both are what they are said to be, device or host memory.
bool can_copy(const void* to, const void* from, size_t bytes, bool to_device, bool from_device);
void copy(void* to, const void* from, size_t bytes, bool to_device);
bool fill(void* p, int value, size_t bytes);  // false where p is no device memory

// The red zone of an allocation that was written to; empty where there is none.
std::string damaged_allocation();

struct SharedVariable {
    size_t offset, size;  // in the thread's block of thread_locals
    std::string name;
    bool red_zone;
};
// By offset.
const std::vector<SharedVariable>& shared_variables();
// The variable that holds this byte, or in whose red zone it is, or null.
const SharedVariable* shared_variable_near(size_t offset);
// Empty, or which red zone was written to.
std::string damaged_shared_variable();
char* thread_locals();  // of the calling OS thread
size_t thread_locals_size();

constexpr size_t max_dynamic_shared = 228 * 1024;  // in whole pages; a launch may have 1 KiB less

// The source line of the instruction before `pc`, and of the calls inlined around it, by the debugging information.
std::string source_lines(const void* pc);
// With a template's arguments.
std::string function_name(const void* function);

}  // namespace emulator
