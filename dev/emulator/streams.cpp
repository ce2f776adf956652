// Streams, events and graphs. Work on the null stream is done at once, after the work of all blocking streams. Work on
// another stream is queued. It is done when something waits for it, and before that a few pieces at random moments, in
// a random order of the streams. So a host that reads or reuses memory too early, and a stream that does not wait for
// another's event, get wrong numbers for some emulator::seed.
// A stream that is being captured does nothing: its work becomes part of the graph, with its current arguments, and is
// queued by each cudaGraphLaunch. A capture is of one stream; others cannot join it here.
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dev/emulator/access.h"
#include "dev/emulator/cuda_on_cpu.h"
#include "dev/emulator/memory.h"

using emulator::Internal;
using Task = std::function<void()>;

struct EmulatedGraph {
    std::vector<Task> nodes;
};
struct EmulatedGraphExec {
    std::vector<Task> nodes;
};

namespace {

struct Capture {
    cudaStreamCaptureMode mode;
    bool invalid = false;
    std::vector<Task> nodes;
};

struct Recording {  // of an event; a time is the number of recordings so far
    uint64_t recorded = 0, done = 0;
    std::chrono::steady_clock::time_point clock;  // when it was last done
    std::weak_ptr<Capture> capture;               // that it was last recorded in
    bool captured() const { return !capture.expired(); }
};

struct Piece {
    Task work;
    std::shared_ptr<Recording> waits_for;
    uint64_t time;  // of the recording
    bool ready() const { return !waits_for || waits_for->done >= time; }
};

}  // namespace

struct EmulatedStream {
    bool blocking;
    std::deque<Piece> pending;
    std::shared_ptr<Capture> capture;
};
struct EmulatedEvent {
    std::shared_ptr<Recording> recording;
    bool timing;
};

static std::recursive_mutex mutex;
static std::vector<EmulatedStream*> streams;
static std::exception_ptr late;  // an error in a function that must not throw; the next one that may throws it
#define LOCKED const std::lock_guard lock(mutex)

static uint64_t random_below(size_t n) {
    static uint64_t seeded_by = 0, state = 1;
    if (seeded_by != emulator::seed) seeded_by = emulator::seed, state = emulator::seed * 0x9E3779B97F4A7C15 | 1;
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;  // xorshift64*
    return (state * 0x2545F4914F6CDD1D >> 32) % n;
}

static bool is_ready(const EmulatedStream& s) { return !s.pending.empty() && s.pending.front().ready(); }
static void do_next_piece(EmulatedStream& s) {
    Task work;
    {
        const Internal scope;
        work = std::move(s.pending.front().work);
        s.pending.pop_front();
    }
    if (work) work();
}

// Does the next piece of a random stream among those that have one and need not wait. Returns false if there is none.
static bool do_a_piece() {
    EmulatedStream* stream = nullptr;
    {
        const Internal scope;
        std::vector<EmulatedStream*> ready;
        for (EmulatedStream* s : streams)
            if (is_ready(*s)) ready.push_back(s);
        if (ready.empty()) return false;
        stream = ready[random_below(ready.size())];
    }
    do_next_piece(*stream);
    return true;
}

template <class Condition>
static void work_until(const Condition& condition) {
    if (late) std::rethrow_exception(std::exchange(late, nullptr));
    while (!condition())
        if (!do_a_piece()) throw emulator::Error("streams wait for each other");
}
// For the null stream: whether all blocking ones are done.
static bool is_done(cudaStream_t stream) {
    if (stream) return stream->pending.empty();
    return std::all_of(streams.begin(), streams.end(), [](auto* s) { return !s->blocking || s->pending.empty(); });
}
static void finish(cudaStream_t stream) {
    work_until([&] { return is_done(stream); });
}
static void finish_all() {
    work_until([] { return std::all_of(streams.begin(), streams.end(), [](auto* s) { return s->pending.empty(); }); });
}
// For functions that must not throw.
static void finish_all_quietly() {
    try {
        finish_all();
    } catch (...) {
        late = std::current_exception();
    }
}

// Invalidates the captures for which `of` is true. Returns whether there was one.
template <class Predicate>
static bool invalidate(const Predicate& of) {
    bool any = false;
    for (EmulatedStream* s : streams)
        if (s->capture && of(*s)) any = s->capture->invalid = true;
    return any;
}
// Calls that allocate or make the host wait are forbidden while any stream is being captured, unless "relaxed".
static bool forbidden() {
    return invalidate([](const EmulatedStream& s) { return s.capture->mode != cudaStreamCaptureModeRelaxed; });
}

