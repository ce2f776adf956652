#include "io/text/byte_pair.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace {

constexpr int32_t no_merge = BytePairMerger::all_merges;
constexpr size_t longest_short_piece = 512;

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
    index_.add(hash_of_pair(merge.left, merge.right));
    merges_.push_back(merge);
}

// no_merge if there is none below `end`.
int32_t BytePairMerger::rank(int32_t left, int32_t right, int32_t end) const {
    const uint32_t found = index_.find(hash_of_pair(left, right), [&](uint32_t place) {
        return merges_[place].left == left && merges_[place].right == right;
    });
    return found < static_cast<uint32_t>(end) ? static_cast<int32_t>(found) : no_merge;
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

// Takes quadratic time, but needs no bookkeeping: the fastest way for words, and for lines of some hundred tokens.
void BytePairMerger::merge_short(std::vector<int32_t>& all, size_t begin, int32_t end) const {
    const auto ids = all.begin() + static_cast<ptrdiff_t>(begin);
    std::array<int32_t, longest_short_piece> ranks;  // ranks[i]: of the pair (ids[i], ids[i + 1])
    size_t n = all.size() - begin;
    for (size_t i = 0; i + 1 < n; ++i) ranks[i] = rank(ids[i], ids[i + 1], end);
    while (n > 1) {
        int32_t least = no_merge;  // in a loop that becomes vector instructions, unlike std::min_element
        for (size_t j = 0; j + 1 < n; ++j) least = std::min(least, ranks[j]);
        if (least == no_merge) break;
        const size_t i = std::find(ranks.begin(), ranks.begin() + n - 1, least) - ranks.begin();
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
