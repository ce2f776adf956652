// The ladder of layer normalization. dev/layernorm/README.md explains the formulas and derives the backward.
//
// Rows of 768 floats take 3 KiB: once read, a row stays in the 32 KiB of L1. So memory has to be read once and written
// once, and a kernel that keeps up with memory is as fast as a copy. Each rung removes an obstacle to that.
#include "dev/ladder.h"
#include "layers/layernorm_cpu.h"
#include "device/cpu/rows.h"

const Kernel kernel{"layernorm",
                    "LayerNorm forward, with the residual's addition, and backward",
                    {{"N", 8192, "rows"}, {"C", 768, "channels"}}};

namespace {

constexpr float eps = 1e-5f;

// forward: out (N,C) = (inp - mean) * rstd * weight + bias

// 1. The formula, step by step: the mean of each row, the variance of each row, the output. Each step goes through all
// of inp, which does not fit in any cache, so it is read from memory three times.
void forward_naive(float* out, const float* inp, const float* weight, const float* bias, float* mean, float* rstd,
                   int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row) {
        float sum = 0;
        for (int64_t c = 0; c < C; ++c) sum += inp[row * C + c];
        mean[row] = sum / static_cast<float>(C);
    }
    for (int64_t row = 0; row < N; ++row) {
        float squares = 0;
        for (int64_t c = 0; c < C; ++c) squares += (inp[row * C + c] - mean[row]) * (inp[row * C + c] - mean[row]);
        rstd[row] = 1 / std::sqrt(squares / static_cast<float>(C) + eps);
    }
    for (int64_t row = 0; row < N; ++row)
        for (int64_t c = 0; c < C; ++c)
            out[row * C + c] = (inp[row * C + c] - mean[row]) * rstd[row] * weight[c] + bias[c];
}

// 2. Row by row: memory is read once and written once, and the sums find the row in L1. That alone gains little,
// because memory is not the bottleneck.
void forward_rows(float* out, const float* inp, const float* weight, const float* bias, float* mean, float* rstd,
                  int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row) {
        const float* x = inp + row * C;
        float sum = 0, squares = 0;
        for (int64_t c = 0; c < C; ++c) sum += x[c];
        const float m = sum / static_cast<float>(C);
        for (int64_t c = 0; c < C; ++c) squares += (x[c] - m) * (x[c] - m);
        const float r = 1 / std::sqrt(squares / static_cast<float>(C) + eps);
        for (int64_t c = 0; c < C; ++c) out[row * C + c] = (x[c] - m) * r * weight[c] + bias[c];
        mean[row] = m;
        rstd[row] = r;
    }
}

// 3. The sums are the bottleneck: each addition waits 4 cycles for the one before. Another order changes the rounding,
// so the compiler may not change it. This rung does: a vector of sums is W independent chains.
struct Statistics {
    float mean, rstd;
};
inline Statistics two_pass_statistics(const float* x, int64_t C) {
    using namespace simd;
    vfloat total{}, squares{};
    for (int64_t c = 0; c < C; c += W) total += load_n(x + c, C - c);
    const float m = sum(total) / static_cast<float>(C);
    for (int64_t c = 0; c < C; c += W) {
        const vfloat d = first(load_n(x + c, C - c) - m, C - c);
        squares = fma(d, d, squares);
    }
    return {m, 1 / std::sqrt(sum(squares) / static_cast<float>(C) + eps)};
}
inline void normalise_row(float* out, const float* x, const float* weight, const float* bias, float* mean, float* rstd,
                          int64_t C) {
    using namespace simd;
    const auto [m, r] = two_pass_statistics(x, C);
    for (int64_t c = 0; c < C; c += W) {
        const int64_t n = C - c;
        store_n(out + c, fma((load_n(x + c, n) - m) * r, load_n(weight + c, n), load_n(bias + c, n)), n);
    }
    *mean = m;
    *rstd = r;
}
void forward_simd(float* out, const float* inp, const float* weight, const float* bias, float* mean, float* rstd,
                  int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row)
        normalise_row(out + row * C, inp + row * C, weight, bias, mean + row, rstd + row, C);
}

