// Token streams on disk and the batches drawn from them. A stream is a list of llm.c shards (magic 20240520,
// uint16 ids), mapped into memory, never read whole; a text file is tokenised once into such shards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/file.h"
#include "io/tokenizer.h"

// One shard, or a part of one, mapped read-only. Copies share the mapping.
class Shard {
public:
    explicit Shard(const std::string& path);  // checks magic, version and size; throws InputError
    // Ids alone, without a header, as nanoGPT's prepare.py writes them.
    static Shard headerless(const std::string& path);
    bool has_header() const { return reinterpret_cast<const uint8_t*>(tokens_) != file_->data(); }
    Shard part(int64_t begin, int64_t end) const;
    const uint16_t* tokens() const { return tokens_; }
    int64_t size() const { return size_; }  // tokens
    const std::string& path() const { return file_->path(); }

private:
    explicit Shard(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}
    std::shared_ptr<const MappedFile> file_;
    const uint16_t* tokens_ = nullptr;
    int64_t size_ = 0;
};

struct Dataset {
    std::vector<Shard> shards;
    std::string source;                // what the user named, for messages
    std::vector<std::string> notes{};  // what the user should know of it, a line each
    bool remade = false;               // whether the notes say that tokens kept of a text were made anew
    std::string held_out{};            // of a split: how much is held out for validation, and why; for messages
    AddedTokens::Counts special{};     // of a text: its special tokens, those of a held-out part with the rest
    int64_t tokens() const;
};

struct Datasets {
    Dataset train, val;
};

// Opens --data and --val. A name ending in .bin, or a glob that matches such names, means shards, llm.c's or nanoGPT's
// files of ids alone; anything
// else is a text file, tokenised with `tokenizer` into `cache_directory` (once: reused while the text, the tokenizer
// and what was made are unchanged). Without `val`, text is split 90/10 at a byte offset moved to a character
// boundary, and for shards the last one (if there are several) or the last tenth of the only one is held out.
// Every id is checked against `vocab`, the number of ids that the model has (0: as many as the tokenizer), before this
// returns, so that training cannot end on one hours later. Throws InputError.
Datasets open_datasets(const std::string& data, const std::string& val, const Tokenizer& tokenizer,
                       const std::string& cache_directory, int64_t vocab = 0);

// Changes where shards vanish, are others, or change places. Of each, size and ends are looked at, not all of it.
uint32_t fingerprint(const Datasets& datasets);

// All of one stream for `eval`: no split.
Dataset open_dataset(const std::string& data, const Tokenizer& tokenizer, const std::string& cache_directory,
                     int64_t vocab = 0);

// Whether a file is taken for token ids alone.
bool is_headerless(const MappedFile& file);

// The largest id. Throws InputError naming the first that is not below `vocab`.
uint16_t check_ids(const Shard& shard, int64_t vocab);

// Writes tokens as a llm.c shard, whole or not at all (temporary name, fsync, rename).
void write_shard(const std::string& path, const std::vector<uint16_t>& tokens);

// Draws training batches: every epoch visits the shards, and the blocks of `seq` tokens within each, in an
// order shuffled by (seed, epoch), with the blocks' grid shifted by a random offset. State is one number.
// Shards that are shorter than a block are joined with their neighbours, and blocks run over their ends.
class BatchSampler {
public:
    // Throws InputError if all of it together holds no block, which is seq + 1 tokens.
    BatchSampler(const Dataset& dataset, int64_t batch, int64_t seq, uint64_t seed);
    // x (B,T), y (B,T): y is x moved on by one token. Blocks go into rows in order of drawing.
    void next(int32_t* x, int32_t* y);
    int64_t position() const;     // blocks drawn since the start of training; what a checkpoint saves
    void seek(int64_t position);  // exact, in O(epochs * shards + blocks)
    int64_t epoch() const;        // of the next block

private:
    struct State;
    std::shared_ptr<State> state_;
};

// Reads a stream in order, in windows of `seq` predictions that do not overlap; the last window of a shard is
// shorter. So each token but a shard's first is predicted exactly once.
class WindowReader {
public:
    // Throws InputError if there is nothing to predict.
    WindowReader(const Dataset& dataset, int64_t seq);
    int64_t windows() const { return first_window_.back(); }
    int64_t length(int64_t window) const;                     // predictions in it, 1 … seq
    void read(int64_t window, int32_t* x, int32_t* y) const;  // length(window) of each

private:
    int64_t shard_of(int64_t window) const;
    std::vector<Shard> shards_;
    std::vector<int64_t> first_window_;  // of each shard, then the total
    int64_t seq_;
};
