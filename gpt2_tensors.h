// The shape of a GPT-2, and one table each of its parameters and its activations. Everything that needs a tensor's
// name, shape or offset (the model, checkpoints, the reference test, the memory plan, `info`) reads it here.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/weight_type.h"

struct GPT2Config {
    int64_t context = 1024;  // longest sequence: rows of wpe (llm.c: maxT, Hugging Face: n_positions)
    int64_t vocab = 50257;   // V: number of token ids
    int64_t layers = 12;     // L
    int64_t heads = 12;      // NH
    int64_t channels = 768;  // C; each head has C/NH of them
    double dropout = 0;      // in training

    // Vp: llm.c pads wte with zero rows to a multiple of 128. Softmax, loss and samples ignore them.
    int64_t padded_vocab() const { return (vocab + 127) / 128 * 128; }
    int64_t head_size() const { return channels / heads; }
    bool operator==(const GPT2Config&) const = default;
};

// The shape of a preset. Context and vocabulary are GPT-2's unless the preset has its own.
inline std::optional<GPT2Config> gpt2_preset(std::string_view name) {
    if (name == "tiny") return GPT2Config{.context = 128, .layers = 4, .heads = 4, .channels = 128};
    if (name == "d12") return GPT2Config{.layers = 12, .heads = 12, .channels = 768};
    if (name == "d24") return GPT2Config{.layers = 24, .heads = 16, .channels = 1024};
    if (name == "d36") return GPT2Config{.layers = 36, .heads = 20, .channels = 1280};
    if (name == "d48") return GPT2Config{.layers = 48, .heads = 25, .channels = 1600};
    return std::nullopt;
}

// One tensor of a flat buffer: `copies` pieces of `shape`, one after the other.
struct Tensor {
    std::string name;            // llm.c's: "qkvw"
    std::vector<int64_t> shape;  // of one piece
    int64_t copies = 1;          // L for a block's tensor, 1 otherwise
    int64_t offset = 0;          // of piece 0 in the flat buffer, in elements
    int64_t stride = 0;          // from piece to piece; 0 if all blocks share one
    int64_t width = 1;           // elements of the flat buffer per value

    int64_t piece() const { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }
    int64_t at(int64_t copy = 0) const { return offset + copy * stride; }
};

enum class Init { zeros, ones, normal, residual_projection };  // N(0, 0.02²), N(0, 0.02²/2L) for the last

struct Parameter : Tensor {
    Init init = Init::zeros;
    bool per_layer = false;
    bool matmul_weight = false;  // matmuls read it, and in the backward pass a matmul writes its gradient first
    bool hf_transposed = false;  // Hugging Face stores (in,out) where llm.c and torch.nn.Linear store (out,in)
    std::string hf;              // Hugging Face's name below "transformer."; '#' stands for the block's number

    bool decay() const { return shape.size() == 2; }              // weight decay applies to matrices only
    bool muon() const { return per_layer && shape.size() == 2; }  // Muon, if it is the optimizer, updates these
    std::string hf_name(int64_t layer) const {
        std::string full = "transformer." + hf;
        if (per_layer) full.replace(full.find('#'), 1, std::to_string(layer));
        return full;
    }
};

// The parameters in llm.c's order. A member and its row in `rows` are the same tensor. For inference the weights of
// matmuls may be bf16 or int8: then `stride` is the number of floats that they take.
struct ParameterTable {
    std::vector<Parameter> rows;
    int64_t size = 0;  // elements of the flat buffer, wte's padding rows included
    Parameter wte, wpe, ln1w, ln1b, qkvw, qkvb, attprojw, attprojb, ln2w, ln2b, fcw, fcb, fcprojw, fcprojb, lnfw, lnfb;

