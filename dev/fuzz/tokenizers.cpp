// Merges (vocab.bpe, merges.txt), Hugging Face's tokenizer.json and vocab.json, and text through a tokenizer.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"
#include "io/data/dataset.h"
#include "io/file/error.h"
#include "io/file/utf8.h"
#include "io/data/text_cache.h"
#include "io/text/bpe_trainer.h"
#include "io/text/tokenizer.h"
#include "io/text/tokenizer_files.h"

namespace {

constexpr const char* merges =
    "#version: 0.2\n\xC4\xA0 t\nh e\n\xC4\xA0t he\ni n\nr e\no n\n\xC4\xA0 a\n\xC4\xA0the \xC4\xA0"
    "a\n\xC3\x83 \xC2\xA9\nl l\n";
constexpr const char* sample = "in the theatre, all 1234 caf\xC3\xA9s\n\n  one's   \xF0\x9F\x98\x80 \xFF end";

}  // namespace

// Uses only the merges: compiling the pre-tokenizer's regular expression takes longer than reading most files.
void use_vocabulary(const Vocabulary& vocabulary) {
    const auto size = static_cast<int64_t>(vocabulary.tokens.size());
    BytePairMerger merger(find_byte_ids(vocabulary.tokens));
    for (const Merge& merge : vocabulary.merges) merger.add(merge);
    std::vector<int32_t> ids;
    merger.encode(sample, ids);                                  // long
    merger.encode(std::string_view(sample).substr(0, 12), ids);  // short
    std::string text;
    for (const int32_t id : ids) {
        require(id >= 0 && id < size, "ids are in the vocabulary");
        text += vocabulary.tokens[static_cast<size_t>(id)];
    }
    require(text == sample + std::string(sample, 12), "text comes back");
    require(vocabulary.end_of_text >= -1 && vocabulary.end_of_text < size, "end of text is a token");
    const AddedTokens added(vocabulary.added);
    std::string named = sample;
    for (const AddedToken& token : added.list()) named += " " + token.content + "\n";
    size_t found = 0;
    added.split(
        named, [&](std::string_view part) { require(!part.empty(), "parts of the text are not empty"); },
        [&](int32_t id) {
            require(id >= 0 && id < size, "added tokens are in the vocabulary");
            found++;
        });
    const bool plain =
        std::ranges::none_of(added.list(), [](const AddedToken& t) { return t.single_word || t.lstrip; });
    require(added.list().empty() || !plain || found > 0, "added tokens are found");
}

