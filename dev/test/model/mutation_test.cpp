// Breaks one layer at a time, and checks that test_gpt2's comparison with PyTorch then fails, with its own tolerances.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "dev/reference_check.h"

namespace {

struct Fault {
    std::string name;
    int calls = 0;  // of the layer that has it
};

// A device whose layers are Device's, except for one fault.
template <class Device>
struct Mutant : Device {
    explicit Mutant(Fault& f) : fault(&f) {}
    bool has(const char* name) {
        if (fault->name != name) return false;
        ++fault->calls;
        return true;
    }
    Device& right() { return *this; }
    Fault* fault;
};
template <class D>
using Scalar = typename D::scalar;

template <class T>
void scale(T* x, int64_t n, double by) {
    for (int64_t i = 0; i < n; ++i) x[i] *= static_cast<T>(by);
}
constexpr double slightly = 1 + 1e-6;

// A layer's overload for a Mutant is as good a match as Device's own in all arguments and a better one in the first.
template <class D>
void embedding_forward(Mutant<D>& dev, Scalar<D>* out, const int32_t* tokens, const Scalar<D>* wte,
                       const Scalar<D>* wpe, int64_t B, int64_t T, int64_t C) {
    embedding_forward(dev.right(), out, tokens, wte, wpe, B, T, C);
    if (dev.has("embedding_forward_position_off_by_one"))
        for (int64_t row = 0; row < B * T; ++row)
            for (int64_t c = 0; c < C; ++c) out[row * C + c] += wpe[(row + 1) % T * C + c] - wpe[row % T * C + c];
}

template <class D>
void embedding_backward(Mutant<D>& dev, Scalar<D>* dwte, Scalar<D>* dwpe, const Scalar<D>* dout, const int32_t* tokens,
                        int64_t B, int64_t T, int64_t C) {
    embedding_backward(dev.right(), dwte, dwpe, dout, tokens, B, T, C);
    if (dev.has("embedding_backward_without_the_first_sequences_positions"))
        for (int64_t i = 0; i < T * C; ++i) dwpe[i] -= dout[i];
    if (dev.has("embedding_backward_without_the_last_token"))
        for (int64_t c = 0; c < C; ++c) dwte[tokens[B * T - 1] * C + c] -= dout[(B * T - 1) * C + c];
    if (dev.has("embedding_backward_slightly_off")) scale(dwpe, T * C, slightly);
}

template <class D>
void layernorm_forward(Mutant<D>& dev, Scalar<D>* out, Scalar<D>* mean, Scalar<D>* rstd, const Scalar<D>* inp,
                       const Scalar<D>* weight, const Scalar<D>* bias, int64_t N, int64_t C) {
    using T = Scalar<D>;
    const bool other_eps = dev.has("layernorm_forward_with_eps_1e_6");
    layernorm_forward(dev.right(), out, mean, rstd, inp, weight, bias, N, C, other_eps ? T(1e-6) : T(1e-5));
    if (dev.has("layernorm_forward_without_bias"))
        for (int64_t i = 0; i < N * C; ++i) out[i] -= bias[i % C];
    if (dev.has("layernorm_forward_with_unbiased_variance")) {
        const T shrink = static_cast<T>(std::sqrt(static_cast<double>(C - 1) / static_cast<double>(C)));
        for (int64_t row = 0; row < N; ++row) {
            rstd[row] *= shrink;
            for (int64_t c = 0; c < C; ++c) out[row * C + c] = (out[row * C + c] - bias[c]) * shrink + bias[c];
        }
    }
}

template <class D>
void layernorm_backward(Mutant<D>& dev, Scalar<D>* dinp, Scalar<D>* dweight, Scalar<D>* dbias, const Scalar<D>* dout,
                        const Scalar<D>* inp, const Scalar<D>* weight, const Scalar<D>* mean, const Scalar<D>* rstd,
                        const Scalar<D>* dresidual, int64_t N, int64_t C) {
    using T = Scalar<D>;
    if (dev.has("layernorm_backward_without_weight")) weight = nullptr;
    if (dev.has("layernorm_backward_without_residual")) dresidual = nullptr;
    if (dev.has("layernorm_backward_without_dweight")) dweight = nullptr;
    if (dev.has("layernorm_backward_without_dbias")) dbias = nullptr;
    layernorm_backward(dev.right(), dinp, dweight, dbias, dout, inp, weight, mean, rstd, dresidual, N, C);
    const bool first = dev.has("layernorm_backward_without_mean_of_dnorm");
    const bool second = dev.has("layernorm_backward_without_mean_of_dnorm_norm");
    if (first || second)
        for (int64_t row = 0; row < N; ++row) {
            T means = 0;
            const auto norm = [&](int64_t c) { return (inp[row * C + c] - mean[row]) * rstd[row]; };
            for (int64_t c = 0; c < C; ++c)
                means += dout[row * C + c] * weight[c] * (first ? 1 : norm(c)) / static_cast<T>(C);
            for (int64_t c = 0; c < C; ++c) dinp[row * C + c] += rstd[row] * means * (first ? 1 : norm(c));
        }
    if (dev.has("layernorm_backward_slightly_off")) scale(dinp, N * C, slightly);
}

template <class D>
void matmul_forward(Mutant<D>& dev, Scalar<D>* out, const Scalar<D>* inp, const Scalar<D>* weight,
                    const Scalar<D>* bias, int64_t N, int64_t C, int64_t OC) {
    if (dev.has("matmul_forward_without_bias")) bias = nullptr;
    matmul_forward(dev.right(), out, inp, weight, bias, N, C, OC);
    if (dev.has("matmul_forward_slightly_off")) scale(out, N * OC, slightly);
}

template <class D>
void matmul_backward(Mutant<D>& dev, Scalar<D>* dinp, Scalar<D>* dweight, Scalar<D>* dbias, const Scalar<D>* dout,
                     const Scalar<D>* inp, const Scalar<D>* weight, int64_t N, int64_t C, int64_t OC,
                     bool accumulate = true) {
    if (dev.has("matmul_backward_without_dbias")) dbias = nullptr;
    matmul_backward(dev.right(), dinp, dweight, dbias, dout, inp, weight, N, C, OC, accumulate);
    if (dev.has("matmul_backward_without_the_last_row"))
        for (int64_t o = 0; o < OC; ++o)
            for (int64_t c = 0; c < C; ++c) dweight[o * C + c] -= dout[(N - 1) * OC + o] * inp[(N - 1) * C + c];
    if (dev.has("matmul_backward_slightly_off")) scale(dinp, N * C, slightly);
}

template <class D>
void matmul_gelu_forward(Mutant<D>& dev, Scalar<D>* out, Scalar<D>* pre, const Scalar<D>* inp, const Scalar<D>* weight,
                         const Scalar<D>* bias, int64_t N, int64_t C, int64_t OC) {
    using T = Scalar<D>;
    matmul_gelu_forward(dev.right(), out, pre, inp, weight, bias, N, C, OC);
    if (dev.has("gelu_forward_exact_instead_of_tanh"))
        for (int64_t i = 0; i < N * OC; ++i) out[i] = pre[i] / 2 * (1 + std::erf(pre[i] * T(0.7071067811865476)));
    if (dev.has("matmul_gelu_forward_slightly_off")) scale(out, N * OC, slightly);
}

template <class D>
void matmul_gelu_backward(Mutant<D>& dev, Scalar<D>* dpre, Scalar<D>* dweight, Scalar<D>* dbias, const Scalar<D>* dout,
                          const Scalar<D>* inp, Scalar<D>* pre, const Scalar<D>* weight, int64_t N, int64_t C,
                          int64_t OC, bool accumulate = true) {
    if (dev.has("gelu_backward_without_its_derivative"))
        return matmul_backward(dev.right(), dpre, dweight, dbias, dout, inp, weight, N, C, OC, accumulate);
    std::vector<Scalar<D>> output(inp, inp + N * C);
    if (dev.has("gelu_backward_of_the_output")) pre = output.data();
    matmul_gelu_backward(dev.right(), dpre, dweight, dbias, dout, inp, pre, weight, N, C, OC, accumulate);
    if (dev.has("matmul_gelu_backward_slightly_off")) scale(dpre, N * C, slightly);
}

template <class D>
void matmul_residual_forward(Mutant<D>& dev, Scalar<D>* out, const Scalar<D>* inp, const Scalar<D>* weight,
                             const Scalar<D>* bias, const Scalar<D>* residual, int64_t N, int64_t C, int64_t OC) {
    if (dev.has("matmul_residual_forward_without_residual"))
        return matmul_forward(dev.right(), out, inp, weight, bias, N, C, OC);
    matmul_residual_forward(dev.right(), out, inp, weight, bias, residual, N, C, OC);
    if (dev.has("matmul_residual_forward_without_bias"))
        for (int64_t i = 0; i < N * OC; ++i) out[i] -= bias[i % OC];
}

// Multiplies q (part 0), k (1) or v (2) of qkv (N,3C).
template <class T>
void scale_part(T* qkv, int64_t part, int64_t N, int64_t C, double by) {
    for (int64_t row = 0; row < N; ++row) scale(qkv + row * 3 * C + part * C, C, by);
}

template <class D>
void attention_forward(Mutant<D>& dev, Scalar<D>* out, Scalar<D>* logsumexp, const Scalar<D>* qkv, int64_t B, int64_t T,
                       int64_t C, int64_t NH, const Dropout& dropout) {
    std::vector<Scalar<D>> changed(qkv, qkv + B * T * 3 * C);
    if (dev.has("attention_forward_without_1_over_sqrt_hs"))
        scale_part(changed.data(), 0, B * T, C, std::sqrt(static_cast<double>(C / NH)));
    if (dev.has("attention_forward_slightly_off")) scale_part(changed.data(), 0, B * T, C, slightly);
    attention_forward(dev.right(), out, logsumexp, changed.data(), B, T, C, NH, dropout);
    if (dev.has("attention_forward_sees_the_next_token"))  // as if the row after had been asked
        for (int64_t b = 0; b < B; ++b) std::copy(out + (b * T + 1) * C, out + (b + 1) * T * C, out + b * T * C);
}

template <class D>
void attention_backward(Mutant<D>& dev, Scalar<D>* dqkv, const Scalar<D>* dout, const Scalar<D>* out,
                        const Scalar<D>* qkv, const Scalar<D>* logsumexp, int64_t B, int64_t T, int64_t C, int64_t NH,
                        const Dropout& dropout) {
    const std::vector<Scalar<D>> zeros(static_cast<size_t>(B * T * C));
    if (dev.has("attention_backward_without_dout_out")) out = zeros.data();
    attention_backward(dev.right(), dqkv, dout, out, qkv, logsumexp, B, T, C, NH, dropout);
    const double root = std::sqrt(static_cast<double>(C / NH));
    if (dev.has("attention_backward_q_without_1_over_sqrt_hs")) scale_part(dqkv, 0, B * T, C, root);
    if (dev.has("attention_backward_k_without_1_over_sqrt_hs")) scale_part(dqkv, 1, B * T, C, root);
    if (dev.has("attention_backward_without_dv")) scale_part(dqkv, 2, B * T, C, 0);
    if (dev.has("attention_backward_slightly_off")) scale_part(dqkv, 1, B * T, C, slightly);
}

template <class D>
void classifier_forward_backward(Mutant<D>& dev, Scalar<D>* losses, Scalar<D>* dinp, Scalar<D>* dweight,
                                 const Scalar<D>* inp, const Scalar<D>* weight, const int32_t* targets, int64_t N,
                                 int64_t C, int64_t V, Scalar<D> loss_scale, bool accumulate = true) {
    std::vector<Scalar<D>> unused(static_cast<size_t>(V * C));
    if (dev.has("classifier_padding_takes_part")) V = (V + 127) / 128 * 128;
    if (dev.has("classifier_without_scale")) loss_scale = 1;
    if (dev.has("classifier_without_dweight")) dweight = unused.data();
    classifier_forward_backward(dev.right(), losses, dinp, dweight, inp, weight, targets, N, C, V, loss_scale,
                                accumulate);
    if (dev.has("classifier_without_target"))
        for (int64_t n = 0; n < N; ++n)
            for (int64_t c = 0; c < C; ++c) dinp[n * C + c] += loss_scale * weight[targets[n] * C + c];
    if (dev.has("classifier_slightly_off")) scale(dinp, N * C, slightly);
}

template <class D>
void adamw_update(Mutant<D>& dev, Scalar<D>* param, const Scalar<D>* grad, Scalar<D>* m, Scalar<D>* v, int64_t n,
                  const UpdateParams* p, bool decay, const StepStatus* status) {
    UpdateParams params = *p;
    StepStatus clipped = *status;
    std::vector<Scalar<D>> g(grad, grad + n);
    if (dev.has("adamw_without_bias_correction")) params = at_step(params, 1 << 20);
    if (dev.has("adamw_decays_biases_too")) decay = true;
    if (dev.has("adamw_decay_in_the_gradient") && decay) {
        for (int64_t i = 0; i < n; ++i)
            g[static_cast<size_t>(i)] += static_cast<Scalar<D>>(params.weight_decay) * param[i];
        decay = false;
    }
    if (dev.has("adamw_without_grad_scale")) clipped.grad_scale = 1;
    if (dev.has("adamw_with_eps_1e_7")) params.eps = 1e-7;
    adamw_update(dev.right(), param, g.data(), m, v, n, &params, decay, &clipped);
}

template <class D>
double global_norm_squared(Mutant<D>& dev, const Scalar<D>* x, int64_t n, const UsedRows& = {}) {
    if (dev.has("global_norm_without_the_last_quarter")) n = n / 4 * 3;
    const double sum = global_norm_squared(dev.right(), x, n);
    return dev.has("global_norm_slightly_off") ? sum * slightly : sum;
}

constexpr const char* gross[] = {"embedding_forward_position_off_by_one",
                                 "embedding_backward_without_the_first_sequences_positions",
                                 "embedding_backward_without_the_last_token",
                                 "layernorm_forward_without_bias",
                                 "layernorm_forward_with_unbiased_variance",
                                 "layernorm_backward_without_weight",
                                 "layernorm_backward_without_residual",
                                 "layernorm_backward_without_dweight",
                                 "layernorm_backward_without_dbias",
                                 "layernorm_backward_without_mean_of_dnorm",
                                 "layernorm_backward_without_mean_of_dnorm_norm",
                                 "matmul_forward_without_bias",
                                 "matmul_backward_without_dbias",
                                 "matmul_backward_without_the_last_row",
                                 "gelu_forward_exact_instead_of_tanh",
                                 "gelu_backward_without_its_derivative",
                                 "gelu_backward_of_the_output",
                                 "matmul_residual_forward_without_residual",
                                 "matmul_residual_forward_without_bias",
                                 "attention_forward_without_1_over_sqrt_hs",
                                 "attention_forward_sees_the_next_token",
                                 "attention_backward_without_dout_out",
                                 "attention_backward_q_without_1_over_sqrt_hs",
                                 "attention_backward_k_without_1_over_sqrt_hs",
                                 "attention_backward_without_dv",
                                 "classifier_padding_takes_part",
                                 "classifier_without_scale",
                                 "classifier_without_dweight",
                                 "classifier_without_target",
                                 "adamw_without_bias_correction",
                                 "adamw_decays_biases_too",
                                 "adamw_decay_in_the_gradient",
                                 "adamw_without_grad_scale",
                                 "global_norm_without_the_last_quarter"};
constexpr const char* fine[] = {"embedding_backward_slightly_off",
                                "layernorm_forward_with_eps_1e_6",
                                "layernorm_backward_slightly_off",
                                "matmul_forward_slightly_off",
                                "matmul_backward_slightly_off",
                                "matmul_gelu_forward_slightly_off",
                                "matmul_gelu_backward_slightly_off",
                                "attention_forward_slightly_off",
                                "attention_backward_slightly_off",
                                "classifier_slightly_off",
                                "adamw_with_eps_1e_7",
                                "global_norm_slightly_off"};

template <class Device>
Check run(Fault& fault, Tolerance tolerance) {
    Check check;
    check.quiet = true;
    ReferenceCheck<Mutant<Device>>("dev/test/data/gpt2_reference.safetensors", Mutant<Device>(fault), tolerance, check)
        .run();
    return check;
}

template <class Device>
void expect_noticed(const char* name, Tolerance tolerance) {
    Fault fault{name};
    const Check check = run<Device>(fault, tolerance);
    EXPECT_GT(fault.calls, 0) << "the faulty layer was not called";
    EXPECT_GT(check.failed, 0) << "the fault went unnoticed";
}

TEST(Mutation, WithoutAFaultAllPasses) {
    Fault none;
    EXPECT_EQ(run<Reference<double>>(none, tolerance_double).failed, 0);
    const Check check = run<Cpu>(none, tolerance_float);
    EXPECT_EQ(check.failed, 0);
    EXPECT_GT(check.passed, 50);
}

class Mutations : public ::testing::TestWithParam<const char*> {};
constexpr auto name_of = [](const auto& info) { return std::string(info.param); };

class Gross : public Mutations {};
TEST_P(Gross, FaultFailsInDouble) { expect_noticed<Reference<double>>(GetParam(), tolerance_double); }
TEST_P(Gross, FaultFailsInFloat) { expect_noticed<Cpu>(GetParam(), tolerance_float); }
INSTANTIATE_TEST_SUITE_P(Mutation, Gross, ::testing::ValuesIn(gross), name_of);

class Fine : public Mutations {};
TEST_P(Fine, FaultFailsInDouble) { expect_noticed<Reference<double>>(GetParam(), tolerance_double); }
INSTANTIATE_TEST_SUITE_P(Mutation, Fine, ::testing::ValuesIn(fine), name_of);

// The comparison itself.
TEST(Comparison, FailsOnWhatIsNotANumber) {
    for (const double bad : {double(NAN), double(INFINITY)}) {
        Check check;
        check.quiet = true;
        const double good[] = {1, 2, 3}, broken[] = {1, bad, 3};
        check.compare("good", good, good, 3, 0);
        EXPECT_EQ(check.failed, 0);
        check.compare("value", broken, good, 3, 1e9);
        check.compare("reference", good, broken, 3, 1e9);
        check.compare("both", broken, broken, 3, 1e9);
        EXPECT_EQ(check.failed, 3);
    }
}

TEST(Comparison, HoldsTheLargestDifferenceToTheLargestValue) {
    Check check;
    check.quiet = true;
    const double reference[] = {4, -0.5}, inside[] = {4, -0.503}, outside[] = {4.005, -0.5};
    check.compare("inside", inside, reference, 2, 1e-3);
    EXPECT_EQ(check.passed, 1);
    check.compare("outside", outside, reference, 2, 1e-3);
    EXPECT_EQ(check.failed, 1);
}

}  // namespace
