// Hugging Face's tokenizer files, as far as they describe a byte-level BPE with GPT-2's pre-tokeniser.
#include <filesystem>
#include <set>

#include "io/byte_symbols.h"
#include "io/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/tokenizer_files.h"

using nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

constexpr char other_tokenizer[] = "only byte-level BPE as GPT-2's is supported";

const json& require(const std::string& path, const json& object, const char* key, json::value_t type,
                    const char* expected) {
    const auto it = object.find(key);
    if (it == object.end() || it->type() != type) {
        bad_input(path, key, it == object.end() ? "nothing" : json_text(*it), expected, "check which file this is");
    }
    return *it;
}

// Refuses any value but those that leave GPT-2's behaviour as it is: absent, null, false, "" or `allowed`.
void refuse_other(const std::string& path, const json& object, const char* key, const json& allowed = nullptr) {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null() || *it == json(false) || *it == json("") || *it == allowed) return;
    bad_input(path, key, json_text(*it), allowed.is_null() ? "null" : json_text(allowed), other_tokenizer);
}

void place_token(const std::string& path, std::vector<std::string>& tokens, const std::string& name, int64_t id,
                 std::string bytes) {
    if (bytes.empty() || !tokens[id].empty()) {
        bad_input(path, "token " + one_line(name), "id " + std::to_string(id) + (bytes.empty() ? "" : " again"),
                  bytes.empty() ? "a token that is not empty" : "an id for each token", "write the file again");
    }
    tokens[id] = std::move(bytes);
}

// The tokens by id. `added` is tokenizer.json's added_tokens: plain text, in or behind the vocabulary.
std::vector<std::string> read_tokens(const std::string& path, const json& vocab, const json& added) {
    std::vector<std::string> tokens(vocab.size());
    std::set<std::string> contents;  // of `added`
    for (const json& entry : added) {
        if (!entry.is_object()) bad_input(path, "added_tokens", json_text(entry), "objects", "write the file again");
        const json& content = require(path, entry, "content", json::value_t::string, "a string");
        const auto in_vocab = vocab.find(content.get<std::string>());
        const int64_t last = static_cast<int64_t>(tokens.size()) - (in_vocab == vocab.end() ? 0 : 1);
        const int64_t id = json_integer(path, entry, "id", 0, last);
        if (id == static_cast<int64_t>(tokens.size())) tokens.emplace_back();
        place_token(path, tokens, content, id, content);
        contents.insert(content);
    }
    for (const auto& [name, value] : vocab.items()) {
        // Naming the token for a message takes longer than all else here.
        const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < tokens.size();
        const int64_t id = fits ? value.get<int64_t>()
                                : json_integer(path, "token " + one_line(name), &value, 0, std::ssize(tokens) - 1);
        const auto bytes = from_symbols(name);
        const bool placed =
            !tokens[id].empty() && (bytes == tokens[id] || (tokens[id] == name && contents.contains(name)));
        if (!placed) place_token(path, tokens, name, id, bytes.value_or(name));
    }
    return tokens;
}

Vocabulary read_tokenizer_json(const std::string& path, const json& file) {
    const json& model = require(path, file, "model", json::value_t::object, "an object");
    refuse_other(path, file, "normalizer");
    refuse_other(path, model, "type", "BPE");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
        refuse_other(path, model, key);
    }
    const json& vocab = require(path, model, "vocab", json::value_t::object, "an object of token to id");
    const json& listed = require(path, model, "merges", json::value_t::array, "a list of merges");
    const json& cutting = require(path, file, "pre_tokenizer", json::value_t::object, "an object");
    refuse_other(path, cutting, "type", "ByteLevel");
    refuse_other(path, cutting, "add_prefix_space");
    if (cutting.value("use_regex", json(true)) != json(true) && !listed.empty()) {
        bad_input(path, "use_regex", json_text(cutting["use_regex"]), "true", other_tokenizer);
    }
    json added = json::array();
    if (file.contains("added_tokens")) {
        added = require(path, file, "added_tokens", json::value_t::array, "a list of tokens");
    }
    MergeList merges;
    for (const json& merge : listed) {
        const std::string field = "merge " + std::to_string(merges.size() + 1);
        if (merge.is_string()) {
            merges.push_back(parse_merge(path, field, merge.get_ref<const std::string&>()));
        } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
            merges.push_back(parse_merge(path, field, merge[0].get_ref<const std::string&>(),
                                         merge[1].get_ref<const std::string&>()));
        } else {
            bad_input(path, field, json_text(merge), "\"left right\" or [\"left\", \"right\"]", "write the file again");
        }
    }
    return assemble_vocabulary(path, read_tokens(path, vocab, added), merges);
}

