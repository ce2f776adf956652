// The ladder of layer normalization. dev/layernorm/README.md explains the formulas and derives the backward.
//
// Rows of 768 floats take 3 KiB: once read, a row stays in the 32 KiB of L1. So memory has to be read once and written
// once, and a kernel that keeps up with memory is as fast as a copy. Each rung removes an obstacle to that.
#include "dev/ladder.h"
#include "layers/layernorm_cpu.h"
#include "layers/rmsnorm_cpu.h"
#include "device/cpu/rows.h"

const Kernel kernel{"layernorm",
                    "LayerNorm forward, with the residual's addition, and backward; RMSNorm",
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
inline void normalise_row(float* out, const float* x, const float* weight, const float* bias, float* mean, float* rstd,
                          int64_t C) {
    using namespace simd;
    vfloat total{}, squares{};
    for (int64_t c = 0; c < C; c += W) total += load_n(x + c, C - c);
    const float m = sum(total) / static_cast<float>(C);
    for (int64_t c = 0; c < C; c += W) {
        const vfloat d = first(load_n(x + c, C - c) - m, C - c);
        squares = fma(d, d, squares);
    }
    const float r = 1 / std::sqrt(sum(squares) / static_cast<float>(C) + eps);
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

// RMSNorm (layers/rmsnorm.h) has one sum less. Its ladder would be the same.
void rmsnorm_naive(float* out, const float* inp, const float* weight, float* rrms, int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row) {
        const float* x = inp + row * C;
        float squares = 0;
        for (int64_t c = 0; c < C; ++c) squares += x[c] * x[c];
        rrms[row] = 1 / std::sqrt(squares / static_cast<float>(C) + 1e-6f);
        for (int64_t c = 0; c < C; ++c) out[row * C + c] = x[c] * rrms[row] * weight[c];
    }
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
    ladder.production("layers/layernorm_cpu.h: prefetches, streaming stores");

    const auto &branch = ladder.input({N, C}), &sum = ladder.output("sum", {N, C});
    ladder.pass("residual + layernorm", bytes(16 * prod(N, C)), {&sum, &out, &mean, &rstd}, [&](auto& dev) {
        residual_layernorm_forward(dev, sum.on(dev), out.on(dev), mean.on(dev), rstd.on(dev), inp.on(dev),
                                   branch.on(dev), weight.on(dev), bias.on(dev), N, C);
    });
    ladder.rung("separate", "the addition in a separate loop, then the rung before",
                [&] { residual_separate(sum, out, inp, branch, weight, bias, mean, rstd, N, C); });
    ladder.rung("fused", "a row is normalized while its sum is in L1",
                [&] { residual_fused(sum, out, inp, branch, weight, bias, mean, rstd, N, C); });
    ladder.production("layers/layernorm_cpu.h: prefetches, streaming stores");

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
    ladder.production("layers/layernorm_cpu.h: prefetches, streaming stores");

    const auto& rrms = ladder.output("rrms", {N}, C);
    ladder.pass("RMSNorm forward", bytes(8 * prod(N, C)), {&out, &rrms},
                [&](auto& dev) { rmsnorm_forward(dev, out.on(dev), rrms.on(dev), inp.on(dev), weight.on(dev), N, C); });
    ladder.rung("naive", "row by row", [&] { rmsnorm_naive(out, inp, weight, rrms, N, C); });
    ladder.production("layers/rmsnorm_cpu.h: all of the above");
    ladder.run();
}
