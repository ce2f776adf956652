// A text file from a user. Other kinds of files are refused by name, and doubts about the encoding are reported.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file/file.h"
#include "io/text/tokenizer.h"

class TextFile {
public:
    // Decompresses gzip and zstd into memory; io/text/documents.h reads texts that are larger than it. Throws
    // InputError for UTF-16, archives and other kinds known by their first bytes.
    explicit TextFile(const std::string& path);
    TextFile(const TextFile&) = delete;
    std::string_view text() const { return text_; }

private:
    MappedFile file_;
    std::string unpacked_;
    std::string_view text_;  // of file_ or unpacked_
};

// What may be wrong with the encoding of a text, which is given piece by piece.
class TextCheck {
public:
    void add(std::string_view piece);
    // One line each for bytes that are not UTF-8 (if the tokenizer reads UTF-8), a byte-order mark, and zero bytes.
    std::vector<std::string> notes(const std::string& path, const Tokenizer& tokenizer) const;
    // "3 places are not UTF-8, the first at byte 10 (line 2), each read as U+FFFD; …", or "" if all of it is valid.
    std::string invalid_utf8_note() const;

private:
    void check_utf8(std::string_view text);
    std::string begin_;                        // of the text
    std::string unfinished_;                   // the last bytes so far, if they may be the beginning of a character
    int64_t bytes_ = 0, lines_ = 0;            // checked
    int64_t places_ = 0;                       // that are not UTF-8
    int64_t first_byte_ = 0, first_line_ = 0;  // of the first of them
};
