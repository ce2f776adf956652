// The cached tokens of a text: a flipped bit in them or in their record is found and reported before anything is
// trained on them, and the text is tokenized again.
#include "io/data/text_cache.h"

#include <unistd.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
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
    static std::string bytes_of(const Dataset& data) {
        std::string bytes;
        for (const Shard& tokens : data.shards)
            for (int64_t i = 0; i < tokens.size(); i++) bytes += static_cast<char>(tokens[i]);
        return bytes;
    }
    // Opens the cache, whose tokens must be the text's. Returns the messages.
    std::string opened() const {
        std::string reported;
        EXPECT_EQ(error_of([&] {
                      const Dataset data = open_dataset(text, *tokenizer, cache);
                      EXPECT_TRUE(bytes_of(data) == read_bytes(text)) << "other tokens than the text's";
                      for (const std::string& note : data.notes) reported += note + "\n";
                  }),
                  "no error");
        return reported;
    }
    // The same for a text that was not tokenized before.
    Dataset opened_anew(const std::string& bytes, const Tokenizer& with) const {
        write_bytes(text, bytes);
        fs::remove_all(cache);
        return open_dataset(text, with, cache);
    }
    static std::string with_bit_flipped(std::string bytes, size_t bit) {
        bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
        return bytes;
    }
    static std::string verified(const std::string& path, bool intact) {
        std::ostringstream out;
        EXPECT_EQ(verify_files(path, out), intact) << path << ":\n" << out.str();
        return out.str();
    }
    const std::string text = at("text.txt"), cache = at("data"), shard = cache + "/data.bin",
                      record = cache + "/data.json";
    const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer("byte");
};

TEST_F(TextCache, AFlippedBitInAShardIsReportedAndMended) {
    opened();
    EXPECT_EQ(opened(), "");
    const std::string good = read_bytes(shard);
    // A bit in the magic number, the version, the number of tokens, the header's unused rest, the first and last token.
    for (const size_t byte : {size_t{0}, size_t{4}, size_t{8}, size_t{500}, size_t{1024}, good.size() - 1}) {
        write_bytes(shard, with_bit_flipped(good, 8 * byte));
        const std::string said = opened();
        EXPECT_TRUE(said.starts_with(shard + ": ") &&
                    said.ends_with("the file is damaged: the text is tokenized again\n"))
            << said;
        EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
        EXPECT_TRUE(read_bytes(shard) == good) << "byte " << byte;
    }
}

// Whether the damage is reported or not: a damaged record may describe other tokens, which are not used.
TEST_F(TextCache, AFlippedBitInTheRecordNeverGivesOtherTokens) {
    opened();
    const std::string good = read_bytes(record);
    for (size_t byte = 0; byte < good.size(); byte++) {
        write_bytes(record, with_bit_flipped(good, 8 * byte + byte % 8));
        opened();
        EXPECT_TRUE(read_bytes(record) == good);
        ASSERT_FALSE(HasFailure()) << "byte " << byte;
    }
}

TEST_F(TextCache, EveryPartOfALargeShardIsCompared) {
    write_bytes(text, std::string((20 << 20) / 2, 'x'));  // a shard of two parts
    opened();
    const std::string good = read_bytes(shard);
    for (const size_t byte : {size_t{1 << 24} - 1, size_t{1 << 24}}) {
        write_bytes(shard, with_bit_flipped(good, 8 * byte));
        const char* part = byte < 1 << 24 ? "CRC-32 of part 1 of 2" : "CRC-32 of part 2 of 2";
        EXPECT_NE(opened().find(part), std::string::npos) << byte;
    }
    EXPECT_EQ(opened(), "");
}

// The first version had no checksums; later ones identified the tokenizer by a 64-bit hash.
TEST_F(TextCache, RecordsOfEarlierVersionsAreMadeAnewInSilence) {
    opened();
    const json whole = json::parse(read_bytes(record));
    json first = whole, second = whole;
    first["format"] = "train_gpt2 token cache, version 1";
    first["shards"][0].erase("crc32");
    second["tokenizer_hash"] = 0xcbf29ce484222325;
    for (const json& old : {first, second}) {
        write_bytes(record, old.dump(2));
        EXPECT_EQ(verified(cache, true).find("no checksums") != std::string::npos, old == first);
        if (old == first) write_bytes(shard, with_bit_flipped(read_bytes(shard), 8 * 2000));
        EXPECT_EQ(opened(), "");
        EXPECT_EQ(json::parse(read_bytes(record)), whole);
    }
}

