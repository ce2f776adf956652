// The processes ("ranks") that compute one training run together, and what they send each other. The model and the
// training loop know this interface only. One process alone is `alone()`; under mpirun or srun the ranks are MPI's
// (device/parallel/mpi.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// Bytes to send to a rank, or the place for those that it sends.
struct Message {
    int64_t rank;
    void* data;
    int64_t bytes;
};

// This rank cannot reach another one, so that they cannot agree on what to do: the error must end all ranks.
struct ConnectionLost : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Ranks {
public:
    virtual ~Ranks() = default;
    int64_t rank() const { return rank_; }
    int64_t count() const { return count_; }
    bool first() const { return rank_ == 0; }
    // The name of each rank's machine.
    const std::vector<std::string>& hosts() const { return hosts_; }
    // The number of ranks on this rank's machine, and how many of them come before this one.
    int64_t on_this_host() const { return std::ranges::count(hosts_, hosts_[static_cast<size_t>(rank_)]); }
    int64_t before_on_this_host() const {
        return std::count(hosts_.begin(), hosts_.begin() + rank_, hosts_[static_cast<size_t>(rank_)]);
    }
    // "rank 3 on node7"
    std::string name(int64_t rank) const {
        return "rank " + std::to_string(rank) + " on " + hosts_[static_cast<size_t>(rank)];
    }

    // Calls use(to, from) with all other ranks, each once as `to` and once as `from`. Every rank begins with the one
    // after it, so that not all of them send to the same rank first.
    template <class Use>
    void each_pair(const Use& use) const {
        for (int64_t i = 1; i < count_; ++i) use((rank_ + i) % count_, (rank_ + count_ - i) % count_);
    }

    // Sends and receives all of these, in any order; every message has its other half on another rank. If a rank is
    // late by a minute, it is named on standard error, and the wait goes on.
    virtual void exchange(std::span<const Message> sends, std::span<const Message> receives) = 0;
    // Ends all ranks at once with this exit status.
    virtual void abort(int status) = 0;

    double sent_bytes = 0;              // by this rank so far
    std::shared_ptr<struct Nccl> nccl;  // between the ranks' GPUs, if they have them (device/cuda/nccl.cuh)

protected:
    int64_t rank_ = 0, count_ = 1;
    std::vector<std::string> hosts_{"this machine"};
};

class Alone final : public Ranks {
public:
    void exchange(std::span<const Message>, std::span<const Message>) override {}
    void abort(int status) override { std::exit(status); }
};

// One process alone. It has no state besides the count of bytes, which stays 0.
inline Ranks& alone() {
    static Alone one;
    return one;
}

// x has a part for each rank, which begins at cuts[rank] and ends at cuts[rank + 1]. Every rank has its own part and
// gets the others', by exchange(sends, receives).
template <class T, class Exchange>
void all_gather_by(const Exchange& exchange, Ranks& ranks, T* x, std::span<const int64_t> cuts) {
    std::vector<Message> sends, receives;
    const auto part = [&](int64_t of, int64_t to) {
        const auto i = static_cast<size_t>(of);
        return Message{to, x + cuts[i], (cuts[i + 1] - cuts[i]) * static_cast<int64_t>(sizeof(T))};
    };
    ranks.each_pair([&](int64_t to, int64_t from) {
        sends.push_back(part(ranks.rank(), to));
        receives.push_back(part(from, from));
    });
    exchange(sends, receives);
}
template <class T>
void all_gather(Ranks& ranks, T* x, std::span<const int64_t> cuts) {
    all_gather_by([&](const auto&... messages) { ranks.exchange(messages...); }, ranks, x, cuts);
}

// Every rank's `mine` (the same number on all), in the order of the ranks.
template <class T>
std::vector<T> all_gather(Ranks& ranks, std::span<const T> mine) {
    std::vector<T> all(static_cast<size_t>(ranks.count()) * mine.size());
    std::vector<int64_t> cuts;
    for (int64_t r = 0; r <= ranks.count(); ++r) cuts.push_back(r * std::ssize(mine));
    std::ranges::copy(mine, all.begin() + cuts[static_cast<size_t>(ranks.rank())]);
    all_gather(ranks, all.data(), cuts);
    return all;
}
template <class T>
std::vector<T> all_gather(Ranks& ranks, const T& mine) {
    return all_gather(ranks, std::span<const T>(&mine, 1));
}

inline std::vector<std::string> all_gather(Ranks& ranks, const std::string& mine) {
    std::vector<int64_t> cuts{0};
    for (const int64_t length : all_gather(ranks, std::ssize(mine))) cuts.push_back(cuts.back() + length);
    std::string all(static_cast<size_t>(cuts.back()), '\0');
    std::ranges::copy(mine, all.begin() + cuts[static_cast<size_t>(ranks.rank())]);
    all_gather(ranks, all.data(), cuts);
    std::vector<std::string> each;
    for (size_t r = 0; r + 1 < cuts.size(); ++r)
        each.push_back(all.substr(static_cast<size_t>(cuts[r]), static_cast<size_t>(cuts[r + 1] - cuts[r])));
    return each;
}

// The largest of the ranks' numbers, on every rank.
template <class T>
T largest(Ranks& ranks, const T& mine) {
    if (ranks.count() == 1) return mine;
    return std::ranges::max(all_gather(ranks, mine));
}

// Rank 0's number, on every rank.
template <class T>
T from_first(Ranks& ranks, const T& mine) {
    if (ranks.count() == 1) return mine;
    return all_gather(ranks, mine)[0];
}
