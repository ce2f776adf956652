// Every form of tokenizer file, read and written, and those that must be refused. Needs data/vocab.bpe.
#include "io/tokenizer_files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "dev/test/model_files.h"
#include "io/error.h"
#include "io/tokenizer.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using TokenizerFiles = ModelFiles;

const Tokenizer& gpt2() {
    static const auto tokenizer = load_tokenizer("gpt2");
    return *tokenizer;
}

// What a loaded tokenizer does, in one value.
std::vector<int32_t> behaviour(const Tokenizer& tokenizer) {
    std::vector<int32_t> ids = tokenizer.encode(
        "To be, or not to be: that's the question. Zürich 中文 🙂\n\n  x<|endoftext|>" + std::string(100, 'a'));
    ids.push_back(tokenizer.end_of_text());
    ids.push_back(static_cast<int32_t>(tokenizer.vocab()));
    return ids;
}

TEST_F(TokenizerFiles, EveryFormOfGpt2sFilesReadsTheSame) {
    fs::create_directory(at("hf"));
    gpt2().save_hugging_face(at("hf"));
    save_llmc_tokenizer(gpt2(), at("gpt2.bin"));
    const std::string merges = read_bytes("data/vocab.bpe");
    EXPECT_EQ(read_bytes(at("hf/merges.txt")), merges);
    write_bytes(at("plain.bpe"), merges.substr(merges.find('\n') + 1));
    std::string dos = merges;
    for (size_t i = 0; (i = dos.find('\n', i)) != std::string::npos; i += 2) dos.replace(i, 1, "\r\n");
    write_bytes(at("dos.bpe"), dos);
    fs::create_directory(at("old"));  // without tokenizer.json
    for (const char* name : {"vocab.json", "merges.txt"}) fs::copy_file(at("hf/") + name, at("old/") + name);
    fs::create_directory(at("pairs"));  // newer files: merges as pairs, not as lines
    json file = json::parse(read_bytes(at("hf/tokenizer.json")));
    for (json& merge : file["model"]["merges"]) {
        const std::string line = merge;
        merge = json::array({line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)});
    }
    write_bytes(at("pairs/tokenizer.json"), file.dump());
    for (const char* form : {"hf", "hf/tokenizer.json", "hf/vocab.json", "hf/merges.txt", "gpt2.bin", "plain.bpe",
                             "dos.bpe", "old", "pairs"}) {
        const auto tokenizer = load_tokenizer(at(form));
        EXPECT_EQ(tokenizer->name(), "gpt2") << form;
        EXPECT_EQ(behaviour(*tokenizer), behaviour(gpt2())) << form;
    }
}

TEST_F(TokenizerFiles, BytesComeBackAsBytes) {
    const auto bytes = load_tokenizer("byte");
    fs::create_directory(at("hf"));
    bytes->save_hugging_face(at("hf"));
    save_llmc_tokenizer(*bytes, at("byte.bin"));
    for (const std::string& spec : {std::string("byte"), at("hf"), at("hf/vocab.json"), at("byte.bin")}) {
        const auto tokenizer = load_tokenizer(spec);
        EXPECT_EQ(tokenizer->name(), "byte");
        EXPECT_EQ(tokenizer->vocab(), 256);
        EXPECT_EQ(tokenizer->end_of_text(), -1);
        EXPECT_EQ(tokenizer->encode(std::string("\0\377a", 3)), (std::vector<int32_t>{0, 255, 97}));
    }
}

TEST_F(TokenizerFiles, LlmcFileIsAsDocumented) {
    save_llmc_tokenizer(gpt2(), at("gpt2.bin"));
    const std::string bytes = read_bytes(at("gpt2.bin"));
    int32_t header[256];
    std::memcpy(header, bytes.data(), sizeof header);
    EXPECT_EQ(header[0], 20240328);
    EXPECT_EQ(header[1], 2);
    EXPECT_EQ(header[2], 50257);
    EXPECT_EQ(header[3], 50256);
    EXPECT_EQ(bytes.substr(1024, 4), std::string("\1!\1\""));
    EXPECT_EQ(bytes.substr(bytes.size() - 14), "\15<|endoftext|>");
}

// A small tokenizer.json: bytes at 1 … 256, <|endoftext|> at 0, then "ab", "abc" and a token with a space.
json small_tokenizer(const std::string& directory) {
    fs::create_directory(directory);
    load_tokenizer("byte")->save_hugging_face(directory);
    json file = json::parse(read_bytes(directory + "/tokenizer.json"));
    for (auto& [name, id] : file["model"]["vocab"].items()) id = id.get<int>() + 1;
    file["model"]["vocab"].update({{"<|endoftext|>", 0}, {"ab", 257}, {"abc", 258}});
    file["model"]["merges"] = {"a b", "ab c"};
    file["pre_tokenizer"]["use_regex"] = true;
    file["added_tokens"] = {{{"id", 0}, {"content", "<|endoftext|>"}}, {{"id", 259}, {"content", "two words"}}};
    return file;
}