static cudaError_t give(EmulatedStream* stream, Task work, std::shared_ptr<Recording> waits_for = nullptr,
                        uint64_t time = 0) {
    if (!stream) {
        if (invalidate([](const EmulatedStream& s) { return s.blocking; })) return cudaErrorStreamCaptureImplicit;
        finish(nullptr);
        if (waits_for) work_until([&] { return waits_for->done >= time; });
        if (work) work();
        return cudaSuccess;
    }
    if (stream->capture) {
        if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
        const Internal scope;
        stream->capture->nodes.push_back(std::move(work));
        return cudaSuccess;
    }
    {
        const Internal scope;
        stream->pending.push_back({std::move(work), std::move(waits_for), time});
    }
    if (late) std::rethrow_exception(std::exchange(late, nullptr));
    while (random_below(2) && do_a_piece()) {
    }
    return cudaSuccess;
}

void emulator::enqueue(cudaStream_t stream, Task work) {
    LOCKED;
    const cudaError_t e = give(stream, std::move(work));
    if (e != cudaSuccess) throw Error(cudaGetErrorString(e));
}

bool emulator::finish_alone(cudaStream_t stream) {
    LOCKED;
    while (is_ready(*stream)) do_next_piece(*stream);
    return stream->pending.empty();
}

static int held = 0;  // streams, by hold()
static void release(Recording& r) {
    LOCKED;
    r.done = r.recorded;
    --held;
}
std::function<void()> emulator::hold(cudaStream_t stream) {
    LOCKED;
    const auto released = std::make_shared<Recording>();
    give(stream, nullptr, released, ++released->recorded);
    ++held;
    return [released] { release(*released); };
}

// --- memory
cudaError_t cudaMalloc(void** p, size_t bytes) {
    LOCKED;
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    return (*p = emulator::device_allocate(bytes)) ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void* p) {
    LOCKED;
    if (!p) return cudaSuccess;
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    finish_all_quietly();
    return emulator::device_free(p) ? cudaSuccess : cudaErrorInvalidValue;
}

static std::map<const char*, size_t> pinned;
static bool is_pinned(const void* p, size_t bytes) {
    const auto after = pinned.upper_bound(static_cast<const char*>(p));
    if (after == pinned.begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return static_cast<const char*>(p) + bytes <= begin + size;
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
    LOCKED;
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    *p = std::aligned_alloc(emulator::page, (bytes + emulator::page - 1) / emulator::page * emulator::page);
    if (!*p) return cudaErrorMemoryAllocation;
    emulator::poison(*p, bytes);
    pinned[static_cast<const char*>(*p)] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void* p) {
    LOCKED;
    if (!p) return cudaSuccess;
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    if (!pinned.contains(static_cast<const char*>(p))) return cudaErrorInvalidValue;
    finish_all_quietly();
    pinned.erase(static_cast<const char*>(p));
    std::free(p);
    return cudaSuccess;
}

static bool to_device(cudaMemcpyKind k) { return k == cudaMemcpyHostToDevice || k == cudaMemcpyDeviceToDevice; }
static bool from_device(cudaMemcpyKind k) { return k == cudaMemcpyDeviceToHost || k == cudaMemcpyDeviceToDevice; }
static void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (!emulator::can_copy(to, from, bytes, to_device(kind), from_device(kind)))
        throw emulator::Error("cudaMemcpyAsync: the memory was freed before the copy");
    emulator::copy(to, from, bytes, to_device(kind));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    LOCKED;
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}

// Pageable memory may be reused as soon as the call has returned, as on a GPU.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    LOCKED;
    if (bytes == 0) return cudaSuccess;
    if (!emulator::can_copy(to, from, bytes, to_device(kind), from_device(kind))) return cudaErrorInvalidValue;
    const bool waits = stream && !stream->capture;
    if (waits && kind == cudaMemcpyHostToDevice && !is_pinned(from, bytes)) {
        if (held) finish(stream);  // CUDA may wait here; otherwise tests are to find a host that relies on it
        const char* const begin = static_cast<const char*>(from);
        return give(stream,
                    [=, host = std::vector<char>(begin, begin + bytes)] { copy(to, host.data(), bytes, kind); });
    }
    const cudaError_t e = give(stream, [=] { copy(to, from, bytes, kind); });
    if (waits && kind == cudaMemcpyDeviceToHost && !is_pinned(to, bytes)) finish(stream);
    return e;
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
    LOCKED;
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    return cudaMemsetAsync(p, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
    LOCKED;
    if (bytes == 0) return cudaSuccess;
    if (!emulator::allocation_fault(p, bytes).empty()) return cudaErrorInvalidValue;
    return give(stream, [=] {
        if (!emulator::fill(p, value, bytes))
            throw emulator::Error("cudaMemsetAsync: the memory was freed before it was set");
    });
}

