// The ladder of the matmul, out (N,OC) = inp (N,C) · weight (OC,C)ᵀ, and its backward.
//
// It takes N·OC·C FMAs on N·C + OC·C + N·OC floats: each float is used hundreds of times. A core has two FMA units,
// each of which takes a whole vector per cycle; the ladder is about providing their operands in time.
#include "dev/ladder.h"
#include "layers/matmul_cpu.h"

const Kernel kernel{"matmul",
                    "a linear layer, forward and backward",
                    {{"N", 512, "rows"}, {"C", 768, "channels in"}, {"OC", 768, "channels out"}}};

namespace {

// 1. The definition. Each addition waits 3 or 4 cycles for the sum of the one before: one term in that time, although
// two vectors of 8 or 16 per cycle would be possible.
void forward_naive(float* out, const float* inp, const float* weight, const float* bias, int64_t N, int64_t C,
                   int64_t OC) {
    for (int64_t n = 0; n < N; ++n)
        for (int64_t o = 0; o < OC; ++o) {
            float sum = bias[o];
            for (int64_t c = 0; c < C; ++c) sum += inp[n * C + c] * weight[o * C + c];
            out[n * OC + o] = sum;
        }
}

// transposed (columns,rows) = matrix (rows,columns)ᵀ; the rows of `transposed` are ld floats apart.
void transpose(float* transposed, int64_t ld, const float* matrix, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) transposed[c * ld + r] = matrix[r * columns + c];
}

void set_to_bias(float* out, const float* bias, int64_t N, int64_t OC) {
    for (int64_t n = 0; n < N; ++n) std::copy(bias, bias + OC, out + n * OC);
}

// 2. Another loop order: the innermost loop goes over the OC sums of a row, which are independent. With weight
// transposed once (C values are copied for each N · C that are used) they are contiguous, and the compiler uses
// vectors. Now each multiplication and addition loads two vectors and stores one.
void forward_loop_order(float* out, const float* inp, const float* weight, const float* bias, float* transposed,
                        int64_t N, int64_t C, int64_t OC) {
    transpose(transposed, OC, weight, OC, C);
    for (int64_t n = 0; n < N; ++n) {
        float* const sums = out + n * OC;
        std::copy(bias, bias + OC, sums);
        for (int64_t c = 0; c < C; ++c)
            for (int64_t o = 0; o < OC; ++o) sums[o] += inp[n * C + c] * transposed[c * OC + o];
    }
}

// A tile: rows x 2 W sums that stay in registers for the whole loop over k. A loaded vector of b is used for all rows,
// and a value of a for both vectors. With 6 rows, 12 sums and 3 operands fit in 16 registers, and 8 loads feed 12 FMAs.
// Rows of b have NR floats at least, of which `lanes` count, and are ldb apart; rows of a are lda apart.
constexpr int MR = 6, NR = 2 * simd::W;
template <int rows>
void tile(int64_t K, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t lanes) {
    using namespace simd;
    vfloat sums[rows][2] = {};
    for (int64_t k = 0; k < K; ++k) {
        const vfloat left = load(b + k * ldb), right = load(b + k * ldb + W);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            const vfloat x = set1(a[r * lda + k]);
            sums[r][0] = fma(x, left, sums[r][0]);
            sums[r][1] = fma(x, right, sums[r][1]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < 2; ++v) {
            const int64_t n = std::max<int64_t>(0, lanes - v * W);
            float* const p = c + r * ldc + v * W;
            store_n(p, load_n(p, n) + sums[r][v], n);
        }
}
// c (M,lanes) += all rows of a (M,K) times one strip of b (K,NR): tiles of MR rows, then single rows.
void strip(int64_t M, int64_t K, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
           int64_t lanes) {
    int64_t m = 0;
    for (; m + MR <= M; m += MR) tile<MR>(K, a + m * lda, lda, b, ldb, c + m * ldc, ldc, lanes);
    for (; m < M; ++m) tile<1>(K, a + m * lda, lda, b, ldb, c + m * ldc, ldc, lanes);
}

// 3. The matmul, tile by tile. The rows of `transposed` are filled up to whole strips.
int64_t whole_strips(int64_t n) { return (n + NR - 1) / NR * NR; }
void forward_register_tile(float* out, const float* inp, const float* weight, const float* bias, float* transposed,
                           int64_t N, int64_t C, int64_t OC) {
    const int64_t ld = whole_strips(OC);
    transpose(transposed, ld, weight, OC, C);
    set_to_bias(out, bias, N, OC);
    for (int64_t o = 0; o < OC; o += NR)
        strip(N, C, inp, C, transposed + o, ld, out + o, OC, std::min<int64_t>(NR, OC - o));
}

// 4. Packing: the rows of `transposed` are OC floats apart, so a tile's loads touch C cache lines and pages. Copied
// into panels of NR columns and KC rows, they are contiguous. With AVX2 a panel is 256 x 16 floats, 16 KiB, so all
// tiles but the first read it from L1. The copy also transposes, W x W values in registers.
constexpr int64_t KC = 256;
void pack_transposed(float* panel, const float* weight, int64_t C, int64_t depth, int64_t lanes) {
    using simd::W;
    for (int64_t j = 0; j < NR; j += W)
        for (int64_t k = 0; k < depth; k += W)
            simd::transpose(panel + k * NR + j, NR, depth - k, [=](int64_t i) {
                return j + i < lanes ? simd::load_n(weight + (j + i) * C + k, depth - k) : simd::vfloat{};
            });
}
// Columns o, …, o + NR - 1 of out.
void forward_columns(float* out, const float* inp, const float* weight, float* panel, int64_t o, int64_t N, int64_t C,
                     int64_t OC) {
    const int64_t lanes = std::min<int64_t>(NR, OC - o);
    for (int64_t k = 0; k < C; k += KC) {
        const int64_t depth = std::min(KC, C - k);
        pack_transposed(panel, weight + o * C + k, C, depth, lanes);
        strip(N, depth, inp + k, C, panel, NR, out + o, OC, lanes);
    }
}
void forward_packed(float* out, const float* inp, const float* weight, const float* bias, float* panel, int64_t N,
                    int64_t C, int64_t OC) {
    set_to_bias(out, bias, N, OC);
    for (int64_t o = 0; o < OC; o += NR) forward_columns(out, inp, weight, panel, o, N, C, OC);
}

// 5. Threads: strips of columns are independent of each other, and each is computed by one thread, so the bits are the
// same on any number of threads. Each thread has its own panel.
void forward_threads(float* out, const float* inp, const float* weight, const float* bias, float* panels, int64_t N,
                     int64_t C, int64_t OC) {
    set_to_bias(out, bias, N, OC);
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < OC; o += NR)
        forward_columns(out, inp, weight, panels + omp_get_thread_num() * KC * NR, o, N, C, OC);
}

