// Causal attention on the Cpu, after FlashAttention (Dao et al. 2022): a thread takes one head of one sequence, and of
// its T x T scores only one block of ROWS queries x KEYS keys exists at a time.
//
// With AVX-512 and hs = 64: a block of scores is 96 x 208 floats (78 KiB), the block's queries and its sums 24 KiB
// each: they stay in L2 (the backward: twice the scores, 5 times 24 KiB). In a product, one panel of 32 keys (8 KiB)
// and the scores or queries of a tile's 12 rows (3 to 9 KiB) stay in L1. A block of scores costs 96 * 192 * 64
// multiply-adds a product, 37 k cycles at two vectors a cycle; its softmax is 12 operations a vector, 7 k. All that
// grows with T are copies of keys and values, packed once as their block comes up, and the backward's dk and dv.
//
// Nothing right of the diagonal is computed but for what tiles overlap: a tile's sums over keys end (over queries:
// begin) where all of its rows see them, and triangle() adds the rest. So NaN reaches only those who see it.
//
// Queries are scaled by 1 / sqrt(hs) once, instead of each score.
#include "layers/attention_cpu.h"

#include <limits>
#include <numbers>

#include "layers/gemm_cpu.h"
#include "layers/simd.h"

namespace {

constexpr int NV = 2, NR = NV * simd::W, MR = gemm::max_rows(NV);
using gemm::Order;
using simd::vfloat;
using simd::W;

constexpr int64_t ROWS = 96, KEYS = 192;  // multiples of MR and NR at every width, so that no block cuts a tile
constexpr int64_t STRIDE = KEYS + 16;     // odd in cache lines, or rows would share L1 sets
static_assert(ROWS % MR == 0 && ROWS % NR == 0 && KEYS % ROWS == 0);

// e^x for scores less their row's largest or logsumexp. Rounding x log2(e) costs |x| roundoffs of a value that is small
// where |x| is not; simd::exp, which avoids that, takes half as long again.
vfloat power(vfloat x) { return simd::exp2(x * std::numbers::log2e_v<float>); }

// Floats of panels for a product with K rows and `columns` columns.
int64_t panel_floats(int64_t columns, int64_t K) { return gemm::ceil_div(columns, NR) * NR * K; }

// Rows [first, first + rows) of x (T,hs) into the panels of x^T (hs,T).
void pack_transposed(float* panels, const float* x, int64_t ld, int64_t first, int64_t rows, int64_t hs) {
    for (int64_t t = first; t < first + rows; t += NR)
        gemm::pack_panel<Order::k_last, NV>(panels + t * hs, x + t * ld, ld, hs,
                                            std::min<int64_t>(NR, first + rows - t));
}
// The same into the panels of x (T,hs) itself.
void pack(float* panels, int64_t T, const float* x, int64_t ld, int64_t first, int64_t rows, int64_t hs) {
    for (int64_t n = 0; n < hs; n += NR)
        gemm::pack_panel<Order::k_first, NV>(panels + n * T + first * NR, x + first * ld + n, ld, rows,
                                             std::min<int64_t>(NR, hs - n));
}

// to (rows,n) = from * factor
void copy(float* to, int64_t ld_to, const float* from, int64_t ld_from, int64_t rows, int64_t n, float factor) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; i += W)
            simd::store_n(to + r * ld_to + i, simd::load_n(from + r * ld_from + i, n - i) * factor, n - i);
}

// scores (rows,keys) = a (rows,hs) · panels (hs,keys), without the tiles where every key > row + offset
void score_product(float* scores, const float* a, const float* panels, int64_t rows, int64_t keys, int64_t hs,
                   int64_t offset) {
    for (int64_t n = 0; n < keys; n += NR)
        for (int64_t m = std::max<int64_t>(0, (n - offset) / MR * MR); m < rows; m += MR)
            gemm::tile<Order::k_last, NV>(std::min<int64_t>(MR, rows - m))(hs, a + m * hs, hs, panels + n * hs,
                                                                           scores + m * STRIDE + n, STRIDE, false, NR);
}

