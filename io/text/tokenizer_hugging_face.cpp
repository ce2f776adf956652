// Hugging Face's tokenizer files, if they describe a byte-level BPE with GPT-2's pre-tokenizer or SuperBPE's.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "io/text/byte_symbols.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"
#include "io/text/superwords.h"
#include "io/text/tokenizer_files.h"

using nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

constexpr char other_tokenizer[] = "only byte-level BPE like GPT-2's is supported";

const json& require(const std::string& path, const json& object, const char* key, json::value_t type,
                    const char* expected) {
    const auto it = object.find(key);
    if (it == object.end() || it->type() != type) {
        bad_input(path, key, it == object.end() ? "no value" : json_text(*it), expected, "check which file this is");
    }
    return *it;
}

// Refuses any value that would change GPT-2's behaviour: accepted are absent, null, false, "" and `allowed`.
void refuse_other(const std::string& path, const json& object, const char* key, const json& allowed = nullptr) {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null() || *it == json(false) || *it == json("") || *it == allowed) return;
    bad_input(path, key, json_text(*it), allowed.is_null() ? "null" : json_text(allowed), other_tokenizer);
}

void place_token(const std::string& path, std::vector<std::string>& tokens, const std::string& name, int64_t id,
                 std::string bytes) {
    if (bytes.empty() || !tokens[id].empty()) {
        throw InputError(path + ": token " + one_line(name) +
                         (bytes.empty() ? " is empty" : ": id " + std::to_string(id) + " belongs to another token") +
                         "; write the file again");
    }
    tokens[id] = std::move(bytes);
}

bool flag(const std::string& path, const json& entry, const char* key, bool initial) {
    const auto it = entry.find(key);
    if (it == entry.end()) return initial;
    if (!it->is_boolean()) bad_input(path, key, json_text(*it), "true or false", "write the file again");
    return it->get<bool>();
}

// Tokens by id. The ids of `added` are in the vocabulary or follow it.
struct Tokens {
    std::vector<std::string> tokens;
    std::vector<AddedToken> added;
};

// The bytes of an added token whose content is also a key of the vocabulary: the content as plain text, unless the key
// is the symbol of a byte or the result of a merge.
std::string bytes_of_key(const std::string& content, const MergeList& merges) {
    const auto bytes = from_symbols(content);
    if (!bytes || *bytes == content) return content;
    const auto makes_it = [&](const auto& merge) { return merge.first + merge.second == *bytes; };
    return bytes->size() == 1 || std::ranges::any_of(merges, makes_it) ? *bytes : content;
}

// `entries` is tokenizer.json's added_tokens: plain text.
Tokens read_tokens(const std::string& path, const json& vocab, json entries, const MergeList& merges) {
    std::vector<std::string> tokens(vocab.size());
    std::vector<AddedToken> added;
    std::set<std::string> contents;  // of `added`
    for (const json& entry : entries)
        if (!entry.is_object()) bad_input(path, "added_tokens", json_text(entry), "objects", "write the file again");
    std::stable_sort(entries.begin(), entries.end(),
                     [](const json& a, const json& b) { return a.value("id", json()) < b.value("id", json()); });
    for (const json& entry : entries) {
        const std::string content = require(path, entry, "content", json::value_t::string, "a string");
        const auto in_vocab = vocab.find(content);
        const int64_t last = static_cast<int64_t>(tokens.size()) - (in_vocab == vocab.end() ? 0 : 1);
        const int64_t id = json_integer(path, entry, "id", 0, last);
        if (id == static_cast<int64_t>(tokens.size())) tokens.emplace_back();
        place_token(path, tokens, content, id, in_vocab == vocab.end() ? content : bytes_of_key(content, merges));
        contents.insert(content);
        const bool special = flag(path, entry, "special", false);
        added.push_back({.id = static_cast<int32_t>(id),
                         .content = content,
                         .special = special,
                         .single_word = flag(path, entry, "single_word", false),
                         .lstrip = flag(path, entry, "lstrip", false),
                         .rstrip = flag(path, entry, "rstrip", false),
                         .normalized = flag(path, entry, "normalized", !special)});
    }
    for (const auto& [name, value] : vocab.items()) {
        // The token's name for a message is made only when needed: it takes longer than everything else here.
        const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < tokens.size();
        const int64_t id = fits ? value.get<int64_t>()
                                : json_integer(path, "token " + one_line(name), &value, 0, std::ssize(tokens) - 1);
        const auto bytes = from_symbols(name);
        const bool placed =
            !tokens[id].empty() && (bytes == tokens[id] || (tokens[id] == name && contents.contains(name)));
        if (!placed) place_token(path, tokens, name, id, bytes.value_or(name));
    }
    return {std::move(tokens), std::move(added)};
}