    explicit ParameterTable(const GPT2Config& c, WeightType weights = WeightType::fp32) {
        const int64_t C = c.channels;
        const auto add = [&](const char* name, std::vector<int64_t> shape, Init init, const char* hf) {
            Parameter p;
            p.name = name, p.shape = std::move(shape), p.init = init, p.hf = hf, p.offset = size;
            p.per_layer = p.hf.find('#') != std::string::npos;
            p.hf_transposed = p.per_layer && p.shape.size() == 2;
            p.matmul_weight = p.hf_transposed || p.name == "wte";
            p.copies = p.per_layer ? c.layers : 1;
            p.stride = p.matmul_weight ? p.shape[0] * weight_floats(weights, p.shape[1]) : p.piece();
            size += p.copies * p.stride;
            rows.push_back(p);
            return p;
        };
        wte = add("wte", {c.padded_vocab(), C}, Init::normal, "wte.weight");
        wpe = add("wpe", {c.context, C}, Init::normal, "wpe.weight");
        ln1w = add("ln1w", {C}, Init::ones, "h.#.ln_1.weight");
        ln1b = add("ln1b", {C}, Init::zeros, "h.#.ln_1.bias");
        qkvw = add("qkvw", {3 * C, C}, Init::normal, "h.#.attn.c_attn.weight");
        qkvb = add("qkvb", {3 * C}, Init::zeros, "h.#.attn.c_attn.bias");
        attprojw = add("attprojw", {C, C}, Init::residual_projection, "h.#.attn.c_proj.weight");
        attprojb = add("attprojb", {C}, Init::zeros, "h.#.attn.c_proj.bias");
        ln2w = add("ln2w", {C}, Init::ones, "h.#.ln_2.weight");
        ln2b = add("ln2b", {C}, Init::zeros, "h.#.ln_2.bias");
        fcw = add("fcw", {4 * C, C}, Init::normal, "h.#.mlp.c_fc.weight");
        fcb = add("fcb", {4 * C}, Init::zeros, "h.#.mlp.c_fc.bias");
        fcprojw = add("fcprojw", {C, 4 * C}, Init::residual_projection, "h.#.mlp.c_proj.weight");
        fcprojb = add("fcprojb", {C}, Init::zeros, "h.#.mlp.c_proj.bias");
        lnfw = add("lnfw", {C}, Init::ones, "ln_f.weight");
        lnfb = add("lnfb", {C}, Init::zeros, "ln_f.bias");
    }
};

// Levels of the balanced binary tree over the shards of a step, a power of two. Each needs a buffer for gradients.
constexpr int64_t tree_levels(int64_t shards) { return std::countr_zero(static_cast<uint64_t>(shards)); }

// Which activations a forward pass keeps for the backward pass, from least to most.
enum class ActivationPolicy {
    inference,        // none: all blocks use one set of buffers
    recompute_block,  // each block's input: its backward pass first repeats its forward pass
    recompute_ln,     // all but the outputs of norms and GELU, which are cheap to recompute
    recompute_gelu,   // all but GELU's output
    training,         // everything that the backward pass reads
    all,              // also the gradient of every activation, for the reference test
};
// Whether the backward pass recomputes GELU's output, in place of its input.
constexpr bool recomputes_gelu(ActivationPolicy policy) {
    return policy == ActivationPolicy::recompute_gelu || policy == ActivationPolicy::recompute_ln;
}

// Room for the keys and values that generation keeps: of `sequences` sequences of at most `positions` tokens.
struct CacheSize {
    int64_t sequences = 0, positions = 0;
};

// The activations of a batch of B x T tokens, and their gradients (d…). A block's tensors are stacked over the layers
// if they are kept, and shared by all layers (stride 0) if not. If the other tensors are bf16, statistics and losses
// are still fp32: each value takes `wide` = 2 elements.
struct ActivationTable {
    std::vector<Tensor> rows;
    int64_t size = 0;                     // elements of the flat buffer
    Tensor residual1;                     // (B,T,C) a block's input; number L is the last block's output
    Tensor ln1, ln1_mean, ln1_rstd, qkv;  // (B,T,C) (B,T) (B,T) (B,T,3C)
    Tensor atty, logsumexp;               // (B,T,C) attention's output, (B,NH,T)
    Tensor residual2;                     // (B,T,C) residual1 + attention's projection
    Tensor ln2, ln2_mean, ln2_rstd;       // (B,T,C) (B,T) (B,T)
    Tensor fch, fch_gelu;                 // (B,T,4C) before and after GELU
    Tensor lnf, lnf_mean, lnf_rstd;       // (B,T,C) (B,T) (B,T)
    Tensor losses;                        // (B,T)
    Tensor keys, values, logits;          // in generation: (sequences,NH,positions,C/NH) twice, (sequences,V)
    Tensor dresidual1, dln1, dqkv, datty, dresidual2, dln2, dfch, dlnf;

