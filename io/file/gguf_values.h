// The types of a GGUF tensor's values that this program reads and writes.
#pragma once

#include <cstdint>
#include <string_view>

// A number is stored as it is (F32, F16, BF16), or (Q8_0) as a whole multiple of its block's scale.
enum class GgufType : uint32_t { F32 = 0, F16 = 1, Q8_0 = 8, BF16 = 30 };

// Values are stored in blocks of `values`, which take `bytes`. A block lies within one row of a tensor.
struct GgufTypeInfo {
    GgufType type;
    const char* name;  // as --type names it
    int64_t values, bytes;
    uint32_t file_type;  // general.file_type of a file whose matrices have this type
};
inline constexpr GgufTypeInfo gguf_types[] = {{GgufType::F32, "f32", 1, 4, 0},
                                              {GgufType::F16, "f16", 1, 2, 1},
                                              {GgufType::Q8_0, "q8_0", 32, 34, 7},
                                              {GgufType::BF16, "bf16", 1, 2, 32}};
const GgufTypeInfo& gguf_type_info(GgufType type);
const GgufTypeInfo* find_gguf_type(uint32_t type);  // null if it is another type
const GgufTypeInfo* find_gguf_type(std::string_view name);

// `from` and `to` have room for `count` values, a whole number of blocks. Bytes need no alignment.
void decode_values(GgufType type, const uint8_t* from, int64_t count, float* to);
void encode_values(GgufType type, const float* from, int64_t count, uint8_t* to);
// Whether these values are finite in the type: F16 ends at 65504, and so does a scale of Q8_0. F32 holds any values.
bool holds_values(GgufType type, const float* from, int64_t count);
