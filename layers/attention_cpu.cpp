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
// keys or queries that the diagonal divides are split, or a NaN in the half that does not count would count. AMX
// multiplies whole tiles of 16 x 16 pairs, on the diagonal with zeros; if a head has a NaN or infinity, which these
// zeros would not hide, it is computed again by pairs. With T = 1024 tiles take 0.35 of the time of floats, with 128
// three quarters.
//
// The rows of a head lie far apart, and in a small model in the cache of the core that wrote them, so hardware
// prefetching does not find them: they are prefetched while the tile 96 rows before is computed, few at a time, as a
// core drops prefetches beyond the misses it can have outstanding. For that, a thread's heads follow each other (static
// schedule).
#include "layers/attention_cpu.h"

#include <limits>
#include <numbers>
#include <optional>

#include "layers/attention/products_cpu.h"
#include "layers/dropout_cpu.h"
#include "device/cpu/gemm/matmul.h"

namespace {

using namespace attention_cpu;

// The online softmax's first step: top (M) becomes the largest score so far, and total (M) and sums (M,width) are
// rescaled to it.
inline void raise_top(const float* scores, const QueryTile& t, float scale, float* top, float* total, float* sums,
                      int64_t width) {
    for (int64_t r = 0; r < t.M; ++r) {
        const float* const row = scores + r * STRIDE;
        const int64_t sees = t.q + r + 1 - t.k0;
        vfloat largest = simd::set1(top[r]);
        int64_t s = 0;
        for (; s + W <= std::min(sees, t.n); s += W) largest = simd::max(largest, simd::load(row + s));
        for (; s < t.n; s += W) largest = simd::max(largest, simd::first(simd::load(row + s), sees - s, row[0]));
        const float now = simd::max(largest);
        if (t.k0 > 0 && now != top[r]) {
            const vfloat factor = simd::exp2(simd::set1((top[r] - now) * scale));
            total[r] *= factor[0];
            simd::map(sums + r * width, width, [=](vfloat x, int64_t, int64_t) { return x * factor; });
        }
        top[r] = now;
    }
}

// What dropout does to the weights of a tile's rows. For the vector of keys that begins at k0 + i, kept(i, v) is v with
// zeros where weights are dropped, and scaled(i, v) also has the factor 1 / (1 - p).
struct KeepAll {
    struct Row {
        vfloat kept(int64_t, vfloat v) const { return v; }
        vfloat scaled(int64_t, vfloat v) const { return v; }
    };
    Row row(const QueryTile&, int64_t) const { return {}; }
};
struct DropSome {
    const simd::AtLeast& mask;
    uint64_t first_draw;  // of the head
    int64_t row_draws;
    float scale;
    struct Row {
        uint64_t bits[KEYS / 64];
        float scale;
        vfloat kept(int64_t i, vfloat v) const { return simd::where(bits[i / 64] >> i % 64, v); }
        vfloat scaled(int64_t i, vfloat v) const { return kept(i, v * scale); }
    };
    Row row(const QueryTile& t, int64_t r) const {
        Row result;
        result.scale = scale;
        const uint64_t first = first_draw + static_cast<uint64_t>((t.q + r) * row_draws + t.k0 / 8);
        for (int64_t i = 0; i < t.n; i += 64) result.bits[i / 64] = mask.bits(first + static_cast<uint64_t>(i / 8));
        return result;
    }
};
static_assert(KEYS % 64 == 0);

// The dropout of all heads, and its mask if it is on.
struct WeightDropout : Dropout {
    std::optional<simd::AtLeast> mask;
    explicit WeightDropout(const Dropout& d) : Dropout(d) {
        if (on()) mask.emplace(mask_of(d));
    }
    // Calls f with KeepAll or DropSome.
    template <class F>
    void with_weights(const Heads& heads, int64_t head, const F& f) const {
        if (!on()) return f(KeepAll());
        const int64_t T = heads.T;
        f(DropSome{*mask, first_draw(head * T, heads.NH * T, T), ceil_div(T, 8), static_cast<float>(scale())});
    }
};

// The online softmax's second step: scores (M,n) = 2^(scale * (score - top)) in words along the keys, with zeros for
// the keys that row r does not see, those beyond q + r, and for what dropout drops; total (M) += the exponentials,
// dropped or not. meanwhile(r) is called for each row. In one loop with the first step, the exponentials of each row
// would wait for its maximum.
template <class Words, class Weights, class F>
void exponentiate(float* scores, const QueryTile& t, float scale, const float* top, float* total,
                  const Weights& weights, const F& meanwhile) {
    for (int64_t r = 0; r < t.M; ++r) {
        meanwhile(r);
        const auto row_weights = weights.row(t, r);
        float* const row = scores + r * STRIDE;
        const int64_t sees = t.q + r + 1 - t.k0;
        const float now = top[r];
        vfloat sum{};
        for (int64_t s = 0; s < t.n; s += Words::size * W) {
            vfloat e[Words::size];
#pragma GCC unroll 2
            for (int64_t i = 0; i < Words::size; ++i) {
                const int64_t at = s + i * W;
                e[i] = simd::first(simd::exp2((simd::load(row + at) - now) * scale), sees - at);
                sum += e[i];
                e[i] = row_weights.kept(at, e[i]);
            }
            simd::store(row + s / Words::size, Words::along(e));
        }
        total[r] += simd::sum(sum);
    }
}

// With q = e^(scale * score - log_sum): ds (M,n) = q * (factor * dscore - dout_out), and p (M,n) = q or, where dropout
// drops it, 0, both in words across the rows, with zeros for keys that are not seen; dscores = ds in words along the
// keys. With floats, p and ds may be scores and dscores themselves, and entries of unseen keys are undefined.
// meanwhile(r) is called for each row.
template <class Words, class Weights, class F>
void softmax_backward(float* p, float* ds, float* scores, float* dscores, const QueryTile& t, float scale,
                      const float* log_sum, const float* dout_out, const Weights& weights, const F& meanwhile) {
    constexpr int64_t size = Words::size;
    for (int64_t r0 = 0; r0 < t.M; r0 += size) {
        float sum[size], mean[size];
        int64_t sees[size];
        typename Weights::Row row_weights[size];
        for (int64_t i = 0; i < size; ++i) {
            const int64_t r = r0 + i;
            const bool there = r < t.M;
            if (there) meanwhile(r);
            sum[i] = there ? log_sum[r] : 0, mean[i] = there ? dout_out[r] : 0,
            sees[i] = there ? t.q + r + 1 - t.k0 : 0;
            row_weights[i] = weights.row(t, r);
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
                    const vfloat dscore = row_weights[i].scaled(s, simd::load(dscores + at));
                    gradients[i] = along[i][v] = seen(probs[i] * (dscore - mean[i]));
                    probs[i] = row_weights[i].kept(s, probs[i]);
                }
                simd::store(p + r0 / size * STRIDE + s, Words::across(probs));
                simd::store(ds + r0 / size * STRIDE + s, Words::across(gradients));
            }
            for (int64_t i = 0; i < size && size > 1; ++i)
                simd::store(dscores + (r0 + i) * STRIDE + s0 / size, Words::along(along[i]));
        }
    }
}

