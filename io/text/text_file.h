// A text file from a user. Other kinds of files are refused by name, and doubts about the encoding are reported.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/file/file.h"
#include "io/text/tokenizer.h"

class TextFile {
public:
    // Decompresses gzip into memory. Throws InputError for UTF-16, archives and other kinds known by their first bytes.
    explicit TextFile(const std::string& path);
    TextFile(const TextFile&) = delete;
    std::string_view text() const { return text_; }
    // One line each for bytes that are not UTF-8 (if the tokenizer reads UTF-8), a byte-order mark, and zero bytes.
    std::vector<std::string> notes(const Tokenizer& tokenizer) const;

private:
    MappedFile file_;
    std::string unpacked_;
    std::string_view text_;  // of file_ or unpacked_
};

// "3 places are not UTF-8, the first at byte 10 (line 2), each read as U+FFFD; …", or "" if all of it is valid.
std::string invalid_utf8_note(std::string_view text);
