// Counts the distinct words of a text: what a byte-pair tokenizer is trained on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/added_tokens.h"
#include "io/text/text_groups.h"

class WordCounts {
public:
    WordCounts();
    void add(std::string_view word, int64_t count = 1);
    // Adds the words of pieces of text, as PreTokenizer and then a tokenizer with these added tokens would find them:
    // added tokens are not counted, and invalid UTF-8 is read as U+FFFD. Runs on all threads.
    void add_pieces(std::span<const TextPiece> pieces, const AddedTokens& added);

    int64_t size() const { return size_; }                                 // distinct words
    int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }  // of the distinct words
    // Calls use(word, count) for each distinct word, in an order that depends on the number of threads.
    template <class Use>
    void each(const Use& use) const {
        for (const Slot& slot : slots_)
            if (slot.count > 0) use(std::string_view(bytes_).substr(slot.begin, slot.length), slot.count);
    }

private:
    struct Slot {
        size_t hash = 0, begin = 0, length = 0;  // the word's bytes are a part of bytes_
        int64_t count = 0;                       // 0: free
    };
    void grow();

    std::vector<Slot> slots_;  // open addressing, at most half full
    std::string bytes_;
    int64_t size_ = 0;
};
