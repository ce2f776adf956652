// The interface of a GPT-2 that the training loop, `generate` and `eval` use, the same for every device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpt2_tensors.h"
#include "device/device.h"
#include "device/profile.h"
#include "device/random.h"
#include "device/update.h"

struct Model {
    explicit Model(const GPT2Config& c, CacheSize size = {}, WeightType weights = WeightType::fp32)
        : config(c), table(c, weights), cache(size) {}
    virtual ~Model() = default;
    Model(const Model&) = delete;

    const GPT2Config config;
    const ParameterTable table;
    const CacheSize cache;

    // Parameters and AdamW's moments (null unless training) in host memory, `table.size` floats each; of several ranks
    // each has the moments of its slice only. On the Cpu they are the model's own buffers. Elsewhere they are copies
    // that live as long as this object, and upload() writes them back. A model with bf16 or int8 weights has floats
    // until the first upload(), which converts them; download() is not called after it.
    struct HostState {
        float *parameters = nullptr, *m = nullptr, *v = nullptr;
        std::array<HostBuffer<float>, 3> copies{};  // own what the pointers point to, if they are copies
    };
    // Of several ranks, all call download() together, and only the first one gets parameters.
    virtual HostState download() = 0;
    virtual void upload(const HostState& host) = 0;
    // Memory for what upload() takes, in which download()'s values need not be yet.
    virtual HostState to_fill() = 0;

    // A device with parameters in bf16 rounds them stochastically in upload() and update(), or to nearest without a
    // seed. The bits depend on the last step whose update was applied, so that a resumed run rounds to the same ones.
    std::optional<uint64_t> rounding_seed;
    int64_t last_applied = 0;

    // forward_backward's batch lies here in the training run. Dropout draws its masks for this place.
    BatchPlace batch_place;

    // From now on forward_backward computes the softmax of its batch's targets and `drawn` random tokens, of
    // config.vocab, whose shares of the training data are `shares` (gpt2_sampled_softmax.h), for batch_place. Losses
    // are then estimates. token_losses() and the logits are those of all tokens. Not on every device.
    virtual void sample_softmax(std::vector<double> shares, int64_t drawn) = 0;

    virtual void set_profile(Profile* profile) = 0;  // from now on the layers add their times to it

    // gradients += the gradient of scale * (sum of the B*T losses), x, y (B,T). The same sum is added to the loss that
    // update() and loss() return. x and y may be reused when this returns, even if a GPU still computes.
    virtual void forward_backward(const int32_t* x, const int32_t* y, int64_t B, int64_t T, double scale) = 0;
    // A hint: forward_backward will be called with this batch next. A GPU copies it while it still computes. The hint
    // never changes results. x and y may be reused when this returns.
    virtual void prefetch(const int32_t*, const int32_t*, int64_t, int64_t) {}
    // Ends shard 0, 1, … of a step, one of 2^n equal parts of its batches. The gradients of the shards are summed over
    // a balanced binary tree; after the last shard, `gradients` is their sum.
    virtual void end_shard(int64_t shard) = 0;
    // The loss of the batches since the last update.
    virtual double loss() = 0;
    // losses (B,T) in nats, without gradients. Of a few long sequences or of many short ones: any T up to the planned
    // one, and at most the planned B*T tokens.
    virtual void token_losses(float* losses, const int32_t* x, const int32_t* y, int64_t B, int64_t T) = 0;
    // The logits (V) of prediction n, 0 … B*T - 1, of the last token_losses. Needs a cache of one sequence.
    virtual void token_logits(float* logits, int64_t n) = 0;

    // Generation. Appends x (B,T) to the first B sequences and writes the logits (B,V) of the tokens that follow. The
    // keys and values of earlier tokens are kept, so only the new ones are computed. A sequence's bits do not depend on
    // the others. All sequences have appended() tokens, at most cache.positions; B is at most cache.sequences.
    virtual void append(float* logits, const int32_t* x, int64_t B, int64_t T) = 0;
    // Makes the first B sequences equal to the first one.
    virtual void branch(int64_t B) = 0;
    int64_t appended() const { return appended_; }
    // Keeps the first `tokens` tokens of each sequence, at most appended().
    void truncate(int64_t tokens) { appended_ = tokens; }

    // FLOPs of a training step per token of sequences of T: 6 for each weight of a matrix (2 forward, 4 backward), and
    // three times attention's two matmuls over the half of the T x T scores that is not masked. Of a sampled softmax,
    // the classifier's matrix has as many rows as a batch of the planned size is expected to need.
    double flops_per_token(int64_t T) const {
        const int64_t C = config.channels, matrices = config.layers * 12 * C * C + classifier_tokens * C;
        return static_cast<double>(6 * matrices + 6 * config.layers * C * T);
    }

    // Clips the gradients and updates the parameters; params come from at_step(). Weight decay is for matrices only.
    // With Muon the matrices of the blocks have its momentum in m, with NorMuon also its squares where v begins for
    // each. With a sampled softmax the token embeddings have sparse_adamw_update(). No parameter and no moment changes
    // if loss or gradient norm exceeds its maximum. The gradients are zero afterwards.
    virtual StepResult update(const UpdateParams& params) = 0;

protected:
    int64_t appended_ = 0;
    int64_t classifier_tokens = config.vocab;  // that a training step computes logits of
};
