// The ladder of AdamW: per parameter, 16 bytes are read (parameter, gradient, m, v) and 12 written, for a dozen
// operations. All that counts is to go through memory once; and a division or square root takes as long as many
// multiplications.
#include "dev/adamw/factors.h"
#include "dev/ladder.h"
#include "layers/adamw_cpu.h"

const Kernel kernel{"adamw", "AdamW's update of all parameters", {{"N", 16777216, "parameters"}}};

namespace {

using adamw_rungs::Factors;

// 1. One loop for each line of the paper: m, v, the step without bias, the parameter. 13 floats go to or from memory
// where 7 would do.
void naive(float* param, const float* grad, float* m, float* v, float* update, int64_t n) {
    const Factors f;
    for (int64_t i = 0; i < n; ++i) m[i] = f.beta1 * m[i] + (1 - f.beta1) * grad[i];
    for (int64_t i = 0; i < n; ++i) v[i] = f.beta2 * v[i] + (1 - f.beta2) * grad[i] * grad[i];
    for (int64_t i = 0; i < n; ++i) update[i] = (m[i] / f.correction1) / (std::sqrt(v[i] / f.correction2) + f.eps);
    for (int64_t i = 0; i < n; ++i) param[i] = f.decay * param[i] - f.lr * update[i];
}

// 2. One loop: what one line makes, the next finds in a register. Nothing depends on a neighbour and nothing is called,
// so the compiler uses vectors by itself, here and above.
void fused(float* param, const float* grad, float* m, float* v, int64_t n) {
    const Factors f;
    for (int64_t i = 0; i < n; ++i) {
        m[i] = f.beta1 * m[i] + (1 - f.beta1) * grad[i];
        v[i] = f.beta2 * v[i] + (1 - f.beta2) * grad[i] * grad[i];
        param[i] = f.decay * param[i] - f.lr * (m[i] / f.correction1) / (std::sqrt(v[i] / f.correction2) + f.eps);
    }
}

// 3. Vectors spelled out. The two corrections are the same for all: dividing by them is multiplying by their inverses,
// and one division of three is left.
inline void update(float* param, const float* grad, float* m, float* v, int64_t left, const Factors& f) {
    using namespace simd;
    const vfloat g = load_n(grad, left);
    const vfloat mean = fma(set1(1 - f.beta1), g, f.beta1 * load_n(m, left));
    const vfloat square = fma((1 - f.beta2) * g, g, f.beta2 * load_n(v, left));
    store_n(m, mean, left);
    store_n(v, square, left);
    const vfloat by = (f.lr / f.correction1) * mean / (simd::sqrt(square * (1 / f.correction2)) + f.eps);
    store_n(param, fma(load_n(param, left), set1(f.decay), -by), left);
}
void simd_update(float* param, const float* grad, float* m, float* v, int64_t n) {
    const Factors f;
    for (int64_t i = 0; i < n; i += simd::W) update(param + i, grad + i, m + i, v + i, n - i, f);
}

// 4. Parameters are shared out.
void threads(float* param, const float* grad, float* m, float* v, int64_t n) {
    const Factors f;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += simd::W) update(param + i, grad + i, m + i, v + i, n - i, f);
}

}  // namespace

void climb(Ladder& ladder) {
    const auto shape = ladder.shape<1>();
    const int64_t N = shape[0];
    const auto &param = ladder.updated("param", {N}), &grad = ladder.input({N}), &m = ladder.updated("m", {N}),
               &v = ladder.updated("v", {N}, 1, 0, 1);
    float* const between = ladder.scratch({N});
    ladder.pass("update", bytes(28 * prod(N)), {&param, &m, &v}, [&](auto& dev) {
        adamw_update(dev, param.on(dev), grad.on(dev), m.on(dev), v.on(dev), N, &adamw_rungs::params, true,
                     &adamw_rungs::unclipped);
    });
    ladder.rung("naive", "a loop for each formula", [&] { naive(param, grad, m, v, between, N); });
    ladder.rung("fused", "one loop: memory is gone through once", [&] { fused(param, grad, m, v, N); });
    ladder.rung("simd", "one division instead of three", [&] { simd_update(param, grad, m, v, N); });
    ladder.rung("threads", "parameters are shared out to the cores", [&] { threads(param, grad, m, v, N); });
    ladder.production("layers/adamw_cpu.h");
    ladder.run();
}