    ActivationTable(const GPT2Config& c, int64_t B, int64_t T, ActivationPolicy policy, int64_t wide = 1,
                    CacheSize cache = {}) {
        const int64_t C = c.channels;
        // A CPU's L1 has few places for addresses that are equal modulo 4 KiB. Tensors that an epilogue reads and
        // writes side by side, row by row, therefore start in different quarters of 4 KiB.
        static const std::map<std::string_view, int64_t> quarters{
            {"residual1", 0}, {"residual2", 1}, {"fch", 0}, {"fch_gelu", 1}, {"dfch", 2}};
        const auto place = [&](const char* name, std::vector<int64_t> shape, int64_t copies, bool stacked,
                               int64_t width = 1) {
            if (const auto apart = quarters.find(name); apart != quarters.end()) {
                const int64_t page = 1024 * wide, start = apart->second * page / 4;
                size += (start - size % page + page) % page;
            }
            Tensor t{.name = name, .shape = std::move(shape), .copies = copies, .offset = size, .width = width};
            t.stride = stacked ? t.piece() * width : 0;
            const int64_t line = 16 * wide;  // tensors start on a cache line
            size += (t.piece() * width * (stacked ? copies : 1) + line - 1) / line * line;
            rows.push_back(t);
            return t;
        };
        // The tensors are stacked over the layers from level `from` on.
        const auto activation = [&](const char* name, std::vector<int64_t> shape, int64_t copies,
                                    ActivationPolicy from = ActivationPolicy::recompute_ln) {
            return place(name, std::move(shape), copies, policy >= from);
        };
        const auto statistic = [&](const char* name, std::vector<int64_t> shape, int64_t copies) {
            return place(name, std::move(shape), copies, policy >= ActivationPolicy::recompute_ln, wide);
        };
        residual1 = activation("residual1", {B, T, C}, c.layers + 1, ActivationPolicy::recompute_block);
        ln1 = activation("ln1", {B, T, C}, c.layers, ActivationPolicy::recompute_gelu);
        ln1_mean = statistic("ln1_mean", {B, T}, c.layers);
        ln1_rstd = statistic("ln1_rstd", {B, T}, c.layers);
        qkv = activation("qkv", {B, T, 3 * C}, c.layers);
        atty = activation("atty", {B, T, C}, c.layers);
        logsumexp = statistic("logsumexp", {B, c.heads, T}, c.layers);
        residual2 = activation("residual2", {B, T, C}, c.layers);
        ln2 = activation("ln2", {B, T, C}, c.layers, ActivationPolicy::recompute_gelu);
        ln2_mean = statistic("ln2_mean", {B, T}, c.layers);
        ln2_rstd = statistic("ln2_rstd", {B, T}, c.layers);
        fch = activation("fch", {B, T, 4 * C}, c.layers);
        fch_gelu = activation("fch_gelu", {B, T, 4 * C}, c.layers, ActivationPolicy::training);
        lnf = activation("lnf", {B, T, C}, 1);
        lnf_mean = statistic("lnf_mean", {B, T}, 1);
        lnf_rstd = statistic("lnf_rstd", {B, T}, 1);
        losses = statistic("losses", {B, T}, 1);
        if (cache.sequences > 0) {
            const std::vector<int64_t> kept{cache.sequences, c.heads, cache.positions, c.head_size()};
            keys = place("keys", kept, c.layers, true);
            values = place("values", kept, c.layers, true);
            logits = activation("logits", {cache.sequences, c.vocab}, 1);
        }
        if (policy == ActivationPolicy::inference) return;

        // The residual stream's gradient is updated in place all the way down; the others are short-lived.
        const bool stacked = policy == ActivationPolicy::all;
        const auto again = [&](const Tensor& first, const char* name, int64_t copies,
                               int64_t channels = 0) {  // in first's place; channels 0: as many as it has
            Tensor t = first;
            if (channels > 0) t.shape = {B, T, channels};
            if (stacked) return place(name, t.shape, copies, true);
            t.name = name, t.copies = copies;
            rows.push_back(t);
            return t;
        };
        dresidual1 = place("dresidual1", {B, T, C}, c.layers + 1, stacked);
        dresidual2 = again(dresidual1, "dresidual2", c.layers);
        dlnf = place("dlnf", {B, T, C}, 1, stacked);
        dln1 = again(dlnf, "dln1", c.layers);
        dln2 = again(dlnf, "dln2", c.layers);
        datty = again(dlnf, "datty", c.layers);
        dfch = recomputes_gelu(policy) ? again(fch_gelu, "dfch", c.layers)
                                       : place("dfch", {B, T, 4 * C}, c.layers, stacked);
        dqkv = again(dfch, "dqkv", c.layers, 3 * C);
    }
};
