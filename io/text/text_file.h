// A text as a user gives it: what is no text is refused by name, and doubts about its encoding are told.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/file/file.h"
#include "io/text/tokenizer.h"

class TextFile {
public:
    // Unpacks gzip, into memory. Throws InputError for UTF-16, archives and other files that are known by their first
    // bytes.
    explicit TextFile(const std::string& path);
    TextFile(const TextFile&) = delete;
    std::string_view text() const { return text_; }
    // A line for each: bytes that are no UTF-8, for tokenizers that read it; a byte-order mark; zero bytes.
    std::vector<std::string> notes(const Tokenizer& tokenizer) const;

private:
    MappedFile file_;
    std::string unpacked_;
    std::string_view text_;  // of one of the two
};

// "3 places are not UTF-8, the first at byte 10 (line 2), each read as U+FFFD; …", or "" where all of it is.
std::string invalid_utf8_note(std::string_view text);
