// One vector type of floats, as wide as the target CPU's, and the few operations that the layers need. GCC's vector
// types have + - * / and comparisons at every width; only the other operations are written per width.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace simd {

#if defined(__AVX512F__)
constexpr int W = 16;  // floats in a vector
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int W = 8;
#else
constexpr int W = 4;  // SSE2, NEON
#endif

using vfloat = float __attribute__((vector_size(4 * W), may_alias));
using vint = int32_t __attribute__((vector_size(4 * W), may_alias));

constexpr int64_t vectors(int64_t n) { return (n + W - 1) / W; }  // that n floats take

inline vfloat set1(float x) { return x - vfloat{}; }  // every lane x (x - 0 keeps the sign of zero)
inline vint set1(int32_t x) { return x - vint{}; }

inline vfloat load(const float* p) {
    vfloat v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store(float* p, vfloat v) { std::memcpy(p, &v, sizeof v); }

// v, held in a register. Where a loop needs almost all registers, GCC would otherwise read v from memory at each use.
inline vfloat in_register(vfloat v) {
#if defined(__AVX512F__)
    asm("" : "+v"(v));
#elif defined(__SSE2__)
    asm("" : "+x"(v));
#endif
    return v;
}

// Loads the first n lanes (0 <= n <= W; more counts as W); the others are zero. Memory after them is not read.
inline vfloat load_n(const float* p, int64_t n) {
#if defined(__AVX512F__)
    return n >= W ? load(p) : (vfloat)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    if (n >= W) return load(p);
    vfloat v{};
    for (int i = 0; i < W; ++i)
        if (i < n) v[i] = p[i];
    return v;
#endif
}
inline void store_n(float* p, vfloat v, int64_t n) {
#if defined(__AVX512F__)
    if (n >= W) return store(p, v);
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    if (n >= W) return store(p, v);
    for (int i = 0; i < W; ++i)
        if (i < n) p[i] = v[i];
#endif
}

// The first n lanes of v, `rest` in the others.
inline vfloat first(vfloat v, int64_t n, float rest = 0) {
    if (n >= W) return v;
    vint lane{};
    for (int i = 0; i < W; ++i) lane[i] = i;
    return lane < set1(static_cast<int32_t>(n)) ? v : set1(rest);
}

// Streaming (non-temporal) store, which bypasses the caches: for results too large to be read from them again. p is
// aligned to the vector. A thread that has made such stores calls stream_fence() before another thread may read them.
inline void stream(float* p, vfloat v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, (__m256)v);
#else
    store(p, v);
#endif
}

// Orders this thread's streaming stores before its later stores, such as those that signal a barrier. On x86, streaming
// stores are weakly ordered, and a barrier alone need not order them: libgomp's does, as it uses a locked instruction,
// but LLVM's may not.
inline void stream_fence() {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

inline vfloat fma(vfloat a, vfloat b, vfloat c) {  // a * b + c
#if defined(__AVX512F__)
    return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (vfloat)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// p[i] = f(p[i], i, left) for a row of n floats, one vector at a time, of which `left` lanes (W or fewer) exist. Three
// vectors per iteration, as many as a matmul tile has.
template <class F>
inline void map(float* p, int64_t n, const F& f) {
    int64_t i = 0;
#pragma GCC unroll 3
    for (; i + W <= n; i += W) store(p + i, f(load(p + i), i, W));
    if (i < n) store_n(p + i, f(load_n(p + i, n - i), i, n - i), n - i);
}

inline vfloat sqrt(vfloat v) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
#else
    for (int i = 0; i < W; ++i) v[i] = std::sqrt(v[i]);
    return v;
#endif
}

// a > b ? a : b, for which GCC has a mask and a blend where x86 has one instruction. If b is NaN the result is NaN, so
// max(bound, x) keeps a NaN x visible.
inline vfloat max(vfloat a, vfloat b) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vfloat)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vfloat)_mm_max_ps((__m128)a, (__m128)b);
#else
    return a > b ? a : b;
#endif
}
inline vfloat min(vfloat a, vfloat b) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vfloat)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vfloat)_mm_min_ps((__m128)a, (__m128)b);
#else
    return a < b ? a : b;
#endif
}

// Lane i of the result is lane from(i) of a or, from W on, lane from(i) - W of b. GCC has clang's builtin too, but nvcc
// up to CUDA 12 does not know it.
#if defined(__clang__)
template <class From, int... I>
inline vfloat shuffle_lanes(vfloat a, vfloat b, From, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, From{}(I)...);
}
template <class From>
inline vfloat shuffle(vfloat a, vfloat b, From from) {
    return shuffle_lanes(a, b, from, std::make_integer_sequence<int, W>{});
}
#else
template <class From>
inline vfloat shuffle(vfloat a, vfloat b, From from) {
    vint lanes{};
    for (int i = 0; i < W; ++i) lanes[i] = from(i);
    return __builtin_shuffle(a, b, lanes);
}
#endif

// Swaps lanes i and i ^ D.
template <int D>
inline vfloat swap_lanes(vfloat v) {
    return shuffle(v, v, [](int i) { return i ^ D; });
}

