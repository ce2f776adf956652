// The byte-level BPE that is learned from a text: against the merges of Hugging Face's tokenizers, against the
// definition, for any number of threads, and on texts that would take a simpler trainer hours. Needs
// data/tinyshakespeare.txt (scripts/get_data.sh).
#include "io/text/bpe_trainer.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "dev/test/io/model_files.h"
#include "io/file/error.h"
#include "io/text/byte_symbols.h"
#include "io/text/pre_tokenizer.h"
#include "io/text/tokenizer.h"
#include "io/text/tokenizer_files.h"

using nlohmann::json;

namespace {

using BpeTrainer = ModelFiles;
using Words = std::map<std::string, int64_t>;

WordCounts count(std::string_view text, bool special_as_text = false) {
    WordCounts words;
    words.add_pieces(std::vector<TextPiece>{{text, true}}, added_tokens_to_train(special_as_text));
    return words;
}

Words sorted(const WordCounts& counts) {
    Words words;
    counts.each([&](std::string_view word, int64_t times) { words[std::string(word)] += times; });
    return words;
}

WordCounts counts_of(const Words& words) {
    WordCounts counts;
    for (const auto& [word, times] : words) counts.add(word, times);
    return counts;
}

std::vector<std::string> merges_of(const Vocabulary& vocabulary) {
    std::vector<std::string> merges;
    for (const Merge& merge : vocabulary.merges)
        merges.push_back(to_symbols(vocabulary.tokens[merge.left]) + " " + to_symbols(vocabulary.tokens[merge.right]));
    return merges;
}

std::string from_hex(const std::string& hex) {
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
}

// Counts all pairs anew for each merge. Bytes have the ids that a new tokenizer gives them.
std::vector<std::string> merges_by_definition(const Words& words, int64_t size) {
    std::vector<std::string> tokens = {end_of_text_token};
    tokens.insert(tokens.end(), gpt2_byte_tokens().begin(), gpt2_byte_tokens().end());
    const auto byte_ids = find_byte_ids(tokens);
    std::vector<std::pair<std::vector<int32_t>, int64_t>> split;
    for (const auto& [word, times] : words) {
        split.push_back({{}, times});
        for (const char c : word) split.back().first.push_back(byte_ids[static_cast<unsigned char>(c)]);
    }
    std::vector<std::string> merges;
    while (std::ssize(tokens) < size) {
        std::map<std::pair<int32_t, int32_t>, int64_t> counts;  // in the order of the pairs
        for (const auto& [ids, times] : split)
            for (size_t i = 0; i + 1 < ids.size(); ++i) counts[{ids[i], ids[i + 1]}] += times;
        if (counts.empty()) break;
        const auto [left, right] =
            std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->first;
        merges.push_back(to_symbols(tokens[left]) + " " + to_symbols(tokens[right]));
        for (auto& [ids, times] : split)
            for (size_t i = 0; i + 1 < ids.size(); ++i)
                if (ids[i] == left && ids[i + 1] == right) {
                    ids[i] = static_cast<int32_t>(tokens.size());
                    ids.erase(ids.begin() + static_cast<ptrdiff_t>(i) + 1);
                }
        tokens.push_back(tokens[left] + tokens[right]);
    }
    return merges;
}

std::string random_letters(std::mt19937& random, size_t size, const std::string& letters) {
    std::string text;
    while (text.size() < size) text += letters[random() % letters.size()];
    return text;
}

TEST_F(BpeTrainer, LearnsTheMergesOfTheTokenizersLibrary) {
    const json golden = json::parse(read_bytes("dev/test/data/merges_golden.json"));
    ASSERT_EQ(golden["cases"].size(), 2u);
    for (const json& c : golden["cases"]) {
        const std::string text = c.contains("hex") ? from_hex(c["hex"]) : read_bytes(c["file"].get<std::string>());
        const std::vector<std::string> expected = c["merges"];
        const Vocabulary vocabulary = train_byte_pairs(count(text), c["vocab"]);
        EXPECT_EQ(merges_of(vocabulary), expected);
        EXPECT_EQ(std::ssize(vocabulary.tokens), 257 + std::ssize(expected));
    }
}

// Short alphabets give many equal counts, and pairs that overlap themselves and each other.
TEST_F(BpeTrainer, MergesAsByDefinition) {
    std::mt19937 random(1);
    for (const std::string letters : {"a", "ab", "abc", "the \xC3\xA9"})
        for (int trial = 0; trial < 20; ++trial) {
            Words words;
            for (size_t i = 0; i < 1 + random() % 20; ++i)
                words[random_letters(random, 1 + random() % 40, letters)] += 1 + random() % 3;
            EXPECT_EQ(merges_of(train_byte_pairs(counts_of(words), 320)), merges_by_definition(words, 320));
        }
}

// The text is longer than the megabyte that a thread counts at a time.
TEST_F(BpeTrainer, SameForAnyNumberOfThreads) {
    const std::string part = read_bytes("data/tinyshakespeare.txt");
    std::string text = part, upper = part;
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    text += upper + part;
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const WordCounts words = count(text);
    const std::vector<std::string> merges = merges_of(train_byte_pairs(words, 1000));
    for (const int n : {2, 5}) {
        omp_set_num_threads(n);
        const WordCounts again = count(text);
        EXPECT_EQ(sorted(again), sorted(words)) << n;
        EXPECT_EQ(merges_of(train_byte_pairs(again, 1000)), merges) << n;
    }
    omp_set_num_threads(threads);
    WordCounts whole;
    PreTokenizer().split(text, [&](std::string_view word, bool) { whole.add(word); });
    EXPECT_EQ(sorted(words), sorted(whole)) << "no word is cut";
}

TEST_F(BpeTrainer, CountsTheWordsThatEncodingWillFind) {
    EXPECT_EQ(count("").size(), 0);
    EXPECT_EQ(sorted(count("it's 12\r\n\r\n  it")),
              (Words{{"it", 1}, {"'s", 1}, {" 12", 1}, {"\r\n\r\n ", 1}, {" it", 1}}));
    const std::string documents = "one<|endoftext|>one two";
    EXPECT_EQ(sorted(count(documents)), (Words{{"one", 2}, {" two", 1}}));
    EXPECT_EQ(sorted(count(documents, true)), (Words{{"one", 2}, {"<|", 1}, {"endoftext", 1}, {"|>", 1}, {" two", 1}}));
    EXPECT_EQ(sorted(count("a\xFF\xC3")), (Words{{"a", 1}, {"\xEF\xBF\xBD\xEF\xBF\xBD", 1}})) << "U+FFFD";
    WordCounts twice = count("one two");
    twice.add_pieces(std::vector<TextPiece>{{"two", true}}, added_tokens_to_train());
    EXPECT_EQ(sorted(twice), (Words{{"one", 1}, {" two", 1}, {"two", 1}}));
}

TEST_F(BpeTrainer, EndsWhereEveryWordIsOneToken) {
    EXPECT_EQ(train_byte_pairs(WordCounts(), 1000).tokens.size(), 257u);
    const Vocabulary vocabulary = train_byte_pairs(count("the the then"), 1000);
    EXPECT_EQ(merges_of(vocabulary), (std::vector<std::string>{"h e", "t he", "Ġ the", "Ġthe n"}));
    EXPECT_EQ(vocabulary.tokens[0], end_of_text_token);
    EXPECT_EQ(vocabulary.end_of_text, 0);
    EXPECT_EQ(std::ssize(train_byte_pairs(count("the the then"), 259).tokens), 259);
}

// A trainer that shifts a word for each merge takes minutes: tokenizers took 99 s for a third of the second one. These
// take a tenth of a second each; the limit leaves room for a busy machine and the sanitizers.
TEST_F(BpeTrainer, LongWordsTakeLinearTime) {
    std::mt19937 random(2);
    const auto start = std::chrono::steady_clock::now();
    for (const std::string& text : {std::string(1'000'000, 'a'), random_letters(random, 1'000'000, "ab")}) {
        const Vocabulary vocabulary = train_byte_pairs(count(text), 1024);
        EXPECT_LE(std::ssize(vocabulary.tokens), 1024);
        EXPECT_GT(vocabulary.tokens.back().size(), 8u);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    // 1,000,000 letters: powers of two up to 2^19, then the rest from the left, 2^19 + 2^18 + 2^17 + …
    EXPECT_EQ(train_byte_pairs(count(std::string(1'000'000, 'a')), 1024).tokens.back().size(), 1'000'000u);
}

TEST_F(BpeTrainer, ItsFilesReadTheSame) {
    const std::string text = read_bytes("data/tinyshakespeare.txt").substr(0, 100'000);
    const Vocabulary vocabulary = train_byte_pairs(count(text), 600);
    const auto learned = make_tokenizer(vocabulary, "bpe:600", false);
    EXPECT_EQ(learned->name(), "bpe:600");
    EXPECT_EQ(learned->vocab(), 600);
    const std::string mixed = text.substr(0, 5000) + "<|endoftext|>Zürich 中文 🙂\r\n" + std::string(300, 'a');
    const std::vector<int32_t> ids = learned->encode(mixed);
    EXPECT_EQ(learned->decode(ids), mixed);
    EXPECT_EQ(std::ranges::count(ids, 0), 1) << "end of text";
    write_bytes(at("one.json"), hugging_face_json(vocabulary));
    std::filesystem::create_directory(at("hf"));
    learned->save_hugging_face(at("hf"));
    save_llmc_tokenizer(*learned, at("own.bin"));
    for (const char* form : {"one.json", "hf", "hf/vocab.json", "own.bin"}) {
        const auto read = load_tokenizer(at(form));
        EXPECT_EQ(read->encode(mixed), ids) << form;
        EXPECT_EQ(read->end_of_text(), 0) << form;
        EXPECT_EQ(read->vocab(), 600) << form;
    }
}

TEST_F(BpeTrainer, SizesOnTheCommandLine) {
    EXPECT_EQ(trained_vocabulary_size("bpe:257"), 257);
    EXPECT_EQ(trained_vocabulary_size("bpe:1048576"), 1048576);
    EXPECT_EQ(trained_vocabulary_size("superbpe:300"), 300);
    EXPECT_TRUE(is_superword_spec("superbpe:300") && !is_superword_spec("bpe:300"));
    EXPECT_EQ(trained_vocabulary_size("byte"), 0);
    EXPECT_EQ(trained_vocabulary_size("./bpe:300"), 0);
    for (const char* spec : {"bpe:", "bpe:256", "superbpe:256", "bpe:1048577", "bpe:1e3", "bpe:-300", "bpe: 300",
                             "bpe:99999999999999999999"})
        expect_refused([&] { trained_vocabulary_size(spec); }, {"--tokenizer", spec, "257 to 1048576"});
    for (const char* spec : {"bpe:300", "superbpe:300"})
        expect_refused([&] { load_tokenizer(spec); }, {spec, "tokenize --train"});
}

}  // namespace
