#include "io/data/text_cache.h"

#include <nlohmann/json.hpp>
#include <omp.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <span>
#include <variant>

#include "io/file/checksum.h"
#include "io/data/dataset.h"
#include "io/text/byte_pair.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"
#include "device/platform.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Encodes pieces of text on all threads, and hands their tokens over in order.
template <class Take>
void encode_pieces(std::span<const TextPiece> pieces, const Tokenizer& tokenizer, Take take) {
    std::vector<std::vector<int32_t>> ids(pieces.size());
    std::exception_ptr error;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < pieces.size(); i++) {
        try {
            ids[i] = tokenizer.encode(pieces[i].text);
        } catch (...) {  // an exception must not leave a parallel region
#pragma omp critical
            error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
    for (size_t i = 0; i < pieces.size(); i++) take(ids[i], pieces[i].ends);
}

int64_t group_bytes(const TokenizeLimits& limits) { return 2 * omp_get_max_threads() * limits.chunk_bytes; }

std::string numbered(const std::string& path, int64_t number) {
    char suffix[32];
    std::snprintf(suffix, sizeof suffix, "_%06lld.bin", static_cast<long long>(number));
    return (path.ends_with(".bin") ? path.substr(0, path.size() - 4) : path) + suffix;
}

// Writes shards one after the other. The destructor removes them unless finish() was called.
class ShardWriter {
public:
    // For ids below `vocab`. `most` is how many there can be.
    ShardWriter(std::string path, int64_t vocab, int64_t limit, int64_t most) : path_(std::move(path)), limit_(limit) {
        if (vocab > UINT16_MAX + 1) buffer_ = std::vector<uint32_t>();
        std::visit([=](auto& ids) { ids.reserve(static_cast<size_t>(std::min(limit, most))); }, buffer_);
    }
    ~ShardWriter() {
        std::error_code ignored;
        if (!finished_)
            for (const WrittenFile& shard : shards_) fs::remove(shard.path, ignored);
    }
    void append(const std::vector<int32_t>& ids) {
        std::visit(
            [&]<class Id>(std::vector<Id>& buffer) {
                for (const int32_t id : ids) {
                    if (std::ssize(buffer) == limit_) flush(numbered(path_, std::ssize(shards_)));
                    buffer.push_back(static_cast<Id>(id));
                }
            },
            buffer_);
    }
    std::vector<WrittenFile> finish() {
        flush(shards_.empty() ? path_ : numbered(path_, std::ssize(shards_)));
        finished_ = true;
        return shards_;
    }

private:
    void flush(const std::string& path) {
        std::visit(
            [&](auto& ids) {
                shards_.push_back(write_shard(path, ids));
                ids.clear();
            },
            buffer_);
    }
    std::string path_;
    int64_t limit_;
    std::variant<std::vector<uint16_t>, std::vector<uint32_t>> buffer_;
    std::vector<WrittenFile> shards_;
    bool finished_ = false;
};

// Tells apart tokenizers of the same size, by their tokens and by what they recognize in a text. Their names would not
// do: one that was learned, or read from a file, is read from a checkpoint when the run is resumed. Earlier versions
// recorded a name and a 64-bit hash; a text whose record has these is tokenized again.
uint32_t fingerprint(const Tokenizer& tokenizer) {
    std::string all;
    const auto add = [&](const auto value) { all += std::to_string(value) + ' '; };
    for (int32_t id = 0; id < tokenizer.vocab(); id++) {
        const std::string_view bytes = tokenizer.token(id);
        add(bytes.size());
        all += bytes;
    }
    for (const AddedToken& token : tokenizer.added().list()) {
        add(token.id);
        for (const bool flag : {token.special, token.single_word, token.lstrip, token.rstrip, token.normalized})
            add(flag);
    }
    add(tokenizer.added().special_as_text());
    if (tokenizer.vocabulary() && tokenizer.vocabulary()->superwords) all += "superwords";
    return checksum(all);
}

// Version 1 had no checksums.
constexpr const char* record_format = "train_gpt2 token cache, version 2";
constexpr const char* damaged = "the file is damaged";
constexpr const char* damaged_record = "the record of the cached tokens is damaged";

std::string full_path(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

// One file is described by its name, size and time. Of several there may be too many for a record: it has their number,
// size and newest time, and a checksum of the list.
json describe_files(const Texts& texts) {
    int64_t size = 0, newest = 0;
    std::string list;
    for (const std::string& path : texts.paths) {
        struct stat info {};
        if (stat(path.c_str(), &info) != 0) system_error(path, "open", errno, "check the path");
        const int64_t time = platform::modified_nanoseconds(info);
        newest = list.empty() ? time : std::max(newest, time);
        size += info.st_size;
        list += full_path(path) + '\0' + std::to_string(info.st_size) + ' ' + std::to_string(time) + '\n';
    }
    json files = {{"size", size}, {"mtime_ns", newest}};
    if (texts.paths.size() == 1) {
        files["source"] = json_of_path(full_path(texts.paths[0]));
    } else {
        files["source"] = json_of_path(texts.source);
        files["files"] = texts.paths.size();
        files["list_crc32"] = checksum(list);
    }
    return files;
}

json describe(const Texts& texts, TextPart part, const Tokenizer& tokenizer) {
    const char* parts[] = {"all", "first nine tenths", "last tenth"};
    json record = describe_files(texts);
    record["format"] = record_format;
    record["part"] = parts[static_cast<int>(part)];
    record["vocab"] = tokenizer.vocab();
    record["tokenizer_hash"] = fingerprint(tokenizer);
    if (texts.separated()) record["end_of_text"] = tokenizer.end_of_text();
    if (texts.wanted_bytes > 0) record["wanted_bytes"] = texts.wanted_bytes;
    if (std::ranges::any_of(texts.paths, is_json_lines)) record["field"] = json_of_path(texts.field);
    return record;
}

std::string dump(const json& record) { return record.dump(2) + "\n"; }

// Whether a file is a record of the cache, also one of another version or a damaged one: it looks for two words, of
// which a single flipped bit leaves one intact.
bool is_record(const std::string& path) {
    if (!path_exists(path)) return false;
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
    return text.find("train_gpt2 token cache") != text.npos || text.find("\"tokenizer_hash\"") != text.npos;
}

std::string made_anew(const std::string& damage) { return damage + ": the text is tokenized again"; }

// Returns null if there is no record.
json read_record(const std::string& path, std::vector<std::string>& notes) {
    if (!is_record(path)) return nullptr;
    try {
        return read_json_file(path);
    } catch (const InputError& damage) {
        notes.push_back(made_anew(damage.what()));
        return nullptr;
    }
}

json describe_shard(const WrittenFile& shard) {
    return {{"file", fs::path(shard.path).filename().string()},
            {"tokens", Shard(shard.path).size()},
            {"crc32", shard.checksums}};
}

// Returns the path of a record's shard. Throws InputError unless its bytes are those that were written, and
// json::exception where the record is damaged.
std::string checked_shard(const std::string& directory, const json& shard) {
    const auto name = shard.at("file").get<std::string>();
    if (!is_file_name(name)) bad_input(directory, "shard", one_line(name), "the name of a file in it", damaged_record);
    const std::string path = directory + "/" + name;
    const MappedFile file(path);
    const json found = piece_checksums(file.data(), file.size()), &expected = shard.at("crc32");
    if (!expected.is_array() || expected.size() != found.size())
        bad_input(path, "CRC-32", json_text(found), json_text(expected), damaged);
    for (size_t i = 0; i < found.size(); i++)
        if (found[i] != expected[i])
            bad_input(path, "CRC-32 of part " + std::to_string(i + 1) + " of " + std::to_string(found.size()),
                      json_text(found[i]), json_text(expected[i]), damaged);
    const int64_t tokens = json_integer(directory, shard, "tokens", 0, UINT32_MAX);
    if (Shard(path).size() != tokens)
        bad_input(path, "tokens", std::to_string(Shard(path).size()), std::to_string(tokens), damaged);
    return path;
}

// The shards of a record, if it describes what is wanted and they are intact; otherwise none.
std::vector<std::string> reusable(json record, const json& wanted, const std::string& directory,
                                  std::vector<std::string>& notes) {
    if (!record.is_object() || !record.contains("shards")) return {};
    const json shards = record["shards"];
    record.erase("shards");
    const json separators = record.value("separators", json());
    record.erase("separators");
    if (record != wanted || separators.is_number_unsigned() != wanted.contains("end_of_text")) return {};
    std::vector<std::string> paths;
    try {
        for (const json& shard : shards) paths.push_back(checked_shard(directory, shard));
        return paths;
    } catch (const json::exception&) {
        notes.push_back(made_anew(directory + ": " + damaged_record));
    } catch (const InputError& damage) {
        notes.push_back(made_anew(damage.what()));
    }
    return {};
}

// Whether the same file, tokenized in the same way, gave different tokens.
bool is_of_changed_text(const json& old, const json& made) {
    const auto differ = [&](const char* key) { return old.value(key, json()) != made.value(key, json()); };
    if (!old.is_object() || (!differ("size") && !differ("mtime_ns") && !differ("list_crc32"))) return false;
    for (const char* key :
         {"format", "source", "part", "vocab", "tokenizer_hash", "end_of_text", "field", "wanted_bytes"})
        if (differ(key)) return false;
    return old.contains("shards") && differ("shards");
}

// Removes the shards of the previous text. Files of these names without a record are the user's own, and are refused.
void make_room(const std::string& directory, const std::string& name) {
    const std::string path = directory + "/" + name + ".bin", record = directory + "/" + name + ".json";
    std::error_code ignored;
    if (is_record(record)) {
        fs::remove(path, ignored);
        for (int64_t i = 0; fs::remove(numbered(path, i), ignored); i++) continue;
    } else if (path_exists(path) || path_exists(record)) {
        throw InputError(path + ": this file was not written by the token cache; move it and " + name +
                         ".json away, or choose another --out");
    }
}

}  // namespace

std::vector<WrittenFile> tokenize_to_shards(std::string_view text, const Tokenizer& tokenizer, const std::string& path,
                                            const TokenizeLimits& limits) {
    ShardWriter writer(path, tokenizer.vocab(), limits.shard_tokens, std::ssize(text));
    TextGroups groups(tokenizer.added(), limits.chunk_bytes, group_bytes(limits), [&](const auto& pieces) {
        encode_pieces(pieces, tokenizer, [&](const auto& ids, bool) { writer.append(ids); });
    });
    groups.add(text, true);
    groups.finish();
    return writer.finish();
}

TokenizedTexts tokenize_to_shards(const Texts& texts, const Survey& surveyed, const Tokenizer& tokenizer,
                                  const std::string& path, const TokenizeLimits& limits, TextPart part,
                                  const ReadProgress& progress) {
    const bool has_end = tokenizer.end_of_text() >= 0;
    std::vector<int32_t> separator;  // follows each document
    if (texts.separated()) separator = has_end ? std::vector{tokenizer.end_of_text()} : tokenizer.encode("\n");
    ShardWriter writer(path, tokenizer.vocab(), limits.shard_tokens, surveyed.bytes);
    TokenizedTexts result;
    TextGroups groups(
        tokenizer.added(), limits.chunk_bytes, group_bytes(limits),
        [&](const auto& pieces) {
            encode_pieces(pieces, tokenizer, [&](const auto& ids, bool ends) {
                writer.append(ids);
                if (!ends) return;
                writer.append(separator);
                result.separators += has_end && !separator.empty();
            });
        },
        part, surveyed.bytes, texts.wanted_bytes);
    read_documents(
        texts, [&](std::string_view text, bool ends) { return groups.add(text, ends); }, "tokenizing", progress);
    groups.finish();
    result.shards = writer.finish();
    return result;
}

TextCounts count_text(const Texts& texts, TextPart part, const AddedTokens& added, bool superwords,
                      const ReadProgress& progress) {
    constexpr int64_t bytes_of_lines = 4'000'000;
    const bool all = part == TextPart::all && texts.wanted_bytes == 0;
    const int64_t bytes = all && !superwords ? 0 : survey(texts, *load_tokenizer("byte"), progress).bytes;
    const auto count = [&](Pieces kind, int64_t wanted_bytes) {
        WordCounts counts;
        // Large groups, because the counts of the threads are added up after each.
        TextGroups groups(
            added, 1 << 20, 64 << 20, [&](const auto& pieces) { counts.add_pieces(pieces, added, kind); }, part, bytes,
            wanted_bytes);
        read_documents(
            texts, [&](std::string_view text, bool ends) { return groups.add(text, ends); }, "words", progress);
        groups.finish();
        return counts;
    };
    if (!superwords) return {.words = count(Pieces::words, texts.wanted_bytes)};
    const int64_t of_lines = texts.wanted_bytes > 0 ? std::min(texts.wanted_bytes, bytes_of_lines) : bytes_of_lines;
    return {.words = count(Pieces::words_and_numbers, texts.wanted_bytes),
            .lines = count(Pieces::lines_and_numbers, of_lines)};
}

CachedTokens cached_tokens(const Texts& texts, std::optional<Survey>& surveyed, TextPart part,
                           const Tokenizer& tokenizer, const std::string& directory, const std::string& name,
                           const ReadProgress& progress) {
    require_text(tokenizer, texts.source, "pass --tokenizer byte|gpt2|FILE, or token shards (NAME.bin)");
    json record = describe(texts, part, tokenizer);
    const std::string record_path = directory + "/" + name + ".json";
    CachedTokens tokens;
    const json old = read_record(record_path, tokens.remade);
    tokens.shards = reusable(old, record, directory, tokens.remade);
    if (!tokens.shards.empty()) {
        tokens.separators = old.value("separators", int64_t{0});
        return tokens;
    }
    if (!surveyed) surveyed = survey(texts, tokenizer, progress);
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) throw InputError(directory + ": mkdir failed: " + error.message() + "; choose another --out");
    make_room(directory, name);
    write_file_atomically(record_path, dump(record));  // if the program is killed now, the next run knows these shards
    if (part != TextPart::last_tenth) tokens.text = surveyed->notes;  // once for both parts
    const int64_t used = texts.wanted_bytes > 0 ? std::min(texts.wanted_bytes, surveyed->bytes) : surveyed->bytes;
    const int64_t bytes = part == TextPart::all ? used : (part == TextPart::last_tenth ? 1 : 9) * (used / 10);
    if (bytes > 64 << 20)
        std::fprintf(stderr, "tokenizing %lld MB of %s, once\n", static_cast<long long>(bytes / 1'000'000),
                     without_controls(texts.source).c_str());
    const TokenizedTexts made =
        tokenize_to_shards(texts, *surveyed, tokenizer, directory + "/" + name + ".bin", {}, part, progress);
    tokens.separators = made.separators;
    if (texts.separated()) record["separators"] = made.separators;
    record["shards"] = json::array();
    for (const WrittenFile& shard : made.shards) {
        record["shards"].push_back(describe_shard(shard));
        tokens.shards.push_back(shard.path);
    }
    write_file_atomically(record_path, dump(record));
    if (is_of_changed_text(old, record))
        tokens.remade.push_back(without_controls(texts.source + ": another text than " + directory + "/" + name +
                                                 ".bin was made from: tokenized again"));
    return tokens;
}

std::vector<FileCheck> check_token_cache(const std::string& directory) {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const auto& item : fs::directory_iterator(directory, ignored))
        if (item.path().extension() == ".json" && is_record(item.path().string()))
            names.push_back(item.path().filename().string());
    std::sort(names.begin(), names.end());
    std::vector<FileCheck> checks;
    const auto check = [&](const std::string& name, const auto& read) {
        checks.push_back({name, ""});
        try {
            read();
        } catch (const InputError& error) {
            checks.back().trouble = error.what();
        } catch (const json::exception&) {
            checks.back().trouble = damaged_record;
        }
    };
    for (const std::string& name : names) {
        json record;
        check(name, [&] { record = read_json_file(directory + "/" + name); });
        if (record.is_object() && record.value("format", json()) != record_format) checks.pop_back();
        if (!record.is_object() || record.value("format", json()) != record_format || !record.contains("shards"))
            continue;
        for (const json& shard : record["shards"]) {
            const json file = shard.is_object() ? shard.value("file", json()) : json();
            check(file.is_string() ? file.get<std::string>() : name, [&] { checked_shard(directory, shard); });
        }
    }
    return checks;
}
