#include "io/text/superwords.h"

#include <algorithm>
#include <span>

#include "io/file/error.h"
#include "io/file/json.h"
#include "io/text/safe_cut.h"

namespace {

enum class Kind { letter, digit, space, other, any };

// Bytes of other scripts may be of any kind.
Kind kind_of(char c) {
    if (static_cast<unsigned char>(c) >= 0x80) return Kind::any;
    if ((c | 32) >= 'a' && (c | 32) <= 'z') return Kind::letter;
    if (c >= '0' && c <= '9') return Kind::digit;
    return c == ' ' || (c >= '\t' && c <= '\r') ? Kind::space : Kind::other;
}

size_t pair_of(char left, char right) {
    return size_t{static_cast<unsigned char>(left)} << 8 | static_cast<unsigned char>(right);
}

}  // namespace

bool is_within_word(std::string_view token) {
    if (token.size() > 1 && (token[0] == ' ' || (token[0] == '\'' && kind_of(token[1]) == Kind::letter)))
        token.remove_prefix(1);
    Kind only = Kind::any;
    for (const char c : token) {
        const Kind kind = kind_of(c);
        if (kind == Kind::any) continue;
        if (only != Kind::any && kind != only) return false;
        only = kind;
    }
    return true;
}

int32_t first_across_words(const Vocabulary& vocabulary) {
    const auto crosses = [&](const Merge& merge) { return !is_within_word(vocabulary.tokens[merge.result]); };
    const auto first = std::ranges::find_if(vocabulary.merges, crosses);
    return static_cast<int32_t>(first - vocabulary.merges.begin());
}

void require_tokens_within_lines(const std::string& path, const std::vector<std::string>& tokens) {
    for (const std::string& token : tokens)
        for (size_t i = 0; i + 1 < token.size(); ++i)
            if (is_line_end(token[i], token[i + 1]))
                throw InputError(path + ": token " + one_line(token) +
                                 " crosses words and lines; only tokens that end with a line are supported: learn "
                                 "another tokenizer with --tokenizer superbpe:N");
}

SuperwordEncoder::SuperwordEncoder(const Vocabulary& vocabulary, const WordEncoder& words)
    : words_(words), after_words_(find_byte_ids(vocabulary.tokens)) {
    const auto within = static_cast<size_t>(first_across_words(vocabulary));
    const std::span<const Merge> merges = vocabulary.merges;
    for (const Merge& merge : merges.first(within)) {
        const std::string& token = vocabulary.tokens[merge.result];
        for (size_t i = 0; i + 1 < token.size(); ++i) neighbours_.set(pair_of(token[i], token[i + 1]));
    }
    std::vector<bool> is_late(vocabulary.tokens.size());  // made by a merge of these ranks, if perhaps by others too
    for (const Merge& merge : merges.subspan(within)) is_late[merge.result] = true;
    for (size_t rank = 0; rank < merges.size(); ++rank)
        if (rank >= within || is_late[merges[rank].left] || is_late[merges[rank].right]) after_words_.add(merges[rank]);
}

bool SuperwordEncoder::may_merge(char left, char right) const { return neighbours_.test(pair_of(left, right)); }

void SuperwordEncoder::encode(std::string_view text, std::vector<int32_t>& out) const {
    std::string_view words;       // those before which, and after which, no merge within words is possible
    size_t section = out.size();  // its ids begin here; nothing is merged across the end of a section
    const auto end_words = [&] {
        if (!words.empty()) words_.encode(words, out);
        words = {};
    };
    const auto end_section = [&] {
        end_words();
        after_words_.merge(out, section);
        section = out.size();
    };
    pre_tokenizer_.split(text, [&](std::string_view word, bool number) {
        if (number) {
            end_section();
            words_.encode(word, out);
            end_section();
            return;
        }
        if (!words.empty() && may_merge(words.back(), word.front())) {
            words = {words.data(), words.size() + word.size()};
            return;
        }
        if (!words.empty() && is_line_end(words.back(), word.front())) end_section();
        end_words();
        words = word;
    });
    end_section();
}
