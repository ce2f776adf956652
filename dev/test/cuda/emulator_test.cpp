// The emulator: correct kernels give the results that CUDA defines, in every order of the threads. Kernels broken on
// purpose are reported by kernel, block, thread, file and line, and the next launch works.
#include <gtest/gtest.h>

#include <fstream>

#include "device/cuda/common.cuh"

namespace {

// UndefinedBehaviorSanitizer would see some of the mistakes first, and end the program.
#define BROKEN __global__ __attribute__((no_sanitize("undefined")))

template <class T>
std::unique_ptr<T[], CudaDelete> on_device(const std::vector<T>& values) {
    Cuda dev;
    auto p = allocate<T>(dev, static_cast<int64_t>(values.size()));
    to_device(dev, p.get(), values.data(), static_cast<int64_t>(values.size()));
    return p;
}
template <class Pointer>
auto values_of(const Pointer& p, int64_t n) {
    Cuda dev;
    return to_host(dev, p.get(), n);
}
std::vector<float> count_from_one(int n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i + 1);
    return x;
}

// out[block] = sum of the block's 64 values, by a tree in shared memory
enum class Without { nothing, barrier, initialisation };
template <Without without>
BROKEN void tree_sum(float* out, const float* in) {
    __shared__ float tile[64];
    const unsigned t = threadIdx.x;
    if (without != Without::initialisation || t % 2 == 0) tile[t] = in[blockIdx.x * 64 + t];
    if (without != Without::barrier) __syncthreads();
    for (unsigned half = 32; half > 0; half /= 2) {
        if (t < half) tile[t] += tile[t + half];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = tile[0];
}

void expect_sums(const char* after) {
    const auto in = on_device(count_from_one(192)), out = on_device(std::vector<float>(3));
    LAUNCH(tree_sum<Without::nothing>, 3, 64, 0, nullptr, out.get(), in.get());
    EXPECT_EQ(values_of(out, 3), (std::vector<float>{2080, 6176, 10272})) << "after " << after;
}

// Runs a broken kernel in several orders of the threads, and expects a report with all of `parts`. Then another kernel
// works.
template <class Run>
void expect_report(const Run& run, const std::vector<std::string>& parts) {
    for (const uint64_t seed : {1, 2, 3}) {
        emulator::seed = seed;
        std::string report = "nothing";
        try {
            run();
        } catch (const emulator::Error& e) {
            report = e.what();
        }
        for (const std::string& part : parts)
            EXPECT_NE(report.find(part), std::string::npos) << "expected '" << part << "' in: " << report;
        expect_sums(report.c_str());
    }
}
// "file:line" of the first line in this file that contains `text`.
std::string at(const std::string& text) {
    std::ifstream file(__FILE__);
    std::string line;
    for (int number = 1; std::getline(file, line); ++number)
        if (line.find(text) != std::string::npos) return __FILE__ ":" + std::to_string(number);
    return "no line has " + text;
}

#define NEEDS_EVERY_ACCESS \
    if (!emulator::checks_every_access()) GTEST_SKIP() << "single accesses are not checked in a sanitizer's build"

// --- what CUDA defines

TEST(Emulator, ManyBlocksManyOrders) {
    for (uint64_t seed = 0; seed < 50; ++seed) emulator::seed = seed, expect_sums("a start");
}

__global__ void indices(unsigned* out) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
}
TEST(Emulator, IndicesInThreeDimensions) {
    const auto out = on_device(std::vector<unsigned>(2 * 3 * 4 * 5 * 3 * 2));
    LAUNCH(indices, dim3(2, 3, 4), dim3(5, 3, 2), 0, nullptr, out.get());
    const auto got = values_of(out, 24 * 30);
    for (unsigned i = 0; i < 24 * 30; ++i) ASSERT_EQ(got[i], i / 30 * 1000 + i % 30);
}

