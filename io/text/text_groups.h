// Texts in groups of pieces that all threads can work on: cut where the tokens stay the same, and only the part that
// is wanted.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/added_tokens.h"

// The part of a text, by its bytes, that is wanted as tokens.
enum class TextPart { all, first_nine_tenths, last_tenth };

struct TextPiece {
    std::string_view text;
    bool ends;  // whether a document ends with it
};

class TextGroups {
public:
    using Use = std::function<void(std::span<const TextPiece>)>;
    // The tokens are `added`'s tokenizer's. Pieces have about `piece_bytes`, except short documents; use() is called
    // when there are some `group_bytes`. `all_bytes`, of all documents, is for the parts, and for `wanted_bytes`: about
    // so many of all are used, in stretches at equal distances (0: all).
    TextGroups(const AddedTokens& added, int64_t piece_bytes, int64_t group_bytes, Use use,
               TextPart part = TextPart::all, int64_t all_bytes = 0, int64_t wanted_bytes = 0);
    // Takes more of a document. Returns false if nothing that follows is wanted.
    bool add(std::string_view text, bool ends);
    // Hands over what is left.
    void finish();

private:
    bool is_wanted(int64_t position) const;
    std::string_view open() const { return std::string_view(text_).substr(open_); }
    int64_t cut_in_open() const;
    void cut_pieces(int64_t limit, bool ends);
    bool add_before_cut(bool ends);
    bool add_at_cut(bool ends);

    struct Place {
        size_t begin, size;
        bool ends;
    };
    const AddedTokens& added_;
    const double share_;     // of the text that is wanted
    const int64_t stretch_;  // bytes, of which all or nothing is wanted
    const int64_t piece_bytes_, group_bytes_;
    const Use use_;
    const TextPart part_;
    const int64_t margin_;  // no token that crosses a place reaches farther
    const int64_t cut_;     // between the parts, as a position in all of the text
    bool after_cut_;
    std::string text_;           // what has not been handed over
    std::vector<Place> places_;  // of the pieces in it
    size_t open_ = 0;            // where the text that is in no piece yet begins
    int64_t open_at_ = 0;        // the same as a position in all of the text
    bool used_ = false;          // some of the document whose text is open
    int64_t wait_for_ = 0;       // bytes of open text before the next attempt to cut it
};
