// Data as people have them: texts and JSON lines, plain or compressed, alone, in directories, by patterns.
#include "io/text/documents.h"

#include <zlib.h>
#include <zstd.h>

#include <nlohmann/json.hpp>
#include <random>

#include "dev/test/io/dataset_files.h"
#include "io/data/text_cache.h"
#include "io/text/bpe_trainer.h"
#include "io/text/tokenizer_files.h"

namespace fs = std::filesystem;

namespace {

using Names = std::vector<std::string>;
using Ids = std::vector<int32_t>;

class Documents : public DatasetFiles {
protected:
    std::string gzipped(const std::string& bytes) const {
        const gzFile file = gzopen(path("packed").c_str(), "wb1");
        gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
        EXPECT_EQ(gzclose(file), Z_OK);
        return read_bytes(path("packed"));
    }
    static std::string zstd_of(const std::string& bytes) {
        std::string packed(ZSTD_compressBound(bytes.size()), '\0');
        packed.resize(ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), 1));
        return packed;
    }
    // The tokens of all shards, tokenized anew.
    Ids tokens(const DataNames& names, const Tokenizer& tokenizer) const {
        fs::remove_all(path("cache"));
        return ids_of(open_dataset(names, tokenizer, path("cache")));
    }
    static Ids ids_of(const Dataset& data) {
        Ids ids;
        for (const Shard& shard : data.shards) shard.copy(0, shard.size(), std::back_inserter(ids));
        return ids;
    }
    // A byte-level BPE of some merges and end-of-text.
    static std::shared_ptr<const Tokenizer> bpe() {
        WordCounts words;
        words.add_pieces(std::vector<TextPiece>{{"the then there line of lines", true}}, added_tokens_to_train());
        return make_tokenizer(train_byte_pairs(words, 265), "bpe", false);
    }
    static std::string json_line(const std::string& text, const std::string& field = "text") {
        return nlohmann::json{{"id", 7}, {field, text}, {"more", {{"text", "other"}}}}.dump() + "\n";
    }
    std::string refused(const DataNames& names) const {
        return error_of([&] { tokens(names, *load_tokenizer("byte")); });
    }
};

const Names texts = {"the first document\nof two lines", "", "then \"another\" \u00e9\u65e5\n\n", "and the last"};

TEST_F(Documents, ACompressedTextGivesTheTokensOfThePlainOne) {
    std::string text;
    for (int i = 0; i < 2000; i++) text += "line " + std::to_string(i) + " of the text\n";
    const std::string plain = write("x.txt", text), gz = write("x.txt.gz", gzipped(text)),
                      zst = write("x.txt.zst", zstd_of(text.substr(0, 9000)) + zstd_of(text.substr(9000)));
    for (const auto& tokenizer : {load_tokenizer("byte"), bpe()}) {
        const Ids expected = tokenizer->encode(text);
        EXPECT_EQ(tokens(plain, *tokenizer), expected) << "a single text is left as it is";
        EXPECT_EQ(tokens(gz, *tokenizer), expected);
        EXPECT_EQ(tokens(zst, *tokenizer), expected);
    }
}

TEST_F(Documents, LinesAndFilesGiveTheSameTokensWithEndOfTextBehindEach) {
    fs::create_directories(path("dir"));
    std::string lines, contents;
    for (size_t i = 0; i < texts.size(); i++) {
        write("dir/" + std::string(1, static_cast<char>('a' + i)) + ".txt", texts[i]);
        lines += (i == 2 ? "\r\n  \n" : "") + json_line(texts[i]);
        contents += json_line(texts[i], "content");
    }
    lines.pop_back();  // the last line need not end
    const std::string jsonl = write("x.jsonl", lines), packed = write("x.jsonl.gz", gzipped(lines)),
                      zst = write("x.jsonl.zst", zstd_of(lines)), other = write("y.jsonl", contents);
    for (const auto& tokenizer : {load_tokenizer("byte"), bpe()}) {
        Ids expected;
        for (const std::string& text : texts) {
            const Ids ids = tokenizer->encode(text),
                      end = tokenizer->end_of_text() >= 0 ? Ids{tokenizer->end_of_text()} : tokenizer->encode("\n");
            expected.insert(expected.end(), ids.begin(), ids.end());
            expected.insert(expected.end(), end.begin(), end.end());
        }
        const DataNames given({path("dir/a.txt"), path("dir/b.txt"), path("dir/[c-d].txt")}, "text");
        for (const DataNames& names : {DataNames(path("dir")), DataNames(path("dir/*.txt")), given, DataNames(jsonl),
                                       DataNames(packed), DataNames(zst), DataNames({other}, "content")})
            EXPECT_EQ(tokens(names, *tokenizer), expected) << names.text();
        Dataset data = open_dataset(DataNames({other}, "content"), *tokenizer, path("cache"));
        EXPECT_EQ(data.separators, tokenizer->end_of_text() >= 0 ? 4 : 0) << "recorded in the cache";
        EXPECT_TRUE(data.special.empty()) << "these tokens are not in the text by name";
    }
}

