#include "io/text/byte_symbols.h"

#include <array>

namespace {

struct ByteSymbols {
    std::array<std::string, 256> symbols;  // UTF-8
    std::array<int, 512> bytes;            // by code point; -1: none
    std::vector<std::string> tokens;       // the bytes in the order of GPT-2's ids: the printable ones first

    ByteSymbols() {
        bytes.fill(-1);
        const auto add = [this](int byte, int code_point) {
            const auto as_char = [](int c) { return static_cast<char>(c); };
            bytes[code_point] = byte;
            symbols[byte] = code_point < 0x80
                                ? std::string(1, as_char(code_point))
                                : std::string{as_char(0xC0 | code_point >> 6), as_char(0x80 | (code_point & 0x3F))};
            tokens.emplace_back(1, as_char(byte));
        };
        const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b != 173); };
        for (int b = 0; b < 256; ++b) {
            if (printable(b)) add(b, b);
        }
        for (int b = 0, next = 256; b < 256; ++b) {
            if (!printable(b)) add(b, next++);
        }
    }
};

const ByteSymbols& byte_symbols() {
    static const ByteSymbols symbols;
    return symbols;
}

}  // namespace

std::string to_symbols(std::string_view bytes) {
    std::string text;
    for (const char c : bytes) text += byte_symbols().symbols[static_cast<unsigned char>(c)];
    return text;
}

std::optional<std::string> from_symbols(std::string_view text) {
    std::string bytes;
    for (size_t i = 0; i < text.size(); ++i) {
        int c = static_cast<unsigned char>(text[i]);
        if (c >= 0x80) {  // all symbols are below U+0200: two bytes of UTF-8
            if ((c & 0xE0) != 0xC0 || i + 1 == text.size() || (text[i + 1] & 0xC0) != 0x80) return std::nullopt;
            c = (c & 0x1F) << 6 | (text[++i] & 0x3F);
        }
        if (c >= 512 || byte_symbols().bytes[c] < 0) return std::nullopt;
        bytes += static_cast<char>(byte_symbols().bytes[c]);
    }
    return bytes;
}

const std::vector<std::string>& gpt2_byte_tokens() { return byte_symbols().tokens; }
