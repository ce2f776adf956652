// Every kind of tokenizer file, read and written, and files that must be refused. Needs data/vocab.bpe.
#include "io/text/tokenizer_files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "dev/test/io/model_files.h"
#include "io/file/error.h"
#include "io/text/tokenizer.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using TokenizerFiles = ModelFiles;

const Tokenizer& gpt2() {
    static const auto tokenizer = load_tokenizer("gpt2");
    return *tokenizer;
}

// The behaviour of a loaded tokenizer as one value.
std::vector<int32_t> behaviour(const Tokenizer& tokenizer) {
    std::vector<int32_t> ids = tokenizer.encode(
        "To be, or not to be: that's the question. Zürich 中文 🙂\n\n  x<|endoftext|>" + std::string(100, 'a'));
    ids.push_back(tokenizer.end_of_text());
    ids.push_back(static_cast<int32_t>(tokenizer.vocab()));
    return ids;
}

// Shows bytes as they are, and other ids in brackets.
std::string show(const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids)
        text += id < 256 ? std::string(1, static_cast<char>(id)) : "[" + std::to_string(id) + "]";
    return text;
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

// An end-of-text token that is not UTF-8 is never found in a text, not even within a character's bytes.
TEST_F(TokenizerFiles, LlmcFilesNameTheirEndOfText) {
    save_llmc_tokenizer(*load_tokenizer("byte"), at("byte.bin"));
    const std::string bytes = read_bytes(at("byte.bin"));
    const int32_t count_and_end[] = {257, 256};
    for (const auto& [end, ids] : {std::pair("<e>", "a[256]"), std::pair("\xA9x", "a<e>")}) {
        std::string file = bytes + std::string(1, static_cast<char>(std::strlen(end))) + end;
        std::memcpy(file.data() + 8, count_and_end, sizeof count_and_end);
        write_bytes(at("end.bin"), file);
        const auto tokenizer = load_tokenizer(at("end.bin"));
        EXPECT_EQ(show(tokenizer->encode("a<e>")), ids);
        EXPECT_EQ(show(tokenizer->encode("\u00e9x")), "\u00e9x");
        EXPECT_EQ(tokenizer->end_of_text(), 256);
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

// A tokenizer.json of the 256 bytes and, from id 256 on, of added tokens: content and flags (special, word, lstrip,
// rstrip, normalized).
using Added = std::vector<std::pair<std::string, std::string>>;
json byte_level_with(const std::string& directory, const Added& added) {
    fs::create_directory(directory);
    load_tokenizer("byte")->save_hugging_face(directory);
    json file = json::parse(read_bytes(directory + "/tokenizer.json"));
    int next = 256;
    for (const auto& [content, flags] : added) {
        const auto has = [&flags = flags](char c) { return flags.find(c) != std::string::npos; };
        const json& vocab = file["model"]["vocab"];
        const json id = vocab.contains(content) ? vocab[content] : json(next++);
        file["added_tokens"].push_back({{"id", id},
                                        {"content", content},
                                        {"special", has('S')},
                                        {"single_word", has('w')},
                                        {"lstrip", has('l')},
                                        {"rstrip", has('r')},
                                        {"normalized", has('n')}});
    }
    return file;
}

// The ids are those of Hugging Face's tokenizers 0.23.
TEST_F(TokenizerFiles, AddedTokensAreFoundAsTheTokenizersLibraryFindsThem) {
    struct Case {
        Added added;
        std::string text, ids, with_special_as_text;
    };
    const std::vector<Case> cases = {
        {{{"<a>", "S"}, {"<a><b>", "S"}}, "x<a><a><b>y<b>", "x[256][257]y<b>", "x<a><a><b>y<b>"},
        {{{"ab", "n"}, {"<ab>", "S"}}, "ab<ab>cab", "[256][257]c[256]", "[256]<[256]>c[256]"},
        {{{"a", "n"}, {"bab", ""}}, "abab", "a[256]", "a[256]"},
        {{{"cat", "w"}},
         "cat concat cats cat_ cat. 1cat \u24b6cat cat\u0301 (cat)",
         "[256] concat cats cat_ [256]. 1cat \u24b6cat cat\u0301 ([256])",
         "[256] concat cats cat_ [256]. 1cat \u24b6cat cat\u0301 ([256])"},
        {{{"\u732b", "w"}}, "\u732b \u732b\u732b .\u732b", "[256] \u732b\u732b .[256]", "[256] \u732b\u732b .[256]"},
        {{{"<m>", "Sl"}}, "a  \n<m> b\u3000\u00a0<m><m>", "a[256] b[256][256]", "a  \n<m> b\u3000\u00a0<m><m>"},
        {{{"<m>", "Sr"}}, "a <m> \n b<m>\u3000\u2003c<m>", "a [256]b[256]c[256]", "a <m> \n b<m>\u3000\u2003c<m>"},
        {{{"<m>", "Slr"}, {" ", "n"}}, "a <m>  <m> b c", "a[256][256]b[257]c", "a[257]<m>[257][257]<m>[257]b[257]c"},
        {{{"<m>", "Sr"}, {" b", ""}}, "<m> b b", "[256][257][257]", "<m>[257][257]"},
        {{{"  ", "l"}, {"<m>", "Sr"}}, "<m>  x    y", "[257]x[256][256]y", "<m>[256]x[256][256]y"},
        {{{"my word", ""}, {"word", "w"}, {"\n", ""}},
         "my word\nword words my  word\n\n",
         "[256][258][257] words my  [257][258][258]",
         "[256][258][257] words my  [257][258][258]"},
        {{{"\u00e9", "n"}, {" hello", ""}}, "\u00e9 hello", "\351[256]", "\351[256]"},
        {{{"<u>", "S"}, {"<u>x", ""}, {"x", ""}}, "<u>x<u>y", "[257][256]y", "[257]<u>y"},
    };
    for (const Case& c : cases) {
        write_bytes(at("added.json"), byte_level_with(at("byte"), c.added).dump());
        EXPECT_EQ(show(load_tokenizer(at("added.json"))->encode(c.text)), c.ids) << c.text;
        EXPECT_EQ(show(load_tokenizer(at("added.json"), {.special_as_text = true})->encode(c.text)),
                  c.with_special_as_text)
            << c.text;
        fs::remove_all(at("byte"));
    }
}

const Added chat = {{"<|endoftext|>", "S"}, {"<|pad|>", "S"}, {"<|user|>", "S"}, {"my word", "n"}};

TEST_F(TokenizerFiles, HuggingFacesFilesComeBackAsTheyWere) {
    json file = byte_level_with(at("hf"), chat);
    file["padding"] = {{"strategy", "BatchLongest"}, {"pad_id", 257}, {"pad_token", "<|pad|>"}};
    for (const char* name : {"vocab.json", "merges.txt"}) fs::remove(at("hf/") + name);
    write_bytes(at("hf/tokenizer.json"), file.dump(1));
    write_bytes(at("hf/tokenizer_config.json"), R"({"pad_token": "<|pad|>", "model_max_length":1e30, "mine": [1,2]})");
    write_bytes(at("hf/special_tokens_map.json"), R"({"pad_token":{"content":"<|pad|>","lstrip":false}})");
    write_bytes(at("hf/chat_template.jinja"), "{{ messages }}");
    fs::create_directory(at("byte"));
    load_tokenizer("byte")->save_hugging_face(at("byte"));
    write_bytes(at("byte/tokenizer_config.json"), R"({"model_max_length": 77})");
    for (const std::string from : {"hf", "byte"}) {
        const auto tokenizer = load_tokenizer(at(from));
        fs::create_directory(at(from + "2"));
        tokenizer->save_hugging_face(at(from + "2"));
        EXPECT_EQ(listing(at(from + "2")), listing(at(from)));
        for (const std::string& name : listing(at(from)))
            EXPECT_EQ(read_bytes(at(from + "2/" + name)), read_bytes(at(from + "/" + name))) << name;
    }
    const auto tokenizer = load_tokenizer(at("hf2"));
    EXPECT_EQ(show(tokenizer->encode("<|user|>hi my word<|pad|>")), "[258]hi [259][257]");
    EXPECT_EQ(tokenizer->decode({258, 'h', 'i', ' ', 259, 257}), "<|user|>hi my word<|pad|>");
    EXPECT_EQ(tokenizer->end_of_text(), 256);
    fs::create_directory(at("one"));  // for a single file, only those that belong to it
    load_tokenizer(at("hf/tokenizer.json"))->save_hugging_face(at("one"));
    EXPECT_EQ(listing(at("one")), listing(at("hf")));
}

// vocab.json, merges.txt and the other files of transformers' slow tokenizers, older and newer ones.
TEST_F(TokenizerFiles, TheSlowTokenizersFilesOpen) {
    fs::create_directory(at("slow"));
    load_tokenizer("byte")->save_hugging_face(at("slow"));
    fs::remove(at("slow/tokenizer.json"));
    json vocab = json::parse(read_bytes(at("slow/vocab.json")));
    vocab.update({{"ab", 256}, {"<|endoftext|>", 257}});
    write_bytes(at("slow/vocab.json"), vocab.dump());
    write_bytes(at("slow/merges.txt"), "#version: 0.2\na b\n");
    const json added = {{"my word", 260}, {"<|pad|>", 258}, {"<|user|>", 259}};
    const json names = {{"eos_token", "<|endoftext|>"},
                        {"pad_token", {{"content", "<|pad|>"}, {"lstrip", true}}},
                        {"additional_special_tokens", {"<|user|>"}}};
    const auto entry = [](const char* content, bool special, bool lstrip) {
        return json{{"content", content}, {"special", special}, {"lstrip", lstrip}};
    };
    json config = names;
    config["added_tokens_decoder"] = {{"257", entry("<|endoftext|>", true, false)},
                                      {"258", entry("<|pad|>", true, true)},
                                      {"259", entry("<|user|>", true, false)},
                                      {"260", entry("my word", false, false)}};
    const std::string text = "<|user|>ab my word  <|pad|><|endoftext|>";
    for (const bool newer : {false, true}) {
        write_bytes(at("slow/added_tokens.json"), added.dump());
        write_bytes(at("slow/special_tokens_map.json"), names.dump());
        write_bytes(at("slow/tokenizer_config.json"), newer ? config.dump() : "{}");
        const auto tokenizer = load_tokenizer(at("slow"));
        EXPECT_EQ(tokenizer->vocab(), 261);
        EXPECT_EQ(tokenizer->end_of_text(), 257);
        EXPECT_EQ(show(tokenizer->encode(text)), "[259][256] [260][258][257]");
        EXPECT_EQ(show(load_tokenizer(at("slow"), {.special_as_text = true})->encode("<|user|>my word")),
                  "<|user|>[260]");
        fs::create_directory(at("again"));
        tokenizer->save_hugging_face(at("again"));
        EXPECT_EQ(listing(at("again")), listing(at("slow")));
        EXPECT_EQ(show(load_tokenizer(at("again"))->encode(text)), "[259][256] [260][258][257]");
        EXPECT_EQ(show(load_tokenizer(at("slow/vocab.json"))->encode(text)), "[259][256] [260][258][257]");
        fs::remove_all(at("again"));
    }
    write_bytes(at("slow/tokenizer_config.json"), "{}");
    write_bytes(at("slow/added_tokens.json"), R"({"<|pad|>":259})");
    expect_refused([&] { load_tokenizer(at("slow")); }, {"vocab.json: id: found 259"});
    write_bytes(at("slow/added_tokens.json"), R"({"<|pad|>":"x"})");
    expect_refused([&] { load_tokenizer(at("slow")); }, {"added_tokens.json: token \"<|pad|>\": found \"x\""});
    write_bytes(at("slow/tokenizer_config.json"), R"({"added_tokens_decoder":{"x":{"content":"<|pad|>"}}})");
    expect_refused([&] { load_tokenizer(at("slow")); }, {"added_tokens_decoder: found \"x\""});
}

// As transformers does when it opens such files.
TEST_F(TokenizerFiles, SpecialTokensThatOnlyTheConfigNamesAreAdded) {
    write_bytes(at("hf.json"), byte_level_with(at("hf"), {{"<|endoftext|>", "S"}}).dump());
    fs::rename(at("hf.json"), at("hf/tokenizer.json"));
    write_bytes(at("hf/tokenizer_config.json"),
                R"({"pad_token":"<|pad|>","add_bos_token":false,"image_token":"<i>",)"
                R"("additional_special_tokens":["<a>",{"content":"<b>","rstrip":true}],)"
                R"("eos_token":"<|endoftext|>","sep_token":null})");
    EXPECT_EQ(show(load_tokenizer(at("hf"))->encode("<|pad|> <i><a> <b> .<|endoftext|>")),
              "[257] [258][259] [260].[256]");
    write_bytes(at("hf/tokenizer_config.json"), R"({"split_special_tokens":true})");
    EXPECT_EQ(show(load_tokenizer(at("hf"))->encode("<|endoftext|>")), "<|endoftext|>");
}

TEST_F(TokenizerFiles, BadMergesAreRefused) {
    const std::pair<std::string, const char*> cases[] = {
        {"", "contains no merges"},
        {"#version: 0.2\n", "contains no merges"},
        {"a b\nqq z\n", "merge 2: found the part \"qq\""},
        {"ab c\na b\n", "merge 1: found the part \"ab\""},
        {"a b\na b\n", "token 257: \"ab\" is already token 256"},
        {"a b\nb c\na bc\nab c\n", "token 259: \"abc\" is already token 258"},
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
    expect_refused([&] { load_tokenizer("gpt2", {.data_directory = root}); },
                   {"vocab.bpe: No such file", "GPT-2's merges", "get_data.sh"});
    const std::string merges = read_bytes("data/vocab.bpe");
    write_bytes(at("vocab.bpe"), merges.substr(0, merges.rfind('\n', merges.size() / 2) + 1));
    expect_refused([&] { load_tokenizer("gpt2", {.data_directory = root}); }, {"not GPT-2's", "get_data.sh"});
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
        {empty_token, "token 0: found length 0"},
        {twice, "token 1: \"!\" is already token 0"},
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
    refused([](json& f) { f["model"].erase("vocab"); }, "vocab: found no value");
    refused([](json& f) { f["model"]["vocab"] = 7; }, "vocab: found 7");
    refused([](json& f) { f["model"].erase("merges"); }, "merges: found no value");
    refused([](json& f) { f["model"]["merges"].push_back(7); }, "merge 3: found 7");
    refused([](json& f) { f["model"]["merges"].push_back("x y"); }, "merge 3: \"xy\" is not in the vocabulary");
    refused([](json& f) { f["model"]["merges"].push_back("a b"); },
            "merge 3: \"ab\" results from an earlier merge too");
    refused([](json& f) { f["model"]["merges"] = {"ab c", "a b"}; }, "merge 1: found the part \"ab\"");
    refused([](json& f) { f["model"]["vocab"]["ab"] = -1; }, "token \"ab\": found -1");
    refused([](json& f) { f["model"]["vocab"]["ab"] = 1e300; }, "token \"ab\": found 1e+300");
    refused([](json& f) { f["model"]["vocab"]["ab"] = 300; }, "token \"ab\": found 300");
    refused([](json& f) { f["model"]["vocab"]["ab"] = 258; }, "token \"abc\": id 258 belongs to another token");
    refused([](json& f) { f["model"]["vocab"].erase("a"); }, "id: found 259");
    refused([](json& f) { f["model"]["vocab"].erase("a"), f["model"]["vocab"]["abcd"] = 98; }, "no token for byte 97");
    refused([](json& f) { f["model"]["vocab"][""] = 259, f["added_tokens"][1]["id"] = 260; }, "token \"\"");
    refused([](json& f) { f["added_tokens"][1]["id"] = 400; }, "id: found 400");
    refused([](json& f) { f["added_tokens"][1]["lstrip"] = 1; }, "lstrip: found 1");
    refused([](json& f) { f["added_tokens"][1] = 7; }, "added_tokens: found 7");
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