// Prefetches a row of q, k and v, or of their gradients.
template <Access access = Access::read>
[[gnu::always_inline]] inline void prefetch_qkv(const float* row, int64_t C, int64_t hs) {
    for (int64_t part = 0; part < 3; ++part) prefetch_range<access>(row + part * C, hs);
}

// The forward pass of one head. The tensors are those of all heads; `scratch` has floats() floats.
template <class Words>
struct Forward : Heads {
    static constexpr int64_t size = Words::size;
    int64_t head;
    float *out, *logsumexp;
    const float* qkv;
    const WeightDropout& dropout;
    float* scratch;

    int64_t K = head_words<Words>(hs), row = head * T;  // the head's first row, of all heads'
    const float *q = qkv + at(row, ld), *k = q + C, *v = k + C;
    float* o = out + at(row, C);
    float *keys = scratch, *values = keys + padded<Words>(T) * K;       // of the whole head, in words
    float* scores = values + ceil_div(padded<Words>(T), size) * width;  // of a tile
    float *sums = scores + queries_of_tile<Words> * STRIDE,
          *query_words = sums + ROWS * width;  // of a block of queries

    static int64_t floats(const Heads& h) {
        const int64_t K = head_words<Words>(h.hs);
        return padded<Words>(h.T) * K + (ceil_div(padded<Words>(h.T), size) + ROWS) * h.width + ROWS * K +
               queries_of_tile<Words> * STRIDE;
    }

