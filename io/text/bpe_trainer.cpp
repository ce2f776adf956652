#include "io/text/bpe_trainer.h"

#include <algorithm>
#include <charconv>
#include <future>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>

#include <omp.h>

#include "io/file/error.h"
#include "io/text/byte_symbols.h"
#include "io/model/llmc_files.h"
#include "io/text/tokenizer_files.h"

namespace {

constexpr int32_t no_symbol = std::numeric_limits<int32_t>::min();

AddedToken end_of_text() { return {.id = 0, .content = end_of_text_token, .special = true}; }

// The distinct words as sequences of tokens, and for each pair of neighbours how often it occurs and where. All words
// stand in one array, with a separator before and after each, so that a merge costs time only where its pair occurs,
// however long the words are.
class PairTable {
public:
    PairTable(const WordCounts& words, const std::vector<std::string>& tokens);
    // Removes the most frequent pair. Returns false if there is none.
    bool pop(Merge& merge);
    // Replaces each occurrence of a pair by a token with the next id.
    void apply(const Merge& merge);

private:
    struct Pair {
        int32_t left, right;
        int64_t count;         // occurrences in the text
        size_t begin, places;  // where its left token begins: a part of places_, ascending. Some may be out of date.
    };
    struct Candidate {  // a pair with its count when it was queued, which is never less than its count now
        int64_t count;
        int32_t left, right;
        size_t pair;
        bool operator<(const Candidate& other) const {
            return std::tuple(count, other.left, other.right) < std::tuple(other.count, left, right);
        }
    };
    // What a merge changes for one neighbour of the new token.
    struct Neighbour {
        int64_t lost = 0;    // occurrences beside the token that was merged
        int64_t gained = 0;  // occurrences beside the new token
        size_t places = 0;   // the number of them in Side::events, then where to list the next one in places_
        bool touched = false;
    };
    struct Event {  // an occurrence of a neighbour beside the new token
        int32_t neighbour;
        int32_t place;  // where the left one of the two begins
    };
    // What a merge changes for the neighbours before, or after, the new token.
    struct Side {
        bool before;
        std::vector<Neighbour> neighbours{};  // by id
        std::vector<int32_t> touched{};
        std::vector<Event> events{};
        Neighbour& at(int32_t id) {
            if (!neighbours[id].touched) touched.push_back(id);
            neighbours[id].touched = true;
            return neighbours[id];
        }
    };
    void list_pairs_of_bytes(size_t ids);
    void add_pair(const Pair& pair);
    // The place of a pair in pairs_, or HashIndex::none.
    uint32_t find(int32_t left, int32_t right) const {
        return index_.find(hash_of_pair(left, right),
                           [&](uint32_t place) { return pairs_[place].left == left && pairs_[place].right == right; });
    }
    void update_pairs(Side& side, int32_t merged, int32_t result);

