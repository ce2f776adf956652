// Draws training batches, one batch ahead of its use.
#pragma once

#include <cstdint>
#include <vector>

#include "gpt2_model.h"
#include "io/data/batch_sampler.h"

class Batches {
public:
    // Throws InputError as BatchSampler does.
    Batches(const Dataset& dataset, int64_t batch, int64_t seq, uint64_t seed)
        : sampler_(dataset, batch, seq, seed), B(batch), T(seq), x_(static_cast<size_t>(B * T)), y_(x_.size()) {}

    // The position of the first unused batch, which a checkpoint saves.
    int64_t position() const { return position_; }
    void seek(int64_t position) {
        sampler_.seek(position);
        position_ = position;
        drawn_ = false;
    }

    // Calls use(x, y) with x and y (B,T) for `count` batches, or until it returns false. After each call, while a GPU
    // is still computing, the next batch is drawn and its copy begins, even if it belongs to the next step.
    template <class Use>
    void each(Model& model, int64_t count, const Use& use) {
        if (!drawn_) draw();
        for (bool go_on = true; go_on && count > 0; --count) {
            go_on = use(x_.data(), y_.data());
            position_ = sampler_.position();
            draw();
            model.prefetch(x_.data(), y_.data(), B, T);
        }
    }

private:
    void draw() {
        sampler_.next(x_.data(), y_.data());
        drawn_ = true;
    }
    BatchSampler sampler_;
    const int64_t B, T;
    std::vector<int32_t> x_, y_;  // drawn, but not used
    bool drawn_ = false;
    int64_t position_ = 0;
};
