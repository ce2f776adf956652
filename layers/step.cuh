// What a training step needs of the Cuda device beside the layers: a stream, batches that arrive while the GPU still
// computes, launches recorded as graphs, and the state's way to the host and back.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "layers/cuda_common.cuh"

// Pinned memory, which a GPU copies from by itself.
template <class T>
struct PinnedBuffer {
    T* data = nullptr;
    explicit PinnedBuffer(int64_t count) {
        cuda_check(cudaMallocHost(&data, static_cast<size_t>(count) * sizeof(T)), "cudaMallocHost");
    }
    PinnedBuffer(const PinnedBuffer&) = delete;
    ~PinnedBuffer() { cudaFreeHost(data); }
};

struct CudaStream {
    cudaStream_t stream = nullptr;
    CudaStream() { cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
    CudaStream(const CudaStream&) = delete;
    ~CudaStream() { cudaStreamDestroy(stream); }
};

// Batches travel on a stream of their own into one of two slots, and from there, on the stream that computes, to where
// the layers read them, which is the same for all of them: a graph knows its addresses.
struct BatchFeed {
    struct Slot {
        PinnedBuffer<int32_t> host;
        CudaBuffer<int32_t> device;
        CudaEvent arrived, read;
        explicit Slot(int64_t count) : host(count), device(cuda_allocate<int32_t>(count)) {}
    };
    int64_t capacity;  // tokens of x, and of y
    CudaBuffer<int32_t> tokens;
    Slot first, second;
    CudaStream copies;
    bool turn = false;
    int64_t count = 0;  // tokens of x in the newest batch

    explicit BatchFeed(int64_t n) : capacity(n), tokens(cuda_allocate<int32_t>(2 * n)), first(2 * n), second(2 * n) {}

    Slot& newest() { return turn ? first : second; }
    bool newest_is(const int32_t* x, const int32_t* y, int64_t n) {
        const int32_t* const tokens_sent = newest().host.data;
        return n == count && std::equal(x, x + n, tokens_sent) && std::equal(y, y + n, tokens_sent + n);
    }
    // Into `tokens`, before all that is launched on `compute` from now on. The host waits for no more than the copy of
    // the batch before the last.
    void send(const int32_t* x, const int32_t* y, int64_t n, cudaStream_t compute) {
        turn = !turn, count = n;
        Slot& slot = newest();
        const size_t bytes = static_cast<size_t>(n) * sizeof(int32_t);
        cuda_check(cudaEventSynchronize(slot.arrived.event), "cudaEventSynchronize");
        std::memcpy(slot.host.data, x, bytes);
        std::memcpy(slot.host.data + n, y, bytes);
        cuda_check(cudaStreamWaitEvent(copies.stream, slot.read.event), "cudaStreamWaitEvent");
        cuda_check(cudaMemcpyAsync(slot.device.get(), slot.host.data, 2 * bytes, cudaMemcpyHostToDevice, copies.stream),
                   "cudaMemcpyAsync");
        cuda_check(cudaEventRecord(slot.arrived.event, copies.stream), "cudaEventRecord");
        cuda_check(cudaStreamWaitEvent(compute, slot.arrived.event), "cudaStreamWaitEvent");
        cuda_check(cudaMemcpyAsync(tokens.get(), slot.device.get(), 2 * bytes, cudaMemcpyDeviceToDevice, compute),
                   "cudaMemcpyAsync");
        cuda_check(cudaEventRecord(slot.read.event, compute), "cudaEventRecord");
    }
};

// Launches under one key. No graph: they have run once, so that all memory that they need is there.
struct Recording {
    int64_t scratch_age;  // of the memory whose addresses the graph holds
    cudaGraphExec_t graph = nullptr;
    explicit Recording(int64_t age) : scratch_age(age) {}
    Recording(const Recording&) = delete;
    ~Recording() {
        if (graph) cudaGraphExecDestroy(graph);
    }
};

struct CudaStep {
    CudaStream compute;
    std::optional<BatchFeed> feed;
    std::shared_ptr<struct SettingsFeed> settings;  // of updates (layers/step_settings.cuh)
    std::map<ReplayKey, Recording> recordings;
};

// The device for a model: its own stream, which graphs can be recorded from.
inline Cuda cuda_for_training() {
    Cuda dev;
    dev.step = std::make_shared<CudaStep>();
    dev.stream = dev.step->compute.stream;
    return dev;
}

// x and y (n) in device memory for what is launched from now on; the host's are free at once. The GPU may still work on
// the batch before. Of the same batch twice in a row the second finds what the first sent: so one is fetched ahead.
inline std::pair<const int32_t*, const int32_t*> batch_for(Cuda& dev, const int32_t* x, const int32_t* y, int64_t n) {
    std::optional<BatchFeed>& feed = dev.step->feed;
    if (!feed || feed->capacity < n) {
        cuda_check(cudaStreamSynchronize(dev.stream), "cudaStreamSynchronize");
        dev.step->recordings.clear();
        feed.emplace(n);
    }
    if (!feed->newest_is(x, y, n)) feed->send(x, y, n, dev.stream);
    return {feed->tokens.get(), feed->tokens.get() + n};
}

// f's launches: the first time as they come, the second time recorded as a graph, from then on that graph.
template <class F>
void replay(Cuda& dev, const ReplayKey& key, const F& f) {
    if (dev.profile) return f();
    auto& recordings = dev.step->recordings;
    auto it = recordings.find(key);
    if (it != recordings.end() && it->second.scratch_age != dev.scratch_age()) {
        recordings.erase(it);
        it = recordings.end();
    }
    if (it == recordings.end()) {
        f();
        recordings.try_emplace(key, dev.scratch_age());
        return;
    }
    Recording& recording = it->second;
    if (!recording.graph) {
        cudaGraph_t graph = nullptr;
        cuda_check(cudaStreamBeginCapture(dev.stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        f();
        cuda_check(cudaStreamEndCapture(dev.stream, &graph), "cudaStreamEndCapture");
        const cudaError_t error = cudaGraphInstantiate(&recording.graph, graph, 0);
        cudaGraphDestroy(graph);
        cuda_check(error, "cudaGraphInstantiate");
    }
    cuda_check(cudaGraphLaunch(recording.graph, dev.stream), "cudaGraphLaunch");
}

// *x, which the host waits for.
template <class T>
T to_host(Cuda& dev, const T* x) {
    T value;
    cuda_check(cudaMemcpyAsync(&value, x, sizeof value, cudaMemcpyDeviceToHost, dev.stream), "cudaMemcpy");
    cuda_check(cudaStreamSynchronize(dev.stream), "cudaStreamSynchronize");
    return value;
}
// The same, and zero it; with it come the layers' times.
template <class T>
T take(Cuda& dev, T* x) {
    const T value = to_host(dev, x);
    read_timings(dev);
    zero(dev, x, 1);
    return value;
}

// A copy of x (n), which may be null, in host memory that stays where it is; and the way back.
inline float* from_device(Cuda& dev, float* x, int64_t n, std::vector<float>& copy) {
    if (!x) return nullptr;
    copy.resize(static_cast<size_t>(n));
    cuda_check(cudaMemcpyAsync(copy.data(), x, copy.size() * sizeof(float), cudaMemcpyDeviceToHost, dev.stream),
               "cudaMemcpy");
    cuda_check(cudaStreamSynchronize(dev.stream), "cudaStreamSynchronize");
    return copy.data();
}
inline void to_device(Cuda& dev, float* x, const std::vector<float>& copy) {
    if (x && !copy.empty()) to_device(dev, x, copy.data(), static_cast<int64_t>(copy.size()));
}