// 4. Rows are independent, so they are distributed over threads. A single core does not use the full memory bandwidth.
void forward_threads(float* out, const float* inp, const float* weight, const float* bias, float* mean, float* rstd,
                     int64_t N, int64_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; ++row)
        normalise_row(out + row * C, inp + row * C, weight, bias, mean + row, rstd + row, C);
}

// 5. A store first loads its cache line from memory, only to overwrite it. Streaming stores do not: a third of the
// bytes are saved. It pays where the result is so large that it would leave the caches before it is read.
inline void finish_row(float* out, const float* x, const float* weight, const float* bias, float mean, float rstd,
                       int64_t C, bool streaming) {
    using namespace simd;
    for (int64_t c = 0; c < C; c += W) {
        const int64_t n = C - c;
        store_row(out + c, fma((load_n(x + c, n) - mean) * rstd, load_n(weight + c, n), load_n(bias + c, n)), n,
                  streaming);
    }
}
void forward_streaming(float* out, const float* inp, const float* weight, const float* bias, float* mean, float* rstd,
                       int64_t N, int64_t C) {
    const bool streaming = should_stream(out, N, C);
    parallel_for(N, [=](int64_t row) {
        const float* const x = inp + row * C;
        const Statistics s = two_pass_statistics(x, C);
        mean[row] = s.mean;
        rstd[row] = s.rstd;
        finish_row(out + row * C, x, weight, bias, s.mean, s.rstd, C, streaming);
    });
}

// 6. One pass for both sums: distances from any value near the mean do. With d = x - near, mean = near + mean(d) and
// the variance is mean(d²) - mean(d)², which loses no precision unless `near` is more than a standard deviation off.
// Production checks that; the rungs do not.
struct DistanceSums {
    float near;
    simd::vfloat total{}, squares{};
    [[gnu::always_inline]] void add(simd::vfloat x, int64_t n) {
        const simd::vfloat d = simd::first(x - near, n);
        total += d;
        squares = simd::fma(d, d, squares);
    }
    [[gnu::always_inline]] Statistics statistics(int64_t C) const {
        const float shift = simd::sum(total) / static_cast<float>(C);
        const float variance = simd::sum(squares) / static_cast<float>(C) - shift * shift;
        return {near + shift, 1 / std::sqrt(variance + eps)};
    }
};
// The mean of the first vector: an estimate of the row's.
inline float guess(const float* x, int64_t C) {
    return simd::sum(simd::first(simd::load_n(x, C), C)) / static_cast<float>(std::min<int64_t>(C, simd::W));
}
inline Statistics statistics(const float* x, int64_t C) {
    DistanceSums sums{guess(x, C)};
    for (int64_t c = 0; c < C; c += simd::W) sums.add(simd::load_n(x + c, C - c), C - c);
    return sums.statistics(C);
}
void forward_guess(float* out, const float* inp, const float* weight, const float* bias, float* mean, float* rstd,
                   int64_t N, int64_t C) {
    const bool streaming = should_stream(out, N, C);
    parallel_for(N, [=](int64_t row) {
        const Statistics s = statistics(inp + row * C, C);
        mean[row] = s.mean;
        rstd[row] = s.rstd;
        finish_row(out + row * C, inp + row * C, weight, bias, s.mean, s.rstd, C, streaming);
    });
}

