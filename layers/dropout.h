// Dropout (Srivastava et al. 2014): in training each value is dropped with probability p, and the others are divided by
// 1 - p. No mask is stored: whether a value is dropped is a function of the run's seed, the step, the part of the model
// and the value's place in the step, so that the backward pass and the recomputation find it again, and it is the same
// on every device, in batches of any size, on any number of threads and ranks.
#pragma once

#include <algorithm>
#include <cmath>

#include "device/device.h"
#include "device/random.h"

// GPT-2 drops after the embedding, in the weights of attention, and after each of a block's two projections.
enum class DropoutSite { attention, attention_projection, mlp_projection };

// The dropout of one site of the model. A draw gives 16 bits to each of 8 values, so p is a multiple of 1/65536.
struct Dropout {
    const BatchPlace* place = nullptr;  // where the device reads it: a recorded graph is replayed for other batches
    uint32_t threshold = 0;             // values whose 16 bits are below it are dropped; 0: off
    uint32_t site = 0;                  // 0: the embedding

    static uint32_t threshold_of(double p) { return static_cast<uint32_t>(std::min(std::lround(p * 65536), 65535l)); }
    Dropout at(int64_t layer, DropoutSite in_layer) const {
        return {place, threshold, static_cast<uint32_t>(1 + 3 * layer + static_cast<int64_t>(in_layer))};
    }
    bool on() const { return threshold > 0; }
    // 1 / (1 - p), for the p that the threshold stands for.
    double scale() const { return 65536.0 / (65536.0 - threshold); }

    // The first draw of the batch's row number `row`, of n values, if a sequence has `rows` of them. No two rows share
    // a draw.
    HOST_DEVICE uint64_t first_draw(int64_t row, int64_t rows, int64_t n) const {
        return static_cast<uint64_t>(place->first_sequence * rows + row) * static_cast<uint64_t>((n + 7) / 8);
    }
    HOST_DEVICE Random random() const { return {place->seed, Purpose::dropout, place->step}; }
    HOST_DEVICE Philox draw(uint64_t index) const { return random().bits(index, site); }
    // Whether value i of the row whose first draw is `first` is kept.
    HOST_DEVICE bool keeps(uint64_t first, int64_t i) const {
        return draw(first + static_cast<uint64_t>(i / 8)).bits16(static_cast<int>(i % 8)) >= threshold;
    }
};

// out (B,T,C) = residual + mask * inp / (1 - p); residual may be null, and out may be inp or residual. Its backward is
// the same function of dout, without residual.
template <class T>
void apply_dropout(Reference<T>&, T* out, const T* inp, const T* residual, const Dropout& dropout, int64_t B,
                   int64_t seq, int64_t C) {
    for (int64_t row = 0; row < B * seq; ++row)
        for (int64_t c = 0; c < C; ++c) {
            const int64_t i = row * C + c;
            const bool kept = dropout.keeps(dropout.first_draw(row, seq, C), c);
            out[i] = (residual ? residual[i] : 0) + (kept ? inp[i] * T(dropout.scale()) : 0);
        }
}
