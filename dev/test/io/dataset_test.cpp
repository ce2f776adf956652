// Shards, and texts that become shards.
#include "io/data/batch_sampler.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "dev/test/io/dataset_files.h"
#include "program/info.h"
#include "io/data/text_cache.h"
#include "io/text/safe_cut.h"

namespace fs = std::filesystem;

namespace {

using DatasetTest = DatasetFiles;

// A tokenizer with one id for each piece of GPT-2's pre-tokenizer: it shows where a cut would change the pieces.
class Pieces : public Bytes {
public:
    Pieces() : Bytes(65536, "pieces") {
        const char* pattern = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
        int error;
        size_t at;
        code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                              &error, &at, nullptr);
    }
    ~Pieces() override { pcre2_code_free(code_); }
    std::vector<int32_t> encode(std::string_view text) const override {
        std::vector<int32_t> ids;
        pcre2_match_data* match = pcre2_match_data_create_from_pattern(code_, nullptr);
        const size_t* span = pcre2_get_ovector_pointer(match);
        for (size_t at = 0; at < text.size(); at = span[1]) {
            const int rc =
                pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0, match, nullptr);
            if (rc < 0) throw std::runtime_error("no match");
            ids.push_back(std::hash<std::string_view>{}(text.substr(span[0], span[1] - span[0])) & 0xffff);
        }
        pcre2_match_data_free(match);
        return ids;
    }

private:
    pcre2_code* code_;
};

std::string text_of(const Dataset& dataset) {
    std::string text;
    for (const Shard& shard : dataset.shards)
        for (int64_t i = 0; i < shard.size(); i++) text.push_back(static_cast<char>(shard[i]));
    return text;
}

// ---- shards

TEST_F(DatasetTest, ShardRoundTripsInLlmcsLayout) {
    const std::string file = shard("a.bin", 5, 65533);
    std::ifstream in(file, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    EXPECT_EQ(bytes, header({20240520, 1, 5}) + std::string("\xfd\xff\xfe\xff\xff\xff\x00\x00\x01\x00", 10));
    const Shard opened(file);
    EXPECT_EQ(opened.size(), 5);
    EXPECT_EQ(opened[0], 65533);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory), {}), 1) << "a temporary file was left";
}