    // Returns whether the result holds: whole tiles multiply also what a query does not see, by 0, which only what is
    // not finite shows.
    bool run() const {
        bool finite = true;
        if constexpr (in_tiles<Words>) amx::configure();
        for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
            const int64_t rows = std::min(ROWS, T - q0), q1 = q0 + rows;
            pack_transposed<Words>(keys + q0 * K, k + q0 * ld, ld, rows, hs);
            copy_in<Words>(values + q0 / size * width, v + q0 * ld, ld, rows, hs);
            const Rows queries = rows_of_words<Words>(query_words, q + q0 * ld, ld, rows, hs);
            if (in_tiles<Words>) finite = finite && qkv_finite_in_bf16(q + q0 * ld, C, rows, hs);
            float top[ROWS], total[ROWS] = {};
            std::fill(top, top + rows, std::numeric_limits<float>::lowest());
            for (int64_t k0 = 0; k0 < q1; k0 += KEYS)
                for (int64_t m = 0; m < rows; m += queries_of_tile<Words>) {
                    const int64_t left = std::min(queries_of_tile<Words>, rows - m);
                    const QueryTile t(q0 + m, left, k0, std::min(k0 + KEYS, q1), keys_of_tile<Words>);
                    for_rows<Words>(
                        left, [&](auto M) { add_keys<M>(t, queries.from(m), top + m, total + m, sums + m * width); });
                }
            store(q0, rows, top, total);
        }
        return finite;
    }

    // Adds a block of keys to the results of M queries: their scores, the online softmax, and the sum of the values.
    template <int M>
    void add_keys(const QueryTile& t, const Rows& queries, float* top, float* total, float* sum) const {
        const float binary = scale * std::numbers::log2e_v<float>;
        const float* const next = qkv + at(row + t.q + ROWS, ld);
        const bool first_keys = t.k0 == 0;
        const auto prefetch_out = [&](int64_t r) __attribute__((always_inline)) {
            if (first_keys) prefetch_range<Access::write>(o + (t.q + r) * C, hs);
        };
        const auto prefetch_next = [&](int64_t r) __attribute__((always_inline)) {
            if (first_keys) prefetch_qkv(next + r * ld, C, hs);
        };
        score_rows<Words, M>(scores, queries, keys + t.k0 * K, t.n, K, prefetch_out);
        raise_top(scores, t, binary, top, total, sum, width);
        dropout.with_weights(*this, head, [&](const auto& weights) {
            exponentiate<Words>(scores, t, binary, top, total, weights, prefetch_next);
        });
        sum_over_keys<Words, M>(sum, width, t, scores, values);
    }

    // Writes out and logsumexp of the queries [q0, q0 + rows).
    void store(int64_t q0, int64_t rows, const float* top, const float* total) const {
        const auto factor = static_cast<float>(dropout.scale());
        for (int64_t r = 0; r < rows; ++r) copy_out(o + (q0 + r) * C, C, sums + r * width, 1, hs, factor / total[r]);
        for (int64_t r = 0; r < rows; ++r) logsumexp[row + q0 + r] = std::fma(top[r], scale, std::log(total[r]));
    }
};

// The backward pass of one head, with the same kinds of members as Forward.
template <class Words>
struct Backward : Heads {
    static constexpr int64_t size = Words::size;
    int64_t head;
    float* dqkv;
    const float *dout, *out, *qkv, *logsumexp;
    const WeightDropout& dropout;
    float* scratch;