// backward: dinp = dout · weight        dweight += doutᵀ · inp        dbias += sum over rows of dout

// 1. The formulas: dinp's sums run over o, dweight's over n, both with strides.
void backward_naive(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp, const float* weight,
                    int64_t N, int64_t C, int64_t OC) {
    for (int64_t n = 0; n < N; ++n)
        for (int64_t c = 0; c < C; ++c) {
            float sum = 0;
            for (int64_t o = 0; o < OC; ++o) sum += dout[n * OC + o] * weight[o * C + c];
            dinp[n * C + c] = sum;
        }
    for (int64_t o = 0; o < OC; ++o) {
        for (int64_t c = 0; c < C; ++c) {
            float sum = 0;
            for (int64_t n = 0; n < N; ++n) sum += dout[n * OC + o] * inp[n * C + c];
            dweight[o * C + c] += sum;
        }
        for (int64_t n = 0; n < N; ++n) dbias[o] += dout[n * OC + o];
    }
}

// 2. c is the innermost loop of both: rows of weight, inp, dinp and dweight are contiguous, and no transpose is needed.
void backward_loop_order(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                         const float* weight, int64_t N, int64_t C, int64_t OC) {
    std::fill(dinp, dinp + N * C, 0.0f);
    for (int64_t n = 0; n < N; ++n)
        for (int64_t o = 0; o < OC; ++o) {
            const float d = dout[n * OC + o];
            for (int64_t c = 0; c < C; ++c) dinp[n * C + c] += d * weight[o * C + c];
            for (int64_t c = 0; c < C; ++c) dweight[o * C + c] += d * inp[n * C + c];
            dbias[o] += d;
        }
}

