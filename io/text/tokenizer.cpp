#include "io/text/tokenizer.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "io/text/byte_pair.h"
#include "io/file/checksum.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/gguf_file.h"
#include "device/platform.h"
#include "io/text/bpe_trainer.h"
#include "io/file/utf8.h"
#include "io/text/pre_tokenizer.h"
#include "io/text/superwords.h"
#include "io/text/tokenizer_files.h"
#include "io/text/word_encoder.h"

namespace {

[[noreturn]] void bad_token_id(const Tokenizer& tokenizer, int32_t id) {
    bad_input(tokenizer.name() + " tokenizer", "token id", std::to_string(id),
              "0 to " + std::to_string(tokenizer.vocab() - 1), "use the tokenizer that the tokens were made with");
}

std::vector<std::string> byte_value_tokens() {
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
    return tokens;
}

// Writes the files that the tokenizer was read from, if it has kept them; otherwise makes new ones.
std::vector<WrittenFile> save_vocabulary(const Vocabulary& vocabulary, const std::string& directory) {
    if (vocabulary.files.empty()) return write_hugging_face_tokenizer(vocabulary, directory);
    std::vector<WrittenFile> written;
    for (const auto& [name, contents] : vocabulary.files)
        written.push_back(write_file_atomically(directory + "/" + name, contents));
    return written;
}

class ByteTokenizer : public Tokenizer {
public:
    explicit ByteTokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

    int64_t vocab() const override { return 256; }
    int32_t end_of_text() const override { return -1; }
    const std::string& name() const override { return name_; }
    const Vocabulary* vocabulary() const override { return &vocabulary_; }
    std::vector<int32_t> encode(std::string_view text) const override {
        return {reinterpret_cast<const unsigned char*>(text.data()),
                reinterpret_cast<const unsigned char*>(text.data()) + text.size()};
    }
    std::string_view token(int32_t id) const override {
        if (id < 0 || id >= 256) bad_token_id(*this, id);
        return vocabulary_.tokens[id];
    }
    std::vector<WrittenFile> save_hugging_face(const std::string& directory) const override {
        return save_vocabulary(vocabulary_, directory);
    }

private:
    const std::string name_ = "byte";
    const Vocabulary vocabulary_;
};

// Shows ids as numbers.
class NoTokenizer : public Tokenizer {
public:
    explicit NoTokenizer(int32_t end_of_text) : end_of_text_(end_of_text) {}
    int64_t vocab() const override { return 0; }
    int32_t end_of_text() const override { return end_of_text_; }
    const std::string& name() const override { return name_; }
    std::vector<int32_t> encode(std::string_view) const override {
        require_text(*this, "the input", "pass --tokenizer");
        return {};
    }
    std::string_view token(int32_t id) const override {
        const std::lock_guard lock(mutex_);
        return numbers_.try_emplace(id, std::to_string(id) + " ").first->second;
    }
    std::vector<WrittenFile> save_hugging_face(const std::string&) const override { return {}; }

private:
    const std::string name_ = "none";
    const int32_t end_of_text_;
    mutable std::mutex mutex_;
    mutable std::map<int32_t, std::string> numbers_;  // those that were asked for, where others' arrival leaves them
};

class BytePairTokenizer : public Tokenizer {
public:
    BytePairTokenizer(Vocabulary vocabulary, const std::string& name, bool special_as_text)
        : vocabulary_(std::move(vocabulary)),
          name_(name),
          added_(vocabulary_.added, special_as_text || vocabulary_.split_special_tokens),
          merger_(find_byte_ids(vocabulary_.tokens)),
          words_(vocabulary_, merger_,
                 vocabulary_.superwords ? first_across_words(vocabulary_) : BytePairMerger::all_merges) {
        for (const Merge& merge : vocabulary_.merges) merger_.add(merge);
        if (vocabulary_.superwords) superwords_.emplace(vocabulary_, words_);
    }

    int64_t vocab() const override { return static_cast<int64_t>(vocabulary_.tokens.size()); }
    int32_t end_of_text() const override { return vocabulary_.end_of_text; }
    const std::string& name() const override { return name_; }
    bool reads_utf8() const override { return true; }
    const AddedTokens& added() const override { return added_; }
    const Vocabulary* vocabulary() const override { return &vocabulary_; }

    std::vector<int32_t> encode(std::string_view text) const override {
        std::string replaced;
        if (find_invalid_utf8(text) < text.size()) text = replaced = replace_invalid_utf8(text);
        std::vector<int32_t> ids;
        ids.reserve(text.size() / 3);
        added_.split(
            text,
            [&](std::string_view part) {
                if (superwords_) {
                    superwords_->encode(part, ids);
                } else {
                    pre_tokenizer_.split(part, [&](std::string_view word, bool) { words_.encode(word, ids); });
                }
            },
            [&](int32_t id) { ids.push_back(id); });
        return ids;
    }

