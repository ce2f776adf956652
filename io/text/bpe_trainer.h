// Learns a byte-level BPE from the words of a text: the tokens, ids and merges that Hugging Face's `tokenizers` learns
// from the same words.
#pragma once

#include <cstdint>
#include <functional>

#include "io/text/byte_pair.h"
#include "io/text/word_counts.h"

// The special token of a new tokenizer, <|endoftext|> with id 0, as the added tokens that a text is searched for. With
// `special_as_text` its name is ordinary text.
AddedTokens added_tokens_to_train(bool special_as_text = false);

// The sizes that a vocabulary can have: <|endoftext|> and the 256 bytes at least, and ids that fit into token shards.
inline constexpr int64_t smallest_trained_vocabulary = 257;

// The size N of a --tokenizer bpe:N or superbpe:N, or 0 if `spec` is none of these. Throws InputError for a bad size.
int64_t trained_vocabulary_size(const std::string& spec);
// Whether it is superbpe:N.
bool is_superword_spec(const std::string& spec);

// Merges the pair of neighbouring tokens that occurs most often, of equal ones that with the smaller ids (left, then
// right), until there are `size` tokens: <|endoftext|>, the bytes in GPT-2's order, the merges. There are fewer if
// every word has become one token. This is tokenizers' BpeTrainer with vocab_size=size, min_frequency=0,
// special_tokens=["<|endoftext|>"] and initial_alphabet=ByteLevel.alphabet(). Calls progress(tokens) after each merge.
// Throws InputError if the distinct words have 2 GiB or more.
Vocabulary train_byte_pairs(const WordCounts& words, int64_t size, const std::function<void(int64_t)>& progress = {});

// Learns superwords (io/text/superwords.h) for the last eighth of the tokens, or for more if every word has become one
// token before: the merges go on in `lines` (Pieces::lines_and_numbers), where pairs cross words. `words` are
// Pieces::words_and_numbers. A superword has 64 bytes at most: longer ones repeat whole sentences, and cost a
// token each.
Vocabulary train_superwords(const WordCounts& words, const WordCounts& lines, int64_t size,
                            const std::function<void(int64_t)>& progress = {});
