// The ladder of GELU: x / 2 * (1 + tanh(u)), u = sqrt(2/pi) * (x + 0.044715 x³), for each value separately.
//
// In the time in which a value is read and written, 8 bytes, a core could do some 40 FMAs: enough for a good
// polynomial, but not for a call into the C library. So the ladder is about computing tanh cheaply.
#include <bit>

#include "dev/ladder.h"
#include "layers/gelu_cpu.h"

const Kernel kernel{
    "gelu", "GELU in its tanh form, forward and backward", {{"N", 4096, "rows"}, {"C", 3072, "channels"}}};

namespace {

// 1. The formula. The compiler has no vector tanh, so it computes one value at a time.
void forward_naive(float* out, const float* inp, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float x = inp[i], u = 0.7978845608f * (x + 0.044715f * x * x * x);
        out[i] = x / 2 * (1 + std::tanh(u));
    }
}

// 2. 1 + tanh(u) = 2 / (1 + e^-2u): an exponential is cheaper than a tanh, and for x far below 0, where tanh is near
// -1, nothing cancels.
void forward_exp(float* out, const float* inp, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float x = inp[i], two_u = x * (1.595769122f + 0.0713548163f * x * x);
        out[i] = x / (1 + std::exp(-two_u));
    }
}

// 3. e^x = 2^k e^r with |r| <= ln2 / 2: 2^k is written into the exponent's bits, and e^r is a polynomial (Taylor's,
// which needs no explanation; simd::exp2's is fitted and one term shorter). Without calls and branches the compiler
// vectorizes it.
inline float exp_polynomial(float x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is in the lowest bits
    const float bounded = std::max(-87.0f, std::min(88.0f, x));
    const float shifted = bounded * 1.44269504f + magic, k = shifted - magic;
    const float r = (bounded - k * 0.693359375f) + k * 2.12194440e-4f;  // ln2 in two parts: k * the first is exact
    const float tail = 1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f + r * (1 / 5040.0f)));
    const float e_r = 1 + r * (1 + r * (1 / 2.0f + r * (1 / 6.0f + r * tail)));
    const int32_t two_k = (std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(magic) + 127) << 23;
    return e_r * std::bit_cast<float>(two_k);
}
void forward_polynomial(float* out, const float* inp, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float x = inp[i], two_u = x * (1.595769122f + 0.0713548163f * x * x);
        out[i] = x / (1 + exp_polynomial(-two_u));
    }
}

// 4. The same with explicit vectors, which do not depend on the compiler: with the arguments of max and min above
// swapped, which lets a NaN pass, g++ 12's vectors took 15 times as long.
void forward_simd(float* out, const float* inp, int64_t n) {
    simd::map(out, n, [=](simd::vfloat, int64_t i, int64_t left) { return gelu(simd::load_n(inp + i, left)); });
}

// 5. Threads, because a single core does not use the full memory bandwidth.
void forward_threads(float* out, const float* inp, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += simd::W) simd::store_n(out + i, gelu(simd::load_n(inp + i, n - i)), n - i);
}

// backward: dinp = dout * ((1 + t) / 2 + x / 2 * (1 - t²) * du/dx),  t = tanh(u)

void backward_naive(float* dinp, const float* inp, const float* dout, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float x = inp[i], t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
        const float du = 0.7978845608f * (1 + 3 * 0.044715f * x * x);
        dinp[i] = dout[i] * ((1 + t) / 2 + x / 2 * (1 - t * t) * du);
    }
}

// With s = 1 / (1 + e), e = e^-2u: s + x * s * (1 - s) * d(2u)/dx, and 1 - s = e * s.
void backward_polynomial(float* dinp, const float* inp, const float* dout, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float x = inp[i], e = exp_polynomial(-x * (1.595769122f + 0.0713548163f * x * x)), s = 1 / (1 + e);
        dinp[i] = dout[i] * (s + x * s * (e * s) * (1.595769122f + 3 * 0.0713548163f * x * x));
    }
}

void backward_threads(float* dinp, const float* inp, const float* dout, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += simd::W) {
        const simd::vfloat derivative = gelu_derivative(simd::load_n(inp + i, n - i));
        simd::store_n(dinp + i, simd::load_n(dout + i, n - i) * derivative, n - i);
    }
}

}  // namespace

void climb(Ladder& ladder) {
    const auto shape = ladder.shape<2>();
    const int64_t N = shape[0], C = shape[1];
    const int64_t n = N * C;
    const auto &inp = ladder.input({N, C}, -5, 5), &out = ladder.output("out", {N, C});
    ladder.pass("forward", bytes(8 * prod(n)), {&out},
                [&](auto& dev) { gelu_forward(dev, out.on(dev), inp.on(dev), n); });
    ladder.rung("naive", "tanh of the C library", [&] { forward_naive(out, inp, n); });
    ladder.rung("exp", "exp of the C library: 1 + tanh(u) = 2 / (1 + e^-2u)", [&] { forward_exp(out, inp, n); });
    ladder.rung("polynomial", "exp without a call: the compiler uses vectors",
                [&] { forward_polynomial(out, inp, n); });
    ladder.rung("simd", "explicit vectors", [&] { forward_simd(out, inp, n); });
    ladder.rung("threads", "values are distributed over the cores", [&] { forward_threads(out, inp, n); });
    ladder.production("layers/gelu_cpu.h");

    const auto &dout = ladder.input({N, C}), &dinp = ladder.output("dinp", {N, C}, 8);  // 1 - t² cancels
    ladder.pass("backward", bytes(12 * prod(n)), {&dinp},
                [&](auto& dev) { gelu_backward(dev, dinp.on(dev), inp.on(dev), dout.on(dev), n); });
    ladder.rung("naive", "tanh of the C library", [&] { backward_naive(dinp, inp, dout, n); });
    ladder.rung("polynomial", "exp without a call, 1 - s without cancellation",
                [&] { backward_polynomial(dinp, inp, dout, n); });
    ladder.rung("threads", "vectors, threads", [&] { backward_threads(dinp, inp, dout, n); });
    ladder.production("layers/gelu_cpu.h");
    ladder.run();
}