TEST_F(DatasetTest, WideShardRoundTripsInLlmcsLayout) {
    const std::string file = path("wide.bin");
    write_shard<uint32_t>(file, {65536, 7, 0x12345});
    std::ifstream in(file, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    EXPECT_EQ(bytes, header({20240801, 7, 3}) + std::string("\x00\x00\x01\x00\x07\x00\x00\x00\x45\x23\x01\x00", 12));
    const Shard opened(file);
    EXPECT_EQ(ids_of(opened), (std::vector<int32_t>{65536, 7, 0x12345}));
    EXPECT_EQ(ids_of(opened.part(1, 3)), (std::vector<int32_t>{7, 0x12345}));
    EXPECT_EQ(opened[2], 0x12345u);
    std::ostringstream info;
    print_info(file, info);
    EXPECT_CONTAINS(info.str(), "an llm.c token shard, 3 tokens, largest id 74565\n  first ids 65536 7 74565");
    EXPECT_EQ(check_ids(opened, 0x12346), 0x12345u);
    EXPECT_CONTAINS(error_of([&] { check_ids(opened, 0x12345); }), "token 2: id 74565 is outside");
    write_shard<uint32_t>(file, {UINT32_MAX, 1});
    EXPECT_CONTAINS(error_of([&] { open_dataset(file, Bytes(100'000), path("cache")); }), "token 0: id 4294967295");
}

TEST_F(DatasetTest, BadShardsNameFileFieldAndNumbers) {
    const auto open = [&](const std::string& bytes) {
        const std::string file = write("bad.bin", bytes);
        return error_of([&] { Shard{file}; });
    };
    EXPECT_CONTAINS(open(""), "bad.bin: size: found 0 bytes");
    EXPECT_CONTAINS(open(std::string(1023, 'x')), "found 1023 bytes, expected at least the 1024");
    EXPECT_CONTAINS(open(header({7, 1, 0})), "magic number: found 7, expected 20240520");
    EXPECT_CONTAINS(open(header({20240520, 2, 0})), "version: found 2, expected 1");
    EXPECT_CONTAINS(open(header({20240520, 1, 2}) + "abc"), "found 1027 bytes, expected 1028 bytes");
    EXPECT_CONTAINS(open(header({20240520, 1, 2}) + "abcde"), "found 1029 bytes, expected 1028 bytes");
    EXPECT_CONTAINS(open(header({20240520, 1, -1})), "expected 8589935614 bytes for the header's 4294967295 tokens");
    EXPECT_CONTAINS(open(header({20240801, 1, 0})), "version: found 1, expected 7");
    EXPECT_CONTAINS(open(header({20240801, 7, 2}) + "abcd"), "found 1028 bytes, expected 1032 bytes");
    EXPECT_CONTAINS(error_of([&] { Shard{path("absent.bin")}; }), "absent.bin: open failed: No such file");
    EXPECT_CONTAINS(error_of([&] { Shard{directory}; }), "a directory");
}

// llm.c's offsets are 32-bit, but this program's must not be. The file is a hole, so it takes no space.
TEST_F(DatasetTest, ShardOverFourGigabytes) {
    const int64_t tokens = 2'500'000'000;
    const std::string file = write("big.bin", header({20240520, 1, static_cast<int32_t>(tokens)}));
    ASSERT_EQ(truncate(file.c_str(), 1024 + 2 * tokens), 0);
    {
        std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
        out.seekp(1024 + 2 * (tokens - 2));
        out.write("\x11\x01\x22\x02", 4);
        out.seekp(1024 + 2 * (int64_t{1} << 31));
        out.write("\x33\x03", 2);
    }
    Dataset big;
    big.shards.emplace_back(file);
    EXPECT_EQ(big.tokens(), tokens);
    const WindowReader windows(big, 1000);
    EXPECT_EQ(windows.windows(), 2'500'000);
    std::vector<int32_t> x(1000), y(1000);
    windows.read(windows.windows() - 1, x.data(), y.data());
    EXPECT_EQ(windows.length(windows.windows() - 1), 999);
    EXPECT_EQ(x[998], 0x111);
    EXPECT_EQ(y[998], 0x222);
    windows.read((int64_t{1} << 31) / 1000, x.data(), y.data());
    EXPECT_EQ(x[(int64_t{1} << 31) % 1000], 0x333);

    // A block of a million tokens holds one multiple of a million.
    {
        std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
        for (int64_t million = 0; million < 2500; million++) {
            const uint16_t mark = static_cast<uint16_t>(million + 1);
            out.seekp(1024 + 2 * million * 1'000'000);
            out.write(reinterpret_cast<const char*>(&mark), 2);
        }
    }
    x.resize(1'000'000), y.resize(1'000'000);
    BatchSampler sampler(big, 1, 1'000'000, 1);
    std::set<int32_t> marks;
    for (int i = 0; i < 40; i++) {
        sampler.next(x.data(), y.data());
        EXPECT_TRUE(marks.insert(*std::max_element(x.begin(), x.end())).second);
    }
    EXPECT_LT(*marks.begin(), 1000);
    EXPECT_GT(*marks.rbegin(), 2200) << "none beyond 2^31 tokens";
}

TEST_F(DatasetTest, IdsBeyondTheVocabularyAreFound) {
    std::vector<uint16_t> ids(100'000, 255);
    write_shard(path("good.bin"), ids);
    ids[77'777] = 256;
    write_shard(path("bad.bin"), ids);
    const Bytes tokenizer;
    EXPECT_EQ(open_dataset(path("good.bin"), tokenizer, directory).tokens(), 100'000);
    EXPECT_CONTAINS(error_of([&] { open_dataset(path("bad.bin"), tokenizer, directory); }),
                    "bad.bin: token 77777: id 256 is outside the model's vocabulary of 256");
    EXPECT_CONTAINS(error_of([&] { open_datasets(path("good.bin"), path("bad.bin"), tokenizer, directory); }),
                    "token 77777");
    EXPECT_CONTAINS(error_of([&] { open_datasets(path("bad.bin"), "", tokenizer, directory); }), "token 77777");
    EXPECT_NO_THROW(open_dataset(path("bad.bin"), Bytes(65536), directory));
    EXPECT_NO_THROW(open_dataset(path("bad.bin"), tokenizer, directory, 257)) << "the model has more rows";

    ids[77'777] = 0, ids[95'000] = 256;  // in the tenth that is held out: its place in the file is named
    write_shard(path("bad.bin"), ids);
    EXPECT_CONTAINS(error_of([&] { open_datasets(path("bad.bin"), "", tokenizer, directory); }), "token 95000");
}

std::string raw_ids(const std::vector<uint16_t>& ids) {
    return {reinterpret_cast<const char*>(ids.data()), 2 * ids.size()};
}

// nanoGPT's prepare.py writes uint16 ids and nothing else.
TEST_F(DatasetTest, IdsWithoutAHeaderAreReadAsNanoGptWritesThem) {
    std::vector<uint16_t> ids;
    for (int i = 0; i < 3000; i++) ids.push_back(static_cast<uint16_t>(i * i % 50257));
    const std::string file = write("train.bin", raw_ids(ids));
    const Bytes gpt2(50257, "gpt2");
    const Dataset data = open_dataset(file, gpt2, directory);
    ASSERT_EQ(data.tokens(), 3000);
    EXPECT_EQ(ids_of(data.shards[0]), std::vector<int32_t>(ids.begin(), ids.end()));
    ASSERT_EQ(data.notes.size(), 1u);
    EXPECT_CONTAINS(data.notes[0], "train.bin: no header, so that all of it is read as token ids");
    std::ostringstream info;
    print_info(file, info);
    EXPECT_CONTAINS(info.str(), "no header; as token ids alone (nanoGPT's prepare.py), 3,000 tokens, largest id");
    const Datasets sets = open_datasets(file, "", gpt2, directory);
    EXPECT_EQ(sets.train.tokens(), 2700);
    EXPECT_EQ(sets.val.shards[0][0], ids[2700]);
    EXPECT_EQ(sets.train.notes.size(), 1u);
    write("train_2.bin", raw_ids(ids));
    const Dataset both = open_dataset(path("train*.bin"), gpt2, directory);
    EXPECT_EQ(both.tokens(), 6000);
    ASSERT_EQ(both.notes.size(), 1u);
    EXPECT_CONTAINS(both.notes[0], "1 more files: no headers");

    EXPECT_CONTAINS(error_of([&] { open_dataset(file, Bytes(), directory); }),
                    "train.bin: no llm.c header, only 16-bit token ids as nanoGPT's prepare.py writes them; pass the "
                    "--tokenizer that made them, usually --tokenizer gpt2");
    ids[1234] = 50257;
    write("train.bin", raw_ids(ids));
    EXPECT_CONTAINS(error_of([&] { open_dataset(file, gpt2, directory); }),
                    "train.bin: token 1234: id 50257 is outside the model's vocabulary of 50257 (no header: all of it "
                    "is read as token ids); ");
}

// A damaged shard, or another kind of file, is not read as ids without a header.
TEST_F(DatasetTest, OtherFilesAreNotTakenForIdsWithoutAHeader) {
    const auto refused = [&](const std::string& bytes, const std::string& part) {
        EXPECT_CONTAINS(error_of([&] { open_dataset(write("x.bin", bytes), Bytes(65536, "other"), directory); }), part);
    };
    const std::string good = header({20240520, 1, 600}) + std::string(1200, 'a');
    for (size_t bit = 0; bit < 32; bit++) {
        std::string damaged = good;
        damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
        refused(damaged, "magic number: found");
        refused(damaged.substr(0, 600), "size: found 600 bytes");
    }
    std::string text;
    for (int i = 0; i < 500; i++) text += "these words are text. ";
    refused(text, "the name of a text file must not end in .bin");
    const std::string rest = std::string(2000, 'x') + std::string(2000, '\0');
    refused("PK\3\4" + rest, "(a zip archive, such as a PyTorch checkpoint)");
    refused("\x93NUMPY" + rest, "(a NumPy array)");
    refused("\x1f\x8b\x08" + std::string(1, 'x') + rest, "(gzip data)");
    refused(header({20240801, 7, 100}) + std::string(400, 'x'), "id 2021161080 is outside");
    refused(header({20240801, 7, 100}) + std::string(200, 'x'), "found 1224 bytes, expected 1424 bytes");
    refused(std::string(4000, '\0'), "magic number: found 0");
    refused(std::string(100, '\0'), "size: found 100 bytes");
    refused(std::string("\1\0\2\0\3\0\4\0\5\0\6\0\7\0\1", 15), "size: found 15 bytes");
}

// As after `tokenize` without --tokenizer, when a GPT-2 then reads the shard.
TEST_F(DatasetTest, IdsFarBelowTheVocabularyAreRemarkedOn) {
    const Bytes gpt2(50257, "gpt2");
    const auto notes = [&](int64_t tokens, uint16_t largest, const Tokenizer& tokenizer) {
        std::vector<uint16_t> ids(tokens, 'a');
        ids.back() = largest;
        write_shard(path("ids.bin"), ids);
        const Datasets sets = open_datasets(path("ids.bin"), path("ids.bin"), tokenizer, directory);
        EXPECT_EQ(sets.train.notes, sets.val.notes);
        EXPECT_EQ(open_datasets(path("ids.bin"), "", tokenizer, directory).train.notes, sets.train.notes);
        return open_dataset(path("ids.bin"), tokenizer, directory).notes;
    };
    EXPECT_EQ(notes(10'000, 250, gpt2),
              std::vector<std::string>{path("ids.bin") +
                                       ": no id is above 250 in 10000 tokens, of a vocabulary of 50257; "
                                       "were they made with another tokenizer (`tokenize` writes bytes unless "
                                       "--tokenizer is given)?"});
    EXPECT_EQ(notes(9'999, 250, gpt2).size(), 0u) << "too few to tell";
    EXPECT_EQ(notes(10'000, 5000, gpt2).size(), 0u);
    EXPECT_EQ(notes(10'000, 'b', Bytes()).size(), 0u);
    const std::string text = write("t.txt", std::string(20'000, 'a'));
    EXPECT_EQ(open_dataset(text, gpt2, path("cache")).notes.size(), 0u) << "the tokenizer's own ids";
}

TEST_F(DatasetTest, GlobsAreSortedAndTheLastShardIsHeldOut) {
    shard("c_2.bin", 30, 2000), shard("c_0.bin", 10, 0), shard("c_1.bin", 20, 1000);
    const Datasets sets = open_datasets(path("c_*.bin"), "", Bytes(65536), directory);
    ASSERT_EQ(sets.train.shards.size(), 2u);
    EXPECT_EQ(sets.train.shards[0][0], 0);
    EXPECT_EQ(sets.train.shards[1][0], 1000);
    ASSERT_EQ(sets.val.shards.size(), 1u);
    EXPECT_EQ(sets.val.shards[0][0], 2000);
    EXPECT_EQ(sets.val.tokens(), 30);
}

TEST_F(DatasetTest, TheOnlyShardLosesItsLastTenth) {
    const Datasets sets = open_datasets(shard("one.bin", 105), "", Bytes(65536), directory);
    EXPECT_EQ(sets.train.tokens(), 94);
    EXPECT_EQ(sets.val.tokens(), 11);
    EXPECT_EQ(sets.val.shards[0][0], 94);
}

// Checkpoints contain the fingerprint: if it changed, a resumed run would report that its data has changed.
TEST_F(DatasetTest, FingerprintIsFixedForAllTime) {
    shard("t_0.bin", 5000), shard("t_1.bin", 10, 1000), shard("v.bin", 10, 1000);
    EXPECT_EQ(fingerprint(open_datasets(path("t_*.bin"), path("v.bin"), Bytes(), directory, 65536)), 3954113149u);
}

TEST_F(DatasetTest, GlobsThatMeanNothingAreRefused) {
    write("a.txt", "x"), write("b.txt", "y"), shard("c.bin", 1);
    const auto open = [&](const std::string& data) {
        return error_of([&] { open_datasets(data, "", Bytes(), directory); });
    };
    EXPECT_CONTAINS(open(path("*.bon")), "*.bon: no file matches this pattern");
    EXPECT_CONTAINS(open(path("*")), "*: these are 3 files, of which 1 end in .bin; name token shards (.bin) alone");
    EXPECT_CONTAINS(open(path("absent.txt")), "absent.txt: open failed: No such file");
    EXPECT_NO_THROW(open_dataset(path("a.*"), Bytes(), directory));
    write("odd[1].txt", "z");
    EXPECT_NO_THROW(open_dataset(path("odd[1].txt"), Bytes(), path("other"))) << "a file that exists is no glob";
}

// ---- text

TEST_F(DatasetTest, AsciiIsSplitLikeNanoGpt) {
    std::string text;
    for (int i = 0; i < 1237; i++) text.push_back(static_cast<char>('a' + i % 26));
    const Datasets sets = open_datasets(write("t.txt", text), "", Bytes(), path("cache"));
    EXPECT_EQ(sets.train.tokens(), 1113);  // int(0.9 * 1237)
    EXPECT_EQ(text_of(sets.train) + text_of(sets.val), text);
}

TEST_F(DatasetTest, TheSplitDoesNotCutACharacter) {
    for (int pad = 0; pad < 4; pad++) {
        std::string text(pad, 'x');
        for (int i = 0; i < 100; i++) text += "\xf0\x9f\x98\x80";
        const Datasets sets = open_datasets(write("t.txt", text), "", Bytes(), path("cache"));
        EXPECT_EQ(text_of(sets.val)[0], '\xf0');
        EXPECT_EQ(text_of(sets.train) + text_of(sets.val), text);
    }
    const std::string binary(1000, '\x80');  // no characters at all: still split, at once
    EXPECT_EQ(open_datasets(write("t.txt", binary), "", Bytes(), path("cache")).train.tokens(), 897);
}

TEST_F(DatasetTest, WithAValidationFileBothAreWhole) {
    const std::string text = write("t.txt", "training text"), val = write("v.txt", "validation");
    const Datasets sets = open_datasets(text, val, Bytes(), path("cache"));
    EXPECT_EQ(text_of(sets.train), "training text");
    EXPECT_EQ(text_of(sets.val), "validation");
    const Datasets mixed = open_datasets(shard("s.bin", 7), val, Bytes(), path("cache"));
    EXPECT_EQ(mixed.train.tokens(), 7);
    EXPECT_EQ(text_of(mixed.val), "validation");
}

TEST_F(DatasetTest, TextIsTokenisedOnceWhileNothingChanges) {
    const std::string text = write("t.txt", std::string(1000, 'a') + std::string(1000, 'b'));
    const auto encoded = [&](const Bytes& tokenizer, const std::string& val = "") {
        const int64_t before = tokenizer.encoded_bytes;
        open_datasets(text, val, tokenizer, path("cache"));
        return tokenizer.encoded_bytes - before;
    };
    const Bytes tokenizer;
    EXPECT_EQ(encoded(tokenizer), 2000);
    EXPECT_EQ(encoded(tokenizer), 0);
    EXPECT_EQ(encoded(Bytes(257)), 2000) << "another vocabulary";
    EXPECT_EQ(encoded(Bytes(257, "other")), 0) << "the same tokenizer under another name";
    EXPECT_EQ(encoded(tokenizer), 2000);
    EXPECT_EQ(encoded(tokenizer, text), 4000) << "another split";
    EXPECT_EQ(encoded(tokenizer), 2000);
    write("t.txt", std::string(1000, 'c') + std::string(1000, 'd'));  // same size, later
    EXPECT_EQ(encoded(tokenizer), 2000) << "another text";
    EXPECT_EQ(text_of(open_datasets(text, "", tokenizer, path("cache")).val), std::string(200, 'd'));
    fs::resize_file(path("cache/train.bin"), 1500);
    EXPECT_EQ(encoded(tokenizer), 1800) << "a damaged cache is written again";
    fs::remove(path("cache/val.bin"));
    EXPECT_EQ(encoded(tokenizer), 200);
    write("cache/val.json", R"({"format":"train_gpt2 token cache, version 1","shards":7})");
    EXPECT_EQ(encoded(tokenizer), 200) << "a damaged record";
    EXPECT_EQ(encoded(tokenizer), 0);
}

TEST_F(DatasetTest, SomeoneElsesFilesAreNotOverwritten) {
    const std::string text = write("t.txt", "some text");
    shard("train.bin", 3);
    EXPECT_CONTAINS(error_of([&] { open_datasets(text, "", Bytes(), directory); }), "not written by the token cache");
    EXPECT_EQ(Shard(path("train.bin")).size(), 3);
    fs::remove(path("train.bin"));
    write("train.json", "{}");
    EXPECT_CONTAINS(error_of([&] { open_datasets(text, "", Bytes(), directory); }), "not written by the token cache");
}

TEST_F(DatasetTest, LongTextBecomesSeveralShards) {
    std::string text;
    for (int i = 0; i < 1000; i++) text += "line " + std::to_string(i) + "\n";
    const auto shards = tokenize_to_shards(text, Bytes(), path("x.bin"), {.chunk_bytes = 100, .shard_tokens = 3000});
    ASSERT_EQ(shards.size(), 3u);
    EXPECT_EQ(shards[0].path, path("x_000000.bin"));
    Dataset joined;
    for (const WrittenFile& file : shards) joined.shards.emplace_back(file.path);
    EXPECT_EQ(text_of(joined), text);
    EXPECT_EQ(tokenize_to_shards("abc", Bytes(), path("y.bin"), {.chunk_bytes = 1, .shard_tokens = 3}).size(), 1u);
}

TEST_F(DatasetTest, ChunksEncodeAsTheWholeDoes) {
    const Pieces tokenizer;
    const std::vector<std::string> parts = {"\n",     "\n",     "\n",     "\r\n",   " ",          "  ",     "\t",
                                            "\u0085", "\u00a0", "\u1680", "\u2000", "\u2009",     "\u2028", "\u202f",
                                            "\u205f", "\u3000", "a",      "don't",  "'ll",        "7",      ".",
                                            "\u3002", "\u4e2d", "\u3042", "\u00e9", "\U0001f600", "\x01",   "\x1f"};
    std::mt19937 random(1);
    int64_t cuts = 0;
    for (int round = 0; round < 30; round++) {
        std::string text;
        for (int i = 0; i < 2000; i++) text += parts[random() % parts.size()];
        for (int64_t at = 0; at < std::ssize(text); at = safe_cut(text, at, 1, tokenizer.added())) cuts++;
        const auto whole = tokenizer.encode(text);
        tokenize_to_shards(text, tokenizer, path("t.bin"), {.chunk_bytes = 1 + round, .shard_tokens = 1 << 20});
        const Shard shard(path("t.bin"));
        ASSERT_EQ(ids_of(shard), whole);
    }
    EXPECT_GT(cuts, 300) << "the cuts that the test is about";
}

// A byte-level BPE with one merge, and added tokens for which white space and line breaks matter.
std::shared_ptr<const Tokenizer> with_added_tokens(const std::string& directory, bool special_as_text = false) {
    load_tokenizer("byte")->save_hugging_face(directory);
    auto file = nlohmann::json::parse(read_bytes(directory + "/tokenizer.json"));
    file["model"]["vocab"]["th"] = 256;
    file["model"]["merges"] = {"t h"};
    file["pre_tokenizer"]["use_regex"] = true;
    file["added_tokens"] = {{{"id", 257}, {"content", "<|endoftext|>"}, {"special", true}},
                            {{"id", 258}, {"content", "x\ny"}},
                            {{"id", 259}, {"content", "<m>"}, {"lstrip", true}, {"rstrip", true}},
                            {{"id", 260}, {"content", "\u00e9\n"}, {"single_word", true}}};
    write_bytes(directory + "/tokenizer.json", file.dump());
    return load_tokenizer(directory, {.special_as_text = special_as_text});
}

TEST_F(DatasetTest, AddedTokensAreNotCut) {
    const auto tokenizer = with_added_tokens(directory);
    const std::vector<std::string> parts = {"<|endoftext|>", "<m>", "x", "y", "\n", "\n", "\n", " ",
                                            "\u00e9",        "th",  "a"};
    std::mt19937 random(1);
    for (int round = 0; round < 10; round++) {
        std::string text;
        for (int i = 0; i < 2000; i++) text += parts[random() % parts.size()];
        tokenize_to_shards(text, *tokenizer, path("t.bin"), {.chunk_bytes = 1 + round, .shard_tokens = 1 << 20});
        const Shard shard(path("t.bin"));
        ASSERT_EQ(ids_of(shard), tokenizer->encode(text));
    }
}

// However a text comes in, and wherever it is cut in two: each document gives the tokens of its whole, and the parts
// are cut where both find the same place.
TEST_F(DatasetTest, TextsThatComeInBitsGiveTheSameTokens) {
    const auto tokenizer = with_added_tokens(directory);
    const std::vector<std::string> parts = {"<|endoftext|>", "<m>", "x", "y",     "\n", "\n", "\n", " ",
                                            "\u00e9",        "th",  "a", "\u65e5"};
    std::mt19937 random(1);
    for (int round = 0; round < 30; round++) {
        std::vector<std::string> documents(1 + random() % 5);
        int64_t all_bytes = 0;
        for (std::string& text : documents) {
            for (int64_t i = random() % 1000; i > 0; i--) text += parts[random() % parts.size()];
            all_bytes += std::ssize(text);
        }
        // The documents of a part, of which the last one may not end.
        const auto read = [&](TextPart part) {
            std::vector<std::string> texts(1);
            std::vector<std::vector<int32_t>> ids(1);
            TextGroups groups(
                tokenizer->added(), 1 + random() % 50, 1 + random() % 500,
                [&](std::span<const TextPiece> pieces) {
                    for (const auto& [text, ends] : pieces) {
                        const auto more = tokenizer->encode(text);
                        texts.back() += text;
                        ids.back().insert(ids.back().end(), more.begin(), more.end());
                        if (ends) texts.emplace_back(), ids.emplace_back();
                    }
                },
                part, all_bytes);
            bool more = true;
            for (const std::string& text : documents) {
                const bool with_last = !text.empty() && random() % 2;  // the end is given with the last bit, or alone
                for (size_t at = 0, size; more && at < text.size(); at += size) {
                    size = 1 + random() % 300;
                    more = groups.add(std::string_view(text).substr(at, size), with_last && at + size >= text.size());
                }
                if (more && !with_last) more = groups.add("", true);
            }
            groups.finish();
            for (size_t i = 0; i < texts.size(); i++) EXPECT_EQ(ids[i], tokenizer->encode(texts[i]));
            return texts;
        };
        const std::vector<std::string> whole = read(TextPart::all);
        EXPECT_TRUE(std::equal(documents.begin(), documents.end(), whole.begin(), whole.end() - 1));
        std::vector<std::string> joined = read(TextPart::first_nine_tenths);
        const int64_t train = std::accumulate(joined.begin(), joined.end(), int64_t{0},
                                              [](int64_t sum, const std::string& t) { return sum + std::ssize(t); });
        EXPECT_LE(train, 0.9 * static_cast<double>(all_bytes));
        EXPECT_GE(train, 0.9 * static_cast<double>(all_bytes) - 100) << "moved back by a few tokens";
        const std::vector<std::string> rest = read(TextPart::last_tenth);
        joined.back() += rest[0];
        joined.insert(joined.end(), rest.begin() + 1, rest.end());
        EXPECT_EQ(joined, whole);
    }
}

// --text-mb: stretches at equal distances, of both parts, however the text comes in. A short document is used whole or
// not at all, and one of which anything is used ends.
TEST_F(DatasetTest, APartOfATextIsTakenEvenly) {
    const auto tokenizer = load_tokenizer("byte");
    constexpr int64_t wanted = 300'000, line_bytes = 13, lines = 230'000, stretch = wanted / 64;
    for (const int64_t lines_of_document : {10, 1000}) {
        std::vector<std::string> documents(lines / lines_of_document);
        for (int64_t i = 0; i < lines; i++)
            documents[static_cast<size_t>(i / lines_of_document)] += "line " + std::to_string(1'000'000 + i) + "\n";
        // The documents of which something is used.
        const auto read = [&](TextPart part, int64_t bits) {
            std::vector<std::string> texts(1);
            TextGroups groups(
                tokenizer->added(), 1 << 20, 1 << 16,
                [&](std::span<const TextPiece> pieces) {
                    for (const auto& [text, ends] : pieces) {
                        texts.back() += text;
                        if (ends) texts.emplace_back();
                    }
                },
                part, lines * line_bytes, wanted);
            bool more = true;
            for (const std::string_view text : documents) {
                for (int64_t at = 0; more && at < std::ssize(text); at += bits)
                    more = groups.add(text.substr(static_cast<size_t>(at), static_cast<size_t>(bits)), false);
                if (more) more = groups.add("", true);
            }
            groups.finish();
            return texts;
        };
        std::vector<int64_t> of_tenths(10);
        for (const TextPart part : {TextPart::first_nine_tenths, TextPart::last_tenth}) {
            std::vector<std::string> texts = read(part, 1 << 20);
            EXPECT_EQ(texts, read(part, 777));
            EXPECT_EQ(texts.back(), "") << "a document that does not end";
            texts.pop_back();
            for (const std::string& text : texts) {
                EXPECT_NE(text, "") << "a document of which nothing is used";
                EXPECT_TRUE(lines_of_document > 10 || std::ranges::binary_search(documents, text)) << text;
                for (size_t at = 0; (at = text.find("line ", at)) < text.size(); at += line_bytes)
                    of_tenths.at((std::stoul(text.substr(at + 5, 7)) - 1'000'000) * 10 / lines) += line_bytes;
            }
        }
        for (const int64_t bytes : of_tenths) EXPECT_NEAR(static_cast<double>(bytes), wanted / 10., 1.5 * stretch);
    }
}

TEST_F(DatasetTest, ATextWithoutPlacesToCutIsUsedWhole) {
    write_bytes(path("long.txt"), std::string(2'000'000, 'x'));
    const Datasets data =
        open_datasets(DataNames({path("long.txt")}, "text", 1'000'000), "", *load_tokenizer("byte"), path("cache"));
    EXPECT_EQ(data.train.tokens(), 1'800'000);
    EXPECT_EQ(data.val.tokens(), 200'000);
}

TEST_F(DatasetTest, APartOfATextIsTokenizedAndCountedOnce) {
    const auto tokenizer = load_tokenizer("byte");
    std::string text;
    for (int i = 0; i < 500'000; i++) text += "line " + std::to_string(1'000'000 + i) + "\n";
    write_bytes(path("long.txt"), text);
    const auto part = [&](int64_t wanted) { return DataNames({path("long.txt")}, "text", wanted); };
    const Datasets data = open_datasets(part(1'000'000), "", *tokenizer, path("cache"));
    EXPECT_NEAR(static_cast<double>(data.train.tokens()), 900'000, 40'000) << "a stretch has 15,625";
    EXPECT_NEAR(static_cast<double>(data.val.tokens()), 100'000, 16'000);
    const auto bytes_of = [](const WordCounts& counts) {
        int64_t bytes = 0;
        counts.each([&](std::string_view word, int64_t count) { bytes += count * std::ssize(word); });
        return bytes;
    };
    for (const bool superwords : {false, true}) {
        const TextCounts counted = count_training_text(part(1'000'000), "", tokenizer->added(), superwords);
        EXPECT_EQ(bytes_of(counted.words), data.train.tokens()) << "a tokenizer is learned from the same part";
        EXPECT_EQ(bytes_of(counted.lines), superwords ? data.train.tokens() : 0);
    }
    const TextCounts all = count_training_text(path("long.txt"), "", tokenizer->added(), true);
    EXPECT_EQ(bytes_of(all.words), open_datasets(path("long.txt"), "", *tokenizer, path("cache")).train.tokens());
    EXPECT_NEAR(static_cast<double>(bytes_of(all.lines)), 0.9 * 4e6, 3e5) << "lines teach enough in 4 MB";
    EXPECT_FALSE(open_datasets(part(1'000'000), "", *tokenizer, path("cache")).train.remade);
    EXPECT_EQ(open_datasets(part(100'000'000), "", *tokenizer, path("cache")).train.tokens(),
              open_datasets(path("long.txt"), "", *tokenizer, path("cache")).train.tokens())
        << "all, if there is no more";
    const Datasets with_val = open_datasets(part(1'000'000), path("long.txt"), *tokenizer, path("cache"));
    EXPECT_NEAR(static_cast<double>(with_val.train.tokens()), 1'000'000, 40'000);
    EXPECT_EQ(with_val.val.tokens(), std::ssize(text)) << "of --data, not of --val";
    write_shard(path("ids.bin"), {1, 2, 3});
    EXPECT_NE(error_of([&] {
                  open_datasets(DataNames({path("ids.bin")}, "text", 1'000'000), "", *tokenizer, path("cache"));
              }).find("--text-mb: "),
              std::string::npos);
}

TEST_F(DatasetTest, SpecialTokensAreCountedAndTheHeldOutPartDoesNotBeginWithinOne) {
    const auto tokenizer = with_added_tokens(directory);
    const std::string text = std::string(80, 'x') + "<|endoftext|><|endoftext|>" + std::string(4, 'x');  // 0.9: byte 99
    const Datasets sets = open_datasets(write("t.txt", text), "", *tokenizer, path("cache"));
    EXPECT_EQ(sets.train.tokens(), 81);
    EXPECT_EQ(sets.val.tokens(), 5);
    EXPECT_EQ(sets.train.special, (AddedTokens::Counts{{257, 2}}));
    EXPECT_TRUE(sets.val.special.empty()) << "counted with the rest of the text";
    EXPECT_EQ(tokenizer->added().note("t.txt", sets.train.special),
              "t.txt: 2 <|endoftext|> tokens; --no-special-tokens reads them as text");
    EXPECT_EQ(tokenizer->added().note("t.txt", {}), "");
}

TEST_F(DatasetTest, TokensMadeWithSpecialTokensAsTextAreOthers) {
    const auto recognised = with_added_tokens(directory), as_text = with_added_tokens(directory, true);
    const std::string text = write("t.txt", "a<|endoftext|>b");
    for (const auto& [tokenizer, tokens] :
         {std::pair(recognised, 3), std::pair(as_text, 15), std::pair(recognised, 3)}) {
        const Dataset data = open_dataset(text, *tokenizer, path("cache"));
        EXPECT_EQ(data.tokens(), tokens);
        EXPECT_EQ(data.special.size(), tokens == 3 ? 1u : 0u);
        EXPECT_TRUE(data.notes.empty());
    }
}

// A tokenizer whose ids need more than 16 bits.
class LargeIds : public Bytes {
public:
    LargeIds() : Bytes(100'000, "large ids") {}
    std::vector<int32_t> encode(std::string_view text) const override {
        std::vector<int32_t> ids = Bytes::encode(text);
        for (int32_t& id : ids) id += 99'000;
        return ids;
    }
};

TEST_F(DatasetTest, LargeVocabulariesHaveIdsOf32BitsInTheCache) {
    const std::string text = write("t.txt", "some text");
    const LargeIds tokenizer;
    for (int i = 0; i < 2; i++) {
        const Dataset data = open_dataset(text, tokenizer, path("cache"));
        ASSERT_EQ(data.shards.size(), 1u);
        EXPECT_EQ(ids_of(data.shards[0]), tokenizer.encode("some text"));
    }
    EXPECT_EQ(tokenizer.encoded_bytes, 3 * 9) << "the second time they are read from the cache";
    const auto several = tokenize_to_shards("some text", tokenizer, path("x.bin"), {.shard_tokens = 4});
    ASSERT_EQ(several.size(), 3u);
    EXPECT_EQ(ids_of(Shard(several[1].path)), tokenizer.encode(" tex"));
    EXPECT_EQ(ids_of(Shard(several[2].path)), tokenizer.encode("t"));
    const std::string error = error_of([&] { open_dataset(text, tokenizer, path("cache"), 99'100); });
    EXPECT_CONTAINS(error, "token 0: id 99115 (\"+\") is outside the model's vocabulary of 99100");
    open_dataset(text, Bytes(65536), path("cache"));
    EXPECT_EQ(fs::file_size(path("cache/data.bin")), 1024u + 2 * 9) << "ids that fit in 16 bits have 16";
}

TEST_F(DatasetTest, TooLittleTextNamesTheNumbers) {
    const Datasets sets = open_datasets(write("t.txt", "0123456789"), "", Bytes(), path("cache"));
    const std::string error = error_of([&] { BatchSampler(sets.train, 1, 9, 0); });
    EXPECT_CONTAINS(error,
                    "t.txt: tokens: found 9 (the last 1 of 10 are held out for validation, as no --val is "
                    "given), expected at least 10; use more text or a smaller --seq");
    EXPECT_NO_THROW(BatchSampler(sets.train, 1, 8, 0));
    EXPECT_CONTAINS(
        error_of([&] { WindowReader(sets.val, 8); }),
        "found 1 (the last 1 of 10 are held out for validation, as no --val is given), expected at least 2; "
        "use more text; or give --val");
    const Dataset empty = open_dataset(write("e.txt", ""), Bytes(), path("cache"));
    EXPECT_CONTAINS(error_of([&] { BatchSampler(empty, 1, 1, 0); }), "e.txt: tokens: found 0");
    EXPECT_CONTAINS(error_of([&] { WindowReader(empty, 1); }), "e.txt: tokens: found 0");
}

// Once the message did not mention the held-out part: it was "found 29" for a shard of 33.
TEST_F(DatasetTest, TooSmallAShardSaysThatATenthIsHeldOut) {
    const Datasets sets = open_datasets(shard("one.bin", 33), "", Bytes(65536), directory);
    EXPECT_CONTAINS(error_of([&] { BatchSampler(sets.train, 1, 32, 0); }),
                    "one.bin: tokens: found 29 (the last 4 of 33 are held out for validation, as no --val is given), "
                    "expected at least 33; use more text or a smaller --seq (a block is --seq 32 tokens and one more); "
                    "or give --val");
    shard("two.bin", 40);
    const Datasets several = open_datasets(path("*o*.bin"), "", Bytes(65536), directory);
    EXPECT_CONTAINS(error_of([&] { BatchSampler(several.train, 1, 33, 0); }), "the last 40 of 73 are held out");
    const Datasets given = open_datasets(path("one.bin"), path("two.bin"), Bytes(65536), directory);
    EXPECT_CONTAINS(error_of([&] { BatchSampler(given.train, 1, 33, 0); }), "one.bin: tokens: found 33, expected");
}

}  // namespace