// `beside` is tokenizer_config.json, which may ask for what we do not do, and names another end of text.
void apply_config(const std::string& beside, Vocabulary& vocabulary) {
    if (!path_exists(beside)) return;
    const json config = read_json_file(beside);
    refuse_other(beside, config, "add_prefix_space");
    if (vocabulary.end_of_text >= 0 || !config.contains("eos_token")) return;
    json name = config["eos_token"];
    if (name.is_object() && name.contains("content")) name = name["content"];
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
        if (name == vocabulary.tokens[id]) vocabulary.end_of_text = static_cast<int32_t>(id);
    }
}

}  // namespace

Vocabulary read_hugging_face_tokenizer(const std::string& path) {
    std::string file = path;
    if (is_directory(path)) {
        file = path + "/tokenizer.json";
        if (!path_exists(file)) file = path + "/vocab.json";
        if (!path_exists(file)) {
            bad_input(path, "tokenizer", "neither tokenizer.json nor vocab.json", "a Hugging Face tokenizer",
                      "pass a directory with one, or a merges file");
        }
    }
    const fs::path directory = fs::path(file).parent_path();
    const json top = read_json_file(file);
    Vocabulary vocabulary;
    if (top.contains("model") && !top["model"].is_number()) {  // in vocab.json it is a word like others
        vocabulary = read_tokenizer_json(file, top);
    } else {
        vocabulary = assemble_vocabulary(file, read_tokens(file, top, json::array()),
                                         read_merge_lines((directory / "merges.txt").string()));
    }
    apply_config((directory / "tokenizer_config.json").string(), vocabulary);
    return vocabulary;
}

void write_hugging_face_tokenizer(const Vocabulary& vocabulary, const std::string& directory) {
    const auto write_json = [&](const char* name, const ordered_json& value) {
        write_file_atomically(directory + "/" + name, value.dump(2) + "\n");
    };
    const auto is_end = [&](size_t id) { return static_cast<int32_t>(id) == vocabulary.end_of_text; };
    const std::string end = vocabulary.end_of_text >= 0 ? vocabulary.tokens[vocabulary.end_of_text] : "";
    ordered_json vocab = ordered_json::object();
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
        const std::string& token = vocabulary.tokens[id];
        vocab.get_ref<ordered_json::object_t&>().emplace_back(is_end(id) ? token : to_symbols(token), id);
    }
    std::string merge_lines = "#version: 0.2\n";
    ordered_json merges = ordered_json::array();
    for (const Merge& m : vocabulary.merges) {
        merges.push_back(to_symbols(vocabulary.tokens[m.left]) + " " + to_symbols(vocabulary.tokens[m.right]));
        merge_lines += merges.back().get_ref<const std::string&>() + "\n";
    }
    const bool words = !vocabulary.merges.empty();  // single bytes need no cutting into words
    ordered_json added = ordered_json::array();
    if (vocabulary.end_of_text >= 0) {
        added.push_back({{"id", vocabulary.end_of_text},
                         {"content", end},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
    }
    const ordered_json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", words}};
    write_json("vocab.json", vocab);
    write_file_atomically(directory + "/merges.txt", merge_lines);
    write_json("tokenizer.json", {{"version", "1.0"},
                                  {"truncation", nullptr},
                                  {"padding", nullptr},
                                  {"added_tokens", added},
                                  {"normalizer", nullptr},
                                  {"pre_tokenizer", byte_level},
                                  {"post_processor", byte_level},
                                  {"decoder", byte_level},
                                  {"model",
                                   {{"type", "BPE"},
                                    {"dropout", nullptr},
                                    {"unk_token", nullptr},
                                    {"continuing_subword_prefix", ""},
                                    {"end_of_word_suffix", ""},
                                    {"fuse_unk", false},
                                    {"byte_fallback", false},
                                    {"vocab", vocab},
                                    {"merges", merges}}}});
    // PreTrainedTokenizerFast takes tokenizer.json as it is; GPT2Tokenizer would add its own end of text.
    ordered_json config = {{"tokenizer_class", end == end_of_text_token ? "GPT2Tokenizer" : "PreTrainedTokenizerFast"},
                           {"add_prefix_space", false},
                           {"clean_up_tokenization_spaces", false}};
    if (!end.empty()) config.update({{"bos_token", end}, {"eos_token", end}, {"unk_token", end}});
    write_json("tokenizer_config.json", config);
}
