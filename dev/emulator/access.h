// Checks of every single access, which access.cpp explains. They cost nothing, and check nothing, if kernels are
// compiled without -fsanitize=thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace emulator {

struct Byte;
std::shared_ptr<Byte[]> new_bytes(size_t count);  // of a new allocation, never written to

void host_has_written(const void* p, size_t bytes);
void becomes_unwritten(const void* p, size_t bytes);  // by the current thread
void launch_begins(uint64_t blocks);
void block_begins(uint64_t number);
// Threads have synchronized: their earlier accesses come before their later ones.
void threads_synchronised(int threads);
void lanes_synchronised(int first_thread, unsigned mask);

// While it exists, accesses are the emulator's own and are not checked: inline functions of the standard library that
// it shares with a kernel's file may be compiled with the hooks.
struct Internal {
    Internal() { inside = true; }
    ~Internal() { inside = false; }
    static inline thread_local constinit bool inside = false;
};

enum class Kind { read, write, atomic };
// The current thread, or the host if no block runs, accesses `size` bytes at p, by the instruction before pc.
void access(const void* p, size_t size, Kind kind, const void* pc);

}  // namespace emulator
