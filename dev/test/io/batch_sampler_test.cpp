// Batches and windows drawn from shards.
#include "io/data/batch_sampler.h"

#include <algorithm>
#include <map>
#include <set>

#include "dev/test/io/dataset_files.h"

namespace {

using BatchSamplerTest = DatasetFiles;

using Block = std::vector<int32_t>;

std::vector<Block> draw(BatchSampler& sampler, int64_t batches, int64_t batch, int64_t seq) {
    std::vector<Block> out;
    Block x(batch * seq), y(batch * seq);
    for (int64_t i = 0; i < batches; i++) {
        sampler.next(x.data(), y.data());
        for (int64_t row = 0; row < batch; row++) {
            out.emplace_back(x.begin() + row * seq, x.begin() + (row + 1) * seq);
            out.back().push_back(y[row * seq + seq - 1]);
            for (int64_t t = 1; t < seq; t++) EXPECT_EQ(y[row * seq + t - 1], x[row * seq + t]);
        }
    }
    return out;
}

TEST_F(BatchSamplerTest, AnEpochShowsEachBlockOnceAndNoneStraddlesShardsThatHoldOne) {
    const Dataset data = dataset({500, 8, 300});
    BatchSampler sampler(data, 1, 7, 42);
    for (int epoch = 0; epoch < 20; epoch++) {
        std::map<int32_t, std::set<int32_t>> starts;  // by shard
        while (sampler.epoch() == epoch) {
            const Block block = draw(sampler, 1, 1, 7)[0];
            EXPECT_EQ(block.back() - block.front(), 7) << "consecutive tokens of one shard";
            EXPECT_TRUE(starts[block[0] / 1000].insert(block[0] % 1000).second) << "a block came twice";
        }
        ASSERT_EQ(starts.size(), 3u);
        EXPECT_EQ(starts[1].size(), 1u);
        for (const int shard : {0, 2}) {
            const int64_t size = shard == 0 ? 500 : 300, shift = *starts[shard].begin();
            EXPECT_LT(shift, 7);
            EXPECT_EQ(std::ssize(starts[shard]), (size - 1 - shift) / 7);
            for (const int32_t start : starts[shard]) EXPECT_EQ((start - shift) % 7, 0);
        }
    }
}

// Once, tokens that no block could contain were counted as "tokens to train on".
TEST_F(BatchSamplerTest, TokensOfShardsShorterThanABlockAreAllDrawn) {
    const std::vector<std::vector<int64_t>> layouts = {{11, 11, 10, 10, 10, 10, 10},
                                                       {10, 11, 10, 11, 10},
                                                       {3, 0, 2, 40, 3, 4},
                                                       {5, 6},
                                                       {1, 30},
                                                       {30, 1},
                                                       {1, 1, 30, 1, 1},
                                                       std::vector<int64_t>(30, 1)};
    for (const auto& sizes : layouts) {
        const Dataset data = dataset(sizes);
        std::vector<int32_t> all;  // in order
        for (const Shard& shard : data.shards) shard.copy(0, shard.size(), std::back_inserter(all));
        const int64_t seq = 10;
        BatchSampler sampler(data, 1, seq, 3);
        std::set<int32_t> drawn;
        while (sampler.epoch() < 400) {
            const Block block = draw(sampler, 1, 1, seq)[0];
            const auto place = std::find(all.begin(), all.end(), block[0]);
            ASSERT_TRUE(all.end() - place > seq && std::equal(block.begin(), block.end(), place))
                << "a block is tokens that follow one another, from shard to shard";
            drawn.insert(block.begin(), block.end());
        }
        EXPECT_EQ(std::ssize(drawn), data.tokens()) << ::testing::PrintToString(sizes);
    }
    EXPECT_CONTAINS(error_of([&] { BatchSampler(dataset({4, 6}), 1, 10, 0); }), "found 10, expected at least 11");
    EXPECT_CONTAINS(error_of([&] { BatchSampler(Dataset{}, 1, 10, 0); }), "found 0, expected at least 11");
}

// The documents of a directory, one shard each. Once, only the ten longest were trained on.
TEST_F(BatchSamplerTest, AnEpochOfShortShardsShowsNearlyAllOfIt) {
    std::vector<int64_t> sizes(100, 1000);
    for (int i = 0; i < 10; i++) sizes[7 * i] = 1100;
    const Dataset data = dataset(sizes);
    BatchSampler sampler(data, 1, 1024, 1);
    int64_t blocks = 0;
    for (; sampler.epoch() == 0; blocks++) draw(sampler, 1, 1, 1024);
    EXPECT_GE(blocks * 1024, 101'000 * 85 / 100);
}

TEST_F(BatchSamplerTest, SeekIsExactWhereShortShardsAreJoined) {
    const Dataset data = dataset({8, 3, 50, 2, 9, 9, 1});
    BatchSampler whole(data, 1, 8, 7);
    const std::vector<Block> stream = draw(whole, 100, 1, 8);
    for (int64_t position = 0; position < 99; position++) {
        BatchSampler sampler(data, 1, 8, 7);
        sampler.seek(position);
        EXPECT_EQ(draw(sampler, 1, 1, 8)[0], stream[position]);
    }
}

TEST_F(BatchSamplerTest, EpochsAndSeedsDiffer) {
    const Dataset data = dataset({500, 300});
    std::set<std::vector<Block>> streams;
    std::set<int32_t> shifts, first_shards;
    for (uint64_t seed = 0; seed < 10; seed++) {
        BatchSampler sampler(data, 1, 7, seed);
        for (int epoch = 0; epoch < 3; epoch++) {
            std::vector<Block> blocks;
            while (sampler.epoch() == epoch) blocks.push_back(draw(sampler, 1, 1, 7)[0]);
            shifts.insert(blocks[0][0] % 1000 % 7);
            first_shards.insert(blocks[0][0] / 1000);
            EXPECT_FALSE(std::is_sorted(blocks.begin(), blocks.end()));
            streams.insert(blocks);
        }
    }
    EXPECT_EQ(streams.size(), 30u);
    EXPECT_GE(shifts.size(), 5u);
    EXPECT_EQ(first_shards.size(), 2u);
}

// The order is part of a checkpoint's meaning: a change here breaks every resume.
TEST_F(BatchSamplerTest, TheOrderIsFixedForAllTime) {
    BatchSampler sampler(dataset({100, 100}), 1, 16, 1234);
    std::vector<int32_t> first;
    for (const Block& block : draw(sampler, 8, 1, 16)) first.push_back(block[0]);
    EXPECT_EQ(first, (std::vector<int32_t>{58, 26, 42, 10, 74, 1077, 1013, 1045}));
}

TEST_F(BatchSamplerTest, SeekIsExactAcrossShardsAndEpochsAndBatchSizes) {
    const Dataset data = dataset({103, 50, 9});
    BatchSampler whole(data, 1, 8, 7);
    const std::vector<Block> stream = draw(whole, 200, 1, 8);
    ASSERT_GE(whole.epoch(), 9);
    EXPECT_EQ(whole.position(), 200);
    for (const int64_t batch : {1, 2, 3}) {
        for (int64_t position = 0; position < 150; position++) {
            BatchSampler sampler(data, batch, 8, 7);
            if (position % 2) draw(sampler, 1, batch, 8);  // from anywhere, back as well as forth
            sampler.seek(position);
            EXPECT_EQ(sampler.position(), position);
            const auto got = draw(sampler, 48 / batch, batch, 8);
            EXPECT_TRUE(std::equal(got.begin(), got.end(), stream.begin() + position)) << position;
        }
    }
    EXPECT_CONTAINS(error_of([&] { whole.seek(-1); }), "position: found -1");
}

TEST_F(BatchSamplerTest, SeekFarIntoLargeData) {
    const std::string file = write("big.bin", header({20240520, 1, 1'000'000'000}));
    ASSERT_EQ(truncate(file.c_str(), 1024 + 2'000'000'000), 0);
    Dataset big;
    for (int i = 0; i < 10; i++) big.shards.emplace_back(file);
    BatchSampler sampler(big, 1, 1024, 1);
    sampler.seek(25'000'000);  // in the third epoch of 9.8 million blocks
    EXPECT_EQ(sampler.epoch(), 2);
    std::vector<int32_t> x(1024), y(1024);
    sampler.next(x.data(), y.data());
}

// ---- windows

TEST_F(BatchSamplerTest, WindowsPredictEachTokenButTheFirstOnce) {
    const Dataset data = dataset({100, 1, 17, 0, 9, 2});
    for (const int64_t seq : {1, 7, 8, 16, 99, 200}) {
        const WindowReader reader(data, seq);
        std::vector<int32_t> predicted, expected;
        for (int64_t i = 0; i < reader.windows(); i++) {
            const int64_t length = reader.length(i);
            ASSERT_GE(length, 1);
            ASSERT_LE(length, seq);
            std::vector<int32_t> x(length), y(length);
            reader.read(i, x.data(), y.data());
            for (int64_t t = 0; t < length; t++) EXPECT_EQ(y[t], x[t] + 1);
            predicted.insert(predicted.end(), y.begin(), y.end());
        }
        for (const Shard& shard : data.shards)
            for (int64_t i = 1; i < shard.size(); i++) expected.push_back(static_cast<int32_t>(shard[i]));
        EXPECT_EQ(predicted, expected);
    }
}

// Each window begins a stride after the one before, and every token counts once, with as much before it as there is.
TEST_F(BatchSamplerTest, OverlappingWindowsScoreEachTokenOnce) {
    const Dataset data = dataset({1, 2, 7, 0, 8, 9, 30});
    for (const int64_t seq : {1, 2, 7, 8, 100})
        for (int64_t stride = 1; stride <= seq; stride++) {
            const WindowReader reader(data, seq, stride);
            std::vector<int32_t> scored, expected;
            for (int64_t i = 0; i < reader.windows(); i++) {
                const int64_t length = reader.length(i), repeated = reader.repeated(i);
                ASSERT_LT(repeated, length);
                ASSERT_TRUE(repeated == 0 || repeated == seq - stride);
                std::vector<int32_t> x(length), y(length);
                reader.read(i, x.data(), y.data());
                for (int64_t t = 0; t < length; t++) EXPECT_EQ(y[t], x[t] + 1);
                scored.insert(scored.end(), y.begin() + repeated, y.end());
            }
            for (const Shard& shard : data.shards)
                for (int64_t i = 1; i < shard.size(); i++) expected.push_back(static_cast<int32_t>(shard[i]));
            EXPECT_EQ(scored, expected) << seq << ", " << stride;
        }
}

// Blocks within documents: 0 ends a document, as end-of-text does, and other ids count up through a shard.
class DocumentBlocks : public DatasetFiles {
protected:
    // A shard whose documents have these lengths, with their end; negative: the last one, which does not end.
    Dataset documents(const std::vector<std::vector<int>>& shards) const {
        std::vector<std::vector<uint16_t>> all(shards.size());
        for (size_t s = 0; s < shards.size(); s++)
            for (const int length : shards[s]) {
                for (int i = 0; i < std::abs(length); i++)
                    all[s].push_back(static_cast<uint16_t>(1000 * s + all[s].size() + 1));
                if (length > 0) all[s].back() = 0;
            }
        return dataset_of(all);
    }
};

TEST_F(DocumentBlocks, NoneCrossesABorderAndEachEpochHasAsManyAsFit) {
    const Dataset data = documents({{20, 1, 5, 7, 6, 1, 1, 41, -9}, {3, 2}, {8}});
    // Predictions: the first document of a shard has no end-of-text before it. 19/6 + 7/6 + 6/6 + 41/6 + 9/6, 7/6.
    constexpr int64_t seq = 6, blocks = 3 + 1 + 1 + 6 + 1 + 1;
    BatchSampler sampler(data, 1, seq, 42, 0);
    std::map<int32_t, std::set<int32_t>> seen;  // by shard
    for (int64_t epoch = 0; epoch < 50; epoch++) {
        std::set<int32_t> ids;
        for (int64_t i = 0; i < blocks; i++) {
            EXPECT_EQ(sampler.epoch(), epoch);
            const Block block = draw(sampler, 1, 1, seq)[0];
            for (int64_t t = 1; t < seq; t++) {
                EXPECT_NE(block[t], 0) << "end-of-text within a block";
                EXPECT_TRUE(ids.insert(block[t]).second) << "a token came twice";
                EXPECT_EQ(block[t], t > 1 ? block[t - 1] + 1 : block[t]);
            }
        }
        for (const int32_t id : ids) seen[id / 1000].insert(id);
    }
    EXPECT_EQ(sampler.position(), 50 * blocks);
    EXPECT_EQ(seen.size(), 2u) << "the second shard has no document that is long enough";
    for (int32_t id = 22; id <= 26; id++) EXPECT_FALSE(seen[0].contains(id)) << "of a document of 5 tokens";
    for (int32_t id = 42; id <= 81; id++)
        EXPECT_TRUE(seen[0].contains(id)) << id << " is in no epoch, although the grid moves";
    const auto& share = sampler.share();
    EXPECT_EQ(share.documents, 9 + 2 + 1);
    EXPECT_EQ(share.used, 6);
    EXPECT_EQ(share.tokens, data.tokens() - 3);
    EXPECT_EQ(share.used_tokens, blocks * seq);
}

TEST_F(DocumentBlocks, ShardsOf32BitsGiveTheSame) {
    const Dataset data = documents({{20, 1, 5, 7, 6, 1, 1, 41, -9}, {3, 2}, {8}});
    Dataset wide = data;
    for (Shard& shard : wide.shards) {
        std::vector<uint32_t> ids;
        shard.copy(0, shard.size(), std::back_inserter(ids));
        for (uint32_t& id : ids) id += 100'000;
        const std::string name = path("wide" + std::to_string(ids.size()) + ".bin");
        write_shard(name, ids);
        shard = Shard(name);
    }
    constexpr int32_t more = 100'000;
    for (const int32_t end_of_text : {0, -1}) {
        BatchSampler narrow(data, 2, 6, 7, end_of_text), of_wide(wide, 2, 6, 7, end_of_text < 0 ? -1 : more);
        for (int i = 0; i < 30; i++) {
            std::vector<Block> expected = draw(narrow, 1, 2, 6);
            for (Block& block : expected)
                for (int32_t& id : block) id += more;
            EXPECT_EQ(draw(of_wide, 1, 2, 6), expected);
        }
    }
}

TEST_F(DocumentBlocks, ItsStateIsOneNumber) {
    const Dataset data = documents({{20, 1, 5, 7, 6, 1, 1, 41, -9}, {3, 2}, {8}});
    BatchSampler sampler(data, 2, 6, 7, 0), again(data, 2, 6, 7, 0), skipped(data, 2, 6, 7, 0);
    for (int step = 0; step < 40; step++) {
        again.seek(sampler.position());
        const auto expected = draw(sampler, 1, 2, 6);
        EXPECT_EQ(draw(again, 1, 2, 6), expected);
        EXPECT_EQ(draw(skipped, 1, 2, 6), expected);
        skipped.seek(0);
        skipped.skip(2 * (step + 1));
    }
    EXPECT_NE(draw(sampler, 8, 2, 6), draw(*std::make_unique<BatchSampler>(data, 2, 6, 8, 0), 8, 2, 6)) << "the seed";
}

TEST_F(DocumentBlocks, NoneLongEnoughIsAnErrorThatNamesTheLongest) {
    EXPECT_CONTAINS(error_of([&] {
                        BatchSampler(documents({{20, 5}, {21}}), 1, 21, 0, 0);
                    }),
                    "the data: --documents: none of its 3 documents holds a sequence of --seq 21; the longest has 20 "
                    "tokens: give --seq 20 at most, or leave out --documents");
    EXPECT_NO_THROW(BatchSampler(documents({{20, 5}, {21}}), 1, 20, 0, 0));
}

}  // namespace
