// Causal attention on the Cpu, after FlashAttention (Dao et al. 2022): a thread takes one head of one sequence, and of
// its T x T scores only a block of ROWS queries x KEYS keys exists at a time.
//
// The unit of work is a tile of MR queries: their scores with the keys of a block, the softmax of these, and the sum
// over keys all happen while the scores are in L1. With AVX-512 and hs = 64 that is 12 x 400 floats (19 KiB) beside a
// panel of 32 keys (8 KiB). The keys and values of a block (96 KiB each) stay in L2, with the 96 rows of probabilities
// and of gradients of scores (150 KiB each) that the backward's sums over queries read. Only the packed keys and
// values, packed once when their block is reached, and the backward's dk and dv grow with T.
//
// Little is computed right of the diagonal: scores end with the vector that the last query of a tile needs; sums over
// keys (over queries) end (begin) with the triangle on the diagonal. So a NaN reaches only the queries that see it.
//
// Matmuls are of words (device/cpu/gemm/words.h), floats or pairs of bf16; everything between them is fp32. Pairs of
// keys or queries that the diagonal divides are split, or a NaN in the half that does not count would count.
//
// The rows of a head lie far apart, and in a small model in the cache of the core that wrote them, so hardware
// prefetching does not find them: they are prefetched while the tile 96 rows before is computed, few at a time, as a
// core drops prefetches beyond the misses it can have outstanding. For that, a thread's heads follow each other (static
// schedule).
#include "layers/attention_cpu.h"

#include <limits>
#include <numbers>

#include "device/cpu/gemm/matmul.h"

namespace {

constexpr int NV = 2, MR = gemm::max_rows(NV);
using gemm::ceil_div;
using gemm::Order;
using simd::vfloat;
using simd::W;

constexpr int64_t ROWS = 96, KEYS = 384;  // multiples of MR and W at every width, so that no block cuts a tile
constexpr int64_t STRIDE = KEYS + 16;     // odd in cache lines, or rows would share L1 sets
static_assert(ROWS % MR == 0 && ROWS % W == 0 && KEYS % ROWS == 0 && MR % 2 == 0);

int64_t whole_vectors(int64_t n) { return ceil_div(n, W) * W; }

// f(M), 1 <= M <= MR, with M as a constant
template <class F>
void for_rows(int64_t M, const F& f) {
    if (M == MR) return f(std::integral_constant<int, MR>());
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
    for (int64_t r = 0; r < rows; r += W, panels += ceil_div(n, Words::size) * W)
        gemm::pack_panel<Order::k_last, 1, Words>(panels, x + r * ld, ld, n, rows - r);
}

// to (rows,n) = from, in words across rows, and n filled up to whole vectors by zeros
template <class Words>
void copy_in(float* to, const float* from, int64_t ld, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r += Words::size, to += whole_vectors(n))
        for (int64_t i = 0; i < n; i += W) simd::store(to + i, Words::across(from + r * ld + i, ld, rows - r, n - i));
}

// The same rows in words along n: copies, or x itself where words are floats.
struct Rows {
    const float* first;
    int64_t ld;
    const float* operator[](int64_t row) const { return first + row * ld; }
};
template <class Words>
Rows rows_of_words(float* copies, const float* x, int64_t ld, int64_t rows, int64_t n) {
    if (Words::size == 1) return {x, ld};
    gemm::pack_rows<Words>(copies, x, ld, n, rows);
    return {copies, ceil_div(n, Words::size)};
}

// to (rows,n) = from * factor, from's rows filled up to whole vectors
void copy_out(float* to, int64_t ld_to, const float* from, int64_t rows, int64_t n, float factor) {
    const int64_t width = whole_vectors(n);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; i += W)
            simd::store_n(to + r * ld_to + i, simd::load(from + r * width + i) * factor, n - i);
}

