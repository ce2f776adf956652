// Files of multiple-choice examples: both formats as they are published, and every way in which they can be wrong.
#include "io/data/choices.h"

#include <cstring>

#include "dev/test/io/model_files.h"

namespace {

// llm.c's file: a header, and for each example its values behind a beginning and a size in bytes.
std::string llmc_file(std::vector<int32_t> header, const std::vector<std::vector<uint16_t>>& examples) {
    header.resize(256);
    std::string file(reinterpret_cast<const char*>(header.data()), 1024);
    for (const std::vector<uint16_t>& values : examples) {
        std::vector<uint16_t> all{65535, static_cast<uint16_t>(2 * values.size() + 4)};
        all.insert(all.end(), values.begin(), values.end());
        file.append(reinterpret_cast<const char*>(all.data()), 2 * all.size());
    }
    return file;
}
// index, label, number of endings, then the context and each ending behind their lengths
const std::vector<uint16_t> first{0, 2, 4, 3, 10, 11, 12, 1, 20, 2, 21, 22, 1, 23, 1, 24};
const std::vector<uint16_t> second{1, 0, 4, 1, 13, 1, 25, 1, 26, 1, 27, 1, 28};
const std::vector<int32_t> header{20240522, 1, 2, 36};

const std::string hellaswag =
    R"({"ind": 24, "activity_label": "Roof", "ctx_a": "A man", "ctx_b": "he", "ctx": "A man. he", "split": "val", )"
    R"("label": 3, "endings": ["is.", "has", "rips", "starts"], "source_id": "activitynet~v_-JhWjGDPHMY"})";
const std::string lambada = R"({"text": "in my palm is a clear stone , and inside it is a small ivory statue"})";

class ChoicesFile : public ModelFiles {
protected:
    ExampleSet read(const std::string& bytes, const std::string& name = "e.jsonl", int64_t limit = 0) const {
        write_bytes(at(name), bytes);
        return read_examples(at(name), *bytes_, vocab, limit);
    }
    ExampleSet read_bin(const std::string& bytes, int64_t limit = 0) const { return read(bytes, "e.bin", limit); }
    void refuse(const std::string& bytes, std::vector<std::string> parts, const std::string& name = "e.jsonl") const {
        parts.push_back(name + ": ");
        parts.push_back("; ");
        SCOPED_TRACE(bytes.substr(0, 200));
        expect_refused([&] { read(bytes, name); }, parts);
    }
    void refuse_bin(const std::string& bytes, const std::vector<std::string>& parts) const {
        refuse(bytes, parts, "e.bin");
    }
    std::string text(const std::vector<int32_t>& ids) const { return bytes_->decode(ids); }
    int64_t vocab = 256;

private:
    std::shared_ptr<const Tokenizer> bytes_ = load_tokenizer("byte");
};

}  // namespace

TEST_F(ChoicesFile, HellaSwagAsPublished) {
    const ExampleSet set = read(hellaswag + "\r\n\n" + hellaswag);
    EXPECT_FALSE(set.last_word);
    ASSERT_EQ(set.examples.size(), 2u);
    for (const Example& example : set.examples) {
        EXPECT_EQ(text(example.context), "A man. he");
        ASSERT_EQ(example.endings.size(), 4u);
        EXPECT_EQ(text(example.endings[0]), " is.");
        EXPECT_EQ(text(example.endings[3]), " starts");
        EXPECT_EQ(example.label, 3);
    }
    EXPECT_EQ(read(R"({"ctx":"a","endings":["b","c"],"label":"1"})").examples[0].label, 1) << "as in some copies";
}

// The last word and the space before it, as lm-eval splits the text.
TEST_F(ChoicesFile, LambadaAsPublished) {
    const ExampleSet set = read(lambada + "\n" + R"({"text": "one\ntwo  three\n "})" + "\n");
    EXPECT_TRUE(set.last_word);
    ASSERT_EQ(set.examples.size(), 2u);
    EXPECT_EQ(text(set.examples[0].context), "in my palm is a clear stone , and inside it is a small ivory");
    ASSERT_EQ(set.examples[0].endings.size(), 1u);
    EXPECT_EQ(text(set.examples[0].endings[0]), " statue");
    EXPECT_EQ(set.examples[0].label, 0);
    EXPECT_EQ(text(set.examples[1].context), "one\ntwo ");
    EXPECT_EQ(text(set.examples[1].endings[0]), " three");
}

