// Causal attention on the Cpu, after FlashAttention (Dao et al. 2022): a thread takes one head of one sequence, and of
// its T x T scores only those of a block of ROWS queries x KEYS keys exist at a time.
//
// The unit of work is a tile's MR queries: their scores with a block's keys, what the softmax makes of these, and the
// sum over keys that follows all happen while these scores are in L1. With AVX-512 and hs = 64 that is 12 x 400 floats
// (19 KiB) beside a panel of 32 keys (8 KiB). A block's keys and values (96 KiB each) stay in L2, with the 96 rows of
// probabilities and of scores' gradients (150 KiB each) that the backward's sums over queries read. All that grows with
// T are copies of keys and values, packed once as their block comes up, and the backward's dk and dv.
//
// Little right of the diagonal is computed: scores end with the vector that a tile's last query needs; sums over keys
// (over queries) end (begin) with the triangle on the diagonal. So NaN reaches only those who see it.
//
// Keys are scaled by 1 / sqrt(hs) as they are copied, instead of each score.
//
// A head's rows are far from each other, and a small model's in the cache of the core that wrote them, so that the CPU
// does not see them coming: they are asked for while the tile 96 rows before is computed. Not many at a time: what
// exceeds the misses that a core can have open is forgotten. For that a thread's heads follow each other, by a static
// schedule.
#include "layers/attention_cpu.h"

#include <limits>
#include <numbers>

#include "layers/gemm_cpu.h"
#include "layers/simd.h"

namespace {

constexpr int NV = 2, MR = gemm::max_rows(NV);
using gemm::Order;
using simd::vfloat;
using simd::W;

constexpr int64_t ROWS = 96, KEYS = 384;  // multiples of MR and W at every width, so that no block cuts a tile
constexpr int64_t STRIDE = KEYS + 16;     // odd in cache lines, or rows would share L1 sets
static_assert(ROWS % MR == 0 && ROWS % W == 0 && KEYS % ROWS == 0);

// e^x for scores less their row's largest or logsumexp. Rounding x log2(e) costs |x| roundoffs of a value that is small
// where |x| is not; simd::exp, which avoids that, takes half as long again.
vfloat power(vfloat x) { return simd::exp2(x * std::numbers::log2e_v<float>); }

int64_t whole_vectors(int64_t n) { return gemm::ceil_div(n, W) * W; }

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
    // Where row n of all heads' rows, head by head, begins; the last head's for those behind.
    int64_t at(int64_t n, int64_t row_length) const {
        const int64_t head = std::min(n / T, B * NH - 1);
        return (head / NH * T + n % T) * row_length + head % NH * hs;
    }
};

// Inlined, as GCC takes a function that only asks for memory for one without effect.
template <bool write = false>
[[gnu::always_inline]] inline void prefetch(const float* p, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(p + i, write);
}

// x (rows,n) * factor, transposed: a panel (n,W) for each W of its rows, filled up to whole vectors by zeros.
void pack_transposed(float* panels, const float* x, int64_t ld, int64_t rows, int64_t n, float factor) {
    for (int64_t r = 0; r < rows; r += W)
        for (int64_t i = 0; i < n; i += W)
            simd::transpose(panels + r * whole_vectors(n) + i * W, W, W, [=](int64_t j) {
                return r + j < rows ? simd::load_n(x + (r + j) * ld + i, n - i) * factor : vfloat{};
            });
}

// to (rows,n) = from * factor, to's rows filled up to whole vectors by zeros
void copy_in(float* to, const float* from, int64_t ld_from, int64_t rows, int64_t n, float factor) {
    const int64_t width = whole_vectors(n);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; i += W)
            simd::store(to + r * width + i, simd::load_n(from + r * ld_from + i, n - i) * factor);
}
// The other way round.
void copy_out(float* to, int64_t ld_to, const float* from, int64_t rows, int64_t n, float factor) {
    const int64_t width = whole_vectors(n);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; i += W)
            simd::store_n(to + r * ld_to + i, simd::load(from + r * width + i) * factor, n - i);
}

