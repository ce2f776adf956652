// Compares GPT-2's ids with tiktoken's, and byte pairs with their definition. Needs data/vocab.bpe
// (scripts/get_data.sh).
#include "io/text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "dev/test/io/model_files.h"
#include "io/text/byte_pair.h"
#include "io/file/error.h"
#include "io/file/utf8.h"
#include "io/text/hash_index.h"
#include "io/text/tokenizer_files.h"

using nlohmann::json;

namespace {

const Tokenizer& gpt2() {
    static const auto tokenizer = load_tokenizer("gpt2");
    return *tokenizer;
}

std::string from_hex(const std::string& hex) {
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
}

TEST(Tokenizer, HardCasesGetTiktokensIds) {
    const json golden = json::parse(read_bytes("dev/test/data/tokenizer_golden.json"));
    ASSERT_GT(golden["cases"].size(), 100u);
    const auto ordinary = load_tokenizer("gpt2", {.special_as_text = true});
    int with_special = 0;
    for (const json& c : golden["cases"]) {
        const std::string text = from_hex(c["hex"]);
        const std::vector<int32_t> ids = c["ids"], as_text = c.value("ordinary", c["ids"]);
        EXPECT_EQ(gpt2().encode(text), ids) << text;
        EXPECT_EQ(ordinary->encode(text), as_text) << text;
        with_special += ids != as_text;
    }
    EXPECT_GE(with_special, 5) << "texts with <|endoftext|>";
}

TEST(Tokenizer, VocabularyIsGpt2s) {
    EXPECT_EQ(gpt2().name(), "gpt2");
    EXPECT_EQ(gpt2().vocab(), 50257);
    EXPECT_EQ(gpt2().end_of_text(), 50256);
    EXPECT_EQ(gpt2().token(50256), "<|endoftext|>");
    EXPECT_EQ(gpt2().token(0), "!");
    EXPECT_EQ(gpt2().token(220), " ");
    EXPECT_EQ(gpt2().token(256), " t");
    EXPECT_EQ(gpt2().token(50255), " gazed");
    EXPECT_TRUE(gpt2().encode("").empty());
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreRefused) {
    for (const int32_t id : {-1, 50257, 1 << 30}) {
        expect_refused([&] { gpt2().token(id); }, {"gpt2 tokenizer: token id", "expected 0 to 50256"});
        EXPECT_THROW(gpt2().decode({1, id}), InputError);
    }
    EXPECT_THROW(load_tokenizer("byte")->token(256), InputError);
    EXPECT_THROW(load_tokenizer("byte")->token(-1), InputError);
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
    std::mt19937 rng(1);
    std::string text;
    for (int i = 0; i < 20000; ++i) {
        const char32_t limit[] = {0x80, 0x800, 0xD800, 0x10FFFF};
        const char32_t c = static_cast<char32_t>(rng()) % limit[rng() % 4];
        if (c >= 0xD800 && c < 0xE000) continue;
        const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (c >> shift & 0x3F)); };
        if (c < 0x80)
            text += static_cast<char>(c);
        else if (c < 0x800)
            text += static_cast<char>(0xC0 | c >> 6), tail(0);
        else if (c < 0x10000)
            text += static_cast<char>(0xE0 | c >> 12), tail(6), tail(0);
        else
            text += static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0);
    }
    EXPECT_EQ(gpt2().decode(gpt2().encode(text)), text);
    for (char& c : text) {
        if (rng() % 8 == 0) c = static_cast<char>(rng());
    }
    EXPECT_EQ(gpt2().decode(gpt2().encode(text)), replace_invalid_utf8(text));
    EXPECT_EQ(load_tokenizer("byte")->decode(load_tokenizer("byte")->encode(text)), text);
}

// The expected strings are Python's bytes.decode("utf-8", errors="replace"), with ? for U+FFFD.
TEST(Tokenizer, InvalidUtf8IsReplacedAsInPython) {
    const std::pair<const char*, const char*> cases[] = {
        {"61ff62", "a?b"},
        {"c080", "??"},
        {"c3", "?"},
        {"c328", "?("},
        {"e282", "?"},
        {"e28278", "?x"},
        {"e228a1", "?(?"},
        {"e08080", "???"},
        {"eda080", "???"},
        {"f09f9278", "?x"},
        {"f0808080", "????"},
        {"f4908080", "????"},
        {"f888808080", "?????"},
        {"616263646566677880", "abcdefgx?"},
        {"f09f92f09f92", "??"},
    };
    for (const auto& [hex, expected] : cases) {
        std::string marks;
        for (const char c : std::string(expected)) marks += c == '?' ? "\xEF\xBF\xBD" : std::string(1, c);
        EXPECT_EQ(replace_invalid_utf8(from_hex(hex)), marks) << hex;
    }
    EXPECT_EQ(replace_invalid_utf8("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"),
              "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF");
}

