// The slices of the flat buffers that ranks update, and the sums of gradients over ranks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "gpt2.h"
#include "dev/test/thread_ranks.h"
#include "layers/layers.h"

namespace {

const GPT2Config shapes[] = {
    {.context = 7, .vocab = 50, .layers = 3, .heads = 1, .channels = 5},
    {.context = 128, .vocab = 256, .layers = 4, .heads = 4, .channels = 128},
    {.context = 1024, .vocab = 50257, .layers = 12, .heads = 12, .channels = 768},
};

}  // namespace

TEST(Slices, CoverEveryParameterOnceAndCutNoMatrixOfMuon) {
    for (const GPT2Config& config : shapes)
        for (const bool muon : {false, true})
            for (const int64_t ranks : {1, 2, 4, 8, 1024}) {
                const ParameterTable table(config);
                const std::vector<Slice> slices = update_slices(table, ranks, muon);
                ASSERT_EQ(std::ssize(slices), ranks);
                EXPECT_EQ(slices.back().end, table.size);
                for (size_t r = 0; r < slices.size(); ++r) {
                    EXPECT_GE(slices[r].size(), 0);
                    EXPECT_EQ(slices[r].begin, r > 0 ? slices[r - 1].end : 0);
                    for (const Parameter& p : table.rows)
                        for (int64_t l = 0; muon && p.muon() && l < p.copies; ++l) {
                            const int64_t inside = slices[r].in({p.at(l), p.at(l) + p.stride}).size();
                            EXPECT_TRUE(inside == 0 || inside == p.stride) << p.name << l << ", rank " << r;
                        }
                }
            }
}

// No rank takes much longer than the others: with AdamW by the values, with Muon by what a matrix costs.
TEST(Slices, AreBalanced) {
    const ParameterTable table(shapes[2]);
    for (const int64_t ranks : {2, 4, 8}) {
        for (const Slice& s : update_slices(table, ranks, false))
            EXPECT_NEAR(static_cast<double>(s.size()), static_cast<double>(table.size / ranks), aligned_values);
        double most = 0, sum = 0;
        for (const Slice& s : update_slices(table, ranks, true)) {
            double flops = 0;
            for (const Parameter& p : table.rows)
                for (int64_t l = 0; p.muon() && l < p.copies; ++l)
                    if (s.in({p.at(l), p.at(l) + 1}).size() > 0) flops += muon::flops(p.shape[0], p.shape[1]);
            most = std::max(most, flops), sum += flops;
        }
        EXPECT_LT(most, 1.25 * sum / static_cast<double>(ranks)) << ranks;
    }
}

// In pieces of 1,000 values; the last run of each slice is completed from the next. The leaves 1e8, 1.5, -1e8, 0.25
// make the order visible.
TEST(Slices, AreSummedAsABalancedTree) {
    const int64_t size = 40'003, run = 4096;
    for (const int64_t count : {2, 4, 8, 16}) {
        const auto value = [](int64_t rank, int64_t i) {
            return std::array{1e8f, 1.5f, -1e8f, 0.25f}[static_cast<size_t>(rank % 4)] + static_cast<float>(i % 97);
        };
        std::vector<Slice> slices;
        for (int64_t r = 0; r < count; ++r) slices.push_back({r * size / count, (r + 1) * size / count});
        on_threads(count, [&](Ranks& ranks) {
            Cpu dev;
            std::vector<float> x(size), received(static_cast<size_t>(1000 * (count - 1)));
            for (int64_t i = 0; i < size; ++i) x[static_cast<size_t>(i)] = value(ranks.rank(), i);
            sum_slice(dev, ranks, x.data(), std::span<const Slice>(slices), std::span(received));
            complete_last_run(dev, ranks, x.data(), std::span<const Slice>(slices), run);
            Slice mine = slices[static_cast<size_t>(ranks.rank())];
            mine.end = std::min(size, (mine.end + run - 1) / run * run);
            for (int64_t i = 0; i < size; ++i) {
                std::vector<float> leaves;
                for (int64_t r = 0; r < count; ++r) leaves.push_back(value(r, i));
                for (; leaves.size() > 1; leaves.resize(leaves.size() / 2))
                    for (size_t k = 0; k < leaves.size() / 2; ++k) leaves[k] = leaves[2 * k] + leaves[2 * k + 1];
                const bool is_mine = mine.begin <= i && i < mine.end;
                ASSERT_EQ(x[static_cast<size_t>(i)], is_mine ? leaves[0] : value(ranks.rank(), i))
                    << count << ", " << i;
            }
        });
    }
}

