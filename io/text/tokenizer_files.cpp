#include "io/text/tokenizer_files.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "io/text/byte_symbols.h"
#include "io/text/superwords.h"
#include "io/file/error.h"
#include "io/file/file.h"
#include "io/file/json.h"

namespace {

constexpr int64_t max_text_file = int64_t{16} << 20;

std::unordered_map<std::string_view, int32_t> index_tokens(const std::string& path,
                                                           const std::vector<std::string>& tokens,
                                                           const std::vector<AddedToken>& added) {
    std::unordered_map<std::string_view, int32_t> ids;
    std::vector<bool> is_added(tokens.size());
    for (const AddedToken& token : added) is_added[token.id] = true;
    for (size_t id = 0; id < tokens.size(); ++id) {
        const auto [first, is_new] = ids.emplace(tokens[id], static_cast<int32_t>(id));
        if (!is_new && !is_added[id]) {
            throw InputError(path + ": token " + std::to_string(id) + ": " + one_line(tokens[id]) +
                             " is already token " + std::to_string(first->second) + "; fetch the file again");
        }
    }
    return ids;
}

std::array<int32_t, 256> require_bytes(const std::string& path, const std::vector<std::string>& tokens) {
    const auto ids = find_byte_ids(tokens);
    for (int b = 0; b < 256; ++b) {
        if (ids[b] < 0) {
            throw InputError(path + ": no token for byte " + std::to_string(b) + "; use a byte-level BPE tokenizer");
        }
    }
    return ids;
}

}  // namespace

std::pair<std::string, std::string> parse_merge(const std::string& path, const std::string& field,
                                                std::string_view left, std::string_view right) {
    const auto l = from_symbols(left), r = from_symbols(right);
    if (!l || !r || l->empty() || r->empty()) {
        bad_input(path, field, one_line(std::string(left) + " " + std::string(right)),
                  "two tokens in GPT-2's byte characters with a space between", "fetch the file again");
    }
    return {*l, *r};
}

std::pair<std::string, std::string> parse_merge(const std::string& path, const std::string& field,
                                                std::string_view line) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) return parse_merge(path, field, line, {});
    return parse_merge(path, field, line.substr(0, space), line.substr(space + 1));
}

MergeList read_merge_lines(const std::string& path) {
    const MappedFile file(path);
    if (file.size() > max_text_file) {
        bad_input(path, "size", std::to_string(file.size()) + " bytes", "at most 16 MiB of merges",
                  "pass a merges file such as vocab.bpe");
    }
    std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    MergeList merges;
    for (int64_t number = 1; !text.empty(); ++number) {
        const size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (number == 1 && line.starts_with("#version")) continue;
        if (line.empty() && text.empty()) break;
        merges.push_back(parse_merge(path, "line " + std::to_string(number), line));
    }
    return merges;
}

Vocabulary assemble_vocabulary(const std::string& path, std::vector<std::string> tokens, const MergeList& merges,
                               std::vector<AddedToken> added) {
    Vocabulary vocabulary;
    vocabulary.tokens = std::move(tokens);
    vocabulary.added = std::move(added);
    const auto ids = index_tokens(path, vocabulary.tokens, vocabulary.added);
    std::vector<bool> made(vocabulary.tokens.size(), false);
    for (const int32_t id : require_bytes(path, vocabulary.tokens)) made[id] = true;
    for (const auto& [left, right] : merges) {
        const std::string field = "merge " + std::to_string(vocabulary.merges.size() + 1);
        const auto find_part = [&](const std::string& part) {
            const auto it = ids.find(part);
            if (it == ids.end() || !made[it->second]) {
                bad_input(path, field, "the part " + one_line(to_symbols(part)),
                          "a byte or the result of an earlier merge", "fetch the file again");
            }
            return it->second;
        };
        Merge merge{find_part(left), find_part(right), -1};
        const auto result = ids.find(left + right);
        if (result == ids.end() || made[result->second]) {
            throw InputError(
                path + ": " + field + ": " + one_line(to_symbols(left + right)) +
                (result == ids.end() ? " is not in the vocabulary" : " results from an earlier merge too") +
                "; fetch the file again");
        }
        merge.result = result->second;
        made[merge.result] = true;
        vocabulary.merges.push_back(merge);
    }
    if (const auto it = ids.find(end_of_text_token); it != ids.end() && !made[it->second]) {
        vocabulary.end_of_text = it->second;
    }
    return vocabulary;
}

