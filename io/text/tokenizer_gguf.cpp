// The tokenizer in a GGUF file: the tokens' texts and types, and the merges.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "io/file/error.h"
#include "io/file/gguf_file.h"
#include "io/file/gguf_writer.h"
#include "io/file/json.h"
#include "io/file/utf8.h"
#include "io/text/byte_symbols.h"
#include "io/text/tokenizer.h"
#include "io/model/llmc_files.h"
#include "io/text/superwords.h"
#include "io/text/tokenizer_files.h"

namespace {

// llama.cpp's token types. The text of a normal token is written in GPT-2's byte symbols, that of others as it is.
enum TokenType : int32_t { normal = 1, control = 3, user_defined = 4, unused = 5 };

// Bytes that UTF-8 never has. llama.cpp takes id 11 for the end of text unless a file names another, and older versions
// require merges. Where a tokenizer has neither, a file names the token of byte FF, and its merge with itself: a model
// of text does not write the byte, and llama.cpp, which replaces invalid UTF-8, does not find it in a prompt.
constexpr char no_byte[] = "\xFF";
std::string no_merge() { return to_symbols(no_byte) + " " + to_symbols(no_byte); }

constexpr const char* pre_tokenizer = "tokenizer.ggml.pre";
constexpr const char* superbpe = "superbpe";  // llama.cpp's name for SuperBPE's
bool has_superwords(const GgufFile& file) { return file.has(pre_tokenizer) && file.text(pre_tokenizer) == superbpe; }

std::string placeholder(int64_t id) { return "[PAD" + std::to_string(id) + "]"; }

int32_t id_of_no_byte(const std::vector<std::string>& tokens) { return find_byte_ids(tokens)[0xFF]; }

// Refuses added tokens that llama.cpp would find or print differently.
void check_added(const std::string& path, const Vocabulary& vocabulary, const AddedToken& token) {
    const std::string where = path + ": added token " + one_line(token.content);
    const char* const flag = token.single_word ? "single_word" : token.lstrip ? "lstrip" : token.rstrip ? "rstrip" : "";
    if (*flag)
        throw InputError(where + " has " + flag + ", for which GGUF has no field; set it to false in tokenizer.json");
    if (vocabulary.tokens[token.id] != token.content)
        throw InputError(where + " has the name of a token of other bytes, for which GGUF has no field; rename it");
}

const Vocabulary& require_vocabulary(const std::string& path, const Tokenizer& tokenizer, int64_t rows) {
    const Vocabulary* const vocabulary = tokenizer.vocabulary();
    if (!vocabulary)
        throw InputError(path +
                         ": llama.cpp needs a tokenizer, and the model has none; choose NAME.bin or a directory for "
                         "OUT, or put the tokenizer's files beside the model");
    if (const auto tokens = std::ssize(vocabulary->tokens); tokens > rows)
        throw InputError(path + ": the tokenizer has " + std::to_string(tokens) + " tokens and the model only " +
                         std::to_string(rows) +
                         " rows, which llama.cpp refuses; use the tokenizer that the model was trained with");
    return *vocabulary;
}

struct TokenTexts {
    std::vector<std::string_view> texts;
    std::vector<int64_t> types;
};

// The tokens as the file has them, without the placeholders at the end of a padded vocabulary.
TokenTexts read_token_texts(const GgufFile& file) {
    const char* const cutting = has_superwords(file) ? superbpe : "gpt-2";
    for (const auto& [key, expected] : {std::pair("tokenizer.ggml.model", "gpt2"), {pre_tokenizer, cutting}})
        if (!file.has(key) || file.text(key) != expected)
            bad_input(file.path(), key, file.has(key) ? one_line(file.text(key)) : "no value", one_line(expected),
                      "only byte-level BPE like GPT-2's is supported; name another tokenizer with --tokenizer");
    TokenTexts tokens{.texts = file.texts("tokenizer.ggml.tokens"), .types = {}};
    const size_t count = tokens.texts.size();
    if (count > GPT2Limits::vocab)
        bad_input(file.path(), "tokenizer.ggml.tokens", std::to_string(count) + " tokens",
                  "at most " + std::to_string(GPT2Limits::vocab), "use a GPT-2 model");
    tokens.types.assign(count, normal);
    if (file.has("tokenizer.ggml.token_type")) tokens.types = file.integers("tokenizer.ggml.token_type");
    if (tokens.types.size() != count)
        bad_input(file.path(), "tokenizer.ggml.token_type", std::to_string(tokens.types.size()) + " types",
                  std::to_string(count) + ", one for each token", "fetch or write the file again");
    while (!tokens.types.empty() && tokens.types.back() == unused) tokens.types.pop_back();
    tokens.texts.resize(tokens.types.size());
    return tokens;
}

}  // namespace

