// What the passes of attention on the Cpu (attention_cpu.cpp) consist of beside the softmax: rows of a head packed as
// words (device/cpu/gemm/words.h), and the products of tiles of queries with keys and values, by vectors or by AMX.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "layers/attention/amx.h"
#include "device/cpu/gemm/matmul.h"
#include "device/cpu/simd.h"

namespace attention_cpu {

constexpr int NV = 2, MR = gemm::max_rows(NV);
using gemm::ceil_div;
using gemm::Order;
using simd::vfloat;
using simd::W;

constexpr int64_t ROWS = 96, KEYS = 384;  // multiples of MR and W at every width, so that no block cuts a tile
constexpr int64_t STRIDE = KEYS + 16;     // odd in cache lines, or rows would share L1 sets
static_assert(ROWS % MR == 0 && ROWS % W == 0 && KEYS % ROWS == 0 && MR % 2 == 0);

constexpr int64_t rounded_up(int64_t n, int64_t step) { return ceil_div(n, step) * step; }
constexpr int64_t whole_vectors(int64_t n) { return rounded_up(n, W); }

// The same words as those that they are made of, multiplied by AMX in whole tiles: of 16 queries, 32 keys, and 16 words
// of a head. What fills up the tiles is zero.
template <class Words>
struct InTiles : Words {
    using Untiled = Words;
};
template <class Words>
constexpr bool in_tiles = false;
template <class Words>
constexpr bool in_tiles<InTiles<Words>> = true;
template <class Words>
constexpr int64_t queries_of_tile = in_tiles<Words> ? 16 : MR;
template <class Words>
constexpr int64_t keys_of_tile = in_tiles<Words> ? 32 : W;
static_assert(ROWS % 32 == 0 && KEYS % 32 == 0);
// The rows that a head's T rows are packed as.
template <class Words>
constexpr int64_t padded(int64_t T) {
    return rounded_up(T, keys_of_tile<Words>);
}
// The words of a head's row.
template <class Words>
constexpr int64_t head_words(int64_t hs) {
    return rounded_up(ceil_div(hs, Words::size), in_tiles<Words> ? 16 : 1);
}

// f(M), 1 <= M <= MR, with M as a constant; in tiles always all rows of a tile
template <class Words, class F>
void for_rows(int64_t M, const F& f) {
    if (in_tiles<Words> || M == MR) return f(std::integral_constant<int, queries_of_tile<Words>>());
    [&]<int... I>(std::integer_sequence<int, I...>) {
        ((M == I + 1 ? f(std::integral_constant<int, I + 1>()) : void()), ...);
    }
    (std::make_integer_sequence<int, MR - 1>());
}

// The heads of all sequences, whose rows stand in (B,T,ld) tensors.
struct Heads {
    int64_t B, T, NH, hs, C = NH * hs, ld = 3 * C, width = whole_vectors(hs);
    float scale = 1 / std::sqrt(static_cast<float>(hs));
    // Where row n of all heads' rows, head by head, begins; the last head's for those behind.
    int64_t at(int64_t n, int64_t row_length) const {
        const int64_t head = std::min(n / T, B * NH - 1);
        return (head / NH * T + n % T) * row_length + head % NH * hs;
    }
};

// A panel (n,W) of words along n for each W of x's rows.
template <class Words>
void pack_transposed(float* panels, const float* x, int64_t ld, int64_t rows, int64_t n) {
    const int64_t K = head_words<Words>(n), packed = ceil_div(n, Words::size);
    for (int64_t r = 0; r < rounded_up(rows, keys_of_tile<Words>); r += W, panels += K * W) {
        if (r < rows) gemm::pack_panel<Order::k_last, 1, Words>(panels, x + r * ld, ld, n, rows - r);
        std::fill(panels + (r < rows ? packed : 0) * W, panels + K * W, 0.0f);
    }
}

// to (rows,n) = from, in words across rows, and n filled up to whole vectors by zeros
template <class Words>
void copy_in(float* to, const float* from, int64_t ld, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rounded_up(rows, in_tiles<Words> ? 32 : 1); r += Words::size, to += whole_vectors(n))
        for (int64_t i = 0; i < n; i += W)
            simd::store(to + i, r < rows ? Words::across(from + r * ld + i, ld, rows - r, n - i) : vfloat{});
}

// The same rows in words along n: copies, or x itself where words are floats.
struct Rows {
    const float* first;
    int64_t ld;
    Rows from(int64_t row) const { return {first + row * ld, ld}; }
};
template <class Words>
Rows rows_of_words(float* copies, const float* x, int64_t ld, int64_t rows, int64_t n) {
    if (Words::size == 1) return {x, ld};
    const int64_t K = head_words<Words>(n), packed = ceil_div(n, Words::size);
    for (int64_t r = 0; r < rows; ++r) {
        gemm::pack_rows<Words>(copies + r * K, x + r * ld, ld, n, 1);
        std::fill(copies + r * K + packed, copies + (r + 1) * K, 0.0f);
    }
    return {copies, K};
}