// Larger than the buffers for mapped files (16 MiB) and for unpacked bytes (4 MiB), also in one line, which cannot be
// cut.
TEST_F(Documents, TextsLargerThanTheBuffersAreReadInPieces) {
    std::mt19937 random(1);
    const std::string line(5 << 20, 'y');
    std::string text(17 << 20, 'x');
    for (size_t i = 0; i < text.size(); i += random() % 100) text[i] = "\n e"[random() % 3];
    const std::string packed = text.substr(0, 5 << 20) + "\n" + line;
    const auto expect_text = [&](const std::string& name, const std::string& expected, int64_t largest) {
        std::string all;
        read_documents(
            {.paths = {name}},
            [&](std::string_view piece, bool ends) {
                EXPECT_LE(std::ssize(piece), largest);
                all += piece;
                if (ends && is_json_lines(name)) all += '\n';
                return true;
            },
            "");
        EXPECT_TRUE(all == expected) << name;
        const Ids ids = tokens(name, *load_tokenizer("byte"));
        const auto* const bytes = reinterpret_cast<const uint8_t*>(all.data());
        EXPECT_TRUE(std::equal(ids.data(), ids.data() + ids.size(), bytes, bytes + all.size())) << name;
    };
    expect_text(write("x.txt", text), text, 16 << 20);
    expect_text(write("x.txt.gz", gzipped(packed)), packed, 4 << 20);
    expect_text(write("x.jsonl.zst", zstd_of(json_line(line) + json_line(packed) + json_line(""))),
                line + "\n" + packed + "\n\n", std::ssize(packed));
}

TEST_F(Documents, TheLastTenthOfSeveralFilesIsHeldOut) {
    fs::create_directories(path("dir"));
    for (int i = 0; i < 7; i++)
        write("dir/" + std::to_string(i) + ".txt",
              std::string(static_cast<size_t>(100 * (i + 1)), static_cast<char>('a' + i)));
    const auto tokenizer = bpe();
    const Datasets split = open_datasets(path("dir"), "", *tokenizer, path("split"));
    Ids joined = ids_of(split.train);
    const Ids val = ids_of(split.val);
    joined.insert(joined.end(), val.begin(), val.end());
    EXPECT_EQ(joined, tokens(path("dir"), *tokenizer));
    EXPECT_EQ(val.size(), 280u + 1) << "a tenth of 2800 bytes, and end-of-text behind the last file";
    EXPECT_EQ(split.train.separators, 6);
    EXPECT_EQ(split.val.separators, 1);
}

TEST_F(Documents, WhatCannotBeReadIsNamedByFileLineAndByte) {
    const std::string good = json_line("one") + json_line("two");
    const auto byte = [&](const std::string& rest) {
        return "x.jsonl: line 3, byte " + std::to_string(good.size()) + rest;
    };
    const auto lines = [&](const std::string& line) { return refused(write("x.jsonl", good + line + "\n" + good)); };
    EXPECT_CONTAINS(lines("{\"text\":\"thr"),
                    "x.jsonl: line 3, byte " + std::to_string(good.size() + 12) + ": invalid JSON: ");
    EXPECT_CONTAINS(lines("{\"text\":\"\xff\"}"),
                    "x.jsonl: line 3, byte " + std::to_string(good.size() + 9) + ": invalid JSON: ");
    EXPECT_CONTAINS(lines("{\"text\":\"a\xff\"}"), "ill-formed UTF-8");
    EXPECT_CONTAINS(lines("{\"text\":\"a\"} x"), "invalid JSON");
    EXPECT_CONTAINS(lines("{\"txt\":\"a\",\"id\":\"b\"}"),
                    byte(": \"text\" is missing, among \"id\", \"txt\"; name the member with the text by --field"));
    EXPECT_CONTAINS(lines("{\"a\":{\"text\":\"b\"}}"), byte(": \"text\" is missing"));
    EXPECT_CONTAINS(lines("{\"text\":7}"), byte(": \"text\" is a number, not a string"));
    EXPECT_CONTAINS(lines("{\"text\":null}"), byte(": \"text\" is null, not a string"));
    EXPECT_CONTAINS(lines("{\"text\":[\"a\"]}"), byte(": \"text\" is an array, not a string"));
    EXPECT_CONTAINS(lines("{\"text\":\"a\",\"text\":\"b\"}"), byte(": \"text\" appears twice"));
    EXPECT_CONTAINS(lines("[{\"text\":\"a\"}]"), byte(": not a JSON object"));
    EXPECT_CONTAINS(lines("\"text\""), byte(": not a JSON object"));
    EXPECT_CONTAINS(refused(write("y.jsonl.gz", gzipped(good + "{}"))), "y.jsonl.gz: line 3, byte ");

    std::string text;
    for (int i = 0; i < 5000; i++) text += "line " + std::to_string(i * 7919 % 5000) + "\n";
    const std::string gz = gzipped(text), zst = zstd_of(text);
    for (const auto& [name, packed] : {std::pair("x.txt.gz", gz), std::pair("x.txt.zst", zst)}) {
        const std::string half = std::to_string(packed.size() / 2),
                          error = refused(write(name, packed.substr(0, packed.size() / 2)));
        EXPECT_CONTAINS(error, "it is cut short (byte " + half + " of the file; of the text, after byte ");
        EXPECT_CONTAINS(error, ", line ");
        EXPECT_CONTAINS(error, "; copy or compress the file again");
        EXPECT_CONTAINS(refused(write(name, packed.substr(0, packed.size() - 1))), "it is cut short");
    }
    EXPECT_CONTAINS(refused(write("x.txt.zst", zst + "x")), "x.txt.zst: damaged zstd data: ");
    EXPECT_CONTAINS(refused(write("x.txt.zst", zstd_of("\xff\xfe wide"))), "this is UTF-16 text in zstd data");
}