TEST(Slices, AreSentOnceEach) {
    const ParameterTable table(shapes[1]);
    constexpr int64_t count = 4;
    const std::vector<Slice> slices = update_slices(table, count, true);
    std::array<double, count> sent{};
    on_threads(count, [&](Ranks& ranks) {
        Cpu dev;
        std::vector<float> x(static_cast<size_t>(table.size)),
            received(static_cast<size_t>(slice_sum::received_floats(count)));
        sum_slice(dev, ranks, x.data(), std::span<const Slice>(slices), std::span(received));
        sent[static_cast<size_t>(ranks.rank())] = ranks.sent_bytes;
    });
    double all = 0;
    for (const double bytes : sent) all += bytes;
    EXPECT_EQ(all, 4.0 * (count - 1) * static_cast<double>(table.size));
}

TEST(Ranks, GatherWhatEachHas) {
    on_threads(4, [](Ranks& ranks) {
        EXPECT_EQ(all_gather(ranks, 10 * ranks.rank()), (std::vector<int64_t>{0, 10, 20, 30}));
        EXPECT_EQ(all_gather(ranks, std::string(static_cast<size_t>(ranks.rank()), 'x')),
                  (std::vector<std::string>{"", "x", "xx", "xxx"}));
        EXPECT_EQ(largest(ranks, ranks.rank() == 2 ? 7 : 1), 7);
        EXPECT_EQ(from_first(ranks, ranks.rank() + 5), 5);
    });
    EXPECT_EQ(all_gather(alone(), int64_t{3}), std::vector<int64_t>{3});
    EXPECT_EQ(largest(alone(), 3), 3);
}

// A model on several ranks computes what one on all shards computes: loss, norm and parameters, with clipping and
// dropout.
TEST(Ranks, TrainTheModelOfOneProcess) {
    const GPT2Config config{.context = 9, .vocab = 50, .layers = 2, .heads = 3, .channels = 33, .dropout = 0.1};
    constexpr int64_t shards = 8, B = 2, T = 9, steps = 3;
    const ParameterTable table(config);
    const auto batch = [&](int64_t step, int64_t number) {
        std::vector<int32_t> x;
        for (int64_t i = 0; i <= B * T; ++i) x.push_back(static_cast<int32_t>((step * 7 + number * 31 + i * i) % 50));
        return x;
    };
    const auto run = [&](Ranks& ranks, bool muon) {
        const int64_t own = shards / ranks.count();
        GPT2<Cpu> model(Cpu{}, config, B, T, ActivationPolicy::training, {},
                        {.shards = own, .ranks = &ranks, .muon = muon});
        for (int64_t i = 0; i < table.size; ++i) model.parameters[i] = 0.1f * std::sin(static_cast<float>(i));
        std::vector<double> results;
        for (int64_t step = 1; step <= steps; ++step) {
            for (int64_t s = 0; s < own; ++s) {
                const int64_t shard = ranks.rank() * own + s;
                const auto x = batch(step, shard);
                model.batch_place = {.seed = 1, .step = step, .first_sequence = shard * B};
                model.forward_backward(x.data(), x.data() + 1, B, T, 1.0 / (shards * B * T));
                model.end_shard(s);
            }
            const StepResult result = model.update(at_step({.lr = 0.01,
                                                            .weight_decay = 0.1,
                                                            .optimizer = muon ? Optimizer::normuon : Optimizer::adamw,
                                                            .clip = 0.5},
                                                           step));
            results.push_back(result.loss), results.push_back(result.grad_norm);
        }
        results.insert(results.end(), model.parameters.get(), model.parameters.get() + table.size);
        return results;
    };
    for (const bool muon : {false, true}) {
        const std::vector<double> expected = run(alone(), muon);
        for (const int64_t count : {2, 4, 8})
            on_threads(count,
                       [&](Ranks& ranks) { EXPECT_TRUE(run(ranks, muon) == expected) << count << ", " << muon; });
    }
}
