// CUDA for g++. A .cuh includes this in place of the CUDA Toolkit, so that its kernels run on a machine without a GPU,
// and more of their mistakes are reported than on a GPU. Kernels are plain CUDA except for LAUNCH and DYN_SHARED
// (device/cuda/common.cuh). A launch runs to its end before the next; blocks cannot wait for each other, as a fence
// orders nothing here. The parts are block.h (grids, blocks, barriers, failures), fiber.h (a thread is a fiber; threads
// run in a shuffled order from one synchronization to the next), memory.h, access.cpp and faults.cpp (checks of
// memory), streams.cpp (streams, events and graphs), ptx_on_cpu.h (tensor cores and copies), cublaslt_on_cpu.h
// (matmuls) and nccl_on_cpu.h (several processes).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define EMULATOR_JOIN_(a, b) a##b
#define EMULATOR_JOIN(a, b) EMULATOR_JOIN_(a, b)
// One block runs on one OS thread, so a thread_local is shared by its fibers. The red zone before it also distinguishes
// shared memory from other thread_locals in memory.cpp, so each variable needs a declaration of its own.
#define __shared__                                                                                          \
    static thread_local __attribute__((used)) char EMULATOR_JOIN(emulator_red_zone_, __COUNTER__)[64] = {}; \
    static thread_local

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3() = default;
    constexpr dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct __attribute__((may_alias, aligned(16))) int4 {
    int x, y, z, w;
};

// The indices of the thread that runs; set at each switch.
inline thread_local constinit uint3 threadIdx{}, blockIdx{};
inline thread_local constinit dim3 blockDim, gridDim;
constexpr int warpSize = 32;

enum cudaError_t {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorInvalidDevice,
    cudaErrorInvalidResourceHandle,
    cudaErrorIllegalState,
    cudaErrorNotReady,
    cudaErrorNotSupported,
    cudaErrorStreamCaptureUnsupported,
    cudaErrorStreamCaptureInvalidated,
    cudaErrorStreamCaptureIsolation,
    cudaErrorStreamCaptureImplicit,
    cudaErrorCapturedEvent
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor };
using cudaStream_t = struct EmulatedStream*;
using cudaEvent_t = struct EmulatedEvent*;

namespace emulator {

// The error that a failed launch throws: kernel, block, thread, what, file and line. The next launch works again.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Threads of a block, and blocks, run in an order drawn from this.
inline uint64_t seed = 1;
// Whether the kernels of this program were compiled with -fsanitize=thread, so that every access is checked.
bool checks_every_access();

using Site = std::source_location;
struct Launch {
    const char* kernel;
    Site site;
    dim3 grid, block;
    size_t dynamic_shared;  // bytes
    void (*call)(const void* parameters);
    const void* parameters;
    size_t parameters_size;
    const void* function;
};
void run(const Launch&);
// Adds work to the stream, or to a graph if the stream is being captured.
void enqueue(cudaStream_t stream, std::function<void()> work);
// Does the work of only this stream, until it is finished or has to wait for another stream. Returns whether all is
// done.
bool finish_alone(cudaStream_t stream);
// Adds to the stream an operation that does not end before the returned function is called.
std::function<void()> hold(cudaStream_t stream);
bool allow_shared(const void* kernel, size_t bytes);  // of dynamic shared memory

template <class... P, class... A>
void launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t dynamic_shared, cudaStream_t stream,
            Site site, A&&... arguments) {
    using Call = std::pair<void (*)(P...), std::tuple<P...>>;
    const Call call{kernel, std::tuple<P...>(static_cast<P>(arguments)...)};
    const auto apply = [](const void* c) {
        std::apply(static_cast<const Call*>(c)->first, static_cast<const Call*>(c)->second);
    };
    const auto* const function = reinterpret_cast<const void*>(kernel);
    enqueue(stream, [=] { run({name, site, grid, block, dynamic_shared, apply, &call, sizeof call, function}); });
}

void* dynamic_shared();

// The numbers of threads at the barrier: those whose `predicate` is true, and all.
struct Votes {
    int yes, all;
};
Votes barrier(const char* name, bool predicate, Site site);

// Waits until all lanes of `mask` have arrived; the last one calls f(each lane's data, mask) for all.
using Collective = void (*)(void* const* data, unsigned mask);
void collective(const char* name, unsigned mask, void* data, Collective f, Site site);

struct Exchange {
    uint64_t in, out;
    int from;  // lane
};
Collective exchange();
void syncwarp(unsigned mask, Site site);
unsigned ballot(const char* name, unsigned mask, bool predicate, Site site);
unsigned match(unsigned mask, uint64_t value, Site site);
int lane();

