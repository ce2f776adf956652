#include "io/text_file.h"

#include <algorithm>

#include "io/error.h"
#include "io/file_kind.h"
#include "io/pre_tokenizer.h"

TextFile::TextFile(const std::string& path) : file_(path) {
    const FileKind kind = kind_of(text());
    if (!kind.name.empty()) bad_input(path, "kind", kind.name, "text in UTF-8", kind.remedy);
}

std::string_view TextFile::text() const {
    return {reinterpret_cast<const char*>(file_.data()), static_cast<size_t>(file_.size())};
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
