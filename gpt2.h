// THE MODEL: GPT-2 (Radford et al. 2019), a pre-norm transformer over flat buffers, written once for every device.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gpt2_model.h"
#include "gpt2_sampled_softmax.h"
#include "gpt2_slices.h"
#include "gpt2_tensors.h"
#include "gpt2_weights.h"
#include "device/bf16.h"
#include "layers/layers.h"

// Scalar is the type that parameters and activations are stored in. With bf16, statistics, losses and the optimizer's
// buffers are still fp32, and the parameters are a rounded copy of `master`.
template <class Device, class Scalar = typename Device::scalar>
class GPT2 final : public Model {
public:
    using scalar = Scalar;
    using wide = std::conditional_t<std::is_same_v<scalar, bf16>, float, scalar>;
    static constexpr bool mixed = !std::is_same_v<scalar, wide>;
    // Whether the device can share an update among ranks: it sums the squares of the gradients in parts.
    static constexpr bool sharable = requires(Device & d, double* sums, const wide* x) {
        sums_of_squares(d, sums, x, int64_t{});
    };
    // Whether the device can compute the softmax of a sample of the tokens.
    static constexpr bool can_sample = requires(Device & d, scalar* x, const int32_t* rows) {
        index_select(d, x, x, rows, int64_t{}, int64_t{});
    };
    template <class Element>
    using Buffer = decltype(allocate<Element>(std::declval<Device&>(), int64_t{}));

    // Activations are planned for batches of at most B x T tokens; ActivationPolicy::inference makes a model that
    // cannot train, and an empty cache one that cannot generate.
    GPT2(Device device, const GPT2Config& c, int64_t B, int64_t T, ActivationPolicy p, CacheSize size = {},
         const Sharing& sharing = {})
        : Model(c, size, weight_type(device)),
          policy(p),
          acts(c, B, T, p, sizeof(wide) / sizeof(scalar), size),
          ranks(*sharing.ranks),
          slices(update_slices(table, ranks.count(), sharing.muon)),
          mine(slices[static_cast<size_t>(ranks.rank())]),
          held{mine.begin / aligned_values * aligned_values, mine.end},
          dev(std::move(device)),
          parameters(allocate<scalar>(dev, ParameterTable(c).size)),
          activations(allocate<scalar>(dev, acts.size)),
          status(allocate<StepStatus>(dev, 1)) {
        if (ranks.count() > 1 && !sharable) throw std::logic_error("this device cannot share an update among ranks");
        if (mixed) master = allocate<wide>(dev, held.size());
        if (policy == ActivationPolicy::inference) return;
        gradients = allocate<wide>(dev, table.size);
        for (int64_t level = 0; level < tree_levels(sharing.shards); ++level)
            subtrees.push_back(allocate<wide>(dev, table.size));
        m = allocate<wide>(dev, held.size());
        v = allocate<wide>(dev, held.size());
        if (ranks.count() == 1) return;
        received = allocate<wide>(dev, slice_sum::received_floats(ranks.count()));
        run_squares = allocate<double>(dev, global_norm::runs(table.size));
    }

    // x + Attention(LN(x)), then x + MLP(LN(x)). In generation, `kept` has the keys and values of earlier positions.
    void block_forward(int64_t l, int64_t B, int64_t T, const Dropout& dropout = {},
                       const KeysValues<scalar>* kept = nullptr) {
        const auto w = [&](const Parameter& p) { return parameters.get() + p.at(l); };  // this layer's weights
        const auto a = [&](const Tensor& t) { return activations.get() + t.at(l); };    // this layer's activations
        const auto s = [&](const Tensor& t) { return statistics(t, l); };
        const auto& [p, t] = std::tie(table, acts);
        const int64_t C = config.channels, N = B * T;
        scalar* const out = activations.get() + t.residual1.at(l + 1);  // the next block's input
        layernorm_forward(dev, a(t.ln1), s(t.ln1_mean), s(t.ln1_rstd), a(t.residual1), w(p.ln1w), w(p.ln1b), N, C);
        matmul_forward(dev, a(t.qkv), a(t.ln1), w(p.qkvw), w(p.qkvb), N, C, 3 * C);
        if (kept) append_keys_values(dev, *kept, a(t.qkv), B, T, C, config.heads);
        if (kept && kept->past > 0)
            cached_attention_forward(dev, a(t.atty), *kept, a(t.qkv), B, T, C, config.heads);
        else
            attention_forward(dev, a(t.atty), s(t.logsumexp), a(t.qkv), B, T, C, config.heads,
                              dropout.at(l, DropoutSite::attention));
        projection_forward(a(t.residual2), a(t.atty), w(p.attprojw), w(p.attprojb), a(t.residual1), B, T, C,
                           dropout.at(l, DropoutSite::attention_projection));
        layernorm_forward(dev, a(t.ln2), s(t.ln2_mean), s(t.ln2_rstd), a(t.residual2), w(p.ln2w), w(p.ln2b), N, C);
        matmul_gelu_forward(dev, a(t.fch_gelu), a(t.fch), a(t.ln2), w(p.fcw), w(p.fcb), N, C, 4 * C);
        projection_forward(out, a(t.fch_gelu), w(p.fcprojw), w(p.fcprojb), a(t.residual2), B, T, 4 * C,
                           dropout.at(l, DropoutSite::mlp_projection));
    }