// dots[r] = x_r · y_r for rows of n
void row_dots(float* dots, const float* x, const float* y, int64_t ld, int64_t rows, int64_t n) {
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
// scores (M,keys) = a (M,K) · panels (K,keys). meanwhile(r) is called for each of the M rows, between tiles and after
// the last.
template <class Words, int M, class F>
void score_rows(float* scores, const float* a, int64_t lda, const float* panels, int64_t keys, int64_t K,
                const F& meanwhile) {
    const int64_t share = ceil_div(M, std::max<int64_t>(1, keys / (NV * W)));
    int64_t n = 0, row = 0;
    for (; n + NV * W <= keys; n += NV * W) {
        score_tile<Words, M, NV>(scores + n, a, lda, panels + n * K, K);
        for (const int64_t end = std::min<int64_t>(M, row + share); row < end; ++row) meanwhile(row);
    }
    for (; n < keys; n += W) score_tile<Words, M, 1>(scores + n, a, lda, panels + n * K, K);
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

// Queries [q, q + M), and the keys [k0, …) of a block that they see: n of them, in whole vectors. All queries see the
// first `all_see`.
struct QueryTile {
    int64_t q, M, k0, n, all_see;
    bool on_diagonal;
    QueryTile(int64_t first, int64_t rows, int64_t begin, int64_t end)
        : q(first),
          M(rows),
          k0(begin),
          n(whole_vectors(std::min(end, q + M) - k0)),
          all_see(std::min(end, q) - k0),
          on_diagonal(q < end) {}
};

// scores (M,n) = e^(scale * (score - top)) in words along the keys, with zeros for the keys that row r does not see:
// those beyond q + r. top (M) becomes the largest score so far; total (M) += the exponentials; before that, total and
// sums (M,width) are rescaled to the new top. There are two passes over the rows, as in one pass the exponentials of
// each row would wait for its maximum. meanwhile(r) is called for each row.
template <class Words, class F>
void softmax(float* scores, const QueryTile& t, float scale, float* top, float* total, float* sums, int64_t width,
             const F& meanwhile) {
    const float binary = scale * std::numbers::log2e_v<float>;
    for (int64_t r = 0; r < t.M; ++r) {
        const float* const row = scores + r * STRIDE;
        const int64_t sees = t.q + r + 1 - t.k0;
        vfloat largest = simd::set1(top[r]);
        int64_t s = 0;
        for (; s + W <= std::min(sees, t.n); s += W) largest = simd::max(largest, simd::load(row + s));
        for (; s < t.n; s += W) largest = simd::max(largest, simd::first(simd::load(row + s), sees - s, row[0]));
        const float now = simd::max(largest);
        if (t.k0 > 0 && now != top[r]) {
            const vfloat factor = simd::exp2(simd::set1((top[r] - now) * binary));
            total[r] *= factor[0];
            simd::map(sums + r * width, width, [=](vfloat x, int64_t, int64_t) { return x * factor; });
        }
        top[r] = now;
    }
    for (int64_t r = 0; r < t.M; ++r) {
        meanwhile(r);
        float* const row = scores + r * STRIDE;
        const int64_t sees = t.q + r + 1 - t.k0;
        const float now = top[r];
        vfloat sum{};
        for (int64_t s = 0; s < t.n; s += Words::size * W) {
            vfloat e[Words::size];
#pragma GCC unroll 2
            for (int64_t i = 0; i < Words::size; ++i) {
                const int64_t at = s + i * W;
                e[i] = simd::first(simd::exp2((simd::load(row + at) - now) * binary), sees - at);
                sum += e[i];
            }
            simd::store(row + s / Words::size, Words::along(e));
        }
        total[r] += simd::sum(sum);
    }
}

// p (M,n) = e^(scale * score - log_sum) and ds (M,n) = p * (dscore - dout_out), both in words across the rows, with
// zeros for keys that are not seen; dscores = ds in words along the keys. With floats, p and ds may be scores and
// dscores themselves, and entries of unseen keys are undefined. meanwhile(r) is called for each row.
template <class Words, class F>
void softmax_backward(float* p, float* ds, float* scores, float* dscores, const QueryTile& t, float scale,
                      const float* log_sum, const float* dout_out, const F& meanwhile) {
    constexpr int64_t size = Words::size;
    for (int64_t r0 = 0; r0 < t.M; r0 += size) {
        float sum[size], mean[size];
        int64_t sees[size];
        for (int64_t i = 0; i < size; ++i) {
            const int64_t r = r0 + i;
            const bool there = r < t.M;
            if (there) meanwhile(r);
            sum[i] = there ? log_sum[r] : 0, mean[i] = there ? dout_out[r] : 0,
            sees[i] = there ? t.q + r + 1 - t.k0 : 0;
        }
        for (int64_t s0 = 0; s0 < t.n; s0 += size * W) {
            vfloat along[size][size];  // ds of a row and a vector of keys
#pragma GCC unroll 2
            for (int64_t v = 0; v < size; ++v) {
                const int64_t s = s0 + v * W;
                vfloat probs[size], gradients[size];  // of the rows
#pragma GCC unroll 2
                for (int64_t i = 0; i < size; ++i) {
                    const int64_t at = (r0 + i) * STRIDE + s;
                    const auto seen = [&](vfloat x) { return size == 1 ? x : simd::first(x, sees[i] - s); };
                    probs[i] =
                        seen(simd::exp(simd::fma(simd::load(scores + at), simd::set1(scale), simd::set1(-sum[i]))));
                    gradients[i] = along[i][v] = seen(probs[i] * (simd::load(dscores + at) - mean[i]));
                }
                simd::store(p + r0 / size * STRIDE + s, Words::across(probs));
                simd::store(ds + r0 / size * STRIDE + s, Words::across(gradients));
            }
            for (int64_t i = 0; i < size && size > 1; ++i)
                simd::store(dscores + (r0 + i) * STRIDE + s0 / size, Words::along(along[i]));
        }
    }
}

// Floats of scratch memory that forward() and backward() take.
template <class Words>
int64_t forward_floats(const Heads& heads) {
    const int64_t T = heads.T, width = heads.width, K = ceil_div(heads.hs, Words::size);
    return whole_vectors(T) * K + (ceil_div(T, Words::size) + ROWS) * width + ROWS * K + MR * STRIDE;
}
template <class Words>
int64_t backward_floats(const Heads& heads) {
    constexpr int64_t size = Words::size;
    const int64_t T = heads.T, width = heads.width, K = ceil_div(heads.hs, size);
    return (ceil_div(T, size) + 2 * T + ROWS + 2 * ROWS / size) * width + 2 * (whole_vectors(T) + ROWS) * K +
           2 * (ROWS / size + MR) * STRIDE;
}

// out, logsumexp of one head, whose queries begin at qkv + at(first row)
template <class Words>
void forward(Cpu& dev, float* out, float* logsumexp, const float* qkv, const Heads& heads, int64_t head) {
    constexpr int64_t size = Words::size;
    const int64_t T = heads.T, C = heads.C, hs = heads.hs, ld = heads.ld, width = heads.width, K = ceil_div(hs, size);
    const float scale = heads.scale;
    const float *q = qkv + heads.at(head * T, ld), *k = q + C, *v = k + C;
    float* const o = out + heads.at(head * T, C);
    float* const keys = dev.scratch(forward_floats<Words>(heads));
    float* const values = keys + whole_vectors(T) * K;
    float *const scores = values + ceil_div(T, size) * width, *const sums = scores + MR * STRIDE;
    float* const query_words = sums + ROWS * width;
    for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
        const int64_t rows = std::min(ROWS, T - q0), q1 = q0 + rows;
        pack_transposed<Words>(keys + q0 * K, k + q0 * ld, ld, rows, hs);
        copy_in<Words>(values + q0 / size * width, v + q0 * ld, ld, rows, hs);
        const Rows queries = rows_of_words<Words>(query_words, q + q0 * ld, ld, rows, hs);
        float top[ROWS], total[ROWS] = {};
        std::fill(top, top + rows, std::numeric_limits<float>::lowest());
        for (int64_t k0 = 0; k0 < q1; k0 += KEYS)
            for (int64_t m = 0; m < rows; m += MR)
                for_rows(std::min<int64_t>(MR, rows - m), [&](auto M) {
                    const QueryTile t(q0 + m, M, k0, std::min(k0 + KEYS, q1));
                    const float* const next = qkv + heads.at(head * T + t.q + ROWS, ld);
                    const bool first_keys = k0 == 0;
                    const auto prefetch_out = [&](int64_t r) __attribute__((always_inline)) {
                        if (first_keys) prefetch_range<Access::write>(o + (t.q + r) * C, hs);
                    };
                    const auto prefetch_qkv = [&](int64_t r) __attribute__((always_inline)) {
                        for (int64_t part = 0; first_keys && part < 3; ++part)
                            prefetch_range(next + r * ld + part * C, hs);
                    };
                    score_rows<Words, M>(scores, queries[m], queries.ld, keys + k0 * K, t.n, K, prefetch_out);
                    softmax<Words>(scores, t, scale, top + m, total + m, sums + m * width, width, prefetch_qkv);
                    sum_rows<Words, Order::k_last, M>(
                        sums + m * width, width, k0 > 0, t.all_see / size, scores, values + k0 / size * width,
                        t.on_diagonal ? scores + t.all_see / size : nullptr, values + t.q / size * width);
                });
        for (int64_t r = 0; r < rows; ++r) copy_out(o + (q0 + r) * C, C, sums + r * width, 1, hs, 1 / total[r]);
        for (int64_t r = 0; r < rows; ++r) logsumexp[head * T + q0 + r] = std::fma(top[r], scale, std::log(total[r]));
    }
}

// dqkv of one head
template <class Words>
void backward(Cpu& dev, float* dqkv, const float* dout, const float* out, const float* qkv, const float* logsumexp,
              const Heads& heads, int64_t head) {
    constexpr int64_t size = Words::size;
    const int64_t T = heads.T, C = heads.C, hs = heads.hs, ld = heads.ld, width = heads.width, K = ceil_div(hs, size);
    const float scale = heads.scale;
    const int64_t at = heads.at(head * T, ld), at_out = heads.at(head * T, C);
    const float *q = qkv + at, *k = q + C, *v = k + C, *d = dout + at_out, *o = out + at_out;
    float *dq = dqkv + at, *dk = dq + C, *dv = dk + C;
    // In words: keys, queries and douts across rows, their rows, and keys and values transposed.
    float* const keys = dev.scratch(backward_floats<Words>(heads));
    float *const dk_sum = keys + ceil_div(T, size) * width, *const dv_sum = dk_sum + T * width;
    float *const dq_sum = dv_sum + T * width, *const queries = dq_sum + ROWS * width;
    float* const douts = queries + ROWS / size * width;
    float* const keys_transposed = douts + ROWS / size * width;
    float* const values_transposed = keys_transposed + whole_vectors(T) * K;
    float *const query_words = values_transposed + whole_vectors(T) * K, *const dout_words = query_words + ROWS * K;
    float *const p = dout_words + ROWS * K, *const ds = p + ROWS / size * STRIDE;
    float* const tile = ds + ROWS / size * STRIDE;
    for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
        const int64_t rows = std::min(ROWS, T - q0), q1 = q0 + rows;
        copy_in<Words>(keys + q0 / size * width, k + q0 * ld, ld, rows, hs);
        pack_transposed<Words>(keys_transposed + q0 * K, k + q0 * ld, ld, rows, hs);
        pack_transposed<Words>(values_transposed + q0 * K, v + q0 * ld, ld, rows, hs);
        copy_in<Words>(queries, q + q0 * ld, ld, rows, hs);
        copy_in<Words>(douts, d + q0 * C, C, rows, hs);
        const Rows query_rows = rows_of_words<Words>(query_words, q + q0 * ld, ld, rows, hs);
        const Rows dout_rows = rows_of_words<Words>(dout_words, d + q0 * C, C, rows, hs);
        float dout_out[ROWS];
        row_dots(dout_out, d + q0 * C, o + q0 * C, C, rows, hs);
        for (int64_t k0 = 0; k0 < q1; k0 += KEYS) {
            const int64_t k1 = std::min(k0 + KEYS, q1);
            for (int64_t m = 0; m < rows; m += MR)
                for_rows(std::min<int64_t>(MR, rows - m), [&](auto M) {
                    const QueryTile t(q0 + m, M, k0, k1);
                    float *const p_tile = p + m / size * STRIDE, *const ds_tile = ds + m / size * STRIDE;
                    float *const scores = size == 1 ? p_tile : tile, *const dscores =
                                                                         size == 1 ? ds_tile : tile + MR * STRIDE;
                    const int64_t ahead = head * T + t.q + ROWS, next_out = heads.at(ahead, C);
                    const float* const next = qkv + heads.at(ahead, ld);
                    const bool first_keys = k0 == 0;
                    const auto prefetch_dqkv = [&](int64_t r) __attribute__((always_inline)) {
                        for (int64_t part = 0; first_keys && part < 3; ++part)
                            prefetch_range<Access::write>(dq + (t.q + r) * ld + part * C, hs);
                    };
                    const auto prefetch_qkv = [&](int64_t r) __attribute__((always_inline)) {
                        for (int64_t part = 0; first_keys && part < 3; ++part)
                            prefetch_range(next + r * ld + part * C, hs);
                    };
                    const auto prefetch_out = [&](int64_t r) __attribute__((always_inline)) {
                        if (!first_keys) return;
                        prefetch_range(dout + next_out + r * C, hs);
                        prefetch_range(out + next_out + r * C, hs);
                    };
                    score_rows<Words, M>(scores, query_rows[m], query_rows.ld, keys_transposed + k0 * K, t.n, K,
                                         prefetch_dqkv);
                    score_rows<Words, M>(dscores, dout_rows[m], dout_rows.ld, values_transposed + k0 * K, t.n, K,
                                         prefetch_out);
                    softmax_backward<Words>(p_tile, ds_tile, scores, dscores, t, scale, logsumexp + head * T + t.q,
                                            dout_out + m, prefetch_qkv);
                    sum_rows<Words, Order::k_last, M>(
                        dq_sum + m * width, width, k0 > 0, t.all_see / size, dscores, keys + k0 / size * width,
                        t.on_diagonal ? dscores + t.all_see / size : nullptr, keys + t.q / size * width);
                });
            for (int64_t s = k0; s < k1; s += MR)
                for_rows(std::min<int64_t>(MR, k1 - s), [&](auto M) {
                    const int64_t own = s - q0, all_see = std::max<int64_t>(0, own + M);
                    const auto sum_over_queries = [&](float* c, const float* a, const float* x) {
                        a += s - k0;
                        sum_rows<Words, Order::k_first, M>(
                            c + s * width, width, own < 0, ceil_div(rows - all_see, size), a + all_see / size * STRIDE,
                            x + all_see / size * width, own < 0 ? nullptr : a + own / size * STRIDE,
                            x + own / size * width);
                    };
                    sum_over_queries(dk_sum, ds, queries);
                    sum_over_queries(dv_sum, p, douts);
                });
        }
        copy_out(dq + q0 * ld, ld, dq_sum, rows, hs, scale);
    }
    copy_out(dk, ld, dk_sum, T, hs, scale);
    copy_out(dv, ld, dv_sum, T, hs, 1);
}

