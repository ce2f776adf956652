// Whether text is valid UTF-8, and what to make of it where it is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// The first byte that is not valid UTF-8, or text.size().
size_t find_invalid_utf8(std::string_view text);
int64_t count_invalid_utf8(std::string_view text);  // how many maximal parts of invalid sequences
// Each maximal part of an invalid sequence becomes U+FFFD, as in Python's bytes.decode(errors="replace").
std::string replace_invalid_utf8(std::string_view text);
