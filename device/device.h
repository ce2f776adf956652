// The devices a model runs on. Every layer function takes its device first, and is overloaded on it:
//   Reference<T>  plain loops in any scalar type: the definition, and the oracle of the tests (double)
//   Cpu           fp32, SIMD, OpenMP
//   Cuda          in device/cuda/common.cuh
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <omp.h>

#include "device/platform.h"
#include "device/profile.h"
#include "device/update.h"
#include "device/weight_type.h"
#include "device/cpu/simd.h"

template <class T>
struct Reference {
    using scalar = T;
    Profile* profile = nullptr;  // as Cpu's; never filled
};

// Allocates `count` zeroed elements that start on a page. Large buffers request huge pages (fewer TLB misses). A page
// is placed near the thread that touches it first.
template <class T>
struct HostDelete {
    int64_t bytes = 0;
    void operator()(T* p) const { munmap(p, static_cast<size_t>(bytes)); }
};
template <class T>
using HostBuffer = std::unique_ptr<T[], HostDelete<T>>;

constexpr int64_t page_bytes = 4096;

// The bytes that host_allocate takes for `count` elements.
template <class T>
constexpr int64_t host_bytes(int64_t count) {
    return (count * static_cast<int64_t>(sizeof(T)) + page_bytes) / page_bytes * page_bytes;
}

template <class T>
HostBuffer<T> host_allocate(int64_t count) {
    const int64_t bytes = host_bytes<T>(count);
    void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    platform::advise_huge_pages(p, static_cast<size_t>(bytes));
    return HostBuffer<T>(static_cast<T*>(p), HostDelete<T>{bytes});
}

// Frees all but the first `count` elements.
template <class T>
void host_shrink(HostBuffer<T>& buffer, int64_t count) {
    int64_t& bytes = buffer.get_deleter().bytes;
    const int64_t keep = host_bytes<T>(count);
    if (keep >= bytes) return;
    munmap(reinterpret_cast<char*>(buffer.get()) + keep, static_cast<size_t>(bytes - keep));
    bytes = keep;
}

// The kind of matmul on the Cpu (device/cpu/gemm/matmul.h). fp32: the faster of fma (FMAs of floats) and split
// (matmuls of bf16 parts, as exact as fp32). bf16: with operands rounded to bf16.
enum class MatmulKind { fp32, fma, split, bf16 };

// Scratch memory on the Cpu, in floats. Each layer that needs some has a function that returns it for a shape; the
// layer itself and the memory plan use the same function.
struct CpuScratch {
    std::vector<int64_t> threads;    // for thread 0, 1, …
    int64_t shared = 0, halves = 0;  // for all threads together
    int64_t bytes() const {
        int64_t sum = 0;
        for (const int64_t count : threads) sum += host_bytes<float>(count);
        for (const int64_t count : {shared, halves}) sum += count > 0 ? host_bytes<float>(count) : 0;
        return sum;
    }
};

struct Cpu {
    using scalar = float;
    Profile* profile = nullptr;  // where layers report their time, if wanted
    MatmulKind matmul_kind;
    WeightType weights = WeightType::fp32;  // of the matrices that the layers read

    explicit Cpu(MatmulKind kind = MatmulKind::fp32) : matmul_kind(kind) {}

    // Scratch memory of the calling OpenMP thread: at least `count` floats, aligned to a page, contents undefined,
    // valid until the next reserve(). It is called in parallel regions, which std::bad_alloc cannot leave, so it never
    // allocates: a layer calls reserve() before the region.
    float* scratch(int64_t count) {
        const auto thread = static_cast<size_t>(omp_get_thread_num());
        if (thread >= threads_.size() || threads_[thread].count < count) stop("scratch", count);
        return threads_[thread].memory.get();
    }

    // Scratch memory that all threads share, apart from scratch(). Called outside parallel regions. It grows where
    // `count` was not reserved.
    float* shared(int64_t count) { return grow(shared_, count, "shared"); }

    // A second memory like shared(), for matmuls only: their operands may lie in shared().
    float* halves(int64_t count) { return grow(halves_, count, "halves"); }

    // Allocates scratch memory if there is not enough, outside parallel regions. Each thread touches its own memory
    // first, so that it lies near that thread and later steps need no more memory than the first.
    void reserve(const CpuScratch& need) {
        grow(shared_, need.shared);
        grow(halves_, need.halves);
        bool grows = need.threads.size() > threads_.size();
        for (size_t i = 0; i < need.threads.size() && !grows; ++i) grows = threads_[i].count < need.threads[i];
        if (!grows) return;
        each_thread_has_ = 0;
        threads_.resize(std::max(threads_.size(), need.threads.size()));
        for (size_t i = 0; i < need.threads.size(); ++i) grow(threads_[i], need.threads[i]);
        each_thread_has_ = std::ranges::min_element(threads_, {}, &Scratch::count)->count;
#pragma omp parallel
        if (const auto me = static_cast<size_t>(omp_get_thread_num()); me < threads_.size())
            for (int64_t i = 0; i < threads_[me].count; i += page_bytes / 4) threads_[me].memory[i] = 0;
    }
    // Reserves the same amount for each thread of the coming parallel regions. Layers call this before each region: if
    // enough is reserved it costs two comparisons.
    void reserve(int64_t count) {
        const auto threads = static_cast<size_t>(omp_get_max_threads());
        if (count > each_thread_has_ || threads > threads_.size())
            reserve(CpuScratch{std::vector<int64_t>(threads, count)});
    }