// Calls f with the kind of words. Where AMX multiplies matrices, attention stays in fp32.
template <class F>
auto for_words([[maybe_unused]] MatmulKind matmul_kind, const F& f) {
#if defined(__AVX512BF16__)
    if (matmul_kind == MatmulKind::bf16 && !amx::permitted()) return f(gemm::Bf16Pairs());
#endif
    return f(gemm::Floats());
}

}  // namespace

int64_t attention_forward_scratch(int64_t T, int64_t C, int64_t NH, MatmulKind matmul_kind) {
    return for_words(matmul_kind, [&]<class Words>(Words) { return forward_floats<Words>({1, T, NH, C / NH}); });
}
int64_t attention_backward_scratch(int64_t T, int64_t C, int64_t NH, MatmulKind matmul_kind) {
    return for_words(matmul_kind, [&]<class Words>(Words) { return backward_floats<Words>({1, T, NH, C / NH}); });
}

void attention_forward(Cpu& dev, float* out, float* logsumexp, const float* qkv, int64_t B, int64_t T, int64_t C,
                       int64_t NH) {
    const Timed timed(dev, "attention_forward", 2 * prod(B, T, T + 1, C), 16 * prod(B, T, C));
    const Heads heads{B, T, NH, C / NH};
    dev.reserve(attention_forward_scratch(T, C, NH, dev.matmul_kind));
    for_words(dev.matmul_kind, [&]<class Words>(Words) {
#pragma omp parallel for schedule(static)
        for (int64_t head = 0; head < B * NH; ++head) forward<Words>(dev, out, logsumexp, qkv, heads, head);
    });
}

void attention_backward(Cpu& dev, float* dqkv, const float* dout, const float* out, const float* qkv,
                        const float* logsumexp, int64_t B, int64_t T, int64_t C, int64_t NH) {
    const Timed timed(dev, "attention_backward", 5 * prod(B, T, T + 1, C), 32 * prod(B, T, C));
    const Heads heads{B, T, NH, C / NH};
    dev.reserve(attention_backward_scratch(T, C, NH, dev.matmul_kind));
    for_words(dev.matmul_kind, [&]<class Words>(Words) {
#pragma omp parallel for schedule(static)
        for (int64_t head = 0; head < B * NH; ++head)
            backward<Words>(dev, dqkv, dout, out, qkv, logsumexp, heads, head);
    });
}