// tiktoken's rule: of all neighbours whose joined bytes are a token, those with the lowest id are merged, leftmost
// first.
std::vector<int32_t> merge_by_definition(const std::map<std::string, int32_t>& ids, const std::string& piece) {
    std::vector<std::string> parts;
    for (const char c : piece) parts.emplace_back(1, c);
    for (;;) {
        int32_t best = 50256;
        size_t where = 0;
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
            const auto it = ids.find(parts[i] + parts[i + 1]);
            if (it != ids.end() && it->second < best) best = it->second, where = i;
        }
        if (best == 50256) break;
        parts[where] += parts[where + 1];
        parts.erase(parts.begin() + where + 1);
    }
    std::vector<int32_t> out;
    for (const auto& part : parts) out.push_back(ids.at(part));
    return out;
}

TEST(Tokenizer, MergesAsByDefinitionShortAndLong) {
    const Vocabulary vocabulary = read_merges_file("data/vocab.bpe");
    BytePairMerger merger(find_byte_ids(vocabulary.tokens));
    for (const Merge& merge : vocabulary.merges) merger.add(merge);
    std::map<std::string, int32_t> ids;
    for (int32_t id = 0; id < 50257; ++id) ids[vocabulary.tokens[id]] = id;
    std::mt19937 rng(2);
    for (const int length : {1, 2, 3, 5, 8, 13, 31, 63, 64, 90, 150, 300, 511, 512, 513, 514, 600}) {
        for (const int letters : {1, 2, 4, 26}) {
            for (int repeat = 0; repeat < (length <= 300 ? 8 : 2); ++repeat) {
                std::string piece;
                while (std::ssize(piece) < length) {
                    piece += repeat % 2 ? vocabulary.tokens[rng() % 50256]
                                        : std::string(1, "eatonish rdlumpcfgwybvkxjqz"[rng() % letters]);
                }
                std::vector<int32_t> found;
                merger.encode(piece, found);
                EXPECT_EQ(found, merge_by_definition(ids, piece)) << piece;
            }
        }
    }
}

TEST(Tokenizer, TheFirstTokenOfAByteCounts) {
    const auto ids = find_byte_ids({"a", "ab", "b", "a", "b"});
    EXPECT_EQ(ids['a'], 0);
    EXPECT_EQ(ids['b'], 2);
    EXPECT_EQ(ids['c'], -1);
}

TEST(HashIndex, ThingsWithEqualHashesAreToldApart) {
    HashIndex index;
    std::vector<int> things;
    const auto find = [&](int thing) {
        return index.find(static_cast<uint32_t>(thing % 7), [&](uint32_t place) { return things[place] == thing; });
    };
    for (int i = 0; i < 5000; ++i) {
        ASSERT_EQ(find(3 * i), HashIndex::none);
        index.add(static_cast<uint32_t>(3 * i % 7));
        things.push_back(3 * i);
    }
    for (uint32_t i = 0; i < 5000; ++i) ASSERT_EQ(find(static_cast<int>(3 * i)), i);
    EXPECT_EQ(find(1), HashIndex::none);
}

// tiktoken looks up whole pieces first. This program relies on GPT-2's merges leading to the same token.
TEST(Tokenizer, EveryTokensBytesMergeIntoIt) {
    const Vocabulary vocabulary = read_merges_file("data/vocab.bpe");
    BytePairMerger merger(find_byte_ids(vocabulary.tokens));
    for (const Merge& merge : vocabulary.merges) merger.add(merge);
    for (int32_t id = 0; id < 50256; ++id) {
        std::vector<int32_t> found;
        merger.encode(vocabulary.tokens[id], found);
        ASSERT_EQ(found, std::vector<int32_t>{id});
    }
}

// A run of millions of letters or spaces is one piece. Quadratic time would be hours, and a limit would be an error.
TEST(Tokenizer, LongRunsTakeLinearTime) {
    const auto start = std::chrono::steady_clock::now();
    for (const std::string unit : {"a", " ", "\n", "=", "\xC3\xA9"}) {
        std::string run;
        for (int i = 0; i < 4'000'000; ++i) run += unit;
        EXPECT_EQ(gpt2().decode(gpt2().encode(run + "x")), run + "x");
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

}  // namespace