// A token's text, from a string or from an object with that string as its content. "" if it is neither.
std::string content_of(const json& token) {
    const json& content = token.is_object() && token.contains("content") ? token["content"] : token;
    return content.is_string() ? content.get<std::string>() : "";
}

// The special tokens that tokenizer_config.json names (eos_token, pad_token, …), as JSON values from there.
std::vector<json> named_tokens(const json& config) {
    const std::vector<std::string> roles = {"bos_token", "eos_token", "unk_token", "sep_token",
                                            "pad_token", "cls_token", "mask_token"};
    std::vector<json> tokens;
    const auto take = [&](const json& token) {
        if (!content_of(token).empty()) tokens.push_back(token);
    };
    for (const std::string& role : roles) take(config.value(role, json()));
    for (const auto& [key, value] : config.items())
        if (key.ends_with("_token") && std::ranges::find(roles, key) == roles.end()) take(value);
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
        for (const json& token : config.value(key, json::array())) take(token);
    return tokens;
}

// Adds to tokenizer.json's added_tokens, or its equivalent, those that tokenizer_config.json describes or names, as
// transformers does when it opens a tokenizer. Those without an id get the next free one.
void complete_added_tokens(const std::string& path, const json& config, const json& vocab, json& added) {
    int64_t size = std::ssize(vocab);
    std::set<std::string> known;
    for (const json& entry : added) {
        const std::string content = content_of(entry);
        if (known.insert(content).second && !vocab.contains(content)) size++;
    }
    const auto add = [&](json entry) {
        const std::string content = content_of(entry);
        if (content.empty() || !known.insert(content).second) return;
        const auto in_vocab = vocab.find(content);
        entry["id"] = in_vocab != vocab.end() ? *in_vocab : json(size++);
        added.push_back(entry);
    };
    const json described = config.value("added_tokens_decoder", json::object());
    if (!described.is_object())
        bad_input(path, "added_tokens_decoder", json_text(described), "an object that maps ids to tokens",
                  "write the file again");
    std::map<int64_t, json> by_id;  // as numbers: "100" comes after "20"
    for (const auto& [id, token] : described.items()) {
        if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos)
            bad_input(path, "added_tokens_decoder", one_line(id), "a token id", "write the file again");
        if (token.is_object()) by_id[std::stoll(id)] = token;
    }
    for (const auto& [id, token] : by_id) add(token);
    for (const json& token : named_tokens(config)) {
        json entry = token.is_object() ? token : json{{"content", token}};
        entry["special"] = true;
        add(entry);
    }
}

// Without a tokenizer.json: reads added_tokens.json, which maps tokens to ids, as a list like tokenizer.json's.
// `config` tells which of them are special.
json read_added_tokens(const std::string& path, const json& config) {
    json added = json::array();
    if (config.contains("added_tokens_decoder") || !path_exists(path)) return added;
    std::map<std::string, json> special;
    for (const json& token : named_tokens(config)) special[content_of(token)] = token;
    const json ids = read_json_file(path);
    for (const auto& [content, id] : ids.items()) {
        const auto named = special.find(content);
        json entry = named != special.end() && named->second.is_object() ? named->second : json::object();
        json_integer(path, "token " + one_line(content), &id, 0, INT32_MAX);
        entry.update({{"content", content}, {"id", id}, {"special", named != special.end()}});
        added.push_back(entry);
    }
    return added;
}

ordered_json byte_level(bool words) {
    return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", words}};
}

