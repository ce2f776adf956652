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

// \w of Rust's regular expressions (Unicode TR18): alphabetic characters, marks, decimal digits, connectors and
// joiners. PCRE2 has no class for the alphabetic ones; beside letters, numerals and marks they are the circled letters.
const std::string word =
    R"(\p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

std::string pcre2_message(int error) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return "PCRE2: " + std::string(reinterpret_cast<const char*>(text));
}

pcre2_code* compile(const std::string& regex) {
    int error = 0;
    PCRE2_SIZE where = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &where, nullptr);
    if (!code) throw std::runtime_error(pcre2_message(error));
    return code;
}

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
MatchData make_match_data() {
    MatchData match(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
    if (!match) throw std::bad_alloc();
    return match;
}

// One of a set of characters.
class CharacterClass {
public:
    explicit CharacterClass(const std::string& set) : code_(compile("[" + set + "]"), pcre2_code_free) {}
    // Bytes of the character that the text begins with, or ends with; 0 if it is none of the set, or there is none.
    size_t at_begin(std::string_view text) const {
        if (text.empty()) return 0;
        const MatchData match = make_match_data();
        const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                      PCRE2_NO_UTF_CHECK, match.get(), nullptr);
        return found > 0 ? pcre2_get_ovector_pointer(match.get())[1] : 0;
    }
    size_t at_end(std::string_view text) const {
        size_t begin = text.size() - (text.empty() ? 0 : 1);
        while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
        return at_begin(text.substr(begin));
    }

private:
    std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code_;
};

const CharacterClass& word_characters() {
    static const CharacterClass words(word);
    return words;
}
const CharacterClass& space_characters() {
    static const CharacterClass spaces(space);
    return spaces;
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
    pcre2_code* code = compile(pattern);
    code_ = code;
    jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;  // else slower, where PCRE2 has no JIT
}

PreTokenizer::~PreTokenizer() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
    const auto* code = static_cast<const pcre2_code*>(code_);
    const MatchData match = make_match_data();
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

bool begins_with_word_character(std::string_view text) { return word_characters().at_begin(text) > 0; }
bool ends_with_word_character(std::string_view text) { return word_characters().at_end(text) > 0; }

size_t leading_space(std::string_view text) {
    size_t size = 0;
    while (const size_t one = space_characters().at_begin(text.substr(size))) size += one;
    return size;
}

size_t trailing_space(std::string_view text) {
    size_t size = 0;
    while (const size_t one = space_characters().at_end(text.substr(0, text.size() - size))) size += one;
    return size;
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
