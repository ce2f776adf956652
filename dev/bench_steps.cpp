#include <sys/resource.h>

#include <deque>

#include "dev/bench_rows.h"
#include "gpt2.h"

namespace {

struct Step {
    std::string name;
    GPT2Config config;
    int64_t B, T;
    int rounds;
};

GPT2Config with_vocab(GPT2Config config, int64_t vocab) {
    config.vocab = vocab;
    return config;
}

// The largest resident set of this process so far, bytes.
double peak_memory() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

// A model with a batch of its own to train on.
class Training {
public:
    Training(const Step& s, Keep keep)
        : model(Cpu{}, s.config, s.B, s.T, keep),
          x(random_tokens(s.B * s.T, s.config.vocab, 1)),
          y(random_tokens(s.B * s.T, s.config.vocab, 2)),
          B(s.B),
          T(s.T) {
        initialize_parameters(s.config, model.table, 1, model.parameters.get());
    }

    void step() {
        model.forward_backward(x.data(), y.data(), B, T, 1.0 / static_cast<double>(B * T));
        model.update(Optimizer{}, clip_scale(model.gradient_norm(), 1.0), ++steps_);
    }
    double flops() const { return model.flops_per_token(T) * static_cast<double>(B * T); }

    GPT2<Cpu> model;

private:
    const std::vector<int32_t> x, y;
    const int64_t B, T;
    int64_t steps_ = 0;
};

void step_row(BenchTable& table, const Step& s, const std::string& option = "", Keep keep = Keep::training) {
    const std::string name = "step " + s.name + option;
    table.group(name, {""}, [&] {
        std::deque<PyTorch> processes;
        std::vector<Rival> rivals;
        if (table.pytorch() && keep == Keep::training)
            for (const char* mode : {"eager", "compile"}) {
                processes.emplace_back(omp_get_max_threads());
                const GPT2Config& c = s.config;
                std::string work = "step";
                for (const int64_t size : {c.layers, c.heads, c.channels, c.vocab, c.context, s.B, s.T})
                    work += " " + std::to_string(size);
                if (processes.back().prepare(mode, work)) rivals.push_back({&processes.back(), mode, true});
            }
        Training training(s, keep);
        for (int i = 0; i < 2; ++i) training.step();
        table.row({name, Unit::flops, training.flops(), [&] { training.step(); }, s.rounds, peak_memory()}, rivals);
    });
}

}  // namespace

void step_rows(BenchTable& table) {
    const GPT2Config d12 = *gpt2_preset("d12");
    const Step long_sequences{"124M B=4 T=1024", d12, 4, 1024, 3};
    const Step nanogpt_gpu{"nanoGPT GPU shape B=64 T=256",
                           {.context = 256, .vocab = 65, .layers = 6, .heads = 6, .channels = 384},
                           64,
                           256,
                           3};
    const Step nanogpt_cpu{"nanoGPT CPU shape B=12 T=64",
                           {.context = 64, .vocab = 65, .layers = 4, .heads = 4, .channels = 128},
                           12,
                           64,
                           15};
    const Step tiny{"tiny B=16 T=128", with_vocab(*gpt2_preset("tiny"), 256), 16, 128, 15};
    step_row(table, {"124M B=4 T=64", d12, 4, 64, 7});
    for (const Step& s : {long_sequences, nanogpt_gpu}) {
        step_row(table, s);
        step_row(table, s, " --recompute gelu", Keep::recompute_gelu);
        step_row(table, s, " --recompute ln", Keep::recompute_ln);
        step_row(table, s, " --recompute block", Keep::recompute_block);
    }
    step_row(table, nanogpt_cpu);
    step_row(table, tiny);
}