// c (M,hs) [+]= a (M,K) · panels (K,hs), a panel having `panel_rows` rows. M <= MR.
template <Order A>
void tile_row(float* c, int64_t M, int64_t K, int64_t hs, const float* a, const float* panels, int64_t panel_rows,
              bool accumulate) {
    for (int64_t n = 0; n < hs; n += NR)
        gemm::tile<A, NV>(M)(K, a, STRIDE, panels + n * panel_rows, c + n, hs, accumulate,
                             std::min<int64_t>(NR, hs - n));
}

// c (n,hs) += a (n,n) · panels (n,hs), of a only the elements whose key <= query: rows of a are queries if k_last; if
// k_first, a is transposed and they are keys. n <= MR.
template <Order A>
void triangle(float* c, int64_t n, int64_t hs, const float* a, const float* panels, int64_t panel_rows) {
    constexpr bool queries = A == Order::k_last;
    for (int64_t col = 0; col < hs; col += W) {
        vfloat sum[MR];
        for (int64_t i = 0; i < MR; ++i) sum[i] = i < n ? simd::load_n(c + i * hs + col, hs - col) : vfloat{};
        const float* const b = panels + (col - col % NR) * panel_rows + col % NR;
#pragma GCC unroll 16
        for (int64_t j = 0; j < MR; ++j) {
            if (j == n) break;
            const vfloat row = simd::load(b + j * NR);
#pragma GCC unroll 16
            for (int64_t i = 0; i < MR; ++i)
                if (queries ? j <= i : i <= j)
                    sum[i] = simd::fma(simd::set1(queries ? a[i * STRIDE + j] : a[j * STRIDE + i]), row, sum[i]);
        }
        for (int64_t i = 0; i < n; ++i) simd::store_n(c + i * hs + col, sum[i], hs - col);
    }
}

// c (rows,hs) [+]= a · panels over a block's keys [k0, k1), for queries from q0 on
void product_over_keys(float* c, int64_t rows, int64_t q0, int64_t k0, int64_t k1, int64_t hs, const float* a,
                       const float* panels, int64_t T) {
    for (int64_t m = 0; m < rows; m += MR) {
        const int64_t size = std::min<int64_t>(MR, rows - m), all_see = std::min(k1, q0 + m);
        tile_row<Order::k_last>(c + m * hs, size, all_see - k0, hs, a + m * STRIDE, panels + k0 * NR, T, k0 > 0);
        if (all_see < k1)
            triangle<Order::k_last>(c + m * hs, size, hs, a + m * STRIDE + all_see - k0, panels + all_see * NR, T);
    }
}

// c (T,hs), rows [k0, k1): [+]= a^T · panels over a block's `rows` queries from q0 on
void product_over_queries(float* c, int64_t rows, int64_t q0, int64_t k0, int64_t k1, int64_t hs, const float* a,
                          const float* panels) {
    for (int64_t s = k0; s < k1; s += MR) {
        const int64_t size = std::min<int64_t>(MR, k1 - s), own = s - q0, all_see = std::max<int64_t>(0, own + size);
        tile_row<Order::k_first>(c + s * hs, size, rows - all_see, hs, a + all_see * STRIDE + s - k0,
                                 panels + all_see * NR, ROWS, own < 0);
        if (own >= 0)
            triangle<Order::k_first>(c + s * hs, size, hs, a + own * STRIDE + s - k0, panels + own * NR, ROWS);
    }
}

