// What a training step needs of the Cuda device besides the layers: a stream, batches that are copied while the GPU
// computes, launches recorded as graphs, and copies of the state to the host and back.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "device/cuda/common.cuh"
#include "device/random.h"
#include "device/update.h"

// Pinned memory: a GPU copies from it asynchronously.
template <class T>
struct PinnedBuffer {
    T* data = nullptr;
    explicit PinnedBuffer(int64_t count) {
        cuda_check(cudaMallocHost(&data, static_cast<size_t>(count) * sizeof(T)), "cudaMallocHost");
    }
    PinnedBuffer(const PinnedBuffer&) = delete;
    ~PinnedBuffer() { cudaFreeHost(data); }
};

// A batch is copied on a stream of its own into one of two slots. From there the compute stream copies it to `tokens`,
// where the layers read it: a recorded graph always reads the same addresses.
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
    int64_t count = 0;     // tokens of x in the newest batch
    bool is_sent = false;  // the newest batch is in its slot, or on the way there, and not yet in `tokens`

    explicit BatchFeed(int64_t n) : capacity(n), tokens(cuda_allocate<int32_t>(2 * n)), first(2 * n), second(2 * n) {}
    ~BatchFeed() { cudaStreamSynchronize(copies.stream); }  // its copies read the slots

    Slot& newest() { return turn ? first : second; }
    bool newest_is(const int32_t* x, const int32_t* y, int64_t n) {
        const int32_t* const tokens_sent = newest().host.data;
        return n == count && std::equal(x, x + n, tokens_sent) && std::equal(y, y + n, tokens_sent + n);
    }
    // Starts the copy to a slot. The host waits only until the slot's previous batch has arrived.
    void send(const Cuda& dev, const int32_t* x, const int32_t* y, int64_t n) {
        turn = !turn, count = n, is_sent = true;
        Slot& slot = newest();
        const size_t bytes = static_cast<size_t>(n) * sizeof(int32_t);
        dev.wait(slot.arrived);
        std::memcpy(slot.host.data, x, bytes);
        std::memcpy(slot.host.data + n, y, bytes);
        cuda_check(cudaStreamWaitEvent(copies.stream, slot.read.event), "cudaStreamWaitEvent");
        cuda_check(cudaMemcpyAsync(slot.device.get(), slot.host.data, 2 * bytes, cudaMemcpyHostToDevice, copies.stream),
                   "cudaMemcpyAsync");
        cuda_check(cudaEventRecord(slot.arrived.event, copies.stream), "cudaEventRecord");
    }
    // Copies the newest batch into `tokens`, before all later launches on `compute`. Only here does that stream wait
    // for the batch, so launches between send() and this call do not.
    void use_newest(cudaStream_t compute) {
        if (!std::exchange(is_sent, false)) return;
        Slot& slot = newest();
        cuda_check(cudaStreamWaitEvent(compute, slot.arrived.event), "cudaStreamWaitEvent");
        cuda_check(cudaMemcpyAsync(tokens.get(), slot.device.get(), 2 * static_cast<size_t>(count) * sizeof(int32_t),
                                   cudaMemcpyDeviceToDevice, compute),
                   "cudaMemcpyAsync");
        cuda_check(cudaEventRecord(slot.read.event, compute), "cudaEventRecord");
    }
};

// The launches of one key. Without a graph they have run once, which allocated all the memory that they need.
struct Recording {
    int64_t scratch_age;  // the age of the scratch memory whose addresses the graph holds
    cudaGraphExec_t graph = nullptr;
    explicit Recording(int64_t age) : scratch_age(age) {}
    Recording(const Recording&) = delete;
    ~Recording() {
        if (graph) cudaGraphExecDestroy(graph);
    }
};

// The newest params, and where the host writes them for the copy to the GPU.
template <class Params>
struct ParamsFeed {
    PinnedBuffer<Params> host{1};
    CudaBuffer<Params> device = cuda_allocate<Params>(1);
    CudaEvent copied;  // the GPU has read `host`
};

struct CudaStep {
    CudaStream compute;
    std::optional<BatchFeed> feed;
    ParamsFeed<UpdateParams> update_params;
    ParamsFeed<BatchPlace> batch_place;
    std::map<ReplayKey, Recording> recordings;
};

// The device for a model. It has its own stream, because launches on the default stream cannot be captured.
inline Cuda cuda_for_training() {
    Cuda dev;
    dev.step = std::make_shared<CudaStep>();
    dev.stream = dev.step->compute.stream;
    return dev;
}