// 7. While a row is finished, nothing is read from memory. So the same loop computes the next row's sums.
// 8. The CPU's prefetcher does not follow the walk into the next row as far ahead as memory is slow; hints do.
template <bool prefetch>
void forward_next_row(float* out, const float* inp, const float* weight, const float* bias, float* mean, float* rstd,
                      int64_t N, int64_t C) {
    using namespace simd;
    const bool streaming = should_stream(out, N, C);
    each_row_and_next(
        N, [=](int64_t row) { return statistics(inp + row * C, C); },
        [=](int64_t row, int64_t next_row, Statistics s) {
            const float *const x = inp + row * C, *const next = inp + next_row * C;
            DistanceSums sums{guess(next, C)};
            for (int64_t c = 0; c < C; c += W) {
                const int64_t n = C - c;
                if (prefetch) prefetch_ahead(next + c, static_cast<int>(c / W % 4));
                sums.add(load_n(next + c, n), n);
                const vfloat norm = (load_n(x + c, n) - s.mean) * s.rstd;
                store_row(out + row * C + c, fma(norm, load_n(weight + c, n), load_n(bias + c, n)), n, streaming);
            }
            mean[row] = s.mean;
            rstd[row] = s.rstd;
            return sums.statistics(C);
        });
}

// residual + layernorm: sum (N,C) = inp + branch        out (N,C) = layernorm(sum)

void residual_separate(float* sum, float* out, const float* inp, const float* branch, const float* weight,
                       const float* bias, float* mean, float* rstd, int64_t N, int64_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < N * C; ++i) sum[i] = inp[i] + branch[i];
    forward_threads(out, sum, weight, bias, mean, rstd, N, C);
}

// The sum is normalized while it is in L1, which saves one of five passes over memory, the one that reads it again.
void residual_fused(float* sum, float* out, const float* inp, const float* branch, const float* weight,
                    const float* bias, float* mean, float* rstd, int64_t N, int64_t C) {
    using namespace simd;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; ++row) {
        const float *x = inp + row * C, *add = branch + row * C;
        float* s = sum + row * C;
        for (int64_t c = 0; c < C; c += W) store_n(s + c, load_n(x + c, C - c) + load_n(add + c, C - c), C - c);
        normalise_row(out + row * C, s, weight, bias, mean + row, rstd + row, C);
    }
}

// backward: dinp (N,C) = rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm)),  dnorm = dout * weight
//           dweight (C) += sum over rows of dout * norm        dbias (C) += sum over rows of dout

// 1. The forward saves nothing: mean and rstd are recomputed. Then the two sums, then dinp.
void backward_naive(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp, const float* weight,
                    int64_t N, int64_t C) {
    const float count = static_cast<float>(C);
    for (int64_t row = 0; row < N; ++row) {
        const float *x = inp + row * C, *dy = dout + row * C;
        float mean = 0, variance = 0, sum_dnorm = 0, sum_dnorm_norm = 0;
        for (int64_t c = 0; c < C; ++c) mean += x[c] / count;
        for (int64_t c = 0; c < C; ++c) variance += (x[c] - mean) * (x[c] - mean) / count;
        const float rstd = 1 / std::sqrt(variance + eps);
        for (int64_t c = 0; c < C; ++c) {
            const float norm = (x[c] - mean) * rstd;
            sum_dnorm += dy[c] * weight[c];
            sum_dnorm_norm += dy[c] * weight[c] * norm;
            dweight[c] += dy[c] * norm;
            dbias[c] += dy[c];
        }
        for (int64_t c = 0; c < C; ++c) {
            const float norm = (x[c] - mean) * rstd;
            dinp[row * C + c] = rstd * (dy[c] * weight[c] - sum_dnorm / count - norm * sum_dnorm_norm / count);
        }
    }
}

// 2. The forward has saved mean and rstd, 2 floats per row, which saves two of four passes.
void backward_saved(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp, const float* weight,
                    const float* mean, const float* rstd, int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row) {
        const float *x = inp + row * C, *dy = dout + row * C;
        float sum_dnorm = 0, sum_dnorm_norm = 0;
        for (int64_t c = 0; c < C; ++c) {
            const float norm = (x[c] - mean[row]) * rstd[row], dnorm = dy[c] * weight[c];
            sum_dnorm += dnorm;
            sum_dnorm_norm += dnorm * norm;
            dweight[c] += dy[c] * norm;
            dbias[c] += dy[c];
        }
        sum_dnorm /= static_cast<float>(C);
        sum_dnorm_norm /= static_cast<float>(C);
        for (int64_t c = 0; c < C; ++c) {
            const float norm = (x[c] - mean[row]) * rstd[row];
            dinp[row * C + c] = rstd[row] * (dy[c] * weight[c] - sum_dnorm - norm * sum_dnorm_norm);
        }
    }
}

