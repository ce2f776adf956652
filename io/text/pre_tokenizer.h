// Pre-tokenizers: they split text into pieces (words, numbers, punctuation, white space). GPT-2 merges byte pairs only
// within a piece.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

enum class Pieces {
    words,              // GPT-2's
    words_and_numbers,  // numbers apart, without a space before them, and in groups of three digits, from the right
    lines_and_numbers,  // lines with their line breaks, and numbers as before
};

class PreTokenizer {
public:
    explicit PreTokenizer(Pieces pieces = Pieces::words);
    ~PreTokenizer();
    PreTokenizer(const PreTokenizer&) = delete;
    // For each piece of a text, in order. `number`: whether it is one that stands apart. Joined, the pieces are the
    // text, which must be valid UTF-8.
    using Take = std::function<void(std::string_view piece, bool number)>;
    void split(std::string_view text, const Take& take) const;

private:
    const bool numbers_apart_;
    void* code_ = nullptr;  // pcre2_code
    bool jit_ = false;
};

// \w and \s as in Rust's regular expressions, which Hugging Face's tokenizers library uses. The text must be valid
// UTF-8; lengths are in bytes.
bool begins_with_word_character(std::string_view text);
bool ends_with_word_character(std::string_view text);
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);
