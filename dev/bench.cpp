// make bench: every layer forward and backward, and whole training steps, each beside what the machine could do.
//   build/native/bench [--only TEXT] [--csv FILE]
#include <cstring>

#include "dev/harness.h"
#include "gpt2.h"
#include "gpt2_init.h"

namespace {

HostBuffer<float> random_floats(int64_t n, uint64_t seed) {
    HostBuffer<float> x = host_allocate<float>(n);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(uniform(seed, static_cast<uint64_t>(i)) - 0.5);
    return x;
}

std::vector<int32_t> random_tokens(int64_t n, int64_t V, uint64_t seed) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<int32_t>(uniform(seed, i) * static_cast<double>(V));
    return tokens;
}

class Bench {
public:
    explicit Bench(std::string filter) : only(std::move(filter)) {}

    void run() {
        for (const int64_t N : {64, 256, 1024, 4096})
            for (const auto& [C, OC] : {std::pair<int64_t, int64_t>{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}})
                matmul(N, C, OC);
        matmul(256, 768, 50257);
        classifier(256, 768, 50257);
        attention(4, 1024, 12, 64);
        attention(64, 256, 6, 64);
        attention(16, 128, 4, 32);
        layernorm(8192, 768);
        gelu(4096, 3072);
        embedding(4, 1024, 768, 50257);
        flat(124475904);
        step("124M B=4 T=64", *gpt2_preset("d12"), 4, 64, 3);
        step("124M B=4 T=1024", *gpt2_preset("d12"), 4, 1024, 3);
        step("nanoGPT GPU shape B=64 T=256", {.context = 256, .vocab = 65, .layers = 6, .heads = 6, .channels = 384},
             64, 256, 3);
        step("nanoGPT CPU shape B=12 T=64", {.context = 64, .vocab = 65, .layers = 4, .heads = 4, .channels = 128}, 12,
             64, 20);
        GPT2Config tiny = *gpt2_preset("tiny");
        tiny.vocab = 256;
        step("tiny B=16 T=128", tiny, 16, 128, 20);
    }

    Table table;

private:
    // Runs `body` only if some of the rows that it makes are wanted.
    bool wanted(const std::string& name) const { return name.find(only) != std::string::npos; }

    void matmul(int64_t N, int64_t C, int64_t OC) {
        const std::string name = "matmul " + std::to_string(N) + "x" + std::to_string(OC) + "x" + std::to_string(C);
        if (!wanted(name)) return;
        const auto inp = random_floats(N * C, 1), weight = random_floats(OC * C, 2), dout = random_floats(N * OC, 3);
        const auto out = random_floats(N * OC, 4), dinp = random_floats(N * C, 5), dweight = random_floats(OC * C, 6);
        const double flops = 2 * product(N, C, OC);
        using enum gemm::Order;
        table.row(name + " forward", Unit::flops, flops,
                  [&] { matmul_forward(dev, out.get(), inp.get(), weight.get(), nullptr, N, C, OC); });
        table.row(name + " dinput", Unit::flops, flops,
                  [&] { matmul_backward_input(dev, dinp.get(), dout.get(), weight.get(), N, C, OC); });
        table.row(name + " dweight", Unit::flops, flops,
                  [&] { matmul_backward_weight(dev, dweight.get(), nullptr, dout.get(), inp.get(), N, C, OC); });
    }

    void classifier(int64_t N, int64_t C, int64_t V) {
        const std::string name = "classifier " + std::to_string(N) + "x" + std::to_string(V);
        if (!wanted(name)) return;
        const auto inp = random_floats(N * C, 1), weight = random_floats(V * C, 2), losses = random_floats(N, 3);
        const auto dinp = random_floats(N * C, 4), dweight = random_floats(V * C, 5);
        const std::vector<int32_t> targets = random_tokens(N, V, 6);
        table.row(name + " forward", Unit::flops, 2 * product(N, C, V),
                  [&] { classifier_forward(dev, losses.get(), inp.get(), weight.get(), targets.data(), N, C, V); });
        table.row(name + " forward+backward", Unit::flops, 6 * product(N, C, V), [&] {
            classifier_forward_backward(dev, losses.get(), dinp.get(), dweight.get(), inp.get(), weight.get(),
                                        targets.data(), N, C, V, 1e-3f);
        });
    }

    // Only the scores at or below the diagonal count.
    void attention(int64_t B, int64_t T, int64_t NH, int64_t hs) {
        const std::string name = "attention " + std::to_string(B) + "x" + std::to_string(T) + "x" + std::to_string(NH) +
                                 "x" + std::to_string(hs);
        if (!wanted(name)) return;
        const int64_t C = NH * hs;
        const auto qkv = random_floats(B * T * 3 * C, 1), out = random_floats(B * T * C, 2),
                   lse = random_floats(B * NH * T, 3);
        const auto dout = random_floats(B * T * C, 4), dqkv = random_floats(B * T * 3 * C, 5);
        const double one_product = product(B * NH, T, T + 1, hs);
        table.row(name + " forward", Unit::flops, 2 * one_product,
                  [&] { attention_forward(dev, out.get(), lse.get(), qkv.get(), B, T, C, NH); });
        table.row(name + " backward", Unit::flops, 5 * one_product, [&] {
            attention_backward(dev, dqkv.get(), dout.get(), out.get(), qkv.get(), lse.get(), B, T, C, NH);
        });
    }