// scores (rows, k1 - k0) = e^(score - top) in place, row r's up to the key q0 + r. top (rows) becomes the largest score
// so far; total (rows) += the powers, lane by lane; total and sums (rows,hs) are brought to the new top first. Two
// passes over the rows: in one, each row's powers would wait for its maximum.
void softmax(float* scores, float* top, vfloat* total, float* sums, int64_t rows, int64_t q0, int64_t k0, int64_t k1,
             int64_t hs) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* const row = scores + r * STRIDE;
        const int64_t n = std::min(k1, q0 + r + 1) - k0;
        vfloat largest = simd::set1(top[r]);
        for (int64_t s = 0; s < n; s += W)
            largest = simd::max(largest, simd::first(simd::load(row + s), n - s, row[0]));
        const float now = simd::max(largest);
        if (k0 > 0 && now != top[r]) {
            const vfloat factor = power(simd::set1(top[r] - now));
            total[r] *= factor;
            simd::map(sums + r * hs, hs, [=](vfloat x, int64_t, int64_t) { return x * factor; });
        }
        top[r] = now;
    }
    for (int64_t r = 0; r < rows; ++r) {
        const float now = top[r];
        vfloat sum = total[r];
        simd::map(scores + r * STRIDE, std::min(k1, q0 + r + 1) - k0, [&](vfloat x, int64_t, int64_t left) {
            const vfloat e = power(x - now);
            sum += simd::first(e, left);
            return e;
        });
        total[r] = sum;
    }
}

}  // namespace

void attention_forward(Cpu& dev, float* out, float* logsumexp, const float* qkv, int64_t B, int64_t T, int64_t C,
                       int64_t NH) {
    const Timed timed(dev, "attention_forward", 2 * product(B, T, T + 1, C), 16 * product(B, T, C));
    const int64_t hs = C / NH, ld = 3 * C;
    const float scale = 1 / std::sqrt(static_cast<float>(hs));
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < NH; ++h) {
            const float *q = qkv + b * T * ld + h * hs, *k = q + C, *v = k + C;
            float* const keys = dev.scratch(panel_floats(T, hs) + panel_floats(hs, T) + 2 * ROWS * hs + ROWS * STRIDE);
            float* const values = keys + panel_floats(T, hs);
            float* const scores = values + panel_floats(hs, T);
            float *const queries = scores + ROWS * STRIDE, *const sums = queries + ROWS * hs;  // (ROWS,hs) each
            for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
                const int64_t rows = std::min(ROWS, T - q0), q1 = q0 + rows;
                pack_transposed(keys, k, ld, q0, rows, hs);
                pack(values, T, v, ld, q0, rows, hs);
                copy(queries, hs, q + q0 * ld, ld, rows, hs, scale);
                float top[ROWS];
                vfloat total[ROWS];
                std::fill(top, top + rows, std::numeric_limits<float>::lowest());
                std::fill(total, total + rows, vfloat{});
                for (int64_t k0 = 0; k0 < q1; k0 += KEYS) {
                    const int64_t k1 = std::min(k0 + KEYS, q1);
                    score_product(scores, queries, keys + k0 * hs, rows, k1 - k0, hs, q0 - k0);
                    softmax(scores, top, total, sums, rows, q0, k0, k1, hs);
                    product_over_keys(sums, rows, q0, k0, k1, hs, scores, values, T);
                }
                for (int64_t r = 0; r < rows; ++r) {
                    const float sum = simd::sum(total[r]);
                    copy(out + (b * T + q0 + r) * C + h * hs, C, sums + r * hs, hs, 1, hs, 1 / sum);
                    logsumexp[(b * NH + h) * T + q0 + r] = top[r] + std::log(sum);
                }
            }
        }
}

