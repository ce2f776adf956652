// Shared by the layers' tests: buffers that detect stray accesses, the same call on both devices, comparisons.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/device.h"

constexpr double roundoff = 0x1p-24;  // rounding to float changes a value by at most this much of it
constexpr double nan64 = std::numeric_limits<double>::quiet_NaN();

inline std::mt19937& generator() {
    static std::mt19937 g(1234);
    return g;
}
inline std::vector<double> uniform(int64_t n, double size = 1) {
    std::vector<double> x(static_cast<size_t>(n));
    for (double& value : x) value = std::uniform_real_distribution<double>(-size, size)(generator());
    return x;
}

// Means of squares as the rows or columns of an orthogonal matrix have them, some of them much smaller.
inline std::vector<double> neuron_squares(int64_t rows, int64_t cols) {
    std::vector<double> means = uniform(std::max(rows, cols));
    for (double& mean : means) mean = std::pow(mean, 4) / static_cast<double>(std::max(rows, cols));
    return means;
}

// Floats between NaNs and an inaccessible page, which follows them. A result that reads one of the NaNs is NaN, and the
// destructor checks that none was written. If the number of floats is a multiple of a vector, they start on a vector's
// boundary, otherwise not, as tensors in a flat buffer may.
class Padded {
public:
    explicit Padded(const std::vector<double>& values)
        : size_(static_cast<int64_t>(values.size())),
          bytes((values.size() + pad) * sizeof(float) / page * page + 2 * page) {
        void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        memory = static_cast<char*>(p);
        if (mprotect(memory + bytes - page, page, PROT_NONE) != 0) throw std::bad_alloc();
        std::fill_n(get() - pad, pad, std::bit_cast<float>(poison));
        std::ranges::transform(values, get(), [](double x) { return static_cast<float>(x); });
    }
    Padded(const Padded&) = delete;
    ~Padded() {
        const float* const before = get() - pad;
        for (size_t i = 0; i < pad; ++i)
            EXPECT_EQ(std::bit_cast<uint32_t>(before[i]), poison) << "written " << pad - i << " before the start";
        munmap(memory, bytes);
    }
    float* get() { return reinterpret_cast<float*>(memory + bytes - page) - size_; }
    const float* get() const { return reinterpret_cast<const float*>(memory + bytes - page) - size_; }
    int64_t size() const { return size_; }

private:
    static constexpr size_t pad = 61, page = 1 << 14;  // a multiple of every system's page size
    static constexpr uint32_t poison = 0x7fc0dead;
    int64_t size_;
    size_t bytes;
    char* memory;
};

// A device whose scratch memory contains NaNs, as it may after another computation.
inline Cpu cpu_with_stale_scratch(MatmulKind matmul_kind = MatmulKind::fp32) {
    constexpr int64_t count = 1 << 19;
    Cpu cpu(matmul_kind);
    cpu.reserve({std::vector<int64_t>(static_cast<size_t>(omp_get_max_threads()), count), count, count});
    for (float* memory : {cpu.shared(count), cpu.halves(count)}) std::fill_n(memory, count, NAN);
#pragma omp parallel
    std::fill_n(cpu.scratch(count), count, NAN);
    return cpu;
}

// Runs a layer that is linear in each argument on the arguments' absolute values. It returns the total size of a
// result's terms, to which rounding errors are proportional.
struct Magnitude : Reference<double> {};

// One tensor of a layer on every device: the float values on Cpu, the same numbers in double on Reference.
class Values {
public:
    explicit Values(const std::vector<double>& values) : cpu(values), exact(values.size()), magnitude(values.size()) {
        for (size_t i = 0; i < values.size(); ++i)
            exact[i] = static_cast<double>(cpu.get()[i]), magnitude[i] = std::abs(exact[i]);
    }
    float* on(Cpu&) { return cpu.get(); }
    double* on(Reference<double>&) { return exact.data(); }
    double* on(Magnitude&) { return magnitude.data(); }
    double operator[](int64_t i) const { return exact[static_cast<size_t>(i)]; }
    int64_t size() const { return cpu.size(); }