void add_gguf_tokenizer(GgufWriter& writer, const std::string& path, const Tokenizer& tokenizer, int64_t rows) {
    const Vocabulary& vocabulary = require_vocabulary(path, tokenizer, rows);
    std::vector<std::string> texts, merges;
    std::vector<int32_t> types, placeholders;
    std::unordered_set<std::string> different;
    std::unordered_map<int64_t, const AddedToken*> added_by_id;
    for (const AddedToken& token : vocabulary.added) added_by_id.emplace(token.id, &token);
    for (int64_t id = 0; id < rows; id++) {
        const auto found = added_by_id.find(id);
        const AddedToken* const added = found == added_by_id.end() ? nullptr : found->second;
        const bool exists = id < std::ssize(vocabulary.tokens);
        if (added) check_added(path, vocabulary, *added);
        if (!exists) placeholders.push_back(static_cast<int32_t>(id));
        types.push_back(!exists ? unused : !added ? normal : added->special ? control : user_defined);
        texts.push_back(!exists ? placeholder(id) : added ? added->content : to_symbols(vocabulary.tokens[id]));
        if (!different.insert(texts.back()).second)
            throw InputError(path + ": two tokens have the text " + one_line(texts.back()) +
                             ", which llama.cpp refuses; rename the added one");
    }
    for (const Merge& merge : vocabulary.merges)
        merges.push_back(to_symbols(vocabulary.tokens[merge.left]) + " " + to_symbols(vocabulary.tokens[merge.right]));
    if (merges.empty()) merges.push_back(no_merge());
    const bool ends = vocabulary.end_of_text >= 0;
    const auto end = static_cast<uint32_t>(ends ? vocabulary.end_of_text : id_of_no_byte(vocabulary.tokens));
    writer.add("tokenizer.ggml.model", std::string_view("gpt2"));
    writer.add(pre_tokenizer, std::string_view(vocabulary.superwords ? superbpe : "gpt-2"));
    writer.add("tokenizer.ggml.tokens", texts);
    writer.add("tokenizer.ggml.token_type", types);
    writer.add("tokenizer.ggml.merges", merges);
    writer.add("tokenizer.ggml.bos_token_id", end);
    writer.add("tokenizer.ggml.eos_token_id", end);
    // llama.cpp then never samples them, as this program does not.
    if (!placeholders.empty()) writer.add("tokenizer.ggml.suppress_tokens", placeholders);
}

Vocabulary read_gguf_tokenizer(const GgufFile& file) {
    const TokenTexts listed = read_token_texts(file);
    std::vector<std::string> tokens;
    std::vector<AddedToken> added;
    for (size_t id = 0; id < listed.texts.size(); id++) {
        const std::string text(listed.texts[id]);
        if (text.empty() || find_invalid_utf8(text) < text.size())
            bad_input(file.path(), "token " + std::to_string(id), one_line(text), "text in UTF-8",
                      "fetch or write the file again");
        const bool special = listed.types[id] == control, plain = special || listed.types[id] == user_defined;
        if (plain)
            added.push_back(
                {.id = static_cast<int32_t>(id), .content = text, .special = special, .normalized = !special});
        tokens.push_back(plain ? text : from_symbols(text).value_or(text));
    }
    auto lines = file.texts("tokenizer.ggml.merges");
    if (lines.size() == 1 && lines[0] == no_merge()) lines.clear();
    MergeList merges;
    for (const std::string_view line : lines)
        merges.push_back(parse_merge(file.path(), "merge " + std::to_string(merges.size() + 1), line));
    Vocabulary vocabulary = assemble_vocabulary(file.path(), std::move(tokens), merges, std::move(added));
    vocabulary.superwords = has_superwords(file);
    if (vocabulary.superwords) require_tokens_within_lines(file.path(), vocabulary.tokens);
    recognise_end_of_text(vocabulary);  // <|endoftext|>, whatever its type, as in llama.cpp
    if (file.has("tokenizer.ggml.eos_token_id")) {
        const int64_t last = std::ssize(vocabulary.tokens) - 1;
        const auto end = static_cast<int32_t>(file.integer("tokenizer.ggml.eos_token_id", 0, last));
        const bool none = end == id_of_no_byte(vocabulary.tokens) && listed.types[static_cast<size_t>(end)] == normal;
        vocabulary.end_of_text = none ? -1 : end;
    }
    return vocabulary;
}