void recognise_end_of_text(Vocabulary& vocabulary) {
    const int32_t end = vocabulary.end_of_text;
    if (end < 0 || std::ranges::find(vocabulary.added, end, &AddedToken::id) != vocabulary.added.end()) return;
    vocabulary.added.push_back({.id = end, .content = vocabulary.tokens[end], .special = true});
    std::ranges::sort(vocabulary.added, {}, &AddedToken::id);
}

Vocabulary read_merges_file(const std::string& path) {
    const MergeList merges = read_merge_lines(path);
    if (merges.empty()) {
        throw InputError(path + ": contains no merges (lines such as \"\xC4\xA0 t\"); fetch the file again");
    }
    std::vector<std::string> tokens = gpt2_byte_tokens();
    for (const auto& [left, right] : merges) tokens.push_back(left + right);
    tokens.push_back(end_of_text_token);
    Vocabulary vocabulary = assemble_vocabulary(path, std::move(tokens), merges);
    recognise_end_of_text(vocabulary);
    return vocabulary;
}

namespace {

constexpr const char* remedy = "write it again with llm.c's train_gpt2.py or `convert`";

// llm.c's file lists no merges. Encoding a token's bytes with the merges before it must leave two parts, its merge. Nor
// does it say how a text is cut into words: a token that crosses them tells.
void find_merges(const std::string& path, Vocabulary& vocabulary) {
    BytePairMerger merger(require_bytes(path, vocabulary.tokens));
    std::vector<int32_t> parts;
    for (int32_t id = 0; id < std::ssize(vocabulary.tokens); ++id) {
        if (vocabulary.tokens[id].size() == 1 || id == vocabulary.end_of_text) continue;
        parts.clear();
        merger.encode(vocabulary.tokens[id], parts);
        if (parts.size() != 2) {
            bad_input(path, "token " + std::to_string(id), one_line(vocabulary.tokens[id]),
                      "the concatenation of two earlier tokens", remedy);
        }
        vocabulary.merges.push_back({parts[0], parts[1], id});
        merger.add(vocabulary.merges.back());
    }
    const auto crosses = [&](const Merge& merge) {
        return vocabulary.tokens[merge.result].find(' ', 1) != std::string::npos &&
               !is_within_word(vocabulary.tokens[merge.result]);
    };
    vocabulary.superwords = std::ranges::any_of(vocabulary.merges, crosses);
    if (vocabulary.superwords) require_tokens_within_lines(path, vocabulary.tokens);
}

}  // namespace

Vocabulary read_llmc_tokenizer(const std::string& path) {
    constexpr int64_t header_bytes = 1024;
    const MappedFile file(path);
    if (file.size() < header_bytes) {
        bad_input(path, "size", std::to_string(file.size()) + " bytes", "a header of 1024 bytes", remedy);
    }
    int32_t header[4];
    std::memcpy(header, file.data(), sizeof header);
    if (header[0] != 20240328) {
        bad_input(path, "magic number", std::to_string(header[0]), "20240328 (an llm.c tokenizer)",
                  "pass a tokenizer file");
    }
    if (header[1] != 2) bad_input(path, "version", std::to_string(header[1]), "2", remedy);
    const int64_t count = header[2], end_id = header[3];
    if (count < 256 || count > (file.size() - header_bytes) / 2) {  // a token takes two bytes at least
        bad_input(path, "number of tokens", std::to_string(count),
                  "256 to " + std::to_string((file.size() - header_bytes) / 2) + " (what the file can hold)", remedy);
    }
    if (end_id < -1 || end_id >= count) {
        bad_input(path, "id of end-of-text", std::to_string(end_id), "-1 to " + std::to_string(count - 1), remedy);
    }
    Vocabulary vocabulary;
    vocabulary.end_of_text = static_cast<int32_t>(end_id);
    int64_t at = header_bytes;
    for (int64_t id = 0; id < count; ++id) {
        const int64_t length = at < file.size() ? file.data()[at] : 0;
        if (length == 0 || at + 1 + length > file.size()) {
            bad_input(path, "token " + std::to_string(id),
                      length == 0 && at < file.size() ? "length 0" : "the end of the file",
                      "a length from 1 to 255 and that many bytes", remedy);
        }
        vocabulary.tokens.emplace_back(reinterpret_cast<const char*>(file.data()) + at + 1, length);
        at += 1 + length;
    }
    if (at != file.size()) {
        bad_input(path, "size", std::to_string(file.size()) + " bytes",
                  std::to_string(at) + " for its " + std::to_string(count) + " tokens", remedy);
    }
    index_tokens(path, vocabulary.tokens, {});
    find_merges(path, vocabulary);
    if (end_id >= 0 && vocabulary.tokens[end_id].size() > 1) recognise_end_of_text(vocabulary);  // not for a byte
    return vocabulary;
}
