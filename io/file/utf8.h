// Finds, counts and replaces invalid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// The index of the first byte that is not valid UTF-8, or text.size().
size_t find_invalid_utf8(std::string_view text);
int64_t count_invalid_utf8(std::string_view text);  // how many maximal parts of invalid sequences
// Replaces each maximal part of an invalid sequence by U+FFFD, as Python's bytes.decode(errors="replace") does.
std::string replace_invalid_utf8(std::string_view text);
