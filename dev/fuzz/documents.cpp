// Texts as users have them: plain, JSON lines, gzip, zstd; read, cut into two parts and tokenized.
#include <zstd.h>

#include "dev/fuzz/memory_files.h"
#include "dev/fuzz/targets.h"
#include "io/data/dataset.h"
#include "io/data/text_cache.h"
#include "io/text/documents.h"

namespace {

constexpr std::string_view zstd_magic = "\x28\xb5\x2f\xfd";

// Whether a zstd frame wants more memory than a fuzzed reader may have: a header of a few bytes may name a window of
// gigabytes, which zstd reserves at once.
bool wants_large_window(std::string_view bytes) {
    for (size_t at = 0; (at = bytes.find(zstd_magic, at)) != bytes.npos; at++) {
        const auto byte = [&](size_t i) { return at + i < bytes.size() ? static_cast<uint8_t>(bytes[at + i]) : 0; };
        const bool single_segment = byte(4) & 0x20;
        if (single_segment ? byte(4) >= 0x80 : byte(5) >= 11 << 3) return true;  // 4 bytes of size; above 1 MB
    }
    return false;
}

std::string tokens_of(const Texts& texts, const Survey& surveyed, TextPart part, int64_t piece) {
    static const auto bytes = load_tokenizer("byte");
    std::string all;
    for (const WrittenFile& file :
         tokenize_to_shards(texts, surveyed, *bytes, "t.bin", {.chunk_bytes = piece}, part).shards) {
        const Shard shard(file.path);
        for (int64_t i = 0; i < shard.size(); i++) all += static_cast<char>(shard[i]);
    }
    return all;
}

void run_documents(std::string_view input) {
    if (input.empty() || wants_large_window(input)) return;
    const auto choice = static_cast<unsigned char>(input[0]);
    const std::string name = choice % 2 ? "t.jsonl" : "t.txt";
    memory_files::put(name, input.substr(1));
    const Texts texts{.paths = {name}, .source = name};
    const Survey surveyed = survey(texts, *load_tokenizer("byte"));
    for (const std::string& note : surveyed.notes) require_printable(note, false);
    std::string expected;
    int64_t bytes = 0;
    read_documents(
        texts,
        [&](std::string_view text, bool ends) {
            expected += text;
            bytes += std::ssize(text);
            if (ends && texts.separated()) expected += '\n';
            return true;
        },
        "");
    require(bytes == surveyed.bytes, "the survey counts the bytes");
    const int64_t piece = 1 + choice / 2;
    const std::string all = tokens_of(texts, surveyed, TextPart::all, piece);
    require(all == expected, "the tokens are those of the documents");
    require(tokens_of(texts, surveyed, TextPart::first_nine_tenths, piece) +
                    tokens_of(texts, surveyed, TextPart::last_tenth, piece) ==
                all,
            "two parts are the whole");
}

std::vector<std::string> seeds_documents() {
    const std::string lines = "{\"text\":\"one\\u00e9\\n\"}\n\n{\"id\":[1,{\"text\":2}],\"text\":\"two\\nlines\"}\n";
    std::string packed(ZSTD_compressBound(lines.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), lines.data(), lines.size(), 1));
    return {"\x01" + lines, "\x05" + packed, "\x07" + packed + packed, "\x04" + packed,
            "\x02one\ntwo\nthree \xE2\x82\xAC\nfour\n"};
}

}  // namespace

const FuzzTarget fuzz_documents{"documents", run_documents, seeds_documents};
