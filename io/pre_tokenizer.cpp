#define PCRE2_CODE_UNIT_WIDTH 8
#include "io/pre_tokenizer.h"

#include <pcre2.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace {

// Unicode's White_Space, written out: PCRE2's own \s counts U+180E, which tiktoken's does not.
const std::string space = R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
// Possessive (++), so that a run of any length is passed over without a way back being kept. Of several
// spaces before a word the last goes with the word: \s+(?!\S).
const std::string pattern = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^)" + space + R"(\p{L}\p{N}]++|[)" + space +
                            "]+(?![^" + space + "])|[" + space + "]";

std::string pcre2_message(int error) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return "PCRE2: " + std::string(reinterpret_cast<const char*>(text));
}

// Bytes of the valid sequence at p, or, negative, of the invalid part there (Unicode's "maximal subpart").
int sequence_length(const unsigned char* p, const unsigned char* end) {
    const unsigned char lead = *p;
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return -1;
    const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // The second byte's range leaves out overlong forms, surrogates and what is past U+10FFFF.
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

PreTokenizer::PreTokenizer() {
    int error = 0;
    PCRE2_SIZE where = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &where, nullptr);
    if (!code) throw std::runtime_error(pcre2_message(error));
    code_ = code;
    jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;  // else slower, where PCRE2 has no JIT
}

PreTokenizer::~PreTokenizer() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
    const auto* code = static_cast<const pcre2_code*>(code_);
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                    pcre2_match_data_free);
    if (!match) throw std::bad_alloc();
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    for (size_t begin = 0; begin < text.size(); begin = bounds[1]) {
        const int found =
            jit_ ? pcre2_jit_match(code, subject, text.size(), begin, 0, match.get(), nullptr)
                 : pcre2_match(code, subject, text.size(), begin, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
        if (found < 0) throw std::runtime_error(pcre2_message(found));
        piece(text.substr(begin, bounds[1] - begin));
    }
}

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