// products[r] = x_r · y_r for rows of n, x's filled up to whole vectors
void row_products(float* products, const float* x, const float* y, int64_t ld_y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; ++r) {
        vfloat sum{};
        for (int64_t i = 0; i < n; i += W)
            sum = simd::fma(simd::load(x + r * whole_vectors(n) + i), simd::load_n(y + r * ld_y + i, n - i), sum);
        products[r] = simd::sum(sum);
    }
}

// acc (M, V vectors) += a column of A · a row of B, whose vectors are `next` apart. On the diagonal the column is the
// k-th of a triangle: lower if k_last, where A's rows are queries; upper if k_first, where they are keys.
template <Order A, bool diagonal, int M, int V>
[[gnu::always_inline]] inline void step(vfloat (&acc)[M][V], int k, const float* a, int64_t lda, const float* b,
                                        int64_t next) {
    vfloat row[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) row[j] = simd::load(b + j * next);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
        if (diagonal && (A == Order::k_last ? i < k : i > k)) continue;
        const vfloat x = simd::set1(A == Order::k_last ? a[i * lda] : a[i]);
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) acc[i][j] = simd::fma(x, row[j], acc[i][j]);
    }
}

// acc (M, V vectors) += A (M,K) · B (K, V vectors)
template <Order A, int M, int V>
[[gnu::always_inline]] inline void multiply_add(vfloat (&acc)[M][V], int64_t K, const float* a, int64_t lda,
                                                const float* b, int64_t ldb, int64_t next) {
    const int64_t da = A == Order::k_last ? 1 : lda;
    int64_t k = 0;
    for (; k + 4 <= K; k += 4)
#pragma GCC unroll 4
        for (int u = 0; u < 4; ++u) step<A, false>(acc, 0, a + (k + u) * da, lda, b + (k + u) * ldb, next);
    for (; k < K; ++k) step<A, false>(acc, 0, a + k * da, lda, b + k * ldb, next);
}

// scores (M, V vectors) = a (M,hs) · V panels (hs,W)
template <int M, int V>
void score_tile(float* scores, const float* a, int64_t lda, const float* panels, int64_t hs) {
    vfloat acc[M][V] = {};
    multiply_add<Order::k_last>(acc, hs, a, lda, panels, W, whole_vectors(hs) * W);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) simd::store(scores + i * STRIDE + j * W, acc[i][j]);
}
// scores (M,keys) = a (M,hs) · panels (hs,keys). Between tiles, and behind, meanwhile(r) is called for each of M rows.
template <int M, class F>
void score_rows(float* scores, const float* a, int64_t lda, const float* panels, int64_t keys, int64_t hs,
                const F& meanwhile) {
    const int64_t share = gemm::ceil_div(M, std::max<int64_t>(1, keys / (NV * W)));
    int64_t n = 0, row = 0;
    for (; n + NV * W <= keys; n += NV * W) {
        score_tile<M, NV>(scores + n, a, lda, panels + n * whole_vectors(hs), hs);
        for (const int64_t end = std::min<int64_t>(M, row + share); row < end; ++row) meanwhile(row);
    }
    for (; n < keys; n += W) score_tile<M, 1>(scores + n, a, lda, panels + n * whole_vectors(hs), hs);
    for (; row < M; ++row) meanwhile(row);
}