    void layernorm(int64_t N, int64_t C) {
        const std::string name = "layernorm " + std::to_string(N) + "x" + std::to_string(C);
        if (!wanted(name)) return;
        const auto inp = random_floats(N * C, 1), out = random_floats(N * C, 2), dout = random_floats(N * C, 3),
                   dinp = random_floats(N * C, 4);
        const auto w = random_floats(C, 5), b = random_floats(C, 6), dw = random_floats(C, 7), db = random_floats(C, 8);
        const auto mean = random_floats(N, 9), rstd = random_floats(N, 10);
        table.row(name + " forward", Unit::bytes, 8 * product(N, C), [&] {
            layernorm_forward(dev, out.get(), mean.get(), rstd.get(), inp.get(), w.get(), b.get(), N, C);
        });
        table.row(name + " backward", Unit::bytes, 12 * product(N, C), [&] {
            layernorm_backward(dev, dinp.get(), dw.get(), db.get(), dout.get(), inp.get(), w.get(), mean.get(),
                               rstd.get(), nullptr, N, C);
        });
    }

    void gelu(int64_t N, int64_t C) {
        const std::string name = "gelu " + std::to_string(N) + "x" + std::to_string(C);
        if (!wanted(name)) return;
        const auto inp = random_floats(N * C, 1), out = random_floats(N * C, 2), dout = random_floats(N * C, 3);
        table.row(name + " forward", Unit::bytes, 8 * product(N, C),
                  [&] { gelu_forward(dev, out.get(), inp.get(), N * C); });
        table.row(name + " backward", Unit::bytes, 12 * product(N, C),
                  [&] { gelu_backward(dev, out.get(), inp.get(), dout.get(), N * C); });
    }

    void embedding(int64_t B, int64_t T, int64_t C, int64_t V) {
        const std::string name = "embedding " + std::to_string(B * T) + "x" + std::to_string(C);
        if (!wanted(name)) return;
        const auto wte = random_floats(V * C, 1), wpe = random_floats(T * C, 2), out = random_floats(B * T * C, 3);
        const std::vector<int32_t> tokens = random_tokens(B * T, V, 4);
        table.row(name + " forward", Unit::bytes, 8 * product(B, T, C),
                  [&] { embedding_forward(dev, out.get(), tokens.data(), wte.get(), wpe.get(), B, T, C); });
        table.row(name + " backward", Unit::bytes, 12 * product(B, T, C),
                  [&] { embedding_backward(dev, wte.get(), wpe.get(), out.get(), tokens.data(), B, T, C); });
    }

    void flat(int64_t n) {
        if (!wanted("adamw 124M") && !wanted("global norm 124M")) return;
        const auto p = random_floats(n, 1), g = random_floats(n, 2), m = host_allocate<float>(n),
                   v = host_allocate<float>(n);
        table.row("global norm 124M", Unit::bytes, 4 * product(n, 1), [&] { global_norm_squared(dev, g.get(), n); });
        table.row("adamw 124M", Unit::bytes, 28 * product(n, 1),
                  [&] { adamw_update(dev, p.get(), g.get(), m.get(), v.get(), n, AdamW{}, 1.0f, 10); });
    }

    void step(const std::string& shape, const GPT2Config& config, int64_t B, int64_t T, int runs) {
        const std::string name = "step " + shape;
        if (!wanted(name)) return;
        GPT2<Cpu> model(Cpu{}, config, B, T, Keep::training);
        initialize_parameters(config, model.table, 1, model.parameters.get());
        const std::vector<int32_t> x = random_tokens(B * T, config.vocab, 1), y = random_tokens(B * T, config.vocab, 2);
        int64_t steps = 0;
        table.row(
            name, Unit::flops, model.flops_per_token(T) * static_cast<double>(B * T),
            [&] {
                model.forward_backward(x.data(), y.data(), B, T, 1.0 / static_cast<double>(B * T));
                model.update(Optimizer{}, clip_scale(model.gradient_norm(), 1.0), ++steps);
            },
            runs);
    }

    const std::string only;
    Cpu dev;
};

}  // namespace

int main(int argc, char** argv) {
    std::string only, csv;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc || (std::strcmp(argv[i], "--only") != 0 && std::strcmp(argv[i], "--csv") != 0)) {
            std::fprintf(stderr, "bench: %s: expected --only TEXT (rows whose name holds it) or --csv FILE\n", argv[i]);
            return 2;
        }
        (argv[i][2] == 'o' ? only : csv) = argv[i + 1];
    }
    Bench bench(only);
    bench.run();
    if (!csv.empty()) bench.table.write_csv(csv);
    return 0;
}
