// Ranks that are threads of this process. A message waits in a box until it is taken.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "device/parallel/ranks.h"

struct Post {
    std::mutex mutex;
    std::condition_variable arrived;
    std::map<std::array<int64_t, 2>, std::vector<std::vector<char>>> boxes;  // from, to
};
class ThreadRank final : public Ranks {
public:
    ThreadRank(Post& post, int64_t rank, int64_t count) : post_(post) {
        rank_ = rank, count_ = count;
        hosts_.assign(static_cast<size_t>(count), "here");
    }
    void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
        std::unique_lock lock(post_.mutex);
        for (const Message& m : sends) {
            const char* const data = static_cast<const char*>(m.data);
            post_.boxes[{rank_, m.rank}].emplace_back(data, data + m.bytes);
            sent_bytes += static_cast<double>(m.bytes);
        }
        post_.arrived.notify_all();
        for (const Message& m : receives) {
            auto& box = post_.boxes[{m.rank, rank_}];
            post_.arrived.wait(lock, [&] { return !box.empty(); });
            ASSERT_EQ(std::ssize(box.front()), m.bytes);
            if (m.bytes > 0) std::memcpy(m.data, box.front().data(), box.front().size());
            box.erase(box.begin());
        }
    }
    void abort(int) override { FAIL(); }

private:
    Post& post_;
};

// Runs f(ranks) on `count` threads.
inline void on_threads(int64_t count, const auto& f) {
    Post post;
    std::vector<std::thread> threads;
    for (int64_t r = 0; r < count; ++r)
        threads.emplace_back([&, r] {
            ThreadRank rank(post, r, count);
            f(rank);
        });
    for (std::thread& t : threads) t.join();
}
