// Philox (device/random.h) on vectors, for masks: which 16-bit numbers of a stream reach a threshold.
#pragma once

#include <array>
#include <cstdint>

#include "device/random.h"
#include "device/cpu/simd.h"

namespace simd {

using vlong = uint64_t __attribute__((vector_size(4 * W), may_alias));

#if defined(__SSE2__) && (!defined(__AVX512F__) || defined(__AVX512BW__))
// A lane of 64 bits is one draw. Its four words are in the lower halves of four vectors; the upper halves are whatever
// the multiplications, which ignore them, have left there.
constexpr int draws = W / 2, groups = 8 / draws;

inline vlong multiply_lower_halves(vlong a, uint32_t b) {
    const vlong factor = vlong{} + b;
#if defined(__AVX512F__)
    return (vlong)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)factor);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vlong)_mm256_mul_epu32((__m256i)a, (__m256i)factor);
#else
    return (vlong)_mm_mul_epu32((__m128i)a, (__m128i)factor);
#endif
}

// The draw of each lane, in an order that at_least undoes.
inline vlong lane_draws() {
#if defined(__AVX512F__)
    return vlong{0, 4, 1, 5, 2, 6, 3, 7};
#else
    vlong lanes{};
    for (int i = 0; i < draws; ++i) lanes[i] = static_cast<uint64_t>(i);
    return lanes;
#endif
}

// Of each draw, `first` has the first four numbers and `second` the others.
inline uint64_t at_least(vlong first, vlong second, uint32_t threshold) {
#if defined(__AVX512F__)
    const __m512i a = _mm512_maskz_unpacklo_epi64(0xff, (__m512i)first, (__m512i)second),
                  b = _mm512_maskz_unpackhi_epi64(0xff, (__m512i)first, (__m512i)second),
                  least = _mm512_set1_epi16(static_cast<short>(threshold));
    return _mm512_cmpge_epu16_mask(a, least) | uint64_t{_mm512_cmpge_epu16_mask(b, least)} << 32;
#elif defined(__AVX2__) && defined(__FMA__)
    const __m256i least = _mm256_set1_epi16(static_cast<short>(threshold));
    const auto reaches = [&](__m256i x) { return _mm256_cmpeq_epi16(_mm256_max_epu16(x, least), x); };
    const __m256i a = reaches(_mm256_unpacklo_epi64((__m256i)first, (__m256i)second)),
                  b = reaches(_mm256_unpackhi_epi64((__m256i)first, (__m256i)second));
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(a, b)));
#else
    const __m128i least = _mm_set1_epi16(static_cast<short>(threshold)), none = _mm_setzero_si128();
    const auto reaches = [&](__m128i x) { return _mm_cmpeq_epi16(_mm_subs_epu16(least, x), none); };
    const __m128i a = reaches(_mm_unpacklo_epi64((__m128i)first, (__m128i)second)),
                  b = reaches(_mm_unpackhi_epi64((__m128i)first, (__m128i)second));
    return static_cast<uint64_t>(_mm_movemask_epi8(_mm_packs_epi16(a, b)));
#endif
}

// The numbers of a stream, 16 bits each, that are at least a threshold, which is at most 65535. The keys of all rounds
// are computed once.
class AtLeast {
public:
    AtLeast(const Random& random, uint32_t upper_half, uint32_t least)
        : counter(random.counter(0, upper_half)), threshold(least) {
        for (uint32_t round = 0; round < 10; ++round) {
            key0[round] = vlong{} + (static_cast<uint32_t>(random.seed) + round * 0x9E3779B9);
            key1[round] = vlong{} + (static_cast<uint32_t>(random.seed >> 32) + round * 0xBB67AE85);
        }
    }

    // Of the 64 numbers of the 8 draws from `index` on: bit 8 d + i is 1 if draw d's bits16(i) reaches the threshold.
    uint64_t bits(uint64_t index) const {
        vlong x[4][groups];
        for (int g = 0; g < groups; ++g) {
            const vlong at = index + static_cast<uint64_t>(g * draws) + lane_draws();
            x[0][g] = at, x[1][g] = at >> 32, x[2][g] = vlong{} + counter.x[2], x[3][g] = vlong{} + counter.x[3];
        }
#pragma GCC unroll 10
        for (int round = 0; round < 10; ++round)
#pragma GCC unroll 4
            for (int g = 0; g < groups; ++g) {
                const vlong a = multiply_lower_halves(x[0][g], 0xD2511F53),
                            b = multiply_lower_halves(x[2][g], 0xCD9E8D57);
                x[0][g] = b >> 32 ^ x[1][g] ^ key0[round], x[1][g] = b;
                x[2][g] = a >> 32 ^ x[3][g] ^ key1[round], x[3][g] = a;
            }
        uint64_t result = 0;
#pragma GCC unroll 4
        for (int g = 0; g < groups; ++g) {
            const auto pair = [](vlong low, vlong high) { return (low & 0xffffffff) | high << 32; };
            result |= at_least(pair(x[0][g], x[1][g]), pair(x[2][g], x[3][g]), threshold) << (8 * draws * g);
        }
        return result;
    }

private:
    vlong key0[10], key1[10];
    Philox counter;
    uint32_t threshold;
};
#else
// As above, one draw at a time.
class AtLeast {
public:
    AtLeast(const Random& r, uint32_t of_counter, uint32_t least)
        : random(r), upper_half(of_counter), threshold(least) {}
    uint64_t bits(uint64_t index) const {
        uint64_t result = 0;
        for (int d = 0; d < 8; ++d) {
            const Philox drawn = random.bits(index + static_cast<uint64_t>(d), upper_half);
            for (int i = 0; i < 8; ++i) result |= uint64_t{drawn.bits16(i) >= threshold} << (8 * d + i);
        }
        return result;
    }

private:
    Random random;
    uint32_t upper_half, threshold;
};
#endif

// Lane i of v where bit i is 1, and 0 elsewhere.
inline vfloat where(uint64_t bits, vfloat v) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_maskz_mov_ps(static_cast<__mmask16>(bits), (__m512)v);
#else
    vint lane{};
    for (int i = 0; i < W; ++i) lane[i] = 1 << i;
    return (vfloat)((vint)v & ((set1(static_cast<int32_t>(bits)) & lane) == lane));
#endif
}

}  // namespace simd