__global__ void shuffles(int* out, int width) {
    const int lane = static_cast<int>(threadIdx.x);
    out[lane] = __shfl_sync(0xffffffff, lane, 5, width);
    out[32 + lane] = __shfl_up_sync(0xffffffff, lane, 3, width);
    out[64 + lane] = __shfl_down_sync(0xffffffff, lane, 3, width);
    out[96 + lane] = static_cast<int>(__shfl_xor_sync(0xffffffff, static_cast<double>(lane), 6, width));
}
TEST(Emulator, Shuffles) {  // as the CUDA programming guide defines them ("Warp Shuffle Functions")
    for (const int width : {32, 8, 2}) {
        const auto out = on_device(std::vector<int>(128));
        LAUNCH(shuffles, 1, 32, 0, nullptr, out.get(), width);
        const auto got = values_of(out, 128);
        for (int lane = 0; lane < 32; ++lane) {
            const int start = lane / width * width, end = start + width;
            EXPECT_EQ(got[lane], start + 5 % width);
            EXPECT_EQ(got[32 + lane], lane - 3 < start ? lane : lane - 3);
            EXPECT_EQ(got[64 + lane], lane + 3 >= end ? lane : lane + 3);
            EXPECT_EQ(got[96 + lane], (lane ^ 6) >= end ? lane : lane ^ 6);
        }
    }
}

__global__ void votes(unsigned* out) {
    const unsigned t = threadIdx.x;
    const unsigned even = 0x55555555, mask = t % 2 == 0 ? even : ~even;  // two groups of lanes, at one place
    const unsigned ballot = __ballot_sync(mask, t < 10);
    const int any = __any_sync(mask, t == 31), all = __all_sync(mask, t % 2 == 0);
    const int count = __syncthreads_count(t < 40), both = __syncthreads_and(t < 64), some = __syncthreads_or(t == 64);
    out[t] = ballot | unsigned(any) << 10 | unsigned(all) << 11 | unsigned(count) << 12 | unsigned(both) << 20 |
             unsigned(some) << 21;
}
TEST(Emulator, VotesOfLanesAndBlocks) {
    const auto out = on_device(std::vector<unsigned>(64));
    LAUNCH(votes, 1, 64, 0, nullptr, out.get());
    const auto got = values_of(out, 64);
    for (unsigned t = 0; t < 64; ++t)
        EXPECT_EQ(got[t], (t < 32 ? (t % 2 == 0 ? 0x155u : 0x2aau) | (t % 2 == 1) << 10 : 0u) | (t % 2 == 0) << 11 |
                              40u << 12 | 1u << 20);
}

__global__ void atomics(float* sum, int* largest, unsigned long long* count) {
    atomicAdd(sum, 0.5f);
    atomicMax(largest, static_cast<int>(threadIdx.x));
    atomicAdd(count, 1);
}
TEST(Emulator, Atomics) {
    const auto sum = on_device<float>({1}), f = on_device<float>({0});
    const auto largest = on_device<int>({-1});
    const auto count = on_device<unsigned long long>({0});
    LAUNCH(atomics, 7, 96, 0, nullptr, sum.get(), largest.get(), count.get());
    EXPECT_EQ(values_of(sum, 1)[0], 1 + 7 * 96 * 0.5f);
    EXPECT_EQ(values_of(largest, 1)[0], 95);
    EXPECT_EQ(values_of(count, 1)[0], 7u * 96);
}

BROKEN void reverse(float* x, int n, int past) {
    DYN_SHARED(float, tile);
    const int t = static_cast<int>(threadIdx.x);
    tile[t + past] = x[t];
    __syncthreads();
    x[t] = tile[n - 1 - t];
}
TEST(Emulator, DynamicSharedMemory) {
    const auto x = on_device(count_from_one(36));
    LAUNCH(reverse, 1, 36, 36 * sizeof(float), nullptr, x.get(), 36, 0);
    EXPECT_EQ(values_of(x, 36)[0], 36);
    const auto past_the_end = [&] { LAUNCH(reverse, 1, 36, 36 * sizeof(float), nullptr, x.get(), 36, 1); };
    expect_report(past_the_end, {"reverse, block (0,0,0), thread (35,0,0)", "out of bounds: at byte 144 of dynamic"});
    const auto not_asked_for = [&] { LAUNCH(reverse, 1, 1, 0, nullptr, x.get(), 36, 0); };
    expect_report(not_asked_for, {"reverse, block (0,0,0), thread (0,0,0)", "out of bounds: at byte 0 of dynamic"});
}

// --- barriers

