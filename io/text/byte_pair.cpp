#include "io/text/byte_pair.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace {

constexpr int32_t no_merge = BytePairMerger::all_merges;
constexpr uint64_t free_slot = ~uint64_t{0};
constexpr size_t longest_short_piece = 64;

size_t hash(uint64_t key) { return (key * 0x9E3779B97F4A7C15u) >> 32; }

}  // namespace

std::array<int32_t, 256> find_byte_ids(const std::vector<std::string>& tokens) {
    std::array<int32_t, 256> ids;
    ids.fill(-1);
    for (size_t id = 0; id < tokens.size(); ++id) {
        if (tokens[id].size() != 1) continue;
        int32_t& of_byte = ids[static_cast<unsigned char>(tokens[id][0])];
        if (of_byte < 0) of_byte = static_cast<int32_t>(id);
    }
    return ids;
}

void BytePairMerger::add(const Merge& merge) {
    const auto insert = [this](const std::pair<uint64_t, int32_t>& entry) {
        size_t slot = hash(entry.first) & (slots_.size() - 1);
        while (slots_[slot].first != free_slot) slot = (slot + 1) & (slots_.size() - 1);
        slots_[slot] = entry;
    };
    if (4 * (merges_.size() + 1) > slots_.size()) {  // at most a quarter full: lookups of absent pairs are short
        std::vector<std::pair<uint64_t, int32_t>> old(std::max<size_t>(1024, 2 * slots_.size()), {free_slot, 0});
        old.swap(slots_);
        for (const auto& entry : old) {
            if (entry.first != free_slot) insert(entry);
        }
    }
    insert({pair_key(merge.left, merge.right), static_cast<int32_t>(merges_.size())});
    merges_.push_back(merge);
}

// no_merge if there is none below `end`.
int32_t BytePairMerger::rank(int32_t left, int32_t right, int32_t end) const {
    if (slots_.empty()) return no_merge;
    const uint64_t key = pair_key(left, right);
    for (size_t slot = hash(key) & (slots_.size() - 1);; slot = (slot + 1) & (slots_.size() - 1)) {
        if (slots_[slot].first == key) return slots_[slot].second < end ? slots_[slot].second : no_merge;
        if (slots_[slot].first == free_slot) return no_merge;
    }
}

void BytePairMerger::encode(std::string_view piece, std::vector<int32_t>& out, int32_t end) const {
    const size_t begin = out.size();
    for (const char c : piece) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    merge(out, begin, end);
}

void BytePairMerger::merge(std::vector<int32_t>& ids, size_t begin, int32_t end) const {
    if (ids.size() - begin <= longest_short_piece) {
        merge_short(ids, begin, end);
    } else {
        merge_long(ids, begin, end);
    }
}

// Takes quadratic time, but needs no bookkeeping: the fastest way for words.
void BytePairMerger::merge_short(std::vector<int32_t>& all, size_t begin, int32_t end) const {
    const auto ids = all.begin() + static_cast<ptrdiff_t>(begin);
    std::array<int32_t, longest_short_piece> ranks;  // ranks[i]: of the pair (ids[i], ids[i + 1])
    size_t n = all.size() - begin;
    for (size_t i = 0; i + 1 < n; ++i) ranks[i] = rank(ids[i], ids[i + 1], end);
    while (n > 1) {
        const size_t i = std::min_element(ranks.begin(), ranks.begin() + n - 1) - ranks.begin();
        if (ranks[i] == no_merge) break;
        ids[i] = merges_[ranks[i]].result;
        std::copy(ids + i + 2, ids + n, ids + i + 1);
        if (i + 2 < n) std::copy(ranks.begin() + i + 2, ranks.begin() + n - 1, ranks.begin() + i + 1);
        --n;
        if (i > 0) ranks[i - 1] = rank(ids[i - 1], ids[i], end);
        if (i + 1 < n) ranks[i] = rank(ids[i], ids[i + 1], end);
    }
    all.resize(begin + n);
}

// O(n log n): all merges of one rank are done in one pass. The result is the same as with one merge at a time: a merge
// only creates pairs of higher rank than its own (they contain its result), and overlapping pairs of a symbol with
// itself are created from left to right, as one pass creates all of that symbol.
void BytePairMerger::merge_long(std::vector<int32_t>& all, size_t begin, int32_t end) const {
    // A symbol's id is at the place where it begins; -1 at its other places.
    std::vector<int32_t> ids(all.begin() + static_cast<ptrdiff_t>(begin), all.end());
    const size_t n = ids.size();
    std::vector<int32_t> lengths(n, 1);              // a symbol's length, at its first and its last place
    std::map<int32_t, std::vector<size_t>> waiting;  // rank → the places of its pairs
    const auto look = [&](size_t i) {
        const size_t next = i + lengths[i];
        if (next >= n) return;
        const int32_t r = rank(ids[i], ids[next], end);
        if (r != no_merge) waiting[r].push_back(i);
    };
    for (size_t i = 0; i < n; ++i) look(i);
    while (!waiting.empty()) {
        auto places = waiting.extract(waiting.begin());
        const Merge& merge = merges_[places.key()];
        for (const size_t i : places.mapped()) {
            const size_t next = i + lengths[i];
            if (ids[i] != merge.left || next >= n || ids[next] != merge.right) continue;  // merged otherwise by now
            ids[i] = merge.result;
            ids[next] = -1;
            lengths[i] += lengths[next];
            lengths[i + lengths[i] - 1] = lengths[i];
            if (i > 0) look(i - lengths[i - 1]);
            look(i);
        }
    }
    all.resize(begin);
    for (size_t i = 0; i < n; i += lengths[i]) all.push_back(ids[i]);
}
