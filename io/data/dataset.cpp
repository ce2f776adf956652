#include "io/data/dataset.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "io/file/checksum.h"
#include "io/file/error.h"
#include "io/text/file_kind.h"
#include "io/file/json.h"
#include "io/data/text_cache.h"

namespace {

// Of a shard, by its ids: llm.c writes GPT-2's as uint16, and Llama 3's, of which there are more, as uint32.
struct ShardFormat {
    int32_t magic, version;
    int64_t id_bytes;
};
constexpr ShardFormat narrow{20240520, 1, sizeof(uint16_t)}, wide{20240801, 7, sizeof(uint32_t)};
constexpr int64_t header_words = 256, header_bytes = header_words * 4;

std::string in_parentheses(const std::string& text) { return text.empty() ? "" : " (" + text + ")"; }

Dataset open_shards(const std::vector<std::string>& paths, const std::string& source) {
    Dataset dataset{.shards = {}, .source = source};
    for (const std::string& path : paths) dataset.shards.emplace_back(path);
    return dataset;
}

std::string_view first_bytes(const MappedFile& file, int64_t count) {
    return {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(std::min(count, file.size()))};
}

// Refuses the byte tokenizer: it is the default, which says nothing about how the ids in this file were made.
Shard open_headerless(const std::string& path, const Tokenizer& tokenizer) {
    if (tokenizer.name() == "byte")
        throw InputError(path +
                         ": no llm.c header, only 16-bit token ids as nanoGPT's prepare.py writes them; pass the "
                         "--tokenizer that made them, usually --tokenizer gpt2");
    return Shard::headerless(path);
}

// Adds a note if all ids are far below the vocabulary, as when bytes are read as GPT-2 tokens.
void note_low_ids(Dataset& dataset, const std::vector<uint32_t>& largest, int64_t vocab) {
    constexpr int64_t enough_tokens = 10'000, far = 32;
    const int64_t most = largest.empty() ? 0 : *std::max_element(largest.begin(), largest.end());
    if (dataset.tokens() < enough_tokens || most * far >= vocab) return;
    dataset.notes.push_back(without_controls(dataset.source) + ": no id is above " + std::to_string(most) + " in " +
                            std::to_string(dataset.tokens()) + " tokens, of a vocabulary of " + std::to_string(vocab) +
                            "; were they made with another tokenizer (`tokenize` writes bytes unless --tokenizer is "
                            "given)?");
}

// Opens the shards that the user named.
Dataset open_given_shards(const std::vector<std::string>& paths, const std::string& source, const Tokenizer& tokenizer,
                          int64_t vocab) {
    Dataset dataset{.shards = {}, .source = source};
    std::vector<uint32_t> largest;
    std::vector<std::string> headerless;
    for (const std::string& path : paths) {
        const bool raw = is_headerless(MappedFile(path));
        dataset.shards.push_back(raw ? open_headerless(path, tokenizer) : Shard(path));
        if (raw) headerless.push_back(path);
        largest.push_back(check_ids(dataset.shards.back(), vocab));
    }
    if (!headerless.empty())
        dataset.notes.push_back(without_controls(headerless[0]) +
                                (headerless.size() > 1
                                     ? " and " + std::to_string(headerless.size() - 1) + " more files: no headers"
                                     : ": no header") +
                                ", so that all of it is read as token ids, as nanoGPT's prepare.py writes them");
    if (tokenizer.reads_text()) note_low_ids(dataset, largest, vocab);
    return dataset;
}

// The largest id, or 0 if the shard is empty.
uint32_t largest_id(const Shard& shard) {
    return shard.with_ids([](auto ids) {
        const auto* const tokens = ids.data();
        const int64_t size = std::ssize(ids);
        uint32_t largest = 0;
#pragma omp parallel for simd reduction(max : largest)
        for (int64_t i = 0; i < size; i++) largest = std::max(largest, uint32_t{tokens[i]});
        return largest;
    });
}

// The index of the first id that is not below `vocab`. The caller knows that there is one.
int64_t find_beyond(const Shard& shard, int64_t vocab) {
    return shard.with_ids([=](auto ids) -> int64_t {
        return std::ranges::find_if(ids, [=](int64_t id) { return id >= vocab; }) - ids.begin();
    });
}

std::string outside_text(int64_t vocab) { return " is outside the model's vocabulary of " + std::to_string(vocab); }

// Checks the ids, as a tokenizer may have more tokens than the model has ids. The message names the text, not its
// shards.
void check_text_ids(const Dataset& dataset, TextPart part, const Tokenizer& tokenizer, int64_t vocab) {
    const char* parts[] = {"", " of its first nine tenths", " of its last tenth"};
    int64_t before = 0;
    for (const Shard& shard : dataset.shards) {
        if (shard.size() > 0 && largest_id(shard) >= vocab) {
            const int64_t at = find_beyond(shard, vocab);
            const uint32_t id = shard[at];
            throw InputError(dataset.source + ": token " + std::to_string(before + at) + parts[static_cast<int>(part)] +
                             ": id " + std::to_string(id) + " (" + one_line(tokenizer.token(static_cast<int32_t>(id))) +
                             ")" + outside_text(vocab) +
                             "; remove it from the text, or pass the --tokenizer that the model was trained with");
        }
        before += shard.size();
    }
}

// Opens the files of one name. `surveyed` is the survey of a text, which its parts share.
Dataset open_part(const DataFiles& found, std::optional<Survey>& surveyed, TextPart part, const Tokenizer& tokenizer,
                  const std::string& cache_directory, const std::string& name, int64_t vocab,
                  const ReadProgress& progress) {
    const Texts& texts = found.files;
    if (found.shards) return open_given_shards(texts.paths, texts.paths[0], tokenizer, vocab);
    CachedTokens tokens = cached_tokens(texts, surveyed, part, tokenizer, cache_directory, name, progress);
    Dataset dataset = open_shards(tokens.shards, texts.source);
    dataset.remade = !tokens.remade.empty();
    dataset.notes = std::move(tokens.remade);
    if (part != TextPart::last_tenth) tokens.text.insert(tokens.text.end(), found.notes.begin(), found.notes.end());
    dataset.notes.insert(dataset.notes.end(), tokens.text.begin(), tokens.text.end());
    check_text_ids(dataset, part, tokenizer, vocab);
    for (const Shard& shard : dataset.shards)
        for (const auto& [id, count] : shard.with_ids([&](auto ids) { return tokenizer.added().count_special(ids); }))
            dataset.special[id] += count;
    dataset.separators = tokens.separators;
    if (const auto end = dataset.special.find(tokenizer.end_of_text());
        end != dataset.special.end() && (end->second -= tokens.separators) <= 0)
        dataset.special.erase(end);
    return dataset;
}

int64_t ids_of(const Tokenizer& tokenizer, int64_t vocab) { return vocab > 0 ? vocab : tokenizer.vocab(); }

// Holds out the last shard or, if there is only one, its last tenth.
Datasets split_shards(Dataset all) {
    Datasets out{.train = {.shards = {}, .source = all.source, .notes = all.notes},
                 .val = {.shards = {}, .source = all.source}};
    const Shard last = all.shards.back();
    all.shards.pop_back();
    out.train.shards = std::move(all.shards);
    int64_t cut = 0;
    if (out.train.shards.empty()) {
        cut = static_cast<int64_t>(0.9 * static_cast<double>(last.size()));
        out.train.shards.push_back(last.part(0, cut));
    }
    out.val.shards.push_back(last.part(cut, last.size()));
    return out;
}

std::array<int32_t, header_words> read_header(const MappedFile& file) {
    if (file.size() < header_bytes)
        bad_input(file.path(), "size", std::to_string(file.size()) + " bytes",
                  "at least the 1024 bytes of a token shard's header",
                  "pass an llm.c shard; the name of a text file must not end in .bin");
    std::array<int32_t, header_words> header;
    std::copy_n(file.data(), header_bytes, reinterpret_cast<uint8_t*>(header.data()));
    return header;
}

}  // namespace

