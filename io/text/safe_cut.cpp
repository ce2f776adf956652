#include "io/text/safe_cut.h"

#include <algorithm>

namespace {

// Whether a character that ends in, or begins with, this byte is certainly not white space. Other visible characters
// may be missed, which only moves a cut.
bool ends_visible(uint8_t last) {
    if (last < 0x80) return last > ' ' && last < 0x7f;
    const bool space = last == 0x80 || (last >= 0x81 && last <= 0x8a) || last == 0x9f || last == 0xa0 || last == 0xa8 ||
                       last == 0xa9 || last == 0xaf;
    return !space;
}
bool begins_visible(uint8_t first) {
    if (first < 0x80) return first > ' ' && first < 0x7f;
    return first > 0xc2 && (first < 0xe1 || first > 0xe3);  // U+0085, U+00A0, U+1680, U+2000 …, U+3000
}

}  // namespace

bool is_line_end(char left, char right) { return left == '\n' && begins_visible(static_cast<uint8_t>(right)); }

int64_t safe_cut(std::string_view text, int64_t begin, int64_t size, const AddedTokens& added) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    size_t from = static_cast<size_t>(begin + std::max<int64_t>(size, 1));
    // Cut after a line break between two visible characters: GPT-2's pattern takes longer runs of white space as one
    // piece, and looks at what follows them.
    while (from < text.size()) {
        const size_t newline = text.find('\n', from);
        if (newline == std::string_view::npos || newline + 1 >= text.size()) break;
        if (ends_visible(byte(newline - 1)) && begins_visible(byte(newline + 1)) &&
            !added.reaches_across(text, newline + 1))
            return static_cast<int64_t>(newline + 1);
        from = newline + 1;
    }
    return std::ssize(text);
}
