// Converts text to token ids and back: by raw bytes, or by byte-pair encoding with the same ids as tiktoken's "gpt2".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/file/file.h"
#include "io/text/added_tokens.h"

struct Vocabulary;

class Tokenizer {
public:
    virtual ~Tokenizer() = default;

    virtual int64_t vocab() const = 0;                 // V: ids are 0 … V-1
    virtual int32_t end_of_text() const = 0;           // its id, or -1 if there is none (bytes)
    virtual const std::string& name() const = 0;       // "byte", "gpt2", "none", or the file it came from
    virtual bool reads_utf8() const { return false; }  // false: any bytes are text
    // The tokens that are recognized in a text by name, such as <|endoftext|>; none for bytes.
    virtual const AddedTokens& added() const;
    // The names of special tokens become these tokens, as in Hugging Face's tokenizers and in tiktoken with
    // allowed_special="all"; with TokenizerSettings::special_as_text they are ordinary text. Each invalid UTF-8
    // sequence is replaced by U+FFFD (Python's errors="replace").
    virtual std::vector<int32_t> encode(std::string_view text) const = 0;
    // The bytes of one token. Throws InputError for an id outside the vocabulary.
    virtual std::string_view token(int32_t id) const = 0;

    // The tokens and merges that it consists of; null for "none".
    virtual const Vocabulary* vocabulary() const { return nullptr; }

    std::string decode(const std::vector<int32_t>& ids) const;

    // False for "none" (below), whose encode() throws InputError.
    bool reads_text() const { return vocab() > 0; }

    // Writes files that Hugging Face's AutoTokenizer can read. If the tokenizer was read from such files, they are
    // written unchanged.
    virtual std::vector<WrittenFile> save_hugging_face(const std::string& directory) const = 0;
};

// "none", for sequences of ids that are not text. It has no tokens of its own (vocab() is 0) and accepts any ids:
// token() returns the id as a number and a space. save_hugging_face() writes nothing.
std::shared_ptr<const Tokenizer> no_tokenizer(int32_t end_of_text = -1);
// Throws InputError if `tokenizer` is "none". The message calls the text `what`.
void require_text(const Tokenizer& tokenizer, const std::string& what, const std::string& remedy);

struct TokenizerSettings {
    bool special_as_text = false;  // --no-special-tokens: names of special tokens are ordinary text
    std::string data_directory = "data";
};

// `spec` is "byte", "none", "gpt2" (merges from data_directory/vocab.bpe, here or beside the program), or a file or
// directory: a merges file (vocab.bpe, merges.txt), an llm.c tokenizer (.bin), a GGUF model, a directory written by
// save_hugging_face or by Hugging Face. Throws InputError.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec, const TokenizerSettings& settings = {});

// The tokenizer of a vocabulary that was learned and not read from a file.
std::shared_ptr<const Tokenizer> make_tokenizer(Vocabulary vocabulary, const std::string& name, bool special_as_text);

// Writes llm.c's tokenizer file (magic 20240328, version 2), which llm.c and load_tokenizer read.
void save_llmc_tokenizer(const Tokenizer& tokenizer, const std::string& path);