    int64_t K = head_words<Words>(hs), row = head * T, P = padded<Words>(T);
    const float *q = qkv + at(row, ld), *k = q + C, *v = k + C, *d = dout + at(row, C), *o = out + at(row, C);
    float *dq = dqkv + at(row, ld), *dk = dq + C, *dv = dk + C;
    // In words: keys, queries and douts across rows, their rows, and keys and values transposed.
    float *keys = scratch, *dk_sum = keys + ceil_div(P, size) * width, *dv_sum = dk_sum + P * width;
    float *dq_sum = dv_sum + P * width, *queries = dq_sum + ROWS * width, *douts = queries + ROWS / size * width;
    float *keys_transposed = douts + ROWS / size * width, *values_transposed = keys_transposed + P * K;
    float *query_words = values_transposed + P * K, *dout_words = query_words + ROWS * K;
    float *p = dout_words + ROWS * K, *ds = p + ROWS / size * STRIDE;  // of a block of queries and of keys
    float* unpaired = ds + ROWS / size * STRIDE;                       // scores and dscores of a tile, of pairs only
    // Of tiles only: queries and douts across rows, transposed. dk_sum and dv_sum are transposed too.
    float* query_columns = unpaired + 2 * queries_of_tile<Words> * STRIDE;
    float* dout_columns = query_columns + ROWS / size * width;

    static int64_t floats(const Heads& h) {
        const int64_t K = head_words<Words>(h.hs), P = padded<Words>(h.T);
        return (ceil_div(P, size) + 2 * P + ROWS + 4 * ROWS / size) * h.width + 2 * (P + ROWS) * K +
               2 * (ROWS / size + queries_of_tile<Words>)*STRIDE;
    }

    // Returns whether the result holds, as Forward::run().
    bool run() const {
        bool finite = true;
        if constexpr (in_tiles<Words>) amx::configure();
        for (int64_t q0 = 0; q0 < T; q0 += ROWS) {
            const int64_t rows = std::min(ROWS, T - q0), q1 = q0 + rows;
            pack(q0, rows);
            const Rows query_rows = rows_of_words<Words>(query_words, q + q0 * ld, ld, rows, hs);
            const Rows dout_rows = rows_of_words<Words>(dout_words, d + q0 * C, C, rows, hs);
            if (in_tiles<Words>)
                finite =
                    finite && finite_in_bf16(d + q0 * C, C, rows, hs) && qkv_finite_in_bf16(q + q0 * ld, C, rows, hs);
            float dout_out[ROWS];
            row_dots(dout_out, d + q0 * C, o + q0 * C, C, rows, hs);
            for (int64_t k0 = 0; k0 < q1; k0 += KEYS) {
                const int64_t k1 = std::min(k0 + KEYS, q1);
                for (int64_t m = 0; m < rows; m += queries_of_tile<Words>) {
                    const int64_t left = std::min(queries_of_tile<Words>, rows - m);
                    const QueryTile t(q0 + m, left, k0, k1, keys_of_tile<Words>);
                    for_rows<Words>(left, [&](auto M) {
                        float *const p_tile = p + m / size * STRIDE, *const ds_tile = ds + m / size * STRIDE;
                        add_keys<M>(t, query_rows.from(m), dout_rows.from(m), dout_out + m, p_tile, ds_tile,
                                    dq_sum + m * width);
                    });
                }
                if constexpr (in_tiles<Words>)
                    add_queries_in_tiles(k0, k1, q0, rows);
                else
                    for (int64_t s = k0; s < k1; s += MR)
                        for_rows<Words>(std::min<int64_t>(MR, k1 - s), [&](auto M) {
                            add_queries<M>(dk_sum, ds + s - k0, queries, s, q0, rows);
                            add_queries<M>(dv_sum, p + s - k0, douts, s, q0, rows);
                        });
            }
            copy_out(dq + q0 * ld, ld, dq_sum, rows, hs, scale);
        }
        const auto dropout_scale = static_cast<float>(dropout.scale());
        if (in_tiles<Words>) {
            copy_out_columns(dk, ld, dk_sum, P, T, hs, scale);
            copy_out_columns(dv, ld, dv_sum, P, T, hs, dropout_scale);
        } else {
            copy_out(dk, ld, dk_sum, T, hs, scale);
            copy_out(dv, ld, dv_sum, T, hs, dropout_scale);
        }
        return finite;
    }

