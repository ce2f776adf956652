#include "dev/bench_rows.h"
#include "layers/layers.h"

namespace {

const UpdateParams step_10 = at_step({}, 10);
const StepStatus unclipped{.grad_scale = 1, .apply = 1};

// "a_b 1 2 3", "1x2x3"
std::string spaced(const std::string& name, const std::vector<int64_t>& sizes) {
    std::string text = name;
    for (const int64_t size : sizes) text += " " + std::to_string(size);
    return text;
}
std::string crossed(const std::vector<int64_t>& sizes) {
    std::string text;
    for (const int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
    return text;
}

// Gradients of weights are stored, not added to old values, as in PyTorch and as in a training step's first batch.
class Layers {
public:
    explicit Layers(BenchTable& t) : table(t) {}

    void matmul(int64_t N, int64_t C, int64_t OC) {
        const std::string name = "matmul " + crossed({N, OC, C});
        table.group(name, {" forward", " dinput", " dweight"}, [&] {
            const auto inp = random_floats(N * C, 1), weight = random_floats(OC * C, 2),
                       dout = random_floats(N * OC, 3);
            const auto out = random_floats(N * OC, 4), dinp = random_floats(N * C, 5),
                       dweight = random_floats(OC * C, 6);
            const double flops = 2 * prod(N, C, OC);
            const std::vector<int64_t> sizes = {N, C, OC};
            Cpu dev;
            table.layer({name + " forward", Unit::flops, flops,
                         [&] { matmul_forward(dev, out.get(), inp.get(), weight.get(), nullptr, N, C, OC); }},
                        spaced("matmul_forward", sizes));
            table.layer({name + " dinput", Unit::flops, flops,
                         [&] { matmul_backward_input(dev, dinp.get(), dout.get(), weight.get(), N, C, OC); }},
                        spaced("matmul_dinput", sizes));
            table.layer(
                {name + " dweight", Unit::flops, flops,
                 [&] { matmul_backward_weight(dev, dweight.get(), nullptr, dout.get(), inp.get(), N, C, OC, false); }},
                spaced("matmul_dweight", sizes));
        });
    }

    void classifier(int64_t N, int64_t C, int64_t V) {
        const std::string name = "classifier " + crossed({N, V, C});
        table.group(name, {" forward", " forward+backward"}, [&] {
            const auto inp = random_floats(N * C, 1), weight = random_floats(V * C, 2), losses = random_floats(N, 3);
            const auto dinp = random_floats(N * C, 4), dweight = random_floats(V * C, 5);
            const std::vector<int32_t> targets = random_tokens(N, V, 6);
            Cpu dev;
            table.layer(
                {name + " forward", Unit::flops, 2 * prod(N, C, V),
                 [&] { classifier_forward(dev, losses.get(), inp.get(), weight.get(), targets.data(), N, C, V); }},
                spaced("classifier_forward", {N, C, V}));
            table.layer({name + " forward+backward", Unit::flops, 6 * prod(N, C, V),
                         [&] {
                             classifier_forward_backward(dev, losses.get(), dinp.get(), dweight.get(), inp.get(),
                                                         weight.get(), targets.data(), N, C, V, 1e-3f, false);
                         }},
                        spaced("classifier_forward_backward", {N, C, V}));
        });
    }

    // Logits become losses and the logits' gradients, in place, as in PyTorch's cross_entropy. The classifier leaves
    // the scale to its matmuls.
    void cross_entropy(int64_t N, int64_t V) {
        const std::string name = "cross-entropy " + crossed({N, V});
        table.group(name, {" forward+backward"}, [&] {
            const auto logits = random_floats(N * V, 1), losses = random_floats(N, 2);
            const std::vector<int32_t> targets = random_tokens(N, V, 3);
            table.layer({name + " forward+backward", Unit::bytes, 8 * prod(N, V),
                         [&] {
#pragma omp parallel for schedule(static)
                             for (int64_t n = 0; n < N; ++n) {
                                 float* const row = logits.get() + n * V;
                                 const int32_t target = targets[static_cast<size_t>(n)];
                                 const float scale = 1e-3f / classifier::softmax_row(row, V, target, losses.get() + n);
                                 simd::map(row, V, [=](simd::vfloat e, int64_t, int64_t) { return e * scale; });
                                 row[target] -= 1e-3f;
                             }
                         }},
                        spaced("cross_entropy_forward_backward", {N, V}));
        });
    }

    // Only the scores at or below the diagonal are counted as work.
    void attention(int64_t B, int64_t T, int64_t NH, int64_t hs) {
        const std::string name = "attention " + crossed({B, T, NH, hs});
        table.group(name, {" forward", " backward"}, [&] {
            const int64_t C = NH * hs;
            const auto qkv = random_floats(B * T * 3 * C, 1), out = random_floats(B * T * C, 2),
                       lse = random_floats(B * NH * T, 3);
            const auto dout = random_floats(B * T * C, 4), dqkv = random_floats(B * T * 3 * C, 5);
            const double one_matmul = prod(B * NH, T, T + 1, hs);
            Cpu dev;
            const auto forward = [&] { attention_forward(dev, out.get(), lse.get(), qkv.get(), B, T, C, NH); };
            forward();  // the backward reads its results
            table.layer({name + " forward", Unit::flops, 2 * one_matmul, forward},
                        spaced("attention_forward", {B, T, NH, hs}));
            table.layer({name + " backward", Unit::flops, 5 * one_matmul,
                         [&] {
                             attention_backward(dev, dqkv.get(), dout.get(), out.get(), qkv.get(), lse.get(), B, T, C,
                                                NH);
                         }},
                        spaced("attention_backward", {B, T, NH, hs}));
        });
    }

    void layernorm(int64_t N, int64_t C) {
        const std::string name = "layernorm " + crossed({N, C});
        table.group(name, {" forward", " backward"}, [&] {
            const auto inp = random_floats(N * C, 1), out = random_floats(N * C, 2), dout = random_floats(N * C, 3),
                       dinp = random_floats(N * C, 4);
            const auto w = random_floats(C, 5), b = random_floats(C, 6), dw = random_floats(C, 7),
                       db = random_floats(C, 8);
            const auto mean = random_floats(N, 9), rstd = random_floats(N, 10);
            Cpu dev;
            table.layer(
                {name + " forward", Unit::bytes, 8 * prod(N, C),
                 [&] { layernorm_forward(dev, out.get(), mean.get(), rstd.get(), inp.get(), w.get(), b.get(), N, C); }},
                spaced("layernorm_forward", {N, C}));
            table.layer({name + " backward", Unit::bytes, 12 * prod(N, C),
                         [&] {
                             layernorm_backward(dev, dinp.get(), dw.get(), db.get(), dout.get(), inp.get(), w.get(),
                                                mean.get(), rstd.get(), static_cast<const float*>(nullptr), N, C);
                         }},
                        spaced("layernorm_backward", {N, C}));
        });
    }

    void gelu(int64_t N, int64_t C) {
        const std::string name = "gelu " + crossed({N, C});
        table.group(name, {" forward", " backward"}, [&] {
            const auto inp = random_floats(N * C, 1), out = random_floats(N * C, 2), dout = random_floats(N * C, 3);
            Cpu dev;
            table.layer({name + " forward", Unit::bytes, 8 * prod(N, C),
                         [&] { gelu_forward(dev, out.get(), inp.get(), N * C); }},
                        spaced("gelu_forward", {N, C}));
            table.layer({name + " backward", Unit::bytes, 12 * prod(N, C),
                         [&] { gelu_backward(dev, out.get(), inp.get(), dout.get(), N * C); }},
                        spaced("gelu_backward", {N, C}));
        });
    }

    void embedding(int64_t B, int64_t T, int64_t C, int64_t V) {
        const std::string name = "embedding " + crossed({B * T, C});
        table.group(name, {" forward", " backward"}, [&] {
            const auto wte = random_floats(V * C, 1), wpe = random_floats(T * C, 2), out = random_floats(B * T * C, 3);
            const std::vector<int32_t> tokens = random_tokens(B * T, V, 4);
            Cpu dev;
            table.layer({name + " forward", Unit::bytes, 8 * prod(B, T, C),
                         [&] { embedding_forward(dev, out.get(), tokens.data(), wte.get(), wpe.get(), B, T, C); }},
                        spaced("embedding_forward", {B, T, C, V}));
            table.layer({name + " backward", Unit::bytes, 12 * prod(B, T, C),
                         [&] { embedding_backward(dev, wte.get(), wpe.get(), out.get(), tokens.data(), B, T, C); }},
                        spaced("embedding_backward", {B, T, C, V}));
        });
    }

    // Rows for the functions that work on all n parameters at once.
    void flat(const std::string& model, int64_t n) {
        table.group("global norm " + model, {""}, [&] {
            const auto g = random_floats(n, 1);
            Cpu dev;
            table.layer(
                {"global norm " + model, Unit::bytes, 4 * prod(n), [&] { global_norm_squared(dev, g.get(), n); }},
                spaced("global_norm", {n}));
        });
        table.group("adamw " + model, {""}, [&] {
            const auto p = random_floats(n, 1), g = random_floats(n, 2), m = host_allocate<float>(n),
                       v = host_allocate<float>(n);
            Cpu dev;
            table.layer({"adamw " + model, Unit::bytes, 28 * prod(n),
                         [&] { adamw_update(dev, p.get(), g.get(), m.get(), v.get(), n, &step_10, true, &unclipped); }},
                        spaced("adamw", {n}));
        });
    }

    // Muon's update of the matrices of L blocks.
    void muon(const std::string& model, int64_t L, int64_t C) {
        table.group("muon " + model, {""}, [&] {
            const auto p = random_floats(12 * L * C * C, 1), g = random_floats(12 * L * C * C, 2),
                       m = host_allocate<float>(12 * L * C * C);
            std::vector<MuonMatrix<float>> matrices;
            double flops = 0;
            int64_t at = 0;
            for (int64_t l = 0; l < L; ++l)
                for (const auto& [rows, cols] : {std::pair{3 * C, C}, {C, C}, {4 * C, C}, {C, 4 * C}}) {
                    matrices.push_back({p.get() + at, m.get() + at, g.get() + at, rows, cols});
                    at += rows * cols;
                    flops += ::muon::flops(rows, cols);
                }
            Cpu dev;
            table.layer(
                {"muon " + model, Unit::flops, flops, [&] { muon_update(dev, matrices, &step_10, &unclipped); }},
                spaced("muon", {L, C}));
        });
    }

private:
    BenchTable& table;
};

}  // namespace

void layer_rows(BenchTable& table) {
    Layers layers(table);
    for (const int64_t N : {64, 256, 1024, 4096})
        for (const auto& [C, OC] : {std::pair<int64_t, int64_t>{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}})
            layers.matmul(N, C, OC);
    for (const int64_t N : {256, 1024}) layers.matmul(N, 768, 50304);
    for (const int64_t N : {256, 1024}) layers.classifier(N, 768, 50257);
    layers.cross_entropy(1024, 50257);
    layers.attention(4, 1024, 12, 64);
    layers.attention(64, 256, 6, 64);
    layers.attention(16, 128, 4, 32);
    for (const auto& [N, C] :
         {std::pair<int64_t, int64_t>{8192, 768}, {32768, 256}, {8192, 1024}, {4096, 2048}, {2048, 4096}, {1024, 8192}})
        layers.layernorm(N, C);
    layers.gelu(4096, 3072);
    layers.embedding(4, 1024, 768, 50257);
    layers.flat("124M", 124475904);
    layers.muon("124M", 12, 768);
    layers.muon("tiny", 4, 128);
}
