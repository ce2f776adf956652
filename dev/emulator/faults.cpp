// Turns an access to an unmapped address, as in a guard page, into a failure of the launch; the program goes on.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <mutex>

#include "dev/emulator/block.h"
#include "dev/emulator/memory.h"

namespace emulator {

static void on_fault(int signal_number, siginfo_t* info, [[maybe_unused]] void* context) {
    if (!running || !running->current) {
        signal(signal_number, SIG_DFL);  // a fault of the host: it is repeated, and ends the program
        return;
    }
    const void* pc = nullptr;
#if defined(__x86_64__)
    pc = reinterpret_cast<const void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] + 1);
#elif defined(__aarch64__)
    pc = reinterpret_cast<const void*>(static_cast<ucontext_t*>(context)->uc_mcontext.pc + 1);
#endif
    const char* const p = static_cast<const char*>(info->si_addr);
    if (info->si_code == SI_KERNEL) running->fail(*running->current, nullptr, pc, "misaligned access");
    if (in_dynamic_shared(p))
        running->fail(*running->current, nullptr, pc,
                      "access out of bounds: at byte %td of dynamic shared memory of %zu bytes", p - running->dynamic,
                      running->launch->dynamic_shared);
    static thread_local std::string what;  // static, as this stack is abandoned
    what = allocation_fault(p, 1);
    if (find_allocation(p)) running->fail(*running->current, nullptr, pc, "access %s", what.c_str());
    running->fail_at(p, pc);
}

void catch_faults() {
    static thread_local stack_t stack{};  // a separate stack, as the fiber's may have overflowed
    if (!stack.ss_sp) {
        stack.ss_size = 64 * 1024;
        stack.ss_sp = mmap(nullptr, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        sigaltstack(&stack, nullptr);
    }
    forget_frames(stack.ss_sp, stack.ss_size);
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action {};
        action.sa_sigaction = on_fault;
        // NODEFER, because the handler ends by a switch of fibers, not by returning.
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGSEGV, &action, nullptr);
        sigaction(SIGBUS, &action, nullptr);
    });
}

}  // namespace emulator
