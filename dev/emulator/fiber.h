// Fibers: several stacks within one OS thread, switched explicitly. A CUDA thread runs on a fiber.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

struct Fiber {
#if defined(__x86_64__)
    void* sp = nullptr;  // points to the registers that are restored when the fiber runs next
#else
    ucontext_t context;
#endif
    char* stack = nullptr;  // lowest address of `size` bytes; null for the OS thread's own stack
    size_t size = 0;
    void* asan = nullptr;  // AddressSanitizer's data about a stack that is left for a while
};

// Makes `fiber` start in `entry`, which never returns, on its stack. `number` shifts its frames relative to the
// others'.
void prepare(Fiber& fiber, void (*entry)(), int number);

// Clears AddressSanitizer's data about the frames of an abandoned stack, which would be wrong for its next use.
void forget_frames(void* stack, size_t size);

// Leaves `from` and continues `to`. Returns when another fiber switches to `from`. An abandoned fiber is never
// continued: the contents of its stack are lost.
void switch_fiber(Fiber& from, Fiber& to, bool abandon = false);

// Must be the first call in a fiber's entry.
void fiber_entered();

}  // namespace emulator
