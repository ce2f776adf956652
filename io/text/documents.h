// The documents of a user's texts, read one after the other: memory holds a piece, however much text there is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/tokenizer.h"

// Text files, read in this order. Each is one document; a file of JSON lines has one in each line.
struct Texts {
    std::vector<std::string> paths;
    std::string field = "text";  // of JSON lines: the member that is the text
    std::string source{};        // what the user named, for messages
    int64_t wanted_bytes = 0;    // about so many of all are used (0: all; see TextGroups)
    // Whether each document is followed by end-of-text. A single text is left as it is.
    bool separated() const;
};

// A name without the .gz or .zst at its end.
std::string_view unpacked_name(std::string_view path);
// Whether a name is that of JSON lines: x.jsonl, x.jsonl.gz, x.jsonl.zst.
bool is_json_lines(const std::string& path);
// Whether a name is that of a text, x.txt, or of JSON lines, each also .gz or .zst.
bool is_text_name(const std::string& path);

// Called with what is being done, and how many of the files' bytes are done.
using ReadProgress = std::function<void(const char* what, int64_t done, int64_t all)>;

// Calls take(text, ends) for each piece of each document, until it returns false. `ends` is true for the last piece of
// a document, which may be empty. Throws InputError for a damaged file or line.
void read_documents(const Texts& texts, const std::function<bool(std::string_view, bool)>& take, const char* what,
                    const ReadProgress& progress = {});

struct Survey {
    int64_t bytes = 0;                 // of all documents
    std::vector<std::string> notes{};  // doubts about the encoding of files (TextCheck), one line each
};
// Reads everything once, so that a bad line is found before any work is done.
Survey survey(const Texts& texts, const Tokenizer& tokenizer, const ReadProgress& progress = {});