Shard::Shard(const std::string& path) : file_(std::make_shared<const MappedFile>(path)) {
    const auto header = read_header(*file_);
    is_wide_ = header[0] == wide.magic;
    const ShardFormat& format = is_wide_ ? wide : narrow;
    if (header[0] != format.magic)
        bad_input(path, "magic number",
                  std::to_string(header[0]) + in_parentheses(kind_of(first_bytes(*file_, 64)).name),
                  std::to_string(narrow.magic) + " or " + std::to_string(wide.magic) + " (an llm.c token shard)",
                  "pass an llm.c shard; the name of a text file must not end in .bin");
    if (header[1] != format.version)
        bad_input(path, "version", std::to_string(header[1]), std::to_string(format.version), "write the shard again");
    size_ = static_cast<uint32_t>(header[2]);
    const int64_t expected = header_bytes + format.id_bytes * size_;
    if (file_->size() != expected)
        bad_input(path, "size", std::to_string(file_->size()) + " bytes",
                  std::to_string(expected) + " bytes for the header's " + std::to_string(size_) + " tokens",
                  "copy the shard again or write it again");
    ids_ = file_->data() + header_bytes;
}

// nanoGPT's prepare.py writes token ids without a header. A file is read as such only if it is nothing else: not of a
// known kind, not text (text has no zero bytes, but every id below 256 has one), and not an llm.c shard with a damaged
// magic number (whose header is nearly all zeros).
bool is_headerless(const MappedFile& file) {
    constexpr int64_t header_used = 12;
    const std::string_view begin = first_bytes(file, 1 << 16), header = begin.substr(0, header_bytes);
    return file.size() % 2 == 0 && kind_of(begin).name.empty() && begin.find('\0') != begin.npos &&
           header.find_first_not_of('\0', header_used) != header.npos;
}

Shard Shard::headerless(const std::string& path) {
    Shard shard(std::make_shared<const MappedFile>(path));
    shard.size_ = shard.file_->size() / 2;
    shard.ids_ = shard.file_->data();
    return shard;
}

