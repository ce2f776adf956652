// Streams, events, pinned memory and graphs as the program uses them: on a GPU, or in the emulator, which does work
// late or at random moments if nothing waits for it, so that a missing wait gives wrong numbers.
#include "dev/test/cuda/cuda_check.h"
#include "layers/global_norm.cuh"
#include "device/cuda/rounding.cuh"
#include "device/cuda/step.cuh"

namespace {

constexpr int n = 64;
constexpr size_t bytes = n * sizeof(float);
std::vector<float> filled(float x) { return std::vector<float>(n, x); }

__global__ void add_to(float* sum, const float* x) { sum[threadIdx.x] += x[threadIdx.x]; }
__global__ void fill(float* out, float x) { out[threadIdx.x] = x; }

struct Stream {
    explicit Stream(unsigned flags = cudaStreamNonBlocking) {
        cuda_check(cudaStreamCreateWithFlags(&stream, flags), "cudaStreamCreate");
    }
    ~Stream() { cudaStreamDestroy(stream); }
    Stream(const Stream&) = delete;
    operator cudaStream_t() const { return stream; }
    cudaStream_t stream;
};
struct Event {
    Event() { cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"); }
    ~Event() { cudaEventDestroy(event); }
    Event(const Event&) = delete;
    operator cudaEvent_t() const { return event; }
    cudaEvent_t event;
};
struct Pinned {
    Pinned() { cuda_check(cudaMallocHost(&p, bytes), "cudaMallocHost"); }
    ~Pinned() { cudaFreeHost(p); }
    Pinned(const Pinned&) = delete;
    float* p;
};

CudaBuffer<float> on_device(float x) {
    auto buffer = cuda_allocate<float>(n);
    cuda_check(cudaMemcpy(buffer.get(), filled(x).data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return buffer;
}
std::vector<float> values(const CudaBuffer<float>& x) {
    std::vector<float> host(n);
    cuda_check(cudaMemcpy(host.data(), x.get(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return host;
}

void fill_on(cudaStream_t stream, const CudaBuffer<float>& x, float value) {
    LAUNCH(fill, 1, n, 0, stream, x.get(), value);
}

// --- streams
struct Waits {
    bool compute_for_copy = true, copy_for_compute = true, host_for_copy = true, host_for_compute = true;
};
// Batches of 1, 2, … 6 come from pinned memory on a second stream and are added up on the first.
std::vector<float> sum_of_batches(const Waits& w) {
    const Stream compute, loader;
    const Event copied, used;
    const Pinned host;
    const auto sum = on_device(0), batch = on_device(0);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (int i = 1; i <= 6; ++i) {
        if (w.host_for_copy) cuda_check(cudaEventSynchronize(copied), "cudaEventSynchronize");
        std::fill_n(host.p, n, static_cast<float>(i));
        if (w.copy_for_compute) cuda_check(cudaStreamWaitEvent(loader, used, 0), "cudaStreamWaitEvent");
        cuda_check(cudaMemcpyAsync(batch.get(), host.p, bytes, cudaMemcpyHostToDevice, loader), "cudaMemcpyAsync");
        cuda_check(cudaEventRecord(copied, loader), "cudaEventRecord");
        if (w.compute_for_copy) cuda_check(cudaStreamWaitEvent(compute, copied, 0), "cudaStreamWaitEvent");
        LAUNCH(add_to, 1, n, 0, compute, sum.get(), batch.get());
        cuda_check(cudaEventRecord(used, compute), "cudaEventRecord");
    }
    const Pinned result;
    cuda_check(cudaMemcpyAsync(result.p, sum.get(), bytes, cudaMemcpyDeviceToHost, compute), "cudaMemcpyAsync");
    if (w.host_for_compute) cuda_check(cudaStreamSynchronize(compute), "cudaStreamSynchronize");
    return std::vector<float>(result.p, result.p + n);
}

TEST(CudaStreams, ALoaderOnASecondStream) {
    in_every_order([] { EXPECT_EQ(sum_of_batches({}), filled(21)); });
}

#ifndef __CUDACC__
// Errors that a GPU shows only sometimes.
TEST(EmulatedStreams, AMissingWaitShows) {
    for (const Waits& w : {Waits{.compute_for_copy = false}, Waits{.copy_for_compute = false},
                           Waits{.host_for_copy = false}, Waits{.host_for_compute = false}}) {
        int wrong = 0;
        for (emulator::seed = 1; emulator::seed <= 20; ++emulator::seed) wrong += sum_of_batches(w) != filled(21);
        EXPECT_GE(wrong, 5) << w.compute_for_copy << w.copy_for_compute << w.host_for_copy << w.host_for_compute;
    }
    emulator::seed = 1;
}
#endif

TEST(CudaStreams, TheNullStreamWaitsForBlockingStreams) {
    in_every_order([] {
        const Stream blocking(cudaStreamDefault);
        const auto x = on_device(0), sum = on_device(1);
        fill_on(blocking, x, 5);
        LAUNCH(add_to, 1, n, 0, nullptr, sum.get(), x.get());
        EXPECT_EQ(values(sum), filled(6));
    });
}

TEST(CudaStreams, MemoryThatIsNotPinnedMayBeReusedAtOnce) {
    in_every_order([] {
        const Stream stream;
        const auto x = on_device(0);
        std::vector<float> host = filled(3);
        cuda_check(cudaMemcpyAsync(x.get(), host.data(), bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
        host = filled(4);
        std::vector<float> back = filled(0);
        cuda_check(cudaMemcpyAsync(back.data(), x.get(), bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
        EXPECT_EQ(back, filled(3));
    });
}

TEST(CudaStreams, WhatIsFreedOrDestroyedIsFinishedFirst) {
    in_every_order([] {
        const auto sum = on_device(1);
        {
            const Stream stream;
            const auto x = on_device(0);
            fill_on(stream, x, 5);
            LAUNCH(add_to, 1, n, 0, stream, sum.get(), x.get());
        }
        EXPECT_EQ(values(sum), filled(6));
    });
}

TEST(CudaDevice, SaysWhatItIs) {
    int count = 0;
    cudaDeviceProp properties;
    size_t free = 0, less = 0, total = 0;
    cuda_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    ASSERT_GE(count, 1);
    cuda_check(cudaSetDevice(0), "cudaSetDevice");
    EXPECT_NE(cudaSetDevice(count), cudaSuccess);
    cudaGetLastError();
    cuda_check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    EXPECT_GE(properties.multiProcessorCount, 1);
    EXPECT_NE(properties.name[0], 0);
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    EXPECT_LE(free, total);
    const auto memory = cuda_allocate<char>(int64_t{64} << 20);
    cuda_check(cudaMemGetInfo(&less, &total), "cudaMemGetInfo");
    EXPECT_LE(less, free - (size_t{64} << 20));
}

TEST(CudaDevice, OutOfMemoryIsNoOtherFault) {
    EXPECT_THROW(cuda_allocate<char>(int64_t{1} << 60), std::bad_alloc);
    const auto x = on_device(0);
    fill_on(nullptr, x, 5);  // which works again
    EXPECT_EQ(values(x), filled(5));
}

// The chosen GPU is used, not the first one.
TEST(CudaDevice, LayersGoByTheOneThatIsWorkedOn) {
    int count = 0;
    cuda_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    for (int device = count - 1; device >= 0; --device) {
        cudaDeviceProp properties;
        cuda_check(cudaSetDevice(device), "cudaSetDevice");
        cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
        EXPECT_EQ(Cuda().multiprocessors, properties.multiProcessorCount);
        EXPECT_EQ(device_attribute(cudaDevAttrComputeCapabilityMajor), properties.major);
    }
}

TEST(CudaEvents, TimeBetweenTwo) {
    const Stream stream;
    const CudaEvent from(cudaEventDefault), between(cudaEventDefault), to(cudaEventDefault), untimed;
    const auto x = on_device(0);
    const auto time = [](const CudaEvent& a, const CudaEvent& b) {
        float milliseconds = -1;
        cuda_check(cudaEventElapsedTime(&milliseconds, a.event, b.event), "cudaEventElapsedTime");
        return milliseconds;
    };
    for (const CudaEvent* e : {&from, &between, &to, &untimed}) {
        cuda_check(cudaEventRecord(e->event, stream), "cudaEventRecord");
        if (e != &from) fill_on(stream, x, 1);
    }
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    EXPECT_GE(time(from, between), 0);
    EXPECT_GT(time(between, to), 0);
    EXPECT_NEAR(time(from, to), time(from, between) + time(between, to), 2e-3);  // GPUs count half microseconds
    EXPECT_THROW(time(from, untimed), std::runtime_error);
    cudaGetLastError();
}

// The layers' times add up to no more than the elapsed time, and come with the step's result: nothing waits before
// that.
TEST(CudaProfile, ComesWithTheStepsResult) {
    in_every_order([] {
        Cuda dev = cuda_for_training();
        Profile profile;
        dev.profile = &profile;
        CudaTensor<float> x(dev, uniform(9001)), y(dev, nans(9001));
        const auto s = allocate<StepStatus>(dev, 1);
        const auto layer = [&] { convert(dev, y.on(dev), x.on(dev), 9001); };
        layer();  // it does not run yet
        double from = 0;
        for (int step = 1; step <= 2; ++step) {
            profile.start();
            from -= seconds_now();
            for (int call = 0; call < 3; ++call) layer();
            add_loss(dev, s.get(), x.on(dev), 9001, 1);
            EXPECT_EQ(profile.totals().size(), step == 1 ? 0u : 2u);
            take(dev, s.get());
            from += seconds_now();
            profile.stop();
            ASSERT_EQ(profile.totals().size(), 2u);
            const Profile::Totals &converted = profile.totals().at("convert"), &added = profile.totals().at("add_loss");
            EXPECT_EQ(converted.calls, 3 * step);
            EXPECT_EQ(added.calls, step);
            EXPECT_EQ(converted.bytes, 3 * step * 8 * 9001);
            EXPECT_GT(converted.seconds, 0);
            EXPECT_GT(added.seconds, 0);
            EXPECT_LE(converted.seconds + added.seconds, from);
        }
        layer();
        take(dev, s.get());
        EXPECT_EQ(profile.totals().at("convert").calls, 6);
        EXPECT_EQ(dev.timings->calls.size(), 4u);  // their events are reused
    });
}

// --- batches
struct Batch {
    std::vector<int32_t> x, y;
    explicit Batch(int number, int length = n) : x(static_cast<size_t>(length)), y(x.size()) {
        for (size_t i = 0; i < x.size(); ++i) x[i] = number * 1000 + static_cast<int>(i), y[i] = 500 + x[i];
    }
    int64_t size() const { return std::ssize(x); }
    std::vector<int32_t> joined() const {
        std::vector<int32_t> both = x;
        both.insert(both.end(), y.begin(), y.end());
        return both;
    }
};
__global__ void copy_tokens(int32_t* out, const int32_t* x, const int32_t* y, int count) {
    for (int i = 0; i < count; ++i) out[i] = x[i], out[count + i] = y[i];
}

// Layers read the batches given to batch_for, even if the host's memory changes afterwards.
struct Reader {
    Cuda dev = cuda_for_training();
    std::vector<CudaBuffer<int32_t>> read;
    std::vector<Batch> batches;

    void fetch(Batch batch) {
        prefetch_batch(dev, batch.x.data(), batch.y.data(), batch.size());
        batch.x.assign(batch.x.size(), -1);
    }
    void use(const Batch& batch) {
        Batch gone = batch;
        const auto [x, y] = batch_for(dev, gone.x.data(), gone.y.data(), gone.size());
        gone.x.assign(gone.x.size(), -1);
        read.push_back(cuda_allocate<int32_t>(2 * batch.size()));
        batches.push_back(batch);
        LAUNCH(copy_tokens, 1, 1, 0, dev.stream, read.back().get(), x, y, static_cast<int>(batch.size()));
    }
    void expect_all() {
        for (size_t i = 0; i < batches.size(); ++i)
            EXPECT_EQ(to_host(dev, read[i].get(), 2 * batches[i].size()), batches[i].joined()) << i;
    }
};

// The copying stream prefetches a batch, independent of the other stream, and the batch is not copied again.
TEST(CudaBatches, ArriveBeforeTheyAreUsed) {
    in_every_order([] {
        Reader reader;
        reader.use(Batch(0));
        BatchFeed& feed = *reader.dev.step->feed;
        for (int step = 1; step <= 6; ++step) {
            reader.fetch(Batch(step));
            const bool turn = feed.turn;
            cuda_check(cudaStreamSynchronize(feed.copies.stream), "cudaStreamSynchronize");
            EXPECT_EQ(to_host(reader.dev, feed.newest().device.get(), 2 * n), Batch(step).joined());
            reader.use(Batch(step));
            EXPECT_EQ(feed.turn, turn);
        }
        reader.expect_all();
    });
}

#ifndef __CUDACC__
// Work launched between a prefetch and the use of its batch, such as the update, does not wait for the copy.
TEST(CudaBatches, WhatIsLaunchedBeforeTheirUseDoesNotWaitForThem) {
    for (emulator::seed = 1; emulator::seed <= 10; ++emulator::seed) {
        Reader reader;
        const cudaStream_t compute = reader.dev.stream;
        const auto updated = on_device(0);
        reader.use(Batch(0));
        for (int step = 1; step <= 6; ++step) {
            cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
            reader.fetch(Batch(step));
            fill_on(compute, updated, static_cast<float>(step));
            EXPECT_TRUE(emulator::finish_alone(compute)) << "step " << step;
            reader.use(Batch(step));
        }
        reader.expect_all();
    }
    emulator::seed = 1;
}
#endif

// The host is far ahead of the device: consecutive batches, one of an evaluation in between, one for which memory must
// grow, and one that is almost the prefetched batch.
TEST(CudaBatches, AreReadAsGivenWhateverComesInBetween) {
    in_every_order([] {
        Reader reader;
        for (int i = 0; i < 24; ++i) {
            reader.use(Batch(i));
            reader.fetch(Batch(i + 1));
            for (int other = 0; other < i / 6; ++other) reader.use(Batch(100 + other, i == 18 ? 2 * n : 7));
            Batch almost(i + 1);
            (i % 6 == 4 ? almost.x : almost.y).back() = -1;
            if (i % 6 >= 4) reader.use(almost);
        }
        reader.expect_all();
    });
}

// --- graphs
struct Graph {
    Graph(cudaStream_t stream, const std::function<void()>& work) {
        cudaGraph_t graph;
        cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        work();
        cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
        cuda_check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
        cudaGraphDestroy(graph);
    }
    ~Graph() { cudaGraphExecDestroy(executable); }
    Graph(const Graph&) = delete;
    void launch(cudaStream_t stream) const { cuda_check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch"); }
    cudaGraphExec_t executable;
};

TEST(CudaGraphs, RunLaterInOrderWithTheArgumentsOfTheirCapture) {
    in_every_order([] {
        const Stream stream;
        const Pinned host;
        const auto x = on_device(0), sum = on_device(1), copy = on_device(0);
        std::fill_n(host.p, n, 7.0f);
        float value = 2;
        const Graph graph(stream, [&] {
            fill_on(stream, x, value);
            LAUNCH(add_to, 1, n, 0, stream, sum.get(), x.get());  // sum += 2
            cuda_check(cudaMemcpyAsync(x.get(), host.p, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
            LAUNCH(add_to, 1, n, 0, stream, sum.get(), x.get());  // sum += what the host's memory holds by then
            cuda_check(cudaMemcpyAsync(copy.get(), sum.get(), bytes, cudaMemcpyDeviceToDevice, stream), "copy");
            cuda_check(cudaMemsetAsync(x.get(), 0, bytes, stream), "cudaMemsetAsync");
        });
        cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        EXPECT_EQ(values(sum), filled(1)) << "nothing runs during the capture";
        value = 100;
        graph.launch(stream);
        cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        EXPECT_EQ(values(copy), filled(10));
        EXPECT_EQ(values(x), filled(0));
        std::fill_n(host.p, n, 20.0f);
        graph.launch(stream);
        graph.launch(stream);
        cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        EXPECT_EQ(values(sum), filled(10 + 2 * 22));
    });
}

// As the program does with a whole step: first without a graph, because it allocates, then captured.
TEST(CudaGraphs, ALayerInAGraphGivesTheSameBits) {
    const Stream stream;
    Cuda dev;
    dev.stream = stream;
    CudaTensor<float> x(dev, uniform(9001));
    const auto s = allocate<StepStatus>(dev, 1);
    const auto params = copied(dev, UpdateParams{.clip = 1});
    const auto layer = [&] {
        zero(dev, s.get(), 1);
        add_loss(dev, s.get(), x.on(dev), 9001, 0.25);
        decide(dev, s.get(), x.on(dev), 9001, params.get());
    };
    layer();
    const StepStatus direct = to_host(dev, s.get(), 1)[0];
    const Graph graph(stream, layer);
    zero(dev, s.get(), 1);
    for (int i = 0; i < 2; ++i) graph.launch(stream);
    const StepStatus replayed = to_host(dev, s.get(), 1)[0];
    EXPECT_EQ(replayed.loss, direct.loss);
    EXPECT_EQ(replayed.squared_norm, direct.squared_norm);
    EXPECT_EQ(replayed.grad_scale, direct.grad_scale);
    EXPECT_EQ(replayed.apply, 1);
}

__global__ void add_clip(double* sum, const UpdateParams* params) { *sum += params->clip; }

// The host, far ahead of the device, does not overwrite data that an earlier step has not read yet.
TEST(CudaGraphs, EachReplayReadsItsOwnStepsParams) {
    in_every_order([] {
        Cuda dev = cuda_for_training();
        const auto sum = allocate<double>(dev, 1);
        for (int step = 1; step <= 6; ++step) {
            const UpdateParams* const params = on_device(dev, UpdateParams{.clip = std::pow(10, step)});
            replay(dev, {}, [&] { LAUNCH(add_clip, 1, 1, 0, dev.stream, sum.get(), params); });
        }
        EXPECT_EQ(to_host(dev, sum.get(), 1)[0], 1111110);
    });
}

// Calls that allocate or wait cannot be part of a graph: they return an error at once, and invalidate the capture.
TEST(CudaGraphs, WhatACaptureForbids) {
    const Stream stream, other;
    const Event event;
    const auto x = on_device(0), freed = on_device(0);
    std::vector<float> host = filled(0);
    const auto expect_lost = [&](const char* what, const std::function<cudaError_t()>& call, cudaError_t error) {
        cudaGraph_t graph = nullptr;
        cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
        fill_on(stream, x, 1);
        EXPECT_EQ(call(), error) << what;
        cudaGetLastError();
        EXPECT_THROW(fill_on(stream, x, 1), std::runtime_error) << what;
        cudaGetLastError();
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated) << what;
        cudaGetLastError();
        EXPECT_EQ(graph, nullptr);
    };
    expect_lost(
        "cudaMalloc",
        [] {
            void* p;
            return cudaMalloc(&p, 16);
        },
        cudaErrorStreamCaptureUnsupported);
    expect_lost(
        "cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream); }, cudaErrorStreamCaptureUnsupported);
    expect_lost(
        "cudaDeviceSynchronize", [] { return cudaDeviceSynchronize(); }, cudaErrorStreamCaptureUnsupported);
#ifndef __CUDACC__  // CUDA 13 copies, and captures on; the emulator refuses what earlier versions do not promise
    expect_lost(
        "cudaMemcpy", [&] { return cudaMemcpy(host.data(), x.get(), bytes, cudaMemcpyDeviceToHost); },
        cudaErrorStreamCaptureUnsupported);
#endif
    // Earlier work on another stream is not part of the graph.
    cuda_check(cudaEventRecord(event, other), "cudaEventRecord");
    expect_lost(
        "an event from outside", [&] { return cudaStreamWaitEvent(stream, event, 0); },
        cudaErrorStreamCaptureIsolation);
    fill_on(stream, x, 3);
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    EXPECT_EQ(values(x), filled(3));
}

// An exception during a recording ends the capture: the stream works as before, and the next replay records again.
TEST(CudaGraphs, AnExceptionEndsTheCapture) {
    Cuda dev = cuda_for_training();
    const auto sum = on_device(0), one = on_device(1);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const auto add = [&] { LAUNCH(add_to, 1, n, 0, dev.stream, sum.get(), one.get()); };
    const auto fails = [&] {
        add();
        throw std::logic_error("out of a layer");
    };
    const auto waits = [&] {  // a capture forbids waiting
        add();
        cuda_check(cudaStreamSynchronize(dev.stream), "cudaStreamSynchronize");
    };
    const auto expect_not_capturing = [&] {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
        cuda_check(cudaStreamIsCapturing(dev.stream, &status), "cudaStreamIsCapturing");
        EXPECT_EQ(status, cudaStreamCaptureStatusNone);
    };
    float done = 0;
    for (int round = 0; round < 2; ++round) {
        replay(dev, {}, add), ++done;
        if (round == 0)
            EXPECT_THROW(replay(dev, {}, fails), std::logic_error);
        else
            EXPECT_THROW(replay(dev, {}, waits), std::runtime_error);
        expect_not_capturing();
        for (int i = 0; i < 3; ++i) replay(dev, {}, add), ++done;  // launched, recorded, replayed
        EXPECT_NE(dev.step->recordings.at({}).graph, nullptr);
        cuda_check(cudaStreamSynchronize(dev.stream), "cudaStreamSynchronize");
        EXPECT_EQ(values(sum), filled(done));
        dev.step->recordings.clear();
    }
}

// After a failed allocation, scratch memory is not assumed to exist.
TEST(CudaDevice, ScratchAfterAnAllocationThatFailed) {
    Cuda dev;
    dev.scratch(100);
    EXPECT_THROW(dev.scratch(int64_t{1} << 58), std::bad_alloc);
    EXPECT_NE(dev.scratch(50), nullptr);
}

TEST(CudaGraphs, AScratchThatGrowsDuringACaptureSaysSo) {
    const Stream stream;
    Cuda dev;
    dev.stream = stream;
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
        dev.scratch(100);
        FAIL();
    } catch (const std::runtime_error& e) {
        EXPECT_NE(std::string(e.what()).find("cudaMalloc: operation not permitted when stream is capturing"),
                  std::string::npos)
            << e.what();
    }
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
}

TEST(CudaGraphs, TheNullStreamDuringACaptureOfABlockingStream) {
    const Stream blocking(cudaStreamDefault);
    const auto x = on_device(0);
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    EXPECT_THROW(fill_on(nullptr, x, 1), std::runtime_error);
    cudaGetLastError();
    EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
}

TEST(CudaGraphs, CapturesThatCannotBe) {
    const Stream stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable;
    EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    EXPECT_NE(cudaGraphInstantiate(&executable, nullptr, 0), cudaSuccess);
    cudaGetLastError();
}

#ifndef __CUDACC__
// --- reports of the emulator
__global__ void beyond(float* out, int at) { out[at + static_cast<int>(threadIdx.x)] = 1; }

TEST(EmulatedGraphs, AKernelThatFaultsInAGraph) {
    const Stream stream;
    const auto x = on_device(0);
    const Graph graph(stream, [&] {
        fill_on(stream, x, 1);
        LAUNCH(beyond, 1, 1, 0, stream, x.get(), n);
        fill_on(stream, x, 2);
    });
    try {
        graph.launch(stream);
        cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        FAIL() << "no report";
    } catch (const emulator::Error& e) {
        const std::string what = e.what();
        EXPECT_TRUE(what.starts_with("beyond, block (0,0,0), thread (0,0,0): ")) << what;
        EXPECT_NE(what.find("out of bounds: at byte 256 of an allocation of 256 bytes"), std::string::npos) << what;
        EXPECT_NE(what.find("launched at dev/test/cuda/graph_test.cpp"), std::string::npos) << what;
    }
    EXPECT_EQ(values(x), filled(1)) << "what came after the fault has not run";
    fill_on(stream, x, 3);
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    EXPECT_EQ(values(x), filled(3));
}

// A fault that a destructor finds is thrown by the next call that may throw.
TEST(EmulatedStreams, AFaultIsNotLostInADestructor) {
    const auto x = on_device(0);
    emulator::seed = 2;
    bool thrown = false;
    try {
        {
            const Stream stream;
            LAUNCH(beyond, 1, 1, 0, stream, x.get(), n);
        }
        cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    } catch (const emulator::Error&) {
        thrown = true;
    }
    EXPECT_TRUE(thrown);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

TEST(EmulatedStreams, MemoryFreedBeforeItsCopy) {
    const Stream stream;
    auto x = on_device(0);
    const Graph graph(stream, [&] { cuda_check(cudaMemsetAsync(x.get(), 0, bytes, stream), "cudaMemsetAsync"); });
    x = nullptr;
    EXPECT_THROW(
        {
            graph.launch(stream);
            cudaStreamSynchronize(stream);
        },
        emulator::Error);
}
#endif

}  // namespace
