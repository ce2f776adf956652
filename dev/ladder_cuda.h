// Ladders of CUDA rungs: on the GPU if compiled by nvcc, otherwise in the emulator, which checks their results but
// whose times mean nothing.
#pragma once

#include <map>

#include "dev/ladder.h"
#include "device/cuda/common.cuh"

#ifdef __CUDACC__
constexpr bool on_gpu = true;
// z = z² + c in 8 chains per thread, as on the CPU (device/cpu/peak.h).
constexpr int fma_chains = 8, fma_rounds = 4096;
static __global__ void fma_kernel(float* out) {
    float z[fma_chains];
    UNROLL for (int i = 0; i < fma_chains; ++i) z[i] = static_cast<float>(threadIdx.x * fma_chains + i) / 4096;
    for (int round = 0; round < fma_rounds; ++round)
        UNROLL for (int i = 0; i < fma_chains; ++i) z[i] = fmaf(z[i], z[i], -1.85f);
    float sum = 0;
    UNROLL for (int i = 0; i < fma_chains; ++i) sum += z[i];
    if (sum > 1e9f) *out = sum;  // never true; it keeps the compiler from removing the loop
}
#else
constexpr bool on_gpu = false;
#endif

class CudaLadder : public Accelerator {
public:
    Cuda dev;

    // The rungs of `ladder` run on this device.
    explicit CudaLadder(Ladder& ladder) { ladder.on(*this); }
    CudaLadder(const CudaLadder&) = delete;

    // Device memory for t. New memory gets t's current values.
    float* memory(const Values& t) {
        CudaBuffer<float>& buffer = memory_[&t];
        if (!buffer) {
            buffer = cuda_allocate<float>(t.count());
            upload(t);
        }
        return buffer.get();
    }
    void upload(const Values& t) override { to_device(dev, memory(t), static_cast<const float*>(t), t.count()); }
    void download(const Values& t) override {
        const std::vector<float> values = to_host(dev, memory(t), t.count());
        std::copy(values.begin(), values.end(), static_cast<float*>(t));
    }

#ifdef __CUDACC__
    const char* name() const override { return "on the GPU"; }
    bool has_clock() const override { return true; }
    void reorder() override {}
    double seconds_a_call(const std::function<void()>& run) override {
        constexpr int calls = 10;  // so that waiting for the last one takes a small share of the time
        return ::seconds_a_call([&] {
                   for (int i = 0; i < calls; ++i) run();
                   cuda_check(cudaStreamSynchronize(dev.stream), "the rung");
               }) /
               calls;
    }
    double peak(Unit unit) override {
        constexpr int64_t count = int64_t{1} << 25;  // 128 MiB from, 128 MiB to: beyond any cache
        if (!copy_) copy_ = cuda_allocate<float>(2 * count);
        const unsigned blocks = 8u * static_cast<unsigned>(dev.multiprocessors);
        if (unit == Unit::flops)
            return 2 * prod(blocks, 256, fma_chains, fma_rounds) /
                   seconds_a_call([&] { LAUNCH(fma_kernel, blocks, 256, 0, dev.stream, copy_.get()); });
        constexpr size_t bytes = count * sizeof(float);
        return 2 * static_cast<double>(bytes) / seconds_a_call([&] {
                   cuda_check(
                       cudaMemcpyAsync(copy_.get(), copy_.get() + count, bytes, cudaMemcpyDeviceToDevice, dev.stream),
                       "copy");
               });
    }
#else
    const char* name() const override { return "in the emulator: right or wrong, without times"; }
    bool has_clock() const override { return false; }
    void reorder() override { ++emulator::seed; }
    double seconds_a_call(const std::function<void()>&) override {
        throw std::logic_error("the emulator has no times");
    }
    double peak(Unit) override { throw std::logic_error("the emulator has no times"); }
#endif

private:
    std::map<const Values*, CudaBuffer<float>> memory_;
    CudaBuffer<float> copy_;
};
