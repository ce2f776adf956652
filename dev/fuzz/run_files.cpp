// The files that a run writes and reads again: log.jsonl, trainer_state.json and the token cache's record; and a
// model's config.json.
#include <nlohmann/json.hpp>
#include <sstream>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"
#include "io/model/checkpoint.h"
#include "program/info.h"
#include "io/data/dataset.h"
#include "io/file/error.h"
#include "io/model/hugging_face.h"
#include "io/file/json.h"
#include "program/log.h"
#include "program/options.h"
#include "io/model/safetensors.h"
#include "io/data/text_cache.h"
#include "io/text/text_file.h"

namespace {

void run_log(std::string_view input) {
    memory_files::put("log.jsonl", input);
    for (const LogEntry& entry : read_log("log.jsonl")) require(entry.step >= 0, "steps count from 0");
    std::ostringstream out;
    print_info("log.jsonl", out);
    require_printable(out.str(), true);
}

std::vector<std::string> seeds_log() {
    return {R"({"step":1,"split":"train","loss":4.5,"lr":1e-3,"grad_norm":1.5,"tokens_per_second":1e5,"seconds":0.1})"
            "\n"
            R"({"step":1,"split":"val","loss":null,"seconds":0.2})"
            "\n",
            R"({"step":18446744073709551615,"split":"val","loss":-0.0,"seconds":1})"
            "\n{\"st"};
}

// trainer_state.json, and its options as --resume reads them.
void run_trainer_state(std::string_view input) {
    static const Options fresh = [] {
        const char* words[] = {"train_gpt2", "--resume"};
        return parse_options(2, words);
    }();
    memory_files::put("c/trainer_state.json", input);
    const TrainerState state = read_trainer_state("c");
    require(state.step >= 0 && state.position >= 0, "counts are not negative");
    std::ostringstream out;
    print_info("c/trainer_state.json", out);
    require_printable(out.str(), true);
    Options options = fresh;
    options.fill_from_json(state.options);
    require(options.batch >= 1 && options.seq >= 1 && options.steps >= 1, "options keep to their ranges");
}

std::vector<std::string> seeds_trainer_state() {
    const char* words[] = {"train_gpt2"};
    const std::string rest = R"("position":7,"seconds":0.25,"best_val_loss":null,"files":{}})";
    return {R"({"step":3,"options":)" + parse_options(1, words).to_json() + "," + rest,
            R"({"step":3,"options":{"batch":8,"lr":0.001,"val":"","seq":64},)" + rest};
}

// config.json alone. There are no weights, so every config that is accepted ends with an error about them.
void run_config(std::string_view input) {
    memory_files::put("d/config.json", input);
    read_model_config("d");
}

std::vector<std::string> seeds_config() {
    return {R"({"model_type":"gpt2","n_positions":8,"vocab_size":5,"n_layer":2,"n_embd":4,"n_head":2,"n_inner":null,)"
            R"("activation_function":"gelu_new","layer_norm_epsilon":1e-05,"tie_word_embeddings":true})",
            R"({"model_type":"gpt2","n_positions":1024,"vocab_size":50257,"n_layer":12,"n_embd":768,"n_head":12,)"
            R"("n_inner":3072,"scale_attn_weights":true,"reorder_and_upcast_attn":false,"add_cross_attention":false})"};
}

// The record of a token cache, NAME.json, and a shard beside it. The text is /dev/null, because its size and time come
// from the system; the cache is in /proc, where nothing can be removed. The input does not contain the rest of the
// shard's header, which is zeros.
constexpr size_t header_used = 12, header = 1024;

CachedTokens cached_null(const Tokenizer& tokenizer) {
    std::optional<Survey> surveyed;
    return cached_tokens({.paths = {"/dev/null"}, .source = "/dev/null"}, surveyed, TextPart::all, tokenizer, "/proc",
                         "train");
}

void run_cache(std::string_view input) {
    const auto files = split_files(input, 2);
    memory_files::put("/dev/null", "some text");
    memory_files::put("/proc/train.json", files[0]);
    if (files.size() > 1) {
        std::string shard(files[1]);
        if (shard.size() > header_used) shard.insert(header_used, header - header_used, '\0');
        memory_files::put("/proc/train.bin", shard);
    }
    static const auto bytes = load_tokenizer("byte");
    const CachedTokens tokens = cached_null(*bytes);
    for (const std::string& path : tokens.shards) {
        require(path.starts_with("/proc/train") && path.find("..") == std::string::npos, "shards lie in the cache");
        // Whatever record and shard contain, the result is a note about them and the text's own tokens.
        require(Shard(path).size() == 9, "the tokens are the text's");
        for (int i = 0; i < 9; i++)
            require(Shard(path)[i] == static_cast<unsigned char>("some text"[i]), "the tokens are the text's");
    }
    require(tokens.separators == 0, "one text has no separators");
    for (const auto* lines : {&tokens.remade, &tokens.text})
        for (const std::string& note : *lines) require_printable(note, false);
}

std::vector<std::string> seeds_cache() {
    memory_files::clear();
    memory_files::put("/dev/null", "some text");
    cached_null(*load_tokenizer("byte"));
    const std::string record = nlohmann::json::parse(memory_files::get("/proc/train.json")).dump();  // the shorter
    std::string shard = memory_files::get("/proc/train.bin");
    shard.erase(header_used, header - header_used);
    std::string damaged = shard, old = record;
    damaged.back() ^= 1;
    old.replace(old.find("version 2"), 9, "version 1");
    return {join_files({record, shard}), join_files({record, damaged}), join_files({old, shard}), record,
            R"({"format":"train_gpt2 token cache, version 2","shards":[]})"};
}

// A text, plain or compressed by gzip: zlib's reading of headers and lengths, and the notes about the text.
void run_text_file(std::string_view input) {
    memory_files::put("t.txt", input);
    static const auto bytes = load_tokenizer("byte");
    const TextFile file("t.txt");
    // In small pieces, whose borders are within characters, the notes are the same.
    TextCheck whole, in_pieces;
    whole.add(file.text());
    for (size_t at = 0; at < file.text().size(); at += 3) in_pieces.add(file.text().substr(at, 3));
    require(whole.notes("t.txt", *bytes) == in_pieces.notes("t.txt", *bytes), "notes do not depend on pieces");
    require(whole.invalid_utf8_note() == in_pieces.invalid_utf8_note(), "notes do not depend on pieces");
    for (const std::string& note : whole.notes("t.txt", *bytes)) require_printable(note, false);
    require_printable(whole.invalid_utf8_note(), false);
}

std::vector<std::string> seeds_text_file() {
    // "some text\n", compressed by Python's gzip
    const std::string packed(
        "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x2b\xce\xcf\x4d\x55\x28\x49\xad\x28\xe1\x02\x00\xbc\xe6\x2c\x19\x0a"
        "\x00\x00\x00",
        30);
    return {packed, packed + packed, "\xEF\xBB\xBFna\xefve \xE2\x82", std::string("w\0i\0d\0e\0", 8)};
}

}  // namespace

const FuzzTarget fuzz_log{"log", run_log, seeds_log};
const FuzzTarget fuzz_trainer_state{"trainer_state", run_trainer_state, seeds_trainer_state};
const FuzzTarget fuzz_config_json{"config_json", run_config, seeds_config};
const FuzzTarget fuzz_text_file{"text_file", run_text_file, seeds_text_file};
const FuzzTarget fuzz_text_cache{"text_cache", run_cache, seeds_cache};