    // The id of a token stands at its first byte, and its length, as a negative number, at its last byte if it has more
    // than one. Where a token began that is now a part of another one, there is a negative number too.
    std::vector<int32_t> symbols_;
    std::vector<int32_t> word_;     // the word to which a place belongs
    std::vector<int64_t> counts_;   // how often a word occurs
    std::vector<int32_t> lengths_;  // of a token, in bytes
    std::vector<int32_t> places_;
    std::vector<Pair> pairs_;
    HashIndex index_;  // of pairs_
    std::priority_queue<Candidate> queue_;
    Side before_{.before = true}, after_{.before = false};
};

PairTable::PairTable(const WordCounts& words, const std::vector<std::string>& tokens) {
    const std::array<int32_t, 256> ids = find_byte_ids(tokens);
    const size_t size = static_cast<size_t>(words.bytes() + words.size()) + 1;
    symbols_.reserve(size);
    word_.reserve(size);
    const auto put = [&](int32_t symbol) {
        symbols_.push_back(symbol);
        word_.push_back(static_cast<int32_t>(counts_.size()));
    };
    put(no_symbol);
    words.each([&](std::string_view word, int64_t count) {
        for (const char c : word) put(ids[static_cast<unsigned char>(c)]);
        put(no_symbol);
        counts_.push_back(count);
    });
    for (const std::string& token : tokens) lengths_.push_back(static_cast<int32_t>(token.size()));
    list_pairs_of_bytes(tokens.size());
}

// Counts the pairs, and lists their places by a counting sort.
void PairTable::list_pairs_of_bytes(size_t n) {
    const auto each_pair = [&](const auto& use) {
        for (size_t i = 0; i + 1 < symbols_.size(); ++i)
            if (symbols_[i] >= 0 && symbols_[i + 1] >= 0)
                use(static_cast<size_t>(symbols_[i]) * n + symbols_[i + 1], i);
    };
    std::vector<int64_t> counts(n * n);
    std::vector<size_t> ends(n * n);
    each_pair([&](size_t pair, size_t place) {
        counts[pair] += counts_[word_[place]];
        ++ends[pair];
    });
    size_t end = 0;
    for (size_t pair = 0; pair < n * n; ++pair) {
        const size_t places = ends[pair];
        if (places > 0) {
            add_pair({.left = static_cast<int32_t>(pair / n),
                      .right = static_cast<int32_t>(pair % n),
                      .count = counts[pair],
                      .begin = end,
                      .places = places});
        }
        ends[pair] = end;
        end += places;
    }
    places_.resize(end);
    each_pair([&](size_t pair, size_t place) { places_[ends[pair]++] = static_cast<int32_t>(place); });
}

void PairTable::add_pair(const Pair& pair) {
    index_.add(hash_of_pair(pair.left, pair.right));
    queue_.push({pair.count, pair.left, pair.right, pairs_.size()});
    pairs_.push_back(pair);
}

bool PairTable::pop(Merge& merge) {
    while (!queue_.empty()) {
        Candidate best = queue_.top();
        queue_.pop();
        const int64_t count = pairs_[best.pair].count;
        if (count == best.count) {
            merge = {best.left, best.right, static_cast<int32_t>(lengths_.size())};
            return true;
        }
        best.count = count;
        if (count > 0) queue_.push(best);
    }
    return false;
}

void PairTable::apply(const Merge& merge) {
    const auto [left, right, result] = merge;
    const int32_t left_length = lengths_[left], length = left_length + lengths_[right];
    lengths_.push_back(length);
    for (Side* side : {&before_, &after_}) side->neighbours.resize(lengths_.size());
    const uint32_t found = find(left, right);
    if (found == HashIndex::none) return;
    pairs_[found].count = 0;
    const Pair pair = pairs_[found];
    for (size_t i = pair.begin; i < pair.begin + pair.places; ++i) {
        const int32_t place = places_[i], next = place + left_length, end = place + length;
        if (symbols_[place] != left || symbols_[next] != right) continue;
        const int64_t count = counts_[word_[place]];
        symbols_[place] = result;
        symbols_[next] = -1;
        symbols_[end - 1] = -length;
        if (const int32_t last = symbols_[place - 1]; last != no_symbol) {
            const int32_t begin = last < 0 ? place + last : place - 1, neighbour = symbols_[begin];
            if (neighbour == result)  // merged just now, and counted as having `left` after it
                after_.at(left).gained -= count;
            else
                before_.at(neighbour).lost += count;
            before_.at(neighbour).gained += count;
            before_.events.push_back({neighbour, begin});
        }
        if (const int32_t neighbour = symbols_[end]; neighbour != no_symbol) {
            after_.at(neighbour).lost += count;
            after_.at(neighbour).gained += count;
            after_.events.push_back({neighbour, place});
        }
    }
    update_pairs(before_, left, result);
    update_pairs(after_, right, result);
}

// Updates the counts of the pairs of one side's neighbours with the token that was merged, and adds their pairs with
// the new token.
void PairTable::update_pairs(Side& side, int32_t merged, int32_t result) {
    const auto pair_with = [&](int32_t neighbour, int32_t token) {
        return side.before ? std::pair(neighbour, token) : std::pair(token, neighbour);
    };
    for (const Event& event : side.events) ++side.neighbours[event.neighbour].places;
    size_t end = places_.size();
    places_.resize(end + side.events.size());
    for (const int32_t id : side.touched) {
        Neighbour& n = side.neighbours[id];
        const auto [old_left, old_right] = pair_with(id, merged);
        if (n.lost > 0) pairs_[find(old_left, old_right)].count -= n.lost;
        const auto [left, right] = pair_with(id, result);
        if (n.gained > 0) add_pair({.left = left, .right = right, .count = n.gained, .begin = end, .places = n.places});
        end += std::exchange(n.places, end);
    }
    for (const Event& event : side.events) places_[side.neighbours[event.neighbour].places++] = event.place;
    for (const int32_t id : side.touched) side.neighbours[id] = {};
    side.touched.clear();
    side.events.clear();
}

}  // namespace

