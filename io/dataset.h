// Token streams on disk and the batches drawn from them. A stream is a list of llm.c shards (FORMATS: magic
// 20240520, uint16 ids), mapped into memory, never read whole; a text file is tokenised once into such shards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/tokenizer.h"

// One shard, mapped read-only.
class Shard {
public:
    explicit Shard(const std::string& path);  // checks magic, version and size; throws InputError
    ~Shard();
    Shard(Shard&&) noexcept;
    Shard(const Shard&) = delete;
    const uint16_t* tokens() const { return tokens_; }
    int64_t size() const { return size_; }  // tokens
    const std::string& path() const { return path_; }
private:
    std::string path_;
    void* map_ = nullptr;
    int64_t bytes_ = 0, size_ = 0;
    const uint16_t* tokens_ = nullptr;
};

struct Dataset {
    std::vector<Shard> shards;
    int64_t tokens() const;
};

struct Datasets {
    Dataset train, val;
};

// Opens --data and --val. A name ending in .bin, or a glob that matches such names, means shards; anything else is a
// text file, tokenised with `tokenizer` into `cache_directory` (once: reused while the text and tokenizer are
// unchanged). Without `val`, text is split 90/10 at a byte offset moved to a character boundary, and for
// shards the last one (if there are several) or the last tenth of the only one is held out. Ids are checked against
// the vocabulary once, when a shard is opened for the first time in a run. Throws InputError.
Datasets open_datasets(const std::string& data, const std::string& val, const Tokenizer& tokenizer,
                       const std::string& cache_directory);

// All of one stream for `eval`: no split.
Dataset open_dataset(const std::string& data, const Tokenizer& tokenizer, const std::string& cache_directory);

// Writes tokens as a llm.c shard, whole or not at all (temporary name, fsync, rename).
void write_shard(const std::string& path, const std::vector<uint16_t>& tokens);

// Draws training batches: every epoch visits the shards, and the blocks of `seq` tokens within each, in an order
// shuffled by (seed, epoch), with the blocks' grid shifted by a random offset. State is one number.
class BatchSampler {
public:
    BatchSampler(const Dataset& dataset, int64_t batch, int64_t seq, uint64_t seed);
    // x (B,T), y (B,T): y is x moved on by one token. Blocks go into rows in order of drawing.
    void next(int32_t* x, int32_t* y);
    int64_t position() const;          // blocks drawn since the start of training; what a checkpoint saves
    void seek(int64_t position);       // exact, in O(shards + blocks)
    int64_t epoch() const;             // of the next block
private:
    struct State;
    std::shared_ptr<State> state_;
};
