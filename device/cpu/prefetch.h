// Prefetch hints of the Cpu's layers. A hint brings a cache line closer and never changes a result.
// All functions are always inlined: GCC considers a function that only prefetches free of effects and drops its calls.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cpu/simd.h"

enum class Access { read = 0, write = 1 };  // __builtin_prefetch's second argument
enum class Cache { L1 = 3, L2 = 2 };        // and its third, the locality

constexpr int64_t cache_line = 64;  // bytes

// Prefetches the cache line at p.
template <Access access = Access::read, Cache cache = Cache::L1, class S>
[[gnu::always_inline]] inline void prefetch_line(const S* p) {
    __builtin_prefetch(p, static_cast<int>(access), static_cast<int>(cache));
}

// Prefetches the cache lines of p (n), one every 64 bytes from p on.
template <Access access = Access::read, class S>
[[gnu::always_inline]] inline void prefetch_range(const S* p, int64_t n) {
    for (int64_t i = 0; i < n; i += cache_line / static_cast<int64_t>(sizeof(S))) prefetch_line<access>(p + i);
}

// Prefetches the cache line at p once: only if vector k of each_vector (device/cpu/rows.h) is the line's first.
template <Cache cache, class S>
[[gnu::always_inline]] inline void prefetch_vector(const S* p, int k) {
    constexpr int vectors = static_cast<int>(cache_line) / (simd::W * static_cast<int>(sizeof(S)));
    if (k % std::max(1, vectors) == 0) prefetch_line<Access::read, cache>(p);
}

// Prefetches ahead of a walk along memory that is at p: `far` ahead into L2, since memory is slow, and `near` ahead
// into L1, because earlier the rest of a wide row would evict the line again before it is read.
template <class S>
constexpr int64_t far = 8192 / sizeof(S);
template <class S>
constexpr int64_t near = 2048 / sizeof(S);
template <class S>
[[gnu::always_inline]] inline void prefetch_ahead(const S* p, int k) {
    prefetch_vector<Cache::L2>(p + far<S>, k);
    prefetch_vector<Cache::L1>(p + near<S>, k);
}
