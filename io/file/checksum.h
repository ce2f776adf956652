// CRC-32 checksums, as in zip and zlib unless they are named otherwise. They reveal files that were damaged after they
// were written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file/file.h"

// `before` is the checksum of the bytes that precede these.
uint32_t checksum(const void* data, int64_t bytes, uint32_t before = 0);
inline uint32_t checksum(std::string_view text, uint32_t before = 0) {
    return checksum(text.data(), std::ssize(text), before);
}
uint32_t checksum(const MappedFile& file);

// CRC-32C, with Castagnoli's polynomial, as in TensorFlow's files. It is not made for long data.
uint32_t checksum_castagnoli(std::string_view bytes);

// The checksums of a file's pieces, computed on all threads. Each piece but the last has checksum_piece bytes.
inline constexpr int64_t checksum_piece = 16 << 20;
std::vector<uint32_t> piece_checksums(const void* data, int64_t bytes);
// The checksum of the whole file, from those of its pieces.
uint32_t combined_checksum(const std::vector<uint32_t>& pieces, int64_t bytes);

// The result of comparing a file with its checksum.
struct FileCheck {
    std::string name, trouble;  // trouble: one line, or "" if the file is intact
};