    // From the gradient of the block's output to that of its input, and += those of its parameters.
    void block_backward(int64_t l, int64_t B, int64_t T, const Dropout& dropout) {
        const auto w = [&](const Parameter& p) { return parameters.get() + p.at(l); };
        const auto dw = [&](const Parameter& p) { return gradients.get() + p.at(l); };
        const auto a = [&](const Tensor& t) { return activations.get() + t.at(l); };
        const auto s = [&](const Tensor& t) { return statistics(t, l); };
        const auto& [p, t] = std::tie(table, acts);
        const int64_t C = config.channels, N = B * T;
        const scalar* const dout = activations.get() + t.dresidual1.at(l + 1);
        const scalar* const fch_gelu = recomputes_gelu(policy) ? nullptr : a(t.fch_gelu);
        // The gradients of what dropout drops lie in the place of others that are not computed yet.
        const scalar* const dfcproj =
            projection_backward(a(t.dln2), dout, B, T, dropout.at(l, DropoutSite::mlp_projection));
        matmul_gelu_backward(dev, a(t.dfch), dw(p.fcprojw), dw(p.fcprojb), dfcproj, fch_gelu, a(t.fch), w(p.fcprojw), N,
                             4 * C, C, accumulate);
        matmul_backward(dev, a(t.dln2), dw(p.fcw), dw(p.fcb), a(t.dfch), a(t.ln2), w(p.fcw), N, C, 4 * C, accumulate);
        layernorm_backward(dev, a(t.dresidual2), dw(p.ln2w), dw(p.ln2b), a(t.dln2), a(t.residual2), w(p.ln2w),
                           s(t.ln2_mean), s(t.ln2_rstd), dout, N, C);
        const scalar* const dattproj =
            projection_backward(a(t.dqkv), a(t.dresidual2), B, T, dropout.at(l, DropoutSite::attention_projection));
        matmul_backward(dev, a(t.datty), dw(p.attprojw), dw(p.attprojb), dattproj, a(t.atty), w(p.attprojw), N, C, C,
                        accumulate);
        attention_backward(dev, a(t.dqkv), a(t.datty), a(t.atty), a(t.qkv), s(t.logsumexp), B, T, C, config.heads,
                           dropout.at(l, DropoutSite::attention));
        matmul_backward(dev, a(t.dln1), dw(p.qkvw), dw(p.qkvb), a(t.dqkv), a(t.ln1), w(p.qkvw), N, C, 3 * C,
                        accumulate);
        layernorm_backward(dev, a(t.dresidual1), dw(p.ln1w), dw(p.ln1b), a(t.dln1), a(t.residual1), w(p.ln1w),
                           s(t.ln1_mean), s(t.ln1_rstd), a(t.dresidual2), N, C);
    }

    // Recomputes, to the same bits, the activations that block_backward reads and block_forward did not keep.
    void recompute(int64_t l, int64_t B, int64_t T, const Dropout& dropout) {
        const auto w = [&](const Parameter& p) { return parameters.get() + p.at(l); };
        const auto a = [&](const Tensor& t) { return activations.get() + t.at(l); };
        const auto s = [&](const Tensor& t) { return statistics(t, l); };
        const auto& [p, t] = std::tie(table, acts);
        const int64_t C = config.channels, N = B * T;
        if (policy == ActivationPolicy::recompute_block) return block_forward(l, B, T, dropout);
        if (policy != ActivationPolicy::recompute_ln) return;
        layernorm_forward(dev, a(t.ln1), s(t.ln1_mean), s(t.ln1_rstd), a(t.residual1), w(p.ln1w), w(p.ln1b), N, C);
        layernorm_forward(dev, a(t.ln2), s(t.ln2_mean), s(t.ln2_rstd), a(t.residual2), w(p.ln2w), w(p.ln2b), N, C);
    }

