// Caches text files as token shards: a text is tokenized once, in parallel, and its shards are stored with a record of
// what they were made from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file/checksum.h"
#include "io/text/documents.h"
#include "io/text/text_groups.h"
#include "io/text/tokenizer.h"
#include "io/text/word_counts.h"

struct TokenizeLimits {
    int64_t chunk_bytes = 1 << 20;       // of text per thread at a time
    int64_t shard_tokens = 250'000'000;  // 500 MB or 1 GB per shard, which are also held in memory
};

// Writes the tokens of `text` to `path` (X.bin) or, if there are more than limits.shard_tokens, to X_000000.bin,
// X_000001.bin, … The tokens are the same as if all of the text were encoded at once. Throws InputError.
std::vector<WrittenFile> tokenize_to_shards(std::string_view text, const Tokenizer& tokenizer, const std::string& path,
                                            const TokenizeLimits& limits = {});

struct TokenizedTexts {
    std::vector<WrittenFile> shards;
    int64_t separators = 0;  // documents, if end-of-text follows each
};
// The same for texts, of which `surveyed` is the survey. What follows a document of several is the tokenizer's
// end-of-text or, if it has none, a line break.
TokenizedTexts tokenize_to_shards(const Texts& texts, const Survey& surveyed, const Tokenizer& tokenizer,
                                  const std::string& path, const TokenizeLimits& limits = {},
                                  TextPart part = TextPart::all, const ReadProgress& progress = {});

// Counts what a part of texts teaches a new tokenizer with these added tokens. The lines, for superwords, are those of
// some 4 MB of it, in pieces taken evenly from all of it.
TextCounts count_text(const Texts& texts, TextPart part, const AddedTokens& added, bool superwords,
                      const ReadProgress& progress = {});

// The cached tokens of a part of texts.
struct CachedTokens {
    std::vector<std::string> shards;
    int64_t separators = 0;             // as in TokenizedTexts
    std::vector<std::string> remade{};  // notes: the cached tokens were damaged, or the text has changed since
    std::vector<std::string> text{};    // notes: doubts about the text itself (Survey)
};
// Returns the shards: DIRECTORY/NAME.bin (or NAME_000000.bin, …), with NAME.json recording sources, sizes, times,
// tokenizer and part, and the shards' checksums. The text is tokenized unless the record and the shards match.
// `surveyed` is the texts' survey, which is made if it is needed first here. Throws InputError.
CachedTokens cached_tokens(const Texts& texts, std::optional<Survey>& surveyed, TextPart part,
                           const Tokenizer& tokenizer, const std::string& directory, const std::string& name,
                           const ReadProgress& progress = {});

// Checks each record in a directory, and compares each of its shards with its checksum, for `info --verify`. Records
// of earlier versions, which had no checksums, are left out.
std::vector<FileCheck> check_token_cache(const std::string& directory);