// --- streams and events
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    LOCKED;
    *stream = new EmulatedStream{flags != cudaStreamNonBlocking, {}, nullptr};
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    LOCKED;
    if (!stream) return cudaErrorInvalidResourceHandle;
    finish_all_quietly();
    std::erase(streams, stream);
    delete stream;
    return cudaSuccess;
}

// Invalidates the captures that a wait for the stream would have to wait for. Returns whether there was one.
static bool forbids_wait(cudaStream_t stream) {
    return stream ? stream->capture && (stream->capture->invalid = true)
                  : invalidate([](const EmulatedStream& s) { return s.blocking; });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    LOCKED;
    if (forbids_wait(stream)) return cudaErrorStreamCaptureUnsupported;
    finish(stream);
    return cudaSuccess;
}

// A host that queries again and again sees the work go on.
template <class Condition>
static cudaError_t query(const Condition& condition) {
    if (late) std::rethrow_exception(std::exchange(late, nullptr));
    do {
        if (condition()) return cudaSuccess;
        if (!do_a_piece() && !held) throw emulator::Error("streams wait for each other");
    } while (random_below(2));
    return cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    LOCKED;
    if (forbids_wait(stream)) return cudaErrorStreamCaptureUnsupported;
    return query([&] { return is_done(stream); });
}

cudaError_t cudaDeviceSynchronize() {
    LOCKED;
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    finish_all();
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    *event = new EmulatedEvent{std::make_shared<Recording>(), flags != cudaEventDisableTiming};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    LOCKED;
    const std::shared_ptr<Recording> r = event->recording;
    r->capture = {};
    if (stream && stream->capture) {
        if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
        r->capture = stream->capture;
        return cudaSuccess;
    }
    return give(stream, [r, time = ++r->recorded] { r->done = time, r->clock = std::chrono::steady_clock::now(); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    LOCKED;
    const Recording& r = *event->recording;
    if (stream && stream->capture) {
        if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
        if (r.capture.lock() == stream->capture) return cudaSuccess;
        stream->capture->invalid = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (r.captured()) return cudaErrorNotSupported;  // the stream would join the capture
    return give(stream, nullptr, event->recording, r.recorded);
}

static bool is_done(const Recording& r) { return r.done >= r.recorded; }

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    LOCKED;
    if (event->recording->captured()) return cudaErrorCapturedEvent;
    work_until([&] { return is_done(*event->recording); });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    LOCKED;
    if (event->recording->captured()) return cudaErrorCapturedEvent;
    return query([&] { return is_done(*event->recording); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    LOCKED;
    for (const cudaEvent_t event : {from, to}) {
        const Recording& r = *event->recording;
        if (r.captured()) return cudaErrorCapturedEvent;
        if (r.recorded == 0 || !event->timing) return cudaErrorInvalidResourceHandle;
        if (!is_done(r)) return cudaErrorNotReady;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(to->recording->clock - from->recording->clock).count();
    return cudaSuccess;
}

// --- graphs
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    LOCKED;
    if (!stream) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture) return cudaErrorIllegalState;
    stream->capture = std::make_shared<Capture>(Capture{mode, false, {}});
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    LOCKED;
    *graph = nullptr;
    if (!stream || !stream->capture) return cudaErrorIllegalState;
    const std::shared_ptr<Capture> capture = std::move(stream->capture);
    stream->capture = nullptr;
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    *graph = new EmulatedGraph{std::move(capture->nodes)};
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    LOCKED;
    *status = !stream || !stream->capture ? cudaStreamCaptureStatusNone
              : stream->capture->invalid  ? cudaStreamCaptureStatusInvalidated
                                          : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    if (!graph) return cudaErrorInvalidValue;
    *executable = new EmulatedGraphExec{graph->nodes};
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    LOCKED;
    if (!executable) return cudaErrorInvalidValue;
    const std::vector<Task> nodes = executable->nodes;
    return give(stream, [nodes] {
        for (const Task& work : nodes) work();
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    delete executable;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