// to (rows,n) = from * factor, from's rows filled up to whole vectors
inline void copy_out(float* to, int64_t ld_to, const float* from, int64_t rows, int64_t n, float factor) {
    const int64_t width = whole_vectors(n);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; i += W)
            simd::store_n(to + r * ld_to + i, simd::load(from + r * width + i) * factor, n - i);
}

// The same from columns: from (n,ld_from), of which each of the rows is a column.
inline void copy_out_columns(float* to, int64_t ld_to, const float* from, int64_t ld_from, int64_t rows, int64_t n,
                             float factor) {
    alignas(64) float block[W * W];
    for (int64_t r = 0; r < rows; r += W)
        for (int64_t i = 0; i < n; i += W) {
            simd::transpose(block, W, W,
                            [=](int64_t column) { return simd::load(from + (i + column) * ld_from + r) * factor; });
            for (int64_t k = 0; k < std::min<int64_t>(W, rows - r); ++k)
                simd::store_n(to + (r + k) * ld_to + i, simd::load(block + k * W), n - i);
        }
}

// Whether all values of the rows are finite as bf16.
inline bool finite_in_bf16(const float* x, int64_t ld, int64_t rows, int64_t n) {
    simd::vint beyond{};
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; i += W)
            beyond |= ((simd::vint)simd::load_n(x + r * ld + i, n - i) & 0x7fffffff) > 0x7f7f7fff;
    for (int i = 0; i < W; ++i)
        if (beyond[i]) return false;
    return true;
}

inline bool qkv_finite_in_bf16(const float* qkv, int64_t C, int64_t rows, int64_t n) {
    bool finite = true;
    for (int64_t part = 0; part < 3; ++part) finite = finite && finite_in_bf16(qkv + part * C, 3 * C, rows, n);
    return finite;
}

// dots[r] = x_r · y_r for rows of n
inline void row_dots(float* dots, const float* x, const float* y, int64_t ld, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; ++r) {
        vfloat sum{};
        for (int64_t i = r * ld; i < r * ld + n; i += W) {
            const int64_t left = r * ld + n - i;
            sum = simd::fma(simd::load_n(x + i, left), simd::load_n(y + i, left), sum);
        }
        dots[r] = simd::sum(sum);
    }
}

// The first or the last values of the words in K, with zeros for the others.
template <class Words>
vfloat half(vfloat words, bool last) {
    if (Words::size == 1) return words;
    return (vfloat)((simd::vint)words & (last ? ~0xffff : 0xffff));
}

// acc (M, V vectors) += a column of A · a row of B, whose vectors are `next` apart. On the diagonal the column is the
// k-th of a triangle: the lower one for k_last, where A's rows are queries, the upper one for k_first, where they are
// keys.
template <class Words, Order A, bool diagonal, int M, int V>
[[gnu::always_inline]] inline void step(vfloat (&acc)[M][V], int k, const float* a, int64_t lda, const float* b,
                                        int64_t next) {
    vfloat row[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) row[j] = simd::load(b + j * next);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
        constexpr int size = Words::size;
        const int k0 = k * size, k1 = k0 + size - 1;
        if (diagonal && (A == Order::k_last ? i < k0 : i > k1)) continue;
        const bool parted = diagonal && (A == Order::k_last ? i < k1 : i > k0);
        const vfloat x = Words::set1(A == Order::k_last ? a[i * lda] : a[i]);
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j)
            acc[i][j] = Words::multiply_add(x, parted ? half<Words>(row[j], A == Order::k_first) : row[j], acc[i][j]);
    }
}

// acc (M, V vectors) += A (M,K) · B (K, V vectors), K in words
template <class Words, Order A, int M, int V>
[[gnu::always_inline]] inline void multiply_add(vfloat (&acc)[M][V], int64_t K, const float* a, int64_t lda,
                                                const float* b, int64_t ldb, int64_t next) {
    const int64_t da = A == Order::k_last ? 1 : lda;
    int64_t k = 0;
    for (; k + 4 <= K; k += 4)
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) step<Words, A, false>(acc, 0, a + (k + u) * da, lda, b + (k + u) * ldb, next);
    for (; k < K; ++k) step<Words, A, false>(acc, 0, a + k * da, lda, b + k * ldb, next);
}

