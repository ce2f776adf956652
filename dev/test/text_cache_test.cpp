// The tokens made from a text and kept beside a run: a flipped bit in them or in their record is found before anything
// is trained on it, said, and mended from the text.
#include "io/text_cache.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "dev/test/test_directory.h"
#include "io/convert.h"
#include "io/dataset.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const bool in_memory = access("/dev/shm", W_OK) == 0 && setenv("TMPDIR", "/dev/shm", 0) == 0;  // thousands of fsyncs

class TextCache : public TestDirectory {
protected:
    TextCache() {
        std::string bytes;
        for (int i = 0; i < 300; i++) bytes += "line " + std::to_string(i) + " of the text\n";
        write_bytes(text, bytes);
    }
    // Opens the cache, whose tokens must be the text's. Returns what was said.
    std::string opened() const {
        std::string found, said;
        const std::string error = error_of([&] {
            const Dataset data = open_dataset(text, *tokenizer, cache);
            for (const Shard& tokens : data.shards)
                for (int64_t i = 0; i < tokens.size(); i++) found += static_cast<char>(tokens.tokens()[i]);
            for (const std::string& note : data.notes) said += note + "\n";
        });
        EXPECT_EQ(error, "no error");
        EXPECT_TRUE(found == read_bytes(text)) << "other tokens than the text's";
        return said;
    }
    static std::string with_bit_flipped(std::string bytes, size_t bit) {
        bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
        return bytes;
    }
    std::string verified(const std::string& path, bool intact) const {
        std::ostringstream out;
        EXPECT_EQ(verify_files(path, out), intact) << path << ":\n" << out.str();
        return out.str();
    }
    const std::string text = at("text.txt"), cache = at("data"), shard = cache + "/data.bin",
                      record = cache + "/data.json";
    const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer("byte");
};

TEST_F(TextCache, AFlippedBitInAShardIsSaidAndMended) {
    EXPECT_EQ(opened(), "");
    EXPECT_EQ(opened(), "");
    const std::string good = read_bytes(shard);
    std::mt19937 random(1);
    std::vector<size_t> bits = {8 * 1024, 8 * good.size() - 1};            // the first token's, the last one's
    for (size_t i = 0; i < 12; i++) bits.push_back(8 * i + random() % 8);  // magic, version, number of tokens
    for (size_t i = 0; i < 20; i++) bits.push_back(8 * 12 + random() % (8 * 1012));  // the header's unused rest
    for (size_t i = 0; i < 60; i++) bits.push_back(8 * 1024 + random() % (8 * (good.size() - 1024)));
    for (const size_t bit : bits) {
        write_bytes(shard, with_bit_flipped(good, bit));
        const std::string said = opened();
        EXPECT_TRUE(said.starts_with(shard + ": ") && said.ends_with(" it is damaged: made anew from the text\n"))
            << said;
        EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
        EXPECT_TRUE(read_bytes(shard) == good) << "byte " << bit / 8;
        if (HasFailure()) FAIL() << "byte " << bit / 8;
    }
}

// Whether it is said or not: another record is one of other tokens.
TEST_F(TextCache, AFlippedBitInTheRecordNeverGivesOtherTokens) {
    opened();
    const std::string good = read_bytes(record);
    for (size_t bit = 0; bit < 8 * good.size(); bit++) {
        write_bytes(record, with_bit_flipped(good, bit));
        opened();
        EXPECT_TRUE(read_bytes(record) == good);
        if (HasFailure()) FAIL() << "byte " << bit / 8 << ", bit " << bit % 8;
    }
}

TEST_F(TextCache, EveryPartOfALargeShardIsCompared) {
    write_bytes(text, std::string((20 << 20) / 2, 'x'));  // a shard of two parts
    opened();
    const std::string good = read_bytes(shard);
    for (const size_t byte : {size_t{1 << 24} - 1, size_t{1 << 24}, good.size() - 1}) {
        write_bytes(shard, with_bit_flipped(good, 8 * byte));
        const char* part = byte < 1 << 24 ? "CRC-32 of part 1 of 2" : "CRC-32 of part 2 of 2";
        EXPECT_NE(opened().find(part), std::string::npos) << byte;
    }
}

TEST_F(TextCache, ARecordOfBeforeThereWereChecksumsIsNotTrusted) {
    opened();
    json old = json::parse(read_bytes(record));
    const json whole = old;
    old["format"] = "train_gpt2 token cache, version 1";
    old["shards"][0].erase("crc32");
    write_bytes(record, old.dump(2));
    write_bytes(shard, with_bit_flipped(read_bytes(shard), 8 * 2000));
    EXPECT_NE(verified(cache, true).find("no checksums"), std::string::npos) << "nothing to compare with";
    EXPECT_EQ(opened(), "");
    EXPECT_EQ(json::parse(read_bytes(record)), whole);
}

TEST_F(TextCache, ShardsOfALongerTextGoWithTheirRecord) {
    opened();
    for (const char* name : {"data_000000.bin", "data_000001.bin"}) fs::copy(shard, cache + "/" + name);
    write_bytes(cache + "/data_x.bin", "mine");
    write_bytes(text, "another text");
    opened();
    EXPECT_EQ(listing(cache), (std::vector<std::string>{"data.bin", "data.json", "data_x.bin"}));
}

TEST_F(TextCache, InfoVerifyComparesIt) {
    opened();
    fs::create_directories(at("run"));
    fs::copy(cache, at("run/data"));
    const std::string copy = at("run/data/data.bin"), good = read_bytes(copy);
    for (const bool intact : {true, false}) {
        if (!intact) write_bytes(copy, with_bit_flipped(good, 8 * 3000));
        for (const std::string& path : {at("run"), at("run/data"), copy}) {
            const std::string said = verified(path, intact);
            const std::string line = said.substr(said.find("\"data.bin\""));
            EXPECT_EQ(line.find("DAMAGED: " + copy + ": CRC-32") == std::string::npos, intact) << said;
            EXPECT_EQ(line.find(" ok\n") == std::string::npos, !intact) << said;
        }
        EXPECT_NE(verified(at("run/data/data.json"), true).find("\"data.json\""), std::string::npos);
    }
    fs::remove(copy);
    EXPECT_NE(verified(at("run"), false).find("No such file"), std::string::npos);
    write_bytes(at("run/data/data.json"), read_bytes(record).substr(0, 100));
    EXPECT_NE(verified(at("run"), false).find("data.json: JSON"), std::string::npos);
    write_bytes(at("run/data/data.json"), json{{"format", "train_gpt2 token cache, version 2"}, {"shards", 7}}.dump());
    verified(at("run"), false);

    std::ostringstream listed;
    print_info(cache, listed);
    EXPECT_NE(listed.str().find(shard + ": a llm.c token shard"), std::string::npos) << listed.str();
}

}  // namespace
