// Counts the distinct words of a text: what a byte-pair tokenizer is trained on.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "io/text/added_tokens.h"
#include "io/text/pre_tokenizer.h"
#include "io/text/text_groups.h"
#include "io/text/word_table.h"

class WordCounts {
public:
    void add(std::string_view word, int64_t count = 1) { words_[word] += count; }
    // Adds the words of pieces of text, or what `kind` names, as PreTokenizer and then a tokenizer with these added
    // tokens would find them: added tokens are not counted, and invalid UTF-8 is read as U+FFFD. Runs on all threads.
    void add_pieces(std::span<const TextPiece> pieces, const AddedTokens& added, Pieces kind = Pieces::words);

    int64_t size() const { return words_.size(); }    // distinct words
    int64_t bytes() const { return words_.bytes(); }  // of the distinct words
    // Calls use(word, count) for each distinct word, in an order that depends on the number of threads.
    template <class Use>
    void each(const Use& use) const {
        words_.each(use);
    }

private:
    WordTable words_;
};

// What a new tokenizer learns from.
struct TextCounts {
    WordCounts words;
    WordCounts lines{};  // for superwords
};
