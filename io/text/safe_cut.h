// Where a text can be cut for work in pieces.
#pragma once

#include <cstdint>
#include <string_view>

#include "io/text/added_tokens.h"

// Whether a line ends between two bytes: a line break, and what is certainly not white space.
bool is_line_end(char left, char right);

// The first place at or after `begin + size` where the text can be cut so that both sides, encoded separately by a
// tokenizer with these added tokens, give the same tokens as together.
int64_t safe_cut(std::string_view text, int64_t begin, int64_t size, const AddedTokens& added);