    // The reserved memory, in bytes.
    int64_t scratch_bytes() const {
        CpuScratch has{{}, shared_.count, halves_.count};
        for (const Scratch& s : threads_) has.threads.push_back(s.count);
        return has.bytes();
    }

private:
    struct Scratch {
        HostBuffer<float> memory;
        int64_t count = 0;
    };
    static float* grow(Scratch& s, int64_t count, const char* what = "reserve") {
        if (s.count < count) {
            if (omp_in_parallel()) stop(what, count);
            s = {};  // frees the old memory before the new is allocated
            s.memory = host_allocate<float>(count);
            s.count = count;
        }
        return s.memory.get();
    }
    // Ends the program because of a bug in a layer. An exception must not leave a parallel region.
    [[noreturn]] static void stop(const char* what, int64_t count) {
        std::fprintf(stderr,
                     "Cpu::%s: thread %d needs %lld floats, which are not reserved; call Cpu::reserve() before the "
                     "parallel region\n",
                     what, omp_get_thread_num(), static_cast<long long>(count));
        std::abort();
    }
    Scratch shared_, halves_;
    std::vector<Scratch> threads_;
    int64_t each_thread_has_ = 0;  // floats that every thread of threads_ has
};

// A device whose tensors lie in host memory: these two, and classes derived from them. The functions below are for such
// devices only, so that a device with its own memory does not compile without its own overloads.
template <class T>
void is_in_host_memory(const Reference<T>&);
void is_in_host_memory(const Cpu&);
template <class Device>
concept HostDevice = requires(const Device& dev) {
    is_in_host_memory(dev);
};

// How the layers expect the weights of matmuls.
template <class Device>
WeightType weight_type(const Device&) {
    return WeightType::fp32;
}
inline WeightType weight_type(const Cpu& cpu) { return cpu.weights; }

// For Timed: the time when a call began, and adding the call to the profile when it ends.
template <HostDevice Device>
double timing_begin(Device& dev, const char*) {
    return dev.profile ? seconds_now() : 0;
}
template <HostDevice Device>
void timing_end(Device& dev, double begin, const char* name, double flops, double bytes) {
    if (dev.profile) dev.profile->add(name, seconds_now() - begin, flops, bytes);
}

// What a model needs from its device besides the layers.
template <class T, HostDevice Device>
HostBuffer<T> allocate(Device&, int64_t count) {
    return host_allocate<T>(count);
}

template <class T>
void zero(Reference<T>&, T* x, int64_t n) {
    std::fill_n(x, n, T(0));
}
inline void zero(Cpu&, float* x, int64_t n) {
#pragma omp parallel for schedule(static) if (n > 1 << 16)
    for (int64_t i = 0; i < n; ++i) x[i] = 0;
}

// out (n) = x, of the same device
template <HostDevice Device, class T>
void copy(Device&, T* out, const T* x, int64_t n) {
    std::copy_n(x, n, out);
}
inline void copy(Cpu& dev, float* out, const float* x, int64_t n) {
    const Timed timed(dev, "copy", 0, prod(n, 2 * sizeof(float)));
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) out[i] = x[i];
}

// x (n) += y
template <class T>
void add(Reference<T>&, T* x, const T* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}
inline void add(Cpu& dev, float* x, const float* y, int64_t n) {
    const Timed timed(dev, "add", 0, prod(n, 3 * sizeof(float)));
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

// The sum in double, in order.
template <HostDevice Device, class T>
double sum(Device&, const T* x, int64_t n) {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += static_cast<double>(x[i]);
    return total;
}

template <HostDevice Device, class T>
std::vector<T> to_host(Device&, const T* x, int64_t n) {
    return {x, x + n};
}
template <HostDevice Device, class T>
T to_host(Device&, const T* x) {
    return *x;
}
// Returns the sum and sets the values to zero.
template <HostDevice Device, class T>
T take(Device&, T* x) {
    return std::exchange(*x, T{});
}
template <HostDevice Device, class T>
void to_host(Device&, float* out, const T* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i]);
}

// Tells a device with its own memory which batch comes next.
template <HostDevice Device>
void prefetch_batch(Device&, const int32_t*, const int32_t*, int64_t) {}

// The place where the layers read a batch of n tokens x and y of the host.
template <HostDevice Device>
std::pair<const int32_t*, const int32_t*> batch_for(Device&, const int32_t* x, const int32_t* y, int64_t) {
    return {x, y};
}

// Returns the params of an update, or the place of a batch, where the layers read them.
template <HostDevice Device, class Params>
const Params* on_device(Device&, const Params& params) {
    return &params;
}

// Runs f. Calls with the same `key` do the same work with the same arguments, so a GPU records their launches only
// once.
using ReplayKey = std::array<int64_t, 4>;
template <HostDevice Device, class F>
void replay(Device&, const ReplayKey&, const F& f) {
    f();
}

// The place where the host reads x (n). On a device with its own memory it is a copy, owned by `copy`. host_room
// copies nothing yet: the host will write there, for to_device.
template <HostDevice Device>
float* from_device(Device&, float* x, int64_t, HostBuffer<float>&) {
    return x;
}
template <HostDevice Device>
float* host_room(Device&, float* x, int64_t, HostBuffer<float>&) {
    return x;
}
// x (n) on the device = host (n), which may be x
template <HostDevice Device, class T>
void to_device(Device&, T* x, const T* host, int64_t n) {
    if (x != host) std::copy_n(host, n, x);
}