    // Packs the rows [q0, q0 + rows): keys and values behind those before them, queries and douts in their place.
    void pack(int64_t q0, int64_t rows) const {
        copy_in<Words>(keys + q0 / size * width, k + q0 * ld, ld, rows, hs);
        pack_transposed<Words>(keys_transposed + q0 * K, k + q0 * ld, ld, rows, hs);
        pack_transposed<Words>(values_transposed + q0 * K, v + q0 * ld, ld, rows, hs);
        copy_in<Words>(queries, q + q0 * ld, ld, rows, hs);
        copy_in<Words>(douts, d + q0 * C, C, rows, hs);
        if (in_tiles<Words>) {
            const int64_t words = rounded_up(rows, 32) / size;
            transpose_words(query_columns, queries, words);
            transpose_words(dout_columns, douts, words);
        }
    }
    // to (width,ROWS / size) = the transpose of from (words,width)
    void transpose_words(float* to, const float* from, int64_t words) const {
        constexpr int64_t ld_to = ROWS / size;
        for (int64_t i = 0; i < width; i += W)
            for (int64_t w = 0; w < words; w += W)
                simd::transpose(to + i * ld_to + w, ld_to, W,
                                [=, this](int64_t word) { return simd::load(from + (w + word) * width + i); });
    }

    // Recomputes p of M queries and a block of keys, computes ds, and adds the keys to dq.
    template <int M>
    void add_keys(const QueryTile& t, const Rows& tile_queries, const Rows& tile_douts, const float* dout_out,
                  float* p_tile, float* ds_tile, float* dq_tile) const {
        float* const scores = size == 1 ? p_tile : unpaired;
        float* const dscores = size == 1 ? ds_tile : unpaired + queries_of_tile<Words> * STRIDE;
        const int64_t ahead = row + t.q + ROWS, next_out = at(ahead, C);
        const float* const next = qkv + at(ahead, ld);
        const bool first_keys = t.k0 == 0;
        const auto prefetch_dqkv = [&](int64_t r) __attribute__((always_inline)) {
            if (first_keys) prefetch_qkv<Access::write>(dq + (t.q + r) * ld, C, hs);
        };
        const auto prefetch_next = [&](int64_t r) __attribute__((always_inline)) {
            if (first_keys) prefetch_qkv(next + r * ld, C, hs);
        };
        const auto prefetch_next_out = [&](int64_t r) __attribute__((always_inline)) {
            if (!first_keys) return;
            prefetch_range(dout + next_out + r * C, hs);
            prefetch_range(out + next_out + r * C, hs);
        };
        score_rows<Words, M>(scores, tile_queries, keys_transposed + t.k0 * K, t.n, K, prefetch_dqkv);
        score_rows<Words, M>(dscores, tile_douts, values_transposed + t.k0 * K, t.n, K, prefetch_next_out);
        dropout.with_weights(*this, head, [&](const auto& weights) {
            softmax_backward<Words>(p_tile, ds_tile, scores, dscores, t, scale, logsumexp + row + t.q, dout_out,
                                    weights, prefetch_next);
        });
        sum_over_keys<Words, M>(dq_tile, width, t, dscores, keys);
    }

    // Adds a block of queries to dk or dv of M keys, those from s on: sum (M,width) += aᵀ · x, over the queries of
    // [q0, q0 + rows) that see each key. a's columns begin with key s. The first block that sees the keys sets the sum.
    template <int M>
    void add_queries(float* sum, const float* a, const float* x, int64_t s, int64_t q0, int64_t rows) const {
        const int64_t own = s - q0, all_see = std::max<int64_t>(0, own + M);
        sum_rows<Words, Order::k_first, M>(sum + s * width, width, own < 0, ceil_div(rows - all_see, size),
                                           a + all_see / size * STRIDE, x + all_see / size * width,
                                           own < 0 ? nullptr : a + own / size * STRIDE, x + own / size * width);
    }

