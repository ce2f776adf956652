// Checks every single memory access. Kernels compiled with -fsanitize=thread call a hook before each access; the hooks
// here replace ThreadSanitizer's runtime, which is not linked. They record for each byte of device and shared memory
// which threads wrote and read it last, and report
//   accesses out of bounds, to the byte, to host memory, and to another thread's local memory;
//   reads of shared or device memory that was never written;
//   races: two threads, one of them writing, without a barrier in between (in one block), or at all (in two blocks).
// Blocks run one after another with these checks, so plain variables suffice.
#include "dev/emulator/access.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "dev/emulator/block.h"
#include "dev/emulator/memory.h"

extern "C" char __executable_start, _end;  // the program's code and static data, by the linker

namespace emulator {

// The last access of a kind. Block 0 is nobody, 1 is the host; other blocks are counted over all launches. The time of
// a thread is the number of its synchronizations. The struct is small, as loading it into the caches takes much of the
// time.
struct Event {
    uint32_t block;
    uint32_t time : 21, thread : 10, atomic : 1;
    bool same_thread(const Event& e) const { return block == e.block && thread == e.thread; }
};
struct Byte {
    Event write, read, other_read;  // the last of each; the two reads are by different threads
    bool operator==(const Byte& b) const { return std::memcmp(this, &b, sizeof b) == 0; }
};
static_assert(std::has_unique_object_representations_v<Byte>);

static bool instrumented = false;
static uint32_t first_block = 2, next_block = 2, this_block;
static uint32_t times[1024];     // of each thread
static uint32_t seen[1024][32];  // [thread][lane]: up to this time, that lane of its warp comes before the thread
static uint32_t barrier_[1024];  // the thread's time at the last barrier of the block
static Byte dynamic_bytes[max_dynamic_shared];
static std::unique_ptr<Byte[]> static_bytes;
constexpr int64_t patience = 1 << 24;        // most accesses from one synchronization to the next
constexpr uint32_t longest = (1 << 21) - 1;  // the latest time that an event can hold

bool checks_every_access() { return instrumented; }

std::shared_ptr<Byte[]> new_bytes(size_t count) {
    return instrumented ? std::shared_ptr<Byte[]>(new Byte[count]()) : nullptr;
}

void host_has_written(const void* p, size_t bytes) {
    if (!instrumented) return;
    const Allocation& a = *find_allocation(p);
    for (size_t i = 0; i < bytes; ++i)
        a.bytes[static_cast<size_t>(static_cast<const char*>(p) - a.begin) + i].write.block = 1;
}

void launch_begins(uint64_t blocks) {
    first_block = next_block;
    next_block += static_cast<uint32_t>(blocks);
    if (!static_bytes) static_bytes = std::make_unique<Byte[]>(thread_locals_size());
}

void block_begins(uint64_t number) {
    this_block = first_block + static_cast<uint32_t>(number);
    std::fill(&times[0], &times[1024], 0);
    std::fill(&barrier_[0], &barrier_[1024], 0);
    std::fill(&seen[0][0], &seen[1023][32], 0);
}

void threads_synchronised(int threads) {
    for (int t = 0; t < threads; ++t) barrier_[t] = ++times[t];
}

void lanes_synchronised(int first, unsigned mask) {
    const auto in_mask = [&](int lane) { return mask >> lane & 1; };
    uint32_t latest[32] = {};
    for (int lane = 0; lane < 32; ++lane)
        for (int other = 0; in_mask(lane) && other < 32; ++other)
            latest[other] = std::max(latest[other], seen[first + lane][other]);
    for (int lane = 0; lane < 32; ++lane)
        if (in_mask(lane)) latest[lane] = ++times[first + lane];
    for (int lane = 0; lane < 32; ++lane)
        if (in_mask(lane)) std::copy(latest, latest + 32, seen[first + lane]);
}

// Whether two accesses may happen in either order; `now` is the later one here.
static bool unordered(const Event& before, const Event& now, bool shared) {
    if (shared ? before.block != now.block : before.block < first_block) return false;
    if (before.same_thread(now) || (before.atomic && now.atomic)) return false;
    if (before.block != now.block) return true;
    if (before.time < barrier_[before.thread]) return false;
    return before.thread / 32 != now.thread / 32 || before.time >= seen[now.thread][before.thread % 32];
}

// Memory whose bytes are tracked, and the place in it where an access begins.
struct Place {
    Byte* bytes = nullptr;
    ptrdiff_t at = 0, size = 0;
    bool shared = false;
    const char* variable = "";
};

static Place find_place(const char* p) {
    static const SharedVariable* last = nullptr;
    const size_t offset = static_cast<size_t>(p - thread_locals());
    if (offset < thread_locals_size()) {
        if (!last || offset - last->offset >= last->size) last = shared_variable_near(offset);
        if (!last) return {};
        return {&static_bytes[last->offset], static_cast<ptrdiff_t>(offset - last->offset),
                static_cast<ptrdiff_t>(last->size), true, last->name.c_str()};
    }
    if (in_dynamic_shared(p))
        return {dynamic_bytes, p - running->dynamic, static_cast<ptrdiff_t>(running->launch->dynamic_shared), true,
                "dynamic shared memory"};
    if (const Allocation* const a = find_allocation(p))
        return {a->bytes.get(), p - a->begin, static_cast<ptrdiff_t>(a->size), false, "an allocation"};
    return {};
}

void becomes_unwritten(const void* p, size_t bytes) {
    if (!instrumented) return;
    const Place place = find_place(static_cast<const char*>(p));
    for (size_t i = 0; i < bytes; ++i) place.bytes[static_cast<size_t>(place.at) + i].write = {};
}

// Other memory that a kernel may access: threadIdx and the like, its parameters, constants.
static bool harmless(const char* p, Kind kind) {
    const Launch& l = *running->launch;
    const char* const parameters = static_cast<const char*>(l.parameters);
    return static_cast<size_t>(p - thread_locals()) < thread_locals_size() ||
           (p >= parameters && p < parameters + l.parameters_size) ||
           (kind == Kind::read && p >= &__executable_start && p < &_end);
}

void access(const void* address, size_t size, Kind kind, const void* pc) {
    const char* const p = static_cast<const char*>(address);
    if (!instrumented || Internal::inside || (!running && !near_device_memory(p))) return;
    const Internal scope;
    if (!running) {
        if (!find_allocation(p)) return;
        std::fprintf(stderr, "emulator: the host accesses device memory, %s\n", source_lines(pc).c_str());
        std::abort();  // a hook must not throw
    }
    const Thread& me = *running->current;
    if (p >= me.fiber.stack && p < me.fiber.stack + me.fiber.size) return;
    if (++running->accesses > patience || times[me.number] > longest)
        running->fail(me, nullptr, pc, "goes on without end");
    const char* const verb = kind == Kind::read ? "reads" : "writes";
    const Place place = find_place(p);
    if (!place.bytes) {
        if (harmless(p, kind)) return;
        running->fail_at(address, pc);
    }
    Byte* const bytes = place.bytes;
    const ptrdiff_t at = place.at, end = place.size;
    const bool shared = place.shared;
    const char* const variable = place.variable;
    if (at < 0 || at + static_cast<ptrdiff_t>(size) > end)
        running->fail(me, nullptr, pc, "%s %zu bytes out of bounds: at byte %td of %s of %td bytes", verb, size, at,
                      variable, end);
    if (size <= 16 && std::has_single_bit(size) && reinterpret_cast<uintptr_t>(p) % size)
        running->fail(me, nullptr, pc, "misaligned access: %zu bytes at an address that is no multiple of that", size);

    const Event now{this_block, times[me.number] & longest, static_cast<unsigned>(me.number) & 1023,
                    kind == Kind::atomic};
    Byte before_it, after_it;  // the previous byte's state; most often all bytes of a value have the same
    for (ptrdiff_t i = at; i < at + static_cast<ptrdiff_t>(size); ++i) {
        Byte& byte = bytes[i];
        if (i > at && byte == before_it) {
            byte = after_it;
            continue;
        }
        before_it = byte;
        if (kind != Kind::write && (shared ? byte.write.block != this_block : byte.write.block == 0))
            running->fail(me, nullptr, pc, "reads byte %td of %s of %td bytes, which nothing has written", i, variable,
                          end);
        const auto check = [&](const Event& before, const char* did) {
            if (!unordered(before, now, shared)) return;
            running->fail(me, nullptr, pc,
                          "a race: %s byte %td of %s of %td bytes, which thread number %d of block number %u has %s, "
                          "and no barrier lies between",
                          verb, i, variable, end, static_cast<int>(before.thread),
                          static_cast<int>(before.block - first_block), did);
        };
        check(byte.write, "written");
        if (kind == Kind::read) {
            (unordered(byte.read, now, shared) ? byte.other_read : byte.read) = now;
        } else {
            check(byte.read, "read");
            check(byte.other_read, "read");
            byte.write = now;
        }
        after_it = byte;
    }
}

}  // namespace emulator

using emulator::access;
using emulator::Kind;

#define PC __builtin_return_address(0)
#define HOOKS(n)                                                             \
    void __tsan_read##n(void* p) { access(p, n, Kind::read, PC); }           \
    void __tsan_write##n(void* p) { access(p, n, Kind::write, PC); }         \
    void __tsan_unaligned_read##n(void* p) { access(p, n, Kind::read, PC); } \
    void __tsan_unaligned_write##n(void* p) { access(p, n, Kind::write, PC); }
extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* p, size_t n) { access(p, n, Kind::read, PC); }
void __tsan_write_range(void* p, size_t n) { access(p, n, Kind::write, PC); }
void __tsan_init() { emulator::instrumented = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
// Atomics of the standard library, used by host code in a file with kernels.
char __tsan_atomic8_load(const char* p, int order) { return __atomic_load_n(p, order); }
long __tsan_atomic64_load(const long* p, int order) { return __atomic_load_n(p, order); }  // a static's guard on ARM
int __tsan_atomic32_fetch_add(int* p, int n, int order) { return __atomic_fetch_add(p, n, order); }
int __tsan_atomic32_fetch_sub(int* p, int n, int order) { return __atomic_fetch_sub(p, n, order); }
}