TEST(Emulator, AMissingBarrierShowsInTheValues) {
    const auto in = on_device(count_from_one(64));
    int noticed = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        emulator::seed = seed;
        const auto out = on_device(std::vector<float>(1));
        try {
            LAUNCH(tree_sum<Without::barrier>, 1, 64, 0, nullptr, out.get(), in.get());
            noticed += values_of(out, 1)[0] != 2080;  // NaN, as the shared memory was before, or too little
        } catch (const emulator::Error&) {
            ++noticed;
        }
    }
    EXPECT_GE(noticed, 19);
}

TEST(Emulator, AMissingBarrierIsReported) {
    NEEDS_EVERY_ACCESS;
    const auto in = on_device(count_from_one(64)), out = on_device(std::vector<float>(1));
    const auto run = [&] { LAUNCH(tree_sum<Without::barrier>, 1, 64, 0, nullptr, out.get(), in.get()); };
    // which of the two is reported depends on the order
    for (emulator::seed = 0; emulator::seed < 20; ++emulator::seed) try {
            run();
            FAIL() << "seed " << emulator::seed;
        } catch (const emulator::Error& e) {
            const std::string report = e.what();
            EXPECT_TRUE(report.find("a race: ") != std::string::npos ||
                        report.find("which nothing has written") != std::string::npos)
                << report;
            EXPECT_NE(report.find("of tile of 256 bytes"), std::string::npos) << report;
            EXPECT_NE(report.find("dev/test/cuda/emulator_test.cpp:"), std::string::npos) << report;
        }
}

BROKEN void early_return(float* out, unsigned n) {
    if (threadIdx.x >= n) return;
    __syncthreads();  // early return
    out[threadIdx.x] = 1;
}
TEST(Emulator, AThreadThatLeavesBeforeABarrier) {
    const auto out = on_device(std::vector<float>(64));
    expect_report([&] { LAUNCH(early_return, 2, 64, 0, nullptr, out.get(), 63); },
                  {"early_return, block (", "__syncthreads waits for thread (63,0,0), which has left the kernel",
                   at("__syncthreads();  // early return")});
}

BROKEN void divergent() {
    if (threadIdx.x < 32)
        __syncthreads();  // the first warp
    else
        __syncthreads();  // the others
}
TEST(Emulator, ADivergentBarrier) {
    expect_report([] { LAUNCH(divergent, 1, 64, 0, nullptr); },
                  {"divergent, block (0,0,0), thread (", "__syncthreads, but thread (",
                   at("__syncthreads();  // the first warp"), at("__syncthreads();  // the others")});
}

BROKEN void barrier_or_shuffle(int* out) {
    if (threadIdx.x < 16)
        __syncthreads();
    else
        out[threadIdx.x] = __shfl_sync(0xffffffff, 1, 0);
}
TEST(Emulator, ABarrierAgainstACollective) {
    const auto out = on_device(std::vector<int>(32));
    expect_report([&] { LAUNCH(barrier_or_shuffle, 1, 32, 0, nullptr, out.get()); },
                  {"barrier_or_shuffle, block (0,0,0), thread (0,0,0): __syncthreads waits for thread (16,0,0), which "
                   "is at __shfl_sync, dev/test/"});
}

// --- lanes

enum class Mask { leaves_itself_out, names_who_left, reads_outside, differs };
template <Mask wrong>
BROKEN void bad_mask(int* out) {
    const int lane = static_cast<int>(threadIdx.x);
    if (wrong == Mask::names_who_left && lane == 31) return;
    const unsigned mask = wrong == Mask::leaves_itself_out ? 0xfffffffeu
                          : wrong == Mask::reads_outside   ? (lane < 16 ? 0xffffu : 0xffff0000u)
                          : wrong == Mask::differs         ? (lane < 31 ? 0xffffffffu : 0xfffffff0u)
                                                           : 0xffffffffu;
    out[lane] = __shfl_sync(mask, lane, (lane + 1) % 32);
}
TEST(Emulator, BadMasks) {
    const auto out = on_device(std::vector<int>(32));
    expect_report([&] { LAUNCH(bad_mask<Mask::leaves_itself_out>, 1, 32, 0, nullptr, out.get()); },
                  {"bad_mask<", "thread (0,0,0): __shfl_sync with the mask fffffffe, which leaves out lane 0, itself",
                   at("out[lane] = __shfl_sync(mask,")});
    expect_report([&] { LAUNCH(bad_mask<Mask::names_who_left>, 1, 32, 0, nullptr, out.get()); },
                  {"__shfl_sync", "has left the kernel"});
    expect_report([&] { LAUNCH(bad_mask<Mask::reads_outside>, 1, 32, 0, nullptr, out.get()); },
                  {"__shfl_sync: lane ", ", which the mask "});
    expect_report([&] { LAUNCH(bad_mask<Mask::differs>, 1, 32, 0, nullptr, out.get()); },
                  {"__shfl_sync with the mask ", "is at __shfl_sync with the mask "});
    expect_report([&] { LAUNCH(bad_mask<Mask::reads_outside>, 1, 8, 0, nullptr, out.get()); },
                  {"__shfl_sync with the mask 0000ffff, which names lane 8, and that the block does not have"});
}

