// The devices a model runs on. Every layer function takes its device first, and is overloaded on it:
//   Reference<T>  plain loops in any scalar type: the definition, and the oracle of the tests (double)
//   Cpu           fp32, SIMD, OpenMP
//   Cuda          in layers/cuda_common.cuh
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <omp.h>

#include "layers/profile.h"
#include "layers/simd.h"

template <class T>
struct Reference {
    using scalar = T;
    Profile* profile = nullptr;  // as Cpu's; never filled
};

// `count` zeroed elements that start on a page. Large ones ask for huge pages (fewer TLB misses) and get their
// memory from the thread that touches them first.
template <class T>
struct HostDelete {
    int64_t bytes = 0;
    void operator()(T* p) const { munmap(p, static_cast<size_t>(bytes)); }
};
template <class T>
using HostBuffer = std::unique_ptr<T[], HostDelete<T>>;

template <class T>
HostBuffer<T> host_allocate(int64_t count) {
    constexpr int64_t page = 4096;
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + page) / page * page;
    void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
    return HostBuffer<T>(static_cast<T*>(p), HostDelete<T>{bytes});
}

// How Cpu multiplies matrices (layers/multiply_cpu.h): as fp32 does, by multiply-adds of floats or by products of bf16
// that give as exact a sum, whichever is faster here; by one of these two; or with factors rounded to bf16.
enum class Products { fp32, fma, split, bf16 };

struct Cpu {
    using scalar = float;
    Profile* profile = nullptr;  // where layers report their time, if wanted
    Products products;

    explicit Cpu(Products p = Products::fp32) : products(p) {}

    // Scratch memory of the calling OpenMP thread: at least `count` floats, aligned to a page, contents undefined,
    // valid until this thread asks again. Grows, never shrinks.
    float* scratch(int64_t count) { return grow(scratch_[static_cast<size_t>(omp_get_thread_num())], count); }

    // The same for memory that all threads work on together: asked for outside of a parallel region, and not touched by
    // scratch().
    float* shared(int64_t count) { return grow(shared_, count); }

    // The same once more, for a matrix product's own use: its factors may lie in shared().
    float* halves(int64_t count) { return grow(halves_, count); }

private:
    struct Scratch {
        HostBuffer<float> memory;
        int64_t count = 0;
    };
    static float* grow(Scratch& s, int64_t count) {
        if (s.count < count) {
            s.memory = nullptr;  // give the old back before taking the new
            s.memory = host_allocate<float>(count);
            s.count = count;
        }
        return s.memory.get();
    }
    Scratch shared_, halves_;
    std::vector<Scratch> scratch_ = std::vector<Scratch>(static_cast<size_t>(omp_get_max_threads()));
};

// A device whose tensors lie in host memory: these two, and what derives from them. What follows is for them alone,
// so that a device with a memory of its own that lacks an overload does not compile.
template <class T>
void is_in_host_memory(const Reference<T>&);
void is_in_host_memory(const Cpu&);
template <class Device>
concept HostDevice = requires(const Device& dev) {
    is_in_host_memory(dev);
};

// When a call began, for Timed, and its time when it ends.
template <HostDevice Device>
double timing_begin(Device& dev, const char*) {
    return dev.profile ? seconds_now() : 0;
}
template <HostDevice Device>
void timing_end(Device& dev, double begin, const char* name, double flops, double bytes) {
    if (dev.profile) dev.profile->add(name, seconds_now() - begin, flops, bytes);
}

// What a model asks of its device beside the layers.
template <class T, HostDevice Device>
HostBuffer<T> allocate(Device&, int64_t count) {
    return host_allocate<T>(count);
}

template <class T>
void zero(Reference<T>&, T* x, int64_t n) {
    std::fill_n(x, n, T(0));
}
inline void zero(Cpu&, float* x, int64_t n) { std::fill_n(x, n, 0.0f); }

// In double, in order.
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
// The same, and zero it.
template <HostDevice Device, class T>
T take(Device&, T* x) {
    return std::exchange(*x, T{});
}
template <HostDevice Device, class T>
void to_host(Device&, float* out, const T* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i]);
}

// Tells a device with a memory of its own which batch comes next.
template <HostDevice Device>
void prefetch_batch(Device&, const int32_t*, const int32_t*, int64_t) {}

// Where the layers find a batch of n tokens x and y, that the host has.
template <HostDevice Device>
std::pair<const int32_t*, const int32_t*> batch_for(Device&, const int32_t* x, const int32_t* y, int64_t) {
    return {x, y};
}

// What is computed again and again with the same arguments, which `key` stands for: a GPU records it once.
using ReplayKey = std::array<int64_t, 4>;
template <HostDevice Device, class F>
void replay(Device&, const ReplayKey&, const F& f) {
    f();
}

// Where the host finds x (n), and what it wrote there back: `copy` is for devices with a memory of their own.
template <HostDevice Device>
float* from_device(Device&, float* x, int64_t, std::vector<float>&) {
    return x;
}
template <HostDevice Device>
void to_device(Device&, float*, const std::vector<float>&) {}
