// The kind of a file, by its first bytes, for messages when it is neither text nor tokens.
#pragma once

#include <string>
#include <string_view>

struct FileKind {
    std::string name;    // "a zip archive"; "" where the bytes are of no known kind
    std::string remedy;  // how to turn it into text
};
FileKind kind_of(std::string_view bytes);
