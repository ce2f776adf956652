// Text that is printed as its tokens come: in whole characters, and up to a stop text.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

class TextStream {
public:
    explicit TextStream(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

    // Appends the bytes of a token and returns what can be printed now: no part of a UTF-8 character, and nothing that
    // may be the beginning of a stop text, which can lie across the borders of tokens.
    std::string add(std::string_view bytes) {
        if (stopped_) return "";
        pending_ += bytes;
        size_t end = pending_.size();
        for (const std::string& stop : stops_)
            if (const size_t at = pending_.find(stop); at != pending_.npos) stopped_ = true, end = std::min(end, at);
        if (!stopped_) {
            for (const std::string& stop : stops_) end = std::min(end, pending_.size() - begun(stop));
            end = std::min(end, pending_.size() - unfinished_character());
        }
        std::string text = pending_.substr(0, end);
        pending_.erase(0, end);
        return text;
    }

    // What was held back as the possible beginning of a stop text, when no more tokens come.
    std::string rest() { return stopped_ ? "" : pending_.substr(0, pending_.size() - unfinished_character()); }

    bool stopped() const { return stopped_; }  // a stop text was found; the text ends before it

private:
    // The length of the longest end of the pending text that begins `stop`.
    size_t begun(const std::string& stop) const {
        size_t length = std::min(stop.size() - 1, pending_.size());
        while (length > 0 && !std::string_view(pending_).ends_with(std::string_view(stop).substr(0, length))) --length;
        return length;
    }
    // The length of an end of the pending text that more bytes may turn into a character (UTF-8, RFC 3629).
    size_t unfinished_character() const {
        for (size_t length = 1; length <= std::min<size_t>(3, pending_.size()); ++length) {
            const auto byte = static_cast<unsigned char>(pending_[pending_.size() - length]);
            if (byte < 0x80 || byte >= 0xf8) return 0;
            if (byte < 0xc0) continue;  // not the first byte
            const size_t bytes = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
            return bytes > length ? length : 0;
        }
        return 0;
    }

    std::vector<std::string> stops_;
    std::string pending_;
    bool stopped_ = false;
};
