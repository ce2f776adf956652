#include "io/text/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "io/file/error.h"
#include "io/file/utf8.h"
#include "io/text/pre_tokenizer.h"

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, bool special_as_text)
    : tokens_(std::move(tokens)), special_as_text_(special_as_text) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
        const std::string& content = tokens_[i].content;
        // Skips content that is not UTF-8: no text contains it, and it must not match inside a character.
        if (content.empty() || find_invalid_utf8(content) < content.size()) continue;
        Search& search = tokens_[i].normalized ? normalized_ : as_they_are_;
        if (!search.tokens.emplace(content, i).second) continue;
        auto& lengths = search.lengths[static_cast<unsigned char>(content[0])];
        if (lengths.empty()) search.first_bytes += content[0];
        if (std::ranges::find(lengths, content.size()) == lengths.end()) lengths.push_back(content.size());
        std::ranges::sort(lengths, std::greater<>());
    }
}

AddedTokens::Match AddedTokens::find(const Search& search, std::string_view text, size_t from) const {
    for (size_t at = from; at < text.size(); ++at) {
        if (search.first_bytes.size() == 1) {  // the usual case: memchr is faster than a loop over bytes
            const void* found = std::memchr(text.data() + at, search.first_bytes[0], text.size() - at);
            if (!found) break;
            at = static_cast<size_t>(static_cast<const char*>(found) - text.data());
        }
        for (const size_t length : search.lengths[static_cast<unsigned char>(text[at])]) {
            if (length > text.size() - at) continue;
            const auto token = search.tokens.find(text.substr(at, length));
            if (token != search.tokens.end()) return {at, at + length, &tokens_[token->second]};
        }
    }
    return {text.size(), text.size(), nullptr};
}

// Like find_matches in tokenizers' added_vocabulary.rs: a match that is rejected still hides those that overlap it.
template <class Text, class Token>
void AddedTokens::split(const Search& search, std::string_view text, const Text& text_part, const Token& token) const {
    size_t done = 0;  // the text before this place has been handed over
    for (size_t from = 0; from < text.size();) {
        const Match match = find(search, text, from);
        if (!match.token) break;
        from = match.end;
        size_t begin = match.begin, end = match.end;
        if (match.token->special && special_as_text_) continue;
        if (match.token->single_word &&
            (ends_with_word_character(text.substr(0, begin)) || begins_with_word_character(text.substr(end)))) {
            continue;
        }
        if (match.token->lstrip) begin = std::max(done, begin - trailing_space(text.substr(0, begin)));
        if (match.token->rstrip) end += leading_space(text.substr(end));
        if (begin > end) continue;  // it consists of white space that the previous token has included
        if (done < begin) text_part(text.substr(done, begin - done));
        if (begin < end) token(match.token->id);
        done = end;
    }
    if (done < text.size()) text_part(text.substr(done));
}

void AddedTokens::split(std::string_view text, const std::function<void(std::string_view)>& text_part,
                        const std::function<void(int32_t)>& token) const {
    const auto search_the_rest = [&](std::string_view part) {
        if (normalized_.tokens.empty()) return text_part(part);
        split(normalized_, part, text_part, token);
    };
    if (as_they_are_.tokens.empty()) return search_the_rest(text);
    split(as_they_are_, text, search_the_rest, token);
}

bool AddedTokens::reaches_across(std::string_view text, size_t at) const {
    for (const AddedToken& token : tokens_) {
        const size_t size = token.content.size();
        for (size_t begin = at - std::min(at, size); begin <= at; ++begin) {
            if (size == 0 || text.compare(begin, size, token.content) != 0) continue;
            const size_t end = begin + size;
            if (begin < at && at < end) return true;
            if (begin == at && token.lstrip) return true;
            if (end == at && token.single_word) return true;
        }
    }
    return false;
}

std::string AddedTokens::note(const std::string& source, const Counts& counts) const {
    constexpr size_t most_kinds = 4;
    std::string list;
    int64_t total = 0;
    size_t kinds = 0;
    for (const AddedToken& token : tokens_) {
        const auto found = counts.find(token.id);
        if (found == counts.end()) continue;
        total += found->second;
        if (++kinds > most_kinds) continue;
        list += (list.empty() ? "" : ", ") + std::to_string(found->second) + " " + token.content;
    }
    if (total == 0) return "";
    if (kinds > most_kinds) list += ", and others, " + std::to_string(total) + " special";
    return without_controls(source + ": " + list + (total == 1 ? " token" : " tokens") +
                            "; --no-special-tokens reads " + (total == 1 ? "it" : "them") + " as text");
}
