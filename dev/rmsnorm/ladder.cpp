// The ladder of RMSNorm (Zhang & Sennrich 2019), which Llama uses: LayerNorm without the mean and the bias.
//
// The rungs are those of dev/layernorm, whose chapter explains them. Two are missing, because one sum needs no second
// pass over a row and no guess of the mean. So each function here shows how little of LayerNorm is left.
#include "dev/ladder.h"
#include "layers/rmsnorm_cpu.h"
#include "device/cpu/rows.h"

const Kernel kernel{"rmsnorm", "RMSNorm forward and backward", {{"N", 8192, "rows"}, {"C", 768, "channels"}}};

namespace {

using simd::load_n;
using simd::store_n;
using simd::vfloat;
using simd::W;

inline float inverse(float squares, int64_t C) { return 1 / std::sqrt(squares / static_cast<float>(C) + 1e-6f); }

// forward: out (N,C) = inp * rrms * weight,  rrms (N) = 1 / sqrt(mean(inp²) + eps)

// 1. Row by row: memory is read once, and the output finds the row in L1.
void forward_naive(float* out, float* rrms, const float* inp, const float* weight, int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row) {
        const float* x = inp + row * C;
        float squares = 0;
        for (int64_t c = 0; c < C; ++c) squares += x[c] * x[c];
        rrms[row] = inverse(squares, C);
        for (int64_t c = 0; c < C; ++c) out[row * C + c] = x[c] * rrms[row] * weight[c];
    }
}

// 2. Each addition waits for the one before. A vector of sums is W independent chains.
inline float sum_of_squares(const float* x, int64_t C) {
    vfloat squares{};
    for (int64_t c = 0; c < C; c += W) squares = simd::fma(load_n(x + c, C - c), load_n(x + c, C - c), squares);
    return simd::sum(squares);
}
inline void normalise_row(float* out, float* rrms, const float* x, const float* weight, int64_t C, bool streaming) {
    *rrms = inverse(sum_of_squares(x, C), C);
    for (int64_t c = 0; c < C; c += W)
        store_row(out + c, load_n(x + c, C - c) * *rrms * load_n(weight + c, C - c), C - c, streaming);
}
void forward_simd(float* out, float* rrms, const float* inp, const float* weight, int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row) normalise_row(out + row * C, rrms + row, inp + row * C, weight, C, false);
}

// 3. AllRows are distributed over threads.
// 4. Streaming stores do not load the cache lines of out before they overwrite them.
void forward_threads(float* out, float* rrms, const float* inp, const float* weight, int64_t N, int64_t C,
                     bool streaming) {
    parallel_for(N,
                 [=](int64_t row) { normalise_row(out + row * C, rrms + row, inp + row * C, weight, C, streaming); });
}

// 5. Memory is idle while a row is finished, so the same loop computes the next row's sum.
// 6. Hints bring the next row's cache lines in time.
template <bool prefetch>
void forward_next_row(float* out, float* rrms, const float* inp, const float* weight, int64_t N, int64_t C) {
    const bool streaming = should_stream(out, N, C);
    each_row_and_next(
        N, [=](int64_t row) { return sum_of_squares(inp + row * C, C); },
        [=](int64_t row, int64_t next_row, float squares) {
            const float *const x = inp + row * C, *const next = inp + next_row * C;
            const float r = rrms[row] = inverse(squares, C);
            vfloat next_squares{};
            for (int64_t c = 0; c < C; c += W) {
                const int64_t n = C - c;
                if (prefetch) prefetch_ahead(next + c, static_cast<int>(c / W % 4));
                next_squares = simd::fma(load_n(next + c, n), load_n(next + c, n), next_squares);
                store_row(out + row * C + c, load_n(x + c, n) * r * load_n(weight + c, n), n, streaming);
            }
            return simd::sum(next_squares);
        });
}

// backward: dinp (N,C) = rrms * (dnorm - norm * mean(dnorm * norm)),  dnorm = dout * weight,  norm = inp * rrms
//           dweight (C) += sum over rows of dout * norm