// c (M, V vectors) [+]= A (M,K) · B (K, V vectors), and with `diagonal` also the triangle of A there · B's rows there.
template <Order A, int M, int V>
void sum_tile(float* c, int64_t width, bool accumulate, int64_t K, const float* a, const float* b,
              const float* diagonal, const float* b_diagonal) {
    vfloat acc[M][V] = {};
    multiply_add<A>(acc, K, a, STRIDE, b, width, W);
    if (diagonal)
#pragma GCC unroll 16
        for (int k = 0; k < M; ++k)
            step<A, true>(acc, k, diagonal + k * (A == Order::k_last ? 1 : STRIDE), STRIDE, b_diagonal + k * width, W);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) {
            float* const p = c + i * width + j * W;
            simd::store(p, accumulate ? simd::load(p) + acc[i][j] : acc[i][j]);
        }
}
// The same for all of c's columns.
template <Order A, int M>
void sum_rows(float* c, int64_t width, bool accumulate, int64_t K, const float* a, const float* b,
              const float* diagonal, const float* b_diagonal) {
    int64_t n = 0;
    for (; n + NV * W <= width; n += NV * W)
        sum_tile<A, M, NV>(c + n, width, accumulate, K, a, b + n, diagonal, b_diagonal + n);
    for (; n < width; n += W) sum_tile<A, M, 1>(c + n, width, accumulate, K, a, b + n, diagonal, b_diagonal + n);
}

// Queries [q, q + M), and the keys [k0, …) of a block that they see: n of them, in whole vectors, the first `all_see`
// of which all queries see.
struct Tile {
    int64_t q, M, k0, n, all_see;
    bool on_diagonal;
    Tile(int64_t first, int64_t rows, int64_t begin, int64_t end)
        : q(first),
          M(rows),
          k0(begin),
          n(whole_vectors(std::min(end, q + M) - k0)),
          all_see(std::min(end, q) - k0),
          on_diagonal(q < end) {}
};

// scores (M,n) = e^(score - top) in place, of which row r's up to the key q + r count. top (M) becomes the largest
// score so far; total (M) += the powers; total and sums (M,width) are brought to the new top first. Two passes over the
// rows: in one, each row's powers would wait for its maximum. meanwhile(r) is called for each row.
template <class F>
void softmax(float* scores, const Tile& t, float* top, float* total, float* sums, int64_t width, const F& meanwhile) {
    for (int64_t r = 0; r < t.M; ++r) {
        const float* const row = scores + r * STRIDE;
        const int64_t sees = t.q + r + 1 - t.k0;
        vfloat largest = simd::set1(top[r]);
        int64_t s = 0;
        for (; s + W <= std::min(sees, t.n); s += W) largest = simd::max(largest, simd::load(row + s));
        for (; s < t.n; s += W) largest = simd::max(largest, simd::first(simd::load(row + s), sees - s, row[0]));
        const float now = simd::max(largest);
        if (t.k0 > 0 && now != top[r]) {
            const vfloat factor = power(simd::set1(top[r] - now));
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
        for (int64_t s = 0; s < t.n; s += W) {
            const vfloat e = power(simd::load(row + s) - now);
            simd::store(row + s, e);
            sum += simd::first(e, sees - s);
        }
        total[r] += simd::sum(sum);
    }
}

// p (M,n) = e^(p - log_sum) for scores p, dscores = p * (dscores - dout_out). meanwhile(r) is called for each row.
template <class F>
void softmax_backward(float* p, float* dscores, const Tile& t, const float* log_sum, const float* dout_out,
                      const F& meanwhile) {
    for (int64_t r = 0; r < t.M; ++r) {
        meanwhile(r);
        const float sum = log_sum[r], mean = dout_out[r];
        for (int64_t s = r * STRIDE; s < r * STRIDE + t.n; s += W) {
            const vfloat prob = power(simd::load(p + s) - sum);
            simd::store(p + s, prob);
            simd::store(dscores + s, prob * (simd::load(dscores + s) - mean));
        }
    }
}

}  // namespace