TEST_F(TokenizerFiles, OtherVocabulariesKeepTheirIds) {
    write_bytes(at("small.json"), small_tokenizer(at("hf")).dump());
    const std::vector<int32_t> expected = {258, 257, 'x' + 1, ' ' + 1, 'c' + 1};
    const auto small = load_tokenizer(at("small.json"));
    EXPECT_EQ(small->name(), at("small.json"));
    EXPECT_EQ(small->encode("abcabx c"), expected);
    EXPECT_EQ(small->end_of_text(), 0);
    EXPECT_EQ(small->token(259), "two words");
    fs::create_directory(at("again"));
    small->save_hugging_face(at("again"));
    EXPECT_EQ(load_tokenizer(at("again"))->encode("abcabx c"), expected);
    EXPECT_EQ(load_tokenizer(at("again"))->end_of_text(), 0);
}

TEST_F(TokenizerFiles, BadMergesAreRefused) {
    const std::pair<std::string, const char*> cases[] = {
        {"", "merges: found none"},
        {"#version: 0.2\n", "merges: found none"},
        {"a b\nqq z\n", "merge 2: found the part \"qq\""},
        {"ab c\na b\n", "merge 1: found the part \"ab\""},
        {"a b\na b\n", "token 257: found \"ab\" again"},
        {"a b\nb c\na bc\nab c\n", "token 259: found \"abc\" again"},
        {"a b\n\nb c\n", "line 2"},
        {"ab\n", "line 1"},
        {"a b c\n", "line 1"},
        {"a \n", "line 1"},
        {" b\n", "line 1"},
        {"#version: 0.2\na b\n\xE4\xB8\xAD x\n", "line 3"},
        {"a \xC4", "line 1"},
        {std::string("a \0\n", 4), "line 1"},
    };
    for (const auto& [text, expected] : cases) {
        write_bytes(at("bad.bpe"), text);
        expect_refused([&] { load_tokenizer(at("bad.bpe")); }, {at("bad.bpe") + ": " + expected});
    }
}

TEST_F(TokenizerFiles, Gpt2NeedsItsOwnMerges) {
    expect_refused([&] { load_tokenizer("gpt2", root); },
                   {"vocab.bpe: GPT-2's merges: found no such file", "get_data.sh"});
    const std::string merges = read_bytes("data/vocab.bpe");
    write_bytes(at("vocab.bpe"), merges.substr(0, merges.rfind('\n', merges.size() / 2) + 1));
    expect_refused([&] { load_tokenizer("gpt2", root); }, {"not GPT-2's", "get_data.sh"});
}

TEST_F(TokenizerFiles, BadLlmcFilesAreRefused) {
    save_llmc_tokenizer(gpt2(), at("good.bin"));
    const std::string good = read_bytes(at("good.bin"));
    const auto with_word = [&](int index, int32_t value) {
        std::string bytes = good;
        std::memcpy(bytes.data() + 4 * index, &value, sizeof value);
        return bytes;
    };
    std::string empty_token = good, twice = good, unmergeable = good;
    empty_token[1024] = 0;
    twice[1027] = '!';
    unmergeable[1024 + 512 + 2] = '!';  // token 256, " t", becomes "! t" … of the same length
    const std::pair<std::string, const char*> cases[] = {
        {"", "size: found 0 bytes"},
        {good.substr(0, 1023), "size: found 1023 bytes"},
        {good.substr(0, 1024), "number of tokens: found 50257"},
        {good.substr(0, good.size() - 1), "token 50256: found the end of the file"},
        {good.substr(0, good.size() - 14), "token 50256: found the end of the file"},
        {good + "x", "size: found"},
        {with_word(0, 20240520), "magic number: found 20240520"},
        {with_word(1, 1), "version: found 1"},
        {with_word(2, -1), "number of tokens: found -1"},
        {with_word(2, 0), "number of tokens: found 0"},
        {with_word(2, 0x7FFFFFFF), "number of tokens: found 2147483647"},
        {with_word(2, 50256), "id of end-of-text: found 50256"},
        {with_word(3, -2), "id of end-of-text: found -2"},
        {empty_token, "token 0: found no bytes"},
        {twice, "token 1: found \"!\" again"},
        {unmergeable, "token "},
    };
    for (const auto& [bytes, expected] : cases) {
        write_bytes(at("bad.bin"), bytes);
        expect_refused([&] { load_tokenizer(at("bad.bin")); }, {at("bad.bin") + ": " + expected});
    }
}

