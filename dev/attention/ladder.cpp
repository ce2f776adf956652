// The ladder of causal attention: out = softmax(q kᵀ / sqrt(hs), keys up to the query only) v, for each head
// separately.
//
// There are two matmuls of T x T x hs FMAs, with a softmax on T x T scores between them. The scores are the problem:
// for T = 1024 they take 4 MiB per head, but an operand of the matmuls takes 256 KiB. A kernel that writes them to
// memory waits for it.
#include "dev/ladder.h"
#include "layers/attention_cpu.h"

const Kernel kernel{
    "attention",
    "causal self-attention, forward and backward",
    {{"B", 1, "sequences"}, {"T", 1024, "tokens each"}, {"NH", 6, "heads"}, {"hs", 64, "channels each"}}};

namespace {

// The rows of one head of one sequence: their start and the distance between them.
struct Head {
    const float *q, *k, *v;
    float *out, *logsumexp;
    int64_t T, hs, in_row, out_row;  // 3C and C
    float scale;
};
struct Tensors {
    float *out, *logsumexp;
    const float* qkv;
    int64_t B, T, NH, hs;
    Head head(int64_t i) const {
        const int64_t C = NH * hs, b = i / NH, h = i % NH;
        const float* const q = qkv + b * T * 3 * C + h * hs;
        return {q,
                q + C,
                q + 2 * C,
                out + b * T * C + h * hs,
                logsumexp + i * T,
                T,
                hs,
                3 * C,
                C,
                1 / std::sqrt(static_cast<float>(hs))};
    }
};

inline float dot(const float* a, const float* b, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

// 1. The formula with whole matrices, as one would write it in NumPy: all T x T scores of a head, -inf above the
// diagonal, softmax of each row, times v. Half of the work is wasted on zeros.
// 2. With `causal`, the loops end at the diagonal.
template <bool causal>
void forward_matrices(const Tensors& x, float* scores) {
    for (int64_t i = 0; i < x.B * x.NH; ++i) {
        const Head a = x.head(i);
        const int64_t T = a.T;
        const auto keys = [=](int64_t t) { return causal ? t + 1 : T; };
        for (int64_t t = 0; t < T; ++t)
            for (int64_t s = 0; s < keys(t); ++s) {
                const float score = dot(a.q + t * a.in_row, a.k + s * a.in_row, a.hs) * a.scale;
                scores[t * T + s] = s <= t ? score : -INFINITY;
            }
        for (int64_t t = 0; t < T; ++t) {
            float* const row = scores + t * T;
            float largest = row[0], sum = 0;
            for (int64_t s = 0; s < keys(t); ++s) largest = std::max(largest, row[s]);
            for (int64_t s = 0; s < keys(t); ++s) sum += row[s] = std::exp(row[s] - largest);
            for (int64_t s = 0; s < keys(t); ++s) row[s] /= sum;
            a.logsumexp[t] = largest + std::log(sum);
        }
        for (int64_t t = 0; t < T; ++t) {
            float* const out = a.out + t * a.out_row;
            std::fill(out, out + a.hs, 0.0f);
            for (int64_t s = 0; s < keys(t); ++s)
                for (int64_t c = 0; c < a.hs; ++c) out[c] += scores[t * T + s] * a.v[s * a.in_row + c];
        }
    }
}

// 3. One query at a time: there are only T scores, which stay in L1.
void forward_rows(const Tensors& x) {
    std::vector<float> scores(static_cast<size_t>(x.T));
    float* const row = scores.data();
    for (int64_t i = 0; i < x.B * x.NH; ++i) {
        const Head a = x.head(i);
        for (int64_t t = 0; t < a.T; ++t) {
            float largest = -INFINITY, sum = 0;
            for (int64_t s = 0; s <= t; ++s) {
                row[s] = dot(a.q + t * a.in_row, a.k + s * a.in_row, a.hs) * a.scale;
                largest = std::max(largest, row[s]);
            }
            for (int64_t s = 0; s <= t; ++s) sum += row[s] = std::exp(row[s] - largest);
            float* const out = a.out + t * a.out_row;
            std::fill(out, out + a.hs, 0.0f);
            for (int64_t s = 0; s <= t; ++s)
                for (int64_t c = 0; c < a.hs; ++c) out[c] += row[s] / sum * a.v[s * a.in_row + c];
            a.logsumexp[t] = largest + std::log(sum);
        }
    }
}

// 4. Online softmax (Milakov & Gimelshein 2018): one key at a time. Each query keeps the largest score so far, the sum
// of e^(score - largest), and the sum of that times v. If a larger score comes, both sums are scaled by e^(largest
// before - largest now). No buffer has length T.
void forward_online(const Tensors& x) {
    for (int64_t i = 0; i < x.B * x.NH; ++i) {
        const Head a = x.head(i);
        for (int64_t t = 0; t < a.T; ++t) {
            float* const out = a.out + t * a.out_row;
            std::fill(out, out + a.hs, 0.0f);
            float largest = -INFINITY, sum = 0;
            for (int64_t s = 0; s <= t; ++s) {
                const float score = dot(a.q + t * a.in_row, a.k + s * a.in_row, a.hs) * a.scale;
                if (score > largest) {
                    const float shrink = std::exp(largest - score);
                    sum *= shrink;
                    for (int64_t c = 0; c < a.hs; ++c) out[c] *= shrink;
                    largest = score;
                }
                const float e = std::exp(score - largest);
                sum += e;
                for (int64_t c = 0; c < a.hs; ++c) out[c] += e * a.v[s * a.in_row + c];
            }
            for (int64_t c = 0; c < a.hs; ++c) out[c] /= sum;
            a.logsumexp[t] = largest + std::log(sum);
        }
    }
}

// 5. Blocks (Dao et al. 2022). A matmul tile (dev/matmul) computes the scores of MR queries with NR keys at once, so
// keys and values are loaded once per MR queries. The online softmax uses these scores before the next are computed.
using simd::vfloat;
using simd::W;
constexpr int NV = 2, NR = NV * W, MR = gemm::max_rows(NV);

struct Block {
    float scores[MR * NR], largest[MR], sum[MR];
};

// scores (rows,NR) become e^(scale * score - largest), for queries from t and keys from s; out (rows,hs) and the sums
// are scaled to the new largest.
void online_softmax(Block& block, float* out, const Head& a, int64_t t, int64_t rows, int64_t s) {
    for (int64_t r = 0; r < rows; ++r) {
        float* const row = block.scores + r * NR;
        const int64_t visible = std::min<int64_t>(NR, t + r + 1 - s);  // the rest is above the diagonal
        if (visible <= 0) {
            std::fill(row, row + NR, 0.0f);
            continue;
        }
        vfloat tops = simd::set1(-INFINITY), sums{};
        for (int j = 0; j < NR; j += W) {
            const vfloat score =
                simd::first(simd::load(row + j) * a.scale, std::max<int64_t>(0, visible - j), -INFINITY);
            simd::store(row + j, score);
            tops = simd::max(tops, score);
        }
        const float largest = std::max(block.largest[r], simd::max(tops));
        const float shrink = std::exp(block.largest[r] - largest);
        for (int j = 0; j < NR; j += W) {
            const vfloat e = simd::exp(simd::load(row + j) - largest);
            simd::store(row + j, e);
            sums += e;
        }
        block.sum[r] = block.sum[r] * shrink + simd::sum(sums);
        block.largest[r] = largest;
        if (shrink != 1) simd::map(out + r * a.out_row, a.hs, [=](vfloat o, int64_t, int64_t) { return o * shrink; });
    }
}

// keys: panels of NR keys, (hs,NR) each. values: panels of NR channels, (T,NR) each.
void forward_head(const Head& a, float* keys, float* values) {
    using enum gemm::Order;
    for (int64_t s = 0; s < a.T; s += NR)
        gemm::pack_panel<k_last, NV>(keys + s * a.hs, a.k + s * a.in_row, a.in_row, a.hs,
                                     std::min<int64_t>(NR, a.T - s));
    for (int64_t c = 0; c < a.hs; c += NR)
        gemm::pack_panel<k_first, NV>(values + c * a.T, a.v + c, a.in_row, a.T, std::min<int64_t>(NR, a.hs - c));
    for (int64_t t = 0; t < a.T; t += MR) {
        const int64_t rows = std::min<int64_t>(MR, a.T - t);
        const gemm::TileKernel tile = gemm::tile_kernel<k_last, NV>(rows);
        float* const out = a.out + t * a.out_row;
        Block block{};
        std::fill_n(block.largest, MR, -INFINITY);
        for (int64_t r = 0; r < rows; ++r) std::fill_n(out + r * a.out_row, a.hs, 0.0f);
        for (int64_t s = 0; s < t + rows; s += NR) {
            tile(a.hs, a.q + t * a.in_row, a.in_row, keys + s * a.hs, block.scores, NR, gemm::Store::set, NR, {});
            online_softmax(block, out, a, t, rows, s);
            for (int64_t c = 0; c < a.hs; c += NR)
                tile(std::min<int64_t>(NR, a.T - s), block.scores, NR, values + c * a.T + s * NR, out + c, a.out_row,
                     gemm::Store::add, std::min<int64_t>(NR, a.hs - c), {});
        }
        for (int64_t r = 0; r < rows; ++r) {
            const float inverse = 1 / block.sum[r];
            simd::map(out + r * a.out_row, a.hs, [=](vfloat o, int64_t, int64_t) { return o * inverse; });
            a.logsumexp[t + r] = block.largest[r] + std::log(block.sum[r]);
        }
    }
}
int64_t panel_floats(const Tensors& x) { return (x.T + NR) * x.hs + (x.hs + NR) * x.T; }
void forward_blocks(Cpu& dev, const Tensors& x) {
    dev.reserve(panel_floats(x));
    float* const panels = dev.scratch(panel_floats(x));
    for (int64_t i = 0; i < x.B * x.NH; ++i) forward_head(x.head(i), panels, panels + (x.T + NR) * x.hs);
}

// 6. Heads are distributed over threads.
void forward_threads(Cpu& dev, const Tensors& x) {
    dev.reserve(panel_floats(x));
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < x.B * x.NH; ++i) {
        float* const panels = dev.scratch(panel_floats(x));
        forward_head(x.head(i), panels, panels + (x.T + NR) * x.hs);
    }
}

// backward, with p = softmax of the scores:
// dv = pᵀ dout        dp = dout vᵀ        dscores = p * (dp - rowsum(p * dp))
// dq = dscores k / sqrt(hs)        dk = dscoresᵀ q / sqrt(hs)

// 1. Whole matrices again: p and dp, (T,T) each. dq, dk, dv lie in dqkv as q, k, v in qkv.
void backward_naive(const Tensors& x, float* dqkv, const float* dout, float* p, float* dp) {
    std::fill(dqkv, dqkv + x.B * x.T * 3 * x.NH * x.hs, 0.0f);
    for (int64_t i = 0; i < x.B * x.NH; ++i) {
        const Head a = x.head(i);
        const float* const d = dout + (a.out - x.out);
        float *const dq = dqkv + (a.q - x.qkv), *const dk = dq + a.out_row, *const dv = dk + a.out_row;
        for (int64_t t = 0; t < a.T; ++t)
            for (int64_t s = 0; s < a.T; ++s) {
                const float score = dot(a.q + t * a.in_row, a.k + s * a.in_row, a.hs) * a.scale;
                p[t * a.T + s] = s <= t ? std::exp(score - a.logsumexp[t]) : 0;
                dp[t * a.T + s] = dot(d + t * a.out_row, a.v + s * a.in_row, a.hs);
            }
        for (int64_t t = 0; t < a.T; ++t) {
            const float sum = dot(p + t * a.T, dp + t * a.T, a.T);
            for (int64_t s = 0; s < a.T; ++s) dp[t * a.T + s] = p[t * a.T + s] * (dp[t * a.T + s] - sum) * a.scale;
        }
        for (int64_t t = 0; t < a.T; ++t)
            for (int64_t s = 0; s < a.T; ++s)
                for (int64_t c = 0; c < a.hs; ++c) {
                    dq[t * a.in_row + c] += dp[t * a.T + s] * a.k[s * a.in_row + c];
                    dk[s * a.in_row + c] += dp[t * a.T + s] * a.q[t * a.in_row + c];
                    dv[s * a.in_row + c] += p[t * a.T + s] * d[t * a.out_row + c];
                }
    }
}

// 2. p is recomputed one score at a time from logsumexp, the only thing that the forward has to save besides out.
// rowsum(p * dp) is dout·out, which is known before any dp. So nothing is T x T, and the loops end at the diagonal.
template <class Dot>
void backward_head(const Tensors& x, int64_t i, float* dqkv, const float* dout, const Dot& product) {
    const Head a = x.head(i);
    float *const dq_head = dqkv + (a.q - x.qkv), *const dk_head = dq_head + a.out_row;
    for (int64_t t = 0; t < a.T; ++t) {
        const float *const q = a.q + t * a.in_row, *const d = dout + (a.out - x.out) + t * a.out_row;
        const float dout_out = product(d, a.out + t * a.out_row, a.hs);
        float* const dq = dq_head + t * a.in_row;
        for (int64_t s = 0; s <= t; ++s) {
            const float *const k = a.k + s * a.in_row, *const v = a.v + s * a.in_row;
            const float p = std::exp(product(q, k, a.hs) * a.scale - a.logsumexp[t]);
            const float dscore = p * (product(d, v, a.hs) - dout_out) * a.scale;
            float *const dk = dk_head + s * a.in_row, *const dv = dk + a.out_row;
            for (int64_t c = 0; c < a.hs; ++c) {
                dq[c] += dscore * k[c];
                dk[c] += dscore * q[c];
                dv[c] += p * d[c];
            }
        }
    }
}
void backward_rows(const Tensors& x, float* dqkv, const float* dout) {
    std::fill(dqkv, dqkv + x.B * x.T * 3 * x.NH * x.hs, 0.0f);
    for (int64_t i = 0; i < x.B * x.NH; ++i) backward_head(x, i, dqkv, dout, dot);
}

// 3. The two dot products of a query and a key use vectors too.
inline float vector_dot(const float* u, const float* w, int64_t n) {
    vfloat sum{};
    for (int64_t c = 0; c < n; c += W) sum = simd::fma(simd::load_n(u + c, n - c), simd::load_n(w + c, n - c), sum);
    return simd::sum(sum);
}
void backward_simd(const Tensors& x, float* dqkv, const float* dout) {
    std::fill(dqkv, dqkv + x.B * x.T * 3 * x.NH * x.hs, 0.0f);
    for (int64_t i = 0; i < x.B * x.NH; ++i) backward_head(x, i, dqkv, dout, vector_dot);
}

// 4. Blocks of QUERIES x NR scores. Matmul tiles compute q·k and dout·v, which become p and dscores in L1, and three
// more add them to dq, dk and dv. So a loaded row serves a tile, and dk and dv are loaded once per block.
constexpr int64_t QUERIES = 8 * MR;

struct BackwardBlock {
    float p[QUERIES * NR], dscores[QUERIES * NR], dout_out[QUERIES];
};

// p (rows,NR) = q·k becomes e^(scale * p - logsumexp), and dscores (rows,NR) = dout·v becomes
// p * (dscores - dout·out) * scale, for queries from t and keys from s; both are zero above the diagonal.
void softmax_backward(float* p, float* dscores, const float* dout_out, const Head& a, int64_t t, int64_t rows,
                      int64_t s) {
    for (int64_t r = 0; r < rows; ++r)
        for (int j = 0; j < NR; j += W) {
            const int64_t i = r * NR + j, visible = std::max<int64_t>(0, t + r + 1 - s - j);
            const vfloat prob = simd::first(simd::exp(simd::load(p + i) * a.scale - a.logsumexp[t + r]), visible);
            simd::store(p + i, prob);
            simd::store(dscores + i, prob * (simd::load(dscores + i) - dout_out[r]) * a.scale);
        }
}

// The panels that the five matmuls read: of NR keys or values, (hs,NR) each, and of NR channels, (T,NR) each.
struct Panels {
    float *keys, *values, *k, *q, *dout;
    Panels(float* first, const Tensors& x) {
        const int64_t by_key = (x.T + NR) * x.hs, by_channel = (x.hs + NR) * x.T;
        keys = first, values = keys + by_key, k = values + by_key, q = k + by_channel, dout = q + by_channel;
    }
    static int64_t floats(const Tensors& x) { return 2 * (x.T + NR) * x.hs + 3 * (x.hs + NR) * x.T; }
};

// c (rows,hs) += A (rows,K) · rows [row, row + K) of panels of channels
template <gemm::Order order>
void add_matmul(float* c, const Head& a, int64_t rows, const float* A, int64_t K, const float* panels, int64_t row) {
    const gemm::TileKernel tile = gemm::tile_kernel<order, NV>(rows);
    for (int64_t n = 0; n < a.hs; n += NR)
        tile(K, A, NR, panels + n * a.T + row * NR, c + n, a.in_row, gemm::Store::add, std::min<int64_t>(NR, a.hs - n),
             {});
}

void pack(const Panels& panels, const Head& a, const float* dout) {
    using enum gemm::Order;
    for (int64_t s = 0; s < a.T; s += NR) {
        const int64_t lanes = std::min<int64_t>(NR, a.T - s);
        gemm::pack_panel<k_last, NV>(panels.keys + s * a.hs, a.k + s * a.in_row, a.in_row, a.hs, lanes);
        gemm::pack_panel<k_last, NV>(panels.values + s * a.hs, a.v + s * a.in_row, a.in_row, a.hs, lanes);
    }
    for (int64_t c = 0; c < a.hs; c += NR) {
        const int64_t lanes = std::min<int64_t>(NR, a.hs - c);
        gemm::pack_panel<k_first, NV>(panels.k + c * a.T, a.k + c, a.in_row, a.T, lanes);
        gemm::pack_panel<k_first, NV>(panels.q + c * a.T, a.q + c, a.in_row, a.T, lanes);
        gemm::pack_panel<k_first, NV>(panels.dout + c * a.T, dout + c, a.out_row, a.T, lanes);
    }
}

void backward_head_in_blocks(const Tensors& x, int64_t i, float* dqkv, const float* dout, const Panels& panels) {
    using enum gemm::Order;
    const Head a = x.head(i);
    const float* const d = dout + (a.out - x.out);
    float *const dq = dqkv + (a.q - x.qkv), *const dk = dq + a.out_row, *const dv = dk + a.out_row;
    pack(panels, a, d);
    BackwardBlock block;
    for (int64_t t0 = 0; t0 < a.T; t0 += QUERIES) {
        const int64_t t1 = std::min(t0 + QUERIES, a.T);
        for (int64_t t = t0; t < t1; ++t)
            block.dout_out[t - t0] = vector_dot(d + t * a.out_row, a.out + t * a.out_row, a.hs);
        for (int64_t s = 0; s < t1; s += NR) {
            const int64_t keys = std::min<int64_t>(NR, a.T - s);
            const int64_t first = std::max<int64_t>(0, s - t0) / MR * MR;  // the first tile that sees key s
            for (int64_t m = first; t0 + m < t1; m += MR) {
                const int64_t t = t0 + m, rows = std::min<int64_t>(MR, t1 - t);
                float *const p = block.p + m * NR, *const dscores = block.dscores + m * NR;
                const auto dot_products = [&](float* out, const float* row, int64_t ld, const float* panel) {
                    gemm::tile_kernel<k_last, NV>(rows)(a.hs, row, ld, panel, out, NR, gemm::Store::set, NR, {});
                };
                dot_products(p, a.q + t * a.in_row, a.in_row, panels.keys + s * a.hs);
                dot_products(dscores, d + t * a.out_row, a.out_row, panels.values + s * a.hs);
                softmax_backward(p, dscores, block.dout_out + m, a, t, rows, s);
                add_matmul<k_last>(dq + t * a.in_row, a, rows, dscores, keys, panels.k, s);
            }
            const int64_t queries = t1 - t0 - first;
            for (int64_t m = 0; m < keys; m += MR) {
                const int64_t rows = std::min<int64_t>(MR, keys - m), at = first * NR + m, out = (s + m) * a.in_row;
                add_matmul<k_first>(dk + out, a, rows, block.dscores + at, queries, panels.q, t0 + first);
                add_matmul<k_first>(dv + out, a, rows, block.p + at, queries, panels.dout, t0 + first);
            }
        }
    }
}
void backward_blocks(Cpu& dev, const Tensors& x, float* dqkv, const float* dout) {
    std::fill(dqkv, dqkv + x.B * x.T * 3 * x.NH * x.hs, 0.0f);
    dev.reserve(Panels::floats(x));
    const Panels panels(dev.scratch(Panels::floats(x)), x);
    for (int64_t i = 0; i < x.B * x.NH; ++i) backward_head_in_blocks(x, i, dqkv, dout, panels);
}

// 5. Heads are distributed over threads.
void backward_threads(Cpu& dev, const Tensors& x, float* dqkv, const float* dout) {
    std::fill(dqkv, dqkv + x.B * x.T * 3 * x.NH * x.hs, 0.0f);
    dev.reserve(Panels::floats(x));
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < x.B * x.NH; ++i)
        backward_head_in_blocks(x, i, dqkv, dout, Panels(dev.scratch(Panels::floats(x)), x));
}

}  // namespace