// The sum and the maximum of the lanes, always in the same order: halves onto halves.
inline float sum(vfloat v) {
    if constexpr (W > 8) v += swap_lanes<8>(v);
    if constexpr (W > 4) v += swap_lanes<4>(v);
    v += swap_lanes<2>(v);
    v += swap_lanes<1>(v);
    return v[0];
}
inline float max(vfloat v) {
    if constexpr (W > 8) v = max(v, swap_lanes<8>(v));
    if constexpr (W > 4) v = max(v, swap_lanes<4>(v));
    v = max(v, swap_lanes<2>(v));
    v = max(v, swap_lanes<1>(v));
    return v[0];
}

// Swaps the lanes of b whose index lacks bit D with the lanes of a whose index has it.
template <int D>
inline void exchange(vfloat& a, vfloat& b) {
    const vfloat x = a, y = b;
    a = shuffle(x, y, [](int i) { return i & D ? W + i - D : i; });
    b = shuffle(x, y, [](int i) { return i & D ? W + i : i + D; });
}
template <int D>
inline void exchange_all(vfloat (&rows)[W]) {
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i)
        if (!(i & D)) exchange<D>(rows[i], rows[i | D]);
}

// Lane r of the result is sum(rows[r]) to the bit, r < N, with less than half as many operations as N calls of sum(). N
// is a power of two, at most W. `rows` is overwritten.
template <int N, int D = W / 2>
inline vfloat sums(vfloat* rows) {
#pragma GCC unroll 16
    for (int i = 0; i < (D < N ? D : N); ++i)
        if constexpr (D < N) {  // the sums of row i go to the lanes without bit D, those of row i + D to the others
            exchange<D>(rows[i], rows[i + D]);
            rows[i] += rows[i + D];
        } else {
            rows[i] += swap_lanes<D>(rows[i]);
        }
    if constexpr (D > 1)
        return sums<N, D / 2>(rows);
    else
        return rows[0];
}

// out[r] = sum(rows[r]) for r < N. Up to W - 1 floats after them are overwritten, and `rows` too.
template <int N>
inline void store_sums(float* out, vfloat* rows) {
    constexpr int at_once = N < W ? static_cast<int>(std::bit_floor(static_cast<unsigned>(N))) : W;
    store(out, sums<at_once>(rows));
    if constexpr (N > at_once) store_sums<N - at_once>(out + at_once, rows + at_once);
}

// out[j * ld_out + i] = row(i)[j] for i < W and j < min(n, W), by exchanging halves, quarters, … of the matrix.
template <class F>
void transpose(float* out, int64_t ld_out, int64_t n, const F& row) {
    vfloat rows[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) rows[i] = row(i);
    if constexpr (W > 8) exchange_all<8>(rows);
    if constexpr (W > 4) exchange_all<4>(rows);
    exchange_all<2>(rows);
    exchange_all<1>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i)
        if (i < n) store(out + i * ld_out, rows[i]);
}

// 2^x for -127.5 < x < 128.5, with an error of at most 1.25 ulp; NaN stays NaN. x = n + r with |r| <= 1/2, and 2^r is
// its minimax polynomial of degree 6. Without AVX-512, 2^n is a float of its own, so the result is 0 from -126.5 down,
// and infinity from 127.5 up.
inline vfloat exp2_of_bounded(vfloat x) {
#if defined(__AVX512DQ__)
    const vfloat r = (vfloat)_mm512_maskz_reduce_ps(0xffff, (__m512)x, 0), n = x - r;  // of infinity r is 0
#else
    constexpr float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, subtracting it shows it
    const vfloat shifted = x + to_integer, n = shifted - to_integer, r = x - n;
#endif
    vfloat p = set1(1.53533619e-4f);
    p = fma(p, r, set1(1.33988744e-3f));
    p = fma(p, r, set1(9.61843736e-3f));
    p = fma(p, r, set1(5.55033247e-2f));
    p = fma(p, r, set1(2.40226479e-1f));
    p = fma(p, r, set1(6.93147203e-1f));
    p = fma(p, r, set1(1.0f));
#if defined(__AVX512DQ__)
    return (vfloat)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)n);
#else
    // n is in the last bits of `shifted`, whose other bits are shifted out. To convert n would be undefined where it is
    // NaN, and clang then drops the NaN.
    return p * (vfloat)(((vint)shifted + 127) << 23);
#endif
}

// 2^x for any x, with the same error (tested over all exponents of floats), and the same ends: a softmax cannot tell
// them from AVX-512's, where the result is 0 from -150 down and infinity from 128 up.
inline vfloat exp2(vfloat x) {
#if !defined(__AVX512DQ__)
    x = min(set1(128.0f), max(set1(-127.0f), x));
#endif
    return exp2_of_bounded(x);
}

// e^x as 2^(x log2(e)): 0 and infinity where exp2 is, NaN stays NaN. Rounding the argument adds 1.25 |x| ulp to exp2's
// own error. That is acceptable for scores and logits minus their maximum, whose own error is as large. Splitting the
// argument in two would take a third longer.
inline vfloat exp(vfloat x) { return exp2(x * std::numbers::log2e_v<float>); }

}  // namespace simd
