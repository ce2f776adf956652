// What a file is by its first bytes, where text or tokens are wanted and something else is given.
#pragma once

#include <string>
#include <string_view>

struct FileKind {
    std::string name;    // "a zip archive"; "" where the bytes are of no known kind
    std::string remedy;  // how its text is had, where one can say
};
FileKind kind_of(std::string_view bytes);