// SuperBPE's, which isolates numbers, and then groups of three digits in them.
ordered_json superword_cutting() {
    const auto isolate = [](const char* regex) {
        return ordered_json{
            {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
    };
    return {{"type", "Sequence"},
            {"pretokenizers", {isolate("\\p{N}+"), isolate("(?=(\\d{3})+(?!\\d))"), byte_level(false)}}};
}

// Whether a pre-tokenizer is SuperBPE's. trim_offsets changes no ids.
bool is_superword_cutting(json cutting) {
    if (cutting.value("type", json()) != json("Sequence") || !cutting.contains("pretokenizers")) return false;
    for (json& part : cutting["pretokenizers"])
        if (part.is_object() && part.contains("trim_offsets")) part["trim_offsets"] = false;
    return cutting == json(superword_cutting());
}

Vocabulary read_tokenizer_json(const std::string& path, const json& file, const json& config) {
    const json& model = require(path, file, "model", json::value_t::object, "an object");
    refuse_other(path, file, "normalizer");
    refuse_other(path, model, "type", "BPE");
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
        refuse_other(path, model, key);
    }
    const json& vocab = require(path, model, "vocab", json::value_t::object, "an object that maps tokens to ids");
    const json& listed = require(path, model, "merges", json::value_t::array, "a list of merges");
    const json& cutting = require(path, file, "pre_tokenizer", json::value_t::object, "an object");
    const bool superwords = is_superword_cutting(cutting);
    if (!superwords) {
        refuse_other(path, cutting, "type", "ByteLevel");
        refuse_other(path, cutting, "add_prefix_space");
        if (cutting.value("use_regex", json(true)) != json(true) && !listed.empty())
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
    for (const json& entry : added)
        if (!entry.is_object()) bad_input(path, "added_tokens", json_text(entry), "objects", "write the file again");
    complete_added_tokens(path, config, vocab, added);
    Tokens tokens = read_tokens(path, vocab, added, merges);
    if (superwords) require_tokens_within_lines(path, tokens.tokens);
    Vocabulary vocabulary = assemble_vocabulary(path, std::move(tokens.tokens), merges, std::move(tokens.added));
    vocabulary.superwords = superwords;
    return vocabulary;
}

// Reads vocab.json with merges.txt and, if there is one, added_tokens.json beside it.
Vocabulary read_vocab_json(const std::string& path, const json& vocab, const json& config) {
    const fs::path directory = fs::path(path).parent_path();
    json added = read_added_tokens((directory / "added_tokens.json").string(), config);
    complete_added_tokens(path, config, vocab, added);
    const MergeList merges = read_merge_lines((directory / "merges.txt").string());
    Tokens tokens = read_tokens(path, vocab, added, merges);
    return assemble_vocabulary(path, std::move(tokens.tokens), merges, std::move(tokens.added));
}

// Reads tokenizer_config.json, and the names in special_tokens_map.json if only that file has them. Returns an empty
// object if there is neither.
json read_config(const fs::path& directory) {
    const auto read = [&](const char* name) {
        const std::string path = (directory / name).string();
        return path_exists(path) ? read_json_file(path) : json::object();
    };
    json config = read("tokenizer_config.json");
    refuse_other((directory / "tokenizer_config.json").string(), config, "add_prefix_space");
    if (!config.contains("added_tokens_decoder")) config.update(read("special_tokens_map.json"));
    return config;
}

std::string read_file(const std::string& path) {
    const MappedFile file(path);
    return {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size())};
}

std::string text_of(const ordered_json& value) { return value.dump(2) + "\n"; }

// The added tokens to write, end of text among them.
std::vector<AddedToken> listed_tokens(const Vocabulary& vocabulary) {
    std::vector<AddedToken> listed = vocabulary.added;
    if (const int32_t id = vocabulary.end_of_text; id >= 0 && !std::ranges::count(listed, id, &AddedToken::id))
        listed.push_back({.id = id, .content = vocabulary.tokens[id], .special = true});
    return listed;
}

// An object that maps tokens to ids.
ordered_json vocab_of(const Vocabulary& vocabulary) {
    std::map<size_t, std::string> plain;  // the added tokens' texts, which are not byte symbols
    for (const AddedToken& token : listed_tokens(vocabulary)) plain[token.id] = token.content;
    ordered_json vocab = ordered_json::object();
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
        const std::string& token = vocabulary.tokens[id];
        vocab.get_ref<ordered_json::object_t&>().emplace_back(plain.contains(id) ? plain[id] : to_symbols(token), id);
    }
    return vocab;
}

std::string merge_line(const Vocabulary& vocabulary, const Merge& merge) {
    return to_symbols(vocabulary.tokens[merge.left]) + " " + to_symbols(vocabulary.tokens[merge.right]);
}

}  // namespace

