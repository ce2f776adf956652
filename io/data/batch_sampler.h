// The two ways to draw from a dataset: shuffled batches for training, windows in order for evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "io/data/dataset.h"

// Draws training batches: every epoch visits the shards, and the blocks of `seq` tokens within each, in an order
// shuffled by (seed, epoch), with the grid of blocks shifted by a random offset. Its state is one number. Shards
// shorter than a block are joined with their neighbours, and blocks run over their ends.
class BatchSampler {
public:
    // Saved in checkpoints. A change of the order of blocks needs a new version. Version 1 was that of mt19937_64.
    static constexpr int64_t order_version = 2;
    // Throws InputError if the dataset holds no block, which is seq + 1 tokens. With an `end_of_text`, each block lies
    // within one document: from the end-of-text before it, which may be the first input, to its own, which may be the
    // last target. Each document is then a grid of its own, and documents shorter than a block are left out.
    BatchSampler(const Dataset& dataset, int64_t batch, int64_t seq, uint64_t seed, int32_t end_of_text = -1);
    // x (B,T), y (B,T): y is x shifted by one token. Blocks fill rows in the order of drawing.
    void next(int32_t* x, int32_t* y);
    void skip(int64_t blocks);    // as next() does, without reading them
    int64_t position() const;     // blocks drawn since the start of training; what a checkpoint saves
    void seek(int64_t position);  // exact, in O(epochs * shards + blocks)
    int64_t epoch() const;        // of the next block

    // How much of the dataset the blocks of an epoch hold, if they lie within documents.
    struct DocumentShare {
        int64_t documents = 0, used = 0;  // used: those that hold a block
        int64_t tokens = 0, used_tokens = 0;
    };
    const DocumentShare& share() const;

private:
    struct State;
    std::shared_ptr<State> state_;
};

// Reads a stream in order, in windows of `seq` predictions, each of which begins `stride` tokens after the one before;
// the last window of a shard may be shorter. Only the predictions that no earlier window had are scored, so every token
// except the first of a shard is scored exactly once, with at least the seq - stride tokens before it in view.
class WindowReader {
public:
    // A stride of 0 is `seq`: the windows do not overlap. Throws InputError if there is nothing to predict.
    WindowReader(const Dataset& dataset, int64_t seq, int64_t stride = 0);
    int64_t windows() const { return first_window_.back(); }
    int64_t length(int64_t window) const;                     // predictions in it, 1 … seq
    int64_t repeated(int64_t window) const;                   // those at its start that an earlier window had
    void read(int64_t window, int32_t* x, int32_t* y) const;  // length(window) of each

private:
    int64_t shard_of(int64_t window) const;
    std::vector<Shard> shards_;
    std::vector<int64_t> first_window_;  // of each shard, then the total
    int64_t seq_, stride_;
};
