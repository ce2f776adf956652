// Random numbers, on the CPU and in CUDA kernels: Philox4x32-10 (Salmon, Moraes, Dror & Shaw 2011, "Parallel random
// numbers: as easy as 1, 2, 3"). Its 128 bits are a function of a key and a counter alone, so every number is computed
// from its index, in any order and by any number of threads. The distributions are written out here because those of
// the standard library differ from one compiler to another.
//
//   key      the run's seed
//   counter  words 0 and 1   the number's index in its stream
//            word 2          the step or epoch that draws it
//            word 3          lower half: the purpose; upper half: how often below() has drawn it again, or the
//                            part of a model that dropout draws for
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

struct Philox {
    uint32_t x[4];
    // 0 <= i < 8. A GPU's registers cannot be indexed: x[i / 2] would have to lie in memory.
    HOST_DEVICE constexpr uint32_t bits16(int i) const {
        const uint64_t half = i < 4 ? x[0] | uint64_t{x[1]} << 32 : x[2] | uint64_t{x[3]} << 32;
        return static_cast<uint32_t>(half >> i % 4 * 16) & 0xffff;
    }
};
HOST_DEVICE constexpr Philox philox(Philox counter, uint64_t key) {
    uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
    uint32_t(&x)[4] = counter.x;
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * x[0], b = uint64_t{0xCD9E8D57} * x[2];
        const uint32_t x1 = x[1], x3 = x[3];
        x[0] = static_cast<uint32_t>(b >> 32) ^ x1 ^ key0, x[1] = static_cast<uint32_t>(b);
        x[2] = static_cast<uint32_t>(a >> 32) ^ x3 ^ key1, x[3] = static_cast<uint32_t>(a);
        key0 += 0x9E3779B9, key1 += 0xBB67AE85;
    }
    return counter;
}

// Each purpose draws from a stream of its own. Runs and checkpoints rely on these values: never reuse one.
enum class Purpose : uint32_t {
    rounding = 0,        // to bf16; index: that of 8 values, in the flat buffer of parameters
    parameters = 1,      // the initial ones; index: in their flat buffer
    shard_order = 2,     // index: in the order
    block_shift = 3,     // where a shard's blocks begin; index: the shard, or the shard (upper half) and document
    block_order = 4,     // index: the shard (upper half), and in the order (lower half)
    sampling = 5,        // tokens of generated text; index: the token
    dropout = 6,         // index: that of 8 values in the step (layers/dropout.h)
    softmax_sample = 7,  // the tokens of a sampled softmax; index: the batch's first sequence
};

// The place of a batch in a training run: numbers drawn for its values depend on nothing else but their index.
struct BatchPlace {
    uint64_t seed = 0;
    int64_t step = 0;            // counts from 1
    int64_t first_sequence = 0;  // of the batch, among those of the step
};

struct Random {
    uint64_t seed;
    Purpose purpose;
    int64_t step = 0;

    HOST_DEVICE constexpr Philox bits(uint64_t index, uint32_t upper_half = 0) const {
        return philox(counter(index, upper_half), seed);
    }
    HOST_DEVICE constexpr Philox counter(uint64_t index, uint32_t upper_half = 0) const {
        return {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(step),
                 static_cast<uint32_t>(purpose) | upper_half << 16}};
    }

    // In (0,1), never 0 or 1.
    HOST_DEVICE double uniform(uint64_t index) const {
        const Philox drawn = bits(index);
        return open_unit(drawn.x[0], drawn.x[1]);
    }

    // From N(0,1), by Box & Muller 1958.
    HOST_DEVICE double normal(uint64_t index) const {
        const Philox drawn = bits(index);
        return std::sqrt(-2 * std::log(open_unit(drawn.x[0], drawn.x[1]))) *
               std::cos(2 * std::numbers::pi * open_unit(drawn.x[2], drawn.x[3]));
    }

    // In 0 … n-1, all equally likely, n > 0: numbers below 2^64 mod n are drawn again, so that n divides how many are
    // left (the OpenBSD algorithm in Lemire 2019, "Fast random integer generation in an interval").
    HOST_DEVICE constexpr uint64_t below(uint64_t n, uint64_t index) const {
        const uint64_t rejected = (0 - n) % n;
        for (uint32_t attempt = 0;; ++attempt) {
            const Philox drawn = bits(index, attempt);
            const uint64_t x = uint64_t{drawn.x[0]} << 32 | drawn.x[1];
            if (x >= rejected) return x % n;
        }
    }

private:
    // The middle of one of 2^52 equal parts of (0,1): a double holds it exactly.
    HOST_DEVICE static constexpr double open_unit(uint32_t high, uint32_t low) {
        return (static_cast<double>((uint64_t{high} << 32 | low) >> 12) + 0.5) * 0x1p-52;
    }
};

// order = 0 … size-1 in random order (Fisher & Yates, as Durstenfeld 1964). The draws' indices are first …
// first+size-1.
inline void shuffled(std::vector<uint32_t>& order, int64_t size, const Random& random, uint64_t first = 0) {
    order.resize(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0u);
    for (uint64_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.below(i + 1, first + i)]);
}