TEST_F(Documents, DirectoriesAndPatternsWithoutTextsAreRefused) {
    fs::create_directories(path("empty"));
    fs::create_directories(path("dir/below"));
    EXPECT_CONTAINS(refused(path("empty")), "empty: no .txt or .jsonl in it, plain or .gz or .zst; ");
    EXPECT_CONTAINS(refused(path("none*.txt")), "none*.txt: no file matches this pattern");
    EXPECT_CONTAINS(refused(path("d*")), "matches directories only; end it with '/*'");
    write("dir/b.txt", "b"), write("dir/a.txt", "a"), write("dir/c.md", "c"), write("dir/.hidden.txt", "h");
    const Dataset data = open_dataset(path("dir"), *load_tokenizer("byte"), path("cache"));
    EXPECT_EQ(ids_of(data), (Ids{'a', '\n', 'b', '\n'})) << "in order of name";
    ASSERT_EQ(data.notes.size(), 1u);
    EXPECT_CONTAINS(data.notes[0], "dir: left out below and 1 more: only .txt and .jsonl");
    shard("dir/s.bin", 3), shard("t.bin", 3);
    EXPECT_CONTAINS(refused(path("dir")),
                    "dir: has 1 token shards in it; name them by a pattern in quotes: '" + path("dir/*.bin") + "'");
    EXPECT_CONTAINS(refused(DataNames({path("dir/a.txt"), path("t.bin")}, "text")),
                    "these are 2 files, of which 1 end in .bin; name token shards (.bin) alone, or texts alone");
    EXPECT_EQ(tokens(DataNames({path("t.bin"), path("dir/s.bin")}, "text"), Bytes(300)), (Ids{0, 1, 2, 0, 1, 2}));
}

TEST_F(Documents, AChangeOfAnyFileIsNoticed) {
    fs::create_directories(path("dir"));
    write("dir/a.txt", "aaa"), write("dir/b.txt", "bbb");
    const Bytes tokenizer;
    const auto encoded = [&](const std::string& expected) {
        const int64_t before = tokenizer.encoded_bytes;
        const Ids ids = ids_of(open_dataset(path("dir"), tokenizer, path("cache")));
        EXPECT_EQ(std::string(ids.begin(), ids.end()), expected);
        return tokenizer.encoded_bytes - before;
    };
    EXPECT_GT(encoded("aaa\nbbb\n"), 0);
    EXPECT_EQ(encoded("aaa\nbbb\n"), 0) << "tokenized once";
    write("dir/a.txt", "ccc");
    fs::last_write_time(path("dir/a.txt"), fs::last_write_time(path("dir/b.txt")) - std::chrono::seconds(9));
    EXPECT_GT(encoded("ccc\nbbb\n"), 0) << "of the same size, and older than the newest";
    write("dir/c.txt", "");
    EXPECT_GT(encoded("ccc\nbbb\n\n"), 0) << "a file more";
    fs::rename(path("dir/a.txt"), path("dir/z.txt"));
    EXPECT_GT(encoded("bbb\n\nccc\n"), 0) << "in another order";
    EXPECT_EQ(encoded("bbb\n\nccc\n"), 0);
    const std::string lines = write("x.jsonl", json_line("x") + "{\"text\":\"y\",\"body\":\"z\"}\n");
    EXPECT_EQ(tokens(lines, tokenizer), (Ids{'x', '\n', 'y', '\n'}));
    EXPECT_CONTAINS(error_of([&] { open_dataset(DataNames({lines}, "body"), tokenizer, path("cache")); }),
                    "line 1, byte 0: \"body\" is missing");
}

// The words that a tokenizer is learned from end where documents do, and are those of the training part.
TEST_F(Documents, ATokenizerIsLearnedFromTheTrainingPart) {
    const std::string lines = write("x.jsonl", json_line("one") + json_line("two") + json_line("x"));
    std::map<std::string, int64_t> counts;
    count_training_text(lines, "", added_tokens_to_train(), false)
        .words.each([&](std::string_view word, int64_t times) { counts[std::string(word)] += times; });
    EXPECT_EQ(counts, (std::map<std::string, int64_t>{{"one", 1}, {"two", 1}}));
}

}  // namespace