Shard Shard::part(int64_t begin, int64_t end) const {
    Shard shard = *this;
    shard.ids_ = ids_ + begin * (is_wide_ ? wide : narrow).id_bytes;
    shard.size_ = end - begin;
    return shard;
}

int64_t Dataset::tokens() const {
    int64_t sum = 0;
    for (const Shard& shard : shards) sum += shard.size();
    return sum;
}

uint32_t check_ids(const Shard& shard, int64_t vocab) {
    const uint32_t largest = largest_id(shard);
    if (shard.size() == 0 || largest < vocab) return largest;
    const int64_t at = find_beyond(shard, vocab);
    throw InputError(shard.path() + ": token " + std::to_string(at) + ": id " + std::to_string(shard[at]) +
                     outside_text(vocab) + (shard.has_header() ? "" : " (no header: all of it is read as token ids)") +
                     "; pass the --tokenizer that the shard was made with, or a larger --vocab for a new model");
}

template <class Id>
WrittenFile write_shard(const std::string& path, const std::vector<Id>& tokens) {
    const ShardFormat& format = sizeof(Id) == narrow.id_bytes ? narrow : wide;
    const int64_t size = std::ssize(tokens);
    if (size > int64_t{UINT32_MAX})
        bad_input(path, "tokens", std::to_string(size), "at most " + std::to_string(UINT32_MAX) + " in one shard",
                  "write several shards");
    std::array<int32_t, header_words> header{format.magic, format.version, static_cast<int32_t>(size)};
    FileWriter file(path);
    file.write(header.data(), header_bytes);
    file.write(tokens.data(), format.id_bytes * size);
    return file.commit();
}
template WrittenFile write_shard(const std::string&, const std::vector<uint16_t>&);
template WrittenFile write_shard(const std::string&, const std::vector<uint32_t>&);

Datasets open_datasets(const DataNames& data, const DataNames& val, const Tokenizer& tokenizer,
                       const std::string& cache_directory, int64_t vocab, const ReadProgress& progress) {
    const DataFiles files = find_files(data);
    const int64_t ids = ids_of(tokenizer, vocab);
    std::optional<Survey> surveyed;
    const auto open = [&](const DataFiles& found, std::optional<Survey>& of_found, TextPart part, const char* name) {
        return open_part(found, of_found, part, tokenizer, cache_directory, name, ids, progress);
    };
    Datasets out;
    if (!val.empty()) {
        std::optional<Survey> of_val;
        out.train = open(files, surveyed, TextPart::all, "train");
        out.val = open(find_files(val), of_val, TextPart::all, "val");
    } else if (files.shards) {
        out = split_shards(open_given_shards(files.files.paths, data.text(), tokenizer, ids));
    } else {
        out.train = open(files, surveyed, TextPart::first_nine_tenths, "train");
        out.val = open(files, surveyed, TextPart::last_tenth, "val");
        for (const auto& [id, count] : std::exchange(out.val.special, {})) out.train.special[id] += count;
    }
    out.train.source = data.text();
    out.val.source = val.empty() ? data.text() + " (held-out part)" : val.text();
    if (val.empty())
        out.train.held_out = out.val.held_out = "the last " + std::to_string(out.val.tokens()) + " of " +
                                                std::to_string(out.train.tokens() + out.val.tokens()) +
                                                " are held out for validation, as no --val is given";
    return out;
}

TextCounts count_training_text(const DataNames& data, const DataNames& val, const AddedTokens& added, bool superwords,
                               const ReadProgress& progress) {
    const TextPart part = val.empty() ? TextPart::first_nine_tenths : TextPart::all;
    return count_text(find_texts(data), part, added, superwords, progress);
}

uint32_t fingerprint(const Datasets& datasets) {
    constexpr int64_t end = 2048;  // tokens
    std::vector<uint32_t> sums;
    for (const Dataset* dataset : {&datasets.train, &datasets.val}) {
        sums.push_back(static_cast<uint32_t>(std::ssize(dataset->shards)));
        for (const Shard& shard : dataset->shards) {
            const int64_t count = std::min(end, shard.size());
            sums.push_back(static_cast<uint32_t>(shard.size()));
            for (const Shard& part : {shard.part(0, count), shard.part(shard.size() - count, shard.size())})
                sums.push_back(
                    part.with_ids([](auto ids) { return checksum(ids.data(), std::ssize(std::as_bytes(ids))); }));
        }
    }
    return checksum(sums.data(), 4 * std::ssize(sums));
}

Dataset open_dataset(const DataNames& data, const Tokenizer& tokenizer, const std::string& cache_directory,
                     int64_t vocab, const ReadProgress& progress) {
    std::optional<Survey> surveyed;
    Dataset out = open_part(find_files(data), surveyed, TextPart::all, tokenizer, cache_directory, "data",
                            ids_of(tokenizer, vocab), progress);
    out.source = data.text();
    return out;
}