// scores (M, V vectors) = a (M,K) · V panels (K,W), K in words
template <class Words, int M, int V>
void score_tile(float* scores, const float* a, int64_t lda, const float* panels, int64_t K) {
    vfloat acc[M][V] = {};
    multiply_add<Words, Order::k_last>(acc, K, a, lda, panels, W, K * W);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) simd::store(scores + i * STRIDE + j * W, acc[i][j]);
}
// scores (M,keys) = a (M,K) · panels (K,keys), K in words. meanwhile(r) is called for each of the M rows, between tiles
// and after the last.
template <class Words, int M, class F>
void score_rows(float* scores, const Rows& a, const float* panels, int64_t keys, int64_t K, const F& meanwhile) {
    const int64_t share = ceil_div(M, std::max<int64_t>(1, keys / (NV * W)));
    int64_t n = 0, row = 0;
    for (; n + NV * W <= keys; n += NV * W) {
        if constexpr (in_tiles<Words>)
            amx::multiply_tiles<1, 2>(scores + n, STRIDE, false, K, a.first, a.ld, panels + n * K, W, W * K);
        else
            score_tile<Words, M, NV>(scores + n, a.first, a.ld, panels + n * K, K);
        for (const int64_t end = std::min<int64_t>(M, row + share); row < end; ++row) meanwhile(row);
    }
    if constexpr (!in_tiles<Words>)
        for (; n < keys; n += W) score_tile<Words, M, 1>(scores + n, a.first, a.ld, panels + n * K, K);
    for (; row < M; ++row) meanwhile(row);
}

// c (M, V vectors) [+]= A (M,K) · B (K, V vectors), K in words; with `diagonal`, also the triangle of A there times B's
// rows there.
template <class Words, Order A, int M, int V>
void sum_tile(float* c, int64_t width, bool accumulate, int64_t K, const float* a, const float* b,
              const float* diagonal, const float* b_diagonal) {
    constexpr int words = static_cast<int>(ceil_div(M, Words::size));
    vfloat acc[M][V] = {};
    multiply_add<Words, A>(acc, K, a, STRIDE, b, width, W);
    if (diagonal)
#pragma GCC unroll 16
        for (int k = 0; k < words; ++k)
            step<Words, A, true>(acc, k, diagonal + k * (A == Order::k_last ? 1 : STRIDE), STRIDE,
                                 b_diagonal + k * width, W);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) {
            float* const p = c + i * width + j * W;
            simd::store(p, accumulate ? simd::load(p) + acc[i][j] : acc[i][j]);
        }
}
// The same for all columns of c.
template <class Words, Order A, int M>
void sum_rows(float* c, int64_t width, bool accumulate, int64_t K, const float* a, const float* b,
              const float* diagonal, const float* b_diagonal) {
    int64_t n = 0;
    for (; n + NV * W <= width; n += NV * W)
        sum_tile<Words, A, M, NV>(c + n, width, accumulate, K, a, b + n, diagonal, b_diagonal + n);
    for (; n < width; n += W) sum_tile<Words, A, M, 1>(c + n, width, accumulate, K, a, b + n, diagonal, b_diagonal + n);
}

// Queries [q, q + M), and the keys [k0, …) of a block that they see: n of them, in whole vectors or tiles. All queries
// see the first `all_see`.
struct QueryTile {
    int64_t q, M, k0, n, all_see;
    bool on_diagonal;
    QueryTile(int64_t first, int64_t rows, int64_t begin, int64_t end, int64_t step)
        : q(first),
          M(rows),
          k0(begin),
          n(rounded_up(std::min(end, q + M) - k0, step)),
          all_see(std::min(end, q) - k0),
          on_diagonal(q < end) {}
};

// f(2) or, for the last 16 columns, f(1), as constants
template <class F>
void for_tiles(int64_t left, const F& f) {
    left > W ? f(std::integral_constant<int, 2>()) : f(std::integral_constant<int, 1>());
}

// c (M,width) = a (M,n) · x, whose rows are all keys or values in words; += from the second block of keys on.
template <class Words, int M>
void sum_over_keys(float* c, int64_t width, const QueryTile& t, const float* a, const float* x) {
    const float* const first = x + t.k0 / Words::size * width;
    if constexpr (in_tiles<Words>) {
        for (int64_t n = 0; n < width; n += NV * W)
            for_tiles(width - n, [&](auto tiles) {
                amx::multiply_tiles<1, tiles>(c + n, width, t.k0 > 0, t.n / Words::size, a, STRIDE, first + n, width,
                                              W);
            });
    } else {
        const int64_t below = t.all_see / Words::size;
        sum_rows<Words, Order::k_last, M>(c, width, t.k0 > 0, below, a, first, t.on_diagonal ? a + below : nullptr,
                                          x + t.q / Words::size * width);
    }
}

}  // namespace attention_cpu
