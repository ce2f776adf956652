// A fixed small training step, whose instructions scripts/callgrind.sh counts: seconds vary, but counts are
// reproducible.
#include <cstdio>

#include "gpt2.h"
#include "gpt2_init.h"

// Callgrind counts only within this function.
[[gnu::noinline]] static double counted_step(GPT2<Cpu>& model, const std::vector<int32_t>& x,
                                             const std::vector<int32_t>& y, int64_t B, int64_t T, int64_t step) {
    model.forward_backward(x.data(), y.data(), B, T, 1.0 / static_cast<double>(B * T));
    return model.update(at_step({.optimizer = step % 2 == 0 ? Optimizer::muon : Optimizer::adamw, .clip = 1}, step))
        .loss;
}

int main() {
    constexpr int64_t B = 2, T = 48;
    const GPT2Config config{.context = T, .vocab = 259, .layers = 2, .heads = 3, .channels = 96};
    GPT2<Cpu> model(Cpu{}, config, B, T, ActivationPolicy::recompute_gelu);
    initialize_parameters(config, model.table, 1, model.parameters.get());
    std::vector<int32_t> x, y;
    for (int64_t i = 0; i < B * T; ++i) {
        x.push_back(static_cast<int32_t>(i * 7 % config.vocab));
        y.push_back(static_cast<int32_t>(i * 11 % config.vocab));
    }
    for (const int64_t step : {1, 2}) std::printf("loss %f\n", counted_step(model, x, y, B, T, step));
    return 0;
}