void attention_forward(Cpu& dev, float* out, float* logsumexp, const float* qkv, int64_t B, int64_t T, int64_t C,
                       int64_t NH) {
    const Timed timed(dev, "attention_forward", 2 * product(B, T, T + 1, C), 16 * product(B, T, C));
    const Heads heads{B, T, NH, C / NH};
    const int64_t hs = heads.hs, ld = heads.ld, width = heads.width;
    const float scale = 1 / std::sqrt(static_cast<float>(hs));
#pragma omp parallel for schedule(static)
    for (int64_t head = 0; head < B * NH; ++head) {
        const float *q = qkv + heads.at(head * T, ld), *k = q + C, *v = k + C;
        float* const o = out + heads.at(head * T, C);
        float* const keys = dev.scratch((whole_vectors(T) + T + ROWS) * width + MR * STRIDE);  // transposed
        float* const values = keys + whole_vectors(T) * width;
        float *const scores = values + T * width, *const sums = scores + MR * STRIDE;
        for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
            const int64_t rows = std::min(ROWS, T - q0), q1 = q0 + rows;
            pack_transposed(keys + q0 * width, k + q0 * ld, ld, rows, hs, scale);
            copy_in(values + q0 * width, v + q0 * ld, ld, rows, hs, 1);
            float top[ROWS], total[ROWS] = {};
            std::fill(top, top + rows, std::numeric_limits<float>::lowest());
            for (int64_t k0 = 0; k0 < q1; k0 += KEYS)
                for (int64_t m = 0; m < rows; m += MR)
                    for_rows(std::min<int64_t>(MR, rows - m), [&](auto M) {
                        const Tile t(q0 + m, M, k0, std::min(k0 + KEYS, q1));
                        const float* const next = qkv + heads.at(head * T + t.q + ROWS, ld);
                        const bool ask = k0 == 0;
                        const auto ask_out = [&](int64_t r) __attribute__((always_inline)) {
                            if (ask) prefetch<true>(o + (t.q + r) * C, hs);
                        };
                        const auto ask_qkv = [&](int64_t r) __attribute__((always_inline)) {
                            for (int64_t part = 0; ask && part < 3; ++part) prefetch(next + r * ld + part * C, hs);
                        };
                        score_rows<M>(scores, q + t.q * ld, ld, keys + k0 * width, t.n, hs, ask_out);
                        softmax(scores, t, top + m, total + m, sums + m * width, width, ask_qkv);
                        sum_rows<Order::k_last, M>(sums + m * width, width, k0 > 0, t.all_see, scores,
                                                   values + k0 * width, t.on_diagonal ? scores + t.all_see : nullptr,
                                                   values + t.q * width);
                    });
            for (int64_t r = 0; r < rows; ++r) copy_out(o + (q0 + r) * C, C, sums + r * width, 1, hs, 1 / total[r]);
            for (int64_t r = 0; r < rows; ++r) logsumexp[head * T + q0 + r] = top[r] + std::log(total[r]);
        }
    }
}

