// The text of a file in pieces, decompressed if it is gzip or zstd: memory holds one piece, however long the text is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/file/file.h"

class TextPieces {
public:
    // Throws InputError for UTF-16, archives and other kinds known by their first bytes. `file` must outlive this.
    explicit TextPieces(const MappedFile& file);
    ~TextPieces();
    TextPieces(const TextPieces&) = delete;
    TextPieces& operator=(const TextPieces&) = delete;

    bool packed() const { return unpacker_ != nullptr; }
    // The next piece, which is valid until the next call, or "" at the end. Throws InputError if compressed data is
    // damaged or cut short.
    std::string_view next();
    int64_t position() const { return file_.size() - static_cast<int64_t>(rest_.size()); }  // of the file, in bytes

    class Unpacker;

private:
    std::string_view read();
    const MappedFile& file_;
    std::string_view rest_;  // of the file
    std::unique_ptr<Unpacker> unpacker_;
    std::string buffer_;
    std::string_view first_;
    int64_t bytes_ = 0, lines_ = 0;  // of the text so far
};