    // tokens (B,T) to the final norm's output.
    void forward(const int32_t* tokens, int64_t B, int64_t T, const Dropout& dropout = {}) {
        const auto w = [&](const Parameter& p) { return parameters.get() + p.offset; };
        const auto a = [&](const Tensor& t) { return activations.get() + t.offset; };
        const auto s = [&](const Tensor& t) { return statistics(t); };
        const int64_t C = config.channels;
        embedding_forward(dev, a(acts.residual1), tokens, w(table.wte), w(table.wpe), B, T, C);
        if (dropout.on()) apply_dropout(dev, a(acts.residual1), a(acts.residual1), no_residual, dropout, B, T, C);
        for (int64_t l = 0; l < config.layers; ++l) block_forward(l, B, T, dropout);
        const scalar* const last = activations.get() + acts.residual1.at(config.layers);
        layernorm_forward(dev, a(acts.lnf), s(acts.lnf_mean), s(acts.lnf_rstd), last, w(table.lnfw), w(table.lnfb),
                          B * T, C);
    }

    void forward_backward(const int32_t* x, const int32_t* y, int64_t B, int64_t T, double scale) override {
        const auto batch = batch_for(dev, x, y, B * T);
        const int32_t *const inputs = batch.first, *const targets = batch.second;
        const Dropout dropout = training_dropout();
        replay(dev, {B, T, std::bit_cast<int64_t>(scale), accumulate}, [&, inputs, targets] {
            forward(inputs, B, T, dropout);
            backward(inputs, targets, B, T, scale, dropout);
            add_loss(dev, status.get(), statistics(acts.losses), B * T, scale);
        });
        if (ranks.count() > 1) batch_losses.push_back(take(dev, status.get()).loss);
        accumulate = true;
    }

    // The dropout of the batch at batch_place, with the site of the embedding.
    Dropout training_dropout() {
        const uint32_t threshold = Dropout::threshold_of(config.dropout);
        if (threshold == 0) return {};
        return {.place = on_device(dev, batch_place), .threshold = threshold};
    }

    void sample_softmax(std::vector<double> shares, int64_t drawn) override {
        if (!can_sample) throw std::logic_error("this device has no sampled softmax");
        sampler.emplace(std::move(shares), drawn);
        classifier_tokens = sampler->expected_tokens(acts.losses.piece());
        sampled_wte = allocate<scalar>(dev, config.vocab * config.channels);
        dsampled_wte = allocate<wide>(dev, config.vocab * config.channels);
        used_rows.assign(static_cast<size_t>(config.vocab), 1);
    }

    void prefetch(const int32_t* x, const int32_t* y, int64_t B, int64_t T) override {
        prefetch_batch(dev, x, y, B * T);
    }

    // subtrees[l], a sum of 2^l shards, waits for the subtree on its right, as a bit of a binary counter for its carry.
    void end_shard(int64_t shard) override {
        size_t level = 0;
        if (!subtrees.empty()) std::ranges::fill(used_rows, uint8_t{1});  // by any of the shards
        for (; shard >> level & 1; ++level) add(dev, gradients.get(), subtrees[level].get(), table.size);
        if (level == subtrees.size()) return;  // that was the last shard
        copy(dev, subtrees[level].get(), gradients.get(), table.size);
        zero_added_gradients();
        accumulate = false;
    }