void attention_backward(Cpu& dev, float* dqkv, const float* dout, const float* out, const float* qkv,
                        const float* logsumexp, int64_t B, int64_t T, int64_t C, int64_t NH) {
    const Timed timed(dev, "attention_backward", 5 * product(B, T, T + 1, C), 32 * product(B, T, C));
    const int64_t hs = C / NH, ld = 3 * C;
    const float scale = 1 / std::sqrt(static_cast<float>(hs));
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < NH; ++h) {
            const float *q = qkv + b * T * ld + h * hs, *k = q + C, *v = k + C;
            float *dq = dqkv + b * T * ld + h * hs, *dk = dq + C, *dv = dk + C;
            float* const keys = dev.scratch(panel_floats(hs, T) + 2 * panel_floats(T, hs) + 2 * panel_floats(hs, ROWS) +
                                            2 * ROWS * STRIDE + 3 * ROWS * hs + 2 * T * hs);
            float* const keys_transposed = keys + panel_floats(hs, T);
            float* const values_transposed = keys_transposed + panel_floats(T, hs);
            float* const query_panels = values_transposed + panel_floats(T, hs);
            float* const dout_panels = query_panels + panel_floats(hs, ROWS);
            float *const p = dout_panels + panel_floats(hs, ROWS), *const dscores = p + ROWS * STRIDE;
            float* const queries = dscores + ROWS * STRIDE;  // (ROWS,hs), as douts and dq_sum
            float *const douts = queries + ROWS * hs, *const dq_sum = douts + ROWS * hs;
            float *const dk_sum = dq_sum + ROWS * hs, *const dv_sum = dk_sum + T * hs;  // (T,hs) each
            for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
                const int64_t rows = std::min(ROWS, T - q0), q1 = q0 + rows;
                pack(keys, T, k, ld, q0, rows, hs);
                pack_transposed(keys_transposed, k, ld, q0, rows, hs);
                pack_transposed(values_transposed, v, ld, q0, rows, hs);
                copy(queries, hs, q + q0 * ld, ld, rows, hs, scale);
                copy(douts, hs, dout + (b * T + q0) * C + h * hs, C, rows, hs, 1);
                pack(query_panels, ROWS, queries, hs, 0, rows, hs);
                pack(dout_panels, ROWS, douts, hs, 0, rows, hs);
                float log_sum[ROWS], dout_out[ROWS];
                for (int64_t r = 0; r < rows; ++r) {
                    const float *d = douts + r * hs, *o = out + (b * T + q0 + r) * C + h * hs;
                    vfloat products{};
                    for (int64_t c = 0; c < hs; c += W)
                        products = simd::fma(simd::load_n(d + c, hs - c), simd::load_n(o + c, hs - c), products);
                    dout_out[r] = simd::sum(products);
                    log_sum[r] = logsumexp[(b * NH + h) * T + q0 + r];
                }
                for (int64_t k0 = 0; k0 < q1; k0 += KEYS) {
                    const int64_t k1 = std::min(k0 + KEYS, q1);
                    score_product(p, queries, keys_transposed + k0 * hs, rows, k1 - k0, hs, q0 - k0);
                    score_product(dscores, douts, values_transposed + k0 * hs, rows, k1 - k0, hs, q0 - k0);
                    for (int64_t r = 0; r < rows; ++r) {
                        float* const dscore = dscores + r * STRIDE;
                        simd::map(p + r * STRIDE, std::min(k1, q0 + r + 1) - k0,
                                  [=, sum = log_sum[r], mean = dout_out[r]](vfloat score, int64_t s, int64_t) {
                                      const vfloat prob = power(score - sum);
                                      simd::store(dscore + s, prob * (simd::load(dscore + s) - mean));
                                      return prob;
                                  });
                    }
                    product_over_keys(dq_sum, rows, q0, k0, k1, hs, dscores, keys, T);
                    product_over_queries(dk_sum, rows, q0, k0, k1, hs, dscores, query_panels);
                    product_over_queries(dv_sum, rows, q0, k0, k1, hs, p, dout_panels);
                }
                copy(dq + q0 * ld, ld, dq_sum, hs, rows, hs, scale);
            }
            copy(dk, ld, dk_sum, hs, T, hs, 1);  // the queries' scale is in it
            copy(dv, ld, dv_sum, hs, T, hs, 1);
        }
}
