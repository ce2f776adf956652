#include "io/file/checksum.h"

#include <zlib.h>

#include <algorithm>

uint32_t checksum(const void* data, int64_t bytes, uint32_t before) {
    if (bytes == 0) return before;  // zlib would return 0 if `data` is null
    return static_cast<uint32_t>(crc32_z(before, static_cast<const Bytef*>(data), static_cast<size_t>(bytes)));
}

uint32_t checksum(const MappedFile& file) {
    uint32_t crc = 0;
    file.each_piece([&](const uint8_t* data, int64_t bytes) { crc = checksum(data, bytes, crc); });
    return crc;
}

uint32_t checksum_castagnoli(std::string_view bytes) {
    uint32_t crc = ~0u;
    for (const char byte : bytes) {
        crc ^= static_cast<uint8_t>(byte);
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

std::vector<uint32_t> piece_checksums(const void* data, int64_t bytes) {
    std::vector<uint32_t> sums(static_cast<size_t>((bytes + checksum_piece - 1) / checksum_piece));
#pragma omp parallel for schedule(dynamic) if (sums.size() > 1)
    for (int64_t i = 0; i < std::ssize(sums); i++) {
        const int64_t begin = i * checksum_piece;
        sums[i] = checksum(static_cast<const uint8_t*>(data) + begin, std::min(checksum_piece, bytes - begin));
    }
    return sums;
}

uint32_t combined_checksum(const std::vector<uint32_t>& pieces, int64_t bytes) {
    uLong crc = 0;
    for (const uint32_t piece : pieces) {
        const int64_t size = std::min(checksum_piece, bytes);
        crc = crc32_combine(crc, piece, size);
        bytes -= size;
    }
    return static_cast<uint32_t>(crc);
}
