// Caches text files as token shards: a text is tokenized once, in parallel, and its shards are stored with a record of
// what they were made from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file/checksum.h"
#include "io/text/tokenizer.h"

struct TokenizeLimits {
    int64_t chunk_bytes = 1 << 20;       // of text per thread at a time
    int64_t shard_tokens = 250'000'000;  // 500 MB per shard, which are also held in memory
};

// Writes the tokens of `text` to `path` (X.bin) or, if there are more than limits.shard_tokens, to X_000000.bin,
// X_000001.bin, … The tokens are the same as if all of the text were encoded at once. Throws InputError, also for a
// vocabulary whose ids do not fit the shards' uint16.
std::vector<WrittenFile> tokenize_to_shards(std::string_view text, const Tokenizer& tokenizer, const std::string& path,
                                            const TokenizeLimits& limits = {});

// The part of a text file, by its bytes, that is wanted as tokens.
enum class TextPart { all, first_nine_tenths, last_tenth };
std::string_view part_of_text(std::string_view text, TextPart part, const AddedTokens& added);

// Messages for the user, one line each.
struct CacheNotes {
    std::vector<std::string> remade;  // the cached tokens were damaged, or the text has changed since
    std::vector<std::string> text;    // doubts about the text itself (TextFile::notes)
};
// Returns the shards of a part of a text file: DIRECTORY/NAME.bin (or NAME_000000.bin, …), with NAME.json recording
// source, size, time, tokenizer and part, and the shards' checksums. The text is tokenized unless the record and the
// shards match. Throws InputError.
std::vector<std::string> cached_shards(const std::string& text_path, TextPart part, const Tokenizer& tokenizer,
                                       const std::string& directory, const std::string& name, CacheNotes& notes);

// Checks each record in a directory, and compares each of its shards with its checksum, for `info --verify`. Records
// of earlier versions, which had no checksums, are left out.
std::vector<FileCheck> check_token_cache(const std::string& directory);
