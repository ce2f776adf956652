// Superwords: tokens that cross words, such as " of the". Liu et al. 2025, SuperBPE: Space Travel for Language Models
// (arXiv:2503.13423). A tokenizer first learns tokens within words, then merges go on across them. A text is encoded
// without regard to words; only numbers stand apart, in groups of three digits.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/byte_pair.h"
#include "io/text/pre_tokenizer.h"
#include "io/text/word_encoder.h"

// Whether a token lies within one of GPT-2's words, as far as its ASCII characters tell: letters, digits, punctuation
// or white space, after a space or not.
bool is_within_word(std::string_view token);

// The rank of the first merge whose token does not, or the number of merges.
int32_t first_across_words(const Vocabulary& vocabulary);

// Throws InputError, naming `path`, if a token reaches over a line break to what is written on the next line: a text is
// cut there for work in pieces.
void require_tokens_within_lines(const std::string& path, const std::vector<std::string>& tokens);

// Encodes a text by all merges, whichever words they cross, but as fast as by words: as long as no merge of lower rank
// could cross the boundary of two words, the tokens of words come first, from a table, and then the merges across them.
class SuperwordEncoder {
public:
    // `words` encodes by the merges before first_across_words().
    SuperwordEncoder(const Vocabulary& vocabulary, const WordEncoder& words);
    // Appends the ids of `text`, which must be valid UTF-8, to `out`.
    void encode(std::string_view text, std::vector<int32_t>& out) const;

private:
    bool may_merge(char left, char right) const;

    const WordEncoder& words_;
    BytePairMerger after_words_;  // the merges that are possible then: a table so small that it stays in the cache
    const PreTokenizer pre_tokenizer_{Pieces::words_and_numbers};
    std::bitset<65536> neighbours_;  // bytes that stand side by side in a token within words
};
