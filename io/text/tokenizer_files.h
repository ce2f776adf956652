// The file formats of byte-pair tokenizers. Reading throws InputError unless a file is complete and consistent.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/file/file.h"
#include "io/text/byte_pair.h"

// Reads vocab.bpe or merges.txt. The ids follow from the merges: 256 bytes in GPT-2's order, the merges, <|endoftext|>.
Vocabulary read_merges_file(const std::string& path);
// Reads llm.c's .bin, a list of tokens in the order of the merges.
Vocabulary read_llmc_tokenizer(const std::string& path);
// Reads tokenizer.json, vocab.json with merges.txt (and added_tokens.json) beside it, or a directory with either.
// Vocabulary::files keeps the files as they are.
Vocabulary read_hugging_face_tokenizer(const std::string& path);

// The text of a tokenizer.json.
std::string hugging_face_json(const Vocabulary& vocabulary);
// Writes tokenizer.json, tokenizer_config.json and, unless there are superwords, vocab.json and merges.txt.
std::vector<WrittenFile> write_hugging_face_tokenizer(const Vocabulary& vocabulary, const std::string& directory);

// The tokenizer in a GGUF file (tokenizer_gguf.cpp).
class GgufFile;
class GgufWriter;
class Tokenizer;
Vocabulary read_gguf_tokenizer(const GgufFile& file);
// Adds the tokenizer of a model with `rows` ids, of which those beyond the tokenizer get placeholders. Throws
// InputError if llama.cpp could not hold it; `path` is the file to name.
void add_gguf_tokenizer(GgufWriter& writer, const std::string& path, const Tokenizer& tokenizer, int64_t rows);

// Parts of the readers, which tokenizer_files.cpp and tokenizer_hugging_face.cpp share.
inline constexpr char end_of_text_token[] = "<|endoftext|>";
using MergeList = std::vector<std::pair<std::string, std::string>>;  // the bytes of left and right, in order of rank
MergeList read_merge_lines(const std::string& path);
// Converts two symbol strings, or the line "left right", to bytes. `field` names the place in messages.
std::pair<std::string, std::string> parse_merge(const std::string& path, const std::string& field,
                                                std::string_view left, std::string_view right);
std::pair<std::string, std::string> parse_merge(const std::string& path, const std::string& field,
                                                std::string_view line);
// Resolves the merges to ids. Their parts must be bytes or results of earlier merges. A token in `added` may have the
// same bytes as an earlier token.
Vocabulary assemble_vocabulary(const std::string& path, std::vector<std::string> tokens, const MergeList& merges,
                               std::vector<AddedToken> added = {});
// Makes the end-of-text token, if there is one, a special token, which is recognized in a text.
void recognise_end_of_text(Vocabulary& vocabulary);