    // The same for the keys [k0, k1), in whole tiles: transposed, since p and ds are in words across their rows, as the
    // second factor of a product is.
    void add_queries_in_tiles(int64_t k0, int64_t k1, int64_t q0, int64_t rows) const {
        constexpr int64_t ld_columns = ROWS / size;
        const int64_t end = rounded_up(rows, 32) / size;
        for (int64_t w = ceil_div(rows, size); w < end; ++w)
            for (float* const x : {p, ds}) std::fill_n(x + w * STRIDE, rounded_up(k1 - k0, 32), 0.0f);
        for (int64_t s = k0; s < k1; s += keys_of_tile<Words>)
            for (int64_t n = 0; n < width; n += NV * W)
                for_tiles(width - n, [&](auto tiles) {
                    const int64_t first = std::max<int64_t>(0, s - q0) / size;
                    const auto add = [&](float* sum, const float* columns, const float* a) {
                        amx::multiply_tiles<tiles, 2>(sum + n * P + s, P, s < q0, end - first,
                                                      columns + n * ld_columns + first, ld_columns,
                                                      a + first * STRIDE + s - k0, STRIDE, W);
                    };
                    add(dk_sum, query_columns, ds);
                    add(dv_sum, dout_columns, p);
                });
    }
};

// Calls f with the kind of words.
template <class F>
auto for_words([[maybe_unused]] MatmulKind matmul_kind, const F& f) {
#if defined(__AMX_BF16__)
    if (matmul_kind == MatmulKind::bf16 && amx::permitted()) return f(InTiles<gemm::Bf16Pairs>());
#endif
#if defined(__AVX512BF16__)
    if (matmul_kind == MatmulKind::bf16) return f(gemm::Bf16Pairs());
#endif
    return f(gemm::Floats());
}

// The floats that a pass, Forward or Backward, needs, in tiles also those of the pass that may take its place.
template <template <class> class Pass, class Words>
int64_t floats_of(Words, const Heads& heads) {
    return Pass<Words>::floats(heads);
}
template <template <class> class Pass, class Words>
int64_t floats_of(InTiles<Words>, const Heads& heads) {
    return std::max(Pass<InTiles<Words>>::floats(heads), Pass<Words>::floats(heads));
}

// Runs a pass of all heads. make(words, head, scratch) gives the pass of one head.
template <template <class> class Pass, class Make>
void run_heads(Cpu& dev, const Heads& heads, const Make& make) {
    for_words(dev.matmul_kind, [&]<class Words>(Words words) {
        const int64_t floats = floats_of<Pass>(words, heads);
        dev.reserve(floats);
#pragma omp parallel for schedule(static)
        for (int64_t head = 0; head < heads.B * heads.NH; ++head)
            if (!make(words, head, dev.scratch(floats)).run())
                if constexpr (in_tiles<Words>) make(typename Words::Untiled(), head, dev.scratch(floats)).run();
    });
}

}  // namespace

int64_t attention_forward_scratch(int64_t T, int64_t C, int64_t NH, MatmulKind matmul_kind) {
    return for_words(matmul_kind, [&](auto words) { return floats_of<Forward>(words, {1, T, NH, C / NH}); });
}
int64_t attention_backward_scratch(int64_t T, int64_t C, int64_t NH, MatmulKind matmul_kind) {
    return for_words(matmul_kind, [&](auto words) { return floats_of<Backward>(words, {1, T, NH, C / NH}); });
}

void attention_forward(Cpu& dev, float* out, float* logsumexp, const float* qkv, int64_t B, int64_t T, int64_t C,
                       int64_t NH, const Dropout& dropout) {
    const Timed timed(dev, "attention_forward", 2 * prod(B, T, T + 1, C), 16 * prod(B, T, C));
    const Heads heads{B, T, NH, C / NH};
    const WeightDropout weights(dropout);
    run_heads<Forward>(dev, heads, [&]<class Words>(Words, int64_t head, float* scratch) {
        return Forward<Words>{heads, head, out, logsumexp, qkv, weights, scratch};
    });
}

void attention_backward(Cpu& dev, float* dqkv, const float* dout, const float* out, const float* qkv,
                        const float* logsumexp, int64_t B, int64_t T, int64_t C, int64_t NH, const Dropout& dropout) {
    const Timed timed(dev, "attention_backward", 5 * prod(B, T, T + 1, C), 32 * prod(B, T, C));
    const Heads heads{B, T, NH, C / NH};
    const WeightDropout weights(dropout);
    run_heads<Backward>(dev, heads, [&]<class Words>(Words, int64_t head, float* scratch) {
        return Backward<Words>{heads, head, dqkv, dout, out, qkv, logsumexp, weights, scratch};
    });
}
