// JSON lines: a file with one JSON object in each line, of which one member is a text.
#pragma once

#include <string>
#include <string_view>

// Where a line begins, for messages.
struct LinePlace {
    const std::string& path;
    int64_t line;  // from 1
    int64_t byte;  // of the text of the file, from 0
};

// The string that a line has as `field`. Throws InputError, naming the line and the byte, unless the line is a JSON
// object with this member, once, and the member is a string.
std::string json_line_text(std::string_view line, const std::string& field, const LinePlace& place);
