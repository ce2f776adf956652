// Checks of single accesses; access.cpp says how. They cost nothing, and see nothing, where kernels were compiled
// without -fsanitize=thread.
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
// What threads did before comes before what they do after.
void threads_synchronised(int threads);
void lanes_synchronised(int first_thread, unsigned mask);

// While it lives, accesses are the emulator's own: what its code shares with a kernel's file (inline functions of the
// standard library) may be compiled with the hooks.
struct Internal {
    Internal() { inside = true; }
    ~Internal() { inside = false; }
    static inline thread_local constinit bool inside = false;
};

enum class Kind { read, write, atomic };
// The current thread accesses `size` bytes at p, by the instruction before pc; or the host, where no block runs.
void access(const void* p, size_t size, Kind kind, const void* pc);

}  // namespace emulator