void climb(Ladder& ladder) {
    const auto shape = ladder.shape<4>();
    const int64_t B = shape[0], T = shape[1], NH = shape[2], hs = shape[3];
    const int64_t C = NH * hs;
    const auto &qkv = ladder.input({B, T, 3, C}), &out = ladder.output("out", {B, T, C}, T);
    const auto& logsumexp = ladder.output("logsumexp", {B, NH, T}, T);
    float *const p = ladder.scratch({T, T}), *const dp = ladder.scratch({T, T});
    const Tensors x{out, logsumexp, qkv, B, T, NH, hs};
    Cpu cpu;
    ladder.pass("forward", flops(2 * prod(B, T, T + 1, C)), {&out, &logsumexp},
                [&](auto& dev) { attention_forward(dev, out.on(dev), logsumexp.on(dev), qkv.on(dev), B, T, C, NH); });
    ladder.rung("naive", "whole matrices, T x T scores per head", [&] { forward_matrices<false>(x, p); });
    ladder.rung("causal", "loops end at the diagonal", [&] { forward_matrices<true>(x, p); });
    ladder.rung("rows", "one query at a time: T scores, which stay in L1", [&] { forward_rows(x); });
    ladder.rung("online", "online softmax, one key at a time: no buffer of scores", [&] { forward_online(x); });
    ladder.rung("blocks", "tiles of queries and keys", [&] { forward_blocks(cpu, x); });
    ladder.rung("threads", "heads are distributed over the cores", [&] { forward_threads(cpu, x); });
    ladder.production("layers/attention_cpu.cpp: 384 keys per softmax, prefetch");

    const auto &saved_out = ladder.input({B, T, C}), &saved_sum = ladder.input({B, NH, T});
    ladder.prepare({&saved_out, &saved_sum}, [&](auto& dev) {
        attention_forward(dev, saved_out.on(dev), saved_sum.on(dev), qkv.on(dev), B, T, C, NH);
    });
    const auto &dout = ladder.input({B, T, C}), &dqkv = ladder.output("dqkv", {B, T, 3, C}, T);
    const Tensors saved{saved_out, saved_sum, qkv, B, T, NH, hs};
    ladder.pass("backward", flops(5 * prod(B, T, T + 1, C)), {&dqkv}, [&](auto& dev) {
        attention_backward(dev, dqkv.on(dev), dout.on(dev), saved_out.on(dev), qkv.on(dev), saved_sum.on(dev), B, T, C,
                           NH);
    });
    ladder.rung("naive", "whole matrices, T x T p and dscores", [&] { backward_naive(saved, dqkv, dout, p, dp); });
    ladder.rung("rows", "p recomputed, one query and key at a time", [&] { backward_rows(saved, dqkv, dout); });
    ladder.rung("simd", "vectors in the dot products too", [&] { backward_simd(saved, dqkv, dout); });
    ladder.rung("blocks", "five matmuls in tiles, on blocks in L1", [&] { backward_blocks(cpu, saved, dqkv, dout); });
    ladder.rung("threads", "heads are distributed over the cores", [&] { backward_threads(cpu, saved, dqkv, dout); });
    ladder.production("layers/attention_cpu.cpp: 384 keys per block, prefetch");
    ladder.run();
}