TEST_F(ChoicesFile, LlmcsBin) {
    const ExampleSet set = read_bin(llmc_file(header, {first, second}));
    EXPECT_FALSE(set.last_word);
    ASSERT_EQ(set.examples.size(), 2u);
    EXPECT_EQ(set.examples[0].label, 2);
    EXPECT_EQ(set.examples[0].context, (std::vector<int32_t>{10, 11, 12}));
    EXPECT_EQ(set.examples[0].endings, (std::vector<std::vector<int32_t>>{{20}, {21, 22}, {23}, {24}}));
    EXPECT_EQ(set.examples[1].context, std::vector<int32_t>{13});
    EXPECT_EQ(set.examples[1].endings, (std::vector<std::vector<int32_t>>{{25}, {26}, {27}, {28}}));
}

// What follows the limit is not read, so it may be damaged.
TEST_F(ChoicesFile, TheFirstExamplesAlone) {
    EXPECT_EQ(read(hellaswag + "\n" + hellaswag + "\nbad", "e.jsonl", 2).examples.size(), 2u);
    EXPECT_EQ(read(hellaswag, "e.jsonl", 9).examples.size(), 1u);
    EXPECT_EQ(read_bin(llmc_file(header, {first}), 1).examples.size(), 1u);
    EXPECT_EQ(read_bin(llmc_file(header, {first, second}), 9).examples.size(), 2u);
}

TEST_F(ChoicesFile, RefusesLines) {
    const std::string good = hellaswag + "\n";
    refuse("", {"no examples"});
    refuse("\n \r\n", {"no examples"});
    refuse(good + "{", {"line 2", "invalid JSON"});
    refuse(good + "[]", {"line 2", "an object"});
    refuse(good + R"({"ctx":"a\xff"})", {"line 2", "invalid JSON"});
    refuse(good + R"({"label":0,"label":0})", {"line 2", "twice"});
    refuse("{}", {"line 1", "\"ctx\" is missing", "HellaSwag", "LAMBADA"});
    refuse(good + lambada, {"line 2", "\"ctx\" is missing"});
    refuse(lambada + "\n" + good, {"line 2", "\"text\" is missing"});
    refuse(R"({"ctx":7,"endings":["a","b"],"label":0})", {"line 1", "ctx", "7", "a string"});
    refuse(R"({"ctx":"","endings":["a","b"],"label":0})", {"line 1", "the context is empty", "remove"});
    refuse(R"({"ctx":"a","label":0})", {"line 1", "\"endings\" is missing"});
    refuse(R"({"ctx":"a","endings":"b","label":0})", {"line 1", "endings", "\"b\"", "an array"});
    refuse(R"({"ctx":"a","endings":["b"],"label":0})", {"line 1", "endings", "2 to 64"});
    refuse(R"({"ctx":"a","endings":["b",null],"label":0})", {"line 1", "an ending", "null", "a string"});
    std::string many = "\"b\"";
    for (int i = 0; i < 64; ++i) many += ",\"b\"";
    refuse(R"({"ctx":"a","endings":[)" + many + R"(],"label":0})", {"line 1", "endings", "array of 65", "2 to 64"});
    refuse(R"({"ctx":"a","endings":["b","c"]})", {"line 1", "\"label\" is missing"});
    refuse(R"({"ctx":"a","endings":["b","c"],"label":""})", {"line 1", "\"label\" is empty", "validation set"});
    for (const char* label : {"2", "-1", "0.5", "\"2\"", "\"x\"", "\"-1\"", "\"001\"", "null", "1e99"})
        refuse(R"({"ctx":"a","endings":["b","c"],"label":)" + std::string(label) + "}", {"line 1", "label"});
    refuse(R"({"text":7})", {"line 1", "text", "7", "a string"});
    for (const char* word : {"", "word", " \\n", "word \\t"})
        refuse(R"({"text":")" + std::string(word) + "\"}", {"line 1", "no space before its last word"});
    refuse(R"({"text":" word"})", {"line 1", "the context is empty"});
    refuse(std::string("\xFF\xFE{\0", 4), {"UTF-16"});
    expect_refused([&] { read_examples(at("missing.jsonl"), *load_tokenizer("byte"), 256); }, {"missing", "No such"});
    write_bytes(at("e.jsonl"), good);
    expect_refused([&] { read_examples(at("e.jsonl"), *no_tokenizer(), 256); }, {"e.jsonl", "--tokenizer", ".bin"});
}

