#include "io/text/text_groups.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "io/text/safe_cut.h"

namespace {

// The last place at or before `at` where a UTF-8 character begins.
size_t begin_of_character(std::string_view text, size_t at) {
    size_t begin = at;
    while (begin > 0 && at - begin < 3 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) begin--;
    return begin;
}

int64_t margin_of(const AddedTokens& added) {
    size_t longest = 0;
    for (const AddedToken& token : added.list()) longest = std::max(longest, token.content.size());
    return 2 * static_cast<int64_t>(longest) + 64;
}

// How long a stretch is of which all is wanted or nothing. Shorter ones of a small text, so that both of its parts have
// many.
int64_t stretch_for(int64_t wanted_bytes) { return std::clamp<int64_t>(wanted_bytes / 64, 4 << 10, 1 << 20); }

}  // namespace

TextGroups::TextGroups(const AddedTokens& added, int64_t piece_bytes, int64_t group_bytes, Use use, TextPart part,
                       int64_t all_bytes, int64_t wanted_bytes)
    : added_(added),
      share_(wanted_bytes == 0 || wanted_bytes >= all_bytes
                 ? 1
                 : static_cast<double>(wanted_bytes) / static_cast<double>(all_bytes)),
      stretch_(stretch_for(wanted_bytes)),
      piece_bytes_(share_ < 1 ? std::min(piece_bytes, stretch_) : piece_bytes),
      group_bytes_(group_bytes),
      use_(std::move(use)),
      part_(part),
      margin_(margin_of(added)),
      cut_(static_cast<int64_t>(0.9 * static_cast<double>(all_bytes))),  // nanoGPT's 90 %
      after_cut_(part == TextPart::all) {}

// The cut between the parts, moved back to the beginning of a UTF-8 character, and before a special token that it would
// split. Both parts find the same place: it depends on the text within the margin of cut_ only.
int64_t TextGroups::cut_in_open() const {
    const std::string_view text = open();
    const int64_t wanted = cut_ - open_at_;
    if (wanted == std::ssize(text)) return wanted;
    size_t cut = begin_of_character(text, static_cast<size_t>(wanted));
    while (cut > 0 && wanted - static_cast<int64_t>(cut) < margin_ / 2 && added_.reaches_across(text, cut))
        cut = begin_of_character(text, cut - 1);
    return static_cast<int64_t>(cut);
}

bool TextGroups::add(std::string_view text, bool ends) {
    text_ += text;
    if (!after_cut_) {
        const int64_t end = open_at_ + std::ssize(open());
        return end >= cut_ + margin_ || (ends && end >= cut_) ? add_at_cut(ends) : add_before_cut(ends);
    }
    cut_pieces(ends ? std::ssize(open()) : std::ssize(open()) - margin_, ends);
    return true;
}

bool TextGroups::add_before_cut(bool ends) {
    const int64_t size = std::ssize(open()), before_cut = cut_ - margin_ - open_at_;
    if (part_ == TextPart::first_nine_tenths) {
        cut_pieces(ends ? size : std::min(size - margin_, before_cut), ends);
    } else {
        const int64_t dropped = ends ? size : std::clamp<int64_t>(before_cut, 0, size);
        text_.erase(0, static_cast<size_t>(dropped));
        open_at_ += dropped;
    }
    return true;
}

bool TextGroups::add_at_cut(bool ends) {
    const int64_t size = std::ssize(open()), cut = cut_in_open();
    const bool at_end = ends && cut == size;
    if (part_ == TextPart::first_nine_tenths) {
        text_.resize(open_ + static_cast<size_t>(cut));
        cut_pieces(cut, at_end);
        return false;
    }
    after_cut_ = true;
    text_.erase(0, static_cast<size_t>(cut));
    open_at_ += cut;
    if (!at_end) cut_pieces(ends ? size - cut : size - cut - margin_, ends);
    return true;
}

// Whether a piece that begins here, in all of the text, is wanted: as many stretches as their share says, spread
// evenly, and the first of each part, as a text without places to cut is one piece.
bool TextGroups::is_wanted(int64_t position) const {
    const int64_t in_part = std::max<int64_t>(position - (part_ == TextPart::last_tenth ? cut_ : 0), 0);
    const auto stretch = static_cast<double>(in_part / stretch_);
    return std::ceil((stretch + 1) * share_) > std::ceil(stretch * share_);
}

// Makes pieces of the open text up to `limit`. If that is all of it, the last piece `ends` a document or not.
void TextGroups::cut_pieces(int64_t limit, bool ends) {
    const bool all = limit == std::ssize(open());
    if (!all && limit < wait_for_) return;
    wait_for_ = piece_bytes_;
    // Where the text begins that is still to be cut. What is not wanted of the text before it is overwritten by what is
    // wanted, and dropped at the end at once.
    size_t next = open_;
    while (true) {
        const std::string_view text = std::string_view(text_).substr(next);
        const int64_t cut = safe_cut(text, 0, piece_bytes_, added_);
        const bool last = cut == std::ssize(text);
        if (!all && cut > limit) {
            if (std::ssize(text) > 2 * piece_bytes_) wait_for_ = 2 * std::ssize(text);
            break;
        }
        const bool wanted = is_wanted(open_at_), at_end = ends && last;
        const size_t kept = wanted ? static_cast<size_t>(cut) : 0;
        // Where the end of a document is not wanted, but some of it was, an empty piece ends it.
        if (wanted || (at_end && used_)) places_.push_back({open_, kept, at_end});
        if (next > open_)
            std::copy_n(text_.begin() + static_cast<ptrdiff_t>(next), kept,
                        text_.begin() + static_cast<ptrdiff_t>(open_));
        used_ = !at_end && (used_ || wanted);
        open_ += kept, next += static_cast<size_t>(cut), open_at_ += cut, limit -= cut;
        if (last) break;
    }
    text_.erase(open_, next - open_);
    if (static_cast<int64_t>(open_) >= group_bytes_) finish();
}

void TextGroups::finish() {
    std::vector<TextPiece> pieces;
    for (const Place& place : places_)
        pieces.push_back({std::string_view(text_).substr(place.begin, place.size), place.ends});
    if (!pieces.empty()) use_(pieces);
    text_.erase(0, open_);
    open_ = 0;
    places_.clear();
}