TEST_F(TokenizerFiles, BadHuggingFaceFilesAreRefused) {
    const json good = small_tokenizer(at("hf"));
    const auto refused = [&](const std::function<void(json&)>& spoil, const char* expected) {
        json file = good;
        spoil(file);
        write_bytes(at("bad.json"), file.dump());
        expect_refused([&] { load_tokenizer(at("bad.json")); }, {at("bad.json") + ": " + expected});
    };
    refused([](json& f) { f["model"]["type"] = "Unigram"; }, "type: found \"Unigram\"");
    refused([](json& f) { f["model"].erase("vocab"); }, "vocab: found nothing");
    refused([](json& f) { f["model"]["vocab"] = 7; }, "vocab: found 7");
    refused([](json& f) { f["model"].erase("merges"); }, "merges: found nothing");
    refused([](json& f) { f["model"]["merges"].push_back(7); }, "merge 3: found 7");
    refused([](json& f) { f["model"]["merges"].push_back("x y"); }, "merge 3: found \"xy\"");
    refused([](json& f) { f["model"]["merges"].push_back("a b"); }, "merge 3: found \"ab\" again");
    refused([](json& f) { f["model"]["merges"] = {"ab c", "a b"}; }, "merge 1: found the part \"ab\"");
    refused([](json& f) { f["model"]["vocab"]["ab"] = -1; }, "token \"ab\": found -1");
    refused([](json& f) { f["model"]["vocab"]["ab"] = 1e300; }, "token \"ab\": found 1e+300");
    refused([](json& f) { f["model"]["vocab"]["ab"] = 300; }, "token \"ab\": found 300");
    refused([](json& f) { f["model"]["vocab"]["ab"] = 258; }, "token \"abc\": found id 258 again");
    refused([](json& f) { f["model"]["vocab"].erase("a"); }, "id: found 259");
    refused([](json& f) { f["model"]["vocab"].erase("a"), f["model"]["vocab"]["abcd"] = 98; },
            "tokens: found none for byte 97");
    refused([](json& f) { f["model"]["vocab"][""] = 259, f["added_tokens"][1]["id"] = 260; }, "token \"\"");
    refused([](json& f) { f["added_tokens"][1]["id"] = 400; }, "id: found 400");
    refused([](json& f) { f["pre_tokenizer"]["type"] = "Metaspace"; }, "type: found \"Metaspace\"");
    refused([](json& f) { f["pre_tokenizer"]["add_prefix_space"] = true; }, "add_prefix_space: found true");
    refused([](json& f) { f["pre_tokenizer"]["use_regex"] = false; }, "use_regex: found false");
    refused([](json& f) { f["normalizer"] = {{"type", "NFC"}}; }, "normalizer: found an object");
    write_bytes(at("bad.json"), good.dump().substr(0, 1000));
    EXPECT_THROW(load_tokenizer(at("bad.json")), InputError);
    write_bytes(at("bad.json"), "");
    EXPECT_THROW(load_tokenizer(at("bad.json")), InputError);
    fs::create_directory(at("empty"));
    EXPECT_THROW(load_tokenizer(at("empty")), InputError);
    EXPECT_THROW(load_tokenizer(at("none")), InputError);
    EXPECT_THROW(load_tokenizer(""), InputError);
}

TEST_F(TokenizerFiles, WhatCannotBeWrittenIsRefusedAndLeavesNothing) {
    std::string merges;
    for (std::string part = "a"; part.size() <= 128; part += part) merges += part + " " + part + "\n";
    write_bytes(at("long.bpe"), merges);
    const auto tokenizer = load_tokenizer(at("long.bpe"));
    EXPECT_EQ(tokenizer->encode(std::string(300, 'a')).front(), 256 + 7);
    expect_refused([&] { save_llmc_tokenizer(*tokenizer, at("long.bin")); }, {"found 256 bytes"});
    EXPECT_FALSE(fs::exists(at("long.bin")));
    EXPECT_THROW(save_llmc_tokenizer(gpt2(), at("none/x.bin")), InputError);
    EXPECT_THROW(gpt2().save_hugging_face(at("none")), InputError);
    save_llmc_tokenizer(gpt2(), at("x.bin"));
    EXPECT_EQ(std::distance(fs::directory_iterator(root), {}), 2);  // no temporary files beside the two
}

}  // namespace