// Starts the copy of x and y (n), with which batch_for will be called next. x and y may be reused at once. The GPU may
// still compute the batch before, and no launch before that call of batch_for waits for the copy.
inline void prefetch_batch(Cuda& dev, const int32_t* x, const int32_t* y, int64_t n) {
    std::optional<BatchFeed>& feed = dev.step->feed;
    if (!feed || feed->capacity < n) {
        dev.wait();
        dev.step->recordings.clear();
        feed.emplace(n);
    }
    if (!feed->newest_is(x, y, n)) feed->send(dev, x, y, n);
}

// Returns x and y (n) in device memory, for the launches that follow. The host's x and y may be reused at once. A batch
// that prefetch_batch or this function sent last is not sent again.
inline std::pair<const int32_t*, const int32_t*> batch_for(Cuda& dev, const int32_t* x, const int32_t* y, int64_t n) {
    prefetch_batch(dev, x, y, n);
    BatchFeed& feed = *dev.step->feed;
    feed.use_newest(dev.stream);
    return {feed.tokens.get(), feed.tokens.get() + n};
}

// The params in device memory, for what is launched from now on; the address is always the same. The copy follows the
// launches before it on the stream, which read the values that it overwrites.
template <class Params>
const Params* copied_to_device(Cuda& dev, ParamsFeed<Params>& feed, const Params& params) {
    dev.wait(feed.copied);  // of the params before: mostly long done
    *feed.host.data = params;
    cuda_check(cudaMemcpyAsync(feed.device.get(), feed.host.data, sizeof params, cudaMemcpyHostToDevice, dev.stream),
               "cudaMemcpyAsync");
    cuda_check(cudaEventRecord(feed.copied.event, dev.stream), "cudaEventRecord");
    return feed.device.get();
}
inline const UpdateParams* on_device(Cuda& dev, const UpdateParams& params) {
    return copied_to_device(dev, dev.step->update_params, params);
}
inline const BatchPlace* on_device(Cuda& dev, const BatchPlace& place) {
    return copied_to_device(dev, dev.step->batch_place, place);
}

// Captures the launches on a stream until end(). If an exception leaves its scope first, the capture ends and the
// launches are lost.
class StreamCapture {
public:
    explicit StreamCapture(cudaStream_t stream) : stream_(stream) {
        cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    }
    StreamCapture(const StreamCapture&) = delete;
    ~StreamCapture() {
        if (!capturing_) return;
        cudaGraph_t graph = nullptr;
        cudaStreamEndCapture(stream_, &graph);
        if (graph) cudaGraphDestroy(graph);
        cudaGetLastError();  // clears the error: otherwise the next launch would seem to have failed
    }
    // Returns the captured launches as a graph.
    cudaGraphExec_t end() {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        capturing_ = false;
        cuda_check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
        const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
        cudaGraphDestroy(graph);
        cuda_check(error, "cudaGraphInstantiate");
        return executable;
    }

private:
    cudaStream_t stream_;
    bool capturing_ = true;
};

// The first call of a key runs f. The second one records f's launches as a graph, which it and all later calls launch.
// If the recording fails, the next call counts as the first again.
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
        try {
            StreamCapture capture(dev.stream);
            f();
            recording.graph = capture.end();
        } catch (...) {
            recordings.erase(it);
            throw;
        }
    }
    cuda_check(cudaGraphLaunch(recording.graph, dev.stream), "cudaGraphLaunch");
}

// Returns *x; the host waits for it.
template <class T>
T to_host(Cuda& dev, const T* x) {
    T value;
    copy_to_host(dev, &value, x, 1);
    return value;
}
// The same, then zeroes *x. Since the host has waited, the layers' times can be read too.
template <class T>
T take(Cuda& dev, T* x) {
    const T value = to_host(dev, x);
    read_timings(dev);
    zero(dev, x, 1);
    return value;
}

// Returns memory of the host for x (n), owned by `copy`, and, for from_device, a copy of x there.
inline float* host_room(Cuda&, float*, int64_t n, HostBuffer<float>& copy) {
    copy = host_allocate<float>(n);
    return copy.get();
}
inline float* from_device(Cuda& dev, float* x, int64_t n, HostBuffer<float>& copy) {
    host_room(dev, x, n, copy);
    copy_to_host(dev, copy.get(), x, n);
    return copy.get();
}