template <class T>
requires(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>) T
    shuffle(const char* name, unsigned mask, T value, int from, Site site) {
    Exchange e{0, 0, from};
    std::memcpy(&e.in, &value, sizeof value);
    collective(name, mask, &e, exchange(), site);
    std::memcpy(&value, &e.out, sizeof value);
    return value;
}

// Fails the launch unless p is a multiple of `size`, as the address of a vector must be.
void aligned(const void* p, size_t size);

template <class T>
T atomic(T* p, T operand, T (*f)(T old, T operand));
}  // namespace emulator

// --- barriers, shuffles, votes
#define EMULATOR_SITE emulator::Site site = emulator::Site::current()
inline void __syncthreads(EMULATOR_SITE) { emulator::barrier("__syncthreads", false, site); }
inline int __syncthreads_count(int p, EMULATOR_SITE) { return emulator::barrier("__syncthreads_count", p, site).yes; }
inline int __syncthreads_or(int p, EMULATOR_SITE) { return emulator::barrier("__syncthreads_or", p, site).yes > 0; }
inline int __syncthreads_and(int p, EMULATOR_SITE) {
    const emulator::Votes votes = emulator::barrier("__syncthreads_and", p, site);
    return votes.yes == votes.all;
}
inline void __syncwarp(unsigned mask = 0xffffffff, EMULATOR_SITE) { emulator::syncwarp(mask, site); }
inline unsigned __ballot_sync(unsigned mask, int p, EMULATOR_SITE) {
    return emulator::ballot("__ballot_sync", mask, p, site);
}
inline int __any_sync(unsigned mask, int p, EMULATOR_SITE) {
    return emulator::ballot("__any_sync", mask, p, site) != 0;
}
inline int __all_sync(unsigned mask, int p, EMULATOR_SITE) {
    return emulator::ballot("__all_sync", mask, p, site) == mask;
}
// The lanes of `mask` that have the same value.
template <class T>
requires(sizeof(T) <= 8 && std::is_integral_v<T>) unsigned __match_any_sync(unsigned mask, T value, EMULATOR_SITE) {
    return emulator::match(mask, static_cast<uint64_t>(value), site);
}
// Lanes are divided into segments of `width`. A lane that would read from outside its segment reads its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, EMULATOR_SITE) {
    const int start = emulator::lane() & -width;
    return emulator::shuffle("__shfl_sync", mask, value, start | (from & (width - 1)), site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
    const int lane = emulator::lane(), from = lane - static_cast<int>(delta);
    return emulator::shuffle("__shfl_up_sync", mask, value, from < (lane & -width) ? lane : from, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
    const int lane = emulator::lane(), from = lane + static_cast<int>(delta);
    return emulator::shuffle("__shfl_down_sync", mask, value, from >= (lane & -width) + width ? lane : from, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, EMULATOR_SITE) {
    const int lane = emulator::lane(), from = lane ^ with;  // an earlier segment may be read, a later one not
    return emulator::shuffle("__shfl_xor_sync", mask, value, from >= (lane & -width) + width ? lane : from, site);
}

// --- memory; inlined, so that a report shows the kernel's line
template <class T>
__forceinline__ T atomicAdd(T* p, std::type_identity_t<T> x) {
    return emulator::atomic<T>(p, x, [](T old, T y) { return static_cast<T>(old + y); });
}
template <class T>
__forceinline__ T atomicMax(T* p, std::type_identity_t<T> x) {
    return emulator::atomic<T>(p, x, [](T old, T y) { return std::max(old, y); });
}
template <class T>
__forceinline__ T atomicMin(T* p, std::type_identity_t<T> x) {
    return emulator::atomic<T>(p, x, [](T old, T y) { return std::min(old, y); });
}
template <class T>
__forceinline__ T atomicExch(T* p, std::type_identity_t<T> x) {
    return emulator::atomic<T>(p, x, [](T, T y) { return y; });
}
// With hints for the caches.
template <class T>
__forceinline__ T __ldcs(const T* p) {
    emulator::aligned(p, sizeof(T));
    return *p;
}
template <class T>
__forceinline__ T __ldca(const T* p) {
    emulator::aligned(p, sizeof(T));
    return *p;
}
template <class T>
__forceinline__ void __stwb(T* p, std::type_identity_t<T> x) {
    emulator::aligned(p, sizeof(T));
    *p = x;
}

// --- arithmetic
using std::max;
using std::min;
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }

#include "dev/emulator/runtime.h"