// 1. The forward has saved rrms: two passes over each row.
void backward_naive(float* dinp, float* dweight, const float* dout, const float* inp, const float* weight,
                    const float* rrms, int64_t N, int64_t C) {
    for (int64_t row = 0; row < N; ++row) {
        const float *x = inp + row * C, *dy = dout + row * C;
        float sum = 0;
        for (int64_t c = 0; c < C; ++c) {
            const float norm = x[c] * rrms[row];
            sum += dy[c] * weight[c] * norm;
            dweight[c] += dy[c] * norm;
        }
        const float mean = sum / static_cast<float>(C);
        for (int64_t c = 0; c < C; ++c) dinp[row * C + c] = rrms[row] * (dy[c] * weight[c] - x[c] * rrms[row] * mean);
    }
}

// 2. A vector of sums; dweight stays in L1.
struct Row {
    const float *dy, *x;
    float* dinp;
    float rrms;
    // dinp from c on, given mean(dnorm * norm) and the weight w.
    [[gnu::always_inline]] void finish(float mean, vfloat w, int64_t c, int64_t n, bool streaming) const {
        store_row(dinp + c, rrms * (load_n(dy + c, n) * w - load_n(x + c, n) * rrms * mean), n, streaming);
    }
};
// Returns mean(dnorm * norm) of a row and adds its part to dweight. also(c, w) is called for each vector, with its
// weight.
template <bool prefetch, class Also>
float add_row(const Row& row, float* dweight, const float* weight, int64_t C, const Also& also) {
    vfloat sum{};
    for (int64_t c = 0; c < C; c += W) {
        const int64_t n = C - c;
        if (prefetch) {
            const int k = static_cast<int>(c / W % 4);
            prefetch_ahead(row.x + c, k), prefetch_ahead(row.dy + c, k);
        }
        const vfloat w = load_n(weight + c, n), d = load_n(row.dy + c, n), norm = load_n(row.x + c, n) * row.rrms;
        sum = simd::fma(d * w, norm, sum);
        const vfloat dw = simd::fma(d, norm, load_n(dweight + c, n));
        also(c, w);
        store_n(dweight + c, dw, n);
    }
    return simd::sum(sum) / static_cast<float>(C);
}
inline void backward_row(const Row& row, float* dweight, const float* weight, int64_t C, bool streaming) {
    const float mean = add_row<false>(row, dweight, weight, C, [](int64_t, vfloat) {});
    for (int64_t c = 0; c < C; c += W) row.finish(mean, load_n(weight + c, C - c), c, C - c, streaming);
}
struct AllRows {
    float* dinp;
    const float *dout, *inp, *rrms;
    int64_t C;
    Row operator[](int64_t row) const { return {dout + row * C, inp + row * C, dinp + row * C, rrms[row]}; }
};
void backward_simd(const AllRows& rows, float* dweight, const float* weight, int64_t N) {
    for (int64_t row = 0; row < N; ++row) backward_row(rows[row], dweight, weight, rows.C, false);
}

// 3. Sums over rows in parts, by N alone, so that the number of threads does not change their bits.
// 4. Streaming stores, as in the forward.
void backward_threads(Cpu& dev, const AllRows& rows, float* dweight, const float* weight, int64_t N, bool streaming) {
    sum_over_rows<float>(dev, N, rows.C, dweight, nullptr, [=](int64_t row, int64_t end, float* dw, float*) {
        for (; row < end; ++row) backward_row(rows[row], dw, weight, rows.C, streaming);
    });
}

