// The sum of the gradients over the ranks, cut into slices: each rank sums one slice of the flat buffer, in the order
// of a balanced binary tree, so that the bits do not depend on how many ranks compute a step's shards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/parallel/ranks.h"

// The elements [begin, end) of a flat buffer.
struct Slice {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
    // What is in both; size() 0 if there is nothing.
    Slice in(Slice other) const {
        const int64_t from = std::max(begin, other.begin);
        return {from, std::max(from, std::min(end, other.end))};
    }
    bool operator==(const Slice&) const = default;
};

namespace slice_sum {

// Floats that are received from each rank before they are added: 16 MiB for all of them together, in pieces that are
// worth a message, and aligned for a GPU's widest accesses.
inline int64_t chunk_floats(int64_t ranks) {
    return std::max<int64_t>(int64_t{1} << 14, (int64_t{4} << 20) / std::max<int64_t>(ranks - 1, 1) / 8 * 8);
}
// The memory that sum_slice needs for what it receives.
inline int64_t received_floats(int64_t ranks) { return ranks == 1 ? 0 : (ranks - 1) * chunk_floats(ranks); }

}  // namespace slice_sum

// How many exchanges may be under way at a time. On the host it is one: MPI moves data while the host is in one of its
// calls, not while the host adds.
template <class Device>
constexpr int64_t exchanges_at_a_time = HostDevice<Device> ? 1 : 2;

// Starts Ranks::exchange() of what lies in the device's memory, after all work that the device has been given so far.
// finish_exchange() stands before the work that needs the result: the exchanges finish in the order in which they were
// started, at most exchanges_at_a_time of them are unfinished.
template <HostDevice Device>
void start_exchange(Device&, Ranks& ranks, std::span<const Message> sends, std::span<const Message> receives) {
    ranks.exchange(sends, receives);
}
template <HostDevice Device>
void finish_exchange(Device&, Ranks&) {}

template <class Device>
void exchange_on(Device& dev, Ranks& ranks, std::span<const Message> sends, std::span<const Message> receives) {
    start_exchange(dev, ranks, sends, receives);
    finish_exchange(dev, ranks);
}

// Ranks' all_gather() of x in the device's memory.
template <class Device, class T>
void all_gather_on(Device& dev, Ranks& ranks, T* x, std::span<const int64_t> cuts) {
    all_gather_by([&](const auto&... messages) { exchange_on(dev, ranks, messages...); }, ranks, x, cuts);
}

// Adds parts[0 … 2^n - 1], of n values each, as the leaves of a balanced binary tree, into parts[result].
template <HostDevice Device, class T>
void add_as_tree(Device& dev, std::vector<T*> parts, size_t result, int64_t n) {
    T* const into = parts[result];
    for (size_t step = 1; step < parts.size(); step *= 2)
        for (size_t i = 0; i + step < parts.size(); i += 2 * step) {
            if (parts[i + step] == into) std::swap(parts[i], parts[i + step]);  // a sum has the same bits either way
            add(dev, parts[i], parts[i + step], n);
        }
}

// Slice r of x = the sum over the ranks of their slice r, on rank r; the rest of x stays as it is. The slices do not
// overlap, because a rank sends its parts of the others' slices while it sums its own. The number of ranks is a power
// of two. Parts are received in pieces, as many as `received` takes, best of received_floats(ranks.count()) elements:
// a GPU receives the next piece into one half of them while it adds the one in the other half.
template <class Device, class T>
void sum_slice(Device& dev, Ranks& ranks, T* x, std::span<const Slice> slices, std::span<T> received) {
    constexpr int64_t at_a_time = exchanges_at_a_time<Device>;
    const int64_t others = ranks.count() - 1, chunk = std::ssize(received) / others / at_a_time / 8 * 8;
    int64_t longest = 0;
    for (const Slice& slice : slices) longest = std::max(longest, slice.size());
    const auto piece = [&](int64_t rank, int64_t i) {
        const Slice& slice = slices[static_cast<size_t>(rank)];
        return slice.in({slice.begin + i * chunk, slice.begin + (i + 1) * chunk});
    };
    const auto place = [&](int64_t i, int64_t from) {  // where another rank's part is received
        const int64_t other = from < ranks.rank() ? from : from - 1;
        return received.data() + (i % at_a_time * others + other) * chunk;
    };
    const auto start = [&](int64_t i) {
        const int64_t n = piece(ranks.rank(), i).size();
        std::vector<Message> sends, receives;
        ranks.each_pair([&](int64_t to, int64_t from) {
            const Slice theirs = piece(to, i);
            sends.push_back({to, x + theirs.begin, theirs.size() * static_cast<int64_t>(sizeof(T))});
            receives.push_back({from, place(i, from), n * static_cast<int64_t>(sizeof(T))});
        });
        start_exchange(dev, ranks, sends, receives);
    };
    const int64_t pieces = (longest + chunk - 1) / chunk;
    for (int64_t i = 0, started = 0; i < pieces; ++i) {
        for (; started < std::min(pieces, i + at_a_time); ++started) start(started);
        const Slice mine = piece(ranks.rank(), i);
        std::vector<T*> parts;
        for (int64_t rank = 0; rank < ranks.count(); ++rank)
            parts.push_back(rank == ranks.rank() ? x + mine.begin : place(i, rank));
        finish_exchange(dev, ranks);
        add_as_tree(dev, parts, static_cast<size_t>(ranks.rank()), mine.size());
    }
}

// x, cut into runs of `run` values, has a sum in each rank's slice. This fetches what follows the own slice up to the
// end of its last run.
template <class Device, class T>
void complete_last_run(Device& dev, Ranks& ranks, T* x, std::span<const Slice> slices, int64_t run) {
    const int64_t size = slices.back().end;
    const auto shared = [&](int64_t has, int64_t needs) {
        const int64_t end = slices[static_cast<size_t>(needs)].end;
        const Slice rest{end, std::min(size, (end + run - 1) / run * run)};
        return rest.in(slices[static_cast<size_t>(has)]);
    };
    std::vector<Message> sends, receives;
    ranks.each_pair([&](int64_t to, int64_t from) {
        const Slice theirs = shared(ranks.rank(), to), mine = shared(from, ranks.rank());
        sends.push_back({to, x + theirs.begin, theirs.size() * static_cast<int64_t>(sizeof(T))});
        receives.push_back({from, x + mine.begin, mine.size() * static_cast<int64_t>(sizeof(T))});
    });
    exchange_on(dev, ranks, sends, receives);
}
