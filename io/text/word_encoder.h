// The tokens of words: from a table if a word is one token, as most are, or by its merges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/byte_pair.h"
#include "io/text/word_table.h"

class WordEncoder {
public:
    // By the vocabulary's merges whose rank is below `end`. `merger` has all of them.
    WordEncoder(const Vocabulary& vocabulary, const BytePairMerger& merger, int32_t end) : merger_(merger), end_(end) {
        const auto add = [&](int32_t id) {
            const std::string& token = vocabulary.tokens[id];
            if (!whole_.find(token)) whole_[token] = id;
            longest_ = std::max(longest_, token.size());
        };
        for (const int32_t id : find_byte_ids(vocabulary.tokens)) add(id);
        for (int32_t rank = 0; rank < std::min<int64_t>(end, std::ssize(vocabulary.merges)); ++rank)
            add(vocabulary.merges[rank].result);
    }
    // Appends the word's ids to `out`.
    void encode(std::string_view word, std::vector<int32_t>& out) const {
        if (const int64_t* const whole = word.size() <= longest_ ? whole_.find(word) : nullptr) {
            out.push_back(static_cast<int32_t>(*whole));
        } else {
            merger_.encode(word, out, end_);
        }
    }

private:
    const BytePairMerger& merger_;
    const int32_t end_;
    WordTable whole_;     // words that are one token
    size_t longest_ = 0;  // of them, in bytes
};