TEST_F(ChoicesFile, RefusesTokensThatTheModelLacks) {
    vocab = 28;
    refuse_bin(llmc_file(header, {first, second}),
               {"example 1", "token id 28 of ending 3", "outside the model's vocabulary of 28", "JSON lines"});
    vocab = 12;
    refuse_bin(llmc_file(header, {first, second}), {"example 0", "token id 12 of the context"});
    vocab = 'm';
    refuse(hellaswag, {"line 1", "token id 109 of the context", "vocabulary of 109", "--tokenizer"});
}

TEST_F(ChoicesFile, RefusesBins) {
    const auto with = [](size_t at, uint16_t value) {
        std::vector<uint16_t> values = first;
        values[at] = value;
        return llmc_file({20240522, 1, 1, 36}, {values});
    };
    refuse_bin("", {"size", "0 bytes", "1024"});
    refuse_bin(llmc_file({20240520, 1, 2, 36}, {first, second}),
               {"magic number", "20240520", "20240522", "JSON lines"});
    refuse_bin(llmc_file({20240522, 2, 2, 36}, {first, second}), {"version", "found 2"});
    for (const int32_t none : {0, -1}) refuse_bin(llmc_file({20240522, 1, none, 36}, {}), {"no examples"});
    refuse_bin(llmc_file({20240522, 1, INT32_MAX, 36}, {first, second}), {"example 2", "ends"});
    refuse_bin(llmc_file({20240522, 1, 1, 36}, {first, second}), {"30 bytes follow the 1 examples"});
    refuse_bin(llmc_file(header, {first, second}) + "x", {"size", "an even number"});
    refuse_bin(llmc_file({20240522, 1, 2, 34}, {first, second}), {"example 0", "size", "found 36", "up to 34"});
    refuse_bin(with(1, 4), {"example 0", "label", "found 4", "less than 4"});
    refuse_bin(with(2, 0), {"example 0", "number of endings", "found 0"});
    refuse_bin(with(2, 1), {"example 0", "number of endings", "found 1"});
    refuse_bin(with(2, 65535), {"example 0", "number of endings", "found 65535", "2 to 64"});
    refuse_bin(with(2, 3), {"example 0", "2 values too many"});
    refuse_bin(with(2, 5), {"example 0", "ends before the length of ending 4"});
    refuse_bin(with(3, 65535), {"example 0", "the context has 65535 tokens, but only 12 are left"});
    refuse_bin(with(7, 60000), {"example 0", "ending 0 has 60000 tokens"});
    refuse_bin(llmc_file({20240522, 1, 1, 36}, {{0, 0, 2, 0, 1, 5, 1, 6}}), {"example 0", "the context is empty"});
    refuse_bin(llmc_file({20240522, 1, 1, 36}, {{0, 0, 2, 1, 5, 1, 6, 0}}), {"example 0", "ending 1 is empty"});
    std::string other_begin = with(0, 0);
    other_begin[1024] = 0;
    refuse_bin(other_begin, {"example 0", "begin", "found 65280", "65535"});
    for (const int size : {0, 2, 35, 37, 38, 65535}) {
        std::string file = with(0, 0);
        std::memcpy(file.data() + 1026, &size, 2);
        refuse_bin(file, {"example 0", "size in bytes", std::to_string(size)});
    }
}

TEST_F(ChoicesFile, RefusesEveryPrefixOfABin) {
    const std::string whole = llmc_file(header, {first, second});
    for (size_t size = 0; size < whole.size(); size += size < 1000 ? 100 : 1) refuse_bin(whole.substr(0, size), {});
}
