// The foundation of the layers' CUDA kernels. The same source compiles with nvcc for a GPU and with g++ for the
// emulator (dev/emulator/), which runs kernels on the CPU and reports their mistakes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <source_location>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "device/bf16.h"
#include "device/device.h"

inline void cuda_check(cudaError_t e, const char* what, std::source_location at = std::source_location::current()) {
    if (e != cudaSuccess)
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(e) + ", " + at.file_name() + ":" +
                                 std::to_string(at.line()));
}

// An attribute of the current GPU.
inline int device_attribute(cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
    return value;
}

// LAUNCH(kernel, grid, block, bytes of dynamic shared memory, stream, arguments...): the only place where kernels are
// launched. A template's instance stands in parentheses: LAUNCH((kernel<float, 4>), ...).
#ifdef __CUDACC__
#define LAUNCH(kernel, grid, block, smem, stream, ...)                            \
    do {                                                                          \
        kernel<<<grid, block, smem, stream>>>(__VA_ARGS__);                       \
        cuda_check(cudaGetLastError(), #kernel, std::source_location::current()); \
    } while (false)
#else
#define LAUNCH(kernel, grid, block, smem, stream, ...)           \
    emulator::launch(#kernel, kernel, grid, block, smem, stream, \
                     std::source_location::current() __VA_OPT__(, ) __VA_ARGS__)
#endif

// Stands before a loop that must be unrolled, so that its arrays stay in registers.
#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

// DYN_SHARED(T, name): T* name, the launch's dynamic shared memory, aligned to 16 bytes.
#ifdef __CUDACC__
extern __shared__ int4 dynamic_shared_memory[];
#define DYN_SHARED(T, name) T* const name = reinterpret_cast<T*>(dynamic_shared_memory)
#else
#define DYN_SHARED(T, name) T* const name = static_cast<T*>(emulator::dynamic_shared())
#endif

// --- the device
struct CudaDelete {
    template <class T>
    void operator()(T* p) const {
        cudaFree(p);
    }
};
template <class T>
using CudaBuffer = std::unique_ptr<T[], CudaDelete>;

// Allocates `count` elements of device memory, contents undefined. Throws std::bad_alloc if there is not enough.
template <class T>
CudaBuffer<T> cuda_allocate(int64_t count) {
    void* p = nullptr;
    const cudaError_t error = cudaMalloc(&p, static_cast<size_t>(count) * sizeof(T));
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();  // clears the error, which the next launch would report
        throw std::bad_alloc();
    }
    cuda_check(error, "cudaMalloc");
    return CudaBuffer<T>(static_cast<T*>(p));
}

struct CudaStream {
    cudaStream_t stream = nullptr;
    CudaStream() { cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
    CudaStream(const CudaStream&) = delete;
    ~CudaStream() { cudaStreamDestroy(stream); }
};

struct CudaEvent {
    cudaEvent_t event = nullptr;
    explicit CudaEvent(unsigned flags = cudaEventDisableTiming) {
        cuda_check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
    }
    CudaEvent(const CudaEvent&) = delete;
    ~CudaEvent() { cudaEventDestroy(event); }
};

struct Cuda {
    using scalar = float;
    Profile* profile = nullptr;  // as in Cpu
    cudaStream_t stream = nullptr;
    int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
    bool tf32 = false;               // matmuls of floats on tensor cores, with 10 bits of each operand's fraction
    bool fuse_gelu = true;           // GELU in matmul epilogues; off: own kernels, which recompute the same bits
    bool bf16_matmuls = false;       // matmuls of Muon's steps in bf16, as on the Cpu
    int64_t classifier_rows = 8192;  // rows of logits in memory at a time (layers/classifier.cuh)
    std::shared_ptr<struct CublasLt> cublas;      // made by the first matmul (device/cuda/cublaslt.cuh)
    std::shared_ptr<struct CudaStep> step;        // of a model's device (device/cuda/step.cuh)
    std::shared_ptr<struct CudaTimings> timings;  // calls that are not in the profile yet
    // Throws if the stream waits for a lost rank, and says so if the host has waited for many seconds. Set by the
    // stream's first exchange (device/cuda/nccl.cuh).
    std::function<void(double seconds)> check_ranks;

