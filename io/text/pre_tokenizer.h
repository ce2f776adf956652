// GPT-2's pre-tokenizer: splits text into pieces (words, numbers, punctuation, white space). Byte pairs are merged only
// within a piece.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

class PreTokenizer {
public:
    PreTokenizer();
    ~PreTokenizer();
    PreTokenizer(const PreTokenizer&) = delete;
    // Calls `piece` for each piece of the text, in order; joined, the pieces are the text, which must be valid UTF-8.
    void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

private:
    void* code_ = nullptr;  // pcre2_code
    bool jit_ = false;
};

// \w and \s as in Rust's regular expressions, which Hugging Face's tokenizers library uses. The text must be valid
// UTF-8; lengths are in bytes.
bool begins_with_word_character(std::string_view text);
bool ends_with_word_character(std::string_view text);
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);
