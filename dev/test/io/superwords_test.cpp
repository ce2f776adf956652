// Tokens that cross words (SuperBPE): what they are learned from, the ids of a text against the definition, and the
// files that hold them. Needs data/tinyshakespeare.txt (scripts/get_data.sh).
#include "io/text/superwords.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "dev/test/io/model_files.h"
#include "io/data/dataset.h"
#include "io/data/text_cache.h"
#include "io/file/gguf_file.h"
#include "io/file/gguf_writer.h"
#include "io/text/bpe_trainer.h"
#include "io/text/byte_symbols.h"
#include "io/text/tokenizer.h"
#include "io/text/tokenizer_files.h"

using nlohmann::json;

namespace {

using Superwords = ModelFiles;
using Strings = std::vector<std::string>;

// Pieces whose merges meet across words, and numbers of every kind.
const Strings pieces = {
    "the",
    " the",
    " of the",
    "'s",
    "'sword",
    "'tx",
    "tx",
    "''",
    "  ",
    "   ",
    " ",
    "\n",
    "\n\n",
    "\n   x",
    "\r\n",
    ", ",
    "]], [[",
    "--",
    "<id>",
    "1",
    "12",
    " 1234",
    "567",
    "a1",
    "\u0967\u0968\u0969\u0966",
    "\u00bd",
    "\u00b2",
    "\u2167",
    "\u00f2x",
    "\u00f2",
    "\u4e2d\u6587",
    "\u3002",
    "\U0001F642",
    "z\u00fcrich",
};

std::string odd_text(std::mt19937& random, size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += pieces[random() % pieces.size()];
    return text;
}

WordCounts count(std::string_view text, Pieces kind) {
    WordCounts counts;
    counts.add_pieces(std::vector<TextPiece>{{text, true}}, added_tokens_to_train(), kind);
    return counts;
}

Vocabulary learn(std::string_view text, int64_t size) {
    return train_superwords(count(text, Pieces::words_and_numbers), count(text, Pieces::lines_and_numbers), size);
}

Strings split(std::string_view text, Pieces kind) {
    Strings found;
    PreTokenizer(kind).split(text, [&](std::string_view piece, bool) { found.emplace_back(piece); });
    return found;
}

// Numbers apart and nothing else, from the other two ways to split: what all merges may cross.
Strings sections(std::string_view text) {
    Strings found = {""};
    bool after_number = false;
    PreTokenizer(Pieces::lines_and_numbers).split(text, [&](std::string_view piece, bool number) {
        if (number || after_number) found.emplace_back();
        found.back() += piece;
        after_number = number;
    });
    return found;
}

// The text's ids by the definition: all merges, by rank, in each section as a whole.
std::vector<int32_t> ids_by_definition(const Vocabulary& vocabulary, std::string_view text) {
    BytePairMerger merger(find_byte_ids(vocabulary.tokens));
    for (const Merge& merge : vocabulary.merges) merger.add(merge);
    std::vector<int32_t> ids;
    for (const std::string& section : sections(text)) merger.encode(section, ids);
    return ids;
}

TEST_F(Superwords, NumbersStandApartInGroupsOfThreeDigits) {
    const auto groups = [](std::string_view text) { return split(text, Pieces::lines_and_numbers); };
    EXPECT_EQ(groups("in 1234567, 12 or 123\n\n4"),
              (Strings{"in ", "1", "234", "567", ", ", "12", " or ", "123", "\n\n", "4"}));
    // Numerals that are no decimal digits end a run of them, and belong to the group before (SuperBPE's patterns in
    // Hugging Face's tokenizers give the same).
    EXPECT_EQ(groups("12\u00b2345\u00bd1"), (Strings{"12\u00b2", "345\u00bd1"}));
    EXPECT_EQ(groups("\u0967\u0968\u0969\u0966"), (Strings{"\u0967", "\u0968\u0969\u0966"}));
    EXPECT_EQ(groups("123456\u2167"), (Strings{"123", "456\u2167"}));
    EXPECT_EQ(split("it's 1234 a1  b\n c", Pieces::words_and_numbers),
              (Strings{"it", "'s", " ", "1", "234", " a", "1", " ", " b", "\n", " c"}));
    EXPECT_EQ(split("a\n\n\nb\n c", Pieces::lines_and_numbers), (Strings{"a\n\n\n", "b\n", " c"}));
    EXPECT_EQ(split(std::string(300'001, '7'), Pieces::words_and_numbers).size(), 100'001u);
}

TEST_F(Superwords, IdsAreThoseOfAllMerges) {
    std::mt19937 random(1);
    for (int trial = 0; trial < 20; ++trial) {
        const Vocabulary vocabulary = learn(odd_text(random, 2000), 300 + 30 * trial);
        const auto tokenizer = make_tokenizer(vocabulary, "superbpe", false);
        for (int i = 0; i < 20; ++i) {
            const std::string text = odd_text(random, 1 + random() % 200);
            ASSERT_EQ(tokenizer->encode(text), ids_by_definition(vocabulary, text)) << text;
            ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
        }
    }
}

// Bytes, and a token for each of these pairs of them.
Vocabulary pairs_of_bytes(const Strings& pairs) {
    Vocabulary vocabulary = train_byte_pairs(WordCounts(), 257);
    vocabulary.superwords = true;
    const auto ids = find_byte_ids(vocabulary.tokens);
    for (const std::string& pair : pairs) {
        vocabulary.merges.push_back({ids[static_cast<unsigned char>(pair[0])], ids[static_cast<unsigned char>(pair[1])],
                                     static_cast<int32_t>(vocabulary.tokens.size())});
        vocabulary.tokens.push_back(pair);
    }
    return vocabulary;
}

Strings tokens_of(const Vocabulary& vocabulary, std::string_view text) {
    Strings tokens;
    for (const int32_t id : make_tokenizer(vocabulary, "superbpe", false)->encode(text))
        tokens.push_back(vocabulary.tokens[static_cast<size_t>(id)]);
    return tokens;
}

// "'t" is a word of its own, but the merge of its letter with the next word's first is of lower rank.
TEST_F(Superwords, MergesGoByRankAndNotByWord) {
    EXPECT_EQ(tokens_of(pairs_of_bytes({"tx", "'t"}), "'tx"), (Strings{"'", "tx"}));
    EXPECT_EQ(tokens_of(pairs_of_bytes({"'t", "tx"}), "'tx"), (Strings{"'t", "x"}));
}

// "abcd" is made of "ab" and "cd" by an early merge, and of "a" and "bcd" by one after that across words. Then it can
// be merged with "e", which ranks before that. Tokenizers that this program did not learn may have such merges.
TEST_F(Superwords, AMergeAcrossWordsMayMakePossibleAnEarlierOne) {
    Vocabulary vocabulary = pairs_of_bytes({"bc", "ab", "cd"});
    const auto id = [&](std::string_view token) {
        return static_cast<int32_t>(std::ranges::find(vocabulary.tokens, token) - vocabulary.tokens.begin());
    };
    const auto add = [&](const std::string& left, const std::string& right) {
        if (id(left + right) == std::ssize(vocabulary.tokens)) vocabulary.tokens.push_back(left + right);
        vocabulary.merges.push_back({id(left), id(right), id(left + right)});
    };
    add("ab", "cd"), add("abcd", "e"), add("bc", "d"), add(".", " "), add("a", "bcd");
    EXPECT_EQ(tokens_of(vocabulary, "xabcde"), (Strings{"x", "abcde"}));
    EXPECT_EQ(make_tokenizer(vocabulary, "superbpe", false)->encode("xabcde"), ids_by_definition(vocabulary, "xabcde"));
}

TEST_F(Superwords, NothingIsMergedWithANumber) {
    EXPECT_EQ(tokens_of(pairs_of_bytes({"1t", "t1", "12"}), "t1t12"), (Strings{"t", "1", "t", "12"}));
}

// On text that is like what was learned, most merges across words apply, and long lines are merged in another way than
// short ones.
TEST_F(Superwords, IdsOfProseAreThoseOfAllMerges) {
    std::string text = read_bytes("data/tinyshakespeare.txt").substr(0, 300'000);
    const Vocabulary vocabulary = learn(text, 2048);
    const auto tokenizer = make_tokenizer(vocabulary, "superbpe", false);
    std::string one_line = text.substr(0, 20'000);
    std::ranges::replace(one_line, '\n', ' ');
    text += one_line;
    const std::vector<int32_t> ids = tokenizer->encode(text);
    EXPECT_EQ(ids, ids_by_definition(vocabulary, text));
    const auto crossing =
        std::ranges::count_if(ids, [&](int32_t id) { return !is_within_word(vocabulary.tokens[id]); });
    EXPECT_GT(crossing, std::ssize(ids) / 20);
}

TEST_F(Superwords, PiecesOfATextGiveTheTokensOfTheWhole) {
    std::mt19937 random(2);
    const auto tokenizer = make_tokenizer(learn(odd_text(random, 5000), 600), "superbpe", false);
    for (const int64_t size : {1, 10, 100}) {
        const std::string text = odd_text(random, 1000);
        std::vector<int32_t> joined;
        for (const WrittenFile& file : tokenize_to_shards(text, *tokenizer, at("t.bin"), {.chunk_bytes = size})) {
            const Shard shard(file.path);
            shard.copy(0, shard.size(), std::back_inserter(joined));
        }
        EXPECT_EQ(joined, tokenizer->encode(text));
    }
}

// Seven eighths as BPE learns them from the words; then the pair that is most frequent when the lines are encoded anew.
TEST_F(Superwords, TheLastEighthIsLearnedAcrossWords) {
    const std::string text = read_bytes("data/tinyshakespeare.txt").substr(0, 20'000);
    constexpr int64_t size = 400, within = size - size / 8;
    const Vocabulary vocabulary = learn(text, size);
    ASSERT_EQ(std::ssize(vocabulary.tokens), size);
    EXPECT_TRUE(vocabulary.superwords);
    const Vocabulary words = train_byte_pairs(count(text, Pieces::words_and_numbers), within);
    EXPECT_TRUE(std::equal(words.tokens.begin(), words.tokens.end(), vocabulary.tokens.begin()));
    BytePairMerger merger(find_byte_ids(vocabulary.tokens));
    for (int64_t rank = 0; rank < std::ssize(vocabulary.merges); ++rank) {
        const Merge& next = vocabulary.merges[static_cast<size_t>(rank)];
        if (rank >= std::ssize(words.merges)) {
            std::map<std::pair<int32_t, int32_t>, int64_t> counts;
            for (const std::string& line : split(text, Pieces::lines_and_numbers)) {
                std::vector<int32_t> ids;
                merger.encode(line, ids);
                for (size_t i = 0; i + 1 < ids.size(); ++i) ++counts[{ids[i], ids[i + 1]}];
            }
            const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
            ASSERT_EQ(most->first, std::pair(next.left, next.right)) << rank;
        }
        merger.add(next);
    }
}

// The words and lines come in another order then.
TEST_F(Superwords, LearnedTheSameByAnyNumberOfThreads) {
    const std::string text = read_bytes("data/tinyshakespeare.txt");
    std::vector<TextPiece> speeches;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find("\n\n", begin), text.size() - 2) + 2;
        speeches.push_back({std::string_view(text).substr(begin, end - begin), true});
        begin = end;
    }
    const int threads = omp_get_max_threads();
    std::vector<Strings> tokens;
    for (const int n : {1, 2, 5}) {
        omp_set_num_threads(n);
        WordCounts words, lines;
        words.add_pieces(speeches, added_tokens_to_train(), Pieces::words_and_numbers);
        lines.add_pieces(speeches, added_tokens_to_train(), Pieces::lines_and_numbers);
        tokens.push_back(train_superwords(words, lines, 1000).tokens);
    }
    omp_set_num_threads(threads);
    EXPECT_EQ(tokens[1], tokens[0]);
    EXPECT_EQ(tokens[2], tokens[0]);
}

TEST_F(Superwords, TokensAreOfOneLineAndNotTooLong) {
    const std::string line = "so long a line as this one, which comes again and again, must not become one token\n";
    std::string text;
    for (int i = 0; i < 50; ++i) text += line + "\n   and 12 more\n";
    const Vocabulary vocabulary = learn(text, 4000);
    EXPECT_LT(std::ssize(vocabulary.tokens), 4000) << "all that can be merged is merged";
    for (const std::string& token : vocabulary.tokens) {
        EXPECT_LE(token.size(), 64u);
        EXPECT_EQ(token.find("\n   and"), std::string::npos);
    }
    require_tokens_within_lines("learned", vocabulary.tokens);
    EXPECT_TRUE(std::ranges::any_of(vocabulary.tokens, [](const std::string& t) { return t.size() > 32; }));
    EXPECT_EQ(learn("", 1000).tokens.size(), 257u);
    EXPECT_EQ(learn("the the then", 259).tokens.size(), 259u);
}

TEST_F(Superwords, ItsFilesReadTheSame) {
    const std::string text = read_bytes("data/tinyshakespeare.txt").substr(0, 100'000);
    const Vocabulary vocabulary = learn(text, 600);
    const auto learned = make_tokenizer(vocabulary, "superbpe:600", false);
    const std::string mixed =
        text.substr(0, 5000) + "<|endoftext|>Z\u00fcrich 12345 \u4e2d\u6587\r\n" + std::string(300, 'a');
    const std::vector<int32_t> ids = learned->encode(mixed);
    write_bytes(at("one.json"), hugging_face_json(vocabulary));
    std::filesystem::create_directory(at("hf"));
    learned->save_hugging_face(at("hf"));
    EXPECT_FALSE(path_exists(at("hf/merges.txt"))) << "it would be read as GPT-2's";
    EXPECT_FALSE(path_exists(at("hf/vocab.json")));
    save_llmc_tokenizer(*learned, at("own.bin"));
    GgufWriter writer;
    writer.add("general.architecture", std::string_view("gpt2"));
    add_gguf_tokenizer(writer, "own.gguf", *learned, 600);
    writer.write(at("own.gguf"));
    EXPECT_EQ(GgufFile(at("own.gguf"), "gpt2").text("tokenizer.ggml.pre"), "superbpe") << "llama.cpp's name";
    for (const char* form : {"one.json", "hf", "own.bin", "own.gguf"}) {
        const auto read = load_tokenizer(at(form));
        EXPECT_EQ(read->encode(mixed), ids) << form;
        EXPECT_EQ(read->end_of_text(), 0) << form;
        EXPECT_TRUE(read->vocabulary()->superwords) << form;
    }
    const json config = json::parse(read_bytes(at("hf/tokenizer_config.json")));
    EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast") << "GPT2Tokenizer would cut the text into words";
}

TEST_F(Superwords, OtherPreTokenizersAndTokensOfSeveralLinesAreRefused) {
    const json good = json::parse(hugging_face_json(learn("the the then of the then", 280)));
    const auto refused = [&](const std::function<void(json&)>& spoil, const Strings& expected) {
        json file = good;
        spoil(file);
        write_bytes(at("bad.json"), file.dump());
        expect_refused([&] { load_tokenizer(at("bad.json")); }, expected);
    };
    const auto part = [](json& file, size_t i) -> json& { return file["pre_tokenizer"]["pretokenizers"][i]; };
    refused([&](json& f) { part(f, 0)["pattern"]["Regex"] = "\\d+"; }, {"type: found \"Sequence\""});
    refused([&](json& f) { part(f, 1)["behavior"] = "Removed"; }, {"type: found \"Sequence\""});
    refused([&](json& f) { part(f, 2)["use_regex"] = true; }, {"type: found \"Sequence\""});
    refused([&](json& f) { f["pre_tokenizer"]["pretokenizers"].erase(1); }, {"type: found \"Sequence\""});
    const auto add_lines = [&](json& f) {
        f["model"]["merges"].push_back(to_symbols("\n") + " x");
        f["model"]["vocab"][to_symbols("\nx")] = f["model"]["vocab"].size();
    };
    refused(add_lines, {"crosses words and lines", "superbpe:N"});
    json trimmed = good;
    part(trimmed, 2)["trim_offsets"] = true;
    write_bytes(at("trimmed.json"), trimmed.dump());
    EXPECT_TRUE(load_tokenizer(at("trimmed.json"))->vocabulary()->superwords);
}

TEST_F(Superwords, WordsAreToldFromTheTokensThatCrossThem) {
    for (const char* token :
         {" the", "the", "zAaZ", " ...", "'s", "\n  ", " ", "19", "\u0400x", "\u00f2x", " 12", "''"})
        EXPECT_TRUE(is_within_word(token)) << token;
    for (const char* token : {" of the", "the ", "a1", " 1a", "]] ", ", and", "x'", "<id"})
        EXPECT_FALSE(is_within_word(token)) << token;
}

}  // namespace
