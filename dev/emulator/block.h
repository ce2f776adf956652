// A block of a grid: its threads, where they wait, and its failure.
#pragma once

#include <string>
#include <vector>

#include "dev/emulator/cuda_on_cpu.h"
#include "dev/emulator/fiber.h"

namespace emulator {

struct Thread {
    Fiber fiber;
    uint3 index;
    int number;  // in its block
    bool gone;   // has left the kernel
    // Where the thread waits, if it does; mask 0 is the block's barrier.
    const char* waits_at;
    Site site;
    unsigned mask;
    void* data;
};

// The first failure of a launch, which the launch throws; pc is null if `what` contains the place.
struct Failure {
    std::string what;
    const void* pc;
};

class Block {
public:
    ~Block();
    void run(const Launch&, uint64_t number);

    Votes barrier(const char* name, bool predicate, Site site);
    void collective(const char* name, unsigned mask, void* data, Collective f, Site site);

    // Ends the launch: `thread` did what the format says at `site`, or at the instruction before `pc`. None of the
    // block's fibers runs again, so nothing on their stacks is destroyed.
    [[noreturn, gnu::format(printf, 5, 6)]] void fail(const Thread&, const Site* site, const void* pc,
                                                      const char* format, ...);

    // The same for an access to memory that the kernel may not access.
    [[noreturn]] void fail_at(const void* address, const void* pc);

    const Launch* launch = nullptr;
    uint64_t number = 0;                              // in its grid
    Thread* current = nullptr;                        // the thread that runs
    char *dynamic = nullptr, *dynamic_end = nullptr;  // dynamic shared memory; a guard page follows
    int64_t accesses = 0;                             // since the current thread was chosen

private:
    struct Warp {
        unsigned present, arrived;  // lanes that have not left the kernel; lanes that wait
    };
    static void entry();
    void grow(int threads);
    void choose();
    void record(const Failure&);
    void go_on();
    void release(Thread&);
    [[noreturn]] void stuck();
    uint64_t random();

    std::vector<Thread> threads_;
    std::vector<Thread*> ready_;
    std::vector<Warp> warps_;
    Fiber launcher_;
    char* stacks_ = nullptr;
    int arrived_ = 0, yes_ = 0, gone_ = 0, size_ = 0;
    Votes votes_{};
    uint64_t random_ = 0;
};

// The block that this OS thread runs at the moment, or null.
extern thread_local Block* running;
// From now on, faults of this OS thread's kernels are reported.
void catch_faults();
// Whether p points into the block's dynamic shared memory or its guard pages.
bool in_dynamic_shared(const char* p);

}  // namespace emulator