// 3. Vectors of sums, as in the forward; dweight and dbias stay in L1.
inline void backward_row(float* dinp, float* dweight, float* dbias, const float* dy, const float* x,
                         const float* weight, float mean, float rstd, int64_t C) {
    using namespace simd;
    vfloat sum_dnorm{}, sum_dnorm_norm{};
    for (int64_t c = 0; c < C; c += W) {
        const int64_t n = C - c;
        const vfloat d = load_n(dy + c, n), norm = (load_n(x + c, n) - mean) * rstd, dnorm = d * load_n(weight + c, n);
        sum_dnorm += dnorm;
        sum_dnorm_norm = fma(dnorm, norm, sum_dnorm_norm);
        store_n(dweight + c, fma(d, norm, load_n(dweight + c, n)), n);
        store_n(dbias + c, load_n(dbias + c, n) + d, n);
    }
    const float mean_dnorm = sum(sum_dnorm) / static_cast<float>(C);
    const float mean_dnorm_norm = sum(sum_dnorm_norm) / static_cast<float>(C);
    for (int64_t c = 0; c < C; c += W) {
        const int64_t n = C - c;
        const vfloat norm = (load_n(x + c, n) - mean) * rstd, dnorm = load_n(dy + c, n) * load_n(weight + c, n);
        store_n(dinp + c, rstd * (dnorm - mean_dnorm - norm * mean_dnorm_norm), n);
    }
}
void backward_simd(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp, const float* weight,
                   const float* mean, const float* rstd, int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row)
        backward_row(dinp + row * C, dweight, dbias, dout + row * C, inp + row * C, weight, mean[row], rstd[row], C);
}

// 4. All rows add to dweight and dbias, so threads need sums of their own. If rows were divided by the number of
// threads, rounding would depend on it. sum_over_rows divides them by N alone and adds the parts in order.
void backward_threads(Cpu& dev, float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                      const float* weight, const float* mean, const float* rstd, int64_t N, int64_t C) {
    sum_over_rows(dev, N, C, dweight, dbias, [=](int64_t row, int64_t end, float* dw, float* db) {
        for (; row < end; ++row)
            backward_row(dinp + row * C, dw, db, dout + row * C, inp + row * C, weight, mean[row], rstd[row], C);
    });
}