    // After forward: computes the losses, and gradients += the gradient of scale * (sum of the losses).
    void backward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T, double scale,
                  const Dropout& dropout = {}) {
        const auto w = [&](const Parameter& p) { return parameters.get() + p.offset; };
        const auto dw = [&](const Parameter& p) { return gradients.get() + p.offset; };
        const auto a = [&](const Tensor& t) { return activations.get() + t.offset; };
        const auto s = [&](const Tensor& t) { return statistics(t); };
        const int64_t L = config.layers, C = config.channels, N = B * T;
        if (sampler)
            sampled_classifier(targets, N, scale);
        else
            classifier_forward_backward(dev, s(acts.losses), a(acts.dlnf), dw(table.wte), a(acts.lnf), w(table.wte),
                                        targets, N, C, config.vocab, static_cast<wide>(scale), accumulate);
        layernorm_backward(dev, activations.get() + acts.dresidual1.at(L), dw(table.lnfw), dw(table.lnfb), a(acts.dlnf),
                           activations.get() + acts.residual1.at(L), w(table.lnfw), s(acts.lnf_mean), s(acts.lnf_rstd),
                           no_residual, N, C);
        for (int64_t l = L - 1; l >= 0; --l) {
            if (l < L - 1) recompute(l, B, T, dropout);  // the last block's activations are still in the buffers
            block_backward(l, B, T, dropout);
        }
        if (dropout.on()) apply_dropout(dev, a(acts.dresidual1), a(acts.dresidual1), no_residual, dropout, B, T, C);
        if constexpr (can_sample)
            if (sampler)
                for (int64_t n = 0; n < N; ++n) used_rows[static_cast<size_t>(tokens[n])] = 1;
        embedding_backward(dev, dw(table.wte), dw(table.wpe), a(acts.dresidual1), tokens, B, T, C);
    }

    double loss() override { return to_host(dev, status.get()).loss; }

    // The sum of the B*T losses, without gradients.
    double evaluate(const int32_t* x, const int32_t* y, int64_t B, int64_t T) {
        compute_losses(x, y, B, T);
        return sum(dev, statistics(acts.losses), B * T);
    }

    void token_losses(float* losses, const int32_t* x, const int32_t* y, int64_t B, int64_t T) override {
        compute_losses(x, y, B, T);
        to_host(dev, losses, statistics(acts.losses), B * T);
    }

    void token_logits(float* logits, int64_t n) override {
        scalar* const row = activations.get() + acts.logits.offset;
        classifier_logits(dev, row, activations.get() + acts.lnf.offset + n * config.channels,
                          parameters.get() + table.wte.offset, 1, config.channels, config.vocab);
        to_host(dev, logits, row, config.vocab);
    }

    void append(float* logits, const int32_t* x, int64_t B, int64_t T) override {
        if (B > cache.sequences || appended() + T > cache.positions)
            throw std::logic_error("append: more sequences or tokens than the cache has room for");
        // Several tokens of one sequence at a time, as many as there are activations for, or one token of a few.
        const int64_t at_once = acts.lnf_mean.piece(), together = T == 1 ? std::min<int64_t>(at_once, 16) : 1;
        for (int64_t b = 0; b < B; b += together) {
            const int64_t sequences = std::min(together, B - b);
            for (int64_t t = 0; t < T; t += at_once) {
                const int64_t count = std::min(at_once, T - t), n = sequences * count;
                append_forward(batch_for(dev, x + b * T + t, x + b * T + t, n).first, b, sequences, appended() + t,
                               count);
                if (t + count == T) next_logits(logits, b, sequences, count);
            }
        }
        appended_ += T;
    }

    void branch(int64_t B) override {
        const int64_t sequence = cache.positions * config.channels;
        for (const Tensor* kept : {&acts.keys, &acts.values})
            for (int64_t l = 0; l < config.layers; ++l)
                for (int64_t b = 1; b < B; ++b) {
                    scalar* const first = activations.get() + kept->at(l);
                    copy(dev, first + b * sequence, first, sequence);
                }
    }

    StepResult update(const UpdateParams& params) override {
        if (!accumulate) zero(dev, gradients.get(), table.size);  // there was no batch since the last update
        const UpdateParams this_step = with_rounding(params);
        const UpdateParams* const of_step = on_device(dev, this_step);
        const bool shared = ranks.count() > 1;
        if (shared) sum_over_ranks();
        // A graph of its own: the graph of a batch does not know whether an update follows.
        replay(dev, {0, 0, static_cast<int64_t>(params.optimizer), rounding_seed.has_value()}, [&] {
            if (shared)
                decide_by_sums(dev, status.get(), run_squares.get(), global_norm::runs(table.size), of_step);
            else if constexpr (can_sample)
                decide(dev, status.get(), gradients.get(), table.size, of_step, embedding_rows());
            else
                decide(dev, status.get(), gradients.get(), table.size, of_step);
            apply_update(of_step, params.optimizer);
            if constexpr (mixed)
                round_to(parameters.get() + mine.begin, weight(mine.begin), mine, of_step, status.get());
            zero_added_gradients();
        });
        if (shared) gather_over_ranks(parameters.get());
        accumulate = false;
        const StepResult result = step_result(take(dev, status.get()));
        if (result.applied) last_applied = params.step;
        return result;
    }

    HostState to_fill() override {
        if constexpr (std::is_same_v<wide, float>) {
            HostState host;
            host.parameters = host_room(dev, weight(0), table.size, host.copies[0]);
            if (m) host.m = host_room(dev, m.get() + padding(), mine.size(), host.copies[1]);
            if (v) host.v = host_room(dev, v.get() + padding(), mine.size(), host.copies[2]);
            return host;
        }
        throw std::logic_error("the files hold floats: only float models are read and written");
    }
    HostState download() override {
        if constexpr (std::is_same_v<wide, float>) {
            HostState host;
            wide* all = weight(0);
            if (mixed && ranks.count() > 1) {  // between steps the gradients' memory is free
                all = gradients.get();
                copy(dev, all + mine.begin, weight(mine.begin), mine.size());
                gather_over_ranks(all);
            }
            if (ranks.first()) host.parameters = from_device(dev, all, table.size, host.copies[0]);
            if (all == gradients.get()) zero(dev, all, table.size);
            if (m) host.m = from_device(dev, m.get() + padding(), mine.size(), host.copies[1]);
            if (v) host.v = from_device(dev, v.get() + padding(), mine.size(), host.copies[2]);
            return host;
        }
        throw std::logic_error("the files hold floats: only float models are read and written");
    }
    void upload(const HostState& host) override {
        if constexpr (std::is_same_v<wide, float>) {
            if (m) to_device(dev, m.get() + padding(), host.m, mine.size());
            if (v) to_device(dev, v.get() + padding(), host.v, mine.size());
            if constexpr (mixed) {
                to_device(dev, weight(mine.begin), host.parameters + mine.begin, mine.size());
                const UpdateParams last = with_rounding({.step = last_applied});
                const wide* all = master.get();
                if (ranks.count() > 1)
                    to_device(dev, gradients.get(), host.parameters, table.size), all = gradients.get();
                round_to(parameters.get(), all, {0, table.size}, on_device(dev, last), nullptr);
                if (ranks.count() > 1) zero(dev, gradients.get(), table.size);
            } else {
                to_device(dev, weight(0), host.parameters, table.size);
            }
        }
        if (policy == ActivationPolicy::inference) master = nullptr;  // the layers read its rounded copy
        convert_weights(dev, parameters, config, table);
    }
    void set_profile(Profile* profile) override { dev.profile = profile; }

    const ActivationPolicy policy;
    const ActivationTable acts;
    Ranks& ranks;
    const std::vector<Slice> slices;  // of the parameters that each rank updates
    // Of m, v and master there is only what this rank updates, from an aligned value on: a GPU adds in an order that
    // depends on the alignment, which has to be that of one process.
    const Slice mine, held;
    Device dev;
    Buffer<scalar> parameters, activations;
    Buffer<wide> gradients, m, v, master;  // master: null unless mixed
    std::vector<Buffer<wide>> subtrees;    // of the tree over the shards
    Buffer<wide> received;                 // parts of the gradients of other ranks
    Buffer<double> run_squares;            // the sums of squares of the gradients' runs, if there are other ranks
    std::vector<double> batch_losses;      // of this rank's batches since the last update, if there are other ranks
    std::optional<SoftmaxSampler> sampler;
    Buffer<scalar> sampled_wte;  // (V,C) at most, of a batch's sample, with its gradient
    Buffer<wide> dsampled_wte;
    std::vector<uint8_t> used_rows;  // (V), with a sampler: 0 where the token embeddings have no gradients
    Buffer<StepStatus> status;
    bool accumulate = false;  // false: `gradients` is stale or zero, and matmuls write to it with = instead of +=

