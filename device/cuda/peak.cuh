// The peak of a GPU, from its data sheet and measured.
#pragma once

#include <array>
#include <cctype>
#include <string_view>

#include "device/cuda/cublaslt.cuh"

// FLOP/s of dense bf16 matmuls with fp32 sums, from NVIDIA's data sheets, by CUDA's name for the chip; 0 if it is not
// in the table.
inline double data_sheet_flops(std::string_view name) {
    struct Chip {
        const char* name;
        double flops;
    };
    constexpr std::array<Chip, 13> chips{{{"B200", 2250e12},
                                          {"GH200", 989e12},
                                          {"H200", 989e12},
                                          {"H100 PCIe", 756e12},
                                          {"H100", 989e12},
                                          {"A100", 312e12},
                                          {"A10G", 70e12},
                                          {"A10", 125e12},
                                          {"L40S", 362e12},
                                          {"L4", 121e12},
                                          {"RTX 4090", 165.2e12},
                                          {"RTX 3090", 71e12},
                                          {"RTX 5090", 209.5e12}}};
    // Matches whole words: the RTX A1000 is not an A100.
    const auto has = [&](std::string_view word) {
        const auto ends = [&](size_t i) {
            return i >= name.size() || !std::isalnum(static_cast<unsigned char>(name[i]));
        };
        for (size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1))
            if (ends(at + word.size()) && ends(at - 1)) return true;
        return false;
    };
    for (const char* other : {"NVL", "Ti", "D", "Laptop", "MIG"})  // slower or faster variants of the same name
        if (has(other)) return 0;
    for (const Chip& chip : chips)
        if (has(chip.name)) return chip.flops;
    return 0;
}

// The shortest of several runs, in seconds.
template <class F>
double seconds_on(Cuda& dev, const F& f) {
    double least = 1e30;
    for (int run = 0; run < 5; ++run) {
        cuda_check(cudaStreamSynchronize(dev.stream), "cudaStreamSynchronize");
        const double start = seconds_now();
        f();
        cuda_check(cudaStreamSynchronize(dev.stream), "cudaStreamSynchronize");
        least = std::min(least, seconds_now() - start);
    }
    return least;
}

// FLOP/s of a matmul of two size x size matrices.
template <class T>
double measured_flops(Cuda& dev, int64_t size) {
    const auto a = allocate<T>(dev, size * size), b = allocate<T>(dev, size * size), c = allocate<T>(dev, size * size);
    return 2 * prod(size, size, size) / seconds_on(dev, [&] {
               matmul(dev, Matmul<T, T>{.out = c.get(), .a = a.get(), .b = b.get(), .M = size, .N = size, .K = size});
           });
}

// Bytes/s read and written by copying within the GPU's memory.
inline double measured_copy(Cuda& dev, int64_t bytes) {
    const auto from = allocate<char>(dev, bytes), to = allocate<char>(dev, bytes);
    return 2 * static_cast<double>(bytes) / seconds_on(dev, [&] {
               cuda_check(cudaMemcpyAsync(to.get(), from.get(), static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                                          dev.stream),
                          "cudaMemcpyAsync");
           });
}
