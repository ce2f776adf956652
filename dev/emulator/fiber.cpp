#include "dev/emulator/fiber.h"

#include <cstdint>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Pushes the registers that a call preserves, switches the stack, and pops the other fiber's registers. It ends with a
// jump, not a return: the CPU would predict a return to the place from which this fiber was called.
asm(R"(
    .text
    .type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .size emulator_switch, .-emulator_switch
)");
extern "C" void emulator_switch(void** from, void* to);
#endif

namespace emulator {

// The start of a fiber's stack. Stacks start at different places of a page; otherwise they would share a few lines of
// L1.
static char* top(const Fiber& fiber, int number) { return fiber.stack + fiber.size - 64 - number % 32 * 192; }

void forget_frames([[maybe_unused]] void* stack, [[maybe_unused]] size_t size) {
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(stack, size);
#endif
}

void prepare(Fiber& fiber, void (*entry)(), int number) {
    forget_frames(fiber.stack, fiber.size);
#if defined(__x86_64__)
    void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top(fiber, number)) / 16 * 16);
    *--sp = nullptr;  // no return address; with it the stack is aligned as at a function's entry
    *--sp = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; ++saved) *--sp = nullptr;
    fiber.sp = sp;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack = {};
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = static_cast<size_t>(top(fiber, number) - fiber.stack);
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
#endif
    fiber.asan = nullptr;
}

static thread_local Fiber *left, *entered;

void fiber_entered() {
#ifdef __SANITIZE_ADDRESS__
    const void* bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(entered->asan, &bottom, &size);
    if (!left->stack) left->stack = const_cast<char*>(static_cast<const char*>(bottom)), left->size = size;
#endif
}

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool abandon) {
    left = &from, entered = &to;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(abandon ? nullptr : &from.asan, to.stack, to.size);
#endif
#if defined(__x86_64__)
    emulator_switch(&from.sp, to.sp);
#else
    swapcontext(&from.context, &to.context);
#endif
    fiber_entered();
}

}  // namespace emulator
