// Shared by the tests of Cuda layers: a tensor on both devices, and the thread orders to try.
#pragma once

#include "dev/test/layers/layer_check.h"
#include "device/cuda/common.cuh"

// A tensor of T on the device, and the same values in double for Reference. `misaligned`: not on a vector's boundary.
template <class T>
struct CudaTensor {
    CudaTensor(Cuda& device, const std::vector<double>& values, bool misaligned = false)
        : dev(device), offset(misaligned ? 1 : 0), exact(values.size()) {
        std::vector<T> rounded(values.size() + static_cast<size_t>(offset));
        for (size_t i = 0; i < values.size(); ++i) {
            T& value = rounded[i + static_cast<size_t>(offset)];
            value = T(static_cast<float>(values[i]));
            exact[i] = static_cast<double>(static_cast<float>(value));
        }
        memory = cuda_allocate<T>(static_cast<int64_t>(rounded.size()));
        to_device(dev, memory.get(), rounded.data(), static_cast<int64_t>(rounded.size()));
    }
    T* on(Cuda&) { return memory.get() + offset; }
    double* on(Reference<double>&) { return exact.data(); }
    std::vector<float> values() const {
        std::vector<float> x(exact.size());
        to_host(dev, x.data(), memory.get() + offset, static_cast<int64_t>(x.size()));
        return x;
    }
    // Expects |Cuda - Reference| <= allowed(i) for every element, so that NaN fails. A value stored as bf16 may have an
    // additional error of half of the last of its 8 bits.
    template <class Allowed>
    void expect_close(const char* name, const Allowed& allowed) const {
        const std::vector<float> got = values();
        for (size_t i = 0; i < got.size(); ++i) {
            const double storage = std::is_same_v<T, bf16> ? std::abs(exact[i]) * 0x1p-8 : 0;
            ASSERT_LE(std::abs(static_cast<double>(got[i]) - exact[i]), allowed(static_cast<int64_t>(i)) + storage)
                << name << ": number " << i << " is " << got[i] << " instead of " << exact[i];
        }
    }

    CudaTensor(CudaTensor&&) = default;
    CudaTensor& operator=(CudaTensor&& t) {
        offset = t.offset, memory = std::move(t.memory), exact = std::move(t.exact);
        return *this;
    }

    Cuda& dev;
    int64_t offset;
    CudaBuffer<T> memory;
    std::vector<double> exact;
};

// x in device memory
template <class T>
CudaBuffer<T> copied(Cuda& dev, const T& x) {
    auto memory = cuda_allocate<T>(1);
    to_device(dev, memory.get(), &x, 1);
    return memory;
}

inline std::vector<double> nans(int64_t n) { return std::vector<double>(static_cast<size_t>(n), nan64); }

// Runs a test for each order of the threads; on a GPU, where the order varies by itself, as often.
template <class Test>
void in_every_order(const Test& test) {
#ifdef __CUDACC__
    for (int run = 0; run < 3; ++run) test();
#else
    for (const uint64_t seed : {1, 2, 3}) emulator::seed = seed, test();
#endif
}

// run() returns all results of a layer, which must have the same bits in every order.
template <class Run>
void expect_same_bits(const Run& run) {
    std::vector<float> first;
    in_every_order([&] {
        const std::vector<float> all = run();
        if (first.empty()) first = all;
        ASSERT_EQ(all.size(), first.size());
        EXPECT_EQ(std::memcmp(all.data(), first.data(), all.size() * sizeof(float)), 0);
    });
}
