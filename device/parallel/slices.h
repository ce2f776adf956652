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

// Floats that are received from each rank at a time: 16 MiB for all of them together, in pieces that are worth a
// message, and aligned for a GPU's widest accesses.
inline int64_t chunk_floats(int64_t ranks) {
    return std::max<int64_t>(int64_t{1} << 14, (int64_t{4} << 20) / std::max<int64_t>(ranks - 1, 1) / 8 * 8);
}
// The memory that sum_slice needs for what it receives.
inline int64_t received_floats(int64_t ranks) { return ranks == 1 ? 0 : (ranks - 1) * chunk_floats(ranks); }

}  // namespace slice_sum

// Ranks::exchange() of what lies in the device's memory.
template <HostDevice Device>
void exchange_on(Device&, Ranks& ranks, std::span<const Message> sends, std::span<const Message> receives) {
    ranks.exchange(sends, receives);
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
// of two. Parts are received in pieces, as many as `received` takes, best of received_floats(ranks.count()) elements.
template <class Device, class T>
void sum_slice(Device& dev, Ranks& ranks, T* x, std::span<const Slice> slices, std::span<T> received) {
    const int64_t chunk = std::ssize(received) / (ranks.count() - 1);
    const Slice mine = slices[static_cast<size_t>(ranks.rank())];
    int64_t longest = 0;
    for (const Slice& slice : slices) longest = std::max(longest, slice.size());
    for (int64_t done = 0; done < longest; done += chunk) {
        const auto piece = [&](const Slice& slice) {
            return slice.in({slice.begin + done, slice.begin + done + chunk});
        };
        const int64_t n = piece(mine).size();
        std::vector<T*> parts(static_cast<size_t>(ranks.count()));
        std::vector<Message> sends, receives;
        T* place = received.data();
        ranks.each_pair([&](int64_t to, int64_t from) {
            const Slice theirs = piece(slices[static_cast<size_t>(to)]);
            sends.push_back({to, x + theirs.begin, theirs.size() * static_cast<int64_t>(sizeof(T))});
            receives.push_back({from, place, n * static_cast<int64_t>(sizeof(T))});
            parts[static_cast<size_t>(from)] = place;
            place += chunk;
        });
        parts[static_cast<size_t>(ranks.rank())] = x + piece(mine).begin;
        exchange_on(dev, ranks, sends, receives);
        add_as_tree(dev, parts, static_cast<size_t>(ranks.rank()), n);
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
