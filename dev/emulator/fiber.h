// Fibers: stacks of their own within one OS thread, changed by hand. A CUDA thread runs on one.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

struct Fiber {
#if defined(__x86_64__)
    void* sp = nullptr;  // where the registers lie that are restored when it runs next
#else
    ucontext_t context;
#endif
    char* stack = nullptr;  // lowest address of `size` bytes; null for the OS thread's own stack
    size_t size = 0;
    void* asan = nullptr;  // AddressSanitizer's notes on a stack that is left for a while
};

// Makes `fiber` start in `entry`, which never returns, on its stack. `number` sets its frames off from the others'.
void prepare(Fiber& fiber, void (*entry)(), int number);

// AddressSanitizer's notes on frames of a stack that is never gone back to must not be taken for the next one's.
void forget_frames(void* stack, size_t size);

// Leaves `from`, goes on with `to`; returns when another fiber switches to `from`. An abandoned one is never gone back
// to: what is on its stack is forgotten.
void switch_fiber(Fiber& from, Fiber& to, bool abandon = false);

// Must stand first in a fiber's entry.
void fiber_entered();

}  // namespace emulator
