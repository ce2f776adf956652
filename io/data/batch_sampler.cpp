#include "io/data/batch_sampler.h"

#include <algorithm>
#include <utility>

#include "io/file/error.h"
#include "device/random.h"

namespace {

// One row: `length` ids, and the same moved on by one.
void copy_row(const Shard& shard, int64_t begin, int64_t length, int32_t* x, int32_t* y) {
    shard.copy(begin, length, x);
    shard.copy(begin + 1, length, y);
}

// One shard, or several that are read as one.
class Stream {
public:
    void add(const Shard& shard) {
        shards_.push_back(shard);
        ends_.push_back(size() + shard.size());
    }
    int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
    const std::vector<Shard>& shards() const { return shards_; }
    void row(int64_t begin, int64_t length, int32_t* x, int32_t* y) const {
        if (shards_.size() == 1) return copy_row(shards_[0], begin, length, x, y);
        copy(begin, length, x);
        copy(begin + 1, length, y);
    }

private:
    void copy(int64_t begin, int64_t length, int32_t* out) const {
        for (size_t s = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin(); length > 0; s++) {
            const int64_t count = std::min(length, ends_[s] - begin);
            out = shards_[s].copy(shards_[s].size() - (ends_[s] - begin), count, out);
            begin += count, length -= count;
        }
    }
    std::vector<Shard> shards_;
    std::vector<int64_t> ends_;  // of each shard, in the stream
};

// Each shard that holds a block by itself. Shorter ones that follow one another are one stream; where even together
// they hold no block, the shard after them, or at the end the stream before them, is part of it too.
std::vector<Stream> join_short_shards(const std::vector<Shard>& shards, int64_t block) {
    std::vector<Stream> streams;
    bool after_short = false;
    for (const Shard& shard : shards) {
        const bool is_short = shard.size() < block;
        const bool joined = after_short && (is_short || streams.back().size() < block);
        if (!joined) streams.emplace_back();
        streams.back().add(shard);
        after_short = is_short;
    }
    if (streams.size() > 1 && streams.back().size() < block) {
        const Stream rest = streams.back();
        streams.pop_back();
        for (const Shard& shard : rest.shards()) streams.back().add(shard);
    }
    return streams;
}

[[noreturn]] void too_small(const Dataset& dataset, const std::string& found, int64_t needed,
                            const std::string& remedy) {
    const std::string source = !dataset.source.empty()  ? dataset.source
                               : dataset.shards.empty() ? "data"
                                                        : dataset.shards[0].path();
    const bool split = !dataset.held_out.empty();
    bad_input(source, "tokens", found + (split ? " (" + dataset.held_out + ")" : ""),
              "at least " + std::to_string(needed), remedy + (split ? "; or give --val" : ""));
}

// A document, with the end-of-text before it as its first input. It holds a block.
struct Document {
    uint32_t begin, predictions;
};

// Calls use(begin, predictions) for each document of a shard.
template <class Use>
void each_document(const Shard& shard, int32_t end_of_text, const Use& use) {
    shard.with_ids([&](auto ids) {
        const auto end = ids.end();
        for (auto begin = ids.begin(), next = begin; end - begin > 1; begin = next) {
            next = std::min(std::find(begin + 1, end, static_cast<uint32_t>(end_of_text)), end - 1);
            use(begin - ids.begin(), next - begin);
        }
    });
}

}  // namespace

struct BatchSampler::State {
    std::vector<Stream> streams;  // each holds a block
    // If blocks lie within documents: those of each stream, which then is one shard, and the blocks in them.
    std::vector<std::vector<Document>> documents;
    std::vector<int64_t> document_blocks;
    DocumentShare share;
    int64_t batch, seq;
    uint64_t seed;

    int64_t position = 0, epoch = 0;
    std::vector<uint32_t> stream_order, block_order;
    std::vector<uint32_t> block_begins;  // of the current stream, if blocks lie within documents
    int64_t slot = 0;                    // in stream_order: the current stream
    int64_t drawn = 0;                   // of block_order

    // Where the blocks of a stream begin in an epoch: anywhere in the first `seq` tokens that leaves room for
    // a block.
    int64_t shift(int64_t in_epoch, int64_t stream) const {
        const int64_t choices = std::min(seq, streams[stream].size() - seq);
        return static_cast<int64_t>(Random{seed, Purpose::block_shift, in_epoch}.below(choices, stream));
    }
    int64_t blocks(int64_t in_epoch, int64_t stream) const {
        if (!documents.empty()) return document_blocks[stream];
        return (streams[stream].size() - 1 - shift(in_epoch, stream)) / seq;
    }
    int64_t epoch_blocks(int64_t in_epoch) const {
        int64_t sum = 0;
        for (int64_t s = 0; s < std::ssize(streams); s++) sum += blocks(in_epoch, s);
        return sum;
    }
    void enter_epoch(int64_t new_epoch) {
        epoch = new_epoch;
        shuffled(stream_order, std::ssize(streams), {seed, Purpose::shard_order, epoch});
    }
    void enter_stream(int64_t new_slot) {
        slot = new_slot, drawn = 0;
        const uint64_t stream = stream_order[slot];
        shuffled(block_order, blocks(epoch, stream), {seed, Purpose::block_order, epoch}, stream << 32);
        if (!documents.empty()) place_blocks(stream);
    }
    // The grid of each document begins anywhere that costs no block: what is left over is seen in other epochs.
    void place_blocks(uint64_t stream) {
        block_begins.clear();
        const Random shifts{seed, Purpose::block_shift, epoch};
        for (size_t d = 0; d < documents[stream].size(); d++) {
            const auto [begin, predictions] = documents[stream][d];
            const auto shift = static_cast<int64_t>(
                shifts.below(static_cast<uint64_t>(predictions % seq + 1), stream << 32 | static_cast<uint64_t>(d)));
            for (int64_t at = shift; at + seq <= predictions; at += seq)
                block_begins.push_back(static_cast<uint32_t>(begin + at));
        }
    }
    // Keeps the shards with documents that hold a block, each as a stream. Returns the longest document's predictions.
    int64_t find_documents(const std::vector<Shard>& shards, int32_t end_of_text) {
        int64_t longest = 0;
        for (const Shard& shard : shards) {
            std::vector<Document> found;
            int64_t blocks = 0;
            each_document(shard, end_of_text, [&](int64_t begin, int64_t predictions) {
                longest = std::max(longest, predictions);
                share.documents++, share.tokens += predictions;
                if (predictions < seq) return;
                found.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(predictions)});
                blocks += predictions / seq;
            });
            share.used += std::ssize(found), share.used_tokens += blocks * seq;
            if (blocks == 0) continue;
            streams.emplace_back().add(shard);
            documents.push_back(std::move(found));
            document_blocks.push_back(blocks);
        }
        return longest;
    }
    // So that there always is a next block, and epoch() is its epoch.
    void move_on() {
        if (drawn < std::ssize(block_order)) return;
        if (slot + 1 < std::ssize(streams)) return enter_stream(slot + 1);
        enter_epoch(epoch + 1);
        enter_stream(0);
    }
};

