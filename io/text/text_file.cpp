#include "io/text/text_file.h"

#include <zlib.h>

#include <algorithm>
#include <new>

#include "io/file/error.h"
#include "io/text/file_kind.h"
#include "io/file/utf8.h"

namespace {

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b\x08"); }

struct Inflater : z_stream {
    Inflater() : z_stream{} {
        if (inflateInit2(this, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();  // 16: gzip's header and checksum
    }
    ~Inflater() { inflateEnd(this); }
    Inflater(const Inflater&) = delete;
};

// Decompresses and joins all members of a gzip file, as gzip -d does. Zeros may follow the last member.
std::string unpack_gzip(const std::string& path, std::string_view packed) {
    Inflater stream;
    std::string text;
    std::vector<char> piece(1 << 20);
    const auto damaged = [&](const std::string& what) {
        throw InputError(path + ": damaged gzip data: " + what + "; copy or compress the file again");
    };
    for (bool more = true; more;) {
        if (stream.avail_in == 0) {  // zlib counts in 32 bits
            stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
            stream.avail_in = static_cast<uInt>(std::min<size_t>(packed.size(), 1 << 30));
            packed.remove_prefix(stream.avail_in);
        }
        stream.next_out = reinterpret_cast<Bytef*>(piece.data());
        stream.avail_out = static_cast<uInt>(piece.size());
        const int status = inflate(&stream, Z_NO_FLUSH);
        text.append(piece.data(), piece.size() - stream.avail_out);
        const std::string_view rest(reinterpret_cast<const char*>(stream.next_in), stream.avail_in + packed.size());
        if (status == Z_STREAM_END) {
            more = rest.find_first_not_of('\0') != rest.npos;
            if (more && !is_gzip(rest)) damaged("other bytes follow it");
            inflateReset(&stream);
        } else if (status == Z_BUF_ERROR || (status == Z_OK && rest.empty() && stream.avail_out > 0)) {
            damaged("it is cut short");
        } else if (status != Z_OK) {
            damaged(stream.msg ? stream.msg : "invalid bytes");
        }
    }
    return text;
}

}  // namespace

TextFile::TextFile(const std::string& path)
    : file_(path), text_(reinterpret_cast<const char*>(file_.data()), static_cast<size_t>(file_.size())) {
    if (is_gzip(text_)) text_ = unpacked_ = unpack_gzip(path, text_);
    const FileKind kind = kind_of(text_);
    if (!kind.name.empty())
        throw InputError(path + ": this is " + kind.name + (unpacked_.empty() ? "" : " in gzip data") +
                         ", not UTF-8 text; " + kind.remedy);
}

std::vector<std::string> TextFile::notes(const Tokenizer& tokenizer) const {
    std::vector<std::string> found;
    const auto add = [&](const std::string& note) { found.push_back(without_controls(file_.path()) + ": " + note); };
    constexpr std::string_view mark = "\xEF\xBB\xBF";
    if (text().starts_with(mark))
        add("begins with a byte-order mark (U+FEFF), which is " + std::to_string(tokenizer.encode(mark).size()) +
            " tokens of the text; tail -c +4 IN > OUT removes it");
    const std::string_view begin = text().substr(0, 1 << 16);
    int64_t zeros[2] = {};  // at even and at odd places
    for (size_t i = 0; i < begin.size(); i++) zeros[i % 2] += begin[i] == '\0';
    if (zeros[0] + zeros[1] > std::ssize(begin) / 10)
        add(std::to_string(zeros[0] + zeros[1]) + " of its first " + std::to_string(begin.size()) +
            " bytes are zero; if it is UTF-16 without a byte-order mark: iconv -f UTF-16" +
            (zeros[0] > zeros[1] ? "BE" : "LE") + " -t UTF-8 IN > OUT");
    if (tokenizer.reads_utf8())
        if (const std::string note = invalid_utf8_note(text()); !note.empty()) add(note);
    return found;
}

std::string invalid_utf8_note(std::string_view text) {
    const size_t first = find_invalid_utf8(text);
    if (first == text.size()) return "";
    const int64_t places = count_invalid_utf8(text.substr(first)),
                  line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(first), '\n');
    return std::to_string(places) + (places > 1 ? " places are" : " place is") + " not UTF-8, the first at byte " +
           std::to_string(first) + " (line " + std::to_string(line) +
           "), each read as U+FFFD; if it is Latin-1: iconv -f latin1 -t utf-8 IN > OUT";
}