private:
    // The token embeddings are the first of the parameters. Without a sampler nothing is known of their rows.
    UsedRows embedding_rows() const {
        return sampler ? UsedRows{used_rows.data(), config.vocab, config.channels} : UsedRows{};
    }

    // The classifier's forward and backward over a sample of the vocabulary.
    void sampled_classifier(const int32_t* targets, int64_t N, double scale) {
        if constexpr (can_sample) {
            const SoftmaxSample& sample = sampler->draw(targets, N, batch_place);
            const int64_t C = config.channels, S = std::ssize(sample.tokens);
            scalar* const weight = sampled_wte.get();
            wide *const dweight = dsampled_wte.get(), *const dwte = gradients.get() + table.wte.offset;
            index_select(dev, weight, parameters.get() + table.wte.offset, sample.tokens.data(), S, C);
            classifier_forward_backward(dev, statistics(acts.losses), activations.get() + acts.dlnf.offset, dweight,
                                        activations.get() + acts.lnf.offset, weight, sample.targets.data(), N, C, S,
                                        static_cast<wide>(scale), false, sample.counts.data());
            if (!accumulate) {
                zero_used(dev, dwte, embedding_rows());
                std::ranges::fill(used_rows, uint8_t{0});
            }
            index_add(dev, dwte, dweight, sample.tokens.data(), S, C);
            for (const int32_t token : sample.tokens) used_rows[static_cast<size_t>(token)] = 1;
        }
    }

    // x, y (B,T) to losses (B,T), without gradients.
    void compute_losses(const int32_t* x, const int32_t* y, int64_t B, int64_t T) {
        const auto [inputs, targets] = batch_for(dev, x, y, B * T);
        forward(inputs, B, T);
        classifier_forward(dev, statistics(acts.losses), activations.get() + acts.lnf.offset,
                           parameters.get() + table.wte.offset, targets, B * T, config.channels, config.vocab);
    }

    // tokens (B,T) of the sequences from `first` on, at the positions after `past` others, to the last block's output.
    void append_forward(const int32_t* tokens, int64_t first, int64_t B, int64_t past, int64_t T) {
        const int64_t C = config.channels, offset = first * cache.positions * C;
        embedding_forward(dev, activations.get() + acts.residual1.offset, tokens, parameters.get() + table.wte.offset,
                          parameters.get() + table.wpe.offset + past * C, B, T, C);
        for (int64_t l = 0; l < config.layers; ++l) {
            const KeysValues<scalar> kept{.keys = activations.get() + acts.keys.at(l) + offset,
                                          .values = activations.get() + acts.values.at(l) + offset,
                                          .capacity = cache.positions,
                                          .past = past};
            block_forward(l, B, T, {}, &kept);
        }
    }

    // The logits, from row `first` on, of the tokens that follow the T that append_forward computed in B sequences.
    void next_logits(float* logits, int64_t first, int64_t B, int64_t T) {
        const int64_t C = config.channels, V = config.vocab;
        const auto a = [&](const Tensor& t) { return activations.get() + t.offset; };
        const scalar* const last = activations.get() + acts.residual1.at(config.layers);
        scalar* const rows = a(acts.logits) + first * V;
        for (int64_t b = 0; b < B; ++b)
            layernorm_forward(dev, a(acts.lnf) + b * C, statistics(acts.lnf_mean), statistics(acts.lnf_rstd),
                              last + (b * T + T - 1) * C, parameters.get() + table.lnfw.offset,
                              parameters.get() + table.lnfb.offset, 1, C);
        classifier_logits(dev, rows, a(acts.lnf), parameters.get() + table.wte.offset, B, C, V);
        to_host(dev, logits + first * V, rows, B * V);
    }

    // out (B,T,C) = residual + dropout(inp (B,T,K) · weightᵀ + bias)
    void projection_forward(scalar* out, const scalar* inp, const scalar* weight, const scalar* bias,
                            const scalar* residual, int64_t B, int64_t T, int64_t K, const Dropout& dropout) {
        const int64_t C = config.channels;
        if (!dropout.on()) return matmul_residual_forward(dev, out, inp, weight, bias, residual, B * T, K, C);
        matmul_forward(dev, out, inp, weight, bias, B * T, K, C);
        apply_dropout(dev, out, out, residual, dropout, B, T, C);
    }

    // The gradient of what projection_forward adds to its residual, before dropout: dout or, with dropout, `memory`.
    const scalar* projection_backward(scalar* memory, const scalar* dout, int64_t B, int64_t T,
                                      const Dropout& dropout) {
        if (!dropout.on()) return dout;
        apply_dropout(dev, memory, dout, no_residual, dropout, B, T, config.channels);
        return memory;
    }

    // Matmuls write the gradients of their weights first; other layers only add to theirs.
    void zero_added_gradients() {
        for (const Parameter& p : table.rows)
            if (!p.matmul_weight) zero(dev, gradients.get() + p.offset, p.copies * p.stride);
    }

    int64_t padding() const { return mine.begin - held.begin; }
    wide* weight(int64_t at) {  // what the optimizer works on
        if constexpr (mixed)
            return master.get() + (at - held.begin);
        else
            return parameters.get() + at;
    }

    UpdateParams with_rounding(UpdateParams params) const {
        params.rounding_seed = rounding_seed.value_or(0);
        return params;
    }

    // The parameters `part` that the layers read, from the optimizer's, unless `update` says that it was skipped.
    void round_to(scalar* out, const wide* in, Slice part, const UpdateParams* params, const StepStatus* update) {
        if (rounding_seed)
            round_stochastically(dev, out, in, part.size(), params, update, part.begin);
        else
            convert(dev, out, in, part.size(), update);
    }

    wide* statistics(const Tensor& t, int64_t copy = 0) {
        return reinterpret_cast<wide*>(activations.get() + t.at(copy));
    }

    // This rank's slice of the parameters.
    void apply_update(const UpdateParams* params, Optimizer optimizer) {
        std::vector<MuonMatrix<wide>> matrices;
        for (const Parameter& p : table.rows) {
            if (optimizer != Optimizer::adamw && p.muon()) {
                for (int64_t l = 0; l < p.copies; ++l)
                    if (const int64_t at = p.at(l), moments = at - held.begin; mine.begin <= at && at < mine.end)
                        matrices.push_back({weight(at), m.get() + moments, gradients.get() + at, p.shape[0], p.shape[1],
                                            optimizer == Optimizer::normuon ? v.get() + moments : nullptr});
                continue;
            }
            const Slice part = Slice{p.offset, p.offset + p.copies * p.stride}.in(mine);
            const int64_t at = part.begin, moments = at - held.begin;
            if (part.size() == 0) continue;
            if constexpr (can_sample)
                if (sampler && p.offset == table.wte.offset) {
                    sparse_adamw_update(dev, weight(at), gradients.get() + at, v.get() + moments, part.size(), params,
                                        status.get(), ranks.count() > 1 ? UsedRows{} : embedding_rows());
                    continue;
                }
            adamw_update(dev, weight(at), gradients.get() + at, m.get() + moments, v.get() + moments, part.size(),
                         params, p.decay(), status.get());
        }
        muon_update(dev, matrices, params, status.get());
    }

    // Over several ranks: the loss becomes that of all ranks' batches, added in order, and the gradients of this rank's
    // slice those of all ranks. Each rank sums the squares of the runs that begin in its slice, for all.
    void sum_over_ranks() {
        if constexpr (sharable) {
            std::ranges::fill(used_rows, uint8_t{1});  // by any of the ranks
            double loss = 0;
            for (const double of_batch : all_gather(ranks, std::span<const double>(batch_losses))) loss += of_batch;
            batch_losses.clear();
            to_device(dev, &status.get()->loss, &loss, 1);
            constexpr int64_t run = global_norm::run;
            {
                const Timed timed(dev, "sum over ranks", 0, 4 * prod(table.size - mine.size()));
                const auto size = static_cast<size_t>(slice_sum::received_floats(ranks.count()));
                sum_slice(dev, ranks, gradients.get(), std::span<const Slice>(slices), std::span(received.get(), size));
                complete_last_run(dev, ranks, gradients.get(), std::span<const Slice>(slices), run);
            }
            std::vector<int64_t> cuts;
            for (const Slice& s : slices) cuts.push_back(global_norm::runs(s.begin));
            cuts.push_back(global_norm::runs(table.size));
            const int64_t first = cuts[static_cast<size_t>(ranks.rank())], begin = std::min(first * run, table.size),
                          end = std::min(cuts[static_cast<size_t>(ranks.rank()) + 1] * run, table.size);
            sums_of_squares(dev, run_squares.get() + first, gradients.get() + begin, end - begin);
            all_gather_on(dev, ranks, run_squares.get(), cuts);
        }
    }

    // Fetches the other ranks' slices of x.
    template <class T>
    void gather_over_ranks(T* x) {
        const Timed timed(dev, "gather over ranks", 0, prod(sizeof(T), mine.size(), ranks.count() - 1));
        std::vector<int64_t> cuts{0};
        for (const Slice& s : slices) cuts.push_back(s.end);
        all_gather_on(dev, ranks, x, cuts);
    }

    static constexpr const scalar* no_residual = nullptr;
};