// 3. The forward's tiles and panels. Rows of weight and inp are rows of the right operand as they are, so packing only
// copies them; of dweight's left operand, doutᵀ, the tile reads rows, so dout is transposed first.
void pack(float* panel, const float* b, int64_t ldb, int64_t depth, int64_t lanes) {
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t j = 0; j < NR; ++j) panel[k * NR + j] = j < lanes ? b[k * ldb + j] : 0;
}
// Columns c, …, c + NR - 1 of dinp and dweight.
void backward_columns(float* dinp, float* dweight, const float* dout, const float* dout_transposed, const float* inp,
                      const float* weight, float* panel, int64_t c, int64_t N, int64_t C, int64_t OC) {
    const int64_t lanes = std::min<int64_t>(NR, C - c);
    for (int64_t o = 0; o < OC; o += KC) {
        const int64_t depth = std::min(KC, OC - o);
        pack(panel, weight + o * C + c, C, depth, lanes);
        strip(N, depth, dout + o, OC, panel, NR, dinp + c, C, lanes);
    }
    for (int64_t n = 0; n < N; n += KC) {
        const int64_t depth = std::min(KC, N - n);
        pack(panel, inp + n * C + c, C, depth, lanes);
        strip(OC, depth, dout_transposed + n, N, panel, NR, dweight + c, C, lanes);
    }
}
void backward_packed(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                     const float* weight, float* dout_transposed, float* panel, int64_t N, int64_t C, int64_t OC) {
    transpose(dout_transposed, N, dout, N, OC);
    std::fill(dinp, dinp + N * C, 0.0f);
    for (int64_t c = 0; c < C; c += NR)
        backward_columns(dinp, dweight, dout, dout_transposed, inp, weight, panel, c, N, C, OC);
    for (int64_t o = 0; o < OC; ++o)
        for (int64_t n = 0; n < N; ++n) dbias[o] += dout_transposed[o * N + n];
}

// 4. Threads, as in the forward. dout is still transposed, and dbias summed, by one thread.
void backward_threads(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                      const float* weight, float* dout_transposed, float* panels, int64_t N, int64_t C, int64_t OC) {
    transpose(dout_transposed, N, dout, N, OC);
    std::fill(dinp, dinp + N * C, 0.0f);
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < C; c += NR)
        backward_columns(dinp, dweight, dout, dout_transposed, inp, weight, panels + omp_get_thread_num() * KC * NR, c,
                         N, C, OC);
    for (int64_t o = 0; o < OC; ++o)
        for (int64_t n = 0; n < N; ++n) dbias[o] += dout_transposed[o * N + n];
}

}  // namespace

void climb(Ladder& ladder) {
    const auto shape = ladder.shape<3>();
    const int64_t N = shape[0], C = shape[1], OC = shape[2];
    const auto &inp = ladder.input({N, C}), &weight = ladder.input({OC, C}), &bias = ladder.input({OC});
    const auto& out = ladder.output("out", {N, OC}, C);
    float* const transposed = ladder.scratch({C, whole_strips(OC)});
    float* const panels = ladder.scratch({omp_get_max_threads(), KC, NR});
    ladder.pass("forward", flops(2 * prod(N, C, OC)), {&out}, [&](auto& dev) {
        matmul_forward(dev, out.on(dev), inp.on(dev), weight.on(dev), bias.on(dev), N, C, OC);
    });
    ladder.rung("naive", "three loops", [&] { forward_naive(out, inp, weight, bias, N, C, OC); });
    ladder.rung("loop order", "the innermost loop is over sums, not terms",
                [&] { forward_loop_order(out, inp, weight, bias, transposed, N, C, OC); });
    ladder.rung("register tile", "6 x 2 vectors of sums stay in registers",
                [&] { forward_register_tile(out, inp, weight, bias, transposed, N, C, OC); });
    ladder.rung("packing", "weight in panels that stay in L1",
                [&] { forward_packed(out, inp, weight, bias, panels, N, C, OC); });
    ladder.rung("threads", "strips of columns are distributed over the cores",
                [&] { forward_threads(out, inp, weight, bias, panels, N, C, OC); });
    ladder.production("device/cpu/gemm: prefetch, blocks for L2, wider tiles");

    const auto &dout = ladder.input({N, OC}), &dinp = ladder.output("dinp", {N, C}, OC);
    const auto &dweight = ladder.updated("dweight", {OC, C}, N), &dbias = ladder.updated("dbias", {OC}, N);
    ladder.pass("backward", flops(4 * prod(N, C, OC)), {&dinp, &dweight, &dbias}, [&](auto& dev) {
        matmul_backward(dev, dinp.on(dev), dweight.on(dev), dbias.on(dev), dout.on(dev), inp.on(dev), weight.on(dev), N,
                        C, OC);
    });
    ladder.rung("naive", "three loops for each gradient",
                [&] { backward_naive(dinp, dweight, dbias, dout, inp, weight, N, C, OC); });
    ladder.rung("loop order", "the innermost loop is over contiguous channels",
                [&] { backward_loop_order(dinp, dweight, dbias, dout, inp, weight, N, C, OC); });
    float* const dout_transposed = ladder.scratch({OC, N});
    ladder.rung("packing", "the forward's tiles and panels",
                [&] { backward_packed(dinp, dweight, dbias, dout, inp, weight, dout_transposed, panels, N, C, OC); });
    ladder.rung("threads", "strips of columns are distributed over the cores",
                [&] { backward_threads(dinp, dweight, dbias, dout, inp, weight, dout_transposed, panels, N, C, OC); });
    ladder.production("device/cpu/gemm: prefetch, blocks for L2, no whole transpose");
    ladder.run();
}
