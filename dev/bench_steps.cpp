#include <sys/resource.h>

#include <deque>

#include "dev/bench_steps.h"

namespace {

// The peak resident set of this process so far, in bytes.
double peak_memory() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

void step_row(BenchTable& table, const Step& s, const std::string& option = "", ActivationPolicy policy = usual,
              MatmulKind matmul_kind = MatmulKind::fp32) {
    const std::string name = "step " + s.name + option;
    table.group(name, {""}, [&] {
        std::deque<PyTorch> processes;
        std::vector<Rival> rivals;
        if (table.pytorch() && option.empty())
            for (const char* mode : {"eager", "compile"}) {
                processes.emplace_back(omp_get_max_threads());
                const GPT2Config& c = s.config;
                std::string work = "step";
                for (const int64_t size : {c.layers, c.heads, c.channels, c.vocab, c.context, s.B, s.T})
                    work += " " + std::to_string(size);
                if (processes.back().prepare(mode, work)) rivals.push_back({&processes.back(), mode, true});
            }
        Training training(s, policy, matmul_kind);
        training.step();
        table.row({name, Unit::flops, training.flops(), [&] { training.step(); }, s.rounds, peak_memory(), matmul_kind},
                  rivals);
    });
}

}  // namespace

void step_rows(BenchTable& table) {
    step_row(table, steps::short_124M);
    if (gemm::has_bf16)
        for (const Step& s : {steps::short_124M, steps::long_124M, steps::nanogpt_gpu, steps::tiny})
            step_row(table, s, " --matmul bf16", usual, MatmulKind::bf16);
    for (const Step& s : {steps::long_124M, steps::nanogpt_gpu}) {
        step_row(table, s);
        step_row(table, s, " --recompute none", ActivationPolicy::training);
        step_row(table, s, " --recompute ln", ActivationPolicy::recompute_ln);
        step_row(table, s, " --recompute block", ActivationPolicy::recompute_block);
    }
    step_row(table, steps::nanogpt_cpu);
    step_row(table, steps::tiny);
}
