// The rows of make bench, and random inputs for them.
#pragma once

#include <cstdint>
#include <vector>

#include "dev/bench_table.h"
#include "device/device.h"
#include "device/random.h"

void layer_rows(BenchTable& table);  // each layer, forward and backward
void step_rows(BenchTable& table);   // whole training steps
void token_rows(BenchTable& table);  // generation: the pass of one token
// Steps on one thread and on all: the speed-up, the serial share, and an estimate for more cores. csv may be null.
void thread_rows(BenchTable& table, std::FILE* csv);

// n random floats in (-0.5, 0.5).
inline HostBuffer<float> random_floats(int64_t n, uint64_t seed) {
    HostBuffer<float> x = host_allocate<float>(n);
    const Random random{seed, Purpose::parameters};
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(random.uniform(static_cast<uint64_t>(i)) - 0.5);
    return x;
}

// n random tokens of a vocabulary of V.
inline std::vector<int32_t> random_tokens(int64_t n, int64_t V, uint64_t seed) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    const Random random{seed, Purpose::sampling};
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(random.below(V, i));
    return tokens;
}