Vocabulary read_hugging_face_tokenizer(const std::string& path) {
    std::string file = path;
    if (is_directory(path)) {
        file = path + "/tokenizer.json";
        if (!path_exists(file)) file = path + "/vocab.json";
        if (!path_exists(file)) {
            throw InputError(path +
                             ": neither tokenizer.json nor vocab.json in it; pass a directory with one of them, or a "
                             "merges file");
        }
    }
    const fs::path directory = fs::path(file).parent_path();
    const json top = read_json_file(file), config = read_config(directory);
    const bool whole = top.contains("model") && !top["model"].is_number();  // in vocab.json it is a word like others
    Vocabulary vocabulary = whole ? read_tokenizer_json(file, top, config) : read_vocab_json(file, top, config);
    vocabulary.files[whole ? "tokenizer.json" : "vocab.json"] = read_file(file);
    std::vector<std::string> beside = {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"};
    if (!whole || is_directory(path)) beside.insert(beside.end(), {"vocab.json", "merges.txt", "added_tokens.json"});
    for (const std::string& name : beside)
        if (const std::string other = (directory / name).string();
            path_exists(other) && !vocabulary.files.contains(name))
            vocabulary.files[name] = read_file(other);

    const auto end =
        std::ranges::find(vocabulary.added, content_of(config.value("eos_token", json())), &AddedToken::content);
    if (vocabulary.end_of_text < 0 && end != vocabulary.added.end()) vocabulary.end_of_text = end->id;
    recognise_end_of_text(vocabulary);
    vocabulary.split_special_tokens = config.value("split_special_tokens", json()) == json(true);
    return vocabulary;
}

std::string hugging_face_json(const Vocabulary& vocabulary) {
    ordered_json merges = ordered_json::array();
    for (const Merge& merge : vocabulary.merges) merges.push_back(merge_line(vocabulary, merge));
    ordered_json added = ordered_json::array();
    for (const AddedToken& token : listed_tokens(vocabulary)) {
        added.push_back({{"id", token.id},
                         {"content", token.content},
                         {"single_word", token.single_word},
                         {"lstrip", token.lstrip},
                         {"rstrip", token.rstrip},
                         {"normalized", token.normalized},
                         {"special", token.special}});
    }
    const bool words = !vocabulary.merges.empty();  // single bytes need no cutting into words
    const ordered_json bytes = byte_level(words);
    return text_of({{"version", "1.0"},
                    {"truncation", nullptr},
                    {"padding", nullptr},
                    {"added_tokens", added},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", vocabulary.superwords ? superword_cutting() : bytes},
                    {"post_processor", bytes},
                    {"decoder", bytes},
                    {"model",
                     {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", ""},
                      {"end_of_word_suffix", ""},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", vocab_of(vocabulary)},
                      {"merges", merges}}}});
}

std::vector<WrittenFile> write_hugging_face_tokenizer(const Vocabulary& vocabulary, const std::string& directory) {
    std::vector<WrittenFile> files;
    const auto write = [&](const char* name, const std::string& text) {
        files.push_back(write_file_atomically(directory + "/" + name, text));
    };
    const std::string end = vocabulary.end_of_text >= 0 ? vocabulary.tokens[vocabulary.end_of_text] : "";
    std::string merge_lines = "#version: 0.2\n";
    for (const Merge& merge : vocabulary.merges) merge_lines += merge_line(vocabulary, merge) + "\n";
    if (!vocabulary.superwords) {  // these two would be read as GPT-2's
        write("vocab.json", text_of(vocab_of(vocabulary)));
        write("merges.txt", merge_lines);
    }
    write("tokenizer.json", hugging_face_json(vocabulary));
    // PreTrainedTokenizerFast takes tokenizer.json as it is; GPT2Tokenizer would add its own end of text.
    const bool gpt2 = end == end_of_text_token && !vocabulary.superwords;
    ordered_json config = {{"tokenizer_class", gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast"},
                           {"add_prefix_space", false},
                           {"clean_up_tokenization_spaces", false}};
    if (!end.empty()) config.update({{"bos_token", end}, {"eos_token", end}, {"unk_token", end}});
    write("tokenizer_config.json", text_of(config));
    return files;
}