// 5. Streaming stores, as in the forward: 12 bytes per value instead of 16.
struct BackwardSums {
    float dnorm, dnorm_norm;
};
struct BackwardRow {
    const float *dy, *x;
    float* dinp;
    float mean, rstd;
    simd::vfloat norm(int64_t c, int64_t n) const { return (simd::load_n(x + c, n) - mean) * rstd; }
    // dinp from c on, given the sums and the weight w.
    [[gnu::always_inline]] void finish(const BackwardSums& sums, simd::vfloat w, int64_t c, int64_t C,
                                       bool streaming) const {
        const int64_t n = C - c;
        const float mean_dnorm = sums.dnorm / static_cast<float>(C),
                    mean_dnorm_norm = sums.dnorm_norm / static_cast<float>(C);
        const simd::vfloat dnorm = simd::load_n(dy + c, n) * w;
        store_row(dinp + c, rstd * (dnorm - mean_dnorm - norm(c, n) * mean_dnorm_norm), n, streaming);
    }
};
// Returns a row's sums and adds its part to dw and db. also(c, w) is called for each vector, with its weight.
template <bool prefetch, class Also>
BackwardSums add_row(const BackwardRow& row, float* dw, float* db, const float* weight, int64_t C, const Also& also) {
    using namespace simd;
    vfloat sum_dnorm{}, sum_dnorm_norm{};
    for (int64_t c = 0; c < C; c += W) {
        const int64_t n = C - c;
        if (prefetch) {
            const int k = static_cast<int>(c / W % 4);
            prefetch_ahead(row.x + c, k), prefetch_ahead(row.dy + c, k);
        }
        const vfloat w = load_n(weight + c, n), d = load_n(row.dy + c, n), norm = row.norm(c, n);
        sum_dnorm += d * w;
        sum_dnorm_norm = fma(d * w, norm, sum_dnorm_norm);
        const vfloat dweight = fma(d, norm, load_n(dw + c, n)), dbias = load_n(db + c, n) + d;
        also(c, w);
        store_n(dw + c, dweight, n);
        store_n(db + c, dbias, n);
    }
    return {sum(sum_dnorm), sum(sum_dnorm_norm)};
}
// 6. Reads the next row while this one is finished, as in the forward.
// 7. Prefetches it.
enum class Ahead { nothing, next_row, prefetched };
template <Ahead ahead>
void backward_ahead(Cpu& dev, float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                    const float* weight, const float* mean, const float* rstd, int64_t N, int64_t C) {
    const bool streaming = should_stream(dinp, N, C);
    const auto at = [=](int64_t row) {
        return BackwardRow{dout + row * C, inp + row * C, dinp + row * C, mean[row], rstd[row]};
    };
    const auto nothing = [](int64_t, simd::vfloat) {};
    const auto finish_row = [=](int64_t row, const BackwardSums& sums) {
        for (int64_t c = 0; c < C; c += simd::W) at(row).finish(sums, simd::load_n(weight + c, C - c), c, C, streaming);
    };
    sum_over_rows(dev, N, C, dweight, dbias, [=](int64_t row, int64_t end, float* dw, float* db) {
        if (ahead == Ahead::nothing) {
            for (; row < end; ++row) finish_row(row, add_row<false>(at(row), dw, db, weight, C, nothing));
            return;
        }
        BackwardSums sums = add_row<false>(at(row), dw, db, weight, C, nothing);
        for (; row + 1 < end; ++row) {
            const BackwardRow before = at(row);
            sums = add_row<ahead == Ahead::prefetched>(at(row + 1), dw, db, weight, C, [&](int64_t c, simd::vfloat w) {
                before.finish(sums, w, c, C, streaming);
            });
        }
        finish_row(row, sums);
    });
}

}  // namespace

