// Finds things by their hashes: which of those in an array, in the order in which they were added, it is. By open
// addressing: a look-up misses the cache less often than in a std::unordered_map, and a text has a word for every five
// of its bytes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

class HashIndex {
public:
    static constexpr uint32_t none = ~uint32_t{0};

    // The place of the thing with this hash for which is(place), or `none`.
    template <class Is>
    uint32_t find(uint32_t hash, const Is& is) const {
        for (size_t slot = hash & last();; slot = (slot + 1) & last()) {
            const auto [of_thing, place] = slots_[slot];
            if (place == none || (of_thing == hash && is(place))) return place;
        }
    }
    // Adds what find() did not find, at the next place.
    void add(uint32_t hash) {
        if (size_ == none) throw std::length_error("a table with more than 4 billion entries");
        if (load * (size_ + size_t{1}) > slots_.size()) {
            std::vector<Slot> old(2 * slots_.size());
            old.swap(slots_);
            for (const Slot& slot : old)
                if (slot.place != none) insert(slot);
        }
        insert({hash, size_++});
    }

private:
    static constexpr size_t load = 2;  // slots for a thing, at least
    struct Slot {
        uint32_t hash = 0, place = none;
    };
    size_t last() const { return slots_.size() - 1; }
    void insert(const Slot& added) {
        size_t slot = added.hash & last();
        while (slots_[slot].place != none) slot = (slot + 1) & last();
        slots_[slot] = added;
    }

    std::vector<Slot> slots_ = std::vector<Slot>(1024);  // a power of two
    uint32_t size_ = 0;
};