    // The host waits for the stream, or for an event that may depend on it.
    void wait() const {
        if (!check_ranks) return cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        poll([&] { return cudaStreamQuery(stream); }, "cudaStreamQuery");
    }
    void wait(const CudaEvent& event) const {
        if (!check_ranks) return cuda_check(cudaEventSynchronize(event.event), "cudaEventSynchronize");
        poll([&] { return cudaEventQuery(event.event); }, "cudaEventQuery");
    }
    // Stands before calls that wait for the stream inside CUDA, where a lost rank would not be noticed: cudaFree, and
    // copies to and from memory that is not pinned.
    void wait_for_ranks() const {
        if (check_ranks) wait();
    }

    // Scratch memory for data between the kernels of one layer: at least `count` floats, contents undefined, valid
    // until the next call. It grows and never shrinks.
    float* scratch(int64_t count) {
        if (scratch_count_ < count) {
            wait_for_ranks();
            scratch_ = nullptr;  // frees the old memory before the new is allocated
            scratch_count_ = 0;  // remains 0 if the allocation fails
            ++scratch_age_;
            scratch_ = cuda_allocate<float>(count);
            scratch_count_ = count;
        }
        return scratch_.get();
    }
    int64_t scratch_age() const { return scratch_age_; }  // changes when scratch memory moves

private:
    // Until a query returns something else than cudaErrorNotReady.
    template <class Query>
    void poll(const Query& query, const char* what) const {
        using namespace std::chrono;
        const auto begin = steady_clock::now();
        for (;;) {
            const cudaError_t state = query();
            if (state != cudaErrorNotReady) return cuda_check(state, what);
            cudaGetLastError();  // clears the state, which the next launch would report as its error
            const double seconds = duration<double>(steady_clock::now() - begin).count();
            check_ranks(seconds);
            // With the kernel's timer slack a sleep takes up to 0.14 ms, which is 0.14 % of the wait so far.
            if (seconds > 0.1)
                std::this_thread::sleep_for(microseconds(50));
            else
                std::this_thread::yield();
        }
    }

