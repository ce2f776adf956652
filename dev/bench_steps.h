// The training steps that make bench times.
#pragma once

#include <string>
#include <vector>

#include "dev/bench_rows.h"
#include "gpt2.h"
#include "gpt2_init.h"

struct Step {
    std::string name;
    GPT2Config config;
    int64_t B, T;
    int rounds;
};

namespace steps {

inline GPT2Config with_vocab(GPT2Config config, int64_t vocab) {
    config.vocab = vocab;
    return config;
}
inline const Step short_124M{"124M B=4 T=64", *gpt2_preset("d12"), 4, 64, 7};
inline const Step long_124M{"124M B=4 T=1024", *gpt2_preset("d12"), 4, 1024, 3};
inline const Step nanogpt_gpu{"nanoGPT GPU shape B=64 T=256",
                              {.context = 256, .vocab = 65, .layers = 6, .heads = 6, .channels = 384},
                              64,
                              256,
                              3};
inline const Step nanogpt_cpu{
    "nanoGPT CPU shape B=12 T=64", {.context = 64, .vocab = 65, .layers = 4, .heads = 4, .channels = 128}, 12, 64, 15};
inline const Step tiny{"tiny B=16 T=128", with_vocab(*gpt2_preset("tiny"), 256), 16, 128, 15};

}  // namespace steps

constexpr ActivationPolicy usual = ActivationPolicy::recompute_gelu;  // --recompute's default

// A model with a batch of its own to train on.
class Training {
public:
    Training(const Step& s, ActivationPolicy policy, MatmulKind matmul_kind = MatmulKind::fp32)
        : model(Cpu(matmul_kind), s.config, s.B, s.T, policy),
          x(random_tokens(s.B * s.T, s.config.vocab, 1)),
          y(random_tokens(s.B * s.T, s.config.vocab, 2)),
          B(s.B),
          T(s.T) {
        initialize_parameters(s.config, model.table, 1, model.parameters.get());
    }

    void step() {
        model.forward_backward(x.data(), y.data(), B, T, 1.0 / static_cast<double>(B * T));
        model.update(at_step({.clip = 1}, ++steps_));
    }
    double flops() const { return model.flops_per_token(T) * static_cast<double>(B * T); }

    GPT2<Cpu> model;

private:
    const std::vector<int32_t> x, y;
    const int64_t B, T;
    int64_t steps_ = 0;
};
