// Byte-pair encoding: a piece of text starts as a sequence of bytes. The pair with the lowest rank is merged, leftmost
// first, until no two neighbours have a merge.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/added_tokens.h"
#include "io/text/hash_index.h"

struct Merge {
    int32_t left, right, result;  // ids
};

inline uint32_t hash_of_pair(int32_t left, int32_t right) {
    const uint64_t pair = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    return static_cast<uint32_t>((pair * 0x9E3779B97F4A7C15u) >> 32);  // Knuth's multiplicative hashing
}

// Everything that a byte-pair tokenizer consists of.
struct Vocabulary {
    std::vector<std::string> tokens{};  // bytes of each id
    std::vector<Merge> merges{};        // in order of rank; left and right are bytes or results of earlier merges
    bool superwords = false;            // merges cross words (io/text/superwords.h)
    int32_t end_of_text = -1;
    std::vector<AddedToken> added{};             // end of text among them, by id
    bool split_special_tokens = false;           // the names of special tokens are ordinary text
    std::map<std::string, std::string> files{};  // the Hugging Face files as they were read: name → contents
};

class BytePairMerger {
public:
    explicit BytePairMerger(const std::array<int32_t, 256>& byte_ids) : byte_ids_(byte_ids) {}
    void add(const Merge& merge);  // its rank is the number of merges before it
    // Appends the ids of `piece` to `out`, by the merges whose rank is below `end`.
    void encode(std::string_view piece, std::vector<int32_t>& out, int32_t end = all_merges) const;
    // Replaces the ids from place `begin` on by those that the merges make of them.
    void merge(std::vector<int32_t>& ids, size_t begin, int32_t end = all_merges) const;

    static constexpr int32_t all_merges = std::numeric_limits<int32_t>::max();

private:
    int32_t rank(int32_t left, int32_t right, int32_t end) const;
    void merge_short(std::vector<int32_t>& ids, size_t begin, int32_t end) const;
    void merge_long(std::vector<int32_t>& ids, size_t begin, int32_t end) const;

    std::array<int32_t, 256> byte_ids_;
    std::vector<Merge> merges_;
    HashIndex index_;  // of merges_, by their left and right
};

// The id of each byte's token; the first one if there are several, -1 if there is none.
std::array<int32_t, 256> find_byte_ids(const std::vector<std::string>& tokens);