    CudaBuffer<float> scratch_;
    int64_t scratch_count_ = 0, scratch_age_ = 0;
};

// --- profile: layers are timed by events on the stream, before and after their kernels, so that nothing waits for them
struct CudaTiming {
    CudaEvent begin{cudaEventDefault}, end{cudaEventDefault};
    const char* name = nullptr;
    double flops = 0, bytes = 0;
};
struct CudaTimings {
    std::deque<CudaTiming> calls;  // a deque, so that calls keep their addresses; they are reused
    size_t used = 0;
};

// Returns null if the call is not timed.
inline CudaTiming* timing_begin(Cuda& dev, const char* name) {
    nvtxRangePushA(name);
    if (!dev.profile || !dev.profile->running()) return nullptr;
    if (!dev.timings) dev.timings = std::make_shared<CudaTimings>();
    CudaTimings& t = *dev.timings;
    if (t.used == t.calls.size()) t.calls.emplace_back();
    CudaTiming* const timing = &t.calls[t.used++];
    cuda_check(cudaEventRecord(timing->begin.event, dev.stream), "cudaEventRecord");
    return timing;
}
inline void timing_end(Cuda& dev, CudaTiming* timing, const char* name, double flops, double bytes) {
    if (timing) {
        cudaEventRecord(timing->end.event, dev.stream);  // if this fails, so does reading the time
        timing->name = name, timing->flops = flops, timing->bytes = bytes;
    }
    nvtxRangePop();
}

// Adds the timings to the profile. Called after the stream has been synchronized.
inline void read_timings(Cuda& dev) {
    if (!dev.timings) return;
    const size_t used = std::exchange(dev.timings->used, 0);
    for (size_t i = 0; i < used && dev.profile; ++i) {
        const CudaTiming& call = dev.timings->calls[i];
        float milliseconds = 0;
        cuda_check(cudaEventElapsedTime(&milliseconds, call.begin.event, call.end.event), "cudaEventElapsedTime");
        dev.profile->add(call.name, static_cast<double>(milliseconds) / 1e3, call.flops, call.bytes);
    }
}

// What a model needs from its device besides the layers, as in device/device.h.
template <class T>
void zero(Cuda& dev, T* x, int64_t n) {
    cuda_check(cudaMemsetAsync(x, 0, static_cast<size_t>(n) * sizeof(T), dev.stream), "cudaMemset");
}

// `count` zeroed elements in device memory.
template <class T>
CudaBuffer<T> allocate(Cuda& dev, int64_t count) {
    CudaBuffer<T> buffer = cuda_allocate<T>(count);
    zero(dev, buffer.get(), count);
    return buffer;
}

// out (n) = x, both in device memory
template <class T>
void copy(Cuda& dev, T* out, const T* x, int64_t n) {
    const Timed timed(dev, "copy", 0, prod(n, 2 * sizeof(T)));
    cuda_check(cudaMemcpyAsync(out, x, static_cast<size_t>(n) * sizeof(T), cudaMemcpyDeviceToDevice, dev.stream),
               "cudaMemcpyAsync");
}

// out (n) = x (n), one of them in the host's memory. On a GPU, errors of earlier launches may be reported here.
template <class T>
void copy_and_wait(Cuda& dev, T* out, const T* x, int64_t n, cudaMemcpyKind kind) {
    dev.wait_for_ranks();
    cuda_check(cudaMemcpyAsync(out, x, static_cast<size_t>(n) * sizeof(T), kind, dev.stream), "cudaMemcpy");
    dev.wait();
}
// x (n) in device memory = host (n)
template <class T>
void to_device(Cuda& dev, T* x, const T* host, int64_t n) {
    copy_and_wait(dev, x, host, n, cudaMemcpyHostToDevice);
}
// host (n) = x (n) in device memory
template <class T>
void copy_to_host(Cuda& dev, T* host, const T* x, int64_t n) {
    copy_and_wait(dev, host, x, n, cudaMemcpyDeviceToHost);
}
template <class T>
std::vector<T> to_host(Cuda& dev, const T* x, int64_t n) {
    std::vector<T> host(static_cast<size_t>(n));
    copy_to_host(dev, host.data(), x, n);
    return host;
}

template <class T>
void to_host(Cuda& dev, float* out, const T* x, int64_t n) {
    const std::vector<T> host = to_host(dev, x, n);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(host[static_cast<size_t>(i)]);
}

// The sum in double, in order.
template <class T>
double sum(Cuda& dev, const T* x, int64_t n) {
    double total = 0;
    for (const T value : to_host(dev, x, n)) total += static_cast<double>(static_cast<float>(value));
    return total;
}

// --- numbers
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(unsigned{x.bits} << 16); }
template <class T>
__device__ __forceinline__ T from_float(float x) {  // to nearest, ties to even
    if constexpr (std::is_same_v<T, bf16>) {
        bf16 y;
#ifdef __CUDACC__
        y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
        y.bits = bf16_from_float(x);
#endif
        return y;
    } else {
        return x;
    }
}

// --- memory: V values next to each other in one access
template <class T>
constexpr int packed = 16 / static_cast<int>(sizeof(T));  // as many as the widest access takes

// Loads V values, where V is 1, or p is aligned to 16 bytes and V values fill a multiple of 16 bytes. load_once marks
// the line as the first to be evicted, because it will not be read again soon.
template <int V, bool once = false, class T>
__device__ __forceinline__ void load(float (&x)[V], const T* p) {
    if constexpr (V == 1) {
        x[0] = to_float(*p);
    } else {
        static_assert(V % packed<T> == 0);
        T values[V];
        UNROLL for (int v = 0; v < V; v += packed<T>) {
            const int4* const source = reinterpret_cast<const int4*>(p + v);
            const int4 bits = once ? __ldcs(source) : __ldca(source);
            memcpy(values + v, &bits, sizeof bits);
        }
        UNROLL for (int v = 0; v < V; ++v) x[v] = to_float(values[v]);
    }
}
template <int V, class T>
__device__ __forceinline__ void load_once(float (&x)[V], const T* p) {
    load<V, true>(x, p);
}
// x = p[i] …, or `otherwise` if p is null.
template <int V, class T>
__device__ __forceinline__ void load_or(float (&x)[V], const T* p, int64_t i, float otherwise) {
    if (p)
        load(x, p + i);
    else
        UNROLL for (int v = 0; v < V; ++v) x[v] = otherwise;
}
template <int V, class T>
__device__ __forceinline__ void store(T* p, const float (&x)[V]) {
    if constexpr (V == 1) {
        *p = from_float<T>(x[0]);
    } else {
        static_assert(V % packed<T> == 0);
        T values[V];
        UNROLL for (int v = 0; v < V; ++v) values[v] = from_float<T>(x[v]);
        UNROLL for (int v = 0; v < V; v += packed<T>) {
            int4 bits;
            memcpy(&bits, values + v, sizeof bits);
            __stwb(reinterpret_cast<int4*>(p + v), bits);
        }
    }
}
// Whether rows of C values of T can be read and written 16 bytes at a time.
template <class T, class... Pointer>
bool can_pack(int64_t C, const Pointer*... tensors) {
    return C % packed<T> == 0 && (... && (reinterpret_cast<uintptr_t>(tensors) % 16 == 0));
}