// --- memory

BROKEN void copy(float* out, const float* in, int from, int to, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i + to] = in[i + from];
}
TEST(Emulator, DeviceMemoryOutOfBounds) {
    const auto in = on_device(count_from_one(100)), out = on_device(std::vector<float>(100));
    expect_report([&] { LAUNCH(copy, 4, 32, 0, nullptr, out.get(), in.get(), 0, 1, 100); },
                  {"copy, block (3,0,0), thread (3,0,0)", "out of bounds: at byte 400 of an allocation of 400 bytes",
                   at("out[i + to] = in[i + from]"),
                   ", launched at " + at("LAUNCH(copy, 4, 32, 0, nullptr, out.get(), in.get(), 0, 1, 100)")});
    expect_report([&] { LAUNCH(copy, 4, 32, 0, nullptr, out.get(), in.get(), 1, 0, 100); },
                  {"copy, block (3,0,0), thread (3,0,0)", "out of bounds: at byte 400 of an allocation of 400 bytes",
                   at("out[i + to] = in[i + from]")});
    expect_report([&] { LAUNCH(copy, 1, 1, 0, nullptr, out.get(), in.get(), 0, 5000, 1); },
                  {"out of bounds: at byte 20000 of an allocation of 400 bytes", at("out[i + to] = in[i + from]")});
    expect_report(
        [&] { LAUNCH(copy, 4, 32, 0, nullptr, out.get(), in.get(), 0, -1, 100); },
        {emulator::checks_every_access() ? "out of bounds: at byte -4 of an allocation of 400 bytes"
                                         : "something was written out of bounds, before an allocation of 400 bytes"});
}

BROKEN void shared_copy(float* out, int store, int load, unsigned skipped) {
    __shared__ float before[32];
    __shared__ float tile[32];
    __shared__ float after[32];
    const int t = static_cast<int>(threadIdx.x);
    before[t] = after[t] = 1;
    float* const p = tile;
    if (threadIdx.x != skipped) p[t + store] = 1;
    __syncthreads();
    out[t] = p[31 - t + load] + before[t] + after[t];
}
TEST(Emulator, SharedMemoryOutOfBounds) {
    const auto out = on_device(std::vector<float>(32));
    const auto run = [&](int store, int load) { LAUNCH(shared_copy, 1, 32, 0, nullptr, out.get(), store, load, 32); };
    run(0, 0);
    if (emulator::checks_every_access()) {
        expect_report([&] { run(1, 0); },
                      {"thread (31,0,0): writes 4 bytes out of bounds: at byte 128 of tile of 128 bytes"});
        expect_report([&] { run(-1, 0); },
                      {"thread (0,0,0): writes 4 bytes out of bounds: at byte -4 of tile of 128 bytes"});
        expect_report([&] { run(0, 1); },
                      {"thread (0,0,0): reads 4 bytes out of bounds: at byte 128 of tile of 128 bytes"});
    } else {
        expect_report([&] { run(1, 0); },
                      {"something was written out of bounds, past the end of the shared variable tile"});
        run(0, 1);
        EXPECT_TRUE(std::isnan(values_of(out, 1)[0]));  // what was read is poison
    }
}

