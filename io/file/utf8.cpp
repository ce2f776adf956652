#include "io/file/utf8.h"

#include <cstring>

namespace {

// The length in bytes of the valid sequence at p or, as a negative number, of the invalid part there (Unicode's
// "maximal subpart").
int sequence_length(const unsigned char* p, const unsigned char* end) {
    const unsigned char lead = *p;
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return -1;
    const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
    unsigned char low = 0x80, high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (int i = 1; i < length; ++i) {
        if (p + i == end || p[i] < low || p[i] > high) return -i;
        low = 0x80, high = 0xBF;
    }
    return length;
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
    const auto* begin = reinterpret_cast<const unsigned char*>(text.data());
    const auto* end = begin + text.size();
    const auto* p = begin;
    while (p < end) {
        uint64_t eight;
        if (end - p >= 8 && (std::memcpy(&eight, p, 8), (eight & 0x8080808080808080u) == 0)) {
            p += 8;
            continue;
        }
        const int length = sequence_length(p, end);
        if (length < 0) break;
        p += length;
    }
    return static_cast<size_t>(p - begin);
}

namespace {

// Calls valid(part) for each part of the text before an invalid sequence, and invalid() for each of those.
template <class Valid, class Invalid>
void each_invalid_utf8(std::string_view text, const Valid& valid, const Invalid& invalid) {
    while (!text.empty()) {
        const size_t size = find_invalid_utf8(text);
        valid(text.substr(0, size));
        text.remove_prefix(size);
        if (text.empty()) break;
        const auto* p = reinterpret_cast<const unsigned char*>(text.data());
        invalid();
        text.remove_prefix(static_cast<size_t>(-sequence_length(p, p + text.size())));
    }
}

}  // namespace

int64_t count_invalid_utf8(std::string_view text) {
    int64_t count = 0;
    each_invalid_utf8(
        text, [](std::string_view) {}, [&] { count++; });
    return count;
}

std::string replace_invalid_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size() + 16);
    each_invalid_utf8(
        text, [&](std::string_view part) { out += part; }, [&] { out += "\xEF\xBF\xBD"; });
    return out;
}
