#include "dev/bench_rows.h"
#include "gpt2.h"
#include "gpt2_init.h"

namespace {

// The pass that computes the next token of `samples` texts, each of `past` tokens, with GPT-2 124M. It reads every
// weight once, and the keys and values of the texts.
void token_row(BenchTable& table, WeightType type, int64_t samples, int64_t past) {
    const char* const type_name = type == WeightType::fp32 ? "fp32" : type == WeightType::bf16 ? "bf16" : "int8";
    const std::string name = "token 124M --weights " + std::string(type_name) + " --samples " +
                             std::to_string(samples) + " after " + std::to_string(past);
    table.group(name, {""}, [&] {
        const GPT2Config config = *gpt2_preset("d12");
        Cpu cpu;
        cpu.weights = type;
        GPT2<Cpu> model(std::move(cpu), config, 1, past, ActivationPolicy::inference, {samples, config.context});
        const Model::HostState host = model.download();
        initialize_parameters(config, ParameterTable(config), 1, host.parameters);
        model.upload(host);

        const std::vector<int32_t> text = random_tokens(past, config.vocab, 1),
                                   next = random_tokens(samples, config.vocab, 2);
        std::vector<float> logits(static_cast<size_t>(samples * config.vocab));
        model.append(logits.data(), text.data(), 1, past);
        model.branch(samples);
        const int64_t kept = 2 * config.layers * config.channels * samples * past * 4;
        const int64_t weights = (model.table.size - model.table.wpe.stride) * 4;
        table.row({name, Unit::reads, static_cast<double>(weights + kept),
                   [&] {
                       model.append(logits.data(), next.data(), samples, 1);
                       model.truncate(past);
                   }},
                  {});
    });
}

}  // namespace

void token_rows(BenchTable& table) {
    for (const WeightType type : {WeightType::fp32, WeightType::bf16, WeightType::int8})
        for (const int64_t samples : {1, 8})
            for (const int64_t past : {16, 768}) token_row(table, type, samples, past);
}