// --- elementwise kernels
constexpr int elements_block = 256;
// Calls f<V>(i) for the thread's own V values from i on, or f<1>(i) for one of the last n % V values. launch_elements
// gives the number of threads.
template <int V, class F>
__device__ __forceinline__ void each_element(int64_t n, const F& f) {
    const int64_t thread = int64_t{blockIdx.x} * elements_block + threadIdx.x, vectors = n / V;
    if (thread < vectors) {
        f.template operator()<V>(thread * V);
    } else if constexpr (V > 1) {
        const int64_t i = vectors * V + (thread - vectors);
        if (i < n) f.template operator()<1>(i);
    }
}
// Calls launch<V>(blocks); V is 1 if one of the tensors is not aligned. T is the narrowest type that they are stored
// in.
template <class T, class Launch, class... Pointer>
void launch_elements(int64_t n, const Launch& launch, const Pointer*... tensors) {
    const auto with = [&]<int V>() {
        const int64_t threads = n / V + n % V;
        launch.template operator()<V>(static_cast<unsigned>((threads + elements_block - 1) / elements_block));
    };
    if (n == 0) return;
    if (can_pack<T>(packed<T>, tensors...))
        with.template operator()<packed<T>>();
    else
        with.template operator()<1>();
}

template <int V>
__global__ void __launch_bounds__(elements_block)
    add_kernel(float* __restrict__ x, const float* __restrict__ y, int64_t n) {
    each_element<V>(n, [&]<int W>(int64_t i) {
        float sum[W], more[W];
        load_once<W>(sum, x + i);
        load_once<W>(more, y + i);
        UNROLL for (int w = 0; w < W; ++w) sum[w] += more[w];
        store(x + i, sum);
    });
}

// x (n) += y, both in device memory
inline void add(Cuda& dev, float* x, const float* y, int64_t n) {
    const Timed timed(dev, "add", 0, prod(n, 3 * sizeof(float)));
    launch_elements<float>(
        n, [&]<int V>(unsigned blocks) { LAUNCH((add_kernel<V>), blocks, elements_block, 0, dev.stream, x, y, n); }, x,
        y);
}

// --- sums of a fixed shape: the same bits at every run
// The sum over a warp, in every lane.
__device__ __forceinline__ float warp_sum(float x) {
    UNROLL for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}
// x[i] = the sum of x[i] over the WARPS warps with the same threadIdx.y, in each of their threads. Every thread of the
// block calls it; scratch is shared memory, separate for each threadIdx.y, that nothing else uses until the next
// barrier.
template <int WARPS, int COUNT>
__device__ __forceinline__ void group_sum(float (&x)[COUNT], float (&scratch)[COUNT][WARPS]) {
    UNROLL for (int i = 0; i < COUNT; ++i) x[i] = warp_sum(x[i]);
    if constexpr (WARPS > 1) {
        if (threadIdx.x % 32 == 0) UNROLL for (int i = 0; i < COUNT; ++i) scratch[i][threadIdx.x / 32] = x[i];
        __syncthreads();
        UNROLL for (int i = 0; i < COUNT; ++i) {
            x[i] = 0;
            UNROLL for (int warp = 0; warp < WARPS; ++warp) x[i] += scratch[i][warp];
        }
    }
}
