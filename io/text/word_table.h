// Words with a number each, by open addressing: a look-up misses the cache less often than in a std::unordered_map, and
// a text has a word for every five of its bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

class WordTable {
public:
    // The word's number. That of a new word is 0. Valid until the next word is added.
    int64_t& operator[](std::string_view word) {
        if (2 * size_ >= std::ssize(slots_)) grow();
        Slot& slot = slots_[place_of(word)];
        if (slot.length == free) {
            slot = {hash(word), bytes_.size(), word.size(), 0};
            bytes_ += word;
            ++size_;
        }
        return slot.number;
    }
    // Null if the word is not in the table.
    const int64_t* find(std::string_view word) const {
        const Slot& slot = slots_[place_of(word)];
        return slot.length == free ? nullptr : &slot.number;
    }
    // Calls use(word, number) for each word.
    template <class Use>
    void each(const Use& use) const {
        for (const Slot& slot : slots_)
            if (slot.length != free) use(word_of(slot), slot.number);
    }
    int64_t size() const { return size_; }                // words
    int64_t bytes() const { return std::ssize(bytes_); }  // of them

private:
    static constexpr size_t free = ~size_t{0};
    struct Slot {
        size_t hash = 0, begin = 0, length = free;  // the word's bytes are a part of bytes_
        int64_t number = 0;
    };

    static size_t hash(std::string_view word) { return std::hash<std::string_view>{}(word); }
    std::string_view word_of(const Slot& slot) const {
        return std::string_view(bytes_).substr(slot.begin, slot.length);
    }
    size_t next(size_t place) const { return (place + 1) & (slots_.size() - 1); }
    // The slot of the word, or the free one where it would be.
    size_t place_of(std::string_view word) const {
        const size_t wanted = hash(word);
        size_t place = wanted & (slots_.size() - 1);
        for (; slots_[place].length != free; place = next(place))
            if (slots_[place].hash == wanted && word_of(slots_[place]) == word) break;
        return place;
    }
    void grow() {
        std::vector<Slot> old(2 * slots_.size());
        old.swap(slots_);
        for (const Slot& slot : old) {
            if (slot.length == free) continue;
            size_t place = slot.hash & (slots_.size() - 1);
            while (slots_[place].length != free) place = next(place);
            slots_[place] = slot;
        }
    }

    std::vector<Slot> slots_ = std::vector<Slot>(1024);  // a power of two, at most half full
    std::string bytes_;
    int64_t size_ = 0;
};
