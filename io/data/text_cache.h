// Text files as token shards: tokenised in parallel, once, and kept with a record of what they were made
// from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file/checksum.h"
#include "io/text/tokenizer.h"

struct TokenizeLimits {
    int64_t chunk_bytes = 1 << 20;       // a thread's work at a time
    int64_t shard_tokens = 250'000'000;  // 500 MB, which is also what is held in memory
};

// Writes the tokens of `text` to `path` (X.bin) or, where they exceed limits.shard_tokens, to X_000000.bin,
// X_000001.bin, … The tokens are those of encoding all of the text at once. Throws InputError, also for a
// vocabulary whose ids do not fit the shards' uint16.
std::vector<WrittenFile> tokenize_to_shards(std::string_view text, const Tokenizer& tokenizer, const std::string& path,
                                            const TokenizeLimits& limits = {});

// Where text may be cut nearest behind `begin + size` so that both sides encode on their own as they do
// together.
int64_t safe_cut(std::string_view text, int64_t begin, int64_t size, const Tokenizer& tokenizer);

// A text file of which a part (of its bytes) is wanted as tokens.
enum class TextPart { all, first_nine_tenths, last_tenth };

// The shards of a part of a text file: DIRECTORY/NAME.bin (or NAME_000000.bin, …), with NAME.json recording
// source, size, time, tokenizer and part, and the shards' checksums. Made unless that record and they match. Throws
// InputError.
struct CacheNotes {
    std::vector<std::string> remade;  // a line where what was kept is damaged, or of another text than there is now
    std::vector<std::string> text;    // and where the text may not be what it should be (TextFile::notes)
};
std::vector<std::string> cached_shards(const std::string& text_path, TextPart part, const Tokenizer& tokenizer,
                                       const std::string& directory, const std::string& name, CacheNotes& notes);

// Each record in a directory, and each of its shards compared with its checksum, for `info --verify`. Records of
// before there were checksums are left out.
std::vector<FileCheck> check_token_cache(const std::string& directory);