TEST_F(TextCache, ShardsOfALongerTextGoWithTheirRecord) {
    opened();
    for (const char* name : {"data_000000.bin", "data_000001.bin"}) fs::copy(shard, cache + "/" + name);
    write_bytes(cache + "/data_x.bin", "mine");
    write_bytes(text, "another text");
    opened();
    EXPECT_EQ(listing(cache), (std::vector<std::string>{"data.bin", "data.json", "data_x.bin"}));
}

// Once, files that are not text, and text in another encoding, were tokenized without a warning.
TEST_F(TextCache, WhatIsNoTextIsRefusedByName) {
    const auto refuse = [&](const std::string& bytes, const std::string& name, const std::string& remedy) {
        write_bytes(text, bytes + std::string(1000, 'x'));
        const std::string error = error_of([&] { open_dataset(text, *tokenizer, cache); });
        EXPECT_EQ(error, text + ": this is " + name + ", not UTF-8 text; " + remedy);
        EXPECT_FALSE(fs::exists(cache));
        std::ostringstream out;
        print_info(text, out);
        EXPECT_TRUE(out.str().starts_with(text + ": " + name + ", ")) << out.str();
    };
    refuse("\xff\xfet", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 IN > OUT");
    refuse("\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 IN > OUT");
    refuse(std::string("\xff\xfe\0\0t", 5), "UTF-32 text", "iconv -f UTF-32 -t UTF-8 IN > OUT");
    refuse(std::string("\0\0\xfe\xff", 4), "UTF-32 text", "iconv -f UTF-32 -t UTF-8 IN > OUT");
    refuse(std::string("\xfd\x37zXZ\0", 6), "xz data", "xz -dc IN > OUT");
    refuse("BZh91AY&SY", "bzip2 data", "bzip2 -dc IN > OUT");
    refuse("%PDF-1.7", "a PDF", "pdftotext IN OUT");
    refuse("PK\3\4", "a zip archive, such as a PyTorch checkpoint", "check which file this is");
    write_shard(text, {1, 2, 3});
    EXPECT_NE(error_of([&] { open_dataset(text, *tokenizer, cache); }).find("a name that ends in .bin"),
              std::string::npos);
}

TEST_F(TextCache, GzipIsReadAsTheTextInIt) {
    const auto gzipped = [&](const std::string& bytes) {
        const gzFile file = gzopen(at("packed").c_str(), "wb");
        gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
        EXPECT_EQ(gzclose(file), Z_OK);
        return read_bytes(at("packed"));
    };
    const std::string plain = read_bytes(text), packed = gzipped(plain), large(3 << 20, 'x');  // more than a piece
    const auto reads_as = [&](const std::string& bytes, const std::string& expected) {
        const Dataset data = opened_anew(bytes, *tokenizer);
        EXPECT_TRUE(data.notes.empty() && bytes_of(data) == expected);
    };
    reads_as(packed + gzipped("more"), plain + "more");  // several members, as gzip reads them
    reads_as(packed + std::string(512, '\0'), plain);
    reads_as(gzipped(""), "");
    reads_as(gzipped(large), large);
    reads_as(packed, plain);
    const Datasets split = open_datasets(text, "", *tokenizer, at("split"));
    EXPECT_EQ(split.train.tokens(), static_cast<int64_t>(0.9 * static_cast<double>(plain.size())));
    EXPECT_EQ(split.train.tokens() + split.val.tokens(), std::ssize(plain));

    const auto refused = [&](const std::string& bytes, const std::string& part) {
        const std::string error = error_of([&] { opened_anew(bytes, *tokenizer); });
        EXPECT_NE(error.find(text + ": " + part), std::string::npos) << error;
    };
    for (const size_t size : {packed.size() - 1, packed.size() - 8, packed.size() / 2, size_t{3}})
        refused(packed.substr(0, size), "damaged gzip data: it is cut short");
    refused(packed + "x", "damaged gzip data: other bytes follow it");
    refused(with_bit_flipped(packed, 8 * (packed.size() - 8)), "damaged gzip data: incorrect data check");
    refused(gzipped("\xff\xfe wide"), "this is UTF-16 text in gzip data");
    refused(gzipped(std::string(257, 'n') + "ustar\0" + std::string(300, 'x')), "this is a tar archive in gzip data");
}

// Doubts about a text are reported once: when it is tokenized, not for each of its parts.
TEST_F(TextCache, WhatATextMayNotBeIsReported) {
    using Lines = std::vector<std::string>;
    const auto expect_notes = [&](const std::string& bytes, const Tokenizer& with, Lines expected) {
        for (std::string& line : expected) line = text + ": " + line;
        EXPECT_EQ(opened_anew(bytes, with).notes, expected);
        EXPECT_EQ(open_dataset(text, with, cache).notes, Lines{});
        fs::remove_all(at("split"));
        const Datasets split = open_datasets(text, "", with, at("split"));
        EXPECT_EQ(split.train.notes, expected);
        EXPECT_EQ(split.val.notes, Lines{});
        EXPECT_FALSE(split.train.remade);
    };
    write_bytes(at("merges.txt"), "#version: 0.2\na b\n");
    const auto bpe = load_tokenizer(at("merges.txt"));  // a byte-pair encoding, which reads UTF-8
    const std::string remedy = "each read as U+FFFD; if it is Latin-1: iconv -f latin1 -t utf-8 IN > OUT";
    expect_notes("na\xefve\ncaf\xe9\n", *bpe, {"2 places are not UTF-8, the first at byte 2 (line 1), " + remedy});
    expect_notes("one\ntwo \u00e9\n \xe2\x82 x", *bpe,
                 {"1 place is not UTF-8, the first at byte 12 (line 3), " + remedy});
    expect_notes("cut at the end \xe2\x82", *bpe, {"1 place is not UTF-8, the first at byte 15 (line 1), " + remedy});
    expect_notes("caf\u00e9 \u65e5\u672c", *bpe, {});
    expect_notes("na\xefve\ncaf\xe9\n", *tokenizer, {});  // bytes are bytes
    std::string wide;
    for (const char c : std::string("UTF-16 without its mark")) wide += {c, '\0'};
    for (const auto& with : {bpe, tokenizer}) {
        expect_notes("\xEF\xBB\xBFsome text", *with,
                     {"begins with a byte-order mark (U+FEFF), which is 3 tokens of the text; tail -c +4 IN > OUT "
                      "removes it"});
        expect_notes(wide, *with,
                     {"23 of its first 46 bytes are zero; if it is UTF-16 without a byte-order mark: iconv -f UTF-16LE "
                      "-t UTF-8 IN > OUT"});
    }
    write_bytes(text, "\xEF\xBB\xBFother text");
    const Dataset changed = open_dataset(text, *tokenizer, cache);
    EXPECT_TRUE(changed.remade) << "a changed text is not the text that the cache was made from";
    EXPECT_EQ(changed.notes.size(), 2u);
}

TEST_F(TextCache, InfoVerifyComparesIt) {
    opened();
    fs::create_directories(at("run"));
    fs::copy(cache, at("run/data"));
    const std::string run = at("run"), copy = at("run/data/data.bin"), copied_record = at("run/data/data.json");
    for (const bool intact : {true, false}) {
        if (!intact) write_bytes(copy, with_bit_flipped(read_bytes(copy), 8 * 3000));
        const std::string verdict = intact ? " ok\n" : "DAMAGED: " + copy + ": CRC-32";
        for (const std::string& path : {run, at("run/data"), copy}) {
            const std::string said = verified(path, intact);
            EXPECT_NE(said.find(verdict, said.find("\"data.bin\"")), std::string::npos) << said;
        }
        EXPECT_NE(verified(copied_record, true).find("\"data.json\""), std::string::npos);
    }
    fs::remove(copy);
    EXPECT_NE(verified(run, false).find("No such file"), std::string::npos);
    write_bytes(copied_record, read_bytes(record).substr(0, 100));
    EXPECT_NE(verified(run, false).find("data.json: invalid JSON"), std::string::npos);
    write_bytes(copied_record, json{{"format", "train_gpt2 token cache, version 2"}, {"shards", 7}}.dump());
    verified(run, false);

    std::ostringstream listed;
    print_info(cache, listed);
    EXPECT_NE(listed.str().find(shard + ": an llm.c token shard"), std::string::npos) << listed.str();
}

}  // namespace