void climb(Ladder& ladder) {
    const auto shape = ladder.shape<2>();
    const int64_t N = shape[0], C = shape[1];
    const auto &inp = ladder.input({N, C}), &weight = ladder.input({C}), &bias = ladder.input({C});
    const auto &out = ladder.output("out", {N, C}, C), &mean = ladder.output("mean", {N}, C),
               &rstd = ladder.output("rstd", {N}, C);
    ladder.pass("forward", bytes(8 * prod(N, C)), {&out, &mean, &rstd}, [&](auto& dev) {
        layernorm_forward(dev, out.on(dev), mean.on(dev), rstd.on(dev), inp.on(dev), weight.on(dev), bias.on(dev), N,
                          C);
    });
    ladder.rung("naive", "mean, variance, output: memory is read three times",
                [&] { forward_naive(out, inp, weight, bias, mean, rstd, N, C); });
    ladder.rung("two passes", "row by row: memory is read once and written once",
                [&] { forward_rows(out, inp, weight, bias, mean, rstd, N, C); });
    ladder.rung("simd", "a vector of sums instead of one chain of additions",
                [&] { forward_simd(out, inp, weight, bias, mean, rstd, N, C); });
    ladder.rung("threads", "rows are distributed over the cores",
                [&] { forward_threads(out, inp, weight, bias, mean, rstd, N, C); });
    ladder.rung("streaming", "out is written without loading it first",
                [&] { forward_streaming(out, inp, weight, bias, mean, rstd, N, C); });
    ladder.rung("guess", "both sums in one pass, about a guess of the mean",
                [&] { forward_guess(out, inp, weight, bias, mean, rstd, N, C); });
    ladder.rung("next row", "the next row's sums while this one is finished",
                [&] { forward_next_row<false>(out, inp, weight, bias, mean, rstd, N, C); });
    ladder.rung("prefetch", "hints bring the next row in time",
                [&] { forward_next_row<true>(out, inp, weight, bias, mean, rstd, N, C); });
    ladder.production("layers/layernorm_cpu.h: four chains a sum, bad guesses");

    const auto &branch = ladder.input({N, C}), &sum = ladder.output("sum", {N, C});
    ladder.pass("residual + layernorm", bytes(16 * prod(N, C)), {&sum, &out, &mean, &rstd}, [&](auto& dev) {
        residual_layernorm_forward(dev, sum.on(dev), out.on(dev), mean.on(dev), rstd.on(dev), inp.on(dev),
                                   branch.on(dev), weight.on(dev), bias.on(dev), N, C);
    });
    ladder.rung("separate", "the addition in a separate loop, then the rung before",
                [&] { residual_separate(sum, out, inp, branch, weight, bias, mean, rstd, N, C); });
    ladder.rung("fused", "a row is normalized while its sum is in L1",
                [&] { residual_fused(sum, out, inp, branch, weight, bias, mean, rstd, N, C); });
    ladder.production("layers/layernorm_cpu.h: all of the forward's rungs");

    const auto &dout = ladder.input({N, C}), &dinp = ladder.output("dinp", {N, C}, C);
    const auto &dweight = ladder.updated("dweight", {C}, N), &dbias = ladder.updated("dbias", {C}, N);
    const auto &saved_mean = ladder.input({N}), &saved_rstd = ladder.input({N});
    ladder.prepare({&saved_mean, &saved_rstd}, [&](auto& dev) {
        layernorm_forward(dev, out.on(dev), saved_mean.on(dev), saved_rstd.on(dev), inp.on(dev), weight.on(dev),
                          bias.on(dev), N, C);
    });
    Cpu cpu;
    ladder.pass("backward", bytes(12 * prod(N, C)), {&dinp, &dweight, &dbias}, [&](auto& dev) {
        layernorm_backward(dev, dinp.on(dev), dweight.on(dev), dbias.on(dev), dout.on(dev), inp.on(dev), weight.on(dev),
                           saved_mean.on(dev), saved_rstd.on(dev), nullptr, N, C);
    });
    ladder.rung("naive", "mean and rstd recomputed, then the sums, then dinp",
                [&] { backward_naive(dinp, dweight, dbias, dout, inp, weight, N, C); });
    ladder.rung("two passes", "mean and rstd saved by the forward",
                [&] { backward_saved(dinp, dweight, dbias, dout, inp, weight, saved_mean, saved_rstd, N, C); });
    ladder.rung("simd", "vectors of sums",
                [&] { backward_simd(dinp, dweight, dbias, dout, inp, weight, saved_mean, saved_rstd, N, C); });
    ladder.rung("threads", "sums over rows in parts, by N alone",
                [&] { backward_threads(cpu, dinp, dweight, dbias, dout, inp, weight, saved_mean, saved_rstd, N, C); });
    const auto ahead = [&]<Ahead what>() {
        backward_ahead<what>(cpu, dinp, dweight, dbias, dout, inp, weight, saved_mean, saved_rstd, N, C);
    };
    ladder.rung("streaming", "dinp is written without loading it first", [&] { ahead.operator()<Ahead::nothing>(); });
    ladder.rung("next row", "reads the next row while this one is finished",
                [&] { ahead.operator()<Ahead::next_row>(); });
    ladder.rung("prefetch", "hints bring the next row in time", [&] { ahead.operator()<Ahead::prefetched>(); });
    ladder.production("layers/norm_backward_cpu.h: four chains, two FMAs a value");
    ladder.run();
}