namespace {

// Writes tokenizer.json, tokenizer_config.json, vocab.json and merges.txt into `directory`.
void write_directory(const std::string& directory, const std::string& merge_lines) {
    memory_files::put("vocab.bpe", merge_lines);
    load_tokenizer("vocab.bpe")->save_hugging_face(directory);
}

// The 256 entries of a vocabulary for bytes, each followed by a comma. They are inserted into inputs, which so stay
// short, but not into invalid JSON, where reading them would be wasted.
const std::string& byte_entries() {
    static const std::string entries = [] {
        write_directory("byte", "a b\n");
        const auto vocab = nlohmann::json::parse(memory_files::get("byte/vocab.json"));
        std::string text;
        for (const auto& [token, id] : vocab.items())
            if (id < 256) text += nlohmann::json(token).dump() + ":" + id.dump() + ",";
        return text;
    }();
    return entries;
}

void run_merges(std::string_view input) {
    memory_files::put("vocab.bpe", input);
    use_vocabulary(read_merges_file("vocab.bpe"));
}

std::vector<std::string> seeds_merges() { return {merges, "a b\nab c\r\nd e", "a  b\n"}; }

// tokenizer.json and tokenizer_config.json. The entries for bytes are inserted if "vocab" is an object.
void run_tokenizer_json(std::string_view input) {
    const auto files = split_files(input, 2);
    std::string file(files[0]);
    if (const size_t at = file.find("\"vocab\":{"); at != file.npos && nlohmann::json::accept(file))
        file.insert(at + 9, byte_entries());
    memory_files::put("d/tokenizer.json", file);
    if (files.size() > 1) memory_files::put("d/tokenizer_config.json", files[1]);
    use_vocabulary(read_hugging_face_tokenizer("d"));
}

std::vector<std::string> seeds_tokenizer_json() {
    const std::string cut = R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
    const std::string words = "{\"normalizer\":null," + cut +
                              R"(,"added_tokens":[{"id":258,"content":"<|endoftext|>","special":true}],)"
                              R"("model":{"type":"BPE","dropout":null,"continuing_subword_prefix":"",)"
                              R"("vocab":{"ab":256,"abc":257},"merges":["a b",["ab","c"]]}})";
    const std::string inside = "{" + cut + R"(,"added_tokens":[{"id":256,"content":"<s>"}],)" +
                               R"("model":{"vocab":{"<s>":256,"\u0120t":257},"merges":["\u0120 t"]}})";
    return {join_files({words, R"({"add_prefix_space":false,"eos_token":"<|endoftext|>"})"}),
            join_files({inside, R"({"eos_token":{"content":"<s>"},"pad_token":"<p>"})"}),
            join_files({words, R"({"added_tokens_decoder":{"259":{"content":"a b","lstrip":true}}})"}), words};
}

// vocab.json, merges.txt, tokenizer_config.json, added_tokens.json and special_tokens_map.json
void run_vocab_json(std::string_view input) {
    const auto files = split_files(input, 5);
    std::string vocab(files[0]);
    if (vocab.starts_with("{") && nlohmann::json::accept(vocab)) vocab.insert(1, byte_entries());
    memory_files::put("d/vocab.json", vocab);
    if (files.size() > 1) memory_files::put("d/merges.txt", files[1]);
    if (files.size() > 2) memory_files::put("d/tokenizer_config.json", files[2]);
    if (files.size() > 3) memory_files::put("d/added_tokens.json", files[3]);
    if (files.size() > 4) memory_files::put("d/special_tokens_map.json", files[4]);
    use_vocabulary(read_hugging_face_tokenizer("d"));
}

std::vector<std::string> seeds_vocab_json() {
    return {join_files({R"({"ab":256,"abc":257,"<|endoftext|>":258})", "#version: 0.2\na b\nab c\n"}),
            join_files({R"({"\u0120t":256,"model":257})", "\xC4\xA0 t\nm o", R"({"eos_token":"<s>"})"}),
            join_files({R"({"ab":256})", "a b", "{}", R"({"<p>":258,"my word":257})",
                        R"({"pad_token":{"content":"<p>","rstrip":true}})"})};
}

// The first byte is the size of the pieces in which the rest is tokenized; the tokens must be those of one piece.
void run_text(std::string_view input) {
    if (input.empty()) return;
    static const auto bpe = [] {
        memory_files::put("vocab.bpe", merges);
        return load_tokenizer("vocab.bpe");
    }();
    static const auto with_added = [] {  // tokens that include white space, and one with a line break
        memory_files::put("d/vocab.json", "{" + byte_entries() + "\"ab\":256}");
        memory_files::put("d/merges.txt", "a b");
        memory_files::put("d/tokenizer_config.json", R"({"added_tokens_decoder":{"257":{"content":"x\ny"},)"
                                                     R"("258":{"content":"<","lstrip":true,"rstrip":true},)"
                                                     R"("259":{"content":"e\n","single_word":true}}})");
        return load_tokenizer("d");
    }();
    static const auto superwords = [] {
        WordCounts words, lines;
        words.add_pieces(std::vector<TextPiece>{{sample, true}}, {}, Pieces::words_and_numbers);
        lines.add_pieces(std::vector<TextPiece>{{sample, true}}, {}, Pieces::lines_and_numbers);
        return make_tokenizer(train_superwords(words, lines, 290), "superwords", false);
    }();
    const std::string_view text = input.substr(1);
    static const auto bytes = load_tokenizer("byte");
    for (const auto& tokenizer : {bytes, bpe, with_added, superwords}) {
        const auto ids = tokenizer->encode(text);
        const bool byte = tokenizer->name() == "byte";
        require(tokenizer == with_added ||
                    tokenizer->decode(ids) == (byte ? std::string(text) : replace_invalid_utf8(text)),
                "text comes back");
        const int64_t piece = 1 + static_cast<unsigned char>(input[0]);
        std::vector<int32_t> joined;
        for (const WrittenFile& file : tokenize_to_shards(text, *tokenizer, "t.bin", {piece, 40 + piece})) {
            const Shard shard(file.path);
            shard.copy(0, shard.size(), std::back_inserter(joined));
        }
        require(joined == ids, "pieces give the tokens of the whole");
    }
}

std::vector<std::string> seeds_text() {
    const std::string s = sample;
    return {"\x10" + s + s, "\x03" + s, "\x01it's \r\n\r\n x\n y", std::string("\x02\0\n\xE2\x80\x83\nx", 8),
            "\x02x\ny\n<\n< e\nx <|endoftext|>\ne\n"};
}

}  // namespace

const FuzzTarget fuzz_merges{"merges", run_merges, seeds_merges};
const FuzzTarget fuzz_tokenizer_json{"tokenizer_json", run_tokenizer_json, seeds_tokenizer_json};
const FuzzTarget fuzz_vocab_json{"vocab_json", run_vocab_json, seeds_vocab_json};
const FuzzTarget fuzz_text{"text", run_text, seeds_text};