// 5. Reads the next row while this one is finished.
// 6. Prefetches it.
template <bool prefetch>
void backward_next_row(Cpu& dev, const AllRows& rows, float* dweight, const float* weight, int64_t N) {
    const int64_t C = rows.C;
    const bool streaming = should_stream(rows.dinp, N, C);
    sum_over_rows<float>(dev, N, C, dweight, nullptr, [=](int64_t row, int64_t end, float* dw, float*) {
        float mean = add_row<false>(rows[row], dw, weight, C, [](int64_t, vfloat) {});
        for (; row + 1 < end; ++row) {
            const Row before = rows[row];
            mean = add_row<prefetch>(rows[row + 1], dw, weight, C,
                                     [&](int64_t c, vfloat w) { before.finish(mean, w, c, C - c, streaming); });
        }
        for (int64_t c = 0; c < C; c += W) rows[row].finish(mean, load_n(weight + c, C - c), c, C - c, streaming);
    });
}

}  // namespace

void climb(Ladder& ladder) {
    const auto shape = ladder.shape<2>();
    const int64_t N = shape[0], C = shape[1];
    const auto &inp = ladder.input({N, C}), &weight = ladder.input({C});
    const auto &out = ladder.output("out", {N, C}, C), &rrms = ladder.output("rrms", {N}, C);
    const bool streaming = should_stream<float>(out, N, C);
    ladder.pass("forward", bytes(8 * prod(N, C)), {&out, &rrms},
                [&](auto& dev) { rmsnorm_forward(dev, out.on(dev), rrms.on(dev), inp.on(dev), weight.on(dev), N, C); });
    ladder.rung("naive", "row by row", [&] { forward_naive(out, rrms, inp, weight, N, C); });
    ladder.rung("simd", "a vector of sums instead of one chain of additions",
                [&] { forward_simd(out, rrms, inp, weight, N, C); });
    ladder.rung("threads", "rows are distributed over the cores",
                [&] { forward_threads(out, rrms, inp, weight, N, C, false); });
    ladder.rung("streaming", "out is written without loading it first",
                [&] { forward_threads(out, rrms, inp, weight, N, C, streaming); });
    ladder.rung("next row", "the next row's sum while this one is finished",
                [&] { forward_next_row<false>(out, rrms, inp, weight, N, C); });
    ladder.rung("prefetch", "hints bring the next row in time",
                [&] { forward_next_row<true>(out, rrms, inp, weight, N, C); });
    ladder.production("layers/rmsnorm_cpu.h: four chains, squares that overflow");

    const auto &dout = ladder.input({N, C}), &saved = ladder.input({N});
    const auto &dinp = ladder.output("dinp", {N, C}, C), &dweight = ladder.updated("dweight", {C}, N);
    ladder.prepare({&saved}, [&](auto& dev) {
        rmsnorm_forward(dev, out.on(dev), saved.on(dev), inp.on(dev), weight.on(dev), N, C);
    });
    Cpu cpu;
    const AllRows rows{dinp, dout, inp, saved, C};
    ladder.pass("backward", bytes(12 * prod(N, C)), {&dinp, &dweight}, [&](auto& dev) {
        rmsnorm_backward(dev, dinp.on(dev), dweight.on(dev), dout.on(dev), inp.on(dev), weight.on(dev), saved.on(dev),
                         nullptr, N, C);
    });
    ladder.rung("naive", "row by row", [&] { backward_naive(dinp, dweight, dout, inp, weight, saved, N, C); });
    ladder.rung("simd", "a vector of sums", [&] { backward_simd(rows, dweight, weight, N); });
    ladder.rung("threads", "sums over rows in parts, by N alone",
                [&] { backward_threads(cpu, rows, dweight, weight, N, false); });
    ladder.rung("streaming", "dinp is written without loading it first",
                [&] { backward_threads(cpu, rows, dweight, weight, N, streaming); });
    ladder.rung("next row", "reads the next row while this one is finished",
                [&] { backward_next_row<false>(cpu, rows, dweight, weight, N); });
    ladder.rung("prefetch", "hints bring the next row in time",
                [&] { backward_next_row<true>(cpu, rows, dweight, weight, N); });
    ladder.production("layers/norm_backward_cpu.h: four chains, two FMAs a value");
    ladder.run();
}
