// Words with a number each.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/text/hash_index.h"

class WordTable {
public:
    // The word's number. That of a new word is 0. Valid until the next word is added.
    int64_t& operator[](std::string_view word) {
        const uint32_t hash = hash_of(word), place = place_of(word, hash);
        if (place != HashIndex::none) return words_[place].number;
        index_.add(hash);
        words_.push_back({bytes_.size(), word.size()});
        bytes_ += word;
        return words_.back().number;
    }
    // Null if the word is not in the table.
    const int64_t* find(std::string_view word) const {
        const uint32_t place = place_of(word, hash_of(word));
        return place == HashIndex::none ? nullptr : &words_[place].number;
    }
    // Calls use(word, number) for each word, in the order in which they were added.
    template <class Use>
    void each(const Use& use) const {
        for (const Word& word : words_) use(text_of(word), word.number);
    }
    int64_t size() const { return std::ssize(words_); }   // words
    int64_t bytes() const { return std::ssize(bytes_); }  // of them

private:
    struct Word {
        size_t begin, length;  // its bytes are a part of bytes_
        int64_t number = 0;
    };
    static uint32_t hash_of(std::string_view word) {
        return static_cast<uint32_t>(std::hash<std::string_view>{}(word));
    }
    std::string_view text_of(const Word& word) const {
        return std::string_view(bytes_).substr(word.begin, word.length);
    }
    uint32_t place_of(std::string_view word, uint32_t hash) const {
        return index_.find(hash, [&](uint32_t place) { return text_of(words_[place]) == word; });
    }

    HashIndex index_;  // of words_
    std::vector<Word> words_;
    std::string bytes_;
};
