// CRC-32 checksums, as in zip and zlib: they find files that were damaged after they were written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file/file.h"

// `before`: the checksum of the bytes that stand before these.
uint32_t checksum(const void* data, int64_t bytes, uint32_t before = 0);
inline uint32_t checksum(std::string_view text, uint32_t before = 0) {
    return checksum(text.data(), std::ssize(text), before);
}
uint32_t checksum(const MappedFile& file);

// The checksums of a file's pieces, all of checksum_piece bytes but the last one, computed on all threads.
inline constexpr int64_t checksum_piece = 16 << 20;
std::vector<uint32_t> piece_checksums(const void* data, int64_t bytes);
// The checksum of the whole file, from those of its pieces.
uint32_t combined_checksum(const std::vector<uint32_t>& pieces, int64_t bytes);

// The result of comparing a file with its checksum.
struct FileCheck {
    std::string name, trouble;  // trouble: one line, or "" where the file's bytes are those that were written
};
