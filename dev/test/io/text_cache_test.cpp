// The tokens made from a text and kept beside a run: a flipped bit in them or in their record is found before anything
// is trained on it, said, and mended from the text.
#include "io/data/text_cache.h"

#include <unistd.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "dev/test/test_directory.h"
#include "program/info.h"
#include "io/data/dataset.h"

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

// What is no text, and text in another encoding, used to be tokenised without a word.
TEST_F(TextCache, WhatIsNoTextIsRefusedByName) {
    const auto refuse = [&](const std::string& bytes, const std::string& name, const std::string& remedy) {
        write_bytes(text, bytes + std::string(1000, 'x'));
        const std::string error = error_of([&] { open_dataset(text, *tokenizer, cache); });
        EXPECT_EQ(error, text + ": kind: found " + name + ", expected text in UTF-8; " + remedy);
        EXPECT_FALSE(fs::exists(cache));
        std::ostringstream out;
        print_info(text, out);
        EXPECT_TRUE(out.str().starts_with(text + ": " + name + ", ")) << out.str();
    };
    refuse("\xff\xfet", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 IN > OUT");
    refuse("\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 IN > OUT");
    refuse(std::string("\xff\xfe\0\0t", 5), "UTF-32 text", "iconv -f UTF-32 -t UTF-8 IN > OUT");
    refuse(std::string("\0\0\xfe\xff", 4), "UTF-32 text", "iconv -f UTF-32 -t UTF-8 IN > OUT");
    refuse("\x28\xb5\x2f\xfd", "zstd data", "zstd -dc IN > OUT");
    refuse(std::string("\xfd\x37zXZ\0", 6), "xz data", "xz -dc IN > OUT");
    refuse("BZh91AY&SY", "bzip2 data", "bzip2 -dc IN > OUT");
    refuse("%PDF-1.7", "a PDF", "pdftotext IN OUT");
    refuse("PK\3\4", "a zip archive, such as a PyTorch checkpoint", "check which file this is");
    write_shard(text, {1, 2, 3});
    EXPECT_NE(error_of([&] { open_dataset(text, *tokenizer, cache); }).find("a name that ends in .bin"),
              std::string::npos);
}

std::string gzipped(const std::string& bytes) {
    z_stream stream{};
    EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    std::string packed(deflateBound(&stream, bytes.size()), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(bytes.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = static_cast<uInt>(packed.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.resize(stream.total_out);
    deflateEnd(&stream);
    return packed;
}

TEST_F(TextCache, GzipIsReadAsTheTextInIt) {
    const std::string plain = read_bytes(text), packed = gzipped(plain);
    const auto tokens_of = [&](const std::string& bytes) {
        write_bytes(text, bytes);
        fs::remove_all(cache);
        std::string found;
        const Dataset data = open_dataset(text, *tokenizer, cache);
        EXPECT_TRUE(data.notes.empty());
        for (const Shard& tokens : data.shards)
            for (int64_t i = 0; i < tokens.size(); i++) found += static_cast<char>(tokens.tokens()[i]);
        return found;
    };
    EXPECT_TRUE(tokens_of(packed) == plain);
    EXPECT_TRUE(tokens_of(packed + gzipped("more")) == plain + "more") << "as gzip, of several";
    EXPECT_TRUE(tokens_of(packed + std::string(512, '\0')) == plain);
    EXPECT_EQ(tokens_of(gzipped("")), "");
    const std::string large(3 << 20, 'x');  // more than a piece
    EXPECT_TRUE(tokens_of(gzipped(large)) == large);
    write_bytes(text, packed);
    const Datasets split = open_datasets(text, "", *tokenizer, at("split"));
    EXPECT_EQ(split.train.tokens(), static_cast<int64_t>(0.9 * static_cast<double>(plain.size())));
    EXPECT_EQ(split.train.tokens() + split.val.tokens(), std::ssize(plain));

    const auto refused = [&](const std::string& bytes, const std::string& part) {
        write_bytes(text, bytes);
        fs::remove_all(cache);
        const std::string error = error_of([&] { open_dataset(text, *tokenizer, cache); });
        EXPECT_NE(error.find(text + ": " + part), std::string::npos) << error;
    };
    for (const size_t size : {packed.size() - 1, packed.size() - 8, packed.size() / 2, size_t{11}, size_t{3}})
        refused(packed.substr(0, size), "gzip data: found an end before its end, expected whole members");
    refused(packed + "x", "gzip data: found other bytes behind it");
    std::string damaged = packed;
    damaged[damaged.size() - 8] ^= 1;  // of the checksum
    refused(damaged, "gzip data: found incorrect data check");
    refused(gzipped("\xff\xfe wide"), "kind: found UTF-16 text in gzip data");
    refused(gzipped(std::string(257, 'n') + "ustar\0" + std::string(300, 'x')),
            "kind: found a tar archive in gzip data");
}

class Words : public TextCache {
protected:
    std::vector<std::string> notes(const std::string& bytes, const Tokenizer& with) {
        write_bytes(text, bytes);
        fs::remove_all(cache);
        std::vector<std::string> found = open_dataset(text, with, cache).notes;
        EXPECT_TRUE(open_dataset(text, with, cache).notes.empty()) << "said once, where it is tokenised";
        const Datasets split = open_datasets(text, "", with, at("split"));
        EXPECT_EQ(split.train.notes, found);
        EXPECT_TRUE(split.val.notes.empty()) << "said once of a text";
        EXPECT_FALSE(split.train.remade);
        fs::remove_all(at("split"));
        for (std::string& note : found) {
            EXPECT_TRUE(note.starts_with(text + ": ")) << note;
            note = note.substr(text.size() + 2);
        }
        return found;
    }
    std::shared_ptr<const Tokenizer> merging() const {  // a byte-pair encoding, which reads UTF-8
        write_bytes(at("merges.txt"), "#version: 0.2\na b\n");
        return load_tokenizer(at("merges.txt"));
    }
};

TEST_F(Words, BytesThatAreNotUtf8AreCountedAndPlaced) {
    const auto bpe = merging();
    using Lines = std::vector<std::string>;
    const std::string remedy = "each read as U+FFFD; if it is Latin-1: iconv -f latin1 -t utf-8 IN > OUT";
    EXPECT_EQ(notes("na\xefve\ncaf\xe9\n", *bpe),
              Lines{"2 places are not UTF-8, the first at byte 2 (line 1), " + remedy});
    EXPECT_EQ(notes("one\ntwo \u00e9\n \xe2\x82 x", *bpe),
              Lines{"1 place is not UTF-8, the first at byte 12 (line 3), " + remedy});
    EXPECT_EQ(notes("cut at the end \xe2\x82", *bpe),
              Lines{"1 place is not UTF-8, the first at byte 15 (line 1), " + remedy});
    EXPECT_EQ(notes("caf\u00e9 \u65e5\u672c", *bpe), Lines{});
    EXPECT_EQ(notes("na\xefve\ncaf\xe9\n", *tokenizer), Lines{}) << "bytes are bytes";
}

TEST_F(Words, MarksAndZeroBytesAreTold) {
    const auto bpe = merging();
    for (const auto& with : {bpe, tokenizer}) {
        const auto marked = notes("\xEF\xBB\xBFsome text", *with);
        ASSERT_EQ(marked.size(), 1u);
        EXPECT_EQ(
            marked[0],
            "begins with a byte-order mark (U+FEFF), which is 3 tokens of the text; tail -c +4 IN > OUT removes it");
        std::string wide;
        for (const char c : std::string("UTF-16 without its mark")) wide += {c, '\0'};
        const auto zeros = notes(wide, *with);
        ASSERT_EQ(zeros.size(), 1u);
        EXPECT_EQ(zeros[0],
                  "23 of its first 46 bytes are zero; if it is UTF-16 without a byte-order mark: iconv -f "
                  "UTF-16LE -t UTF-8 IN > OUT");
    }
}

// It is not the text that has changed: at --resume that is said apart.
TEST_F(TextCache, ATextThatHasChangedIsSaidApartFromItsNotes) {
    opened();
    write_bytes(text, "\xEF\xBB\xBFother text");
    const Dataset data = open_dataset(text, *tokenizer, cache);
    EXPECT_TRUE(data.remade);
    EXPECT_EQ(data.notes.size(), 2u);
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
