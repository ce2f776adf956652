// Compares GPT-2 on every device with PyTorch's numbers, tensor by tensor. Exit status: 0 if all are within tolerance,
// 1 if not, 2 for bad input.
//   ./test_gpt2                                        the committed dump of scripts/dump_reference.py
//   ./test_gpt2 --dump FILE.safetensors                another one
//   ./test_gpt2 --checkpoint FILE.bin --state FILE.bin an llm.c pair, of any size
#include <cstring>

#include "dev/reference_check.h"

namespace {

constexpr const char* committed_dump = "dev/test/data/gpt2_reference.safetensors";

// An llm.c pair comes from PyTorch in float, so both sides have rounding errors: 1e-6 of a tensor's largest value,
// measured for 12 layers of 768 channels. The rest is a margin for deeper models and longer sequences.
void check_llmc_pair(const std::string& checkpoint, const std::string& state_path, Check& check) {
    const GPT2Config config = read_llmc_model_config(checkpoint);
    const LlmcState state = read_llmc_state(state_path, config);
    if (state.T > config.context)
        bad_input(state_path, "T", std::to_string(state.T), "at most the context " + std::to_string(config.context),
                  "use the pair's own files");
    const int64_t N = state.B * state.T, C = config.channels, V = config.vocab;
    GPT2<Cpu> model(Cpu{}, config, state.B, state.T, ActivationPolicy::training);
    read_llmc_model(checkpoint, model.parameters.get());
    model.forward_backward(state.x.data(), state.y.data(), state.B, state.T, 1.0 / static_cast<double>(N));
    const double loss = model.loss();
    check.compare("loss", &loss, &state.loss, 1, 1e-5);
    std::vector<float> logits(static_cast<size_t>(N * V));
    matmul_forward(model.dev, logits.data(), model.activations.get() + model.acts.lnf.offset,
                   model.parameters.get() + model.table.wte.offset, nullptr, N, C, V);
    check.compare("logits", logits.data(), state.logits.data(), N * V, 2e-5);
    for (const Parameter& p : model.table.rows)
        check.compare("grad." + p.name, model.gradients.get() + p.offset, state.gradients.data() + p.offset,
                      p.copies * p.piece(), 1e-4);
}

int run(int argc, char** argv) {
    std::map<std::string, std::string> options;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if ((name != "--dump" && name != "--checkpoint" && name != "--state") || i + 1 == argc)
            throw InputError(name + ": expected --dump FILE, or --checkpoint FILE.bin --state FILE.bin");
        options[name] = argv[i + 1];
    }
    if (options.count("--checkpoint") != options.count("--state") ||
        (options.count("--dump") && options.count("--state")))
        throw InputError("--checkpoint and --state go together, and without --dump");
    Check check;
    if (options.count("--state")) {
        check_llmc_pair(options["--checkpoint"], options["--state"], check);
    } else {
        const std::string dump = options.count("--dump") ? options["--dump"] : committed_dump;
        std::printf("== Reference<double> against PyTorch's float64: %s\n", dump.c_str());
        ReferenceCheck<Reference<double>>(dump, {}, tolerance_double, check).run();
        std::printf("== Cpu (float) against PyTorch's float64\n");
        ReferenceCheck<Cpu>(dump, Cpu(), tolerance_float, check).run();
    }
    std::printf("%d passed, %d failed, %d skipped\n", check.passed, check.failed, check.skipped);
    return check.failed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const InputError& e) {
        std::fprintf(stderr, "test_gpt2: %s\n", e.what());
        return 2;
    }
}
