#define PCRE2_CODE_UNIT_WIDTH 8
#include "io/text/pre_tokenizer.h"

#include <pcre2.h>

#include <memory>
#include <stdexcept>
#include <vector>

namespace {

// Unicode's White_Space as a list, because PCRE2's \s includes U+180E, which tiktoken's does not.
const std::string space = R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
// GPT-2's pattern. The quantifiers are possessive (++), so that no backtracking state is kept for long runs. Of several
// spaces before a word, the last belongs to the word: \s+(?!\S).
std::string words(const std::string& number) {
    return R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++|)" + number + "| ?[^" + space + R"(\p{L}\p{N}]++|[)" + space + "]+(?![^" +
           space + "])|[" + space + "]";
}
// A number that stands apart is the pattern's group 1.
std::string pattern_of(Pieces pieces) {
    if (pieces == Pieces::words) return words(R"( ?\p{N}++)");
    return pieces == Pieces::words_and_numbers ? words(R"((\p{N}++))") : R"((\p{N}++)|[^\n\p{N}]++\n*+|\n++)";
}

// \w of Rust's regular expressions (Unicode TR18): alphabetic characters, marks, decimal digits, connectors and
// joiners. PCRE2 has no class of alphabetic characters: they are letters, numerals, marks and the circled letters.
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
    MatchData match(pcre2_match_data_create(2, nullptr), pcre2_match_data_free);
    if (!match) throw std::bad_alloc();
    return match;
}

// Matches one character of a set.
class CharacterClass {
public:
    explicit CharacterClass(const std::string& set) : code_(compile("[" + set + "]"), pcre2_code_free) {}
    // The size in bytes of the text's first (last) character if it is in the set; otherwise 0.
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

// Calls take(group) for the groups of a number's digits: of any run of them the last three, the three before, and so
// on. Other numerals (½, Ⅷ) belong to the group before them. This is what SuperBPE's second pattern,
// (?=(\d{3})+(?!\d)), finds within the first one's \p{N}+, but takes linear time.
template <class Take>
void split_digits(std::string_view number, const Take& take) {
    static const CharacterClass digits(R"(\p{Nd})");
    std::vector<size_t> cuts;  // from the last to the first
    size_t end = number.size();
    for (int64_t run = 0; end > 0;) {
        size_t begin = end - 1;
        while (begin > 0 && (static_cast<unsigned char>(number[begin]) & 0xC0) == 0x80) --begin;
        const auto first = static_cast<unsigned char>(number[begin]);
        const bool digit = first < 0x80 || digits.at_begin(number.substr(begin, end - begin)) > 0;
        run = digit ? run + 1 : 0;
        if (run > 0 && run % 3 == 0) cuts.push_back(begin);
        end = begin;
    }
    for (; !cuts.empty(); cuts.pop_back()) {
        if (cuts.back() > end) take(number.substr(end, cuts.back() - end));
        end = cuts.back();
    }
    if (end < number.size()) take(number.substr(end));
}

const CharacterClass& word_characters() {
    static const CharacterClass words(word);
    return words;
}
const CharacterClass& space_characters() {
    static const CharacterClass spaces(space);
    return spaces;
}

}  // namespace

PreTokenizer::PreTokenizer(Pieces pieces) : numbers_apart_(pieces != Pieces::words) {
    pcre2_code* code = compile(pattern_of(pieces));
    code_ = code;
    jit_ = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;  // without JIT matching is only slower
}

PreTokenizer::~PreTokenizer() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

void PreTokenizer::split(std::string_view text, const Take& take) const {
    const auto* code = static_cast<const pcre2_code*>(code_);
    const MatchData match = make_match_data();
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    for (size_t begin = 0; begin < text.size(); begin = bounds[1]) {
        const int found =
            jit_ ? pcre2_jit_match(code, subject, text.size(), begin, 0, match.get(), nullptr)
                 : pcre2_match(code, subject, text.size(), begin, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
        if (found < 0) throw std::runtime_error(pcre2_message(found));
        const std::string_view piece = text.substr(begin, bounds[1] - begin);
        if (numbers_apart_ && found > 1) {
            split_digits(piece, [&](std::string_view group) { take(group, true); });
        } else {
            take(piece, false);
        }
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