void attention_backward(Cpu& dev, float* dqkv, const float* dout, const float* out, const float* qkv,
                        const float* logsumexp, int64_t B, int64_t T, int64_t C, int64_t NH) {
    const Timed timed(dev, "attention_backward", 5 * product(B, T, T + 1, C), 32 * product(B, T, C));
    const Heads heads{B, T, NH, C / NH};
    const int64_t hs = heads.hs, ld = heads.ld, width = heads.width;
    const float scale = 1 / std::sqrt(static_cast<float>(hs));
#pragma omp parallel for schedule(static)
    for (int64_t head = 0; head < B * NH; ++head) {
        const int64_t at = heads.at(head * T, ld), at_out = heads.at(head * T, C);
        const float *q = qkv + at, *k = q + C, *v = k + C, *d = dout + at_out, *o = out + at_out;
        float *dq = dqkv + at, *dk = dq + C, *dv = dk + C;
        float* const keys = dev.scratch((3 * T + 2 * whole_vectors(T) + 3 * ROWS) * width + 2 * ROWS * STRIDE);
        float *const dk_sum = keys + T * width, *const dv_sum = dk_sum + T * width;
        float* const keys_transposed = dv_sum + T * width;
        float* const values_transposed = keys_transposed + whole_vectors(T) * width;
        float *const p = values_transposed + whole_vectors(T) * width, *const dscores = p + ROWS * STRIDE;
        float *const queries = dscores + ROWS * STRIDE, *const douts = queries + ROWS * width;
        float* const dq_sum = douts + ROWS * width;
        for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
            const int64_t rows = std::min(ROWS, T - q0), q1 = q0 + rows;
            copy_in(keys + q0 * width, k + q0 * ld, ld, rows, hs, scale);
            pack_transposed(keys_transposed + q0 * width, k + q0 * ld, ld, rows, hs, scale);
            pack_transposed(values_transposed + q0 * width, v + q0 * ld, ld, rows, hs, 1);
            copy_in(queries, q + q0 * ld, ld, rows, hs, 1);
            copy_in(douts, d + q0 * C, C, rows, hs, 1);
            float dout_out[ROWS];
            row_products(dout_out, douts, o + q0 * C, C, rows, hs);
            for (int64_t k0 = 0; k0 < q1; k0 += KEYS) {
                const int64_t k1 = std::min(k0 + KEYS, q1);
                for (int64_t m = 0; m < rows; m += MR)
                    for_rows(std::min<int64_t>(MR, rows - m), [&](auto M) {
                        const Tile t(q0 + m, M, k0, k1);
                        float *const probs = p + m * STRIDE, *const ds = dscores + m * STRIDE;
                        const int64_t ahead = head * T + t.q + ROWS, next_out = heads.at(ahead, C);
                        const float* const next = qkv + heads.at(ahead, ld);
                        const bool ask = k0 == 0;
                        const auto ask_dqkv = [&](int64_t r) __attribute__((always_inline)) {
                            for (int64_t part = 0; ask && part < 3; ++part)
                                prefetch<true>(dq + (t.q + r) * ld + part * C, hs);
                        };
                        const auto ask_qkv = [&](int64_t r) __attribute__((always_inline)) {
                            for (int64_t part = 0; ask && part < 3; ++part) prefetch(next + r * ld + part * C, hs);
                        };
                        const auto ask_out = [&](int64_t r) __attribute__((always_inline)) {
                            if (!ask) return;
                            prefetch(dout + next_out + r * C, hs);
                            prefetch(out + next_out + r * C, hs);
                        };
                        score_rows<M>(probs, queries + m * width, width, keys_transposed + k0 * width, t.n, hs,
                                      ask_dqkv);
                        score_rows<M>(ds, douts + m * width, width, values_transposed + k0 * width, t.n, hs, ask_out);
                        softmax_backward(probs, ds, t, logsumexp + head * T + t.q, dout_out + m, ask_qkv);
                        sum_rows<Order::k_last, M>(dq_sum + m * width, width, k0 > 0, t.all_see, ds, keys + k0 * width,
                                                   t.on_diagonal ? ds + t.all_see : nullptr, keys + t.q * width);
                    });
                for (int64_t s = k0; s < k1; s += MR)
                    for_rows(std::min<int64_t>(MR, k1 - s), [&](auto M) {
                        const int64_t own = s - q0, all_see = std::max<int64_t>(0, own + M);
                        const auto sum_over_queries = [&](float* c, const float* a, const float* x) {
                            a += s - k0;
                            sum_rows<Order::k_first, M>(c + s * width, width, own < 0, rows - all_see,
                                                        a + all_see * STRIDE, x + all_see * width,
                                                        own < 0 ? nullptr : a + own * STRIDE, x + own * width);
                        };
                        sum_over_queries(dk_sum, dscores, queries);
                        sum_over_queries(dv_sum, p, douts);
                    });
            }
            copy_out(dq + q0 * ld, ld, dq_sum, rows, hs, 1);
        }
        copy_out(dk, ld, dk_sum, T, hs, scale);
        copy_out(dv, ld, dv_sum, T, hs, 1);
    }
}