TEST(Emulator, MemoryThatNothingHasWritten) {
    const auto out = on_device(std::vector<float>(32));
    const auto run = [&] { LAUNCH(shared_copy, 1, 32, 0, nullptr, out.get(), 0, 0, 7); };
    float* p = nullptr;
    cuda_check(cudaMalloc(reinterpret_cast<void**>(&p), 4 * sizeof(float)), "cudaMalloc");
    const std::unique_ptr<float[], CudaDelete> fresh(p);
    const auto from_fresh = [&] { LAUNCH(copy, 1, 1, 0, nullptr, out.get(), fresh.get(), 0, 0, 1); };
    if (emulator::checks_every_access()) {
        expect_report(run, {"shared_copy, block (0,0,0), thread (24,0,0): reads byte 28 of tile of 128 bytes, which "
                            "nothing has written"});
        expect_report(from_fresh, {"copy, block (0,0,0), thread (0,0,0): reads byte 0 of an allocation of 16 bytes, "
                                   "which nothing has written"});
    } else {
        run();
        EXPECT_TRUE(std::isnan(values_of(out, 32)[24]));
        from_fresh();
        EXPECT_TRUE(std::isnan(values_of(out, 1)[0]));
    }
}

BROKEN void histogram(int* counts, bool atomic) {
    if (atomic)
        atomicAdd(&counts[threadIdx.x % 2], 1);
    else
        ++counts[threadIdx.x % 2];
}
TEST(Emulator, ARaceWithinABlock) {
    NEEDS_EVERY_ACCESS;
    const auto counts = on_device(std::vector<int>(2));
    LAUNCH(histogram, 3, 64, 0, nullptr, counts.get(), true);
    EXPECT_EQ(values_of(counts, 2), (std::vector<int>{96, 96}));
    expect_report(
        [&] { LAUNCH(histogram, 1, 64, 0, nullptr, counts.get(), false); },
        {"histogram, block (0,0,0), thread (", "a race: ", "of an allocation of 8 bytes, which thread number ",
         " of block number 0 has ", ", and no barrier lies between", at("++counts[threadIdx.x % 2]")});
}
TEST(Emulator, ARaceBetweenBlocks) {
    NEEDS_EVERY_ACCESS;
    const auto out = on_device(std::vector<float>(1)), in = on_device(count_from_one(8));
    expect_report([&] { LAUNCH(copy, 2, 1, 0, nullptr, out.get(), in.get(), 0, 0, 1); },
                  {"nothing"});  // one thread writes
    const auto counts = on_device(std::vector<int>(2));
    expect_report([&] { LAUNCH(histogram, 2, 1, 0, nullptr, counts.get(), false); }, {"a race: ", " of block number "});
}

