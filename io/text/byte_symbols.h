// GPT-2's files write each byte as one printable character: the byte itself if it is printable, otherwise a character
// from U+0100 on.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

std::string to_symbols(std::string_view bytes);
std::optional<std::string> from_symbols(std::string_view text);  // nullopt if a character is not a byte's symbol
// The 256 bytes in the order of GPT-2's ids: the printable ones first.
const std::vector<std::string>& gpt2_byte_tokens();
