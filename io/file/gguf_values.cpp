#include "io/file/gguf_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/float_formats.h"

namespace {

constexpr int64_t block = 32;  // values in a block of Q8_0: a scale in f16, and 32 multiples of it in int8
constexpr int64_t block_bytes = 2 + block;

template <class T>
T load(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

void store(uint16_t value, uint8_t* to) { std::memcpy(to, &value, sizeof value); }

float largest_magnitude(const float* from, int64_t count) {
    float largest = 0;
    for (int64_t i = 0; i < count; i++) largest = std::max(largest, std::abs(from[i]));
    return largest;
}

// The arithmetic is that of llama.cpp, whose quantizer gives the same bits: the multiples are of the scale before it is
// rounded to f16, and halves are rounded away from zero.
void encode_block(const float* from, uint8_t* to) {
    const float scale = largest_magnitude(from, block) / 127, inverse = scale == 0 ? 0 : 1 / scale;
    store(f16_from_float(scale), to);
    for (int64_t i = 0; i < block; i++)
        to[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::clamp(std::round(from[i] * inverse), -127.f, 127.f)));
}

void decode_block(const uint8_t* from, float* to) {
    const float scale = float_from_f16(load<uint16_t>(from));
    for (int64_t i = 0; i < block; i++) to[i] = scale * static_cast<float>(static_cast<int8_t>(from[2 + i]));
}

}  // namespace

const GgufTypeInfo* find_gguf_type(uint32_t type) {
    const auto* const found = std::ranges::find(gguf_types, static_cast<GgufType>(type), &GgufTypeInfo::type);
    return found == std::end(gguf_types) ? nullptr : found;
}

const GgufTypeInfo* find_gguf_type(std::string_view name) {
    const auto* const found = std::ranges::find(gguf_types, name, &GgufTypeInfo::name);
    return found == std::end(gguf_types) ? nullptr : found;
}

const GgufTypeInfo& gguf_type_info(GgufType type) { return *find_gguf_type(static_cast<uint32_t>(type)); }

void decode_values(GgufType type, const uint8_t* from, int64_t count, float* to) {
    switch (type) {
        case GgufType::F32:
            std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
            return;
        case GgufType::F16:
            for (int64_t i = 0; i < count; i++) to[i] = float_from_f16(load<uint16_t>(from + 2 * i));
            return;
        case GgufType::BF16:
            for (int64_t i = 0; i < count; i++) to[i] = float_from_bf16(load<uint16_t>(from + 2 * i));
            return;
        case GgufType::Q8_0:
            for (int64_t b = 0; b < count / block; b++) decode_block(from + b * block_bytes, to + b * block);
            return;
    }
}

void encode_values(GgufType type, const float* from, int64_t count, uint8_t* to) {
    switch (type) {
        case GgufType::F32:
            std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
            return;
        case GgufType::F16:
            for (int64_t i = 0; i < count; i++) store(f16_from_float(from[i]), to + 2 * i);
            return;
        case GgufType::BF16:
            for (int64_t i = 0; i < count; i++) store(bf16_from_float(from[i]), to + 2 * i);
            return;
        case GgufType::Q8_0:
            for (int64_t b = 0; b < count / block; b++) encode_block(from + b * block, to + b * block_bytes);
            return;
    }
}

bool holds_values(GgufType type, const float* from, int64_t count) {
    if (type == GgufType::F32) return true;
    if (!std::all_of(from, from + count, [](float x) { return std::isfinite(x); })) return false;
    const float largest = largest_magnitude(from, count);
    if (type == GgufType::BF16) return std::isfinite(float_from_bf16(bf16_from_float(largest)));
    return std::isfinite(float_from_f16(f16_from_float(type == GgufType::Q8_0 ? largest / 127 : largest)));
}
