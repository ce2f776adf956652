#include "io/text/text_file.h"

#include <algorithm>

#include "io/file/error.h"
#include "io/file/utf8.h"
#include "io/text/text_pieces.h"

namespace {

constexpr size_t begin_size = 1 << 16;

// How many of the last bytes may be the beginning of a character that continues after them.
size_t unfinished_bytes(std::string_view text) {
    for (size_t back = 1; back <= std::min<size_t>(3, text.size()); back++) {
        const auto byte = static_cast<uint8_t>(text[text.size() - back]);
        if (byte < 0x80) return 0;
        if (byte >= 0xC0) return back < (byte < 0xE0 ? 2u : byte < 0xF0 ? 3u : 4u) ? back : 0;
    }
    return 0;
}

}  // namespace

TextFile::TextFile(const std::string& path)
    : file_(path), text_(reinterpret_cast<const char*>(file_.data()), static_cast<size_t>(file_.size())) {
    TextPieces pieces(file_);
    if (!pieces.packed()) return;
    for (std::string_view piece = pieces.next(); !piece.empty(); piece = pieces.next()) unpacked_ += piece;
    text_ = unpacked_;
}

void TextCheck::add(std::string_view piece) {
    begin_ += piece.substr(0, begin_size - begin_.size());
    std::string joined;
    if (!unfinished_.empty()) piece = joined = unfinished_.append(piece);
    const size_t whole = piece.size() - unfinished_bytes(piece);
    check_utf8(piece.substr(0, whole));
    unfinished_ = std::string(piece.substr(whole));
}

void TextCheck::check_utf8(std::string_view text) {
    const size_t first = find_invalid_utf8(text);
    if (first < text.size() && places_ == 0) {
        first_byte_ = bytes_ + static_cast<int64_t>(first);
        first_line_ = 1 + lines_ + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(first), '\n');
    }
    places_ += count_invalid_utf8(text.substr(first));
    bytes_ += std::ssize(text);
    lines_ += std::count(text.begin(), text.end(), '\n');
}

std::vector<std::string> TextCheck::notes(const std::string& path, const Tokenizer& tokenizer) const {
    std::vector<std::string> found;
    const auto add_note = [&](const std::string& note) { found.push_back(without_controls(path) + ": " + note); };
    constexpr std::string_view mark = "\xEF\xBB\xBF";
    if (begin_.starts_with(mark))
        add_note("begins with a byte-order mark (U+FEFF), which is " + std::to_string(tokenizer.encode(mark).size()) +
                 " tokens of the text; tail -c +4 IN > OUT removes it");
    int64_t zeros[2] = {};  // at even and at odd places
    for (size_t i = 0; i < begin_.size(); i++) zeros[i % 2] += begin_[i] == '\0';
    if (zeros[0] + zeros[1] > std::ssize(begin_) / 10)
        add_note(std::to_string(zeros[0] + zeros[1]) + " of its first " + std::to_string(begin_.size()) +
                 " bytes are zero; if it is UTF-16 without a byte-order mark: iconv -f UTF-16" +
                 (zeros[0] > zeros[1] ? "BE" : "LE") + " -t UTF-8 IN > OUT");
    if (tokenizer.reads_utf8())
        if (const std::string note = invalid_utf8_note(); !note.empty()) add_note(note);
    return found;
}

std::string TextCheck::invalid_utf8_note() const {
    TextCheck all = *this;
    all.check_utf8(unfinished_);
    if (all.places_ == 0) return "";
    return std::to_string(all.places_) + (all.places_ > 1 ? " places are" : " place is") +
           " not UTF-8, the first at byte " + std::to_string(all.first_byte_) + " (line " +
           std::to_string(all.first_line_) +
           "), each read as U+FFFD; if it is Latin-1: iconv -f latin1 -t utf-8 IN > OUT";
}
