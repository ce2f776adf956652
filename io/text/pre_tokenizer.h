// GPT-2's pre-tokenizer: it cuts text into pieces (words, numbers, punctuation, white space), within which byte pairs
// are merged.
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
    // Calls `piece` for each piece of valid UTF-8, in order; together they are the text.
    void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

private:
    void* code_ = nullptr;  // pcre2_code
    bool jit_ = false;
};

// \w and \s as in Rust's regular expressions, which Hugging Face's tokenizers library uses. The text is valid UTF-8;
// lengths are in bytes.
bool begins_with_word_character(std::string_view text);
bool ends_with_word_character(std::string_view text);
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);
