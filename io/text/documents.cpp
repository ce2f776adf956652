#include "io/text/documents.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <optional>

#include "io/file/error.h"
#include "io/file/file.h"
#include "io/text/json_lines.h"
#include "io/text/text_file.h"
#include "io/text/text_pieces.h"

namespace {

using Take = std::function<bool(std::string_view, bool)>;

constexpr size_t longest_line = 256 << 20;

// The files' bytes that have been read, for a ReadProgress.
class Position {
public:
    Position(const Texts& texts, const char* what, const ReadProgress& progress) : what_(what), progress_(progress) {
        if (!progress) return;
        std::error_code ignored;  // a file that is not there is refused when it is read
        for (const std::string& path : texts.paths)
            all_ += static_cast<int64_t>(std::filesystem::file_size(path, ignored));
    }
    void show(const TextPieces& pieces) const {
        if (progress_) progress_(what_, before_ + pieces.position(), all_);
    }
    void end_file(const MappedFile& file) { before_ += file.size(); }

private:
    const char* what_;
    const ReadProgress& progress_;
    int64_t before_ = 0, all_ = 0;
};

// The texts of whole lines, none for an empty line. Parses on all threads.
std::vector<std::optional<std::string>> parse_lines(std::string_view lines, const std::string& field, LinePlace place) {
    struct Line {
        std::string_view text;
        int64_t byte;
    };
    std::vector<Line> all;
    while (!lines.empty()) {
        const std::string_view line = lines.substr(0, lines.find('\n'));
        all.push_back({line, place.byte});
        const size_t taken = std::min(line.size() + 1, lines.size());
        place.byte += static_cast<int64_t>(taken);
        lines.remove_prefix(taken);
    }
    std::vector<std::optional<std::string>> texts(all.size());
    std::exception_ptr error;
    size_t error_at = all.size();
#pragma omp parallel for schedule(dynamic, 16)
    for (size_t i = 0; i < all.size(); i++) {
        try {
            if (all[i].text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
            texts[i] =
                json_line_text(all[i].text, field, {place.path, place.line + static_cast<int64_t>(i), all[i].byte});
        } catch (...) {  // an exception must not leave a parallel region
#pragma omp critical
            if (i < error_at) error_at = i, error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
    return texts;
}

bool read_json_lines(const std::string& path, const std::string& field, TextPieces& pieces, const Take& take,
                     const std::function<void()>& moved) {
    std::string rest;  // the beginning of a line
    int64_t line = 1, byte = 0;
    for (bool more = true; more;) {
        const std::string_view piece = pieces.next();
        moved();
        more = !piece.empty();
        const size_t last = piece.rfind('\n');
        const size_t whole = !more ? rest.size() : last == piece.npos ? 0 : rest.size() + last + 1;
        rest += piece;
        const std::string_view lines = std::string_view(rest).substr(0, whole);
        for (const auto& text : parse_lines(lines, field, {path, line, byte}))
            if (text && !take(*text, true)) return false;
        line += std::count(lines.begin(), lines.end(), '\n');
        byte += static_cast<int64_t>(whole);
        rest.erase(0, whole);
        if (rest.size() > longest_line)
            throw InputError(path + ": line " + std::to_string(line) + ", byte " + std::to_string(byte) +
                             ": a line of more than 256 MiB; write one JSON object in each line");
    }
    return true;
}

// Calls take(text, ends) for the documents of one file. Returns false once take() has.
bool read_file(const std::string& path, const std::string& field, const Take& take, Position& position) {
    const MappedFile file(path);
    TextPieces pieces(file);
    const auto moved = [&] { position.show(pieces); };
    bool more = true;
    if (is_json_lines(path)) {
        more = read_json_lines(path, field, pieces, take, moved);
    } else {
        for (std::string_view piece = pieces.next(); more && !piece.empty(); piece = pieces.next()) {
            more = take(piece, false);
            moved();
        }
        more = more && take("", true);
    }
    position.end_file(file);
    return more;
}

}  // namespace

bool Texts::separated() const { return paths.size() > 1 || is_json_lines(paths.at(0)); }

std::string_view unpacked_name(std::string_view path) {
    for (const std::string_view packed : {".gz", ".zst"})
        if (path.ends_with(packed)) return path.substr(0, path.size() - packed.size());
    return path;
}

bool is_json_lines(const std::string& path) { return unpacked_name(path).ends_with(".jsonl"); }

bool is_text_name(const std::string& path) { return unpacked_name(path).ends_with(".txt") || is_json_lines(path); }

void read_documents(const Texts& texts, const Take& take, const char* what, const ReadProgress& progress) {
    Position position(texts, what, progress);
    for (const std::string& path : texts.paths)
        if (!read_file(path, texts.field, take, position)) return;
}

Survey survey(const Texts& texts, const Tokenizer& tokenizer, const ReadProgress& progress) {
    constexpr size_t most_notes = 8;
    Position position(texts, "reading", progress);
    Survey found;
    size_t more = 0;
    for (const std::string& path : texts.paths) {
        TextCheck check;
        const bool plain = !is_json_lines(path);  // JSON lines are UTF-8, or refused
        read_file(
            path, texts.field,
            [&](std::string_view text, bool) {
                found.bytes += std::ssize(text);
                if (plain) check.add(text);
                return true;
            },
            position);
        for (const std::string& note : check.notes(path, tokenizer)) {
            if (found.notes.size() < most_notes)
                found.notes.push_back(note);
            else
                more++;
        }
    }
    if (more > 0)
        found.notes.push_back(without_controls(texts.source) + ": " + std::to_string(more) +
                              " more such notes about its files");
    return found;
}
