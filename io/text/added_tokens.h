// Special and added tokens, such as <|endoftext|>, which are written in a text by name. They are found before the rest
// of the text is split into pieces, by the rules of Hugging Face's tokenizers library.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

struct AddedToken {
    int32_t id = -1;
    std::string content;
    bool special = false;                 // marks a place in the text (end, speaker, padding) and is not part of it
    bool single_word = false;             // found only where no letter, digit or underscore is next to it
    bool lstrip = false, rstrip = false;  // includes the white space before it (lstrip), after it (rstrip)
    bool normalized = false;              // searched for after, and between, the tokens that are not normalized
};

class AddedTokens {
public:
    AddedTokens() = default;
    // With `special_as_text`, names of special tokens stay ordinary text, as with transformers' split_special_tokens.
    explicit AddedTokens(std::vector<AddedToken> tokens, bool special_as_text = false);

    const std::vector<AddedToken>& list() const { return tokens_; }
    bool special_as_text() const { return special_as_text_; }

    // Calls `token` for each added token and `text` for each part of the text between them, in order. Of the tokens
    // that begin at the same place, the longest is found. The text is valid UTF-8.
    void split(std::string_view text, const std::function<void(std::string_view)>& text_part,
               const std::function<void(int32_t)>& token) const;

    // Whether a token crosses `at`, or depends on the text on both sides of it, so that the two sides cannot be encoded
    // separately. White space after an rstrip token is not checked, so cut only before a visible character.
    bool reaches_across(std::string_view text, size_t at) const;

    // How often each special token occurs in `ids`.
    using Counts = std::map<int32_t, int64_t>;
    template <class Ids>
    Counts count_special(const Ids& ids) const;
    // "data.txt: 60 <|endoftext|> tokens; --no-special-tokens reads them as text", or "" if there are none.
    std::string note(const std::string& source, const Counts& counts) const;

private:
    // Tokens that are searched for together.
    struct Search {
        std::map<std::string, size_t, std::less<>> tokens;  // content → index in tokens_
        std::array<std::vector<size_t>, 256> lengths;       // by first byte: the tokens' lengths, the longest first
        std::string first_bytes;                            // the bytes with which a token begins
    };
    struct Match {
        size_t begin, end;
        const AddedToken* token;  // null: none
    };
    Match find(const Search& search, std::string_view text, size_t from) const;
    template <class Text, class Token>
    void split(const Search& search, std::string_view text, const Text& text_part, const Token& token) const;

    std::vector<AddedToken> tokens_;
    bool special_as_text_ = false;
    Search as_they_are_, normalized_;
};

template <class Ids>
AddedTokens::Counts AddedTokens::count_special(const Ids& ids) const {
    Counts counts;
    std::vector<bool> special;
    for (const AddedToken& token : tokens_) {
        if (!token.special || special_as_text_) continue;
        if (std::ssize(special) <= token.id) special.resize(static_cast<size_t>(token.id) + 1);
        special[static_cast<size_t>(token.id)] = true;
    }
    if (special.empty()) return counts;
    for (const auto given : ids) {
        const auto id = static_cast<size_t>(given);
        if (id < special.size() && special[id]) counts[static_cast<int32_t>(id)]++;
    }
    return counts;
}