BatchSampler::BatchSampler(const Dataset& dataset, int64_t batch, int64_t seq, uint64_t seed, int32_t end_of_text)
    : state_(std::make_shared<State>()) {
    State& s = *state_;
    s.batch = batch, s.seq = seq, s.seed = seed;
    if (end_of_text >= 0) {
        const int64_t longest = s.find_documents(dataset.shards, end_of_text);
        if (s.streams.empty())
            throw InputError(without_controls(dataset.source) + ": --documents: none of its " +
                             std::to_string(s.share.documents) + " documents holds a sequence of --seq " +
                             std::to_string(seq) + "; the longest has " + std::to_string(longest) +
                             " tokens: give --seq " + std::to_string(longest) + " at most, or leave out --documents");
    } else {
        s.streams = join_short_shards(dataset.shards, seq + 1);
        if (s.streams.empty() || s.streams[0].size() < seq + 1)
            too_small(
                dataset, std::to_string(dataset.tokens()), seq + 1,
                "use more text or a smaller --seq (a block is --seq " + std::to_string(seq) + " tokens and one more)");
    }
    seek(0);
}

void BatchSampler::next(int32_t* x, int32_t* y) {
    State& s = *state_;
    for (int64_t row = 0; row < s.batch; row++) {
        const int64_t stream = s.stream_order[s.slot];
        const int64_t block = s.block_order[s.drawn],
                      begin = s.documents.empty() ? s.shift(s.epoch, stream) + s.seq * block : s.block_begins[block];
        s.streams[stream].row(begin, s.seq, x + row * s.seq, y + row * s.seq);
        s.drawn++, s.position++;
        s.move_on();
    }
}

void BatchSampler::skip(int64_t blocks) {
    State& s = *state_;
    while (blocks > 0) {
        const int64_t count = std::min(blocks, std::ssize(s.block_order) - s.drawn);
        s.drawn += count, s.position += count, blocks -= count;
        s.move_on();
    }
}

int64_t BatchSampler::position() const { return state_->position; }
int64_t BatchSampler::epoch() const { return state_->epoch; }
const BatchSampler::DocumentShare& BatchSampler::share() const { return state_->share; }

void BatchSampler::seek(int64_t position) {
    State& s = *state_;
    if (position < 0)
        bad_input("training state", "position", std::to_string(position), "0 or more",
                  "resume from another checkpoint");
    s.position = position;
    int64_t epoch = 0, left = position;
    for (int64_t blocks; left >= (blocks = s.epoch_blocks(epoch)); epoch++) left -= blocks;
    s.enter_epoch(epoch);
    int64_t slot = 0;
    for (int64_t blocks; left >= (blocks = s.blocks(epoch, s.stream_order[slot])); slot++) left -= blocks;
    s.enter_stream(slot);
    s.drawn = left;
}

WindowReader::WindowReader(const Dataset& dataset, int64_t seq, int64_t stride)
    : shards_(dataset.shards), first_window_{0}, seq_(seq), stride_(stride > 0 ? stride : seq) {
    for (const Shard& shard : shards_) {
        const int64_t predictions = std::max<int64_t>(shard.size() - 1, 0);
        const int64_t beyond_first = std::max<int64_t>(predictions - seq_, 0);
        first_window_.push_back(windows() + (predictions > 0) + (beyond_first + stride_ - 1) / stride_);
    }
    if (windows() > 0) return;
    const std::string found = std::to_string(dataset.tokens());
    too_small(dataset, shards_.size() > 1 ? found + " in " + std::to_string(shards_.size()) + " shards" : found, 2,
              "use more text");
}

int64_t WindowReader::shard_of(int64_t window) const {
    return std::upper_bound(first_window_.begin(), first_window_.end(), window) - first_window_.begin() - 1;
}

int64_t WindowReader::length(int64_t window) const {
    const int64_t shard = shard_of(window);
    return std::min(seq_, shards_[shard].size() - 1 - (window - first_window_[shard]) * stride_);
}

int64_t WindowReader::repeated(int64_t window) const {
    return window > first_window_[shard_of(window)] ? seq_ - stride_ : 0;
}

void WindowReader::read(int64_t window, int32_t* x, int32_t* y) const {
    const int64_t shard = shard_of(window);
    copy_row(shards_[shard], (window - first_window_[shard]) * stride_, length(window), x, y);
}
