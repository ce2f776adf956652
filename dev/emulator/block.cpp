#include "dev/emulator/block.h"

#include <omp.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdarg>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "dev/emulator/access.h"
#include "dev/emulator/memory.h"
#include "dev/emulator/ptx_on_cpu.h"

namespace emulator {

thread_local Block* running = nullptr;

constexpr size_t stack_size = 128 * 1024, stack_guard = 4 * page;
constexpr int max_threads = 1024;

// A failure is kept here until the launch throws it.
static std::mutex failure_mutex;
static Failure failure;
static std::atomic<bool> failed = false;

template <class Index>
static std::string show(const Index& i) {
    return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}
static std::string place(const Site& site) { return std::string(site.file_name()) + ":" + std::to_string(site.line()); }

void Block::fail(const Thread& thread, const Site* site, const void* pc, const char* format, ...) {
    Internal::inside = true;
    char what[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    record({", thread " + show(thread.index) + ": " + what + (site ? ", " + place(*site) : ""), pc});
    switch_fiber(current->fiber, launcher_, true);
    __builtin_unreachable();
}

void Block::record(const Failure& f) {
    const std::lock_guard lock(failure_mutex);
    if (failed.exchange(true)) return;
    failure = {"block " + show(blockIdx) + f.what, f.pc};
}

void Block::fail_at(const void* address, const void* pc) {
    const char *const p = static_cast<const char*>(address), *const stack = current->fiber.stack;
    if (p >= stack - stack_guard && p < stack)
        fail(*current, nullptr, pc, "stack overflow, beyond %zu bytes", stack_size);
    if (reinterpret_cast<uintptr_t>(p) < page)
        fail(*current, nullptr, pc, "access through a null pointer (address %p)", address);
    fail(*current, nullptr, pc, "access to %p, which is neither device nor shared memory nor the thread's own",
         address);
}

// --- a block
Block::~Block() {
    if (stacks_) munmap(stacks_, max_threads * (stack_size + stack_guard));
    if (dynamic_end) unmap_guarded(dynamic_end - max_dynamic_shared, max_dynamic_shared);
}

void Block::grow(int count) {
    if (!stacks_) {
        void* const p = mmap(nullptr, max_threads * (stack_size + stack_guard), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        stacks_ = static_cast<char*>(p);
        dynamic_end = map_guarded(max_dynamic_shared) + max_dynamic_shared;
    }
    while (static_cast<int>(threads_.size()) < count) {
        char* const guard = stacks_ + threads_.size() * (stack_size + stack_guard);
        mprotect(guard, stack_guard, PROT_NONE);
        Thread& thread = threads_.emplace_back();
        thread.fiber.stack = guard + stack_guard;
        thread.fiber.size = stack_size;
    }
}

uint64_t Block::random() {  // xorshift64*
    random_ ^= random_ >> 12, random_ ^= random_ << 25, random_ ^= random_ >> 27;
    return (random_ * 0x2545F4914F6CDD1D) >> 32;
}

void Block::entry() {
    fiber_entered();
    Block& block = *running;
    Internal::inside = false;
    block.launch->call(block.launch->parameters);
    const Internal scope;
    copies_end();
    Thread& thread = *block.current;
    thread.gone = true;
    ++block.gone_;
    block.warps_[static_cast<size_t>(thread.number / 32)].present &= ~(1u << thread.number % 32);
    block.go_on();
    __builtin_unreachable();
}

// Runs all threads of the block to their end, or until one fails.
void Block::run(const Launch& l, uint64_t n) {
    const dim3 b = l.block;
    launch = &l, number = n, size_ = static_cast<int>(b.x * b.y * b.z);
    grow(size_);
    catch_faults();
    blockDim = l.block, gridDim = l.grid;
    blockIdx = {static_cast<unsigned>(n % l.grid.x), static_cast<unsigned>(n / l.grid.x % l.grid.y),
                static_cast<unsigned>(n / l.grid.x / l.grid.y)};
    random_ = (seed + n + 1) * 0x9E3779B97F4A7C15 | 1;
    arrived_ = yes_ = gone_ = 0;
    warps_.assign(static_cast<size_t>((size_ + 31) / 32), {0, 0});
    ready_.clear();
    for (int t = 0; t < size_; ++t) {
        Thread& thread = threads_[static_cast<size_t>(t)];
        const unsigned u = static_cast<unsigned>(t);
        thread.number = t, thread.gone = false, thread.waits_at = nullptr;
        thread.index = {u % b.x, u / b.x % b.y, u / b.x / b.y};
        prepare(thread.fiber, entry, t);
        warps_[u / 32].present |= 1u << u % 32;
        ready_.push_back(&thread);
    }
    block_begins(n);
    copies_begin();
    dynamic = dynamic_end - (l.dynamic_shared + 15) / 16 * 16;
    poison(dynamic, static_cast<size_t>(dynamic_end - dynamic));
    for (const SharedVariable& v : shared_variables()) poison(thread_locals() + v.offset, v.size);

    running = this;
    launcher_ = {};
    choose();
    switch_fiber(launcher_, current->fiber);
    running = nullptr;
    current = nullptr;
    Internal::inside = false;
    const std::string damaged = damaged_shared_variable();
    if (!damaged.empty()) record({": " + damaged, nullptr});
}

// Makes a ready thread the current one.
void Block::choose() {
    accesses = 0;
    const size_t chosen = random() % ready_.size();
    current = ready_[chosen];
    ready_[chosen] = ready_.back();
    ready_.pop_back();
    threadIdx = current->index;
}

bool in_dynamic_shared(const char* p) {
    return p >= running->dynamic_end - max_dynamic_shared && p < running->dynamic_end + guard_size;
}

// Leaves the current thread for one that is ready, which may be itself.
void Block::go_on() {
    Thread& before = *current;
    if (ready_.empty()) {
        if (gone_ < size_) stuck();
        switch_fiber(before.fiber, launcher_, true);
    }
    choose();
    if (current != &before) switch_fiber(before.fiber, current->fiber, before.gone);
}

void Block::release(Thread& thread) {
    thread.waits_at = nullptr;
    ready_.push_back(&thread);
}

Votes Block::barrier(const char* name, bool predicate, Site site) {
    Thread& me = *current;
    me.waits_at = name, me.site = site, me.mask = 0;
    yes_ += predicate;
    if (++arrived_ == size_) {
        for (int t = 0; t < size_; ++t) {
            const Thread& other = threads_[static_cast<size_t>(t)];
            if (other.waits_at != name || other.site.line() != site.line() || other.site.column() != site.column())
                fail(me, &site, nullptr, "%s, but thread (%u,%u,%u) is at %s, %s:%u", name, other.index.x,
                     other.index.y, other.index.z, other.waits_at, other.site.file_name(), other.site.line());
        }
        votes_ = {yes_, size_};
        threads_synchronised(size_);
        arrived_ = yes_ = 0;
        for (int t = 0; t < size_; ++t) release(threads_[static_cast<size_t>(t)]);
    }
    go_on();
    return votes_;
}

void Block::collective(const char* name, unsigned mask, void* data, Collective f, Site site) {
    Thread& me = *current;
    const int first = me.number / 32 * 32;
    Warp& warp = warps_[static_cast<size_t>(me.number / 32)];
    const unsigned bit = 1u << me.number % 32;
    if (!(mask & bit))
        fail(me, &site, nullptr, "%s with the mask %08x, which leaves out lane %d, itself", name, mask, me.number % 32);
    if (mask & ~warp.present)
        fail(
            me, &site, nullptr, "%s with the mask %08x, which names lane %d, and that %s", name, mask,
            std::countr_zero(mask & ~warp.present),
            first + std::countr_zero(mask & ~warp.present) < size_ ? "has left the kernel" : "the block does not have");
    me.waits_at = name, me.site = site, me.mask = mask, me.data = data;
    warp.arrived |= bit;
    if ((warp.arrived & mask) == mask) {
        void* all[32] = {};
        for (int lane = 0; lane < 32; ++lane) {
            if (!(mask >> lane & 1)) continue;
            const Thread& other = threads_[static_cast<size_t>(first + lane)];
            if (other.waits_at != name || other.mask != mask || other.site.line() != site.line() ||
                other.site.column() != site.column())
                fail(me, &site, nullptr, "%s with the mask %08x, but lane %d is at %s with the mask %08x, %s:%u", name,
                     mask, lane, other.waits_at, other.mask, other.site.file_name(), other.site.line());
            all[lane] = other.data;
        }
        f(all, mask);
        warp.arrived &= ~mask;
        for (int lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1) release(threads_[static_cast<size_t>(first + lane)]);
    }
    go_on();
}

// Fails the launch when no thread can run and some wait. The message names one of them, and one that it waits for.
void Block::stuck() {
    const auto waiting = std::find_if(threads_.begin(), threads_.begin() + size_, [](auto& t) { return t.waits_at; });
    const int first = waiting->mask ? waiting->number / 32 * 32 : 0;
    const auto keeps_waiting = [&](const Thread& t) {
        if (waiting->mask) return waiting->mask >> (t.number - first) & 1 && (t.gone || t.mask != waiting->mask);
        return t.gone || t.mask;
    };
    const auto other = std::find_if(threads_.begin() + first, threads_.begin() + size_, keeps_waiting);
    const uint3 i = other->index;
    if (other->gone)
        fail(*waiting, &waiting->site, nullptr, "%s waits for thread (%u,%u,%u), which has left the kernel",
             waiting->waits_at, i.x, i.y, i.z);
    fail(*waiting, &waiting->site, nullptr, "%s waits for thread (%u,%u,%u), which is at %s, %s:%u", waiting->waits_at,
         i.x, i.y, i.z, other->waits_at, other->site.file_name(), other->site.line());
}

// --- what kernels call
Votes barrier(const char* name, bool predicate, Site site) {
    const Internal scope;
    return running->barrier(name, predicate, site);
}
void collective(const char* name, unsigned mask, void* data, Collective f, Site site) {
    const Internal scope;
    running->collective(name, mask, data, f, site);
}
int lane() { return running->current->number % 32; }
void* dynamic_shared() { return running->dynamic; }

Collective exchange() {
    return [](void* const* data, unsigned mask) {
        for (int lane = 0; lane < 32; ++lane) {
            if (!(mask >> lane & 1)) continue;
            Exchange& e = *static_cast<Exchange*>(data[lane]);
            if (!(mask >> (e.from & 31) & 1)) {
                const Thread& me = *running->current;
                running->fail(me, &me.site, nullptr, "%s: lane %d reads lane %d, which the mask %08x leaves out",
                              me.waits_at, lane, e.from, mask);
            }
            e.out = static_cast<Exchange*>(data[e.from & 31])->in;
        }
    };
}

void syncwarp(unsigned mask, Site site) {
    collective(
        "__syncwarp", mask, nullptr,
        [](void* const*, unsigned lanes) { lanes_synchronised(running->current->number / 32 * 32, lanes); }, site);
}

unsigned ballot(const char* name, unsigned mask, bool predicate, Site site) {
    struct Vote {
        bool predicate;
        unsigned result;
    } vote{predicate, 0};
    collective(
        name, mask, &vote,
        [](void* const* data, unsigned lanes) {
            unsigned result = 0;
            for (int lane = 0; lane < 32; ++lane)
                if (lanes >> lane & 1) result |= unsigned{static_cast<Vote*>(data[lane])->predicate} << lane;
            for (int lane = 0; lane < 32; ++lane)
                if (lanes >> lane & 1) static_cast<Vote*>(data[lane])->result = result;
        },
        site);
    return vote.result;
}

unsigned match(unsigned mask, uint64_t value, Site site) {
    struct Match {
        uint64_t value;
        unsigned lanes;
    } mine{value, 0};
    collective(
        "__match_any_sync", mask, &mine,
        [](void* const* data, unsigned lanes) {
            const auto at = [&](int lane) { return static_cast<Match*>(data[lane]); };
            for (int lane = 0; lane < 32; ++lane)
                for (int other = 0; other < 32; ++other)
                    if (lanes >> lane & lanes >> other & 1 && at(lane)->value == at(other)->value)
                        at(lane)->lanes |= 1u << other;
        },
        site);
    return mine.lanes;
}

void aligned(const void* p, size_t size) {
    if (reinterpret_cast<uintptr_t>(p) % size)
        running->fail(*running->current, nullptr, __builtin_return_address(0),
                      "misaligned access: %zu bytes at an address that is no multiple of that", size);
}

template <class T>
T atomic(T* p, T operand, T (*f)(T old, T operand)) {
    access(p, sizeof *p, Kind::atomic, __builtin_return_address(0));
    T old = *p, result;
    do result = f(old, operand);
    while (!__atomic_compare_exchange(p, &old, &result, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
template int atomic(int*, int, int (*)(int, int));
template unsigned atomic(unsigned*, unsigned, unsigned (*)(unsigned, unsigned));
template unsigned long long atomic(unsigned long long*, unsigned long long,
                                   unsigned long long (*)(unsigned long long, unsigned long long));
template float atomic(float*, float, float (*)(float, float));
template double atomic(double*, double, double (*)(double, double));

// --- launches
// Bytes of dynamic shared memory: the default limit of a kernel, and the largest limit that can be requested.
constexpr size_t usual_shared = 48 * 1024, largest_shared = 227 * 1024;
static std::mutex shared_allowed_mutex;
static std::map<const void*, size_t> shared_allowed;

bool allow_shared(const void* kernel, size_t bytes) {
    const std::lock_guard lock(shared_allowed_mutex);
    if (bytes <= largest_shared) shared_allowed[kernel] = bytes;
    return bytes <= largest_shared;
}
static size_t allowed_shared(const void* kernel) {
    const std::lock_guard lock(shared_allowed_mutex);
    return std::max(usual_shared, shared_allowed[kernel]);
}

void run(const Launch& l) {
    const auto fail = [&](const std::string& what) {
        const std::string name = function_name(l.function);
        throw Error((name.empty() ? l.kernel : name) + ", " + what + ", launched at " + place(l.site));
    };
    const uint64_t blocks = uint64_t{l.grid.x} * l.grid.y * l.grid.z;
    const uint64_t threads = uint64_t{l.block.x} * l.block.y * l.block.z;
    if (blocks == 0 || l.grid.x > 0x7fffffff || l.grid.y > 65535 || l.grid.z > 65535)
        fail("launched with a grid of " + show(l.grid) + " blocks");
    if (threads == 0 || threads > max_threads || l.block.z > 64)
        fail("launched with a block of " + show(l.block) + " threads");
    const size_t allowed = allowed_shared(l.function);
    if (l.dynamic_shared > allowed)
        fail("launched with " + std::to_string(l.dynamic_shared) + " bytes of dynamic shared memory, where " +
             std::to_string(allowed) + " are allowed");
    failed = false;
    std::vector<uint64_t> order(blocks);
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    launch_begins(blocks);
    // With checks of every access, blocks run one after another: the checks do not support several OS threads.
#pragma omp parallel for schedule(dynamic) if (!checks_every_access() && blocks > 1)
    for (const uint64_t number : order) {
        static thread_local Block block;
        if (!failed) block.run(l, number);
    }
    if (failed) fail(failure.what + (failure.pc ? ", " + source_lines(failure.pc) : ""));
    const std::string damaged = damaged_allocation();
    if (!damaged.empty()) fail(damaged);
}

}  // namespace emulator
