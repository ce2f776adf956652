// Draws training batches, one batch ahead of its use.
#pragma once

#include <cstdint>
#include <vector>

#include "gpt2_model.h"
#include "io/data/batch_sampler.h"

// Of every `all` batches in a row, this rank uses those from `first` on, `own` of them.
struct Turns {
    int64_t first = 0, own = 1, all = 1;
};

class Batches {
public:
    // Throws InputError as BatchSampler does.
    Batches(const Dataset& dataset, int64_t batch, int64_t seq, uint64_t seed, const Turns& turns = {},
            int32_t end_of_text = -1)
        : sampler_(dataset, batch, seq, seed, end_of_text),
          turns_(turns),
          B(batch),
          T(seq),
          x_(static_cast<size_t>(B * T)),
          y_(x_.size()) {
        seek(0);
    }

    const BatchSampler& sampler() const { return sampler_; }
    // The position of the first unused batch.
    int64_t position() const { return position_; }
    // The next `all` batches begin at this position.
    void seek(int64_t position) {
        sampler_.seek(position);
        sampler_.skip(turns_.first * B);
        position_ = sampler_.position();
        in_turn_ = 0;
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
        if (++in_turn_ == turns_.own) {
            sampler_.skip((turns_.all - turns_.own) * B);
            in_turn_ = 0;
        }
        drawn_ = true;
    }
    BatchSampler sampler_;
    const Turns turns_;
    int64_t in_turn_ = 0;  // batches drawn of the current turn
    const int64_t B, T;
    std::vector<int32_t> x_, y_;  // drawn, but not used
    bool drawn_ = false;
    int64_t position_ = 0;
};