    // Expects |Cpu - Reference| <= tolerance * magnitude for every element, so that NaN fails.
    void expect_close(const char* name, double tolerance) const {
        int64_t bad = 0, worst = 0;
        double largest = 0;
        for (int64_t i = 0; i < size(); ++i) {
            const size_t at = static_cast<size_t>(i);
            const double difference = std::abs(static_cast<double>(cpu.get()[i]) - exact[at]);
            const double allowed = tolerance * magnitude[at];
            if (difference <= allowed) continue;
            ++bad;
            if (!(difference / allowed <= largest)) largest = difference / allowed, worst = i;
        }
        EXPECT_EQ(bad, 0) << name << ": of " << size() << " values; number " << worst << " is " << cpu.get()[worst]
                          << " instead of " << exact[static_cast<size_t>(worst)] << ", " << largest
                          << " times what is allowed";
    }

    Padded cpu;
    std::vector<double> exact, magnitude;
};

inline Values random_values(int64_t n, double size = 1) { return Values(uniform(n, size)); }
// An output that must be overwritten.
inline Values nan_values(int64_t n) { return Values(std::vector<double>(static_cast<size_t>(n), nan64)); }

// Sets the number of OpenMP threads for a scope. A Cpu has scratch memory for the number of threads when it is made.
class Threads {
public:
    explicit Threads(int n) : before(omp_get_max_threads()) { omp_set_num_threads(n); }
    ~Threads() { omp_set_num_threads(before); }
    Threads(const Threads&) = delete;

private:
    const int before;
};

inline void append(std::vector<float>& all, const Values& values) {
    all.insert(all.end(), values.cpu.get(), values.cpu.get() + values.size());
}

// `run(dev)` returns all results of a layer, from the same inputs each time.
inline void expect_same_bits_for_any_thread_count(const std::function<std::vector<float>(Cpu&)>& run) {
    std::vector<float> one;
    for (const int threads : {1, 2, 3}) {
        const Threads scope(threads);
        generator().seed(99);
        Cpu dev;
        const std::vector<float> result = run(dev);
        if (threads == 1) one = result;
        ASSERT_EQ(result.size(), one.size());
        EXPECT_EQ(std::memcmp(result.data(), one.data(), one.size() * sizeof(float)), 0) << threads << " threads";
    }
}

// Expects NaN exactly where `expected(i)` is true.
inline void expect_nan_only_where(const char* name, const Values& values,
                                  const std::function<bool(int64_t)>& expected) {
    for (int64_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(std::isnan(values.cpu.get()[i]), expected(i)) << name << ", number " << i;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

// Compares the derivative of f() in a random direction of x, by central differences, with the gradient's. f reads x.
// The errors are h² of the third derivative and 1e-16 / h of f, some 1e-10 for values near 1; a wrong term gives above
// 1e-3.
inline void expect_gradient(const char* name, const std::function<double()>& f, std::vector<double>& x,
                            const std::vector<double>& gradient, double tolerance = 1e-7, double h = 1e-5) {
    ASSERT_EQ(gradient.size(), x.size());
    const std::vector<double> before = x;
    for (int trial = 0; trial < 3; ++trial) {
        const std::vector<double> direction = uniform(static_cast<int64_t>(x.size()));
        const auto at = [&](double step) {
            for (size_t i = 0; i < x.size(); ++i) x[i] = before[i] + step * direction[i];
            const double value = f();
            x = before;
            return value;
        };
        const double numeric = (at(h) - at(-h)) / (2 * h), analytic = dot(gradient, direction);
        double size = 0;  // of the analytic sum's terms, as the sum itself may be near 0
        for (size_t i = 0; i < x.size(); ++i) size += gradient[i] * gradient[i] * direction[i] * direction[i];
        EXPECT_LE(std::abs(numeric - analytic), tolerance * std::sqrt(size))
            << name << ": " << numeric << " by differences, " << analytic << " by the backward";
    }
}
