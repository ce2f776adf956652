// Token streams on disk. A stream is a list of llm.c shards, of uint16 ids (magic 20240520) or of uint32 ids
// (20240801), which are mapped into memory and never read as a whole; a text file is tokenized once into such shards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/data/data_files.h"
#include "io/file/file.h"
#include "io/text/tokenizer.h"
#include "io/text/word_counts.h"

// One shard, or a part of one, mapped read-only. Copies share the mapping.
class Shard {
public:
    explicit Shard(const std::string& path);  // checks magic, version and size; throws InputError
    // Opens a file of ids without a header, as nanoGPT's prepare.py writes it.
    static Shard headerless(const std::string& path);
    bool has_header() const { return ids_ != file_->data(); }
    Shard part(int64_t begin, int64_t end) const;
    int64_t size() const { return size_; }  // tokens
    // Returns use(ids), with the ids as a span of uint16_t or of uint32_t.
    template <class Use>
    auto with_ids(const Use& use) const {
        const auto count = static_cast<size_t>(size_);
        return is_wide_ ? use(std::span(reinterpret_cast<const uint32_t*>(ids_), count))
                        : use(std::span(reinterpret_cast<const uint16_t*>(ids_), count));
    }
    uint32_t operator[](int64_t i) const {
        return with_ids([=](auto ids) -> uint32_t { return ids[static_cast<size_t>(i)]; });
    }
    // Copies `count` ids from `begin` on, and returns the end of the copy.
    template <class Out>
    Out copy(int64_t begin, int64_t count, Out out) const {
        return with_ids([&](auto ids) { return std::copy_n(ids.begin() + begin, count, out); });
    }
    const std::string& path() const { return file_->path(); }

private:
    explicit Shard(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}
    std::shared_ptr<const MappedFile> file_;
    const uint8_t* ids_ = nullptr;
    bool is_wide_ = false;
    int64_t size_ = 0;
};

struct Dataset {
    std::vector<Shard> shards;
    std::string source;                // what the user named, for messages
    std::vector<std::string> notes{};  // messages for the user, one line each
    bool remade = false;               // whether the notes say that a text was tokenized again
    std::string held_out{};            // of a split, for messages: how much is held out for validation, and why
    AddedTokens::Counts special{};     // the special tokens of a text, including those of a held-out part
    int64_t separators = 0;            // end-of-text tokens behind documents, which are not counted in `special`
    int64_t tokens() const;
};

struct Datasets {
    Dataset train, val;
};

// Opens --data and --val. Names that end in .bin mean shards: llm.c's, or nanoGPT's files of ids without a header.
// Anything else is text, tokenized with `tokenizer` into `cache_directory` (once: reused while texts, tokenizer and
// shards are unchanged). Without `val`, texts are split 90/10 at a byte offset moved to a character boundary; of
// shards, the last one (if there are several) or the last tenth of the only one is held out. Every id is checked
// against `vocab`, the number of ids of the model (0: of the tokenizer), before this returns, so that training cannot
// fail on one hours later. Throws InputError.
Datasets open_datasets(const DataNames& data, const DataNames& val, const Tokenizer& tokenizer,
                       const std::string& cache_directory, int64_t vocab = 0, const ReadProgress& progress = {});

// Counts the text that open_datasets() gives for training, for a new tokenizer with these added tokens. Throws
// InputError if `data` names token shards.
TextCounts count_training_text(const DataNames& data, const DataNames& val, const AddedTokens& added, bool superwords,
                               const ReadProgress& progress = {});

// A fingerprint that changes if shards are removed, replaced or reordered. It covers only the size, the beginning and
// the end of each shard.
uint32_t fingerprint(const Datasets& datasets);

// Opens one stream for `eval`, without a split.
Dataset open_dataset(const DataNames& data, const Tokenizer& tokenizer, const std::string& cache_directory,
                     int64_t vocab = 0, const ReadProgress& progress = {});

// Whether a file is read as token ids without a header.
bool is_headerless(const MappedFile& file);

// Returns the largest id. Throws InputError naming the first id that is not below `vocab`.
uint32_t check_ids(const Shard& shard, int64_t vocab);

// Writes tokens, uint16_t or uint32_t, as an llm.c shard, whole or not at all (temporary name, fsync, rename).
template <class Id = uint16_t>
WrittenFile write_shard(const std::string& path, const std::vector<Id>& tokens);