    std::string_view token(int32_t id) const override {
        if (id < 0 || id >= vocab()) bad_token_id(*this, id);
        return vocabulary_.tokens[id];
    }
    std::vector<WrittenFile> save_hugging_face(const std::string& directory) const override {
        return save_vocabulary(vocabulary_, directory);
    }

private:
    const Vocabulary vocabulary_;
    const std::string name_;
    const AddedTokens added_;
    BytePairMerger merger_;
    WordEncoder words_;
    PreTokenizer pre_tokenizer_;
    std::optional<SuperwordEncoder> superwords_;
};

// The path of vocab.bpe, in `directory` or in a directory of that name beside the program.
std::string find_gpt2_merges(const std::string& directory) {
    const std::string here = directory + "/vocab.bpe";
    const auto program = std::filesystem::path(platform::executable_path()).parent_path();
    const std::string beside = (program / here).string();
    return path_exists(here) || !path_exists(beside) ? here : beside;
}

// Identifies a vocabulary, independent of its file format. The sizes of the tokens mark their boundaries.
uint32_t fingerprint(const std::vector<std::string>& tokens) {
    uint32_t crc = 0;
    for (const std::string& token : tokens) crc = checksum(std::to_string(token.size()) + ":" + token, crc);
    return crc;
}

bool is_gpt2(const Vocabulary& vocabulary) {
    constexpr uint32_t gpt2_fingerprint = 0x6B127338;
    if (vocabulary.added.size() != 1 || fingerprint(vocabulary.tokens) != gpt2_fingerprint) return false;
    const AddedToken& end = vocabulary.added[0];
    return end.special && !end.single_word && !end.lstrip && !end.rstrip;
}

Vocabulary read_vocabulary(const std::string& path) {
    if (!path_exists(path)) {
        throw InputError(path +
                         ": No such file or directory; a tokenizer is byte, gpt2, none, a tokenizer file or a "
                         "directory that contains one");
    }
    if (is_directory(path) || path.ends_with(".json")) return read_hugging_face_tokenizer(path);
    if (path.ends_with(".bin")) return read_llmc_tokenizer(path);
    if (is_gguf(path)) return read_gguf_tokenizer(GgufFile(path, "gpt2"));
    return read_merges_file(path);
}

}  // namespace

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
    std::string text;
    for (const int32_t id : ids) text += token(id);
    return text;
}

const AddedTokens& Tokenizer::added() const {
    static const AddedTokens none;
    return none;
}

std::shared_ptr<const Tokenizer> no_tokenizer(int32_t end_of_text) {
    return std::make_shared<NoTokenizer>(end_of_text);
}

void require_text(const Tokenizer& tokenizer, const std::string& what, const std::string& remedy) {
    if (!tokenizer.reads_text())
        throw InputError(what + ": this is text, and there is no tokenizer to read it with; " + remedy);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec, const TokenizerSettings& settings) {
    if (spec == "byte") return std::make_shared<ByteTokenizer>(Vocabulary{.tokens = byte_value_tokens()});
    if (spec == "none") return no_tokenizer();
    if (trained_vocabulary_size(spec) > 0)
        throw InputError(spec +
                         ": is learned only when a new model is trained; learn a tokenizer with tokenize --train TEXT "
                         "--vocab N OUT.json (with --superwords for superbpe:N), and give OUT.json");
    const bool want_gpt2 = spec == "gpt2";
    const std::string path = want_gpt2 ? find_gpt2_merges(settings.data_directory) : spec;
    const std::string remedy = "run scripts/get_data.sh vocab.bpe";
    if (want_gpt2 && !path_exists(path)) {
        throw InputError(path + ": No such file or directory; it holds GPT-2's merges: " + remedy);
    }
    Vocabulary vocabulary = read_vocabulary(path);
    if (vocabulary.merges.empty() && vocabulary.added.empty() && vocabulary.tokens == byte_value_tokens())
        return std::make_shared<ByteTokenizer>(std::move(vocabulary));
    const bool gpt2 = is_gpt2(vocabulary);
    if (want_gpt2 && !gpt2) {
        throw InputError(path + ": its " + std::to_string(vocabulary.tokens.size()) +
                         " tokens are not GPT-2's 50257; " + remedy);
    }
    return std::make_shared<BytePairTokenizer>(std::move(vocabulary), gpt2 ? "gpt2" : spec, settings.special_as_text);
}

std::shared_ptr<const Tokenizer> make_tokenizer(Vocabulary vocabulary, const std::string& name, bool special_as_text) {
    return std::make_shared<BytePairTokenizer>(std::move(vocabulary), name, special_as_text);
}

void save_llmc_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
    std::vector<int32_t> header(256);
    header[0] = 20240328;
    header[1] = 2;
    header[2] = static_cast<int32_t>(tokenizer.vocab());
    header[3] = tokenizer.end_of_text();
    std::string bytes(reinterpret_cast<const char*>(header.data()), header.size() * sizeof header[0]);
    for (int32_t id = 0; id < header[2]; ++id) {
        const std::string_view token = tokenizer.token(id);
        if (token.size() > 255) {
            bad_input(path, "token " + std::to_string(id), std::to_string(token.size()) + " bytes",
                      "at most 255, the limit of llm.c's tokenizer file", "write another format");
        }
        bytes += static_cast<char>(token.size());
        bytes += token;
    }
    write_file_atomically(path, bytes);
}