AddedTokens added_tokens_to_train(bool special_as_text) { return AddedTokens({end_of_text()}, special_as_text); }

bool is_superword_spec(const std::string& spec) { return spec.starts_with("superbpe:"); }

int64_t trained_vocabulary_size(const std::string& spec) {
    if (!spec.starts_with("bpe:") && !is_superword_spec(spec)) return 0;
    int64_t size = 0;
    const auto [end, error] = std::from_chars(spec.data() + spec.find(':') + 1, spec.data() + spec.size(), size);
    if (error != std::errc{} || end != spec.data() + spec.size() || size < smallest_trained_vocabulary ||
        size > GPT2Limits::vocab)
        throw InputError("--tokenizer: invalid value " + spec +
                         "; give bpe:N or superbpe:N with a number of tokens from " +
                         std::to_string(smallest_trained_vocabulary) + " to " + std::to_string(GPT2Limits::vocab) +
                         ", such as bpe:4096");
    return size;
}

namespace {

void require_few_bytes(const WordCounts& words, const char* what) {
    if (words.bytes() + words.size() >= std::numeric_limits<int32_t>::max())
        throw InputError(std::string("--vocab: the distinct ") + what +
                         " of the text have more than 2 GiB; train on a part of the text");
}

// Merges on until there are `size` tokens of `longest` bytes at most.
void extend(Vocabulary& vocabulary, PairTable& pairs, int64_t size, size_t longest,
            const std::function<void(int64_t)>& progress) {
    for (Merge merge{}; std::ssize(vocabulary.tokens) < size && pairs.pop(merge);) {
        std::string token = vocabulary.tokens[merge.left] + vocabulary.tokens[merge.right];
        if (token.size() > longest) continue;
        pairs.apply(merge);
        vocabulary.tokens.push_back(std::move(token));
        vocabulary.merges.push_back(merge);
        if (progress) progress(std::ssize(vocabulary.tokens));
    }
}

Vocabulary bytes_and_end_of_text() {
    Vocabulary vocabulary;
    vocabulary.added = {end_of_text()};
    vocabulary.end_of_text = 0;
    vocabulary.tokens = {end_of_text_token};
    vocabulary.tokens.insert(vocabulary.tokens.end(), gpt2_byte_tokens().begin(), gpt2_byte_tokens().end());
    return vocabulary;
}

}  // namespace

Vocabulary train_byte_pairs(const WordCounts& words, int64_t size, const std::function<void(int64_t)>& progress) {
    require_few_bytes(words, "words");
    Vocabulary vocabulary = bytes_and_end_of_text();
    PairTable pairs(words, vocabulary.tokens);
    extend(vocabulary, pairs, size, std::string::npos, progress);
    return vocabulary;
}

Vocabulary train_superwords(const WordCounts& words, const WordCounts& lines, int64_t size,
                            const std::function<void(int64_t)>& progress) {
    constexpr int64_t share = 8, merges_at_once = 1024;
    constexpr size_t longest = 64;
    require_few_bytes(words, "words");
    require_few_bytes(lines, "lines");
    Vocabulary vocabulary = bytes_and_end_of_text();
    vocabulary.superwords = true;
    const int64_t within = std::max(size - size / share, smallest_trained_vocabulary);
    // Meanwhile a second thread does the same merges in the lines, as many behind as are done at once.
    const auto policy = omp_get_max_threads() > 1 ? std::launch::async : std::launch::deferred;
    std::optional<PairTable> in_lines;
    std::future<void> behind = std::async(policy, [&, tokens = vocabulary.tokens] { in_lines.emplace(lines, tokens); });
    PairTable in_words(words, vocabulary.tokens);
    for (size_t done = 0;; done = vocabulary.merges.size()) {
        extend(vocabulary, in_words, std::min(within, std::ssize(vocabulary.tokens) + merges_at_once),
               std::string::npos, progress);
        behind.get();
        if (vocabulary.merges.size() == done) break;
        const std::vector<Merge> merges(vocabulary.merges.begin() + static_cast<ptrdiff_t>(done),
                                        vocabulary.merges.end());
        behind = std::async(policy, [&in_lines, merges] {
            for (const Merge& merge : merges) in_lines->apply(merge);
        });
    }
    extend(vocabulary, *in_lines, size, longest, progress);
    return vocabulary;
}