// Lanes exchange through shared memory; a shuffle does not order memory, __syncwarp does.
BROKEN void through_a_warp(float* out, bool ordered) {
    __shared__ float tile[32];
    tile[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (ordered) __syncwarp();
    out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
TEST(Emulator, ARaceWithinAWarp) {
    NEEDS_EVERY_ACCESS;
    const auto out = on_device(std::vector<float>(32));
    for (emulator::seed = 0; emulator::seed < 5; ++emulator::seed) {
        LAUNCH(through_a_warp, 1, 32, 0, nullptr, out.get(), true);
        EXPECT_EQ(values_of(out, 1)[0], 1);
        EXPECT_THROW(LAUNCH(through_a_warp, 1, 32, 0, nullptr, out.get(), false), emulator::Error);
    }
}

BROKEN void store(float* p) { *p = 1; }
BROKEN void store_vector(char* p) { __stwb(reinterpret_cast<int4*>(p), int4{1, 2, 3, 4}); }
TEST(Emulator, BadPointers) {
    float on_host = 0;
    expect_report([] { LAUNCH(store, 1, 1, 0, nullptr, nullptr); },
                  {"store, block (0,0,0), thread (0,0,0): ", "through a null pointer", at("BROKEN void store(")});
    const auto bytes = on_device(std::vector<char>(64));
    expect_report([&] { LAUNCH(store_vector, 1, 1, 0, nullptr, bytes.get() + 8); },
                  {"misaligned", at("BROKEN void store_vector(")});
    if (emulator::checks_every_access())
        expect_report([&] { LAUNCH(store, 1, 1, 0, nullptr, &on_host); },
                      {"which is neither device nor shared memory nor the thread's own"});
}

BROKEN int deeper(int n, volatile int* out) {
    volatile int frame[256] = {n};
    return n == 0 ? 0 : deeper(n - 1, out) + frame[n % 256];
}
BROKEN void deep(int* out) { out[0] = deeper(100000, out); }
TEST(Emulator, StackOverflow) {
    const auto out = on_device(std::vector<int>(1));
    expect_report([&] { LAUNCH(deep, 1, 1, 0, nullptr, out.get()); },
                  {"deep, block (0,0,0), thread (0,0,0): stack overflow"});
}

BROKEN void wait_for(volatile int* flag) {
    while (*flag == 0) {
    }
}
TEST(Emulator, AThreadThatGoesOnForEver) {
    NEEDS_EVERY_ACCESS;
    const auto flag = on_device(std::vector<int>(1));
    EXPECT_THROW(LAUNCH(wait_for, 1, 1, 0, nullptr, flag.get()), emulator::Error);
    expect_sums("that");
}

// --- the host's side

TEST(Emulator, BadLaunches) {
    const auto out = on_device(std::vector<float>(64));
    expect_report([&] { LAUNCH(early_return, 0, 64, 0, nullptr, out.get(), 64); },
                  {"early_return, launched with a grid of (0,1,1) blocks", at("LAUNCH(early_return, 0, 64")});
    expect_report([&] { LAUNCH(early_return, 1, 1025, 0, nullptr, out.get(), 64); }, {"a block of (1025,1,1) threads"});
    expect_report([&] { LAUNCH(early_return, 1, dim3(1, 1, 65), 0, nullptr, out.get(), 64); },
                  {"a block of (1,1,65) threads"});
    expect_report([&] { LAUNCH(early_return, dim3(1, 65536), 1, 0, nullptr, out.get(), 64); },
                  {"a grid of (1,65536,1) blocks"});
    expect_report([&] { LAUNCH(early_return, 1, 64, 1 << 20, nullptr, out.get(), 64); },
                  {"1048576 bytes of dynamic shared memory"});
}

// A stream waits for another's event: the copy finds what the kernel wrote.
TEST(Emulator, StreamsAndEventsAreInOrder) {
    cudaStream_t first, second;
    cudaEvent_t written;
    cuda_check(cudaStreamCreate(&first), "stream"), cuda_check(cudaStreamCreate(&second), "stream");
    cuda_check(cudaEventCreate(&written), "event");
    const auto in = on_device(count_from_one(64)), out = on_device(std::vector<float>(1));
    float sum = 0;
    LAUNCH(tree_sum<Without::nothing>, 1, 64, 0, first, out.get(), in.get());
    cuda_check(cudaEventRecord(written, first), "event");
    cuda_check(cudaStreamWaitEvent(second, written), "event");
    cuda_check(cudaMemcpyAsync(&sum, out.get(), sizeof sum, cudaMemcpyDeviceToHost, second), "copy");
    cuda_check(cudaStreamSynchronize(second), "stream");
    EXPECT_EQ(sum, 2080);
    cuda_check(cudaEventDestroy(written), "event");
    cuda_check(cudaStreamDestroy(first), "stream"), cuda_check(cudaStreamDestroy(second), "stream");
}

TEST(Emulator, TheRuntimesErrors) {
    const auto x = on_device(std::vector<float>(10));
    float host[20] = {};
    EXPECT_EQ(cudaMemcpy(x.get(), host, 41, cudaMemcpyHostToDevice), cudaErrorInvalidValue);  // too much
    EXPECT_EQ(cudaMemcpy(host, x.get(), 40, cudaMemcpyHostToDevice), cudaErrorInvalidValue);  // the wrong way round
    EXPECT_EQ(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
    EXPECT_EQ(cudaFree(x.get() + 1), cudaErrorInvalidValue);
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, size_t{1} << 60), cudaErrorMemoryAllocation);
    try {
        cuda_check(cudaErrorInvalidValue, "the kernel");
        FAIL();
    } catch (const std::runtime_error& e) {
        EXPECT_EQ(e.what(), "the kernel: invalid argument, " + at("cuda_check(cudaErrorInvalidValue"));
    }
}

TEST(EmulatorDeathTest, TheHostAccessesDeviceMemory) {
    NEEDS_EVERY_ACCESS;
    const auto x = on_device(std::vector<float>(10));
    EXPECT_DEATH(x[3] = 1, "the host accesses device memory, dev/test/cuda/emulator_test.cpp");
}

}  // namespace
